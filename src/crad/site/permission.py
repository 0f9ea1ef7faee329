"""What our own peer.toml lets an agreement or a partner have on this machine. No name from outside is imported here."""

from __future__ import annotations

import json
from collections.abc import Collection

from crad.errors import ConfigError, printable
from crad.federation.context import input_shape_of
from crad.inference.engine import TEACHER_BATCH
from crad.methods import METHODS
from crad.models import Allowance, Architecture, InputShape, estimate_size
from crad.network.agreement import HTTPS, Agreement, Member
from crad.site.settings import Site

# Kinds of store that an agreement may name: those that we know. fsspec imports whatever else is registered with it.
STORES = ("file", "local", "memory", "s3", "s3a", "sftp", "ssh")


HEADER_BYTES = 1 << 20  # of a snapshot: names and shapes of its tensors, with room to spare


def allowance_of(site: Site) -> Allowance:
    """Return the networks that may be built here, as plain values."""
    return Allowance(frozenset(site.architectures), site.max_teacher_mb, site.max_teacher_gflops)


def left_out_of(agreement: Agreement, site: Site) -> dict[int, str]:
    """Return the other members that cannot teach us, by number, and why; nothing large is built to tell."""
    known: dict[str, str | None] = {}
    for member in agreement.members:
        if member.name != site.name and member.architecture not in known:
            known[member.architecture] = _refusal(Architecture.parse(member.architecture), agreement, site)
    reasons = {number: known.get(member.architecture) for number, member in enumerate(agreement.members)}
    own = agreement.number(site.name)
    return {number: reason for number, reason in reasons.items() if reason is not None and number != own}


def snapshot_bytes_of(agreement: Agreement, left_out: Collection[int]) -> dict[int, int]:
    """Return how large a snapshot of each member that we learn from can be at the most, by number."""
    shape, sizes = input_shape(agreement), dict[str, int]()
    for number, member in enumerate(agreement.members):
        if number not in left_out and member.architecture not in sizes:
            sizes[member.architecture] = estimate_size(Architecture.parse(member.architecture), shape).nbytes
    others = [number for number in range(len(agreement.members)) if number not in left_out]
    return {number: 2 * sizes[agreement.members[number].architecture] + HEADER_BYTES for number in others}


def word_about_network(member: Member) -> str | None:
    """Return what whoever adds a member should know of a network that is not built in; None where it is."""
    architecture = Architecture.parse(member.architecture)
    if Allowance().has(architecture):
        return None
    return Allowance.refusal_of_name(architecture).replace("its network", f"{member.name}'s network", 1)


def input_shape(agreement: Agreement) -> InputShape:
    """Return what the agreement has every network built for."""
    return input_shape_of(agreement.data_schema.empty_dataset(agreement.classes))


def check_own_architecture(agreement: Agreement, site: Site) -> None:
    """Refuse to build our own network where our own file does not allow it: the agreement is not only ours to write."""
    architecture = Architecture.parse(agreement.member(site.name).architecture)
    if not allowance_of(site).has(architecture):
        raise ConfigError(
            f"our own network {printable(architecture.id)} is not built in: if its code may run here, write "
            f"{_allowing('architectures', site.architectures, architecture.name)} into peer.toml"
        )
    refusal = _refusal(architecture, agreement, site)
    if refusal is not None:
        raise ConfigError(refusal.replace("its network", "our own network", 1))


def check_method_allowed(agreement: Agreement, site: Site) -> None:
    """Refuse a method that is neither built in nor allowed by our own file, before anything of it is imported."""
    name = str(agreement.settings["method"])
    if name not in METHODS and name not in site.methods:
        raise ConfigError(
            f"the agreement's method {printable(name)} is not built in: read its code, and if it may run here, write "
            f"{_allowing('methods', site.methods, name)} into peer.toml"
        )


def check_store_kind(agreement: Agreement, site: Site) -> None:
    """Refuse a kind of store that only the agreement names: looking for it would import another package."""
    kind = agreement.exchange.partition("://")[0]
    if agreement.exchange == HTTPS or site.store is not None or kind in STORES:
        return
    raise ConfigError(
        f"the agreement exchanges through {printable(kind)}://, which is none of {', '.join(STORES)}: if its "
        'package may be loaded here, write the address as store = "..." into peer.toml'
    )


def _refusal(architecture: Architecture, agreement: Agreement, site: Site) -> str | None:
    batch_size = max(TEACHER_BATCH, int(agreement.settings["batch_size"]))
    return allowance_of(site).refusal(architecture, input_shape(agreement), batch_size=batch_size)


def _allowing(key: str, there: tuple[str, ...], name: str) -> str:
    """Return the line to write: what is allowed already, and this name too."""
    return f"{key} = {json.dumps([printable(one) for one in (*there, name)])}"
