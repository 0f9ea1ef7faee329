"""What a round will cost: bytes, the time they take on the lines measured, and the time to compute."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from crad.analysis.durations import duration
from crad.federation.message import SNAPSHOT
from crad.federation.peer import Peer, new_model
from crad.inference.engine import TEACHER_BATCH, TeacherEngine
from crad.methods.alone import own_labels
from crad.models import FittedModule
from crad.site.doctor.findings import Findings, size_text
from crad.site.doctor.others import Speeds
from crad.site.doctor.own_model import ResourceNeeds
from crad.training.epoch import Block, LossMeter, train_on_block


def estimate(needs: ResourceNeeds, speeds: Speeds | None, findings: Findings) -> None:
    """Say what a round and all of them come to; a warning where a round takes longer than its deadline."""
    local_peer = needs.local_peer
    experiment, agreement = local_peer.experiment, local_peer.agreement
    kinds = [phase.kind for phase in local_peer.method.phases]
    if kinds != [SNAPSHOT] or not needs.received_bytes:
        is_alone = kinds == [SNAPSHOT] and local_peer.left_out
        reason = "nobody teaches us" if is_alone else f"what {local_peer.method.name} sends is known only when it runs"
        findings.ok("estimate", f"none: {reason}")
        return
    findings.on_step("timing a batch of the student and one of the largest teacher")
    active = experiment.active or experiment.clients
    rounds = agreement.rounds * active / experiment.clients  # those that we are drawn for
    share = (active - 1) / (experiment.clients - 1)  # of the others, in one of these rounds
    sent = round(needs.snapshot_bytes * (1 if speeds and speeds.copies == 1 else active - 1))
    received = round(sum(needs.received_bytes.values()) * share)
    student_s, learning_s = computing_s(needs, teachers=share * len(needs.received_bytes))
    moving_s = None if speeds is None else transfer_s(needs, speeds, share=share, sent=sent)
    round_s = learning_s + (moving_s or 0.0)
    moving = "transfer not measured" if moving_s is None else f"{_about(moving_s)} of transfer"
    text = (
        f"a round sends {size_text(sent)} and receives {size_text(received)}; {moving}, "
        f"{_about(learning_s)} of computing; all {agreement.rounds} rounds: {size_text(rounds * sent)} out, "
        f"{size_text(rounds * received)} in, {_about(rounds * round_s)}, then "
        f"{_about(agreement.rounds * student_s)} of training alone for comparison"
    )
    values = {
        "round": {
            "sent_bytes": sent,
            "received_bytes": received,
            "transfer_s": moving_s,
            "computing_s": learning_s,
        },
        "all_rounds": {
            "sent_bytes": round(rounds * sent),
            "received_bytes": round(rounds * received),
            "seconds": rounds * round_s,
            "alone_s": agreement.rounds * student_s,
        },
    }
    if round_s > agreement.deadline_s:
        advice = "agree on a longer deadline_s or smaller models: faster members go on without us"
        findings.warn("estimate", f"{text}; the deadline of a round is {agreement.deadline_s:g} s", advice, **values)
    else:
        findings.ok("estimate", text, **values)


def transfer_s(needs: ResourceNeeds, speeds: Speeds, *, share: float, sent: int) -> float | None:
    """Return the seconds until everything of a round has moved, both ways at once; None if nothing was measured.

    Our line is at least as fast as the fastest member's probe; whoever was not measured is taken for the slowest.
    """
    if not speeds.incoming:
        return None
    fastest, slowest = max(speeds.incoming.values()), min(speeds.incoming.values())
    each = [size / speeds.incoming.get(name, slowest) for name, size in needs.received_bytes.items()]
    incoming_s = max(*each, share * sum(needs.received_bytes.values()) / fastest, 0.0)
    return max(incoming_s, sent / (speeds.outgoing or fastest))


def computing_s(needs: ResourceNeeds, *, teachers: float) -> tuple[float, float]:
    """Return a round's seconds for the student by itself, and with so many teachers as slow as the largest one."""
    local_peer = needs.local_peer
    peer = Peer(local_peer.context, local_peer.method.roster(local_peer.context)[local_peer.number])
    is_fitted = isinstance(peer.model, FittedModule)  # to all samples in one call, whatever the size of a batch
    size = len(peer.train) if is_fitted else min(local_peer.experiment.batch_size, len(peer.train))
    block = _block(peer, size)
    student_s = _timed(lambda: _train(peer, block, size)) / size
    engine = TeacherEngine(device=local_peer.context.device, precision=local_peer.experiment.teacher_precision)
    teacher = engine.prepare(new_model(local_peer.context, needs.largest, seed=0), key=needs.largest.id)
    inputs = _block(peer, TEACHER_BATCH).inputs
    teacher_s = _timed(lambda: teacher(inputs)) / len(inputs)
    samples = (1 if is_fitted else local_peer.experiment.local_epochs) * len(peer.train)
    shard = local_peer.context.data.shards[local_peer.number]
    alone_s = samples * student_s + (len(shard.validation) + len(shard.test)) * teacher_s
    return alone_s, alone_s + samples * teachers * teacher_s


def _about(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else "under a second"


def _block(peer: Peer, size: int) -> Block:
    return Block(peer.data.preprocessor.inputs(peer.train.samples[:size]), peer.train.labels[:size])


def _train(peer: Peer, block: Block, size: int) -> None:
    train_on_block(
        peer.model,
        peer.optimizer,
        block,
        batch_size=size,
        clipper=peer.clipper,
        loss_of=own_labels(block),
        meter=LossMeter(),
    )


def _timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call: the first one prepares, of the next two the faster one was disturbed less."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
