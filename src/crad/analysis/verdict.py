"""Whether joining helped: the one rule behind what the terminal, the pages and a member's report say.

A method is held against training alone (`local`) with the same seeds and the same clients, on two faces: global
accuracy (the common test images) and local accuracy (each client's own test half). All figures are percent or points.
The sentences are made in `verdict_words.py`.

What a face shows
    Its gain is the mean difference over clients, one number per seed. Its interval is Student's t over those numbers at
    95 %, and never narrower than the same over all (seed, client) pairs: two seeds that agree by luck prove nothing. A
    face is *shown to rise* (or fall) where its interval lies above (below) zero and the better of the two accuracies is
    above chance. Chance is what naming the commonest class gets, and above means by more than two standard errors of a
    guess on so many test images.

What is said
    helped     one face is shown to rise, the other is not shown to fall, nor did its mean fall by more than that rise
    hurt       the same with the signs turned
    mixed      one face is shown to rise and the other to fall, or the mean of the other went further the other way
    not shown  anything else; always with one seed, of which the sentence says what happened in that run and no more

A client gained where one of its accuracies rose and none fell; with several seeds it counts once per seed. Other
weights that a method's clients keep, such as `dfml (peak)`, have no verdict. Under a simulated attack the honest
clients count, and training alone, which no attack reaches, is of the same ones.

Worked by hand, two classes as often (chance 50), 1,000 test images (guessing reaches 50 + 2 * 1.58 = 53.2), two clients
with the same gain each, so that the seeds alone decide; t is 4.30 with three seeds and 12.71 with two:

    global +5, +6, +7 (sd 1)       6.0 +- 4.30 / sqrt(3) =  +3.5 to  +8.5   rises; with it
      local  +1, -1, 0  (sd 1)     0.0 +- 2.5            =  -2.5 to  +2.5   not shown             -> helped
      local  -5, -4, -3 (sd 1)    -4.0 +- 2.5            =  -6.5 to  -1.5   falls                 -> mixed
      local -20, 0, -4  (sd 10.6) -8.0 +- 26.3           = -34.3 to +18.3   not shown, but 8 > 6  -> mixed
    global +5, +7 (two seeds)      6.0 +- 12.71          =  -6.7 to +18.7   not shown             -> not shown
    global +5, +6, +7 up to 52 %   at chance: 52 < 53.2                     not shown             -> not shown
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Literal

from crad.analysis.comparison import METRICS
from crad.analysis.gains import alone_name, attackers_of, client_accuracies
from crad.analysis.groups import NOT_JOINED
from crad.analysis.intervals import LEVEL, gain_interval
from crad.analysis.verdict_words import notes_on_loss, notes_on_many, sentence_over, verdict_label, verdict_sentence
from crad.runs.run_records import RunRecords

Kind = Literal["helped", "hurt", "mixed", "not shown"]

GUESS_ERRORS = 2  # standard errors of a guess within which an accuracy is at chance
FACES = dict(zip(METRICS, ("global", "local"), strict=True))


@dataclass(frozen=True)
class Face:
    """One accuracy of a method and of training alone, by seed one value per client, and what guessing gets there."""

    metric: str
    joined: Mapping[int, Sequence[float]]
    alone: Mapping[int, Sequence[float]]
    chance: float  # of naming the commonest class
    num_images: int  # behind an accuracy: how far a guess may come by luck

    @property
    def differences(self) -> list[list[float]]:
        """Return every client's gain, seed after seed; seeds that only one of the two has are left out."""
        return [
            [mine - theirs for mine, theirs in zip(self.joined[seed], self.alone[seed], strict=True)]
            for seed in self.seeds
        ]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that both were run with."""
        return tuple(seed for seed in self.joined if seed in self.alone)


@dataclass(frozen=True)
class FaceGain:
    """What joining did to one face, in points."""

    metric: str
    mean: float
    interval: tuple[float, float] | None  # at 95 %; None with one seed
    sign: int  # 1 where a rise is shown, -1 where a fall is, else 0
    num_gained: int  # (seed, client) pairs that rose
    num_pairs: int
    joined: float
    alone: float
    chance: float
    is_at_chance: bool  # both, so that a difference says nothing

    @property
    def face(self) -> str:
        """Return `global` or `local`."""
        return FACES[self.metric]


@dataclass(frozen=True)
class Verdict:
    """Whether joining helped with one method, or, where the name is empty, one member."""

    name: str
    kind: Kind
    gains: tuple[FaceGain, ...]
    seeds: tuple[int, ...]
    num_gained: int  # (seed, client) pairs that rose on a face and fell on none
    num_pairs: int
    who: str = "clients"  # they are

    @property
    def label(self) -> str:
        """Return it in a few words: `mixed: +5.6 global, -4.1 local (1 of 6 gained)`."""
        return verdict_label(self)

    @property
    def sentence(self) -> str:
        """Return it with its intervals and how many gained; with one seed what happened in this run."""
        return verdict_sentence(self)

    @property
    def css_class(self) -> str:
        """Return the kind as a page's style names it."""
        return css_class(self.kind)


@dataclass(frozen=True)
class JoiningVerdict:
    """What a comparison says of joining: one sentence over all methods, the verdict of each, and how to read them."""

    kind: Kind  # of all of them together
    sentence: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Return the sentence of every method, where the first sentence is not that of the only one, and the notes."""
        own = [verdict.sentence for verdict in self.verdicts] if len(self.verdicts) > 1 else []
        return [*own, *self.notes]


def css_class(kind: Kind) -> str:
    """Return a kind as a page's style names it."""
    return kind.replace(" ", "-")


def joining_verdict(runs: Sequence[RunRecords]) -> JoiningVerdict | None:
    """Judge every joined method of comparable runs against training alone; None where nobody joined or was alone.

    Runs that are still going on are not judged: a model after three rounds says nothing of one after thirty.
    """
    runs = [run for run in runs if run.is_complete]
    who = "honest clients" if any(run.experiment.attack for run in runs) else "clients"
    verdicts = tuple(replace(judge(name, faces), who=who) for name, faces in _faces_by_method(runs).items())
    if not verdicts:
        return None
    notes = (*notes_on_many(verdicts), *_loss_notes(runs))
    if len(verdicts) == 1:
        return JoiningVerdict(verdicts[0].kind, verdicts[0].sentence, verdicts, notes)
    return JoiningVerdict(_common_kind(verdicts), sentence_over(verdicts), verdicts, notes)


def _common_kind(verdicts: Sequence[Verdict]) -> Kind:
    """Return the kind of several methods: where some help and of others nothing is shown, nothing is shown of all."""
    kinds = {verdict.kind for verdict in verdicts}
    if len(kinds) == 1:
        return kinds.pop()
    return "not shown" if kinds == {"helped", "not shown"} else "mixed"


def judge(name: str, faces: Sequence[Face]) -> Verdict:
    """Return the verdict on one method from its faces: both accuracies, or one where there is no other."""
    gains = tuple(_face_gain(face) for face in faces)
    by_client = list(zip(*(chain(*face.differences) for face in faces), strict=True))
    num_gained = sum(max(own) > 0 and min(own) >= 0 for own in by_client)
    return Verdict(name, _kind(gains), gains, faces[0].seeds, num_gained, len(by_client))


def to_json(found: JoiningVerdict | None) -> dict[str, Any] | None:
    """Return a comparison's verdict as plain values."""
    if found is None:
        return None
    own = [{**asdict(one), "label": one.label, "sentence": one.sentence} for one in found.verdicts]
    return {**asdict(found), "verdicts": own, "level": LEVEL}


def is_at_chance(accuracy: float, *, chance: float, num_images: int) -> bool:
    """Tell whether an accuracy in percent is one that guessing may come to on so many images."""
    error = math.sqrt(chance * (100.0 - chance) / max(1, num_images))
    return accuracy <= chance + GUESS_ERRORS * error


def commonest_share(counts: Sequence[int]) -> float:
    """Return the percentage that naming the commonest class gets right."""
    return 100.0 * max(counts) / max(1, sum(counts))


def _faces_by_method(runs: Sequence[RunRecords]) -> dict[str, list[Face]]:
    floor = alone_name(runs)
    alone = {run.summary["seed"]: run for run in runs if run.summary["name"] == floor}
    found: dict[str, list[Face]] = {}
    for name in dict.fromkeys(run.summary["name"] for run in runs if run.summary["method"] not in NOT_JOINED):
        own = {run.summary["seed"]: run for run in runs if run.summary["name"] == name}
        common = {seed: run for seed, run in own.items() if seed in alone}
        if common:
            found[name] = [_face(metric, common, alone) for metric in METRICS]
    return found


def _face(metric: str, joined: Mapping[int, RunRecords], alone: Mapping[int, RunRecords]) -> Face:
    guesses = [_guess(metric, run) for run in joined.values()]
    return Face(
        metric,
        joined={seed: client_accuracies(run, metric, attackers=attackers_of(run)) for seed, run in joined.items()},
        alone={
            seed: client_accuracies(alone[seed], metric, attackers=attackers_of(run)) for seed, run in joined.items()
        },
        chance=statistics.fmean(chance for chance, _ in guesses),
        num_images=min(number for _, number in guesses),
    )


def _guess(metric: str, run: RunRecords) -> tuple[float, int]:
    """Return what guessing gets on a face and on how many images; a client's test half has the classes of its shard."""
    if metric == "global_accuracy":
        counts = [one["test_samples"] for one in run.summary["per_class"]]
        return commonest_share(counts), sum(counts)
    shards = run.partition["counts"]
    held = sum(map(sum, shards)) * run.experiment.held_out / 2
    return statistics.fmean(map(commonest_share, shards)), round(held)


def _face_gain(face: Face) -> FaceGain:
    differences = face.differences
    over_clients = [statistics.fmean(own) for own in differences]
    pairs = list(chain(*differences))
    interval = gain_interval(differences)
    joined, alone = (statistics.fmean(chain(*one.values())) for one in (face.joined, face.alone))
    at_chance = is_at_chance(max(joined, alone), chance=face.chance, num_images=face.num_images)
    is_shown = interval is not None and not at_chance
    return FaceGain(
        metric=face.metric,
        mean=statistics.fmean(over_clients),
        interval=interval,
        sign=(interval[0] > 0) - (interval[1] < 0) if is_shown and interval is not None else 0,
        num_gained=sum(value > 0 for value in pairs),
        num_pairs=len(pairs),
        joined=joined,
        alone=alone,
        chance=face.chance,
        is_at_chance=at_chance,
    )


def _kind(gains: Sequence[FaceGain]) -> Kind:
    shown = [gain for gain in gains if gain.sign]
    if not shown:
        return "not shown"
    rising, falling = (sum(gain.sign == sign for gain in shown) for sign in (1, -1))
    if rising and falling:
        return "mixed"
    sign, size = shown[0].sign, max(abs(gain.mean) for gain in shown)
    if any(-sign * gain.mean > size for gain in gains):
        return "mixed"
    return "helped" if sign > 0 else "hurt"


def _loss_notes(runs: Sequence[RunRecords]) -> list[str]:
    """Name the methods whose own loss is not that of training alone: not all that they bring is brought by joining."""
    floor = alone_name(runs)
    losses = {run.summary["name"]: run.experiment.recipe.local_loss for run in runs}
    joined = dict.fromkeys(run.summary["name"] for run in runs if run.summary["method"] not in NOT_JOINED)
    others = {name: losses[name] for name in joined if losses[name] != losses[floor or name]}
    return notes_on_loss(others, floor or "")
