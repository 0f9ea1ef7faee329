"""Believing: how much each member of a committee weighs with a client, by its own counts and by what they publish.

Beyond the paper. Counting is `member_tally.py`. A member's word is no proof: published counts are believed as far as
the member's hits on the client's samples bear them out, and never for more than members usually claim. Samples weigh
as far as the member tells the class from others there, and leaves it unsaid where it is not.

Shapes: K members, C classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from crad.aggregation.statistics import TeacherStats, alarm_rate, separation
from crad.aggregation.verification import Tally, credibility, usual_claims, verify
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
    claimed_KC = published.counts_KC * (believed_K * _claim_limits(published.counts_KC)).unsqueeze(1)
    known = verify(published, heard, source=source, claimed_KC=claimed_KC)
    stranger_K = (1 - believed_K) * skill(said) * usual_claims(claimed_KC).max()
    support_KC = known.speaking_KC + stranger_K.unsqueeze(1)
    return replace(
        known,
        support_KC=support_KC,
        effective_KC=support_KC * separation(known) * restraint(known),
        cross_entropies_KC=_believed_cross_entropies(published, believed_K),
    )


def restraint(known: TeacherStats) -> Tensor:
    """Return (1 - f)^2 of each member's false-alarm rate f, [K,C]: what it says where it is wrong is heard as well.

    Separation alone lets a member that says a class for half of all samples weigh half as much as one that never does.
    """
    assert known.others_KC is not None, "counted by the client itself"
    assert known.false_alarms_KC is not None, "counted by the client itself"
    return (1 - alarm_rate(known.others_KC, known.false_alarms_KC)) ** 2


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
