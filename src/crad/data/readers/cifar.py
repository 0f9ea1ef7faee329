"""Reads CIFAR-10 and CIFAR-100 in both official versions, from the extracted folder or from the archive.

The python version is pickled: it goes through an unpickler that can build numpy arrays and nothing else.
"""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crad.data.dataset import Images, Labels, Splits
from crad.errors import DataError

PIXELS = 3 * 32 * 32  # stored channel by channel
MAX_FILE_BYTES = 256 * 2**20  # the largest official file, CIFAR-100's pickled training set, has 155 MB


@dataclass(frozen=True)
class Version:
    """How one version of one data set lies on disk."""

    folder: str  # inside the archive
    train_files: tuple[str, ...]
    test_file: str
    decode: Callable[[bytes, str], tuple[Images, Labels]]


def read_cifar(path: Path, *, name: str, version: str) -> Splits:
    """Read "cifar10" or "cifar100", version "python" or "binary", from its folder or its tar.gz."""
    layout = VERSIONS[name, version]
    wanted = (*layout.train_files, layout.test_file)
    files = _folder_files(path, wanted) if path.is_dir() else _archive_files(path, wanted, layout.folder)
    parts = {file_name: layout.decode(content, f"{path}: {file_name}") for file_name, content in files}
    missing = [file_name for file_name in wanted if file_name not in parts]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}, expected {', '.join(wanted)}: `crad data fetch {name}`")
    train = [parts[file_name] for file_name in layout.train_files]
    images = np.concatenate([part[0] for part in train])
    labels = np.concatenate([part[1] for part in train])
    return Splits(images, labels, *parts[layout.test_file])


def _folder_files(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for file_name in wanted:
        file = path / file_name
        if not file.is_file():
            continue
        try:
            _check_size(file.stat().st_size, where=f"{path}: {file_name}")
            yield file_name, file.read_bytes()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror}): check its permissions") from error


def _archive_files(path: Path, wanted: tuple[str, ...], folder: str) -> Iterator[tuple[str, bytes]]:
    """Return the expected members only; nothing is written to disk."""
    members = {f"{folder}/{file_name}": file_name for file_name in wanted}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                file_name = members.get(member.name.removeprefix("./"))
                if file_name is None or not member.isfile():
                    continue
                _check_size(member.size, where=f"{path}: {file_name}")
                content = archive.extractfile(member)
                assert content is not None  # only for a member that is no file
                yield file_name, content.read()
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{path}: not a readable tar.gz ({error}): delete it and run `crad data fetch`") from error


def _check_size(size: int, *, where: str) -> None:
    if size > MAX_FILE_BYTES:
        raise DataError(f"{where} has {size} bytes, expected at most {MAX_FILE_BYTES}: not a CIFAR file")


def _decode_records(content: bytes, where: str, *, label_bytes: int) -> tuple[Images, Labels]:
    """Decode the binary version: label bytes, the last one being the class, then the pixels."""
    record = label_bytes + PIXELS
    if not content or len(content) % record:
        whole = max(1, -(-len(content) // record)) * record
        raise DataError(
            f"{where} has {len(content)} bytes, expected {whole} (records of {record}): the file is truncated"
        )
    table = np.frombuffer(content, dtype=np.uint8).reshape(-1, record)
    return _pixels_last(table[:, label_bytes:]), table[:, label_bytes - 1].astype(np.int64)


def _decode_pickle(content: bytes, where: str, *, label_key: str) -> tuple[Images, Labels]:
    """Decode the Python version: a dictionary with `data` [n, 3072] and a list of labels."""
    batch = _unpickle(content, where=where)
    if not isinstance(batch, dict):
        raise DataError(f"{where} holds a {type(batch).__name__}, expected a dictionary")
    data, labels = (batch.get(key.encode(), batch.get(key)) for key in ("data", label_key))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise DataError(f"{where}: data is {_describe(data)}, expected a uint8 array of shape [n, {PIXELS}]")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{where}: {label_key} is {_describe(labels)}, expected a list of whole numbers")
    if len(labels) != len(data):
        raise DataError(f"{where} holds {len(data)} images but {len(labels)} {label_key}")
    return _pixels_last(data), np.array(labels, dtype=np.int64)


def _unpickle(content: bytes, *, where: str) -> Any:  # noqa: ANN401 (a pickle may hold anything)
    try:
        return _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    except Exception as error:  # a damaged pickle may fail in any way
        raise DataError(
            f"{where} is not a readable pickle ({type(error).__name__}: {error}): fetch it again"
        ) from error


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and plain containers; every other global is refused unseen."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (whatever the module holds)
        allowed = _ALLOWED.get((module, name))
        if allowed is None:
            raise DataError(f"the pickle asks for {module}.{name}, which no CIFAR file needs: do not trust it")
        return allowed


def _dtype(code: bytes | str, align: object = False, copy: object = True) -> np.dtype[Any]:
    # Python 2 pickled the flags as 0 and 1, of which numpy 2.4.0 to 2.4.4 warn.
    text = code.decode("ascii") if isinstance(code, bytes) else code
    return np.dtype(text, align=bool(align), copy=bool(copy))


def _encode(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes under protocol 2; no other codec is needed.
    if encoding != "latin1":
        raise DataError(f"the pickle asks for the codec {encoding!r}, which no CIFAR file needs")
    return text.encode("latin1")


# The names are mapped, not imported: numpy.core is gone or deprecated in numpy 2.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}


def _pixels_last(rows: Images) -> Images:
    """Turn [n, 3072] channel by channel into [n, 32, 32, 3]."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    return "missing" if value is None else f"a {type(value).__name__}"


def _records(label_bytes: int) -> Callable[[bytes, str], tuple[Images, Labels]]:
    return lambda content, where: _decode_records(content, where, label_bytes=label_bytes)


def _pickles(label_key: str) -> Callable[[bytes, str], tuple[Images, Labels]]:
    return lambda content, where: _decode_pickle(content, where, label_key=label_key)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BATCHES_BIN = tuple(f"{batch}.bin" for batch in _BATCHES)
VERSIONS: dict[tuple[str, str], Version] = {
    ("cifar10", "python"): Version("cifar-10-batches-py", _BATCHES, "test_batch", _pickles("labels")),
    ("cifar10", "binary"): Version("cifar-10-batches-bin", _BATCHES_BIN, "test_batch.bin", _records(1)),
    ("cifar100", "python"): Version("cifar-100-python", ("train",), "test", _pickles("fine_labels")),
    ("cifar100", "binary"): Version("cifar-100-binary", ("train.bin",), "test.bin", _records(2)),
}
