"""Our own end of the line: the port, and somebody who answers there while the others try it."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from crad.errors import CradError, RunError
from crad.network.agreement import Agreement
from crad.network.fields import split_address
from crad.network.https.server import SnapshotServer
from crad.network.identity import Identity
from crad.network.ledger import OutgoingLedger
from crad.site.doctor.findings import Findings
from crad.site.settings import Site
from crad.site.state_folder import LEDGER, state_folder
from crad.site.status import read_status

CONNECT_S = 2.0
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # where to try what listens everywhere


@contextmanager
def listening(agreement: Agreement, site: Site, identity: Identity, findings: Findings) -> Iterator[bool]:
    """Yield whether we can be reached while the block lasts: through our running join, or a server for this time."""
    process = running_join(agreement, site)
    with ExitStack() as opened:
        if process is not None:
            is_up = _check_join(site, process, findings)
        else:
            is_up = _start(agreement, site, identity, opened, findings)
        yield is_up


def running_join(agreement: Agreement, site: Site) -> int | None:
    """Return the process of our own `crad peer join`, None if none is running."""
    try:
        status = read_status(agreement, site)
    except RunError:
        return None
    process = int(status.get("process", 0))
    # In a container every program may have the same number: our own is not the join.
    is_join = status["is_running"] and status.get("state") != "finished" and process != os.getpid()
    return process if is_join else None


def _check_join(site: Site, process: int, findings: Findings) -> bool:
    # Never bound here: the join may be about to.
    host, port = split_address(site.listen)
    try:
        socket.create_connection((ANYWHERE.get(host, host), port), timeout=CONNECT_S).close()
    except OSError as error:
        text = f"our join (process {process}) is running, but nothing listens at {site.listen} ({error.strerror})"
        findings.warn("port", text, "it may be starting: ask again in a minute")
        return False
    findings.ok("port", f"{site.listen} is in use by our own running join (process {process})", process=process)
    return True


def _start(agreement: Agreement, site: Site, identity: Identity, opened: ExitStack, findings: Findings) -> bool:
    # A folder of its own: nothing that a run has published is touched, and nothing is given out.
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="crad-doctor-")))
    try:
        # What leaves is written down here too.
        ledger = opened.enter_context(closing(OutgoingLedger(state_folder(agreement, site) / LEDGER)))
        server = SnapshotServer(agreement, identity, folder, listen=site.listen, ledger=ledger, proxy=site.proxy)
        opened.enter_context(server)
    except CradError as error:
        findings.problem("port", f"{error}; no join of ours is running: another program has it, or it is not allowed")
        return False
    findings.ok("port", f"{site.listen} is free to listen at")
    return True
