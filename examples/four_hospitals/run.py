"""Four hospitals and their heart patients: each a process with its own file, its own habits and another kind of model.

    python examples/four_hospitals/run.py

The data is UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano, CC BY 4.0), heart.csv in CRAD_DATA. In the end
the same federation is simulated, and must come to the same bytes.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for what the examples share, however this is started

from crad.config import Experiment, to_toml
from crad.data import data_directory
from crad.errors import DataError
from crad.network.agreement import Agreement
from examples.hospitals import PATIENCE, Hospitals, crad, run_to_the_end, start

FEDERATION = "four-hospitals"
# In the order of their names, as a simulation has them.
HOSPITALS = {"cleveland": "mlp", "hungarian": "mlp-deep", "switzerland": "tab-transformer", "va": "mlp@0.5"}
COLUMNS = {"label": "disease", "categories": "sex,cp,restecg,slope,thal", "missing": "chol=0,trestbps=0"}
LEARNING = {"batch_size": 32, "optimizer": "adamw", "lr": 0.003}
SEED = 1
Row = dict[str, str]


def main() -> int:
    """Found the federation or take up the one that is there, let the hospitals learn, and compare with a simulation."""
    wishes = _read_words()
    hospitals = Hospitals(FEDERATION, HOSPITALS, wishes.folder)
    return run_to_the_end(
        hospitals,
        lambda: hospitals.found_or_take_up(
            lambda: found(hospitals, heart=wishes.data, rounds=wishes.rounds, is_bucket=wishes.bucket),
            rounds=wishes.rounds,
            is_bucket=wishes.bucket,
        ),
        lambda agreement: compare_with_simulation(hospitals, agreement, heart=wishes.data),
    )


def found(hospitals: Hospitals, *, heart: Path, rounds: int, is_bucket: bool) -> None:
    """Make a file, keys, peer.toml and member.toml of every hospital, and the agreement of all."""
    if not heart.is_file():
        raise DataError(
            f"{heart} is not here: set CRAD_DATA to the folder of heart.csv, or name it with --data; README.md of this "
            "example says how to make it from the files of UCI"
        )
    words = [word for name, value in COLUMNS.items() for word in (f"--{name}", value)]
    crad(
        *("data", "split", "--data", heart, *words, "--site", "hospital", "--partition", "natural"),
        *("--proxy-size", 0, "--seed", SEED, "--output", hospitals.folder / "data"),
    )
    hospitals.init({name: f"{name}.csv" for name in HOSPITALS}, OWN_LINES)
    for name in HOSPITALS:
        rewrite(hospitals.folder / "data" / f"{name}.csv", hospitals.folder / name / f"{name}.csv", HABITS[name])
    learning = {"rounds": rounds, "seed": SEED, **LEARNING, "committee": True}
    hospitals.agree(*words, is_bucket=is_bucket, **learning, **PATIENCE)


# What each hospital calls things. Cleveland invites, so that the others say how theirs differ, in peer.toml.
def _hungarian(row: Row) -> Row:
    """Blood pressure in cmHg, other names, and the diagnosis as 0 and 1."""
    pressure = row.pop("trestbps")
    result = str(int(row.pop("disease") == "yes"))
    return {"kor": row.pop("age"), "RR": str(int(pressure) / 10) if pressure else "", **row, "diagnosis": result}


def _switzerland(row: Row) -> Row:
    """Sex by letters, gaps as -9, and no cholesterol at all."""
    del row["chol"]
    row["sex"] = {"0": "F", "1": "M"}[row["sex"]]
    return {name: value or "-9" for name, value in row.items()}


def _va(row: Row) -> Row:
    """A column that nobody has agreed on."""
    return {"ward": "cardiology", **row}


HABITS: dict[str, Callable[[Row], Row]] = {
    "cleveland": lambda row: row,
    "hungarian": _hungarian,
    "switzerland": _switzerland,
    "va": _va,
}
_SWISS_GAPS = "".join(
    f'columns.{name}.missing = "-9"\n'
    for name in ("trestbps", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")
)
OWN_LINES = {
    "hungarian": """
label.name = "diagnosis"
label.classes = { "0" = "no", "1" = "yes" }
columns.age.name = "kor"
columns.trestbps.name = "RR"
columns.trestbps.factor = 10
""",
    "switzerland": f"""
columns.sex.categories = {{ "F" = "0", "M" = "1" }}
columns.chol.absent = true
{_SWISS_GAPS}""",
}


def rewrite(source: Path, target: Path, habit: Callable[[Row], Row]) -> None:
    """Write a hospital's rows as it would have them itself."""
    with source.open(newline="", encoding="utf-8") as file:
        rows = [habit(row) for row in csv.DictReader(file)]
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def compare_with_simulation(hospitals: Hospitals, agreement: Agreement, *, heart: Path) -> int:
    """Simulate the same federation from the one file, and compare everybody's model byte by byte."""
    outcomes = hospitals.outcomes(agreement)
    if any(one["rounds_taken_part"] < agreement.rounds or one["missing"] for one in outcomes.values()):
        print("A hospital was stopped and missed a snapshot: a simulation, where nobody does, is not compared.")
        return 0
    simulated = hospitals.folder / "simulated"
    if not (simulated / "summary.json").exists():
        _simulate(simulation_of(agreement, heart), hospitals.folder)
    differing = 0
    for number, name in enumerate(HOSPITALS):
        folders = (hospitals.state(name, agreement), simulated)
        ours, theirs = (_last_state(one, number, rounds=agreement.rounds) for one in folders)
        same = ours == theirs
        differing += not same
        print(f"{name:<12} sha256 {ours[:16]}  simulated {theirs[:16]}  {'the same' if same else 'NOT THE SAME'}")
    return int(differing > 0)


def simulation_of(agreement: Agreement, heart: Path) -> Experiment:
    """Return the experiment that simulates the federation: what was agreed on, over the file of all four."""
    own = {**COLUMNS, "site": "hospital", "partition": "natural", "committee": False}
    return agreement.experiment(dataset=str(heart.absolute()), **own, device="cpu", workers=1)


def _simulate(experiment: Experiment, folder: Path) -> None:
    settings = folder / "simulation.toml"
    settings.write_text(to_toml(experiment), encoding="utf-8")
    words = ["run", "--config", str(settings), "--output", str(folder / "simulated"), "--quiet"]
    print(f"$ crad {shlex.join(words)}", flush=True)
    process = start(words, among=len(HOSPITALS))  # as many threads as they had: sums are made in the same order
    _, said = process.communicate()
    if process.returncode:
        raise DataError(f"the simulation ended early: {said.strip()}")


def _last_state(folder: Path, number: int, *, rounds: int) -> str:
    """Return the hash of a client's model and optimiser after the last round."""
    [file] = (folder / "checkpoint" / "states").glob(f"peer-{number:04d}-round-{rounds:05d}-*")
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _read_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Four hospitals learn from each other's heart patients.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path("runs/four-hospitals"), help="where all their files go")
    parser.add_argument("--bucket", action="store_true", help="exchange through a folder that all reach, not HTTPS")
    parser.add_argument("--data", type=Path, default=data_directory() / "heart.csv", help="[default: in CRAD_DATA]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
