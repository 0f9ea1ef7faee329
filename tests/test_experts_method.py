"""Method `experts`: experts keep to their own labels and are exchanged; students learn from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.message import Message
from crad.federation.method import RoundContext
from crad.federation.peer import PRIOR_IN, Peer
from crad.federation.teachers import TeacherCache
from crad.inspection import RunInspector
from crad.methods import check_recipe, resolve_method
from crad.methods.distillation import student_loss
from crad.methods.experts import Experts, kept_teachers
from crad.methods.local_training import BlockLoss
from crad.network.agreement import Agreement
from crad.runs.directory import experiment_hash
from crad.runs.selection import selected_round
from crad.training.digest import logits_on
from crad.training.epoch import Block
from tests.conftest import change
from tests.federation import Federation
from tests.organisations import agreed, make_identities
from tests.test_resume import assert_same_end, run_with_stops

FIGURES = ("active", "validation_accuracy", "local_accuracy", "global_accuracy")


@pytest.fixture(scope="module")
def experiment(tiny) -> Experiment:
    """Two rounds of experts, two of students."""
    settings = {"method_settings": {"student_epochs": 1}, "models": ("cnn6", "cnn6-wide")}
    return change(tiny, method="experts", rounds=4, lr=0.05, **settings)


@pytest.fixture(scope="module")
def going_on(experiment) -> Experiment:
    """One round of experts, then three in which they go on and are exchanged every second one."""
    return change(experiment, method_settings={"expert_rounds": 1, "exchange_every": 2, "student_epochs": 1})


def weights(peer: Peer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in peer.model.state_dict().items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def after(experiment: Experiment, rounds: int) -> Federation:
    federation = Federation(experiment)
    for _ in range(rounds):
        federation.next_round()
    return federation


@dataclass(frozen=True)
class Walk:
    """A federation after four rounds, and its members as they were after each of them (from 0 on)."""

    federation: Federation
    peers: list[list[Peer]]
    weights: list[list[dict[str, Tensor]]]
    payloads: list[int]


def walk(experiment: Experiment) -> Walk:
    federation = Federation(experiment)
    peers, payloads = [federation.peers()], [0]
    for _ in range(4):
        payloads.append(federation.next_round().payload_bytes)
        peers.append(federation.peers())
    return Walk(federation, peers, [[weights(one) for one in everybody] for everybody in peers], payloads)


@pytest.fixture(scope="module")
def alone(experiment) -> Walk:
    """What `local` has, as experts train it."""
    return walk(change(experiment, method="local", method_settings={}, local_loss="plain", teacher_prior="keep"))


@pytest.fixture(scope="module")
def walked(experiment) -> Walk:
    return walk(experiment)


@pytest.fixture(scope="module")
def went_on(going_on) -> Walk:
    return walk(going_on)


@pytest.fixture(scope="module")
def frozen_run(experiment, tmp_path_factory) -> Path:
    """The whole run, with its committee."""
    path: Path = tmp_path_factory.mktemp("frozen") / "run"
    crad.run(change(experiment, committee=True), output=path)
    return path


@pytest.fixture(scope="module")
def going_on_run(going_on, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("going-on") / "run"
    crad.run(change(going_on, committee=True), output=path)
    return path


# --- experts


def test_experts_are_what_local_trains_to_the_last_bit(walked, alone):
    assert all(is_same(one, other) for one, other in zip(walked.weights[2], alone.weights[2], strict=True))


@pytest.mark.parametrize("loss", [{"local_loss": "plain"}, {"local_loss": "plain", "teacher_prior": "keep"}])
def test_experts_are_what_local_trains_whatever_students_learn(experiment, alone, loss):
    federation = after(change(experiment, **loss), 2)
    for peer, expected in zip(federation.peers(), alone.weights[2], strict=True):
        assert is_same(weights(peer), expected)


def test_in_their_rounds_the_figures_are_those_of_local_also_where_students_learn_the_balanced_loss(
    experiment, frozen_run
):
    """Such an expert has its prior in: adding it for its own samples would count it twice."""
    plain = {"local_loss": "plain", "teacher_prior": "keep"}
    local = crad.run(change(experiment, method="local", method_settings={}, rounds=2, committee=True, **plain))
    for ours, theirs in zip(crad.load(frozen_run).rounds[:2], local.rounds, strict=True):
        assert {key: ours[key] for key in FIGURES} == {key: theirs[key] for key in FIGURES}
        assert ours["committee"] == theirs["committee"], "asked together they say the same"


def test_balanced_experts_are_what_local_trains_with_that_loss(experiment):
    chosen = change(experiment, local_loss="balanced", teacher_prior="keep")
    expected = Federation(
        change(experiment, method="local", method_settings={}, local_loss="balanced", teacher_prior="keep")
    )
    expected.next_round()
    for peer, other in zip(after(chosen, 1).peers(), expected.peers(), strict=True):
        assert is_same(weights(peer), weights(other))
        assert PRIOR_IN not in peer.memory


def test_experts_that_go_on_are_still_those_of_local(went_on, alone):
    """Also with the optimiser's momentum, beside a student that moves."""
    for peer, expected in zip(went_on.peers[4], alone.weights[4], strict=True):
        prefix = "expert/model/"
        expert = {name.removeprefix(prefix): one for name, one in peer.memory.items() if name.startswith(prefix)}
        assert is_same(expert, expected)
        assert not is_same(weights(peer), expected), "the student is another"


def test_a_student_is_left_as_it_is_while_its_expert_trains_publishes_and_is_kept(going_on):
    federation = after(going_on, 2)
    method = resolve_method("experts", going_on.method_settings)
    context = RoundContext(3, TeacherCache(federation.context))
    peer = federation.peer(0)
    before = {name: one.clone() for name, one in peer.state().items() if not name.startswith("memory.")}
    assert any(name.startswith("momentum.") for name in before)
    method.phases[0].learn(peer, {}, context)
    assert method.phases[1].publish is not None
    method.phases[1].publish(peer, context)
    method.phases[1].learn(peer, {}, context)
    assert is_same({name: one for name, one in peer.state().items() if not name.startswith("memory.")}, before)


# --- what is exchanged, and kept


def recorded_payloads(run: Path) -> list[int]:
    return [line["payload_bytes"] for line in crad.load(run).rounds]


def test_they_are_exchanged_once_and_kept(walked):
    assert walked.payloads[4] == 0
    for peer in walked.peers[4]:
        kept = kept_teachers(peer)
        assert [one.peer for one in kept] == [0, 1, 2, 3], "its own among them"
        assert all(is_same(one.tensors, walked.weights[2][one.peer]) for one in kept)
        assert {one.round_index for one in kept} == {2}


def test_the_bytes_are_those_of_one_exchange(walked, frozen_run):
    sizes = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in walked.weights[0]]
    found = recorded_payloads(frozen_run)
    assert [one > 0 for one in found] == [False, True, False, False]
    assert 3 * sum(sizes) < found[1] < 3 * (sum(sizes) + 4 * 16_000)


def test_they_are_exchanged_again_every_so_many_rounds(went_on, going_on_run, alone):
    assert [one > 0 for one in recorded_payloads(going_on_run)] == [True, False, True, False]
    for peer in went_on.peers[4]:
        assert all(is_same(one.tensors, alone.weights[3][one.peer]) for one in kept_teachers(peer)), (
            "the newest of everybody"
        )


def test_an_experts_figures_are_its_own_and_not_its_students(went_on, alone):
    wanted = [peer.statistics() for peer in alone.peers[3]]
    for peer in went_on.peers[4]:
        for teacher in kept_teachers(peer):
            assert teacher.statistics == wanted[teacher.peer]


# --- students


def test_a_student_begins_as_its_expert_and_is_drawn_to_what_all_experts_say(experiment, monkeypatch):
    federation = after(experiment, 2)
    peer = federation.peer(1)
    seen: list[tuple[Tensor, Tensor]] = []

    def spy(student: Peer, block: Block, target_BC: Tensor) -> BlockLoss:
        seen.append((block.inputs.clone(), target_BC.clone()))
        if len(seen) == 1:
            assert is_same(weights(student), expert), "as its expert"
            assert not student.optimizer.state, "and nothing of its momentum"
        return student_loss(student, block, target_BC)

    monkeypatch.setattr("crad.methods.distillation.student_loss", spy)
    expert, teachers = weights(peer), kept_teachers(peer)
    method = resolve_method("experts", {"student_epochs": 1})
    learned = method.phases[2].learn(peer, {}, RoundContext(3, TeacherCache(federation.context)))
    assert list(learned.trust) == [0, 1, 2, 3]
    assert not is_same(weights(peer), expert)

    [(inputs, target_BC)] = seen
    models = [federation.peer(one.peer).model for one in teachers]
    for model, teacher in zip(models, teachers, strict=True):
        model.load_state_dict(teacher.tensors)
    said = [torch.softmax(logits_on(model, inputs) / experiment.temperature, dim=1) for model in models]
    wanted = crad.aggregate(
        torch.stack(said),
        torch.tensor([one.statistics.counts for one in teachers]),
        torch.tensor([one.statistics.accuracies for one in teachers]),
        "support-all",
        teacher_prior="remove",
        temperature=experiment.temperature,
    )
    torch.testing.assert_close(target_BC, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("prior", "is_right"), [("keep", True), ("remove", False)])
def test_shares_of_a_handful_of_samples_mislead(tiny, monkeypatch, prior, is_right):
    """Known and kept: everybody holds all classes alike, but of eight validation samples three are of one class."""
    hits: list[float] = []

    def spy(student: Peer, block: Block, target_BC: Tensor) -> BlockLoss:
        hits.append(float((target_BC.argmax(dim=1) == block.labels).float().mean()))
        return student_loss(student, block, target_BC)

    monkeypatch.setattr("crad.methods.distillation.student_loss", spy)
    settings = {"clients": 3, "partition": "iid", "lr": 0.05, "models": ("cnn6",), "teacher_prior": prior}
    one_epoch = {"student_epochs": 1}
    federation = after(change(tiny, method="experts", rounds=6, method_settings=one_epoch, **settings), 4)
    assert [sum(peer.statistics().counts) for peer in federation.peers()] == [8, 8, 8]
    assert all((hit > 0.9) == is_right for hit in hits)
    assert len(hits) == 3


def test_rule_and_correction_are_settings(experiment):
    def losses(**settings: object) -> list[float]:
        line = crad.run(change(experiment, rounds=2, models=("cnn6",), **settings)).rounds[1]
        return [client["losses"]["total"] for client in line["clients"]]

    usual = losses()
    assert losses(method_settings={"rule": "uniform", "student_epochs": 1}) != usual
    assert losses(teacher_prior="keep", local_loss="plain") != usual
    assert losses(local_loss="plain") != usual
    assert losses(filter="median", min_support=0) != losses(min_support=0), "four have a say about every class"


def test_the_student_is_measured_with_its_prior_and_the_expert_without(walked):
    assert all(PRIOR_IN in peer.memory and peer.evaluation.plain is None for peer in walked.peers[2])
    assert all(PRIOR_IN not in peer.memory and peer.evaluation.plain is not None for peer in walked.peers[3])


def test_a_round_of_experts_alone_is_not_selected(frozen_run):
    result = crad.load(frozen_run)
    assert [line.get("is_preparation", False) for line in result.rounds] == [True, True, False, False]
    assert result.summary["best_round"] > 2
    better = [{**line, "validation_accuracy": 100.0 - line["round"]} for line in result.rounds]
    assert selected_round(better[:1]) == better[0], "as long as there is nothing else"
    found = selected_round(better)
    assert found is not None
    assert found["round"] == 3


def test_half_of_the_rounds_are_the_experts_unless_one_says_otherwise():
    of = [Experts().preparation(Experiment(rounds=rounds)) for rounds in (2, 3, 40)]
    assert of == [1, 1, 20]
    assert Experts(expert_rounds=7).preparation(Experiment(rounds=40)) == 7


# --- however it is run


@pytest.fixture(params=["frozen", "going on"])
def chosen(request, experiment, going_on, frozen_run, going_on_run) -> tuple[Experiment, Path]:
    """An experiment, and its whole run."""
    either: dict[str, Any] = {"frozen": (experiment, frozen_run), "going on": (going_on, going_on_run)}
    wanted, run = either[request.param]
    return change(wanted, committee=True), run


@pytest.mark.usefixtures("forked_workers")
def test_two_workers_end_as_one(chosen, tmp_path):
    experiment, whole = chosen
    crad.run(change(experiment, workers=2), output=tmp_path / "run")
    assert_same_end(tmp_path / "run", whole)


def test_a_run_stopped_anywhere_ends_the_same(chosen, tmp_path):
    """In a round of experts, in the exchange, among the students."""
    experiment, whole = chosen
    run_with_stops(experiment, tmp_path / "run", after_steps=[6, 14, 18], stage="learning")
    assert_same_end(tmp_path / "run", whole)


def test_who_misses_the_exchange_learns_from_its_own_labels_as_a_student(experiment):
    """Two of four take part: somebody who was not there in round 2 is there later."""
    settings = {
        "active": 2,
        "rounds": 6,
        "models": ("cnn6",),
        "method_settings": {"expert_rounds": 2, "student_epochs": 1},
    }
    federation = Federation(change(experiment, **settings))
    active = [federation.next_round().active for _ in range(6)]
    kept = {peer.index: [one.peer for one in kept_teachers(peer)] for peer in federation.peers()}
    assert kept == {index: list(active[1]) if index in active[1] else [] for index in range(4)}
    late = {index for drawn in active[2:] for index in drawn} - {*active[1]}
    assert late, "or this says nothing"
    assert all("student" in federation.peer(index).memory for index in late)


# --- what arrives is checked


def test_an_expert_that_is_refused_is_named_and_not_kept(experiment):
    federation = after(experiment, 1)
    zero, one, two, three = federation.peers()
    broken = two.snapshot(2)
    with torch.no_grad():
        for parameter in three.model.parameters():
            parameter.fill_(3e38)  # finite, and more than any sum of it
    messages = {1: one.snapshot(2), 2: Message(broken.manifest, broken.body[:-1]), 3: three.snapshot(2)}
    context = RoundContext(2, TeacherCache(federation.context))
    learned = resolve_method("experts").phases[1].learn(zero, messages, context)
    assert learned.notes["refused"].keys() == {"2", "3"}
    assert [teacher.peer for teacher in kept_teachers(zero)] == [0, 1]


def test_an_attackers_own_student_learns_from_its_true_expert(experiment):
    federation = after(change(experiment, attack="noise", attackers=1), 2)
    [attacker] = federation.context.adversary.attackers
    honest = next(index for index in range(4) if index != attacker)
    true = weights(federation.peer(attacker))
    own, theirs = (kept_teachers(federation.peer(index))[attacker] for index in (attacker, honest))
    assert is_same(own.tensors, true)
    assert not is_same(theirs.tensors, true)
    assert (own.is_kept, theirs.is_kept) == (False, True), "one is not taken for the other"


# --- settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 1}, r"has 1 rounds and experts train in half of them: there must be at least one of experts"),
        ({"rounds": 4, "method_settings": {"expert_rounds": 4}}, r"has 4 rounds and expert_rounds is 4.* set rounds"),
        ({"evidence": "pooled"}, r"evidence = 'pooled': a student of 'experts' would judge its own expert"),
        ({"method_settings": {"rule": "suport"}}, r"unknown rule 'suport'.*support"),
        ({"method_settings": {"expert_rounds": -1}}, r"expert_rounds = -1"),
        ({"filter": "median", "method_settings": {"rule": "uniform"}}, r"filter 'median' takes the place of CRAD's"),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_line(settings, words):
    experiment = Experiment(method="experts", **settings)
    with pytest.raises(ConfigError, match=words) as refusal:
        check_recipe(experiment, resolve_method("experts", experiment.method_settings))
    assert "\n" not in str(refusal.value)


def test_it_stands_for_a_balanced_student_and_corrected_experts_unless_one_says_otherwise(tmp_path):
    recipe = Experiment(method="experts").recipe
    assert (recipe.local_loss, recipe.teacher_prior) == ("balanced", "remove")
    plain = Experiment(method="experts", local_loss="plain", teacher_prior="keep")
    for one in (Experiment(method="experts"), plain):
        check_recipe(one, resolve_method("experts"))
    assert experiment_hash(plain) != experiment_hash(Experiment(method="experts"))
    identities = make_identities(tmp_path)
    kept: Agreement = agreed(identities, settings={"method": "experts", "teacher_prior": "keep"})
    assert kept.experiment(dataset="own.npz").recipe.teacher_prior == "keep"
    assert agreed(identities, settings={"method": "experts"}).settings["teacher_prior"] == "remove"


# --- looking into it


def test_the_inspector_shows_the_experts_that_a_student_keeps(experiment, tmp_path):
    result = crad.run(change(experiment, attack="noise", attackers=1), output=tmp_path / "run")
    inspector = RunInspector(tmp_path / "run")
    panel, [attacker] = inspector.panel, inspector.panel.context.adversary.attackers
    trace = inspector.trace(student=1, image=5, class_index=None)
    assert [teacher.client for teacher in trace.teachers] == [0, 1, 2, 3], "its own among them"
    assert [teacher.client for teacher in trace.teachers if teacher.is_liar] == [attacker]

    federation = after(change(experiment, attack="noise", attackers=1), 3)
    kept = kept_teachers(federation.peer(next(index for index in range(4) if index != attacker)))
    inputs = panel.context.data.preprocessor.inputs(panel.context.data.global_test.samples[5:6])
    said = []
    for one in kept:
        model = federation.peer(one.peer).model
        model.load_state_dict(one.tensors)
        said.append(torch.softmax(logits_on(model, inputs) / experiment.temperature, dim=1))
    wanted = crad.aggregate(
        torch.stack(said),
        torch.tensor([one.statistics.counts for one in kept]),
        torch.tensor([one.statistics.accuracies for one in kept]),
        "support-all",
        teacher_prior="remove",
        temperature=experiment.temperature,
    )
    assert trace.target == pytest.approx(float(wanted[0, trace.class_index]), abs=1e-4)
    assert result.directory is not None
    assert (result.directory / "inspection.json").is_file()
