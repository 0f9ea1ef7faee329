"""The loop: publish then learn, who takes part, what is counted, what every method shares."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import crad
from crad.config import Experiment
from crad.engines.serial import SerialEngine
from crad.errors import ConfigError, RunError
from crad.federation.class_statistics import count_noise
from crad.federation.context import build_run_context
from crad.federation.message import pack
from crad.federation.method import Method, Phase, RoundContext
from crad.federation.peer import Peer, PeerSpec
from crad.federation.peer_evaluation import ClassScore
from crad.federation.rounds import draw_active
from crad.federation.teachers import TeacherCache
from crad.methods import METHODS, resolve_method
from crad.methods.alone import train_alone
from crad.models import Architecture, build_model
from crad.randomness import repeatable, torch_stream
from tests import reference
from tests.conftest import change
from tests.federation import Federation


def start(experiment: Experiment) -> Federation:
    return Federation(experiment)


def weights(peers: list[Peer]) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor.clone() for name, tensor in peer.model.state_dict().items()} for peer in peers]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_one_crad_round_equals_a_naive_loop_written_from_the_method(tiny):
    """Batch by batch, teacher by teacher, with the slow reference rule: the same weights up to rounding."""
    fast, slow = start(tiny), start(tiny)
    context, naive_peers = slow.context, slow.peers()
    fast.next_round()

    frozen = [peer.model.eval() for peer in slow.peers()]
    statistics = [peer.statistics() for peer in naive_peers]
    with repeatable(0, device="cpu"):
        for student in naive_peers:
            _train_naively(student, context, frozen, statistics)
    for mine, naive in zip(fast.peers(), naive_peers, strict=True):
        for name, tensor in mine.model.state_dict().items():
            torch.testing.assert_close(tensor, naive.model.state_dict()[name], rtol=2e-3, atol=2e-4)


def _train_naively(student, context, frozen, statistics):
    e = context.experiment
    others = [k for k in range(e.clients) if k != student.index]
    counts, accuracies = ([list(getattr(statistics[k], name)) for k in others] for name in ("counts", "accuracies"))
    purpose = ("peer", student.index, "round", 1, "epoch", 0)
    order = torch.randperm(len(student.train), generator=torch_stream(e.seed, *purpose, "shuffle"))
    images = context.data.preprocessor.inputs(
        context.data.preprocessor.augment(
            student.train.samples[order], generator=torch_stream(e.seed, *purpose, "augment")
        )
    )
    optimizer = torch.optim.SGD(student.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    for begin in range(0, len(order), e.batch_size):
        x, y = images[begin : begin + e.batch_size], student.train.labels[order][begin : begin + e.batch_size]
        if len(y) < 2:
            continue
        with torch.no_grad():
            q = np.stack([F.softmax(frozen[k](x) / 3.0, dim=1).double().numpy() for k in others])
        target = torch.tensor(
            reference.reference_trace(q.tolist(), counts, accuracies, rule="crad").target,
            dtype=torch.float32,
        )
        student.model.train()
        z = student.model(x)
        kl = (target * (torch.log(target) - F.log_softmax(z / 3.0, dim=1))).sum(dim=1).mean()
        loss = 0.3 * F.cross_entropy(z, y) + 0.7 * 9.0 * kl
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.model.parameters(), 5.0)
        optimizer.step()


def test_students_learn_from_snapshots_of_the_round_before(shallow, monkeypatch):
    """The last student's teachers are the models as they were before anybody learned."""
    federation = start(shallow)
    before = weights(federation.peers())
    seen: dict[int, dict[str, torch.Tensor]] = {}
    shelf = federation.engine.runner.teachers
    decode = shelf.decode

    def spy(message, *, sender, round_index):
        snapshot = decode(message, sender=sender, round_index=round_index)
        seen.setdefault(sender, snapshot.tensors)
        assert snapshot.tensors is seen[sender], "decoded twice"
        return snapshot

    monkeypatch.setattr(shelf, "decode", spy)
    federation.next_round()
    after = weights(federation.peers())
    for index in range(shallow.clients):
        assert same(seen[index], before[index])
        assert not same(after[index], before[index])


def test_order_of_the_clients_does_not_change_any_weight(tiny):
    class Backwards(SerialEngine):
        def each(self, tasks):
            return super().each(list(reversed(tasks)))

    forward, backward = Federation(tiny), Federation(tiny, engine=Backwards)
    assert forward.next_round().learned == backward.next_round().learned
    assert all(same(a, b) for a, b in zip(weights(forward.peers()), weights(backward.peers()), strict=True))


def test_all_methods_share_partition_weights_participation_and_batches(tiny):
    contexts = {name: build_run_context(change(tiny, method=name)) for name in ("crad", "uniform", "local")}
    first = contexts["crad"]
    for context in contexts.values():
        for mine, theirs in zip(context.data.shards, first.data.shards, strict=True):
            assert all(
                np.array_equal(getattr(mine, part), getattr(theirs, part)) for part in ("train", "validation", "test")
            )
        assert np.array_equal(context.data.proxy, first.data.proxy)
    rosters = [weights(start(change(tiny, method=name)).peers()) for name in contexts]
    assert all(same(a, b) for roster in rosters[1:] for a, b in zip(rosters[0], roster, strict=True))


def test_proxy_images_are_held_by_no_client(tiny):
    context = build_run_context(tiny)
    held = np.concatenate([shard.indices for shard in context.data.shards])
    assert len(context.data.proxy) == 8
    assert not set(context.data.proxy) & set(held)
    assert sorted([*context.data.proxy, *held]) == list(range(240))


def test_proxy_set_is_never_more_than_a_tenth(tiny):
    assert len(build_run_context(change(tiny, proxy_size=500)).data.proxy) == 24


def test_payload_is_what_was_really_sent(tiny):
    result = crad.run(change(tiny, rounds=1))
    sizes = [peer.snapshot(1).payload_bytes for peer in start(tiny).peers()]
    clients = result.rounds[0]["clients"]
    assert [client["sent_bytes"] for client in clients] == [3 * size for size in sizes]
    assert [client["received_bytes"] for client in clients] == [sum(sizes) - size for size in sizes]
    assert result.summary["payload_bytes_per_client_round"] == sum(3 * size for size in sizes) / 4


def test_local_sends_nothing_and_centralized_is_one_model(shallow):
    local = crad.run(change(shallow, method="local", rounds=1))
    assert local.summary["payload_bytes_per_client_round"] == 0
    central = crad.run(change(shallow, method="centralized", rounds=2))
    assert len(set(central.summary["global_accuracy_per_client"])) == 1
    assert len(central.summary["local_accuracy_per_client"]) == shallow.clients


def test_only_the_active_learn_and_publish_and_the_others_keep_their_model(shallow):
    federation = start(change(shallow, active=2))
    before = weights(federation.peers())
    done = federation.next_round()
    assert len(done.active) == 2
    for peer in federation.peers():
        assert same(peer.model.state_dict(), before[peer.index]) == (peer.index not in done.active)
        assert (done.traffic.sent[peer.index] > 0) == (peer.index in done.active)
        assert peer.evaluation.overall is not None, "metrics average over all clients"


def test_participation_is_drawn_without_replacement_by_seed_and_round(tiny):
    draws = [tuple(draw_active(20, 10, seed=1, round_index=r)) for r in range(1, 30)]
    assert all(len(set(draw)) == 10 for draw in draws)
    assert len(set(draws)) > 20
    assert set().union(*draws) == set(range(20))
    assert draws[4] == tuple(draw_active(20, 10, seed=1, round_index=5))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_single_client_has_nobody_to_learn_from(tiny, method, tmp_path):
    alone = change(tiny, method=method, clients=1, rounds=2, proxy_size=8)
    if method in ("local", "centralized"):
        assert crad.run(alone).summary["payload_bytes_per_client_round"] == 0
        return
    with pytest.raises(ConfigError, match=f"method {method!r} learns from other clients, and there is one: .*'local'"):
        crad.run(alone, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_the_tiny_task(tiny, method):
    """Chance is 25 %; well above it after a few rounds, with finite losses on the way."""
    small = {"generator_steps": 2, "generator_batch": 16, "transfer_size": 20} if method == "fedgd" else {}
    world = {"clients": 3, "rounds": 6, "eval_every": 6, "partition": "iid", "lr": 0.05, "models": ("cnn6",)}
    # Eight validation samples a client tell nothing of class shares (test_experts_method): they are not taken out.
    own = {"teacher_prior": "keep"} if method == "experts" else {}
    result = crad.run(change(tiny, method=method, method_settings=small, **world, **own))
    assert result.summary["global_accuracy"] > 60
    losses = [value for line in result.rounds for client in line["clients"] for value in client["losses"].values()]
    assert all(math.isfinite(loss) for loss in losses)


def test_local_epochs_train_longer(shallow):
    once, twice = (crad.run(change(shallow, method="local", rounds=1, local_epochs=n)) for n in (1, 2))
    assert once.rounds[0]["clients"][0]["losses"] != twice.rounds[0]["clients"][0]["losses"]


def test_tests_are_measured_only_when_asked_and_always_at_the_end(shallow):
    lines = crad.run(change(shallow, method="local", rounds=5, eval_every=2)).rounds
    assert [line["global_accuracy"] is not None for line in lines] == [False, True, False, True, True]
    assert all(line["validation_accuracy"] is not None for line in lines)


def test_private_counts_are_noised_once_and_never_redrawn(shallow):
    federation = start(change(shallow, private_counts=1.0))
    peers = federation.peers()
    true = [peer.evaluation.validation[0].counts for peer in peers]
    first = [peer.statistics().counts for peer in peers]
    federation.next_round()
    peers = federation.peers()
    assert first == [peer.statistics().counts for peer in peers]
    noise = np.array(first) - np.array(true)
    assert np.abs(noise).max() > 0.1
    assert np.array(first).min() >= 0
    assert [peer.statistics().accuracies for peer in peers] == [
        peer.evaluation.validation[0].class_accuracies for peer in peers
    ]


def test_private_counts_have_the_laplace_scale(tiny):
    context = build_run_context(change(tiny, private_counts=0.5))
    draws = [count_noise(context, index) for index in range(300)]
    # The mean absolute deviation of Laplace(1/epsilon) is 1/epsilon.
    assert np.abs(np.concatenate(draws)).mean() == pytest.approx(2.0, rel=0.15)


@pytest.fixture(scope="module")
def done(shallow):
    """The whole run, for what is only read."""
    return crad.run(shallow)


def test_private_counts_change_what_students_learn(shallow, done):
    private = crad.run(change(shallow, private_counts=0.2))
    assert done.rounds[-1]["clients"] != private.rounds[-1]["clients"]


def test_a_diverging_client_is_named_with_what_to_do(shallow):
    with pytest.raises(RunError, match=r"client \d .* diverged in round \d.*lower lr \(now 1e\+20\)"):
        crad.run(change(shallow, method="local", lr=1e20))


def test_records_are_enough_to_draw_every_curve(done):
    line = json.loads(json.dumps(done.rounds[-1]))
    client = line["clients"][1]
    assert sum(client["global"]["counts"]) == 80
    assert client["global_accuracy"] == pytest.approx(100 * sum(client["global"]["hits"]) / 80)
    assert set(client["trust"]) == {"0", "2", "3"}
    assert np.array(list(client["trust"].values())).sum(axis=0) == pytest.approx(1.0, abs=1e-3)
    assert line["global_accuracy"] == pytest.approx(np.mean([c["global_accuracy"] for c in line["clients"]]))


def test_a_teacher_that_gives_no_numbers_is_left_out_and_named(tiny, monkeypatch):
    """Finite weights can still make NaN: a negative running variance passes every check of the bytes."""
    federation = start(tiny)
    broken = federation.peer(2)
    with torch.no_grad():
        next(b for name, b in broken.model.named_buffers() if name.endswith("running_var")).fill_(-1.0)
    federation.put(broken)
    revalidate = Peer.revalidate
    monkeypatch.setattr(Peer, "revalidate", lambda self: None if self.index == 2 else revalidate(self))
    done = federation.next_round()
    for student in (0, 1, 3):
        assert done.learned[student].notes["refused"] == {"2": "peer 2 gives non-finite predictions"}
        assert set(done.learned[student].trust[2]) == {0.0}
        assert math.isfinite(done.learned[student].losses["total"])


def test_a_snapshot_that_is_refused_does_not_stop_the_others(shallow, monkeypatch):
    federation = start(shallow)
    honest = Peer.snapshot

    def early(self, round_index, **keywords):
        return honest(self, round_index + (self.index == 1), **keywords)

    monkeypatch.setattr(Peer, "snapshot", early)
    done = federation.next_round()
    assert "expected 'snapshot' of round 1" in done.learned[0].notes["refused"]["1"]
    assert set(done.learned[0].trust) == {2, 3}
    assert "refused" not in done.learned[1].notes


def test_a_model_that_breaks_in_its_last_step_is_named_too(shallow, monkeypatch):
    federation = start(change(shallow, method="local"))
    validate = Peer._validate

    def broken(self):
        if self.index == 1:
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("nan"))
        return validate(self)

    monkeypatch.setattr(Peer, "_validate", broken)
    with pytest.raises(RunError, match=r"client 1 .* diverged in round 1: its validation loss is nan"):
        federation.next_round()


def test_cross_entropies_are_published_only_for_the_rule_that_needs_them(shallow):
    """Exact ones would tell which classes a client lacks, whatever the noise on its counts."""
    for method, is_sent in (("crad", False), ("inverse-ce", True)):
        federation = start(change(shallow, method=method))
        publish = resolve_method(method).phases[0].publish
        assert publish is not None
        message = publish(federation.peer(0), RoundContext(1, TeacherCache(federation.context)))
        assert message is not None
        assert ("cross_entropies" in json.loads(message.manifest)["statistics"]) == is_sent


def test_a_class_without_samples_publishes_the_cross_entropy_of_a_guess():
    empty = ClassScore(counts=(0, 2), hits=(0, 1), cross_entropy_sums=(0.0, 3.0))
    assert empty.class_cross_entropies() == [pytest.approx(math.log(2)), 1.5]


def test_only_the_snapshots_of_this_round_are_held(shallow):
    federation = start(change(shallow, active=2, rounds=4))
    for done in federation.running:
        assert len(federation.engine.runner.teachers._decoded) == 2
        assert [path.name for path in federation.roster.folder.glob("messages-*")] == [f"messages-{done.index:05d}"]


def test_a_roster_member_may_own_no_data(tiny):
    context = build_run_context(tiny)
    peer = Peer(context, PeerSpec(4, clients=(), architecture=context.architecture_of(0)))
    peer.revalidate()
    peer.test()
    assert len(peer.train) == 0
    assert peer.evaluation.validation == ()


def test_statistics_are_measured_again_before_every_publishing(shallow):
    """Two phases: what the second publishes describes the model as the first left it."""
    seen = []

    def publish(peer, context):
        with repeatable(0, device="cpu"):
            fresh = peer._validate()
        seen.append(fresh == peer.evaluation)
        return peer.snapshot(context.round_index)

    phase = Phase("snapshot", learn=train_alone, publish=publish)
    Federation(change(shallow, rounds=1), Method("twice", (phase, replace(phase, kind="again")))).next_round()
    assert seen == [True] * 8


@pytest.mark.parametrize(("small", "published_mib"), [("cnn6", 190.9), ("cnn6-wide", 194.3)])
def test_snapshots_of_the_papers_pool_weigh_what_its_cost_table_says(small, published_mib):
    """Nine receivers times the mean snapshot of ten clients, in MiB: 194.3 in the paper, which fits cnn6-wide."""
    sizes = {}
    for name in ("resnet18", "resnet18-half", small):
        model = build_model(Architecture(name), num_classes=10, in_channels=3, image_size=(32, 32), seed=0)
        sizes[name] = len(pack(model.state_dict(), kind="snapshot", peer=0, round_index=1).body)
    pool = list(sizes.values())
    sent = sum(9 * pool[client % 3] for client in range(10)) / 10
    assert sent / 2**20 == pytest.approx(published_mib, abs=0.1)
