"""A peer: its model, its private data, and what it knows about itself. The one thing that changes in a run.

A `PeerSpec` is its place on the roster, a `Peer` the member at work. Between two pieces of work a peer is only its
`state`, on disk.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from crad.aggregation.member_tally import count_by_client
from crad.data.partition import Shard
from crad.data.preprocessing import SampleSet
from crad.errors import ConfigError, RunError
from crad.federation.class_statistics import class_statistics, count_noise, private_counts, release_hits
from crad.federation.context import RunContext
from crad.federation.message import SNAPSHOT, Message, Statistics, pack
from crad.federation.peer_evaluation import ClassScore, Evaluation
from crad.inference.engine import TeacherEngine
from crad.models import (
    Architecture,
    InputShape,
    build_model,
    fit_agreed_ranges,
    fit_own_statistics,
    has_own_statistics,
    load_first_weights,
)
from crad.randomness import torch_seed
from crad.training.canaries import COINS, FIRST, SCORES, STEP_SCORES, Canaries, draw_canaries
from crad.training.clipping import Clipper
from crad.training.evaluation import ScoredSet, score_sets
from crad.training.losses import log_count_shares, log_shares
from crad.training.optimizer import make_optimizer, optimizer_tensors

PRIOR_IN = "prior-in"  # in a peer's memory: its model was trained with the plain loss, whatever the run's is
GLOBAL, LOCAL = "global", "local"  # the common test images, and the test halves of all clients in a row
LEAST_COUNT = 0.5  # of a class in a prior made of noised counts: none is impossible
OWN = "own"  # a peer's own test halves in a row, with its own class shares

Heard = dict[str, list[Tensor]]  # what a committee would hear of a model, its logits on GLOBAL and LOCAL


@dataclass(frozen=True)
class PeerSpec:
    """A place on the roster: whose shards, which network. Costs nothing until it is at work."""

    index: int
    clients: tuple[int, ...]  # usually one; the centralised ceiling holds all shards, a generator none
    architecture: Architecture
    build: Callable[[RunContext, int], nn.Module] | None = None  # its network from a seed, if it is no classifier


class Peer:
    """A member at work: its model, optimiser and private data in memory."""

    def __init__(
        self,
        context: RunContext,
        member: PeerSpec,
        *,
        model: nn.Module | None = None,
        engine: TeacherEngine | None = None,
        round_index: int = 1,
    ) -> None:
        """Begins with the member's first weights, or with a model whose weights `load_state` will overwrite.

        `engine` makes measuring on many images faster; the learning rate is that of the round.
        """
        self.context, self.experiment, self.data = context, context.experiment, context.data
        self.num_classes = context.data.num_classes
        self._engine = engine
        self.index, self.clients, self.architecture = member.index, member.clients, member.architecture
        self._member = member
        self.listens = context.adversary.listens(member.index)  # to teachers; all but some simulated attackers do
        self.model = self.first_model() if model is None else model
        self.round_index = round_index
        self.clipper = Clipper(self.experiment.clip_norm)  # of its steps, but for private ones
        self.private_steps = 0  # taken by this peer at work, each of which spends privacy
        self.learned_from: tuple[str, ...] = ()  # of a member's private training: a name of all that goes into it
        self.memory: dict[str, Tensor] = {}  # what a method keeps from phase to phase and from round to round
        self.variants: dict[str, dict[str, Tensor]] = {}  # other weights of its model, measured beside it
        self.evaluation = Evaluation(validation=())

    @property
    def acts_as(self) -> int:
        """Return whose random draws it uses: its own, but for simulated attackers that act as one."""
        return self.context.adversary.acts_as(self.index)

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return its optimiser, with the learning rate of the round; made when somebody trains."""
        return make_optimizer(self.model, self.experiment, round_index=self.round_index)

    @cached_property
    def train(self) -> SampleSet:
        """Return the training part of its shards."""
        return training_samples(self.context, self.index, self.clients)

    @cached_property
    def log_prior_C(self) -> Tensor | None:  # noqa: N802  # tensors carry their shape in the name
        """Return the logarithm of its own class shares, where it plays a part."""
        return log_prior(self.context, self.clients, peer=self.index)

    @property
    def missing_prior_C(self) -> Tensor | None:  # noqa: N802  # tensors carry their shape in the name
        """Return the prior that its model as it stands does without, to be added for its own samples; None: it has it.

        Under the balanced loss that is its own, unless a method notes that it has trained the model with the plain one.
        """
        return None if PRIOR_IN in self.memory else self.log_prior_C

    @property
    def input_shape(self) -> InputShape:
        """Return what its network is built for."""
        return self.context.input_shape

    @property
    def _shards(self) -> list[Shard]:
        return [self.data.shards[client] for client in self.clients]

    def first_model(self) -> nn.Module:
        """Build its network again as it was before it had learned anything here, with weights from its file, if any.

        One that prepares its inputs itself gets the statistics that it does so by; own ones came along with a file.
        """
        model = untrained_model(self.context, self._member)
        if self.architecture.weights is not None:
            load_first_weights(model, self.architecture.weights, name=self.architecture.id)
        is_fitted = self.architecture.weights is not None and self.experiment.standardize == "own"
        if has_own_statistics(model) and not is_fitted:
            fit_statistics(model, self.context, self.data.preprocessor.inputs(self.train.samples))
        return model

    def snapshot(self, round_index: int, *, with_cross_entropy: bool = False) -> Message:
        """Return the frozen model with its class statistics, as bytes."""
        return pack(
            self.published_weights(round_index),
            kind=SNAPSHOT,
            peer=self.index,
            round_index=round_index,
            architecture=self.architecture.id,
            statistics=self.statistics(with_cross_entropy=with_cross_entropy),
        )

    def published_weights(self, round_index: int) -> dict[str, Tensor]:
        """Return what the others are given as its model: its weights and buffers."""
        return self.context.adversary.published_weights(self, round_index)

    def statistics(self, *, with_cross_entropy: bool = False) -> Statistics:
        """Return what the peer says of itself per class, from its validation half; counts noised if private."""
        return class_statistics(self.context, self.index, self.evaluation, with_cross_entropy=with_cross_entropy)

    def revalidate(self) -> None:
        """Measure the model after it has learned; its test results are stale from now on."""
        self.evaluation = replace(self._validate(), private=self.evaluation.private)

    def account_for(self, *, is_measured: bool) -> None:
        """Count the private steps that were taken, and release noised hits of the model if it is time for them."""
        if self.private_steps:
            self.evaluation = release_hits(
                self.context,
                self.index,
                self.evaluation,
                steps=self.private_steps,
                round_index=self.round_index if is_measured else None,
                learned_from=self.learned_from,
            )
        if self.canaries is not None and FIRST in self.memory:
            self.memory[SCORES] = self.canaries.scores(self.model, self.memory[FIRST])

    @cached_property
    def canaries(self) -> Canaries | None:
        """Return the canaries of a privacy audit, which follow from the seed; None: nobody asked for any."""
        if not self.experiment.canaries or self.context.privacy is None:
            return None
        return draw_canaries(
            self.model,
            self.experiment.canaries,
            name=self.architecture.id,
            seed=self.context.noise_seed,
            purpose=("peer", self.acts_as),
        )

    def note_first_weights(self) -> None:
        """Keep the weights that canaries move as they are before the first private step; later do nothing."""
        if self.canaries is not None and FIRST not in self.memory:
            self.memory[FIRST] = self.canaries.weights_of(self.model)
            self.memory[COINS] = self.canaries.is_included_K.to(torch.uint8)
            self.memory[STEP_SCORES] = torch.zeros(len(self.canaries))

    def watch_canaries(self, released_W: Tensor) -> None:
        """Add to the canaries' scores what a private step released beside its records."""
        assert self.canaries is not None, "asked where there are some"
        self.memory[STEP_SCORES] = self.memory[STEP_SCORES] + self.canaries.step_scores(released_W)

    @cached_property
    def expected_batch(self) -> float:
        """Return how many records a private batch has on average, estimated from what it publishes: no secret.

        The exact number would change with every record; the noised counts of the validation half tell it nearly.
        """
        plan, held_out = self.context.privacy, self.experiment.held_out
        assert plan is not None, "asked of private training alone"
        held = float(sum(map(sum, (self.data.validation_counts()[one] for one in self.clients))))
        noised = held + float(count_noise(self.context, self.index).sum())
        return max(1.0, plan.sampling_rate * noised * (1 - held_out) / (held_out / 2))

    def test(self, *, heard: Heard | None = None) -> None:
        """Measure both metrics, unless the model has not moved since they were last measured.

        What a committee would hear of the model goes into `heard`.
        """
        if self.evaluation.local is not None or not self.clients:
            return
        self.evaluation = self._tested(self.evaluation, self.model, heard)
        variants = {name: self._tested(one, self._variant(name)) for name, one in self.evaluation.variants.items()}
        self.evaluation = replace(self.evaluation, variants=variants)

    def test_as_member(self, round_index: int) -> dict[str, Tensor]:
        """Test it, and return what a committee would hear of it: its published model's logits on all test images."""
        heard: Heard = {GLOBAL: [], LOCAL: []}
        is_attacker = self.index in self.context.adversary.attackers
        self.test(heard=None if is_attacker else heard)
        if not any(heard.values()):
            model = self.model
            if is_attacker:  # and gives the others another model than the one that was tested
                model = copy.deepcopy(self.model)
                model.load_state_dict(self.published_weights(round_index))
            images = {GLOBAL: self.data.global_test, LOCAL: self.data.held_out}
            self._scores(model, [ScoredSet(one, keep=heard[name]) for name, one in images.items()])
        nothing = torch.empty(0, self.num_classes)
        logits = {name: torch.cat([nothing, *parts]) for name, parts in heard.items()}
        tests = sum(len(shard.test) for shard in self.data.shards)
        if self.experiment.committee_evidence != "reported":
            sizes = [len(shard.validation) for shard in self.data.shards]
            labels, counts_C = self.data.held_out.labels[tests:].cpu(), self.statistics().counts
            tallies = count_by_client(logits[LOCAL][tests:], labels, sizes=sizes, counts_C=counts_C)
            self.evaluation = replace(self.evaluation, tallies=tallies)
        return {**logits, LOCAL: logits[LOCAL][:tests]}

    def test_logits(self, round_index: int, *, as_member: bool) -> dict[str, Tensor]:
        """Return what it says on the common test samples and, with its own class shares, on its own test halves.

        `as_member` returns with it what a committee would hear, on everybody's test halves.
        """
        own: list[Tensor] = []
        common: list[Tensor] = []
        sets = [ScoredSet(self.data.samples(shard.test), keep=own) for shard in self._shards]
        if not as_member:
            sets.append(ScoredSet(self.data.global_test, keep=common))
        self._scores(self.model, sets)
        own_BC = torch.cat([torch.empty(0, self.num_classes), *own])
        prior_C = self.missing_prior_C
        found = {OWN: own_BC if prior_C is None else own_BC + prior_C.cpu()}
        if as_member:
            return found | self.test_as_member(round_index)
        return found | {GLOBAL: torch.cat([torch.empty(0, self.num_classes), *common])}

    def state(self) -> dict[str, Tensor]:
        """Return model, memory and what the optimiser keeps, everything a checkpoint needs of the peer's tensors.

        Themselves, not copies.
        """
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"memory.{name}": tensor for name, tensor in self.memory.items()}
        for variant, weights in self.variants.items():
            tensors |= {f"variant.{variant}.{name}": tensor for name, tensor in weights.items()}
        try:
            return tensors | optimizer_tensors(self.model, self.optimizer, self.experiment)
        except ValueError as error:
            raise RunError(
                f"the optimiser of client {self.index} keeps {error.args[0]!r}, which would be lost between rounds: "
                f"peers keep their model and what {self.experiment.optimizer} keeps"
            ) from error

    def load_state(self, tensors: Mapping[str, Tensor], evaluation: Evaluation, *, with_optimizer: bool = True) -> None:
        """Take up exactly where `state` left off; what the optimiser keeps is for those who will train."""
        self.model.load_state_dict(_under("model.", tensors))
        # A number stays on the CPU: there Adam reads its count of steps without waiting for the device.
        self.memory = {
            name: tensor.to(self.context.device) if tensor.dim() else tensor
            for name, tensor in _under("memory.", tensors).items()
        }
        for name, tensor in _under("variant.", tensors).items():
            variant, _, weight = name.partition(".")
            self.variants.setdefault(variant, {})[weight] = tensor
        if with_optimizer:
            self.optimizer = make_optimizer(self.model, self.experiment, round_index=self.round_index, kept=tensors)
        self.evaluation = evaluation

    def keep_variant(self, name: str) -> None:
        """Keep the model's weights as they are now, to be measured beside it until they are replaced."""
        self.variants[name] = {key: tensor.clone() for key, tensor in self.model.state_dict().items()}

    def _variant(self, name: str) -> nn.Module:
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.variants[name])
        return model

    def _validate(self) -> Evaluation:
        variants = {name: self._validated(self._variant(name)) for name in self.variants}
        return replace(self._validated(self.model), variants=variants)

    def _validated(self, model: nn.Module) -> Evaluation:
        adversary = self.context.adversary
        held_out = [self.data.samples(shard.validation) for shard in self._shards]
        shards = [adversary.as_believed(self.index, images) for images in held_out]
        prior_C = self.missing_prior_C
        faces = [None] if prior_C is None else [prior_C, None]
        scores = self._scores(model, [ScoredSet(images, faces) for images in shards])
        return Evaluation(
            validation=tuple(own for own, *_ in scores),
            plain=None if prior_C is None else tuple(plain for _, plain in scores),
        )

    def _tested(self, evaluation: Evaluation, model: nn.Module, heard: Heard | None = None) -> Evaluation:
        images = self.context.adversary.triggered_images()
        own = [ScoredSet(self.data.samples(shard.test), [self.missing_prior_C]) for shard in self._shards]
        common = ScoredSet(self.data.global_test, [None], None if heard is None else heard[GLOBAL])
        triggered = [] if images is None else [ScoredSet(images, [None])]
        held_out = [] if heard is None else [ScoredSet(self.data.held_out, keep=heard[LOCAL])]
        scores = self._scores(model, [*own, common, *triggered, *held_out])
        [overall], *others = scores[len(own) :]
        return replace(
            evaluation,
            local=tuple(one for [one] in scores[: len(own)]),
            overall=overall if len(common.images.labels) else None,
            triggered=others[0][0] if triggered else None,
        )

    def _scores(self, model: nn.Module, sets: Sequence[ScoredSet]) -> list[list[ClassScore]]:
        """Measure a model on several sets; the scores of each are in the order of its priors."""
        found = score_sets(
            model,
            sets,
            preprocessor=self.data.preprocessor,
            num_classes=self.num_classes,
            prepare=None if self._engine is None else partial(self._engine.prepare, key=self.architecture.id),
        )
        return [[ClassScore(*one) for one in under_priors] for under_priors in found]


def training_indices(context: RunContext, clients: Sequence[int]) -> NDArray[np.int64]:
    """Return where the training parts of these clients' shards lie among all images."""
    nothing = np.empty(0, dtype=np.int64)  # a roster member may own no data at all
    return np.concatenate([nothing, *(context.data.shards[client].train for client in clients)])


def training_samples(context: RunContext, peer: int, clients: Sequence[int]) -> SampleSet:
    """Return what a peer trains on: its clients' training parts."""
    identity = context.adversary.acts_as(peer)
    whose = clients if identity == peer else (identity,)
    return context.adversary.as_trained(peer, context.data.samples(training_indices(context, whose)))


def log_prior(context: RunContext, clients: Sequence[int], *, peer: int | None = None) -> Tensor | None:
    """Return the logarithm of the clients' class shares, under `local_loss = "balanced"`; None: it plays no part.

    The private loss adds it to the logits, so these do without it: plain, they are the model's global face, and with
    it the local one.
    """
    if context.recipe.local_loss == "plain":
        return None
    if context.privacy is not None:
        published_C = published_counts(context, clients, peer=clients[0] if peer is None else peer)
        return log_count_shares(torch.from_numpy(published_C).clamp(min=LEAST_COUNT)).to(context.device)
    if peer in context.adversary.attackers:
        labels = training_samples(context, peer, clients).labels.cpu()
    else:
        labels = torch.from_numpy(context.data.dataset.train_labels[training_indices(context, clients)])
    return log_shares(labels, num_classes=context.data.num_classes).to(context.device)


def published_counts(context: RunContext, clients: Sequence[int], *, peer: int) -> NDArray[np.float64]:
    """Return how many validation samples of each class a peer says that it holds."""
    held = context.data.validation_counts()
    return private_counts(context, peer, [sum(column) for column in zip(*(held[one] for one in clients), strict=True)])


def fit_statistics(model: nn.Module, context: RunContext, inputs: Tensor) -> None:
    """Fill the first layer of a network that prepares its inputs itself: by its owner's own, or as all have agreed."""
    if context.experiment.standardize == "schema":
        fit_agreed_ranges(model, context.agreed_ranges)
    elif context.privacy is not None:
        return  # what is published may hold no statistic of private samples: these layers stay as they were built
    else:
        fit_own_statistics(model, inputs)


def new_model(context: RunContext, architecture: Architecture, *, seed: int) -> nn.Module:
    """Build an untrained model for this federation's samples and classes, on its device."""
    if context.allowance is not None and not context.allowance.has(architecture):
        # The name may be a partner's, and building it would import whatever it says.
        raise ConfigError(f"model {architecture.id!r} is not allowed here: see architectures in peer.toml")
    model = build_model(architecture, **vars(context.input_shape), seed=seed)
    return model.to(device=context.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def untrained_model(context: RunContext, member: PeerSpec) -> nn.Module:
    """Build a member's network as its seed draws it, for weights that will be loaded or as it is."""
    seed = torch_seed(context.experiment.seed, "peer", context.adversary.acts_as(member.index), "weights")
    return build_member_model(context, member, seed=seed)


def build_member_model(context: RunContext, member: PeerSpec, *, seed: int) -> nn.Module:
    """Build a member's network from a seed, before it has learned anything."""
    if member.build is None:
        return new_model(context, member.architecture, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return member.build(context, seed).to(context.device)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
