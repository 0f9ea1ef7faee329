"""A member's exchange under private training: nothing leaves that is not in the account and within the budget.

Once the budget is spent our last snapshot within it stands in the place of newer ones: it has left before and costs
nothing more, and nobody waits for us.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import ValidationError

from crad.federation.exchange import ByteCounter, Exchange
from crad.federation.message import Manifest, Message, message_in_file
from crad.federation.peer_evaluation import PrivateReleases
from crad.files import place_file, write_atomically
from crad.site.privacy_account import PrivacyAccount

MANIFEST, BODY = ".json", ".safetensors"


class AccountedExchange:
    """A member's exchange that lets a message leave only when it is within the budget and has been written down."""

    def __init__(
        self,
        inner: Exchange,
        account: PrivacyAccount,
        *,
        private: Callable[[], PrivateReleases | None],
        notice: Callable[[str], None],
        last: LastPublished,
    ) -> None:
        self._inner, self._account, self._private, self._notice = inner, account, private, notice
        self._last = last

    @property
    def traffic(self) -> ByteCounter:
        """Return what went from whom to whom."""
        return self._inner.traffic

    def publish(self, round_index: int, *, sender: int, kind: str, message: Message) -> None:
        """Publish what the budget allows; otherwise what left last, and this member goes on learning."""
        private = self._private()
        with self._account.alone():
            if fits := self._account.fits(private):
                self._account.note(private, round_index=round_index)
        if fits:
            self._last.keep(kind, message)
            self._inner.publish(round_index, sender=sender, kind=kind, message=message)
            return
        earlier = self._last.find(kind)
        if not self._account.is_stopped:
            of_round = None if earlier is None else Manifest.model_validate_json(earlier.manifest).round_index
            self._notice(budget_sentence(self._account, private, round_index=round_index, last_round=of_round))
        self._account.is_stopped = True
        if earlier is not None:
            again = message_again(earlier, round_index=round_index)
            self._inner.publish(round_index, sender=sender, kind=kind, message=again)

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


class LastPublished:
    """A folder with our newest message of each kind that is in the account; it outlives a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, kind: str, message: Message) -> None:
        """Keep a message in the place of an earlier one: first the body, then the manifest that names it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        body = self._body(kind, Manifest.model_validate_json(message.manifest))
        place_file(body, same_as=message.file, content=message.body)
        write_atomically(self._folder / f"{kind}{MANIFEST}", message.manifest)
        for other in self._folder.glob(f"{kind}-*{BODY}"):
            if other != body:
                other.unlink(missing_ok=True)

    def find(self, kind: str) -> Message | None:
        """Return what was kept; None where there is nothing, or what is there is not what we kept."""
        try:
            raw = (self._folder / f"{kind}{MANIFEST}").read_bytes()
            manifest = Manifest.model_validate_json(raw)
            message = message_in_file(raw, self._body(kind, manifest))
        except (OSError, RuntimeError, ValidationError):
            return None
        return message if hashlib.sha256(message.body).hexdigest() == manifest.sha256 else None

    def _body(self, kind: str, manifest: Manifest) -> Path:
        return self._folder / f"{kind}-{manifest.sha256[:16]}{BODY}"


def message_again(message: Message, *, round_index: int) -> Message:
    """Return the same weights and figures as a message of a later round."""
    manifest = Manifest.model_validate_json(message.manifest).model_copy(update={"round_index": round_index})
    return Message(manifest.model_dump_json(exclude_none=True).encode(), message.body, message.file)


def budget_sentence(
    account: PrivacyAccount, private: PrivateReleases | None, *, round_index: int, last_round: int | None
) -> str:
    """Say why nothing new is published any more, and what the others have of us."""
    stands = "the others have nothing of us" if last_round is None else f"our snapshot of round {last_round} stands in"
    return (
        f"round {round_index} is not published: epsilon would be {account.after(private):.3g} on this data, and the "
        f"budget in peer.toml is {account.budget:g} ({account.spent():.3g} is spent); {stands}, and we go on learning "
        "from the others"
    )
