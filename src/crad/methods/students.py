"""How a student learns from experts that stay as they are: for how long, at which rate, on what, and what counts most.

A method whose students keep their teachers has these settings; each combines with every other, and with those of the
run (`distill_augment`, `distill_weight`, `temperature`). See docs/student.md for what they bring.

Shapes: B samples, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from crad.aggregation import Rule
from crad.config import Experiment
from crad.data.preprocessing import in_usual_layout
from crad.federation.context import RunContext
from crad.federation.method import Learned, MethodSpec, RoundContext
from crad.federation.peer import Peer, PeerSpec
from crad.federation.teachers import Snapshot
from crad.methods.distillation import learn_from, student_loss, weigh_lacking
from crad.methods.dreams import DREAMS, DreamPlan, Start, make_dreams, refuse_without_statistics
from crad.methods.local_training import BlockLoss, local_blocks
from crad.randomness import torch_stream
from crad.training.epoch import Block
from crad.training.optimizer import lr_factor
from crad.training.sample_weights import sure_weights

# In a peer's memory: what it made of its newest experts, and of which round these are.
DREAM_INPUTS, DREAM_ROUND = f"{DREAMS}/inputs", f"{DREAMS}/round"


class StudentSpec(MethodSpec):
    """What a student's part of a method is like; with these defaults it is four private epochs a round under Eq. 9."""

    student_epochs: Annotated[int, Field(ge=0)] = 4  # a round, chosen in docs/student.md; 0: the run's local_epochs
    student_lr: Annotated[float, Field(ge=0)] = 0.0  # 0: the run's lr
    student_schedule: Literal["run", "constant", "cosine"] = "run"  # over the students' epochs; run: the run's own
    missing_weight: Annotated[float, Field(ge=0)] = 0.0  # how much more samples count that tell of lacking classes
    sure: Annotated[float, Field(ge=0, lt=1)] = 0.0  # changed samples count where the target's top is this or more
    dreams: Annotated[int, Field(ge=0)] = 0  # inputs made per class that the client has nothing of
    dream_share: Annotated[float, Field(gt=0)] = 0.5  # beside each own sample, in every epoch
    dream_steps: Annotated[int, Field(ge=1)] = 100
    dream_lr: Annotated[float, Field(gt=0)] = 0.05
    dream_experts: Annotated[int, Field(ge=1)] = 2  # asked in each step
    dream_start: Start = "own"
    dream_statistics: Annotated[float, Field(ge=0)] = 1.0
    dream_variation: Annotated[float, Field(ge=0)] = 0.1

    def roster(self, context: RunContext) -> list[PeerSpec]:
        """Return the usual members; refuse what dreams cannot be made of."""
        if self.dreams:
            refuse_without_statistics(context)
        return super().roster(context)

    def learn_from_experts(
        self, peer: Peer, experts: Sequence[Snapshot], context: RoundContext, *, rule: Rule, after: int
    ) -> Learned:
        """Train the student of a round; `after`: the last round without students."""
        refused: dict[str, str] = {}
        losses = self._dream_of(peer, experts, context, refused)
        learned = learn_from(
            peer,
            experts,
            context,
            rule=rule,
            refused=refused,
            blocks=self._blocks(peer, context, len(experts), after=after),
            loss_towards=partial(self._loss, peer) if self._missing_weight(peer.experiment) or self.sure else None,
        )
        return replace(learned, losses={**learned.losses, **losses})

    def lr_at(self, experiment: Experiment, *, round_index: int, epoch: int, after: int) -> float:
        """Return the rate of an epoch; the cosine falls over all epochs of all students' rounds."""
        highest = self.student_lr or experiment.lr
        if self.student_schedule == "run":
            return highest * lr_factor(experiment, round_index)
        if self.student_schedule == "constant":
            return highest
        epochs = self.student_epochs or experiment.local_epochs
        done = (round_index - after - 1) * epochs + epoch
        progress = done / ((experiment.rounds - after) * epochs)
        return highest * (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2

    def _blocks(self, peer: Peer, context: RoundContext, num_experts: int, *, after: int) -> Iterator[Block]:
        blocks = local_blocks(
            peer,
            context,
            distill_augment=peer.context.recipe.distill_augment if num_experts else "same",
            sample_values=num_experts * peer.num_classes,
            epochs=self.student_epochs or None,
        )
        dreamt = peer.memory.get(DREAM_INPUTS)
        for number, block in enumerate(blocks):
            rate = self.lr_at(peer.experiment, round_index=context.round_index, epoch=block.epoch, after=after)
            for group in peer.optimizer.param_groups:
                group["lr"] = rate
            if dreamt is None or not len(dreamt) or not num_experts:
                yield block
                continue
            draws = torch_stream(peer.experiment.seed, *context.purpose(peer, DREAMS, "beside", number))
            yield self._beside(peer, block, dreamt, draws)

    def _beside(self, peer: Peer, block: Block, dreamt: Tensor, draws: torch.Generator) -> Block:
        """Return a block with dreams among its samples, moved and mirrored as own ones are, without a label."""
        wanted = max(1, round(self.dream_share * len(block.labels)))
        chosen = torch.randperm(len(dreamt), generator=draws)[:wanted].to(dreamt.device)
        preprocessor = peer.data.preprocessor
        added = dreamt[chosen]
        if preprocessor.augmentation != "none":
            added = preprocessor.augment(added, generator=draws)
        own, order = len(block.labels), torch.randperm(len(block.labels) + len(added), generator=draws)
        return joined(block, added, order.to(block.labels.device), own=own)

    def _loss(self, peer: Peer, block: Block, target_BC: Tensor, teachers: int) -> BlockLoss:
        temperature = peer.experiment.temperature
        weight_B = torch.ones_like(target_BC[:, 0])
        if strength := self._missing_weight(peer.experiment):
            weight_B = weigh_lacking(peer, target_BC, strength)
        if self.sure:
            weight_B = weight_B * sure_weights(
                target_BC, block.is_changed, threshold=self.sure, temperature=temperature
            )
        return student_loss(peer, block, target_BC, weight_B)

    def _missing_weight(self, experiment: Experiment) -> float:
        """Return the method's own weight of lacking classes, or the run's, which every distilling method has."""
        return self.missing_weight or experiment.recipe.missing_weight

    def _dream_of(
        self, peer: Peer, experts: Sequence[Snapshot], context: RoundContext, refused: dict[str, str]
    ) -> dict[str, float]:
        """Make dreams of the experts at hand, once for each exchange of them."""
        if not self.dreams or not experts:
            return {}
        newest = max(one.round_index for one in experts)
        if DREAM_ROUND in peer.memory and int(peer.memory[DREAM_ROUND]) == newest:
            return {}
        plan = DreamPlan(
            per_class=self.dreams,
            steps=self.dream_steps,
            lr=self.dream_lr,
            experts=self.dream_experts,
            start=self.dream_start,
            statistics_weight=self.dream_statistics,
            variation_weight=self.dream_variation,
        )
        inputs, loss = make_dreams(peer, experts, context, plan, refused)
        peer.memory |= {DREAM_INPUTS: inputs, DREAM_ROUND: torch.tensor(newest)}
        return {DREAMS: loss}


def joined(block: Block, added: Tensor, order: Tensor, *, own: int) -> Block:
    """Return a block with unlabelled inputs behind its own samples, all in another order."""
    size = len(added)
    ones = torch.ones(own + size, dtype=torch.bool, device=block.labels.device)
    is_own = torch.arange(own + size, device=block.labels.device) < own
    is_changed = ~is_own if block.is_changed is None else torch.cat([block.is_changed, ones[:size]])

    def padded(values: Tensor | None, filler: float) -> Tensor | None:
        return None if values is None else torch.cat([values, values.new_full((size,), filler)])[order]

    labels = padded(block.labels, 0)
    assert labels is not None
    return replace(
        block,
        inputs=in_usual_layout(torch.cat([block.inputs, added])[order]),
        labels=labels,
        mixed_with=padded(block.mixed_with, 0),
        share=padded(block.share, 1),
        is_changed=is_changed[order],
        is_labelled=is_own[order],
    )
