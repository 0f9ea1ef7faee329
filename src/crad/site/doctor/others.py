"""Every other member over HTTPS: is it there, is it the one, does it agree, how fast is the line, does it reach us."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial

import httpx

from crad import __version__
from crad.errors import SnapshotError, printable
from crad.network.agreement import Agreement, differences
from crad.network.https.client import Hello, MemberClient, Reached, is_disconnect, is_imposter, why
from crad.network.identity import Identity
from crad.site.doctor.bounded_calls import BoundedCall, all_within
from crad.site.doctor.findings import Finding, Findings, size_text
from crad.site.doctor.own_port import listening
from crad.site.settings import Site

HELLO_S = 5.0
MEMBER_S = 30.0  # for everything that is asked of one member, the probe apart: an answer that drips takes no longer
PROBE_BYTES = 1 << 20
PROBE_S, PROBES_S = 30.0, 180.0  # for one member's probe, and for all of them together
CLOCK_S = 60.0  # more apart is worth a word: certificates and logs go by the clock
MAX_LINES = 5  # of differences


@dataclass(frozen=True)
class Speeds:
    """Measured bytes per second, from members by name and out of here; and how often a snapshot of ours leaves."""

    incoming: dict[str, float]
    copies: int
    outgoing: float | None = None  # not measured: taken to be as fast as what comes in


@dataclass(frozen=True)
class Contact:
    """A member that answered: how it is, and what is wrong with it."""

    hello: Hello
    latency_s: float
    clock_s: float  # its clock is so far ahead of ours
    reached: Reached | None  # None if it does not say, or was not asked
    faults: list[Finding] = field(default_factory=list)


def check_members(agreement: Agreement, site: Site, identity: Identity, findings: Findings) -> Speeds:
    """Meet everybody; who does not answer may simply not be there yet, unless nobody does."""
    own = agreement.number(site.name)
    numbers = [number for number in range(len(agreement.members)) if number != own]
    with ExitStack() as opened:
        is_up = opened.enter_context(listening(agreement, site, identity, findings))
        clients = [
            opened.enter_context(
                closing(MemberClient(number, identity=identity, agreement=agreement, proxy=site.proxy))
            )
            for number in numbers
        ]
        findings.on_step(f"asking {', '.join(client.member.name for client in clients)}")
        outcomes = _meet_all(clients, agreement, is_up=is_up)
        incoming: dict[str, float] = {}
        probes_until = time.monotonic() + PROBES_S
        for client, outcome in zip(clients, outcomes, strict=True):
            if isinstance(outcome, Finding):
                findings.add(outcome)
                continue
            findings.on_step(f"measuring the line to {client.member.name}")
            speed = _measure(client, outcome, findings, until=min(probes_until, time.monotonic() + PROBE_S))
            if speed is not None:
                incoming[client.member.name] = speed
            for fault in outcome.faults:
                findings.add(fault)
    _count_present(outcomes, agreement, findings)
    return Speeds(incoming, copies=len(numbers))


def _meet_all(clients: Sequence[MemberClient], agreement: Agreement, *, is_up: bool) -> list[Contact | Finding]:
    calls = [partial(_meet, client, agreement, is_up=is_up) for client in clients]
    return all_within(MEMBER_S, calls, late=lambda place: _late(clients[place]))


def _late(client: MemberClient) -> Finding:
    """Return the finding for whoever keeps us waiting: as good as not there."""
    client.drop()
    name = client.member.name
    return Finding(
        name,
        "warning",
        f"takes connections at {client.member.address}, but has not answered in full after {MEMBER_S:g} s",
        f"ask {name} to look at its machine and its line; rounds go on without it when their deadline has passed",
        details={"is_silent": True},
    )


def _meet(client: MemberClient, agreement: Agreement, *, is_up: bool) -> Contact | Finding:
    name = client.member.name
    try:
        client.hello(timeout_s=HELLO_S)
        # The second one finds the connection made: what it takes is the way there and back.
        began, clock = time.perf_counter(), time.time()
        hello = client.hello(timeout_s=HELLO_S)
        latency_s = time.perf_counter() - began
        met = Contact(hello, latency_s, hello.clock - clock - latency_s / 2, _ask_back(client) if is_up else None)
        met.faults.extend(_faults(client, met, agreement))
        if is_up:
            met.faults.extend(_faults_back(name, met.reached))
    except httpx.TransportError as error:
        return _unmet(client, error)
    except SnapshotError as error:
        return Finding(name, "problem", str(error))
    return met


def _unmet(client: MemberClient, error: httpx.TransportError) -> Finding:
    name, reason = client.member.name, why(error)
    if is_imposter(error):
        return Finding(name, "problem", reason, f"ask {name} for its certificate and its address")
    if is_disconnect(error) or "alert" in str(error):
        return Finding(name, "problem", reason, f"compare hash and fingerprints with {name}")
    advice = f"ask {name} to start crad peer join or doctor, and to open the port in its firewall"
    return Finding(
        name,
        "warning",
        f"not there yet, or port closed: {client.member.address}: {reason}",
        advice,
        details={"is_silent": True},
    )


def _faults(client: MemberClient, met: Contact, agreement: Agreement) -> list[Finding]:
    name, hello, faults = client.member.name, met.hello, []
    if hello.federation != agreement.hash:
        lines = differences(agreement, client.agreement())
        shown = "; ".join(lines[:MAX_LINES]) or f"its hash is {hello.federation[:12]}"
        more = f" (and {len(lines) - MAX_LINES} more)" if len(lines) > MAX_LINES else ""
        advice = "all members need the very same federation.toml"
        text = f"has another agreement: {shown}{more}"
        faults.append(Finding(name, "problem", text, advice, {"differences": lines}))
    if abs(met.clock_s) > CLOCK_S:
        where = "ahead of" if met.clock_s > 0 else "behind"
        text = f"its clock is {abs(met.clock_s):.0f} s {where} ours"
        advice = "set both clocks by NTP: certificates go by them"
        faults.append(Finding(name, "warning", text, advice, {"clock_s": met.clock_s}))
    if hello.version != __version__:
        text = f"it runs crad {printable(hello.version)}, we run {__version__}"
        faults.append(Finding(name, "warning", text, "install the same version everywhere"))
    return faults


def _ask_back(client: MemberClient) -> Reached | None:
    """Return whether the member reaches us, None if it does not say: it is there all the same."""
    try:
        return client.reach()
    except httpx.TransportError:
        return None


def _faults_back(name: str, reached: Reached | None) -> list[Finding]:
    """Return what is wrong with the way from the member to us, as it says."""
    if reached is None:
        text = "it cannot say now whether it reaches us"
        return [Finding(name, "warning", text, "ask again in a moment, or compare the versions of crad")]
    if reached.is_reached:
        return []
    where = printable(reached.address) or "no address"
    text = f"it does not reach us back at {where}: {printable(reached.reason)}"
    advice = "open our port in the firewall and pass it on to this machine, and check our address in its agreement"
    return [Finding(name, "problem", text, advice, {"address": printable(reached.address)})]


def _measure(client: MemberClient, met: Contact, findings: Findings, *, until: float) -> float | None:
    """Note that the member is there, with the speed of the line; one at a time, or they would share it."""
    name, speed = client.member.name, None
    is_reached = met.reached is not None and met.reached.is_reached
    try:
        speed = PROBE_BYTES / max(1e-6, BoundedCall(partial(client.probe, PROBE_BYTES)).outcome(until=until))
    except TimeoutError:
        client.drop()
        text = f"its line could not be measured: {size_text(PROBE_BYTES)} have not come in {PROBE_S:g} s"
        findings.warn(name, text, f"ask {name} to look at its line, or agree on small models and a long deadline_s")
    except (httpx.TransportError, SnapshotError) as error:
        reason = why(error) if isinstance(error, httpx.TransportError) else str(error)
        findings.warn(name, f"its line could not be measured: {reason}", "ask again")
    else:
        findings.ok(
            name,
            f"answers at {client.member.address} in {1000 * met.latency_s:.0f} ms and proves to be it, "
            f"{size_text(speed)}/s, clock {met.clock_s:+.1f} s{', reaches us too' if is_reached else ''}",
            is_reached=is_reached,
            latency_s=met.latency_s,
            bytes_per_s=speed,
            clock_s=met.clock_s,
            version=printable(met.hello.version),
        )
    return speed


def _count_present(outcomes: Sequence[Contact | Finding], agreement: Agreement, findings: Findings) -> None:
    present = sum(isinstance(outcome, Contact) for outcome in outcomes)
    silent = sum(isinstance(outcome, Finding) and "is_silent" in outcome.details for outcome in outcomes)
    if outcomes and silent == len(outcomes):
        advice = "check our own way out (network, proxy in peer.toml), or ask again when somebody else has started"
        findings.problem("others", f"none of the {silent} other members answers", advice)
    elif present < agreement.quorum:
        text = f"{present} others are there, a round needs {agreement.quorum}"
        findings.warn("others", text, "rounds wait until enough have come")
