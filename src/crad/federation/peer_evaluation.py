"""How a peer's model does: hits per class on its validation and test halves and on the common test images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from crad.aggregation.member_tally import MemberTally


@dataclass(frozen=True)
class ClassScore:
    """Per class: how many samples, how many were classified correctly, and their summed cross-entropy."""

    counts: tuple[int, ...]
    hits: tuple[int, ...]
    cross_entropy_sums: tuple[float, ...]
    accuracy: float = field(init=False)  # of all samples together, in percent
    class_accuracies: tuple[float, ...] = field(init=False)  # the share correct; 0 where the class has no samples

    def __post_init__(self) -> None:
        pairs = zip(self.hits, self.counts, strict=True)
        object.__setattr__(self, "accuracy", 100.0 * sum(self.hits) / max(1, sum(self.counts)))
        object.__setattr__(self, "class_accuracies", tuple(hits / count if count else 0.0 for hits, count in pairs))

    def class_cross_entropies(self) -> list[float]:
        """Return the mean cross-entropy (nats, T=1) per class; one without samples gets that of a blind guess, ln C.

        Zero would read as perfect and, under noised counts, make a teacher without data decide the class.
        """
        guess = math.log(len(self.counts))
        pairs = zip(self.cross_entropy_sums, self.counts, strict=True)
        return [total / count if count else guess for total, count in pairs]


@dataclass(frozen=True)
class PrivateReleases:
    """What a peer has spent of its privacy so far, and the hits that it released last, noised."""

    steps: int = 0  # of private training
    releases: int = 0  # of hits
    released_in: int = 0  # the round of the last of them
    hits: tuple[float, ...] = ()
    parts: tuple[tuple[str, int, int], ...] = ()  # of a member: what was learned from, its steps and releases of hits


@dataclass(frozen=True)
class Evaluation:
    """How a peer's current model does; the tests are None until somebody asks for them."""

    validation: tuple[ClassScore, ...]  # one per shard it holds
    local: tuple[ClassScore, ...] | None = None
    overall: ClassScore | None = None  # on the data set's own test images
    variants: dict[str, Evaluation] = field(default_factory=dict)  # of the other weights it keeps, by name
    plain: tuple[ClassScore, ...] | None = None  # validation on plain logits, as others see them, where that differs
    triggered: ClassScore | None = None  # how far a simulated backdoor's trigger works, where that is measured
    private: PrivateReleases | None = None  # in private training, from its first round on
    tallies: tuple[MemberTally, ...] | None = None  # what every client counts of what it publishes, by client

    @property
    def seen_by_others(self) -> tuple[ClassScore, ...]:
        """Return the validation scores of what is published, as others run it: without its owner's prior."""
        return self.validation if self.plain is None else self.plain


def evaluation_to_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as a plain dictionary; floats survive JSON exactly."""
    local, overall = evaluation.local, evaluation.overall
    return {
        "validation": [_score_to_json(score) for score in evaluation.validation],
        **({} if evaluation.plain is None else {"plain": [_score_to_json(score) for score in evaluation.plain]}),
        "local": None if local is None else [_score_to_json(score) for score in local],
        "overall": None if overall is None else _score_to_json(overall),
        **({} if evaluation.triggered is None else {"triggered": _score_to_json(evaluation.triggered)}),
        **({} if evaluation.private is None else {"private": asdict(evaluation.private)}),
        **({} if evaluation.tallies is None else {"tallies": [asdict(one) for one in evaluation.tallies]}),
        "variants": {name: evaluation_to_json(one) for name, one in evaluation.variants.items()},
    }


def evaluation_from_json(entry: Mapping[str, Any]) -> Evaluation:
    """Read what `evaluation_to_json` wrote."""
    local, overall, plain, triggered = entry["local"], entry["overall"], entry.get("plain"), entry.get("triggered")
    tallies, private = entry.get("tallies"), entry.get("private")
    return Evaluation(
        validation=tuple(_score_from_json(score) for score in entry["validation"]),
        plain=None if plain is None else tuple(_score_from_json(score) for score in plain),
        local=None if local is None else tuple(_score_from_json(score) for score in local),
        overall=None if overall is None else _score_from_json(overall),
        triggered=None if triggered is None else _score_from_json(triggered),
        private=None if private is None else _releases_from_json(private),
        tallies=None if tallies is None else tuple(MemberTally.from_json(one) for one in tallies),
        variants={name: evaluation_from_json(one) for name, one in entry.get("variants", {}).items()},
    )


def _releases_from_json(entry: Mapping[str, Any]) -> PrivateReleases:
    parts = tuple((name, steps, releases) for name, steps, releases in entry.get("parts", ()))
    return PrivateReleases(**{**entry, "hits": tuple(entry["hits"]), "parts": parts})


def _score_to_json(score: ClassScore) -> dict[str, Any]:
    return {"counts": score.counts, "hits": score.hits, "cross_entropy_sums": score.cross_entropy_sums}


def _score_from_json(entry: Mapping[str, Any]) -> ClassScore:
    return ClassScore(
        counts=tuple(entry["counts"]),
        hits=tuple(entry["hits"]),
        cross_entropy_sums=tuple(entry["cross_entropy_sums"]),
    )
