"""Who a member is: an Ed25519 key that never leaves its machine, and a certificate that carries the member's name.

The certificate is self-signed and pinned in the agreement, or issued by the authority that the agreement names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from crad.errors import ConfigError
from crad.files import write_atomically

KEY, CERTIFICATE, REQUEST = "key.pem", "certificate.pem", "request.pem"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
KNOWN = 4096  # certificates that need not be parsed again: the same few come with every message
CLOCK_SKEW = timedelta(days=1)  # a new certificate must be valid too where the clock is behind


@dataclass(frozen=True)
class Identity:
    """A member on its own machine: its name, its certificate and the private key."""

    name: str
    certificate: x509.Certificate
    folder: Path
    key: Ed25519PrivateKey = field(repr=False)

    @property
    def key_path(self) -> Path:
        """Return the private key, readable by its owner alone."""
        return self.folder / KEY

    @property
    def certificate_path(self) -> Path:
        """Return the certificate that others see."""
        return self.folder / CERTIFICATE

    def sign(self, text: bytes) -> bytes:
        """Return the Ed25519 signature of these bytes."""
        return self.key.sign(text)


def create_identity(folder: Path, name: str, *, days: float = 825, now: datetime | None = None) -> Identity:
    """Make a key, a self-signed certificate and a request for one from an authority; never over an existing key."""
    check_name(name)
    key = Ed25519PrivateKey.generate()
    begin = (now or datetime.now(UTC)) - CLOCK_SKEW
    certificate = _self_signed(key, name, begin=begin, end=begin + CLOCK_SKEW + timedelta(days=days))
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).add_extension(_names(name), False)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_secret(folder / KEY, secret)
        (folder / CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / REQUEST).write_bytes(request.sign(key, None).public_bytes(Encoding.PEM))
    except FileExistsError:
        raise ConfigError(f"{folder} already holds a key: use it, or choose another folder for a new one") from None
    except OSError as error:
        raise ConfigError(f"cannot write the key into {folder}: {error.strerror}") from error
    return Identity(name, certificate, folder, key)


def renew_certificate(folder: Path, *, days: float = 825, now: datetime | None = None) -> Identity:
    """Make a new self-signed certificate for the key that is there: the member stays who it is."""
    identity = load_identity(folder)
    begin = (now or datetime.now(UTC)) - CLOCK_SKEW
    certificate = _self_signed(identity.key, identity.name, begin=begin, end=begin + CLOCK_SKEW + timedelta(days=days))
    try:
        write_atomically(identity.certificate_path, certificate.public_bytes(Encoding.PEM))
    except OSError as error:
        raise ConfigError(f"cannot write the certificate into {folder}: {error.strerror}") from error
    return Identity(identity.name, certificate, folder, identity.key)


def load_identity(folder: Path) -> Identity:
    """Return the identity in a folder; refused if key and certificate do not match or others can read the key."""
    if _read(folder / KEY) and (folder / KEY).stat().st_mode & 0o077:
        raise ConfigError(f"{folder / KEY} can be read by others: chmod 600 {folder / KEY}")
    try:
        key = load_pem_private_key(_read(folder / KEY), password=None)
    except (ValueError, TypeError):  # TypeError: it wants a password
        raise ConfigError(f"{folder / KEY} is not a private key in PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{folder / KEY} is not an Ed25519 key: make one with crad peer init")
    try:
        certificate = read_certificate(_read(folder / CERTIFICATE))
    except ValueError as error:
        raise ConfigError(f"{folder / CERTIFICATE}: {error}") from None
    if certificate.public_key() != key.public_key():
        raise ConfigError(f"{folder / CERTIFICATE} belongs to another key than {folder / KEY}")
    return Identity(name_in(certificate), certificate, folder, key)


def check_name(name: str) -> str:
    """Return the name, if a member may be called so; it is a host name in certificates and a folder in buckets."""
    if NAME.fullmatch(name) is None:
        raise ConfigError(f"member name {name!r}: use small letters, digits and hyphens, at most 63, such as clinic-a")
    return name


def fingerprint(certificate: x509.Certificate) -> str:
    """Return what two people can compare on the telephone: `sha256:` and the digest of the whole certificate."""
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


def key_fingerprint(certificate: x509.Certificate) -> str:
    """Return the same of the key alone: it outlives a renewed certificate."""
    public = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(public).hexdigest()}"


@lru_cache(KNOWN)
def read_certificate(pem: bytes) -> x509.Certificate:
    """Return the first certificate of a PEM text, if it is a member's: one name, an Ed25519 key; else ValueError."""
    return _check_members(lambda: x509.load_pem_x509_certificate(pem), form="PEM")


@lru_cache(KNOWN)
def parse_certificate(der: bytes) -> x509.Certificate:
    """Return the same for the bytes that somebody shows; whatever is wrong with them is a ValueError."""
    certificate = _check_members(lambda: x509.load_der_x509_certificate(der), form="DER")
    if der[-len(certificate.signature) - 1] != 0:
        # A bit string may say that its last bits do not count: the same certificate would have two spellings.
        raise ValueError("its signature is not written in whole bytes")
    return certificate


def name_in(certificate: x509.Certificate) -> str:
    """Return the member's name that a certificate carries; ValueError unless it is exactly one DNS name."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value.get_values_for_type(x509.DNSName)
    except Exception:  # extensions are parsed here, in as many ways to say no
        names = []
    if len(names) != 1 or NAME.fullmatch(names[0]) is None:
        raise ValueError("a member's certificate carries exactly one name, the member's, as a DNS name")
    return names[0]


def _check_members(load: Callable[[], x509.Certificate], *, form: str) -> x509.Certificate:
    try:
        certificate = load()
        is_ed25519 = isinstance(certificate.public_key(), Ed25519PublicKey)
    except Exception as error:  # the parser has many ways to say no, and not all are a ValueError
        raise ValueError(f"this is no certificate in {form}") from error
    if not is_ed25519:
        raise ValueError("a member's certificate needs an Ed25519 key: ask for one with request.pem")
    name_in(certificate)
    return certificate


def _write_secret(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path} ({error.strerror}): make an identity with crad peer init") from error


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(name: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(name)])


def _self_signed(key: Ed25519PrivateKey, name: str, *, begin: datetime, end: datetime) -> x509.Certificate:
    """Return a certificate that is trusted where it is pinned, and unable to vouch for anybody else."""
    public = key.public_key()
    signs = {"digital_signature": True, "content_commitment": False, "key_encipherment": False}
    signs |= {"data_encipherment": False, "key_agreement": False, "key_cert_sign": False, "crl_sign": False}
    builder = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject(name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(_names(name), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**signs, encipher_only=False, decipher_only=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    return builder.sign(key, None)
