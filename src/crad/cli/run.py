"""`crad run`: one experiment."""

from __future__ import annotations

import gc
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crad.cli.callback_options import CallbackOptions
from crad.cli.options import AsJson, ConfigFile, Output, Quiet, Settings, with_experiment_flags
from crad.cli.terminal.signals import Terminated
from crad.config import Experiment, make_experiment, names_of, setting_of
from crad.errors import ConfigError, RunError

if TYPE_CHECKING:
    from crad.analysis.verdict import JoiningVerdict
    from crad.cli.terminal.progress import Display
    from crad.results.result import Result
    from crad.runs.callbacks import Callback
    from crad.runs.run_records import RunRecords

ResumeFlag = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="Continue the run in this directory where it stopped.")
]
AgainstFlag = Annotated[
    Path | None,
    typer.Option("--against", metavar="RUN", help="A run of the same clients alone (method local): did joining help?"),
]
# What two runs must share for their clients to be the same ones.
SHARED = ("dataset", "clients", "seed", "partition", "alpha")
ACCURACIES = {"global_accuracy": "global accuracy", "local_accuracy": "local accuracy"}


@with_experiment_flags()
def run_command(
    settings: Settings,
    callback_options: CallbackOptions,
    config: ConfigFile = None,
    output: Output = None,
    resume: ResumeFlag = None,
    against: AgainstFlag = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run one experiment and write a run directory.

    Example: crad run --preset mini --dataset cifar10 --method crad --output runs/first
    """
    if resume is not None:
        experiment = _resumed(resume, settings, config=config, output=output)
        directory = resume
    else:
        experiment = make_experiment(settings, path=config)
        directory = output or default_output(experiment, experiment.method)
    alone = None if against is None else _alone(against, experiment)
    import_run_loop()
    from rich.console import Console

    from crad.cli.terminal.progress import Display

    display = Display(Console(stderr=True), is_quiet=quiet)
    with callback_options.callbacks(directory) as callbacks:
        result = run_shown(display, experiment, directory, is_resumed=resume is not None, callbacks=callbacks)
        verdict = None if alone is None else _verdict(directory, alone)
        report_outcome(result, verdict=verdict, is_quiet=quiet, as_json=as_json)
        show_report(callbacks, directory)


@cache
def import_run_loop() -> None:
    """Import all that a run needs, and let the garbage collector pass over it from now on: it stays to the end."""
    import crad

    _ = crad.run
    gc.freeze()


def run_shown(
    display: Display,
    experiment: Experiment,
    directory: Path,
    *,
    is_resumed: bool,
    is_partition_shown: bool = True,
    hint: str | None = None,
    callbacks: Sequence[Callback] = (),
    label: str | None = None,
    left_after: float | None = None,
) -> Result:
    """Run with progress; an interruption says how to go on (`hint`, or resuming this very run).

    `left_after`: seconds that the runs after this one will take, where that is known.
    """
    import_run_loop()
    from crad.api import run
    from crad.runs.names import title_of

    label = label or title_of(experiment)
    try:
        with display.running(label, is_partition_shown=is_partition_shown, left_after=left_after) as shown:
            return run(experiment, output=directory, resume=is_resumed, callbacks=[shown, *callbacks])
    except (KeyboardInterrupt, Terminated):
        if directory.exists():
            cure = hint or f"crad run --resume {shlex.quote(str(directory))}"
            typer.echo(f"crad: stopped; continue with {cure}", err=True)
        raise


def show_report(callbacks: Sequence[Callback], folder: Path) -> None:
    """Tell those who heard of the runs that everything is written, and where the report is."""
    from crad.runs.directory import REPORT_FILE

    for callback in callbacks:
        callback.on_report(folder / REPORT_FILE)


def report_outcome(result: Result, *, verdict: JoiningVerdict | None = None, is_quiet: bool, as_json: bool) -> None:
    """Print the outcome on standard output: a table and whether joining helped, JSON, or the path alone."""
    from rich.console import Console

    from crad.analysis.verdict import to_json
    from crad.cli.terminal.terminal_tables import plain_table, print_verdict
    from crad.report.tables import mib

    summary = result.summary
    if as_json:
        said = {} if verdict is None else {"verdict": to_json(verdict)}
        typer.echo(json.dumps({"directory": str(result.directory), **summary, **said}, indent=1))
        return
    if not is_quiet:
        rows = [
            *_accuracy_rows(summary),
            ["validation accuracy", f"{summary['validation_accuracy']:.2f} %", ""],
            [
                f"{summary.get('payload_counts', 'sent')} per client and round",
                f"{mib(summary['payload_bytes_per_client_round'])} MiB",
                "",
            ],
            ["time per round", f"{summary['round_seconds']:.2f} s", ""],
            ["peak memory", f"{mib(summary['peak_memory_bytes'])} MiB", ""],
        ]
        if "clipped_share" in summary:
            rows.append(["steps whose gradient was clipped", f"{100 * summary['clipped_share']:.1f} %", ""])
        if committee := summary.get("committee"):
            for key, what in ACCURACIES.items():
                if committee[key] is not None:
                    rows.append([f"{what}, all models together", f"{committee[key]:.2f} %", ""])
        if privacy := summary.get("privacy"):
            spent = max(privacy["epsilon_per_client"], default=0.0)
            rows.append([f"epsilon spent, delta {privacy['delta']:g}", f"{spent:.3f}", "the most of a client"])
        for name, figures in summary.get("variants", {}).items():
            spread = f"± {figures['global_accuracy_spread']:.2f}"
            rows.insert(2, [f"global accuracy, {name} weights", f"{figures['global_accuracy']:.2f} %", spread])
        mark = " (our reconstruction, no public code)" if summary.get("is_reconstruction") else ""
        title = (
            f"{summary.get('name', summary['method'])}{mark} on {summary['dataset']}, round "
            f"{summary.get('honest', summary)['best_round']} of {summary['rounds']}"
        )
        Console().print(plain_table([title, "mean", "over clients"], rows))
        _print_metrics(summary)
        print_verdict(Console(), verdict)
        if "privacy" in summary:
            typer.echo("A simulation's noise follows its seed: it shows what privacy costs and protects nobody.")
    typer.echo(str(result.directory))


def _print_metrics(summary: Mapping[str, Any]) -> None:
    """Print the metrics beyond accuracy with their intervals; nothing of a run of an earlier version."""
    from rich.console import Console

    from crad.analysis.metric_rows import METRIC_TITLES, TEST_SETS
    from crad.cli.terminal.terminal_tables import plain_table
    from crad.training.metrics import estimate_from_json

    found = summary.get("metrics")
    if found is None:
        return
    shown = {name: title for name, title in TEST_SETS.items() if name in found}
    rows = [
        [title, *(str(estimate_from_json(found[test_set][metric])) for test_set in shown)]
        for metric, title in METRIC_TITLES.items()
    ]
    Console().print(plain_table(["beyond accuracy, % with 95 % interval", *shown.values()], rows))


def _accuracy_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Return both accuracies and their spread over the clients; under an attack of the honest ones, at their round."""
    honest = summary.get("honest")
    if honest is None:
        return [
            [what, f"{summary[key]:.2f} %", f"± {summary[f'{key}_spread']:.2f}"] for key, what in ACCURACIES.items()
        ]
    rows = [[f"{what}, honest clients", f"{honest[key]:.2f} %", ""] for key, what in ACCURACIES.items()]
    if "attack_success" in honest:
        rows.append(["trigger works on honest clients", f"{honest['attack_success']:.2f} %", ""])
    return rows


def default_output(experiment: Experiment, what: str) -> Path:
    """Return a new name under `runs/`, in the order of time."""
    dataset = Path(experiment.dataset).stem or "data"
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{dataset}-{what.replace(':', '.')}"


def _alone(path: Path, experiment: Experiment) -> RunRecords:
    """Return the run of training alone that this one is held against; refuse one with other clients."""
    from crad.analysis.gains import ALONE
    from crad.runs.run_records import load_run

    alone = load_run(path)
    if alone.experiment.method != ALONE:
        raise ConfigError(f"--against {path}: that is a run of {alone.experiment.method!r}, expected one of {ALONE!r}")
    for name in SHARED:
        ours, theirs = getattr(experiment, name), getattr(alone.experiment, name)
        if ours != theirs:
            raise ConfigError(f"--against {path}: {name} is {theirs} there and {ours} here, so the clients differ")
    return alone


def _verdict(directory: Path, alone: RunRecords) -> JoiningVerdict | None:
    """Return whether joining helped; where the data turn out to differ, say so and go on: the run is there."""
    from crad.analysis.comparable import comparable_runs
    from crad.analysis.verdict import joining_verdict
    from crad.runs.run_records import load_run

    try:
        return joining_verdict(comparable_runs([load_run(directory), alone])[0])
    except RunError as error:
        typer.echo(f"crad: whether joining helped cannot be said: {error}", err=True)
        return None


def _resumed(directory: Path, settings: Settings, *, config: Path | None, output: Path | None) -> Experiment:
    from crad.runs.directory import RunDirectory

    _refuse_comparison(directory)
    changed = [name for name in settings if name not in names_of("execution")]
    if changed or config or output:
        flags = [f"--{name.replace('_', '-')}" for name in changed]
        flags += [flag for flag, value in (("--config", config), ("--output", output)) if value]
        raise ConfigError(f"--resume takes its settings from {directory}; leave out {', '.join(flags)}")
    stored = RunDirectory(directory).experiment().model_dump()
    if "engine" in settings:  # what was set for another engine may not fit this one
        stored = {name: value for name, value in stored.items() if not setting_of(name).is_of_engine}
    return make_experiment({**stored, **settings})


def _refuse_comparison(directory: Path) -> None:
    """Say which command continues a folder of runs, where that is what was named."""
    from crad.runs.directory import RunDirectory, runs_in

    if RunDirectory(directory).experiment_file.exists() or not runs_in(directory):
        return
    from crad.report.commands import continuing_command

    raise ConfigError(f"{directory} is a comparison of several runs: continue it with {continuing_command(directory)}")
