"""Clipped steps: counted by hand, for every kind of step, in records, summaries and tables."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import crad
from crad.analysis.comparison import compare
from crad.config import Experiment
from crad.engines.task_json import outcome_from_bytes, outcome_to_bytes
from crad.errors import ConfigError
from crad.federation.method import Learned
from crad.federation.peer_evaluation import Evaluation
from crad.federation.rounds import _merge
from crad.federation.tasks import TaskOutcome
from crad.network.agreement import _complete_settings
from crad.report.tables import cost_cells
from crad.runs.summary import _clipped_share
from crad.training.clipping import ClippedSteps, Clipper
from tests.conftest import change
from tests.test_comparison import summary


def with_gradient(*values: float) -> nn.Linear:
    model = nn.Linear(len(values), 1, bias=False)
    model.weight.grad = torch.tensor([values])
    return model


def test_a_longer_gradient_is_shortened_and_counted_and_a_shorter_one_stays():
    clipper = Clipper(5.0)
    for gradient, left in (((6.0, 8.0), (3.0, 4.0)), ((3.0, 3.0), (3.0, 3.0))):
        model = with_gradient(*gradient)
        clipper.clip(model, "local")
        assert model.weight.grad is not None
        assert model.weight.grad[0].tolist() == pytest.approx(left, rel=1e-5)
    clipper.clip(with_gradient(0.0, 5.1), "digest")
    assert clipper.counts() == {"local": ClippedSteps(2, 1), "digest": ClippedSteps(1, 1)}


def test_without_a_norm_nothing_is_shortened_and_steps_are_counted_all_the_same():
    clipper, model = Clipper("none"), with_gradient(6e9, 8e9)
    clipper.clip(model, "local")
    assert model.weight.grad is not None
    assert model.weight.grad[0].tolist() == [6e9, 8e9]
    assert clipper.counts() == {"local": ClippedSteps(1, 0)}
    assert Clipper("none").counts() == Clipper(1.0).counts() == {}


@given(st.lists(st.floats(0.0, 20.0, width=32), min_size=1, max_size=20), st.floats(0.5, 10.0))
def test_as_many_are_counted_as_are_longer(lengths, limit):
    clipper = Clipper(limit)
    for length in lengths:
        clipper.clip(with_gradient(length), "local")
    longer = sum(bool(torch.tensor(length) > limit) for length in lengths)
    assert clipper.counts() == {"local": ClippedSteps(len(lengths), longer)}


def test_counts_of_a_rounds_phases_add_up_and_survive_the_way_from_a_worker():
    first, then = (Learned(clipped={"local": ClippedSteps(4, 1)}), Learned(clipped={"mutual": ClippedSteps(6, 2)}))
    both = _merge(_merge(first, then), first)
    assert both.clipped == {"local": ClippedSteps(8, 2), "mutual": ClippedSteps(6, 2)}
    outcome = TaskOutcome("learn", 3, Evaluation(validation=()), learned=both)
    assert outcome_from_bytes(outcome_to_bytes(outcome)).learned == both


def test_the_share_by_hand():
    """Of 10 local steps 4, of 10 of a digest none: a fifth. Records of before there were counts say nothing."""
    client = {"clipped_steps": {"local": {"steps": 5, "clipped": 2}, "digest": {"steps": 5, "clipped": 0}}}
    rounds = [{"clients": [client, {}]}, {"clients": [client]}]
    assert _clipped_share(rounds) == {"clipped_share": 0.2, "clipped_share_by_step": {"local": 0.4, "digest": 0.0}}
    assert _clipped_share([{"clients": [{}]}]) == {}


def test_a_table_of_costs_shows_the_share_where_every_seed_has_one():
    runs = [
        {**summary("local", 1, overall=1.0), "clipped_share": 0.8},
        {**summary("local", 2, overall=1.0), "clipped_share": 0.9},
        {**summary("crad", 1, overall=1.0), "clipped_share": 0.0},
        summary("crad", 2, overall=1.0),
    ]
    assert [cells[-1] for cells in cost_cells(compare(runs))] == ["85 %", "-"]


@pytest.mark.parametrize(("method", "kinds"), [("dfml", {"local", "mutual"}), ("fedmd", {"local", "digest"})])
def test_every_kind_of_step_is_counted_for_every_client(tiny, method, kinds):
    """So low a norm that every step is clipped, then none at all: steps are as many, and none of them is clipped."""
    small = {"clients": 2, "models": ("cnn6@0.125",), "committee": False, "metrics": False}
    chosen = change(tiny, method=method, rounds=1, proxy_size=24, **small)
    clipped = crad.run(change(chosen, clip_norm=1e-6))
    free = crad.run(change(chosen, clip_norm="none"))
    found = [client["clipped_steps"] for client in clipped.rounds[0]["clients"]]
    assert {kind for one in found for kind in one} == kinds
    assert all(one["local"]["steps"] > 0 for one in found)
    assert all(one["clipped"] == one["steps"] for counts in found for one in counts.values())
    assert clipped.summary["clipped_share"] == 1.0
    assert set(clipped.summary["clipped_share_by_step"]) == kinds
    left = [client["clipped_steps"] for client in free.rounds[0]["clients"]]
    assert left == [{kind: {**one, "clipped": 0} for kind, one in counts.items()} for counts in found]


# --- the setting


def test_clipping_can_be_switched_off_in_every_notation():
    assert Experiment().clip_norm == 5.0
    for said in ("none", None):
        assert Experiment(clip_norm=said).clip_norm == "none"
    assert Experiment(clip_norm="2.5").clip_norm == 2.5


@pytest.mark.parametrize("said", [0, -1, float("nan"), float("inf"), "often", [5.0]])
def test_what_is_no_norm_is_refused(said):
    with pytest.raises(ConfigError, match=r"clip_norm = .*: expected a number above 0, or none"):
        Experiment(clip_norm=said)


def test_an_agreement_says_that_nothing_is_clipped():
    """It says every setting: what it left out would be the default again."""
    assert _complete_settings({"clip_norm": "none"})["clip_norm"] == "none"
    assert _complete_settings({})["clip_norm"] == 5.0
