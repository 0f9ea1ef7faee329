"""How single values of an agreement are written, so that what is equal is written alike."""

from __future__ import annotations

import re
from typing import Annotated

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import AfterValidator, Field

from crad.network.identity import check_name, read_certificate

ARCHITECTURE = re.compile(r"[A-Za-z0-9_.:-]{1,100}(?:@([0-9]+(?:\.[0-9]+)?))?")


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[::1]:port`; ValueError if it is neither."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError("expected host:port, such as peer.example.org:8443")
    return match[1] or match[2], int(match[3])


def _address(text: str) -> str:
    split_address(text)
    return text


def _architecture(text: str) -> str:
    """Return an architecture as peers and files write it, so that equal ones are equal texts."""
    match = ARCHITECTURE.fullmatch(text)
    if match is None:
        raise ValueError("must be a model name, or a name and a width such as resnet18@0.125")
    width = match[1]
    if width is not None and width != repr(float(width)).removesuffix(".0"):
        raise ValueError(f"write the width as {repr(float(width)).removesuffix('.0')}")
    if width is not None and (float(width) == 1 or not 0 < float(width) <= 4):
        raise ValueError("the width after '@' is over 0, at most 4, and left out where it is 1")
    return text


def _member_pem(text: str) -> str:
    return read_certificate(text.encode()).public_bytes(Encoding.PEM).decode()


def _authority_pem(text: str) -> str:
    try:
        certificate = x509.load_pem_x509_certificate(text.encode())
        is_ca = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        raise ValueError("this is no certificate of an authority in PEM") from None
    if not is_ca:
        raise ValueError("this certificate may not issue others (CA is false)")
    return certificate.public_bytes(Encoding.PEM).decode()


Level = Annotated[float, Field(ge=0, le=255, allow_inf_nan=False)]
MemberName = Annotated[str, AfterValidator(check_name)]
Address = Annotated[str, AfterValidator(_address)]  # host:port
ArchitectureId = Annotated[str, AfterValidator(_architecture)]
MemberPem = Annotated[str, AfterValidator(_member_pem)]
AuthorityPem = Annotated[str, AfterValidator(_authority_pem)]
Fingerprint = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
