"""What the paper's tables and figures read off a run, each by a name that `experiments/*.toml` uses.

Accuracies in percent. A measure gives None where the run does not have it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from crad.aggregation.committee_rule import ANSWER_TEMPERATURE
from crad.runs.run_records import RunRecords
from crad.runs.selection import clients_at

Value = float | str | None
Measure = Callable[[RunRecords, str], Value]  # the second is the name of the table's row

STATES = {"k": "kept", "u": "no support", "o": "outlier"}
TOGETHER = "-together"
MIN_SUPPORT = 2  # validation samples, as in the paper's appendix


def _of_summary(key: str, *, unit: float = 1.0) -> Measure:
    def measure(run: RunRecords, row: str) -> Value:
        value = run.summary.get(key)
        return None if value is None else float(value) / unit

    return measure


def _of_honest(key: str) -> Measure:
    """Return the mean over the clients that do not attack; over all where there is no attack."""

    def measure(run: RunRecords, row: str) -> Value:
        value = run.summary.get("honest", run.summary).get(key)
        return None if value is None else float(value)

    return measure


def _of_one_model(key: str) -> Measure:
    """Return what all models are never asked for together: nothing in a row called `...-together`."""
    of_one = _of_summary(key)
    return lambda run, row: None if row.endswith(TOGETHER) else of_one(run, row)


def _asked(metric: str) -> Measure:
    """Return one model's accuracy, in a row called `...-together` that of all models of the run; of honest clients."""

    def measure(run: RunRecords, row: str) -> Value:
        if not row.endswith(TOGETHER):
            return _of_honest(metric)(run, row)
        committee = run.summary.get("committee")
        if committee is None:
            return None
        if metric == "global_accuracy":
            value = committee[metric]
            return None if value is None else float(value)
        if not _is_comparable(committee):
            return None
        attackers = run.summary.get("attackers", ())
        own = [one for client, one in enumerate(committee[f"{metric}_per_client"]) if client not in attackers]
        return statistics.fmean(own) if own else None

    return measure


def _is_comparable(committee: Mapping[str, Any]) -> bool:
    """Tell whether a client's class shares were added to sharp answers: earlier versions left them softened at T.

    For a day records called it `temperature`.
    """
    said = committee.get("answer_temperature", committee.get("temperature"))
    return bool(said == ANSWER_TEMPERATURE)


def _metric(name: str) -> Measure:
    """Return a metric beyond accuracy on the common test samples; in a row `...-together` that of all models."""

    def measure(run: RunRecords, row: str) -> Value:
        digest = run.summary.get("metrics") or {}
        if row.endswith(TOGETHER):
            is_comparable = _is_comparable(run.summary.get("committee") or {})
            digest = (digest.get("committee") or {}) if is_comparable else {}
        value = digest.get("global", {}).get(name, {}).get("value")
        return None if value is None else float(value)

    return measure


def _studied(metric: str) -> Measure:
    """Return the committee's accuracy under the rule and the prior that the row is called by, `crad/remove`."""

    def measure(run: RunRecords, row: str) -> Value:
        rule, _, prior = row.partition("/")
        committee = run.summary.get("committee") or {}
        value = committee.get("study", {}).get(rule, {}).get(prior, {}).get(metric)
        if value is None or (metric != "global_accuracy" and not _is_comparable(committee)):
            return None
        return float(value)

    return measure


def _of_variant(metric: str) -> Measure:
    """Return the model's accuracy; in a row `NAME/VARIANT` that of the other weights of this name that clients keep."""

    def measure(run: RunRecords, row: str) -> Value:
        _, _, variant = row.partition("/")
        found = run.summary if not variant else run.summary.get("variants", {}).get(variant, {})
        value = found.get(metric)
        return None if value is None else float(value)

    return measure


def _sent_mib(run: RunRecords, row: str) -> Value:
    """Return what a client sent in all rounds."""
    return float(run.summary["payload_bytes_per_client_round"]) * len(run.rounds) / 2**20


def _needs_proxy(run: RunRecords, row: str) -> Value:
    return "no" if run.summary.get("common_images", "none") == "none" else "yes"


def _at_selected(run: RunRecords) -> list[Mapping[str, Any]]:
    return clients_at(run.rounds, run.summary["best_round"])


def _class_accuracies(client: Mapping[str, Any]) -> list[float]:
    """Return accuracies on the common test images, by class; 0 for a class without any."""
    score = client["global"]
    return [100.0 * hits / max(1, count) for hits, count in zip(score["hits"], score["counts"], strict=True)]


def _by_support(choose: Callable[[Sequence[int]], int]) -> Measure:
    """Average over clients the accuracy on the class that each holds most or least of; equal ones count alike."""

    def measure(run: RunRecords, row: str) -> Value:
        means = []
        for held, client in zip(run.partition["counts"], _at_selected(run), strict=True):
            accuracies = _class_accuracies(client)
            chosen = [accuracies[label] for label, count in enumerate(held) if count == choose(held)]
            means.append(statistics.fmean(chosen))
        return statistics.fmean(means)

    return measure


def _tested(run: RunRecords) -> list[tuple[int, float]]:
    return [
        (record["round"], record["global_accuracy"]) for record in run.rounds if record["global_accuracy"] is not None
    ]


def _early(run: RunRecords, row: str) -> Value:
    """Return the accuracy at the first test after a tenth of the rounds."""
    return next((accuracy for number, accuracy in _tested(run) if number >= run.experiment.rounds / 10), None)


def _swing(run: RunRecords, row: str) -> Value:
    """Return the mean change between two tests in the second half of the run."""
    late = [accuracy for number, accuracy in _tested(run) if number >= run.experiment.rounds / 2]
    changes = [abs(after - before) for before, after in pairwise(late)]
    return statistics.fmean(changes) if changes else None


def _support_and_accuracy(run: RunRecords) -> list[tuple[int, float]]:
    """Return validation samples and accuracy on the common test images, for every client and class."""
    return [
        pair
        for client in _at_selected(run)
        for pair in zip(client["validation"]["counts"], _class_accuracies(client), strict=True)
    ]


def _correlation(run: RunRecords, row: str) -> Value:
    support, accuracy = zip(*_support_and_accuracy(run), strict=True)
    if len(set(support)) < 2 or len(set(accuracy)) < 2:
        return None
    return statistics.correlation(_ranks(support), _ranks(accuracy))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return places in order of size; equal values share the mean of theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.fmean(places[value]) for value in values]


def _accuracy_where(is_wanted: Callable[[int], bool]) -> Measure:
    def measure(run: RunRecords, row: str) -> Value:
        found = [accuracy for support, accuracy in _support_and_accuracy(run) if is_wanted(support)]
        return statistics.fmean(found) if found else None

    return measure


def trace_case(run: RunRecords, kind: str) -> dict[str, Value]:
    """Return the clearest success or failure that the run's survey found, in the terms of the paper's appendix."""
    survey = run.inspection or {"cases": []}
    case = next((case for case in survey["cases"] if case["kind"] == kind), None)
    if case is None:
        return {}
    label = case["class"]
    student = next(one for one in survey["students"] if one["client"] == case["student"])
    image = next(place for place, one in enumerate(survey["images"]) if one["index"] == case["image"])
    everybody = {one["client"]: place for place, one in enumerate(survey["teachers"])}
    if "support" in student:  # it counted for itself
        holds = [support_C[label] for support_C in student["support"]]
    else:
        holds = [survey["teachers"][everybody[client]]["counts"][label] for client in student["teachers"]]
    weights = [weights_C[label] for weights_C in student["weights"][image]]
    states = [states_C[label] for states_C in student["states"][image]]
    # The paper names in a success who was trusted most, in a failure who should have been.
    said = weights if kind == "success" else holds
    chosen = said.index(max(said))
    client = student["teachers"][chosen]
    return {
        "class": survey["classes"][label],
        "client": f"C{client}",
        "state": STATES[states[chosen]],
        "support": float(holds[chosen]),
        "accuracy": _class_accuracies(clients_at(run.rounds, survey["round"])[client])[label],
        "probability": 100.0 * survey["probabilities"][image][everybody[client]][label],
        "weight": 100.0 * weights[chosen],
        "unsupported": float(states.count("u")),
        "outliers": float(states.count("o")),
        "kept": float(states.count("k")),
        **{name: 100.0 * student[name][image][label] for name in ("consensus", "band", "target", "uniform")},
    }


def _of_case(key: str) -> Measure:
    return lambda run, row: trace_case(run, row).get(key)


MEASURES: dict[str, Measure] = {
    "global_accuracy": _of_summary("global_accuracy"),
    "local_accuracy": _of_summary("local_accuracy"),
    "others_accuracy": _of_one_model("others_accuracy"),
    "honest_global_accuracy": _of_honest("global_accuracy"),
    "honest_local_accuracy": _of_honest("local_accuracy"),
    "attack_success": _of_honest("attack_success"),
    "asked_global_accuracy": _asked("global_accuracy"),
    "asked_local_accuracy": _asked("local_accuracy"),
    "asked_auroc": _metric("auroc"),
    "studied_global_accuracy": _studied("global_accuracy"),
    "studied_local_accuracy": _studied("local_accuracy"),
    "sent_mib": _sent_mib,
    "payload_mib": _of_summary("payload_bytes_per_client_round", unit=2**20),
    "round_seconds": _of_summary("round_seconds"),
    "clipped_percent": _of_summary("clipped_share", unit=0.01),
    "validation_accuracy": _of_summary("validation_accuracy"),
    "variant_global_accuracy": _of_variant("global_accuracy"),
    "variant_local_accuracy": _of_variant("local_accuracy"),
    "peak_memory_gib": _of_summary("peak_memory_bytes", unit=2**30),
    "needs_proxy": _needs_proxy,
    "abundant_class_accuracy": _by_support(max),
    "rarest_class_accuracy": _by_support(min),
    "early_global_accuracy": _early,
    "last_global_accuracy": _of_summary("last_global_accuracy"),
    "swing": _swing,
    "support_accuracy_correlation": _correlation,
    "supported_accuracy": _accuracy_where(lambda support: support >= MIN_SUPPORT),
    "unsupported_accuracy": _accuracy_where(lambda support: support < MIN_SUPPORT),
    **{
        f"case_{key}": _of_case(key)
        for key in (
            *("class", "client", "state", "support", "accuracy", "probability", "weight"),
            *("unsupported", "outliers", "kept", "consensus", "band", "target", "uniform"),
        )
    },
}
