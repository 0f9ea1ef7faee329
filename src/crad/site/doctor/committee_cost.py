"""What all members' models would cost as one predictor, and whether the agreement lets them be kept for it."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from crad.federation.peer import new_model
from crad.models import Architecture, ModelSize, estimate_size
from crad.prediction.committee import KEPT_BYTES
from crad.prediction.committee_choice import TIMED_IMAGES, measured_cost
from crad.prediction.model_card import make_card
from crad.prediction.trained_model import TorchPredictor
from crad.site.committee import last_exchange
from crad.site.doctor.findings import Findings, size_text
from crad.site.doctor.own_model import ResourceNeeds
from crad.training.evaluation import EVALUATION_BATCH

COPIES = 2  # of everybody's weights: the snapshots as they were signed, and the file that predicts


def committee_disk_bytes(needs: ResourceNeeds) -> int:
    """Return what stays on disk after the last round, ours and of everybody who can be heard here."""
    return COPIES * (needs.snapshot_bytes + sum(needs.received_bytes.values()))


def check_committee(needs: ResourceNeeds, findings: Findings) -> None:
    """Say what a committee takes, from the agreed networks, and whether there will be one."""
    part = needs.local_peer
    is_allowed = part.agreement.committee
    if last_exchange(part) is None or not needs.received_bytes:
        reason = "nobody can be heard here" if last_exchange(part) else f"{part.method.name} exchanges no models"
        findings.ok("committee", f"none: {reason}", is_allowed=is_allowed)
        return
    findings.on_step("timing the largest network of the committee")
    disk, memory, milliseconds = committee_disk_bytes(needs), _memory_bytes(needs), _milliseconds(needs)
    members = 1 + len(needs.received_bytes)
    cost = (
        f"{members} models: {size_text(disk)} on disk, {size_text(memory)} of memory, about {milliseconds:.0f} ms for "
        f"{TIMED_IMAGES} {part.agreement.data_schema.words.several}"
    )
    allowed = f"the agreement allows it: all together at the end are {cost}"
    forbidden = (
        "the agreement does not allow it (committee = true would): what comes from others is deleted after the last "
        f"round; it would be {cost}"
    )
    findings.ok(
        "committee",
        allowed if is_allowed else forbidden,
        is_allowed=is_allowed,
        members=members,
        disk_bytes=disk,
        memory_bytes=memory,
        milliseconds=milliseconds,
        images=TIMED_IMAGES,
    )


def _memory_bytes(needs: ResourceNeeds) -> int:
    """Return what predicting holds at once: weights, as many as are kept, and the largest layer of a batch."""
    sizes = _sizes(needs)
    weights, largest = sum(size.nbytes for size in sizes), max(size.nbytes for size in sizes)
    held = weights if weights <= KEPT_BYTES else KEPT_BYTES + largest
    return held + EVALUATION_BATCH * max(size.activation_bytes for size in sizes)


def _milliseconds(needs: ResourceNeeds) -> float:
    """Time the network with most operations here, and take the others' time to be as their operations are to its.

    Trees have none that are counted: those are timed one by one.
    """
    part = needs.local_peer
    numbers = [part.number, *(part.agreement.number(name) for name in needs.received_bytes)]
    members = [*zip(map(part.context.architecture_of, numbers), _sizes(needs), strict=True)]
    counted = [(architecture, size.flops) for architecture, size in members if size.flops]
    others = Counter(architecture for architecture, size in members if not size.flops)
    total = sum(count * _timed(needs, architecture) for architecture, count in others.items())
    if not counted:
        return total
    largest, flops = max(counted, key=lambda one: one[1])
    return total + _timed(needs, largest) * sum(one for _, one in counted) / flops


def _timed(needs: ResourceNeeds, architecture: Architecture) -> float:
    """Return the milliseconds that one network takes for so many samples."""
    context = needs.local_peer.context
    module = new_model(context, architecture, seed=0).cpu().requires_grad_(False)
    predictor = TorchPredictor(module, make_card(context.data, architecture=architecture.id))
    samples = context.data.dataset.train_samples
    samples = np.resize(samples, (TIMED_IMAGES, *samples.shape[1:]))
    return measured_cost(partial(predictor.logits, samples), predictor.nbytes).milliseconds


def _sizes(needs: ResourceNeeds) -> list[ModelSize]:
    """Return the size of everybody's network who can be heard here, our own first."""
    part = needs.local_peer
    numbers = [part.number, *(part.agreement.number(name) for name in needs.received_bytes)]
    known: dict[str, ModelSize] = {}
    for architecture in map(part.context.architecture_of, numbers):
        if architecture.id not in known:
            known[architecture.id] = estimate_size(architecture, part.context.input_shape)
    return [known[part.context.architecture_of(number).id] for number in numbers]
