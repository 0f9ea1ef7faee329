"""`crad advise` is never bolder than what was measured, and its figures are those of the evidence."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crad.paper.advice
from crad.cli.several_values import parse_methods, parse_seeds
from crad.config import make_experiment
from crad.methods import resolve_method
from crad.paper.advice import FINDINGS, SEEN, SHOWN, UNMEASURED, Claim, MeasuredWorlds, Situation, advise
from crad.runs.resolution import resolve_experiment
from tools import findings as tool

WORLD = {
    "table": "toy",
    "label": "Toy",
    "baseline": "local",
    "kind": "images",
    "dataset": "digits",
    "clients": 10,
    "classes": 10,
    "samples": 100,
    "alpha": 0.3,
    "preset": "mini",
    "rounds": 30,
    "epsilon": None,
    "attack": None,
    "settings": {"lr": 0.02},
}
THREE = (1, 2, 3)
BETTER, UNSURE, WORSE = (5.0, (2.0, 8.0), THREE), (5.0, (-2.0, 12.0), THREE), (-5.0, (-8.0, -2.0), THREE)


@pytest.fixture
def measured(monkeypatch):
    """Put claims `method: {world or (world, metric): (difference, interval, seeds)}` in place of what was measured."""

    def measure(claims, **worlds):
        found = []
        for method, of_worlds in claims.items():
            for place, (difference, interval, seeds) in of_worlds.items():
                world, metric = place if isinstance(place, tuple) else (place, "all")
                found.append(Claim(world, method, metric, 50.0, difference, interval, seeds))
        known = MeasuredWorlds({name: {**WORLD, **changes} for name, changes in worlds.items()}, tuple(found))
        monkeypatch.setattr(crad.paper.advice, "findings", lambda: known)

    return measure


# --- how sure


SURENESS = {
    "every world shows it": ({"a": BETTER, "b": BETTER}, SHOWN),
    "one does not": ({"a": BETTER, "b": UNSURE}, SEEN),
    "two seeds show nothing": ({"a": (5.0, (2.0, 8.0), (1, 2))}, SEEN),
    "one seed beside three that show it": ({"a": BETTER, "b": (1.0, None, (1,))}, SHOWN),
    "one seed against three that show it": ({"a": BETTER, "b": (-1.0, None, (1,))}, SEEN),
}


@pytest.mark.parametrize(("of_worlds", "sure"), SURENESS.values(), ids=SURENESS)
def test_how_sure_follows_from_the_intervals(measured, of_worlds, sure):
    measured({"committee": of_worlds}, a={}, b={})
    advice = advise(Situation())
    assert (advice.method, advice.sure) == ("committee", sure)
    assert {one.world for one in advice.evidence} == set(of_worlds)


@pytest.mark.parametrize(
    "asked",
    [
        Situation(clients=21),
        Situation(clients=4),
        Situation(classes=21),
        Situation(samples=401),
        Situation(alpha=0.1),
        Situation(alpha=None),
        Situation(kind="text"),
        Situation(epsilon=4.0),
        Situation(trust="some"),
    ],
    ids=str,
)
def test_what_is_far_from_all_that_was_measured_is_said_to_be(measured, asked):
    measured({"committee": {"a": BETTER}}, a={})
    assert advise(Situation(clients=20, classes=20, samples=400, alpha=0.7)).sure == SHOWN
    if asked.kind == "text":
        measured({"committee": {"a": BETTER}}, a={}, b={"kind": "text"})
    if asked.epsilon:
        measured({"committee": {"a": BETTER}}, a={"epsilon": 1.0})
    advice = advise(asked)
    assert (advice.method, advice.sure) in {("committee", UNMEASURED), ("local", UNMEASURED)}


def test_nothing_is_shown_of_an_attack_under_which_a_method_was_not_measured(measured):
    claims = {"committee": {"a": BETTER}, "crad-plus": {"a": BETTER, "b": BETTER}}
    measured(claims, a={"attack": "noise"}, b={"attack": "label-flip-pairs"})
    advice = advise(Situation(trust="some"))
    assert (advice.method, advice.sure) == ("crad-plus", SHOWN)
    measured({"committee": {"a": BETTER}}, a={"attack": "noise"}, b={"attack": "label-flip-pairs"})
    assert advise(Situation(trust="some")).sure == SEEN


# --- who is taken


def test_the_surest_is_taken_then_who_loses_nothing_elsewhere_then_the_largest_gain(measured):
    small, large = (2.0, (1.0, 3.0), THREE), (9.0, (8.0, 10.0), THREE)
    measured({"committee": {"a": UNSURE}, "crad-plus": {"a": small}}, a={})
    assert advise(Situation()).method == "crad-plus"
    measured({"committee": {"a": large, ("a", "own"): WORSE}, "crad-plus": {"a": small}}, a={})
    assert advise(Situation()).method == "crad-plus"
    measured({"committee": {"a": large, ("a", "own"): WORSE}, "crad-plus": {"a": WORSE}}, a={})
    advice = advise(Situation())
    assert (advice.method, [one.difference for one in advice.losses]) == ("committee", [-5.0])
    assert any("shown to be worse" in line for line in advice.cautions)
    measured({"committee": {"a": small, ("a", "own"): WORSE}}, a={})  # loses more than it gains
    assert advise(Situation()).method == "local"


def test_who_is_not_ahead_is_left_out_and_alone_is_as_sure_as_that(measured):
    measured({"committee": {"a": WORSE}, "crad": {"a": WORSE}}, a={})
    assert (advise(Situation()).method, advise(Situation()).sure) == ("local", SHOWN)
    measured({"committee": {"a": WORSE}, "crad": {"a": (0.9, (-1.0, 2.8), THREE)}}, a={})  # under a point: none
    assert (advise(Situation()).method, advise(Situation()).sure) == ("local", SEEN)
    measured({}, a={})
    assert (advise(Situation()).method, advise(Situation()).sure) == ("local", UNMEASURED)


@pytest.mark.parametrize("asked", [Situation(clients=1), Situation(trust="none"), Situation(total_mb=0.0)])
def test_who_cannot_join_stays_alone(asked):
    assert (advise(asked).method, advise(asked).sure) == ("local", UNMEASURED)


def test_one_model_is_no_committee(measured):
    measured({"committee": {"a": BETTER}, "crad": {"a": UNSURE}}, a={})
    assert advise(Situation()).method == "committee"
    assert advise(Situation(is_one_model=True)).method == "crad"


def test_bytes_are_counted_by_hand(measured):
    measured({"committee": {"a": BETTER}, "crad": {"a": (6.0, (5.0, 7.0), THREE)}}, a={})
    asked = Situation(model_mb=2.0)
    assert (advise(asked).method, advise(asked).sent_mb) == ("crad", 2.0 * 9 * 30)
    once = advise(replace(asked, total_mb=500.0))
    assert (once.method, once.sent_mb) == ("committee", 2.0 * 9)
    assert "crad would send about 540 MB" in once.why
    none = advise(replace(asked, total_mb=17.0))
    assert (none.method, none.sure, none.why[0]) == (
        "local",
        UNMEASURED,
        "nothing that was measured fits what may be sent",
    )


def test_the_larger_measurement_takes_the_place_of_the_smaller(measured):
    measured({"committee": {"a": WORSE, "b": BETTER}}, a={}, b={"table": "main"})
    assert [one.world for one in advise(Situation()).evidence] == ["b"]
    measured({"committee": {"a": BETTER, "b": (7.0, None, (1,))}}, a={}, b={"table": "main"})
    found = advise(Situation())
    assert ([one.world for one in found.evidence], found.sure) == (["a", "b"], SHOWN), "one seed replaces nothing"


# --- what travels with the package


def test_the_figures_are_those_of_the_evidence():
    assert FINDINGS.read_text(encoding="utf-8") == tool.as_json(tool.computed()), "python -m tools.findings"


SITUATIONS = st.builds(
    Situation,
    kind=st.sampled_from(["images", "table", "text", "recordings"]),
    clients=st.integers(1, 60),
    classes=st.none() | st.integers(2, 200),
    samples=st.none() | st.integers(1, 10_000),
    alpha=st.none() | st.sampled_from([0.05, 0.1, 0.3, 1.0, 5.0]),
    trust=st.sampled_from(["all", "some", "none"]),
    total_mb=st.none() | st.sampled_from([0.0, 1.0, 50.0, 1e4]),
    round_mb=st.none() | st.sampled_from([0.0, 1.0, 50.0]),
    epsilon=st.none() | st.sampled_from([0.1, 1.0, 4.0, 10.0]),
    is_one_model=st.booleans(),
    aim=st.sampled_from(["all", "own"]),
    dataset=st.none() | st.sampled_from(["cifar100", "digits", "my data.npz"]),
)


def settings_of(words: list[str]) -> dict[str, str]:
    return {
        name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


@given(asked=SITUATIONS)
def test_every_command_can_be_typed_and_nothing_is_bolder_than_its_evidence(asked):
    advice = advise(asked)
    crad_word, verb, *words = shlex.split(advice.command)
    assert (crad_word, verb) == ("crad", "run")
    experiment = make_experiment(settings_of(words))
    assert (experiment.method, experiment.private_training) == (advice.method, asked.epsilon)
    resolve_method(experiment.method, experiment.method_settings)
    assert advice.check or not advice.evidence, "nothing was measured: there is nothing to compare with"
    if advice.check:
        _, verb, *words = shlex.split(advice.check)
        settings = settings_of(words)
        alone, other = parse_methods(settings.pop("methods"))
        assert (alone, other == advice.method) == ("local", advice.is_to_join), "never with itself"
        assert len(parse_seeds(settings.pop("seeds"))) == 3
        assert verb == "compare"
        assert make_experiment(settings).preset == experiment.preset
    if advice.is_to_join and advice.sure == SHOWN:
        with_seeds = [one for one in advice.evidence if len(one.seeds) >= 3]
        assert with_seeds
        assert all(one.interval is not None and one.interval[0] > 0 for one in with_seeds)
    if asked.is_one_model:
        assert advice.method != "committee"


@pytest.mark.parametrize("asked", tool.SITUATIONS.values(), ids=tool.SITUATIONS)
def test_commands_of_the_page_are_whole_experiments(asked):
    words = shlex.split(advise(asked).command)[2:]
    resolve_experiment(make_experiment(settings_of(words)), noise=lambda _: None)


# --- the command


def test_the_answer_says_method_sureness_evidence_and_commands(crad_command):
    code, out, err = crad_command("advise", "--kind", "table", "--clients", "4")
    assert (code, err) == (0, "")
    assert out.startswith("committee: shown\n")
    assert "evidence/kinds/tables/kinds.csv" in out
    assert "Try it:  crad run " in out
    code, out, _ = crad_command("advise", "--kind", "table", "--clients", "4", "--json")
    answer = json.loads(out)
    assert (answer["method"], answer["sure"], answer["asked"]["clients"]) == ("committee", SHOWN, 4)
    assert {one["file"] for one in answer["evidence"]} == {"evidence/kinds/tables/kinds.csv"}


def test_data_is_counted(tiny_npz, crad_command):
    code, out, err = crad_command("advise", "--data", tiny_npz, "--clients", "4", "--json")
    assert (code, err) == (0, "")
    asked = json.loads(out)["asked"]
    assert (asked["kind"], asked["classes"], asked["samples"]) == ("images", 4, 60)
    assert str(tiny_npz) in json.loads(out)["command"]


@pytest.mark.parametrize(
    ("words", "fault"),
    {
        ("--kind", "imagery"): "unknown kind 'imagery'. Did you mean 'images'?",
        ("--label", "x"): "--label x: is of a table or of texts that --data names",
        ("--data", "digits", "--kind", "table"): "--kind table: digits has images; leave out --kind, or --data",
        ("--data", "digits", "--classes", "77"): "--classes 77: digits has 10",
        ("--trust", "most"): "unknown trust 'most'",
        ("--for", "me"): "Known: all, own",
        ("--clients", "0"): "--clients 0: must be a finite number above zero",
        ("--private", "nan"): "--private nan: must be a finite number above zero",
        ("--skew", "much"): "--skew 'much': say strong, medium, mild, iid, or an alpha above zero",
        ("--skew", "-1"): "--skew '-1'",
        ("--bandwidth", "fast"): "--bandwidth 'fast': say megabytes",
        ("--bandwidth", "inf/round"): "--bandwidth 'inf/round'",
        ("--data", "nowhere.npz"): "nowhere.npz",
    }.items(),
    ids=str,
)
def test_what_cannot_be_understood_is_one_line(words, fault, crad_command):
    code, out, err = crad_command("advise", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert fault in err


def test_bandwidth_a_round_limits_the_round_in_which_most_is_sent(crad_command):
    def limits(*words):
        asked = json.loads(crad_command("advise", *words, "--json")[1])["asked"]
        return asked["total_mb"], asked["round_mb"]

    assert (limits("--bandwidth", "20"), limits("--bandwidth", "20/round"), limits()) == (
        (20.0, None),
        (None, 20.0),
        (None, None),
    )
    # One exchange of two megabytes to each of nine others is eighteen in that round, and in all.
    assert advise(Situation(model_mb=2.0, round_mb=18.0)).method == "committee"
    assert advise(Situation(model_mb=2.0, round_mb=17.0)).method == "local"
    assert advise(Situation(model_mb=2.0, total_mb=18.0)).method in ("committee", "experts")
    assert advise(Situation(model_mb=2.0, total_mb=17.0)).method == "local"


def test_private_training_among_dishonest_members_was_never_measured_and_is_said_to_be(crad_command):
    assert (
        "with dishonest members nothing of the kind was measured"
        in crad_command("advise", "--private", "4", "--trust", "some")[1]
    )


def test_every_line_of_what_was_measured_names_its_method(crad_command):
    out = crad_command("advise", "--kind", "recordings", "--private", "2", "--one-model")[1]
    lines = [line.strip() for line in out.splitlines() if line.strip().startswith("Measured:")]
    assert lines
    assert all(line.split()[1] in ("crad-plus", "crad", "uniform", "dfml", "fedmkd", "experts") for line in lines)
    assert "nothing near was measured" in out
