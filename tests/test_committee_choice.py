"""A committee one can afford: who is chosen, at what gain and cost, and who is found out."""

from __future__ import annotations

import json
import math
import shutil
from typing import Any

import numpy as np
import pytest
import torch

import crad
from crad.errors import ConfigError, RunError
from crad.federation.attacks import draw_attackers
from crad.federation.context import build_run_context
from crad.prediction.committee_choice import CommitteeCost, choose, measured_cost, paired_gain
from tests.conftest import change

COSTS = [CommitteeCost(1.0, 10.0), CommitteeCost(2.0, 20.0), CommitteeCost(4.0, 40.0), CommitteeCost(8.0, 80.0)]


def mean_of(right_KB):
    """The plain mean of members that say these probabilities of the true class, which is always the second of two."""
    right_KB = torch.tensor(right_KB)

    def answer(members):
        said_B = right_KB[list(members)].mean(dim=0)
        return torch.stack([1 - said_B, said_B], dim=1)

    return answer, torch.ones(right_KB.shape[1], dtype=torch.int64)


# --- the interval


def test_a_gain_counts_what_changed_and_adds_an_image_of_either_kind():
    now = torch.tensor([True] * 5 + [False] * 5)
    before = torch.tensor([True] * 2 + [False] * 7 + [True])
    gain = paired_gain(now, before)  # three gained, one lost, of ten
    half = 1.959964 * math.sqrt((4 / 12 + 2 / 12 - (2 / 12) ** 2) / 12)
    assert (gain.points, gain.low, gain.high) == pytest.approx((20.0, 100 * (1 / 6 - half), 100 * (1 / 6 + half)))
    nothing = paired_gain(now, now)
    assert nothing.points == 0
    assert -40 < nothing.low < 0 < nothing.high < 40
    assert (paired_gain(~now & now, now | ~now).is_harm, nothing.is_harm) == (True, False)


@pytest.mark.parametrize(("up", "down"), [(0.0, 0.0), (0.1, 0.1), (0.3, 0.05), (0.05, 0.4), (0.02, 0.0)])
def test_the_interval_holds_the_truth_nineteen_times_of_twenty(up, down):
    """Exactly, over all outcomes of twenty images."""
    count, held = 20, 0.0
    for gained in range(count + 1):
        for lost in range(count + 1 - gained):
            same = count - gained - lost
            ways = math.factorial(count) // (math.factorial(gained) * math.factorial(lost) * math.factorial(same))
            chance = ways * up**gained * down**lost * (1 - up - down) ** same
            now = torch.tensor([True] * gained + [False] * (count - gained))
            before = torch.tensor([False] * gained + [True] * lost + [False] * same)
            gain = paired_gain(now, before)
            held += chance * (gain.low <= 100 * (up - down) <= gain.high)
    assert held > 0.94


# --- greedy, by hand


def test_who_helps_is_taken_and_who_harms_is_not():
    """Alone four of eight; with the second all; the third, which is always wrong, would take four away again."""
    answer, labels = mean_of([[0.9] * 4 + [0.4] * 4, [0.6] * 4 + [0.8] * 4, [0.05] * 8])
    path, choice = choose(answer, labels, clients=[7, 8, 9], first=0, size=3, costs=COSTS[:3])
    assert path == [0, 1]
    assert [(step.client, step.accuracy) for step in choice.steps] == [(7, 50.0), (8, 100.0)]
    assert choice.steps[0].gain is None
    assert choice.steps[1].gain is not None
    assert choice.steps[1].gain.points == choice.gain.points == 50.0
    assert choice.others[9].points == -50.0
    assert [step.cost for step in choice.steps] == [CommitteeCost(1.0, 10.0), CommitteeCost(3.0, 30.0)]
    assert (choice.everybody.accuracy, choice.everybody.cost) == (50.0, CommitteeCost(7.0, 70.0))
    assert choice.images == 8


def test_no_more_are_taken_than_asked_for():
    answer, labels = mean_of([[0.4] * 6, [0.55] * 3 + [0.4] * 3, [0.7] * 6])
    assert choose(answer, labels, clients=[0, 1, 2], first=0, size=1, costs=COSTS[:3])[0] == [0]
    assert choose(answer, labels, clients=[0, 1, 2], first=0, size=2, costs=COSTS[:3])[0] == [0, 2]
    assert choose(answer, labels, clients=[0, 1, 2], first=None, size=1, costs=COSTS[:3])[0] == [2]


def test_a_step_that_costs_is_taken_where_the_next_one_repays_it():
    right = {(0,): 4, (0, 1): 3, (0, 2): 2, (0, 1, 2): 6}

    def answer(members):
        said_B = torch.tensor([0.9] * right[tuple(members)] + [0.1] * (6 - right[tuple(members)]))
        return torch.stack([1 - said_B, said_B], dim=1)

    labels = torch.ones(6, dtype=torch.int64)
    assert choose(answer, labels, clients=[0, 1, 2], first=0, size=3, costs=COSTS[:3])[0] == [0, 1, 2]
    assert choose(answer, labels, clients=[0, 1, 2], first=0, size=2, costs=COSTS[:3])[0] == [0]


def test_a_gain_that_is_luck_is_not_there_on_other_images():
    """Each of many members that guess helps on some images; measured on the others the choice brings nothing."""
    generator = torch.Generator().manual_seed(1)
    answer, labels = mean_of(torch.rand(30, 40, generator=generator).tolist())
    _, choice = choose(answer, labels, clients=list(range(30)), first=0, size=6, costs=[CommitteeCost(1, 1)] * 30)
    assert choice.gain.low > 0
    assert choice.checked_gain.points < choice.gain.points / 2
    assert choice.checked_gain.low < 0


def test_greedy_is_a_plain_loop():
    generator = torch.Generator().manual_seed(2)
    answer, labels = mean_of(torch.rand(4, 30, generator=generator).tolist())

    def worth(members):
        said = answer(sorted(members))[:, 1]
        return sum(float(one) > 0.5 for one in said), sum(math.log(float(one)) for one in said)

    path = [2]
    tried = [list(path)]
    for _ in range(3):
        path = max(([*path, k] for k in range(4) if k not in path), key=worth)
        tried.append(path)
    assert choose(answer, labels, clients=range(4), first=2, size=4, costs=COSTS)[0] == max(tried, key=worth)


def test_a_cost_is_measured():
    calls = []
    cost = measured_cost(lambda: calls.append(sum(range(20_000))), 3_000_000)
    assert (len(calls), cost.megabytes) == (4, 3.0)
    assert cost.milliseconds > 0.01


def test_who_was_only_carried_along_is_left_out_again():
    """Members 1 and 3 help together and harm alone; 2 has no weight, so it comes first and must go again."""
    right_KB = torch.tensor([[0.8, 0.8, 0.1], [0.1, 0.9, 0.9], [0.1, 0.1, 0.1], [0.9, 0.1, 0.7]])
    weight_K = torch.tensor([1.0, 1.0, 1e-9, 1.0])

    def answer(members):
        own_K = weight_K[list(members)]
        said_B = (own_K[:, None] * right_KB[list(members)]).sum(dim=0) / own_K.sum()
        return torch.stack([1 - said_B, said_B], dim=1)

    path, choice = choose(answer, torch.ones(3, dtype=torch.int64), clients=range(4), first=0, size=4, costs=COSTS)
    assert sorted(path) == [0, 1, 3]
    assert choice.steps[-1].accuracy == 100.0
    assert choice.others[2].points == 0.0


# --- from a run, with members that lie


@pytest.fixture(scope="module")
def quadrants(tmp_path_factory):
    """Four classes of 8x8 images, a faint bright quadrant on noise: 1,500 to train, 200 to test."""
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {}
    for split, count in (("train", 1500), ("test", 200)):
        labels = rng.integers(0, 4, count)
        images = rng.integers(0, 160, (count, 8, 8), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(int(label), 2)
            image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 50
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    path = tmp_path_factory.mktemp("quadrants") / "quadrants.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def lied_to(tiny, quadrants, tmp_path_factory):
    """Two of six clients have turned all labels around, and believe them."""
    settings = {
        "clients": 6,
        "alpha": 2.0,
        "rounds": 2,
        "lr": 0.05,
        "models": ("cnn6",),
        "distill_weight": 0.1,
        "committee": True,
    }
    experiment = change(tiny, dataset=str(quadrants), method="crad", attack="label-flip", attackers=2, **settings)
    return crad.run(experiment, output=tmp_path_factory.mktemp("lied") / "run")


@pytest.mark.parametrize("evidence", ["reported", "pooled"])
def test_no_honest_client_chooses_a_lying_member(lied_to, evidence):
    liars = draw_attackers(lied_to.experiment)
    honest = set(range(6)) - liars
    for client in honest:
        committee = lied_to.committee(client, size=6, evidence=evidence)
        assert committee.members[0] in honest
        assert client in committee.members
        assert not liars & set(committee.members)


def test_lying_members_are_found_out(lied_to):
    """Whoever harms beyond chance on the common test images is one of them."""
    liars = draw_attackers(lied_to.experiment)
    honest = set(range(6)) - liars
    test = build_run_context(lied_to.experiment).data.dataset
    everybody = lied_to.committee(min(honest), evidence="reported")
    committee = everybody.chosen(4, test.test_images, test.test_labels, face="global")
    assert committee.choice is not None
    harmful = {client for client, gain in committee.choice.others.items() if gain.is_harm}
    assert harmful
    assert harmful <= liars
    assert all(f"client {liar} harms the committee: -" in committee.left_out[liar] for liar in harmful)


def test_a_chosen_committee_predicts_like_one_that_was_named(lied_to, quadrants):
    with np.load(quadrants) as arrays:
        images = arrays["test_images"]
    chosen = lied_to.committee(0, size=3, rule="crad")
    named = lied_to.committee(0, members=chosen.members, rule="crad")
    assert 1 <= len(chosen.members) <= 3
    assert np.array_equal(chosen.predict_proba(images, "local"), named.predict_proba(images, "local"))
    assert chosen.left_out.keys() == set(range(6)) - set(chosen.members)


def test_the_choice_is_made_on_the_clients_validation_half_with_its_own_face(lied_to):
    data = build_run_context(lied_to.experiment).data
    where = data.shards[1].validation
    images, labels = data.dataset.train_images[where], data.dataset.train_labels[where]
    everybody = lied_to.committee(1)
    by_names = everybody.chosen(6, images, np.array(everybody.classes)[labels])
    chosen = lied_to.committee(1, size=6)
    assert chosen.members == by_names.members
    assert chosen.choice is not None
    assert (chosen.choice.images, chosen.choice.face) == (len(where), "local")
    reached = 100 * np.mean(chosen.predict(images, "local", as_index=True) == labels)
    assert chosen.choice.steps[-1].accuracy == pytest.approx(reached)
    alone = lied_to.committee(1, members=[1]).predict(images, "local", as_index=True)
    assert chosen.choice.steps[0].accuracy == pytest.approx(100 * np.mean(alone == labels))
    weights = sum(tensor.nbytes for tensor in lied_to.models[1].module.state_dict().values())
    assert chosen.choice.steps[0].cost.megabytes == pytest.approx(weights / 1e6)
    assert chosen.choice.steps[0].cost.milliseconds > 0


def test_data_that_was_passed_in_memory_must_be_passed_again(tiny, quadrants, tmp_path):
    with np.load(quadrants) as arrays:
        parts = [arrays[name] for name in ("train_images", "train_labels", "test_images", "test_labels")]
    data = crad.Dataset.from_arrays(*parts)
    result = crad.run(change(tiny, method="local", rounds=1, models=("cnn6",)), data=data, output=tmp_path / "run")
    expected = result.committee(1, size=2).members
    assert crad.load(tmp_path / "run", data=data).committee(1, size=2).members == expected
    with pytest.raises(ConfigError, match=r"the run's data was passed in memory: pass it again, crad.load\(path, data"):
        crad.load(tmp_path / "run").committee(1, size=2)


def test_data_that_has_changed_is_not_chosen_on(lied_to, quadrants, tmp_path):
    run = shutil.copytree(lied_to.directory, tmp_path / "run")
    with np.load(quadrants) as arrays:
        changed = {name: arrays[name] ^ 1 if name == "train_images" else arrays[name] for name in arrays.files}
    np.savez(tmp_path / "other.npz", **changed)
    told = (run / "experiment.toml").read_text()
    (run / "experiment.toml").write_text(told.replace(str(quadrants), str(tmp_path / "other.npz")))
    with pytest.raises(RunError, match="has changed since that run began"):
        crad.load(run).committee(1, size=2)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((0, "x", "y"), "a committee of 0 members: say a whole number, 1 or more"),
        ((1.5, "x", "y"), "a committee of 1.5 members"),
        ((2, "x", [0, 1]), r"y has shape \(2,\) for 3 images"),
        ((2, "x", [0, 1, 4]), "y must hold class names or places from 0 to 3"),
        ((2, "x", ["0", "1", "cat"]), "unknown class 'cat'"),
        ((2, "x", [0.0, 1.0, 2.0]), "y must hold class names or places"),
    ],
)
def test_what_nobody_can_choose_by_is_refused(given, reason, lied_to):
    size, _, labels = given
    with pytest.raises(ConfigError, match=reason):
        lied_to.committee(0).chosen(size, np.zeros((3, 8, 8), np.uint8), labels)


def test_choosing_needs_a_client_or_says_so(lied_to):
    with pytest.raises(ConfigError, match="members are chosen on one client's own images; say whose, such as client=0"):
        lied_to.committee(size=2)
    images, labels = np.zeros((3, 8, 8), np.uint8), [0, 1, 2]
    with pytest.raises(ConfigError, match="serves nobody in particular"):
        lied_to.committee().chosen(2, images, labels, face="local")
    chosen = lied_to.committee().chosen(2, images, labels)
    assert chosen.choice is not None
    assert chosen.choice.face == "global"


# --- the command line


def test_the_choice_is_said_with_gain_and_cost(lied_to, quadrants, tmp_path, crad_command):
    words = ("--committee", "--client", 0, "--committee-size", 3)
    code, out, err = crad_command("predict", lied_to.directory, quadrants, *words)
    assert (code, err) == (0, "")
    assert "validation samples, local face:" in out
    assert "  client 0 alone: " in out
    assert " ms for 64 images, " in out
    assert "  everybody: " in out
    code, out, _ = crad_command("predict", lied_to.directory, quadrants, *words, "--json")
    told = json.loads(out)["committee"]
    assert told["members"] == sorted(step["client"] for step in told["choice"]["steps"])
    assert told["choice"]["steps"][0]["client"] == 0
    assert {"points", "low", "high"} == told["choice"]["checked_gain"].keys()
    path = tmp_path / "few.safetensors"
    code, out, _ = crad_command("export", lied_to.directory, *words, "--output", path)
    loaded = crad.load_model(path)
    assert isinstance(loaded, crad.Committee)
    assert (code, list(loaded.members)) == (0, told["members"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--committee", "--committee-size", "2"],
            "--committee-size chooses on one client's own samples: say whose with --client",
        ),
        (["--committee", "--client", "0", "--committee-size", "0"], "a committee of 0 members"),
        (["--committee", "--client", "0", "--committee-size", "few"], "Invalid value for '--committee-size'"),
        (["--committee-size", "2"], "--committee-size is for a committee: add --committee"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, reason, lied_to, quadrants, crad_command):
    code, out, err = crad_command("predict", lied_to.directory, quadrants, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
