"""The loop as one organisation runs it: own images only, the others behind the exchange; the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crad.config import Experiment
from crad.data.agreed.own_data import load_own_data
from crad.data.agreed.shard_files import write_shard
from crad.data.preprocessing import ImagePreprocessor, channel_statistics, make_preprocessor
from crad.engines.serial import SerialEngine
from crad.errors import DataError
from crad.federation.class_statistics import count_noise
from crad.federation.context import RunContext, build_run_context, build_site_context
from crad.federation.exchange import ByteCounter, MemoryExchange
from crad.federation.roster import Roster
from crad.federation.rounds import RoundRunner
from crad.methods import resolve_method
from crad.randomness import stream
from crad.runs.checkpoint import load_checkpoint, save_checkpoint
from crad.runs.records import round_record

CLASSES = tuple(str(digit) for digit in range(10))
SHAPE = (8, 8, 1)


def experiment(**settings) -> Experiment:
    small = {"clients": 3, "rounds": 3, "width": 0.125, "train_limit": 300, "test_limit": 50, "proxy_size": 0}
    return Experiment(**{"preset": "demo", "seed": 5, "workers": 1, **small, **settings})


class Recording(MemoryExchange):
    """Keeps everything that was ever published."""

    def __init__(self):
        super().__init__()
        self.all = {}

    def publish(self, round_index, *, sender, kind, message):
        self.all[round_index, sender, kind] = (message.manifest, bytes(message.body))
        super().publish(round_index, sender=sender, kind=kind, message=message)


class Others:
    """The exchange as one member sees it: the others have published what a simulation recorded."""

    def __init__(self, recorded, *, ahead=None):
        self.traffic = ByteCounter()
        self.recorded, self.published, self.asked = recorded, {}, []
        self.ahead = ahead

    def publish(self, round_index, *, sender, kind, message):
        self.published[round_index, sender, kind] = (message.manifest, bytes(message.body))

    def collect(self, round_index, *, receiver, peers, kind, deadline_s=None, quorum=None):
        from crad.federation.message import Message

        self.asked.append((round_index, quorum))
        found = {peer: self.recorded.get((round_index, peer, kind)) for peer in peers}
        got = {peer: Message(*entry) for peer, entry in found.items() if entry is not None}
        return got, [peer for peer, entry in found.items() if entry is None]

    def latest(self):
        return self.ahead


def shard_file(context: RunContext, client: int, path: Path) -> Path:
    write_shard(context.data.dataset, context.data.shards[client], path)
    return path


def own_context(context: RunContext, client: int, folder: Path, *, secret: int = 1) -> RunContext:
    data = context.data.dataset
    height, width = data.image_size
    own = load_own_data(
        str(shard_file(context, client, folder / f"{client}.npz")),
        classes=data.class_names,
        image_shape=(height, width, data.in_channels),
        augmentation=data.augmentation,
        held_out=0.2,
        rng=stream(0, "unused"),
    )
    means, deviations = channel_statistics(data.train_images)
    simulated = context.data.preprocessor
    assert isinstance(simulated, ImagePreprocessor)
    preprocessor = make_preprocessor(means, deviations, augmentation=simulated.augmentation, device="cpu")
    return build_site_context(
        context.experiment, own, client=client, preprocessor=preprocessor, device="cpu", secret=secret
    )


def simulate(context: RunContext, folder: Path):
    method = resolve_method(context.experiment.method, context.experiment.method_settings)
    roster, exchange = Roster(context, method.roster(context), folder), Recording()
    records = []
    for done in RoundRunner(method, roster, exchange=exchange, engine=SerialEngine(context, method)).run():
        records.append(round_record(done, roster))
    return roster, exchange, records


def node(context: RunContext, client: int, folder: Path, exchange):
    method = resolve_method(context.experiment.method, context.experiment.method_settings)
    roster = Roster(context, method.roster(context), folder, here={client})
    return roster, RoundRunner(method, roster, exchange=exchange, engine=SerialEngine(context, method))


WORLDS: dict[str, dict[str, Any]] = {
    "crad": {},
    "dfml": {"method": "dfml"},
    "committee": {"method": "committee"},
    "experts": {"method": "experts", "method_settings": {"student_epochs": 2}},
    "experts that go on": {
        "method": "experts",
        "method_settings": {"expert_rounds": 1, "exchange_every": 1, "student_epochs": 1},
    },
    "two of three": {"active": 2},
}


@pytest.mark.parametrize("settings", WORLDS.values(), ids=WORLDS)
def test_a_member_on_its_own_ends_with_the_weights_and_messages_of_the_simulation(tmp_path, settings):
    context = build_run_context(experiment(**settings))
    together, exchange, records = simulate(context, tmp_path / "together")
    for client in range(3):
        others = Others({key: entry for key, entry in exchange.all.items() if key[1] != client})
        roster, rounds = node(own_context(context, client, tmp_path), client, tmp_path / f"alone-{client}", others)
        own_records = [round_record(done, roster) for done in rounds.run()]
        assert others.published == {key: entry for key, entry in exchange.all.items() if key[1] == client}
        state, expected = roster[client].state, together[client].state
        assert (state is None) == (expected is None)
        if state is not None and expected is not None:
            assert state.read_bytes() == expected.read_bytes()
        assert roster[client].measured.local == together[client].measured.local
        assert own_records[-1]["global_accuracy"] is None, "an organisation has no common test images"
        of_client = [entry for entry in records[-1]["clients"] if entry["client"] == client]
        assert [entry["local"] for entry in own_records[-1]["clients"]] == [entry["local"] for entry in of_client]


def test_who_was_away_goes_on_where_the_others_are(tmp_path):
    context = build_run_context(experiment())
    others = Others({}, ahead=3)
    _, rounds = node(own_context(context, 0, tmp_path), 0, tmp_path / "alone", others)
    done = list(rounds.run(after=1))
    assert [one.index for one in done] == [3]
    assert done[0].missing == {0: [1, 2]}, "nobody's message came, and that is said"


def test_the_last_round_does_not_insist_on_a_quorum(tmp_path):
    context, others = build_run_context(experiment()), Others({})
    _, rounds = node(own_context(context, 0, tmp_path), 0, tmp_path / "alone", others)
    assert [one.index for one in rounds.run()] == [1, 2, 3]
    assert others.asked == [(1, None), (2, None), (3, 0)], "who is late for the end goes on without the others"


def test_a_member_checkpoints_itself_alone(tmp_path):
    context = build_run_context(experiment())
    roster, rounds = node(own_context(context, 1, tmp_path), 1, tmp_path / "alone", Others({}))
    done = next(rounds.run())
    save_checkpoint(roster, round_index=1, changed=set(done.learned), keep=set())
    again, _ = node(own_context(context, 1, tmp_path), 1, tmp_path / "alone", Others({}))
    load_checkpoint(again, round_index=1)
    assert again[1].state == roster[1].state
    assert again[1].measured == roster[1].measured
    assert again[0].evaluation is None


def test_private_counts_of_an_organisation_cannot_be_drawn_again_from_the_common_seed(tmp_path):
    context = build_run_context(experiment(private_counts=1.0))
    mine, theirs = (own_context(context, 0, tmp_path, secret=secret) for secret in (7, 8))
    assert not np.array_equal(count_noise(mine, 0), count_noise(context, 0))
    assert not np.array_equal(count_noise(mine, 0), count_noise(theirs, 0))
    assert np.array_equal(count_noise(mine, 0), count_noise(own_context(context, 0, tmp_path, secret=7), 0))


# --- own data


def save(path: Path, *, names=None, **arrays: Any) -> str:
    if names is not None:
        arrays["class_names"] = np.array(names)
    np.savez(path, **arrays)
    return str(path)


def arrays(sizes=(40, 8), *, classes=3, with_validation=None):
    rng = np.random.default_rng(1)
    made = {}
    for name, size in zip(("train", "test"), sizes, strict=True):
        made[f"{name}_images"] = rng.integers(0, 256, (size, *SHAPE), dtype=np.uint8)
        made[f"{name}_labels"] = np.arange(size) % classes
    if with_validation:
        made["val_images"] = rng.integers(0, 256, (with_validation, *SHAPE), dtype=np.uint8)
        made["val_labels"] = np.arange(with_validation) % classes
    return made


def load(source: str, classes=("a", "b", "c"), **settings):
    agreed = {"image_shape": SHAPE, "augmentation": "none", "held_out": 0.2, "own_classes": "as agreed", **settings}
    return load_own_data(source, classes=classes, rng=stream(3, "peer", 0, "held-out"), **agreed)


def test_labels_follow_the_agreed_order_of_the_names(tmp_path):
    made = arrays(with_validation=6)
    own = load(save(tmp_path / "own.npz", names=["c", "a", "b"], **made), classes=("a", "b", "c", "d"))
    assert own.dataset.class_names == ("a", "b", "c", "d")
    assert own.dataset.train_labels[own.shard.train].tolist() == [(2, 0, 1)[n % 3] for n in range(40)]
    assert own.dataset.train_labels[own.shard.validation].tolist() == [2, 0, 1, 2, 0, 1]
    assert np.array_equal(own.dataset.train_images[own.shard.test], made["test_images"])
    assert len(own.dataset.test_images) == 0


def test_without_validation_images_half_of_the_held_out_share_is_taken_from_every_class(tmp_path):
    own = load(save(tmp_path / "own.npz", **arrays((60, 8))))
    assert len(own.shard.validation) == 6
    assert np.bincount(own.dataset.train_labels[own.shard.validation]).tolist() == [2, 2, 2]
    assert len(own.shard.train) == 54
    again = load(save(tmp_path / "own.npz", **arrays((60, 8))))
    assert np.array_equal(own.dataset.train_images, again.dataset.train_images)


@pytest.mark.parametrize(
    ("made", "settings", "words"),
    [
        ({"names": ["a", "b", "x"]}, {}, "class 'x' is not in the federation's list"),
        ({}, {"classes": ("a", "b")}, "has label 2"),
        ({}, {"image_shape": (8, 8, 3)}, "8x8x1, the federation agreed on 8x8x3"),
        ({}, {"image_shape": (7, 9, 1)}, "8x8x1, the federation agreed on 7x9x1"),
        ({"sizes": (6, 2)}, {}, "needs at least 10"),
    ],
)
def test_data_that_does_not_fit_the_agreement_is_refused_with_the_reason(tmp_path, made, settings, words):
    names, sizes = made.get("names"), made.get("sizes", (40, 8))
    path = save(tmp_path / "own.npz", names=names, **arrays(sizes))
    with pytest.raises(DataError, match=words):
        load(path, **settings)


def test_smaller_images_get_a_border_up_to_the_agreed_square(tmp_path):
    own = load(save(tmp_path / "own.npz", **arrays()), image_shape=(12, 12, 1))
    assert own.dataset.image_size == (12, 12)
    assert own.dataset.train_images.shape[1:] == (8, 8, 1)
