"""The two models of a member: the one that learns from the others, and the same one alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from crad.analysis.confusions import confused_members, confusion_sentence
from crad.analysis.privacy_spent import EPSILON_LEFT
from crad.config import to_toml
from crad.engines.serial import SerialEngine
from crad.federation.exchange import Exchange, MemoryExchange
from crad.federation.method import Method
from crad.federation.roster import Roster
from crad.federation.rounds import Step
from crad.files import write_atomically
from crad.methods.alone import LOCAL
from crad.network.member_exchange import MemberExchange
from crad.runs.callbacks import Callback, CallbackList, LambdaCallback
from crad.runs.directory import ALONE_FOLDER, PARTITION_FILE, WEIGHTS_FILE, RunDirectory
from crad.runs.loop import RunLoop
from crad.runs.records import Record, partition_record, weights_record
from crad.site.accounted_exchange import AccountedExchange, LastPublished
from crad.site.local_peer import LocalPeer
from crad.site.privacy_account import PrivacyAccount, account_record
from crad.site.state_folder import LAST_PUBLISHED, STATUS
from crad.site.status import Status
from crad.site.unused_teachers import UnusedTeachers
from crad.training.metrics import ClassificationMetrics


@dataclass(frozen=True)
class Trained:
    """One of the two models: its records, and its state at the round with the highest own validation accuracy."""

    rounds: list[Record]
    selected: Record
    state: Path
    metrics: ClassificationMetrics | None = None  # of it on the own test half


def take_part(part: LocalPeer, exchange: MemberExchange, *, callback: Callback) -> Trained:
    """Run all rounds of the federation that are still to come, with this exchange; survives being stopped anywhere."""
    status = StatusCallback(part, exchange, notice=callback.on_notice)
    unused = LambdaCallback(on_round=status.say_unused)  # after the line of the round itself
    told = callback if part.account is None else _with_account(callback, part.account)
    callbacks = CallbackList([status, told, unused])
    trained = _train(part, part.method, part.folder, exchange, callback=callbacks, account=part.account)
    status.say_trained()
    return trained


def _with_account(callback: Callback, account: PrivacyAccount) -> Callback:
    """Return a callback that hears with each round what has left and been spent, not what the model has in it."""

    def on_round(record: Record) -> None:
        callback.on_round({**record, EPSILON_LEFT: account.spent()})

    return LambdaCallback(on_step=callback.on_step, on_round=on_round, on_notice=callback.on_notice)


class StatusCallback(Callback):
    """Keeps status.json up to date, and says who cannot be learned from or seems to mean something else."""

    def __init__(self, part: LocalPeer, exchange: MemberExchange, *, notice: Callable[[str], None]) -> None:
        self._part, self._exchange, self._status = part, exchange, Status(part.folder / STATUS)
        self._meaning, self._unused = Meaning(part, notice=notice), UnusedTeachers(part.agreement)
        self._notice = notice
        self._taken = len(RunDirectory(part.folder).rounds())
        self._status.say(
            state="starting",
            federation=part.agreement.name,
            member=part.agreement.members[part.number].name,
            left_out=part.named_left_out,
            confused=self._meaning.sentences,
        )

    def on_step(self, step: Step) -> None:
        """Say which round and stage this member is in."""
        self._status.say(state=step.stage, round=step.round_index, rounds=step.rounds)

    def on_round(self, record: Record) -> None:
        """Say what the round came to: who was missing, away, refused, proven or confused."""
        self._taken += 1
        missing = record["missing"].get(str(self._part.number), [])
        self._meaning.hear(record)
        self._status.say(
            state="collecting",
            round=record["round"],
            rounds=self._part.experiment.rounds,
            taken_part=self._taken,
            missing=[self._part.agreement.members[index].name for index in missing],
            away=self._exchange.away(record["round"] + 1),
            proven=self._exchange.witness.proven(),
            refused=self._unused.of(record),
            confused=self._meaning.sentences,
            validation_accuracy=record["validation_accuracy"],
            **({} if self._part.account is None else {"privacy": account_record(self._part.account)}),
            round_seconds=record["timing"]["seconds"],
        )

    def say_unused(self, record: Record) -> None:
        """Say whose snapshot came and could not be learned from, each member and reason once."""
        for line in self._unused.news(record):
            self._notice(line)

    def say_trained(self) -> None:
        """Say that all rounds are over."""
        rounds = self._part.experiment.rounds
        self._status.say(state="trained", round=rounds, rounds=rounds)


class Meaning:
    """Says once of every member and pair of classes that they seem to mean something else; also after a restart."""

    def __init__(self, part: LocalPeer, *, notice: Callable[[str], None]) -> None:
        self._names = [member.name for member in part.agreement.members]
        self._classes, self._notice = part.agreement.classes, notice
        self._records = RunDirectory(part.folder).rounds()
        self.sentences = self._found()

    def hear(self, record: Record) -> None:
        """Take down what a round has found, and say what is new."""
        self._records.append(record)
        for sentence in self._found():
            if sentence not in self.sentences:
                self.sentences.append(sentence)
                self._notice(sentence)

    def _found(self) -> list[str]:
        entries = confused_members(self._records, self._names, self._classes)
        return [confusion_sentence(entry) for entry in entries]


def train_for_comparison(part: LocalPeer, *, callback: Callback) -> Trained:
    """Train the same model on the same data for as many rounds without anybody else."""
    return _train(part, LOCAL, part.folder / ALONE_FOLDER, MemoryExchange(), callback=callback)


def _train(
    part: LocalPeer,
    method: Method,
    folder: Path,
    exchange: Exchange,
    *,
    callback: Callback,
    account: PrivacyAccount | None = None,
) -> Trained:
    """Train one of the two models; what it publishes, if anything, is accounted for."""
    directory = RunDirectory(folder)
    _begin(directory, part)
    roster = Roster(part.context, method.roster(part.context), directory.checkpoint_folder, here={part.number})
    if account is not None:
        exchange = AccountedExchange(
            exchange,
            account,
            private=lambda: roster[part.number].measured.private,
            notice=callback.on_notice,
            last=LastPublished(folder / LAST_PUBLISHED),
        )
    with directory.locked(), closing(SerialEngine(part.context, method)) as engine:
        loop = RunLoop(method, roster, exchange=exchange, engine=engine, directory=directory, has_gaps=True)
        records = loop.restore()
        loop.run(records, callback=callback)
        selected, state = loop.restore_selected(records, part.number)
        measured = loop.measure(records)
        return Trained(records, selected, state, None if measured is None else measured.models.clients[part.number].own)


def _begin(directory: RunDirectory, part: LocalPeer) -> None:
    """Write down what this is, or check that it is still the same."""
    partition = partition_record(part.context.data)
    weights = weights_record(member for member in LOCAL.roster(part.context) if member.index == part.number)
    if directory.experiment_file.exists():
        directory.check_same_data(partition)
        directory.check_same_weights(weights)
        return
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.write_json(PARTITION_FILE, partition)
    if weights:
        directory.write_json(WEIGHTS_FILE, weights)
    write_atomically(directory.experiment_file, to_toml(part.experiment).encode())
