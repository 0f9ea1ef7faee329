"""The one combiner behind every rule (Eq. 8), and the explanation of what it did.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crad.aggregation.correction import correct
from crad.aggregation.evidence import Evidence, check_evidence
from crad.aggregation.filters import Selection, keep_all
from crad.aggregation.rules import Rule, resolve_rule
from crad.aggregation.statistics import TeacherStats
from crad.config import TeacherPrior, Unsupported
from crad.errors import unknown_name


@dataclass(frozen=True)
class Trace:
    """How one target came about, for every teacher, sample and class.

    Example:
        >>> import crad, torch
        >>> q = torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.1, 0.9]]])  # three teachers, one sample, two classes
        >>> crad.explain(q, torch.full((3, 2), 50), torch.full((3, 2), 0.8)).state[:, 0, 0].tolist()
        ['kept', 'kept', 'outlier']
    """

    state: NDArray[np.str_]  # [K,B,C] of "kept", "unsupported", "outlier"
    weight: Tensor  # [K,B,C], normalised per class over the teachers
    consensus: Tensor  # [B,C]
    band: Tensor  # [B,C], tau: a teacher further than this from the consensus is an outlier
    target: Tensor  # [B,C]
    corrected: Tensor  # [K,B,C], what was filtered and weighed: q itself unless the teachers' priors were removed


@dataclass(frozen=True)
class Combination:
    """What the combiner made: the target, who had which share of the say, and the selection behind it."""

    target_BC: Tensor
    weight_KBC: Tensor  # not normalised, zero for whoever was not heard
    selection: Selection

    @property
    def share_KBC(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return the weights as shares of one over the teachers; zero throughout where nobody was heard."""
        total_BC = self.weight_KBC.sum(dim=0)
        return self.weight_KBC / torch.where(total_BC > 0, total_BC, 1)


def aggregate(
    q: Tensor,
    counts: Tensor,
    accuracies: Tensor,
    rule: str | Rule = "crad",
    *,
    min_support: float = 2,
    epsilon: float = 1e-8,
    unsupported: Unsupported = "consensus",
    cross_entropy: Tensor | None = None,
    support: Tensor | None = None,
    false_alarms: Tensor | None = None,
    others: Tensor | None = None,
    teacher_prior: TeacherPrior = "keep",
    temperature: float = 1.0,
) -> Tensor:
    """Combine the teachers' soft predictions q [K,B,C] into one target [B,C] with rows on the simplex.

    `support`, `false_alarms` and `others` [K,C] are what a student counted itself; see docs/methods/crad-plus.md.
    `teacher_prior="remove"` divides each teacher's class shares, by its counts, out of what it says at `temperature`
    before it is filtered and weighed; see docs/methods/teacher-prior.md.

    Example:
        >>> import crad, torch
        >>> q = torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.1, 0.9]]])  # three teachers, one sample, two classes
        >>> crad.aggregate(q, torch.full((3, 2), 50), torch.full((3, 2), 0.8)).round(decimals=2).tolist()
        [[0.8500000238418579, 0.15000000596046448]]
    """
    with torch.inference_mode():  # nothing is differentiated: a seventh of the time is saved
        stats = TeacherStats(counts, accuracies, cross_entropy, support, false_alarms, others)
        evidence = check_evidence(q, stats, min_support=min_support, epsilon=epsilon)
        evidence = correct(evidence, teacher_prior=teacher_prior, temperature=temperature)
        target_BC = combine(evidence, rule, unsupported=unsupported).target_BC.to(q.dtype)
    return target_BC.clone()  # an ordinary tensor, which a loss may look at


def explain(
    q: Tensor,
    counts: Tensor,
    accuracies: Tensor,
    rule: str | Rule = "crad",
    *,
    min_support: float = 2,
    epsilon: float = 1e-8,
    unsupported: Unsupported = "consensus",
    cross_entropy: Tensor | None = None,
    support: Tensor | None = None,
    false_alarms: Tensor | None = None,
    others: Tensor | None = None,
    teacher_prior: TeacherPrior = "keep",
    temperature: float = 1.0,
) -> Trace:
    """Combine as `aggregate` does, and return who was kept, dropped and trusted at every step.

    Example:
        >>> import crad, torch
        >>> q = torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.1, 0.9]]])  # three teachers, one sample, two classes
        >>> crad.explain(q, torch.full((3, 2), 50), torch.full((3, 2), 0.8)).weight[:, 0, 0].tolist()
        [0.5, 0.5, 0.0]
    """
    stats = TeacherStats(counts, accuracies, cross_entropy, support, false_alarms, others)
    evidence = check_evidence(q, stats, min_support=min_support, epsilon=epsilon)
    evidence = correct(evidence, teacher_prior=teacher_prior, temperature=temperature)
    return trace(evidence, rule, unsupported=unsupported)


def trace(evidence: Evidence, rule: str | Rule, *, unsupported: Unsupported) -> Trace:
    """Combine, and return every step of it; the evidence is corrected already, where it shall be."""
    made = combine(evidence, rule, unsupported=unsupported)
    keep_KBC = made.selection.keep_KBC.cpu().numpy()
    supported_K1C = made.selection.supported_KC.unsqueeze(1).cpu().numpy()
    state = np.where(keep_KBC, "kept", np.where(supported_K1C, "outlier", "unsupported"))
    # A class that nobody supports is shown with everybody's mean and spread.
    is_orphan_C = ~made.selection.supported_KC.any(dim=0)
    shown = keep_all(evidence)
    consensus_BC = torch.where(is_orphan_C, shown.consensus_BC, made.selection.consensus_BC)
    band_BC = torch.where(is_orphan_C, shown.band_BC, made.selection.band_BC)
    return Trace(state, made.share_KBC, consensus_BC, band_BC, made.target_BC, corrected=evidence.q_KBC)


def combine(evidence: Evidence, rule: str | Rule, *, unsupported: Unsupported) -> Combination:
    """Keep, weigh, average per class and return to the simplex."""
    if unsupported not in get_args(Unsupported):
        raise unknown_name("value of 'unsupported'", unsupported, get_args(Unsupported))
    chosen = resolve_rule(rule)
    q_KBC = evidence.q_KBC
    selection = chosen.keep(evidence)
    weight_KBC, total_BC = _kept_weights(chosen, evidence, selection)

    # Eq. 8, left: the weighted average per class
    value_BC = (weight_KBC * q_KBC).sum(dim=0) / (total_BC + evidence.epsilon)

    is_orphan_BC = total_BC == 0
    if unsupported == "consensus" and not _is_certain(~is_orphan_BC):
        # Nobody may speak for the class: the plain mean of all peers, or its mass would be lost.
        value_BC = torch.where(is_orphan_BC, q_KBC.mean(dim=0), value_BC)
        weight_KBC += is_orphan_BC.to(weight_KBC.dtype)

    # Eq. 8, right: back to the simplex. A row without any mass has no literal answer; it gets the plain mean.
    mass_B1 = value_BC.sum(dim=1, keepdim=True)
    has_mass_B1 = mass_B1 > 0
    if _is_certain(has_mass_B1):
        return Combination(value_BC / mass_B1, weight_KBC, selection)
    target_BC = torch.where(has_mass_B1, value_BC / torch.where(has_mass_B1, mass_B1, 1), q_KBC.mean(dim=0))
    return Combination(target_BC, weight_KBC, selection)


def _kept_weights(rule: Rule, evidence: Evidence, selection: Selection) -> tuple[Tensor, Tensor]:
    """Return the weights of the kept and their sum over the teachers, which is zero only where nobody is kept."""
    keep_KBC, given_KBC = selection.keep_KBC, rule.weigh(evidence, selection)
    if _is_certain((given_KBC > 0) & (given_KBC < torch.inf)):
        weight_KBC = keep_KBC.to(given_KBC.dtype).mul_(given_KBC)  # several times faster than torch.where
        return weight_KBC, weight_KBC.sum(dim=0)
    weight_KBC = torch.where(keep_KBC, given_KBC, 0)
    # Weights that are all zero say nothing about whom to prefer: weigh the kept equally.
    weight_KBC = torch.where(keep_KBC & (weight_KBC.sum(dim=0) == 0), 1, weight_KBC)
    return weight_KBC, weight_KBC.sum(dim=0)


def _is_certain(condition: Tensor) -> bool:
    """Return whether it holds everywhere. A graph that is being traced knows no values: it must do for every case."""
    return not torch.compiler.is_exporting() and bool(condition.all())
