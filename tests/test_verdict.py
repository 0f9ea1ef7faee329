"""Whether joining helped, from hand-made records: every verdict, what it says, how seldom noise is taken for help."""

from __future__ import annotations

import json
import random
import re
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.analysis.comparable import comparable_runs
from crad.analysis.verdict import Face, Verdict, is_at_chance, joining_verdict, judge, to_json
from crad.report.page import report_page
from crad.report.sections.headline import make_headline
from crad.runs.names import with_names
from crad.runs.run_records import RunRecords
from tests.pages import Page, run_of, summary
from tests.records import made_run

CLIENTS = 2
HALVES = {"class_names": ["cat", "dog"], "counts": [[5000, 5000]] * CLIENTS, "data_sha256": "0" * 64}
PER_CLASS = [
    {"class": label, "name": name, "private_samples": 9, "test_samples": 500, "global_accuracy": 60.0}
    for label, name in enumerate(("cat", "dog"))
]


def face(metric: str, gains: list[float], *, alone: float = 70.0, num_images: int = 1000) -> Face:
    """Every client gains the same; two classes as often."""
    return Face(
        metric,
        joined={seed: [alone + gain] * CLIENTS for seed, gain in enumerate(gains)},
        alone={seed: [alone] * CLIENTS for seed in range(len(gains))},
        chance=50.0,
        num_images=num_images,
    )


def verdict_of(overall: list[float], local: list[float], **about: float) -> Verdict:
    return judge("crad", [face("global_accuracy", overall, **about), face("local_accuracy", local, **about)])  # type: ignore[arg-type]


def run(method: str, *, seed: int = 0, overall: float = 70.0, local: float = 80.0, **changes: object) -> RunRecords:
    """A run with two classes as often, on a thousand common test images and two thousand of the clients' own."""
    changes = {"best_round": 1, "per_class": PER_CLASS, **changes}
    made: RunRecords = run_of(summary(method, seed=seed, overall=overall, local=local, **changes), partition=HALVES)
    return made


def runs_of(**by_method: list[tuple[float, float]]) -> list[RunRecords]:
    """Methods by name, each with (global, local) of one seed after the other."""
    found = [
        run(name.replace("_", "-"), seed=seed, overall=overall, local=local)
        for name, of_seeds in by_method.items()
        for seed, (overall, local) in enumerate(of_seeds)
    ]
    return comparable_runs(found)[0]


ALONE = [(70.0, 80.0)] * 3


# --- the rule, as worked out by hand in the module


def test_one_face_rises_and_the_other_shows_nothing_helped():
    verdict = verdict_of([5, 6, 7], [1, -1, 0])
    assert verdict.kind == "helped"
    overall, local = verdict.gains
    assert overall.mean == pytest.approx(6.0)
    assert (overall.sign, local.sign) == (1, 0)
    assert overall.interval == pytest.approx((6 - 4.3027 / 3**0.5, 6 + 4.3027 / 3**0.5), abs=1e-3)
    assert verdict.sentence == (
        "Joining with crad helped: global accuracy +6.0 points (95 % interval +3.5 to +8.5), local accuracy 0.0 points "
        "(95 % interval -2.5 to +2.5); over 3 seeds 4 of 6 clients gained."
    )


def test_one_face_rises_and_the_other_falls_mixed():
    verdict = verdict_of([5, 6, 7], [-5, -4, -3])
    assert verdict.kind == "mixed"
    assert verdict.label == "mixed: +6.0 global, -4.0 local (0 of 6 gained)"
    assert verdict.sentence.startswith("Joining with crad is mixed: global accuracy +6.0 points")


def test_a_mean_that_fell_further_than_the_rise_is_no_help_though_its_interval_is_wide():
    verdict = verdict_of([5, 6, 7], [-20, 0, -4])
    assert (verdict.kind, verdict.gains[1].sign) == ("mixed", 0)
    assert verdict_of([5, 6, 7], [-10, 0, -4]).kind == "helped", "4.7 points down, not shown, against 6 up"


def test_both_faces_fall_hurt():
    assert verdict_of([-5, -6, -7], [-1, -2, -1]).kind == "hurt"
    assert verdict_of([-5, -6, -7], [0, 1, -1]).label == "hurt: -6.0 global, 0.0 local (0 of 6 gained)"


def test_noise_is_not_shown():
    verdict = verdict_of([9, -4, 1], [-3, 6, 2])
    assert verdict.kind == "not shown"
    assert verdict.label == "not shown (3 seeds): +2.0 global, +1.7 local (2 of 6 gained)"
    assert verdict.sentence.startswith(
        "Whether joining with crad helps is not shown: global accuracy +2.0 points (95 %"
    )


def test_two_seeds_that_nearly_agree_show_nothing_yet():
    assert verdict_of([5, 7], [5, 7]).kind == "not shown"


def test_one_seed_speaks_of_its_run_and_shows_nothing():
    verdict = verdict_of([25.0], [-4.06])
    assert verdict.kind == "not shown"
    assert verdict.gains[0].interval is None
    assert verdict.label == "not shown (one seed): +25.0 global, -4.1 local (0 of 2 gained)"
    assert verdict.sentence == (
        "In this run joining with crad raised global accuracy by 25.0 points and lowered local accuracy by 4.1 points "
        "(0 of 2 clients gained): one seed shows no more than that."
    )
    assert "left local accuracy where it was" in verdict_of([1.0], [-0.01]).sentence


def test_a_rise_that_ends_at_chance_is_no_help():
    verdict = verdict_of([5, 6, 7], [5, 6, 7], alone=46.0)
    assert is_at_chance(52.0, chance=50.0, num_images=1000), "two standard errors of a guess reach 53.16"
    assert not is_at_chance(53.2, chance=50.0, num_images=1000)
    assert verdict.kind == "not shown"
    assert verdict.label.startswith("not shown (at chance): +6.0 global")
    assert "not beyond what a guess may reach on so many test samples, 52.0 % joined and 46.0 %" in verdict.sentence
    assert verdict.sentence.endswith("naming the commonest class gets 50.0 % on average.")
    assert verdict_of([5, 6, 7], [5, 6, 7], alone=50.0).kind == "helped", "56 % on as many images is above it"
    assert verdict_of([5, 6, 7], [5, 6, 7], alone=50.0, num_images=50).kind == "not shown", "50 images tell less"


def test_a_fall_from_chance_hurts_nobody_and_a_fall_to_chance_does():
    assert verdict_of([-5, -6, -7], [0, 0, 0], alone=52.0).kind == "not shown"
    assert verdict_of([-25, -26, -27], [0, 0, 0], alone=76.0).kind == "hurt"


def test_seeds_that_agree_by_luck_show_nothing_while_their_clients_disagree():
    lucky = Face("global_accuracy", {0: [70.0, 92.0], 1: [92.0, 70.0]}, {0: [80.0] * 2, 1: [80.0] * 2}, 50.0, 1000)
    verdict = judge("crad", [lucky])
    assert verdict.gains[0].mean == 1.0
    assert verdict.kind == "not shown", "+1 with both seeds, of clients at -10 and +12"


def test_a_client_gained_that_rose_on_a_face_and_fell_on_none():
    faces = [
        Face(metric, {0: joined}, {0: [50.0] * 4}, 10.0, 1000)
        for metric, joined in (("global_accuracy", [60, 60, 50, 50]), ("local_accuracy", [50, 49, 50, 51]))
    ]
    verdict = judge("crad", faces)
    assert (verdict.num_gained, verdict.num_pairs) == (2, 4)
    assert [gain.num_gained for gain in verdict.gains] == [2, 1]


def test_seeds_that_only_one_of_the_two_was_run_with_do_not_count():
    some = Face("global_accuracy", {1: [80.0], 2: [82.0], 3: [99.0]}, {1: [70.0], 2: [71.0]}, 50.0, 1000)
    verdict = judge("crad", [some])
    assert verdict.seeds == (1, 2)
    assert verdict.gains[0].mean == 10.5


# --- properties

POINTS = st.floats(-40, 40).map(lambda value: round(value, 2))
TURNED = {"helped": "hurt", "hurt": "helped", "mixed": "mixed", "not shown": "not shown"}


def drawn_face(metric: str, gains: list[list[float]]) -> Face:
    alone = {seed: [50.0] * len(own) for seed, own in enumerate(gains)}
    joined = {seed: [50.0 + gain for gain in own] for seed, own in enumerate(gains)}
    return Face(metric, joined, alone, 10.0, 500)


@st.composite
def both_faces(draw: st.DrawFn) -> tuple[Face, Face]:
    num_seeds, num_clients = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rows = st.lists(
        st.lists(POINTS, min_size=num_clients, max_size=num_clients), min_size=num_seeds, max_size=num_seeds
    )
    return drawn_face("global_accuracy", draw(rows)), drawn_face("local_accuracy", draw(rows))


@given(both_faces())
def test_joined_and_alone_in_each_others_place_turn_helped_into_hurt(faces):
    verdict = judge("a", faces)
    turned = judge("a", [replace(one, joined=one.alone, alone=one.joined) for one in faces])
    assert turned.kind == TURNED[verdict.kind]
    assert [gain.mean for gain in turned.gains] == pytest.approx([-gain.mean for gain in verdict.gains])


@given(both_faces())
def test_what_a_verdict_says_holds(faces):
    verdict = judge("a", faces)
    signs = {gain.sign for gain in verdict.gains}
    if verdict.kind == "helped":
        assert 1 in signs
        assert -1 not in signs
        assert statistics.fmean(gain.mean for gain in verdict.gains) >= 0
    if len(verdict.seeds) < 2:
        assert verdict.kind == "not shown"
    for gain in verdict.gains:
        assert gain.interval is None or gain.interval[0] <= gain.mean <= gain.interval[1]
        assert gain.sign == 0 or not gain.is_at_chance
    assert all(0 <= gain.num_gained <= gain.num_pairs == verdict.num_pairs for gain in verdict.gains)


@settings(max_examples=12, deadline=None)
@given(
    num_seeds=st.integers(2, 6), num_clients=st.integers(1, 6), spread=st.floats(0.5, 10), number=st.integers(0, 999)
)
def test_noise_around_zero_is_called_help_no_more_often_than_the_level(num_seeds, num_clients, spread, number):
    """Both faces have 2.5 % on their upper side, so 5 % at most: 25 of 500, and by luck never 40."""
    rng = random.Random(number)

    def noise(metric: str) -> Face:
        of_seeds = [rng.gauss(0, spread) for _ in range(num_seeds)]
        return drawn_face(metric, [[mean + rng.gauss(0, spread) for _ in range(num_clients)] for mean in of_seeds])

    kinds = [judge("a", [noise("global_accuracy"), noise("local_accuracy")]).kind for _ in range(500)]
    assert kinds.count("helped") <= 40
    assert kinds.count("hurt") <= 40


# --- from records


def test_every_method_has_its_verdict_against_local_and_the_sentence_names_each():
    found = joining_verdict(
        runs_of(
            local=ALONE,
            uniform=[(75, 80), (76, 81), (77, 79)],
            crad=[(75, 75), (76, 76), (77, 77)],
            fedmd=[(60, 80), (59, 80), (61, 80)],
            dfml=[(80, 70), (60, 95), (70, 81)],
            centralized=[(95, 95)] * 3,
        )
    )
    assert found is not None
    assert {one.name: one.kind for one in found.verdicts} == {
        "uniform": "helped",
        "crad": "mixed",
        "fedmd": "hurt",
        "dfml": "not shown",
    }
    assert found.kind == "mixed"
    assert found.sentence == (
        "Joining helped with uniform, hurt with fedmd, is mixed with crad; nothing is shown of dfml."
    )
    assert len(found.lines) == 5, "a sentence each, and what four verdicts at once are worth"
    assert "up to one in ten" in found.lines[-1], "two accuracies, each at 95 %"


def test_where_one_helped_and_of_another_nothing_is_shown_nothing_is_mixed():
    found = joining_verdict(
        runs_of(local=ALONE, uniform=[(75, 80), (76, 81), (77, 79)], crad=[(75, 75), (60, 90), (77, 79)])
    )
    assert found is not None
    assert [one.kind for one in found.verdicts] == ["helped", "not shown"]
    assert found.kind == "not shown"


def test_methods_that_all_helped_are_listed_and_no_one_is_named_best():
    both = {"uniform": [(80.0, 85.0), (81.0, 86.0), (82.0, 87.0)], "crad": [(75.0, 80.0), (76.0, 81.0), (77.0, 79.0)]}
    found = joining_verdict(runs_of(local=ALONE, **both))
    assert found is not None
    assert (found.kind, found.sentence) == ("helped", "Joining helped with uniform and crad.")


def test_one_seed_of_several_methods_says_what_rose_in_this_run():
    found = joining_verdict(runs_of(local=[(70, 80)], uniform=[(81, 82)], crad=[(79, 78)]))
    assert found is not None
    assert found.kind == "not shown"
    assert found.sentence == "Not shown (one seed). In this run both accuracies rose with 1 of 2 methods: uniform."
    assert all("one seed shows no more than that" in line for line in found.lines)


def test_peak_weights_never_decide():
    """The peak model of DFML stands 20 points above training alone, its model below."""
    peak = {"peak": {"global_accuracy": 90.0, "local_accuracy": 95.0}}
    peak["peak"] |= {"global_accuracy_spread": 1.0, "local_accuracy_spread": 1.0}
    runs = [
        one
        for seed in (1, 2, 3)
        for one in (run("local", seed=seed), run("dfml", seed=seed, overall=60.0 + seed, local=78.0, variants=peak))
    ]
    found = joining_verdict(comparable_runs(runs)[0])
    assert found is not None
    assert [(one.name, one.kind) for one in found.verdicts] == [("dfml", "hurt")]


@pytest.mark.parametrize("methods", [["crad"], ["local"], ["local", "centralized"]])
def test_without_somebody_joined_and_somebody_alone_there_is_no_verdict(methods):
    assert joining_verdict(comparable_runs([run(method) for method in methods])[0]) is None


def test_chance_is_the_commonest_class_of_the_test_images_and_of_every_clients_own():
    skewed = [{**one, "test_samples": count} for one, count in zip(PER_CLASS, (900, 100), strict=True)]
    runs = [
        run(method, seed=seed, overall=overall, per_class=skewed)
        for seed in (1, 2, 3)
        for method, overall in (("local", 80.0), ("crad", 89.0 + seed / 10))
    ]
    found = joining_verdict(comparable_runs(runs)[0])
    assert found is not None
    overall, local = found.verdicts[0].gains
    assert (overall.chance, local.chance) == (90.0, 50.0)
    assert overall.is_at_chance
    assert found.kind == "not shown", "9 points up with every seed, to what naming one class gets"


def test_under_an_attack_the_honest_clients_count():
    """Client 1 lies; the other gains with CRAD, and the liar's own loss is its own."""
    runs = []
    for seed in (1, 2, 3):
        for method, better in (("local", 0), ("crad", 3)):
            one = made_run(method, seed=seed, clients=3, better=better, attack="label-flip", attackers=1)
            (liar,) = one.summary["attackers"]
            for record in one.rounds:
                record["clients"][liar]["global_accuracy"] = 90.0 if method == "local" else 0.0
            runs.append(one)
    found = joining_verdict(comparable_runs(runs)[0])
    assert found is not None
    (verdict,) = found.verdicts
    assert verdict.num_pairs == 6, "two honest clients, three seeds"
    assert verdict.gains[0].mean > 0


def test_another_loss_than_training_alone_is_said_beside_the_verdict():
    runs = [run(method, seed=seed, overall=60.0 + seed) for seed in (1, 2) for method in ("local", "crad-plus")]
    found = joining_verdict(comparable_runs(runs)[0])
    assert found is not None
    (note,) = found.notes
    assert note.startswith("crad-plus has another loss than local (balanced)")
    plain = joining_verdict(runs_of(local=ALONE, crad=ALONE))
    assert plain is not None
    assert plain.notes == ()


def test_a_verdict_is_written_for_programs():
    found = to_json(joining_verdict(runs_of(local=ALONE, crad=[(75, 75), (76, 76), (77, 77)])))
    again = json.loads(json.dumps(found))
    assert (again["kind"], again["level"], again["verdicts"][0]["seeds"]) == ("mixed", 0.95, [0, 1, 2])
    assert again["verdicts"][0]["label"].startswith("mixed: +6.0 global, -4.0 local")
    assert again["verdicts"][0]["gains"][0]["interval"][0] == pytest.approx(3.5, abs=0.1)
    assert to_json(None) is None


# --- on the page


@pytest.mark.parametrize(
    ("crad", "css", "said"),
    [
        ([(75, 80), (76, 81), (77, 79)], "helped", "Joining with crad helped: global accuracy +6.0 points"),
        ([(65, 80), (64, 80), (63, 80)], "hurt", "Joining with crad hurt: global accuracy -6.0 points"),
        ([(75, 75), (76, 76), (77, 77)], "mixed", "Joining with crad is mixed"),
        ([(75, 75), (60, 90), (77, 79)], "not-shown", "Whether joining with crad helps is not shown"),
        ([(82, 68)], "not-shown", "raised global accuracy by 12.0 points and lowered local accuracy by 12.0 points"),
    ],
)
def test_the_page_opens_with_the_verdict_in_its_colour(crad, css, said, monkeypatch):
    monkeypatch.setattr("crad.report.charts.charts_available", lambda: False)
    html = report_page(runs_of(local=ALONE[: len(crad)], crad=crad))
    assert f'<div class="headline {css}" role="region"' in html
    assert f".{css} {{ --verdict:" in html
    assert said in Page(html).text
    assert "Joining helped." not in html


def test_every_method_has_tiles_of_its_own_and_the_best_of_those_that_join_is_marked(monkeypatch):
    monkeypatch.setattr("crad.report.charts.charts_available", lambda: False)
    html = report_page(runs_of(local=[(70, 80)], crad=[(71, 80)], uniform=[(81, 79)]))
    marked = re.findall(r'<div class="best"><dt>([^<]*)</dt><dd>([^<]*)</dd>', html)
    assert marked == [("local accuracy", "80.00 %"), ("global accuracy", "81.00 %")]
    text = Page(html).text
    assert "crad not shown at round 1" in text, "the verdict's kind stands beside the name"
    assert "81.00 % +11.00 points over alone" in text
    assert "71.00 % +1.00 points over alone" in text
    assert "2 of 2 better on one accuracy, worse on neither" in text, "crad"
    assert "0 of 2 better on one accuracy, worse on neither" in text, "uniform fell locally"


def test_a_run_that_goes_on_is_not_judged_against_a_finished_one():
    alone, whole = made_run("local", rounds=4), made_run("crad", rounds=4, better=2)
    going = replace(whole, rounds=whole.rounds[:2])
    assert joining_verdict(with_names([alone, whole])) is not None
    assert joining_verdict(with_names([alone, going])) is None
    headline = make_headline(with_names([alone, going]), (), ())
    assert headline.verdict == "Whether joining helped is still open."
    assert headline.detail == ["1 run is not finished, of 2; only whole runs count."]
