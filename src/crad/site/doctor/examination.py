"""The whole examination, in the order in which one mends things: own files, own data and model, then the others."""

from __future__ import annotations

from pathlib import Path

from crad.errors import CradError
from crad.network.agreement import HTTPS, Agreement, read_agreement
from crad.site.doctor.committee_cost import check_committee
from crad.site.doctor.estimate import estimate
from crad.site.doctor.findings import Findings
from crad.site.doctor.keys import check_keys
from crad.site.doctor.others import check_members
from crad.site.doctor.own_model import check_data, check_local_peer, check_state
from crad.site.doctor.privacy import check_privacy
from crad.site.doctor.resources import check_disk, check_memory
from crad.site.doctor.shared_store import check_store
from crad.site.settings import Site, read_site


def examine(site_file: Path, findings: Findings) -> None:
    """Look at everything that can be looked at; what depends on something broken is left out and said to be."""
    read = _read(site_file, findings)
    if read is None:
        return
    site, agreement = read
    identity = check_keys(agreement, site, findings)
    is_writable = check_state(agreement, site, findings)
    own = check_data(agreement, site, findings)
    needs = check_local_peer(agreement, site, own, findings) if own is not None and is_writable else None
    if needs is not None:
        check_privacy(needs.local_peer, findings)
        check_disk(needs, site, findings)
        check_memory(needs, findings)
    speeds = None
    if identity is None or not is_writable:
        findings.warn("others", "not asked", "fix what is named above, then ask again")
    elif agreement.exchange == HTTPS:
        speeds = check_members(agreement, site, identity, findings)
    else:
        speeds = check_store(agreement, site, identity, findings)
    if needs is not None:
        estimate(needs, speeds, findings)
        check_committee(needs, findings)


def _read(site_file: Path, findings: Findings) -> tuple[Site, Agreement] | None:
    findings.on_step("reading peer.toml and the agreement")
    try:
        site = read_site(site_file)
    except CradError as error:
        findings.problem("peer.toml", str(error))
        return None
    findings.ok("peer.toml", f"{site.name} listens at {site.listen}")
    try:
        agreement = read_agreement(site.agreement)
        number = agreement.number(site.name)
    except CradError as error:
        findings.problem("agreement", str(error))
        return None
    findings.ok(
        "agreement",
        f"{agreement.name}: member {number + 1} of {len(agreement.members)}, {agreement.rounds} rounds of "
        f"{agreement.settings['method']}, hash {agreement.hash[:12]}",
        hash=agreement.hash,
    )
    return site, agreement
