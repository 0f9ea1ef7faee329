"""The cells of the tables, once for the terminal, the page, Markdown and LaTeX (`latex.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from crad.analysis.comparison import METRICS, ComparisonRow, Figure
from crad.analysis.metric_rows import METRIC_TITLES, TEST_SETS, MetricFigure, MetricRow
from crad.training.metrics import MIN_SAMPLES

COMPARISON_HEADER = (
    *("method", "global %", "±", "local %", "±", "Δ global", "Δ local", "committee %"),
    *("payload", "memory", "s"),
)


RECONSTRUCTION = "†"
DIFFERENCE = "Δ"


def comparison_caption(rows: Sequence[ComparisonRow]) -> str:
    """Say what the short column titles mean."""
    seeds = "mean ± deviation over seeds; " if len(rows[0].seeds) > 1 else ""
    honest = " of the honest clients" if any(row.is_of_honest for row in rows) else ""
    return (
        f"Accuracy in percent{honest}; {seeds}±: spread over clients; Δ: against {rows[0].name!r}, paired by seed; "
        "committee: all models of a run asked together, global / local; "
        "payload: MiB per client and round, sent (snapshots) or sent and received (predictions on common samples); "
        "memory: MiB at the peak, all processes; seconds per run."
        + (
            f" {RECONSTRUCTION}: our reconstruction, no public code."
            if any(row.is_reconstruction for row in rows)
            else ""
        )
    )


def comparison_cells(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """Return one list of texts per method."""
    table = []
    for number, row in enumerate(rows):
        cells = [_marked(row)]
        for metric in METRICS:
            cells += [_plain(row.figures[metric]), f"{row.spread[metric]:.2f}"]
        cells += ["-" if number == 0 else _signed(row.difference[metric]) for metric in METRICS]
        cells.append(" / ".join(f"{figure.mean:.2f}" for figure in row.committee.values()) or "-")
        cells += [mib(row.payload_bytes), f"{row.peak_memory_bytes / 2**20:.0f}", f"{row.seconds:.1f}"]
        table.append(cells)
    return table


COST_HEADER = ("method", "payload", "counts", "published", "helper", "s/round", "memory", "common samples", "clipped")
COST_CAPTION = (
    "Costs: payload in MiB per client and round, between clients, and whether received bytes count in it; published: "
    "MiB per client and round with every message once, however many receive it; helper: MiB per round to and from "
    "members without data; median seconds of a round; MiB at the peak of all processes; samples beside the private "
    "ones; steps whose gradient was clipped, of all."
)


def cost_cells(rows: Sequence[ComparisonRow]) -> list[list[str]]:
    """Return one list of texts per method, as in the paper's cost table; a method's other weights cost nothing more."""
    return [
        [
            _marked(row),
            mib(row.payload_bytes),
            row.cost.payload_counts,
            mib(row.cost.published_bytes),
            mib(row.cost.helper_bytes),
            f"{row.cost.round_seconds:.2f}",
            f"{row.peak_memory_bytes / 2**20:.0f}",
            row.cost.common_images,
            "-" if row.cost.clipped_share is None else f"{100 * row.cost.clipped_share:.0f} %",
        ]
        for row in rows
        if not row.is_variant
    ]


METRIC_HEADER = ("method", "on", *METRIC_TITLES.values())


def metric_caption(rows: Sequence[MetricRow]) -> str:
    """Say what the metrics beyond accuracy are and of whom."""
    several = any(one.over_seeds is not None and len(one.over_seeds.values) > 1 for one in rows[0].figures.values())
    spread = "mean ± deviation over seeds" if several else "in brackets the 95 % bootstrap interval"
    honest = ", of the honest clients" if any(row.is_of_honest for row in rows) else ""
    return (
        f"In percent, at the selected round{honest}; {spread}. Common test set: mean over clients; own test halves: "
        "all of them as one, every sample by its owner's model. Balanced accuracy, macro F1 and AUROC (one class "
        f"against the rest): means over the classes with {MIN_SAMPLES} test samples or more; calibration error: how "
        "far confidence is from accuracy, lower is better."
        + (" Together: all models of a run asked at once." if any(row.is_committee for row in rows) else "")
    )


def metric_cells(rows: Sequence[MetricRow]) -> list[list[str]]:
    """Return one list of texts per method and test set."""
    return [
        [
            f"{row.name}, together" if row.is_committee else row.name,
            TEST_SETS[row.test_set],
            *(_metric(row.figures[name]) for name in METRIC_TITLES),
        ]
        for row in rows
    ]


def _metric(figure: MetricFigure) -> str:
    if figure.over_seeds is None:
        return figure.reason
    if figure.interval is None:
        return _plain(figure.over_seeds)
    low, high = figure.interval
    return f"{figure.over_seeds.mean:.1f} [{low:.1f}, {high:.1f}]"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns line up in the source too."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) if not i else cell.rjust(width) for i, (cell, width) in _pairs(row, widths))
        for row in [header, *rows]
    ]
    rule = "|".join("-" * (width + 2) if not i else "-" * (width + 1) + ":" for i, width in enumerate(widths))
    return "\n".join([f"{lines[0]} |", f"|{rule}|", *(f"{line} |" for line in lines[1:])]) + "\n"


@dataclass(frozen=True)
class Cell:
    """A text in a table; the best of its column is set bold."""

    text: str
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """A table that reads the same on the terminal, in Markdown and in LaTeX."""

    name: str
    title: str
    headings: tuple[tuple[str, tuple[str, ...]], ...]  # columns side by side, and what they have in common or ""
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    sections: Mapping[int, str] = field(default_factory=dict)  # a label above the row of that number

    @property
    def header(self) -> tuple[str, ...]:
        """Return the title of every column on one line; a difference stands beside what it is of."""
        return tuple(
            f"{group}, {name}" if group and name != DIFFERENCE else name
            for group, names in self.headings
            for name in names
        )


def table_markdown(table: Table) -> str:
    """Return title, table and caption; a section is a row with its label alone."""
    lines: list[list[str]] = []
    for number, row in enumerate(table.rows):
        if number in table.sections:
            lines.append([f"*{_plain_markdown(table.sections[number])}*", *[""] * (len(table.header) - 1)])
        lines.append(
            [f"**{_plain_markdown(cell.text)}**" if cell.is_best else _plain_markdown(cell.text) for cell in row]
        )
    header = [_plain_markdown(name) for name in table.header]
    return f"### {_plain_markdown(table.title)}\n\n{markdown(header, lines)}\n{_plain_markdown(table.caption)}\n"


def mib(payload_bytes: float) -> str:
    """Return bytes as MiB with three figures that matter."""
    return three_figures(payload_bytes / 2**20)


def three_figures(value: float) -> str:
    """Return a number with about three figures that matter."""
    size = abs(value)
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.001 else f"{value:.1g}"


def _plain_markdown(text: str) -> str:
    # A bar would end the cell, a star or an underscore begin an emphasis.
    return "".join(f"\\{letter}" if letter in "|*_" else letter for letter in text)


def _marked(row: ComparisonRow) -> str:
    return f"{row.name} {RECONSTRUCTION}" if row.is_reconstruction else row.name


def _plain(figure: Figure) -> str:
    return f"{figure.mean:.2f}" + (f" ± {figure.deviation:.2f}" if len(figure.values) > 1 else "")


def _signed(figure: Figure) -> str:
    return f"{figure.mean:+.2f}" + (f" ± {figure.deviation:.2f}" if len(figure.values) > 1 else "")


def _pairs(row: Sequence[str], widths: Sequence[int]) -> list[tuple[int, tuple[str, int]]]:
    return list(enumerate(zip(row, widths, strict=True)))
