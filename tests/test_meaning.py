"""What a label means is asked for where a file does not say it, and watched while members learn from each other."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crad.analysis.confusions import confused_members, confusion_sentence, simulated_confusions
from crad.cli import main
from crad.config import Experiment
from crad.data.agreed.own_data import draft_dataset, load_own_data
from crad.engines.serial import SerialEngine
from crad.errors import DataError
from crad.federation.context import RunContext, build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.roster import Roster
from crad.federation.rounds import RoundRunner
from crad.methods import resolve_method
from crad.randomness import stream
from crad.runs.records import Record, round_record
from crad.site.doctor import Findings
from crad.site.doctor.own_model import check_data
from crad.site.local_peer import prepare_local_peer
from crad.site.settings import read_site
from crad.site.training import Meaning
from tests.clinics import Clinics, found_clinics

OWN = 0
AGREED = ("cat", "dog", "horse", "cow")


def load(path: Path, own_classes, classes=AGREED):
    return load_own_data(
        str(path),
        classes=classes,
        image_shape=(8, 8, 1),
        augmentation="none",
        held_out=0.2,
        rng=stream(3, "peer", 0, "held-out"),
        own_classes=own_classes,
    )


def with_names(path: Path, names, target: Path) -> Path:
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(target, class_names=np.array(names), **arrays)
    return target


# --- names


def test_labels_without_names_are_asked_for_in_one_line(tiny_npz):
    with pytest.raises(DataError, match="labels are numbers without names") as refusal:
        load(tiny_npz, None)
    said = str(refusal.value)
    assert 'classes = ["...", ...]' in said
    assert 'classes = "as agreed"' in said
    assert "cat, dog, horse, cow" in said
    assert "\n" not in said


def test_names_in_our_own_file_bring_labels_into_the_agreed_order(tiny_npz):
    own = load(tiny_npz, ("cow", "cat", "dog", "horse"))
    with np.load(tiny_npz) as file:
        images, labels = file["train_images"], file["train_labels"]
    known = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    train = np.concatenate([own.shard.train, own.shard.validation])
    for image, label in zip(own.dataset.train_images[train], own.dataset.train_labels[train], strict=True):
        assert label == (3, 0, 1, 2)[known[image.tobytes()]]
    assert own.dataset.class_names == AGREED


def with_texts(path: Path, names, target: Path, keys=("train_labels", "test_labels", "val_labels"), **more) -> Path:
    """The file with texts in place of numbers; its first training images are its validation images too."""
    with np.load(path) as file:
        arrays = dict(file)
    arrays |= {"val_images": arrays["train_images"][:6], "val_labels": arrays["train_labels"][:6]}
    np.savez(target, **arrays | {key: np.array(names)[arrays[key]] for key in keys}, **more)
    return target


@pytest.mark.parametrize("own_classes", [None, "as agreed", ("cow", "cat", "dog", "horse")])
def test_labels_that_are_texts_are_names(tiny_npz, tmp_path, own_classes):
    numbers = with_texts(tiny_npz, [], tmp_path / "numbers.npz", keys=())
    wanted = load(numbers, ("cow", "cat", "dog", "horse"))
    own = load(with_texts(tiny_npz, ["cow", "cat", "dog", "horse"], tmp_path / "texts.npz"), own_classes)
    assert own.dataset.train_labels.tolist() == wanted.dataset.train_labels.tolist()
    assert own.dataset.class_names == AGREED
    assert [part.tolist() for part in (own.shard.train, own.shard.validation, own.shard.test)] == [
        part.tolist() for part in (wanted.shard.train, wanted.shard.validation, wanted.shard.test)
    ]


def test_texts_that_cannot_be_are_refused(tiny_npz, tmp_path):
    texts = with_texts(tiny_npz, ["cow", "cat", "dog", "sheep"], tmp_path / "texts.npz")
    with pytest.raises(DataError, match="class 'sheep' is not in the federation's list"):
        load(texts, None)
    with pytest.raises(DataError, match=r"unknown class 'sheep'\. Known: cat, cow, dog, horse"):
        load(texts, AGREED)
    mixed = with_texts(tiny_npz, AGREED, tmp_path / "mixed.npz", keys=("train_labels", "test_labels"))
    with pytest.raises(DataError, match="train_labels are texts and val_labels are not: write all labels in one form"):
        load(mixed, None)


def test_an_agreement_begins_with_the_texts_of_the_inviting_member(tiny_npz, tmp_path):
    texts = with_texts(tiny_npz, AGREED, tmp_path / "texts.npz")
    assert draft_dataset(str(texts), own_classes=None).class_names == ("cat", "cow", "dog", "horse")
    assert draft_dataset(str(texts), own_classes=AGREED).class_names == AGREED
    wide = with_texts(tiny_npz, AGREED, tmp_path / "wide.npz", class_names=np.array([*AGREED, "sheep"]))
    assert draft_dataset(str(wide), own_classes=None).class_names == (*AGREED, "sheep")


@pytest.mark.parametrize(
    ("own_classes", "words"),
    [
        (("cat", "dog", "horse", "sheep"), "class 'sheep' is not in the federation's list"),
        (("cat", "dog", "horse"), "has label 3, but classes in peer.toml has only 3 names"),
    ],
)
def test_names_that_cannot_be_are_refused(tiny_npz, own_classes, words):
    with pytest.raises(DataError, match=words):
        load(tiny_npz, own_classes)


def test_names_in_the_data_win_and_must_not_be_contradicted(tiny_npz, tmp_path):
    path = with_names(tiny_npz, ["dog", "cat", "cow", "horse"], tmp_path / "named.npz")
    for said in (None, "as agreed", ("dog", "cat", "cow", "horse")):
        assert load(path, said).dataset.train_labels[:8].tolist() == load(path, None).dataset.train_labels[:8].tolist()
    with pytest.raises(DataError, match="names its classes itself"):
        load(path, AGREED)


def test_an_agreement_begins_with_the_names_of_the_inviting_member(tiny_npz, tmp_path):
    assert draft_dataset(str(tiny_npz), own_classes=AGREED).class_names == AGREED
    assert draft_dataset(str(tiny_npz), own_classes="as agreed").class_names == ("0", "1", "2", "3")
    with pytest.raises(DataError, match="numbers without names"):
        draft_dataset(str(tiny_npz), own_classes=None)
    with pytest.raises(DataError, match="only 2 names"):
        draft_dataset(str(tiny_npz), own_classes=("cat", "dog"))
    named = with_names(tiny_npz, AGREED, tmp_path / "named.npz")
    assert draft_dataset(str(named), own_classes=None).class_names == AGREED


def test_doctor_and_join_ask_for_names(tmp_path, monkeypatch, capsys):
    clinics = found_clinics(tmp_path)
    path = clinics.folder / "clinic-0" / "own.npz"
    with np.load(path) as file:
        arrays = {name: array for name, array in file.items() if name != "class_names"}
    np.savez(path, **arrays)
    site, findings = read_site(clinics.site(OWN)), Findings()
    assert check_data(clinics.agreement, site, findings) is None
    assert "numbers without names" in findings.of("problem")[0].text
    monkeypatch.setattr(sys, "argv", ["crad", "peer", "join", "--site", str(clinics.site(OWN))])
    with pytest.raises(SystemExit) as ended:
        main()
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1)
    assert "numbers without names" in err
    for yes in ("as agreed", clinics.agreement.classes):
        assert check_data(clinics.agreement, site.model_copy(update={"classes": yes}), Findings()) is not None


# --- confusion, in a federation


def context_of(**settings) -> RunContext:
    small = {"clients": 3, "alpha": 100.0, "rounds": 5, "held_out": 0.4, "proxy_size": 0, "models": ("cnn6",)}
    return build_run_context(Experiment(**{"preset": "demo", "seed": 1, "workers": 1, **small, **settings}))


def with_shifted_labels(context: RunContext, client: int) -> RunContext:
    labels = context.data.dataset.train_labels.copy()
    where = context.data.shards[client].indices
    labels[where] = (labels[where] + 1) % context.data.num_classes
    return replace(context, data=replace(context.data, dataset=replace(context.data.dataset, train_labels=labels)))


def simulate(context: RunContext, folder: Path) -> tuple[list[Record], dict[int, bytes]]:
    method = resolve_method(context.experiment.method)
    roster = Roster(context, method.roster(context), folder)
    loop = RoundRunner(method, roster, exchange=MemoryExchange(), engine=SerialEngine(context, method))
    records = [round_record(done, roster) for done in loop.run()]
    states = {place.index: place.state.read_bytes() for place in roster if place.state is not None}
    return records, states


@pytest.fixture(scope="module")
def shifted(tmp_path_factory) -> list[Record]:
    """Three clients that see all classes alike; client 1 counts its labels from one."""
    return simulate(with_shifted_labels(context_of(), 1), tmp_path_factory.mktemp("shifted"))[0]


def notes_of(records, client):
    return [note for record in records for note in record["clients"][client]["notes"].get("confused", [])]


def found_by(records, client):
    """Teacher, its class, our class: what one client is told."""
    own = [{"clients": [record["clients"][client]]} for record in records]
    entries = confused_members(own, ["0", "1", "2"], [str(digit) for digit in range(10)])
    return [(int(one["member"]), int(one["theirs"]), int(one["ours"])) for one in entries]


def test_labels_shifted_by_one_are_found_by_everybody_else(shifted):
    for student in (0, 2):
        assert {note["teacher"] for note in notes_of(shifted, student)} == {1}, "the honest one is not accused"
        found = found_by(shifted, student)
        assert len(found) >= 5
        assert all(theirs == (ours + 1) % 10 for _, theirs, ours in found)
    backwards = found_by(shifted, 1)
    assert {teacher for teacher, _, _ in backwards} == {0, 2}, "from there everybody else is shifted"
    assert all(ours == (theirs + 1) % 10 for _, theirs, ours in backwards)


def test_a_simulations_report_has_a_line_for_who_has_most_against_it(shifted):
    first, *others = simulated_confusions(shifted, [str(digit) for digit in range(10)])
    assert first.startswith("client 1: its class '0' behaves like class '9' of the others and ")
    assert "as seen by client 0, 2;" in first
    assert [line.partition(":")[0] for line in others] == ["client 0", "client 2"], "as client 1 sees it"


@pytest.mark.parametrize("method", ["crad", "crad-plus"])
def test_an_honest_run_is_silent(tmp_path, method):
    records, _ = simulate(context_of(method=method, alpha=0.5), tmp_path)
    assert [notes_of(records, client) for client in range(3)] == [[], [], []]
    assert "confused" not in json.dumps(records)


def test_watching_changes_no_bit(tmp_path, monkeypatch):
    context = with_shifted_labels(context_of(rounds=2), 1)
    _, watched = simulate(context, tmp_path / "watched")
    monkeypatch.setattr("crad.aggregation.confusion.MAX_CELLS", 0)
    records, unwatched = simulate(context, tmp_path / "not")
    assert notes_of(records, 0) == [], "nothing is counted"
    assert watched == unwatched


# --- and what is said of it


def note(teacher, said, own):
    shares = {"samples": 40, "said_share": 0.9, "right_share": 0.0}
    return {"teacher": teacher, "said": said, "own": own, **shares}


def record(*notes):
    return {"clients": [{"notes": {"confused": list(notes)} if notes else {}}]}


def test_the_sentence_says_whose_class_is_which():
    records = 2 * [record(note(1, said=1, own=0))]
    (entry,) = confused_members(records, ["clinic-a", "clinic-b"], ["cat", "dog"])
    assert confusion_sentence(entry) == (
        "clinic-b: its class 'dog' behaves like our class 'cat'; perhaps its labels are shifted"
    )


def test_every_member_and_pair_is_one_entry_and_one_round_alone_is_none():
    records = [record(note(1, 1, 0)), record(), *2 * [record(note(1, 1, 0), note(2, 1, 0))], record(note(1, 0, 1))]
    entries = confused_members(records, ["a", "b", "c"], ["cat", "dog"])
    assert [(one["member"], one["theirs"], one["ours"], one["rounds"]) for one in entries] == [
        *(("b", "dog", "cat", 3), ("c", "dog", "cat", 2))
    ]


@pytest.fixture(scope="module")
def clinics(tmp_path_factory) -> Clinics:
    return found_clinics(tmp_path_factory.mktemp("clinics"))


def test_it_is_said_once_also_after_a_restart(clinics):
    part = prepare_local_peer(clinics.agreement, read_site(clinics.site(OWN)))
    heard: list[str] = []
    meaning = Meaning(part, notice=heard.append)
    both = record(note(1, 3, 2), note(2, 3, 2))
    for found, said in ((record(note(1, 3, 2)), 0), (record(), 0), (both, 1), (both, 2), (both, 2)):
        meaning.hear(found)
        assert len(heard) == said
        with (part.folder / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
    assert [sentence.partition(":")[0] for sentence in heard] == ["clinic-1", "clinic-2"]
    again = Meaning(part, notice=heard.append)
    again.hear(record(note(2, 3, 2)))
    assert len(heard) == 2
    assert again.sentences == meaning.sentences == heard
