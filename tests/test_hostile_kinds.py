"""One member's hostile words about texts, recordings, series and trees: refused in one line, and the round goes on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import crad
from crad.errors import ConfigError
from crad.federation.peer import Peer
from crad.network.agreement import make_agreement, read_agreement
from crad.site.local_peer import prepare_local_peer
from crad.site.settings import read_site
from crad.site.setup import read_member_toml
from tests.clinics import Forked
from tests.clinics import _join_here as join_here
from tests.conftest import change
from tests.kind_clinics import found_members, split_files, text_members, tree_members
from tests.organisations import agreement_table, make_identities
from tests.test_recordings import people, plants, pumps, whistles  # noqa: F401  # fixtures
from tests.test_tables import clinics, wards  # noqa: F401  # fixtures
from tests.test_texts import news, papers  # noqa: F401  # fixtures

NAN, LARGEST = float("nan"), torch.finfo(torch.float32).max
LIAR = 1
Tensors = dict[str, Tensor]


# --- what an agreement says of the data


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    return make_identities(tmp_path_factory.mktemp("identities"))


def about(identities: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """An agreement about other data than images, as plain values."""
    table = agreement_table(identities, data=data)
    return {key: value for key, value in table.items() if key not in ("image_shape", "mean", "std")}


TEXT = {"kind": "text", "label": "y", "text": ["t"], "vocabulary": 512, "text_length": 12}
SERIES = {"kind": "series", "channels": 2, "length": 40}
AUDIO = {"kind": "audio", "channels": 1, "length": 400, "rate": 8000}
WRONG: dict[str, list[Any]] = {
    "vocabulary": [10**9, -5, 0, 1, 512.0, NAN, math.inf, True, "512", None, [512], {}, 10**300],
    "text_length": [10**9, 0, -1, 12.5, NAN, "12", [1] * 1000],
    "text": [[], "t", ["t", "t"], ["y"], ["t\x1b[2J"], ["a\nb"], ["x" * 101], [f"t{n}" for n in range(101)], [1], {}],
    "label": ["", "y\x00", "a\u202eb", 5, "x" * 5000, ["y"]],
    "tokenizer": ["evil", 1, None, "words-1; import os"],
    "channels": [10**9, 0, -1, 2.0, NAN, True, "2"],
    "length": [10**9, 7, 0, -40, 4e1, math.inf, "40"],
    "channel_names": [["a"], ["a", "a"], ["a", "b\x07"], "ab", ["a"] * 100_000, [1, 2]],
    "units": [["V"], ["V", "\x1b"], 3],
    "rate": [10**9, 0, -8000, NAN, 8e3, True, "8000", None],
    "augmentation": ["crop-flip", 1, ["shift"], "shift\n"],
    "import os": [1],
    "e\x1b[31m": [1],
    "k" * 100_000: [1],
    "kind": ["image", "song", "\x00", None, ["text"], "x" * 100_000],
}
OF_KIND = {
    "text": (TEXT, {"vocabulary", "text_length", "text", "label", "tokenizer"}),
    "series": (SERIES, {"channels", "length", "channel_names", "units", "augmentation"}),
    "audio": (AUDIO, {"channels", "length", "rate", "augmentation"}),
}
STRANGE = {key for key in WRONG if not any(key in known for _, known in OF_KIND.values())}


@pytest.mark.parametrize("kind", OF_KIND)
def test_hostile_words_about_data_are_refused_in_one_short_line(identities, kind):
    right, known = OF_KIND[kind]
    make_agreement(about(identities, right))
    began = time.process_time()
    for key in known | STRANGE:
        for value in WRONG[key]:
            with pytest.raises(ConfigError) as refusal:
                make_agreement(about(identities, {**right, key: value}))
            said = str(refusal.value)
            assert said.isprintable(), said
            assert len(said) < 500
            assert said.startswith("data: "), said
    for key in sorted(set(right) - {"tokenizer"}):
        with pytest.raises(ConfigError, match=key):
            make_agreement(about(identities, {name: value for name, value in right.items() if name != key}))
    assert time.process_time() - began < 10


def test_the_largest_that_can_be_agreed_on_is_bounded(identities):
    for data in ({**SERIES, "channels": 1000, "length": 10**7}, {**AUDIO, "channels": 2, "length": 10**7}):
        with pytest.raises(ConfigError, match=r"a sample would have \d+ values, at most 10000000 can be agreed on"):
            make_agreement(about(identities, data))


DEEP = {
    "lists in lists": "x = " + "[" * 3000 + "]" * 3000,
    "tables in tables": ".".join(["x"] * 2000) + " = 1",
    "a number of thousands of digits": f"vocabulary = {'9' * 5000}",
    "a hexadecimal one": f"vocabulary = 0x{'f' * 5000}",
    "a date": "vocabulary = 2020-01-01",
}


@pytest.mark.parametrize("line", DEEP.values(), ids=DEEP)
def test_what_no_reader_expects_in_a_file_is_refused_in_one_line_by_its_name(tmp_path, line):
    path = tmp_path / "federation.toml"
    path.write_text(f'[data]\nkind = "text"\n{line}\n')
    for read in (read_agreement, read_member_toml):
        with pytest.raises(ConfigError, match=r"federation\.toml") as refusal:
            read(path)
        assert str(refusal.value).isprintable()
        assert len(str(refusal.value)) < 500


# --- what a snapshot holds


def filled(value: float, *names: str) -> Callable[[Tensors], Tensors]:
    """Put one value into all places of the tensors whose names end so."""

    def change_them(tensors: Tensors) -> Tensors:
        found = [name for name in tensors if name.endswith(names)]
        assert found, list(tensors)
        return {**tensors, **{name: torch.full_like(tensors[name], value) for name in found}}

    return change_them


def resized(name: str, size: int) -> Callable[[Tensors], Tensors]:
    """Send a tensor with another number of first entries."""

    def change_them(tensors: Tensors) -> Tensors:
        [found] = [one for one in tensors if one.endswith(name)]
        return {**tensors, found: tensors[found].new_zeros(size, *tensors[found].shape[1:])}

    return change_them


def strange_columns(tensors: Tensors) -> Tensors:
    """Ask for columns that there are not."""
    column = torch.arange(tensors["column"].numel(), dtype=torch.int32).view_as(tensors["column"])
    return {**tensors, "column": torch.where(column % 2 == 0, 2**31 - 1, -(2**31)).to(torch.int32)}


REFUSED: dict[str, tuple[str, Callable[[Tensors], Tensors], str]] = {
    "more words than agreed": ("text", resized("embedding.weight", 4096), "expected F32 [512,"),
    "fewer words": ("text", resized("embedding.weight", 3), "expected F32 [512,"),
    "a word that is no number": ("text", filled(NAN, "embedding.weight"), "non-finite value in tensor"),
    "words so loud that they overflow": ("text", filled(LARGEST, "embedding.weight"), "gives non-finite predictions"),
    "a mean that is no number": ("series", filled(NAN, ".mean"), "non-finite value in tensor"),
    "a deviation without end": ("series", filled(math.inf, ".scale"), "non-finite value in tensor"),
    "more channels": ("series", resized(".mean", 5), "expected F32 [2]"),
    "a band's mean without end": ("audio", filled(-math.inf, ".mean"), "non-finite value in tensor"),
    "another number of bands": ("audio", resized(".scale", 4000), "expected F32 [32]"),
    "thresholds that are no numbers": ("trees", filled(NAN, "threshold"), "non-finite value in tensor 'threshold'"),
    "leaves without end": ("trees", filled(math.inf, "values"), "non-finite value in tensor 'values'"),
    "more trees": ("trees", resized("column", 999), "as tensor 'column', expected I32 [10, 15]"),
    "columns of another type": ("trees", lambda one: {**one, "column": one["column"].long()}, "expected I32"),
}
# Finite and strange: run like any teacher, what it says is in bounds, and a rule judges it.
TAUGHT: dict[str, tuple[str, Callable[[Tensors], Tensors]]] = {
    "statistics that hide everything": ("series", filled(0.0, ".scale")),
    "statistics that shout": ("series", filled(LARGEST, ".mean", ".scale")),
    "bands that hide everything": ("audio", filled(0.0, ".scale")),
    "bands that shout": ("audio", filled(LARGEST, ".mean", ".scale")),
    "columns that there are not": ("trees", strange_columns),
    "thresholds as large as can be": ("trees", filled(LARGEST, "threshold")),
    "leaves below everything": ("trees", filled(-LARGEST, "values")),
}


@pytest.fixture
def world(request) -> Callable[[str], tuple[Any, Any]]:
    """By kind: two or three clients for one round, of which the second one may lie, and their data in memory."""

    def found(kind: str) -> tuple[Any, Any]:
        get = request.getfixturevalue
        common: dict[str, Any] = {"rounds": 1, "method": "uniform", "committee": False, "metrics": False}
        if kind == "series":
            return plants(**common, models=("cnn1d",), width=0.125), get("pumps")
        named, models = {
            "text": ("papers", ("bag",)),
            "audio": ("people", ("cnn1d", "mel-cnn6")),
            "trees": ("wards", ("mlp", "gradient-boosting")),
        }[kind]
        width = 0.1 if kind == "trees" else 0.125
        return change(get(named), **common, models=models, width=width), None

    return found


def after_a_round(world: tuple[Any, Any], hostile: Callable[[Tensors], Tensors], monkeypatch: Any) -> crad.Result:
    """Run a round in which one member sends something else than its model."""
    honest = Peer.published_weights

    def published(peer: Peer, round_index: int) -> Tensors:
        weights = honest(peer, round_index)
        return hostile(weights) if peer.index == LIAR else weights

    monkeypatch.setattr(Peer, "published_weights", published)
    experiment, data = world
    return crad.run(experiment, data=data)


def honest_records(result: crad.Result) -> list[dict[str, Any]]:
    """What the honest members' records say; everybody ended the round with numbers."""
    [record] = result.rounds
    found = [one for one in record["clients"] if one["client"] != LIAR]
    assert all(math.isfinite(one["losses"]["total"]) for one in record["clients"])
    for model in (result.models[one["client"]] for one in found):
        assert all(tensor.isfinite().all() for tensor in model.module.state_dict().values())
    return found


@pytest.mark.parametrize(("kind", "hostile", "said"), REFUSED.values(), ids=REFUSED)
def test_a_hostile_snapshot_is_refused_by_its_senders_name_and_the_round_goes_on(
    kind, hostile, said, world, monkeypatch
):
    for one in honest_records(after_a_round(world(kind), hostile, monkeypatch)):
        reason = one["notes"]["refused"][str(LIAR)]
        assert reason.startswith(f"peer {LIAR} ")
        assert said in reason
        assert reason.isprintable()
        assert len(reason) < 300


@pytest.mark.parametrize(("kind", "hostile"), TAUGHT.values(), ids=TAUGHT)
def test_strange_numbers_do_nobody_more_harm_than_a_bad_teacher(kind, hostile, world, monkeypatch):
    for one in honest_records(after_a_round(world(kind), hostile, monkeypatch)):
        assert "refused" not in one.get("notes", {})
        assert one["losses"]["total"] < 50


# --- the same between real processes

BY_ROUND = {
    "text": ("more words than agreed", "words so loud that they overflow"),
    "table": ("thresholds that are no numbers", "more trees"),
}


def join_lying(site: Path, log: Path, kind: str) -> None:
    """Take part as `crad peer join` does, with something else in place of the model."""
    honest = Peer.published_weights

    def published(peer: Peer, round_index: int) -> Tensors:
        _, hostile, _ = REFUSED[BY_ROUND[kind][round_index - 1]]
        return hostile(honest(peer, round_index))

    pytest.MonkeyPatch().setattr(Peer, "published_weights", published)  # in a process of its own
    join_here(site, log)


@pytest.mark.parametrize("kind", BY_ROUND)
def test_a_real_member_names_who_sent_it_and_ends_all_its_rounds(kind, tmp_path, request):
    get, agreed = request.getfixturevalue, {"method": "uniform"}
    made = text_members(get("papers"), **agreed) if kind == "text" else tree_members(get("wards"), **agreed)
    if kind == "table":  # the second one has the trees
        models = ("mlp@0.25", "gradient-boosting@0.1")
        made = replace(made, simulated=change(made.simulated, models=models, clients=2, site=None, partition="iid"))
        made = replace(made, write=split_files(made.simulated, "csv"))
    members = found_members(tmp_path, made, exchange=(tmp_path / "store").as_uri(), **agreed)
    log = tmp_path / "log.txt"
    try:
        liar = Forked(join_lying, members.site(LIAR), tmp_path / "liar.txt", kind)
        members.forked.append(liar)
        assert members.join_forked(0, log=log).wait() == 0, log.read_text()
    finally:
        members.end()
    record = json.loads((members.state(0) / "participant.json").read_text())
    assert record["refused"].keys() == {f"clinic-{LIAR}"}
    said = " ".join(record["refused"][f"clinic-{LIAR}"])
    for name in BY_ROUND[kind]:
        assert REFUSED[name][2] in said
    assert said.isprintable()
    assert len((members.state(0) / "rounds.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("architecture", ["resnet18", "gradient-boosting", "cnn1d", "somebody.else:build"])
def test_a_member_whose_network_is_for_another_kind_is_left_out_and_nobody_else(architecture, tmp_path, request):
    made = text_members(request.getfixturevalue("papers"))
    members = found_members(tmp_path, made)
    path = tmp_path / "federation.toml"
    path.write_text(path.read_text().replace(made.models[LIAR], architecture))
    part = prepare_local_peer(read_agreement(path), read_site(members.site(0)))
    [(name, said)] = part.named_left_out.items()
    assert name == f"clinic-{LIAR}"
    assert said.startswith(f"its network {architecture} ")
    assert said.isprintable()
