"""A run's way over a GPU, without one: tensors that pretend to be there (`pretend_device.py`), and torch's fake ones.

What is shown: no operation mixes devices, the device is not waited for step by step, little is copied, MPS sees no
float64, and every process gets a GPU of its own. What no test here can show: speed, and numbers of real kernels.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import crad
from crad.aggregation import RULES
from crad.aggregation.combine import combine
from crad.aggregation.evidence import Evidence
from crad.aggregation.statistics import TeacherStats
from crad.config import Experiment
from crad.engines import count_workers
from crad.engines.processes import ProcessEngine
from crad.errors import ConfigError
from crad.federation.context import build_run_context
from crad.federation.roster import PeerSlot
from crad.federation.tasks import load_tensors
from crad.federation.teachers import _expected_samples
from crad.files import BackgroundWriter, write_whole
from crad.inference.engine import PlainForward, TeacherEngine
from crad.inference.folding import find_pairs
from crad.inspection.survey import _rounded
from crad.methods import METHODS
from crad.models import Architecture, build_model
from crad.models.networks.series import MelSpectrogram, SignalScaler
from crad.models.networks.table import TableEncoder
from crad.randomness import TF32, repeatable
from crad.runs.summary import hardware
from crad.training.clipping import Clipper
from crad.training.digest import absolute_difference, digest, restore_optimizer
from crad.training.evaluation import EVALUATION_BATCH, ScoredSet, score_sets
from crad.training.losses import BatchLabels, StudentLoss, distillation_loss, log_shares, private_mass
from crad.training.sample_weights import lacking_classes, missing_class_weights, sure_weights
from crad.training.uncompiled import uncompiled
from tests.conftest import change
from tests.federation import Federation
from tests.pretend_device import Crossings, PretendTensor, pretended_device

SMALL = {"fedgd": {"transfer_size": 8, "generator_batch": 8, "generator_steps": 1}}  # settings of methods
MORE_STEPS = {"fedgd": {"transfer_size": 8, "generator_batch": 8, "generator_steps": 3}}
ALIKE = ("crad", "uncertainty")  # of the rules, which share all code but what `test_every_rule...` looks at
RUN = [name for name in METHODS if name not in RULES or name in ALIKE]
VARIANTS: dict[str, dict[str, Any]] = {
    "crad+adamw": {"method": "crad", "optimizer": "adamw", "local_loss": "balanced", "evidence": "pooled"},
    "crad+mixed": {"method": "crad", "distill_augment": "mixup", "committee": True},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Two clients with 36 images: a round takes a fraction of a second even pretended, where Python does all work."""
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {}
    for split, size in (("train", 36), ("test", 6)):
        arrays[f"{split}_labels"] = np.arange(size) % 3
        arrays[f"{split}_images"] = rng.integers(0, 255, size=(size, 8, 8), dtype=np.uint8)
    path = tmp_path_factory.mktemp("world") / "world.npz"
    np.savez(path, **arrays)
    return Experiment(
        dataset=str(path),
        clients=2,
        rounds=2,
        eval_every=2,
        partition="iid",
        models=("cnn6", "cnn6@0.125"),
        width=0.0625,
        proxy_size=3,
        seed=5,
        device="cuda",
        engine="serial",
        committee=False,
        metrics=False,
    )


def settings_of(name: str, *, more: bool = False) -> dict[str, Any]:
    settings = VARIANTS.get(name, {"method": name})
    return {**settings, "method_settings": (MORE_STEPS if more else SMALL).get(settings["method"], {})}


def two_rounds(experiment: Experiment, device: str = "cuda") -> Crossings:
    with pretended_device(device) as crossings:
        federation = Federation(change(experiment, device=device))
        for _ in range(2):
            federation.next_round()
    return crossings


def tensors_of(slot: PeerSlot) -> dict[str, Tensor]:
    assert slot.state is not None
    return load_tensors(slot.state)


@pytest.mark.parametrize("name", [*RUN, *VARIANTS])
def test_no_method_mixes_devices_or_waits_for_the_device_step_by_step(name, world):
    """A device is waited for per round, per client and per teacher, however many steps a round has."""
    few = two_rounds(change(world, batch_size=8, **settings_of(name)))
    many = two_rounds(change(world, batch_size=4, **settings_of(name, more=True)))
    assert many.waits == few.waits
    # Some numbers of every step come back, and what a generator is fed goes there; no weights, no samples.
    assert many.bytes_to_host < few.bytes_to_host + 1_000
    assert many.bytes_to_device < few.bytes_to_device + 50_000


def test_evaluation_reads_once_however_many_chunks_there_are(world, monkeypatch):
    def waits(at_once: int) -> Counter[str]:
        monkeypatch.setattr("crad.training.evaluation.GPU_EVALUATION_BATCH", at_once)
        with pretended_device() as crossings:
            context = build_run_context(world)
            images, model = context.data.global_test, nn.Flatten().to("cuda")
            said: list[Tensor] = []
            crossings.waits.clear()
            priors = [None, torch.zeros(64, device="cuda")]
            asked = ScoredSet(images, priors, keep=said)
            score_sets(model, [asked], preprocessor=context.data.preprocessor, num_classes=64)
            assert [len(one) for one in said] == [6]
        return crossings.waits

    assert waits(2) == waits(6)
    assert waits(6).total() == 6  # labels and logits, and of each prior hits and losses


def test_digesting_reads_once_however_many_batches_there_are_also_with_moments_of_the_round_before(world):
    def waits(batch_size: int) -> Counter[str]:
        with pretended_device() as crossings:
            federation = Federation(change(world, method="fedmd", batch_size=8))
            federation.next_round()
            peer = federation.peer(0)
            counts = [tensor for tensor in peer.memory.values() if not tensor.dim()]
            assert counts
            assert not any(isinstance(count, PretendTensor) for count in counts)
            [name] = {label.split("/")[0] for label, tensor in peer.memory.items() if not tensor.dim()}
            optimizer = uncompiled(torch.optim.Adam)(peer.model.parameters())
            restore_optimizer(peer.memory, name, peer.model, optimizer)
            assert optimizer.state
            inputs, targets = torch.rand(8, 1, 8, 8).to("cuda"), torch.rand(8, 3).to("cuda")
            crossings.waits.clear()
            digest(
                peer.model,
                optimizer,
                inputs,
                targets,
                loss_of=absolute_difference,
                batch_size=batch_size,
                clipper=Clipper(1.0),
                seed=1,
                purpose=("test",),
            )
        return crossings.waits

    assert waits(2).total() == waits(4).total() == 1


def test_a_pretended_run_gives_the_numbers_of_a_real_one(world):
    """So what is counted is counted in a run that does its work: with chunks as on the CPU, to the last bit but one."""
    with pretended_device() as crossings, pytest.MonkeyPatch.context() as patch:
        patch.setattr("crad.training.evaluation.GPU_EVALUATION_BATCH", EVALUATION_BATCH)
        pretended = Federation(change(world, batch_size=8))
        pretended.next_round()
    plain = Federation(change(world, batch_size=8, device="cpu"))
    plain.next_round()
    assert crossings.bytes_to_device > 0
    for there, here in zip(pretended.roster, plain.roster, strict=True):
        assert there.measured.validation[0].hits == here.measured.validation[0].hits
        ours, theirs = tensors_of(here), tensors_of(there)
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=1e-3, atol=1e-4)


def test_what_is_copied_in_a_round_is_models_and_messages_not_data(world):
    """Once the data and the teachers are on the device: a state in and out, a snapshot out, and in for each student."""
    with pretended_device() as crossings:
        federation = Federation(change(world, batch_size=8))
        federation.next_round()
        first = replace(crossings)
        federation.next_round()
    state = sum(tensor.nbytes for slot in federation.roster for tensor in tensors_of(slot).values())
    assert crossings.bytes_to_host - first.bytes_to_host < 2.5 * state
    assert crossings.bytes_to_device - first.bytes_to_device < 4 * state


def test_data_that_has_no_room_on_the_device_is_taken_up_part_by_part(world, monkeypatch):
    with pretended_device():
        resident = build_run_context(world).data
        assert resident._resident is not None
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda *_: (100, 100))
        parted = build_run_context(world).data
        assert parted._resident is None
        one, other = resident.samples(resident.shards[0].train), parted.samples(parted.shards[0].train)
        assert isinstance(one.samples, PretendTensor)
        assert torch.equal(one.samples.cpu(), other.samples.cpu())
        assert torch.equal(one.labels.cpu(), other.labels.cpu())


def test_the_cpu_keeps_no_second_copy_of_the_data(world):
    assert build_run_context(change(world, device="cpu")).data._resident is None


@pytest.mark.parametrize(("device", "served"), [("cpu", 1), ("cuda", 2)])
def test_compiling_counts_the_clients_that_one_process_serves(device, served, world):
    with pretended_device():
        context = build_run_context(change(world, device=device))
        images = sum(len(shard.train) for shard in context.data.shards)
        # Two rounds, and one teacher that may have one of two architectures.
        assert _expected_samples(context) == int(images / 2 * served)


def fake_evidence(device: str) -> Evidence:
    teachers, samples, classes = 4, 5, 3
    stats = TeacherStats(
        torch.full((teachers, classes), 20.0, dtype=torch.float64),
        torch.full((teachers, classes), 0.7, dtype=torch.float64),
        torch.full((teachers, classes), 0.5, dtype=torch.float64),
    )
    q_KBC = torch.full((teachers, samples, classes), 1 / classes, device=device)
    return Evidence(q_KBC, stats, min_support=2, epsilon=1e-8)


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_combines_on_the_device(rule, device):
    with pretended_device(device):
        made = combine(fake_evidence(device), rule, unsupported="consensus")
        assert made.target_BC.device.type == made.share_KBC.device.type == device
        assert made.target_BC.sum(dim=1).tolist() == pytest.approx([1.0] * 5)


def test_losses_stay_on_the_device():
    """On torch's own tensors without numbers; a build without CUDA can index none of them, so rules are pretended."""
    with FakeTensorMode(), torch.no_grad():
        labels_B = torch.zeros(6, dtype=torch.int64, device="cuda")
        target_BC, logits_BC = torch.ones(6, 3, device="cuda") / 3, torch.ones(6, 3, device="cuda")
        share_B, prior_C = torch.ones(6, device="cuda"), torch.zeros(3, device="cuda")
        for labels in (BatchLabels(labels_B), BatchLabels(labels_B, labels_B, share_B)):
            loss = distillation_loss(
                logits_BC, labels, target_BC, temperature=2.0, distill_weight=0.5, log_prior_C=prior_C, weight_B=share_B
            )
            assert {str(one.device) for one in (loss.total, loss.cross_entropy, loss.distillation)} == {"cuda:0"}


def test_what_needs_float64_is_computed_elsewhere_where_mps_has_none():
    target = torch.softmax(torch.randn(6, 3, generator=torch.Generator().manual_seed(1)), dim=1)
    changed, lacking = torch.tensor([True, False] * 3), lacking_classes(torch.tensor([4, 0, 2]))
    rows = torch.tensor([[1.0, 0.0], [2.0, 1.0], [4.0, 1.0]])
    waves = torch.randn(3, 1, 400, generator=torch.Generator().manual_seed(2))

    def everything(device: str) -> list[Tensor]:
        there, labels = target.to(device), BatchLabels(torch.tensor([0, 1, 2, 0, 1, 2]).to(device))
        encoder, scaler, mel = TableEncoder([0, 2]), SignalScaler(1), MelSpectrogram(1, 400, 4000)
        for layer, samples in ((encoder, rows), (scaler, waves), (mel, waves)):
            layer.to(device).fit(samples.to(device))
        prior_C = log_shares(torch.tensor([0, 0, 1, 2]), num_classes=3).to(device)
        return [
            missing_class_weights(there, lacking, strength=2.0, temperature=2.0),
            sure_weights(there, changed.to(device), threshold=0.6, temperature=2.0),
            private_mass(labels, 3, prior_C),
            StudentLoss(labels, there, 2.0, 0.5, prior_C).class_mass(3),
            *(tensor for layer in (encoder, scaler, mel) for tensor in (layer.mean, layer.scale)),
            torch.tensor(_rounded(there)),
        ]

    with pretended_device("mps"):
        found = [tensor.cpu() for tensor in everything("mps")]
    for there, here in zip(found, everything("cpu"), strict=True):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)


def test_a_run_on_mps_sees_no_float64_and_is_inspected(world, tmp_path):
    with pretended_device("mps"):
        result = crad.run(change(world, device="mps", batch_size=8, rounds=1), output=tmp_path / "run")
    assert result.summary["hardware"]["device"] == "mps"
    assert (tmp_path / "run" / "inspection.json").is_file()
    assert "peak_host_bytes" not in result.summary  # its memory is the host's


@pytest.mark.parametrize("name", ["cnn6", "cnn6-wide", "resnet18", "resnet18-half"])
def test_on_a_gpu_batch_norms_are_folded_into_convolutions_for_every_snapshot_of_an_architecture(name):
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(3, 3, 16, 16, generator=generator)
    with pretended_device():
        engine, before = TeacherEngine(device="cuda"), 0.0
        for seed in (1, 2):
            model = build_model(
                Architecture.parse(name, width=0.125), num_classes=4, in_channels=3, image_size=(16, 16), seed=seed
            )
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                    module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
            frozen = model.eval().requires_grad_(False).to("cuda")
            expected = frozen(inputs.to("cuda")).cpu()
            prepared = engine.prepare(frozen, key=name)
            torch.testing.assert_close(prepared(inputs.to("cuda")).cpu(), expected, rtol=1e-4, atol=1e-5)
            assert float(expected.sum()) != before
            before = float(expected.sum())
            run: Any = prepared._forward
            assert not any(isinstance(module, nn.BatchNorm2d) for module in run.model.modules())
            assert any(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())  # it is left as it was
        pairs = find_pairs(frozen)
    assert len(pairs) == sum(isinstance(module, nn.BatchNorm2d) for module in frozen.modules())


def test_a_network_of_ones_own_is_not_folded():
    assert find_pairs(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))) == ()


class Crowded(nn.Module):
    """Finds no memory the first time."""

    def __init__(self, error: type[Exception], text: str) -> None:
        super().__init__()
        self.errors = [error(text)]

    def forward(self, inputs: Tensor) -> Tensor:
        if self.errors:
            raise self.errors.pop()
        return inputs.flatten(1)


@pytest.mark.parametrize(
    ("error", "text", "is_raised"),
    [
        (torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2 MiB", True),
        (RuntimeError, "MPS backend out of memory (MPS allocated: 9 GB)", True),
        (RuntimeError, "view size is not compatible with input tensor's size and stride", False),
    ],
)
def test_a_device_without_memory_is_no_question_of_layout(error, text, is_raised):
    run = PlainForward(Crowded(error, text), device="cpu", precision="fp32")
    if not is_raised:
        assert run(torch.zeros(2, 3, 4, 4)).shape == (2, 48)
        return
    with pytest.raises(error, match="out of memory"):
        run(torch.zeros(2, 3, 4, 4))
    assert run._layout == torch.channels_last


@pytest.mark.parametrize(
    ("seen", "expected"),
    [(None, ["0", "1", "2", "3", "0", "1"]), ("4,5,GPU-ab,7", ["4", "5", "GPU-ab", "7", "4", "5"])],
)
def test_every_worker_gets_a_gpu_of_its_own_and_shares_where_there_are_fewer(seen, expected, world, monkeypatch):
    started: list[dict[str, str]] = []

    class Started:
        pid = 1

        def __init__(self, *_: object, env: dict[str, str], **__: object) -> None:
            started.append(env)

        def wait(self, *_: object) -> int:
            return 0

        def terminate(self) -> None:
            """Do nothing: nothing was started."""

    names = SimpleNamespace(DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired, Popen=Started)
    monkeypatch.setattr("crad.engines.processes.subprocess", names)
    monkeypatch.setattr("crad.engines.processes.send_handle", lambda *_: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    with pretended_device(count=4):
        context = build_run_context(change(world, workers="auto", engine="auto"))
        assert count_workers(context) == 2  # never more than clients
        assert count_workers(replace(context, experiment=change(context.experiment, clients=9))) == 4
        notices: list[str] = []
        engine = ProcessEngine(context, workers=6, notice=notices.append)
        assert engine.gpus == ["Pretended GPU"] * 4
        assert notices == []
        engine.close()
        del started[6:]
        monkeypatch.setattr("torch.cuda.get_device_name", lambda number: ("H100", "A100")[number % 2])
        ProcessEngine(context, workers=2, notice=notices.append).close()
        assert notices == ["GPUs of several kinds (A100, H100): last bits depend on which of them serves whom"]
        del started[6:]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in started] == expected
    started.clear()
    ProcessEngine(build_run_context(change(world, device="cpu")), workers=1).close()
    assert started[0].get("CUDA_VISIBLE_DEVICES") == seen


@pytest.mark.parametrize(
    ("settings", "resources", "workers", "share", "device"),
    [
        ({"device": "auto"}, {"CPU": 16, "GPU": 2}, 2, 1.0, "cuda"),
        ({"device": "cuda", "workers": 3}, {"CPU": 16, "GPU": 2}, 3, 0.5, "cuda"),
        ({"device": "cpu"}, {"CPU": 16, "GPU": 2}, 3, 0.0, "cpu"),
        ({"device": "auto"}, {"CPU": 2}, 2, 0.0, "cpu"),
    ],
)
def test_ray_gives_actors_gpus_whatever_the_driver_has(settings, resources, workers, share, device, world, monkeypatch):
    cluster = pytest.importorskip("crad.engines.ray_cluster", reason="ray is not installed: pip install '.[ray]'")
    asked: list[dict[str, Any]] = []

    class Fake:
        def __getattr__(self, _: str) -> Any:
            return lambda *args, **kwargs: None

        def cluster_resources(self) -> Any:
            return resources

        def remote(self, kind: type) -> Any:
            return self

        def options(self, **options: Any) -> Any:
            asked.append(options)
            return SimpleNamespace(remote=lambda: None)

    monkeypatch.setattr(cluster, "ray", Fake())
    monkeypatch.setattr(cluster, "Membership", lambda **_: SimpleNamespace(leave=lambda: None))
    monkeypatch.setattr(cluster, "_Seat", lambda actor, order, arrays: order)
    context = build_run_context(change(world, clients=3, engine="ray", **settings))
    assert context.device == "cpu"  # this machine has no GPU, and need not
    engine = cluster.RayEngine(context, workers=context.experiment.workers)
    assert engine.workers == workers == len(engine._seats)
    assert asked[0]["num_gpus"] == share
    assert {order.experiment["device"] for order in engine._seats} == {device}


def test_an_actor_decides_by_its_own_machine(world):
    experiment = change(world, engine="ray", device="cuda", teacher_precision="bf16")
    assert build_run_context(experiment).device == "cpu"
    with pytest.raises(ConfigError, match="device 'cuda' is not available"):
        build_run_context(experiment, is_worker=True)
    with pretended_device():
        assert build_run_context(experiment, is_worker=True).device == "cuda"


def test_fp32_is_what_the_record_says_it_is(world, monkeypatch):
    flags: Any = SimpleNamespace(allow_tf32=None)
    monkeypatch.setattr("torch.backends.cuda.matmul", flags)
    cudnn: Any = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "allow_tf32", False)
    with pretended_device(), repeatable(1, device="cuda"):
        inside = cudnn.allow_tf32, flags.allow_tf32
    assert inside == (TF32["convolutions"], TF32["matrix_products"]) == (True, False)
    assert (cudnn.allow_tf32, flags.allow_tf32) == (False, None)
    assert hardware("cuda", ["A100"])["tf32"] == TF32
    assert "tf32" not in hardware("cpu")


def test_draws_on_mps_are_seeded_and_put_back(monkeypatch):
    calls: list[tuple[str, object]] = []
    with pretended_device("mps"):
        monkeypatch.setattr("torch.mps.get_rng_state", lambda: "before")
        monkeypatch.setattr("torch.mps.set_rng_state", lambda state: calls.append(("set", state)))
        monkeypatch.setattr("torch.mps.manual_seed", lambda seed: calls.append(("seed", seed)))
        with repeatable(7, device="mps"):
            assert calls == [("seed", 7)]
    assert calls == [("seed", 7), ("set", "before")]


def test_memory_of_host_and_device_stand_apart(world):
    with pretended_device():
        result = crad.run(change(world, method="local", rounds=1, batch_size=8))
    timing, summary = result.rounds[0]["timing"], result.summary
    assert timing["peak_memory_bytes"] == summary["peak_memory_bytes"] == 5_000  # as torch says of the device
    assert timing["peak_host_bytes"] == summary["peak_host_bytes"] > 10 * 2**20
    assert summary["hardware"]["gpus"] == ["Pretended GPU"]
    assert {"cuda", "cudnn"} <= summary["versions"].keys()
    plain = crad.run(change(world, method="local", rounds=1, batch_size=8, device="cpu"))
    assert plain.rounds[0]["timing"].keys() == {"seconds", "peak_memory_bytes"}
    assert "peak_host_bytes" not in plain.summary
    assert "gpus" not in plain.summary["hardware"]


def test_beside_a_gpu_states_are_written_in_the_background_and_are_there_when_a_batch_is_over(world, monkeypatch):
    writers: list[str] = []

    def write(path: Path, content: bytes | memoryview) -> None:
        writers.append(threading.current_thread().name)
        time.sleep(0.2)  # a slow disk
        write_whole(path, content)

    monkeypatch.setattr("crad.files.write_whole", write)
    with pretended_device():
        federation = Federation(change(world, method="local", batch_size=8))
        federation.next_round()
    assert len(writers) == len(federation.roster)
    assert all(name.startswith("crad-writer") for name in writers)
    assert all(tensors_of(slot) for slot in federation.roster)


def test_a_disk_that_fails_in_the_background_is_heard_of(tmp_path):
    writer = BackgroundWriter(most=1)
    writer.write(tmp_path / "no folder" / "state", b"1")
    with pytest.raises(FileNotFoundError):
        writer.write(tmp_path / "state", b"2")
    writer.write(tmp_path / "state", b"2")
    writer.finish()
    assert (tmp_path / "state").read_bytes() == b"2"


@pytest.mark.cuda
@pytest.mark.parametrize("settings", [{}, {"teacher_precision": "bf16"}, {"method": "fedmd"}])
def test_on_a_real_gpu_processes_equal_one_process_and_a_run_goes_on(settings, world, tmp_path):
    """For whoever has a card: `pytest -m cuda`."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here: run `pytest -m cuda tests/test_fake_device.py` on a machine with one")
    if settings.get("teacher_precision") == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU emulates bf16")
    experiment = change(world, batch_size=8, rounds=3, **settings)
    serial = crad.run(experiment, output=tmp_path / "serial")
    parallel = crad.run(change(experiment, engine="processes", workers=2), output=tmp_path / "processes")
    crad.run(change(experiment, rounds=2), output=tmp_path / "resumed")
    resumed = crad.run(experiment, output=tmp_path / "resumed")

    def weights(result: crad.Result) -> dict[str, bytes]:
        assert result.directory is not None
        files = sorted(result.directory.glob("checkpoint/states/*-round-00003-*"))
        assert files
        return {file.name: file.read_bytes() for file in files}

    assert weights(serial) == weights(parallel) == weights(resumed)
