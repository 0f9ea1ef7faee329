"""Which method to take: from a situation to a method, its settings, and how sure that is, by kept evidence alone.

`findings.json` beside this module holds what was measured: worlds (a column of a table) and claims (a method's
difference to its baseline in a world, paired by seed, with its 95 % interval); `python -m tools.findings` computes it
from evidence/. The rules are here: who comes into question, which worlds are near, when something is shown.
docs/choosing.md says them in words.
"""

from __future__ import annotations

import functools
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FINDINGS = Path(__file__).parent / "findings.json"

Kind = Literal["images", "table", "text", "recordings"]
Trust = Literal["all", "some", "none"]
Aim = Literal["all", "own"]
Sure = Literal["shown", "seen, not shown", "not measured at this scale"]
SHOWN: Sure = "shown"
SEEN: Sure = "seen, not shown"
UNMEASURED: Sure = "not measured at this scale"
KIND_NAMES: Mapping[str, Kind] = {"image": "images", "table": "table", "text": "text", "audio": "recordings"}
SKEWS: Mapping[str, float | None] = {"strong": 0.1, "medium": 0.3, "mild": 1.0, "iid": None}

LEAST_SEEDS = 3  # for a claim to be shown
LEAST_GAIN = 1.0  # points of a gain that is not shown, to be worth a recommendation
NEAR = {"clients": 2.0, "classes": 2.0, "samples": 4.0, "alpha": 2.5, "epsilon": 2.0}  # factors either way
ONE_MODEL = ("crad-plus", "crad", "uniform", "dfml", "fedmkd", "experts")
SENDS_ONCE = ("committee", "experts")
DISHONEST = {"label-flip-pairs", "noise"}  # of which the committee's table has worlds
OF_ROBUSTNESS = "attacks"  # a table against uniform: it says who holds under attack, not whether joining helps
NEWEST = "main"
FROM_AFAR = "nothing near was measured; what follows is from other situations: compare on your own data first"


@dataclass(frozen=True)
class Situation:
    """What somebody who asks has; None: not said."""

    kind: Kind = "images"
    clients: int = 10
    classes: int | None = None
    samples: int | None = None  # of a client, with those held out
    alpha: float | None = 0.3  # of a Dirichlet partition; None: no skew
    trust: Trust = "all"
    total_mb: float | None = None  # that a member may send, in all rounds
    round_mb: float | None = None  # that it may send in any one round
    epsilon: float | None = None
    is_one_model: bool = False  # only one model may be kept and asked
    aim: Aim = "all"
    dataset: str | None = None
    label: str | None = None  # the column of a table
    model_mb: float | None = None


@dataclass(frozen=True)
class Claim:
    """What one method was measured to bring in one world, in percentage points over its baseline."""

    world: str
    method: str
    metric: str
    value: float
    difference: float
    interval: tuple[float, float] | None
    seeds: tuple[int, ...]

    @property
    def sign(self) -> int:
        """1 or -1 where it is shown: enough seeds, and an interval on one side of zero; else 0."""
        if self.interval is None or not self.has_seeds:
            return 0
        return (self.interval[0] > 0) - (self.interval[1] < 0)

    @property
    def has_seeds(self) -> bool:
        """Tell whether there are enough seeds for anything to be shown."""
        return len(self.seeds) >= LEAST_SEEDS

    @property
    def sentence(self) -> str:
        """Return it in words."""
        world = findings().worlds[self.world]
        seeds = ", ".join(map(str, self.seeds))
        if self.interval is None:
            shown = f"one seed: {seeds}"
        else:
            shown = f"{self.interval[0]:+.1f} to {self.interval[1]:+.1f}; seeds {seeds}"
        where = "samples of all" if self.metric == "all" else "own samples"
        return (
            f"{self.method} on {world['label']}, preset {world['preset']}: {self.value:.1f} % on {where}, "
            f"{self.difference:+.1f} points against {world['baseline']} ({shown}; {world_file(world)})"
        )


@dataclass(frozen=True)
class MeasuredWorlds:
    """All that was measured."""

    worlds: Mapping[str, Mapping[str, Any]]
    claims: tuple[Claim, ...]

    def of(self, method: str, metric: str, worlds: Sequence[str]) -> list[Claim]:
        """Return the claims of a method in these worlds."""
        return [one for one in self.claims if (one.method, one.metric) == (method, metric) and one.world in worlds]


@dataclass(frozen=True)
class Advice:
    """A method, why, how sure, and what to type."""

    method: str
    sure: Sure
    why: tuple[str, ...]
    cautions: tuple[str, ...]
    evidence: tuple[Claim, ...]
    losses: tuple[Claim, ...]  # on the other samples, where they are shown
    command: str
    check: str
    sent_mb: float | None

    @property
    def is_to_join(self) -> bool:
        """Tell whether it says to learn with others."""
        return self.method != "local"


@functools.cache
def findings() -> MeasuredWorlds:
    """Return what was measured, as it travels with the package."""
    content = json.loads(FINDINGS.read_text(encoding="utf-8"))
    claims = [
        Claim(**{**one, "interval": one["interval"] and tuple(one["interval"]), "seeds": tuple(one["seeds"])})
        for one in content["claims"]
    ]
    return MeasuredWorlds(content["worlds"], tuple(claims))


def world_file(world: Mapping[str, Any]) -> str:
    """Return the file of evidence that a world stands in."""
    return f"evidence/{world['table']}/tables/{world['table']}.csv"


@dataclass(frozen=True)
class _Candidate:
    """A method that comes into question, and what was measured of it in the worlds that speak for a situation."""

    method: str
    claims: tuple[Claim, ...]  # of what is asked for
    losses: tuple[Claim, ...]  # of the other samples, shown to be worse
    is_covered: bool  # measured under every attack that there are worlds of

    @property
    def gain(self) -> float:
        """Return the mean difference to training alone."""
        return statistics.fmean(one.difference for one in self.claims)

    @property
    def lost(self) -> float:
        """Return the mean of what is lost on the other samples, where that is shown."""
        return statistics.fmean(one.difference for one in self.losses) if self.losses else 0.0

    @property
    def sure(self) -> Sure:
        """Shown: in every world with enough seeds, one at least, and in no other world is it behind."""
        seen = all(one.sign > 0 if one.has_seeds else one.difference > 0 for one in self.claims)
        return SHOWN if seen and self.is_covered and any(one.has_seeds for one in self.claims) else SEEN

    @property
    def is_ahead(self) -> bool:
        """Tell whether it gained, more than it lost on other samples, and was nowhere shown to lose."""
        enough = self.gain > 0 if self.sure == SHOWN else self.gain >= LEAST_GAIN
        return enough and self.gain + self.lost > 0 and not self.is_shown_worse

    @property
    def is_shown_worse(self) -> bool:
        """Tell whether it was shown to lose somewhere."""
        return any(one.sign < 0 for one in self.claims)

    @property
    def rank(self) -> tuple[int, bool, float]:
        """Sort the surest first, then those that lose nothing elsewhere, then by what remains of the gain."""
        return (SHOWN, SEEN).index(self.sure), bool(self.losses), -(self.gain + self.lost)


def advise(asked: Situation) -> Advice:
    """Return the method that evidence speaks for most, or training alone where it speaks for none."""
    if (reason := _stays_alone(asked)) is not None:
        return _alone(asked, UNMEASURED, [reason])
    worlds, is_near = _worlds_for(asked)
    too_much: dict[str, list[str]] = {}
    candidates: list[_Candidate] = []
    for method in ONE_MODEL if asked.is_one_model else ("committee", *ONE_MODEL):
        found, sent = _candidate(asked, method, worlds), sent_mb(asked, method)
        if found is not None and sent is not None and _is_too_much(asked, method):
            too_much.setdefault(megabytes(sent), []).append(method)
        elif found is not None:
            candidates.append(found)
    why = [f"{', '.join(methods)} would send about {sent}" for sent, methods in too_much.items()]
    ahead = [one for one in candidates if one.is_ahead]
    if not ahead:
        is_shown = all(one.is_shown_worse for one in candidates)
        sure = UNMEASURED if not candidates or not is_near else SHOWN if is_shown else SEEN
        said = "nothing that was measured fits what may be sent"
        if candidates:
            said = "no method in question was ahead of training alone"
        found_worse = [claim for one in candidates for claim in one.claims]
        return _alone(asked, sure, [said, *why], found_worse, is_near=is_near)
    best = min(ahead, key=lambda one: one.rank)
    count = f"{len(best.claims)} measured world{'s' * (len(best.claims) > 1)}"
    return Advice(
        best.method,
        best.sure if is_near else UNMEASURED,
        (f"{best.gain:+.1f} points over training alone, mean of {count}", *why),
        tuple(_cautions(asked, best, worlds, is_near)),
        best.claims,
        best.losses,
        *_commands(asked, best.method, worlds),
        sent_mb(asked, best.method),
    )


def _candidate(asked: Situation, method: str, worlds: Sequence[str]) -> _Candidate | None:
    claims = findings().of(method, asked.aim, _newest(worlds, method, asked.aim))
    other = "own" if asked.aim == "all" else "all"
    others = findings().of(method, other, _newest(worlds, method, other))
    if not claims:
        return None
    attacks = {findings().worlds[name]["attack"] for name in worlds}
    is_covered = attacks <= {findings().worlds[one.world]["attack"] for one in claims}
    return _Candidate(method, tuple(claims), tuple(one for one in others if one.sign < 0), is_covered)


def _stays_alone(asked: Situation) -> str | None:
    if asked.clients < 2:
        return "there is nobody to join"
    if asked.trust == "none":
        return "attacks by two of ten were measured, not a federation in which nobody is trusted"
    if 0 in (asked.total_mb, asked.round_mb):
        return "nothing may be sent"
    return None


def _alone(
    asked: Situation, sure: Sure, why: Sequence[str], evidence: Sequence[Claim] = (), *, is_near: bool = True
) -> Advice:
    worlds, _ = _worlds_for(asked)
    cautions = () if is_near else (FROM_AFAR,)
    run, check = _commands(asked, "local", worlds)
    return Advice("local", sure, tuple(why), cautions, tuple(evidence), (), run, check if evidence else "", 0.0)


def _worlds_for(asked: Situation) -> tuple[list[str], bool]:
    """Return the worlds that speak for a situation, and whether they are near it; far ones where none is."""
    known = findings().worlds
    usual = [
        name
        for name, world in known.items()
        if world["table"] != OF_ROBUSTNESS and (world["epsilon"] is None) == (asked.epsilon is None)
    ]
    right = [name for name in usual if (known[name]["attack"] in DISHONEST) == (asked.trust == "some")]
    if near := [name for name in right if known[name]["kind"] == asked.kind and _is_near(known[name], asked)]:
        return near, True
    of_kind = [name for name in right or usual if known[name]["kind"] == asked.kind]
    return of_kind or right or usual, False


def _is_near(world: Mapping[str, Any], asked: Situation) -> bool:
    said = {"clients": asked.clients, "classes": asked.classes, "samples": asked.samples, "epsilon": asked.epsilon}
    if asked.alpha is None:
        return False  # nothing was measured without skew
    if world["alpha"] is not None:  # sites that are what they are, such as hospitals, have none: any skew is as near
        said["alpha"] = asked.alpha
    return all(
        value is None or (world[name] / NEAR[name] <= value <= world[name] * NEAR[name]) for name, value in said.items()
    )


def _newest(worlds: Sequence[str], method: str, metric: str) -> list[str]:
    """Return those of the largest measurement where it has the method with enough seeds, else all."""
    newest = [name for name in worlds if findings().worlds[name]["table"] == NEWEST]
    return [one.world for one in findings().of(method, metric, newest) if one.has_seeds] or list(worlds)


def sent_mb(asked: Situation, method: str) -> float | None:
    """Estimate the megabytes that a member sends in all: snapshots to every other, once or in every round.

    `model_mb` said by nobody: as large as the networks that were measured.
    """
    rounds = 1 if method in SENDS_ONCE else measured_rounds(asked)
    in_a_round = sent_in_a_round(asked)
    return None if in_a_round is None else in_a_round * rounds


def sent_in_a_round(asked: Situation) -> float | None:
    """Estimate the megabytes that a member sends in a round in which it sends: its snapshot to every other."""
    size = asked.model_mb
    if size is None:
        found = [
            one.value * 2**20 / 1e6 / (findings().worlds[one.world]["clients"] - 1)
            for one in findings().claims
            if (one.method, one.metric) == ("committee", "sent") and findings().worlds[one.world]["kind"] == asked.kind
        ]
        if not found:
            return None
        size = statistics.median(found)
    return size * (asked.clients - 1)


def _is_too_much(asked: Situation, method: str) -> bool:
    limits = ((sent_mb(asked, method), asked.total_mb), (sent_in_a_round(asked), asked.round_mb))
    return any(sent is not None and limit is not None and sent > limit for sent, limit in limits)


def megabytes(count: float) -> str:
    """Return so many megabytes in words."""
    if count < 999.5:
        return f"{count:.3g} MB"
    return f"{count / 1e3:,.0f} GB" if count >= 1e4 else f"{count / 1e3:.3g} GB"


def measured_rounds(asked: Situation) -> int:
    """Return the rounds of the runs whose settings are taken over."""
    worlds, _ = _worlds_for(asked)
    return int(_typical(asked, worlds)["rounds"])


def _cautions(asked: Situation, best: _Candidate, worlds: Sequence[str], is_near: bool) -> list[str]:
    method = best.method
    said = [f"shown to be worse than training alone: {one.sentence}" for one in best.losses]
    if method == "committee":
        said.append(f"every prediction asks {asked.clients} models; a member keeps them all (crad predict --committee)")
    is_limited = asked.total_mb is not None or asked.round_mb is not None
    if is_limited and sent_mb(asked, method) is None:
        said.append("what it sends was not measured here: say how large a model is (--model-mb)")
    if asked.trust == "some" and (held := _held_under_attack(method)):
        said.append(held)
    if asked.trust == "some" and not any(findings().worlds[one.world]["attack"] in DISHONEST for one in best.claims):
        said.append("with dishonest members nothing of the kind was measured; what follows is with honest ones")
    if not is_near:
        said.append(FROM_AFAR)
    return said


def _held_under_attack(method: str) -> str | None:
    """Return in how many attacks a method is ahead of the plain mean, in words."""
    known = findings().worlds
    under = [name for name, world in known.items() if world["table"] == OF_ROBUSTNESS and world["attack"] != "honest"]
    claims = findings().of(method, "all", under)
    if not claims:
        return None
    ahead = sum(one.sign > 0 for one in claims)
    return (
        f"with two of ten dishonest it is ahead of the plain mean of teachers under {ahead} of {len(claims)} attacks; "
        f"more than two were not measured ({world_file(known[under[0]])})"
    )


def _typical(asked: Situation, worlds: Sequence[str]) -> Mapping[str, Any]:
    """Return the world of this kind of data whose settings are taken over: the asked data's own, else the first."""
    known = [*(findings().worlds[name] for name in worlds), *findings().worlds.values()]
    of_kind = [world for world in known if world["kind"] == asked.kind]
    return next((world for world in of_kind if world["dataset"] == asked.dataset), of_kind[0])


def _commands(asked: Situation, method: str, worlds: Sequence[str]) -> tuple[str, str]:
    """Return what to type: one simulated run, and the comparison that shows on one's own data whether it helps."""
    world = _typical(asked, worlds)
    dataset = asked.dataset or world["dataset"]
    settings = dict(world["settings"])
    is_natural = settings.get("partition") == "natural"
    if dataset != world["dataset"]:  # settings that name columns or sites are of that data alone
        settings = {name: one for name, one in settings.items() if name not in OF_ITS_DATA}
        is_natural = False
    own: dict[str, Any] = {"preset": world["preset"], "dataset": dataset, "clients": asked.clients}
    if is_natural:
        own["clients"] = world["clients"]
    elif asked.alpha is None:
        own["partition"] = "iid"
    else:
        own["alpha"] = asked.alpha
    if asked.label is not None:
        own["label"] = asked.label
    if asked.epsilon is not None:
        own["private_training"] = f"{asked.epsilon:g}"
    words = _flags({**settings, **own})
    evidence = " --evidence reported" if asked.epsilon is not None and method == "crad-plus" else ""
    run = f"crad run {words} --method {method}{evidence}"
    other = method if method != "local" else "uniform" if asked.epsilon is not None else "crad-plus"
    methods = f"local,{other}"
    return run, f"crad compare {words} --methods {methods} --seeds 1,2,3"


OF_ITS_DATA = {
    "partition",
    "categories",
    "ranges",
    "missing",
    "label",
    "site",
    "ignore",
    "text",
    "train_limit",
    "test_limit",
}


def _flags(settings: Mapping[str, Any]) -> str:
    return shlex.join(
        word
        for name, value in settings.items()
        for word in (f"--{name.replace('_', '-')}", "none" if value is None else str(value))
    )
