"""Real images, small runs: the whole way from the file to a summary, on every data set of the paper."""

from __future__ import annotations

import pytest

import crad
from crad.federation.context import build_run_context

SHAPES = {"cifar10": (10, (32, 32)), "cifar100": (100, (32, 32)), "pathmnist": (9, (32, 32))}


@pytest.fixture(autouse=True)
def use_real_data(real_data, monkeypatch):
    monkeypatch.setenv("CRAD_DATA", str(real_data))


def small(dataset: str, **settings: object) -> crad.Experiment:
    return crad.Experiment(
        **{"preset": "mini", "dataset": dataset, "train_limit": 400, "test_limit": 200, "clients": 3, "alpha": 1.0}
        | {"rounds": 1, "width": 0.0625, "seed": 3, "device": "cpu", "workers": 1, "committee": False, "metrics": False}
        | settings
    )


@pytest.mark.parametrize("dataset", SHAPES)
def test_a_round_of_all_three_families_runs_on_every_data_set(dataset):
    summary = crad.run(small(dataset, committee=True)).summary
    assert summary["committee"]["members"] == [0, 1, 2]
    assert len(summary["per_class"]) == SHAPES[dataset][0]
    assert (summary["train_images"], summary["test_images"], summary["proxy_size"]) == (400, 200, 40)
    assert summary["architecture_per_client"] == ["resnet18@0.0625", "resnet18-half@0.0625", "cnn6@0.0625"]
    assert build_run_context(small(dataset)).data.dataset.image_size == SHAPES[dataset][1]


@pytest.mark.parametrize("method", ["local", "crad"])
def test_clients_learn_tissue_classes_well_above_chance(method):
    """Nine classes: guessing is right in 11 of 100."""
    world = {"clients": 2, "models": ("cnn6",), "rounds": 8, "lr": 0.05, "width": 0.125, "train_limit": 600}
    experiment = small("pathmnist", method=method, **world)
    assert crad.run(experiment).summary["global_accuracy"] > 20


@pytest.mark.parametrize("method", ["fedmd", "fedgd", "msfkd", "dfml", "fedmkd"])
def test_the_compared_methods_run_with_a_hundred_classes(method):
    own = {"generator_steps": 1, "generator_batch": 8, "transfer_size": 100} if method == "fedgd" else {}
    summary = crad.run(small("cifar100", method=method, method_settings=own, rounds=2, models=("cnn6",))).summary
    assert len(summary["per_class"]) == 100
    assert summary["payload_bytes_per_client_round"] > 0
