"""What `crad peer status` says of a member's part, written while it goes on; needs no torch to be read."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crad.errors import RunError
from crad.files import write_atomically
from crad.network.agreement import Agreement
from crad.report.participant import committee_lines, privacy_sentence
from crad.runs.records import Record
from crad.site.received import delete_after_end
from crad.site.settings import Site
from crad.site.state_folder import STATUS, state_folder


@dataclass
class Status:
    """What `crad peer status` says, written after every step."""

    path: Path
    content: Record = field(default_factory=dict)

    def say(self, **news: Any) -> None:  # noqa: ANN401  # plain values
        """Change some of it; a reader in another terminal never sees half a file."""
        self.content |= {**news, "updated": time.time(), "process": os.getpid()}
        write_atomically(self.path, json.dumps(self.content, indent=1).encode() + b"\n")


def read_status(agreement: Agreement, site: Site) -> Record:
    """Return what the own part said last; what a crash left of others' snapshots after the end is deleted first."""
    delete_after_end(agreement, site)
    path = state_folder(agreement, site) / STATUS
    try:
        status: Record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is not there: this member has not joined yet; crad peer join begins") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}; crad peer join writes it again") from error
    return {**status, "age_s": max(0.0, time.time() - status.get("updated", 0.0)), "is_running": _is_running(status)}


def status_line(status: Record) -> str:
    """Return the status in one line for people."""
    where = f"{status.get('member', '?')} in {status.get('federation', '?')}: {status.get('state', '?')}"
    parts = [where + (f", round {status['round']} of {status['rounds']}" if "rounds" in status else "")]
    if "round" in status and status.get("taken_part", status["round"]) != status["round"]:
        parts.append(f"took part in {status['taken_part']} of {status['round']} rounds so far")
    if "validation_accuracy" in status:
        parts.append(f"validation {status['validation_accuracy']:.1f} %")
    if status.get("privacy"):
        parts.append(privacy_sentence(status["privacy"]))
    if status.get("missing"):
        parts.append(f"missing last round: {', '.join(status['missing'])}")
    if status.get("away"):
        parts.append(f"away, not waited for: {', '.join(status['away'])}")
    if status.get("proven"):
        parts.append(f"left out, proven to have signed two snapshots for one round: {', '.join(status['proven'])}")
    for name, reason in status.get("refused", {}).items():
        parts.append(f"not learned from {name} last round: {reason}")
    if status.get("left_out"):
        parts.append(f"left out as teachers: {'; '.join(f'{n} ({why})' for n, why in status['left_out'].items())}")
    parts.extend(status.get("confused", []))
    parts.extend(committee_lines(status))
    if not status["is_running"] and status.get("state") != "finished":
        parts.append("its process has ended: crad peer join continues")
    return "; ".join([*parts, f"said {status['age_s']:.0f} s ago"])


def _is_running(status: Record) -> bool:
    try:
        os.kill(int(status["process"]), 0)
    except (KeyError, ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
