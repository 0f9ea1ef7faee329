"""Peer distillation under an aggregation rule: CRAD, its ablations, Uniform KD and Uncertainty KD.

Paper: CRAD, "Class-wise Reliability-Aware Distillation for Decentralized Heterogeneous Federated Learning".
Exchanged: every active client's snapshot (weights, architecture id, class statistics), to every other active one.
Adapted: nothing; the settled points are in `docs/decisions/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crad.aggregation import Combination, Rule, TeacherFindings, TeacherJudge, resolve_rule
from crad.federation.class_statistics import stack_statistics
from crad.federation.context import RunContext
from crad.federation.message import SNAPSHOT, Message
from crad.federation.method import Learned, Method, Phase, RoundContext, publish_snapshot
from crad.federation.peer import Peer, new_model
from crad.federation.teachers import Snapshot, TeacherCache
from crad.federation.topology import RoundParticipants, Routes, all_to_all
from crad.inference.engine import soft_predictions
from crad.methods.alone import own_labels
from crad.methods.local_training import BlockLoss, local_blocks, train_peer
from crad.models import Architecture
from crad.training.digest import logits_on
from crad.training.epoch import Block, LossMeter
from crad.training.losses import StudentLoss
from crad.training.sample_weights import lacking_classes, missing_class_weights, rising_share

PROBED_IMAGES = 16  # enough to see that a model gives numbers


def distillation_method(
    name: str,
    rule: str | Rule | None = None,
    *,
    routes: Callable[[RoundParticipants], Routes] = all_to_all,
) -> Method:
    """Return the method that publishes snapshots and distils from them under a rule; the rule's name is the default.

    `routes` say who learns from whom: CRAD over a ring is `distillation_method("ring", "crad", routes=ring)`. Of
    crad-plus that takes the rule alone: what else it stands for are settings (`crad.config.recipes`).
    """
    chosen = resolve_rule(name if rule is None else rule)
    publish = partial(publish_snapshot, with_cross_entropy=chosen.needs_cross_entropy)
    phase = Phase(SNAPSHOT, learn=partial(distil, rule=chosen), publish=publish, routes=routes)
    return Method(name, phases=(phase,), rule=chosen, is_private=not chosen.needs_cross_entropy)


def trainable_models(
    run: RunContext, snapshots: Sequence[Snapshot], inputs: Tensor, refused: dict[str, str]
) -> dict[int, nn.Module]:
    """Return the snapshots as modules that can be trained or gone through, by peer.

    Finite weights can still overflow: who gives no numbers on the inputs is left out and named among the refused.
    """
    models = {}
    for snapshot in snapshots:
        model = new_model(run, Architecture.parse(snapshot.architecture), seed=0)
        model.load_state_dict(snapshot.tensors)
        if bool(logits_on(model, inputs).isfinite().all()):
            models[snapshot.peer] = model
        else:
            refused[str(snapshot.peer)] = _non_finite(snapshot.peer)
    return models


def distil(
    peer: Peer,
    messages: Mapping[int, Message],
    context: RoundContext,
    *,
    rule: Rule,
    loss_towards: Callable[[Block, Tensor, int], BlockLoss] | None = None,
) -> Learned:
    """Train one student's local epochs against its peers' frozen snapshots; Eq. 9 unless told another loss.

    `loss_towards` is given the block, the target and how many teachers it is made of.
    """
    snapshots, refused = decode_all(messages, context) if peer.listens else ([], {})
    return learn_from(peer, snapshots, context, rule=rule, loss_towards=loss_towards, refused=refused)


def learn_from(
    peer: Peer,
    snapshots: Sequence[Snapshot],
    context: RoundContext,
    *,
    rule: Rule,
    loss_towards: Callable[[Block, Tensor, int], BlockLoss] | None = None,
    blocks: Iterable[Block] | None = None,
    refused: dict[str, str],
) -> Learned:
    """Train one student's local epochs against these snapshots; whoever gives no numbers joins the refused.

    `blocks`: what it trains on, where that is not the round's usual epochs.
    """
    recipe, meter = peer.context.recipe, LossMeter()
    if not snapshots:  # nobody to learn from: no target, only own labels
        for block in local_blocks(peer, context) if blocks is None else blocks:
            train_peer(peer, block, own_labels(block, log_prior_C=peer.log_prior_C), meter)
        return Learned(meter.means(), notes={"refused": refused} if refused else {})
    if blocks is None:
        sample_values = len(snapshots) * peer.num_classes
        blocks = local_blocks(peer, context, distill_augment=recipe.distill_augment, sample_values=sample_values)
    published = stack_statistics([snapshot.statistics for snapshot in snapshots])
    judge = TeacherJudge.begin(
        rule,
        published,
        filter_kind=recipe.filter,
        source=recipe.evidence,
        teacher_prior=recipe.teacher_prior,
    )
    for block in blocks:
        if not len(block.labels):  # a Poisson batch of private training: nobody to ask about, and noise alone
            train_peer(peer, block, own_labels(block), meter)
            continue
        target_BC = make_target(peer, block, snapshots, context.teachers, judge=judge, refused=refused)
        if target_BC is None:
            loss_of = own_labels(block, log_prior_C=peer.log_prior_C)
        elif loss_towards is None:
            loss_of = student_loss(peer, block, target_BC)
        else:
            loss_of = loss_towards(block, target_BC, judge.trust.teachers)
        train_peer(peer, block, loss_of, meter)
    found, notes = judge.findings(), {"refused": refused} if refused else {}
    return Learned(
        meter.means(),
        trust={snapshot.peer: row for snapshot, row in zip(snapshots, found.trust, strict=True)},
        notes=notes | findings_to_notes(found, snapshots),
    )


def counted_samples(q_KBC: Tensor, block: Block) -> tuple[Tensor, Tensor] | None:
    """Return what teachers say of a block's samples that count, with their labels; None: none of them counts.

    A sample counts once, however many epochs a round has, and only where it was not mixed or disfigured.
    """
    if block.epoch > 0:
        return None
    if block.is_changed is None:
        return q_KBC, block.labels
    return q_KBC[:, ~block.is_changed], block.labels[~block.is_changed]


def findings_to_notes(found: TeacherFindings, snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Return for the records how far each teacher's figures were believed, and who means other classes than we."""
    peers = [snapshot.peer for snapshot in snapshots]
    confused = [{**asdict(one), "teacher": peers[one.teacher]} for one in found.confused]
    notes: dict[str, Any] = {"confused": confused} if confused else {}
    if found.credibility is not None:
        shares = zip(peers, found.credibility, strict=True)
        notes["credibility"] = {str(peer): round(share, 4) for peer, share in shares}
    return notes


def student_loss(peer: Peer, block: Block, target_BC: Tensor, weight_B: Tensor | None = None) -> BlockLoss:
    """Return Eq. 9 on the labels of a block and the targets for it, each weighed as asked, or as the recipe says."""
    experiment, recipe = peer.experiment, peer.context.recipe
    if weight_B is None and recipe.missing_weight:
        weight_B = weigh_lacking(peer, target_BC, recipe.missing_weight)
    distill_weight = experiment.distill_weight
    if recipe.distill_schedule == "rising":
        distill_weight *= rising_share(round_index=peer.round_index, rounds=experiment.rounds)
    return StudentLoss(
        block.batch_labels,
        target_BC,
        temperature=experiment.temperature,
        distill_weight=distill_weight,
        log_prior_C=peer.log_prior_C,
        weight_B=weight_B,
    )


def weigh_lacking(peer: Peer, target_BC: Tensor, strength: float) -> Tensor:
    """Return how much each sample counts in the distillation, [B]: more where its target is on what the peer lacks."""
    counts_C = torch.bincount(peer.train.labels.cpu(), minlength=peer.num_classes)
    temperature = peer.experiment.temperature
    return missing_class_weights(target_BC, lacking_classes(counts_C), strength=strength, temperature=temperature)


def make_target(
    peer: Peer,
    block: Block,
    snapshots: Sequence[Snapshot],
    cache: TeacherCache,
    *,
    judge: TeacherJudge,
    refused: dict[str, str],
) -> Tensor | None:
    """Combine the predictions of all teachers for a block, [B,C]; None where no teacher gives numbers."""
    experiment = peer.experiment
    teachers = [partial(cache.get, snapshot) for snapshot in snapshots]
    q_KBC = soft_predictions(teachers, block.inputs, temperature=experiment.temperature)
    combine = partial(
        judge.combine,
        min_support=experiment.min_support,
        epsilon=experiment.epsilon,
        unsupported=experiment.unsupported,
        temperature=experiment.temperature,
    )
    # Weights can be finite and still overflow on some input: such a teacher is left out, the others go on.
    sound_KB = q_KBC.isfinite().all(dim=2)
    sound_K = sound_KB.all(dim=1).cpu()
    for snapshot, is_sound in zip(snapshots, sound_K.tolist(), strict=True):
        if not is_sound:
            refused[str(snapshot.peer)] = _non_finite(snapshot.peer)
    if peer.context.privacy is not None and not sound_K.all():
        return _target_by_sample(q_KBC, sound_KB, block, combine=combine)
    if not sound_K.any():
        return None
    q_KBC = q_KBC[sound_K.to(q_KBC.device)]
    return combine(q_KBC, sound_K, counted=counted_samples(q_KBC, block)).target_BC


def _target_by_sample(q_KBC: Tensor, sound_KB: Tensor, block: Block, *, combine: Callable[..., Combination]) -> Tensor:
    """Combine for every sample the teachers that give numbers on that one, [B,C]; nothing where none does.

    In private training no record may decide who teaches another one: a teacher could be made to overflow on a record
    that its maker looks for. A row of zeros asks for nothing.
    """
    target_BC = torch.zeros_like(q_KBC[0])
    patterns_KP, pattern_B = torch.unique(sound_KB, dim=1, return_inverse=True)
    for number, sound_K in enumerate(patterns_KP.T):
        if not sound_K.any():
            continue
        where_B = pattern_B == number
        some_KBC, labels_B = q_KBC[sound_K][:, where_B], block.labels[where_B]
        made = combine(some_KBC, sound_K.cpu(), counted=None if block.epoch else (some_KBC, labels_B))
        target_BC[where_B] = made.target_BC.to(target_BC)
    return target_BC


def decode_all(messages: Mapping[int, Message], context: RoundContext) -> tuple[list[Snapshot], dict[str, str]]:
    """Return the snapshots that pass every check, and the reasons why the others do not."""
    return context.teachers.decode_all(messages, round_index=context.round_index)


def without_overflowing(
    peer: Peer, snapshots: Sequence[Snapshot], context: RoundContext, refused: dict[str, str]
) -> list[Snapshot]:
    """Return the snapshots that give numbers on a few of the peer's own images; the others are named among the refused.

    Finite weights can still overflow.
    """
    inputs = peer.data.preprocessor.inputs(peer.train.samples[:PROBED_IMAGES])
    sound = []
    for snapshot in snapshots:
        if bool(context.teachers.get(snapshot)(inputs).isfinite().all()):
            sound.append(snapshot)
        else:
            refused[str(snapshot.peer)] = _non_finite(snapshot.peer)
    return sound


def _non_finite(peer: int) -> str:
    return f"peer {peer} gives non-finite predictions"
