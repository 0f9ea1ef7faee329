"""The log for MLflow: on the server that MLFLOW_TRACKING_URI names, or in a store of its own beside the run."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crad.errors import ConfigError, install_hint
from crad.runs.directory import EXPERIMENT_FILE, REPORT_FILE, SUMMARY_FILE, RunDirectory
from crad.runs.records import Record
from crad.runs.tracking.scalars import hyperparameters, round_scalars, summary_scalars
from crad.runs.tracking.tracker import LogError

FOLDER = "mlruns"
RUN_FILE = "mlflow.json"  # which run of the store this is, to continue it
ARTIFACTS = (EXPERIMENT_FILE, SUMMARY_FILE, REPORT_FILE)
LAST_OF_ROUND = "timing/seconds"  # logged at the end of a round: where it stands, the round is whole
BATCH = 900  # a request takes 1000 metrics at most
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nothing leaves this machine that was not asked for
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # a server that is away must not hold up a run for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class MLflowLog:
    """One MLflow run for each run; `store` is the folder that gets `mlruns/` where no server is named."""

    name = "mlflow"

    def __init__(self, store: Path) -> None:
        """Refused where the package is missing or the server does not answer."""
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        try:
            import mlflow  # noqa: F401
            import sqlalchemy  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"--mlflow needs a package that is not there ({error}): {install_hint('tracking')}"
            ) from error
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._store = store.resolve() / FOLDER
        self._client: Any = None
        self._run_id: str | None = None
        self._is_finished = False
        if "MLFLOW_TRACKING_URI" in os.environ:
            self._check_server()

    def open(self, directory: RunDirectory) -> set[int]:
        """Continue the run that this directory was logged as, or begin one."""
        with _failures():
            self._run_id = None
            self._connect()
            found = self._find(directory)
            if found is None:
                self._begin(directory)
                return set()
            self._run_id, self._is_finished = found.info.run_id, found.info.status == "FINISHED"
            if not self._is_finished:
                self._client.update_run(self._run_id, status="RUNNING")
            return {entry.step for entry in self._client.get_metric_history(self._run_id, LAST_OF_ROUND)}

    def log_round(self, record: Record) -> None:
        """All scalars of the round, the one that completes it last."""
        values = round_scalars(record)
        values[LAST_OF_ROUND] = values.pop(LAST_OF_ROUND)
        with _failures():
            self._log(values, step=record["round"])

    def end(self, directory: RunDirectory, summary: Record) -> None:
        """Log the numbers of the summary, and the files that a reader wants."""
        with _failures():
            if not self._is_finished:
                self._log(summary_scalars(summary), step=summary["best_round"])
                for name in ARTIFACTS:
                    self._client.log_artifact(self._run_id, str(directory.path / name))
                self._client.set_terminated(self._run_id, "FINISHED")
        self._run_id = None

    def close(self) -> None:
        """Mark a run that was left in the middle."""
        run_id, self._run_id = self._run_id, None
        if run_id is not None:
            with contextlib.suppress(LogError), _failures():
                self._client.set_terminated(run_id, "KILLED")

    def _check_server(self) -> None:
        try:
            with _failures():
                self._connect()
                self._client.search_experiments(max_results=1)
        except LogError as error:
            raise ConfigError(
                f"--mlflow: MLFLOW_TRACKING_URI cannot be used ({error}); fix it, or unset it for one in the output"
            ) from error

    def _connect(self) -> None:
        from mlflow import MlflowClient

        if self._client is None:
            uri = os.environ.get("MLFLOW_TRACKING_URI")
            if uri is None:  # the file store that older versions wrote is refused by newer ones
                self._store.mkdir(parents=True, exist_ok=True)
                uri = f"sqlite:///{self._store / 'mlflow.db'}"
            self._client = MlflowClient(tracking_uri=uri)

    def _find(self, directory: RunDirectory) -> Any:  # noqa: ANN401  # mlflow's Run, imported late
        from mlflow.exceptions import MlflowException

        if not (directory.path / RUN_FILE).is_file():
            return None
        try:
            return self._client.get_run(directory.read_json(RUN_FILE)["run_id"])
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # another server than last time
                return None
            raise

    def _begin(self, directory: RunDirectory) -> None:
        from mlflow.entities import Param

        run = self._client.create_run(self._experiment_id(), run_name=directory.path.resolve().name)
        self._run_id, self._is_finished = run.info.run_id, False
        settings = hyperparameters(directory.experiment())
        params = [Param(name, str(value)) for name, value in settings.items()]
        self._client.log_batch(self._run_id, params=params)
        directory.write_json(RUN_FILE, {"run_id": self._run_id})

    def _experiment_id(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "crad")
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        is_own = "MLFLOW_TRACKING_URI" not in os.environ
        place = (self._store / "artifacts").as_uri() if is_own else None
        return str(self._client.create_experiment(name, artifact_location=place))

    def _log(self, values: Mapping[str, float], *, step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + BATCH])


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn what a server, a network or a disk does not do into one line."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise LogError(" ".join(str(error).split())[:200]) from error
