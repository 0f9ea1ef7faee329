"""What a client knows of a committee's members: what it counted on its own validation half, and what they publish.

Beyond the paper. A member's word is no proof: published counts are believed as far as the member's hits on the client's
samples bear them out, and never for more than a few times what members usually claim. Samples weigh as far as the
member tells the class from others there.

Shapes: K members, C classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from crad.aggregation.statistics import TeacherStats, separation
from crad.aggregation.verification import Tally, credibility, verify
from crad.config import EvidenceSource

CLAIM_LIMIT = 4.0  # times the median of all members' samples: no member is believed to hold more


def member_evidence(published: TeacherStats, *, said: Tally, heard: Tally, source: EvidenceSource) -> TeacherStats:
    """Return what is known of the members: the published figures, as far as the client's own counts bear them out.

    `said` was counted on what members say as they say it, which is what their published accuracies were measured on;
    `heard` on what the committee hears of them, with their class shares taken out or not. A member that is not believed
    is heard like a stranger: with as many samples as the best supplied of the believed, times its skill.
    """
    if source == "reported":
        return published
    believed_K = credibility(published, said)
    limited_K = believed_K * _claim_limits(published.counts_KC)
    known = verify(published, heard, source=source, believed_K=limited_K)
    largest = (published.counts_KC * limited_K.unsqueeze(1)).max()
    stranger_K = (1 - believed_K) * skill(said) * largest
    support_KC = known.speaking_KC + stranger_K.unsqueeze(1)
    return replace(
        known,
        support_KC=support_KC,
        effective_KC=support_KC * separation(known),
        cross_entropies_KC=_believed_cross_entropies(published, believed_K),
    )


def skill(tally: Tally) -> Tensor:
    """Return how far each member is above guessing on the client's samples, every class alike, 0 to 1, [K].

    Who always says the same class has none, and of a client with one class nothing can be said.
    """
    is_held_C = tally.samples_C > 0
    held = int(is_held_C.sum())
    if held < 2:
        return torch.zeros(len(tally.hits_KC), dtype=torch.float64)
    recall_K = (tally.hits_KC[:, is_held_C] / tally.samples_C[is_held_C]).mean(dim=1)
    return ((recall_K - 1 / held) / (1 - 1 / held)).clamp(min=0)


def _claim_limits(counts_KC: Tensor) -> Tensor:
    """Return by which factor each member's claims are cut down, [K]; nearly always 1."""
    total_K = counts_KC.sum(dim=1)
    return (CLAIM_LIMIT * total_K.median() / total_K.clamp(min=1e-12)).clamp(max=1)


def _believed_cross_entropies(published: TeacherStats, believed_K: Tensor) -> Tensor | None:
    """Return the published cross-entropies, moved to that of a blind guess as far as a member is not believed."""
    if published.cross_entropies_KC is None:
        return None
    guess, believed_K1 = math.log(published.counts_KC.shape[1]), believed_K.unsqueeze(1)
    return believed_K1 * published.cross_entropies_KC + (1 - believed_K1) * guess
