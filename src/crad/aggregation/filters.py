"""Who is kept, per sample and class. A filter takes the evidence and returns a `Selection`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from crad.aggregation.evidence import Evidence
from crad.aggregation.median import supported_median
from crad.aggregation.statistics import accuracy_variance, reliability
from crad.config import FilterKind

TIE_TOLERANCE = 1e-7  # two teachers deviate equally from their mean; rounding must not drop one


@dataclass(frozen=True)
class Selection:
    """Which teachers may speak, and the consensus and acceptance band that decided it.

    A class that nobody supports has no consensus of its own: 0, with an infinite band, and nobody is kept.
    """

    keep_KBC: Tensor
    supported_KC: Tensor
    consensus_BC: Tensor
    band_BC: Tensor


def keep_all(evidence: Evidence) -> Selection:
    """Keep all peers. The band is the widest deviation, so that everybody lies inside."""
    q_KBC = evidence.q_KBC
    consensus_BC = q_KBC.mean(dim=0)
    return Selection(
        keep_KBC=torch.ones_like(q_KBC, dtype=torch.bool),
        supported_KC=torch.ones(q_KBC.shape[0], q_KBC.shape[2], dtype=torch.bool, device=q_KBC.device),
        consensus_BC=consensus_BC,
        band_BC=(q_KBC - consensus_BC).abs().amax(dim=0),
    )


def median_filter(evidence: Evidence) -> Selection:
    """Keep teachers with enough samples of the class that deviate from the consensus by at most the median."""
    supported_KC = evidence.supported_KC

    # Eq. 4: the preliminary consensus over the supported teachers, and each one's deviation from it
    consensus_BC, deviation_KBC = _deviations(evidence, supported_KC)

    # Eq. 5: tau is the median deviation of the supported. The lower median of an even count keeps the same
    # half as the averaged one, and is one of the deviations itself.
    band_BC = supported_median(deviation_KBC, supported_KC)
    return Selection(_up_to(band_BC, deviation_KBC, supported_KC), supported_KC, consensus_BC, band_BC)


def support_filter(evidence: Evidence) -> Selection:
    """Keep everybody with enough samples of the class, whatever they say."""
    consensus_BC, deviation_KBC = _deviations(evidence, evidence.supported_KC)
    return _kept_within(evidence, consensus_BC, deviation_KBC, torch.full_like(consensus_BC, torch.inf))


def supported_and_self_scaled(evidence: Evidence) -> Selection:
    """Keep as published, with every deviation times the teacher's own standard deviation: evidence buys room.

    Only the proportions of the deviations matter; the largest is one, so that the tolerance keeps its size.
    """
    supported_KC = evidence.supported_KC
    consensus_BC, deviation_KBC = _deviations(evidence, supported_KC)
    sigma_KC = accuracy_variance(evidence.counts_KC, evidence.accuracies_KC).sqrt() * supported_KC.cpu()
    sigma_KC = sigma_KC / sigma_KC.amax(dim=0).clamp(min=1e-30)
    scaled_KBC = deviation_KBC * sigma_KC.unsqueeze(1).to(deviation_KBC)
    return _kept_within(
        evidence, consensus_BC, deviation_KBC, supported_median(scaled_KBC, supported_KC), judged_KBC=scaled_KBC
    )


def supported_near_weighted_consensus(evidence: Evidence) -> Selection:
    """Keep as published, around a consensus in which everybody counts with its precision."""
    supported_KC = evidence.supported_KC
    consensus_BC, deviation_KBC = _deviations(evidence, _votes(evidence))
    return _kept_within(evidence, consensus_BC, deviation_KBC, supported_median(deviation_KBC, supported_KC))


def supported_within_weighted_median(evidence: Evidence) -> Selection:
    """Keep as published, with a band that holds half of the precision, not half of the teachers."""
    consensus_BC, deviation_KBC = _deviations(evidence, evidence.supported_KC)
    return _kept_within(evidence, consensus_BC, deviation_KBC, weighted_median(deviation_KBC, _votes(evidence)))


def supported_and_weighted(evidence: Evidence) -> Selection:
    """Keep as published, with consensus and band both by precision."""
    votes_KC = _votes(evidence)
    consensus_BC, deviation_KBC = _deviations(evidence, votes_KC)
    return _kept_within(evidence, consensus_BC, deviation_KBC, weighted_median(deviation_KBC, votes_KC))


FILTERS: dict[FilterKind, Callable[[Evidence], Selection]] = {
    "median": median_filter,
    "support": support_filter,
    "self-scaled": supported_and_self_scaled,
    "weighted-consensus": supported_near_weighted_consensus,
    "weighted-median": supported_within_weighted_median,
    "weighted": supported_and_weighted,
}


def weighted_median(value_KBC: Tensor, weight_KC: Tensor) -> Tensor:
    """Return the least value at which the teachers up to it hold half of the weight, [B,C].

    Infinite where nobody has any.
    """
    sorted_KBC, order_KBC = value_KBC.sort(dim=0, stable=True)
    weight_KBC = weight_KC.unsqueeze(1).to(value_KBC).expand_as(value_KBC).gather(0, order_KBC)
    reached_KBC = weight_KBC.cumsum(dim=0)
    is_half_KBC = (reached_KBC >= reached_KBC[-1] / 2) & (weight_KBC > 0)
    return torch.where(is_half_KBC, sorted_KBC, torch.inf).amin(dim=0)


def _votes(evidence: Evidence) -> Tensor:
    """Return the precision of the supported, [K,C]; where all have none, each counts one."""
    supported_KC = evidence.supported_KC.cpu()
    votes_KC = reliability(evidence.stats, epsilon=evidence.epsilon) * supported_KC
    return torch.where(votes_KC.sum(dim=0) > 0, votes_KC, supported_KC.to(votes_KC))


def _deviations(evidence: Evidence, votes_KC: Tensor) -> tuple[Tensor, Tensor]:
    """Return the consensus under these votes, and everybody's distance from it. Eq. 4 with votes."""
    q_KBC = evidence.q_KBC
    votes_K1C = votes_KC.unsqueeze(1).to(q_KBC)
    total_C = votes_K1C.sum(dim=0)
    consensus_BC = (q_KBC * votes_K1C).sum(dim=0) / torch.where(total_C > 0, total_C, 1)
    return consensus_BC, (q_KBC - consensus_BC).abs_()


def _kept_within(
    evidence: Evidence,
    consensus_BC: Tensor,
    deviation_KBC: Tensor,
    limit_BC: Tensor,
    *,
    judged_KBC: Tensor | None = None,
) -> Selection:
    """Keep the supported up to a limit; the band that is shown reaches as far as the furthest of them."""
    keep_KBC = _up_to(limit_BC, deviation_KBC if judged_KBC is None else judged_KBC, evidence.supported_KC)
    reach_BC = torch.where(keep_KBC, deviation_KBC, -torch.inf).amax(dim=0)
    band_BC = torch.where(reach_BC >= 0, reach_BC, torch.inf)
    return Selection(keep_KBC, evidence.supported_KC, consensus_BC, band_BC)


def _up_to(limit_BC: Tensor, value_KBC: Tensor, supported_KC: Tensor) -> Tensor:
    """Return which of the supported have a value up to a limit; one that rounding put just above it has."""
    return (value_KBC <= limit_BC + TIE_TOLERANCE).logical_and_(supported_KC.unsqueeze(1))
