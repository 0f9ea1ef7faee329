"""A member's line to the others: over HTTPS or through the agreed store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from crad.errors import ConfigError
from crad.federation.message import SNAPSHOT
from crad.network.agreement import HTTPS, Agreement
from crad.network.https.https_exchange import HttpsExchange
from crad.network.https.server import SnapshotServer
from crad.network.identity import Identity, fingerprint, load_identity
from crad.network.ledger import OutgoingLedger
from crad.network.member_exchange import ExchangePolicy, MemberExchange
from crad.network.store.bucket_exchange import BucketExchange
from crad.network.store.kept_snapshots import KeptSnapshots
from crad.runs.checkpoint import latest_round
from crad.runs.directory import RunDirectory
from crad.site.committee import last_exchange, missing_snapshots
from crad.site.local_peer import LocalPeer
from crad.site.permission import snapshot_bytes_of
from crad.site.refusals import RefusalLog
from crad.site.settings import Site
from crad.site.state_folder import EXCHANGE, REFUSALS

WAIT_S = 0.2
AWAY_S = 5.0  # for one that counts as away


@contextmanager
def open_exchange(
    peer: LocalPeer,
    site: Site,
    *,
    ledger: OutgoingLedger,
    kept: KeptSnapshots | None = None,
    notice: Callable[[str], None],
    on_fault: Callable[[OSError], None] = lambda error: None,
) -> Iterator[MemberExchange]:
    """Be ready to publish and to fetch, over HTTPS or through the agreed store, until the block ends.

    `kept` is where everybody's newest snapshot goes, if it may stay. `on_fault` hears of a ledger that cannot be
    written, in whichever thread that is found; nothing leaves then.
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
        kept=kept,
    )
    folder, agreement = peer.folder / EXCHANGE, peer.agreement
    first_round = (latest_round(RunDirectory(peer.folder).checkpoint_folder) or 0) + 1
    with ExitStack() as opened:
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
    until: float,
    notice: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Wait until everybody has fetched our last round, or until then by the monotonic clock; return who has not."""
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


def fetch_late(
    peer: LocalPeer,
    exchange: MemberExchange,
    kept: KeptSnapshots,
    *,
    until: float,
    notice: Callable[[str], None],
) -> None:
    """Fetch what of the last exchange is not here yet, as it comes, until then by the monotonic clock.

    A store is looked into once: what is not there now the next join finds. Who counts as away is asked briefly.
    """
    last = last_exchange(peer)
    missing = [] if last is None else missing_snapshots(peer, kept, last)
    if last is None or not missing:
        return
    names = [member.name for member in peer.agreement.members]
    away = {names.index(name) for name in exchange.away(last.round_index)}
    left_s = max(0.0, until - time.monotonic())
    is_https = peer.agreement.exchange == HTTPS
    here = [one for one in missing if one not in away]
    for numbers, longest_s in ((here, left_s), ([one for one in missing if one in away], min(left_s, AWAY_S))):
        if not numbers:
            continue
        told = ", ".join(names[one] for one in numbers)
        wait = f"waiting up to {longest_s:.0f} s for it, " if is_https else "looking into the store now, "
        notice(f"the committee still lacks the last snapshot of {told}: {wait}and joining again later fetches it")
        deadline_s = longest_s if is_https else peer.agreement.deadline_s
        exchange.collect_late(last.round_index, peers=numbers, kind=SNAPSHOT, deadline_s=deadline_s)
