"""What travels between peers: a bit-exact round trip, and every kind of hostile bytes refused by name.

Peer 1 sends its snapshot of round 4 to a federation of two architectures, three classes, 8x8 gray images.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crad.config import Experiment
from crad.data.dataset import Dataset
from crad.data.federated_data import FederatedData
from crad.data.preprocessing import fit_preprocessor
from crad.errors import SnapshotError
from crad.federation.context import RunContext
from crad.federation.message import (
    Message,
    Statistics,
    encode,
    message_in_file,
    pack,
    read_body,
    read_manifest,
    read_state,
)
from crad.federation.peer import new_model
from crad.federation.teachers import TeacherCache
from crad.models import Architecture

EXAMPLES = settings(max_examples=60, derandomize=True, database=None, deadline=None)

SENDER, ROUND, CLASSES = 1, 4, 3
ENTRIES = ("schema_version", "kind", "peer", "round_index", "architecture", "statistics", "size", "sha256")
STATISTICS = Statistics(counts=(5, 0, 2.5), accuracies=(0.8, 0, 1), cross_entropies=(0.1, 0, 2))


@functools.cache
def context() -> RunContext:
    images, labels = np.zeros((2, 8, 8, 1), dtype=np.uint8), np.array([0, 1])
    data = FederatedData(
        dataset=Dataset("tiny", images, labels, images, labels, ("a", "b", "c"), "none", None),
        shards=(),
        proxy=np.empty(0, dtype=np.int64),
        preprocessor=fit_preprocessor(images, augmentation="none", device="cpu"),
    )
    return RunContext(data, Experiment(models=("cnn6-wide", "cnn6"), width=0.125, clients=2), device="cpu")


@functools.cache
def shelf() -> TeacherCache:
    return TeacherCache(context())


@functools.cache
def sent_model():
    model = new_model(context(), Architecture("cnn6", 0.125), seed=5)
    model.train()
    model(torch.linspace(-1, 1, 128).view(2, 1, 8, 8))  # moves the batch-norm buffers off their start
    return model


@functools.cache
def genuine() -> Message:
    return pack(
        sent_model().state_dict(),
        kind="snapshot",
        peer=SENDER,
        round_index=ROUND,
        architecture="cnn6@0.125",
        statistics=STATISTICS,
    )


def decode(message: Message):
    return shelf().decode(message, sender=SENDER, round_index=ROUND)


def forged(*, body: bytes | None = None, without: str | None = None, **changes: Any) -> Message:
    """The genuine message with other manifest entries; size and digest are true of the body unless changed too."""
    body = bytes(genuine().body) if body is None else body
    truth = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    entries = {**json.loads(genuine().manifest), **truth, **changes}
    entries.pop(without, None)
    return Message(json.dumps(entries).encode(), body)


def with_statistics(**changes: Any) -> Message:
    return forged(statistics={**json.loads(STATISTICS.model_dump_json()), **changes})


def body_of(**changes: Any) -> bytes:
    """The genuine tensors with some replaced, or left out where None is given; dots in names become __."""
    tensors: dict[str, Any] = {name: tensor.contiguous() for name, tensor in sent_model().state_dict().items()}
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return bytes(pack(kept, kind="snapshot", peer=SENDER, round_index=ROUND).body)


def with_header(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def assert_refused(message: Message, *quoted: str) -> None:
    with pytest.raises(SnapshotError) as refusal:
        decode(message)
    line = str(refusal.value)
    assert line.startswith(f"peer {SENDER} ")
    assert "\n" not in line
    for words in quoted:
        assert words in line


# --- the round trip


def bits(tensor):
    return tensor.detach().contiguous().numpy().tobytes()


def test_a_snapshot_arrives_bit_for_bit_with_its_buffers():
    received = decode(genuine()).tensors
    sent = sent_model().state_dict()
    assert received.keys() == sent.keys()
    assert {"features.1.running_mean", "features.1.num_batches_tracked"} <= received.keys()
    for name, tensor in sent.items():
        assert (received[name].dtype, received[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(received[name]) == bits(tensor)


def test_the_statistics_and_the_architecture_arrive_as_sent():
    snapshot = decode(genuine())
    assert (snapshot.peer, snapshot.architecture, snapshot.statistics) == (SENDER, "cnn6@0.125", STATISTICS)


def test_a_lent_teacher_is_the_senders_model_frozen():
    teacher = shelf().get(decode(genuine()))
    inputs = torch.linspace(-2, 2, 192).view(3, 1, 8, 8)
    logits = teacher(inputs)
    assert torch.allclose(logits, sent_model().eval()(inputs), rtol=1e-4, atol=1e-5)
    assert not logits.requires_grad


def test_a_lent_teacher_stays_itself_when_the_next_one_of_its_architecture_is_lent():
    first, second = decode(genuine()), decode(forged(body=body_of(head__3__bias=torch.tensor([1.0, 2.0, 3.0]))))
    inputs = torch.linspace(-2, 2, 192).view(3, 1, 8, 8)
    lender = shelf()
    teacher = lender.get(first)
    before = teacher(inputs)
    moved = lender.get(second)(inputs) - before
    assert torch.allclose(moved, torch.tensor([1.0, 2.0, 3.0]) - sent_model().state_dict()["head.3.bias"], atol=1e-5)
    assert bits(teacher(inputs)) == bits(before)


def test_the_bytes_are_those_of_the_safetensors_library():
    tensors = {
        "weight": torch.arange(24.0).view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
        "steps": torch.tensor(7),
        "bias": torch.arange(4.0)[::2],
        "of nothing": torch.empty(0),
        "größe": torch.arange(3),
    }
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert bytes(encode(tensors)) == safetensors.torch.save(plain)


def test_encoded_tensors_are_a_copy():
    weight = torch.ones(3)
    body = encode({"weight": weight, "tied": weight})
    weight.zero_()
    assert all(tensor.tolist() == [1, 1, 1] for tensor in read_state(body).values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_every_usual_dtype_arrives_as_sent(dtype):
    tensors = {"x": torch.tensor([[1, 2], [3, 4]], dtype=dtype), "scalar": torch.tensor(7, dtype=dtype)}
    received = read_body(pack(tensors, kind="k", peer=0, round_index=0), sender=0, expected=tensors)
    assert all(
        torch.equal(received[name], tensor) and received[name].dtype == dtype for name, tensor in tensors.items()
    )


def test_a_transposed_tensor_arrives_with_its_values_in_place():
    tensor = torch.arange(6.0).view(2, 3).t()
    received = read_body(pack({"x": tensor}, kind="k", peer=0, round_index=0), sender=0, expected={"x": tensor})
    assert received["x"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


@EXAMPLES
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6))
def test_any_finite_values_arrive_bit_for_bit(values):
    tensors = {"x": torch.tensor(values)}
    received = read_body(pack(tensors, kind="k", peer=0, round_index=0), sender=0, expected=tensors)
    assert bits(received["x"]) == bits(tensors["x"])


def test_a_message_costs_its_manifest_and_its_body():
    assert Message(b"12", b"345").payload_bytes == 5
    assert genuine().payload_bytes == len(genuine().manifest) + len(genuine().body)


def test_the_manifest_is_true_of_the_body():
    manifest = read_manifest(genuine(), sender=SENDER, round_index=ROUND, kind="snapshot")
    assert (manifest.peer, manifest.round_index, manifest.kind) == (SENDER, ROUND, "snapshot")
    assert manifest.size == len(genuine().body)
    assert manifest.sha256 == hashlib.sha256(genuine().body).hexdigest()


def test_the_manifest_holds_nothing_else():
    assert sorted(json.loads(genuine().manifest)) == sorted(ENTRIES)


def test_the_forgers_own_copy_of_the_genuine_message_is_accepted():
    # Or else the refusals below would prove nothing.
    assert decode(forged()).statistics == STATISTICS
    assert decode(forged(body=body_of())).tensors.keys() == sent_model().state_dict().keys()


# --- the envelope


def test_a_truncated_body_is_refused_with_both_sizes():
    size = len(genuine().body)
    assert_refused(Message(genuine().manifest, genuine().body[:-1]), f"announced {size} bytes and sent {size - 1}")


def test_a_body_with_another_digest_is_refused():
    assert_refused(forged(sha256="0" * 64), "does not match its sha256 000000000000...")


def test_one_flipped_bit_is_refused():
    body = bytearray(genuine().body)
    body[-1] ^= 1
    assert_refused(Message(genuine().manifest, bytes(body)), "sha256")


def test_a_wrong_size_is_refused():
    assert_refused(forged(size=3), "announced 3 bytes")


def test_a_message_of_another_sender_is_refused():
    assert_refused(forged(peer=7), "of peer 7")


@pytest.mark.parametrize("round_index", [0, ROUND - 1, ROUND + 1])
def test_a_message_of_another_round_is_refused(round_index):
    assert_refused(forged(round_index=round_index), f"round {round_index}", f"expected 'snapshot' of round {ROUND}")


def test_a_message_of_another_kind_is_refused():
    assert_refused(forged(kind="generator"), "'generator'", "expected 'snapshot'")


@pytest.mark.parametrize(
    "manifest",
    [b"", b"{", b"null", b"[]", b"3", b'"text"', b"{}", b"\xff\xfe\x00", b"[" * 5000, b'{"peer": 1, "peer": 2}'],
)
def test_a_malformed_manifest_is_refused(manifest):
    assert_refused(Message(manifest, genuine().body), "malformed manifest")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"surprise": 1}, "surprise"),
        ({"peer": -1}, "peer"),
        ({"peer": 1.5}, "peer"),
        ({"peer": None}, "peer"),
        ({"round_index": "soon"}, "round_index"),
        ({"size": -1}, "size"),
        ({"sha256": "abc"}, "sha256"),
        ({"sha256": "A" * 64}, "sha256"),
        ({"kind": 3}, "kind"),
        ({"architecture": ["cnn6"]}, "architecture"),
        ({"schema_version": 2}, "schema_version"),
        ({"statistics": [1, 2, 3]}, "statistics"),
    ],
)
def test_a_manifest_entry_that_cannot_be_is_refused_by_name(changes, place):
    assert_refused(forged(**changes), f"malformed manifest: {place}")


@pytest.mark.parametrize("entry", ["kind", "peer", "round_index", "size", "sha256"])
def test_a_manifest_without_a_needed_entry_is_refused_by_name(entry):
    assert_refused(forged(without=entry), f"malformed manifest: {entry}")


# --- the statistics


@pytest.mark.parametrize("name", ["counts", "accuracies", "cross_entropies"])
@pytest.mark.parametrize("values", [[], [1, 1], [1, 1, 1, 1]])
def test_statistics_for_another_number_of_classes_are_refused(name, values):
    assert_refused(with_statistics(**{name: values}), "statistics for", f"expected {CLASSES}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accuracies", 1.0001),
        ("accuracies", -0.1),
        ("accuracies", math.nan),
        ("accuracies", math.inf),
        ("counts", -1),
        ("counts", math.nan),
        ("counts", math.inf),
        ("counts", None),
        ("cross_entropies", -0.5),
        ("cross_entropies", math.nan),
        ("cross_entropies", math.inf),
    ],
)
def test_a_statistic_that_cannot_be_is_refused_with_its_place(name, value):
    assert_refused(with_statistics(**{name: [1, value, 1]}), f"statistics.{name}.1")


def test_a_snapshot_without_statistics_is_refused():
    assert_refused(forged(without="statistics"), "without class statistics")


def test_an_unknown_statistic_is_refused():
    assert_refused(with_statistics(labels=[1, 2, 3]), "statistics.labels")


# --- the architecture


@pytest.mark.parametrize("name", ["resnet18", "cnn6", "cnn6@0.25", "cnn6@0.1250", "", "CNN6@0.125", "cnn6@nan"])
def test_an_architecture_outside_the_settings_is_refused_with_the_right_one(name):
    assert_refused(forged(architecture=name), f"architecture {name!r}", "its own in this federation is cnn6@0.125")


def test_a_snapshot_without_an_architecture_is_refused():
    assert_refused(forged(without="architecture"), "architecture None")


def test_an_import_path_of_a_peer_is_never_imported(tmp_path, monkeypatch):
    trap = tmp_path / "was_imported"
    (tmp_path / "crad_trap_module.py").write_text(f"open({str(trap)!r}, 'w').close()\nbuild = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in ("crad_trap_module:build", "crad_trap_module:build@0.125", "crad_trap_module"):
        assert_refused(forged(architecture=path), repr(path))
    assert "crad_trap_module" not in sys.modules
    assert not trap.exists()
    __import__("crad_trap_module")  # the trap does work
    del sys.modules["crad_trap_module"]
    assert trap.exists()


def test_a_peer_is_bound_to_its_own_architecture():
    """Another member's is refused too, although everybody can run it and the tensors fit it."""
    wide = new_model(context(), Architecture("cnn6-wide", 0.125), seed=5).state_dict()
    body = bytes(pack(wide, kind="snapshot", peer=SENDER, round_index=ROUND).body)
    assert_refused(forged(body=body, architecture="cnn6-wide@0.125"), "its own in this federation is cnn6@0.125")


# --- the body


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["head.3.bias", "features.1.running_var"])
def test_a_weight_or_buffer_that_is_not_finite_is_refused(name, value):
    tensor = sent_model().state_dict()[name].clone()
    tensor[-1] = value
    assert_refused(forged(body=body_of(**{name.replace(".", "__"): tensor})), "non-finite", repr(name))


def test_a_missing_tensor_is_refused():
    assert_refused(forged(body=body_of(head__3__bias=None)), "sent nothing as tensor 'head.3.bias', expected F32 [3]")


def test_an_extra_tensor_is_refused():
    assert_refused(forged(body=body_of(extra=torch.zeros(2))), "sent F32 [2] as tensor 'extra', expected nothing")


@pytest.mark.parametrize("shape", [(4,), (1, 3), (3, 1), (), (0,)])
def test_a_tensor_of_another_shape_is_refused_with_both_shapes(shape):
    message = forged(body=body_of(head__3__bias=torch.zeros(shape)))
    assert_refused(message, f"sent F32 {list(shape)} as tensor 'head.3.bias', expected F32 [3]")


@pytest.mark.parametrize(("dtype", "name"), [(torch.float64, "F64"), (torch.float16, "F16"), (torch.int32, "I32")])
def test_a_tensor_of_another_dtype_is_refused_with_both(dtype, name):
    message = forged(body=body_of(head__3__bias=torch.zeros(3, dtype=dtype)))
    assert_refused(message, f"sent {name} [3] as tensor 'head.3.bias', expected F32 [3]")


def test_an_empty_body_is_refused():
    assert_refused(forged(body=b""), "malformed header")


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40])
def test_a_huge_header_length_asks_for_no_memory_and_is_refused(length):
    assert_refused(forged(body=struct.pack("<Q", length) + genuine().body[8:]))


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"\xff\xff",
        b"[" * 50_000,
        [1],
        3,
        None,
        {"x": None},
        {"x": "text"},
        {"x": {}},
        {"x": {"dtype": "F32", "shape": None, "data_offsets": [0, 0]}},
        {"x": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 0]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**12]}},
        {"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [10**6] * 6, "data_offsets": [0, 4]}},
        b'{"x": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 4]}}',
    ],
    ids=range(17),
)
def test_a_malformed_header_is_refused(header):
    assert_refused(forged(body=with_header(header)), "malformed header")


def expect_x(body: bytes):
    return read_body(Message(b"", body), sender=SENDER, expected={"x": torch.zeros(2)})


X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"x": X}, bytes(4)),  # less data than announced
        ({"x": X}, bytes(12)),  # more
        ({"x": {**X, "data_offsets": [4, 12]}}, bytes(12)),  # a hole in front
        ({"x": {**X, "data_offsets": [0, 4]}}, bytes(4)),  # fewer bytes than the shape needs
        ({"x": {**X, "data_offsets": [0.0, 8.0]}}, bytes(8)),
        ({"x": X, "__metadata__": 3}, bytes(8)),
    ],
    ids=range(6),
)
def test_a_header_that_lies_about_its_data_is_refused(header, data):
    with pytest.raises(SnapshotError, match="peer 1 sent a body with a malformed header"):
        expect_x(with_header(header, data))


def test_a_header_that_names_a_tensor_twice_cannot_smuggle_in_another_shape():
    large, small = '{"dtype":"F32","shape":[4],"data_offsets":[0,16]}', json.dumps(X)
    assert expect_x(with_header(f'{{"x":{large},"x":{small}}}'.encode(), bytes(8)))["x"].shape == (2,)
    with pytest.raises(SnapshotError, match=r"sent F32 \[4\] as tensor 'x'"):
        expect_x(with_header(f'{{"x":{small},"x":{large}}}'.encode(), bytes(16)))


class Touch:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_does_nothing(tmp_path, protocol):
    trap = tmp_path / "was_unpickled"
    attack = pickle.dumps(Touch(trap), protocol=protocol)
    assert_refused(forged(body=attack))
    assert_refused(forged(body=with_header(attack)), "malformed header")
    assert_refused(Message(attack, genuine().body), "malformed manifest")
    assert not trap.exists()
    pickle.loads(attack)  # the trap does work
    assert trap.exists()


def test_what_torch_saves_does_nothing(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save(sent_model().state_dict(), path)
    assert_refused(forged(body=path.read_bytes()))


def test_a_refused_message_leaves_the_shelf_as_it_was():
    ours = TeacherCache(context())
    good = ours.decode(genuine(), sender=SENDER, round_index=ROUND)
    with pytest.raises(SnapshotError):
        ours.decode(forged(sha256="0" * 64), sender=SENDER, round_index=ROUND)
    assert ours.decode(genuine(), sender=SENDER, round_index=ROUND) is good


# --- anything at all


def assert_accepted_or_refused(message: Message) -> None:
    line = None
    try:
        snapshot = decode(message)
    except SnapshotError as error:
        line = str(error)
    if line is not None:
        assert line.startswith(f"peer {SENDER} ")
        return
    assert all(tensor.isfinite().all() for tensor in snapshot.tensors.values())
    shelf().get(snapshot)  # whatever is accepted fits the model


@EXAMPLES
@given(manifest=st.binary(max_size=60), body=st.binary(max_size=60))
def test_random_bytes_are_refused(manifest, body):
    assert_refused(Message(manifest, genuine().body))
    assert_refused(Message(genuine().manifest, body))
    assert_refused(forged(body=body))


texts = st.text(alphabet="aF32@:\n\x00é", max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@EXAMPLES
@given(entry=st.sampled_from(ENTRIES), value=json_values)
def test_any_value_of_a_manifest_entry_is_accepted_or_refused(entry, value):
    assert_accepted_or_refused(forged(**{entry: value}))


@EXAMPLES
@given(place=st.sampled_from(["dtype", "shape", "data_offsets", None]), value=json_values)
def test_any_value_in_a_header_is_accepted_or_refused(place, value):
    body = bytes(genuine().body)
    (length,) = struct.unpack_from("<Q", body)
    header = json.loads(body[8 : 8 + length])
    if place is None:
        header["head.3.bias"] = value
    else:
        header["head.3.bias"][place] = value
    assert_accepted_or_refused(forged(body=with_header(header, body[8 + length :])))


@EXAMPLES
@given(data=st.data(), is_signed=st.booleans())
def test_any_damage_to_a_message_is_accepted_or_refused(data, is_signed):
    part = data.draw(st.sampled_from(["manifest", "body"]))
    content = bytearray(getattr(genuine(), part))
    # The first bytes, where the header is, are the interesting ones.
    start = data.draw(st.integers(0, min(400, len(content) - 1)) | st.integers(0, len(content) - 1))
    content[start : start + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    if part == "manifest":
        assert_accepted_or_refused(Message(bytes(content), genuine().body))
    elif is_signed:
        assert_accepted_or_refused(forged(body=bytes(content)))
    elif bytes(content) != genuine().body:
        assert_refused(Message(genuine().manifest, bytes(content)))


# --- found by reading the code against the specification


def test_a_message_already_decoded_is_refused_when_it_comes_again_in_another_round():
    ours = TeacherCache(context())
    ours.decode(genuine(), sender=SENDER, round_index=ROUND)
    with pytest.raises(SnapshotError):
        ours.decode(genuine(), sender=SENDER, round_index=ROUND + 1)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int8])
def test_a_small_integer_buffer_arrives_as_sent(dtype):
    tensors = {"x": torch.tensor([1, 2], dtype=dtype)}
    received = read_body(pack(tensors, kind="k", peer=0, round_index=0), sender=0, expected=tensors)
    assert torch.equal(received["x"], tensors["x"])


def test_tied_weights_can_be_sent():
    weight = torch.tensor([1.0, 2.0])
    tensors = {"encoder": weight, "decoder": weight}
    received = read_body(pack(tensors, kind="k", peer=0, round_index=0), sender=0, expected=tensors)
    assert torch.equal(received["decoder"], weight)


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J"])
def test_a_peers_words_are_quoted_so_that_they_stay_on_one_line(text):
    entry: dict[str, Any] = {text: 1}
    header = {"head.3.bias": {"dtype": text, "shape": [3], "data_offsets": [0, 12]}}
    for message in (forged(**entry), forged(body=with_header(header, bytes(12)))):
        with pytest.raises(SnapshotError) as refusal:
            decode(message)
        assert str(refusal.value).isprintable()


@pytest.mark.parametrize("entry", ["kind", "architecture", "surprise" * 5000, "schema_version", "sha256"])
def test_a_flood_of_a_peers_words_is_cut_short(entry):
    with pytest.raises(SnapshotError) as refusal:
        decode(forged(**{entry: "words " * 5000}))  # type: ignore[arg-type]
    assert len(str(refusal.value)) < 500


def test_a_flood_in_a_header_is_cut_short():
    flood = "F" * 50_000
    for header in ({flood: X}, {"x": {**X, "dtype": flood}}, {"x": {**X, "shape": [2] * 5000}}):
        with pytest.raises(SnapshotError) as refusal:
            expect_x(with_header(header, bytes(8)))
        assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("entry", ["peer", "round_index", "size"])
def test_a_flood_of_digits_is_cut_short(entry):
    with pytest.raises(SnapshotError) as refusal:
        decode(forged(**{entry: 10**4000}))  # type: ignore[arg-type]
    assert len(str(refusal.value)) < 500


def test_a_buffer_that_is_a_view_into_a_weight_can_be_sent():
    weight = torch.tensor([1.0, 2.0, 3.0])
    tensors = {"weight": weight, "tail": weight[1:]}
    received = read_body(pack(tensors, kind="k", peer=0, round_index=0), sender=0, expected=tensors)
    assert received["tail"].tolist() == [2.0, 3.0]


def test_a_mapped_body_is_looked_into_and_its_file_never_changes(tmp_path):
    sent = genuine()
    file = tmp_path / "body"
    file.write_bytes(bytes(sent.body))
    mapped = message_in_file(sent.manifest, file)
    assert mapped.payload_bytes == sent.payload_bytes
    first, second = (read_body(mapped, sender=SENDER, expected=sent_model().state_dict()) for _ in range(2))
    name = next(iter(first))
    assert first[name].data_ptr() == second[name].data_ptr(), "copied"
    first[name].zero_()
    assert file.read_bytes() == sent.body


@pytest.mark.parametrize("padding", range(8))
def test_tensors_at_odd_places_are_read_right(padding):
    """Our writer pads the header so that numbers are aligned; another may not."""
    body = safetensors.torch.save({"a": torch.arange(3.0), "b": torch.arange(2)})
    (length,) = struct.unpack_from("<Q", body)
    odd = struct.pack("<Q", length + padding) + body[8 : 8 + length] + b" " * padding + body[8 + length :]
    for content in (odd, memoryview(bytearray(odd))):
        tensors = read_state(content)
        assert tensors["a"].tolist() == [0.0, 1.0, 2.0]
        assert tensors["b"].tolist() == [0, 1]
