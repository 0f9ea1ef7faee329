"""What the doctor found: a line for people each, and the values behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "problem"]
UNITS = ("bytes", "KB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: how it is, and what to do unless it is well."""

    check: str  # what was looked at; a member's name where it is one
    state: State
    text: str
    advice: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Findings:
    """All of them in order. `on_finding` hears of each at once, `on_step` what is being looked at."""

    on_finding: Callable[[Finding], None] = lambda finding: None
    on_step: Callable[[str], None] = lambda text: None
    all: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Take it down."""
        self.all.append(finding)
        self.on_finding(finding)

    def ok(self, check: str, text: str, **details: Any) -> None:  # noqa: ANN401  # plain values
        """Note that something is well."""
        self.add(Finding(check, "ok", text, details=details))

    def warn(self, check: str, text: str, advice: str, **details: Any) -> None:  # noqa: ANN401
        """Note that something may go wrong."""
        self.add(Finding(check, "warning", text, advice, details))

    def problem(self, check: str, text: str, advice: str = "", **details: Any) -> None:  # noqa: ANN401
        """Note that something will go wrong. The words of our own errors say what to do themselves."""
        self.add(Finding(check, "problem", text, advice, details))

    def of(self, state: State) -> list[Finding]:
        """Return those in this state."""
        return [finding for finding in self.all if finding.state == state]

    def to_json(self) -> dict[str, Any]:
        """Return them as plain values."""
        counts = {"problems": len(self.of("problem")), "warnings": len(self.of("warning"))}
        return {**counts, "findings": [asdict(finding) for finding in self.all]}


def size_text(size: float) -> str:
    """Return bytes as people say them: 912 bytes, 45.1 MB."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:.1f} {UNITS[unit]}"
