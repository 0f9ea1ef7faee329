"""What a member is told at the end: did joining help it, whose knowledge was used, who was missing, what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from crad.analysis.confusions import confused_members, confusion_sentence
from crad.analysis.verdict import Face, Verdict, commonest_share, judge
from crad.report.frame import framed_page
from crad.report.sections.class_tracks import class_tracks
from crad.report.sections.member_metrics import metric_tables
from crad.report.sections.method_tiles import Tile
from crad.report.sections.page_table import PageTable
from crad.report.tables import mib
from crad.runs.records import Record
from crad.training.metrics import ClassificationMetrics, difference_estimates, estimate_to_json, metrics_to_json

IMAGE_WORDS: Mapping[str, str] = MappingProxyType({"one": "image", "several": "images"})
DOUBTED = 0.5  # of a member's figures: less is worth a word


def participant_record(
    *,
    federation: str,
    member: str,
    members: Sequence[str],
    class_names: Sequence[str],
    joined: Sequence[Record],
    joined_selected: Record,
    alone_selected: Record,
    refused: Mapping[str, Mapping[str, int]],
    left: Mapping[str, Any],
    private_counts: float | None,
    privacy: Mapping[str, Any] | None = None,
    left_out: Mapping[str, str] = MappingProxyType({}),
    rounds_agreed: int | None = None,
    proven: Sequence[str] = (),
    committee: Mapping[str, Any] | None = None,
    is_taught: bool = True,
    words: Mapping[str, str] = IMAGE_WORDS,
    also_left: str = "",
    joined_metrics: ClassificationMetrics | None = None,
    alone_metrics: ClassificationMetrics | None = None,
) -> Record:
    """Return `participant.json`: everything the participant's report says, from the records of both models.

    `refused` counts what the exchange refused, by member and reason; `left` is what left the machine, as the ledger
    sums it up. `left_out` names the members that could not teach us, and why. `committee` is what all models do
    together, or what was deleted where they may not be kept. Under some methods nobody `is_taught` by others.
    Accuracies are percent of the own test half, and so are `joined_metrics` and `alone_metrics`, which earlier versions
    did not have. `words` are what a sample is called, `one` and `several`; `also_left` says what of the data travels
    with weights.
    """
    federated, alone = joined_selected["clients"][0], alone_selected["clients"][0]
    return {
        "schema": 1,
        "federation": federation,
        "member": member,
        "rounds_taken_part": len(joined),
        "rounds_agreed": len(joined) if rounds_agreed is None else rounds_agreed,
        "rounds_without_others": _rounds_alone(joined) if is_taught else 0,
        "proven": list(proven),
        "last_round": joined[-1]["round"],
        "federated": _outcome(joined_selected),
        "alone": _outcome(alone_selected),
        "difference": federated["local_accuracy"] - alone["local_accuracy"],
        "per_class": _per_class(class_names, federated["local"], alone["local"]),
        "trusted": _trusted(joined, members, class_names),
        "missing": _names(Counter(_missing(joined)), members),
        "refused": _refused(joined, members, refused),
        "left_out": dict(left_out),
        "confused": confused_members(joined, members, class_names),
        "left": dict(left),
        "private_counts": _budget(private_counts),
        **({} if privacy is None else {"privacy": dict(privacy)}),
        **({} if committee is None else {"committee": dict(committee)}),
        **({} if words == IMAGE_WORDS else {"words": dict(words)}),
        **({"also_left": also_left} if also_left else {}),
        **_metrics(joined_metrics, alone_metrics),
    }


def _metrics(joined: ClassificationMetrics | None, alone: ClassificationMetrics | None) -> Record:
    """Return the metrics beyond accuracy of both models on the own test half, and their differences."""
    if joined is None or alone is None:
        return {}
    differences = difference_estimates(joined, alone)
    return {
        "metrics": {
            "federated": metrics_to_json(joined),
            "alone": metrics_to_json(alone),
            "difference": {name: estimate_to_json(one) for name, one in differences.items()},
        }
    }


def words_of(record: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what a member's samples are called, `one` and `several` of them."""
    words: Mapping[str, str] = record.get("words") or IMAGE_WORDS
    return words


def _rounds_alone(joined: Sequence[Record]) -> int:
    """Count the rounds in which somebody should have taught us and nobody did."""
    rounds = [record for record in joined if not record.get("is_preparation")]
    return sum(not client["trust"] for record in rounds for client in record["clients"][:1])


def _outcome(best: Mapping[str, Any]) -> Record:
    return {"round": best["round"], **{key: best[key] for key in ("validation_accuracy", "local_accuracy")}}


def _per_class(names: Sequence[str], federated: Mapping[str, Any], alone: Mapping[str, Any]) -> list[Record]:
    rows = zip(names, federated["counts"], federated["hits"], alone["hits"], strict=True)
    return [
        {
            "name": name,
            "test_samples": count,
            "federated": 100.0 * ours / count if count else None,
            "alone": 100.0 * theirs / count if count else None,
        }
        for name, count, ours, theirs in rows
    ]


def _trusted(joined: Sequence[Record], members: Sequence[str], class_names: Sequence[str]) -> list[Record]:
    """Return the mean share of every teacher in every class over the rounds in which anybody taught."""
    rounds = [record["clients"][0]["trust"] for record in joined if record["clients"] and record["clients"][0]["trust"]]
    teachers = sorted({int(teacher) for trust in rounds for teacher in trust})
    nothing = [0.0] * len(class_names)
    rows = []
    for teacher in teachers:
        shares = [trust.get(str(teacher), nothing) for trust in rounds]
        rows.append(
            {"member": members[teacher], "shares": [sum(column) / len(rounds) for column in zip(*shares, strict=True)]}
        )
    return rows


def _missing(joined: Sequence[Record]) -> list[int]:
    return [index for record in joined for absent in record["missing"].values() for index in absent]


def _refused(
    joined: Sequence[Record], members: Sequence[str], by_exchange: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Count why something of a member was not used: refused on its way in, or when it was to teach."""
    counts = {name: Counter(reasons) for name, reasons in by_exchange.items()}
    for record in joined:
        for client in record["clients"]:
            for index, reason in client["notes"].get("refused", {}).items():
                counts.setdefault(members[int(index)], Counter())[reason] += 1
    return {name: dict(reasons) for name, reasons in sorted(counts.items())}


def _names(counts: Counter[int], members: Sequence[str]) -> dict[str, int]:
    return {members[index]: count for index, count in sorted(counts.items())}


def _budget(epsilon: float | None) -> Record:
    """Return what was spent: counts and their noise stay the same, so one release, however many rounds."""
    if epsilon is None:
        return {"is_private": False, "epsilon_spent": None}
    return {"is_private": True, "epsilon_spent": epsilon, "releases": 1}


def participant_cells(record: Mapping[str, Any]) -> list[list[str]]:
    """Return the outcome for the terminal."""
    together = _together(record)
    return [
        ["training alone", f"{record['alone']['local_accuracy']:.2f}"],
        ["with the federation", f"{record['federated']['local_accuracy']:.2f}"],
        ["difference", f"{record['difference']:+.2f}"],
        *([] if together is None else [["all of you together", f"{together:.2f}"]]),
    ]


def committee_lines(record: Mapping[str, Any]) -> list[str]:
    """Say what all models do together, who is among them and who is not, or what was deleted; nothing if not known."""
    made, several = record.get("committee"), words_of(record)["several"]
    if made is None:
        return []
    if not made["is_allowed"]:
        deleted = made["deleted"]
        return [
            "The agreement does not let the others' snapshots be kept after the last round: "
            f"{deleted['count']} of them ({mib(deleted['bytes'])} MiB) were deleted."
        ]
    if made["file"] is None:
        lines = ["There is no committee: nobody else's snapshot could be used."]
    else:
        who = ", ".join(f"{name} (round {round_index})" for name, round_index in made["members"].items())
        lines = [] if made["accuracy"] is None else [_together_sentence(record)]
        lines.append(f"Together are {who}, by rule {made['rule']}: {made['file']}, for crad predict.")
    doubted = [(name, share) for name, share in made.get("believed", {}).items() if share < DOUBTED]
    lines += [
        f"What {name} says of itself counts for {100 * share:.0f} %: our own validation {several} do not bear it out."
        for name, share in doubted
    ]
    return [*lines, *(f"Left out of the committee: {name}: {why}." for name, why in made["left_out"].items())]


def _together(record: Mapping[str, Any]) -> float | None:
    accuracy: float | None = (record.get("committee") or {}).get("accuracy")
    return accuracy


def _together_sentence(record: Mapping[str, Any]) -> str:
    made = record["committee"]
    return (
        f"Your model {made['own_accuracy']:.1f} %, all of you together {made['accuracy']:.1f} %, on "
        f"{made['test_samples']} own test {words_of(record)['several']}."
    )


def participant_page(record: Mapping[str, Any], *, versions: Mapping[str, str]) -> str:
    """Return the participant's report: one page for the member alone."""
    several = words_of(record)["several"]
    return framed_page(
        "participant.html",
        title=f"{record['member']} in {record['federation']}",
        sentence=(
            f"{record['member']} took part in {record['rounds_taken_part']} rounds, up to {record['last_round']}. "
            f"Accuracies are of its own test {several}, which no model has seen; the selected round is the one with "
            f"the highest accuracy on its own validation {several}."
        ),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        data={},
        headline=_headline(record),
        outcome={
            "tracks": class_tracks(record),
            "tiles": _tiles(record),
            "tables": [_class_table(record), *metric_tables(record)],
        },
        trust={
            "shares": _share_table(record),
            "unused": [*_absence_lines(record), *_confusion_lines(record)],
            "proven": record["proven"],
            "refused": _refusal_lines(record),
        },
        together=committee_lines(record),
        left={
            "table": _ledger_table(record),
            "what": _left_sentence(record),
            "counts": _privacy_words(record),
        },
    )


def participant_verdict(record: Mapping[str, Any]) -> Verdict:
    """Return whether joining helped a member: one run on its own test samples, so what happened and no more."""
    counts = [row["test_samples"] for row in record["per_class"]]
    joined, alone = ({0: [record[key]["local_accuracy"]]} for key in ("federated", "alone"))
    face = Face("local_accuracy", joined, alone, chance=commonest_share(counts), num_images=sum(counts))
    return judge("", [face])


def _tiles(record: Mapping[str, Any]) -> list[Tile]:
    """Return the figures that a member looks for first."""
    sent = sum(size for pieces in record["left"].values() for size in pieces.values())
    together = _together(record)
    who = len((record.get("committee") or {}).get("members", ()))
    return [
        Tile("alone", f"{record['alone']['local_accuracy']:.2f} %", f"at round {record['alone']['round']}"),
        Tile("joined", f"{record['federated']['local_accuracy']:.2f} %", f"at round {record['federated']['round']}"),
        Tile("difference", f"{record['difference']:+.2f}", "points"),
        *([] if together is None else [Tile("together", f"{together:.2f} %", f"{who} models asked at once")]),
        Tile("rounds", str(record["rounds_taken_part"]), f"of {record['rounds_agreed']} agreed"),
        Tile("sent", f"{mib(sent)} MiB", "in all rounds, to all receivers"),
    ]


def _headline(record: Mapping[str, Any]) -> Mapping[str, str]:
    verdict = participant_verdict(record)
    samples, several = sum(row["test_samples"] for row in record["per_class"]), words_of(record)["several"]
    detail = (
        f"With the federation {record['federated']['local_accuracy']:.2f} % (round {record['federated']['round']}), "
        f"training alone {record['alone']['local_accuracy']:.2f} % (round {record['alone']['round']}): "
        f"{record['difference']:+.2f} points on {samples} test {several}, {100 / max(1, samples):.1f} points each."
    )
    if _together(record) is not None:
        detail += f" {_together_sentence(record)}"
    return {
        "verdict": verdict.sentence,
        "kind": verdict.css_class,
        "warning": shortfall(record),
        "detail": detail,
    }


def shortfall(record: Mapping[str, Any]) -> str:
    """Return what to say of a member that took part in fewer rounds than were agreed; empty where it did in all."""
    taken, agreed = record["rounds_taken_part"], record["rounds_agreed"]
    alone = record["rounds_without_others"]
    said = [
        f"Incomplete: {record['member']} took part in {taken} of {agreed} agreed rounds." if taken < agreed else "",
        f"In {alone} of its rounds nobody's snapshot was used." if alone else "",
    ]
    return " ".join(part for part in said if part)


def _class_table(record: Mapping[str, Any]) -> PageTable:
    rows = [
        [row["name"], str(row["test_samples"]), _percent(row["federated"]), _percent(row["alone"]), _gain(row)]
        for row in record["per_class"]
    ]
    several = words_of(record)["several"]
    header = ("class", f"test {several}", "federated %", "alone %", "difference")
    caption = f"Accuracy per class on the own test {several}; -: no test {several} of the class."
    return PageTable(header, rows, caption, title="Accuracy per class")


def _share_table(record: Mapping[str, Any]) -> PageTable | None:
    """Return whose knowledge was used; None where nobody's was."""
    names = [row["name"] for row in record["per_class"]]
    rows = [[row["member"], *(f"{100 * share:.1f}" for share in row["shares"])] for row in record["trusted"]]
    caption = "Share of the say each member had in our targets, per class in percent, mean over the rounds we learned."
    return PageTable(("member", *names), rows, caption, title="Whose say") if rows else None


def _absence_lines(record: Mapping[str, Any]) -> list[str]:
    """Name the members that were missing, and those that could not teach us."""
    absent = ", ".join(f"{name} {count}" for name, count in record["missing"].items())
    said = f"Rounds in which a member's snapshot did not come in time or was refused: {absent}."
    left_out = record.get("left_out", {})
    return [*([said] if absent else []), *(f"Not learned from {name}: {why}." for name, why in left_out.items())]


def _confusion_lines(record: Mapping[str, Any]) -> list[str]:
    """Name the members whose classes seem to mean something else than ours."""
    return [
        f"{confusion_sentence(entry)} (of our {entry['samples']} {words_of(record)['several']} of that class it called "
        f"{100 * entry['said_share']:.0f} % so; rounds in which this was found: {entry['rounds']})."
        for entry in record.get("confused", [])
    ]


def _refusal_lines(record: Mapping[str, Any]) -> list[str]:
    """Say of every member why something of it was not used, and how often."""
    lines = []
    for name, reasons in record["refused"].items():
        said = "; ".join(f"{reason} ({count} times)" if count > 1 else reason for reason, count in reasons.items())
        lines.append(f"Not used from {name}: {said}")
    return lines


def _ledger_table(record: Mapping[str, Any]) -> PageTable:
    rows = [[member, what, f"{size:,}"] for member, pieces in record["left"].items() for what, size in pieces.items()]
    caption = (
        "Bytes that left this machine, by receiver; ledger.jsonl has every piece, repeats within a minute as one line "
        "with a count."
    )
    return PageTable(("receiver", "what", "bytes"), rows, caption, title="What left this machine")


def _left_sentence(record: Mapping[str, Any]) -> str:
    """Say what a snapshot holds."""
    also = f"{record['also_left']}, " if record.get("also_left") else ""
    return (
        f"No {words_of(record)['one']} and no label left: snapshots hold weights, {also}and per class how many "
        "validation samples there are and how many of them are right."
    )


def _privacy_words(record: Mapping[str, Any]) -> str:
    """Say what publishing cost in privacy."""
    if "privacy" not in record:
        return _counts_sentence(record["private_counts"])
    return (
        f"Training and class statistics were differentially private: {privacy_sentence(record['privacy'])}. That "
        "does not cover this page, model.safetensors and committee.safetensors, which were made with exact figures of "
        "our own samples: they are for us. What it means: docs/privacy.md."
    )


def privacy_sentence(account: Mapping[str, Any]) -> str:
    """Say what has been spent of a member's privacy, and of how much."""
    has_budget = account["budget"] is not None
    limit = account["budget"] if has_budget else account["target_epsilon"]
    several = f", by {account['agreements']} agreements on this data" if account["agreements"] > 1 else ""
    stopped = "; the budget keeps us from publishing anything new" if account["is_stopped"] else ""
    return (
        f"epsilon {account['epsilon']:.3g} of {limit:g} ({'the budget' if has_budget else 'agreed'}) spent, delta "
        f"{account['delta']:g}, per record{several}{stopped}"
    )


def _counts_sentence(budget: Mapping[str, Any]) -> str:
    """Say what the published class counts cost in privacy."""
    if not budget["is_private"]:
        return "Class counts were published as they are (private_counts is not set)."
    return (
        f"Class counts were noised once for all rounds: epsilon {budget['epsilon_spent']:g} spent by this agreement. "
        "Accuracies were not: they are exact shares of the true counts, and this epsilon does not cover them."
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _gain(row: Mapping[str, Any]) -> str:
    return "-" if row["federated"] is None else f"{row['federated'] - row['alone']:+.1f}"
