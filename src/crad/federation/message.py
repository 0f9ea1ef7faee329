"""What travels between peers: a small JSON manifest and a body of safetensors, both plain bytes.

Nothing here runs code from a peer: no pickle, no `torch.load`. Bytes are checked before they are used.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from crad.errors import SnapshotError, first_foreign_fault, printable

SNAPSHOT = "snapshot"  # the kind of message that has a model's weights, as most methods publish them
# The first value that is none is enough to be refused: a word about each of a million would fill the memory.
Values = Annotated[tuple[Annotated[float, Field(ge=0, le=1e12)], ...], Field(fail_fast=True)]


class Statistics(BaseModel):
    """Per class: validation samples held (possibly noised), share classified correctly; mean cross-entropy if asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    counts: Values
    accuracies: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(fail_fast=True)]
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
    """Immutable bytes on an exchange. A large body may lie in a file that nobody changes, mapped into memory."""

    manifest: bytes
    body: bytes | memoryview
    file: Path | None = None  # where the body lies, for those who would rather map it than be sent it

    @property
    def payload_bytes(self) -> int:
        """Return what it costs to send this to one receiver."""
        return len(self.manifest) + len(self.body)


def message_in_file(manifest: bytes, file: Path) -> Message:
    """Return a message whose body stays on disk: readers on this machine share its pages and copy nothing."""
    return Message(manifest, map_file(file), file)


def map_file(file: Path) -> memoryview:
    """Map a file privately: torch wants writable memory, and a write would never reach the file.

    Mapped by torch, not by Python's mmap, which would keep a file descriptor open for each.
    """
    return torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8).numpy().data


def pack(
    tensors: Mapping[str, Tensor],
    *,
    kind: str,
    peer: int,
    round_index: int,
    architecture: str | None = None,
    statistics: Statistics | None = None,
) -> Message:
    """Make a message from tensors; the body is a copy, so later training cannot change what was published."""
    body = encode(tensors).toreadonly()
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


def encode(tensors: Mapping[str, Tensor]) -> memoryview:
    """Encode tensors as safetensors bytes, laid out as the library does it; each value is copied once.

    The library would have them contiguous first and copy twice more: with a large network that shows in a round.
    """
    head, size = _head(tensors)
    whole = torch.empty(len(head) + size, dtype=torch.uint8)
    body = whole.numpy().data
    body[: len(head)] = head
    views = view_tensors(body, read_layout(body))
    for name, tensor in tensors.items():
        views[name].copy_(tensor.detach())
    return body


def encoded_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return how long `encode` would be, of shapes and types alone: the tensors need have no memory."""
    head, size = _head(tensors)
    return len(head) + size


def _head(tensors: Mapping[str, Tensor]) -> tuple[bytes, int]:
    """Return the length and the header with which a body begins, and how many bytes of values follow."""
    # Widest numbers first: every tensor then begins at a multiple of its number's size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, offset = {}, 0
    for name, tensor in ordered:
        place = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        offset = place[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offset


def open_message(
    message: Message, *, sender: int, round_index: int, kind: str, expected: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read the tensors of a message that is what its sender, round and kind promise; refuse anything else."""
    read_manifest(message, sender=sender, round_index=round_index, kind=kind)
    return read_body(message, sender=sender, expected=expected)


def read_manifest(message: Message, *, sender: int, round_index: int, kind: str) -> Manifest:
    """Read the manifest, if it is well formed, from the expected sender and round, and true of the body."""
    manifest = parse_manifest(message.manifest, sender=sender, round_index=round_index, kind=kind)
    if manifest.size != len(message.body):
        raise SnapshotError(f"peer {sender} announced {manifest.size} bytes and sent {len(message.body)}")
    if manifest.sha256 != hashlib.sha256(message.body).hexdigest():
        raise SnapshotError(f"peer {sender} sent a body that does not match its sha256 {manifest.sha256[:12]}...")
    return manifest


def parse_manifest(raw: bytes, *, sender: int, round_index: int, kind: str) -> Manifest:
    """Read a manifest that is well formed and from the expected sender and round; the body is not known yet."""
    try:
        manifest = Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise SnapshotError(f"peer {sender} sent a malformed manifest: {first_foreign_fault(error)}") from error
    if (manifest.peer, manifest.round_index, manifest.kind) != (sender, round_index, kind):
        raise SnapshotError(
            f"peer {sender} sent {printable(manifest.kind)!r} of peer {manifest.peer}, round {manifest.round_index}; "
            f"expected {kind!r} of round {round_index}: restart it from its checkpoint"
        )
    return manifest


def read_body(message: Message, *, sender: int, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read tensors whose names, shapes and dtypes equal the expected ones and whose values are finite.

    Of a mapped body nothing is copied, the tensors look into it: read them, never write to them.
    """
    try:
        layout = read_layout(message.body, max_header_bytes=_header_bytes_for(expected))
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"peer {sender} sent a body with a malformed header: {printable(error)}") from error
    for name in sorted({*expected, *layout}):
        wanted = _describe(expected[name]) if name in expected else "nothing"
        got = layout[name].description if name in layout else "nothing"
        if wanted != got:
            raise SnapshotError(f"peer {sender} sent {printable(got)} as tensor {printable(name)!r}, expected {wanted}")
    tensors = view_tensors(message.body, layout)
    for name, tensor in tensors.items():
        if not _is_finite(tensor):
            raise SnapshotError(f"peer {sender} sent a non-finite value in tensor {printable(name)!r}")
    return tensors


def read_state(stored: bytes | memoryview) -> dict[str, Tensor]:
    """Return the tensors of our own safetensors bytes, without a copy."""
    return view_tensors(stored, read_layout(stored))


DTYPE_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.float16: "F16", torch.bfloat16: "BF16"} | {
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Extent:
    """Where a tensor lies in a safetensors body."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in the body
    stop: int

    @property
    def description(self) -> str:
        """Return what `_describe` says of such a tensor."""
        return f"{self.dtype} {list(self.shape)}"


def read_layout(body: bytes | memoryview, *, max_header_bytes: int | None = None) -> dict[str, Extent]:
    """Read the header of a safetensors body; refuse it unless its tensors cover the body exactly, each once.

    Shapes can be compared before any tensor is made, so a lying header cannot ask for memory.
    """
    (length,) = struct.unpack_from("<Q", body)
    if max_header_bytes is not None and length > max_header_bytes:
        raise ValueError(f"the header has {length} bytes, these tensors need no more than {max_header_bytes}")
    if length > len(body) - 8:
        raise ValueError("the header is longer than the body")
    header = json.loads(bytes(body[8 : 8 + length]))
    places = {}
    for name, entry in header.items():
        if name == "__metadata__":
            dict(entry)
            continue
        start, stop = (8 + length + _natural(offset) for offset in entry["data_offsets"])
        places[name] = Extent(entry["dtype"], tuple(map(_natural, entry["shape"])), start, stop)
    reached = 8 + length
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].stop)):
        size = _DTYPES[place.dtype].itemsize * math.prod(place.shape)
        if place.start != reached or place.stop - place.start != size:
            raise ValueError(f"tensor {name!r} is not where its shape says")
        reached = place.stop
    if reached != len(body):
        raise ValueError("the tensors do not fill the body")
    return places


def view_tensors(body: bytes | memoryview, layout: Mapping[str, Extent]) -> dict[str, Tensor]:
    """Return the tensors of a body: looking into a mapped one, copied from one that may not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "not writable": nobody writes
        whole = torch.frombuffer(body, dtype=torch.uint8)
    if memoryview(body).readonly:
        whole = whole.clone()  # what was published must never change
    tensors = {}
    for name, place in layout.items():
        flat, dtype = whole[place.start : place.stop], _DTYPES[place.dtype]
        if flat.data_ptr() % dtype.itemsize:
            flat = flat.clone()  # a header of odd length: numbers must lie at multiples of their size
        tensors[name] = flat.view(dtype).view(place.shape) if len(flat) else torch.empty(place.shape, dtype=dtype)
    return tensors


def _header_bytes_for(expected: Mapping[str, Tensor]) -> int:
    """Return more than a header for these tensors takes.

    As Python's objects a long one would be twenty times as large.
    """
    return 4096 + sum(512 + 6 * len(name.encode()) for name in expected)


def _is_finite(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    # A finite sum has finite terms, and is one pass where looking at every value is four.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _natural(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"expected a whole number, got {number!r}")
    return number


def _describe(tensor: Tensor) -> str:
    return f"{DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))} {list(tensor.shape)}"


_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
