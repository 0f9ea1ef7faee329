"""`report.html`: one page that opens from disk, with what was run, whether joining helped, and how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from crad.config import Experiment, changed_settings, to_flags
from crad.results.comparison import Row
from crad.results.drawing import heat_map, label, line_chart
from crad.results.runs import RunRecords
from crad.results.tables import (
    COMPARISON_HEADER,
    COST_CAPTION,
    COST_HEADER,
    comparison_caption,
    comparison_cells,
    cost_cells,
    mib,
)

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>{title}</title><style>
:root{{--ink:#222;--paper:#fff;--grid:#ddd;color-scheme:light dark}}
@media(prefers-color-scheme:dark){{:root{{--ink:#e8e8e8;--paper:#16181c;--grid:#3a3d44}}}}
body{{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}}
body{{max-width:68rem;margin:auto;padding:1rem}}
table{{border-collapse:collapse;display:block;overflow-x:auto;font-size:.9rem}}
th,td{{padding:.3rem .5rem;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap}}
th:first-child,td:first-child{{text-align:left}}
figure{{margin:1.5rem 0}} pre{{overflow-x:auto;border:1px solid var(--grid);padding:.6rem}}
</style></head><body><main><h1>{title}</h1>{body}</main></body></html>
"""


def run_report(run: RunRecords) -> str:
    """The page of one run."""
    experiment, summary, rounds, partition = run.experiment, run.summary, run.rounds, run.partition
    curves = {
        "global": _curve(rounds, "global_accuracy"),
        "local": _curve(rounds, "local_accuracy"),
        "validation": _curve(rounds, "validation_accuracy"),
    }
    cells = [
        [str(client), architecture, f"{overall:.2f}", f"{local:.2f}"]
        for client, (architecture, overall, local) in enumerate(
            zip(
                summary["architecture_per_client"],
                summary["global_accuracy_per_client"],
                summary["local_accuracy_per_client"],
                strict=True,
            )
        )
    ]
    body = [
        f"<p>{label(_sentence(summary))}</p>",
        f"<p><strong>At round {summary['best_round']}</strong> (highest validation accuracy): global accuracy "
        f"{summary['global_accuracy']:.2f} %, local accuracy {summary['local_accuracy']:.2f} %, "
        f"{mib(summary['payload_bytes_per_client_round'])} MiB "
        f"{summary.get('payload_counts', 'sent')} per client and round.</p>",
        _figure(line_chart(curves, title="Accuracy over rounds", x_title="round", y_title="mean accuracy (%)")),
        "<h2>Clients</h2>",
        _table(["client", "architecture", "global accuracy %", "local accuracy %"], cells),
        "<h2>Who holds what</h2>",
        _figure(partition_picture(partition)),
        *_repeat(summary, f"crad run --preset {experiment.preset} {to_flags(changed_settings(experiment))}"),
    ]
    return PAGE.format(title=f"CRAD run: {label(summary['method'])} on {label(summary['dataset'])}", body="".join(body))


def comparison_report(
    experiment: Experiment,
    rows: Sequence[Row],
    summaries: Sequence[Mapping[str, Any]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    partition: Mapping[str, Any],
    method_settings: Mapping[str, Any],
) -> str:
    """The page of a comparison; `curves` are global accuracies over rounds by method, for the first seed.

    `method_settings` are those of all methods, with the method before the dot.
    """
    first = summaries[0]
    seeds = ", ".join(str(seed) for seed in rows[0].seeds)
    methods = ",".join(dict.fromkeys(summary["method"] for summary in summaries))
    title = f"Global accuracy over rounds, seed {rows[0].seeds[0]}"
    body = [
        f"<p>{label(_sentence(first, method=methods.replace(',', ', ')))} Seeds: {seeds}.</p>",
        f"<p><strong>{label(headline(rows))}</strong></p>",
        _table(COMPARISON_HEADER, comparison_cells(rows)),
        f"<p><small>{label(comparison_caption(rows))}</small></p>",
        _table(COST_HEADER, cost_cells(rows)),
        f"<p><small>{label(COST_CAPTION)}</small></p>",
        _figure(line_chart(curves, title=title, x_title="round", y_title="mean accuracy (%)")),
        f"<h2>Who holds what (seed {rows[0].seeds[0]})</h2>",
        _figure(partition_picture(partition)),
        *_repeat(first, _compare_command(experiment, methods, seeds.replace(" ", ""), method_settings)),
    ]
    return PAGE.format(title=f"CRAD comparison on {label(first['dataset'])}", body="".join(body))


def headline(rows: Sequence[Row]) -> str:
    """Whether joining helped over training alone, in two sentences; empty where `local` was not run."""
    alone = next((row for row in rows if row.method == "local"), None)
    joined = [row for row in rows if row.method not in ("local", "centralized")]
    if alone is None or not joined:
        return ""
    theirs = alone.figures["global_accuracy"]
    gains = [row.figures["global_accuracy"].mean - theirs.mean for row in joined]
    verdict = "helped" if min(gains) > 0 else "did not help" if max(gains) <= 0 else "helped with some methods only"
    parts = []
    for row, gain in zip(joined, gains, strict=True):
        pairs = zip(row.figures["global_accuracy"].values, theirs.values, strict=True)
        wins = sum(value > other for value, other in pairs)
        parts.append(f"{row.method} {gain:+.2f} points (better with {wins} of {len(row.seeds)} seeds)")
    return f"Joining {verdict}. Global accuracy over training alone ({theirs.mean:.2f} %): {', '.join(parts)}."


def partition_picture(partition: Mapping[str, Any]) -> str:
    """The partition as a heat map, clients x classes."""
    counts = partition["counts"]
    return heat_map(
        counts,
        rows=[f"client {i}" for i in range(len(counts))],
        columns=partition["class_names"],
        title="Private samples per client and class",
        row_title="rows: clients, columns: classes",
    )


def _sentence(summary: Mapping[str, Any], method: str | None = None) -> str:
    active = summary["active"]
    who = f"{summary['clients']} clients" + (f", {active} active" if active != summary["clients"] else "")
    how = f"{summary['partition']}" + (f" alpha {summary['alpha']:g}" if summary["partition"] == "dirichlet" else "")
    hardware = summary["hardware"]
    seed = f", seed {summary['seed']}" if method is None else ""
    mark = " (our reconstruction, no public code)" if method is None and summary.get("is_reconstruction") else ""
    return (
        f"{method or summary['method']}{mark} on {summary['dataset']} ({summary['train_images']} training and "
        f"{summary['test_images']} test images): {who}, {how}, {summary['rounds']} rounds, preset "
        f"{summary['preset']}{seed}, on {hardware['processor']} ({hardware['device']})."
    )


def _curve(rounds: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(record["round"], record[key]) for record in rounds if record[key] is not None]


def _figure(svg: str) -> str:
    return f"<figure>{svg}</figure>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{label(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{label(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _compare_command(experiment: Experiment, methods: str, seeds: str, method_settings: Mapping[str, Any]) -> str:
    settings = {**changed_settings(experiment), "method_settings": method_settings}
    if not method_settings:
        del settings["method_settings"]
    others = to_flags({key: value for key, value in settings.items() if key not in ("method", "seed")})
    return f"crad compare --preset {experiment.preset} --methods {shlex.quote(methods)} --seeds {seeds} {others}"


def _repeat(summary: Mapping[str, Any], command: str) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    return [
        "<h2>To repeat it</h2>",
        f"<pre>{label(command.strip())}</pre>",
        f"<p>All settings stand in <code>experiment.toml</code> of each run. {label(versions)}.</p>",
    ]
