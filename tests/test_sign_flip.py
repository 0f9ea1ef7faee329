"""Whose logits a sign-flip can negate: the output layer of our families and of any module is found by trying."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import crad
from crad.errors import ConfigError
from crad.federation.attacks import output_layer
from crad.models import FAMILIES, Architecture, build_model
from tests.conftest import change


class Backwards(nn.Module):
    """Its last layer stands first."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.last = nn.Linear(num_classes, num_classes, bias=False)
        self.first = nn.Linear(in_channels * 64, num_classes)

    def forward(self, images):
        return self.last(torch.relu(self.first(images.flatten(1))))


class Convolutional(nn.Module):
    """No linear layer at all."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, num_classes, 3)

    def forward(self, images):
        return self.conv(images).mean(dim=(2, 3))


@pytest.mark.parametrize("name", FAMILIES["image"])
def test_the_output_layer_of_every_family_is_found(name):
    model = build_model(Architecture(name, 0.125), num_classes=5, in_channels=3, image_size=(8, 8), seed=1)
    assert output_layer(model, torch.randn(2, 3, 8, 8), 5) in {
        ("head.weight", "head.bias"),
        ("head.3.weight", "head.3.bias"),
    }


def test_the_output_layer_is_found_by_trying():
    assert output_layer(Backwards(4, 1), torch.randn(2, 1, 8, 8), 4) == ("last.weight",)
    assert output_layer(nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()), torch.randn(2, 1, 8, 8), 4) == ()


def test_a_model_without_a_last_linear_layer_is_refused_before_anything_is_written(tiny, tmp_path):
    experiment = change(tiny, attack="sign-flip", attackers=1, models=("tests.test_sign_flip:Convolutional",))
    with pytest.raises(ConfigError, match="attack 'sign-flip' negates the last linear layer, and client"):
        crad.run(experiment, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    crad.run(change(experiment, models=("tests.test_sign_flip:Backwards",), rounds=1))
