"""`crad peer join`: a member's part from its files to its report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from crad.analysis.confusions import confusion_sentence
from crad.analysis.privacy_spent import word_about_counts
from crad.errors import ConfigError, RunError
from crad.federation.peer import log_prior
from crad.federation.rounds import Step
from crad.files import disk_faults, full_disk
from crad.network.agreement import Agreement
from crad.network.identity import load_identity
from crad.network.ledger import OutgoingLedger, totals
from crad.network.member_exchange import MemberExchange
from crad.network.store.kept_snapshots import KeptSnapshots
from crad.prediction.export import export_onnx, export_safetensors, trained_model
from crad.prediction.model_card import make_card
from crad.report.participant import participant_page, participant_record, words_of
from crad.runs.callbacks import Callback, CallbackList, LambdaCallback
from crad.runs.directory import REPORT_FILE, RunDirectory
from crad.runs.records import Record
from crad.runs.summary import versions
from crad.site.certificate import check_own_certificate, watched_certificate
from crad.site.committee import build_committee, committee_record, write_committee
from crad.site.local_peer import LocalPeer, prepare_local_peer
from crad.site.privacy_account import account_record
from crad.site.received import delete_after_end, delete_received, deleted_record, note_kept
from crad.site.refusals import read_refusals
from crad.site.settings import Site
from crad.site.state_folder import EXCHANGE, KEPT, LEDGER, REFUSALS, STATUS, stale_state_warning, state_folder
from crad.site.status import Status
from crad.site.training import Trained, take_part, train_for_comparison
from crad.site.transport import check_identity, fetch_late, open_exchange, wait_for_readers


@dataclass(frozen=True)
class Joined:
    """What taking part came to: `record` is participant.json."""

    record: Record
    folder: Path


def join(agreement: Agreement, site: Site, *, callback: Callback) -> Joined:
    """Take part until the last round, train alone for comparison, and write what came of both."""
    with disk_faults(state_folder(agreement, site)):
        delete_after_end(agreement, site)  # first of all: whatever is refused below, nothing of others stays
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
    for word in (part.context.word_about_norms, word_about_counts(part.experiment), part.word_about_weights):
        if word is not None:
            callback.on_notice(word)
    disk = LedgerDisk(part.folder, notice=callback.on_notice)
    kept = KeptSnapshots(part.folder / KEPT) if agreement.committee else None
    with (
        closing(OutgoingLedger(part.folder / LEDGER)) as ledger,
        open_exchange(part, site, ledger=ledger, kept=kept, notice=callback.on_notice, on_fault=disk.note) as exchange,
    ):
        federated = take_part(part, exchange, callback=CallbackList([disk, callback]))
        if kept is None:
            _forget_received(part, exchange, ledger, callback=callback)
        callback.on_notice(
            f"{_rounds_done(federated, agreement)}; now the same model without the others, for comparison"
        )
        alone = train_for_comparison(part, callback=CallbackList([disk, LambdaCallback(on_step=callback.on_step)]))
        outcome = Outcome(part, federated, alone, exchange, kept)
        outcome.write_model(callback=callback)
        outcome.write_report()  # whoever is stopped while it serves the others has it
        until = time.monotonic() + (site.serve_s or agreement.deadline_s)
        if kept is not None:
            fetch_late(part, exchange, kept, until=until, notice=callback.on_notice)
        late = wait_for_readers(part, exchange, until=until, notice=callback.on_notice, check=disk.check)
        if late:
            callback.on_notice(f"not fetched by {', '.join(late)} in time; ending without them")
        exchange.stop_receiving()
        _settle_received(part, kept, ledger)
        record = outcome.write_report()
    Status(part.folder / STATUS).say(
        state="finished",
        federation=agreement.name,
        member=site.name,
        round=agreement.rounds,
        rounds=agreement.rounds,
        difference=record["difference"],
        taken_part=record["rounds_taken_part"],
        left_out=record["left_out"],
        confused=[confusion_sentence(entry) for entry in record["confused"]],
        committee=record["committee"],
        words=dict(words_of(record)),
        **({"privacy": record["privacy"]} if "privacy" in record else {}),
    )
    return Joined(record, part.folder)


def _forget_received(part: LocalPeer, exchange: MemberExchange, ledger: OutgoingLedger, *, callback: Callback) -> None:
    """Delete what came, since the agreement does not let it be kept after the last round."""
    exchange.stop_receiving()
    count = delete_received(part.folder, ledger, names=[member.name for member in part.agreement.members])
    if count:
        callback.on_notice(f"{count} snapshots of the others deleted, as agreed (committee is not set); see {LEDGER}")


def _settle_received(part: LocalPeer, kept: KeptSnapshots | None, ledger: OutgoingLedger) -> None:
    """Leave nothing of the others but what may be kept, and say in the ledger what that is."""
    names = [member.name for member in part.agreement.members]
    if kept is None:
        delete_received(part.folder, ledger, names=names)  # what came in the last moment
        return
    shutil.rmtree(part.folder / EXCHANGE / "in", ignore_errors=True)
    note_kept(kept, ledger, names=[name for name in names if name != names[part.number]])


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


class Outcome:
    """What a member has at the end: its model, the committee where there may be one, and the report on both."""

    def __init__(
        self, part: LocalPeer, federated: Trained, alone: Trained, exchange: MemberExchange, kept: KeptSnapshots | None
    ) -> None:
        self._part, self._federated, self._alone = part, federated, alone
        self._exchange, self._kept = exchange, kept
        self._made: tuple[object, Record] | None = None  # of which snapshots, and what came of them

    def write_model(self, *, callback: Callback) -> None:
        """Write the selected model for use."""
        part = self._part
        architecture = part.context.architecture_of(part.number)
        model = trained_model(part.context, part.method.roster(part.context)[part.number], self._federated.state)
        prior_C = log_prior(part.context, (part.number,))
        origin = {"client": part.number, "federation": part.agreement.name, "member": self._name}
        card = make_card(part.context.data, architecture=architecture.id, log_prior_C=prior_C, origin=origin)
        export_safetensors(model, card, part.folder / "model.safetensors")
        try:
            export_onnx(model, card, part.folder / "model.onnx")
        except ConfigError as error:
            callback.on_notice(f"no model.onnx: {error}")

    def write_report(self) -> Record:
        """Write the committee from what is here by now, participant.json and the report; return the record."""
        part, agreement = self._part, self._part.agreement
        record = participant_record(
            federation=agreement.name,
            member=self._name,
            members=[member.name for member in agreement.members],
            class_names=agreement.classes,
            joined=self._federated.rounds,
            joined_selected=self._federated.selected,
            alone_selected=self._alone.selected,
            refused=read_refusals(part.folder / REFUSALS),
            left=totals(part.folder / LEDGER),
            private_counts=part.experiment.private_counts,
            privacy=None if part.account is None else account_record(part.account),
            left_out=part.named_left_out,
            rounds_agreed=agreement.rounds,
            proven=self._exchange.witness.proven(),
            committee=self._committee(),
            is_taught=part.method.teachers != "nobody",
            words=asdict(agreement.data_schema.words),
            also_left=part.travels_along,
            joined_metrics=self._federated.metrics,
            alone_metrics=self._alone.metrics,
        )
        directory = RunDirectory(part.folder)
        directory.write_json("participant.json", record)
        directory.write_text(REPORT_FILE, participant_page(record, versions=versions()))
        return record

    def _committee(self) -> Record:
        """Return what came of the committee, or of what was deleted; the same snapshots are not tried twice."""
        part, kept = self._part, self._kept
        if kept is None:
            return {"is_allowed": False, "deleted": deleted_record(part.folder)}
        proven = self._exchange.witness.proven()
        of_what = (proven, [kept.round_of(member.name) for member in part.agreement.members])
        if self._made is None or self._made[0] != of_what:
            refused = {name: list(why)[-1] for name, why in read_refusals(part.folder / REFUSALS).items()}
            made = build_committee(part, kept, proven=proven, refused=refused)
            write_committee(part, made)
            own = self._federated.selected["clients"][0]["local_accuracy"]
            self._made = (of_what, committee_record(part, made, own_accuracy=own))
        return self._made[1]

    @property
    def _name(self) -> str:
        return self._part.agreement.members[self._part.number].name
