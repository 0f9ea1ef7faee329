"""What `crad.run` returns, and `crad.load` reads back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crad.aggregation import Rule
from crad.config import EvidenceSource, Experiment, TeacherPrior
from crad.data.dataset import Dataset
from crad.errors import ConfigError, RunError, client_number
from crad.prediction.committee import Committee, make_committee
from crad.prediction.committee_choice import check_size
from crad.prediction.export import committee_file_name, export_model, file_name
from crad.prediction.run_models import RunModels, UnknownClientError, complete_models, stored_models, validation_half
from crad.prediction.trained_model import TrainedModel
from crad.report.notebook import result_html
from crad.results.figures import accuracy_curves
from crad.results.frames import frame
from crad.runs.directory import RunDirectory
from crad.runs.metrics_record import stored_metrics
from crad.runs.names import title_of
from crad.runs.passed_objects import AnyMethod, AnyModel, name_objects
from crad.runs.records import Record
from crad.runs.run_records import RunRecords, load_run
from crad.runs.selection import clients_at
from crad.training.metrics import ClassificationMetrics

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Result:
    """What a run came to: `summary` is `summary.json`, `rounds` are the lines of `rounds.jsonl`.

    Example:
        >>> result = crad.run(crad.Experiment(preset="demo", rounds=2))  # doctest: +SKIP
        >>> result.summary["global_accuracy"], result.to_frame()  # doctest: +SKIP
        >>> result.models[0].predict(images)  # doctest: +SKIP
    """

    experiment: Experiment
    summary: Record
    rounds: list[Record]
    directory: Path | None
    partition: Record | None = None
    notices: tuple[str, ...] = ()  # what went otherwise than asked for, and why
    _models: RunModels | None = field(default=None, repr=False)
    _objects: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _metrics: Record | None = field(default=None, repr=False)

    @cached_property
    def models(self) -> RunModels:
        """Return the clients' models at the selected round: `models[3].predict(x)` on images as they were given.

        Each is read from disk when asked for.

        Example:
            >>> result.models[0].predict_proba(x_test, face="local")  # doctest: +SKIP
        """
        if self._models is not None:
            return self._models
        if self.directory is None:
            raise RunError("this result has no models: it was made from records alone")
        directory = RunDirectory(self.directory)
        return stored_models(directory, round_index=self.summary["best_round"], objects=self._objects)

    def to_frame(self) -> pandas.DataFrame:
        """Return one row per round and client: accuracies in percent, losses, bytes. Needs pandas.

        A client that was neither active nor tested in a round stands there as it was before.

        Example:
            >>> result.to_frame().pivot(index="round", columns="client", values="global_accuracy")  # doctest: +SKIP
        """
        rows = [
            {
                "method": self.summary.get("name", self.summary["method"]),
                "seed": self.experiment.seed,
                "round": record["round"],
                "client": client["client"],
                "architecture": client["architecture"],
                "is_active": client["client"] in record["active"],
                **{key: client.get(key) for key in ("validation_accuracy", "local_accuracy", "global_accuracy")},
                **{f"{name}_loss": value for name, value in (client.get("losses") or {}).items()},
                **{key: client.get(key) for key in ("sent_bytes", "received_bytes")},
            }
            for record in self.rounds
            for client in clients_at(self.rounds, record["round"])
        ]
        return frame(rows)

    def metrics(
        self, client: int | None = None, *, face: Literal["global", "local", "pooled"] = "global"
    ) -> ClassificationMetrics:
        """Return metrics beyond accuracy at the selected round, in percent, each with a 95 % bootstrap interval.

        Of one client, or the means over all (under a simulated attack the honest ones). `face="global"` is on the
        common test samples, `"local"` on the clients' own test halves, `"pooled"` on all of these as one test set,
        every sample by its owner's model. What has too few samples says so.

        Example:
            >>> result.metrics(client=3)["auroc"], result.metrics().confusion  # doctest: +SKIP
        """
        record = self._metrics
        if record is None and self.directory is not None:
            record = load_run(self.directory).metrics
        if record is None:
            raise RunError("this result has no metrics: its run was made by an earlier version; run it again")
        return stored_metrics(record, client=client, face=face)

    def curves(self) -> Any:  # noqa: ANN401  # an Altair chart, whose package is an extra
        """Return a chart of global and local accuracy over rounds, which a notebook shows. Needs `crad[report]`.

        Example:
            >>> result.curves().save("curves.html")  # doctest: +SKIP
        """
        return accuracy_curves([self.records()])

    def committee(
        self,
        client: int | None = None,
        *,
        rule: str | Rule | None = None,
        teacher_prior: TeacherPrior | None = None,
        evidence: EvidenceSource | None = None,
        members: Sequence[int] | None = None,
        temperature: float | None = None,
        size: int | None = None,
    ) -> Committee:
        """Return the clients' models as one predictor: each as its owner publishes it, combined by a rule.

        `client` is whom it serves, whose class shares its local face has. `rule` is a name in `crad.RULES` or a
        `crad.Rule`; `teacher_prior` says whether every member's own class shares are taken out of what it says first,
        "remove" or "keep". `evidence` says what members are weighed by: what they publish, "reported", what the client
        counted of them on its own validation half, "own", or "pooled", both. Left out, all are as in the run's own
        measurement, `summary["committee"]`; a committee for nobody in particular has what is published. `members` are
        those to ask, None: everybody. Who cannot be heard is left out: `committee.left_out` says why. `size=4` takes at
        most four, those that help on the client's own validation images (see `Committee.chosen`), which needs the
        run's data: where that was passed in memory, pass it again, `crad.load(path, data=...)`.

        Example:
            >>> committee = result.committee(client=3)  # doctest: +SKIP
            >>> committee.predict_proba(x, face="local"), committee.members  # doctest: +SKIP
        """
        if size is not None:
            check_size(size)
            if client is None:
                raise ConfigError("size: members are chosen on one client's own images; say whose, such as client=0")
        models = self._complete_models()
        everybody = make_committee(
            models,
            client=client,
            rule=rule,
            teacher_prior=teacher_prior,
            evidence=evidence,
            members=members,
            temperature=temperature,
        )
        if size is None or client is None:
            return everybody
        directory = None if self.directory is None else RunDirectory(self.directory)
        return everybody.chosen(size, *validation_half(models, client, directory=directory))

    def _complete_models(self) -> RunModels:
        return self.models if self.directory is None else complete_models(self.models, RunDirectory(self.directory))

    def export(
        self,
        format: str = "safetensors",
        *,
        client: int | None = None,
        committee: Committee | None = None,
        path: Path | str | None = None,
    ) -> Path:
        """Write a client's model, or a committee, as one file with preprocessing, class names and both faces.

        `format` is "safetensors" or "onnx" (needs `crad[onnx]`). Without a path it goes into the run directory. Return
        where it is.

        Example:
            >>> result.export("onnx", client=3, path="client-3.onnx")  # doctest: +SKIP
            >>> result.export("onnx", committee=result.committee(client=3))  # doctest: +SKIP
        """
        if path is None and self.directory is None:
            raise ConfigError('path: this run has no directory; say where the file goes, such as path="model.onnx"')
        if (client is None) == (committee is None):
            raise ConfigError("say what is to be exported: client=0 for one model, or committee=... for several")
        if client is not None:
            number = client_number(client, clients=len(self.models))
            name, model = file_name(format, number), self._model_of(number)
        else:
            assert committee is not None, "one of both"
            name, model = committee_file_name(format, committee.client), committee
        return export_model(model, format, Path(path) if path is not None else Path(self.directory or "") / name)

    def _model_of(self, client: int) -> TrainedModel:
        if client < 0:  # counting from the end is for lists; a file must not be the wrong organisation's
            raise UnknownClientError(f"client {client} does not exist; choose 0 to {len(self.models) - 1}")
        return self.models[client]

    def records(self) -> RunRecords:
        """Return the run's records, as charts, tables and pages read them."""
        if self.partition is not None:
            run = RunRecords(self.experiment, self.partition, self.rounds, self.summary, path=self.directory)
            return replace(run, metrics=self._metrics)
        if self.directory is None:
            raise RunError("this result has no partition: it was made from records alone")
        return load_run(self.directory)

    def __repr__(self) -> str:
        summary = self.summary
        where = "" if self.directory is None else f", {self.directory}"
        return (
            f"<Result {title_of(self.experiment)} on {summary['dataset']}: global {summary['global_accuracy']:.2f} %, "
            f"local {summary['local_accuracy']:.2f} %, round {summary['best_round']} of {summary['rounds']}{where}>"
        )

    def _repr_html_(self) -> str:
        """Return the outcome as a small table, for notebooks."""
        return result_html(self.summary, notices=self.notices, sites=(self.partition or {}).get("sites", ()))


def load(
    path: Path | str,
    *,
    data: Dataset | None = None,
    models: Sequence[AnyModel] | None = None,
    method: AnyMethod | None = None,
) -> Result:
    """Read a finished run back from its directory.

    Its figures need nothing else. Its models need `models=[...]` where networks were passed to the run as objects:
    pass the same list again.

    Example:
        >>> crad.load("runs/first").models[3].predict(x)  # doctest: +SKIP
    """
    directory = RunDirectory(Path(path))
    experiment = directory.experiment()
    if not directory.summary_file.is_file():
        raise RunError(f"{path} is not finished: continue it with crad run --resume {path}")
    objects = name_objects(experiment, data=data, models=models, method=method).objects
    run = load_run(directory.path)
    return Result(
        experiment, run.summary, run.rounds, directory.path, run.partition, _objects=objects, _metrics=run.metrics
    )
