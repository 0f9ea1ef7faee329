"""Arrays, networks, rules and methods passed as objects: runs as by name, honest records, models that predict."""

from __future__ import annotations

import doctest
import gc
import inspect
import json
import tomllib
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import PositiveInt
from torch import nn

import crad
from crad.aggregation.filters import keep_all, median_filter
from crad.aggregation.weights import accuracy, equal
from crad.cli import main
from crad.data.federated_data import build_federated_data
from crad.data.readers.arrays import encode_labels
from crad.data.readers.npz import read_npz
from crad.errors import ConfigError, CradError, DataError, RunError
from crad.federation.method import MethodSpec, Phase
from crad.methods.alone import train_alone
from tests.conftest import change
from tests.pages import Page
from tests.test_golden import without_timing

WORDS = np.array(["ant", "bee", "cat", "dog"])


def my_build(num_classes: int, in_channels: int) -> nn.Module:
    layers = nn.Conv2d(in_channels, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, num_classes)
    return nn.Sequential(*layers)


class Alone(MethodSpec):
    k: PositiveInt = 3

    def phases(self) -> Sequence[Phase]:
        return [Phase("alone", learn=train_alone)]


class Items:
    """A map-style data set: len(d) and d[i]."""

    def __init__(self, images, labels, classes=None):
        self.images, self.labels = images, labels
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


@pytest.fixture(scope="module")
def arrays(tiny_npz):
    splits = read_npz(tiny_npz)
    return splits.train_images, splits.train_labels, splits.test_images, splits.test_labels


@pytest.fixture(scope="module")
def data(arrays):
    x_train, y_train, x_test, y_test = arrays
    return crad.Dataset.from_arrays(x_train, WORDS[y_train], x_test, WORDS[y_test], name="beasts")


@pytest.fixture(scope="module")
def balanced(tiny):
    return change(tiny, local_loss="balanced", lr=0.05, models=("cnn6",), eval_every=2)


@pytest.fixture(scope="module")
def result(balanced, data):
    """Two networks of our own and one passed in memory; nothing is written."""
    return crad.run(change(balanced, committee=True), data=data, models=[my_build, "cnn6", "resnet18-half"])


# --- labels and shapes


def test_string_labels_are_classes_in_sorted_order():
    train, test, names = encode_labels(["dog", "ant", "dog"], ["cat"])
    assert (train.tolist(), test.tolist(), names) == ([2, 0, 2], [1], ("ant", "cat", "dog"))


def test_string_labels_follow_the_given_order_of_classes():
    train, test, names = encode_labels(np.array(["b", "a"], object), ["a"], ["b", "a", "z"])
    assert (train.tolist(), test.tolist(), names) == ([0, 1], [1], ("b", "a", "z"))


@pytest.mark.parametrize(
    ("classes", "names"), [(None, ("1", "2", "3")), (["low", "mid", "high"], ("low", "mid", "high"))]
)
def test_labels_from_1_to_c_are_understood(classes, names):
    assert encode_labels([1, 3, 2], [3], classes)[0].tolist() == [0, 2, 1]
    assert encode_labels([1, 3, 2], [3], classes)[1:][0].tolist() == [2]
    assert encode_labels([1, 3, 2], [3], classes)[2] == names


def test_labels_from_0_stay_as_they_are_also_where_the_first_class_is_absent():
    assert encode_labels([1, 2], [1], ["a", "b", "c", "d"])[0].tolist() == [1, 2]
    assert encode_labels([0, 2], [1], ["a", "b", "c"])[0].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("labels", "classes", "reason"),
    [
        ([0, 3], ["a", "b", "c"], "y_train: label 3 at index 1 names none of the 3 classes: number them 0..2 or 1..3"),
        (["a", "bee"], ["a", "bees"], "unknown class 'bee'. Did you mean 'bees'?"),
        ([0.5, 1.0], None, "y_train has dtype float64, expected whole numbers or strings"),
        ([[1, 0], [0, 1]], None, "y_train has shape (2, 2), expected [N]: one class per sample"),
        ([0, 1], ["a", "a"], "classes has 'a' twice"),
    ],
)
def test_wrong_labels_are_refused_in_one_line(labels, classes, reason):
    with pytest.raises(DataError) as refusal:
        encode_labels(labels, [0] if not isinstance(labels[0], str) else ["a"], classes)
    assert reason in str(refusal.value)


def test_every_layout_and_type_gives_the_same_images():
    x = np.random.default_rng(0).integers(0, 256, (6, 9, 11, 3), dtype=np.uint8)
    y = [0, 1] * 3
    channels_first = x.transpose(0, 3, 1, 2)
    for given in (
        *(x, channels_first, torch.from_numpy(x), torch.from_numpy(channels_first.copy()), x.astype(np.int64)),
        torch.from_numpy(channels_first.copy()).float() / 255,  # as torchvision's ToTensor makes them
    ):
        assert np.array_equal(crad.Dataset.from_arrays(given, y, given, y).train_images, x)
    gray = crad.Dataset.from_arrays(x[..., 0], y, x[..., 0], y)
    assert gray.train_images.shape == (6, 9, 11, 1)


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros(4), "x_train has shape (4,): expected images [N, H, W]"),
        (np.zeros((4, 2, 2, 2, 2)), "a list of texts, or with kind='series' or kind='audio' [N, T] or [N, C, T]"),
        (np.full((4, 13), np.inf), "column 'x0' has an infinite value; a gap is NaN"),
        (np.full((4, 13), "a"), "x_train is <U1 of shape (4, 13), expected numbers [N, F]"),
        (
            np.full((4, 16, 16), 200.0),
            "values 200 to 200: gray images, or series [N, channels, time]? Say",
        ),
        (np.full((4, 16, 16), 0.3333), "Say kind='image' or kind='series'"),
        (np.full((4, 16, 16), 300), "x_train is int64 of shape (4, 16, 16) with values 300 to 300"),
        (np.full((4, 16, 16, 2), np.nan), "train_images: image 0 has a value that is not finite"),
        (np.zeros((4, 5, 5), np.uint8), "expected sides of 8 or more"),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(x, reason):
    with pytest.raises(DataError) as refusal:
        crad.Dataset.from_arrays(x, [0, 1] * 2, x, [0, 1] * 2)
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_images_can_say_whose_they_are():
    x = np.zeros((4, 8, 8), np.uint8)
    data = crad.Dataset.from_arrays(x, [0, 1] * 2, x, [0, 1] * 2, site=["b", "a", "b", "a"])
    assert data.site_names == ("a", "b")
    assert data.train_sites is not None
    assert data.train_sites.tolist() == [1, 0, 1, 0]
    with pytest.raises(DataError, match="site has 3 entries for 4 training samples"):
        crad.Dataset.from_arrays(x, [0, 1] * 2, x, [0, 1] * 2, site=["b", "a", "b"])


def test_torch_data_sets_with_tensors_or_pillow_images(arrays):
    pillow = pytest.importorskip("PIL.Image")
    x, y = arrays[0][:20], arrays[1][:20]
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x)[:, None], torch.from_numpy(y))
    pictures = Items([pillow.fromarray(one) for one in x], y.tolist(), classes=WORDS.tolist())
    one, other = (crad.Dataset.from_torch(source, source) for source in (tensors, pictures))
    assert np.array_equal(one.train_images, other.train_images)
    assert np.array_equal(one.train_labels, other.train_labels)
    assert (one.class_names, other.class_names) == (("0", "1", "2", "3"), tuple(WORDS))


def test_a_torch_data_set_must_have_pairs_and_a_length():
    with pytest.raises(DataError, match=r"train\[0\] is a int, expected \(image, label\)"):
        crad.Dataset.from_torch([1, 2], [1, 2])
    with pytest.raises(ConfigError, match="train is a generator, expected a map-style data set"):
        crad.Dataset.from_torch((one for one in "ab"), [])


def test_a_hugging_face_data_set_is_read_by_its_columns(arrays):
    class Feature:
        names = WORDS.tolist()

    class Split(dict[str, Any]):
        column_names = ("picture", "kind")
        features = types.MappingProxyType({"kind": Feature()})

    split = Split(picture=list(arrays[0][:20]), kind=arrays[1][:20].tolist())
    read = crad.Dataset.from_huggingface({"train": split, "test": split}, image="picture", label="kind")
    assert read.class_names == tuple(WORDS)
    assert np.array_equal(read.test_images[..., 0], arrays[0][:20])
    with pytest.raises(ConfigError, match=r"unknown column of 'train' 'image'. .*Known: kind, picture"):
        crad.Dataset.from_huggingface({"train": split, "test": split}, label="kind")
    with pytest.raises(ConfigError, match="unknown split 'test'"):
        crad.Dataset.from_huggingface({"train": split}, image="picture", label="kind")


# --- runs


def test_data_in_memory_gives_the_run_of_the_file(shallow, arrays):
    by_name = crad.run(change(shallow, rounds=2))
    in_memory = crad.run(change(shallow, rounds=2, dataset="cifar10"), data=crad.Dataset.from_arrays(*arrays))
    assert without_timing(in_memory.rounds) == without_timing(by_name.rounds)


def test_limits_apply_to_data_in_memory_too(shallow, data):
    summary = crad.run(change(shallow, rounds=1, train_limit=120, test_limit=40, method="local"), data=data).summary
    assert (summary["train_images"], summary["test_images"]) == (120, 40)


def test_a_class_that_only_the_test_images_have_is_said(tiny, arrays):
    x_train, y_train, x_test, y_test = arrays
    wrong = np.where(np.arange(len(y_test)) == 3, "bea", WORDS[y_test])
    data = crad.Dataset.from_arrays(x_train, WORDS[y_train], x_test, wrong, name="insects")
    result = crad.run(change(tiny, rounds=1, models=("cnn6",), method="local"), data=data)
    assert result.notices == (
        "insects: class 'bea' occurs only in the test set, so no client can learn it: is a label misspelt?",
    )


@pytest.mark.usefixtures("forked_workers")
def test_all_cores_work_on_data_in_memory(tiny, data):
    short = change(tiny, rounds=2, models=("cnn6",))
    alone = crad.run(short, data=data)
    together = crad.run(change(short, engine="processes", workers=2), data=data)
    assert together.summary["hardware"]["workers"] == 2
    assert without_timing(together.rounds) == without_timing(alone.rounds)
    assert together.notices == ()


@pytest.mark.parametrize("engine", ["auto", "processes"])
def test_a_network_in_memory_means_one_process_and_that_is_said(engine, tiny, data):
    heard: list[str] = []
    experiment = change(tiny, rounds=1, method="local", workers=2, engine=engine)
    listener = crad.LambdaCallback(on_notice=heard.append)
    result = crad.run(experiment, data=data, models=[my_build], callbacks=[listener])
    assert result.summary["hardware"]["workers"] == 1
    assert result.notices == tuple(heard)
    assert "'my_build' is an object in this process's memory: one process instead of several" in heard[0]


def test_the_run_directory_says_what_was_an_object(tiny, data, tmp_path):
    crad.run(change(tiny, rounds=1), data=data, models=[my_build, "cnn6"], output=tmp_path / "run")
    written = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())
    name, _, digest = written["dataset"].partition("@")
    assert (name, len(digest)) == ("object:beasts", 12)
    assert written["models"] == ["object:my_build", "cnn6"]
    page = Page((tmp_path / "run" / "report.html").read_text()).text
    assert f"data=<beasts@{digest}>, models=(<my_build>, 'cnn6')" in page


def test_other_data_has_another_name(tiny, data, arrays):
    names = {
        crad.run(change(tiny, rounds=1, method="local", models=("cnn6",)), data=one).summary["dataset"]
        for one in (data, crad.Dataset.from_arrays(*arrays, name="beasts"))
    }
    assert len(names) == 2


class StopError(Exception):
    pass


def stop_after(round_index):
    def stop(record):
        if record["round"] == round_index:
            raise StopError

    return crad.LambdaCallback(on_round=stop)


def test_a_resumed_run_needs_its_objects_again_and_ends_as_it_would_have(tiny, data, arrays, tmp_path, capsys):
    objects = {"data": data, "models": [my_build, "cnn6"], "method": Alone(k=2)}
    whole = crad.run(tiny, **objects, output=tmp_path / "whole")
    path = tmp_path / "run"
    with pytest.raises(StopError):
        crad.run(tiny, **objects, output=path, callbacks=[stop_after(1)])
    digest = tomllib.loads((path / "experiment.toml").read_text())["dataset"].partition("@")[2]
    clear = (
        f"{path} was run with objects from Python's memory (data=beasts@{digest}, models=my_build, method=Alone), and "
        "not with the ones given now: pass the same ones again, crad.run(experiment, data=..., models=..., method=..., "
        "output=..., resume=True)"
    )
    with pytest.raises(ConfigError) as refusal:
        crad.run(tiny, output=path, resume=True)
    assert str(refusal.value) == clear
    with pytest.raises(ConfigError, match=r"\(data=beasts@"):
        crad.run(tiny, **{**objects, "data": crad.Dataset.from_arrays(*arrays)}, output=path, resume=True)
    with pytest.raises(SystemExit) as ended:
        run_command("run", "--resume", str(path))
    assert (ended.value.code, capsys.readouterr().err) == (2, f"crad: {clear}\n")
    resumed = crad.run(tiny, **objects, output=path, resume=True)
    assert without_timing(resumed.rounds) == without_timing(whole.rounds)
    assert crad.run(tiny, **objects, output=path, resume=True).summary == resumed.summary


def test_another_network_of_the_same_name_is_refused(tiny, data, tmp_path):
    short, path = change(tiny, rounds=2, method="local"), tmp_path / "run"
    with pytest.raises(StopError):
        crad.run(short, data=data, models=[my_build], output=path, callbacks=[stop_after(1)])

    def wider(num_classes, in_channels):
        layers = nn.Conv2d(in_channels, 9, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(576, num_classes)
        return nn.Sequential(*layers)

    wider.__name__ = "my_build"
    with pytest.raises(
        ConfigError, match=r"model 'my_build' is another network now: '0.weight' is \(9, 1, 3, 3\), and \(8"
    ):
        crad.run(short, data=data, models=[wider], output=path, resume=True)
    crad.run(short, data=data, models=[my_build], output=path, resume=True)
    with pytest.raises(ConfigError, match=r"model 'my_build\S*' is another network now"):
        crad.load(path, models=[wider]).models[0]


def run_command(*words):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["crad", *words])
        main()


def test_a_method_object_runs_with_its_settings(shallow, data):
    result = crad.run(change(shallow, rounds=2), data=data, method=Alone(k=2))
    local = crad.run(change(shallow, rounds=2, method="local"), data=data)
    assert result.experiment.method_settings == {"k": 2}
    assert result.summary["method"] == "object:Alone"
    assert result.summary["global_accuracy_per_client"] == local.summary["global_accuracy_per_client"]


def test_a_rule_object_runs_as_the_rule_by_name(shallow, data):
    short = change(shallow, rounds=2)
    by_name = crad.run(change(short, method="accuracy"), data=data)
    known = crad.run(short, data=data, rule=crad.Rule(median_filter, accuracy))
    assert known.summary["method"] == "accuracy"
    own = crad.run(short, data=data, rule=crad.Rule(keep_all, lambda evidence, selection: equal(evidence, selection)))
    uniform = crad.run(change(short, method="uniform"), data=data)
    assert own.summary["method"] == "object:keep_all-lambda"
    assert own.summary["global_accuracy_per_client"] == uniform.summary["global_accuracy_per_client"]
    assert known.summary["global_accuracy_per_client"] == by_name.summary["global_accuracy_per_client"]


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ({"models": [nn.Linear(2, 2)]}, "a Linear is no function (num_classes, in_channels) that makes a new network"),
        ({"models": "cnn6"}, "models is 'cnn6', expected a list"),
        ({"models": []}, "models is [], expected a list"),
        ({"method": 3}, "method is a int, expected a name"),
        ({"method": "crad", "rule": "uniform"}, "rule and method were both passed"),
        ({"rule": 3}, "rule is a int, expected a name or a crad.Rule(keep, weigh)"),
    ],
)
def test_what_is_no_model_method_or_rule_is_refused(objects, reason, tiny, data):
    with pytest.raises(ConfigError) as refusal:
        crad.run(tiny, data=data, **objects)
    assert reason in str(refusal.value)


# --- models


def accuracy_of(model, images, labels, face="global"):
    return 100 * float(np.mean(model.predict(images, face) == labels))


def test_models_reach_on_raw_images_what_the_summary_says(result, data, arrays):
    for client, model in enumerate(result.models):
        reached = accuracy_of(model, arrays[2], WORDS[arrays[3]])
        assert reached == pytest.approx(result.summary["global_accuracy_per_client"][client])


def test_the_local_face_reaches_the_local_accuracy_on_the_own_test_half(result, data, arrays):
    shards = build_federated_data(result.experiment, data, device="cpu").shards
    for client, model in enumerate(result.models):
        half = shards[client].test
        reached = accuracy_of(model, arrays[0][half], WORDS[arrays[1][half]], "local")
        assert reached == pytest.approx(result.summary["local_accuracy_per_client"][client])


def test_the_local_face_is_the_global_one_times_the_owners_class_shares(result):
    model = result.models[0]
    x = np.random.default_rng(1).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    prior = np.exp(np.array(model.card.log_prior))
    assert prior.sum() == pytest.approx(1)
    weighed = model.predict_proba(x) * prior
    expected = weighed / weighed.sum(axis=1, keepdims=True)
    assert model.predict_proba(x, face="local") == pytest.approx(expected, abs=1e-6)


def test_without_the_balanced_loss_both_faces_are_the_same(shallow, data, arrays):
    model = crad.run(change(shallow, rounds=1, method="local"), data=data).models[0]
    assert model.card.log_prior is None
    assert np.array_equal(model.predict_proba(arrays[2], "local"), model.predict_proba(arrays[2]))


def test_raw_inputs_may_come_in_every_shape_that_data_may(result, arrays):
    model, x = result.models[1], arrays[2][:7]
    expected = model.predict_proba(x)
    assert expected.shape == (7, 4)
    assert expected.dtype == np.float32
    for same in (x[..., None], x[:, None], torch.from_numpy(x), (torch.from_numpy(x).float() / 255)[:, None]):
        assert np.array_equal(model.predict_proba(same), expected)
    for alone in (x[0], x[0][..., None], x[0][None]):
        assert model.predict_proba(alone) == pytest.approx(expected[:1], abs=1e-6)
    assert model.predict(x).tolist() == WORDS[model.predict(x, as_index=True)].tolist()
    assert model.predict_proba(x[:0]).shape == (0, 4)


def test_other_inputs_and_faces_are_refused(result):
    model = result.models[0]
    with pytest.raises(DataError, match=r"images are 9x8x1, this model takes 8x8x1 \(height x width x channels\)"):
        model.predict(np.zeros((3, 9, 8), np.uint8))
    with pytest.raises(DataError, match="images are 8x8x3, this model takes 8x8x1"):
        model.predict(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(ConfigError, match=r"unknown face 'own'\. Known: global, local"):
        model.predict(np.zeros((2, 8, 8), np.uint8), "own")


def test_unknown_clients_are_refused_and_slices_work(result):
    with pytest.raises(ConfigError, match="client 4 does not exist; choose 0 to 3"):
        result.models[4]
    assert len(result.models[1:3]) == 2
    assert result.models[-1].card.origin["client"] == 3


def test_a_model_at_the_selected_round_not_the_last_one(tiny, data, arrays):
    """With a learning rate this high the second of four rounds is the best one."""
    result = crad.run(change(tiny, lr=0.2, rounds=4, method="local", models=("cnn6",), seed=3), data=data)
    assert result.summary["best_round"] < 4, "or this says nothing"
    for client, model in enumerate(result.models):
        reached = accuracy_of(model, arrays[2], WORDS[arrays[3]])
        assert reached == pytest.approx(result.summary["global_accuracy_per_client"][client])


def test_who_never_learned_has_its_first_weights(shallow, data, arrays):
    result = crad.run(change(shallow, rounds=1, active=2), data=data)
    for client, model in enumerate(result.models):
        reached = accuracy_of(model, arrays[2], WORDS[arrays[3]])
        assert reached == pytest.approx(result.summary["global_accuracy_per_client"][client])


def test_the_states_of_a_run_without_a_directory_go_with_its_result(shallow, data):
    result = crad.run(change(shallow, rounds=1, method="local"), data=data)
    kept = result.models.folder
    assert kept is not None
    folder = kept.path
    assert folder.is_dir()
    del result, kept
    gc.collect()
    assert not folder.exists()


def test_a_run_that_fails_leaves_no_states_behind(shallow, data, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(StopError):
        crad.run(shallow, data=data, callbacks=[stop_after(1)])
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_run_predicts_as_the_one_that_was_run(tiny, data, arrays, tmp_path):
    done = crad.run(change(tiny, rounds=2), data=data, output=tmp_path / "run")
    loaded = crad.load(tmp_path / "run")
    assert loaded.summary == done.summary
    for mine, theirs in zip(done.models, loaded.models, strict=True):
        assert np.array_equal(mine.predict_proba(arrays[2]), theirs.predict_proba(arrays[2]))


def test_a_loaded_run_wants_the_networks_that_were_objects(tiny, data, arrays, tmp_path):
    done = crad.run(change(tiny, rounds=1), data=data, models=[my_build, "cnn6"], output=tmp_path / "run")
    loaded = crad.load(tmp_path / "run")
    assert len(loaded.to_frame()) == 4
    assert loaded.models[1].classes == tuple(WORDS)
    with pytest.raises(ConfigError, match=r"model 'my_build' was an object .*: pass it again as models=\[...\]"):
        loaded.models[0]
    again = crad.load(tmp_path / "run", models=[my_build, "cnn6"]).models[0]
    assert np.array_equal(again.predict_proba(arrays[2]), done.models[0].predict_proba(arrays[2]))


def test_a_run_of_an_earlier_version_has_models_too(shallow, arrays, tmp_path):
    done = crad.run(change(shallow, rounds=1, local_loss="balanced"), output=tmp_path / "run")
    (tmp_path / "run" / "models.json").unlink()
    loaded = crad.load(tmp_path / "run").models[2]
    assert loaded.card == done.models[2].card
    assert np.array_equal(loaded.predict_proba(arrays[2]), done.models[2].predict_proba(arrays[2]))


def test_what_is_not_finished_or_no_run_is_not_loaded(shallow, data, tmp_path):
    with pytest.raises(StopError):
        crad.run(shallow, data=data, output=tmp_path / "run", callbacks=[stop_after(1)])
    with pytest.raises(RunError, match="is not finished: continue it with crad run --resume"):
        crad.load(tmp_path / "run")
    with pytest.raises(RunError, match="is no run directory"):
        crad.load(tmp_path)


def test_models_whose_checkpoint_is_gone_are_said_to_be_gone(shallow, data, tmp_path):
    crad.run(change(shallow, rounds=1, method="local"), data=data, output=tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoint").glob("round-*.json"):
        file.unlink()
    with pytest.raises(RunError, match="has no checkpoint of round 1, so its models are gone"):
        crad.load(tmp_path / "run").models[0]


# --- what a notebook shows


def test_a_frame_has_a_row_for_every_round_and_client(result):
    frame = result.to_frame()
    assert list(zip(frame["round"], frame["client"], strict=True)) == [(r, c) for r in (1, 2, 3) for c in range(4)]
    for line in result.rounds:
        shown = frame[frame["round"] == line["round"]]
        assert shown["validation_accuracy"].mean() == pytest.approx(line["validation_accuracy"])
    best = frame[frame["round"] == result.summary["best_round"]]
    assert best["global_accuracy"].tolist() == pytest.approx(result.summary["global_accuracy_per_client"])


def test_without_pandas_one_line_says_what_to_install(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"to_frame needs pandas: pip install '\.\[notebook\]'"):
        result.to_frame()


def test_a_result_shows_its_figures_and_escapes_names(result):
    html = result._repr_html_()
    assert f"{result.summary['global_accuracy']:.2f} %" in html
    assert html.count("<tr>") == 6 + 1 + 4, "figures, heading, clients"
    assert "global, all together" in html
    assert "object:my_build" in html
    assert repr(result).startswith("<Result crad, balanced loss, seed 5 on object:beasts@")


def test_curves_are_a_chart_of_the_rounds(result):
    pytest.importorskip("altair")
    spec = result.curves().to_dict()
    drawn = {(row["round"], row["metric"]): row["accuracy"] for row in spec["datasets"]["rows"]}
    tested = [line for line in result.rounds if line["global_accuracy"] is not None]
    assert drawn == {
        **{(line["round"], "global test set"): line["global_accuracy"] for line in tested},
        **{(line["round"], "clients' own test halves"): line["local_accuracy"] for line in tested},
    }


# --- comparisons


@pytest.fixture(scope="module")
def compared(tiny, data):
    short = change(tiny, rounds=2, models=("cnn6",), alpha=1.0, committee=True)
    rule = crad.Rule(keep_all, lambda evidence, selection: equal(evidence, selection))
    return crad.compare(short, methods=["local", rule, Alone(k=1)], seeds=[1, 2], data=data)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seeds": [1, 1, 1]}, "seeds has 1 more than once: every run is repeatable, so give it once"),
        ({"seeds": []}, "seeds is empty: give at least one of them, or leave seeds out"),
        ({"seeds": 3}, "seeds = 3: expected a list, such as seeds=[3]"),
        ({"methods": "crad"}, "methods = 'crad': expected a list, such as methods=['crad']"),
        ({"methods": ["local", "crad", "local"]}, "methods has 'local' more than once"),
    ],
)
def test_what_is_to_be_compared_is_checked_before_anything_runs(given, words, tiny, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        crad.compare(tiny, **given, output=tmp_path / "runs")
    assert words in str(refusal.value)
    assert not (tmp_path / "runs").exists()


def test_a_comparison_has_every_method_with_every_seed(compared):
    assert [row.name for row in compared.rows] == ["local", "object:keep_all-lambda", "object:Alone"]
    frame = compared.to_frame()
    assert frame["seed"].tolist() == [1, 1, 1, 2, 2, 2]
    by_method = frame.groupby("method")
    assert by_method["global_accuracy"].mean()["local"] == pytest.approx(
        compared.rows[0].figures["global_accuracy"].mean
    )
    own = frame[frame["method"] == "object:Alone"]
    assert own["global_accuracy_difference"].tolist() == [0, 0], "it trains alone, as local does"
    assert own["local_accuracy_difference"].tolist() == [0, 0]
    gained = by_method["global_accuracy_difference"].mean()["object:keep_all-lambda"]
    assert gained == pytest.approx(compared.rows[1].difference["global_accuracy"].mean)


def test_a_comparison_shows_its_verdict_and_table(compared):
    assert "local" in repr(compared)
    assert compared.verdict
    html = compared._repr_html_()
    assert html.count("<tr>") == 1 + 3
    assert "&lt;" not in html.split("<table>")[1].split("</table>")[0]
    assert len(compared["local"]) == 2
    assert compared["object:Alone"][1].summary["seed"] == 2
    with pytest.raises(KeyError, match="'crad' was not compared; there are local, object:keep_all-lambda"):
        compared["crad"]


def test_curves_of_a_comparison_have_a_line_per_method(compared):
    pytest.importorskip("altair")
    rows = compared.curves().to_dict()["datasets"]["rows"]
    assert {row["method"] for row in rows} == {row.name for row in compared.rows}
    assert {row["seeds"] for row in rows} == {2}


def test_finished_runs_are_compared_as_they_are(compared):
    again = crad.compare(compared.results)
    assert again.rows == compared.rows
    with pytest.raises(RunError, match="a run"):
        crad.compare([])


def test_a_comparison_in_a_folder_continues_and_is_what_the_command_writes(tiny, data, tmp_path):
    short = change(tiny, rounds=1, models=("cnn6",))
    wanted = {"methods": ["local", Alone(k=1)], "data": data, "output": tmp_path / "both"}
    with pytest.raises(StopError):
        crad.compare(short, **wanted, callbacks=[LateStop()])
    done = crad.compare(short, **wanted)
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == [
        *("comparison.json", "comparison.md", "local-seed5", "object.Alone-seed5", "report.html")
    ]
    written = json.loads((tmp_path / "both" / "comparison.json").read_text())
    assert [row["name"] for row in written["rows"]] == [row.name for row in done.rows]
    assert done.directory == tmp_path / "both"
    paths = [tmp_path / "both" / name for name in ("local-seed5", "object.Alone-seed5")]
    assert crad.compare(paths).rows == done.rows


class LateStop(crad.Callback):
    """Stops at the end of the second run's first round."""

    def __init__(self):
        self.rounds = 0

    def on_round(self, record):
        self.rounds += 1
        if self.rounds == 2:
            raise StopError


def test_settings_of_a_compared_method_name_it(tiny, data):
    short = change(tiny, rounds=1, models=("cnn6",), method_settings={"fedmkd.mu": 0.25}, proxy_size=20)
    done = crad.compare(short, methods=["local", "fedmkd"], data=data)
    assert done["fedmkd"][0].experiment.method_settings["mu"] == 0.25
    with pytest.raises(ConfigError, match=r"'mu' names no compared method; write METHOD.mu=0.25 with one of local"):
        crad.compare(change(short, method_settings={"mu": 0.25}), methods=["local"], data=data)


# --- what is public


def test_completion_shows_the_public_names_and_nothing_else():
    import crad.api

    assert hasattr(crad, "api")
    assert dir(crad) == sorted(crad.__all__)


PUBLIC = {name: getattr(crad, name) for name in crad.__all__ if name != "RULES"}  # a plain dictionary
METHODS = {
    f"{one.__name__}.{name}": getattr(one, name)
    for one in (crad.Comparison, crad.Dataset, crad.Result, crad.TrainedModel)
    for name, member in vars(one).items()
    if not name.startswith("_") and (isinstance(member, classmethod) or inspect.isfunction(member))
}


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_every_public_name_is_documented_with_an_example_that_works(name):
    found = {**PUBLIC, **METHODS}[name]
    if name == "Result.records":
        assert found.__doc__
        return
    assert "Example:" in found.__doc__
    [test] = doctest.DocTestFinder(recurse=False).find(found, name, globs={"crad": crad})
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_every_public_function_is_typed(name):
    found = {**PUBLIC, **METHODS}[name]
    if inspect.isclass(found):
        return
    signature = inspect.signature(found)
    assert signature.return_annotation is not signature.empty
    for one in list(signature.parameters.values()):
        assert one.name == "self" or one.annotation is not one.empty


def test_errors_are_of_one_kind():
    assert issubclass(DataError, crad.CradError)
    assert crad.CradError is CradError


def test_models_json_has_what_the_models_need(tiny, tmp_path):
    crad.run(change(tiny, rounds=1, method="local"), output=tmp_path / "run")
    written = json.loads((tmp_path / "run" / "models.json").read_text())
    assert written["input_shape"] == [8, 8, 1]
    assert written["classes"] == ["0", "1", "2", "3"]
    assert [peer["architecture"] for peer in written["peers"]] == [
        *("resnet18@0.125", "resnet18-half@0.125", "cnn6@0.125", "resnet18@0.125")
    ]
