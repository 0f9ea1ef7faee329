"""`crad reproduce`: the paper's tables and figures, ours beside the published ones."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crad.cli.options import AsJson, Quiet, Settings, with_experiment_flags
from crad.cli.several_values import parse_list, parse_methods, parse_seeds
from crad.config import make_experiment, settings_by_method
from crad.errors import BusyError, ConfigError, CradError, RunError, unknown_name

if TYPE_CHECKING:
    from rich.console import Console

    from crad.analysis.durations import Durations
    from crad.cli.terminal.progress import Display
    from crad.paper.experiments import Choice
    from crad.paper.plan import Records, ReproductionPlan, StoredRun
    from crad.report.tables import Table
    from crad.runs.run_records import RunRecords

What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="table1, cost, clients, weights or privacy; per_class, convergence, context or cases, or figures for "
        "these four; all of these; main: methods against training alone; beyond: changes of CRAD, against CRAD; "
        "controls: what carries crad-plus; attacks: what dishonest clients do to the others; committee, "
        "committee_rules: all models asked together; student: one student against the committee that it "
        "learns from; kinds: tables, texts, recordings; private: accuracy against epsilon; strength: DFML's mutual "
        "epochs and peaks, balanced baselines; digest, clipping: rates of digests and clipped steps, on validation "
        "halves; everything: all that were named",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", metavar="1,2,...", help="Seeds. Default: those of experiments/WHAT.toml."),
]
Datasets = Annotated[
    str | None, typer.Option("--datasets", metavar="A,B,...", help="Only the runs that the paper has on these.")
]
Methods = Annotated[str | None, typer.Option("--methods", metavar="A,B,...", help="Only the runs of these methods.")]
Rows = Annotated[
    str | None, typer.Option("--rows", metavar="A,B,...", help="Only these rows, as experiments/WHAT.toml names them.")
]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="A,B,...", help="Only these columns, as the same file names them.")
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="ROW", help="The row that others are compared to, where it is not the usual."),
]
Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Where runs, tables and figures lie. runs/reproduce-PRESET"),
]
Keep = Annotated[
    Path | None,
    typer.Option(
        "--keep",
        metavar="DIR",
        help="Keep finished runs there as small files, without models; those that are there are not run again.",
    ),
]
KeptIn = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="DIR",
        help="Draw all from runs kept there, also in several folders (DIR/*/runs), and run nothing; of every preset "
        "that they have, unless --preset says one. Output: runs/drawn-PRESET",
    ),
]
OnlyShow = Annotated[
    bool, typer.Option("--only-show", metavar="", help="Run nothing: plan and tables from what is there.")
]

MOST_NAMED = 3  # runs that failed for the same reason


@with_experiment_flags(without=("method", "seed"))
def reproduce_command(
    settings: Settings,
    what: What,
    seeds: Seeds = None,
    datasets: Datasets = None,
    methods: Methods = None,
    rows: Rows = None,
    columns: Columns = None,
    baseline: Baseline = None,
    output: Folder = None,
    keep: Keep = None,
    kept_in: KeptIn = None,
    only_show: OnlyShow = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Rerun the paper's tables and figures; no experiment is trained twice, the same command again continues.

    Flags of an experiment change every run alike, such as --rounds 2 for a trial.

    Example: crad reproduce table1 --preset mini --datasets cifar10 --seeds 1,2,3
    Example: crad reproduce everything --from evidence/
    """
    named = {"datasets": datasets, "methods": methods, "rows": rows, "columns": columns}
    ask = _Ask(what, settings, named, seeds=seeds, baseline=baseline, output=output, keep=keep)
    if kept_in is not None:
        _draw_kept(ask, kept_in, is_quiet=quiet, as_json=as_json)
    else:
        _run_and_show(ask, only_show=only_show, is_quiet=quiet, as_json=as_json)


@dataclass(frozen=True)
class _Ask:
    """What the command line asks for; `named` are the flags that choose among an experiment's cells."""

    what: str
    settings: Settings
    named: Mapping[str, str | None]
    seeds: str | None
    baseline: str | None
    output: Path | None
    keep: Path | None


def _run_and_show(ask: _Ask, *, only_show: bool, is_quiet: bool, as_json: bool) -> None:
    """Run what is missing, then draw what is there."""
    from rich.console import Console

    from crad.analysis.durations import Durations
    from crad.cli.terminal.progress import Display
    from crad.device import choose_device
    from crad.paper.plan import absent_data, published_seconds, read_finished

    plan = _plan(ask)
    records, failed = read_finished(plan)
    missing = [run for run in plan.runs if run.state != "done"]
    absent = absent_data(missing)
    todo = [run for run in missing if run.experiment.dataset not in absent]
    if todo and not only_show:
        choose_device(todo[0].experiment.device)  # once, before one run after the other fails for it
    display = Display(Console(stderr=True), is_quiet=is_quiet, num_runs=len(todo))
    durations = Durations(list(records.values()), published=published_seconds())
    _say_plan(plan, missing, absent, durations, display)
    if not only_show:
        failed |= {run.path.name: absent[run.experiment.dataset] for run in missing if run not in todo}
        failed |= _run_all(plan, todo, records, durations, display)
        if busy := sum(run.key not in records and run.path.name not in failed for run in todo):
            display.say(
                f"{busy} run{'s' * (busy != 1)} left to another process: not in these tables yet; the same command "
                "again adds what is finished by then"
            )
    reports = _write(plan, records, display) if records else []
    _show(plan, records, failed, reports, is_quiet=is_quiet, as_json=as_json)
    _refuse_failed(plan, failed)


def _draw_kept(ask: _Ask, kept_in: Path, *, is_quiet: bool, as_json: bool) -> None:
    """Draw what is asked for from kept runs alone, preset by preset."""
    from rich.console import Console

    from crad.cli.terminal.progress import Display
    from crad.paper.kept import kept_folders, kept_presets, kept_runs
    from crad.paper.plan import narrowed, read_finished

    if ask.keep is not None:
        raise ConfigError("--from draws from what is kept and runs nothing: leave out --keep")
    sources = kept_folders(kept_in)
    presets = [str(ask.settings["preset"])] if "preset" in ask.settings else kept_presets(sources)
    plans = [_plan(replace(ask, settings={**ask.settings, "preset": preset}), sources=sources) for preset in presets]
    read = [(plan, *read_finished(plan)) for plan in plans]
    drawn = [(plan, records, damaged) for plan, records, damaged in read if records or damaged]
    if not drawn:
        raise RunError(
            f"{kept_in} holds {len(kept_runs(sources))} kept runs, of preset {', '.join(kept_presets(sources))}, and "
            f"none that {ask.what!r} asks for: choose another experiment, preset or settings"
        )
    if as_json and len(drawn) > 1:
        raise ConfigError(f"--json draws one preset: say --preset {' or '.join(plan.preset for plan, _, _ in drawn)}")
    display = Display(Console(stderr=True), is_quiet=is_quiet, num_runs=0)
    for whole, records, damaged in drawn:
        folder = whole.folder / whole.preset if ask.output is not None and len(drawn) > 1 else whole.folder
        plan = replace(narrowed(whole, records), folder=folder)
        display.say(
            f"preset {plan.preset}: {len(plan.runs)} runs, {len(records)} kept in {kept_in}, "
            f"{len(plan.runs) - len(records)} missing"
        )
        if left_out := [paper.name for paper in whole.papers if paper not in plan.papers]:
            display.say(f"no run is kept of {', '.join(left_out)}")
        _show(plan, records, damaged, _write(plan, records, display), is_quiet=is_quiet, as_json=as_json)
    for plan, _, damaged in drawn:
        _refuse_failed(plan, damaged)


def _write(plan: ReproductionPlan, records: Records, display: Display) -> list[Path]:
    """Write tables, figures and pages, and return the pages."""
    from crad.paper.plan import write_figures, write_reports, write_tables
    from crad.report.charts import INSTALL

    write_tables(plan, records)
    if not write_figures(plan, records) and any(paper.has_figures for paper in plan.papers):
        display.say(f"no figures were drawn: {INSTALL}")
    return write_reports(plan, records)


def _refuse_failed(plan: ReproductionPlan, failed: Mapping[str, str]) -> None:
    if failed:
        raise RunError(
            f"{len(failed)} of {len(plan.runs)} runs failed: {_by_reason(failed)}. The others are in {plan.folder}; "
            "fix that and give the same command again"
        )


def _plan(ask: _Ask, *, sources: tuple[Path, ...] | None = None) -> ReproductionPlan:
    """Return the plan that the flags ask for; `sources`: where it is drawn from, if nothing is to be run."""
    from crad.methods import resolve_method
    from crad.paper.experiments import CHOICES, chosen_papers
    from crad.paper.plan import plan_reproduction

    what, settings = ask.what, ask.settings
    if what not in CHOICES:
        raise unknown_name("experiment", what, CHOICES)
    # A faulty flag is refused before anything else; how many attack may be said alone, for the columns say the attack.
    base = make_experiment({"attack": "honest", **settings} if "attackers" in settings else settings)
    cells = [
        (paper.settings_of(row, column), row.name, column.name)
        for paper in chosen_papers(what)
        for column in paper.columns
        for row in paper.rows_of(column)
    ]
    methods = list(dict.fromkeys(said["method"] for said, _, _ in cells))
    own = settings_by_method(base.method_settings, methods)
    for method, pairs in own.items():
        resolve_method(method, pairs)
    known = {
        "datasets": [said["dataset"] for said, _, _ in cells],
        "methods": methods,
        "rows": [row for _, row, _ in cells],
        "columns": [column for _, _, column in cells],
    }
    return plan_reproduction(
        what,
        ask.output or Path("runs") / f"{'reproduce' if sources is None else 'drawn'}-{base.preset}",
        flags={name: value for name, value in settings.items() if name != "method_settings"},
        seeds=None if ask.seeds is None else parse_seeds(ask.seeds),
        choice=_choice(ask.named, known),
        baseline=ask.baseline,
        method_settings=own,
        evidence=ask.keep,
        sources=sources,
    )


def _choice(named: Mapping[str, str | None], known: Mapping[str, Sequence[str]]) -> Choice:
    """Return the names behind each flag; one that no cell has is refused."""
    from crad.paper.experiments import Choice

    kinds = {"datasets": "data set", "methods": "method", "rows": "row", "columns": "column"}
    chosen: dict[str, list[str]] = {}
    for flag, text in named.items():
        if text is None:
            continue
        chosen[flag] = parse_methods(text) if flag == "methods" else parse_list(f"--{flag}", text)
        for name in chosen[flag]:
            if name not in known[flag]:
                raise unknown_name(kinds[flag], name, set(known[flag]))
    return Choice(**chosen)


def _run_all(
    plan: ReproductionPlan, todo: Sequence[StoredRun], records: Records, durations: Durations, display: Display
) -> dict[str, str]:
    """Run what is missing and add it to the records; by name why some failed.

    Several commands may share a plan: what another one works on is left to it, what it has finished is read.
    """
    from crad.engines.processes import kept_workers
    from crad.runs.directory import RunDirectory
    from crad.runs.run_records import load_run

    failed: dict[str, str] = {}
    with kept_workers():
        for run in [*todo, *todo]:  # again at the end: what another one has finished by then, or given up
            left = [one for one in todo if one.key not in records and one.path.name not in failed]
            if run not in left:
                continue
            try:
                if run.finished is not None:
                    records[run.key] = load_run(run.finished)
                elif not RunDirectory(run.path).is_busy:
                    others = [one for one in left if one is not run]
                    records[run.key] = _run_one(plan, run, others, durations, display)
                run.keep()
            except BusyError:
                continue  # begun elsewhere a moment ago
            except Exception as error:  # a night's plan does not end with one run that does
                reason = str(error) if isinstance(error, CradError) else f"{type(error).__name__}: {error}"
                failed[run.path.name] = " ".join(reason.split())
                display.say(f"{run.label} failed: {failed[run.path.name]}")
    return failed


def _run_one(
    plan: ReproductionPlan, run: StoredRun, others: Sequence[StoredRun], durations: Durations, display: Display
) -> RunRecords:
    from crad.analysis.durations import duration
    from crad.cli.run import run_shown
    from crad.paper.plan import seconds_left
    from crad.runs.run_records import load_run

    result = run_shown(
        display,
        run.experiment,
        run.path,
        is_resumed=run.state == "begun",
        is_partition_shown=False,
        hint=f"the same command and --output {shlex.quote(str(plan.folder))}",
        label=run.label,
        left_after=seconds_left(others, durations),
    )
    records = load_run(run.path)
    durations.add(records)
    left = seconds_left(others, durations)
    when = f", about {duration(left)}" if others and left is not None else ""
    display.say(
        f"{run.label}: global {result.summary['global_accuracy']:.2f} %, local "
        f"{result.summary['local_accuracy']:.2f} %, {duration(result.summary['total_seconds'])}; "
        f"{len(others)} run{'s' * (len(others) != 1)} left{when}"
    )
    return records


def _say_plan(
    plan: ReproductionPlan, missing: Sequence[StoredRun], absent: dict[str, str], durations: Durations, display: Display
) -> None:
    """`17 runs: 9 done, 1 to resume, 7 to run, about 1 h 10 min (from the runs finished here)`, and what cannot run."""
    from crad.analysis.durations import duration
    from crad.paper.plan import seconds_left

    begun = sum(run.state == "begun" for run in missing)
    words = [f"{len(plan.runs) - len(missing)} done", f"{begun} to resume", f"{len(missing) - begun} to run"]
    line = f"{len(plan.runs)} runs: {', '.join(words)}"
    if missing:
        left, basis = seconds_left(missing, durations), durations.basis(missing[0].experiment.preset)
        line += f", time {basis}" if left is None else f", about {duration(left)} ({basis})"
    display.say(line)
    for name, reason in absent.items():
        waiting = sum(run.experiment.dataset == name for run in missing)
        display.say(f"{waiting} of them cannot be run: {reason}")


def _by_reason(failed: Mapping[str, str]) -> str:
    """Every reason once, behind the runs that it was the end of; many runs are counted."""
    names: dict[str, list[str]] = {}
    for name, reason in failed.items():
        names.setdefault(reason, []).append(name)
    parts = []
    for reason, of_reason in names.items():
        more = f" and {len(of_reason) - MOST_NAMED} more" if len(of_reason) > MOST_NAMED else ""
        parts.append(f"{', '.join(of_reason[:MOST_NAMED])}{more} ({reason})")
    return "; ".join(parts)


def _show(
    plan: ReproductionPlan,
    records: Records,
    failed: dict[str, str],
    reports: Sequence[Path],
    *,
    is_quiet: bool,
    as_json: bool,
) -> None:
    """Print the tables and where the pages lie, JSON, or the path alone."""
    from crad.paper.plan import make_tables, make_tidy

    if as_json:
        states = [{"run": run.path.name, "state": run.state} for run in plan.runs]
        answer = {"output": str(plan.folder), "runs": states, "failed": failed, "tables": make_tidy(plan, records)}
        typer.echo(json.dumps(answer, indent=1))
        return
    if not is_quiet:
        from rich.console import Console

        # Piped, a table is as wide as it needs; on a narrow terminal its cells wrap.
        console = Console() if Console().is_terminal else Console(width=160)
        for table in (one for tables in make_tables(plan, records).values() for one in tables):
            _print_table(console, table)
        for path in reports:
            typer.echo(f"Report: {path}")
    if plan.folder.is_dir():
        typer.echo(str(plan.folder))
    else:
        typer.echo(f"crad: nothing is in {plan.folder} yet: the same command without --only-show runs it", err=True)


def _print_table(console: Console, table: Table) -> None:
    from crad.cli.terminal.terminal_tables import sectioned_table

    console.print(sectioned_table(table))
    console.print(table.caption, highlight=False, markup=False)
    console.print()
