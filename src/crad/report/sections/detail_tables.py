"""The page's larger tables: what joining brought, every client, every class."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from crad.analysis.comparison import METRICS
from crad.analysis.gains import ALONE, Gain, alone_name, attackers_of, client_gains
from crad.config import Experiment
from crad.federation.attacks import ATTACKS
from crad.report.sections.page_table import PageTable
from crad.runs.run_records import RunRecords

TITLES = {"global_accuracy": "Global accuracy", "local_accuracy": "Local accuracy"}


def gain_table(runs: Sequence[RunRecords]) -> PageTable | None:
    """Return how many clients gained by joining, and how much; None where nobody trained alone."""
    gains = client_gains(runs)
    header = ["method"]
    for metric in METRICS:
        header += [f"Δ {TITLES[metric].lower()}", "gained", "lowest", "highest"]
    by_name: dict[str, list[Gain]] = {}
    for gain in gains:
        by_name.setdefault(gain.name, []).append(gain)
    rows = [[name, *(cell for gain in own for cell in _gain_cells(gain))] for name, own in by_name.items()]
    caption = (
        "Every client's accuracy minus what it reaches alone with the same seed, in points. "
        "Mean over clients, how many clients gained, and the clients that gained least and most."
        + (" The honest clients alone, at the round that these select." if any(map(attackers_of, runs)) else "")
    )
    return PageTable(header, rows, caption, title="What joining brought") if rows else None


def client_table(runs: Sequence[RunRecords], metric: str) -> PageTable:
    """Return every client's accuracy by method, with the difference to training alone where that was run."""
    names, by_key = _by_name_and_seed(runs)
    seeds = list(dict.fromkeys(run.summary["seed"] for run in runs))
    alone = alone_name(runs)
    ordered = names if alone is None else [alone, *(name for name in names if name != alone)]
    header = ["seed"] * (len(seeds) > 1) + ["client", "architecture", "samples"]
    num_heads = len(header) - 2
    for name in ordered:
        header += ["alone"] if name == alone == ALONE else [name] if alone in (None, name) else [name, "Δ"]
    rows = []
    for seed in seeds:
        own = {name: by_key[name, seed].summary[f"{metric}_per_client"] for name in ordered}
        about = by_key[ordered[-1], seed]
        for client, counts in enumerate(about.partition["counts"]):
            who = f"{client}, lies" if client in about.summary.get("attackers", ()) else str(client)
            cells = [str(seed)] * (len(seeds) > 1) + [who, about.summary["architecture_per_client"][client]]
            cells.append(str(sum(counts)))
            for name in ordered:
                cells.append(f"{own[name][client]:.2f}")
                if alone is not None and name != alone:
                    cells.append(f"{own[name][client] - own[alone][client]:+.2f}")
            rows.append(cells)
    difference = "; Δ: points over training alone" if alone is not None and len(ordered) > 1 else ""
    where = "on the common test samples" if metric == "global_accuracy" else "on the client's own held-out samples"
    caption = f"{TITLES[metric]} per client in percent, {where}, at each run's selected round{difference}."
    return PageTable(header, rows, caption, num_heads, title=f"{TITLES[metric]} per client")


def attack_sentence(experiment: Experiment) -> str:
    """Say what was simulated, and what the means of a page count."""
    assert experiment.attack is not None, "only of runs under attack"
    return (
        f"A simulated attack ({experiment.attack}): {experiment.attackers} of {experiment.clients} clients "
        f"{ATTACKS[experiment.attack].does}. The methods' figures are means over the honest clients; per class all "
        "count. The inspector shows what attackers published."
    )


def honest_table(runs: Sequence[RunRecords]) -> PageTable | None:
    """Return what an attack left to the clients that did not attack, at the round that these select."""
    found = [run for run in runs if "honest" in run.summary]  # runs of earlier versions do not have it
    if not found:
        return None
    keys = [("global_accuracy", "global %"), ("local_accuracy", "local %"), ("attack_success", "trigger works %")]
    shown = [(key, title) for key, title in keys if key in found[0].summary["honest"]]
    rows = []
    for run in found:
        honest, attackers = run.summary["honest"], ", ".join(map(str, run.summary["attackers"]))
        figures = [f"{honest[key]:.2f}" for key, _ in shown]
        rows.append([run.summary["name"], str(run.summary["seed"]), attackers, str(honest["best_round"]), *figures])
    caption = (
        "Means over the honest clients alone, in percent, at the round with their highest validation accuracy. Trigger "
        "works: common test samples of other classes that get class 0 once they carry the backdoor's patch."
    )
    header = ["method", "seed", "attackers", "round", *(title for _, title in shown)]
    return PageTable(header, rows, caption, title="Honest clients alone")


def class_table(runs: Sequence[RunRecords]) -> PageTable:
    """Return global accuracy per class by method, the class with the most private samples first."""
    names, by_key = _by_name_and_seed(runs)
    seeds = list(dict.fromkeys(run.summary["seed"] for run in runs))
    first = [by_key[names[0], seed].summary["per_class"] for seed in seeds]
    held = [statistics.fmean(of_seed[label]["private_samples"] for of_seed in first) for label in range(len(first[0]))]
    rows = []
    for label in sorted(range(len(held)), key=lambda label: (-held[label], label)):
        about = first[0][label]
        cells = [about["name"], f"{held[label]:.0f}", str(about["test_samples"])]
        for name in names:
            values = [by_key[name, seed].summary["per_class"][label]["global_accuracy"] for seed in seeds]
            cells.append("-" if None in values else f"{statistics.fmean(values):.2f}")
        rows.append(cells)
    over = ", mean over seeds" if len(seeds) > 1 else ""
    caption = f"Global accuracy per class in percent, mean over clients{over}; the most private samples first."
    return PageTable(["class", "private samples", "test samples", *names], rows, caption, title="Accuracy per class")


def _gain_cells(gain: Gain) -> list[str]:
    range_cells = [f"{min(gain.values):+.2f}", f"{max(gain.values):+.2f}"]
    return [f"{gain.mean:+.2f}", f"{gain.num_gained} of {len(gain.values)}", *range_cells]


def _by_name_and_seed(runs: Sequence[RunRecords]) -> tuple[list[str], dict[tuple[str, int], RunRecords]]:
    names = list(dict.fromkeys(run.summary["name"] for run in runs))
    return names, {(run.summary["name"], run.summary["seed"]): run for run in runs}
