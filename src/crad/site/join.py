"""`crad peer join`: a member's part from its files to its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crad.analysis.confusions import confusion_sentence
from crad.errors import ConfigError, RunError
from crad.federation.peer import log_prior
from crad.federation.rounds import Step
from crad.files import disk_faults, full_disk
from crad.network.agreement import Agreement
from crad.network.identity import load_identity
from crad.network.ledger import totals
from crad.prediction.export import export_onnx, export_safetensors, trained_model
from crad.prediction.model_card import make_card
from crad.report.participant import participant_page, participant_record
from crad.runs.callbacks import Callback, CallbackList, LambdaCallback
from crad.runs.directory import RunDirectory
from crad.runs.records import Record
from crad.runs.summary import versions
from crad.site.certificate import check_own_certificate, watched_certificate
from crad.site.local_peer import LocalPeer, prepare_local_peer
from crad.site.refusals import read_refusals
from crad.site.settings import Site
from crad.site.state_folder import LEDGER, REFUSALS, STATUS, stale_state_warning, state_folder
from crad.site.status import Status
from crad.site.training import Trained, take_part, train_for_comparison
from crad.site.transport import check_identity, open_exchange, wait_for_readers


@dataclass(frozen=True)
class Joined:
    """What taking part came to: `record` is participant.json."""

    record: Record
    folder: Path


def join(agreement: Agreement, site: Site, *, callback: Callback) -> Joined:
    """Take part until the last round, train alone for comparison, and write what came of both."""
    with disk_faults(state_folder(agreement, site)):
        identity = load_identity(site.keys)
        check_identity(agreement, identity, site.name)
        check_own_certificate(agreement, identity)
        with watched_certificate(agreement, identity, notice=callback.on_notice):
            return _join(agreement, site, callback=callback)


def _join(agreement: Agreement, site: Site, *, callback: Callback) -> Joined:
    earlier = stale_state_warning(agreement, site)
    if earlier is not None:
        callback.on_notice(earlier)
    part = prepare_local_peer(agreement, site)
    for name, reason in part.named_left_out.items():
        callback.on_notice(f"{name} is left out as a teacher: {reason}")
    if part.word_about_weights is not None:
        callback.on_notice(part.word_about_weights)
    disk = LedgerDisk(part.folder, notice=callback.on_notice)
    with open_exchange(part, site, notice=callback.on_notice, on_fault=disk.note) as exchange:
        federated = take_part(part, exchange, callback=CallbackList([disk, callback]))
        callback.on_notice(
            f"{_rounds_done(federated, agreement)}; now the same model without the others, for comparison"
        )
        alone = train_for_comparison(part, callback=CallbackList([disk, LambdaCallback(on_step=callback.on_step)]))
        late = wait_for_readers(part, exchange, notice=callback.on_notice, check=disk.check)
        if late:
            callback.on_notice(f"not fetched by {', '.join(late)} within the agreed deadline; ending without them")
    record = participant_record(
        federation=agreement.name,
        member=site.name,
        members=[member.name for member in agreement.members],
        class_names=agreement.classes,
        joined=federated.rounds,
        joined_best=federated.best,
        alone_best=alone.best,
        refused=read_refusals(part.folder / REFUSALS),
        left=totals(part.folder / LEDGER),
        private_counts=part.experiment.private_counts,
        left_out=part.named_left_out,
        rounds_agreed=agreement.rounds,
        proven=exchange.witness.proven(),
    )
    _write_outcome(part, federated, record, callback=callback)
    Status(part.folder / STATUS).say(
        state="finished",
        federation=agreement.name,
        member=site.name,
        difference=record["difference"],
        taken_part=record["rounds_taken_part"],
        left_out=record["left_out"],
        confused=[confusion_sentence(entry) for entry in record["confused"]],
    )
    return Joined(record, part.folder)


def _rounds_done(federated: Trained, agreement: Agreement) -> str:
    taken = len(federated.rounds)
    return "all rounds done" if taken == agreement.rounds else f"took part in {taken} of {agreement.rounds} rounds"


class LedgerDisk(Callback):
    """Hears from any thread that the ledger's disk is full, says so at once, and ends the run at its next step."""

    def __init__(self, folder: Path, *, notice: Callable[[str], None]) -> None:
        self._folder, self._notice = folder, notice
        self._fault: RunError | None = None

    def note(self, error: OSError) -> None:
        """Hear that the ledger could not be written: what was to leave has not left."""
        if self._fault is None:
            self._fault = full_disk(self._folder, error)
            self._notice(f"nothing leaves any more: {self._fault}")

    def check(self) -> None:
        """Refuse to go on once it has been noted."""
        if self._fault is not None:
            raise self._fault

    def on_step(self, step: Step) -> None:
        """Look at every step."""
        self.check()


def _write_outcome(part: LocalPeer, federated: Trained, record: Record, *, callback: Callback) -> None:
    """Write the selected model for use, and the report."""
    directory = RunDirectory(part.folder)
    architecture = part.context.architecture_of(part.number)
    model = trained_model(part.context, part.method.roster(part.context)[part.number], federated.state)
    prior_C = log_prior(part.context, (part.number,))
    weights = part.folder / "model.safetensors"
    origin = {"client": part.number, "federation": record["federation"], "member": record["member"]}
    card = make_card(part.context.data, architecture=architecture.id, log_prior_C=prior_C, origin=origin)
    export_safetensors(model, card, weights)
    try:
        export_onnx(model, card, part.folder / "model.onnx")
    except ConfigError as error:
        callback.on_notice(f"no model.onnx: {error}")
    directory.write_json("participant.json", record)
    directory.write_text("report.html", participant_page(record, versions=versions()))
