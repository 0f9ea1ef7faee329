"""Who is kept, per sample and class. A filter takes the evidence and returns a `Selection`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from crad.aggregation.inputs import Evidence
from crad.aggregation.median import supported_median

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


def everybody(evidence: Evidence) -> Selection:
    """All peers, no filter. The band is the widest deviation, so that everybody lies inside."""
    q_KBC = evidence.q_KBC
    consensus_BC = q_KBC.mean(dim=0)
    return Selection(
        keep_KBC=torch.ones_like(q_KBC, dtype=torch.bool),
        supported_KC=torch.ones(q_KBC.shape[0], q_KBC.shape[2], dtype=torch.bool, device=q_KBC.device),
        consensus_BC=consensus_BC,
        band_BC=(q_KBC - consensus_BC).abs().amax(dim=0),
    )


def supported_and_agreeing(evidence: Evidence) -> Selection:
    """Teachers with enough samples of the class that deviate from the consensus by at most the median."""
    q_KBC = evidence.q_KBC
    supported_KC = (evidence.counts_KC >= evidence.min_support).to(q_KBC.device)
    supported_K1C = supported_KC.unsqueeze(1)

    # Eq. 4: the preliminary consensus over the supported teachers, and each one's deviation from it
    num_supported_C = supported_KC.sum(dim=0).clamp(min=1)
    consensus_BC = (q_KBC * supported_K1C.to(q_KBC.dtype)).sum(dim=0) / num_supported_C
    deviation_KBC = (q_KBC - consensus_BC).abs_()

    # Eq. 5: tau is the median deviation of the supported. The lower median of an even count keeps the same
    # half as the averaged one, and is one of the deviations itself.
    band_BC = supported_median(deviation_KBC, supported_KC)
    keep_KBC = (deviation_KBC <= band_BC + TIE_TOLERANCE).logical_and_(supported_K1C)
    return Selection(keep_KBC, supported_KC, consensus_BC, band_BC)
