"""What a member has spent of its records' privacy, over all agreements, and the budget that it keeps within.

One file for everything that this organisation takes part in, `privacy.jsonl` in its state folder: a line is written
before anything leaves that it stands for, so the account never says less than what left. It is kept by data: two
federations on the same records spend together, also at the same time. What a release costs is the arithmetic of
`crad.privacy.accountant`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crad.errors import RunError
from crad.federation.peer_evaluation import PrivateReleases
from crad.files import append_line, write_flushed
from crad.privacy.accountant import PrivacyPlan, composed_epsilon, gaussian_releases_epsilon
from crad.runs.records import Record

ACCOUNT = "privacy.jsonl"
LOCK_TIMEOUT_S, LOCK_PAUSE_S = 60.0, 0.02


@dataclass(frozen=True)
class SpentLine:
    """What one agreement has spent on some data until now: a later line of the same run stands for it too."""

    time: float  # seconds since 1970
    data: str  # sha256 of the samples
    source: str  # the file or folder they came from
    agreement: str
    run: str  # one life of the agreement here: begun anew, with another secret, it spends once more
    round: int
    noise_multiplier: float
    rate: float
    steps: int
    sigma: float  # of counts and of every release of hits
    releases: int  # of hits; counts are one more
    held_out: float
    epsilon: float  # of everything on this data so far
    delta: float
    division: str = ""  # by whose secret records are for training or for validation
    parts: list[list[str | int]] = field(default_factory=list)  # what is new in it: a name, its steps and releases


@dataclass
class PrivacyAccount:
    """A member's account for one agreement, beside what others have spent on the same data."""

    path: Path
    data: str
    source: str
    agreement: str
    run: str
    held_out: float
    plan: PrivacyPlan
    budget: float | None = None
    division: str = ""
    is_stopped: bool = False  # something new was not published, since it would have exceeded the budget
    _lines: dict[tuple[str, str], SpentLine] = field(init=False)  # the last of every run on this data
    _noted: dict[str, tuple[int, int]] = field(init=False)  # steps and releases of all parts of this run that left

    def __post_init__(self) -> None:
        self._read()

    def _read(self) -> None:
        mine = lines_on(self.data, self.source, read_account(self.path))
        self._lines = {(one.agreement, one.run): one for one in mine}
        ours = (one for one in mine if (one.agreement, one.run) == self._key)
        self._noted = {str(name): (int(steps), int(more)) for one in ours for name, steps, more in one.parts}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes of this organisation out, with what they have written until now in the account."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(handle)
            self._read()
            yield
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        """Wait for who else is writing, a few milliseconds each; not for one that hangs."""
        until = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise RunError(
                        f"another process has kept the privacy account {self.path} for {LOCK_TIMEOUT_S:g} s: look for "
                        "a crad peer join that hangs and end it, then join again"
                    ) from error
                time.sleep(LOCK_PAUSE_S)

    @property
    def agreements(self) -> int:
        """Return how many runs have spent something on this data, this one included once it has."""
        return len(self._lines)

    @property
    def noted(self) -> tuple[tuple[str, int, int], ...]:
        """Return the parts of this run that have left, with the steps and releases of each."""
        return tuple((name, *counts) for name, counts in self._noted.items())

    def spent(self) -> float:
        """Return what has been spent on this data by all that left."""
        return self._together(self._lines)

    def after(self, private: PrivateReleases | None) -> float:
        """Return what will have been spent once a message with this behind it has left."""
        return self._together({**self._lines, self._key: self._line(private, round_index=0, epsilon=0.0)})

    def fits(self, private: PrivateReleases | None) -> bool:
        """Tell whether a message with this behind it may leave."""
        return self.budget is None or self.after(private) <= self.budget

    def note(self, private: PrivateReleases | None, *, round_index: int) -> None:
        """Write down what is about to leave, before it does; what has left already costs nothing more."""
        line = self._line(private, round_index=round_index, epsilon=self.after(private))
        before = self._lines.get(self._key)
        if before is not None and (before.steps, before.releases) == (line.steps, line.releases) and not line.parts:
            return
        end_last_line(self.path)
        append_line(self.path, json.dumps(asdict(line)).encode())
        self._lines[self._key] = line
        self._noted |= {str(name): (int(steps), int(more)) for name, steps, more in line.parts}

    @property
    def _key(self) -> tuple[str, str]:
        return self.agreement, self.run

    def _line(self, private: PrivateReleases | None, *, round_index: int, epsilon: float) -> SpentLine:
        private = private or PrivateReleases()
        # What left before a crash and is not in the model that we went on with has left all the same.
        kept = {name for name, _, _ in private.parts}
        lost = [counts for name, counts in self._noted.items() if name not in kept]
        steps = private.steps + sum(one for one, _ in lost)
        releases = private.releases + sum(one for _, one in lost)
        return SpentLine(
            time=time.time(),
            data=self.data,
            source=self.source,
            agreement=self.agreement,
            run=self.run,
            round=round_index,
            noise_multiplier=self.plan.noise_multiplier,
            rate=self.plan.sampling_rate,
            steps=steps,
            sigma=self.plan.statistics_sigma,
            releases=releases,
            held_out=self.held_out,
            epsilon=epsilon,
            delta=self.plan.delta,
            division=self.division,
            parts=[list(one) for one in private.parts if one[0] not in self._noted],
        )

    @property
    def delta(self) -> float:
        """Return the chance that the account does not hold: the smallest that anything on this data was agreed with.

        An agreement with a larger one would make all that was spent before look small.
        """
        return min([self.plan.delta, *(one.delta for one in self._lines.values())])

    def _together(self, lines: Mapping[tuple[str, str], SpentLine]) -> float:
        """Compose all runs: the larger of training and statistics while every record is in one part of the data alone.

        Which part that is follows from the record as the agreement has it, the share and the secret: where runs differ
        in one of them, both are added up, and delta is shared.
        """
        if not lines:
            return 0.0
        is_one_division = len({(one.data, one.held_out, one.division) for one in lines.values()}) == 1
        delta = self.delta if is_one_division else self.delta / 2
        training = composed_epsilon(
            tuple((one.noise_multiplier, one.rate, one.steps) for one in lines.values()),
            delta=delta,
            accountant=self.plan.accountant,
        )
        statistics = gaussian_releases_epsilon([(one.sigma, 1 + one.releases) for one in lines.values()], delta=delta)
        return max(training, statistics) if is_one_division else training + statistics


def lines_on(data: str, source: str, lines: Iterable[SpentLine]) -> list[SpentLine]:
    """Return the lines about this data or this file, and about what was the same data or file as one of those."""
    lines = list(lines)
    known_data, known_sources, size = {data}, {source}, 0
    while size < len(known_data) + len(known_sources):
        size = len(known_data) + len(known_sources)
        for one in lines:
            if one.data in known_data or one.source in known_sources:
                known_data.add(one.data)
                known_sources.add(one.source)
    return [one for one in lines if one.data in known_data]


def read_account(path: Path) -> list[SpentLine]:
    """Return all lines, in order; a last one that a crash cut short announced what never left."""
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read the privacy account {path}: {error}") from error
    found = []
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            found.append(SpentLine(**json.loads(line)))
        except (TypeError, ValueError) as error:
            if not line.endswith("\n"):
                break
            raise RunError(
                f"{path}, line {number} is no entry of a privacy account: somebody or a fault has changed it; nothing "
                "is published until it is whole again"
            ) from error
    return found


def end_last_line(path: Path) -> None:
    """End a last line that is whole but for its end, as some editors leave it: it would be taken for a cut one."""
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n") and len(read_account(path)) == len(content.splitlines()):
        write_flushed(path, b"\n", mode="ab")


def run_id(secret: int) -> str:
    """Return a name for one life of an agreement here, from which nobody learns its secret."""
    return hashlib.sha256(f"privacy account {secret}".encode()).hexdigest()[:16]


def account_record(account: PrivacyAccount) -> Record:
    """Return the account for status and report."""
    return {
        "epsilon": account.spent(),
        "delta": account.delta,
        "target_epsilon": account.plan.epsilon,
        "budget": account.budget,
        "agreements": account.agreements,
        "is_stopped": account.is_stopped,
    }
