"""How a verdict is said: a label, a sentence for one method, one over several, and what to bear in mind beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from crad.analysis.intervals import LEVEL

if TYPE_CHECKING:
    from crad.analysis.verdict import FaceGain, Kind, Verdict


def verdict_label(verdict: Verdict) -> str:
    """Return a verdict in a few words."""
    why = f" ({_why_not(verdict)})" if verdict.kind == "not shown" else ""
    said = ", ".join(f"{points(gain.mean)} {gain.face}" for gain in verdict.gains)
    return f"{verdict.kind}{why}: {said} ({verdict.num_gained} of {verdict.num_pairs} gained)"


def _why_not(verdict: Verdict) -> str:
    if len(verdict.seeds) < 2:
        return "one seed"
    return "at chance" if all(gain.is_at_chance for gain in verdict.gains) else f"{len(verdict.seeds)} seeds"


def verdict_sentence(verdict: Verdict) -> str:
    """Return a verdict as a sentence, and another where an accuracy is at chance."""
    method = f" with {verdict.name}" if verdict.name else ""
    own = _of_one_seed(method, verdict) if len(verdict.seeds) < 2 else _of_seeds(method, verdict)
    return " ".join([own, *(_chance_sentence(gain) for gain in verdict.gains if gain.is_at_chance)])


def _of_one_seed(method: str, verdict: Verdict) -> str:
    did = " and ".join(_did(gain) for gain in verdict.gains)
    if verdict.num_pairs == 1:  # a member, told of itself alone
        return f"In this run joining{method} {did}: one run shows no more than that."
    who = f"{verdict.num_gained} of {verdict.num_pairs} {verdict.who} gained"
    return f"In this run joining{method} {did} ({who}): one seed shows no more than that."


def _of_seeds(method: str, verdict: Verdict) -> str:
    openings: dict[Kind, str] = {
        "helped": f"Joining{method} helped",
        "hurt": f"Joining{method} hurt",
        "mixed": f"Joining{method} is mixed",
        "not shown": f"Whether joining{method} helps is not shown",
    }
    said = ", ".join(_with_interval(gain) for gain in verdict.gains)
    who = f"over {len(verdict.seeds)} seeds {verdict.num_gained} of {verdict.num_pairs} {verdict.who} gained"
    return f"{openings[verdict.kind]}: {said}; {who}."


def _did(gain: FaceGain) -> str:
    size = points(abs(gain.mean)).removeprefix("+")
    if size == "0.0":
        return f"left {gain.face} accuracy where it was"
    return f"{'raised' if gain.mean > 0 else 'lowered'} {gain.face} accuracy by {size} points"


def _with_interval(gain: FaceGain) -> str:
    assert gain.interval is not None, "several seeds have an interval"
    low, high = map(points, gain.interval)
    return f"{gain.face} accuracy {points(gain.mean)} points ({100 * LEVEL:.0f} % interval {low} to {high})"


def _chance_sentence(gain: FaceGain) -> str:
    return (
        f"{gain.face.capitalize()} accuracy is not beyond what a guess may reach on so many test samples, "
        f"{gain.joined:.1f} % joined and {gain.alone:.1f} % alone: naming the commonest class gets {gain.chance:.1f} % "
        "on average."
    )


def sentence_over(verdicts: Sequence[Verdict]) -> str:
    """Say in one sentence with which methods joining did what."""
    if len(verdicts[0].seeds) < 2:
        rises = [verdict for verdict in verdicts if min(gain.mean for gain in verdict.gains) > 0]
        return (
            f"Not shown (one seed). In this run both accuracies rose with {len(rises)} of {len(verdicts)} methods"
            f"{': ' + _listed(rises) if 0 < len(rises) < len(verdicts) else ''}."
        )
    words: dict[Kind, str] = {
        "helped": "helped with",
        "hurt": "hurt with",
        "mixed": "is mixed with",
    }
    of_kind = {kind: [verdict for verdict in verdicts if verdict.kind == kind] for kind in (*words, "not shown")}
    parts = [f"{words[kind]} {_listed(own)}" for kind, own in of_kind.items() if own and kind in words]
    unknown = of_kind["not shown"]
    if not parts:
        return f"Whether joining helps is not shown, with {_listed(unknown)}."
    return f"Joining {', '.join(parts)}{f'; nothing is shown of {_listed(unknown)}' if unknown else ''}."


def notes_on_many(verdicts: Sequence[Verdict]) -> list[str]:
    """Say what several verdicts at once are worth."""
    if len(verdicts) < 2 or not any(gain.sign for verdict in verdicts for gain in verdict.gains):
        return []
    return [
        f"Each method is judged by itself, on two accuracies at {100 * LEVEL:.0f} % each: up to one in ten that change "
        "nothing is expected to seem to do something."
    ]


def notes_on_loss(losses: Mapping[str, str], alone: str) -> list[str]:
    """Say of the methods with another loss than training alone that their gain may be the loss's."""
    return [
        f"{name} has another loss than {alone} ({loss}), and part of what it gains may be the loss: training alone "
        f"with local_loss {loss} tells."
        for name, loss in losses.items()
    ]


def _listed(verdicts: Sequence[Verdict]) -> str:
    return _and([verdict.name for verdict in verdicts])


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def points(value: float) -> str:
    """Return a difference with its sign, none where it rounds to nothing."""
    text = f"{value:+.1f}"
    return "0.0" if text in ("-0.0", "+0.0") else text
