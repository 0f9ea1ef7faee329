"""Every method, engine, page and command for every kind of data that is no image, in its own words."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.context import build_run_context
from crad.federation.peer import Peer
from crad.methods import resolve_method
from crad.report.live.watch import Watch
from tests.conftest import change
from tests.test_recordings import people, plants, pumps, tone, wav, whistles  # noqa: F401  # fixtures
from tests.test_resume import assert_same_weights, interrupted
from tests.test_tables import clinics, wards  # noqa: F401  # fixtures
from tests.test_texts import news, papers  # noqa: F401  # fixtures

KINDS = ("table", "trees", "text", "audio", "series")
BY_RULE_OR_ALONE = ("local", "centralized", "uniform", "crad", "crad-plus", "committee", "experts")
BY_GRADIENTS = ("dfml", "fedmkd", "fedmd", "msfkd", "fedgd")
WORDS = {"table": "row", "trees": "row", "text": "text", "audio": "recording", "series": "series"}


@pytest.fixture(scope="module")
def pump_file(request, tmp_path_factory) -> Path:
    """The two plants as a file of arrays."""
    data = request.getfixturevalue("pumps")
    path: Path = tmp_path_factory.mktemp("pumps") / "pumps.npz"
    sites = np.array(data.site_names)[data.train_sites]
    splits = {"train": (data.train_samples, data.train_labels), "test": (data.test_samples, data.test_labels)}
    stored = {f"{name}_samples": samples for name, (samples, _) in splits.items()}
    stored |= {f"{name}_labels": labels for name, (_, labels) in splits.items()}
    np.savez(path, **stored, train_sites=sites, class_names=np.array(data.class_names))
    return path


@pytest.fixture(scope="module")
def worlds(request, pump_file) -> dict[str, Experiment]:
    """Two clients of each kind; a round takes a tenth of a second."""
    get = request.getfixturevalue
    quick: dict[str, Any] = {"committee": False, "metrics": False}
    return {
        "table": change(get("wards"), models=("mlp", "tab-transformer"), **quick),
        "trees": change(get("wards"), models=("mlp", "gradient-boosting", "random-forest"), width=0.05, **quick),
        "text": change(get("papers"), **quick),
        "audio": change(get("people"), models=("cnn1d", "mel-cnn6"), width=0.0625, seconds=0.1, **quick),
        "series": plants(dataset=str(pump_file), kind="series", width=0.125, **quick),
    }


@pytest.mark.parametrize("method", BY_RULE_OR_ALONE + BY_GRADIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_moves_every_client_or_says_why_not(worlds, kind, method, tmp_path):
    usual = {"rounds": 2, "method_settings": {"student_epochs": 1}} if method == "experts" else {"rounds": 1}
    experiment = change(worlds[kind], method=method, **usual)
    if method == "fedgd" or (kind == "trees" and method in BY_GRADIENTS):
        with pytest.raises(ConfigError) as refusal:
            crad.run(experiment, output=tmp_path / "run")
        said = str(refusal.value)
        gradients = "model 'gradient-boosting' is fitted in one call, and method"
        assert said.startswith(gradients if kind == "trees" else "method 'fedgd' paints images only, and this is a")
        assert said.isprintable()
        assert not (tmp_path / "run").exists()
        return
    result = crad.run(experiment)
    line = result.rounds[-1]
    assert all(math.isfinite(value) for one in line["clients"] for value in one["losses"].values())
    assert 0 <= result.summary["global_accuracy"] <= 100
    context = build_run_context(experiment)
    for number, member in enumerate(resolve_method(method).roster(context)):
        before, after = Peer(context, member).model.state_dict(), result.models[number].module.state_dict()
        assert all(tensor.isfinite().all() for tensor in after.values())
        assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items()), f"client {number}"
    exchanged = sum(one["payload_bytes"] for one in result.rounds)
    assert (exchanged > 0) == (method not in ("local", "centralized"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_but_trees_trains_privately_and_is_accounted(worlds, kind):
    usual = {"private_training": 8.0, "delta": 1e-3, "noise_multiplier": 1.0, "sampling_rate": 0.5, "rounds": 1}
    schema = {"standardize": "schema", "ranges": "pressure=0:250,sugar=0:20,lab=0:250"}
    agreed = schema if kind in ("table", "trees") else {}
    experiment = change(worlds[kind], method="crad", **usual, **agreed)
    if kind == "trees":
        with pytest.raises(ConfigError, match="gradient-boosting"):
            crad.run(experiment)
        return
    result = crad.run(experiment)
    for one in result.rounds[-1]["clients"]:
        assert math.isfinite(one["losses"]["total"])
        assert 0 < one["privacy"]["epsilon"] <= 8.0
    for number, member in enumerate(resolve_method("crad").roster(context := build_run_context(experiment))):
        before, after = Peer(context, member).model.state_dict(), result.models[number].module.state_dict()
        assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items()), f"client {number}"


@pytest.fixture(scope="module")
def finished(worlds, tmp_path_factory) -> dict[str, crad.Result]:
    """A run of each kind in a directory, watched to its end."""
    folder, results = tmp_path_factory.mktemp("finished"), {}
    for kind, experiment in worlds.items():
        addresses: list[str] = []
        watch = Watch(announce=addresses.append)
        results[kind] = crad.run(experiment, output=folder / kind, callbacks=[watch])
        assert len(addresses) == 1, kind
    return results


@pytest.mark.usefixtures("forked_workers")
def test_series_that_were_stopped_and_go_on_in_two_processes_have_the_same_bits(worlds, finished, tmp_path):
    """As the others do in the tests of their kinds."""
    interrupted(worlds["series"], tmp_path / "run", after=1)
    crad.run(change(worlds["series"], engine="processes", workers=2), output=tmp_path / "run", resume=True)
    assert_same_weights(finished["series"].directory, tmp_path / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_pages_and_explanations_have_the_kinds_own_words(finished, kind, crad_command):
    folder = finished[kind].directory
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", (folder / "report.html").read_text())
    assert not re.search(r"\bimages?\b", re.sub(r"<[^>]*>", " ", page))
    inspection = json.loads((folder / "inspection.json").read_text())
    assert inspection["words"]["one"] == WORDS[kind]
    code, out, err = crad_command("explain", folder, "--student", 0, "--image", 2)
    assert code == 0, err
    assert f"test {WORDS[kind]} 2 (true class" in out
    code, _, err = crad_command("explain", folder, "--student", 0, "--image", 10_000)
    assert (code, f"{WORDS[kind]} 10000 does not exist" in err) == (2, True)


def new_file(kind: str, folder: Path, worlds: dict[str, Experiment]) -> Path:
    """Samples of this kind to predict on."""
    if kind in ("table", "trees", "text"):
        return Path(shutil.copy(worlds[kind].dataset, folder / "new.csv"))
    if kind == "audio":
        (folder / "new.wav").write_bytes(wav(tone(200.0, 0.2)))
        return folder / "new.wav"
    np.save(folder / "new.npy", np.zeros((2, 2, 40), np.float32))
    return folder / "new.npy"


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_exported_and_asked_alone_and_together(worlds, finished, kind, tmp_path, crad_command):
    inputs, folder = new_file(kind, tmp_path, worlds), finished[kind].directory
    model = tmp_path / "own.safetensors"
    code, _, err = crad_command("export", folder, "--client", 1, "--format", "safetensors", "--output", model)
    assert code == 0, err
    for words in ([model, inputs], [folder, inputs, "--committee"]):
        code, out, err = crad_command("predict", *words, "--json")
        assert code == 0, err
        classes = json.loads(out)["predictions"][0]["probabilities"]
        assert sum(classes.values()) == pytest.approx(1, abs=1e-3)
        assert all(math.isfinite(share) for share in classes.values())
    other = tmp_path / "other.bin"
    other.write_bytes(b"\0\1\2")
    code, _, err = crad_command("predict", model, other)
    assert (code, err.count("\n")) == (2, 1), err
