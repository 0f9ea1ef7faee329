"""Which runs may stand on one page: the same data, the same division of it, every method with every seed.

Variants of a method are told apart here, once: from here on a run's summary says what it is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from crad.analysis.groups import NOT_JOINED
from crad.errors import RunError
from crad.runs.names import with_names
from crad.runs.run_records import RunRecords


def comparable_runs(runs: Sequence[RunRecords]) -> tuple[list[RunRecords], list[RunRecords]]:
    """Return the runs with seeds that every method has, and those left out; refuse what cannot be compared."""
    if not runs:
        raise RunError("there is no run to report: name a run directory")
    runs = with_names(runs)
    for run in runs[1:]:
        _refuse_other_data(runs[0], run)
    # Who joins nobody meets no attack, and is the floor of every one.
    attackable = [run for run in runs if run.summary["method"] not in NOT_JOINED or run.experiment.attack]
    for run in attackable[1:]:
        _refuse_other_attack(attackable[0], run)
    _refuse_twice(runs)
    _refuse_other_partitions(runs)
    methods = {run.summary["name"] for run in runs}
    of_seed: dict[int, set[str]] = {}
    for run in runs:
        of_seed.setdefault(run.summary["seed"], set()).add(run.summary["name"])
    whole = {seed for seed, own in of_seed.items() if own == methods}
    if not whole:
        raise RunError(
            f"no seed was run with all of {', '.join(sorted(methods))}: run every method with one seed, or report fewer"
        )
    kept = [run for run in runs if run.summary["seed"] in whole]
    return kept, [run for run in runs if run.summary["seed"] not in whole]


def run_title(run: RunRecords) -> str:
    """Return a run by name and seed."""
    return f"{run.summary['name']}, seed {run.summary['seed']}"


def named(run: RunRecords) -> str:
    """Return a run in a message: where it lies, or what it is."""
    return run_title(run) if run.path is None else str(run.path)


def _refuse_twice(runs: Sequence[RunRecords]) -> None:
    seen: dict[tuple[str, int], RunRecords] = {}
    for run in runs:
        key = run.summary["name"], run.summary["seed"]
        if key in seen:
            raise RunError(f"{named(seen[key])} and {named(run)} are both {key[0]} with seed {key[1]}: leave one out")
        seen[key] = run


def _refuse_other_data(first: RunRecords, other: RunRecords) -> None:
    for what, one, two in (
        ("data set", first.summary["dataset"], other.summary["dataset"]),
        ("number of clients", first.summary["clients"], other.summary["clients"]),
        ("classes", first.partition["class_names"], other.partition["class_names"]),
    ):
        if one != two:
            shown = "" if what == "classes" else f" ({one} and {two})"
            raise RunError(f"{named(first)} and {named(other)} differ in their {what}{shown}: report them apart")


def _refuse_other_attack(first: RunRecords, other: RunRecords) -> None:
    for what, name in (("attack", "attack"), ("number of attackers", "attackers")):
        one, two = getattr(first.experiment, name), getattr(other.experiment, name)
        if one != two:
            raise RunError(
                f"{named(first)} and {named(other)} differ in their {what} ({one} and {two}): report them apart"
            )


def _refuse_other_partitions(runs: Sequence[RunRecords]) -> None:
    first: dict[int, RunRecords] = {}
    for run in runs:
        same = first.setdefault(run.summary["seed"], run)
        if same.partition != run.partition:
            raise RunError(
                f"{named(same)} and {named(run)} have the same seed but other data or another division of it: "
                "report them apart"
            )
