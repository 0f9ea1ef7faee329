"""An experiment of the paper run on other data than the paper's: nothing of it keeps a name that is not its own.

A preset or `--dataset` may put one data set in the place of all that an experiment names. Then columns are called by
that data set, those that become the same are one, titles and captions say it, and published figures and claims, which
are of other data, are left out. Every form (terminal, CSV, Markdown, LaTeX, page) is made from what comes out of here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from crad.errors import ConfigError
from crad.paper.experiments import PaperColumn, PaperExperiment, PlannedCell

# How the paper writes its data sets; the longer before what it begins with.
WRITTEN = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "pathmnist": "PathMNIST"}


def under_own_name(paper: PaperExperiment, cells: Sequence[PlannedCell]) -> tuple[PaperExperiment, list[PlannedCell]]:
    """Return an experiment and its planned cells, renamed where they are not on the data that the file names.

    Refused where one of the file's own data sets would stand under the others' columns as well.
    """
    theirs = list(dict.fromkeys(cell.as_published.dataset for cell in cells))
    ours = list(dict.fromkeys(cell.experiment.dataset for cell in cells))
    if ours == theirs:
        return paper, list(cells)
    (dataset,) = ours  # a preset or a flag says it for all
    if dataset in theirs:
        raise ConfigError(
            f"--dataset {dataset} would stand under every column of {paper.name!r}: leave it out and choose the "
            f"columns that are of it with --datasets {dataset}"
        )
    data = PurePath(dataset).name
    renamed = {column.name: _renamed(column, data) for column in paper.columns}
    columns = {
        name: _as_one(first, {old: new for old, new in renamed.items() if new.name == name})
        for name, first in reversed([(new.name, new) for new in renamed.values()])
    }
    changed = paper.model_copy(
        update={
            "title": f"{_with_name(paper.title, data)}, on {data}",
            "source": f"laid out as {paper.source}" if paper.source else "",
            "caption": f"{_with_name(paper.caption, data)} {_sentence(paper, data, theirs)}",
            "claims": (),
            "columns": tuple(reversed(columns.values())),
            "rows": tuple(row.model_copy(update={"published": {}}) for row in paper.rows),
            "metrics": tuple(
                metric.model_copy(update={"columns": tuple(renamed[name].name for name in metric.columns)})
                for metric in paper.metrics
            ),
            "control": None if paper.control is None else renamed[paper.control].name,
        }
    )
    of_row = {row.name: row for row in changed.rows}
    return changed, [
        replace(cell, row=of_row[cell.row.name], column=columns[renamed[cell.column.name].name]) for cell in cells
    ]


def _renamed(column: PaperColumn, data: str) -> PaperColumn:
    """Return a column under the name of the data; one that says no data set keeps its own."""
    if "dataset" not in column.settings:
        return column
    if len(column.settings) == 1:
        return column.model_copy(update={"name": re.sub(r"\W+", "-", PurePath(data).stem), "label": data})
    label = _with_name(column.label, data)
    return column.model_copy(update={"label": label if label != column.label else f"{label}, {data}"})


def _as_one(first: PaperColumn, same: Mapping[str, PaperColumn]) -> PaperColumn:
    """Return the column that stands for all that became the same, with the rows and the seeds of any of them."""
    found = list(same.values())
    rows = dict.fromkeys(row for one in found for row in one.rows) if all(one.rows for one in found) else ()
    seeds = [one.most_seeds for one in found]
    most = None if None in seeds else max(one for one in seeds if one is not None)
    return first.model_copy(update={"stands_for": tuple(same), "rows": tuple(rows), "most_seeds": most})


def _with_name(text: str, data: str) -> str:
    for written in WRITTEN.values():
        text = text.replace(written, data)
    return text


def _sentence(paper: PaperExperiment, data: str, theirs: Sequence[str]) -> str:
    names = ", ".join(WRITTEN.get(name, name) for name in theirs)
    published = "" if paper.baseline else ", and the published figures are left out"
    return f"Run on {data} in place of {names}{published}."
