"""`timm:NAME`: networks of the package timm, as far as they may be had.

A small module of timm's shape stands in for it, so that our side is tried everywhere; the last test wants the real one.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import crad
from crad.errors import ConfigError
from crad.models import Allowance, Architecture, InputShape, build_model, estimate_size, resolve_architecture
from tests.conftest import change

SHAPE = InputShape(4, 1, (8, 8))


class Convolutional(nn.Module):
    """For images of any size, as most of timm's."""

    def __init__(self, num_classes, in_chans):
        super().__init__()
        self.pretrained_cfg = {"classifier": "fc"}
        self.conv = nn.Conv2d(in_chans, 6, 3, padding=1)
        self.fc = nn.Linear(6, num_classes)

    def forward(self, images):
        return self.fc(torch.relu(self.conv(images)).mean(dim=(2, 3)))


class Patched(nn.Module):
    """For images of one size, as timm's vision transformers."""

    def __init__(self, num_classes, in_chans, img_size):
        super().__init__()
        self.pretrained_cfg = {"classifier": "head"}
        self.img_size = img_size
        self.embed = nn.Parameter(torch.randn(1, in_chans, *img_size))
        self.head = nn.Linear(in_chans, num_classes)

    def forward(self, images):
        assert images.shape[2:] == self.img_size
        return self.head((images + self.embed).mean(dim=(2, 3)))


NETWORKS = {"tinynet": Convolutional, "vit_tiny_patch4": Patched}


@pytest.fixture
def timm(monkeypatch) -> ModuleType:
    module = ModuleType("timm")
    about = {"tinynet": SimpleNamespace(), "vit_tiny_patch4": SimpleNamespace(fixed_input_size=True)}

    def create_model(name, pretrained, **how):
        assert pretrained is False, "it would be downloaded"
        return NETWORKS[name.partition(".")[0]](**how)

    module.__dict__.update(
        __version__="1.0.0",
        is_model=lambda name: name.partition(".")[0] in NETWORKS,
        list_models=lambda: sorted(NETWORKS),
        create_model=create_model,
        models=SimpleNamespace(get_pretrained_cfg=lambda name, allow_unregistered: about[name.partition(".")[0]]),
    )
    monkeypatch.setitem(sys.modules, "timm", module)
    return module


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize("name", ["timm:tinynet", "timm:tinynet.a1_in1k", "timm:vit_tiny_patch4"])
def test_it_is_built_for_the_classes_channels_and_sides_of_the_data(name):
    assert Architecture.parse(name).id == name
    first, again = (build_model(Architecture(name), **vars(SHAPE), seed=3) for _ in range(2))
    other = build_model(Architecture(name), **vars(SHAPE), seed=4)
    assert first(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key])
    assert any(not torch.equal(tensor, other.state_dict()[key]) for key, tensor in first.state_dict().items())


@pytest.mark.usefixtures("timm")
def test_its_size_is_known_before_it_is_built(monkeypatch):
    monkeypatch.setattr("crad.models.allowance.build_model", lambda *words, **more: pytest.fail("it was built"))
    size = estimate_size(Architecture("timm:tinynet"), SHAPE)
    assert size.parameters == (6 * 9 + 6) + (4 * 6 + 4)
    assert size.activation_bytes == 6 * 8 * 8 * 4
    assert all(tensor.device.type == "meta" for tensor in size.weights.values())


@pytest.mark.usefixtures("timm")
def test_a_partners_is_refused_unless_our_own_file_allows_it_by_name():
    partner = Architecture("timm:tinynet")
    assert 'write architectures = ["timm:tinynet"] into peer.toml' in str(Allowance().refusal(partner, SHAPE))
    assert Allowance(frozenset({"timm:vit_tiny_patch4"})).refusal(partner, SHAPE) is not None
    assert Allowance(frozenset({"timm:tinynet"})).refusal(partner, SHAPE) is None
    small = Allowance(frozenset({"timm:tinynet"}), max_mb=1e-4)
    assert "MB of weights, our peer.toml allows max_teacher_mb" in str(small.refusal(partner, SHAPE))


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:tinnet", r"timm 1\.0\.0 has no such network; near it: timm:tinynet"),
        ("timm:hf-hub:somebody/tinynet", r"has no such network"),
        ("timm:local-dir:tinynet", r"has no such network"),
        ("timm:../tinynet", r"has no such network"),
        ("timm:", r"has no such network"),
    ],
)
def test_a_name_that_is_not_in_timms_registry_is_refused(name, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        resolve_architecture(name)
    assert "\n" not in str(refusal.value)


def test_without_timm_one_line_says_what_to_install(monkeypatch, tiny, tmp_path):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"'timm:resnet18' needs the package timm: pip install '\.\[timm\]'"):
        crad.run(change(tiny, models=("timm:resnet18",)), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_timm_that_does_not_fit_torch_is_said_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot be imported \(RuntimeError: .*nms.*install the torchvision"):
        resolve_architecture("timm:resnet18")


@pytest.mark.usefixtures("timm")
def test_it_trains_beside_ours(tiny):
    experiment = change(tiny, models=("timm:tinynet", "cnn6", "timm:vit_tiny_patch4"), rounds=2, width=0.5)
    once, again = crad.run(experiment), crad.run(experiment)
    assert once.rounds[-1]["clients"] == again.rounds[-1]["clients"]
    architectures = [client["architecture"] for client in once.rounds[-1]["clients"]]
    assert architectures == ["timm:tinynet@0.5", "cnn6@0.5", "timm:vit_tiny_patch4@0.5", "timm:tinynet@0.5"]
    for index, client in enumerate(once.rounds[-1]["clients"]):
        assert client["trust"].keys() == {str(other) for other in range(4)} - {str(index)}, "they teach each other"


def test_the_real_timm(tiny):
    try:
        import timm
    except Exception as error:
        pytest.skip(f"timm cannot be imported here ({type(error).__name__}: {error}): crad[timm] is not in crad[dev]")
    assert timm.is_model("resnet10t")
    result = crad.run(change(tiny, models=("timm:resnet10t", "cnn6"), rounds=1, eval_every=1))
    assert result.rounds[-1]["round"] == 1
    size = estimate_size(Architecture("timm:resnet10t"), SHAPE)
    model = build_model(Architecture("timm:resnet10t"), **vars(SHAPE), seed=0)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
