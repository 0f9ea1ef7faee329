"""The rows behind every chart, from the records alone: no plotting library is needed or known here.

Numbers are those of the records. What is computed beyond them is a mean over seeds or clients, the lowest and highest
of the seeds, a difference to training alone, a share of hits, or a sum of bytes; accuracies are in percent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crad.analysis.comparison import over_seeds
from crad.analysis.gains import attackers_of, client_accuracies
from crad.analysis.groups import NOT_JOINED, Methods, is_tested
from crad.analysis.intervals import gain_interval, t_interval
from crad.runs.records import INPUT_SHIFT, Record
from crad.runs.run_records import RunRecords
from crad.runs.selection import clients_at, honest_clients_at

Row = dict[str, Any]

ALONE = "local"
METRICS = {"global_accuracy": "global test set", "local_accuracy": "clients' own test halves"}
TRUST_ROUNDS = 10
TRUST_NUMBERS = 60_000  # about half a megabyte in the page


def accuracy_rows(methods: Methods) -> list[Row]:
    """Global and local accuracy after every round that was tested with all seeds of a method."""
    return _round_rows(methods, _curve)


def committee_rows(methods: Methods) -> list[Row]:
    """Return the same of all models of a run asked together, where that was measured."""
    return _round_rows(methods, _committee_curve)


def client_rows(methods: Methods) -> list[Row]:
    """Return both accuracies of every client at the selected round, of the methods that somebody joins, if any is."""
    return [
        {"method": method, "metric": name, "seed": run.experiment.seed, "client": client, "accuracy": accuracy}
        for metric, name in METRICS.items()
        for method, runs in (_joined(methods) or methods).items()
        for run in runs
        for client, accuracy in enumerate(run.summary[f"{metric}_per_client"])
    ]


def gain_rows(methods: Methods) -> list[Row]:
    """Return what joining brought every client over training alone with the same seed, in both accuracies.

    Nothing where nobody trained alone. Under a simulated attack the honest clients count, as in the verdict.
    """
    floors = [runs for runs in methods.values() if runs[0].experiment.method == ALONE]
    alone = {run.experiment.seed: run for run in (floors[0] if floors else ())}
    return [
        {"method": method, "metric": name, "seed": run.experiment.seed, "client": client}
        | {"accuracy": accuracy, "alone": before, "gain": accuracy - before}
        for metric, name in METRICS.items()
        for method, runs in _joined(methods).items()
        for run in runs
        if run.experiment.seed in alone
        for client, accuracy, before in zip(
            _honest(run),
            client_accuracies(run, metric, attackers=attackers_of(run)),
            client_accuracies(alone[run.experiment.seed], metric, attackers=attackers_of(run)),
            strict=True,
        )
    ]


def mean_rows(rows: Sequence[Row], field: str) -> list[Row]:
    """Return the mean of a field over the clients by method and metric, with the 95 % interval of that mean.

    Over several seeds it is the verdict's interval (`gain_interval`); of one seed it is of the clients, and speaks of
    that run alone.
    """
    found = []
    for method, metric in dict.fromkeys((row["method"], row["metric"]) for row in rows):
        own = [row for row in rows if (row["method"], row["metric"]) == (method, metric)]
        by_seed = [[row[field] for row in own if row["seed"] == seed] for seed in dict.fromkeys(r["seed"] for r in own)]
        found_interval = gain_interval(by_seed) if len(by_seed) > 1 else t_interval(over_seeds(by_seed[0]))
        low, high = found_interval or (None, None)
        about = {"method": method, "metric": metric, field: statistics.fmean(row[field] for row in own)}
        found.append({**about, "low": low, "high": high, "seeds": len(by_seed)})
    return found


def class_rows(methods: Methods) -> list[Row]:
    """Global accuracy per class at the selected round, classes from most to fewest private samples of all clients."""
    held = _held_per_class(methods)
    order = sorted(range(len(held)), key=lambda label: (-held[label], label))
    rows = []
    for method, runs in methods.items():
        for place, label in enumerate(order, start=1):
            own = [run.summary["per_class"][label] for run in runs]
            reached = [one["global_accuracy"] for one in own if one["global_accuracy"] is not None]
            if reached:
                about = {"method": method, "place": place, "class": own[0]["name"], "private_samples": held[label]}
                rows.append({**about, **_over_seeds(reached)})
    return rows


def support_rows(methods: Methods) -> list[Row]:
    """Global accuracy by a client's own support: place 1 is the class that it holds most of; means over clients.

    Where all clients together hold as much of every class, only this tells plentiful from rare.
    """
    rows = []
    for method, runs in methods.items():
        of_seeds = [_by_own_support(run) for run in runs]
        for place in sorted(set.intersection(*(set(one) for one in of_seeds))):
            samples = statistics.fmean(one[place][0] for one in of_seeds)
            reached = _over_seeds([one[place][1] for one in of_seeds])
            rows.append({"method": method, "place": place, "private_samples": samples, **reached})
    return rows


def context_run(methods: Methods) -> RunRecords:
    """Return the run whose weights are looked at: CRAD's, or the last that combined teachers by a rule, or the last."""
    firsts = [runs[0] for runs in methods.values()]
    with_rule = [run for run in firsts if any(_trusting(record) for record in run.rounds)]
    own = [run for run in with_rule if run.experiment.method == "crad"]
    return own[0] if own else [*firsts, *with_rule][-1]


def context_rows(run: RunRecords) -> list[Row]:
    """Support (validation samples) and share of global test images right, per client and class, selected round."""
    names = run.partition["class_names"]
    return [
        {
            "client": client["client"],
            "class": names[label],
            "support": client["validation"]["counts"][label],
            "hits": hits,
            "test_samples": count,
            "accuracy": 100.0 * hits / count,
        }
        for client in clients_at(run.rounds, run.summary["best_round"])
        for label, (hits, count) in enumerate(_hits_and_counts(client))
        if count
    ]


def partition_rows(run: RunRecords) -> list[Row]:
    """Private samples per client and class."""
    return [
        {"client": client, "class": name, "samples": samples}
        for client, row in enumerate(run.partition["counts"])
        for name, samples in zip(run.partition["class_names"], row, strict=True)
    ]


def shift_rows(run: RunRecords) -> list[Row]:
    """Return how far the mean of a client's samples is from that of the others, by feature; none where nobody knows."""
    shift = run.partition.get(INPUT_SHIFT)
    if not shift:
        return []
    return [
        {"client": client, "feature": name, "difference": difference, "shown": f"{difference:+.1f}"}
        for client, row in enumerate(shift["differences"])
        for name, difference in zip(shift["features"], row, strict=True)
        if difference is not None
    ]


def trust_rows(run: RunRecords) -> list[Row]:
    """Return the share of the say that a student gave each teacher, a list with one number per class.

    Some rounds at even distances up to the last tested one, and as many students as there is room for. A student that
    sat out a round stands as it learned last.
    """
    shown = _shown_rounds([record["round"] for record in run.rounds if is_tested(record)])
    newest: dict[int, Record] = {}
    rows = []
    for record in run.rounds:
        newest |= {client["client"]: client["trust"] for client in _trusting(record)}
        if record["round"] in shown:
            rows += [
                {"round": record["round"], "student": student, "teacher": int(teacher), "weights": weights}
                for student, trust in sorted(newest.items())
                for teacher, weights in sorted(trust.items(), key=lambda item: int(item[0]))
            ]
    return _within_room(rows)


def cost_rows(methods: Methods) -> list[Row]:
    """Payload per client and round, and the median seconds of a round; means over seeds."""
    return [
        {
            "method": method,
            "payload_bytes": statistics.fmean(run.summary["payload_bytes_per_client_round"] for run in runs),
            "payload_counts": runs[0].summary.get("payload_counts", "sent"),
            "round_seconds": statistics.fmean(run.summary["round_seconds"] for run in runs),
            "seeds": len(runs),
        }
        for method, runs in methods.items()
    ]


def traffic_rows(methods: Methods) -> list[Row]:
    """Global accuracy against the payload so far, per client, after every round tested with all seeds of a method."""
    rows = []
    for method, runs in methods.items():
        curves = [_curve(run, "global_accuracy") for run in runs]
        so_far = [_payload_so_far(run) for run in runs]
        for index in _common_rounds(curves):
            sent = statistics.fmean(one[index] for one in so_far)
            reached = _over_seeds([curve[index] for curve in curves])
            rows.append({"method": method, "round": index, "payload_bytes": sent, **reached})
    return rows


def _joined(methods: Methods) -> Methods:
    return {name: runs for name, runs in methods.items() if runs[0].experiment.method not in NOT_JOINED}


def _honest(run: RunRecords) -> list[int]:
    return [client for client in range(run.experiment.clients) if client not in run.summary.get("attackers", ())]


def _round_rows(methods: Methods, curve_of: Callable[[RunRecords, str], dict[int, float]]) -> list[Row]:
    """Return both metrics' curves of every method, at the rounds that all its seeds have."""
    return [
        {"method": method, "metric": name, "round": index, **_over_seeds([by_round[index] for by_round in curves])}
        for metric, name in METRICS.items()
        for method, runs in methods.items()
        for curves in [[curve_of(run, metric) for run in runs]]
        for index in _common_rounds(curves)
    ]


def _curve(run: RunRecords, metric: str) -> dict[int, float]:
    return {record["round"]: record[metric] for record in run.rounds if record[metric] is not None}


def _committee_curve(run: RunRecords, metric: str) -> dict[int, float]:
    found = {record["round"]: record["committee"][metric] for record in run.rounds if "committee" in record}
    return {index: value for index, value in found.items() if value is not None}


def _common_rounds(curves: Sequence[Mapping[int, float]]) -> list[int]:
    return sorted(set.intersection(*(set(curve) for curve in curves)))


def _over_seeds(values: Sequence[float]) -> Row:
    return {"accuracy": statistics.fmean(values), "low": min(values), "high": max(values), "seeds": len(values)}


def _held_per_class(methods: Methods) -> list[float]:
    """Private samples per class of all clients; a mean where the seeds differ."""
    by_seed = {run.experiment.seed: run.summary["per_class"] for runs in methods.values() for run in runs}
    columns = zip(*by_seed.values(), strict=True)
    return [statistics.fmean(one["private_samples"] for one in column) for column in columns]


def _by_own_support(run: RunRecords) -> dict[int, tuple[float, float]]:
    """By place in a client's own order of classes: private samples and accuracy, means over the clients."""
    found: dict[int, list[tuple[int, float]]] = {}
    for client in honest_clients_at(run.rounds, run.summary["best_round"], attackers_of(run)):
        held = run.partition["counts"][client["client"]]
        scores = _hits_and_counts(client)
        order = sorted((label for label, (_, count) in enumerate(scores) if count), key=lambda label: -held[label])
        for place, label in enumerate(order, start=1):
            hits, count = scores[label]
            found.setdefault(place, []).append((held[label], 100.0 * hits / count))
    return {
        place: (statistics.fmean(held for held, _ in ones), statistics.fmean(accuracy for _, accuracy in ones))
        for place, ones in found.items()
    }


def _hits_and_counts(client: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return them by class; none where a kept run has those of another round alone."""
    score = client.get("global")
    return [] if score is None else list(zip(score["hits"], score["counts"], strict=True))


def _trusting(record: Record) -> list[Record]:
    return [client for client in record["clients"] if client.get("trust")]


def _shown_rounds(tested: Sequence[int]) -> list[int]:
    if not tested:
        return []
    step = -(-tested[-1] // TRUST_ROUNDS)
    return list(range(tested[-1], 0, -step))


def _within_room(rows: list[Row]) -> list[Row]:
    """Fewer students, then fewer rounds, until the numbers fit in a page."""
    while sum(len(row["weights"]) for row in rows) > TRUST_NUMBERS:
        students = sorted({row["student"] for row in rows})
        rounds = sorted({row["round"] for row in rows})
        if len(students) > 1:
            kept = set(students[: len(students) // 2])
            rows = [row for row in rows if row["student"] in kept]
        elif len(rounds) > 1:
            rows = [row for row in rows if row["round"] in rounds[::-2]]
        else:
            break
    return rows


def _payload_so_far(run: RunRecords) -> dict[int, float]:
    total, found = 0, {}
    for record in run.rounds:
        total += record["payload_bytes"]
        found[record["round"]] = total / run.experiment.clients
    return found
