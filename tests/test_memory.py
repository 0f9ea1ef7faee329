"""Memory follows the clients at work, not the clients there are. Measured in a process of its own, with room."""

from __future__ import annotations

import json
import subprocess
import sys

import crad
from crad.config import Experiment
from crad.models import Architecture, build_model
from tests.conftest import change

MIB = 2**20
CHILD = """
import json, sys
import crad
for settings in sys.argv[1:]:
    print(crad.run(crad.Experiment(**json.loads(settings))).summary["peak_memory_bytes"])
"""


def peaks(*experiments: Experiment) -> list[int]:
    """Highest resident memory of a process after each of these, which it runs one after the other."""
    command = [sys.executable, "-c", CHILD, *(experiment.model_dump_json() for experiment in experiments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.splitlines()]


def model_bytes(name: str, width: float) -> int:
    model = build_model(Architecture(name, width), num_classes=4, in_channels=1, image_size=(8, 8), seed=0)
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def test_ten_times_the_clients_take_the_same_memory(tiny):
    """Were all models held, the larger federation would need their weights more: several times the room given here."""
    settings = {"partition": "iid", "active": 2, "rounds": 1, "models": ("resnet18",), "width": 0.5, "proxy_size": 0}
    settings["committee"] = True
    few, many = 2, 20
    held = (many - few) * model_bytes("resnet18", 0.5)
    room = 60 * MIB
    assert held > 3 * room
    before, after = peaks(*(change(tiny, **settings, clients=clients) for clients in (few, many)))
    grown = after - before
    assert grown < room, f"{many - few} more clients at rest take {grown / MIB:.0f} MiB"


def test_inactive_clients_have_no_file_until_they_have_learned(tiny, tmp_path):
    crad.run(change(tiny, active=2, rounds=1), output=tmp_path / "run")
    state = json.loads((tmp_path / "run" / "checkpoint" / "round-00001.json").read_text())
    rounds = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    assert [entry["index"] for entry in state["peers"] if entry["state"]] == rounds["active"]
    assert len(list((tmp_path / "run" / "checkpoint" / "states").iterdir())) == 2


def test_peak_memory_covers_every_process(shallow):
    """Two workers are two more processes with torch in memory, which none holds in less than a hundred MiB."""
    alone, together = peaks(*(change(shallow, rounds=1, workers=workers) for workers in (1, 2)))
    assert together > alone + 2 * 100 * MIB
