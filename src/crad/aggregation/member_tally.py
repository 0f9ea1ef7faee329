"""Counting: what each member of a committee hits on a client's own validation half; raw counts, nothing believed yet.

The counts are made where a member is tested, on what it publishes, and rest in its evaluation: a committee can be made
from them later without the data. How far members are believed by them is said in `member_evidence.py`, which
`evidence_of` asks.

Shapes: K members, B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crad.aggregation import TeacherStats
from crad.aggregation.correction import bounded_log_shares_of
from crad.aggregation.member_evidence import member_evidence
from crad.aggregation.verification import Tally
from crad.config import EvidenceSource, TeacherPrior


@dataclass(frozen=True)
class MemberTally:
    """What a client counts of a member per class: hits and false alarms, its class shares kept and taken out."""

    hits: tuple[int, ...]
    alarms: tuple[int, ...]
    corrected_hits: tuple[int, ...]
    corrected_alarms: tuple[int, ...]

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> MemberTally:
        """Read what `asdict` wrote; refuse anything else with a ValueError."""
        columns = {name: tuple(int(value) for value in entry[name]) for name in cls.__dataclass_fields__}
        if len({len(column) for column in columns.values()}) != 1 or min(map(min, columns.values())) < 0:
            raise ValueError("tallies")
        return cls(**columns)


def count_by_client(
    logits_BC: Tensor, labels_B: Tensor, *, sizes: Sequence[int], counts_C: Sequence[float]
) -> tuple[MemberTally, ...]:
    """Count what a member makes of every client's samples, which lie one client after the other."""
    parts = zip(torch.split(logits_BC, list(sizes)), torch.split(labels_B, list(sizes)), strict=True)
    return tuple(count_member(logits, labels, counts_C=counts_C) for logits, labels in parts)


def count_member(logits_BC: Tensor, labels_B: Tensor, *, counts_C: Sequence[float]) -> MemberTally:
    """Count what a member makes of a client's samples; `counts_C`: the samples that it says it holds."""
    # Softened or not, what is most probable stays so: q share^(-1/T) is largest where z - log share is.
    shares_C = bounded_log_shares_of(torch.tensor(counts_C, dtype=torch.float64))
    said, corrected = (_counted(one, labels_B) for one in (logits_BC, logits_BC - shares_C.to(logits_BC)))
    return MemberTally(*said, *corrected)


def _counted(scores_BC: Tensor, labels_B: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    tally = Tally(1, scores_BC.shape[1])
    tally.add(scores_BC.unsqueeze(0), labels_B, torch.ones(1, dtype=torch.bool))
    return _whole(tally.hits_KC[0]), _whole(tally.alarms_KC[0])


def _whole(values: Tensor) -> tuple[int, ...]:
    return tuple(int(value) for value in values.tolist())


def evidence_of(
    published: TeacherStats,
    tallies: Sequence[MemberTally],
    *,
    samples_C: Sequence[int],
    teacher_prior: TeacherPrior,
    source: EvidenceSource,
) -> TeacherStats:
    """Return what a client knows of the members by its own counts on so many samples per class and their figures."""
    said = heard = said_tally(tallies, samples_C=samples_C)
    if teacher_prior == "remove":
        corrected = [one.corrected_hits for one in tallies], [one.corrected_alarms for one in tallies]
        heard = _stacked(samples_C, *corrected)
    return member_evidence(published, said=said, heard=heard, source=source)


def said_tally(tallies: Sequence[MemberTally], *, samples_C: Sequence[int]) -> Tally:
    """Return the counts of several members on what they say as they say it."""
    return _stacked(samples_C, [one.hits for one in tallies], [one.alarms for one in tallies])


def _stacked(samples_C: Sequence[int], hits: Sequence[Sequence[int]], alarms: Sequence[Sequence[int]]) -> Tally:
    tally = Tally(len(hits), len(samples_C))
    tally.samples_C += torch.tensor(samples_C, dtype=torch.float64)
    tally.hits_KC += torch.tensor(hits, dtype=torch.float64)
    tally.alarms_KC += torch.tensor(alarms, dtype=torch.float64)
    return tally
