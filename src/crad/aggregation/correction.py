"""How a teacher's word is corrected before it is filtered and weighed: its own class shares divided out.

Beyond the paper. A teacher trained on a skewed shard says p(c|x) under its own prior pi(c); the counts that it
publishes tell pi. Logits minus log pi before the softmax at temperature T are the same as q pi^(-1/T), brought back to
the simplex, so the correction needs no logits and costs no byte.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from crad.aggregation.evidence import HALF, Evidence, check_setting
from crad.config import TeacherPrior
from crad.errors import unknown_name

IMAGINED_SAMPLES = 0.5  # of every class: a class without samples has a small share, not none
LARGEST_RATIO = 1000.0  # between two shares that are believed where claims are not: 500 samples against none


def correct(
    evidence: Evidence, *, teacher_prior: TeacherPrior, temperature: float, published_KC: Tensor | None = None
) -> Evidence:
    """Return the evidence with the teachers' predictions as they shall be heard.

    `temperature` is the one at which they were softened. The shares are those of the counts that the teachers
    published; where the evidence has others, which the student counted, say the published ones.
    """
    if teacher_prior not in get_args(TeacherPrior):
        raise unknown_name("value of 'teacher_prior'", teacher_prior, get_args(TeacherPrior))
    check_setting("temperature", temperature, lowest=0, is_open=True)
    if teacher_prior == "keep":
        return evidence
    counts_KC = evidence.counts_KC if published_KC is None else published_KC
    return replace(evidence, q_KBC=remove_prior(evidence.q_KBC, counts_KC, temperature=temperature))


def remove_prior(q_KBC: Tensor, counts_KC: Tensor, *, temperature: float, is_bounded: bool = False) -> Tensor:
    """Return every teacher's prediction at this temperature without its own class shares: q share^(-1/T), normalised.

    In logarithms, so that nothing overflows; an exact zero stays one. Teachers with equal shares keep their word.
    `is_bounded`: shares differ by no more than a factor of 1000, whatever was claimed.
    """
    q_KBC = q_KBC.float() if q_KBC.dtype in HALF else q_KBC
    shares_KC = bounded_log_shares_of(counts_KC) if is_bounded else log_shares_of(counts_KC)
    boost_K1C = (-shares_KC / temperature).unsqueeze(1)
    return torch.softmax(q_KBC.log() + boost_K1C.to(q_KBC), dim=2)


def log_shares_of(counts_KC: Tensor) -> Tensor:
    """Return the logarithm of every class's share of a teacher's samples, [K,C], with half a sample more of each.

    Noise can bring a published count below zero: it counts as none. Who publishes nothing but zeros has equal shares.
    """
    smoothed_KC = counts_KC.double().clamp(min=0) + IMAGINED_SAMPLES
    return smoothed_KC.log() - smoothed_KC.sum(dim=-1, keepdim=True).log()


def bounded_log_shares_of(counts_KC: Tensor) -> Tensor:
    """Return the same, with no share further below the teacher's largest than claims are believed.

    A claim of a billion samples of one class would otherwise multiply what the teacher says of all others.
    """
    shares_KC = log_shares_of(counts_KC)
    return torch.maximum(shares_KC, shares_KC.amax(dim=-1, keepdim=True) - math.log(LARGEST_RATIO))
