"""`crad.run`: one experiment from settings to a run directory. The command line stands on this."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from crad.config import Experiment
from crad.device import repeatable
from crad.engines import make_engine
from crad.errors import ConfigError, RunError
from crad.federation.attacks import check_attack
from crad.federation.exchange import MemoryExchange
from crad.federation.federated_data import FederatedData, build_federated_data
from crad.federation.method import MIN_PROXY, Method
from crad.federation.peer import new_model
from crad.federation.roster import Roster
from crad.federation.rounds import Round, RoundLoop
from crad.federation.tasks import Engine
from crad.inspection import RunInspector, is_inspectable, write_inspection
from crad.memory import reset_peak_memory
from crad.methods import resolve_method
from crad.models import ARCHITECTURES, Architecture, resolve_architecture
from crad.randomness import torch_seed
from crad.report.page import report_page
from crad.report.svg import partition_picture
from crad.runs.callbacks import Hooks
from crad.runs.checkpoint import latest_round, load_checkpoint, save_checkpoint
from crad.runs.directory import RunDirectory
from crad.runs.records import Record, partition_record, round_record
from crad.runs.resolution import resolve_experiment
from crad.runs.result import Result
from crad.runs.run_records import RunRecords
from crad.runs.selection import best_round
from crad.runs.summary import summarise


def run(
    experiment: Experiment, *, output: Path | str | None = None, resume: bool = False, hooks: Hooks | None = None
) -> Result:
    """Run an experiment. With `output` it writes a run directory and survives interruption; without, nothing.

    `resume=True` continues the run in `output` from its last complete round; a complete one is just read.
    """
    experiment = resolve_experiment(experiment)
    directory = None if output is None else RunDirectory(Path(output))
    if directory is not None and resume:
        directory.check_same(experiment)
        if directory.summary_file.is_file():
            return Result(experiment, directory.summary(), directory.full_rounds(), directory.path)
    elif directory is not None:
        directory.check_free(experiment)
    method = resolve_method(experiment.method, experiment.method_settings)
    for name in experiment.models:
        resolve_architecture(name.partition("@")[0])
    world, told = build_federated_data(experiment), hooks or Hooks()
    if method.common_images == "proxy" and len(world.proxy) < MIN_PROXY:
        raise ConfigError(
            f"method {experiment.method!r} learns on proxy images, and there are {len(world.proxy)}: set proxy_size to "
            f"at least {MIN_PROXY}; never more than a tenth of the {len(world.dataset.train_labels)} training images "
            "are taken"
        )
    running = _Run(method, world, directory, told)
    # Before the directory is made: an engine that cannot be had leaves none behind.
    with closing(make_engine(world, method, notice=told.on_notice)) as engine:
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
                f"round is safe: mend that, then crad run --resume {directory.path}"
            ) from error


class _Run:
    """One execution of one experiment."""

    def __init__(self, method: Method, world: FederatedData, directory: RunDirectory | None, hooks: Hooks) -> None:
        self._method = method
        self._experiment = world.experiment
        self._world = world
        self._directory = directory
        self._hooks = hooks
        self._partition = partition_record(world)
        self._members = method.roster(world)
        # Every kind of model is built and tried before anything is written: a faulty one leaves no directory behind.
        with repeatable(torch_seed(world.experiment.seed, "roster"), world.device):
            for architecture in dict.fromkeys(member.architecture for member in self._members if not member.build):
                check_model(world, architecture)
            check_attack(world, self._members)

    def execute(self, engine: Engine, *, is_new: bool) -> Result:
        if self._directory is not None:
            return self._execute_in(self._directory.checkpoint_folder, engine, is_new=is_new)
        # A worker that is about to be ended may still write there.
        with tempfile.TemporaryDirectory(prefix="crad-", ignore_cleanup_errors=True) as folder:
            return self._execute_in(Path(folder), engine, is_new=is_new)

    def _execute_in(self, folder: Path, engine: Engine, *, is_new: bool) -> Result:
        if self._directory is not None and is_new:
            self._begin(self._directory)
        roster = Roster(self._world, self._members, folder)
        records = [] if self._directory is None or is_new else self._restore(self._directory, roster)
        self._hooks.on_partition(self._partition)
        self._tell(records, workers=engine.workers)  # what a resumed run has already
        reset_peak_memory(self._world.device)
        try:
            loop = RoundLoop(self._method, roster, exchange=MemoryExchange(), engine=engine)
            for done in loop.run(after=len(records), on_step=self._hooks.on_step):
                records.append(round_record(done, roster))
                self._save(records, roster, done)
                self._hooks.on_round(records[-1])
                self._tell(records, workers=engine.workers)
        finally:
            roster.forget_messages()
        written = self._records(records, workers=engine.workers)
        if self._directory is not None:
            written = replace(written, inspection=self._inspect(self._directory))
            self._directory.write_text("report.html", report_page([written]))
            self._directory.write_json("summary.json", written.summary)
        return Result(self._experiment, written.summary, records, written.path)

    def _tell(self, rounds: list[Record], *, workers: int) -> None:
        if self._hooks.on_records is not None and best_round(rounds) is not None:
            self._hooks.on_records(self._records(rounds, workers=workers))

    def _records(self, rounds: list[Record], *, workers: int) -> RunRecords:
        """The run so far; the summary is of the rounds that are there."""
        summary = summarise(
            self._experiment,
            rounds=rounds,
            partition=self._partition,
            device=self._world.device,
            workers=workers,
            about={
                "is_reconstruction": self._method.is_reconstruction,
                "payload_counts": self._method.payload,
                "common_images": self._method.common_images,
            },
        )
        path = None if self._directory is None else self._directory.path
        return RunRecords(self._experiment, self._partition, list(rounds), summary, path=path)

    def _inspect(self, directory: RunDirectory) -> Record | None:
        """`inspection.json`: how teachers were combined for some test images, where the method does that by a rule."""
        if not is_inspectable(self._method, self._experiment.clients):
            return None
        return write_inspection(directory, RunInspector(directory.path, world=self._world))

    def _begin(self, directory: RunDirectory) -> None:
        directory.write_json("partition.json", self._partition)
        directory.write_text("partition.svg", partition_picture(self._partition))

    def _restore(self, directory: RunDirectory, roster: Roster) -> list[Record]:
        if (directory.path / "partition.json").is_file():
            directory.check_same_data(self._partition)
        else:
            directory.write_json("partition.json", self._partition)
        directory.write_text("partition.svg", partition_picture(self._partition))
        directory.full_rounds()  # damaged records are refused before anything is cut
        reached = latest_round(roster.folder)
        if reached is None:
            written = len(directory.rounds())
            if written > 1:  # one may be there: a line is written before its checkpoint
                raise RunError(
                    f"{directory.path} has {written} rounds but no checkpoint of them that this version reads; "
                    "put checkpoint/ back, or begin anew with another --output"
                )
            return directory.cut_rounds(after=0)
        records = directory.cut_rounds(after=reached)
        load_checkpoint(roster, round_index=reached)
        return records

    def _save(self, records: list[Record], roster: Roster, done: Round) -> None:
        if self._directory is None:
            roster.forget_states()
            return
        for learned in done.learned.values():
            for name, content in learned.artifacts.items():
                self._directory.write_artifact(name, content)
        # The line first: a checkpoint without its line would lose a round, a line without its checkpoint is cut.
        self._directory.append_round(records[-1])
        best = best_round(records)
        save_checkpoint(
            roster,
            round_index=records[-1]["round"],
            changed=set(done.learned),
            keep=set() if best is None else {best["round"]},
        )


def check_model(world: FederatedData, architecture: Architecture) -> None:
    """Build a model once; a user's twice, for its first weights must follow from the seed."""
    first = new_model(world, architecture, seed=0).state_dict()
    if architecture.name in ARCHITECTURES:
        return
    again = new_model(world, architecture, seed=0).state_dict()
    different = [name for name, tensor in first.items() if not torch.equal(tensor, again[name])]
    if different:
        raise ConfigError(
            f"model {architecture.name!r}: two built with the same seed differ in {different[0]!r}; draw its first "
            "weights with torch's own generator"
        )
