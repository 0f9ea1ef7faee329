"""What a member has spent of its records' privacy, over all agreements, and the budget that it keeps within.

One file for everything that this organisation takes part in, `privacy.jsonl` in its state folder: a line is written
before anything leaves that it stands for, so the account never says less than what left. It is kept by data: two
federations on the same records spend together.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crad.errors import RunError
from crad.federation.exchange import ByteCounter, Exchange
from crad.federation.message import Message
from crad.federation.peer_evaluation import PrivateReleases
from crad.files import append_line
from crad.privacy.accountant import PrivacyPlan, composed_epsilon, gaussian_releases_epsilon
from crad.runs.records import Record

ACCOUNT = "privacy.jsonl"


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
    is_stopped: bool = False  # something was not published, since it would have exceeded the budget
    _lines: dict[tuple[str, str], SpentLine] = field(init=False)  # the last of every run on this data

    def __post_init__(self) -> None:
        mine = (one for one in read_account(self.path) if one.data == self.data or one.source == self.source)
        self._lines = {(one.agreement, one.run): one for one in mine}

    @property
    def agreements(self) -> int:
        """Return how many runs have spent something on this data, this one included once it has."""
        return len(self._lines)

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
        if before is not None and (before.steps, before.releases) == (line.steps, line.releases):
            return
        append_line(self.path, json.dumps(asdict(line)).encode())
        self._lines[self._key] = line

    @property
    def _key(self) -> tuple[str, str]:
        return self.agreement, self.run

    def _line(self, private: PrivateReleases | None, *, round_index: int, epsilon: float) -> SpentLine:
        steps, releases = (0, 0) if private is None else (private.steps, private.releases)
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
        )

    def _together(self, lines: Mapping[tuple[str, str], SpentLine]) -> float:
        """Compose all runs: the larger of training and statistics while every record is in one part of the data alone.

        Parts of other sizes hold other records: where runs differ in that, both are added up.
        """
        if not lines:
            return 0.0
        training = composed_epsilon(
            tuple((one.noise_multiplier, one.rate, one.steps) for one in lines.values()),
            delta=self.plan.delta,
            accountant=self.plan.accountant,
        )
        statistics = gaussian_releases_epsilon(
            [(one.sigma, 1 + one.releases) for one in lines.values()], delta=self.plan.delta
        )
        is_one_division = len({one.held_out for one in lines.values()}) == 1
        return max(training, statistics) if is_one_division else training + statistics


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
        if not line.endswith("\n"):
            break
        try:
            found.append(SpentLine(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise RunError(
                f"{path}, line {number} is no entry of a privacy account: somebody or a fault has changed it; nothing "
                "is published until it is whole again"
            ) from error
    return found


def run_id(secret: int) -> str:
    """Return a name for one life of an agreement here, from which nobody learns its secret."""
    return hashlib.sha256(f"privacy account {secret}".encode()).hexdigest()[:16]


class AccountedExchange:
    """A member's exchange that lets a message leave only when it is within the budget and has been written down."""

    def __init__(
        self,
        inner: Exchange,
        account: PrivacyAccount,
        *,
        private: Callable[[], PrivateReleases | None],
        notice: Callable[[str], None],
    ) -> None:
        self._inner, self._account, self._private, self._notice = inner, account, private, notice

    @property
    def ledger(self) -> ByteCounter:
        """Return what went from whom to whom."""
        return self._inner.ledger

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Publish what the budget allows; otherwise nothing leaves, and this member goes on learning."""
        private = self._private()
        if not self._account.fits(private):
            if not self._account.is_stopped:
                self._notice(budget_sentence(self._account, private, round_index=round_index))
            self._account.is_stopped = True
            return
        self._account.note(private, round_index=round_index)
        self._inner.publish(round_index, sender=sender, kind=kind, message=message)

    def collect(
        self,
        round_index: int,
        *,
        receiver: int,
        peers: Iterable[int],
        kind: str,
        deadline_s: float | None = None,
        quorum: int | None = None,
    ) -> tuple[dict[int, Message], list[int]]:
        """Return the others' messages."""
        return self._inner.collect(
            round_index, receiver=receiver, peers=peers, kind=kind, deadline_s=deadline_s, quorum=quorum
        )

    def latest(self) -> int | None:
        """Return the newest round that the others have proved to be at."""
        return self._inner.latest()


def budget_sentence(account: PrivacyAccount, private: PrivateReleases | None, *, round_index: int) -> str:
    """Say why nothing is published any more."""
    return (
        f"round {round_index} is not published: epsilon would be {account.after(private):.3g} on this data, and the "
        f"budget in peer.toml is {account.budget:g} ({account.spent():.3g} is spent); we go on learning from the others"
    )


def account_record(account: PrivacyAccount) -> Record:
    """Return the account for status and report."""
    return {
        "epsilon": account.spent(),
        "delta": account.plan.delta,
        "target_epsilon": account.plan.epsilon,
        "budget": account.budget,
        "agreements": account.agreements,
        "is_stopped": account.is_stopped,
    }
