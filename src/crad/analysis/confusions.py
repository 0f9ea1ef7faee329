"""Members whose labels seem to mean something else than ours, as the records of rounds have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from crad.runs.records import Record

NOTE = "confused"  # the key in a client's notes
MIN_ROUNDS = 2  # in which a pair was found: once may be a teacher's passing mood


def confused_members(records: Iterable[Record], members: Sequence[str], class_names: Sequence[str]) -> list[Record]:
    """Every member and pair of classes that was found in two rounds or more, in the order of their first ones.

    The records are one student's; figures are of the last round in which a pair was found.
    """
    found: dict[tuple[int, int, int], Record] = {}
    for record in records:
        for note in _notes(record):
            key = (note["teacher"], note["said"], note["own"])
            entry = {
                "member": members[note["teacher"]],
                "theirs": class_names[note["said"]],
                "ours": class_names[note["own"]],
                "rounds": found[key]["rounds"] + 1 if key in found else 1,
                "samples": note["samples"],
                "said_share": note["said_share"],
            }
            found[key] = entry
    return [entry for entry in found.values() if entry["rounds"] >= MIN_ROUNDS]


def confusion_sentence(entry: dict[str, Any]) -> str:
    """Say what people are told of one."""
    return (
        f"{entry['member']}: its class {entry['theirs']!r} behaves like our class {entry['ours']!r}; "
        "perhaps its labels are shifted"
    )


def simulated_confusions(rounds: Sequence[Record], class_names: Sequence[str]) -> list[str]:
    """Return a line for every client of a simulation whose labels seem to mean something else; most accused first."""
    by_student: dict[int, list[Record]] = {}
    for record in rounds:
        for client in record.get("clients", []):
            if client.get("notes", {}).get(NOTE):
                by_student.setdefault(client["client"], []).append({"clients": [client]})
    teachers = {note["teacher"] for own in by_student.values() for one in own for note in _notes(one)}
    names = [f"client {number}" for number in range(max(teachers, default=-1) + 1)]
    against: dict[str, dict[int, list[Record]]] = {}
    for student, own in sorted(by_student.items()):
        for entry in confused_members(own, names, class_names):
            against.setdefault(entry["member"], {}).setdefault(student, []).append(entry)
    ordered = sorted(against.items(), key=lambda item: -len(item[1]))
    return [_simulated_line(name, students) for name, students in ordered]


def _notes(record: Record) -> list[Record]:
    return [note for client in record["clients"] for note in client["notes"].get(NOTE, [])]


def _simulated_line(name: str, students: dict[int, list[Record]]) -> str:
    pairs = {(entry["theirs"], entry["ours"]) for entries in students.values() for entry in entries}
    theirs, ours = min(pairs)
    more = f" and {len(pairs) - 1} more such pairs" if len(pairs) > 1 else ""
    seen = ", ".join(map(str, students))
    return (
        f"{name}: its class {theirs!r} behaves like class {ours!r} of the others{more}, as seen by client {seen}; "
        "perhaps its labels are shifted."
    )
