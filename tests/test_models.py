"""The networks: their sizes, what they accept, and how a name or a user's own code becomes one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from crad.errors import ConfigError
from crad.models import FAMILIES, POOL, Architecture, build_model, resolve_architecture

NAMES = sorted(FAMILIES["image"])
SMALL = 0.125


def build(
    architecture: str,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: tuple[int, int] = (8, 8),
    seed: int = 0,
) -> nn.Module:
    return build_model(
        Architecture.parse(architecture),
        num_classes=num_classes,
        in_channels=in_channels,
        image_size=image_size,
        seed=seed,
    )


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_pool_is_the_papers() -> None:
    assert POOL == ("resnet18", "resnet18-half", "cnn6")
    assert set(POOL) <= set(FAMILIES["image"])


@pytest.mark.parametrize(
    ("name", "num_classes", "expected"),
    [
        ("resnet18", 10, 11_173_962),
        ("resnet18", 100, 11_220_132),
        ("resnet18", 9, 11_173_449),
        ("resnet18-half", 10, 2_797_610),
        ("resnet18-half", 100, 2_820_740),
        ("resnet18-half", 9, 2_797_353),
        ("cnn6", 10, 815_018),
        ("cnn6", 100, 838_148),
        ("cnn6", 9, 814_761),
        ("cnn6-wide", 10, 1_149_770),
    ],
)
def test_parameter_counts_are_the_papers(name: str, num_classes: int, expected: int) -> None:
    assert num_parameters(build(name, num_classes=num_classes, image_size=(32, 32))) == expected


@pytest.mark.parametrize("in_channels", [1, 3])
@pytest.mark.parametrize("image_size", [(8, 8), (14, 14), (28, 28), (32, 32), (17, 9), (9, 40)])
@pytest.mark.parametrize("name", NAMES)
def test_logits_have_one_row_per_image(name: str, image_size: tuple[int, int], in_channels: int) -> None:
    model = build(f"{name}@{SMALL}", num_classes=7, in_channels=in_channels, image_size=image_size)
    logits_BC = model(torch.randn(2, in_channels, *image_size))
    assert logits_BC.shape == (2, 7)
    assert logits_BC.dtype == torch.float32
    assert logits_BC.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_width_scales_the_model(name: str) -> None:
    sizes = [num_parameters(build(f"{name}@{width}")) for width in (0.01, 0.125, 0.5, 1)]
    assert sizes == sorted(set(sizes))
    assert build(f"{name}@0.01")(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


def test_half_is_the_resnet_at_half_width() -> None:
    half, scaled = build("resnet18-half"), build("resnet18@0.5")
    assert [p.shape for p in half.parameters()] == [p.shape for p in scaled.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name: str) -> None:
    model = build(f"{name}@{SMALL}").train()
    images_BDHW = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    loss = nn.functional.cross_entropy(model(images_BDHW), torch.tensor([1, 4]))
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    missing = [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(11)
    first = build(f"{name}@{SMALL}", seed=5).state_dict()
    torch.manual_seed(12)
    same = build(f"{name}@{SMALL}", seed=5).state_dict()
    other = build(f"{name}@{SMALL}", seed=6).state_dict()
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_global_random_state_is_untouched() -> None:
    before = torch.get_rng_state()
    build(f"cnn6@{SMALL}", seed=5)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("image_size", [(7, 8), (8, 7), (1, 32), (0, 0)])
def test_tiny_images_are_refused(image_size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"{image_size[0]}x{image_size[1]} are too small.*at least 8"):
        build("cnn6", image_size=image_size)


@pytest.mark.parametrize(("num_classes", "in_channels"), [(0, 3), (10, 0)])
def test_no_class_or_no_channel_is_refused(num_classes: int, in_channels: int) -> None:
    with pytest.raises(ConfigError, match=f"got {num_classes} and {in_channels}"):
        build("cnn6", num_classes=num_classes, in_channels=in_channels)


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        (Architecture("resnet18"), "resnet18"),
        (Architecture("resnet18", 1), "resnet18"),
        (Architecture("resnet18", 0.125), "resnet18@0.125"),
        (Architecture("cnn6", 2.0), "cnn6@2"),
        (Architecture("cnn6", 2), "cnn6@2"),
        (Architecture("cnn6", 1 / 3), f"cnn6@{1 / 3!r}"),
        (Architecture("cnn6", 1e-05), "cnn6@1e-05"),
        (Architecture("my.models:build"), "my.models:build"),
        (Architecture("my.models:build", 0.5), "my.models:build@0.5"),
    ],
)
def test_ids_round_trip(architecture: Architecture, expected: str) -> None:
    assert architecture.id == str(architecture) == expected
    assert Architecture.parse(expected) == architecture


@pytest.mark.parametrize("width", [0, -1.0, 4.01, float("nan"), float("inf")])
def test_width_out_of_range_is_refused(width: float) -> None:
    with pytest.raises(ConfigError, match=f"'cnn6': width {width} must be over 0 and at most 4"):
        Architecture("cnn6", width)


@pytest.mark.parametrize("text", ["cnn6@wide", "cnn6@", "cnn6@1@2", "", "@0.5", "cnn6@nan", "cnn6@0"])
def test_malformed_id_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Architecture.parse(text)


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown model 'resnet-18'\. Did you mean 'resnet18'\? Known: bag, "):
        build("resnet-18")


# A user's own architecture

IMPORTS = "import torch\nfrom torch import nn\n"
LINEAR = """
def build(num_classes, in_channels):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, num_classes))
"""
_serial = count()


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module into the current directory and gives its name, a new one for every call."""
    monkeypatch.chdir(tmp_path)
    # Neither the empty entry nor the directory is on the path, as under an installed command.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    written: list[str] = []

    def write(source: str) -> str:
        name = f"crad_test_model_{next(_serial)}"
        (tmp_path / f"{name}.py").write_text(IMPORTS + source, encoding="utf-8")
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


WriteModule = Callable[[str], str]


def test_users_model_is_found_in_the_current_directory(write_module: WriteModule) -> None:
    path = list(sys.path)
    model = build(f"{write_module(LINEAR)}:build", num_classes=4, in_channels=1, image_size=(9, 12))
    assert model(torch.zeros(5, 1, 9, 12)).shape == (5, 4)
    assert sys.path == path


def test_path_is_restored_after_a_failed_import(write_module: WriteModule) -> None:
    path = list(sys.path)
    with pytest.raises(ConfigError):
        resolve_architecture(f"{write_module('1 / 0')}:build")
    assert sys.path == path


def test_build_may_import_its_neighbours_late(write_module: WriteModule) -> None:
    neighbour = write_module(LINEAR)
    late = write_module(f"def build(n, c):\n    import {neighbour}\n    return {neighbour}.build(n, c)")
    assert num_parameters(build(f"{late}:build")) == 40


def test_users_model_may_be_a_class_and_ignores_the_width(write_module: WriteModule) -> None:
    source = """
class Net(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.head = nn.Linear(in_channels, num_classes)
    def forward(self, images):
        return self.head(images.mean(dim=(2, 3)))
"""
    assert num_parameters(build(f"{write_module(source)}:Net@0.5")) == 40


def test_users_weights_depend_on_the_seed_alone(write_module: WriteModule) -> None:
    name = write_module(LINEAR)
    state = torch.get_rng_state()
    first, same, other = (next(build(f"{name}:build", seed=s).parameters()) for s in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_trial_leaves_buffers_and_modes_alone(write_module: WriteModule) -> None:
    source = """
class Counting(nn.Module):
    def __init__(self, num_classes, in_channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.frozen = nn.Dropout(0.5).eval()
        self.head = nn.Linear(in_channels, num_classes)
        self.register_buffer("added", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))
    def forward(self, images):
        assert not self.training
        self.added += 1
        self.replaced = self.replaced + 1
        return self.head(self.frozen(self.norm(images)).mean(dim=(2, 3)))
"""
    model = build(f"{write_module(source)}:Counting")
    buffers = dict(model.named_buffers())
    assert buffers["added"] == buffers["replaced"] == buffers["norm.num_batches_tracked"] == 0
    modes = {key: module.training for key, module in model.named_modules()}
    assert modes == {"": True, "norm": True, "frozen": False, "head": True}
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_take_their_shape_from_the_trial(write_module: WriteModule) -> None:
    source = """
def build(num_classes, in_channels):
    return nn.Sequential(nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(num_classes))
"""
    name = write_module(source)
    first, same = (build(f"{name}:build", image_size=(8, 10), seed=4).state_dict() for _ in range(2))
    assert first["2.weight"].shape == (10, 240)
    assert torch.equal(first["2.weight"], same["2.weight"])
    assert torch.equal(first["0.running_mean"], torch.zeros(3))


def returning(logits: str) -> str:
    """The source of a model that answers with this expression."""
    return f"""
class Net(nn.Module):
    def forward(self, images):
        return {logits}
def build(num_classes, in_channels):
    return Net()
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise RuntimeError('no\\nluck')", r"importing 'crad_test_model_\d+' failed.*no luck"),
        ("def build(:", r"importing 'crad_test_model_\d+' failed with SyntaxError"),
        ("raise SystemExit(3)", r"importing 'crad_test_model_\d+' failed with SystemExit: 3"),
        ("", r"finding 'build' failed with AttributeError: module .* has no attribute 'build'"),
        ("build = 3", r"expected a function of \(num_classes, in_channels\), got int"),
        ("def build(num_classes): ...", r"build\(10, 3\) failed with TypeError"),
        ("def build(n, c): raise ValueError('bad\\nday')", r"build\(10, 3\) failed with ValueError: bad day"),
        ("def build(n, c): pass", r"build\(10, 3\) must return a torch.nn.Module, got NoneType"),
        ("def build(n, c): return nn.Linear", r"must return a torch.nn.Module, got type"),
        (returning("1 / 0"), r"a batch of \[2, 3, 8, 8\] failed with ZeroDivisionError"),
        (returning("None"), r"must give finite floats of shape \[2, 10\], got NoneType"),
        (returning("torch.zeros(2, 9)"), r"must give finite floats of shape \[2, 10\], got \[2, 9\]"),
        (returning("torch.zeros(2, 10, 1)"), r"got \[2, 10, 1\] of torch.float32"),
        (returning("torch.zeros(2, 10).long()"), r"got \[2, 10\] of torch.int64"),
        (returning("torch.full((2, 10), torch.nan)"), r"got a value that is not finite"),
    ],
)
def test_faulty_user_model_is_refused_in_one_line(write_module: WriteModule, source: str, expected: str) -> None:
    name = f"{write_module(source)}:build"
    with pytest.raises(ConfigError, match=f"^model {name!r}: .*{expected}") as caught:
        build(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["crad_no_such_module:build", "crad.no_such_module:build"])
def test_missing_module_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"importing {name.split(':')[0]!r} failed with ModuleNotFoundError"):
        resolve_architecture(name)


@pytest.mark.parametrize("name", [":build", "package.module:", ":"])
def test_half_an_import_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"model {name!r}: expected an import path 'package.module:name'"):
        resolve_architecture(name)


class Installed(nn.Module):
    """What another package would offer through its entry point."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.head = nn.Linear(in_channels, num_classes)

    def forward(self, images_BDHW: Tensor) -> Tensor:
        logits_BC: Tensor = self.head(images_BDHW.amax(dim=(2, 3)))
        return logits_BC


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package is installed, with one good entry point, one broken, and one that takes our name."""
    values = {"theirs": f"{__name__}:Installed", "broken": "crad_no_such:build", "cnn6": f"{__name__}:Installed"}
    entries = [metadata.EntryPoint(name, value, "crad.models") for name, value in values.items()]

    def entry_points(*, group: str) -> metadata.EntryPoints:
        return metadata.EntryPoints(entry for entry in entries if entry.group == group)

    monkeypatch.setattr(metadata, "entry_points", entry_points)


@pytest.mark.usefixtures("installed")
def test_entry_point_of_another_package_is_a_model() -> None:
    assert isinstance(build("theirs"), Installed)


@pytest.mark.usefixtures("installed")
def test_entry_point_cannot_take_the_place_of_our_own() -> None:
    assert not isinstance(build("cnn6"), Installed)


@pytest.mark.usefixtures("installed")
def test_broken_entry_point_is_refused() -> None:
    with pytest.raises(ConfigError, match="model 'broken': importing 'crad_no_such' failed"):
        build("broken")


@pytest.mark.usefixtures("installed")
def test_unknown_name_lists_installed_models() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'theirs'"):
        build("their")


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_narrow_networks_learn_on_every_processor(instructions: str) -> None:
    """oneDNN's gradient of a strided 1x1 with few channels writes beyond its memory: seen as a crash."""
    learn = f"""
import torch
from crad.models import Architecture, build_model
for name in {NAMES}:
    for width in ("@{SMALL}", "@0.2"):
        architecture = Architecture.parse(name + width)
        model = build_model(architecture, num_classes=10, in_channels=3, image_size=(64, 64), seed=0)
        model.to(memory_format=torch.channels_last)
        for side in (32, 64, 32, 64) if "resnet" in name else (64,):
            inputs = torch.randn(16, 3, side, side).contiguous(memory_format=torch.channels_last)
            model(inputs).square().mean().backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters()), name
"""
    done = subprocess.run(
        [sys.executable, "-c", learn],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": instructions, "OMP_NUM_THREADS": "1", "MALLOC_CHECK_": "3"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-500:]}"
