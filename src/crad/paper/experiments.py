"""The experiments of the paper: what each one runs and what was published, read from `experiments/*.toml`.

A file says which rows, columns and metrics its table has, which settings make a cell, and the paper's figures. An
experiment of our own names a baseline in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from crad.config import ALIASES, PRESETS, Experiment, names_of, with_current_names
from crad.errors import ConfigError, first_fault, unknown_name
from crad.files import read_toml
from crad.paper.measures import MEASURES
from crad.runs.names import display_name

TABLES = ("table1", "cost", "clients", "weights", "privacy")
FIGURES = ("per_class", "convergence", "context", "cases")
NAMES = (*TABLES, *FIGURES)
# Of this project, with no published figure: no part of `all`.
OWN = (
    *("main", "beyond", "controls", "attacks", "committee", "committee_rules", "student", "kinds", "private"),
    *("strength", "digest", "clipping"),
)
GROUPS = {"figures": FIGURES, "all": NAMES, "everything": (*NAMES, *OWN)}
CHOICES = (*NAMES, *OWN, *GROUPS)
PAPER_PRESET = "paper"

CellSettings = Annotated[dict[str, Any], AfterValidator(with_current_names)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Metric(_Part):
    """A measure that a cell shows, how it is written, and which end of it is the good one."""

    name: str
    label: str
    unit: str = ""
    digits: int | Literal["three"] = 2  # behind the point; three: about three that matter
    best: Literal["highest", "lowest"] | None = None
    is_approximate: bool = False  # the paper gives it in words only
    columns: tuple[str, ...] = ()  # those that it is shown for; none named: all

    @property
    def title(self) -> str:
        """Return label and unit."""
        return f"{self.label} {self.unit}".strip()


class PaperColumn(_Part):
    """A group of cells with settings in common, such as a data set."""

    name: str
    label: str
    settings: CellSettings = Field(default_factory=dict)
    rows: tuple[str, ...] = ()  # those that it has; none named: all
    most_seeds: int | None = Field(default=None, ge=1)  # the first so many of the experiment's; None: all
    stands_for: tuple[str, ...] = ()  # columns of the file, where the runs are on other data than these name

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the names with which it is asked for."""
        return self.stands_for or (self.name,)


class PaperRow(_Part):
    """A method, or a variant of one, and what was published for it: by column, by metric."""

    name: str
    label: str = ""  # left out: what its runs are called
    settings: CellSettings = Field(default_factory=dict)
    settings_in: dict[str, CellSettings] = Field(default_factory=dict)  # those of one column alone, by its name
    published: dict[str, dict[str, float | str]] = Field(default_factory=dict)
    is_reference: bool = False  # not in the paper and out of competition, such as training alone
    most_seeds: int | None = Field(default=None, ge=1)  # the first so many of the experiment's; None: all


class PaperExperiment(_Part):
    """One table or figure, of the paper or with a baseline of our own."""

    name: str
    kind: Literal["table", "figure"]
    title: str
    source: str = ""  # where in the paper
    caption: str
    seeds: tuple[int, ...] = Field(min_length=1)
    metrics: tuple[Metric, ...] = Field(min_length=1)
    columns: tuple[PaperColumn, ...] = Field(min_length=1)
    rows: tuple[PaperRow, ...] = Field(min_length=1)
    settings: CellSettings = Field(default_factory=dict)
    presets: dict[str, CellSettings] = Field(default_factory=dict)  # settings under one preset alone
    claims: tuple[str, ...] = ()  # what the paper says in words, in ours
    orientation: Literal["rows", "metrics"] = "rows"  # what goes down the page
    baseline: str | None = None  # the row that all others are compared to, seed by seed, instead of the paper
    subject: str | None = None  # the row that the page's headline is about; None: the last one
    control: str | None = None  # the column that all others are compared to as well, row by row
    is_single_run: bool = False  # the first seed's run is looked at, not a mean
    is_bound_to_data: bool = False  # a column's settings fit its own data alone: no preset, no flag puts others there

    @model_validator(mode="after")
    def _check_names(self) -> PaperExperiment:
        for kind, parts in (("metric", self.metrics), ("column", self.columns), ("row", self.rows)):
            names = [part.name for part in parts]
            if len(set(names)) != len(names):
                raise ValueError(f"a {kind} stands there twice: {', '.join(names)}")
        for metric in self.metrics:
            _check_known("metric", metric.name, MEASURES)
        for row in self.rows:
            for column in (*row.published, *row.settings_in):
                _check_known("column", column, [one.name for one in self.columns])
            for values in row.published.values():
                for metric_name in values:
                    _check_known("metric", metric_name, [one.name for one in self.metrics])
        names = [row.name for row in self.rows]
        for row_name in [name for column in self.columns for name in column.rows] + [
            self.baseline or names[0],
            self.subject or names[0],
        ]:
            _check_known("row", row_name, names)
        columns = [column.name for column in self.columns]
        for column_name in [name for metric in self.metrics for name in metric.columns] + [self.control or columns[0]]:
            _check_known("column", column_name, columns)
        of_parts = [column.settings for column in self.columns] + [row.settings for row in self.rows]
        of_parts += [settings for row in self.rows for settings in row.settings_in.values()]
        every = (self.settings, *self.presets.values(), *of_parts)
        for name in (name for settings in every for name in settings):
            _check_known("setting", name, (*Experiment.model_fields, *ALIASES))
        return self

    @property
    def has_figures(self) -> bool:
        """Tell whether charts belong to it."""
        return self.kind == "figure" or self.baseline is not None

    def rows_of(self, column: PaperColumn) -> list[PaperRow]:
        """Return the rows that a column has, in their order."""
        return [row for row in self.rows if not column.rows or row.name in column.rows]

    def label_of(self, row: PaperRow) -> str:
        """Return how a row is headed."""
        return row.label or display_name(Experiment(**{**self.settings, **row.settings}))

    def headline_row(self) -> PaperRow:
        """Return the row that the headline compares with the baseline: the subject, or else the last other one."""
        others = [row for row in self.rows if row.name != self.baseline]
        return next((row for row in others if row.name == self.subject), others[-1])

    def against(self, row: str) -> PaperExperiment:
        """Return the same with another row as the baseline."""
        if self.baseline is None:
            raise ConfigError(f"{self.name!r} is compared with the paper and has no baseline: leave out --baseline")
        if row not in (names := [one.name for one in self.rows]):
            raise unknown_name("row", row, names)
        return self.model_copy(update={"baseline": row})

    def settings_of(self, row: PaperRow, column: PaperColumn) -> CellSettings:
        """Return the settings that the paper's text gives to a cell, over its protocol."""
        return {**self.settings, **column.settings, **row.settings, **row.settings_in.get(column.name, {})}


@dataclass(frozen=True)
class Choice:
    """The cells of an experiment that are wanted, by name; None: all."""

    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None

    def takes(self, row: PaperRow, column: PaperColumn, said: CellSettings) -> bool:
        """Tell whether a cell with these settings is one of them."""
        names = (said["dataset"], said["method"], row.name, column.name)
        chosen = (self.datasets, self.methods, self.rows, self.columns)
        return all(some is None or name in some for name, some in zip(names, chosen, strict=True))


EVERYTHING = Choice()


@dataclass(frozen=True)
class PlannedCell:
    """A run that a cell needs, and the same with the paper's own settings."""

    row: PaperRow
    column: PaperColumn
    experiment: Experiment
    as_published: Experiment

    @property
    def is_aside(self) -> bool:
        """Tell whether it is not run with every seed: then it comes after those that are."""
        return (self.row.most_seeds or self.column.most_seeds) is not None

    @property
    def departures(self) -> dict[str, tuple[object, object]]:
        """Return the settings in which the run is not what the paper did: ours and the paper's."""
        ours, paper = self.experiment.model_dump(), self.as_published.model_dump()
        skipped = {"preset", "seed", *names_of("execution")}
        return {key: (ours[key], paper[key]) for key in ours if key not in skipped and ours[key] != paper[key]}


def plan_cells(
    paper: PaperExperiment,
    *,
    flags: Mapping[str, Any],
    seeds: Sequence[int] | None = None,
    choice: Choice = EVERYTHING,
    method_settings: Mapping[str, CellSettings] | None = None,
) -> list[PlannedCell]:
    """Return every run of an experiment, seed by seed; flags, of which `preset` is one, win over what the file says.

    `seeds`: all rows and columns have these, also those that the file gives fewer of its own.
    """
    preset = flags.get("preset", PAPER_PRESET)
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    _check_flags(paper, flags)
    own_data = {} if paper.is_bound_to_data else {k: v for k, v in PRESETS[preset].items() if k == "dataset"}
    wanted = (seeds or paper.seeds)[: 1 if paper.is_single_run else None]
    cells = []
    for place, seed in enumerate(wanted):
        for column in paper.columns:
            for row in paper.rows_of(column):
                most = min(one.most_seeds or len(wanted) for one in (row, column))
                if seeds is None and place >= most:
                    continue
                said = paper.settings_of(row, column)
                if not choice.takes(row, column, said):
                    continue
                tuned = {**said.get("method_settings", {}), **(method_settings or {}).get(said["method"], {})}
                chosen = {**said, **own_data, **paper.presets.get(preset, {}), **flags, "seed": seed}
                experiment = Experiment(**{**chosen, "method_settings": tuned})
                cells.append(PlannedCell(row, column, experiment, Experiment(**{**said, "seed": paper.seeds[0]})))
    return cells


def load_paper(name: str) -> PaperExperiment:
    """Read one experiment of the paper by its name."""
    if name not in (*NAMES, *OWN):
        raise unknown_name("experiment", name, CHOICES)
    return read_paper(experiments_folder() / f"{name}.toml")


def read_paper(file: Traversable) -> PaperExperiment:
    """Read the experiment in a file; refuse it with one line that names the file."""
    table = read_toml(file, hint="is the installation complete?")
    try:
        return PaperExperiment(**table)
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_fault(error)}") from error


def experiments_folder() -> Traversable:
    """Return where the files are: inside an installed package, beside `src` in a source tree."""
    package = resources.files("crad")
    inside = package / "experiments"
    return inside if inside.is_dir() else Path(str(package)).parent.parent / "experiments"


def chosen_papers(what: str) -> list[PaperExperiment]:
    """Return the experiments behind a name or a group of them."""
    return [load_paper(name) for name in GROUPS.get(what, (what,))]


def _check_flags(paper: PaperExperiment, flags: Mapping[str, Any]) -> None:
    """Refuse a flag that makes rows alike which are variants: nothing would be left to compare."""
    of_rows = [settings for row in paper.rows for settings in (row.settings, *row.settings_in.values())]
    compared = {key for settings in of_rows for key in settings} if paper.baseline else set()
    for key in flags:
        if key in compared:
            raise ConfigError(f"the rows of {paper.name!r} differ in {key}: leave out --{key.replace('_', '-')}")
    if paper.is_bound_to_data and "dataset" in flags:
        raise ConfigError(
            f"the columns of {paper.name!r} are data sets with settings of their own: leave out --dataset"
        )
    if paper.control is not None and (attack := {"attack", *ALIASES} & {*flags}):
        raise ConfigError(f"the columns of {paper.name!r} differ in their attack: leave out --{attack.pop()}")


def _check_known(kind: str, name: str, known: Sequence[str] | Mapping[str, object]) -> None:
    if name not in known:
        raise ValueError(str(unknown_name(kind, name, known)))
