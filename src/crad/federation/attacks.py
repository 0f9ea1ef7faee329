"""Simulated attacks: each is one entry in `ATTACKS`, and honest code sees no more of them than an `Adversary`.

An attack changes what a client trains on, what it publishes, or both. Which clients attack is drawn by the seed.
Between organisations these settings do not exist, and nobody is an attacker.

Shapes: N images, C classes, B images of a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from crad.config import Experiment
from crad.data.preprocessing import SampleSet
from crad.errors import ConfigError, with_article
from crad.federation.message import Statistics
from crad.models import InputShape
from crad.randomness import stream, torch_stream
from crad.training.evaluation import evaluation_mode

if TYPE_CHECKING:
    from crad.data.federated_data import FederatedData
    from crad.federation.context import RunContext
    from crad.federation.peer import PeerSpec

CLAIMED_SAMPLES = 10_000.0  # of every class
TARGET_CLASS = 0  # what a trigger stands for
POISONED_SHARE = 0.3  # of a backdoor's training images carry the trigger
TRIGGER_SHARE = 8  # the trigger's side is an eighth of the image's, and at least two pixels
PROBE_IMAGES = 2

Relabel = Callable[[Tensor, int], Tensor]  # labels [N] and the number of classes


class Publisher(Protocol):
    """Who has a model to publish: a peer at work, or one that is read back from its state."""

    @property
    def index(self) -> int:
        """Return its number on the roster."""
        ...

    @property
    def model(self) -> nn.Module:
        """Return the model that it has."""
        ...

    @property
    def experiment(self) -> Experiment:
        """Return the settings of the run."""
        ...

    @property
    def input_shape(self) -> InputShape:
        """Return what its network is built for."""
        ...

    def first_model(self) -> nn.Module:
        """Return its network as it was before it had learned anything."""
        ...


Lie = Callable[[Publisher, int], dict[str, Tensor]]  # the weights that a peer publishes in a round


@dataclass(frozen=True)
class Attack:
    """What an attacker does otherwise than an honest client; an attack without any of it is honest."""

    does: str  # in words, after "they"
    relabel: Relabel | None = None  # the labels that it believes: it trains on them and measures itself against them
    has_trigger: bool = False  # some of its training images carry the trigger and the target's label
    is_measured: bool = False  # how often honest models follow the trigger is recorded
    lie: Lie | None = None  # None: it publishes the weights that it has
    claims_best: bool = False  # it claims many samples of every class and no mistake
    is_one: bool = False  # all attackers train as the first of them does, and listen to nobody
    needs: Callable[[RunContext, PeerSpec], None] | None = None  # refuses a model that it cannot lie with


class Adversary:
    """What some clients do otherwise than they should. This one has no clients: everybody is honest."""

    attackers: frozenset[int] = frozenset()

    def acts_as(self, peer: int) -> int:
        """Return whose shard and whose random draws a peer trains with: its own."""
        return peer

    def listens(self, peer: int) -> bool:
        """Return whether a peer learns from the others."""
        return True

    def as_trained(self, peer: int, images: SampleSet) -> SampleSet:
        """Return a peer's training images as it trains on them."""
        return images

    def as_believed(self, peer: int, images: SampleSet) -> SampleSet:
        """Return a peer's own images with the labels that it believes."""
        return images

    def published_weights(self, peer: Publisher, round_index: int) -> dict[str, Tensor]:
        """Return what a peer gives the others as its model."""
        return peer.model.state_dict()

    def published_statistics(self, peer: int, measured: Statistics) -> Statistics:
        """Return what a peer says of itself."""
        return measured

    def triggered_images(self) -> SampleSet | None:
        """Return test images on which everybody's obedience to a trigger is measured; None: it is not."""
        return None

    def check(self, context: RunContext, members: Sequence[PeerSpec]) -> None:
        """Refuse an attack that some attacker's model cannot carry out, before anything is run."""


class SimulatedAdversary(Adversary):
    """The attackers of a simulation, all of whom carry out the same attack."""

    def __init__(self, attack: Attack, experiment: Experiment, data: FederatedData) -> None:
        self.attackers = draw_attackers(experiment)
        self._attack, self._seed, self._data = attack, experiment.seed, data

    def acts_as(self, peer: int) -> int:
        """Return whose shard and random draws a peer trains with: its own, or those of its first accomplice."""
        return min(self.attackers) if peer in self.attackers and self._attack.is_one else peer

    def listens(self, peer: int) -> bool:
        """Return whether a peer learns from the others; who trains as one does not."""
        return not (peer in self.attackers and self._attack.is_one)

    def as_trained(self, peer: int, images: SampleSet) -> SampleSet:
        """Return a peer's training images as it trains on them."""
        seen = self.as_believed(peer, images)
        is_poisoned = peer in self.attackers and self._attack.has_trigger
        return _poisoned(seen, stream(self._seed, "peer", peer, "trigger")) if is_poisoned else seen

    def as_believed(self, peer: int, images: SampleSet) -> SampleSet:
        """Return a peer's own images with the labels that it believes."""
        if peer not in self.attackers or self._attack.relabel is None:
            return images
        return replace(images, labels=self._attack.relabel(images.labels, self._data.num_classes))

    def published_weights(self, peer: Publisher, round_index: int) -> dict[str, Tensor]:
        """Return a peer's weights and buffers, or what it passes off as them."""
        return published_weights(peer, round_index)

    def published_statistics(self, peer: int, measured: Statistics) -> Statistics:
        """Return what a peer says of itself: what it measured, or the best that one can claim."""
        if peer not in self.attackers or not self._attack.claims_best:
            return measured
        return Statistics(
            counts=self._data.num_classes * (CLAIMED_SAMPLES,),
            accuracies=self._data.num_classes * (1.0,),
            cross_entropies=None if measured.cross_entropies is None else self._data.num_classes * (0.0,),
        )

    def triggered_images(self) -> SampleSet | None:
        """Return the common test images of all other classes with the trigger and the target's label."""
        if not self._attack.is_measured or self._data.dataset.kind != "image":
            return None
        test = self._data.global_test
        others = test.labels != TARGET_CLASS
        images = with_trigger(test.samples[others])
        return SampleSet(images, torch.full_like(test.labels[others], TARGET_CLASS)) if len(images) else None

    def check(self, context: RunContext, members: Sequence[PeerSpec]) -> None:
        """Refuse an attack that some attacker's model cannot carry out, before anything is run."""
        for member in members:
            if member.index in self.attackers and self._attack.needs is not None:
                self._attack.needs(context, member)


def make_adversary(experiment: Experiment, data: FederatedData) -> Adversary:
    """Return who attacks in a run, and how; nobody unless the settings say so."""
    if experiment.attack is None:
        return Adversary()
    attack, kind = ATTACKS[experiment.attack], data.dataset.kind
    if attack.has_trigger and kind != "image":
        raise ConfigError(
            f"attack {experiment.attack!r} puts a patch into images, and this is {with_article(kind)} data set: choose "
            "another attack"
        )
    return SimulatedAdversary(attack, experiment, data)


def published_weights(peer: Publisher, round_index: int) -> dict[str, Tensor]:
    """Return the weights and buffers that a client of a simulation publishes, or what it passes off as them."""
    experiment = peer.experiment
    if experiment.attack is None or peer.index not in draw_attackers(experiment):
        return peer.model.state_dict()
    lie = ATTACKS[experiment.attack].lie
    return peer.model.state_dict() if lie is None else lie(peer, round_index)


def draw_attackers(experiment: Experiment) -> frozenset[int]:
    """Draw the clients that attack: the same for every attack with as many of them."""
    drawn = stream(experiment.seed, "liars").choice(experiment.clients, size=experiment.attackers, replace=False)
    return frozenset(drawn.tolist())


def with_trigger(images: Tensor) -> Tensor:
    """Return copies of images [N,channels,H,W] with a chequered patch in the lower right corner."""
    side = max(2, min(images.shape[2:]) // TRIGGER_SHARE)
    places = torch.arange(side, device=images.device)
    # Of 8 bits white; otherwise nobody knows what white is, and the lightest pixel will do.
    white = 255 if images.dtype == torch.uint8 or not images.numel() else float(images.max())
    patch = ((places[:, None] + places[None, :]) % 2 * white).to(images.dtype)
    marked = images.clone()
    marked[:, :, -side:, -side:] = patch
    return marked


def output_layer(model: nn.Module, inputs: Tensor, num_classes: int) -> tuple[str, ...]:
    """Return the tensors whose negation negates the model's logits: weight and bias of its last linear layer.

    Found by trying, for a module's layers need not run in the order in which they stand; none: there is no such layer.
    """
    own = model.state_dict()
    candidates = [
        tuple(name for name in (f"{path}.weight".lstrip("."), f"{path}.bias".lstrip(".")) if name in own)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == num_classes
    ]
    with torch.no_grad(), evaluation_mode(model):
        logits_BC = model(inputs)
        for names in reversed([names for names in candidates if names]):
            changed_BC = torch.func.functional_call(model, _negated(own, names), (inputs,))
            if logits_BC.any() and torch.allclose(changed_BC, -logits_BC, rtol=1e-4, atol=1e-6):
                return names
    return ()


def _flip(labels: Tensor, num_classes: int) -> Tensor:
    return num_classes - 1 - labels


def _flip_pairs(labels: Tensor, num_classes: int) -> Tensor:
    """Swap 2i and 2i+1; of an odd number of classes the last stays."""
    swapped = labels ^ 1
    return torch.where(swapped < num_classes, swapped, labels)


def _poisoned(images: SampleSet, rng: np.random.Generator) -> SampleSet:
    """Return images of which some carry the trigger: the same for the whole run; at least one."""
    number = min(len(images), max(1, round(POISONED_SHARE * len(images))))
    drawn = torch.from_numpy(rng.choice(len(images), size=number, replace=False)).to(images.labels.device)
    marked, labels = images.samples.clone(), images.labels.clone()
    marked[drawn], labels[drawn] = with_trigger(images.samples[drawn]), TARGET_CLASS
    return SampleSet(marked, labels)


def _noise(peer: Publisher, round_index: int) -> dict[str, Tensor]:
    """Return noise of the model's own scale."""
    generator = torch_stream(peer.experiment.seed, "peer", peer.index, "round", round_index, "lie")
    noise = {}
    for name, tensor in peer.model.state_dict().items():
        if not tensor.is_floating_point():
            noise[name] = tensor
            continue
        drawn = torch.randn(tensor.shape, generator=generator) * float(tensor.std(correction=0))
        # A variance stays one: a lie that gives no numbers would be found at once.
        noise[name] = drawn.abs() + 0.5 if name.endswith("running_var") else drawn
    return noise


def _negative(peer: Publisher, round_index: int) -> dict[str, Tensor]:
    """Return its own model with every logit negated."""
    return _negated(peer.model.state_dict(), _output_layer_of(peer.model, peer.input_shape, seed=peer.experiment.seed))


def _first(peer: Publisher, round_index: int) -> dict[str, Tensor]:
    """Return its model as it was before it had learned anything."""
    return peer.first_model().state_dict()


def _negated(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    return {name: -tensor if name in names else tensor for name, tensor in tensors.items()}


def _output_layer_of(model: nn.Module, shape: InputShape, *, seed: int) -> tuple[str, ...]:
    inputs = shape.random_samples(PROBE_IMAGES, generator=torch_stream(seed, "probe"))
    device = next((tensor.device for tensor in model.parameters()), inputs.device)
    return output_layer(model, inputs.to(device), shape.num_classes)


def _needs_output_layer(context: RunContext, member: PeerSpec) -> None:
    from crad.federation.peer import build_member_model  # late: a peer has a context, and that an adversary

    model = build_member_model(context, member, seed=0)
    if not _output_layer_of(model, context.input_shape, seed=context.experiment.seed):
        raise ConfigError(
            f"attack 'sign-flip' negates the last linear layer, and client {member.index}'s model "
            f"{member.architecture} does not end in one; choose another attack or other models"
        )


ATTACKS: dict[str, Attack] = {
    "noise": Attack(
        "publish noise of their model's scale and claim 10,000 samples and no mistake per class",
        lie=_noise,
        claims_best=True,
    ),
    "label-flip": Attack("train on labels c that were turned into C-1-c and believe them", relabel=_flip),
    "label-flip-pairs": Attack("train on labels of which 2i and 2i+1 changed places", relabel=_flip_pairs),
    "sign-flip": Attack(
        "publish their model with all logits negated and what they measured before that",
        lie=_negative,
        needs=_needs_output_layer,
    ),
    "inflated": Attack("publish an honest model and claim 10,000 samples and no mistake per class", claims_best=True),
    "backdoor": Attack(
        f"train on images of which {POISONED_SHARE:.0%} carry a patch in the corner and the label of class 0",
        has_trigger=True,
        is_measured=True,
    ),
    # Figures of the untrained model would give it away at once: it says what it measured on the model that it keeps.
    "free-rider": Attack(
        "publish their first, untrained model for ever, with the figures of the one they keep", lie=_first
    ),
    "collude": Attack(
        "train alone on the first one's images with flipped labels, publish the same model where they have the same "
        "architecture, and claim 10,000 samples and no mistake per class",
        relabel=_flip,
        claims_best=True,
        is_one=True,
    ),
    # The trigger is tried on models that never saw it, so that a backdoor's success has something beside it.
    "honest": Attack("do what everybody does: a control, in which the same clients are set apart", is_measured=True),
}
