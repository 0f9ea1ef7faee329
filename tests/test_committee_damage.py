"""Committees and models of input that nobody meant: huge numbers, odd arguments, damaged runs, files made to harm."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import crad
from crad.data.readers.npz import read_npz
from crad.errors import ConfigError, CradError, RunError, shown
from crad.prediction import model_files
from crad.prediction.committee import Committee, CommitteePredictor, LeftOutError, MemberModels, check_numbers
from crad.prediction.export import export_model
from crad.prediction.model_card import ModelCard
from crad.prediction.trained_model import TorchPredictor, TrainedModel
from tests.conftest import change
from tests.test_committee import ONE, SAID, by_hand, edit_models, state_of

HUGE = torch.finfo(torch.float32).max


@pytest.fixture(scope="module")
def ran(tiny, tmp_path_factory):
    """Three clients that trained alone."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    settings = {"method": "local", "clients": 3, "rounds": 1, "models": ("cnn6", "cnn6-wide"), "committee": True}
    return crad.run(change(tiny, **settings), output=folder)


@pytest.fixture(scope="module")
def images(tiny_npz):
    return read_npz(tiny_npz).test_images[:8]


@pytest.fixture
def copied(ran, tmp_path):
    return shutil.copytree(ran.directory, tmp_path / "run")


class Says(nn.Module):
    """A network that gives the same logits for every image."""

    def __init__(self, logits):
        super().__init__()
        self.said_C = nn.Parameter(torch.tensor(logits), requires_grad=False)

    def forward(self, inputs):
        return self.said_C.expand(len(inputs), -1)


def with_member(committee: Committee, client: int, logits) -> Committee:
    """The same committee with one member that gives these logits."""
    card, models = committee.about.members[0].card, committee.torch_predictor.models
    said = TorchPredictor(Says(logits), card)
    changed = MemberModels(lambda one: said if one == client else models.get(one))
    return Committee(committee.about, CommitteePredictor(committee.about, changed, committee.torch_predictor.rule))


# --- numbers


@pytest.mark.parametrize("prior", ["keep", "remove"])
@pytest.mark.parametrize("logits", [(HUGE, -HUGE), (HUGE, HUGE), (float("nan"), 0.0), (float("inf"), 0.0)])
def test_who_overflows_when_softened_is_not_heard(logits, prior):
    committee = by_hand(temperature=0.5, teacher_prior=prior)
    expected = committee.torch_predictor.rule.select([1, 2])
    others = torch.tensor([SAID[7], SAID[9]]).log().unsqueeze(1)
    said = with_member(committee, 4, logits).predict_proba(ONE)
    assert said == pytest.approx(expected.probabilities(others).numpy(), abs=1e-6)


def test_what_only_looks_huge_is_heard():
    said = with_member(by_hand(rule="uniform", temperature=2.0), 4, (HUGE, -HUGE)).predict_proba(ONE)
    assert np.isfinite(said).all()
    assert said[0, 0] > by_hand(rule="uniform", temperature=2.0).predict_proba(ONE)[0, 0]


@pytest.mark.parametrize("temperature", [0.25, 100.0])
def test_a_committee_of_one_is_its_model_at_the_ends_of_the_range(temperature):
    committee = by_hand(said={4: [0.99999, 0.00001]}, temperature=temperature)
    assert committee.predict_proba(ONE)[0] == pytest.approx([0.99999, 0.00001], rel=1e-3)


@pytest.mark.parametrize(
    "temperature", [0.01, 0.2499, 100.1, 1e6, 1e39, 1e-40, 10**400, 10**5000, True, "3", None], ids=shown
)
def test_other_temperatures_are_refused_in_one_line(temperature):
    with pytest.raises(ConfigError, match=r"^temperature is .*: a committee's members are softened at 0.25 to 100; "):
        by_hand(temperature=temperature)


def test_a_run_at_another_temperature_is_read_and_has_no_committee(tiny, tmp_path, crad_command, tiny_npz):
    settings = {"method": "local", "clients": 2, "rounds": 1, "models": ("cnn6",), "committee": True}
    crad.run(change(tiny, **settings, temperature=1000.0), output=tmp_path / "run")
    run = crad.load(tmp_path / "run")
    told = run.summary["committee"]
    assert (told["members"], told["global_accuracy"]) == ([], None)
    line = "temperature is 1000.0: a committee's members are softened at 0.25 to 100"
    assert set(run.rounds[-1]["committee"]["left_out"].values()) == {line}
    assert run.models[0].predict_proba(read_npz(tiny_npz).test_images[:2]).shape == (2, 4)
    assert "committee" not in (run.summary.get("metrics") or {})
    with pytest.raises(ConfigError, match="^the run's " + re.escape(line)):
        run.committee(0)
    assert run.committee(0, temperature=3).members == (0, 1)
    code, out, err = crad_command("predict", tmp_path / "run", tiny_npz, "--committee")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


def test_a_single_model_without_numbers_says_so(images):
    card = ModelCard("cnn6", ("cat", "dog"), (8, 8, 1), None, (0.0,), (1.0,), origin={"client": 5})
    model = TrainedModel(card, TorchPredictor(Says((float("nan"), 0.0)), card))
    with pytest.raises(RunError, match="no finite numbers come out on input 0"):
        model.predict(images)
    with pytest.raises(RunError, match="the model of client 5 gives non-finite predictions, so no file is written"):
        export_model(model, "safetensors", Path("nowhere.safetensors"))
    assert not Path("nowhere.safetensors").exists()


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_no_file_is_written_that_answers_nothing(format, tmp_path):
    spoilt = with_member(by_hand(), 7, (float("nan"), 0.0))
    with pytest.raises(RunError, match="client 7 gives non-finite predictions: make the committee without it"):
        export_model(spoilt, format, tmp_path / f"c.{format}")
    overflowing = with_member(by_hand(temperature=0.5), 9, (HUGE, -HUGE))
    with pytest.raises(RunError, match="client 9 gives non-finite predictions"):
        export_model(overflowing, format, tmp_path / f"c.{format}")
    assert list(tmp_path.iterdir()) == []


# --- arguments


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"members": 3}, "members is 3: name clients in a list"),
        ({"members": [True, 1]}, "members: True is no client's number; choose 0 to 2"),
        ({"members": [0.0]}, "members: 0.0 is no client's number"),
        ({"client": "1"}, "client: '1' is no client's number; choose 0 to 2"),
        ({"client": True}, "client: True is no client's number"),
        ({"client": 1.0}, "client: 1.0 is no client's number"),
        ({"client": 10**400}, "client 1"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": True}, "temperature is True"),
    ],
)
def test_odd_arguments_are_refused_in_one_line(asked, reason, ran):
    with pytest.raises(ConfigError, match="^" + re.escape(reason)) as refusal:
        ran.committee(**asked)
    assert "\n" not in str(refusal.value)


def test_numbers_of_numpy_are_numbers(ran, images, tmp_path):
    pytest.importorskip("onnxscript")
    plain = ran.committee(0, members=[0, 1], temperature=2.0).predict_proba(images, "local")
    asked = ran.committee(np.int64(0), members=np.array([0, 1]), temperature=np.float32(2))
    assert np.array_equal(asked.predict_proba(images, "local"), plain)
    for format in ("safetensors", "onnx"):
        written = ran.export(format, committee=asked, path=tmp_path / f"c.{format}")
        assert crad.load_model(written).predict_proba(images, "local") == pytest.approx(plain, abs=1e-5)
        written = ran.export(format, client=np.int64(1), path=tmp_path / f"m.{format}")
        assert crad.load_model(written).card.origin["client"] == 1
    assert ran.models[np.int64(2)].card.origin["client"] == 2
    for wrong in ("1", True, 1.0):
        with pytest.raises(ConfigError, match="is no client's number; choose 0 to 2"):
            ran.export(client=wrong, path=tmp_path / "x.safetensors")
        with pytest.raises(ConfigError, match="is no client's number; choose 0 to 2"):
            ran.models[wrong]


# --- run directories


def of_client(client, change_it):
    return lambda folder: edit_models(folder, lambda peer: change_it(peer) if peer["index"] == client else None)


def of_whole(change_it):
    def edit(folder):
        written = json.loads((folder / "models.json").read_text())
        (folder / "models.json").write_text(json.dumps(change_it(written)))

    return edit


@pytest.mark.parametrize("evidence", ["reported", "pooled"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: said["counts"].__setitem__(0, float("nan")),
        lambda said: said["counts"].__setitem__(0, float("inf")),
        lambda said: said["counts"].__setitem__(0, 10**400),
        lambda said: said["counts"].pop(),
        lambda said: said["counts"].append(1.0),
        lambda said: [said[name].pop() for name in ("counts", "accuracies", "cross_entropies")],
        lambda said: said.update(counts="abcd"),
        lambda said: said["accuracies"].__setitem__(1, float("nan")),
    ],
)
def test_damaged_figures_leave_their_member_out(spoil, evidence, copied):
    of_client(1, lambda peer: spoil(peer["statistics"]))(copied)
    committee = crad.load(copied).committee(2, evidence=evidence)
    assert committee.left_out == {1: "client 1's class statistics in models.json are damaged"}
    assert committee.members == (0, 2)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tally: [column.pop() for column in tally.values()],
        lambda tally: [column.append(0) for column in tally.values()],
        lambda tally: tally["hits"].__setitem__(0, float("inf")),
        lambda tally: tally["hits"].__setitem__(0, float("nan")),
        lambda tally: tally["hits"].__setitem__(0, 10**6),
        lambda tally: tally["alarms"].__setitem__(0, 10**6),
        lambda tally: tally.update(hits="x"),
    ],
)
def test_damaged_counts_of_a_client_are_one_line(spoil, copied):
    of_client(1, lambda peer: spoil(peer["tallies"][2]))(copied)
    with pytest.raises(RunError, match=r"^what client 2 counted of client 1 is damaged in models\.json: run it again"):
        crad.load(copied).committee(2)
    assert crad.load(copied).committee(2, evidence="reported").members == (0, 1, 2)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_whole(lambda record: []), "it is no object"),
        (of_whole(lambda record: record | {"peers": []}), "its peers must hold the clients 0 to 2, each once"),
        (of_whole(lambda record: record | {"peers": record["peers"][:2]}), "its peers must hold the clients 0 to 2"),
        (of_whole(lambda record: record | {"peers": {}}), "peers is not"),
        (of_whole(lambda record: record | {"classes": record["classes"][1:]}), "peers[0].train_counts is not"),
        (of_whole(lambda record: record | {"mean": ["x"]}), "mean is not"),
        (of_whole(lambda record: record | {"kind": ["image"]}), "kind is not"),
        (of_whole(lambda record: record | {"dtype": "nonsense"}), "columns or dtype is not"),
        (of_whole(lambda record: {key: record[key] for key in record if key != "std"}), "it lacks 'std'"),
        (of_client(2, lambda peer: peer.pop("clients")), "it lacks 'clients'"),
        (of_client(2, lambda peer: peer.update(index=9)), "peers[2].index is not"),
        (of_client(2, lambda peer: peer["train_counts"].pop()), "peers[2].train_counts is not"),
        (of_client(2, lambda peer: peer.update(train_counts="x")), "peers[2].train_counts is not"),
        (of_client(2, lambda peer: peer.update(train_counts=[float("nan")] * 4)), "peers[2].train_counts is not"),
        (of_client(2, lambda peer: peer["validation_counts"][0].pop()), "peers[2].validation_counts is not"),
        (of_client(2, lambda peer: peer.update(validation_counts=[])), "peers[2].validation_counts is not"),
        (of_client(2, lambda peer: peer.update(validation_counts=[["a"] * 4])), "peers[2].validation_counts is not"),
        (of_client(2, lambda peer: peer.update(log_prior=[0.0])), "peers[2].log_prior is not"),
    ],
)
def test_a_damaged_models_json_is_one_line(spoil, reason, copied, tiny_npz, crad_command):
    spoil(copied)
    for words in (
        ("predict", copied, tiny_npz, "--committee", "--client", 2),
        ("export", copied, "--client", 1),
        ("export", copied, "--committee"),
    ):
        code, out, err = crad_command(*words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"crad: {copied / 'models.json'} is damaged: {reason}")


def rename_a_tensor(state):
    content = bytearray(state.read_bytes())
    place = bytes(content).index(b"weight", bytes(content).index(b"model."))
    content[place] ^= 1
    state.write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda state: state.write_bytes(b""), "the model in "),
        (lambda state: state.write_bytes(b"\x02\0\0\0\0\0\0\0[]"), "the model in "),
        (lambda state: state.write_bytes(state.read_bytes()[:500]), "the model in "),
        (rename_a_tensor, "the model of network cnn6-wide"),
    ],
)
def test_a_damaged_model_is_left_out_and_named(spoil, reason, copied, crad_command):
    spoil(state_of(copied, 1))
    committee = crad.load(copied).committee(0)
    assert committee.members == (0, 2)
    assert committee.left_out[1].startswith(f"client 1: {reason}")
    assert "pass the one" not in committee.left_out[1]
    code, out, err = crad_command("export", copied, "--client", 1)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"crad: {reason}")


def test_the_model_of_another_network_is_left_out_and_named(copied):
    shutil.copy(state_of(copied, 0), state_of(copied, 1))
    assert "is damaged or another client's: " in crad.load(copied).committee(0).left_out[1]


# --- files


def rewritten(path, *, change_committee=None, metadata=None, tensors=None):
    """Write a file once more with something else in it."""
    with safe_open(path, "pt") as file:
        about = file.metadata()
    held = load_file(path)
    if change_committee is not None:
        committee = json.loads(about["committee"])
        change_committee(committee)
        about["committee"] = json.dumps(committee)
    if tensors is not None:
        tensors(held)
    save_file(held, path, metadata={**about, **(metadata or {})})
    return path


@pytest.fixture
def file(ran, tmp_path):
    return ran.export(committee=ran.committee(client=2), path=tmp_path / "c.safetensors")


def poison(*clients):
    def spoil(held):
        for name in held:
            if name.startswith(tuple(f"member.{client}." for client in clients)) and held[name].is_floating_point():
                held[name].fill_(float("nan"))

    return spoil


def test_a_member_of_a_file_without_numbers_is_left_out_and_named(ran, file, images, crad_command):
    pytest.importorskip("onnxscript")
    committee = crad.load_model(rewritten(file, tensors=poison(1)))
    assert isinstance(committee, Committee)
    assert committee.left_out == {1: "client 1 gives non-finite predictions"}
    assert committee.members == (0, 2)
    code, _, err = crad_command("export", file, "--format", "onnx")
    assert (code, err) == (0, "")
    graph = crad.load_model(file.with_suffix(".onnx"))
    assert isinstance(graph, Committee)
    assert graph.members == (0, 2)
    for face in ("global", "local"):
        assert graph.predict_proba(images, face) == pytest.approx(committee.predict_proba(images, face), abs=1e-5)
    with pytest.raises(RunError, match=r"c\.safetensors: nobody is left for a committee: client 0 gives"):
        crad.load_model(rewritten(file, tensors=poison(0, 2)))


def test_what_a_file_claims_to_be_large_is_not_tried_at_that_size(monkeypatch):
    monkeypatch.setattr(TorchPredictor, "logits", lambda self, samples: pytest.fail(f"{samples.shape}"))
    card = ModelCard("resnet18", ("cat", "dog"), (8000, 8000, 1), None, (0.0,), (1.0,))
    check_numbers(1, TorchPredictor(Says((0.0, 1.0)), card), temperature=1.0)
    with pytest.raises(LeftOutError, match="client 1 gives non-finite predictions"):
        check_numbers(1, TorchPredictor(Says((float("nan"), 1.0)), card), temperature=1.0)


def test_a_member_of_a_file_that_cannot_be_run_is_left_out_and_named(file, monkeypatch):
    def refuse(self, samples):
        raise RuntimeError("shapes\ndiffer")

    monkeypatch.setattr(TorchPredictor, "logits", refuse)
    with pytest.raises(
        RunError, match=r"nobody is left for a committee: client 0 cannot be run \(shapes differ\); client 1"
    ):
        crad.load_model(file)


def of_settings(name, value):
    return lambda said: said["settings"].update({name: value})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (of_settings("rule", ["a"]), "its rule"),
        (of_settings("rule", {}), "its rule"),
        (of_settings("temperature", 0.01), "temperature is 0.01: a committee's members are softened at 0.25 to 100"),
        (of_settings("temperature", 1e39), "temperature is 1e+39: a committee's members are softened at 0.25 to 100"),
        (of_settings("temperature", 10**400), "temperature is 1000"),
        (of_settings("min_support", 10**400), "its min_support"),
        (of_settings("epsilon", 10**400), "its epsilon"),
        (of_settings("epsilon", 1e-300), "its epsilon"),
        (of_settings("teacher_prior", ["keep"]), "its teacher_prior"),
        (of_settings("unsupported", []), "its unsupported"),
        (lambda said: said.update(client=float("inf")), "the number of a client"),
        (lambda said: said["members"][0].update(client=float("nan")), "the number of a client"),
        (lambda said: said["members"][0].update(client=10**400), "the number of a client"),
        (lambda said: said["members"][0]["statistics"]["counts"].__setitem__(0, 10**400), "counts.0"),
        (lambda said: said["members"][0]["verified"].update(effective=[1e39] * 4), "what is known of its members"),
        (lambda said: said["members"][0]["verified"].update(effective=[10**400] * 4), "int too large"),
        (lambda said: said.update(note="\x1b[31m"), "its note"),
        (lambda said: said.update(members=said["members"] * 5000), "its members: 15000, at most 4096 can be"),
    ],
)
def test_hostile_words_about_a_committee_are_one_line(spoil, reason, file):
    rewritten(file, change_committee=spoil)
    with pytest.raises(CradError) as refusal:
        crad.load_model(file)
    opening = f"{file} is no committee that crad exported: it lacks or spoils {reason}"
    assert str(refusal.value).startswith(opening)
    assert str(refusal.value).isprintable()


DEEP = "[" * 100_000 + "]" * 100_000


def as_input(**sides):
    return json.dumps({"dtype": "uint8", "layout": "NHWC", "height": 8, "width": 8, "channels": 1, **sides})


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"log_prior": json.dumps([float("nan")] * 4)}, "log_prior"),
        ({"log_prior": json.dumps([float("-inf")] * 4)}, "log_prior"),
        ({"log_prior": json.dumps([1e300] * 4)}, "log_prior"),
        ({"log_prior": json.dumps([10**400] * 4)}, "int too large"),
        ({"input": as_input(height=10**9)}, "the shape of the samples: 1000000000x8x1 values"),
        ({"input": as_input(width=10**9, height=10**9)}, "the shape of the samples"),
        ({"preprocessing": '{"pad_to": 1000000}'}, "the shape of the samples: 1x1000000x1000000 values"),
        ({"preprocessing": '{"pad_to": -1}'}, "the shape of the samples"),
        ({"mean": "[NaN]"}, "mean"),
        ({"std": "[0.0]"}, "std"),
        ({"std": "[1e-300]"}, "std"),
        ({"classes": json.dumps(["\x1b[31mcat", "dog", "eel", "fox"])}, "a class name with control characters"),
        ({"classes": json.dumps(["cat\n", "dog", "eel", "fox"])}, "a class name with control characters"),
        ({"classes": json.dumps(["cat", "dog", "cat", "fox"])}, "the class name 'cat' twice"),
        ({"classes": json.dumps(["\u202ecat", "dog", "eel", "fox"])}, "a class name with control characters"),
        ({"classes": '"abcd"'}, "classes"),
        ({"classes": DEEP}, "too deeply nested JSON"),
        ({"origin": "[]"}, "origin"),
    ],
)
@pytest.mark.parametrize("kind", ["committee", "model"])
def test_hostile_words_about_samples_and_classes_are_one_line(metadata, reason, kind, ran, file, tmp_path):
    path = file if kind == "committee" else ran.export(client=0, path=tmp_path / "m.safetensors")
    rewritten(path, metadata=metadata)
    with pytest.raises(RunError) as refusal:
        crad.load_model(path)
    opening = f"{path} is no model that crad exported: its metadata lacks or spoils {reason}"
    assert str(refusal.value).startswith(opening)
    assert str(refusal.value).isprintable()


def test_deep_json_about_a_committee_is_one_line(file):
    rewritten(file, metadata={"committee": DEEP})
    with pytest.raises(RunError, match=r"it lacks or spoils too deeply nested JSON$"):
        crad.load_model(file)


def test_a_class_that_is_not_there_is_read(ran, file, images):
    expected = crad.load_model(file).predict_proba(images)
    rewritten(file, metadata={"log_prior": json.dumps([-1e9, 0.0, -1e9, -1e9])})
    committee = crad.load_model(file)
    assert np.array_equal(committee.predict_proba(images), expected)
    assert committee.predict_proba(images, "local")[:, 1] == pytest.approx(1.0)


def test_a_network_larger_than_its_weights_is_not_built(file, monkeypatch):
    monkeypatch.setattr(model_files, "empty_network", lambda *_, **__: pytest.fail("it was built"))
    rewritten(file, change_committee=lambda said: said["members"][0].update(architecture="resnet18@4"))
    with pytest.raises(
        RunError, match=r"its weights do not fit the network 'resnet18@4', which has 178,\d+,\d+ values"
    ):
        crad.load_model(file)


def test_weights_of_another_type_are_refused(file):
    def whole_numbers(held):
        name = next(name for name in held if name.startswith("member.0.") and held[name].is_floating_point())
        held[name] = held[name].to(torch.complex64)

    rewritten(file, tensors=whole_numbers)
    with pytest.raises(RunError, match=r"is of torch\.complex64, not torch\.float32"):
        crad.load_model(file)


def test_names_that_no_file_may_have_are_said_before_one_is_written(ran, tmp_path):
    card = replace(ran.models[0].card, class_names=("\x1b[31mcat", "dog", "eel", "fox"))
    model = TrainedModel(card, TorchPredictor(ran.models[0].module, card))
    with pytest.raises(ConfigError, match="a class name with control characters"):
        export_model(model, "safetensors", tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_not_what_it_says_is_one_line(ran, images, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    path = ran.export("onnx", client=0, path=tmp_path / "m.onnx")
    graph = onnx.load(path)
    for one in graph.metadata_props:
        one.value = '["cat", "dog"]' if one.key == "classes" else one.value
    onnx.save(graph, path)
    with pytest.raises(RunError, match=r"this ONNX graph is not what its metadata says \(4 classes for 2 names\)"):
        crad.load_model(path).predict(images)


# --- many members


def test_a_file_is_opened_once_for_all_its_members(file, monkeypatch):
    opened = []

    def opening(*asked):
        opened.append(asked)
        return safe_open(*asked)

    monkeypatch.setattr(model_files, "safe_open", opening)
    crad.load_model(file)
    assert len(opened) == 2, "its metadata, and its weights"


def test_a_member_is_weighed_once():
    weighed = []

    class Member(TorchPredictor):
        def __init__(self):
            """It has no network."""

        @property
        def nbytes(self):
            weighed.append(self)
            return 10

    models = MemberModels(lambda client: Member(), kept_bytes=305)
    kept = [models.get(client) for client in range(40)]
    assert len(weighed) == 40
    assert [models.get(client) is kept[client] for client in range(40)] == [True] * 30 + [False] * 10


# --- the page


def test_no_two_commands_of_the_page_write_to_one_file():
    page = (Path(__file__).parents[1] / "docs" / "committee.md").read_text()
    targets = []
    for line in re.findall(r"^crad export runs/\S+ .*?(?= *#|$)", page, flags=re.MULTILINE):
        said = re.search(r"(?:-o|--output) (\S+)", line)
        client, format = re.search(r"--client (\d+)", line), re.search(r"--format (\w+)", line)
        targets.append(said[1] if said else f"{client and client[1]} {format and format[1]}")
    assert len(targets) == len(set(targets)) >= 2
