"""What a person sees of `crad peer doctor`: a line per finding as it comes, and what is being looked at meanwhile."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from crad.site.doctor import Finding, Findings

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def diagnose(site: Path, console: Console, progress: Console, *, is_silent: bool) -> Findings:
    """Examine, and show it unless silent; on a terminal `progress` says what takes so long."""
    from crad.site.doctor import Findings, examine

    findings = Findings()
    if is_silent:
        examine(site, findings)
        return findings
    findings.on_finding = lambda finding: console.print(_shown(finding), soft_wrap=True)
    # On one terminal both go through one console, which keeps the moving line below the findings.
    shown_on = console if console.is_terminal else progress
    live = shown_on.status("", spinner="dots") if shown_on.is_terminal else None
    with live if live is not None else nullcontext():
        if live is not None:
            findings.on_step = lambda text: live.update(Text(f"{text} ..."))
        examine(site, findings)
    return findings


def _shown(finding: Finding) -> Text:
    """Return state, what was looked at, how it is; below it what to do."""
    line = Text.assemble((f"{finding.state:8}", STYLES[finding.state]), f"{finding.check:12} ", finding.text)
    if finding.advice:
        line.append(f"\n{'':8}{'':12} -> {finding.advice}")
    return line
