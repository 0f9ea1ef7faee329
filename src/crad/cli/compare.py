"""`crad compare`: several methods and seeds on identical partitions; `crad demo` is one on embedded data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crad.cli.callback_options import CallbackOptions
from crad.cli.options import AsJson, ConfigFile, Quiet, Settings, with_experiment_flags
from crad.cli.run import default_output, import_run_loop, run_shown, show_report
from crad.cli.several_values import parse_methods, parse_seeds
from crad.config import ALIASES, Experiment, make_experiment, names_of, settings_by_method
from crad.errors import ConfigError

if TYPE_CHECKING:
    from crad.analysis.comparison import ComparisonRow
    from crad.analysis.metric_rows import MetricRow
    from crad.analysis.verdict import JoiningVerdict
    from crad.results.result import Result
    from crad.runs.callbacks import Callback

    Compared = tuple[list[ComparisonRow], JoiningVerdict | None]

DEFAULT_METHODS = "local,uniform,crad"
# The demo: a preset, what makes it quick, and seeds for an interval; docs/decisions/0016-the-demo.md says how chosen.
DEMO: Settings = {
    "preset": "demo",
    "models": ("cnn6", "cnn6@0.5"),
    "batch_size": 32,
    "lr": 0.1,
    "distill_weight": 0.7,
}
DEMO_METHODS, DEMO_SEEDS = "local,uniform,crad,crad-plus", "11,12,13"
# Its second part: what reliability is for. Two of eight members mean the opposite by yes and no, and believe it.
DEMO_SWAPPED: Settings = {
    "dataset": "breast-cancer",
    "clients": 8,
    "alpha": 0.5,
    "models": ("mlp", "mlp-deep", "mlp@0.5", "mlp-deep@0.5"),
    "optimizer": "adamw",
    "lr": 0.003,
    "batch_size": 16,
    "proxy_size": 0,
    "rounds": 20,
    "eval_every": 20,  # the last round alone: a handful of validation samples chooses none
    "attack": "label-flip",
    "attackers": 2,
}
SWAPPED = "two-swapped"  # its folder
# How much of a world: the demo's second part has that as well.
_OF_EITHER_PART = {"active", "held_out", "train_limit", "test_limit"}
# Who says one of these wants another world, not the second part as well; networks are of one kind of data.
ANOTHER_WORLD = {*names_of("world"), "models", *ALIASES} - _OF_EITHER_PART

Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        metavar="A,B,...",
        help="Methods; differences are against the first. all: local and the paper's main table.",
    ),
]
Seeds = Annotated[str | None, typer.Option("--seeds", metavar="1,2,...", help="Seeds, one run of every method each.")]
FolderOfRuns = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where to write; runs found there are continued.")
]


@with_experiment_flags(without=("method", "seed"))
def compare_command(
    settings: Settings,
    callback_options: CallbackOptions,
    methods: Methods = DEFAULT_METHODS,
    seeds: Seeds = None,
    config: ConfigFile = None,
    output: FolderOfRuns = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods on identical partitions, with several seeds; the same command again continues.

    Example: crad compare --preset mini --methods local,uniform,crad --seeds 1,2,3 --output runs/first-look
    """
    experiments = _experiments(settings, methods, seeds, config)
    _compare(
        experiments,
        output or default_output(experiments[0], "compare"),
        callback_options,
        is_quiet=quiet,
        as_json=as_json,
    )


@with_experiment_flags(without=("method", "seed", "preset"))
def demo_command(
    settings: Settings,
    callback_options: CallbackOptions,
    methods: Methods = DEMO_METHODS,
    seeds: Seeds = DEMO_SEEDS,
    output: FolderOfRuns = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """See in a minute what joining brings, and what it is to know whom to trust, on data that come with a dependency.

    Four methods with three seeds: honest members with images, then a table where two of eight have swapped labels.
    With --json, or with settings that name another world, the first part alone.

    Example: crad demo --seeds 1,2,3,4,5
    """
    experiments = _experiments({**DEMO, **settings}, methods, seeds, None)
    folder = output or default_output(experiments[0], "demo")
    if as_json or ANOTHER_WORLD & settings.keys():
        _compare(experiments, folder, callback_options, is_quiet=quiet, as_json=as_json)
        return
    swapped = _experiments({**DEMO_SWAPPED, **settings}, methods, seeds, None)
    hint = f"the same command and --output {shlex.quote(str(folder))}"
    with callback_options.callbacks(folder) as callbacks:
        found = _run_all(experiments, folder, callbacks, hint=hint, is_quiet=quiet)
        two = _run_all(swapped, folder / SWAPPED, callbacks, hint=hint, is_quiet=quiet)
        _show_demo(folder, found, two, line=_against_the_mean(folder / SWAPPED, swapped), is_quiet=quiet)
        show_report(callbacks, folder)


def _against_the_mean(folder: Path, experiments: Sequence[Experiment]) -> str | None:
    """Return in a line how far `crad-plus` is from the plain mean with the same seeds; None where one was not run."""
    from crad.report.comparison_folder import run_folder
    from crad.runs.run_records import load_run

    figures: dict[str, list[float]] = {}
    for experiment in experiments:
        if experiment.method in ("uniform", "crad-plus"):
            honest = load_run(run_folder(folder, experiment)[0]).summary["honest"]
            figures.setdefault(experiment.method, []).append(honest["global_accuracy"])
    if len(figures) < 2:
        return None
    by_seed = [mine - mean for mine, mean in zip(figures["crad-plus"], figures["uniform"], strict=True)]
    shown = ", ".join(f"{one:+.1f}" for one in by_seed)
    return f"crad-plus against the plain mean (uniform), global accuracy of the honest members, seed by seed: {shown}."


def _show_demo(folder: Path, honest: Compared, swapped: Compared, *, line: str | None, is_quiet: bool) -> None:
    """Print both parts, each with what it says of joining; of the second the honest members count."""
    from crad.runs.directory import REPORT_FILE

    if not is_quiet:
        typer.echo("Six members with images of digits, all of them honest:")
        _print_comparison(*honest)
        typer.echo(f"Report: {folder / REPORT_FILE}\n")
        typer.echo("Eight members with a table of biopsies, two of them with swapped labels; the six honest ones:")
        _print_comparison(*swapped)
        if line is not None:
            typer.echo(line)
        typer.echo(f"Report: {folder / SWAPPED / REPORT_FILE}\n")
    typer.echo(str(folder))


def _experiments(settings: Settings, methods: str, seeds: str | None, config: Path | None) -> list[Experiment]:
    """Seed by seed, so that an early stop still leaves whole comparisons."""
    import_run_loop()
    from crad.federation.method import MIN_PROXY
    from crad.methods import resolve_method

    names = parse_methods(methods, with_local=True)
    base = make_experiment(settings, path=config)
    own = settings_by_method(base.method_settings, names)
    for name in names:
        method = resolve_method(name, own[name])
        if method.common_images == "proxy" and base.proxy_size < MIN_PROXY:
            raise ConfigError(f"method {name!r} learns on proxy samples: set proxy_size to at least {MIN_PROXY}")
    numbers = [base.seed] if seeds is None else parse_seeds(seeds)
    return [
        make_experiment(
            {**_settings_for(name, settings, base), "seed": seed, "method_settings": own[name]}, path=config
        )
        for seed in numbers
        for name in names
    ]


def _settings_for(method: str, settings: Settings, base: Experiment) -> Settings:
    """Return what one method is run with: who trains alone meets no attack, and is compared with those who do."""
    own = {**settings, "method": method}
    return {**own, "attack": None, "attackers": 0} if base.attack and method == "local" else own


def _compare(
    experiments: Sequence[Experiment], folder: Path, callback_options: CallbackOptions, *, is_quiet: bool, as_json: bool
) -> None:
    with callback_options.callbacks(folder) as callbacks:
        hint = f"the same command and --output {shlex.quote(str(folder))}"
        rows, verdict = _run_all(experiments, folder, callbacks, hint=hint, is_quiet=is_quiet)
        measured = _metric_rows(folder, experiments)
        _show(folder, rows, verdict, measured=measured, is_quiet=is_quiet, as_json=as_json)
        show_report(callbacks, folder)


def _metric_rows(folder: Path, experiments: Sequence[Experiment]) -> list[MetricRow]:
    """Return the metrics beyond accuracy of the finished runs."""
    from crad.analysis.metric_rows import metric_rows
    from crad.report.comparison_folder import run_folder
    from crad.runs.directory import RunDirectory

    return metric_rows([RunDirectory(run_folder(folder, one)[0]).summary() for one in experiments])


def _run_all(
    experiments: Sequence[Experiment], folder: Path, callbacks: Sequence[Callback], *, hint: str, is_quiet: bool
) -> Compared:
    """Run what is not there yet, with progress, and write the comparison; `hint`: how to go on after a stop."""
    from rich.console import Console

    from crad.analysis.durations import duration
    from crad.cli.terminal.progress import Display
    from crad.engines.processes import kept_workers
    from crad.report.comparison_folder import run_folder, write_comparison
    from crad.runs.names import title_of

    display = Display(Console(stderr=True), is_quiet=is_quiet, num_runs=len(experiments))
    results: list[Result] = []
    folders = [run_folder(folder, experiment) for experiment in experiments]
    with kept_workers():
        for experiment, (directory, is_there) in zip(experiments, folders, strict=True):
            result = run_shown(
                display,
                experiment,
                directory,
                is_resumed=is_there,
                is_partition_shown=not results,
                hint=hint,
                callbacks=callbacks,
            )
            seconds = duration(result.summary["total_seconds"])
            display.say(
                f"{title_of(experiment)}: global {result.summary['global_accuracy']:.2f} %, "
                f"local {result.summary['local_accuracy']:.2f} %, {seconds}"
            )
            results.append(result)
    return write_comparison(folder, results)


def _show(
    folder: Path,
    rows: Sequence[ComparisonRow],
    verdict: JoiningVerdict | None,
    *,
    measured: Sequence[MetricRow],
    is_quiet: bool,
    as_json: bool,
) -> None:
    """Print the comparison: tables and whether joining helped, JSON, or the path alone."""
    from crad.runs.directory import REPORT_FILE

    if as_json:
        typer.echo((folder / "comparison.json").read_text())
        return
    if not is_quiet:
        _print_comparison(rows, verdict)
        _print_metrics(measured)
        typer.echo(f"Report: {folder / REPORT_FILE}")
    typer.echo(str(folder))


def _print_metrics(measured: Sequence[MetricRow]) -> None:
    """Print the table of metrics beyond accuracy, without committees, which the page has; nothing of older runs."""
    from crad.cli.terminal.terminal_tables import plain_table, table_console
    from crad.report.tables import METRIC_HEADER, metric_caption, metric_cells

    rows = [row for row in measured if not row.is_committee]
    if rows:
        console = table_console()
        console.print(plain_table(METRIC_HEADER, metric_cells(rows)))
        console.print(metric_caption(rows), highlight=False)


def _print_comparison(rows: Sequence[ComparisonRow], verdict: JoiningVerdict | None) -> None:
    """Print the table of the methods, and whether joining helped."""
    from crad.cli.terminal.terminal_tables import plain_table, print_verdict, table_console
    from crad.report.tables import COMPARISON_HEADER, comparison_caption, comparison_cells

    console = table_console()
    console.print(plain_table(COMPARISON_HEADER, comparison_cells(rows)))
    console.print(comparison_caption(rows), highlight=False)
    print_verdict(console, verdict)
