"""What a rule is given, checked once before any arithmetic.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from crad.aggregation.statistics import TeacherStats
from crad.errors import AggregationError, shown

ROW_TOLERANCE = 1e-3  # a row of q may miss one by this much; more is no softmax output
HALF_TOLERANCE = 2e-2  # the same where q was rounded to half precision
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Evidence:
    """The teachers' soft predictions and what is known of them per class."""

    q_KBC: Tensor
    stats: TeacherStats
    min_support: float
    epsilon: float

    @property
    def supported_KC(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return who may speak for which class, on the device of the predictions."""
        return (self.stats.speaking_KC >= self.min_support).to(self.q_KBC.device)

    @property
    def counts_KC(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return the samples per class, which most rules look at."""
        return self.stats.counts_KC

    @property
    def accuracies_KC(self) -> Tensor:  # noqa: N802  # tensors carry their shape in the name
        """Return the class accuracies, which most rules look at."""
        return self.stats.accuracies_KC


def check_evidence(q: Tensor, stats: TeacherStats, *, min_support: float, epsilon: float) -> Evidence:
    """Refuse what no rule may combine.

    The statistics come back as float64 on the CPU, half-precision predictions as float32: its rounding would break
    the exact ties that the filter must keep.
    """
    _check_predictions(q)
    check_setting("min_support", min_support, lowest=0, is_open=False)
    check_setting("epsilon", epsilon, lowest=0, is_open=True)
    return Evidence(
        q_KBC=q.detach().float() if q.dtype in HALF else q.detach(),
        stats=_check_stats(stats, (q.shape[0], q.shape[2])),
        min_support=min_support,
        epsilon=epsilon,
    )


def _check_stats(stats: TeacherStats, shape_KC: tuple[int, int]) -> TeacherStats:
    if (stats.false_alarms_KC is None) != (stats.others_KC is None):
        raise AggregationError("false_alarms and others belong together: give both or none")
    return TeacherStats(
        counts_KC=_check_statistic("counts", stats.counts_KC, shape_KC, highest=math.inf),
        accuracies_KC=_check_statistic("accuracies", stats.accuracies_KC, shape_KC, highest=1.0),
        cross_entropies_KC=_check_optional("cross_entropy", stats.cross_entropies_KC, shape_KC),
        support_KC=_check_optional("support", stats.support_KC, shape_KC),
        false_alarms_KC=_check_optional("false_alarms", stats.false_alarms_KC, shape_KC, highest=1.0),
        others_KC=_check_optional("others", stats.others_KC, shape_KC),
        effective_KC=_check_optional("effective", stats.effective_KC, shape_KC),
    )


def _check_predictions(q: Tensor) -> None:
    if not isinstance(q, Tensor):
        raise AggregationError(f"q must be a torch tensor [K,B,C], got {type(q).__name__}")
    if q.ndim != 3 or q.shape[0] < 1 or q.shape[2] < 2:
        raise AggregationError(f"q must be [K,B,C] with at least 1 teacher and 2 classes, got shape {tuple(q.shape)}")
    if not q.is_floating_point():
        raise AggregationError(f"q must hold floating-point probabilities, got {q.dtype}")
    if q.numel() == 0:
        return
    q = q.detach()
    lowest, highest = (extreme.item() for extreme in torch.aminmax(q))
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        bad = int((~torch.isfinite(q)).nonzero()[0, 0])
        raise AggregationError(f"q of teacher {bad} holds a non-finite value; leave that teacher out")
    if lowest < 0:
        raise AggregationError(f"q holds {lowest:g}: probabilities cannot be negative; apply softmax first")
    miss = max(abs(extreme.item() - 1) for extreme in torch.aminmax(q.float().sum(dim=2)))
    if miss > (HALF_TOLERANCE if q.dtype in HALF else ROW_TOLERANCE):
        raise AggregationError(f"a row of q misses a sum of 1 by {miss:g}; apply softmax over the classes first")


def _check_optional(
    name: str, values: Tensor | None, shape_KC: tuple[int, int], *, highest: float = math.inf
) -> Tensor | None:
    return None if values is None else _check_statistic(name, values, shape_KC, highest=highest)


def _check_statistic(name: str, values: Tensor, shape_KC: tuple[int, int], *, highest: float) -> Tensor:
    if not isinstance(values, Tensor):
        raise AggregationError(f"{name} must be a torch tensor [K,C], got {type(values).__name__}")
    if tuple(values.shape) != shape_KC:
        raise AggregationError(
            f"{name} has shape {tuple(values.shape)}, but q has {shape_KC[0]} teachers and {shape_KC[1]} "
            f"classes: expected {shape_KC}"
        )
    checked = values.detach().to(device="cpu", dtype=torch.float64)
    low, high = (extreme.item() for extreme in torch.aminmax(checked))
    if not (low >= 0 and high <= highest and math.isfinite(high)):  # not: NaN compares false
        wrong = ~torch.isfinite(checked) | (checked < 0) | (checked > highest)
        teacher, label = wrong.nonzero()[0].tolist()
        wanted = "between 0 and 1" if highest == 1 else "finite and not negative"
        raise AggregationError(
            f"{name} of teacher {teacher}, class {label} is {checked[teacher, label].item():g}, must be {wanted}"
        )
    return checked


def check_setting(name: str, value: float, *, lowest: float, is_open: bool) -> None:
    """Refuse a number that is not above its lowest value, or not at least that."""
    is_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max  # refuses nan too
    if not is_number or value < lowest or (is_open and value == lowest):
        wanted = f"more than {lowest:g}" if is_open else f"{lowest:g} or more"
        raise AggregationError(f"{name} is {shown(value)}, must be {wanted}")
