"""Disk and memory: what taking part needs, against what is there."""

from __future__ import annotations

import shutil

from crad.device import available_memory_bytes
from crad.federation.exchange import KEPT_ROUNDS
from crad.federation.teachers import PREPARED_BYTES
from crad.site.doctor.committee_cost import committee_disk_bytes
from crad.site.doctor.findings import Findings, size_text
from crad.site.doctor.own_model import ResourceNeeds
from crad.site.settings import Site
from crad.training.epoch import BLOCK_BYTES
from crad.training.optimizer import moments_kept

STATES = 2 * 3  # with the others and alone: the newest, the selected, and one being written
COPIES = 2  # of the model at the end: safetensors and ONNX
TIGHT = 2  # times the need: less is worth a word
FLOAT_BYTES = 4


def check_disk(needs: ResourceNeeds, site: Site, findings: Findings) -> None:
    """Check the room for two rounds of everybody's snapshots, for checkpoints with moments, and for a committee."""
    own, received = needs.snapshot_bytes, sum(needs.received_bytes.values())
    state = (1 + moments_kept(needs.local_peer.experiment)) * own
    committee = committee_disk_bytes(needs) if needs.local_peer.agreement.committee else 0
    need = KEPT_ROUNDS * (own + received) + STATES * state + COPIES * own + committee
    free = shutil.disk_usage(needs.local_peer.folder).free
    text = f"{size_text(free)} free for {site.state}, about {size_text(need)} needed"
    advice = "free some, or choose another state in peer.toml"
    _compare("disk", text, advice, need=need, there=free, findings=findings)


def check_memory(needs: ResourceNeeds, findings: Findings) -> None:
    """Check the room for the student with gradients and moments, the largest and prepared teachers, the images."""
    context = needs.local_peer.context
    images = context.data.dataset.train_images
    block = min(BLOCK_BYTES, FLOAT_BYTES * images.size)
    # A teacher is there twice: as it came, and as it runs.
    student = (2 + moments_kept(needs.local_peer.experiment)) * needs.snapshot_bytes
    need = student + 2 * needs.largest_bytes + PREPARED_BYTES + 2 * images.nbytes + block
    there = available_memory_bytes(context.device)
    if there is None:
        findings.ok("memory", f"about {size_text(need)} needed; how much is free cannot be told here", need_bytes=need)
        return
    text = f"{size_text(there)} available on {context.device}, about {size_text(need)} needed beside activations"
    advice = "end other programs, use a larger machine, or agree on smaller models"
    _compare("memory", text, advice, need=need, there=there, findings=findings)


def _compare(check: str, text: str, advice: str, *, need: int, there: int, findings: Findings) -> None:
    values = {"need_bytes": need, "free_bytes": there}
    if there < need:
        findings.problem(check, text, advice, **values)
    elif there < TIGHT * need:
        findings.warn(check, text, advice, **values)
    else:
        findings.ok(check, text, **values)
