"""Results as notebooks show them: small tables of a run or a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crad.analysis.comparison import ComparisonRow
from crad.report.markup import render
from crad.report.tables import COMPARISON_HEADER, comparison_caption, comparison_cells, mib

MAX_CLIENTS = 20  # rows of clients that are shown


def result_html(summary: Mapping[str, Any], *, notices: Sequence[str] = (), sites: Sequence[str] = ()) -> str:
    """Return a run's outcome: the means, and every client, by the name of its site where it is one."""
    figures = [
        ("global accuracy", f"{summary['global_accuracy']:.2f} %"),
        ("local accuracy", f"{summary['local_accuracy']:.2f} %"),
        *_together(summary),
        ("payload per client and round", f"{mib(summary['payload_bytes_per_client_round'])} MiB"),
        ("time per round", f"{summary['round_seconds']:.2f} s"),
    ]
    columns = (summary[f"{key}_per_client"] for key in ("architecture", "global_accuracy", "local_accuracy"))
    clients = [
        (f"{client}: {sites[client]}" if sites else str(client), network, f"{overall:.2f}", f"{own:.2f}")
        for client, (network, overall, own) in enumerate(zip(*columns, strict=True))
    ]
    return render(
        "notebook.html",
        title=f"{summary.get('name', summary['method'])} on {summary['dataset']}, seed {summary['seed']}, "
        f"round {summary['best_round']} of {summary['rounds']}",
        figures=figures,
        header=("client", "network", "global %", "local %"),
        rows=clients[:MAX_CLIENTS],
        caption=f"and {len(clients) - MAX_CLIENTS} more clients" if len(clients) > MAX_CLIENTS else "",
        notices=notices,
    )


def comparison_html(rows: Sequence[ComparisonRow], *, verdict: str) -> str:
    """Return a comparison as its table, the verdict above it."""
    return render(
        "notebook.html",
        title=verdict or "Comparison",
        figures=[],
        header=COMPARISON_HEADER,
        rows=comparison_cells(rows),
        caption=comparison_caption(rows),
        notices=(),
    )


def _together(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what all models of the run reach when they are asked together, where that was measured."""
    committee = summary.get("committee") or {}
    names = {"global_accuracy": "global, all together", "local_accuracy": "local, all together"}
    return [(name, f"{committee[key]:.2f} %") for key, name in names.items() if committee.get(key) is not None]
