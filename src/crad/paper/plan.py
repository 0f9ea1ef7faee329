"""The paper's experiments as a plan of runs: which are done, which are missing, and the tables and figures of them.

No experiment is trained twice: a run lies in a folder named by what decides its outcome, whichever table asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from crad.analysis.durations import Durations
from crad.analysis.groups import worlds
from crad.config import Experiment
from crad.data.catalog import check_present
from crad.errors import ConfigError, CradError, DataError, RunError
from crad.files import write_atomically
from crad.paper.experiments import (
    EVERYTHING,
    Choice,
    PaperExperiment,
    PlannedCell,
    chosen_papers,
    load_paper,
    plan_cells,
)
from crad.paper.kept import kept_noise
from crad.paper.other_data import under_own_name
from crad.paper.paper_tables import Finished, make_paper_table, tidy_csv, tidy_rows
from crad.paper.study_charts import make_study_charts
from crad.paper.study_page import study_page
from crad.paper.study_tables import make_study_tables, study_rows
from crad.report.charts import charts_available, make_charts, save_chart
from crad.report.latex import table_latex
from crad.report.page import report_page
from crad.report.tables import Table, table_markdown
from crad.runs.directory import REPORT_FILE, RunDirectory, experiment_hash
from crad.runs.kept_run import keep_run
from crad.runs.names import display_name
from crad.runs.resolution import resolve_experiment
from crad.runs.run_records import RunRecords, load_run

RunState = Literal["done", "begun", "new"]
Records = dict[str, RunRecords]  # finished runs by identity


@dataclass(frozen=True)
class StoredRun:
    """A run of the plan and where it lies."""

    key: str  # identity: two experiments with the same give the same numbers
    experiment: Experiment
    path: Path
    evidence: Path | None = None  # a folder of finished runs as small files
    sources: tuple[Path, ...] | None = None  # folders of kept runs, which alone are read; nothing is run then

    @property
    def kept(self) -> Path | None:
        """Return where its small files lie, or will."""
        return None if self.evidence is None else self.evidence / "runs" / self.path.name

    @property
    def finished(self) -> Path | None:
        """Return where it is read from once it is finished; the whole run before its small files."""
        places: list[Path | None] = [self.path, self.kept]
        if self.sources is not None:
            places = [source / self.path.name for source in self.sources]
        found = [path for path in places if path and RunDirectory(path).summary_file.is_file()]
        return found[0] if found else None

    @property
    def state(self) -> RunState:
        """Tell whether it is finished, begun or neither, by what is on the disk."""
        if self.finished is not None:
            return "done"
        return "begun" if self.sources is None and RunDirectory(self.path).experiment_file.is_file() else "new"

    def keep(self) -> None:
        """Put its small files into the evidence, where there is such a folder and they are not there yet."""
        if self.kept is not None and self.finished == self.path and not RunDirectory(self.kept).summary_file.is_file():
            keep_run(self.path, self.kept)

    @property
    def missing_rounds(self) -> int:
        """Return the rounds that are still to be run."""
        if self.state == "done":
            return 0
        try:
            return self.experiment.rounds - len(RunDirectory(self.path).rounds())
        except RunError:  # damaged: the run itself will say so when its turn comes
            return self.experiment.rounds

    @property
    def label(self) -> str:
        """Return what it is called on a line of progress."""
        ours = self.experiment
        clients = f"{ours.active} of {ours.clients} clients, " if ours.active else ""
        private = "private counts, " if ours.private_counts else ""
        attack = f"{ours.attack} by {ours.attackers}, " if ours.attack else ""
        return f"{Path(ours.dataset).stem} {display_name(ours)}, {clients}{private}{attack}seed {ours.seed}"


@dataclass(frozen=True)
class ReproductionPlan:
    """The chosen experiments of the paper, their cells, and the runs that these need, each once."""

    folder: Path
    papers: tuple[PaperExperiment, ...]
    cells: Mapping[str, Sequence[PlannedCell]]  # by experiment
    evidence: Path | None = None  # where finished runs are kept as small files, and are looked for
    sources: tuple[Path, ...] | None = None  # folders of kept runs, which alone are read

    @property
    def preset(self) -> str:
        """Return where the settings of its runs come from, which is the same for all."""
        return next(cell.experiment.preset for cells in self.cells.values() for cell in cells)

    @cached_property
    def stored(self) -> Mapping[Experiment, StoredRun]:
        """Return where the run of every cell lies; of many cells it is the same."""
        wanted = dict.fromkeys(cell.experiment for cells in self.cells.values() for cell in cells)
        return {one: stored_run(self.folder, one, evidence=self.evidence, sources=self.sources) for one in wanted}

    @cached_property
    def runs(self) -> list[StoredRun]:
        """Return every run once, seed by seed, so that an early stop leaves whole tables; at the end those aside."""
        cells = [cell for paper in self.papers for cell in self.cells[paper.name]]
        seeds = list(dict.fromkeys(cell.experiment.seed for cell in cells))
        ordered = sorted(cells, key=lambda cell: (cell.is_aside, seeds.index(cell.experiment.seed)))
        found: dict[str, StoredRun] = {}
        for cell in ordered:
            run = self.stored[cell.experiment]
            found.setdefault(run.key, run)
        return list(found.values())

    def of_cell(self, paper: PaperExperiment, records: Records) -> Finished:
        """Return the finished runs of an experiment by row and column."""
        found: dict[tuple[str, str], list[RunRecords]] = {}
        for cell in self.cells[paper.name]:
            run = records.get(self.stored[cell.experiment].key)
            own = found.setdefault((cell.row.name, cell.column.name), []) if run is not None else []
            if run is not None and all(run is not other for other in own):  # once, also where columns became one
                own.append(run)
        return found


def stored_run(
    folder: Path,
    experiment: Experiment,
    *,
    evidence: Path | None = None,
    sources: tuple[Path, ...] | None = None,
) -> StoredRun:
    """Return where a run of this experiment lies; the same for every table that asks for it."""
    settled = resolve_experiment(experiment, **({} if sources is None else {"noise": partial(kept_noise, sources)}))
    key = experiment_hash(settled)
    data = Path(settled.dataset).stem or "data"
    method = re.sub(r"[^\w.-]+", "-", display_name(settled).replace(":", ".").replace("/", "."))
    path = folder / "runs" / f"{data}-{method}-seed{settled.seed}-{key[:8]}"
    return StoredRun(key, settled, path, evidence, sources)


def plan_reproduction(
    what: str,
    folder: Path,
    *,
    flags: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
    choice: Choice = EVERYTHING,
    baseline: str | None = None,
    method_settings: Mapping[str, dict[str, Any]] | None = None,
    evidence: Path | None = None,
    sources: tuple[Path, ...] | None = None,
) -> ReproductionPlan:
    """Plan one experiment of the paper or a group of them; those with no cell left are left out.

    `baseline`: the row that the others are compared to, where it is not the experiment's own. `evidence`: a folder of
    finished runs as small files; those are not run again. `sources`: folders of such runs, which alone are read.
    """
    found: dict[str, list[PlannedCell]] = {}
    planned: list[PaperExperiment] = []
    papers = [paper if baseline is None else paper.against(baseline) for paper in chosen_papers(what)]
    for paper in papers:
        cells = plan_cells(paper, flags=flags, seeds=seeds, choice=choice, method_settings=method_settings)
        if paper.baseline is not None and (choice.rows is not None or baseline is not None):
            _check_has_baseline(paper, cells)
        if cells:
            renamed, found[paper.name] = under_own_name(paper, cells)
            planned.append(renamed)
    if not found:
        raise ConfigError(
            f"no run of {what!r} has these data sets, methods, rows and columns together; "
            "experiments/NAME.toml says which rows a column has"
        )
    return ReproductionPlan(folder, tuple(planned), found, evidence, sources)


def narrowed(plan: ReproductionPlan, records: Records) -> ReproductionPlan:
    """Return the plan without the experiments that have no finished run."""
    papers = tuple(paper for paper in plan.papers if plan.of_cell(paper, records))
    return replace(plan, papers=papers, cells={paper.name: plan.cells[paper.name] for paper in papers})


def _check_has_baseline(paper: PaperExperiment, cells: Sequence[PlannedCell]) -> None:
    """Refuse columns without differences: who chooses rows or a baseline wants some."""
    columns = dict.fromkeys(cell.column.name for cell in cells)
    having = {cell.column.name for cell in cells if cell.row.name == paper.baseline}
    if lacking := [name for name in columns if name not in having]:
        raise ConfigError(
            f"the others are compared with {paper.baseline!r}, which the chosen part of {paper.name!r} does not have "
            f"in {', '.join(lacking)}: name it among --rows, or choose another --baseline or other --columns"
        )


def absent_data(runs: Sequence[StoredRun]) -> dict[str, str]:
    """Return the data sets of runs that are not done which are not there, and how to get each."""
    absent = {}
    for name in dict.fromkeys(run.experiment.dataset for run in runs if run.state != "done"):
        try:
            check_present(name)
        except (DataError, ConfigError) as error:
            absent[name] = str(error)
    return absent


def read_finished(plan: ReproductionPlan) -> tuple[Records, dict[str, str]]:
    """Return the records of all finished runs, and by path why some cannot be read."""
    records, damaged = {}, {}
    for run in plan.runs:
        if (path := run.finished) is not None:
            try:
                records[run.key] = load_run(path)
                run.keep()
            except CradError as error:
                damaged[run.path.name] = str(error)
    return records, damaged


def published_seconds() -> dict[str, float]:
    """Return the paper's seconds of a round by method, from its cost table."""
    found = {}
    for row in load_paper("cost").rows:
        seconds = row.published["cifar10"]["round_seconds"]
        assert isinstance(seconds, float), "the cost table has numbers of seconds"
        found[row.settings["method"]] = seconds
    return found


def seconds_left(runs: Sequence[StoredRun], durations: Durations) -> float | None:
    """Estimate what is still to be computed, None where nothing is known of some."""
    total = 0.0
    for run in runs:
        if missing := run.missing_rounds:
            seconds = durations.round_seconds(run.experiment)
            if seconds is None:
                return None
            total += missing * seconds
    return total


def make_tables(plan: ReproductionPlan, records: Records) -> dict[str, list[Table]]:
    """Return every chosen experiment as tables for people."""
    return {paper.name: _tables_of(plan, paper, records) for paper in plan.papers}


def _tables_of(plan: ReproductionPlan, paper: PaperExperiment, records: Records) -> list[Table]:
    cells, finished = plan.cells[paper.name], plan.of_cell(paper, records)
    if paper.baseline is not None:
        return make_study_tables(paper, cells, finished)
    return [make_paper_table(paper, cells, finished)]


def make_tidy(plan: ReproductionPlan, records: Records) -> dict[str, list[dict[str, str]]]:
    """Return every chosen experiment as tidy rows, for programs."""
    return {
        paper.name: (tidy_rows if paper.baseline is None else study_rows)(
            paper, plan.cells[paper.name], plan.of_cell(paper, records)
        )
        for paper in plan.papers
    }


def table_texts(plan: ReproductionPlan, records: Records) -> dict[str, str]:
    """Return `NAME.csv`, `NAME.md` and `NAME.tex` of every chosen experiment, by file name."""
    tidy, texts = make_tidy(plan, records), {}
    for name, tables in make_tables(plan, records).items():
        texts[f"{name}.csv"] = tidy_csv(tidy[name])
        texts[f"{name}.md"] = "\n".join(map(table_markdown, tables))
        texts[f"{name}.tex"] = "\n".join(map(table_latex, tables))
    return texts


def write_tables(plan: ReproductionPlan, records: Records) -> None:
    """Write the files of every chosen experiment to `tables/`, also beside the evidence."""
    folders = [folder / "tables" for folder in (plan.folder, plan.evidence) if folder is not None]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in table_texts(plan, records).items():
        for folder in folders:
            write_atomically(folder / name, text.encode())


def write_reports(plan: ReproductionPlan, records: Records) -> list[Path]:
    """Write `report.html` of the first world's runs, `report-WORLD.html` of every other: they cannot share a page.

    An experiment with a baseline has a page of its own before these, over all its worlds.
    """
    finished = [records[run.key] for run in plan.runs if run.key in records]
    pages: dict[str, str] = {}
    for label, runs in worlds(finished).items():
        for number, own in enumerate(_by_division(runs)):
            name = re.sub(r"[^a-z0-9]+", "-", f"{label.lower()} {number + 1 if number else ''}").strip("-")
            pages[f"report-{name}.html" if pages else REPORT_FILE] = report_page(one_page_of(own))
    for paper in plan.papers:
        cells, of_cell = plan.cells[paper.name], plan.of_cell(paper, records)
        if paper.baseline is not None and of_cell:
            pages = {f"{paper.name}.html": study_page(paper, cells, of_cell, details=list(pages)), **pages}
    for name, page in pages.items():
        write_atomically(plan.folder / name, page.encode())
    return [plan.folder / name for name in pages]


def _by_division(runs: Sequence[RunRecords]) -> list[list[RunRecords]]:
    """Return runs of one world in groups with the same samples by seed: experiments may divide it differently."""
    groups: list[list[RunRecords]] = []
    for run in runs:
        for group in groups:
            if all(run.partition == one.partition for one in group if one.experiment.seed == run.experiment.seed):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def one_page_of(runs: Sequence[RunRecords]) -> list[RunRecords]:
    """Return what may stand on one page: a method or variant once per seed, of those that the fullest seed has."""
    first: dict[tuple[int, str], RunRecords] = {}
    for run in runs:
        first.setdefault((run.experiment.seed, display_name(run.experiment)), run)
    of_seed: dict[int, set[str]] = {}
    for seed, name in first:
        of_seed.setdefault(seed, set()).add(name)
    most = max(of_seed.values(), key=len)
    return [run for (_, name), run in first.items() if name in most]


def write_figures(plan: ReproductionPlan, records: Records) -> list[Path]:
    """Write `figures/*.pdf`, `.svg` and `.png` of the chosen figures' runs; none without the extra that draws them."""
    charts = [
        chart
        for paper in plan.papers
        if paper.baseline is not None
        for chart in make_study_charts(paper, plan.cells[paper.name], plan.of_cell(paper, records))
    ]
    runs = {
        run.path: run
        for paper in plan.papers
        if paper.kind == "figure"
        for of_cell in plan.of_cell(paper, records).values()
        for run in of_cell
    }
    if runs and charts_available():
        charts += make_charts(list(runs.values()))
    if not charts:
        return []
    folder = plan.folder / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    return [path for chart in charts for path in save_chart(chart, folder)]
