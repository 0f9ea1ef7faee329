"""Members whose labels seem to mean something else than ours, as the records of rounds have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from crad.federation.records import Record

NOTE = "confused"  # the key in a client's notes
MIN_ROUNDS = 2  # in which a pair was found: once may be a teacher's passing mood


def confused_members(records: Iterable[Record], members: Sequence[str], class_names: Sequence[str]) -> list[Record]:
    """Every member and pair of classes that was found in two rounds or more, in the order of their first ones.

    The records are one student's; figures are of the last round in which a pair was found.
    """
    found: dict[tuple[int, int, int], Record] = {}
    for record in records:
        for note in (note for client in record["clients"] for note in client["notes"].get(NOTE, [])):
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
    """What to tell people of one."""
    return (
        f"{entry['member']}: its class {entry['theirs']!r} behaves like our class {entry['ours']!r}; "
        "perhaps its labels are shifted"
    )
