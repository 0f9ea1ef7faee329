"""The store of a federation that exchanges through one: can we write, list and read there, and who has begun."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from crad.errors import CradError, SnapshotError
from crad.network.agreement import Agreement
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger
from crad.network.store.bucket import Bucket
from crad.network.store.objects import Store, StoreError
from crad.site.doctor.bounded_calls import as_they_come
from crad.site.doctor.findings import Finding, Findings, size_text
from crad.site.doctor.others import PROBE_BYTES, Speeds
from crad.site.doctor.own_port import running_join
from crad.site.permission import check_store_kind
from crad.site.settings import Site
from crad.site.state_folder import LEDGER, state_folder

STORE_S, MEMBER_S = 60.0, 5.0  # for trying the store in all, and more for each member that is looked for
ADVICE = "check its address, our keys for it (store_options in peer.toml) and what they allow"


def check_store(agreement: Agreement, site: Site, identity: Identity, findings: Findings) -> Speeds | None:
    """Use the store as a round does."""
    process = running_join(agreement, site)
    if process is not None:  # the ledger has one writer
        findings.ok("store", f"in use by our own running join (process {process})", process=process)
        return None
    findings.on_step("trying the store")
    seconds = STORE_S + MEMBER_S * len(agreement.members)
    try:
        check_store_kind(agreement, site)
        store = Store(agreement.exchange if site.store is None else site.store, options=site.store_options)
    except CradError as error:
        findings.problem("store", str(error), ADVICE)
        return None
    speeds: list[Speeds] = []

    def use(tell: Callable[[Finding], None]) -> None:
        told = Findings(on_finding=tell)  # of its own: should it be late, nobody listens any more
        speeds.extend(_use(store, agreement, site, identity, told))

    try:
        for finding in as_they_come(use, seconds=seconds):
            findings.add(finding)
    except TimeoutError:
        store.close()
        text = f"{store.shown} has not done what it was asked in {seconds:g} s: it hangs, or is very slow"
        findings.problem("store", text, ADVICE)
        return None
    return speeds[0] if speeds else None


def _use(store: Store, agreement: Agreement, site: Site, identity: Identity, findings: Findings) -> list[Speeds]:
    """Write, list and read something, and look for everybody; empty if that does not work."""
    others = [number for number, member in enumerate(agreement.members) if member.name != site.name]
    try:
        with closing(store), closing(OutgoingLedger(state_folder(agreement, site) / LEDGER)) as ledger:
            bucket = Bucket(store, agreement, identity, ledger)
            write_s, read_s = bucket.probe(size=PROBE_BYTES)
            writing, reading = PROBE_BYTES / max(1e-6, write_s), PROBE_BYTES / max(1e-6, read_s)
            findings.ok(
                "store",
                f"{store.shown} can be written ({size_text(writing)}/s), listed and read ({size_text(reading)}/s)",
                write_bytes_per_s=writing,
                read_bytes_per_s=reading,
            )
            for number in others:
                _check_member(bucket, agreement, number, findings)
    except (CradError, OSError) as error:
        findings.problem("store", " ".join(str(error).split()), ADVICE)
        return []
    names = [agreement.members[number].name for number in others]
    return [Speeds(dict.fromkeys(names, reading), copies=1, outgoing=writing)]


def _check_member(bucket: Bucket, agreement: Agreement, number: int, findings: Findings) -> None:
    name = agreement.members[number].name
    try:
        bucket.compare_agreements(number)
        rounds = bucket.rounds_of(number)
    except SnapshotError as error:
        findings.problem(name, str(error), "all members need the very same federation.toml")
    except StoreError as error:
        findings.warn(name, f"cannot be looked for: {error}", "ask again")
    else:
        if rounds is None:
            findings.warn(name, "has put nothing into the store yet", f"ask {name} to start crad peer join")
        else:
            reached = "not published yet" if rounds.latest_round is None else f"reached round {rounds.latest_round}"
            findings.ok(name, f"has begun, and {reached}", latest_round=rounds.latest_round)
