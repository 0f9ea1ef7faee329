"""`crad.run`: one experiment from settings to a run directory; `crad.compare`: several of them, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from crad.aggregation import Rule
from crad.analysis.privacy_spent import word_about_counts
from crad.config import Experiment, settings_by_method
from crad.data.dataset import Dataset, untaught_warning
from crad.data.federated_data import FederatedData
from crad.device import reset_peak_memory
from crad.engines import make_engine
from crad.engines.processes import kept_workers
from crad.errors import ConfigError, RunError
from crad.federation.context import RunContext, build_run_context
from crad.federation.exchange import MemoryExchange
from crad.federation.method import MIN_PROXY, Method
from crad.federation.peer import new_model
from crad.federation.roster import Roster
from crad.federation.tasks import Engine
from crad.inspection import RunInspector, is_inspectable, write_inspection
from crad.methods import resolve_method
from crad.models import (
    ARCHITECTURES,
    Architecture,
    FittedModule,
    check_fits_kind,
    load_first_weights,
    resolve_architecture,
)
from crad.plugins import is_object, passing
from crad.prediction.run_models import (
    MODELS_FILE,
    RunModels,
    TemporaryStates,
    check_fits,
    models_record,
    stored_weights,
    with_statistics,
)
from crad.randomness import repeatable
from crad.report.comparison_folder import run_folder, write_comparison
from crad.report.page import report_page
from crad.report.sections.svg import partition_picture
from crad.results.comparison import Comparison, compare_results
from crad.results.result import Result, load
from crad.runs.callbacks import Callback, CallbackList, LambdaCallback
from crad.runs.canaries_record import CANARIES_FILE, canaries_record, canaries_text
from crad.runs.directory import PARTITION_FILE, REPORT_FILE, SUMMARY_FILE, WEIGHTS_FILE, RunDirectory
from crad.runs.loop import RunLoop
from crad.runs.metrics_record import METRICS_FILE, metrics_record, metrics_text
from crad.runs.passed_objects import AnyMethod, AnyModel, Passed, check_passed_again, name_objects
from crad.runs.records import Record, partition_record, weights_record
from crad.runs.resolution import resolve_experiment
from crad.runs.run_records import RunRecords
from crad.runs.selection import selected_round
from crad.runs.summary import summarise
from crad.training.private_step import check_private, check_unmixed

T = TypeVar("T")


def run(
    experiment: Experiment,
    *,
    data: Dataset | Path | str | None = None,
    models: Sequence[AnyModel] | None = None,
    method: AnyMethod | None = None,
    rule: Rule | str | None = None,
    label: str | None = None,
    site: str | None = None,
    text: str | Sequence[str] | None = None,
    test_data: Path | str | None = None,
    output: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run an experiment. With `output` it writes a run directory and survives interruption; without, nothing.

    What is passed as `data`, `models`, `method` or `rule` takes the place of the experiment's own name for it: a
    `crad.Dataset`, functions `build(num_classes, in_channels) -> nn.Module` beside names, a method object, a
    `crad.Rule`. Such objects live in this process: records call them `object:NAME` (data also by a hash), the clients
    run in one process where a model or a method is among them, and to continue the run they must be passed again.
    `label`, `site` and `text` name columns where `data` is a table's file, `test_data` one with its test rows.

    `resume=True` continues the run in `output` from its last complete round; a complete one is just read.

    Example:
        >>> data = crad.Dataset.from_arrays(x_train, y_train, x_test, y_test)  # doctest: +SKIP
        >>> experiment = crad.Experiment(clients=3, rounds=5, width=0.25)  # doctest: +SKIP
        >>> crad.run(experiment, data=data, models=[my_build, "cnn6"]).models[0].predict(x_test)  # doctest: +SKIP
    """
    columns: dict[str, Any] = {"label": label, "site": site, "text": text, "test_data": test_data}
    passed = name_objects(experiment, data=data, models=models, method=method, rule=rule, **columns)
    notices: list[str] = []
    callback = CallbackList([LambdaCallback(on_notice=notices.append), *callbacks])
    directory = None if output is None else RunDirectory(Path(output))
    callback.on_run_begin(passed.experiment, None if directory is None else directory.path)
    with passing(passed.objects):
        result = _run(passed, directory, resume=resume, callback=callback)
    result = replace(result, notices=tuple(notices), _objects=passed.objects)
    callback.on_run_end(result)
    return result


def compare(
    experiment: Experiment | Sequence[Result | Path | str],
    *,
    methods: Sequence[AnyMethod | Rule] = ("local", "uniform", "crad"),
    seeds: Sequence[int] | None = None,
    data: Dataset | Path | str | None = None,
    models: Sequence[AnyModel] | None = None,
    label: str | None = None,
    site: str | None = None,
    text: str | Sequence[str] | None = None,
    test_data: Path | str | None = None,
    output: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
) -> Comparison:
    """Run several methods with several seeds on identical partitions, and put them side by side.

    Methods are names or objects; differences are against the first. With `output` the runs, a table and a page are
    written there, and the same call continues after a stop. A list of results or run directories in place of the
    experiment is compared as it is. `experiment.method_settings` may have `METHOD.NAME` for one of the methods.

    Example:
        >>> experiment = crad.Experiment(preset="demo", rounds=3)
        >>> crad.compare(experiment, methods=["local", "crad"], seeds=[1, 2, 3])  # doctest: +SKIP
        >>> crad.compare(["runs/first", "runs/second"])  # doctest: +SKIP
    """
    if not isinstance(experiment, Experiment):
        return compare_results([one if isinstance(one, Result) else load(one) for one in experiment])
    folder = None if output is None else Path(output)
    numbers = [experiment.seed] if seeds is None else _each_once("seeds", seeds)
    methods = _each_once("methods", methods)
    columns: dict[str, Any] = {"label": label, "site": site, "text": text, "test_data": test_data}
    results = []
    with kept_workers():
        for seed in numbers:  # so that an early stop leaves whole comparisons
            for method in methods:
                keyword = "rule" if isinstance(method, Rule) else "method"
                given: dict[str, Any] = {"data": data, "models": models, keyword: method, **columns}
                one = _experiment_of(experiment, method, methods, seed=seed)
                place = {} if folder is None else _place_of(folder, one, given)
                results.append(run(one, **given, **place, callbacks=callbacks))
    compared = compare_results(results, directory=folder)
    if folder is not None:
        write_comparison(folder, results)
    return compared


def _each_once(name: str, values: Sequence[T]) -> list[T]:
    """Return what is to be compared; the same twice would be the same run twice, which shows nothing more."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} = {values!r}: expected a list, such as {name}=[{values!r}]")
    chosen = list(values)
    if not chosen:
        raise ConfigError(f"{name} is empty: give at least one of them, or leave {name} out")
    for place, value in enumerate(chosen):
        if any(value is other or (isinstance(value, int | str) and value == other) for other in chosen[:place]):
            raise ConfigError(f"{name} has {value!r} more than once: every run is repeatable, so give it once")
    return chosen


def _experiment_of(
    experiment: Experiment, method: AnyMethod | Rule, methods: Sequence[AnyMethod | Rule], *, seed: int
) -> Experiment:
    """Return one of the compared experiments: another seed, and of the method settings those that are its own."""
    names = [one for one in methods if isinstance(one, str)]
    by_method = settings_by_method(experiment.method_settings, names, otherwise=", or set it on a method object")
    own = by_method[method] if isinstance(method, str) else {}
    return Experiment(**{**experiment.model_dump(), "seed": seed, "method_settings": own})


def _place_of(folder: Path, experiment: Experiment, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a run of a comparison goes, and whether it goes on."""
    passed = name_objects(experiment, **given)
    with passing(passed.objects):
        path, is_there = run_folder(folder, passed.experiment)
    return {"output": path, "resume": is_there}


def _run(passed: Passed, directory: RunDirectory | None, *, resume: bool, callback: Callback) -> Result:
    if directory is not None and resume:
        check_passed_again(directory.experiment(), passed.objects, where=directory.path)
    experiment = resolve_experiment(passed.experiment)
    if directory is not None and resume:
        directory.check_same(experiment)
        if directory.summary_file.is_file():
            return Result(experiment, directory.summary(), directory.full_rounds(), directory.path)
    elif directory is not None:
        directory.check_free(experiment)
    method = resolve_method(experiment.method, experiment.method_settings)
    if not resume:
        _check_peers(method, experiment)
    for name in experiment.models:
        resolve_architecture(Architecture.parse(name).name)
    context = build_run_context(experiment)
    for name in experiment.models:
        check_fits_kind(Architecture.parse(name).name, context.data.dataset.kind)
    _check_proxy(method, context.data)
    running = _Simulation(method, context, directory, callback, objects=passed.objects)
    # Before the directory is made: an engine that cannot be had leaves none behind.
    with closing(make_engine(context, method, notice=callback.on_notice)) as engine:
        if directory is None:
            return running.execute(engine, is_new=True)
        try:
            if not resume:
                directory.create(experiment)
            with directory.locked():
                return running.execute(engine, is_new=not resume)
        except OSError as error:
            raise RunError(
                f"writing to {directory.path} failed ({error.strerror or error}); everything up to the last complete "
                f"round is safe: fix that, then crad run --resume {directory.path}"
            ) from error


def _check_peers(method: Method, experiment: Experiment) -> None:
    """Refuse to call it a federation where a client has nobody to learn from."""
    if experiment.clients == 1 and any(phase.publish is not None for phase in method.phases):
        raise ConfigError(
            f"method {method.name!r} learns from other clients, and there is one: set clients to 2 or more, or take "
            "method 'local', which trains alone"
        )


def _check_proxy(method: Method, data: FederatedData) -> None:
    several = data.dataset.kind_of_data.words.several
    if method.common_images == "proxy" and len(data.proxy) < MIN_PROXY:
        raise ConfigError(
            f"method {method.name!r} learns on proxy {several}, and there are {len(data.proxy)}: set proxy_size to "
            f"at least {MIN_PROXY}; never more than a tenth of the {len(data.dataset.train_labels)} training {several} "
            "are taken"
        )


class _Simulation:
    """One execution of one experiment, with all peers in this process's hands."""

    def __init__(
        self,
        method: Method,
        context: RunContext,
        directory: RunDirectory | None,
        callback: Callback,
        *,
        objects: Mapping[str, Any],
    ) -> None:
        self._method, self._context, self._experiment = method, context, context.experiment
        self._directory, self._callback, self._objects = directory, callback, objects
        self._partition = partition_record(context.data)
        self._members = method.roster(context)
        self._models = models_record(context, self._members)
        about_counts = word_about_counts(context.experiment)
        for word in (untaught_warning(context.data.dataset), context.word_about_norms, about_counts):
            if word:
                callback.on_notice(word)
        # Every kind of model is built and tried before anything is written: a faulty one leaves no directory behind.
        with repeatable(context.experiment.seed, "roster", device=context.device):
            for architecture in dict.fromkeys(member.architecture for member in self._members if not member.build):
                if word := check_model(context, architecture):
                    callback.on_notice(word)
            context.adversary.check(context, self._members)

    def execute(self, engine: Engine, *, is_new: bool) -> Result:
        """Run all rounds that are still to come, then write what they came to."""
        if self._directory is not None:
            self._describe(self._directory, is_new=is_new)
            return self._execute_in(self._directory.checkpoint_folder, engine, is_new=is_new)
        kept = TemporaryStates()  # goes with the result, which reads its models there
        try:
            return self._execute_in(kept.path, engine, is_new=is_new, kept=kept)
        except BaseException:
            kept.remove()
            raise

    def _execute_in(self, folder: Path, engine: Engine, *, is_new: bool, kept: TemporaryStates | None = None) -> Result:
        roster = Roster(self._context, self._members, folder)
        loop = RunLoop(self._method, roster, exchange=MemoryExchange(), engine=engine, directory=self._directory)
        records = [] if is_new else loop.restore()
        self._check_networks(roster)
        tell = partial(self._tell, engine=engine)
        self._callback.on_partition(self._partition)
        tell(records)  # what a resumed run has already
        reset_peak_memory(self._context.device)
        try:
            loop.run(records, callback=self._callback, on_progress=tell)
        finally:
            roster.forget_messages()
        self._keep_canaries(roster)  # before the roster is put back to another round
        self._models = with_statistics(self._models, self._context, loop.selected_evaluations(records))
        metrics = loop.measure(records)
        found = None if metrics is None else metrics_record(metrics)
        run = self._finish(self._records(records, engine=engine, metrics=found))
        models = RunModels(
            self._experiment,
            self._models,
            loop.selected_states(records),
            run.summary["best_round"],
            self._objects,
            kept,
        )
        return Result(
            self._experiment, run.summary, run.rounds, run.path, run.partition, _models=models, _metrics=run.metrics
        )

    def _keep_canaries(self, roster: Roster) -> None:
        if self._directory is not None and self._experiment.canaries:
            self._directory.write_text(CANARIES_FILE, canaries_text(canaries_record(roster)))

    def _check_networks(self, roster: Roster) -> None:
        """Refuse a network that was passed again and is another one: the weights so far would not fit."""
        for slot in roster:
            architecture = slot.member.architecture
            if slot.state is not None and is_object(architecture.name):
                model = new_model(self._context, architecture, seed=0)
                check_fits(model, stored_weights(slot.state), name=architecture.name, where=slot.state)

    def _describe(self, directory: RunDirectory, *, is_new: bool) -> None:
        """Write down how the data is divided and who begins with which weights; in a resumed run all is as it was."""
        weights = weights_record(self._members)
        if not is_new and (directory.path / PARTITION_FILE).is_file():
            directory.check_same_data(self._partition)
            directory.check_same_weights(weights)
        else:
            if weights:
                directory.write_json(WEIGHTS_FILE, weights)
            directory.write_json(PARTITION_FILE, self._partition)
        directory.write_json(MODELS_FILE, self._models)
        directory.write_text("partition.svg", partition_picture(self._partition))

    def _tell(self, rounds: list[Record], *, engine: Engine) -> None:
        if self._callback.wants_records and selected_round(rounds) is not None:
            self._callback.on_records(self._records(rounds, engine=engine))

    def _records(self, rounds: list[Record], *, engine: Engine, metrics: Record | None = None) -> RunRecords:
        """Return the run so far; the summary is of the rounds that are there."""
        summary = summarise(
            self._experiment,
            rounds=rounds,
            partition=self._partition,
            device=engine.device,
            workers=engine.workers,
            gpus=engine.gpus,
            about={
                "is_reconstruction": self._method.is_reconstruction,
                "payload_counts": self._method.payload,
                "common_images": self._method.common_images,
            },
            metrics=metrics,
        )
        path = None if self._directory is None else self._directory.path
        return RunRecords(self._experiment, self._partition, list(rounds), summary, path=path, metrics=metrics)

    def _finish(self, run: RunRecords) -> RunRecords:
        if self._directory is not None:
            run = replace(run, inspection=self._inspect(self._directory))
            if run.metrics is not None:
                self._directory.write_text(METRICS_FILE, metrics_text(run.metrics))
            self._directory.write_text(REPORT_FILE, report_page([run]))
            self._directory.write_json(MODELS_FILE, self._models)
            self._directory.write_json(SUMMARY_FILE, run.summary)
        return run

    def _inspect(self, directory: RunDirectory) -> Record | None:
        """Write `inspection.json`: how teachers were combined for some test images, if the method has a rule."""
        if not is_inspectable(self._method, self._experiment.clients):
            return None
        return write_inspection(directory, RunInspector(directory.path, context=self._context))


def check_model(context: RunContext, architecture: Architecture) -> str | None:
    """Build a model once, a user's twice, for its first weights must follow from the seed; try weights from a file.

    Return what to say of these, None where there are none.
    """
    model = new_model(context, architecture, seed=0)
    if isinstance(model, FittedModule):
        model.check_fittable(architecture.name)
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if context.privacy is not None:
        check_private(model, name=architecture.id)
        if architecture.name not in ARCHITECTURES:
            check_unmixed(model, context.input_shape, name=architecture.id)
    if architecture.name not in ARCHITECTURES:
        again = new_model(context, architecture, seed=0).state_dict()
        different = [name for name, tensor in first.items() if not torch.equal(tensor, again[name])]
        if different:
            raise ConfigError(
                f"model {architecture.name!r}: two built with the same seed differ in {different[0]!r}; draw its first "
                "weights with torch's own generator"
            )
    if architecture.weights is None:
        return None
    loaded = load_first_weights(model, architecture.weights, name=architecture.id)
    return loaded.sentence(architecture.id, architecture.weights)
