"""What the page of a run shows, and when it is made again."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from crad.config import Experiment
from crad.federation.rounds import Step
from crad.report.live.bar import starting_page, waiting_page, with_live_bar
from crad.report.live.local_server import PageServer, Shown
from crad.report.page import report_page
from crad.runs.callbacks import Callback
from crad.runs.directory import REPORT_FILE
from crad.runs.names import title_of
from crad.runs.records import Record
from crad.runs.run_records import RunRecords, load_run

if TYPE_CHECKING:  # a result can make pages, which stand above
    from crad.results.result import Result

POLL_SECONDS = 2.0
LOOKING_SECONDS = 60.0  # who asked within the last minute is looking
PAUSE_PER_COST = 19.0  # a page that took one second rests for nineteen: 5 % of the run at most
LAST_LOOK_SECONDS = 6.0  # how long a finished run waits at most for its page to be fetched


class Watch(Callback):
    """Shows the runs on a page of this machine, which refreshes itself."""

    wants_records = True

    def __init__(self, port: int = 0, *, announce: Callable[[str], None]) -> None:
        """Listen on this port; 0 is any free one. A port that is taken is refused here.

        `announce` hears the address once a run has truly begun.
        """
        self._server = PageServer(port)
        self._announce: Callable[[str], None] | None = announce
        self._token = secrets.token_hex(4)  # a tab of an earlier run on the same port must not take this for its own
        self._experiment: Experiment | None = None
        self._number, self._label = 0, ""
        self._text = ""
        self._report: Path | None = None
        self._done: list[RunRecords] = []
        self._current: RunRecords | None = None
        self._is_stale = False
        self._next_build = 0.0
        self._show(starting_page("a run begins"), "The run begins.")

    def on_run_begin(self, experiment: Experiment, directory: Path | None) -> None:
        """Show the run that begins now beside those that are complete."""
        assert directory is not None, "a watched run has a directory"
        self._report = directory.resolve() / REPORT_FILE
        self._current, self._experiment, self._label = None, experiment, title_of(experiment)
        self._say(f"{self._label}: the data is being read and divided.")

    def on_partition(self, partition: Record) -> None:
        """Show how the data is divided, and say once where the page is."""
        if not self._done:
            assert self._experiment is not None, "a run has begun"
            page = waiting_page(self._experiment, partition, label=self._label)
            self._show(page, f"{self._label}: the data is divided.")
        if self._announce is not None:
            self._announce(self._server.address)
            self._announce = None

    def on_step(self, step: Step) -> None:
        """Say how far the run is."""
        self._say(f"Live. {self._label}: round {max(1, step.round_index)} of {step.rounds} is running.")
        self._refresh()

    def on_records(self, records: RunRecords) -> None:
        """Take the new records for the next page."""
        self._current, self._is_stale = records, True
        self._refresh()

    def on_run_end(self, result: Result) -> None:
        """Keep a complete run on the page beside those that follow."""
        assert result.directory is not None, "a watched run has a directory"
        self._done.append(load_run(result.directory))
        self._current, self._is_stale = None, True
        self._refresh()

    def on_report(self, report: Path) -> None:
        """Show the finished report and, where somebody is looking, wait until it has been fetched."""
        self._report = report.resolve()
        self._show(report.read_text(encoding="utf-8"), f"Finished. This page is {self._report}", is_finished=True)
        if self._server.was_asked_within(5 * POLL_SECONDS):
            with contextlib.suppress(KeyboardInterrupt):
                self._wait_for_last_look()

    def close(self) -> None:
        """Take the page away; an open tab keeps what it shows and says so."""
        self._server.close()

    def _refresh(self) -> None:
        """Make the page again if there is news, somebody to read it, and the last one was paid for."""
        now = time.monotonic()
        if not self._is_stale or now < self._next_build or not self._server.was_asked_within(LOOKING_SECONDS):
            return
        runs = self._done if self._current is None else [*self._done, self._current]
        page = report_page(runs, is_live=True)
        self._is_stale = False
        built = time.monotonic()
        self._next_build = built + PAUSE_PER_COST * (built - now)
        self._show(page, self._text)

    def _say(self, text: str) -> None:
        if text != self._text:
            self._text = text
            self._hand_out()

    def _show(self, page: str, text: str, *, is_finished: bool = False) -> None:
        self._number += 1
        self._text = text
        status = self._status() | {"farewell": self._farewell(), "is_finished": is_finished}
        self._bytes = with_live_bar(page, status | {"poll_seconds": POLL_SECONDS})
        self._hand_out()

    def _hand_out(self) -> None:
        self._server.show(Shown(self._version, self._bytes, json.dumps(self._status()).encode()))

    @property
    def _version(self) -> str:
        return f"{self._token}.{self._number}"

    def _status(self) -> Record:
        return {"version": self._version, "text": self._text}

    def _farewell(self) -> str:
        place = "" if self._report is None else f" Finished, its report is {self._report}"
        return f"The run no longer answers: it has ended or was stopped.{place}"

    def _wait_for_last_look(self) -> None:
        began = time.monotonic()
        # A poll and a bit, for a second tab; longer only until the first has the page.
        while (waited := time.monotonic() - began) < LAST_LOOK_SECONDS:
            if waited > 1.25 * POLL_SECONDS and self._server.has_handed_out(self._version):
                return
            time.sleep(0.1)
