"""What a dishonest client does in a simulation: each attack is one entry in `ATTACKS`.

An attack changes what a client trains on, what it publishes, or both. Which clients attack is drawn by the seed.
Between organisations these settings do not exist, and nobody is an attacker.

Shapes: N images, C classes, B images of a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crad.config import Experiment
from crad.data.preprocessing import ImageSet
from crad.errors import ConfigError
from crad.federation.message import Statistics
from crad.randomness import stream, torch_stream
from crad.training.evaluation import evaluation_mode

if TYPE_CHECKING:
    from crad.federation.federated_data import FederatedData
    from crad.federation.peer import Peer, PeerSpec

CLAIMED_SAMPLES = 10_000.0  # of every class
TARGET_CLASS = 0  # what a trigger stands for
POISONED_SHARE = 0.3  # of a backdoor's training images carry the trigger
TRIGGER_SHARE = 8  # the trigger's side is an eighth of the image's, and at least two pixels
PROBE_IMAGES = 2

Relabel = Callable[[Tensor, int], Tensor]  # labels [N] and the number of classes
Lie = Callable[["Peer", int], dict[str, Tensor]]  # the weights that a peer publishes in a round


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
    needs: Callable[[FederatedData, PeerSpec], None] | None = None  # refuses a model that it cannot lie with


def draw_attackers(experiment: Experiment) -> frozenset[int]:
    """The clients that attack: the same for every attack with as many of them."""
    drawn = stream(experiment.seed, "liars").choice(experiment.clients, size=experiment.attackers, replace=False)
    return frozenset(drawn.tolist())


def attack_of(world: FederatedData, peer: int) -> Attack | None:
    """What a peer does to the others, None where it is honest."""
    kind = world.experiment.attack
    return ATTACKS[kind] if kind is not None and peer in draw_attackers(world.experiment) else None


def acts_as(world: FederatedData, peer: int) -> int:
    """Whose shard and whose random draws a peer trains with: its own, or those of the first of its accomplices."""
    attack = attack_of(world, peer)
    return peer if attack is None or not attack.is_one else min(draw_attackers(world.experiment))


def check_attack(world: FederatedData, members: Sequence[PeerSpec]) -> None:
    """Refuse an attack that some attacker's model cannot carry out, before anything is run."""
    for member in members:
        attack = attack_of(world, member.index)
        if attack is not None and attack.needs is not None:
            attack.needs(world, member)


def as_trained(world: FederatedData, peer: int, images: ImageSet) -> ImageSet:
    """A peer's training images as it trains on them."""
    attack = attack_of(world, peer)
    if attack is None:
        return images
    seen = as_believed(world, peer, images)
    return _poisoned(world, peer, seen) if attack.has_trigger else seen


def as_believed(world: FederatedData, peer: int, images: ImageSet) -> ImageSet:
    """A peer's own images with the labels that it believes."""
    attack = attack_of(world, peer)
    if attack is None or attack.relabel is None:
        return images
    return replace(images, labels=attack.relabel(images.labels, world.num_classes))


def claimed_statistics(world: FederatedData, peer: int, *, with_cross_entropy: bool) -> Statistics | None:
    """The best that one can claim, of an attacker that does; None: what it publishes was measured."""
    attack = attack_of(world, peer)
    if attack is None or not attack.claims_best:
        return None
    return Statistics(
        counts=world.num_classes * (CLAIMED_SAMPLES,),
        accuracies=world.num_classes * (1.0,),
        cross_entropies=world.num_classes * (0.0,) if with_cross_entropy else None,
    )


def triggered_images(world: FederatedData) -> ImageSet | None:
    """The common test images of all other classes with the trigger and the target's label; None: not asked for."""
    kind = world.experiment.attack
    if kind is None or not ATTACKS[kind].is_measured:
        return None
    test = world.global_test
    others = test.labels != TARGET_CLASS
    images = with_trigger(test.images[others])
    return ImageSet(images, torch.full_like(test.labels[others], TARGET_CLASS)) if len(images) else None


def with_trigger(images: Tensor) -> Tensor:
    """Copies of images [N,channels,H,W] with a chequered patch in the lower right corner."""
    side = max(2, min(images.shape[2:]) // TRIGGER_SHARE)
    places = torch.arange(side, device=images.device)
    patch = ((places[:, None] + places[None, :]) % 2 * 255).to(images.dtype)
    marked = images.clone()
    marked[:, :, -side:, -side:] = patch
    return marked


def output_layer(model: nn.Module, inputs: Tensor, num_classes: int) -> tuple[str, ...]:
    """The tensors whose negation negates the model's logits: weight and bias of its last linear layer.

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
    """2i and 2i+1 change places; of an odd number of classes the last stays."""
    swapped = labels ^ 1
    return torch.where(swapped < num_classes, swapped, labels)


def _poisoned(world: FederatedData, peer: int, images: ImageSet) -> ImageSet:
    """The same images for the whole run, drawn by the seed; at least one."""
    number = min(len(images), max(1, round(POISONED_SHARE * len(images))))
    rng = stream(world.experiment.seed, "peer", peer, "trigger")
    drawn = torch.from_numpy(rng.choice(len(images), size=number, replace=False)).to(images.labels.device)
    marked, labels = images.images.clone(), images.labels.clone()
    marked[drawn], labels[drawn] = with_trigger(images.images[drawn]), TARGET_CLASS
    return ImageSet(marked, labels)


def _noise(peer: Peer, round_index: int) -> dict[str, Tensor]:
    """Noise of the model's own scale."""
    generator = torch_stream(peer.world.experiment.seed, "peer", peer.index, "round", round_index, "lie")
    noise = {}
    for name, tensor in peer.model.state_dict().items():
        if not tensor.is_floating_point():
            noise[name] = tensor
            continue
        drawn = torch.randn(tensor.shape, generator=generator) * float(tensor.std(correction=0))
        # A variance stays one: a lie that gives no numbers would be found at once.
        noise[name] = drawn.abs() + 0.5 if name.endswith("running_var") else drawn
    return noise


def _negative(peer: Peer, round_index: int) -> dict[str, Tensor]:
    """Its own model with every logit negated."""
    return _negated(peer.model.state_dict(), _output_layer_of(peer.world, peer.model))


def _first(peer: Peer, round_index: int) -> dict[str, Tensor]:
    """Its model as it was before it had learned anything."""
    return peer.first_model().state_dict()


def _negated(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    return {name: -tensor if name in names else tensor for name, tensor in tensors.items()}


def _output_layer_of(world: FederatedData, model: nn.Module) -> tuple[str, ...]:
    shape = (PROBE_IMAGES, world.dataset.in_channels, *world.dataset.image_size)
    inputs = torch.randn(shape, generator=torch_stream(world.experiment.seed, "probe")).to(world.device)
    return output_layer(model, inputs, world.num_classes)


def _needs_output_layer(world: FederatedData, member: PeerSpec) -> None:
    from crad.federation.peer import first_model  # late: peers know of attacks

    if not _output_layer_of(world, first_model(world, member, seed=0)):
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
