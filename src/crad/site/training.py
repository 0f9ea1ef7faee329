"""The two models of a member: the one that learns from the others, and the same one alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from crad.analysis.confusions import confused_members, confusion_sentence
from crad.config import to_toml
from crad.engines.serial import SerialEngine
from crad.errors import RunError
from crad.federation.exchange import Exchange, MemoryExchange
from crad.federation.method import Method
from crad.federation.roster import Roster
from crad.federation.rounds import RoundLoop, Step
from crad.files import write_atomically
from crad.methods.alone import LOCAL
from crad.network.member_exchange import MemberExchange
from crad.runs.callbacks import Hooks
from crad.runs.checkpoint import latest_round, load_checkpoint, save_checkpoint
from crad.runs.directory import RunDirectory
from crad.runs.records import Record, partition_record, round_record
from crad.runs.selection import best_round
from crad.site.local_peer import LocalPeer
from crad.site.state_folder import STATUS
from crad.site.status import Status
from crad.site.unused_teachers import UnusedTeachers


@dataclass(frozen=True)
class Trained:
    """One of the two models: its records, and its state at the round with the highest own validation accuracy."""

    rounds: list[Record]
    best: Record
    state: Path


def take_part(part: LocalPeer, exchange: MemberExchange, *, hooks: Hooks) -> Trained:
    """All rounds of the federation that are still to come, with this exchange; survives being stopped anywhere."""
    status, unused = Status(part.folder / STATUS), UnusedTeachers(part.agreement)
    meaning, taken = Meaning(part, notice=hooks.on_notice), len(RunDirectory(part.folder).rounds())

    def on_step(step: Step) -> None:
        status.say(state=step.stage, round=step.round_index, rounds=step.rounds)
        hooks.on_step(step)

    def on_round(record: Record) -> None:
        nonlocal taken
        taken += 1
        missing = record["missing"].get(str(part.number), [])
        names = [part.agreement.members[index].name for index in missing]
        meaning.hear(record)
        status.say(
            state="collecting",
            round=record["round"],
            rounds=part.experiment.rounds,
            taken_part=taken,
            missing=names,
            away=exchange.away(record["round"] + 1),
            proven=exchange.witness.proven(),
            refused=unused.of(record),
            confused=meaning.sentences,
            validation_accuracy=record["validation_accuracy"],
            round_seconds=record["timing"]["seconds"],
        )
        hooks.on_round(record)
        for line in unused.news(record):
            hooks.on_notice(line)

    status.say(
        state="starting",
        federation=part.agreement.name,
        member=part.agreement.members[part.number].name,
        left_out=part.named_left_out,
        confused=meaning.sentences,
    )
    trained = _train(part, part.method, part.folder, exchange, on_step=on_step, on_round=on_round)
    status.say(state="trained", round=part.experiment.rounds, rounds=part.experiment.rounds)
    return trained


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


def train_for_comparison(part: LocalPeer, *, hooks: Hooks) -> Trained:
    """The same model, data and number of rounds without anybody else."""
    return _train(part, LOCAL, part.folder / "alone", MemoryExchange(), on_step=hooks.on_step, on_round=hooks.on_round)


def _train(
    part: LocalPeer,
    method: Method,
    folder: Path,
    exchange: Exchange,
    *,
    on_step: Callable[[Step], None],
    on_round: Callable[[Record], None],
) -> Trained:
    directory = RunDirectory(folder)
    _begin(directory, part)
    roster = Roster(part.world, method.roster(part.world), directory.checkpoint_folder, here={part.number})
    with directory.locked(), closing(SerialEngine(part.world, method)) as engine:
        records = _restore(directory, roster)
        loop = RoundLoop(method, roster, exchange=exchange, engine=engine)
        for done in loop.run(after=records[-1]["round"] if records else 0, on_step=on_step):
            records.append(round_record(done, roster))
            directory.append_round(records[-1])
            best = best_round(records)
            save_checkpoint(
                roster,
                round_index=done.index,
                changed=set(done.learned),
                keep=set() if best is None else {best["round"]},
            )
            on_round(records[-1])
        best = best_round(records)
        if best is None:
            raise RunError(f"{folder}: the federation was over before this member took part in a round")
        load_checkpoint(roster, round_index=best["round"])
        state = roster[part.number].state
        if state is None:
            raise RunError(f"{folder}: this member never learned; was it ever drawn to take part?")
        return Trained(records, dict(best), state)


def _begin(directory: RunDirectory, part: LocalPeer) -> None:
    """Write down what this is, or check that it is still the same."""
    partition = partition_record(part.world)
    if directory.experiment_file.exists():
        directory.check_same_data(partition)
        return
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.write_json("partition.json", partition)
    write_atomically(directory.experiment_file, to_toml(part.experiment).encode())


def _restore(directory: RunDirectory, roster: Roster) -> list[Record]:
    reached = latest_round(roster.folder)
    records = directory.cut_rounds(after=reached or 0, has_gaps=True)
    if reached is not None:
        load_checkpoint(roster, round_index=reached)
    return records
