"""What a peer says of itself per class beside its weights, and the noise on it where counts are private."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from crad.aggregation import TeacherStats
from crad.federation.context import RunContext
from crad.federation.message import Statistics
from crad.federation.peer_evaluation import Evaluation
from crad.randomness import stream
from crad.training.evaluation import ClassScore


def class_statistics(
    context: RunContext, peer: int, evaluation: Evaluation, *, with_cross_entropy: bool = False
) -> Statistics:
    """Return what a peer publishes of itself per class, from its validation half; counts noised if private."""
    # Others run the model without its owner's prior, so that is what is measured for them.
    scores = evaluation.validation if evaluation.plain is None else evaluation.plain
    own = scores[0] if len(scores) == 1 else sum_scores(scores, num_classes=context.data.num_classes)
    counts = np.maximum(0.0, np.asarray(own.counts, dtype=np.float64) + count_noise(context, peer))
    measured = Statistics(
        counts=tuple(counts.tolist()),
        accuracies=own.class_accuracies,
        cross_entropies=tuple(own.class_cross_entropies()) if with_cross_entropy else None,
    )
    return context.adversary.published_statistics(peer, measured)


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
    epsilon = context.experiment.private_counts
    if epsilon is None:
        return np.zeros(context.data.num_classes)
    # Between organisations the seed is known to all, and noise that anybody can draw again hides nothing.
    seed = context.experiment.seed if context.secret is None else context.secret
    rng = stream(seed, "peer", peer, "private-counts")
    return rng.laplace(scale=1 / epsilon, size=context.data.num_classes)


def sum_scores(scores: Sequence[ClassScore], *, num_classes: int) -> ClassScore:
    """Return several scores as one: counts, hits and losses of every class together."""
    classes = range(num_classes)
    return ClassScore(
        counts=tuple(sum(one.counts[c] for one in scores) for c in classes),
        hits=tuple(sum(one.hits[c] for one in scores) for c in classes),
        cross_entropy_sums=tuple(sum((one.cross_entropy_sums[c] for one in scores), 0.0) for c in classes),
    )
