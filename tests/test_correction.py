"""A teacher's own class shares taken out of what it says, before it is filtered and weighed.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import crad
from crad.aggregation import RULES, TeacherJudge, TeacherStats, log_shares_of, remove_prior
from crad.analysis.traces import ImageTrace, TeacherView, describe, percent
from crad.cli.terminal.terminal_tables import trace_table
from crad.config import Experiment
from crad.errors import AggregationError, ConfigError
from crad.inspection import RunInspector
from crad.methods import check_recipe, resolve_method
from crad.runs.directory import experiment_hash
from crad.runs.resolution import resolve_experiment
from tests.conftest import change
from tests.organisations import agreed, make_identities
from tests.reference import ALL_RULES, without_prior
from tests.test_aggregation import assert_row, one_sample, tensor
from tests.test_aggregation_properties import (
    Case,
    assert_same,
    assume_rounding_cannot_decide,
    cases,
    examples,
    wide_cases,
)

# Counts whose shares are quarters once half a sample of each class is added: 3/4 and 1/4, 1/4 and 3/4.
SKEWED = tensor([[2.5, 0.5], [0.5, 2.5]])
SAID = one_sample([0.6, 0.4], [0.3, 0.7])
temperatures = st.sampled_from([0.5, 1.0, 3.0])


# --- by hand


def test_the_shares_have_half_a_sample_more_of_every_class():
    # (7 + 1/2) / 10, (2 + 1/2) / 10; nothing held at all: 1/2 of 1
    assert log_shares_of(tensor([[7, 1.5], [0, 0]])).exp().tolist() == [
        pytest.approx([7.5 / 9.5, 2 / 9.5]),
        pytest.approx([0.5, 0.5]),
    ]


def test_a_teachers_word_is_divided_by_its_shares():
    # 0.6 / (3/4) = 0.8 and 0.4 / (1/4) = 1.6: a third and two thirds. 0.3 / (1/4) = 1.2 and 0.7 / (3/4) = 14/15.
    corrected = remove_prior(SAID, SKEWED, temperature=1.0)
    assert corrected[:, 0].tolist() == [pytest.approx([1 / 3, 2 / 3]), pytest.approx([0.5625, 0.4375])]


def test_a_softened_word_is_divided_by_softened_shares():
    # T = 2: 0.6 / sqrt(3/4) = 0.692820 and 0.4 / sqrt(1/4) = 0.8, over their sum 1.492820
    corrected = remove_prior(SAID, SKEWED, temperature=2.0)
    assert corrected[0, 0].tolist() == pytest.approx([0.464102, 0.535898], abs=1e-6)


def test_correct_keep_weigh_by_hand():
    # Class 0: (2.5 x 1/3 + 0.5 x 0.5625) / 3 = 0.371528; class 1: (0.5 x 2/3 + 2.5 x 0.4375) / 3 = 0.475694.
    trace = crad.explain(SAID, SKEWED, torch.full((2, 2), 0.5), "support-all", min_support=0.5, teacher_prior="remove")
    assert_row(trace.target, [0.371528 / 0.847222, 0.475694 / 0.847222])
    assert trace.corrected[0, 0].tolist() == pytest.approx([1 / 3, 2 / 3])
    # The consensus is that of the corrected words.
    assert trace.consensus[0].tolist() == pytest.approx([(1 / 3 + 0.5625) / 2, (2 / 3 + 0.4375) / 2])


def test_support_all_keeps_whom_the_median_filter_of_support_drops():
    q, counts, accuracies = (
        one_sample([0.9, 0.1], [0.8, 0.2], [0.1, 0.9]),
        tensor([[9, 9]] * 3),
        tensor([[0.5] * 2] * 3),
    )
    states = {
        rule: crad.explain(q, counts, accuracies, rule).state[:, 0, 0].tolist() for rule in RULES if "ppo" in rule
    }
    assert states == {"support": ["kept", "kept", "outlier"], "support-all": ["kept"] * 3}
    lone = crad.explain(q, tensor([[9, 9], [9, 9], [1, 9]]), accuracies, "support-all")
    assert lone.state[:, 0, 0].tolist() == ["kept", "kept", "unsupported"], "one sample is not enough"
    filtered = crad.aggregate(q, counts, accuracies, RULES["support"].with_filter("support"))
    assert filtered.equal(crad.aggregate(q, counts, accuracies, "support-all")), "--method support --filter support"


def test_it_is_what_logits_minus_log_shares_give():
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = tensor([[0, 3, 90, 7], [1, 1, 1, 1], [40, 0, 0, 0]])
    wanted = torch.softmax((logits - log_shares_of(counts).unsqueeze(1)) / 3, dim=2)
    assert_same(remove_prior(torch.softmax(logits / 3, dim=2), counts, temperature=3.0), wanted)


def test_noised_counts_below_zero_count_as_none():
    # A teacher between noise and nothing: -3.2 and 0 are the same, and a class is left over.
    assert remove_prior(SAID, tensor([[-3.2, 4], [-1, -2]]), temperature=3.0).equal(
        remove_prior(SAID, tensor([[0, 4], [0, 0]]), temperature=3.0)
    )


def test_counts_of_nothing_correct_nothing():
    assert_same(remove_prior(SAID, torch.zeros(2, 2), temperature=1.0), SAID)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tiny_word_neither_overflows_nor_vanishes_and_a_zero_stays_one(dtype):
    q = torch.tensor([[[1e-30, 1.0, 0.0]]], dtype=dtype)
    corrected = remove_prior(q, tensor([[0, 1e9, 0]]), temperature=0.01)  # shares to the power -100
    assert corrected.dtype == dtype
    assert corrected.isfinite().all()
    assert corrected[0, 0, 2] == 0
    assert corrected.sum().item() == pytest.approx(1)
    # 1e-30 (2e9)^100 against 1: the first class takes it all.
    assert corrected[0, 0, 0].item() == pytest.approx(1)


def test_half_precision_is_corrected_in_single():
    half = SAID.to(torch.float16)
    assert remove_prior(half, SKEWED, temperature=1.0).dtype == torch.float32
    target = crad.aggregate(half, SKEWED, torch.full((2, 2), 0.5), "uniform", teacher_prior="remove")
    assert target.dtype == torch.float16
    assert target[0].tolist() == pytest.approx([(1 / 3 + 0.5625) / 2, (2 / 3 + 0.4375) / 2], abs=2e-3)


# --- whatever the teachers say


@pytest.mark.parametrize("rule", ALL_RULES)
@examples(20)
@given(case=cases(), temperature=temperatures)
def test_the_three_stages_equal_the_slow_reference(rule: str, case: Case, temperature: float) -> None:
    corrected = replace(case, q=remove_prior(case.q, case.counts, temperature=temperature))
    assume_rounding_cannot_decide(corrected)
    added = {"teacher_prior": "remove", "temperature": temperature}
    assert_same(case.aggregate(rule, **added), case.reference(rule, **added).target)
    assert_same(case.aggregate(rule, **added), corrected.aggregate(rule))


@examples(40)
@given(case=st.one_of(cases(), wide_cases(max_classes=100)), temperature=temperatures)
def test_corrected_rows_lie_on_the_simplex_and_equal_the_slow_reference(case: Case, temperature: float) -> None:
    corrected = remove_prior(case.q, case.counts, temperature=temperature)
    assert (corrected >= 0).all()
    assert_same(corrected.sum(dim=2), torch.ones(corrected.shape[:2]))
    for k, rows in enumerate(case.q.tolist()):
        for b, row in enumerate(rows):
            assert_same(corrected[k, b], without_prior(row, case.counts[k].tolist(), temperature))


@examples(40)
@given(case=cases(), held=st.sampled_from([0.0, 0.3, 7.0, 1e6]), temperature=temperatures)
def test_equal_shares_change_nothing(case: Case, held: float, temperature: float) -> None:
    assert_same(remove_prior(case.q, torch.full_like(case.counts, held), temperature=temperature), case.q)


@examples(40)
@given(case=cases())
def test_a_high_temperature_changes_little(case: Case) -> None:
    assert_same(remove_prior(case.q, case.counts, temperature=1e9), case.q, tolerance=1e-6)


@examples(40)
@given(case=cases(min_teachers=2), data=st.data())
def test_every_teacher_is_corrected_for_itself(case: Case, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(case.q))))
    corrected = remove_prior(case.q, case.counts, temperature=3.0)
    assert remove_prior(case.q[order], case.counts[order], temperature=3.0).equal(corrected[order])


@examples(40)
@given(rule=st.sampled_from(ALL_RULES), case=cases())
def test_kept_priors_leave_every_bit_as_it_was(rule: str, case: Case) -> None:
    assert case.aggregate(rule, teacher_prior="keep", temperature=3.0).equal(case.aggregate(rule))
    assert case.explain(rule).corrected.equal(case.q)


# --- a student's targets


def test_a_judge_takes_out_the_published_shares_also_where_the_student_counts():
    published = TeacherStats(SKEWED, torch.full((2, 2), 0.5, dtype=torch.float64))
    judge = TeacherJudge.begin(RULES["uniform"], published, filter_kind=None, source="pooled", teacher_prior="remove")
    everybody = torch.ones(2, dtype=torch.bool)
    judge.count(SAID, torch.tensor([0]), everybody)
    options = {"min_support": 0.0, "epsilon": 1e-8, "unsupported": "consensus", "temperature": 1.0}
    made = judge.combine(SAID, everybody, **options)  # type: ignore[arg-type]
    assert_row(made.target_BC, [(1 / 3 + 0.5625) / 2, (2 / 3 + 0.4375) / 2])
    second = judge.combine(SAID[1:], torch.tensor([False, True]), **options)  # type: ignore[arg-type]
    assert_row(second.target_BC, [0.5625, 0.4375])


# --- refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"teacher_prior": "take"}, r"unknown value of 'teacher_prior' 'take'.*keep, remove"),
        ({"temperature": 0}, r"temperature is 0, must be more than 0"),
        ({"temperature": math.nan}, r"temperature is nan, must be more than 0"),
    ],
)
@pytest.mark.parametrize("verb", [crad.aggregate, crad.explain])
def test_a_wrong_argument_is_refused(verb, options, words):
    with pytest.raises((AggregationError, ConfigError), match=words):
        verb(SAID, SKEWED, torch.full((2, 2), 0.5), **options)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"method": "local"}, r"teacher_prior = 'remove' is for methods that combine snapshots by a rule"),
        ({"method": "fedmkd"}, r"teacher_prior = 'remove' is for methods that combine snapshots by a rule"),
        ({"local_loss": "balanced"}, r"teacher_prior = 'remove' with the balanced loss of 'crad'.* twice harms"),
        ({"method": "crad-plus"}, r"balanced loss of 'crad-plus'.*'keep' or local_loss = 'plain'"),
    ],
)
def test_where_it_would_do_nothing_or_harm_it_is_refused_in_one_line(setting, words):
    experiment = Experiment(teacher_prior="remove", **setting)
    with pytest.raises(ConfigError, match=words) as refusal:
        check_recipe(experiment, resolve_method(experiment.method))
    assert "\n" not in str(refusal.value)


def test_with_the_plain_loss_crad_plus_takes_it():
    resolve_experiment(Experiment(method="crad-plus", local_loss="plain", teacher_prior="remove"))


# --- what runs and agreements are called


def test_runs_of_before_keep_their_identity_and_runs_with_it_have_another():
    for method in ("crad", "crad-plus", "local"):
        was = experiment_hash(Experiment(method=method))
        assert experiment_hash(Experiment(method=method, teacher_prior="keep")) == was
    assert experiment_hash(Experiment(teacher_prior="remove")) != experiment_hash(Experiment())


def test_agreements_say_it_only_where_it_is_on(tmp_path):
    identities = make_identities(tmp_path)
    for settings in ({}, {"method": "crad-plus"}, {"evidence": "own"}):
        plain, kept = (
            agreed(identities, settings=settings),
            agreed(identities, settings={**settings, "teacher_prior": "keep"}),
        )
        assert plain.hash == kept.hash
        assert "teacher_prior" not in kept.settings
    removed = agreed(identities, settings={"teacher_prior": "remove"})
    assert removed.hash != agreed(identities).hash
    assert removed.experiment(dataset="own.npz").recipe.teacher_prior == "remove"


# --- in a run, and looking into it


@pytest.fixture(scope="module")
def corrected_run(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("corrected") / "run"
    crad.run(change(tiny, rounds=1, method="support-all", teacher_prior="remove", lr=0.05), output=path)
    return RunInspector(path)


def test_the_survey_and_the_trace_show_the_step(corrected_run):
    panel = corrected_run.panel
    survey = json.loads(json.dumps(corrected_run.survey()))
    shown = [image["index"] for image in survey["images"]]
    q_NBC = panel.outputs(shown)
    counts = tensor([one.counts for one in panel.statistics])
    wanted = remove_prior(q_NBC, counts, temperature=panel.experiment.temperature)
    assert_same(tensor(survey["corrected"]).transpose(0, 1), wanted.double(), tolerance=1e-5)
    assert_same(tensor(survey["probabilities"]).transpose(0, 1), q_NBC.double(), tolerance=1e-5)

    trace = corrected_run.trace(student=1, image=shown[0], class_index=2)
    places = panel.of_student(1)
    assert [teacher.corrected for teacher in trace.teachers] == pytest.approx(wanted[places, 0, 2].tolist(), abs=1e-5)
    assert [teacher.probability for teacher in trace.teachers] == pytest.approx(q_NBC[places, 0, 2].tolist(), abs=1e-5)
    stats = panel.stats(1)
    target = crad.aggregate(
        q_NBC[places],
        stats.counts_KC,
        stats.accuracies_KC,
        "support-all",
        teacher_prior="remove",
        temperature=panel.experiment.temperature,
    )
    assert trace.target == pytest.approx(target[0, 2].item(), abs=1e-6)
    assert "% without its own class shares)" in describe(trace) or "No teacher has enough" in describe(trace)


def test_crad_explain_has_a_column_for_it(corrected_run):
    trace = corrected_run.trace(student=1, image=0, class_index=2)
    table = trace_table(trace)
    heads = [str(column.header) for column in table.columns]
    assert heads[heads.index("says %") + 1] == "prior out %"
    shown = list(map(str, table.columns[heads.index("prior out %")].cells))
    assert shown == [percent(teacher.corrected) for teacher in trace.teachers]


def test_what_is_said_of_the_best_supported_teacher_has_both_figures():
    teachers = (
        TeacherView(3, "cnn6", 20, 0.5, 0.61, "kept", 0.8, corrected=0.4),
        TeacherView(4, "cnn6", 2, 0.5, 0.3, "kept", 0.2),
    )
    trace = ImageTrace(1, 0, 0, 0, "owl", "owl", 0.4, 0.1, 0.42, 0.3, teachers)
    assert describe(trace).startswith(
        "Client 3 holds most samples of owl (20) and says 61.0 % (40.0 % without its own class shares), within the "
        "accepted 30.0 to 50.0 %, so it is kept"
    )
