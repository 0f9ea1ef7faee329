"""The run directory: what lies where, who writes it, and what may be written over what.

| file                | what it holds                                                      | written by                |
|---------------------|--------------------------------------------------------------------|---------------------------|
| `experiment.toml`   | everything needed to repeat the run                                | here, `create`            |
| `partition.json`    | clients x classes; `partition.svg`, the same as a picture          | `api.py`                  |
| `weights.json`      | by which files of weights clients began, where some did            | `api.py`                  |
| `models.json`       | what it takes to use the models beside their weights: class names, | `api.py`, first and last  |
|                     | preprocessing, class priors; of a complete run also the class      |                           |
|                     | statistics that clients publish of them                            |                           |
| `rounds.jsonl`      | one line per round                                                 | here, for `loop.py`       |
| `summary.json`      | the outcome, once the run is complete                              | `api.py`                  |
| `metrics.json`      | every client's metrics beyond accuracy at the selected round, with | `api.py`                  |
|                     | confusion matrices                                                 |                           |
| `inspection.json`   | how teachers were combined for some test samples, for methods that | `inspection/inspector.py` |
|                     | do so by a rule                                                    |                           |
| `report.html`       | the outcome, for people                                            | `api.py`                  |
| `artifacts/`        | what a method made for people to look at, such as painted images   | here, for `loop.py`       |
| `canaries.json`     | of a private run with canaries: every client's scores and coins,   | `api.py`                  |
|                     | for `crad audit privacy`                                           |                           |
| `checkpoint/`       | the newest round and the selected one; under a simulated attack    | `checkpoint.py`           |
|                     | also the honest clients' selected one                              |                           |
| `tensorboard/`      | with `--tensorboard`: its event files                              | `tracking/tensorboard.py` |
| `mlflow.json`       | with `--mlflow`: which run of the store this is; without a server  | `tracking/mlflow.py`      |
|                     | the store is `mlruns/`                                             |                           |

A member's folder is a run directory too, of fewer of these files, with `secret`, `alone/` and others beside them: see
`crad.site`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from crad.config import Experiment, names_of, setting_of, stored_experiment, to_toml, with_stored_names
from crad.errors import BusyError, RunError
from crad.files import write_atomically, write_flushed, write_once
from crad.runs.records import INPUT_SHIFT, Record

EXPERIMENT_FILE = "experiment.toml"
ROUNDS_FILE = "rounds.jsonl"
PARTITION_FILE = "partition.json"
WEIGHTS_FILE = "weights.json"
SUMMARY_FILE = "summary.json"
INSPECTION_FILE = "inspection.json"
REPORT_FILE = "report.html"
MEMBER_FILE = "secret"  # what the folder of a member has, and of a simulation has not
ALONE_FOLDER = "alone"  # a member's other model, as a run directory inside its own
SHOWN_RUNS = 8  # of a folder of many, in one line
ROUND_KEYS = frozenset({"round", "active", "validation_accuracy", "global_accuracy", "local_accuracy", "clients"})
SUMMARY_KEYS = frozenset({"schema", "method", "seed", "best_round", "global_accuracy", "hardware", "train_images"})


@dataclass(frozen=True)
class RunDirectory:
    """The files of one run."""

    path: Path

    @property
    def experiment_file(self) -> Path:
        """Everything needed to repeat the run."""
        return self.path / EXPERIMENT_FILE

    @property
    def rounds_file(self) -> Path:
        """One line per round."""
        return self.path / ROUNDS_FILE

    @property
    def summary_file(self) -> Path:
        """Return the outcome, there once the run is complete."""
        return self.path / SUMMARY_FILE

    @property
    def checkpoint_folder(self) -> Path:
        """Return where the newest round and the selected one lie."""
        return self.path / "checkpoint"

    def check_free(self, experiment: Experiment) -> None:
        """Refuse a directory that holds anything; nothing is ever written over."""
        if self.experiment_file.exists():
            same = experiment_hash(self.experiment()) == experiment_hash(experiment)
            if same and self.is_busy:
                raise self._busy()
            whose = "this very experiment" if same else "another experiment"
            go_on = f"continue it with crad run --resume {self.path} (in Python resume=True), or " if same else ""
            raise RunError(f"{self.path} holds a run of {whose}; {go_on}choose another output")
        if self.path.exists() and (not self.path.is_dir() or any(map(self._is_foreign, self.path.iterdir()))):
            raise RunError(f"{self.path} exists and is no run directory; choose another output")

    def _is_foreign(self, path: Path) -> bool:
        return not path.name.startswith(f".{self.experiment_file.name}.")  # begun by another process just now

    def check_same(self, experiment: Experiment) -> None:
        """Refuse to continue a run with other settings than it began with."""
        begun = self.experiment()
        if experiment_hash(begun) != experiment_hash(experiment):
            raise RunError(f"{self.path} holds a run with other settings; choose another output")
        is_mixed = begun.committee and begun.committee_evidence != experiment.committee_evidence
        if is_mixed and not self.summary_file.is_file():  # no part of the identity, yet its rounds would be of both
            raise RunError(
                f"{self.path} began with committee_evidence = {begun.committee_evidence!r}, not "
                f"{experiment.committee_evidence!r}: go on with that, or choose another output"
            )

    def check_same_data(self, partition: Record) -> None:
        """Refuse a run whose data is not what it was when the run began."""
        before = self.read_json(PARTITION_FILE)
        # Runs of earlier versions do not say how clients' samples differ.
        if {**before, INPUT_SHIFT: None} != {**partition, INPUT_SHIFT: None}:
            raise RunError(f"the data of {self.path} has changed since that run began; put the old files back")

    def check_same_weights(self, weights: Record) -> None:
        """Refuse a run whose clients would begin with other weights than when it began."""
        if (self.read_json(WEIGHTS_FILE) if (self.path / WEIGHTS_FILE).is_file() else {}) != weights:
            raise RunError(f"{self.path} began with other files of weights; put the old ones back")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out while this one writes; the lock goes with the process, however it ends."""
        with self.experiment_file.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._busy() from None
            yield

    @property
    def is_busy(self) -> bool:
        """Return whether another process works on it now."""
        if not self.experiment_file.is_file():
            return False
        try:
            with self.locked():
                return False
        except BusyError:
            return True

    def _busy(self) -> BusyError:
        return BusyError(f"{self.path} is in use by another process; wait for it or end it")

    def create(self, experiment: Experiment) -> None:
        """Begin a new run."""
        self.check_free(experiment)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_once(self.experiment_file, to_toml(experiment).encode())
        except FileExistsError:
            raise self._busy() from None
        except OSError as error:
            raise RunError(f"cannot write to {self.path}: {error.strerror or error}; choose another output") from error

    def experiment(self) -> Experiment:
        """Return the experiment that this directory belongs to."""
        if not self.experiment_file.is_file():
            raise RunError(self._no_run())
        if self._is_of_member():
            # Names in there are an agreement's: whoever takes them for a simulation's would import them.
            raise RunError(f"{self.path} is a member's part in a federation: crad peer join goes on with it")
        return stored_experiment(self.experiment_file)

    def _no_run(self) -> str:
        """Say what it is instead: a folder of runs names those to choose from."""
        inside = [run.name for run in runs_in(self.path)]
        if not inside:
            return f"{self.path} is no run directory: it has no {EXPERIMENT_FILE}"
        more = f" and {len(inside) - SHOWN_RUNS} more" if len(inside) > SHOWN_RUNS else ""
        return (
            f"{self.path} is no run directory but a folder of runs: choose one of them, such as "
            f"{self.path / inside[0]}; there are {', '.join(inside[:SHOWN_RUNS])}{more}"
        )

    def _is_of_member(self) -> bool:
        """Return whether `crad peer join` made it; beside it lies the model that was trained alone."""
        folder = self.path.parent if self.path.name == ALONE_FOLDER else self.path
        return (folder / MEMBER_FILE).exists()

    def append_round(self, record: Record) -> None:
        """Add one line to `rounds.jsonl`, durable before this returns."""
        write_flushed(self.rounds_file, json.dumps(record, allow_nan=False).encode() + b"\n", mode="ab")

    def rounds(self) -> list[Record]:
        """All complete lines; a last line that was cut off by a crash is left out."""
        if not self.rounds_file.is_file():
            return []
        try:
            lines = self.rounds_file.read_text(encoding="utf-8").split("\n")[:-1]
            records = [json.loads(line) for line in lines]
        except ValueError as error:
            raise RunError(f"{self.rounds_file} is damaged: {error}") from error
        for record in records:
            self._check_keys(record, frozenset(), self.rounds_file)
        return records

    def full_rounds(self) -> list[Record]:
        """All complete lines, each with what a summary or a selection needs."""
        records = self.rounds()
        for record in records:
            self._check_keys(record, ROUND_KEYS, self.rounds_file)
        return records

    def summary(self) -> Record:
        """Return the outcome of a complete run."""
        summary = self.read_json(self.summary_file.name)
        self._check_keys(summary, SUMMARY_KEYS, self.summary_file)
        return summary

    def _check_keys(self, record: object, keys: frozenset[str], file: Path) -> None:
        if not isinstance(record, dict) or not keys <= record.keys():
            raise RunError(f"{file} is damaged: expected an object with {', '.join(sorted(keys)) or 'its fields'}")

    def cut_rounds(self, *, after: int, has_gaps: bool = False) -> list[Record]:
        """Drop lines that go beyond the checkpoint, so that the rounds can be run again.

        Who was away while the others went on `has_gaps` in its rounds.
        """
        kept = [record for record in self.rounds() if record.get("round", after + 1) <= after]
        if not has_gaps and [record.get("round") for record in kept] != list(range(1, after + 1)):
            raise RunError(f"{self.rounds_file} does not hold rounds 1 to {after} that the checkpoint follows")
        content = "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept)
        write_atomically(self.rounds_file, content.encode())
        return kept

    def write_json(self, name: str, content: object) -> None:
        """Write one JSON file, whole or not at all."""
        write_atomically(self.path / name, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")

    def write_text(self, name: str, content: str) -> None:
        """Write one text file, whole or not at all."""
        write_atomically(self.path / name, content.encode())

    def write_artifact(self, name: str, content: bytes) -> None:
        """Write one file that a method made, whole or not at all."""
        folder = self.path / "artifacts"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / Path(name).name, content)

    def read_json(self, name: str) -> Record:
        """Read one JSON file of the run."""
        path = self.path / name
        try:
            content: Record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path} is not there yet: finish the run with crad run --resume {self.path}") from None
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from error
        return content


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories right inside a folder, as `crad compare` makes them."""
    return sorted(file.parent for file in folder.glob(f"*/{EXPERIMENT_FILE}"))


def experiment_hash(experiment: Experiment) -> str:
    """Experiments with the same identity train the same models; what is measured beside them may differ.

    It is not in `crad.config`: which filter is a rule's own is known to `crad.aggregation`, which stands above that.
    """
    from crad.aggregation.rules import has_published_filter  # late: a directory alone needs no torch

    content = experiment.model_dump(mode="json", exclude=set(names_of("execution")))
    content |= asdict(experiment.recipe)
    if content["filter"] == "median" and has_published_filter(experiment.method):
        content["filter"] = None
    older = {}
    if content["attack"] == "noise":  # what there was before there were other attacks
        older = {"liars": content["attackers"]}
        content |= {"attack": None, "attackers": 0}
    # Settings that runs of an earlier version do not have do not count where they say what was done before.
    content = {name: value for name, value in content.items() if value != setting_of(name).before}
    return hashlib.sha256(json.dumps(with_stored_names(content) | older, sort_keys=True).encode()).hexdigest()
