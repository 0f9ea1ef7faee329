"""THE resumable loop: train a round, record it, checkpoint it, select, go on. One for a simulation and a real member.

What trains is `federation/rounds.py`; here is what makes it survive an interruption anywhere. The line of a round is
written before its checkpoint: a checkpoint without its line would lose a round, a line without its checkpoint is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crad.errors import RunError
from crad.federation.committee_score import study_committee
from crad.federation.exchange import Exchange
from crad.federation.method import Method
from crad.federation.peer_evaluation import Evaluation
from crad.federation.roster import Roster
from crad.federation.rounds import Round, RoundRunner
from crad.federation.tasks import Engine
from crad.runs.callbacks import Callback
from crad.runs.checkpoint import (
    evaluations_at,
    latest_round,
    load_checkpoint,
    save_checkpoint,
    saved_rounds,
    states_at,
)
from crad.runs.client_metrics import RunMetrics, measure_clients
from crad.runs.directory import RunDirectory
from crad.runs.records import Record, round_record, with_study
from crad.runs.selection import honest_selected_round, selected_round


@dataclass(frozen=True)
class KeptPeer:
    """How a peer did after a round, and where its state lies; None: it had not learned yet."""

    evaluation: Evaluation
    state: Path | None


class RunLoop:
    """The rounds of one run, each complete on disk before the next begins; without a directory nothing is written.

    Who was away while the others went on `has_gaps` in its rounds.
    """

    def __init__(
        self,
        method: Method,
        roster: Roster,
        *,
        exchange: Exchange,
        engine: Engine,
        directory: RunDirectory | None,
        has_gaps: bool = False,
    ) -> None:
        self._rounds = RoundRunner(method, roster, exchange=exchange, engine=engine)
        self._roster, self._directory, self._has_gaps = roster, directory, has_gaps
        self._engine = engine
        # Without a directory: how everybody did at the selected rounds, and where everybody's state lies.
        self._kept: dict[int, dict[int, KeptPeer]] = {}

    def restore(self) -> list[Record]:
        """Return the records up to the last complete round, with the roster as it was after it."""
        directory = self._directory
        if directory is None:
            return []
        reached = latest_round(self._roster.folder)
        if not self._has_gaps:
            self._check_restorable(directory, reached)
        records = directory.cut_rounds(after=reached or 0, has_gaps=self._has_gaps)
        if reached is not None:
            load_checkpoint(self._roster, round_index=reached)
        return records

    def run(
        self,
        records: list[Record],
        *,
        callback: Callback,
        on_progress: Callable[[list[Record]], None] = lambda records: None,
    ) -> None:
        """Run the rounds that are still to come and add their records; `on_progress` gets all of them each time."""
        reached = records[-1]["round"] if records else 0
        for done in self._rounds.run(after=reached, on_step=callback.on_step):
            records.append(round_record(done, self._roster))
            self._study(records)
            self._save(records, done)
            callback.on_round(records[-1])
            on_progress(records)
        self._roster.forget_logits()

    def restore_selected(self, records: list[Record], peer: int) -> tuple[Record, Path]:
        """Return the selected round, and where this peer's state after it lies."""
        selected = selected_round(records)
        if selected is None:
            raise RunError(f"{self._place}: the federation was over before this member took part in a round")
        load_checkpoint(self._roster, round_index=selected["round"])
        state = self._roster[peer].state
        if state is None:
            raise RunError(f"{self._place}: this member never learned; was it ever drawn to take part?")
        return dict(selected), state

    def selected_states(self, records: list[Record]) -> dict[int, Path | None]:
        """Return where everybody's state at the selected round lies; None: it had not learned yet."""
        selected = selected_round(records)
        return {} if selected is None else {i: one.state for i, one in self._peers_at(selected["round"]).items()}

    def selected_evaluations(self, records: list[Record]) -> dict[int, Evaluation]:
        """Return how everybody did at the selected round."""
        selected = selected_round(records)
        return {} if selected is None else {i: one.evaluation for i, one in self._peers_at(selected["round"]).items()}

    def measure(self, records: list[Record]) -> RunMetrics | None:
        """Measure everybody's metrics at the selected round; the roster stands there afterwards.

        None where they are switched off, and where that round's models are gone: honest clients select another round
        than all, and a run that began with an earlier version has kept the models of the latter alone.
        """
        if not self._roster.context.experiment.metrics:
            return None
        round_index = self._round_of_metrics(records)
        is_gone = self._directory is not None and round_index not in saved_rounds(self._roster.folder)
        if round_index is None or is_gone:
            return None
        for index, kept in self._peers_at(round_index).items():
            self._roster.put_back(index, evaluation=kept.evaluation, state=kept.state)
        return measure_clients(self._roster, self._engine, round_index=round_index)

    def _peers_at(self, round_index: int) -> dict[int, KeptPeer]:
        if self._directory is None:
            return self._kept[round_index]
        folder = self._roster.folder
        states, evaluations = states_at(folder, round_index), evaluations_at(folder, round_index)
        return {index: KeptPeer(evaluations[index], states[index]) for index in states}

    def _round_of_metrics(self, records: list[Record]) -> int | None:
        """Return the selected round that metrics are of: under a simulated attack the honest clients'."""
        selected, attackers = selected_round(records), self._roster.context.adversary.attackers
        if selected is None:
            return None
        return honest_selected_round(records, attackers) if attackers else int(selected["round"])

    @property
    def _place(self) -> Path:
        return self._roster.folder if self._directory is None else self._directory.path

    def _check_restorable(self, directory: RunDirectory, reached: int | None) -> None:
        directory.full_rounds()  # damaged records are refused before anything is cut
        written = len(directory.rounds())
        if reached is None and written > 1:  # one may be there: a line is written before its checkpoint
            raise RunError(
                f"{directory.path} has {written} rounds but no checkpoint of them that this version reads; "
                "put checkpoint/ back, or begin again with another output"
            )

    def _study(self, records: list[Record]) -> None:
        """Add the committee under every rule, where that is wanted and this round may be the selected one."""
        latest = records[-1]
        if not self._roster.context.experiment.committee_study or "committee" not in latest:
            return
        if selected_round(records) is latest or self._round_of_metrics(records) == latest["round"]:
            records[-1] = with_study(latest, study_committee(self._roster))

    def _save(self, records: list[Record], done: Round) -> None:
        selected, of_metrics = selected_round(records), self._round_of_metrics(records)
        wanted = set() if selected is None or of_metrics is None else {int(selected["round"]), of_metrics}
        if self._directory is None:
            self._keep_in_memory(wanted, records[-1]["round"])
            return
        for learned in done.learned.values():
            for name, content in learned.artifacts.items():
                self._directory.write_artifact(name, content)
        self._directory.append_round(records[-1])
        save_checkpoint(
            self._roster,
            round_index=records[-1]["round"],
            changed=set(done.learned),
            keep=wanted,
        )

    def _keep_in_memory(self, wanted: set[int], round_index: int) -> None:
        if round_index in wanted:
            self._kept[round_index] = {slot.index: KeptPeer(slot.measured, slot.state) for slot in self._roster.own()}
        self._kept = {index: peers for index, peers in self._kept.items() if index in wanted}
        states = [one.state for peers in self._kept.values() for one in peers.values()]
        self._roster.forget_states(keep=[state for state in states if state is not None])
