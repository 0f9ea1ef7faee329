"""What travels between peers: a small JSON manifest and a body of safetensors, both plain bytes.

Nothing here runs code from a peer: no pickle, no `torch.load`. Bytes are checked before they are used.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from crad.errors import SnapshotError

MAX_QUOTED = 120  # characters of a peer's words in a message

Values = tuple[Annotated[float, Field(ge=0, le=1e12)], ...]


class Statistics(BaseModel):
    """Per class: validation samples held (possibly noised), share classified correctly; mean cross-entropy if asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    counts: Values
    accuracies: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    cross_entropies: Values | None = None


class Manifest(BaseModel):
    """Who sends what: enough to decide whether the body is worth reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    kind: str
    peer: Annotated[int, Field(ge=0, lt=2**31)]
    round_index: Annotated[int, Field(ge=0, lt=2**31)]
    architecture: str | None = None
    statistics: Statistics | None = None
    size: Annotated[int, Field(ge=0, lt=2**63)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Message:
    """Immutable bytes on an exchange."""

    manifest: bytes
    body: bytes

    @property
    def payload_bytes(self) -> int:
        """What it costs to send this to one receiver."""
        return len(self.manifest) + len(self.body)


def pack(
    tensors: Mapping[str, Tensor],
    *,
    kind: str,
    peer: int,
    round_index: int,
    architecture: str | None = None,
    statistics: Statistics | None = None,
) -> Message:
    """A message from tensors; the body is a copy, so later training cannot change what was published."""
    body = safetensors.torch.save(storable(tensors))
    manifest = Manifest(
        kind=kind,
        peer=peer,
        round_index=round_index,
        architecture=architecture,
        statistics=statistics,
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
    )
    return Message(manifest.model_dump_json(exclude_none=True).encode(), body)


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, none sharing memory with another: what safetensors can write."""
    stored: dict[str, Tensor] = {}
    pointers: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage().data_ptr()
        stored[name] = plain.clone() if storage in pointers else plain  # tied weights are written twice
        pointers.add(storage)
    return stored


def read_manifest(message: Message, *, sender: int, round_index: int, kind: str) -> Manifest:
    """The manifest, if it is well formed, from the expected sender and round, and true of the body."""
    try:
        manifest = Manifest.model_validate_json(message.manifest)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"])) or "the whole"
        raise SnapshotError(f"peer {sender} sent a malformed manifest: {printable(place)}: {fault['msg']}") from error
    if (manifest.peer, manifest.round_index, manifest.kind) != (sender, round_index, kind):
        raise SnapshotError(
            f"peer {sender} sent {printable(manifest.kind)!r} of peer {manifest.peer}, round {manifest.round_index}; "
            f"expected {kind!r} of round {round_index}: restart it from its checkpoint"
        )
    if manifest.size != len(message.body):
        raise SnapshotError(f"peer {sender} announced {manifest.size} bytes and sent {len(message.body)}")
    if manifest.sha256 != hashlib.sha256(message.body).hexdigest():
        raise SnapshotError(f"peer {sender} sent a body that does not match its sha256 {manifest.sha256[:12]}...")
    return manifest


def read_body(message: Message, *, sender: int, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a body whose names, shapes and dtypes equal the expected ones and whose values are finite."""
    found = _read_header(message.body, sender)
    for name in sorted({*expected, *found}):
        wanted = _describe(expected[name]) if name in expected else "nothing"
        got = found.get(name, "nothing")
        if wanted != got:
            raise SnapshotError(f"peer {sender} sent {printable(got)} as tensor {printable(name)!r}, expected {wanted}")
    try:
        tensors = safetensors.torch.load(message.body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise SnapshotError(f"peer {sender} sent an unreadable body: {printable(error)}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise SnapshotError(f"peer {sender} sent a non-finite value in tensor {printable(name)!r}")
    return tensors


def printable(text: object) -> str:
    """A peer's words as one short printable line: no line breaks, terminal codes or floods reach a log."""
    words = str(text)[:MAX_QUOTED]
    return words if words.isprintable() else ascii(words)[1:-1]


DTYPE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16"} | {
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def _describe(tensor: Tensor) -> str:
    return f"{DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))} {list(tensor.shape)}"


def _read_header(body: bytes, sender: int) -> dict[str, str]:
    # Shapes are compared before any tensor is made, so a lying header cannot ask for memory.
    try:
        (length,) = struct.unpack_from("<Q", body)
        header = json.loads(body[8 : 8 + length])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for entry in entries.values():
            start, stop = entry["data_offsets"]
            if not (0 <= start <= stop <= len(body)) or math.prod(entry["shape"]) > len(body):
                raise ValueError("offsets outside the body")
        return {name: f"{entry['dtype']} {entry['shape']}" for name, entry in entries.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"peer {sender} sent a body with a malformed header: {printable(error)}") from error
