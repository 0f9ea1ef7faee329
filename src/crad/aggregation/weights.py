"""How the kept are weighed. A weight function returns something that broadcasts to [K,B,C]; it need not be
normalised, and what it gives to teachers that were dropped is ignored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crad.aggregation.evidence import Evidence
from crad.aggregation.filters import Selection
from crad.aggregation.statistics import accuracy_variance, reliability, smoothed_accuracy
from crad.errors import AggregationError


def precision(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the inverse variance of the class accuracy. Eq. 7."""
    return _per_class(reliability(evidence.stats, epsilon=evidence.epsilon), evidence)


def equal(evidence: Evidence, selection: Selection) -> Tensor:
    """Weigh everybody alike. Eq. 3 when nobody is filtered."""
    return torch.ones_like(evidence.q_KBC[:, :1, :1])


def negative_entropy(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the softmax over the teachers of minus the entropy (nats) of each one's prediction, per sample."""
    entropy_KB = -torch.xlogy(evidence.q_KBC, evidence.q_KBC).sum(dim=2)
    return torch.softmax(-entropy_KB, dim=0).unsqueeze(2)


def inverse_sigma(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the inverse standard deviation of the class accuracy."""
    return _per_class(1 / (_variance(evidence).sqrt() + evidence.epsilon), evidence)


def accuracy(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the class accuracy as published."""
    return _per_class(evidence.accuracies_KC, evidence)


def support(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the number of validation samples of the class; of a committee's member those that weigh for it."""
    return _per_class(evidence.stats.weighing_KC, evidence)


def softmax_variance(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the softmax of minus the variance over the kept teachers; dropped ones do not enter the sum."""
    variance_K1C = _per_class(_variance(evidence), evidence)
    score_KBC = (-variance_K1C).expand_as(evidence.q_KBC).masked_fill(~selection.keep_KBC, -torch.inf)
    return torch.softmax(score_KBC, dim=0).nan_to_num(nan=0.0)  # nan: nobody kept


def lower_confidence_bound(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the smoothed accuracy minus one standard deviation, not below zero."""
    smoothed_KC = smoothed_accuracy(evidence.counts_KC, evidence.accuracies_KC)
    return _per_class((smoothed_KC - _variance(evidence).sqrt()).clamp(min=0), evidence)


def inverse_cross_entropy(evidence: Evidence, selection: Selection) -> Tensor:
    """Return the inverse of the teacher's own mean cross-entropy on its validation samples of the class."""
    cross_entropies_KC = evidence.stats.cross_entropies_KC
    if cross_entropies_KC is None:
        raise AggregationError("rule 'inverse-ce' needs cross_entropy [K,C], a third published statistic")
    return _per_class(1 / (cross_entropies_KC + evidence.epsilon), evidence)


def _variance(evidence: Evidence) -> Tensor:
    return accuracy_variance(evidence.counts_KC, evidence.accuracies_KC)


def _per_class(weight_KC: Tensor, evidence: Evidence) -> Tensor:
    return weight_KC.unsqueeze(1).to(evidence.q_KBC)
