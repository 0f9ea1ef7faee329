"""The survey behind the page's inspector and `crad explain`: shapes, budgets, and which cases are the clearest."""

from __future__ import annotations

import base64
import itertools
import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import crad
from crad.aggregation import RULES
from crad.analysis.traces import ImageTrace, TeacherView, describe, percent, samples
from crad.cli import main
from crad.errors import ConfigError, RunError
from crad.federation.attacks import CLAIMED_SAMPLES, draw_attackers
from crad.federation.message import Statistics
from crad.federation.peer import Peer
from crad.federation.tasks import load_tensors
from crad.inspection import FAILURE_RULE, SUCCESS_RULE, RunInspector
from crad.inspection import panel as panel_module
from crad.inspection import survey as survey_module
from crad.inspection.cases import CASES_EACH, find_cases, margins
from crad.inspection.panel import Panel
from tests.conftest import change
from tests.reference import reference_trace

STATES = {"k": "kept", "u": "unsupported", "o": "outlier"}


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "crad"
    crad.run(change(tiny, rounds=2, models=("cnn6",)), output=path)
    return path


@pytest.fixture(scope="module")
def inspector(run):
    return RunInspector(run)


@pytest.fixture(scope="module")
def survey(run):
    return json.loads((run / "inspection.json").read_text())


def shape(nested):
    return np.array(nested).shape


# --- what a survey holds


def test_a_class_is_meant_by_its_index_or_its_name():
    dataset = SimpleNamespace(class_names=("cat", "dog"))
    of_pets: Any = SimpleNamespace(
        panel=SimpleNamespace(context=SimpleNamespace(data=SimpleNamespace(dataset=dataset)))
    )
    assert [RunInspector.class_of(of_pets, text) for text in ("0", "1", "cat", "dog")] == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match=r"unknown class 'dug'\. Did you mean 'dog'"):
        RunInspector.class_of(of_pets, "dug")


def test_a_survey_has_every_teacher_and_every_class_of_every_image_and_student(survey):
    num_images, num_classes = len(survey["images"]), len(survey["classes"])
    assert (num_images, num_classes) == (30, 4)
    assert [teacher["client"] for teacher in survey["teachers"]] == [0, 1, 2, 3]
    assert shape(survey["probabilities"]) == (num_images, 4, num_classes)
    for student in survey["students"]:
        assert student["teachers"] == [client for client in range(4) if client != student["client"]]
        for key in ("consensus", "band", "target", "uniform"):
            assert shape(student[key]) == (num_images, num_classes)
        assert shape(student["weights"]) == (num_images, 3, num_classes)
        states = [row for of_image in student["states"] for row in of_image]
        assert len(states) == 3 * num_images
        assert all(len(row) == num_classes and set(row) <= set("kuo") for row in states)


def test_a_survey_agrees_with_itself(survey):
    """Targets are on the simplex, a uniform average is the mean of what was said, whoever is dropped has no weight."""
    said = np.array(survey["probabilities"])
    assert said.sum(axis=2) == pytest.approx(1, abs=1e-4)
    for student in survey["students"]:
        assert np.array(student["target"]).sum(axis=1) == pytest.approx(1, abs=1e-4)
        assert np.array(student["uniform"]) == pytest.approx(said[:, student["teachers"]].mean(axis=1), abs=2e-5)
        weights = np.array(student["weights"])
        states = np.array([[list(row) for row in of_image] for of_image in student["states"]])
        is_anybody_kept = (states == "k").any(axis=1)
        assert weights.sum(axis=1) == pytest.approx(1, abs=1e-4)
        assert (weights[(states != "k") & is_anybody_kept[:, None]] == 0).all()


def test_numbers_are_rounded_and_images_are_pictures(survey, inspector):
    for value in itertools.chain(*survey["probabilities"][0], *survey["students"][0]["weights"][0]):
        assert round(value, survey_module.DIGITS) == value
    labels = inspector.panel.context.data.global_test.labels
    for image in survey["images"]:
        assert base64.b64decode(image["png"])[:8] == b"\x89PNG\r\n\x1a\n"
        assert image["label"] == int(labels[image["index"]])


def test_images_show_every_class_in_turn(survey):
    labels = [image["label"] for image in survey["images"]]
    assert max(map(labels.count, range(4))) - min(map(labels.count, range(4))) <= 2 * CASES_EACH


def test_many_clients_and_classes_stay_within_the_budget(inspector, monkeypatch):
    monkeypatch.setattr(survey_module, "SURVEY_NUMBERS", 100)
    survey = inspector.survey()
    # Of 4 teachers x 4 classes x 2 images there is room for 3 students, and then for 2 images.
    assert (len(survey["students"]), len(survey["images"])) == (3, 2)
    assert {"success", "failure"} == {case["kind"] for case in survey["cases"]}
    shown = {image["index"] for image in survey["images"]}
    assert all(case["image"] in shown for case in survey["cases"])


def test_with_more_teachers_fewer_images_are_searched(inspector, monkeypatch):
    monkeypatch.setattr(panel_module, "SEARCHED_OUTPUTS", 4 * 60)
    assert len(inspector.panel.searched) == 60
    monkeypatch.setattr(panel_module, "SEARCHED_OUTPUTS", 4)
    assert len(inspector.panel.searched) == 50  # never fewer
    monkeypatch.setattr(panel_module, "SEARCHED_IMAGES", 7)
    assert len(inspector.panel.searched) == 7


# --- which cases are the clearest


def margins_by_hand(q, counts, accuracies, labels, students):
    """The stated rules, one number at a time: {(student, image): (gain, what a dropped specialist lost or None)}."""
    found = {}
    for student in students:
        others = [k for k in range(len(q)) if k != student]
        trace = reference_trace([q[k] for k in others], [counts[k] for k in others], [accuracies[k] for k in others])
        for image, label in enumerate(labels):
            said = [q[k][image][label] for k in others]
            target = trace.target[image][label]
            support = [counts[k][label] for k in others]
            specialist = support.index(max(support))
            is_dropped = trace.verdicts[image][label].state[specialist] == "outlier"
            lost = said[specialist] - target if is_dropped else None
            found[student, image] = (target - sum(said) / len(said), lost)
    return found


def test_the_cases_of_a_run_are_the_clearest_by_the_stated_rules(inspector, survey):
    q_NBC = inspector.panel.outputs(range(80))
    counts = [list(statistics.counts) for statistics in inspector.panel.statistics]
    accuracies = [list(statistics.accuracies) for statistics in inspector.panel.statistics]
    labels = inspector.panel.context.data.global_test.labels.tolist()
    by_hand = margins_by_hand(q_NBC.double().tolist(), counts, accuracies, labels, range(4))
    best_gain = max(gain for gain, _ in by_hand.values())
    lost = [loss for _, loss in by_hand.values() if loss is not None]
    shortfall = max(-gain for gain, _ in by_hand.values())
    success, failure = (
        next(case for case in survey["cases"] if case["kind"] == kind) for kind in ("success", "failure")
    )
    assert success["margin"] == pytest.approx(best_gain, abs=2e-5)
    assert failure["margin"] == pytest.approx(max(lost) if lost else shortfall, abs=2e-5)
    for case in survey["cases"]:
        gain, loss = by_hand[case["student"], case["image"]]
        wanted = gain if case["kind"] == "success" else loss if lost else -gain
        assert case["margin"] == pytest.approx(wanted, abs=2e-5)
        assert case["class"] == labels[case["image"]]
    for kind in ("success", "failure"):
        own = [case for case in survey["cases"] if case["kind"] == kind]
        assert [case["margin"] for case in own] == sorted((case["margin"] for case in own), reverse=True)
        assert len({case["image"] for case in own}) == len(own), "an image once"


def made(q, counts, labels, accuracies=None):
    """A panel whose teachers say what a test wants: q [N][B][C], counts [N][C], labels [B]."""
    q_NBC = torch.tensor(q, dtype=torch.float64)
    panel = object.__new__(Panel)
    panel._rule, panel._source, panel._tallies = RULES["crad"], "reported", {}
    panel.experiment = crad.Experiment(clients=len(q))
    test = SimpleNamespace(labels=torch.tensor(labels))
    panel.context = SimpleNamespace(data=SimpleNamespace(global_test=test))  # type: ignore[assignment]
    panel.teachers = [SimpleNamespace(index=i) for i in range(len(q))]  # type: ignore[misc]
    panel._taught_by = {i: {*range(len(q))} - {i} for i in range(len(q))}
    accuracies = accuracies or [[0.5] * len(row) for row in counts]
    panel.statistics = [
        Statistics(counts=tuple(own), accuracies=tuple(right)) for own, right in zip(counts, accuracies, strict=True)
    ]
    return panel, q_NBC


# The appendix's failure: a dog, which client 7 (258 samples) gives 63.7 %. The supported agree on 27.5 % with a band of
# 6.8 %, so it is dropped. Client 9 is the student.
DOG = [0.290, 0.250, 0.315, 0.207, 0.343, 0.120, 0.150, 0.637, 0.163, 0.0]
HELD = [20, 30, 25, 40, 35, 22, 18, 258, 12, 0]


def test_the_papers_failure_is_found_as_one():
    certain = [[0.25, 0.75]] * 10  # another image that everybody sees alike
    q = [[one, [dog, 1 - dog]] for one, dog in zip(certain, DOG, strict=True)]
    counts = [[held, 50] for held in HELD]
    panel, q_NBC = made(q, counts, labels=[0, 0])
    cases = find_cases(panel, q_NBC, students=[9])
    failure = next(case for case in cases if case.kind == "failure")
    trace = panel.combine(9, q_NBC)
    assert (failure.student, failure.image) == (9, 1)
    assert trace.state[7, 1, 0] == "outlier"
    assert float(trace.consensus[1, 0]) == pytest.approx(0.275)
    assert float(trace.band[1, 0]) == pytest.approx(0.068)
    assert failure.margin == pytest.approx(0.637 - float(trace.target[1, 0]))
    assert [case.image for case in cases if case.kind == "failure"] == [1], "nobody was dropped for the other image"


def test_the_papers_failure_reads_as_the_paper_tells_it():
    teachers = [
        TeacherView(client, "cnn6", held, 0.5, said, "kept" if abs(said - 0.275) <= 0.0681 else "outlier", 0.2)
        for client, (held, said) in enumerate(zip(HELD[:9], DOG[:9], strict=True))
    ]
    trace = ImageTrace(300, 9, 17, 5, "dog", "dog", 0.275, 0.068, 0.272, 0.310, tuple(teachers))
    assert describe(trace) == (
        "Client 7 holds most samples of dog (258) and says 63.7 %, but lies outside the accepted 20.7 to 34.3 %, so it "
        "is dropped; the target is 27.2 %, a uniform average would say 31.0 %. Of 9 teachers 5 are kept, 0 dropped for "
        "support, 4 dropped as outliers."
    )


def test_where_no_specialist_is_dropped_the_largest_shortfall_is_the_failure():
    q = [[[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.2, 0.8]], [[0.5, 0.5], [0.8, 0.2]]]
    panel, q_NBC = made(q, counts=[[9, 9], [9, 9], [0, 9]], labels=[0, 0])
    cases = find_cases(panel, q_NBC, students=[0])
    failure = next(case for case in cases if case.kind == "failure")
    trace = panel.combine(0, q_NBC)
    assert failure.image == 1
    assert failure.margin == pytest.approx(0.5 - float(trace.target[1, 0]))


def test_the_student_with_the_largest_margin_is_named():
    # Teachers 1 and 2 know the class, teacher 3 holds nothing of it: it hurts only a plain mean.
    q = [[[0.9, 0.1]], [[0.9, 0.1]], [[0.8, 0.2]], [[0.0, 1.0]]]
    panel, q_NBC = made(q, counts=[[50, 50], [50, 50], [50, 50], [0, 50]], labels=[0])
    success = find_cases(panel, q_NBC, students=[0, 1, 2, 3])[0]
    gains = {s: float(margins(panel, s, q_NBC, torch.tensor([0]))[0][0]) for s in range(4)}
    assert success.kind == "success"
    assert gains[success.student] == max(gains.values()) == pytest.approx(success.margin)


def test_a_rule_that_says_what_the_uniform_average_says_has_no_clear_cases():
    q = [[[0.9, 0.1]], [[0.6, 0.4]], [[0.3, 0.7]]]
    panel, q_NBC = made(q, counts=[[9, 9], [9, 9], [9, 9]], labels=[0])
    panel._rule = RULES["uniform"]
    assert find_cases(panel, q_NBC, students=[0, 1, 2]) == []


def test_without_a_clear_case_clearest_says_what_to_do(inspector, monkeypatch):
    monkeypatch.setattr(inspector.panel, "_rule", RULES["uniform"])
    with pytest.raises(RunError, match=r"no clear success .* choose one with --image"):
        inspector.clearest()


# --- in words


def view(client, count, state, weight=0.5):
    return TeacherView(client, "cnn6", count, 0.5, 0.4, state, weight)


def test_the_sentence_of_a_specialist_that_is_kept():
    trace = ImageTrace(
        1, 0, 0, 0, "owl", "owl", 0.4, 0.1, 0.42, 0.3, (view(1, 3, "kept"), view(2, 12.346, "kept", 0.75))
    )
    assert describe(trace) == (
        "Client 2 holds most samples of owl (12.35) and says 40.0 %, within the accepted 30.0 to 50.0 %, so it is kept "
        "with 75.0 % of the weight; the target is 42.0 %, a uniform average would say 30.0 %. Of 2 teachers 2 are "
        "kept, 0 dropped for support, 0 dropped as outliers."
    )


@pytest.mark.parametrize(("weight", "words"), [(0.5, "all are averaged alike"), (0.0, "nobody is heard")])
def test_the_sentence_of_a_class_that_nobody_supports(weight, words):
    teachers = (view(1, 1, "unsupported", weight), view(2, 0, "unsupported", weight))
    trace = ImageTrace(1, 0, 0, 0, "owl", "owl", 0.4, 0.1, 0.42, 0.3, teachers)
    assert describe(trace).startswith(f"No teacher has enough samples of owl (the most: client 1 with 1), so {words}; ")


def test_halves_are_rounded_upwards_as_on_the_page():
    assert [percent(share) for share in (0.3125, 0.0625, 0.0, 1.0, 0.12349)] == ["31.3", "6.3", "0.0", "100.0", "12.3"]
    assert [samples(count) for count in (258, 2.0, 0.125, 12.346)] == ["258", "2", "0.13", "12.35"]


# --- crad explain says the same


@pytest.fixture
def explain(run, monkeypatch, capsys):
    def ask(*arguments):
        monkeypatch.setattr(sys, "argv", ["crad", "explain", str(run), *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code
        return capsys.readouterr().out

    return ask


def test_explain_has_the_numbers_of_the_survey(survey, explain):
    for place, number, label in ((0, 0, 0), (1, 7, 3)):
        student, image = survey["students"][place], survey["images"][number]
        (trace,) = json.loads(
            explain("--student", student["client"], "--image", image["index"], "--class", label, "--json")
        )
        for key in ("consensus", "band", "target", "uniform"):
            assert trace[key] == pytest.approx(student[key][number][label], abs=2e-5)
        assert [teacher["client"] for teacher in trace["teachers"]] == student["teachers"]
        for k, teacher in enumerate(trace["teachers"]):
            about = survey["teachers"][teacher["client"]]
            assert teacher["count"] == pytest.approx(about["counts"][label], abs=0.01)
            assert teacher["accuracy"] == pytest.approx(about["accuracies"][label], abs=1e-5)
            said = survey["probabilities"][number][teacher["client"]][label]
            assert teacher["probability"] == pytest.approx(said, abs=2e-5)
            assert teacher["weight"] == pytest.approx(student["weights"][number][k][label], abs=2e-5)
            assert teacher["state"] == STATES[student["states"][number][k][label]]


def test_explain_without_an_image_shows_the_first_success_and_failure_of_all_students(survey, explain):
    first = {case["kind"]: case for case in reversed(survey["cases"])}
    traces = json.loads(explain("--json"))
    assert [(trace["student"], trace["image"], trace["class_index"]) for trace in traces] == [
        (first[kind]["student"], first[kind]["image"], first[kind]["class"]) for kind in ("success", "failure")
    ]
    assert {trace["student"] for trace in json.loads(explain("--student", 2, "--json"))} == {2}


def test_explain_with_an_image_alone_is_about_the_first_student(explain):
    (trace,) = json.loads(explain("--image", 3, "--json"))
    assert (trace["student"], trace["image"]) == (0, 3)


def test_explain_states_the_rules_and_says_what_happened(explain, inspector):
    out = " ".join(explain().split())
    assert SUCCESS_RULE in out
    assert FAILURE_RULE in out
    for trace in inspector.clearest():
        assert describe(trace) in out


# --- what a student counted itself


@pytest.fixture(scope="module")
def verified(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("verified") / "run"
    crad.run(change(tiny, rounds=1, evidence="pooled", lr=0.05), output=path)
    return RunInspector(path)


def test_the_evidence_is_what_each_student_counts_on_its_own_samples(verified):
    student = 1
    part = verified.panel.context.data.samples(verified.panel.context.data.shards[student].train)
    inputs = verified.panel.context.data.preprocessor.inputs(part.samples)
    stats = verified.panel.stats(student)
    others = [place for place in verified.panel.teachers if place.index != student]
    for k, place in enumerate(others):
        said = verified.panel._run_of(place)(inputs).argmax(dim=1)
        for label in range(4):
            is_other = part.labels != label
            alarms = float((said[is_other] == label).double().mean()) if bool(is_other.any()) else 0.0
            assert stats.false_alarms_KC[k, label].item() == pytest.approx(alarms)
    held = torch.bincount(part.labels, minlength=4)
    assert all(stats.counts_KC[k, label] >= held[label] for k in range(3) for label in range(4))


def test_the_survey_and_the_trace_have_the_false_alarms(verified):
    survey = verified.survey()
    record = next(one for one in survey["students"] if one["client"] == 1)
    assert len(record["false_alarms"]) == len(record["support"]) == len(record["accuracies"]) == 3
    trace = verified.trace(student=1, image=0, class_index=2)
    shown = [teacher.false_alarms for teacher in trace.teachers]
    assert shown == pytest.approx([row[2] for row in record["false_alarms"]], abs=1e-5)
    assert "speak for client" in describe(trace) or "No teacher has enough" in describe(trace)


# --- liars, and clients that nobody has taught


@pytest.fixture(scope="module")
def lied_to(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "lies"
    experiment = change(tiny, rounds=2, liars=1, models=("cnn6",), evidence="pooled")
    return crad.run(experiment, output=path), RunInspector(path)


def test_a_liar_is_shown_with_what_it_published(lied_to):
    result, inspector = lied_to
    (liar,) = draw_attackers(inspector.panel.experiment)
    survey = json.loads((result.directory / "inspection.json").read_text())
    assert [teacher["client"] for teacher in survey["teachers"] if teacher["is_liar"]] == [liar]
    assert set(survey["teachers"][liar]["counts"]) == {CLAIMED_SAMPLES}
    assert set(survey["teachers"][liar]["accuracies"]) == {1.0}
    assert all(max(teacher["counts"]) < 1000 for teacher in survey["teachers"] if not teacher["is_liar"])
    trace = inspector.trace(student=(liar + 1) % 4, image=0, class_index=None)
    assert [teacher.client for teacher in trace.teachers if teacher.is_liar] == [liar]


def test_a_liar_says_what_its_noise_says(lied_to):
    _, inspector = lied_to
    (liar,) = draw_attackers(inspector.panel.experiment)
    place = inspector.panel.teachers[liar]
    q_NBC = inspector.panel.outputs([0, 1, 2, 3])
    peer = Peer(inspector.panel.context, place.member)
    peer.load_state(load_tensors(place.state), place.measured)
    inputs = inspector.panel.context.data.preprocessor.inputs(inspector.panel.context.data.global_test.samples[:4])
    with torch.no_grad():
        honest_BC = torch.softmax(peer.model.eval()(inputs) / inspector.panel.experiment.temperature, dim=1)
        peer.model.load_state_dict(peer.published_weights(inspector.panel.round_index + 1))
        noise_BC = torch.softmax(peer.model(inputs) / inspector.panel.experiment.temperature, dim=1)
    assert torch.allclose(q_NBC[liar], noise_BC, atol=1e-4)
    assert not torch.allclose(q_NBC[liar], honest_BC, atol=1e-2)


def test_a_liar_is_called_one(lied_to):
    result, inspector = lied_to
    (liar,) = draw_attackers(inspector.panel.experiment)
    assert view(4, 10_000, "kept").name == "4"
    lying = replace(view(4, 10_000, "kept"), is_liar=True)
    assert lying.name == "4, lies"
    trace = inspector.trace(student=(liar + 1) % 4, image=0, class_index=None)
    assert describe(replace(trace, teachers=(lying,))).startswith("Client 4 claims most samples of")
    page = (result.directory / "report.html").read_text(encoding="utf-8")
    assert "A simulated attack (noise): 1 of 4 clients publish noise" in page
    assert "A simulated attack.</p>" in page
    assert "Outcome says how to add it" not in page, "training alone would be another world"
    assert "To see whether joining helped" not in page


@pytest.mark.parametrize("method", ["crad", "crad-plus"])
def test_a_run_in_which_one_client_has_learned_is_finished(tiny, tmp_path, method):
    """The one has no teacher; it is a teacher of the others."""
    result = crad.run(change(tiny, method=method, rounds=1, active=1), output=tmp_path / "run")
    survey = json.loads((tmp_path / "run" / "inspection.json").read_text())
    (learned,) = [teacher["client"] for teacher in survey["teachers"]]
    assert [student["client"] for student in survey["students"]] == [one for one in range(4) if one != learned]
    assert result.summary["rounds"] == 1
    with pytest.raises(ConfigError, match=f"client {learned} has had no teacher: by round 1 no other client had"):
        RunInspector(tmp_path / "run").trace(student=learned, image=0, class_index=None)


def test_teachers_are_counted_on_samples_from_the_whole_shard(lied_to, monkeypatch):
    """Files are often ordered by class: the first ones alone would leave classes out."""
    panel = lied_to[1].panel
    everything = panel._training_part(panel.roster[0])
    monkeypatch.setattr(panel_module, "TALLIED_IMAGES", 10)
    some = panel._training_part(panel.roster[0])
    step = -(-len(everything) // 10)
    assert 5 <= len(some) <= 10
    assert torch.equal(some.labels, everything.labels[::step])
    monkeypatch.setattr(panel_module, "TALLIED_OUTPUTS", 16 * 4)
    monkeypatch.setattr(panel_module, "FEWEST_TALLIED", 2)
    assert len(panel._training_part(panel.roster[0])) <= 4, "many clients count on fewer samples"
