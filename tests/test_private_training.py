"""Private training: clipping and noise against a slow reference, the account against published values, what is refused.

Shapes: B samples, C classes.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import crad
from crad.aggregation import TeacherJudge, TeacherStats, resolve_rule
from crad.aggregation.filters import median_filter
from crad.analysis.privacy_spent import privacy_rows
from crad.config import Experiment
from crad.data.agreed.own_data import OwnData, divide_by_records
from crad.data.partition import Shard, record_lots, split_by_lots
from crad.data.preprocessing import SampleSet, fit_preprocessor
from crad.errors import ConfigError, PartitionError
from crad.federation.class_statistics import class_statistics, release_hits
from crad.federation.context import build_run_context
from crad.federation.message import Statistics, pack, read_state
from crad.federation.method import RoundContext, one_peer_per_client
from crad.federation.peer import Peer
from crad.federation.peer_evaluation import ClassScore, PrivateReleases, evaluation_from_json, evaluation_to_json
from crad.federation.tasks import Task, TaskOutcome, TaskRunner
from crad.federation.teachers import TeacherCache
from crad.methods import resolve_method
from crad.methods.alone import train_alone
from crad.methods.distillation import make_target
from crad.models import ARCHITECTURES, Architecture, build_model
from crad.models.group_norm import SUFFIX
from crad.privacy.accountant import (
    PrivacyPlan,
    gaussian_epsilon,
    gaussian_sigma,
    noise_for,
    plan_of,
    statistics_releases,
    training_epsilon,
)
from crad.randomness import repeatable, stream
from crad.report.sections.privacy_table import privacy_tables
from crad.runs.run_records import RunRecords
from crad.runs.tracking.scalars import round_scalars, summary_scalars
from crad.training.epoch import Block, LossMeter
from crad.training.losses import BatchLabels, StudentLoss
from crad.training.private_step import (
    check_private,
    clipped_sums,
    poisson_blocks,
    standard_normal,
    train_privately_on_block,
    uniform,
)
from tests.conftest import change

PLAN = PrivacyPlan(
    epsilon=4.0,
    delta=1e-5,
    accountant="prv",
    noise_multiplier=1.5,
    max_grad_norm=0.5,
    sampling_rate=0.25,
    steps_per_round=4,
    statistics_releases=5,
    statistics_sigma=3.0,
)
NORMED = [name for name in ARCHITECTURES if name.endswith(SUFFIX) and f"mel-{name}" in ARCHITECTURES]


@pytest.fixture(scope="module")
def private(shallow):
    """Two architectures under privacy; the noise is said, so that nobody searches for it."""
    return change(shallow, private_training=8.0, delta=1e-3, noise_multiplier=1.0, sampling_rate=0.5, rounds=3)


# --- the account


def test_training_spends_what_was_published_for_it():
    """Opacus' PRV accountant, held against dp-accounting's PLD (3.98 for 80 steps) when these were written down."""
    after = {4: 0.93, 20: 1.95, 40: 2.77, 80: 3.99, 160: 5.86, 320: 8.73}
    for steps, epsilon in after.items():
        spent = training_epsilon(2.63, rate=0.25, steps=steps, delta=1e-5, accountant="prv")
        assert spent == pytest.approx(epsilon, abs=0.02)
    assert training_epsilon(2.63, rate=0.25, steps=80, delta=1e-5, accountant="rdp") == pytest.approx(4.35, abs=0.02)


def test_nothing_spent_without_a_step_and_no_end_without_noise():
    assert training_epsilon(1.0, rate=0.5, steps=0, delta=1e-5, accountant="prv") == 0.0
    assert training_epsilon(0.0, rate=0.5, steps=1, delta=1e-5, accountant="prv") == math.inf


def test_six_gaussian_releases_by_hand():
    # ln(1e5) = 11.513; rho at epsilon 4: (sqrt(15.513) - sqrt(11.513))^2 = 0.298; sqrt(6 / 0.596) = 3.17
    assert gaussian_sigma(4.0, releases=6, delta=1e-5) == pytest.approx(3.17, abs=0.01)
    assert gaussian_sigma(1.0, releases=6, delta=1e-5) == pytest.approx(12.0, abs=0.1)


@given(epsilon=st.floats(0.1, 20), releases=st.integers(1, 50), delta=st.floats(1e-9, 0.1))
def test_gaussian_releases_spend_what_they_were_made_for(epsilon, releases, delta):
    sigma = gaussian_sigma(epsilon, releases=releases, delta=delta)
    assert gaussian_epsilon(sigma, releases=releases, delta=delta) == pytest.approx(epsilon)
    assert gaussian_epsilon(sigma, releases=max(1, releases - 1), delta=delta) <= epsilon * (1 + 1e-9)


def test_the_noise_is_enough_and_hardly_more(tiny):
    experiment = change(tiny, private_training=4.0, rounds=20, sampling_rate=0.25, accountant="rdp")
    noise = noise_for(experiment)
    for factor, is_within in ((1.0, True), (0.99, False)):
        spent = training_epsilon(factor * noise, rate=0.25, steps=80, delta=1e-5, accountant="rdp")
        assert (spent <= 4.0) is is_within
    plan = plan_of(experiment)
    assert plan is not None
    assert plan.spent(steps=80, releases=plan.statistics_releases) <= 4.0
    assert plan.spent(steps=160, releases=plan.statistics_releases) > 4.0


def test_hits_are_released_five_times_unless_it_is_said(tiny):
    assert statistics_releases(change(tiny, private_training=1.0, rounds=20)) == 5
    assert statistics_releases(change(tiny, private_training=1.0, rounds=20, statistics_every=1)) == 20
    assert statistics_releases(change(tiny, private_training=1.0, rounds=3, statistics_every=10)) == 1


# --- the step


def network(seed: int = 1) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 3)
        )


def block_of(count: int) -> Block:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randn(count, 1, 8, 8, generator=generator)
    return Block(inputs, torch.randint(0, 3, (count,), generator=generator))


def loss_of(block: Block) -> StudentLoss:
    target_BC = torch.softmax(torch.randn(9, 3, generator=torch.Generator().manual_seed(9)), dim=1)[: len(block.labels)]
    prior_C = torch.tensor([0.5, 0.3, 0.2]).log()
    return StudentLoss(BatchLabels(block.labels), target_BC, 3.0, 0.7, log_prior_C=prior_C)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def slow_sums(model: nn.Module, block: Block, max_norm: float) -> dict[str, torch.Tensor]:
    """Every sample alone through plain autograd, clipped as a whole, added up."""
    sums = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for place in range(len(block.labels)):
        where = slice(place, place + 1)
        model.zero_grad()
        loss_of(block)(model(block.inputs[where]), where).total.backward()
        slopes = {name: gradient_of(one) for name, one in model.named_parameters()}
        norm = math.sqrt(sum(float(one.double().square().sum()) for one in slopes.values()))
        for name, slope in slopes.items():
            sums[name] += slope * min(1.0, max_norm / norm)
    model.zero_grad()
    return sums


@pytest.mark.parametrize("max_norm", [0.1, 3.0, 1e6])
def test_clipped_sums_are_those_of_one_sample_after_the_other(max_norm):
    model, block = network(), block_of(7)
    found = clipped_sums(model, block, loss_of=loss_of(block), max_norm=max_norm, meter=LossMeter())
    for name, expected in slow_sums(model, block, max_norm).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


def test_a_network_that_draws_has_the_gradient_of_its_own_draws():
    """Dropout: the slope at the logits and the gradient of the weights must be of the same thinned-out network."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3)).train()
    block, weight, bias = block_of(1), "2.weight", "2.bias"
    for _ in range(5):
        found = clipped_sums(model, block, loss_of=loss_of(block), max_norm=1e6, meter=LossMeter())
        is_kept = (found[weight] != 0).any(dim=0)
        assert 10 < int(is_kept.sum()) < 54
        logits_BC = model[2](2.0 * block.inputs.flatten(1) * is_kept)
        (slope_BC,) = torch.autograd.grad(loss_of(block)(logits_BC, slice(0, 1)).total, logits_BC)
        torch.testing.assert_close(found[bias], slope_BC[0])


def test_more_samples_than_fit_at_once_make_the_same_sums(monkeypatch):
    model, block, meter = network(), block_of(7), LossMeter()
    whole = clipped_sums(model, block, loss_of=loss_of(block), max_norm=0.5, meter=LossMeter())
    monkeypatch.setattr("crad.training.private_step.MOST_AT_ONCE", 2)
    parts = clipped_sums(model, block, loss_of=loss_of(block), max_norm=0.5, meter=meter)
    assert meter.samples == 7
    for name, expected in whole.items():
        torch.testing.assert_close(parts[name], expected, rtol=1e-4, atol=1e-6)


def test_one_record_moves_the_sum_by_no_more_than_the_norm():
    model, block = network(), block_of(6)
    strange = Block(
        torch.cat([block.inputs, 1e4 * torch.ones(1, 1, 8, 8)]), torch.cat([block.labels, block.labels[:1]])
    )
    without = clipped_sums(model, block, loss_of=loss_of(block), max_norm=0.5, meter=LossMeter())
    beside = clipped_sums(model, strange, loss_of=loss_of(strange), max_norm=0.5, meter=LossMeter())
    apart = math.sqrt(sum(float((beside[name] - one).square().sum()) for name, one in without.items()))
    assert 0.4 < apart <= 0.5 * (1 + 1e-4)


def test_a_sample_without_finite_gradient_counts_nothing():
    model, block = network(), block_of(4)
    inputs = block.inputs.clone()
    inputs[2] = float("nan")
    spoiled = Block(inputs, block.labels)
    kept = [0, 1, 3]
    without = Block(block.inputs[kept], block.labels[kept])
    loss = loss_of(block)
    found = clipped_sums(model, spoiled, loss_of=loss, max_norm=0.5, meter=LossMeter())
    rest = replace(loss, labels=loss.labels[torch.tensor(kept)], target_BC=loss.target_BC[kept])
    expected = clipped_sums(model, without, loss_of=rest, max_norm=0.5, meter=LossMeter())
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [5, 0])
def test_the_step_is_the_noised_sum_over_the_expected_size(count):
    model, block = network(), block_of(count)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    sums = clipped_sums(model, block, loss_of=loss_of(block), max_norm=0.5, meter=LossMeter())
    noise = torch.Generator().manual_seed(3)
    train_privately_on_block(
        model,
        torch.optim.SGD(model.parameters(), lr=2.0),
        block,
        loss_of=loss_of(block),
        plan=PLAN,
        expected_size=10.0,
        noise=torch.Generator().manual_seed(3),
        meter=LossMeter(),
    )
    for name, one in model.named_parameters():
        drawn = torch.randn(one.shape, generator=noise)
        torch.testing.assert_close(one.detach(), before[name] - 2.0 * (sums[name] + 1.5 * 0.5 * drawn) / 10.0)


def test_noise_has_the_deviation_that_was_accounted_for():
    model, block = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), block_of(0)
    optimizer, drawn = torch.optim.SGD(model.parameters(), lr=0.0), []
    for seed in range(40):
        train_privately_on_block(
            model,
            optimizer,
            block,
            loss_of=loss_of(block),
            plan=PLAN,
            expected_size=1.0,
            noise=torch.Generator().manual_seed(seed),
            meter=LossMeter(),
        )
        drawn += [gradient_of(one).flatten().clone() for one in model.parameters()]
    values = torch.cat(drawn)
    assert len(values) == 40 * 195
    assert float(values.std()) == pytest.approx(1.5 * 0.5, rel=0.03)
    assert abs(float(values.mean())) < 0.03


def test_batches_are_drawn_record_by_record():
    images = torch.arange(400, dtype=torch.uint8).repeat(1)[:256].reshape(256, 1, 1, 1).expand(256, 1, 8, 8)
    shard = SampleSet(images, torch.zeros(256, dtype=torch.int64))
    preprocessor = fit_preprocessor(images.numpy(), augmentation="none", device="cpu")
    plan = replace(PLAN, steps_per_round=200)

    def sizes(secret: int) -> list[int]:
        blocks = poisson_blocks(shard, preprocessor=preprocessor, plan=plan, secret=secret, purpose=("a",))
        return [len(block.labels) for block in blocks]

    drawn = sizes(1)
    assert np.mean(drawn) == pytest.approx(64, abs=2.0)
    assert np.var(drawn) == pytest.approx(256 * 0.25 * 0.75, rel=0.3), "batches of one size would have none"
    assert drawn == sizes(1)
    assert drawn != sizes(2), "the secret decides"
    blocks = list(poisson_blocks(shard, preprocessor=preprocessor, plan=plan, secret=1, purpose=("a",)))
    batches = [block.inputs[:, 0, 0, 0].tolist() for block in blocks]
    assert all(len(set(batch)) == len(batch) for batch in batches), "no record is in a batch twice"
    often = Counter(one for batch in batches for one in batch)
    assert len(often) == 256
    # Each is in a share of 0.25 of 200 batches: 50, with a deviation of 6.
    assert 20 < min(often.values()) <= max(often.values()) < 80


# --- networks


class Overflowing:
    """A teacher's place in the cache: no numbers on samples whose first pixel is high, a class by their number else."""

    def get(self, snapshot):
        def teacher(inputs):
            logits_BC = inputs.flatten(1)[:, : snapshot.classes] * (1 + snapshot.peer)
            logits_BC[inputs.flatten(1)[:, 0] > snapshot.highest] = torch.nan
            return logits_BC

        return teacher


@pytest.mark.parametrize("method", ["crad", "uniform"])
def test_no_record_decides_who_teaches_another_one(private, method):
    """A teacher may be made to overflow on a record that its maker looks for: the others' targets stay as they are."""
    context = build_run_context(change(private, method=method))
    peer = Peer(context, one_peer_per_client(context)[0])
    classes = context.data.num_classes
    inputs = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    inputs[:, 0, 0, 0] = torch.tensor([0.1, 0.2, 0.3, 0.4, 5.0, 9.0])
    figures = Statistics(counts=classes * (20.0,), accuracies=classes * (0.8,))
    snapshots: list[Any] = [
        SimpleNamespace(peer=1, classes=classes, statistics=figures, highest=4.0),
        SimpleNamespace(peer=2, classes=classes, statistics=figures, highest=8.0),
        SimpleNamespace(peer=3, classes=classes, statistics=figures, highest=8.0),
    ]
    stats = TeacherStats(torch.full((3, classes), 20.0), torch.full((3, classes), 0.8))

    def targets(count: int) -> torch.Tensor:
        judge = TeacherJudge.begin(resolve_rule(method), stats, filter_kind=None, source="reported")
        block, cache = Block(inputs[:count], torch.zeros(count, dtype=torch.int64)), cast(Any, Overflowing())
        found = make_target(peer, block, snapshots, cache, judge=judge, refused={})
        assert found is not None
        return found

    alone, whole = targets(4), targets(6)
    torch.testing.assert_close(whole[:4], alone)
    torch.testing.assert_close(whole[:5], targets(5))
    assert float(whole[4].sum()) == pytest.approx(1.0), "the two that give numbers there"
    assert float(whole[5].abs().sum()) == 0.0, "nobody does: nothing is asked for"


def test_a_members_noise_follows_more_than_32_bits(private, monkeypatch):
    """torch's generator looks at 32 bits of its seed, and an attacker who sees the weights can try them all."""
    first, second = (torch.Generator().manual_seed(seed) for seed in (5, 5 + (1 << 40)))
    assert torch.equal(torch.rand(9, generator=first), torch.rand(9, generator=second)), "if not, rejoice"
    context = build_run_context(private)
    monkeypatch.setattr("crad.randomness.torch_seed", lambda seed, *purpose: 7)  # the attacker has found the 32 bits

    def trained(secret: int) -> list[torch.Tensor]:
        peer = Peer(replace(context, secret=secret), one_peer_per_client(context)[0])
        peer.expected_batch = 10.0
        train_alone(peer, {}, RoundContext(1, TeacherCache(context)))
        return [one.detach() for one in peer.model.parameters()]

    pairs = zip(trained(1), trained(2), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_a_members_draws_have_the_rate_and_deviation_that_were_accounted_for():
    draws = stream(1 << 100, "a")
    assert float((uniform(40_000, draws) < 0.25).double().mean()) == pytest.approx(0.25, abs=0.01)
    normal = standard_normal(torch.Size((200, 200)), draws)
    assert float(normal.std()) == pytest.approx(1.0, abs=0.02)
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("name", NORMED)
def test_group_norm_keeps_the_weights_and_looks_at_one_sample_at_a_time(name):
    normed, usual = (
        build_model(Architecture(one, 0.125), num_classes=4, in_channels=1, image_size=(16, 16), seed=3)
        for one in (name, name.removesuffix(SUFFIX))
    )
    weights = dict(usual.named_parameters())
    assert all(torch.equal(one, weights[key]) for key, one in normed.named_parameters())
    check_private(normed, name=name)
    with pytest.raises(ConfigError, match=r"has BatchNorm2d, which mixes the records of a batch"):
        check_private(usual, name=name)
    images = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(normed.train()(images)[:2], normed(images[:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NORMED)
def test_every_family_has_gradients_by_sample(name):
    model = build_model(Architecture(name, 0.125), num_classes=3, in_channels=1, image_size=(8, 8), seed=3)
    block = block_of(3)
    found = clipped_sums(model, block, loss_of=loss_of(block), max_norm=0.5, meter=LossMeter())
    for key, expected in slow_sums(model, block, 0.5).items():
        torch.testing.assert_close(found[key], expected, rtol=1e-3, atol=1e-5)


# --- which half a record is in


@given(
    rows=st.lists(st.integers(0, 10**6), min_size=2, max_size=30, unique=True),
    new=st.integers(2 * 10**6, 3 * 10**6),
    secret=st.integers(0, 2**63),
)
def test_one_more_record_moves_no_other(rows, new, secret):
    def parts(values: list[int]) -> dict[int, int]:
        samples = np.array(values, dtype=np.float64)[:, None]
        lots = record_lots(samples, np.zeros(len(values), dtype=np.int64), secret=secret)
        return {value: int(lot * 10) for value, lot in zip(values, lots, strict=True)}

    before, after = parts(rows), parts([rows[0], new, *rows[1:]])
    assert {value: part for value, part in after.items() if value != new} == before


def test_lots_are_even_and_follow_the_secret():
    samples, labels = np.arange(4000)[:, None], np.zeros(4000, dtype=np.int64)
    lots = record_lots(samples, labels, secret=1)
    assert np.histogram(lots, bins=4, range=(0, 1))[0] == pytest.approx([1000] * 4, abs=120)
    assert not np.array_equal(lots, record_lots(samples, labels, secret=2))
    shard = split_by_lots(np.arange(4000), lots, held_out=0.2)
    assert [len(shard.train), len(shard.validation), len(shard.test)] == pytest.approx([3200, 400, 400], abs=80)
    with pytest.raises(PartitionError, match="decides by each record alone what is held out, and of 3 samples"):
        split_by_lots(np.arange(3), np.array([0.5, 0.6, 0.7]), held_out=0.2)


@pytest.mark.parametrize("given_parts", [1, 2, 3])
def test_a_member_keeps_the_parts_of_its_file(tiny, given_parts):
    data = build_run_context(tiny).data
    shard = Shard(np.arange(100), np.arange(100, 140), np.arange(140, 200))
    own = OwnData(data.dataset, shard, given_parts=given_parts)
    divided = divide_by_records(own, held_out=0.2, secret=7).shard
    assert sorted(divided.indices) == list(range(200))
    assert (divided is shard) is (given_parts == 3)
    assert np.array_equal(divided.test, shard.test) is (given_parts >= 2)


# --- what is published


def test_accuracies_follow_from_noised_figures_alone(private):
    context = build_run_context(private)
    peer = Peer(context, one_peer_per_client(context)[1])
    peer.revalidate()
    before = peer.statistics()
    exact = np.array(peer.evaluation.validation[0].counts)
    assert set(before.accuracies) == {0.5}, "nothing was released yet"
    assert not np.any(np.isin(before.counts, exact[exact > 0])), "counts are noised"
    assert peer.statistics() == before, "and noised once"
    peer.evaluation = release_hits(context, 1, peer.evaluation, steps=2, round_index=1)
    private_so_far = peer.evaluation.private
    assert private_so_far is not None
    assert (private_so_far.steps, private_so_far.releases, private_so_far.released_in) == (2, 1, 1)
    after = peer.statistics()
    assert after.counts == before.counts
    shares = np.clip(np.array(private_so_far.hits) / np.maximum(after.counts, 1.0), 0, 1)
    assert after.accuracies == tuple(shares.tolist())
    assert evaluation_from_json(evaluation_to_json(peer.evaluation)) == peer.evaluation


def released(context, evaluation, round_index=1) -> PrivateReleases:
    found = release_hits(context, 0, evaluation, steps=1, round_index=round_index).private
    assert found is not None
    return found


def test_a_changed_hit_reaches_what_is_published_through_the_release_alone(private):
    """The same noise, one hit more: the hits differ by that one, in its class, and nothing else does."""
    context = build_run_context(private)
    peer = Peer(context, one_peer_per_client(context)[0])
    peer.revalidate()
    [score] = peer.evaluation.validation
    label = int(np.argmax(score.counts))
    hits = list(score.hits)
    hits[label] += 1 if hits[label] < score.counts[label] else -1
    other = replace(peer.evaluation, validation=(replace(score, hits=tuple(hits)),))
    assert class_statistics(context, 0, other) == class_statistics(context, 0, peer.evaluation), "before a release"
    first, second = (released(context, one) for one in (peer.evaluation, other))
    apart = np.array(first.hits) - np.array(second.hits)
    assert np.abs(apart)[label] == pytest.approx(1.0)
    assert np.abs(np.delete(apart, label)).max() == 0.0


@given(data=st.data())
def test_whichever_hit_is_another_what_is_published_moves_by_it_in_its_class_alone(measured, data):
    """One validation record has another outcome, the noise is the same: all that leaves but that one hit is too."""
    context, evaluation = measured
    context = replace(context, secret=data.draw(st.integers(0, 2**63)))
    [score] = evaluation.validation
    hits = [data.draw(st.integers(0, count)) for count in score.counts]
    label = data.draw(st.sampled_from([one for one, count in enumerate(score.counts) if count]))
    changed = [*hits[:label], hits[label] + (1 if hits[label] < score.counts[label] else -1), *hits[label + 1 :]]
    outcomes = [replace(evaluation, validation=(replace(score, hits=tuple(one)),)) for one in (hits, changed)]
    assert class_statistics(context, 0, outcomes[0]) == class_statistics(context, 0, outcomes[1]), "before a release"
    releases = [released(context, one) for one in outcomes]
    apart = np.array(releases[0].hits) - np.array(releases[1].hits)
    assert np.abs(apart)[label] == pytest.approx(1.0)
    assert np.abs(np.delete(apart, label)).max() == 0.0
    assert replace(releases[0], hits=()) == replace(releases[1], hits=())
    first, second = (
        class_statistics(context, 0, replace(one, private=release))
        for one, release in zip(outcomes, releases, strict=True)
    )
    assert first.counts == second.counts
    differ = [one for one in range(len(hits)) if first.accuracies[one] != second.accuracies[one]]
    assert differ in ([], [label])


@pytest.fixture(scope="module")
def measured(private):
    """A context, and what a peer of it has measured."""
    context = build_run_context(private)
    peer = Peer(context, one_peer_per_client(context)[0])
    peer.revalidate()
    return context, peer.evaluation


def test_hits_are_released_as_often_as_was_accounted_for(private):
    experiment = change(private, rounds=7, statistics_every=3)
    context = build_run_context(experiment)
    peer = Peer(context, one_peer_per_client(context)[0])
    peer.revalidate()
    seen = []
    for round_index in range(1, 8):
        peer.evaluation = replace(peer.evaluation, private=released(context, peer.evaluation, round_index))
        seen.append(peer.evaluation.private.releases if peer.evaluation.private else 0)
    assert seen == [1, 1, 1, 2, 2, 2, 3]
    assert context.privacy is not None
    assert context.privacy.statistics_releases == 3


def learned(context, round_index=1, accuracy=0.5, method="crad") -> TaskOutcome:
    """One member's round after a message in which a teacher claims this accuracy."""
    peers = one_peer_per_client(context)
    runner, classes = TaskRunner(context, resolve_method(method)), context.data.num_classes
    statistics = Statistics(counts=(9.0,) * classes, accuracies=(accuracy,) * classes, cross_entropies=None)
    message = pack(
        Peer(context, peers[1]).model.state_dict(),
        kind="snapshot",
        peer=1,
        round_index=round_index,
        architecture=peers[1].architecture.id,
        statistics=statistics,
    )
    begun = runner.do(Task("begin", 0)).evaluation
    return runner.do(Task("learn", 0, begun, round_index=round_index, messages={1: message}, is_measured=True))


@pytest.mark.parametrize("method", ["crad", "uniform", "uncertainty"])
def test_a_changed_training_record_moves_what_is_published_as_if_it_were_alone(private, method):
    """The same member twice, one image inverted, the same noise: two clipped gradients differ, and nothing else.

    So the difference is that of a member who has this record alone: nothing in the step looks at several.
    """
    settings = change(private, method=method, local_loss="balanced", sampling_rate=1.0, lr=0.5, momentum=0.0, rounds=1)
    context = replace(build_run_context(settings), secret=5)
    record = context.data.shards[0].train[3]

    def difference(whole) -> dict[str, torch.Tensor]:
        images = whole.data.dataset.train_samples.copy()
        images[record] = 255 - images[record]
        dataset = replace(whole.data.dataset, train_samples=images)
        other = replace(whole, data=replace(whole.data, dataset=dataset))
        first, second = (weights_after(one, method) for one in (whole, other))
        return {name: second[name] - weight for name, weight in first.items()}

    shard = replace(context.data.shards[0], train=np.array([record]))
    by_itself = replace(context, data=replace(context.data, shards=(shard, *context.data.shards[1:])))
    among_others, alone = difference(context), difference(by_itself)
    for name, one in alone.items():
        torch.testing.assert_close(among_others[name], one, rtol=1e-3, atol=3e-6)
    apart = math.sqrt(sum(float(one.square().sum()) for one in alone.values()))
    expected = Peer(context, one_peer_per_client(context)[0]).expected_batch
    assert 1e-3 < apart <= settings.lr * 2 * settings.max_grad_norm / expected


def weights_after(context, method) -> dict[str, torch.Tensor]:
    content = learned(context, method=method).content
    assert content is not None
    state = read_state(content)
    return {name: one.clone() for name, one in state.items() if name.startswith("model.")}


def test_a_member_draws_noise_again_only_for_the_same(private):
    """Repeated after a crash a round is the same to the bit, or nothing of it is: neither mean nor difference helps."""
    context = replace(build_run_context(private), secret=5)
    first, again = learned(context), learned(context)
    assert first.content == again.content
    assert first.evaluation == again.evaluation
    for changed in (learned(context, accuracy=0.6), learned(context, round_index=2)):
        assert changed.content != first.content
        assert first.evaluation.private is not None
        assert changed.evaluation.private is not None
        noise = np.array(first.evaluation.private.hits) - sum_hits(first.evaluation)
        other_noise = np.array(changed.evaluation.private.hits) - sum_hits(changed.evaluation)
        assert np.abs(noise - other_noise).min() > 1e-6, "hits of another model with the same noise give both away"
        (one,), (other,) = first.evaluation.private.parts, changed.evaluation.private.parts
        assert one[1:] == other[1:] == (2, 1)
        assert one[0] != other[0]


def sum_hits(evaluation) -> np.ndarray:
    [score] = evaluation.validation if evaluation.plain is None else evaluation.plain
    return np.asarray(score.hits)


def test_torchs_own_draws_in_private_training_are_a_members_secret(private, monkeypatch):
    """Dropout is drawn for a batch in a row: one record more shifts everybody's, and the seed of the run is public."""
    seeds = []

    def noted(seed, *purpose, device):
        seeds.append(seed)
        return repeatable(seed, *purpose, device=device)

    monkeypatch.setattr("crad.federation.tasks.repeatable", noted)
    context = build_run_context(private)
    learned(replace(context, secret=5))
    assert set(seeds) == {5}
    seeds.clear()
    learned(replace(context, secret=5, experiment=change(private, private_training=None, noise_multiplier=None)))
    assert set(seeds) == {private.seed}


# --- whole runs


@pytest.fixture(scope="module")
def finished(private, tmp_path_factory):
    return crad.run(change(private, method="crad-plus", evidence="reported"), output=tmp_path_factory.mktemp("p") / "r")


def weights_of(result):
    return [{name: one.clone() for name, one in model.module.state_dict().items()} for model in result.models]


def test_a_run_says_what_was_spent(finished):
    privacy = finished.summary["privacy"]
    assert privacy["target_epsilon"] == 8.0
    last = finished.rounds[-1]["clients"]
    assert [client["privacy"]["epsilon"] for client in last] == privacy["epsilon_per_client"]
    expected = training_epsilon(1.0, rate=0.5, steps=6, delta=1e-3, accountant="prv")
    for client in last:
        assert client["privacy"]["training_epsilon"] == expected
        assert client["privacy"]["epsilon"] == max(expected, client["privacy"]["statistics_epsilon"])
        assert client["architecture"].partition("@")[0].endswith(SUFFIX), "chosen by itself"
    spent = [line["clients"][0]["privacy"]["training_epsilon"] for line in finished.rounds]
    assert spent == sorted(spent)
    assert spent[0] > 0


def test_page_table_and_tracking_say_what_was_spent(finished):
    records = RunRecords(finished.experiment, {}, finished.rounds, finished.summary, None)
    (table,) = privacy_tables([records])
    shown = dict(zip(table.header, table.rows[0], strict=True))
    spent = finished.rounds[-1]["clients"][0]["privacy"]
    assert shown["epsilon"] == f"{spent['epsilon']:.3f}"
    assert (shown["target"], shown["delta"], shown["steps"], shown["noise"]) == ("8", "0.001", "6", "1.000")
    page = (finished.directory / "report.html").read_text()
    assert f"Training was differentially private: epsilon {spent['epsilon']:.3g} spent at most, delta 0.001" in page
    assert "Privacy spent over rounds" in page
    scalars = round_scalars(finished.rounds[-1])
    assert scalars["client/0/privacy/epsilon"] == spent["epsilon"]
    assert summary_scalars(finished.summary)["summary/privacy/epsilon"] == spent["epsilon"]
    rows = privacy_rows({"crad-plus": [records]})
    curve = [row["epsilon"] for row in rows]
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert curve == sorted(curve)
    assert curve[-1] == spent["epsilon"]


def test_who_rests_has_spent_what_it_had():
    """A round lists those alone whose figures are new: the most that anybody spent never falls."""

    def line(index, spent):
        return {"round": index, "clients": [{"client": 0, "privacy": {"epsilon": spent}}]}

    run = RunRecords(Experiment(private_training=4.0), {}, [line(1, 2.0), line(2, 1.5)], {}, None)
    assert [row["epsilon"] for row in privacy_rows({"a": [run]})] == [2.0, 2.0]


def test_the_same_to_the_bit_in_workers(finished, private, forked_workers, tmp_path):
    again = crad.run(change(private, method="crad-plus", evidence="reported", workers=2, engine="processes"))
    for one, other in zip(weights_of(finished), weights_of(again), strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert [line["clients"] for line in again.rounds] == [line["clients"] for line in finished.rounds]


def test_the_same_to_the_bit_after_a_stop_and_nothing_spent_twice(finished, private, tmp_path):
    experiment, folder = change(private, method="crad-plus", evidence="reported"), tmp_path / "run"

    class Stop(crad.Callback):
        def on_round(self, record, *args, **kwargs):
            if record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crad.run(experiment, output=folder, callbacks=[Stop()])
    again = crad.run(experiment, output=folder, resume=True)
    assert [line["clients"] for line in again.rounds] == [line["clients"] for line in finished.rounds]
    for one, other in zip(weights_of(finished), weights_of(again), strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_wrong_hit_changes_no_weight_where_nobody_looks_at_statistics(private, monkeypatch):
    """One validation record's outcome changed, the same noise: `uniform` publishes the same weights to the bit."""
    experiment = change(private, method="uniform", rounds=2)
    plain = weights_of(crad.run(experiment))
    monkeypatch.setattr("crad.federation.peer_evaluation.ClassScore.__post_init__", _one_hit_less)
    for one, other in zip(plain, weights_of(crad.run(experiment)), strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def _one_hit_less(score):
    hits = list(score.hits)
    hits[0] = max(0, hits[0] - 1)
    object.__setattr__(score, "hits", tuple(hits))
    object.__setattr__(score, "accuracy", 100.0 * sum(hits) / max(1, sum(score.counts)))
    pairs = zip(hits, score.counts, strict=True)
    object.__setattr__(score, "class_accuracies", tuple(one / count if count else 0.0 for one, count in pairs))


def test_resolved_settings_say_the_noise(shallow, tmp_path):
    experiment = change(shallow, method="local", rounds=1, private_training=8.0, accountant="rdp", sampling_rate=0.5)
    crad.run(experiment, output=tmp_path / "run")
    text = (tmp_path / "run" / "experiment.toml").read_text()
    assert f"noise_multiplier = {noise_for(experiment)}" in text


def test_hardly_any_noise_is_counted_at_once():
    little = [training_epsilon(one, rate=0.25, steps=80, delta=1e-5, accountant="prv") for one in (0.3, 0.2, 0.05)]
    assert little == sorted(little)
    assert little[-1] > 10_000


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"method": "crad-plus"}, r"evidence = 'pooled' counts teachers' hits .*: set evidence = 'reported'"),
        ({"distill_augment": "mixup"}, r"mixes several records in one sample: set distill_augment = 'same'"),
        ({"private_counts": 1.0}, r"private training noises the counts itself"),
        ({"norm": "batch"}, r"norm = 'batch' mixes the records of a batch: set norm = 'group'"),
        ({"method": "dfml"}, r"'dfml' is not known to publish only what went through the noise: choose crad"),
        ({"method": "inverse-ce"}, r"'inverse-ce' is not known to publish only what"),
        ({"method": "experts", "teacher_prior": "keep", "local_loss": "plain"}, r"'experts' is not known to publish"),
        (
            {"private_training": None, "noise_multiplier": 1.0},
            r"noise_multiplier is for private training: set private_tr",
        ),
        ({"noise_multiplier": 0.5}, r"noise_multiplier = 0.5 spends epsilon \d+.* and private_training is 8: leave"),
        ({"noise_multiplier": 0.01}, r"noise_multiplier = 0.01 spends epsilon .* over all planned rounds"),
        ({"distill_augment": "strong"}, r"distill_augment = 'strong' is not built for it: set distill_augment"),
        ({"missing_weight": 2.0}, r"missing_weight = 2 weighs samples by exact counts of the training samples"),
        ({"missing_weight": 1.0}, r"missing_weight = 1 weighs samples by exact counts .*: leave missing_weight out"),
        ({"private_training": 0.0}, r"private_training = 0.0: input should be greater than 0"),
        ({"delta": 1.0}, r"delta = 1.0: input should be less than 1"),
    ],
)
def test_what_would_reach_around_the_noise_is_refused(private, settings, line):
    with pytest.raises(ConfigError, match=line):
        crad.run(change(private, **settings))


def test_a_delta_that_lets_a_record_be_published_whole_is_refused(private):
    with pytest.raises(ConfigError, match=r"delta = 0.2, and client 0 holds \d+ records: with that chance any of them"):
        crad.run(change(private, delta=0.2))


def test_private_counts_are_called_what_they_are(private, tmp_path):
    settings = {
        "private_training": None,
        "noise_multiplier": None,
        "private_counts": 1.0,
        "method": "local",
        "rounds": 1,
    }
    result = crad.run(change(private, **settings), output=tmp_path / "run")
    word = (
        "private_counts = 1 is the paper's Section 5: counts are noised, the accuracies beside them are exact and give"
    )
    assert [one for one in result.notices if one.startswith(word)]
    assert word in html.unescape((tmp_path / "run" / "report.html").read_text())


def test_networks_that_nobody_has_named_are_named(private):
    once = change(private, method="local", rounds=1)
    assert any("built with group norm in place of batch norm (" in one for one in crad.run(once).notices)
    assert build_run_context(change(once, norm="group")).word_about_norms is None
    assert build_run_context(change(once, private_training=None, noise_multiplier=None)).word_about_norms is None


def test_a_network_of_ones_own_that_mixes_records_is_refused(private):
    def build(num_classes, in_channels):
        return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes))

    with pytest.raises(ConfigError, match="has BatchNorm1d, which mixes the records of a batch"):
        crad.run(change(private, rounds=1), models=[build])


class Centred(nn.Module):
    """Takes a batch's mean off in training, without any layer that says so; or keeps what it saw of it."""

    def __init__(self, num_classes, in_channels, *, keeps=False):
        super().__init__()
        self.last, self.keeps = nn.Linear(64 * in_channels, num_classes), keeps
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, samples):
        if self.keeps and self.training:
            self.seen += samples.mean()
        rows = samples.flatten(1)
        return self.last(rows - rows.mean(dim=0) if self.training and not self.keeps else rows)


@pytest.mark.parametrize("build", [Centred, partial(Centred, keeps=True)], ids=["mixes", "keeps"])
def test_a_network_that_mixes_records_by_itself_is_refused(private, build):
    with pytest.raises(ConfigError, match="says other things of a sample in other company, or keeps what it saw"):
        crad.run(change(private, rounds=1), models=[lambda num_classes, in_channels: build(num_classes, in_channels)])


def test_a_rule_that_mixes_records_is_refused_and_another_of_ones_own_is_not(private):
    def by_batch(evidence, selection):
        return evidence.q_KBC.mean(dim=1, keepdim=True) ** 2

    mixing = crad.Rule(keep=median_filter, weigh=by_batch)
    with pytest.raises(ConfigError, match="combines a sample's teachers otherwise in other company"):
        crad.run(change(private, rounds=1), rule=mixing)
    surest = crad.Rule(keep=median_filter, weigh=lambda evidence, selection: evidence.q_KBC**2)
    assert crad.run(change(private, rounds=1), rule=surest).rounds


def test_a_network_with_dropout_trains_privately(private):
    def build(num_classes, in_channels):
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * in_channels, num_classes))

    assert crad.run(change(private, rounds=1), models=[build]).rounds


def test_a_record_with_an_infinite_loss_stops_nobody(private, monkeypatch):
    """Who ends its run is seen by all: neither a training nor a validation record may decide that."""
    context = build_run_context(private)
    peer = Peer(context, one_peer_per_client(context)[0])
    block, meter = block_of(3), LossMeter()
    block.inputs[1] = torch.inf
    clipped_sums(network(), block, loss_of=loss_of(block), max_norm=0.5, meter=meter)
    assert all(map(math.isfinite, meter.means().values()))

    def infinite(self) -> None:
        score = ClassScore((1,) * self.num_classes, (0,) * self.num_classes, (math.inf,) * self.num_classes)
        self.evaluation = replace(peer.evaluation, validation=(score,))

    monkeypatch.setattr(Peer, "revalidate", infinite)
    assert learned(context).evaluation.private is not None


def test_statistics_of_private_rows_are_not_published(tmp_path):
    """A table's first layer holds means and deviations of its owner's rows; under privacy it has the agreed ranges."""
    rng = np.random.default_rng(1)
    x = rng.normal(50.0, 9.0, size=(300, 2))
    lines = [f"{a:.2f},{b:.2f},{'high' if a > 50 else 'low'}" for a, b in x]
    (tmp_path / "rows.csv").write_text("\n".join(["age,dose,outcome", *lines]))
    rows = crad.Experiment(
        dataset=str(tmp_path / "rows.csv"),
        label="outcome",
        method="local",
        private_training=8.0,
        noise_multiplier=1.0,
        clients=2,
        rounds=1,
        workers=1,
        models=("mlp",),
        metrics=False,
    )
    with pytest.raises(ConfigError, match=r"deviations of own rows would travel .* set standardize = 'schema'"):
        crad.run(rows)
    agreed = crad.run(change(rows, standardize="schema", ranges="age=0:100,dose=0:100"))
    buffers = [dict(model.module.named_buffers()) for model in agreed.models]
    assert buffers[0].keys() == buffers[1].keys()
    assert all(torch.equal(one, buffers[1][name]) for name, one in buffers[0].items()), "the ranges', not the rows'"


def test_recordings_are_not_standardised_by_private_samples():
    rng = np.random.default_rng(2)
    x, y = rng.normal(3.0, 5.0, size=(120, 2, 32)).astype(np.float32), rng.integers(0, 2, 120)
    data = crad.Dataset.from_arrays(x[:90], y[:90], x[90:], y[90:], kind="series")
    experiment = crad.Experiment(
        method="local", private_training=8.0, noise_multiplier=1.0, clients=2, rounds=1, models=("cnn1d",), width=0.25
    )
    [first, _] = crad.run(change(experiment, metrics=False, committee=False), data=data).models
    buffers = dict(first.module.named_buffers())
    assert all(float(one.abs().max()) == 0.0 for name, one in buffers.items() if name.endswith("mean"))
    assert all(bool((one == 1.0).all()) for name, one in buffers.items() if name.endswith("scale"))
