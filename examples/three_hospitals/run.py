"""Three hospitals on this machine: a process, a key, a port, data and an architecture each, and no server.

    python examples/three_hospitals/run.py

Ctrl-C ends all three; the same command goes on where they were. The commands that it shows are those that real
organisations would type, each on its own machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for what the examples share, however this is started

from crad.data.catalog import locate
from crad.errors import DataError
from crad.network.agreement import Agreement
from examples.hospitals import PATIENCE, Hospitals, crad, run_to_the_end

FEDERATION = "three-hospitals"
HOSPITALS = {"north": "resnet18@0.125", "south": "resnet18-half@0.125", "west": "cnn6@0.25"}
LEARNING = {"lr": 0.05, "batch_size": 16, "distill_weight": 0.4}  # few images and few rounds want large steps


def main() -> int:
    """Found the federation or take up the one that is there, let the hospitals learn, and show what came of it."""
    wishes = _read_words()
    return run_to_the_end(
        Hospitals(FEDERATION, HOSPITALS, wishes.folder),
        lambda: found_or_take_up(wishes.folder, rounds=wishes.rounds, is_bucket=wishes.bucket, dataset=wishes.dataset),
    )


def found_or_take_up(folder: Path, *, rounds: int, is_bucket: bool, dataset: str | None) -> Agreement:
    """Return the agreement in the folder, made with the commands of `crad` where there is none."""
    hospitals = Hospitals(FEDERATION, HOSPITALS, folder)
    return hospitals.found_or_take_up(
        lambda: found(hospitals, rounds=rounds, is_bucket=is_bucket, dataset=dataset or _dataset_here()),
        rounds=rounds,
        is_bucket=is_bucket,
    )


def found(hospitals: Hospitals, *, rounds: int, is_bucket: bool, dataset: str) -> None:
    """Make data, keys, peer.toml and member.toml of every hospital, and the agreement of all."""
    crad(
        *("data", "split", "--dataset", dataset, "--clients", len(HOSPITALS), "--seed", 1, "--alpha", 0.5),
        *("--train-limit", 600, "--proxy-size", 0, "--output", hospitals.folder / "data"),
    )
    hospitals.init({name: f"../data/client-{number}.npz" for number, name in enumerate(HOSPITALS)})
    flips = {"augmentation": "flips"} if dataset == "pathmnist" else {}  # tissue has no up and down
    hospitals.agree(is_bucket=is_bucket, rounds=rounds, **LEARNING, **PATIENCE, **flips)


def _read_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Three hospitals learn from each other on this machine.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs/three-hospitals"), help="where all their files go")
    parser.add_argument("--bucket", action="store_true", help="exchange through a folder that all reach, not HTTPS")
    parser.add_argument("--dataset", help="what is divided among them [default: pathmnist if it is here, else digits]")
    return parser.parse_args()


def _dataset_here() -> str:
    try:
        locate("pathmnist")
    except DataError:
        return "digits"
    return "pathmnist"


if __name__ == "__main__":
    sys.exit(main())
