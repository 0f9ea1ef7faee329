"""A committee: several clients' models that answer together, combined by a rule. Raw samples in, as with one model.

The arithmetic of the rule is in `crad.aggregation.committee_rule`; here are the models, and what is known of them.

It has two faces. "global" is what the rule makes of the members, without anybody's prior; "local" has the class shares
of the client whom it serves, added to its logits. Members are run one after the other, so that memory does
not grow with their number.

Shapes: K members, N samples, B samples at once, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from crad.aggregation import Rule, resolve_rule
from crad.aggregation.committee_rule import CommitteeRule, gives_numbers, settings_of, temperature_refusal
from crad.config import EvidenceSource, Experiment, Recipe, TeacherPrior
from crad.errors import AggregationError, ConfigError, CradError, RunError, client_number, shown, unknown_name
from crad.federation.committee_score import prior_of_members
from crad.federation.message import Statistics
from crad.prediction.committee_card import CommitteeCard, CommitteeMember
from crad.prediction.committee_choice import (
    TIMED_IMAGES,
    CommitteeCost,
    MemberChoice,
    MemberGain,
    check_size,
    choose,
    measured_cost,
)
from crad.prediction.known_members import known_members, published_statistics
from crad.prediction.run_models import RunModels
from crad.prediction.trained_model import (
    Face,
    Predictor,
    Probabilities,
    Samples,
    TorchPredictor,
    TrainedModel,
    probe,
)
from crad.training.evaluation import EVALUATION_BATCH
from crad.training.losses import log_count_shares

ARCHITECTURE = "committee"  # what its card has in the place of a network's name
KEPT_BYTES = 512 * 2**20  # of members' weights stay in memory; larger committees are read again for every call
BLOCK_VALUES = 2**22  # logits of all members that are in memory at once


class Committee(TrainedModel):
    """Several models that answer together, with the preprocessing and class names of the run they come from.

    Example:
        >>> committee = crad.load("runs/first").committee(client=3)  # doctest: +SKIP
        >>> committee.predict(images, face="local")  # doctest: +SKIP
        array(['cat', 'dog'], dtype='<U3')
    """

    def __init__(
        self,
        about: CommitteeCard,
        predictor: Predictor,
        *,
        left_out: Mapping[int, str] | None = None,
        choice: MemberChoice | None = None,
    ) -> None:
        super().__init__(about.model, predictor)
        self.about = about
        self.left_out = dict(left_out or {})  # who is not in it, and why: who taught others may be, too
        self.choice = choice  # how its members were chosen, where they were

    @property
    def members(self) -> tuple[int, ...]:
        """Return the clients whose models answer."""
        return tuple(member.client for member in self.about.members)

    @property
    def client(self) -> int | None:
        """Return whom it serves: whose class shares its local face has."""
        return self.about.client

    @property
    def rule(self) -> str:
        """Return the name of the rule that combines the members."""
        return str(self.about.settings["rule"])

    @property
    def teacher_prior(self) -> TeacherPrior:
        """Return "remove" where every member's own class shares are taken out of what it says, else "keep"."""
        said: TeacherPrior = self.about.settings["teacher_prior"]
        return said

    @property
    def evidence(self) -> EvidenceSource:
        """Return what members are weighed by: "reported", what they publish, or what the client counted of them."""
        said: EvidenceSource = self.about.settings["evidence"]
        return said

    @property
    def temperature(self) -> float:
        """Return at which temperature members are softened to be combined; the answer is at temperature 1."""
        return float(self.about.settings["temperature"])

    @property
    def unsupported_classes(self) -> tuple[str, ...]:
        """Return the classes for which no member holds enough samples, where the rule asks for them.

        The plain mean of all members decides there, unless the run's setting `unsupported` is "zero".
        """
        if not isinstance(self._predictor, CommitteePredictor):
            return ()
        return tuple(self.classes[index] for index in self._predictor.rule.unsupported_classes())

    @property
    def module(self) -> torch.nn.Module:
        """Refuse: there are several networks."""
        raise ConfigError("a committee is several networks: take one of them, such as result.models[0].module")

    def predict_proba(self, x: object, face: Face = "global") -> Probabilities:
        """Return class probabilities [N, C] of raw images: numpy or torch, uint8 [N,H,W], [N,H,W,C] or [N,C,H,W].

        Example:
            >>> result.committee(client=0).predict_proba(x_test, face="local").sum(axis=1)  # doctest: +SKIP
            array([1., 1.], dtype=float32)
        """
        self._check_face(face)
        return super().predict_proba(x, face)

    def _check_face(self, face: Face) -> None:
        if face == "local" and self.client is None:
            raise ConfigError(
                "face 'local' is for images like one client's own, and this committee serves nobody in particular: say "
                "whom when it is made, such as client=0"
            )

    def chosen(self, size: int, x: object, y: object, face: Face | None = None) -> Committee:
        """Return a committee of at most `size` members: those that help on images `x` of known classes `y`.

        It begins with the model of the client whom it serves and adds whoever helps most; who harms is left out.
        `committee.choice` says what each one gained, with its interval, and what it costs. The images should not be
        those that members were trained on: a client's validation half is what `result.committee(client, size=4)` takes.
        `face`: by which they are judged, the local one unless the committee serves nobody in particular. Labels are
        class names or their places in `classes`.

        Example:
            >>> smaller = result.committee(client=3).chosen(4, x_validation, y_validation)  # doctest: +SKIP
            >>> smaller.members, smaller.choice.checked_gain  # doctest: +SKIP
        """
        check_size(size)
        predictor = self.torch_predictor
        judged: Face = face or ("global" if self.client is None else "local")
        self._check_face(judged)
        images = self.card.kind_of_data.batch(x, self.card)
        labels_B = self._places_of(y, len(images))
        path, choice = choose(
            predictor.answers_of(images, judged),
            labels_B,
            clients=self.members,
            first=None if self.client not in self.members else self.members.index(self.client),
            size=size,
            costs=predictor.costs(images),
        )
        others = {client: _why_not(client, gain) for client, gain in choice.others.items()}
        about = self.about.select([self.members[place] for place in path])
        return Committee(
            about,
            CommitteePredictor(about, predictor.models, predictor.rule.select(sorted(path))),
            left_out={**self.left_out, **others},
            choice=replace(choice, face=judged),
        )

    def _places_of(self, y: object, count: int) -> Tensor:
        labels = np.asarray(y)
        if labels.shape != (count,) or not count:
            raise ConfigError(
                f"y has shape {labels.shape} for {count} images: give one label for each of at least one image"
            )
        if labels.dtype.kind in "US":
            places = {name: place for place, name in enumerate(self.classes)}
            unknown = [str(label) for label in labels if str(label) not in places]
            if unknown:
                raise unknown_name("class", unknown[0], self.classes)
            labels = np.array([places[str(label)] for label in labels])
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(self.classes):
            raise ConfigError(f"y must hold class names or places from 0 to {len(self.classes) - 1}")
        return torch.from_numpy(labels.astype(np.int64))

    @property
    def torch_predictor(self) -> CommitteePredictor:
        """Return what runs the members; a committee from an ONNX file is a graph, and has none."""
        if not isinstance(self._predictor, CommitteePredictor):
            raise ConfigError("a committee from an ONNX file is one graph: take the run, or the .safetensors")
        return self._predictor

    def __repr__(self) -> str:
        sides = "x".join(map(str, self.card.input_shape))
        words = self.card.kind_of_data.words.several
        return f"<Committee of {len(self.members)} by rule {self.rule!r}: {words} {sides}, {len(self.classes)} classes>"


@dataclass
class MemberModels:
    """The members' networks, each read when it is needed; as many stay in memory as there is room for."""

    read: Callable[[int], TorchPredictor]  # by client
    kept_bytes: int = KEPT_BYTES
    _kept: dict[int, TorchPredictor] = field(default_factory=dict, repr=False)
    _held_bytes: int = field(default=0, init=False, repr=False)

    def get(self, client: int) -> TorchPredictor:
        """Return a member, ready to run."""
        if client in self._kept:
            return self._kept[client]
        model = self.read(client)
        together = self._held_bytes + model.nbytes
        if together <= self.kept_bytes:
            self._kept[client], self._held_bytes = model, together
        return model


class CommitteePredictor:
    """Runs the members one after the other and combines what they say."""

    def __init__(self, about: CommitteeCard, models: MemberModels, rule: CommitteeRule) -> None:
        self._about, self.models, self.rule = about, models, rule
        prior = about.model.log_prior
        self._log_prior_C = None if prior is None else torch.tensor(prior)

    def __call__(self, images: Samples, face: Face) -> Probabilities:
        """Return class probabilities [N, C]."""
        parts = [np.empty((0, self._about.model.num_classes), dtype=np.float32)]
        for start in range(0, len(images), self._block):
            logits_KBC = self.logits(images[start : start + self._block])
            try:
                said_BC = self.answer(logits_KBC, face)
            except AggregationError as error:
                raise RunError(f"of the images from {start} on: {error}") from error
            parts.append(said_BC.numpy())
        return np.concatenate(parts)

    def logits(self, images: Samples) -> Tensor:
        """Return what every member gives for raw images, [K,B,C]."""
        return torch.stack([self.models.get(member.client).logits(images) for member in self._about.members])

    def answers_of(self, images: Samples, face: Face) -> Callable[[Sequence[int]], Tensor]:
        """Run every member once; return a function from some of them, by their places, to what they say together."""
        logits_KBC = self.logits(images)
        prior_C = self._prior_of(face)
        return lambda members: self.rule.select(members).probabilities(logits_KBC[list(members)], log_prior_C=prior_C)

    def costs(self, images: Samples) -> list[CommitteeCost]:
        """Measure what every member takes, on copies of some of these images."""
        batch = np.resize(images, (TIMED_IMAGES, *images.shape[1:]))
        costs = []
        for member in self._about.members:  # one in memory at a time
            model = self.models.get(member.client)
            costs.append(measured_cost(partial(model.logits, batch), model.nbytes))
        return costs

    def answer(self, logits_KBC: Tensor, face: Face) -> Tensor:
        """Return what the committee makes of it, [B,C]."""
        return self.rule.probabilities(logits_KBC, log_prior_C=self._prior_of(face))

    def _prior_of(self, face: Face) -> Tensor | None:
        return None if face == "global" else self._log_prior_C

    @property
    def _block(self) -> int:
        return max(EVALUATION_BATCH, BLOCK_VALUES // (len(self._about.members) * self._about.model.num_classes))


def make_committee(
    models: RunModels,
    *,
    client: int | None = None,
    rule: str | Rule | None = None,
    teacher_prior: TeacherPrior | None = None,
    evidence: EvidenceSource | None = None,
    members: Sequence[int] | None = None,
    temperature: float | None = None,
) -> Committee:
    """Make a committee of a run's models as their owners publish them; `members`: of whom, None: everybody.

    Unless told otherwise it is the one that the run measured itself: its settings `committee_rule` and
    `committee_evidence`, every member's own class shares taken out unless the balanced loss has done so. Where nobody
    has counted anything, members are weighed by what they publish, and its card says so. Who cannot be heard is left
    out and named, and why; nobody left is refused.
    """
    experiment = models.experiment
    asked = experiment.committee_rule if rule is None else rule
    softened_at = _temperature(experiment, temperature)
    client = None if client is None else client_number(client, clients=len(models))
    chosen, prior = resolve_rule(asked), _teacher_prior(teacher_prior, experiment.recipe)
    log_prior = None if client is None else _own_log_prior(models, client)
    known = known_members(models, client, asked=evidence, teacher_prior=prior)
    needs_counts = known.source == "reported" and (chosen.uses_statistics or prior == "remove")
    kept, left_out, cache = [], {}, MemberModels(partial(_published_predictor, models))
    for one in _asked(models, members):
        try:
            member = _heard_member(models, one, cache, needs_counts=needs_counts, temperature=softened_at)
            kept.append(replace(member, verified=known.columns.get(one)))
        except LeftOutError as error:
            left_out[one] = str(error)
    return assemble_committee(
        kept,
        cache,
        experiment=experiment,
        rule=asked,
        teacher_prior=prior,
        client=client,
        log_prior=log_prior,
        evidence=known.source,
        note=known.note,
        temperature=softened_at,
        left_out=left_out,
    )


def _temperature(experiment: Experiment, asked: float | None) -> float:
    """Return at which temperature members are softened; what no committee can be made at is refused."""
    temperature = experiment.temperature if asked is None else asked
    refusal = temperature_refusal(temperature)
    if refusal is not None:
        whose = "the run's " if asked is None else ""
        raise ConfigError(f"{whose}{refusal}; say another temperature, such as 3")
    return float(temperature)


def assemble_committee(
    members: Sequence[CommitteeMember],
    models: MemberModels,
    *,
    experiment: Experiment,
    rule: str | Rule,
    teacher_prior: TeacherPrior,
    client: int | None,
    log_prior: tuple[float, ...] | None,
    evidence: EvidenceSource,
    note: str = "",
    temperature: float | None = None,
    left_out: Mapping[int, str] | None = None,
) -> Committee:
    """Make a committee of members that can be heard, under the settings of their run; none at all are refused.

    `evidence` is what they are judged by: where it is not what they publish, each one's is in its `verified`.
    """
    if not members:
        reasons = "; ".join((left_out or {}).values())
        raise RunError(f"nobody is left for a committee: {reasons}")
    card = members[0].card
    origin = {name: value for name, value in card.origin.items() if name != "client"}
    origin = origin if client is None else {"client": client, **origin}
    whole = replace(card, architecture=ARCHITECTURE, log_prior=log_prior, origin=origin)
    settings = {
        "rule": rule,
        "teacher_prior": teacher_prior,
        "temperature": experiment.temperature if temperature is None else temperature,
        "min_support": experiment.min_support,
        "epsilon": experiment.epsilon,
        "unsupported": experiment.unsupported,
        "evidence": evidence,
    }
    about = CommitteeCard(whole, tuple(members), client, settings, note)
    rule_of = about.committee_rule()
    about = replace(about, settings=settings_of(rule_of))
    return Committee(about, CommitteePredictor(about, models, rule_of), left_out=left_out)


def _why_not(client: int, gain: MemberGain) -> str:
    verb = "harms the committee" if gain.is_harm else "is one too many" if gain.points > 0 else "adds nothing"
    return f"client {client} {verb}: {gain}"


def _teacher_prior(asked: TeacherPrior | None, recipe: Recipe) -> TeacherPrior:
    if asked is None:
        return prior_of_members(recipe)
    if asked not in get_args(TeacherPrior):
        raise unknown_name("value of 'teacher_prior'", asked, get_args(TeacherPrior))
    if asked == "remove" and recipe.local_loss == "balanced":
        raise ConfigError(
            "teacher_prior = 'remove': these models were trained under the balanced loss, which keeps their owners' "
            "class shares out of the logits already; say 'keep'"
        )
    return asked


def _own_log_prior(models: RunModels, client: int) -> tuple[float, ...]:
    counts_C = torch.tensor(models.peer_of(client)["train_counts"])
    if not counts_C.sum() > 0:
        raise RunError(f"client {client} has no training samples, so there are no class shares for its local face")
    return tuple(log_count_shares(counts_C).tolist())


def _asked(models: RunModels, members: Sequence[int] | None) -> list[int]:
    """Return whose models are asked for, in the clients' order."""
    holders = models.record["peers"]
    if len(holders) == 1 and len(models) > 1:
        raise ConfigError(
            f"method {models.experiment.method!r} trains one model for all clients, and a committee needs several: "
            "take a run in which every client has its own"
        )
    if members is None:
        return list(range(len(models)))
    if not isinstance(members, Iterable):
        raise ConfigError(
            f"members is {shown(members)}: name clients in a list, such as members=[0, {len(models) - 1}]"
        )
    asked = [client_number(one, clients=len(models), argument="members") for one in members]
    if not asked:
        raise ConfigError(f"members is empty: name clients among 0 to {len(models) - 1}, or leave it out for all")
    for one in asked:
        models.peer_of(one)  # an unknown client is refused
    if len(set(asked)) < len(asked):
        raise ConfigError(f"members {', '.join(map(str, asked))} names a client twice: each has one model")
    return sorted(asked)


class LeftOutError(Exception):
    """A member that cannot be heard; the message says who and why."""


def _heard_member(
    models: RunModels, client: int, cache: MemberModels, *, needs_counts: bool, temperature: float
) -> CommitteeMember:
    """Return a member that can be heard, tried once."""
    peer = models.peer_of(client)
    if models.states[peer["index"]] is None:
        raise LeftOutError(f"client {client} had learned nothing by round {models.round_index}")
    statistics = published_statistics(peer, classes=models.num_classes)
    if statistics is None:
        raise LeftOutError(f"client {client}'s class statistics in models.json are damaged")
    try:
        return heard_member(client, statistics, cache, needs_counts=needs_counts, temperature=temperature)
    except ConfigError:
        raise  # a network that must be passed again, which the caller can do
    except CradError as error:
        raise LeftOutError(f"client {client}: {error}") from error


def heard_member(
    client: int, statistics: Statistics, cache: MemberModels, *, needs_counts: bool, temperature: float
) -> CommitteeMember:
    """Return a member with what is published of it, tried once; LeftOutError if it cannot be heard."""
    if needs_counts and not any(statistics.counts):
        raise LeftOutError(f"client {client} published no validation samples of any class")
    model = cache.get(client)
    check_numbers(client, model, temperature=temperature)
    return CommitteeMember(client, model.card, statistics)


def check_numbers(client: int, model: TorchPredictor, *, temperature: float) -> None:
    """Try a member once; LeftOutError if it gives no numbers that can be combined."""
    samples = probe(model.card)
    # Weights of a sound network may hold infinities, such as a mask's; they alone are looked at where nothing is tried.
    is_sound = gives_numbers(model.logits(samples), temperature=temperature).all() if len(samples) else model.is_finite
    if not bool(is_sound):
        raise LeftOutError(f"client {client} gives non-finite predictions")


def _published_predictor(models: RunModels, client: int) -> TorchPredictor:
    model = models.published(client)
    return TorchPredictor(model.module, model.card)
