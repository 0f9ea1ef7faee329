"""FedGD (Zhang et al. 2023): FedMD on synthetic images that a generator paints from the clients' models.

Exchanged: every active client's snapshot to the generator; the painted images from it; then, as in FedMD, every
client's logits on those images to every other client.
Adapted: the generator is a member of the roster that owns no data and does nothing else; the mean of the logits is
taken by every client on what it collected. Its traffic is counted apart. See docs/methods/fedgd.md.

Shapes: B images, C classes, D channels, H and W the sides of the image, L latent dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from crad.data.contact_sheet import contact_sheet
from crad.data.preprocessing import Preprocessor
from crad.errors import ConfigError, SnapshotError, with_article
from crad.federation.context import RunContext
from crad.federation.message import SNAPSHOT, Message, open_message, pack
from crad.federation.method import (
    CommonImages,
    Learned,
    Payload,
    Phase,
    RoundContext,
    one_peer_per_client,
    publish_snapshot,
)
from crad.federation.peer import Peer, PeerSpec
from crad.federation.teachers import Snapshot
from crad.federation.topology import RoundParticipants, Routes, all_to_all
from crad.inference.engine import Run
from crad.methods.alone import train_alone
from crad.methods.distillation import decode_all, trainable_models
from crad.methods.fedmd import consensus
from crad.methods.proxy import PREDICTIONS, DigestSpec, collect_predictions, digest_targets, pack_predictions
from crad.models import Architecture
from crad.models.generator import LATENT, Generator
from crad.randomness import torch_stream
from crad.training.batch_statistics import watched_statistics
from crad.training.digest import logits_on, restore_optimizer, store_optimizer
from crad.training.epoch import sum_in_turn
from crad.training.evaluation import evaluation_mode
from crad.training.losses import softened_divergence
from crad.training.uncompiled import uncompiled

TRANSFER = "transfer"
GENERATOR = "generator"
PAPER_ROUNDS = 300  # the warm-up is a share of these
SHEET_COLUMNS = 10
PROBED_IMAGES = 16
SHEET_CLASSES = 10


class FedGd(DigestSpec):
    """How the generator learns, how many images it paints, and when the clients begin to digest them."""

    common_images: ClassVar[CommonImages] = "synthetic"
    payload: ClassVar[Payload] = "sent and received"

    generator_steps: Annotated[int, Field(ge=1)] = 10
    generator_batch: Annotated[int, Field(ge=2)] = 256
    generator_lr: Annotated[float, Field(gt=0)] = 1e-3
    generator_warmup: Annotated[int, Field(ge=0)] = 10  # rounds of 300; fewer in a shorter run
    statistics_weight: Annotated[float, Field(ge=0)] = 1.0
    transfer_size: Annotated[int, Field(ge=2)] = 500
    sheet_every: Annotated[int, Field(ge=1)] = 5  # rounds between two contact sheets

    def roster(self, context: RunContext) -> list[PeerSpec]:
        """Return the clients, and one member without data that paints; refuse data that is no image."""
        if context.data.dataset.kind != "image":
            what = with_article(context.data.dataset.kind)
            raise ConfigError(
                f"method 'fedgd' paints images only, and this is {what} data set: choose another method, such as crad"
            )
        dtype = context.data.dataset.train_samples.dtype
        if dtype != "uint8":
            raise ConfigError(
                f"method 'fedgd' paints images of 8 bits only, and these are {dtype}: choose another method"
            )
        clients = one_peer_per_client(context)
        painter = PeerSpec(len(clients), clients=(), architecture=Architecture(GENERATOR), build=build_generator)
        return [*clients, painter]

    def phases(self) -> Sequence[Phase]:
        """Send snapshots to the generator and images from it, then do FedMD's round on them."""
        return [
            Phase(SNAPSHOT, publish=publish_snapshot, learn=self._train_generator, routes=_to_generator),
            Phase(
                TRANSFER,
                publish=self._paint,
                learn=self._keep_images,
                routes=self._from_generator,
                has_statistics=False,
            ),
            Phase(
                PREDICTIONS,
                publish=_publish_logits,
                learn=self._learn,
                routes=self._among_clients,
                has_statistics=False,
            ),
        ]

    def warmup_rounds(self, rounds: int) -> int:
        """Return how many first rounds go without a digest: the same share of a shorter run."""
        return math.ceil(self.generator_warmup * min(1.0, rounds / PAPER_ROUNDS))

    def _is_warming_up(self, participants: RoundParticipants) -> bool:
        return participants.round_index <= self.warmup_rounds(participants.context.experiment.rounds)

    def _from_generator(self, participants: RoundParticipants) -> Routes:
        return {} if self._is_warming_up(participants) else dict.fromkeys(participants.clients, participants.helpers)

    def _among_clients(self, participants: RoundParticipants) -> Routes:
        return (
            dict.fromkeys(participants.clients, ()) if self._is_warming_up(participants) else all_to_all(participants)
        )

    def _train_generator(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        snapshots, refused = decode_all(messages, context)
        losses = self._improve(peer, snapshots, context, refused)
        notes = {"refused": refused} if refused else {}
        rounds = peer.experiment.rounds
        is_shown = context.round_index % self.sheet_every == 0 or context.round_index in (1, rounds)
        sheets = {f"transfer-{context.round_index:05d}.png": self._sheet(peer)} if is_shown else {}
        return Learned(losses, notes=notes, artifacts=sheets)

    def _improve(
        self, peer: Peer, snapshots: Sequence[Snapshot], context: RoundContext, refused: dict[str, str]
    ) -> dict[str, float]:
        generator, data, device = peer.model, peer.data, peer.context.device
        optimizer = uncompiled(torch.optim.Adam)(generator.parameters(), lr=self.generator_lr, betas=(0.5, 0.999))
        restore_optimizer(peer.memory, GENERATOR, generator, optimizer)
        probe = data.preprocessor.inputs(self._bank(peer)[0][:PROBED_IMAGES])
        models = trainable_models(peer.context, snapshots, probe, refused)
        critics = [
            Critic(models[one.peer].eval().requires_grad_(False), context.teachers.get(one))
            for one in snapshots
            if one.peer in models
        ]
        if not critics:
            return {}
        draws = torch_stream(peer.experiment.seed, *context.purpose(peer, "latents"))
        losses = []
        generator.train()
        for _ in range(self.generator_steps):
            latents_BL = torch.randn(self.generator_batch, LATENT, generator=draws).to(device)
            labels_B = torch.randint(data.num_classes, (self.generator_batch,), generator=draws).to(device)
            images = generator(latents_BL, labels_B)
            seen = images.detach().requires_grad_()
            inputs = as_inputs(seen, data.preprocessor)
            losses.append(criticise(critics, inputs, labels_B, weight=self.statistics_weight))
            optimizer.zero_grad(set_to_none=True)
            images.backward(seen.grad)
            optimizer.step()
        store_optimizer(peer.memory, GENERATOR, generator, optimizer)
        steps = [loss_parts(row, weight=self.statistics_weight) for row in torch.stack(losses).tolist()]
        return {name: sum_in_turn(parts[name] for parts in steps) / self.generator_steps for name in steps[0]}

    def _paint(self, peer: Peer, context: RoundContext) -> Message:
        images, _ = self._bank(peer)
        return pack({TRANSFER: images}, kind=TRANSFER, peer=peer.index, round_index=context.round_index)

    @torch.no_grad()
    def _bank(self, peer: Peer) -> tuple[Tensor, Tensor]:
        """Return the bank of latents, fixed by the seed, as the generator paints it now.

        Uint8 pixels, and wanted classes.
        """
        data, device = peer.data, peer.context.device
        labels_B = torch.arange(self.transfer_size) % data.num_classes
        latents_BL = torch.randn(
            self.transfer_size, LATENT, generator=torch_stream(peer.experiment.seed, GENERATOR, "bank")
        )
        with evaluation_mode(peer.model):
            painted = peer.model(latents_BL.to(device), labels_B.to(device))
        return (painted * 255).round().to(torch.uint8), labels_B

    def _sheet(self, peer: Peer) -> bytes:
        """Draw one row per class (the first ten), one column per image."""
        painted, labels_B = self._bank(peer)
        images = painted.cpu()
        rows = [images[labels_B == label][:SHEET_COLUMNS] for label in range(min(SHEET_CLASSES, peer.num_classes))]
        rows = [row for row in rows if len(row)]  # a small bank has no image of some classes
        columns = min(len(row) for row in rows)
        pixels = torch.cat([row[:columns] for row in rows])
        return contact_sheet(pixels.permute(0, 2, 3, 1).numpy(), columns=columns, scale=2)

    def _keep_images(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        shape = (self.transfer_size, peer.data.dataset.in_channels, *peer.data.dataset.image_size)
        expected = {TRANSFER: torch.empty(shape, dtype=torch.uint8, device="meta")}
        refused = {}
        for sender, message in messages.items():
            try:
                now = context.round_index
                opened = open_message(message, sender=sender, round_index=now, kind=TRANSFER, expected=expected)
                images = opened[TRANSFER]
                peer.memory[TRANSFER] = images.to(peer.context.device)
            except SnapshotError as error:
                refused[str(sender)] = str(error)
        return Learned(notes={"refused": refused} if refused else {})

    def _learn(self, peer: Peer, messages: Mapping[int, Message], context: RoundContext) -> Learned:
        losses, notes = {}, {}
        images = peer.memory.pop(TRANSFER, None)
        if images is not None:
            temperature = peer.experiment.temperature
            inputs = peer.data.preprocessor.inputs(images)
            outputs, refused = collect_predictions(logits_on(peer.model, inputs), peer, messages, context)
            target_BC = torch.softmax(consensus(list(outputs.values())) / temperature, dim=1)
            loss_of = partial(softened_divergence, temperature=temperature)
            losses["digest"] = digest_targets(peer, inputs, target_BC, context, spec=self, loss_of=loss_of)
            notes = {"teachers": sorted(outputs), **({"refused": refused} if refused else {})}
        return Learned({**train_alone(peer, messages, context).losses, **losses}, notes=notes)


def build_generator(context: RunContext, seed: int) -> nn.Module:
    """Build the painter of this federation's kind of images."""
    dataset = context.data.dataset
    height, width = dataset.image_size
    return Generator(num_classes=dataset.num_classes, out_channels=dataset.in_channels, image_size=(height, width))


def as_inputs(pixels: Tensor, preprocessor: Preprocessor) -> Tensor:
    """Normalise pixels in 0..1 as the data set's inputs are."""
    return preprocessor.inputs(pixels * 255)


@dataclass(frozen=True)
class Critic:
    """A client's snapshot twice: one that gradients go through, and one that is fast."""

    model: nn.Module
    run: Run


def criticise(critics: Sequence[Critic], inputs: Tensor, labels_B: Tensor, *, weight: float) -> Tensor:
    """Return what the generator's loss is made of; its gradient is added to what the inputs were made from.

    Cross-entropy of the mean logits, plus the distance to the running statistics. The mean couples all critics, so it
    is computed first without gradients; then each critic is gone through alone: one graph in memory at a time. What is
    returned, the cross-entropy and each critic's distance in a row, stays on the device: see `loss_parts`.
    """
    with torch.no_grad():
        mean_BC = torch.stack([critic.run(inputs) for critic in critics]).mean(dim=0)
    mean_BC.requires_grad_()
    cross_entropy = F.cross_entropy(mean_BC, labels_B)
    [gradient_BC] = torch.autograd.grad(cross_entropy, mean_BC)
    found = [cross_entropy.detach()]
    leaf = inputs.detach().requires_grad_()
    for critic in critics:
        with watched_statistics(critic.model) as distances:
            logits_BC = critic.model(leaf.clone())  # a module may write to its input
        own = torch.stack(distances).mean() if distances else logits_BC.new_zeros(())
        surrogate = (logits_BC * gradient_BC).sum() + weight * own
        if surrogate.requires_grad:  # a user's module may let no gradient through
            (surrogate / len(critics)).backward()
        found.append(own.detach())
    gradient = torch.zeros_like(inputs) if leaf.grad is None else leaf.grad
    inputs.backward(gradient)  # type: ignore[no-untyped-call]
    return torch.stack(found)


def loss_parts(row: Sequence[float], *, weight: float) -> dict[str, float]:
    """Return the generator's loss by name from what `criticise` returned, as numbers."""
    cross_entropy, distances = row[0], row[1:]
    distance = sum_in_turn(one / len(distances) for one in distances)
    return {"total": cross_entropy + weight * distance, "cross_entropy": cross_entropy, "statistics": distance}


def _publish_logits(peer: Peer, context: RoundContext) -> Message | None:
    images = peer.memory.get(TRANSFER)
    if images is None:
        return None  # the generator's message did not come
    return pack_predictions(peer, logits_on(peer.model, peer.data.preprocessor.inputs(images)), context)


def _to_generator(participants: RoundParticipants) -> Routes:
    return dict.fromkeys(participants.helpers, participants.clients)
