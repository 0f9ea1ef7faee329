"""No bytes from a peer do more than be refused: whatever they are, and without asking for memory they do not bring."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.errors import SnapshotError
from crad.federation.message import Message, read_body
from tests.fuzz.decoders import SENDER, SENT, SPLINTERS, TARGETS, genuine, mutate, seeds, survive

EXAMPLES = settings(max_examples=30, derandomize=True, database=None, deadline=None)
NAMES = list(TARGETS)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_fuzzer_begins_from_is_taken(name):
    assert survive(name, seeds()[name])


@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(data=st.binary(max_size=400))
def test_random_bytes_are_refused_or_taken_and_nothing_else(name, data):
    survive(name, data)


@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_good_bytes_with_something_wrong_are_refused_or_taken_and_nothing_else(name, seed):
    survive(name, mutate(seeds()[name], random.Random(seed)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("splinter", SPLINTERS, ids=range(len(SPLINTERS)))
def test_splinters_alone_are_refused_or_taken_and_nothing_else(name, splinter):
    survive(name, splinter)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", NAMES)
@EXAMPLES
@given(value=JSON)
def test_any_json_is_refused_or_taken_and_nothing_else(name, value):
    survive(name, json.dumps(value).encode())


ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I64", "F4", "BOOL"]) | JSON,
        "shape": st.lists(st.sampled_from([0, 1, 2, 3, 2**31, 2**62, 2**70, -1]), max_size=5) | JSON,
        "data_offsets": st.lists(st.sampled_from([0, 8, 24, 32, 2**40, 2**64, -8]), min_size=1, max_size=3) | JSON,
    }
)


@EXAMPLES
@given(header=st.dictionaries(st.sampled_from([*SENT, "__metadata__", "x"]), ENTRY | JSON), data=st.binary(max_size=64))
def test_no_header_breaks_the_reader_of_tensors(header, data):
    text = json.dumps(header).encode()
    survive("tensors", struct.pack("<Q", len(text)) + text + data)


def test_a_certificate_of_a_version_that_does_not_exist_is_refused():
    """The parser's own error for it is no ValueError: found by the fuzzer."""
    der = seeds()["certificate"]
    version = bytes.fromhex("a003020102")  # version 3
    assert der.count(version) == 1
    assert not survive("certificate", der.replace(version, bytes.fromhex("a003020142")))


def peak_of(body: bytes) -> int:
    """The most memory that refusing this body took beside the body."""
    message = Message(b"", body)
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError):
            read_body(message, sender=SENDER, expected=SENT)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [[2**40], [2**31, 2**31], [2**62, 4], [0, 2**62, 2**62]])
def test_a_header_that_claims_a_large_tensor_allocates_nothing(shape):
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 2**42]} for name in SENT}
    text = json.dumps(header).encode()
    assert peak_of(struct.pack("<Q", len(text)) + text) < 200_000


def test_a_body_that_is_all_header_is_not_read():
    """Python's objects for this header would be twenty times as large as it is."""
    text = b'{"x":[' + b"[]," * 100_000 + b"[]]}"
    assert peak_of(struct.pack("<Q", len(text)) + text) < 200_000


def test_a_header_may_be_as_long_as_the_tensors_need():
    body = bytes(genuine().body)
    (length,) = struct.unpack_from("<Q", body)
    padded = struct.pack("<Q", length + 512) + body[8 : 8 + length] + b" " * 512 + body[8 + length :]
    assert survive("tensors", padded)  # other writers pad, and add some words about themselves
