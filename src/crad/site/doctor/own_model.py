"""What we bring: data in the agreed classes and form, a model that works on them, a folder to write into."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass

import numpy as np
import torch

from crad.data.agreed.own_data import OwnData
from crad.data.readers.table_file import shown_names
from crad.errors import ConfigError, CradError
from crad.federation.message import encoded_bytes
from crad.federation.peer import Peer
from crad.models import Architecture, estimate_size
from crad.network.agreement import Agreement
from crad.site.doctor.findings import Findings, size_text
from crad.site.local_peer import LocalPeer, make_local_peer, read_data
from crad.site.settings import Site
from crad.site.state_folder import state_folder

SHOWN_CLASSES = 12
SHOWN_COLUMNS = 40


@dataclass(frozen=True)
class ResourceNeeds:
    """A member ready to take part, and how large everything is that it handles."""

    local_peer: LocalPeer
    snapshot_bytes: int  # our own
    received_bytes: dict[str, int]  # of the snapshot of every other member that can teach us, by name
    largest: Architecture  # among theirs; our own where there is nobody else

    @property
    def largest_bytes(self) -> int:
        """Return the bytes of the largest snapshot of somebody else."""
        return max(self.received_bytes.values(), default=0)


def check_state(agreement: Agreement, site: Site, findings: Findings) -> bool:
    """Return whether the state folder takes files."""
    folder = state_folder(agreement, site)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        findings.problem("state", f"cannot write into {folder}: {error.strerror}", "choose another state in peer.toml")
        return False
    findings.ok("state", f"{folder} can be written to")
    return True


def check_data(agreement: Agreement, site: Site, findings: Findings) -> OwnData | None:
    """Return the own samples, if they are what was agreed on."""
    findings.on_step(f"reading {site.data}")
    try:
        own = read_data(agreement, site)
    except (CradError, OSError) as error:
        findings.problem("data", str(error))
        return None
    shard, labels = own.shard, own.dataset.train_labels
    parts = {"train": shard.train, "validation": shard.validation, "test": shard.test}
    counts = {name: np.bincount(labels[part], minlength=len(agreement.classes)) for name, part in parts.items()}
    words = own.dataset.kind_of_data.words
    sizes = ", ".join(f"{len(part)} {name}" for name, part in parts.items())
    per_class = [
        f"{name} {'/'.join(str(count[label]) for count in counts.values())}"
        for label, name in enumerate(agreement.classes)
    ]
    rest = len(per_class) - SHOWN_CLASSES
    shown = ", ".join(per_class[:SHOWN_CLASSES]) + (f" and {rest} more" if rest > 0 else "")
    absent = [name for label, name in enumerate(agreement.classes) if not any(c[label] for c in counts.values())]
    note = f"; no {words.several} of {', '.join(absent)}, which the others can teach us" if absent else ""
    findings.ok(
        "data",
        f"{sizes} {agreement.data_schema.describe()}; per class {shown}{note}",
        counts={name: count.tolist() for name, count in counts.items()},
        classes=list(agreement.classes),
        without_images=absent,
    )
    if not len(shard.test):
        findings.warn(
            "data", f"no test {words.several}", "add some: without them nobody can say whether joining helped"
        )
    _say_understood(own, findings)
    return own


def _say_understood(own: OwnData, findings: Findings) -> None:
    """Say what was understood of columns, texts, files or channels, what was passed over, and what looks wrong."""
    check = "columns" if own.columns else own.dataset.kind_of_data.words.several
    over = f". Passed over: {shown_names(own.passed_over)}" if own.passed_over else ""
    details = {"passed_over": list(own.passed_over)}
    if own.columns:
        said = _columns_text(own)
        columns = [asdict(one) for one in own.columns]
        findings.ok(check, f"{len(own.columns)} as agreed: {said}{over}", columns=columns, **details)
    elif own.understood:
        findings.ok(check, f"{own.understood}{over}", **details)
    for warning in own.warnings:
        findings.warn(check, *warning.split(": ", 1))


def _columns_text(own: OwnData) -> str:
    rows = len(own.dataset.train_labels)
    said = [f"{one.name} {one.values}" + (f", {one.gaps} gaps" if 0 < one.gaps < rows else "") for one in own.columns]
    rest = len(said) - SHOWN_COLUMNS
    return "; ".join(said[:SHOWN_COLUMNS]) + (f"; and {rest} more" if rest > 0 else "")


def check_local_peer(agreement: Agreement, site: Site, own: OwnData, findings: Findings) -> ResourceNeeds | None:
    """Build the member and try its model on its own samples; say how large the others' are, without building them."""
    findings.on_step("building the model")
    try:
        local_peer = make_local_peer(agreement, site, own)
        peer = Peer(local_peer.context, local_peer.method.roster(local_peer.context)[local_peer.number])
        _try_model(peer)
        snapshot = peer.snapshot(1)
    except (CradError, OSError, RuntimeError) as error:
        findings.problem("model", " ".join(str(error).split()))
        return None
    size = snapshot.payload_bytes
    parameters = sum(parameter.numel() for parameter in peer.model.parameters())
    text = (
        f"{peer.architecture.id} on {local_peer.context.device}: {parameters:,} parameters, "
        f"{len(agreement.classes)} outputs, a snapshot has {size_text(size)}"
    )
    values = {"architecture": peer.architecture.id, "parameters": parameters, "snapshot_bytes": size}
    if len(snapshot.body) > agreement.max_snapshot_bytes:
        limit = f"the agreement allows {size_text(agreement.max_snapshot_bytes)}: nobody would take it"
        findings.problem(
            "model", f"{text}; {limit}", "agree on a smaller model or a larger max_snapshot_bytes", **values
        )
        return None
    along = local_peer.travels_along
    findings.ok("model", text + (f", and in it {along}" if along else ""), travels_along=along, **values)
    return _weigh_others(local_peer, site, size, findings)


def _weigh_others(local_peer: LocalPeer, site: Site, own_size: int, findings: Findings) -> ResourceNeeds:
    sizes: dict[str, int] = {}
    received: dict[str, int] = {}
    for number, member in enumerate(local_peer.agreement.members):
        if number in local_peer.left_out:
            text = f"left out as a teacher: {local_peer.left_out[number]}"
            advice = "nothing, if we do without: the run goes on with the others, and it learns from us"
            findings.warn(member.name, text, advice, left_out=local_peer.left_out[number])
        elif number != local_peer.number:
            architecture = local_peer.context.architecture_of(number)
            if architecture.id not in sizes:
                sizes[architecture.id] = encoded_bytes(
                    estimate_size(architecture, local_peer.context.input_shape).weights
                )
            received[member.name] = sizes[architecture.id]
    name = max(received, key=lambda one: received[one], default=site.name)
    largest = local_peer.context.architecture_of(local_peer.agreement.number(name))
    return ResourceNeeds(local_peer, own_size, received, largest)


def _try_model(peer: Peer) -> None:
    """Check that own samples give one logit per agreed class, finite numbers all."""
    images = peer.train.samples[:2]
    with torch.no_grad():
        logits_BC = peer.model.eval()(peer.data.preprocessor.inputs(images))
    expected = (len(images), peer.num_classes)
    if tuple(logits_BC.shape) != expected or not bool(logits_BC.isfinite().all()):
        raise ConfigError(
            f"model {peer.architecture.id!r} gives {list(logits_BC.shape)} for {len(images)} samples, expected finite "
            f"numbers of shape {list(expected)}"
        )
