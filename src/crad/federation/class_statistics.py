"""What a peer says of itself per class beside its weights, and the noise on it where counts are private.

In private training `crad.privacy.accountant` accounts for it, and for the noise on gradients that
`crad.training.private_step` adds. The Laplace noise of `private_counts` alone is accounted for nowhere: it covers
counts and nothing else, which reports say (`crad.analysis.privacy_spent`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from crad.aggregation import TeacherStats
from crad.federation.context import RunContext
from crad.federation.message import Statistics
from crad.federation.peer_evaluation import ClassScore, Evaluation, PrivateReleases
from crad.privacy.accountant import statistics_every
from crad.randomness import stream

UNKNOWN_ACCURACY = 0.5  # of a class, before anything was released


def class_statistics(
    context: RunContext, peer: int, evaluation: Evaluation, *, with_cross_entropy: bool = False
) -> Statistics:
    """Return what a peer publishes of itself per class, from its validation half; counts noised if private."""
    scores = evaluation.seen_by_others
    own = scores[0] if len(scores) == 1 else sum_scores(scores, num_classes=context.data.num_classes)
    counts = private_counts(context, peer, own.counts)
    if context.privacy is not None:
        return context.adversary.published_statistics(peer, _private_statistics(counts, evaluation))
    measured = Statistics(
        counts=tuple(counts.tolist()),
        accuracies=own.class_accuracies,
        cross_entropies=tuple(own.class_cross_entropies()) if with_cross_entropy else None,
    )
    return context.adversary.published_statistics(peer, measured)


def release_hits(
    context: RunContext,
    peer: int,
    evaluation: Evaluation,
    *,
    steps: int,
    round_index: int | None,
    learned_from: tuple[str, ...] = (),
) -> Evaluation:
    """Return the evaluation after so many more private steps, with hits released if it is time; no round: never.

    What is noised is what the others see: the model as it is published, without its owner's prior. `learned_from` names
    what a member's model came from: what is learned otherwise after a restart gets other noise, and is spent as well.
    """
    plan, before = context.privacy, evaluation.private or PrivateReleases()
    assert plan is not None, "only private training takes private steps"
    every = statistics_every(context.experiment)
    is_due = round_index is not None and (not before.releases or round_index - before.released_in >= every)
    parts = tuple((name, steps, int(is_due)) for name in learned_from)
    now = replace(before, steps=before.steps + steps, parts=(*before.parts, *parts))
    if round_index is None or not is_due:
        return replace(evaluation, private=now)
    assert before.releases < plan.statistics_releases, "more releases than were accounted for"
    own = sum_scores(evaluation.seen_by_others, num_classes=context.data.num_classes)
    # A release of its own noise, named by the release: who repeats a round repeats it to the bit, and spends nothing.
    rng = stream(context.noise_seed, "peer", peer, "private-hits", before.releases, *learned_from)
    noised = np.asarray(own.hits) + plan.statistics_sigma * rng.standard_normal(len(own.hits))
    released = replace(now, releases=before.releases + 1, released_in=round_index, hits=tuple(noised.tolist()))
    return replace(evaluation, private=released)


def private_counts(context: RunContext, peer: int, counts: Sequence[float]) -> NDArray[np.float64]:
    """Return validation counts as a peer publishes them, in every round alike: noised if private, never below zero."""
    return np.maximum(0.0, np.asarray(counts, dtype=np.float64) + count_noise(context, peer))


def _private_statistics(counts: NDArray[np.float64], evaluation: Evaluation) -> Statistics:
    """Return accuracies that follow from noised hits and noised counts alone; before the first release, one half each.

    Nothing exact stands beside something noised.
    """
    released = evaluation.private
    if released is None or not released.releases:
        accuracies = np.full(len(counts), UNKNOWN_ACCURACY)
    else:
        accuracies = np.clip(np.asarray(released.hits) / np.maximum(counts, 1.0), 0.0, 1.0)
    return Statistics(counts=tuple(counts.tolist()), accuracies=tuple(accuracies.tolist()), cross_entropies=None)


def stack_statistics(statistics: Sequence[Statistics]) -> TeacherStats:
    """Return what teachers published, exactly as published; cross-entropies only where everybody sent them."""
    columns = [one.cross_entropies for one in statistics if one.cross_entropies is not None]
    is_complete = len(columns) == len(statistics)
    return TeacherStats(
        counts_KC=torch.tensor([one.counts for one in statistics], dtype=torch.float64),
        accuracies_KC=torch.tensor([one.accuracies for one in statistics], dtype=torch.float64),
        cross_entropies_KC=torch.tensor(columns, dtype=torch.float64) if is_complete else None,
    )


def count_noise(context: RunContext, peer: int) -> NDArray[np.float64]:
    """Draw once per client, class and run: counts do not change over the rounds, so neither may the noise."""
    epsilon, plan = context.experiment.private_counts, context.privacy
    if plan is not None:
        rng = stream(context.noise_seed, "peer", peer, "private-statistics", "counts")
        return plan.statistics_sigma * rng.standard_normal(context.data.num_classes)
    if epsilon is None:
        return np.zeros(context.data.num_classes)
    rng = stream(context.noise_seed, "peer", peer, "private-counts")
    return rng.laplace(scale=1 / epsilon, size=context.data.num_classes)


def sum_scores(scores: Sequence[ClassScore], *, num_classes: int) -> ClassScore:
    """Return several scores as one: counts, hits and losses of every class together."""
    classes = range(num_classes)
    return ClassScore(
        counts=tuple(sum(one.counts[c] for one in scores) for c in classes),
        hits=tuple(sum(one.hits[c] for one in scores) for c in classes),
        cross_entropy_sums=tuple(sum((one.cross_entropy_sums[c] for one in scores), 0.0) for c in classes),
    )
