"""A member's line to the others: over HTTPS or through the agreed store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from crad.errors import ConfigError
from crad.network.agreement import HTTPS, Agreement
from crad.network.https.https_exchange import HttpsExchange
from crad.network.https.server import SnapshotServer
from crad.network.identity import Identity, fingerprint, load_identity
from crad.network.ledger import OutgoingLedger
from crad.network.member_exchange import ExchangePolicy, MemberExchange
from crad.network.store.bucket_exchange import BucketExchange
from crad.runs.checkpoint import latest_round
from crad.runs.directory import RunDirectory
from crad.site.local_peer import LocalPeer
from crad.site.permission import snapshot_bytes_of
from crad.site.refusals import RefusalLog
from crad.site.settings import Site
from crad.site.state_folder import LEDGER, REFUSALS

WAIT_S = 0.2


@contextmanager
def open_exchange(
    peer: LocalPeer,
    site: Site,
    *,
    notice: Callable[[str], None],
    on_fault: Callable[[OSError], None] = lambda error: None,
) -> Iterator[MemberExchange]:
    """Be ready to publish and to fetch, over HTTPS or through the agreed store, until the block ends.

    `on_fault` hears of a ledger that cannot be written, in whichever thread that is found; nothing leaves then.
    """
    identity = load_identity(site.keys)
    check_identity(peer.agreement, identity, site.name)

    log = RefusalLog(peer.folder / REFUSALS)

    def on_refused(name: str, reason: str) -> None:
        log.add(name, reason)
        notice(f"refused from {name}: {reason}")

    policy = ExchangePolicy(
        left_out=peer.left_out,
        away_after=site.away_after,
        snapshot_bytes=snapshot_bytes_of(peer.agreement, peer.left_out),
        on_refused=on_refused,
        notice=notice,
    )
    folder, agreement = peer.folder / "exchange", peer.agreement
    first_round = (latest_round(RunDirectory(peer.folder).checkpoint_folder) or 0) + 1
    with closing(OutgoingLedger(peer.folder / LEDGER)) as ledger, ExitStack() as opened:
        ledger.on_fault = on_fault
        exchange: MemberExchange
        if agreement.exchange == HTTPS:
            server = SnapshotServer(
                agreement, identity, folder, listen=site.listen, ledger=ledger, proxy=site.proxy, notice=notice
            )
            opened.enter_context(server)
            exchange = HttpsExchange(
                agreement,
                identity,
                folder,
                server,
                own=peer.number,
                proxy=site.proxy,
                policy=policy,
            )
        else:
            exchange = BucketExchange(
                agreement,
                identity,
                folder,
                own=peer.number,
                outgoing=ledger,
                url=site.store,
                options=site.store_options,
                policy=policy,
            )
        opened.enter_context(closing(exchange))
        exchange.begin(first_round)
        yield exchange


def check_identity(agreement: Agreement, identity: Identity, name: str) -> None:
    """Refuse keys that the agreement does not know as this member's."""
    member = agreement.member(name)
    if identity.name != name:
        raise ConfigError(f"{identity.folder} holds the certificate of {identity.name}, but peer.toml says {name}")
    own = fingerprint(identity.certificate)
    if member.pin not in (None, own):
        raise ConfigError(
            f"the agreement knows {name} by {member.pin}, our certificate is {own}: "
            "send the others the new member.toml, or put the old keys back"
        )


def wait_for_readers(
    peer: LocalPeer,
    exchange: MemberExchange,
    *,
    notice: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Wait until everybody has fetched our last round or the agreed deadline has passed; return who has not."""
    until = time.monotonic() + peer.agreement.deadline_s
    said: list[str] = []
    while True:
        check()
        waiting = [name for name in exchange.readers_to_come() if name != peer.agreement.members[peer.number].name]
        if not waiting or time.monotonic() > until:
            return waiting
        if waiting != said:
            notice(f"our last snapshot is still to be fetched by {', '.join(waiting)}")
            said = waiting
        time.sleep(WAIT_S)
