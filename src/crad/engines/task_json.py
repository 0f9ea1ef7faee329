"""Tasks and outcomes as bytes between this process and its workers: JSON, with paths in place of contents."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crad.federation.message import message_in_file
from crad.federation.method import Learned
from crad.federation.peer_evaluation import evaluation_from_json, evaluation_to_json
from crad.federation.tasks import Task, TaskOutcome
from crad.training.clipping import ClippedSteps

ANY_BYTES = "latin-1"  # every byte is a character and back


def task_to_bytes(task: Task) -> bytes:
    """Write a task whose state and messages lie in files."""
    messages = {
        sender: [message.manifest.decode(ANY_BYTES), str(message.file)] for sender, message in task.messages.items()
    }
    assert not isinstance(task.state, memoryview), "workers on this machine read files"
    entry = {
        "verb": task.verb,
        "peer": task.peer,
        "standing": None if task.evaluation is None else evaluation_to_json(task.evaluation),
        "state": None if task.state is None else str(task.state),
        "round_index": task.round_index,
        "phase": task.phase,
        "messages": messages,
        "is_measured": task.is_measured,
        "receiver": task.receiver,
        "has_logits": task.has_logits,
        "save_to": None if task.save_to is None else str(task.save_to),
    }
    return json.dumps(entry).encode()


def task_from_bytes(content: bytes) -> Task:
    """Read what `task_to_bytes` wrote."""
    entry = json.loads(content)
    messages = entry["messages"].items()
    return Task(
        entry["verb"],
        entry["peer"],
        None if entry["standing"] is None else evaluation_from_json(entry["standing"]),
        None if entry["state"] is None else Path(entry["state"]),
        round_index=entry["round_index"],
        phase=entry["phase"],
        messages={int(sender): message_in_file(m.encode(ANY_BYTES), Path(file)) for sender, (m, file) in messages},
        is_measured=entry["is_measured"],
        receiver=entry["receiver"],
        has_logits=entry["has_logits"],
        save_to=None if entry["save_to"] is None else Path(entry["save_to"]),
    )


def outcome_to_bytes(outcome: TaskOutcome) -> bytes:
    """Write an outcome whose content lies in a file."""
    assert outcome.content is None, "workers on this machine write files"
    learned = outcome.learned
    entry = {
        "verb": outcome.verb,
        "peer": outcome.peer,
        "standing": evaluation_to_json(outcome.evaluation),
        "learned": None if learned is None else _learned_to_json(learned),
        "manifest": None if outcome.manifest is None else outcome.manifest.decode(ANY_BYTES),
        "receiver": outcome.receiver,
        "seconds": outcome.seconds,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "peak_host_bytes": outcome.peak_host_bytes,
    }
    return json.dumps(entry).encode()


def outcome_from_bytes(content: bytes) -> TaskOutcome:
    """Read what `outcome_to_bytes` wrote."""
    entry = json.loads(content)
    return TaskOutcome(
        entry["verb"],
        entry["peer"],
        evaluation_from_json(entry["standing"]),
        learned=None if entry["learned"] is None else _learned(entry["learned"]),
        manifest=None if entry["manifest"] is None else entry["manifest"].encode(ANY_BYTES),
        receiver=entry["receiver"],
        seconds=entry["seconds"],
        peak_memory_bytes=entry["peak_memory_bytes"],
        peak_host_bytes=entry["peak_host_bytes"],
    )


def _learned(entry: dict[str, Any]) -> Learned:
    trust = {int(teacher): row for teacher, row in entry["trust"].items()}  # JSON keys are text
    artifacts = {name: base64.b64decode(text) for name, text in entry["artifacts"].items()}
    clipped = {purpose: ClippedSteps(**counts) for purpose, counts in entry["clipped"].items()}
    return Learned(entry["losses"], trust, entry["notes"], artifacts, clipped)


def _learned_to_json(learned: Learned) -> dict[str, Any]:
    clipped = {purpose: asdict(counts) for purpose, counts in learned.clipped.items()}
    return {**vars(learned), "artifacts": _texts(learned.artifacts), "clipped": clipped}


def _texts(artifacts: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in artifacts.items()}
