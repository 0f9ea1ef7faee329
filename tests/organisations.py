"""Organisations for tests: identities, an authority, an agreement between three of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from crad.network.agreement import Agreement, make_agreement
from crad.network.identity import Identity, create_identity, load_identity

NAMES = ("clinic-a", "clinic-b", "clinic-c")


class Authority:
    """A certificate authority, as an organisation's own or a consortium's would be."""

    def __init__(self, name: str = "Test Authority", *, is_ca: bool = True) -> None:
        self.key = Ed25519PrivateKey.generate()
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self._subject, self.key.public_key(), is_ca=is_ca, sans=[])

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, identity: Identity, *, name: str | None = None, days: float = 30) -> Identity:
        """The same key with a certificate of this authority, for its own name or another."""
        names = [identity.name if name is None else name]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        certificate = self._sign(subject, identity.key.public_key(), is_ca=False, sans=names, days=days)
        identity.certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))
        return load_identity(identity.folder)

    def _sign(self, subject, key, *, is_ca, sans, days=30.0) -> x509.Certificate:
        now = datetime.now(UTC)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if sans:
            names = x509.SubjectAlternativeName([x509.DNSName(name) for name in sans])
            builder = builder.add_extension(names, critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        return builder.sign(self.key, None)


def make_identities(folder: Path, names=NAMES) -> list[Identity]:
    return [create_identity(folder / name, name) for name in names]


def member_table(identity: Identity, *, address: str = "127.0.0.1:8443", is_pinned: bool = True) -> dict[str, Any]:
    table = {"name": identity.name, "address": address, "architecture": "cnn6@0.125"}
    return {**table, "certificate": identity.certificate_path.read_text()} if is_pinned else table


def agreement_table(identities, **changes) -> dict[str, Any]:
    """Plain values of an agreement between these identities, as they stand in a file."""
    is_pinned = "authority" not in changes
    return {
        "name": "three clinics",
        "classes": ["benign", "malignant", "unclear"],
        "image_shape": [8, 8, 1],
        "mean": [120.0],
        "std": [60.0],
        "settings": {"rounds": 5, "lr": 0.05},
        "members": [member_table(identity, is_pinned=is_pinned) for identity in identities],
        **changes,
    }


def agreed(identities, **changes) -> Agreement:
    return make_agreement(agreement_table(identities, **changes))


def with_addresses(agreement: Agreement, addresses) -> Agreement:
    """The same agreement, each member at a new address, by place or by name; the hash stays."""
    if not isinstance(addresses, dict):
        names = [member.name for member in agreement.members]
        addresses = dict(zip(names, addresses, strict=True))
    members = tuple(
        member.model_copy(update={"address": addresses.get(member.name, member.address)})
        for member in agreement.members
    )
    return agreement.model_copy(update={"members": members})
