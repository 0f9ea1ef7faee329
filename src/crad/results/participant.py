"""What a member is told at the end: did joining help it, whose knowledge was used, who was missing, what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from crad.federation.records import Record


def participant_record(
    *,
    federation: str,
    member: str,
    members: Sequence[str],
    class_names: Sequence[str],
    joined: Sequence[Record],
    joined_best: Record,
    alone_best: Record,
    left: Mapping[str, Any],
    private_counts: float | None,
) -> Record:
    """`participant.json`: everything the participant's report says, from the records of both models.

    `left` is what left the machine, as the ledger sums it up. Accuracies are percent of the own test half.
    """
    federated, alone = joined_best["clients"][0], alone_best["clients"][0]
    return {
        "schema": 1,
        "federation": federation,
        "member": member,
        "rounds_taken_part": len(joined),
        "last_round": joined[-1]["round"],
        "federated": _outcome(joined_best),
        "alone": _outcome(alone_best),
        "difference": federated["local_accuracy"] - alone["local_accuracy"],
        "per_class": _per_class(class_names, federated["local"], alone["local"]),
        "trusted": _trusted(joined, members, class_names),
        "missing": _names(Counter(_missing(joined)), members),
        "refused": _refused(joined, members),
        "left": dict(left),
        "private_counts": _budget(private_counts),
    }


def _outcome(best: Mapping[str, Any]) -> Record:
    return {"round": best["round"], **{key: best[key] for key in ("validation_accuracy", "local_accuracy")}}


def _per_class(names: Sequence[str], federated: Mapping[str, Any], alone: Mapping[str, Any]) -> list[Record]:
    rows = zip(names, federated["counts"], federated["hits"], alone["hits"], strict=True)
    return [
        {
            "name": name,
            "test_samples": count,
            "federated": 100.0 * ours / count if count else None,
            "alone": 100.0 * theirs / count if count else None,
        }
        for name, count, ours, theirs in rows
    ]


def _trusted(joined: Sequence[Record], members: Sequence[str], class_names: Sequence[str]) -> list[Record]:
    """The mean share of every teacher in every class over the rounds in which anybody taught."""
    rounds = [record["clients"][0]["trust"] for record in joined if record["clients"] and record["clients"][0]["trust"]]
    teachers = sorted({int(teacher) for trust in rounds for teacher in trust})
    nothing = [0.0] * len(class_names)
    rows = []
    for teacher in teachers:
        shares = [trust.get(str(teacher), nothing) for trust in rounds]
        rows.append(
            {"member": members[teacher], "shares": [sum(column) / len(rounds) for column in zip(*shares, strict=True)]}
        )
    return rows


def _missing(joined: Sequence[Record]) -> list[int]:
    return [index for record in joined for absent in record["missing"].values() for index in absent]


def _refused(joined: Sequence[Record], members: Sequence[str]) -> dict[str, list[str]]:
    """Why something of a member was not used, each reason once."""
    reasons: dict[str, list[str]] = {}
    for record in joined:
        for client in record["clients"]:
            for index, reason in client["notes"].get("refused", {}).items():
                found = reasons.setdefault(members[int(index)], [])
                if reason not in found:
                    found.append(reason)
    return reasons


def _names(counts: Counter[int], members: Sequence[str]) -> dict[str, int]:
    return {members[index]: count for index, count in sorted(counts.items())}


def _budget(epsilon: float | None) -> Record:
    """Counts do not change over the rounds and neither does their noise: one release, however many rounds."""
    if epsilon is None:
        return {"is_private": False, "epsilon_spent": None}
    return {"is_private": True, "epsilon_spent": epsilon, "releases": 1}


def participant_cells(record: Mapping[str, Any]) -> list[list[str]]:
    """The outcome for the terminal."""
    return [
        ["training alone", f"{record['alone']['local_accuracy']:.2f}"],
        ["with the federation", f"{record['federated']['local_accuracy']:.2f}"],
        ["difference", f"{record['difference']:+.2f}"],
    ]
