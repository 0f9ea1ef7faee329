"""Teachers that came and could not be learned from: said in the round it happens, by the member's name."""

from __future__ import annotations

from crad.network.agreement import Agreement
from crad.runs.records import Record


class UnusedTeachers:
    """Knows what has been said: each member and reason once."""

    def __init__(self, agreement: Agreement) -> None:
        self._names = [member.name for member in agreement.members]
        self._said: set[tuple[str, str]] = set()

    def of(self, record: Record) -> dict[str, str]:
        """Return why a member's snapshot of this round was not used, by name; "it" is the member."""
        return {self._names[int(index)]: _reason(index, words) for index, words in _refused(record).items()}

    def news(self, record: Record) -> list[str]:
        """Return a line for everything in this round that has not been said."""
        lines = []
        for index, words in _refused(record).items():
            name, reason = self._names[int(index)], _reason(index, words)
            if (name, reason) in self._said:
                continue
            self._said.add((name, reason))
            much = "learned only in part" if _has_taught(record, index) else "learned nothing"
            lines.append(f"round {record['round']} {much} from {name}: {reason}; {_advice(name, reason)}")
        return lines


def _refused(record: Record) -> dict[str, str]:
    return {index: words for client in record["clients"] for index, words in client["notes"].get("refused", {}).items()}


def _reason(index: str, words: str) -> str:
    """Return the words of the simulation, where members have only numbers, as said of one member."""
    return f"it {words.removeprefix(f'peer {index} ')}" if words.startswith(f"peer {index} ") else words


def _has_taught(record: Record, index: str) -> bool:
    """Return whether it had a say all the same: some blocks of images gave numbers."""
    return any(sum(client["trust"].get(index, ())) > 0 for client in record["clients"])


def _advice(name: str, reason: str) -> str:
    if "non-finite" in reason:
        return f"ask {name} to look at its training"
    return f"compare federation.toml and the version of crad with {name}"
