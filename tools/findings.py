"""What `crad advise` rests on: `python -m tools.findings` computes it from evidence/ into src/crad/paper/findings.json.

The wheel has no evidence, so the figures that advice needs travel in the package. A test computes them again.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crad.analysis.comparison import Figure
from crad.config import Experiment, changed_settings, names_of
from crad.files import write_atomically
from crad.paper import advice
from crad.paper.advice import FINDINGS, KIND_NAMES, Situation, advise
from crad.paper.experiments import PaperExperiment
from crad.paper.kept import kept_folders
from crad.paper.plan import Records, ReproductionPlan, plan_reproduction, read_finished
from crad.paper.study_tables import Compared, find_compared
from crad.runs.run_records import RunRecords

ROOT = Path(__file__).parent.parent
METRICS = {
    "asked_global_accuracy": "all",
    "asked_local_accuracy": "own",
    "honest_global_accuracy": "all",
    "honest_local_accuracy": "own",
    "sent_mib": "sent",
}
BASELINES = {"alone": "local"}  # a member of the committee before anybody is asked
WHOSE = {"all": "everybody's", "own": "own"}
DIGITS = 2
STUDENTS = ("uniform", "crad", "crad-plus", "dfml", "fedmkd", "experts")
# Settings that a command has flags of its own for, that say nothing to a reader, or that follow from others.
UNSAID = {
    *("dataset", "clients", "alpha", "seed", "method", "method_settings", "preset", "attack", "attackers"),
    *("private_training", "noise_multiplier", "eval_every", *names_of("execution")),
}


@dataclass(frozen=True)
class Source:
    """A table of evidence, its baseline, and which method each of its rows stands for."""

    table: str
    preset: str
    baseline: str
    methods: Mapping[str, str]

    @property
    def folder(self) -> str:
        """Return the folder of evidence in which its table lies."""
        return f"evidence/{self.table}"


def sources() -> list[Source]:
    """Return every table that advice rests on; `main` as soon as it is there."""
    students = {name: name for name in STUDENTS}
    found = [
        Source("committee", "mini", "alone", {"alone-together": "committee", **students}),
        Source("kinds", "paper", "local", {"local-together": "committee", **students}),
        Source("attacks", "mini", "uniform", {"crad-plus": "crad-plus", "crad": "crad"}),
        *(
            Source(
                "private",
                "mini",
                f"local-{epsilon}",
                {f"local-{epsilon}-together": "committee", **{f"{one}-{epsilon}": one for one in STUDENTS[:3]}},
            )
            for epsilon in (8, 4, 2, 1)
        ),
    ]
    if (ROOT / "evidence/main/tables/main.csv").is_file():
        found.insert(0, Source("main", "small", "local", {"committee-together": "committee", **students}))
    return found


def computed() -> dict[str, Any]:
    """Return worlds and claims as the evidence has them now."""
    worlds: dict[str, Any] = {}
    claims: list[dict[str, Any]] = []
    kept = kept_folders(ROOT / "evidence")
    for source in sources():
        flags = {"preset": source.preset}
        plan = plan_reproduction(source.table, ROOT, flags=flags, baseline=source.baseline, sources=kept)
        records, damaged = read_finished(plan)
        if damaged:
            raise SystemExit(f"evidence: {'; '.join(damaged.values())}")
        (paper,) = plan.papers
        for one in find_compared(paper, plan.cells[paper.name], plan.of_cell(paper, records)):
            if (claim := claim_of(source, one)) is not None:
                claims.append(claim)
                if claim["world"] not in worlds:
                    worlds[claim["world"]] = world_of(source, paper, plan, records, one)
    return {"worlds": worlds, "claims": claims}


def claim_of(source: Source, one: Compared) -> dict[str, Any] | None:
    """Return one figure of a method beside its baseline, None where there is none or nobody asks."""
    method, metric = source.methods.get(one.outcome.row.name), METRICS.get(one.outcome.metric.name)
    if method is None or metric is None or one.difference is None or not isinstance(one.outcome.ours, Figure):
        return None
    interval = one.difference.interval
    return {
        "world": world_name(source, one.outcome.column.name),
        "method": method,
        "metric": metric,
        "value": round(one.outcome.ours.mean, DIGITS),
        "difference": round(one.difference.figure.mean, DIGITS),
        "interval": None if interval is None else [round(end, DIGITS) for end in interval],
        "seeds": list(one.difference.seeds),
    }


def world_name(source: Source, column: str) -> str:
    """Return what a world is called: table and column, and the privacy that its baseline has."""
    epsilon = source.baseline.removeprefix("local-") if source.table == "private" else ""
    return f"{source.table}/{column}" + (f"/{epsilon}" if epsilon else "")


def world_of(
    source: Source, paper: PaperExperiment, plan: ReproductionPlan, records: Records, one: Compared
) -> dict[str, Any]:
    """Return what a column was measured on, from its runs."""
    finished = plan.of_cell(paper, records)
    runs = finished[one.outcome.row.name, one.outcome.column.name]
    ours = runs[0].experiment
    return {
        "table": source.table,
        "label": one.outcome.column.label,
        "baseline": BASELINES.get(source.baseline) or source.baseline.replace("local-", "local, epsilon "),
        "kind": kind_of(runs[0]),
        "dataset": ours.dataset,
        "clients": ours.clients,
        "classes": len(runs[0].summary["per_class"]),
        "samples": round(runs[0].summary["train_images"] / ours.clients),
        "alpha": ours.alpha if ours.partition == "dirichlet" else None,
        "preset": ours.preset,
        "rounds": ours.rounds,
        "epsilon": ours.private_training,
        "attack": ours.attack,
        "settings": settings_of(ours),
    }


def kind_of(run: RunRecords) -> str:
    """Return what the samples of a run are, as advice calls it."""
    return KIND_NAMES[run.partition.get("kind", "image")]


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Return what a command says beside the preset to run such an experiment on the same kind of data."""
    alike = changed_settings(experiment)
    usual = Experiment(preset=experiment.preset).recipe
    said = {name: value for name, value in alike.items() if name not in UNSAID and not hasattr(usual, name)}
    return {name: ",".join(value) if isinstance(value, tuple) else value for name, value in said.items()}


def as_json(found: Mapping[str, Any]) -> str:
    """Return the file: a line per world and claim, so that a change of one is a change of a line."""

    def lines(values: Iterator[str] | Sequence[str]) -> str:
        return ",\n  ".join(values)

    worlds = lines([f"{json.dumps(name)}: {json.dumps(world)}" for name, world in found["worlds"].items()])
    claims = lines([json.dumps(claim) for claim in found["claims"]])
    return f'{{\n "worlds": {{\n  {worlds}\n }},\n "claims": [\n  {claims}\n ]\n}}\n'


SITUATIONS: Mapping[str, Situation] = {
    "images": Situation(),
    "images, one model": Situation(is_one_model=True),
    "images, one model, for own samples": Situation(is_one_model=True, aim="own"),
    "images, strong skew (alpha 0.1)": Situation(alpha=0.1),
    "images, a hundred classes": Situation(classes=100),
    "images, a hundred classes, one model": Situation(classes=100, is_one_model=True),
    "images, some members dishonest": Situation(trust="some"),
    "images, some members dishonest, one model": Situation(trust="some", is_one_model=True),
    "images, epsilon 4, five members": Situation(clients=5, epsilon=4.0),
    "images, epsilon 4, five members, one model": Situation(clients=5, epsilon=4.0, is_one_model=True),
    "images, a hundred members": Situation(clients=100),
    "images, ten megabytes in all, one model": Situation(total_mb=10.0, is_one_model=True),
    "a table, four members": Situation("table", clients=4),
    "a table, four members, one model": Situation("table", clients=4, is_one_model=True),
    "a table, four members, epsilon 4": Situation("table", clients=4, epsilon=4.0),
    "a table, four members, epsilon 4, one model": Situation("table", clients=4, epsilon=4.0, is_one_model=True),
    "texts": Situation("text"),
    "texts, one model": Situation("text", is_one_model=True),
    "texts, one model, for own samples": Situation("text", is_one_model=True, aim="own"),
    "recordings, six members": Situation("recordings", clients=6),
    "recordings, six members, one model": Situation("recordings", clients=6, is_one_model=True),
}


def advice_table() -> str:
    """Return what `crad advise` says of some situations as Markdown; ten members and alpha 0.3 unless said."""
    lines = ["| situation | method | how sure | points over training alone | and elsewhere | worlds |"]
    lines.append("|---|---|---|---:|---|---|")
    for name, asked in SITUATIONS.items():
        said = advise(asked)
        gain = f"{statistics.fmean(one.difference for one in said.evidence):+.1f}" if said.is_to_join else ""
        worlds = "; ".join(one.world for one in said.evidence) if said.is_to_join else ""
        lost = "; ".join(f"{one.difference:+.1f} on {WHOSE[one.metric]} samples, {one.world}" for one in said.losses)
        lines.append(f"| {name} | `{said.method}` | {said.sure} | {gain} | {lost} | {worlds} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the file again."""
    write_atomically(FINDINGS, as_json(computed()).encode())
    advice.findings.cache_clear()
    print(FINDINGS.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
