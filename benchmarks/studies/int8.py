"""Are int8 teachers worth having? Speed, cost per snapshot and quality of the targets (decision 0006).

Needs onnx, onnxruntime, onnxscript and openvino beside crad, and for `--isa avx2` a C compiler on Linux (Intel).

    python -m benchmarks.studies.int8 train --data cifar10.npz --work DIR     # the teachers, about ten minutes
    python -m benchmarks.studies.int8 speed --isa avx2                        # every engine, interleaved
    python -m benchmarks.studies.int8 cost --isa avx2                         # seconds per snapshot
    python -m benchmarks.studies.int8 quality --isa avx2 --data cifar10.npz --work DIR
    python -m benchmarks.studies.int8 calibration --data cifar10.npz --work DIR

`--isa avx2` hides AVX-512 and VNNI from every library in the process: the kernel makes the CPUID instruction fault,
and a handler answers it with those bits cleared. ONNX Runtime has no switch of its own. One thread everywhere.

Shapes: K teachers, B samples, C classes, O output channels.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import operator
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

from crad.aggregation import aggregate
from crad.data.preprocessing import Preprocessor, crop_and_flip, fit_preprocessor
from crad.models import POOL, Architecture, build_model

BATCH = 64
TEMPERATURE = 3.0
NUM_CLASSES = 10
ALPHA = 0.3
CALIBRATION = 128  # samples
WIDTHS = (1.0, 0.125)
Run = Callable[[Tensor], Tensor]

HIDE_AVX512 = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
#define SET_CPUID 0x1012
static void on_fault(int number, siginfo_t *info, void *context) {
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *code = (const uint8_t *)r[REG_RIP];
  if (code[0] != 0x0f || code[1] != 0xa2) { signal(number, SIG_DFL); return; }
  uint32_t leaf = r[REG_RAX], sub = r[REG_RCX], a = leaf, b, c = sub, d;
  syscall(SYS_arch_prctl, SET_CPUID, 1);
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  syscall(SYS_arch_prctl, SET_CPUID, 0);
  if (leaf == 7 && sub == 0) { b &= ~0xdc230000u; c &= ~0x00005842u; d &= ~0x03c0010cu; }
  if (leaf == 7 && sub == 1) { a &= ~0x00a00030u; d &= ~0x00080530u; }
  r[REG_RAX] = a; r[REG_RBX] = b; r[REG_RCX] = c; r[REG_RDX] = d; r[REG_RIP] += 2;
}
__attribute__((constructor)) static void hide(void) {
  struct sigaction action = {0};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, 0);
  if (syscall(SYS_arch_prctl, SET_CPUID, 0)) _exit(97);
}
"""


def restart_without_avx512() -> None:
    """Run this command again in a process in which no library sees AVX-512 or VNNI."""
    folder = Path(tempfile.mkdtemp())
    source, library = folder / "hide.c", folder / "hide.so"
    source.write_text(HIDE_AVX512)
    compiler = shutil.which("cc") or sys.exit("--isa avx2 needs a C compiler")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)  # noqa: S603
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.studies.int8", *sys.argv[1:]], environment)  # noqa: S606


# Teachers


@dataclass
class Teacher:
    """A trained snapshot, the one an epoch before, and its class statistics."""

    architecture: str
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    counts: Tensor
    accuracies: Tensor

    def model(self, *, epochs_ago: int = 0) -> nn.Module:
        """The frozen network."""
        model = new_model(self.architecture)
        model.load_state_dict(self.before if epochs_ago else self.after)
        return model


def new_model(architecture: str) -> nn.Module:
    """An untrained network for CIFAR-10 in evaluation mode."""
    parsed = Architecture.parse(architecture)
    model = build_model(parsed, num_classes=NUM_CLASSES, in_channels=3, image_size=(32, 32), seed=1)
    return model.eval().requires_grad_(False)


def train_teachers(data: Path, work: Path) -> None:
    """Two teachers of every architecture and width on differently skewed shards."""
    train = np.load(data)
    preparation = fit_preprocessor(train["train_images"], augmentation="crop-flip", device="cpu")
    for width in WIDTHS:
        teachers = []
        for index in range(2 * len(POOL)):
            architecture = Architecture(POOL[index % len(POOL)], width).id
            is_slow = architecture == "resnet18"
            size, epochs = (1500, 2) if is_slow else (2000, 3) if width == 1 else (2000, 12)
            images, labels = skewed(train["train_images"], train["train_labels"], size, seed=index)
            start = time.perf_counter()
            teachers.append(train_one(architecture, images, labels, preparation, epochs=epochs, seed=index))
            report = f"{architecture} #{index}: {time.perf_counter() - start:.0f} s"
            mean = float((teachers[-1].counts * teachers[-1].accuracies).sum() / teachers[-1].counts.sum())
            print(f"{report}, local validation accuracy {mean:.3f}", flush=True)
        torch.save([vars(teacher) for teacher in teachers], work / f"teachers-{width:g}.pt")


def skewed(images: NDArray[np.uint8], labels: NDArray[np.int64], size: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """A shard whose class shares are one draw of Dirichlet(0.3)."""
    random = np.random.default_rng(seed)
    shares = random.dirichlet([ALPHA] * NUM_CLASSES)
    chances = (shares / np.bincount(labels, minlength=NUM_CLASSES))[labels]
    enough = min(size, int(np.count_nonzero(chances)))
    picked = random.choice(len(labels), enough, replace=False, p=chances / chances.sum())
    return torch.from_numpy(images[picked]).permute(0, 3, 1, 2), torch.from_numpy(labels[picked])


def train_one(
    architecture: str, images: Tensor, labels: Tensor, preparation: Preprocessor, *, epochs: int, seed: int
) -> Teacher:
    """SGD on cross-entropy over four fifths of the shard; the statistics come from the rest."""
    generator = torch.Generator().manual_seed(seed)
    model = new_model(architecture).to(memory_format=torch.channels_last).requires_grad_(True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    num_held_out = len(labels) // 5
    before: dict[str, Tensor] = {}
    for _ in range(epochs):
        before = copy.deepcopy(model.state_dict())
        model.train()
        order = torch.randperm(len(labels) - num_held_out, generator=generator) + num_held_out
        for chosen in order.split(32):
            if len(chosen) < 2:
                continue
            inputs = preparation.inputs(crop_and_flip(images[chosen], generator))
            loss = F.cross_entropy(model(inputs), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
    model.eval()
    held_out = labels[:num_held_out]
    with torch.no_grad():
        chunks = images[:num_held_out].split(BATCH)
        hits = torch.cat([model(preparation.inputs(chunk)).argmax(1) for chunk in chunks]) == held_out
    counts = torch.bincount(held_out, minlength=NUM_CLASSES).double()
    accuracies = torch.bincount(held_out[hits], minlength=NUM_CLASSES) / counts.clamp(min=1)
    return Teacher(architecture, before, copy.deepcopy(model.state_dict()), counts, accuracies)


# Engines: prepare(model, calibration inputs) -> run(inputs) -> logits


@dataclass
class Step:
    """One operation of a network with its batch norms folded; the batch's images are called `input`."""

    kind: str
    name: str
    sources: list[str]
    module: nn.Module | None = None
    is_relu: bool = False


@dataclass
class Scale:
    """Affine uint8: value = scale * (code - zero)."""

    scale: float
    zero: int


@dataclass
class Quantised:
    """Int8 weights per output channel, their scales and the float bias."""

    codes: NDArray[np.int8]
    scales_O: NDArray[np.float32]
    bias_O: NDArray[np.float32]


def fold(model: nn.Module) -> nn.Module:
    """The network without batch norms, weights channels last."""
    folded: nn.Module = fuse(model)
    return folded.to(memory_format=torch.channels_last)


def steps_of(folded: nn.Module) -> list[Step]:
    """The network as a list; a ReLU belongs to the step before it."""
    kinds = {nn.Conv2d: "conv", nn.MaxPool2d: "maxpool", nn.Flatten: "flatten", nn.Linear: "linear"}
    modules = dict(folded.named_modules())
    steps: dict[str, Step] = {}
    alias: dict[str, str] = {}
    for node in folded.graph.nodes:
        sources = [alias[source.name] for source in node.all_input_nodes]
        module = modules[node.target] if node.op == "call_module" else None
        if node.op == "placeholder":
            alias[node.name] = "input"
        elif node.op == "output":
            break
        elif isinstance(module, nn.Identity):
            alias[node.name] = sources[0]
        elif isinstance(module, nn.ReLU) or node.target is F.relu:
            steps[sources[0]].is_relu = True
            alias[node.name] = sources[0]
        else:
            functions = {operator.add: "add", "mean": "mean"}
            kind = kinds[type(module)] if module is not None else functions[node.target]
            steps[node.name] = Step(kind, node.name, sources, module)
            alias[node.name] = node.name
    return list(steps.values())


@torch.no_grad()
def activation_scales(steps: list[Step], calibration: Tensor) -> dict[str, Scale]:
    """Smallest and largest value of every step on the calibration inputs, as uint8 scales."""
    ranges: dict[str, list[float]] = {}
    for batch in calibration.split(BATCH):
        values = {"input": batch}
        for step in steps:
            values[step.name] = run_step(step, [values[source] for source in step.sources])
        for name, value in values.items():
            low, high = (float(x) for x in torch.aminmax(value))
            seen = ranges.setdefault(name, [0.0, 0.0])
            ranges[name] = [min(seen[0], low), max(seen[1], high)]
    scales = {}
    for name, (low, high) in ranges.items():
        scale = max((high - low) / 255, 1e-8)
        scales[name] = Scale(scale, round(-low / scale))
    for step in steps:
        if step.kind in {"maxpool", "flatten"}:
            scales[step.name] = scales[step.sources[0]]
    return scales


def run_step(step: Step, sources: list[Tensor]) -> Tensor:
    """The step in float."""
    if step.kind == "add":
        value = sources[0] + sources[1]
    elif step.kind == "mean":
        value = sources[0].mean(dim=(2, 3))
    else:
        assert step.module is not None
        value = step.module(sources[0])
    return value.relu() if step.is_relu else value


def quantise_weight(module: nn.Module, bits: int) -> Quantised:
    """Symmetric, one scale per output channel. Seven bits keep AVX2's 16-bit sums of two products from saturating."""
    weight = module.weight.detach()
    limit = 2 ** (bits - 1) - 1
    scales_O = weight.flatten(1).abs().amax(1).clamp(min=1e-8) / limit
    codes = (weight / scales_O.view(-1, *[1] * (weight.dim() - 1))).round_().to(torch.int8)
    return Quantised(codes.contiguous().numpy(), scales_O.numpy(), module.bias.detach().numpy())


def build_onnx(steps: list[Step], scales: dict[str, Scale] | None, *, bits: int = 8) -> bytes:
    """The network as an ONNX model: float, or with quantise-dequantise pairs. The last layer stays float."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = [], []

    def constant(name: str, array: NDArray[np.generic]) -> str:
        constants.append(numpy_helper.from_array(array, name))
        return name

    def quantised(name: str, value: str) -> str:
        if scales is None:
            return value
        scale = constant(f"{name}.scale", np.array(scales[name].scale, np.float32))
        zero = constant(f"{name}.zero", np.array(scales[name].zero, np.uint8))
        nodes.append(helper.make_node("QuantizeLinear", [value, scale, zero], [f"{name}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", scale, zero], [f"{name}.dq"]))
        return f"{name}.dq"

    def parameters(step: Step, *, is_float: bool) -> list[str]:
        assert step.module is not None
        if scales is None or is_float:
            weight = np.ascontiguousarray(step.module.weight.detach().numpy())
            bias = step.module.bias.detach().numpy()
            return [constant(f"{step.name}.weight", weight), constant(f"{step.name}.bias", bias)]
        weight = quantise_weight(step.module, bits)
        weight_scales_O = constant(f"{step.name}.weight.scale", weight.scales_O)
        bias_scales_O = weight.scales_O * np.float32(scales[step.sources[0]].scale)
        bias_codes_O = np.clip(np.rint(weight.bias_O / bias_scales_O), -(2**31) + 1, 2**31 - 1).astype(np.int32)
        pairs = [("weight", weight.codes, weight_scales_O)]
        pairs += [("bias", bias_codes_O, constant(f"{step.name}.bias.scale", bias_scales_O))]
        for part, codes, scale in pairs:
            zero = constant(f"{step.name}.{part}.zero", np.zeros(len(bias_codes_O), codes.dtype))
            inputs = [constant(f"{step.name}.{part}.q", codes), scale, zero]
            nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{step.name}.{part}"], axis=0))
        return [f"{step.name}.weight", f"{step.name}.bias"]

    names = {"input": quantised("input", "input")}
    for step in steps:
        sources = [names[source] for source in step.sources]
        is_last = step is steps[-1]
        value = "logits" if is_last else f"{step.name}.float"
        operation, attributes = "", {}
        if step.kind == "conv":
            operation, module = "Conv", step.module
            sources += parameters(step, is_float=False)
            attributes = {
                "kernel_shape": module.kernel_size,
                "strides": module.stride,
                "pads": [*module.padding, *module.padding],
            }
        elif step.kind == "linear":
            operation = "Gemm"
            sources += parameters(step, is_float=is_last)
            attributes = {"transB": 1}
        elif step.kind == "maxpool":
            operation, attributes = "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}
        elif step.kind == "add":
            operation = "Add"
        elif step.kind == "flatten":
            operation = "Flatten"
        elif step.kind == "mean":
            nodes.append(helper.make_node("GlobalAveragePool", sources, [f"{step.name}.pooled"]))
            pooled = f"{step.name}.pooled"
            sources, operation = [quantised(step.name, pooled) if scales else pooled], "Flatten"
        raw = f"{step.name}.raw" if step.is_relu else value
        nodes.append(helper.make_node(operation, sources, [raw], **attributes))
        if step.is_relu:
            nodes.append(helper.make_node("Relu", [raw], [value]))
        names[step.name] = value if is_last or step.kind == "mean" else quantised(step.name, value)
    graph = helper.make_graph(
        nodes,
        "teacher",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", NUM_CLASSES])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def ort_session(model: bytes) -> Run:
    """ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.contiguous().numpy()})[0])


def openvino_model(model: bytes) -> Run:
    """OpenVINO on one thread, float layers in fp32."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    # A copy: OpenVINO reuses the memory of its outputs.
    return lambda inputs: torch.from_numpy(np.array(compiled(inputs.contiguous().numpy())[0]))


def torch_int8(steps: list[Step], scales: dict[str, Scale], *, bits: int) -> Run:
    """The quantised operators that come with torch (engine `x86`: FBGEMM or oneDNN)."""
    ops = torch.ops.quantized
    packed: dict[str, object] = {}
    for step in steps[:-1]:
        if step.module is None or step.kind not in {"conv", "linear"}:
            continue
        weight = quantise_weight(step.module, bits)
        scales_O = torch.from_numpy(weight.scales_O).double()
        quantised = torch._make_per_channel_quantized_tensor(
            torch.from_numpy(weight.codes), scales_O, torch.zeros(len(scales_O), dtype=torch.long), 0
        )
        bias_O = torch.from_numpy(weight.bias_O)
        if step.kind == "conv":
            module = step.module
            packed[step.name] = ops.conv2d_prepack(
                quantised, bias_O, list(module.stride), list(module.padding), list(module.dilation), 1
            )
        else:
            packed[step.name] = ops.linear_prepack(quantised, bias_O)

    def run(inputs: Tensor) -> Tensor:
        first = scales["input"]
        values = {"input": torch.quantize_per_tensor(inputs, first.scale, first.zero, torch.quint8)}
        for step in steps[:-1]:
            sources, out = [values[source] for source in step.sources], scales[step.name]
            if step.kind == "conv":
                apply = ops.conv2d_relu.new if step.is_relu else ops.conv2d.new
                values[step.name] = apply(sources[0], packed[step.name], out.scale, out.zero)
            elif step.kind == "linear":
                apply = ops.linear_relu if step.is_relu else ops.linear
                values[step.name] = apply(sources[0], packed[step.name], out.scale, out.zero)
            elif step.kind == "add":
                values[step.name] = ops.add_relu(*sources, out.scale, out.zero)
            elif step.kind == "mean":
                values[step.name] = sources[0].dequantize().mean(dim=(2, 3))
            else:
                values[step.name] = step.module(sources[0])
        features = values[steps[-1].sources[0]]
        return steps[-1].module(features.dequantize() if features.is_quantized else features)

    return run


def prepare_naive(model: nn.Module, calibration: Tensor) -> Run:
    """Eager, NCHW."""
    model = model.to(memory_format=torch.contiguous_format)
    return lambda inputs: model(inputs.contiguous())


def prepare_folded(model: nn.Module, calibration: Tensor) -> Run:
    """Eager, batch norm folded, channels last: the float teacher to beat."""
    return fold(model)


def prepare_ort(model: nn.Module, calibration: Tensor) -> Run:
    """ONNX Runtime fp32."""
    return ort_session(build_onnx(steps_of(fold(model)), None))


def prepare_openvino(model: nn.Module, calibration: Tensor) -> Run:
    """OpenVINO fp32."""
    return openvino_model(build_onnx(steps_of(fold(model)), None))


def prepare_int8(engine: str, bits: int) -> Callable[[nn.Module, Tensor], Run]:
    """How an engine prepares an int8 teacher, calibration included."""

    def prepare(model: nn.Module, calibration: Tensor) -> Run:
        steps = steps_of(fold(model))
        scales = activation_scales(steps, calibration)
        if engine == "torch":
            return torch_int8(steps, scales, bits=bits)
        session = {"ort": ort_session, "openvino": openvino_model}[engine]
        return session(build_onnx(steps, scales, bits=bits))

    return prepare


def engines(bits: int) -> dict[str, Callable[[nn.Module, Tensor], Run]]:
    """Everything that is compared; of OpenVINO what its package is there for."""
    all_of_them = {
        "naive": prepare_naive,
        "folded": prepare_folded,
        "ort fp32": prepare_ort,
        "openvino fp32": prepare_openvino,
        "ort int8": prepare_int8("ort", bits),
        "openvino int8": prepare_int8("openvino", bits),
        "torch int8": prepare_int8("torch", bits),
    }
    has_openvino = importlib.util.find_spec("openvino") is not None
    return {name: prepare for name, prepare in all_of_them.items() if has_openvino or "openvino" not in name}


# Speed


def measure_speed(
    bits: int, now: Callable[[], float], widths: Sequence[float], *, models: Sequence[str], repeats: int
) -> None:
    """Preparation, time per sample and break-even of every engine; engines take turns batch by batch."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(CALIBRATION, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    batch = images[:BATCH]
    print("| architecture | engine | prepare s | ms/sample | x naive | x folded | pays vs folded | pays vs 2x naive |")
    print("|---|---|---|---|---|---|---|---|")
    for width in widths:
        for name in models:
            architecture = Architecture(name, width).id
            runs, preparation_s = {}, {}
            for engine, prepare_engine in engines(bits).items():
                seconds = []
                for _ in range(3 if engine != "naive" else 1):
                    model = new_model(architecture)
                    start = now()
                    runs[engine] = prepare_engine(model, images)
                    seconds.append(now() - start)
                preparation_s[engine] = median(seconds)
                runs[engine](batch)
            times: dict[str, list[float]] = {engine: [] for engine in runs}
            inner = 1 if width == 1 else 5
            for _ in range(repeats):
                for engine, run in runs.items():
                    start = now()
                    for _ in range(inner):
                        run(batch)
                    times[engine].append((now() - start) / inner / BATCH)
            sample_s = {engine: median(values) for engine, values in times.items()}
            for engine, each_s in sample_s.items():
                against = [sample_s["folded"], sample_s["naive"] / 2]
                cost_s = preparation_s[engine] - preparation_s["folded"]
                pays = [f"{cost_s / (other - each_s):.0f}" if other > each_s else "never" for other in against]
                ratios = f"{sample_s['naive'] / each_s:.2f} | {sample_s['folded'] / each_s:.2f}"
                pays = pays if "int8" in engine else ["", ""]
                print(
                    f"| {architecture} | {engine} | {preparation_s[engine]:.2f} | {each_s * 1e3:.3f} | {ratios} | "
                    f"{pays[0]} | {pays[1]} |",
                    flush=True,
                )


# Cost of a snapshot


def measure_cost(bits: int) -> None:
    """Seconds for the usual way (export, quantise_static) and for a graph written from the folded weights."""
    images = torch.randn(CALIBRATION, 3, 32, 32)
    for width in WIDTHS:
        for name in POOL:
            architecture = Architecture(name, width).id
            model = new_model(architecture)
            usual = usual_way_s(model, images)
            laps: list[list[tuple[str, float]]] = []
            for _ in range(3):
                clock = Clock()
                folded = fold(model)
                steps = steps_of(folded)
                clock.lap("fold")
                scales = activation_scales(steps, images.contiguous(memory_format=torch.channels_last))
                clock.lap("calibrate 128")
                graph = build_onnx(steps, scales, bits=bits)
                clock.lap("write graph")
                ort_session(graph)
                clock.lap("ort session")
                openvino_model(graph)
                clock.lap("openvino compile")
                torch_int8(steps, scales, bits=bits)
                clock.lap("torch prepack")
                laps.append(clock.laps)
            direct = [(lap[0][0], median(seconds for _, seconds in lap)) for lap in zip(*laps, strict=True)]
            parts = [f"{what} {seconds:.2f}" for what, seconds in [*usual, *direct]]
            print(f"{architecture}: {', '.join(parts)}", flush=True)


class Clock:
    """Laps in seconds."""

    def __init__(self) -> None:
        self.laps: list[tuple[str, float]] = []
        self._last = time.perf_counter()

    def lap(self, what: str) -> None:
        """Seconds since the last lap, under a name."""
        now = time.perf_counter()
        self.laps.append((what, now - self._last))
        self._last = now


def usual_way_s(model: nn.Module, images: Tensor) -> list[tuple[str, float]]:
    """torch.onnx.export, then quantize_static: what a tutorial does."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches: Iterator[Tensor] = iter(images.split(BATCH))

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"input": batch.numpy()}

    with tempfile.TemporaryDirectory() as folder:
        source, target = f"{folder}/float.onnx", f"{folder}/int8.onnx"
        clock = Clock()
        # A batch of two: the exporter takes a dimension of one for a constant.
        torch.onnx.export(
            model,
            (images[:2],),
            source,
            input_names=["input"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        clock.lap("torch.onnx.export")
        quantize_static(
            source,
            target,
            Batches(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        clock.lap("quantize_static")
    return clock.laps


# Quality


def measure_quality(data: Path, work: Path) -> None:
    """How far int8 moves the logits and the targets, beside an epoch of training and another augmentation."""
    train = np.load(data)
    preparation = fit_preprocessor(train["train_images"], augmentation="crop-flip", device="cpu")
    images, _ = skewed(train["train_images"], train["train_labels"], CALIBRATION + 512, seed=99)
    generator = torch.Generator().manual_seed(99)
    inputs = preparation.inputs(crop_and_flip(images, generator))
    view = preparation.inputs(crop_and_flip(images, generator))[CALIBRATION:]
    calibration, inputs = inputs[:CALIBRATION], inputs[CALIBRATION:]
    print("| width | change | teacher | logit error / std | top-1 agreement | KL of prediction |")
    print("|---|---|---|---|---|---|")
    for width in WIDTHS:
        teachers = [Teacher(**fields) for fields in torch.load(work / f"teachers-{width:g}.pt")]
        counts_KC = torch.stack([teacher.counts for teacher in teachers])
        accuracies_KC = torch.stack([teacher.accuracies for teacher in teachers])
        logits: dict[str, list[Tensor]] = {}
        for teacher in teachers:
            model = teacher.model()
            folded = fold(model)
            steps = steps_of(folded)
            scales = activation_scales(steps, calibration)
            runs: dict[str, tuple[Run, Tensor]] = {"fp32": (folded, inputs)}
            for bits in (8, 7):
                graph = build_onnx(steps, scales, bits=bits)
                runs[f"ort int8, {bits}-bit weights"] = (ort_session(graph), inputs)
                runs[f"torch int8, {bits}-bit weights"] = (torch_int8(steps, scales, bits=bits), inputs)
                runs[f"openvino int8, {bits}-bit weights"] = (openvino_model(graph), inputs)
            runs["one epoch earlier"] = (fold(teacher.model(epochs_ago=1)), inputs)
            runs["another augmentation"] = (folded, view)
            for change, (run, shown) in runs.items():
                logits.setdefault(change, []).append(torch.cat([run(chunk) for chunk in shown.split(BATCH)]))
        exact = logits.pop("fp32")
        for change, moved in logits.items():
            for teacher, a, b in zip(teachers, exact, moved, strict=True):
                error = float((a - b).pow(2).mean().sqrt() / a.std())
                same = float((a.argmax(1) == b.argmax(1)).double().mean())
                kl = divergence(torch.softmax(a / TEMPERATURE, 1), torch.softmax(b / TEMPERATURE, 1))
                print(f"| {width:g} | {change} | {teacher.architecture} | {error:.4f} | {same:.3f} | {kl:.2e} |")
            for rule in ("crad", "uniform"):
                a, b = (target_of(x, counts_KC, accuracies_KC, rule=rule) for x in (exact, moved))
                same = float((a.argmax(1) == b.argmax(1)).double().mean())
                print(f"| {width:g} | {change} | {rule} target | | {same:.3f} | {divergence(a, b):.2e} |", flush=True)


def measure_calibration(data: Path, work: Path) -> None:
    """What fewer or more calibration samples do to OpenVINO's int8, and whether a few samples carry the error."""
    train = np.load(data)
    preparation = fit_preprocessor(train["train_images"], augmentation="crop-flip", device="cpu")
    images, _ = skewed(train["train_images"], train["train_labels"], 768, seed=99)
    inputs = preparation.inputs(crop_and_flip(images, torch.Generator().manual_seed(99)))
    calibration, inputs = inputs[:512], inputs[512:]
    teachers = [Teacher(**fields) for fields in torch.load(work / "teachers-1.pt")]
    counts_KC = torch.stack([teacher.counts for teacher in teachers])
    accuracies_KC = torch.stack([teacher.accuracies for teacher in teachers])
    networks = [fold(teacher.model()) for teacher in teachers]
    exact = [torch.cat([network(chunk) for chunk in inputs.split(BATCH)]) for network in networks]
    for size in (32, 64, 128, 512):
        moved = []
        for network in networks:
            steps = steps_of(network)
            scales = activation_scales(steps, calibration[:size])
            run = openvino_model(build_onnx(steps, scales, bits=7))
            moved.append(torch.cat([run(chunk) for chunk in inputs.split(BATCH)]))
        for teacher, a, b in zip(teachers, exact, moved, strict=True):
            errors_B = (a - b).pow(2).sum(1).sort(descending=True).values
            worst = float(errors_B[: len(errors_B) // 100].sum() / errors_B.sum())
            error = float((a - b).pow(2).mean().sqrt() / a.std())
            kl = divergence(torch.softmax(a / TEMPERATURE, 1), torch.softmax(b / TEMPERATURE, 1))
            print(f"{size}: {teacher.architecture} error {error:.4f}, worst 1 % hold {worst:.2f} of it, KL {kl:.2e}")
        a, b = (target_of(x, counts_KC, accuracies_KC) for x in (exact, moved))
        print(f"{size}: crad target KL {divergence(a, b):.2e}", flush=True)


def target_of(logits: list[Tensor], counts_KC: Tensor, accuracies_KC: Tensor, *, rule: str = "crad") -> Tensor:
    """The combined target [B,C]."""
    return aggregate(torch.softmax(torch.stack(logits) / TEMPERATURE, 2), counts_KC, accuracies_KC, rule)


def divergence(p_BC: Tensor, q_BC: Tensor) -> float:
    """Mean KL(p || q) in nats."""
    p_BC, q_BC = p_BC.double(), q_BC.double()
    return float((torch.xlogy(p_BC, p_BC) - torch.xlogy(p_BC, q_BC)).sum(1).mean())


def main(words: Sequence[str]) -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["train", "speed", "cost", "quality", "calibration"])
    parser.add_argument("--isa", choices=["native", "avx2"], default="native")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="speed: cpu on a busy machine")
    parser.add_argument("--widths", type=float, nargs="+", default=WIDTHS, help="speed: factors on the channels")
    parser.add_argument("--models", nargs="+", default=POOL, help="speed: of the pool")
    parser.add_argument("--repeats", type=int, default=7, help="speed: turns that every engine takes")
    parser.add_argument("--data", type=Path, help="an npz file of CIFAR-10")
    parser.add_argument("--work", type=Path, help="where the teachers are")
    options = parser.parse_args(words)
    if options.part in {"train", "quality", "calibration"} and not (options.data and options.work):
        parser.error(f"{options.part} needs --data and --work")
    if options.isa == "avx2" and "LD_PRELOAD" not in os.environ:
        restart_without_avx512()
    torch.set_num_threads(1)
    print(f"{options.part}, {options.isa}, torch sees {torch.backends.cpu.get_cpu_capability()}", flush=True)
    bits = 7 if options.isa == "avx2" else 8
    if options.part == "train":
        train_teachers(options.data, options.work)
        return
    with torch.no_grad():
        if options.part == "speed":
            now = time.process_time if options.clock == "cpu" else time.perf_counter
            measure_speed(bits, now, options.widths, models=options.models, repeats=options.repeats)
        elif options.part == "cost":
            measure_cost(bits)
        elif options.part == "calibration":
            measure_calibration(options.data, options.work)
        else:
            measure_quality(options.data, options.work)


if __name__ == "__main__":
    main(sys.argv[1:])
