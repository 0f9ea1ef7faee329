"""`crad export` and `crad predict`: one file that says all, also to those who do not have this package."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import crad
from crad.cli import main
from crad.data.readers.npz import read_npz
from crad.errors import ConfigError, DataError, RunError, install_hint
from crad.prediction.model_card import ModelCard
from tests.conftest import change

WORDS = np.array(["ant", "bee", "cat", "dog"])
# Runs where there is nothing but numpy and onnxruntime, on images as they lie in the data file.
ELSEWHERE = """
import json, sys
import numpy, onnxruntime
model, data = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
about = session.get_modelmeta().custom_metadata_map
given, classes = json.loads(about["input"]), json.loads(about["classes"])
with numpy.load(data) as arrays:
    images, labels = arrays["test_images"], arrays["test_labels"]
images = images.reshape(-1, given["height"], given["width"], given["channels"]).astype(given["dtype"])
[taken] = session.get_inputs()
names = json.loads(about["outputs"])
plain, local = session.run([names["global"], names["local"]], {taken.name: images})
assert not {"crad", "torch"} & set(sys.modules)
said = [classes[i] for i in plain.argmax(1)]
print(json.dumps({
    "about": dict(about), "type": taken.type, "shape": taken.shape, "plain": plain.tolist(), "local": local.tolist(),
    "accuracy": 100 * sum(a == b for a, b in zip(said, labels.tolist())) / len(labels),
}))
"""


def pooled(num_classes: int, in_channels: int) -> nn.Module:
    layers = nn.Conv2d(in_channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(32, num_classes))


@pytest.fixture(scope="module")
def trained(tiny, tiny_npz, tmp_path_factory):
    """Three networks, one of them passed in memory, on images that get a border; labels are words."""
    folder = tmp_path_factory.mktemp("trained")
    splits = read_npz(tiny_npz)
    words = WORDS[splits.train_labels], WORDS[splits.test_labels]
    np.savez(folder / "words.npz", test_images=splits.test_images, test_labels=words[1])
    data = crad.Dataset.from_arrays(splits.train_images, words[0], splits.test_images, words[1])
    experiment = change(tiny, clients=3, local_loss="balanced", lr=0.05)
    bordered = replace(data, pad_to=13)
    result = crad.run(experiment, data=bordered, models=["cnn6", pooled, "resnet18-half"], output=folder / "run")
    return result, splits.test_images, folder


@pytest.fixture(scope="module")
def exported(trained):
    pytest.importorskip("onnxscript")
    result, _, folder = trained
    return [result.export("onnx", client=client, path=folder / f"{client}.onnx") for client in range(3)]


def crad_command(capsys, *words):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["crad", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_a_graph_runs_where_this_package_is_not(trained, exported):
    result, images, folder = trained
    for client, path in enumerate(exported):
        done = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(path), str(folder / "words.npz")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["accuracy"] == pytest.approx(result.summary["global_accuracy_per_client"][client])
        assert (found["type"], found["shape"][1:]) == ("tensor(uint8)", [8, 8, 1])
        model = result.models[client]
        assert np.array(found["plain"]) == pytest.approx(model.predict_proba(images), abs=1e-5)
        assert np.array(found["local"]) == pytest.approx(model.predict_proba(images, "local"), abs=1e-5)
        about = found["about"]
        assert json.loads(about["classes"]) == WORDS.tolist()
        assert json.loads(about["input"])["layout"] == "NHWC"
        assert json.loads(about["preprocessing"])["pad_to"] == 13
        assert json.loads(about["origin"])["client"] == client


def test_a_graph_and_weights_loaded_again_say_the_same(trained, exported):
    result, images, folder = trained
    for client in (0, 2):
        weights = crad.load_model(result.export(client=client, path=folder / f"{client}.safetensors"))
        graph = crad.load_model(exported[client])
        for face in ("global", "local"):
            expected = result.models[client].predict_proba(images, face)
            assert np.array_equal(weights.predict_proba(images, face), expected)
            assert graph.predict_proba(images, face) == pytest.approx(expected, abs=1e-5)
        assert graph.card == weights.card == result.models[client].card
        assert graph.predict(images).tolist() == weights.predict(images).tolist()
        assert graph.predict_proba(images[:0]).shape == (0, 4)
    with pytest.raises(ConfigError, match="a graph without a torch module"):
        assert graph.module


def test_a_network_of_ones_own_is_never_imported_because_a_file_names_it(trained):
    result, images, folder = trained
    path = result.export(client=1, path=folder / "own.safetensors")
    with pytest.raises(ConfigError, match=r"its network is 'object:pooled@0\.125', which is not built in"):
        crad.load_model(path)
    loaded = crad.load_model(path, build=pooled)
    assert np.array_equal(loaded.predict_proba(images), result.models[1].predict_proba(images))
    with pytest.raises(RunError, match=r"own.safetensors: its weights do not fit the network"):
        crad.load_model(path, build=lambda num_classes, in_channels: nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))


def test_exporting_leaves_the_model_as_it_was(trained, exported):
    result, images, folder = trained
    model = result.models[0]
    before = model.predict_proba(images)
    crad.prediction.export.export_model(model, "safetensors", folder / "again.safetensors")
    assert np.array_equal(model.predict_proba(images), before)


def test_files_of_an_earlier_version_are_read(trained):
    """They had the shape after the border, and nothing of the input."""
    result, images, folder = trained
    card = result.models[2].card
    kept = ("architecture", "classes", "image_shape", "mean", "std", "log_prior", "faces")
    about = {key: value for key, value in card.to_metadata().items() if key in kept}
    new = result.export(client=2, path=folder / "new.safetensors")
    save_file(load_file(new), folder / "old.safetensors", metadata=about)
    old = crad.load_model(folder / "old.safetensors")
    bordered = np.pad(images, ((0, 0), (2, 3), (2, 3)))
    assert old.predict_proba(bordered) == pytest.approx(result.models[2].predict_proba(images), abs=1e-6)


@pytest.mark.parametrize(
    "spoilt", [{}, {"classes": "no json"}, {"mean": "[1, 2]"}, {"log_prior": "[0]"}, {"input": "3"}]
)
def test_a_file_that_crad_did_not_write_is_refused_in_one_line(spoilt, trained):
    result, _, folder = trained
    about = {**result.models[0].card.to_metadata(), **spoilt} if spoilt else {}
    save_file({"weight": torch.zeros(2)}, folder / "foreign.safetensors", metadata=about)
    with pytest.raises(RunError, match=r"foreign.safetensors is no model that crad exported") as refusal:
        crad.load_model(folder / "foreign.safetensors")
    assert "\n" not in str(refusal.value)


def test_bytes_that_are_no_model_are_refused(tmp_path):
    for name in ("x.safetensors", "x.onnx"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(RunError, match="cannot be read as"):
            crad.load_model(tmp_path / name)
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(ConfigError, match=r"expected a model that crad export wrote, .safetensors or .onnx"):
        crad.load_model(tmp_path / "x.txt")
    with pytest.raises(ConfigError, match="is no file: name a model"):
        crad.load_model(tmp_path / "absent.onnx")


def test_a_card_survives_its_metadata(trained):
    card = trained[0].models[1].card
    assert ModelCard.from_metadata(card.to_metadata(), where="x") == card


# --- the command line


def test_export_and_predict_on_the_command_line(trained, tmp_path, capsys):
    result, images, folder = trained
    path = tmp_path / "model.safetensors"
    code, out, err = crad_command(capsys, "export", folder / "run", "--client", 2, "--output", path)
    assert (code, out, err) == (0, f"{path}\n", "")
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["origin"])["client"] == 2
    code, out, _ = crad_command(capsys, "predict", path, folder / "words.npz", "--json", "--face", "local")
    assert code == 0
    said = json.loads(out)
    expected = result.models[2].predict_proba(images, "local")
    assert said["face"] == "local"
    given = np.array([list(one["probabilities"].values()) for one in said["predictions"]])
    assert given == pytest.approx(expected, abs=1e-7)
    assert [one["class"] for one in said["predictions"]] == result.models[2].predict(images, "local").tolist()
    assert said["predictions"][5]["probability"] == pytest.approx(float(expected[5].max()))


def test_predict_reads_pictures_folders_and_arrays_alike(trained, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    result, images, _ = trained
    model = result.export(client=0, path=tmp_path / "m.safetensors")
    (tmp_path / "scans" / "ward").mkdir(parents=True)
    files = ["scans/a.png", "scans/b.png", "scans/ward/c.png"]
    for name, image in zip(files, images, strict=False):
        pillow.fromarray(image).convert("RGB").save(tmp_path / name)  # gray in three channels: gray again
    np.save(tmp_path / "three.npy", images[:3])
    np.save(tmp_path / "one.npy", images[0])
    found = {}
    for inputs in ("scans", "three.npy", "one.npy", "scans/a.png"):
        code, out, _ = crad_command(capsys, "predict", model, tmp_path / inputs, "--json")
        assert code == 0
        found[inputs] = json.loads(out)["predictions"]
    expected = result.models[0].predict(images[:3]).tolist()
    assert [one["class"] for one in found["scans"]] == [one["class"] for one in found["three.npy"]] == expected
    assert [one["input"] for one in found["scans"]] == ["a.png", "b.png", "ward/c.png"]
    assert [one["input"] for one in found["one.npy"]] == ["0"]
    assert found["scans/a.png"][0]["input"] == "a.png"
    assert found["scans/a.png"][0]["probability"] == pytest.approx(found["one.npy"][0]["probability"])


def test_a_model_of_resized_images_takes_images_of_any_size(tiny, tiny_npz, tmp_path, capsys):
    pillow = pytest.importorskip("PIL.Image")
    result = crad.run(change(tiny, rounds=1, method="local", models=("cnn6",), resize=12), output=tmp_path / "run")
    images, labels = read_npz(tiny_npz).test_images, read_npz(tiny_npz).test_labels
    for client, model in enumerate(result.models):
        reached = 100 * np.mean(model.predict(images, as_index=True) == labels)
        assert reached == pytest.approx(result.summary["global_accuracy_per_client"][client])
    path = result.export(client=0, path=tmp_path / "m.safetensors")
    assert crad.load_model(path).card == result.models[0].card
    (tmp_path / "scans").mkdir()
    pillow.fromarray(images[0]).save(tmp_path / "scans" / "a.png")
    pillow.fromarray(np.zeros((20, 30), np.uint8)).save(tmp_path / "scans" / "b.png")
    code, out, _ = crad_command(capsys, "predict", path, tmp_path / "scans", "--json")
    first = json.loads(out)["predictions"][0]
    assert (code, first["probability"]) == (0, pytest.approx(float(result.models[0].predict_proba(images[0]).max())))


def test_one_colour_image_in_an_array_is_one_input(tmp_path, capsys, tiny):
    x = np.random.default_rng(2).integers(0, 256, (60, 10, 9, 3), dtype=np.uint8)
    data = crad.Dataset.from_arrays(x, [0, 1] * 30, x, [0, 1] * 30)
    result = crad.run(change(tiny, clients=2, rounds=1, alpha=9.0, method="local", models=("cnn6",)), data=data)
    model = result.export(client=0, path=tmp_path / "m.safetensors")
    for number, alone in enumerate((x[0], x[0].transpose(2, 0, 1))):
        np.save(tmp_path / f"{number}.npy", alone)
        _, out, _ = crad_command(capsys, "predict", model, tmp_path / f"{number}.npy", "--json")
        [said] = json.loads(out)["predictions"]
        assert said["probability"] == pytest.approx(float(result.models[0].predict_proba(x[:1]).max()))


def test_predict_shows_a_table(trained, tmp_path, capsys):
    result, images, folder = trained
    model = result.export(client=0, path=tmp_path / "m.safetensors")
    code, out, _ = crad_command(capsys, "predict", model, folder / "words.npz")
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert code == 0
    assert lines[0] == ["input", "class", "%", *(word for name in WORDS for word in (name, "%"))]
    first = result.models[0].predict_proba(images[:1])[0]
    assert lines[2] == ["0", WORDS[first.argmax()], f"{100 * first.max():.1f}", *(f"{100 * one:.1f}" for one in first)]
    assert out.rstrip().endswith("Probabilities of the global face, in percent.")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["export", "{run}", "--client", "3"], "client 3 does not exist; choose 0 to 2"),
        (["export", "{run}", "--client", "-1"], "client -1 does not exist; choose 0 to 2"),
        (["export", "{run}", "--client", "0", "--format", "pickle"], "'pickle' is not one of 'onnx', 'safetensors'"),
        (["export", "{run}"], "Missing option '--client'"),
        (["export", "{tmp}", "--client", "0"], "is no run directory: it has no experiment.toml"),
        (["export", "{run}/..", "--client", "0"], "but a folder of runs: choose one of them, such as "),
        (["explain", "{run}/.."], "there are run"),
        (["export", "{run}", "--client", "1"], "model 'pooled' was an object in Python's memory"),
        (
            ["export", "{run}", "--client", "0", "-o", "{tmp}"],
            "is a folder: name the file to write, such as {tmp}/model.safetensors",
        ),
        (["export", "{run}", "--client", "0", "-o", "{tmp}/no/x.onnx"], "no folder that exists: make {tmp}/no first"),
        (["predict", "{tmp}/absent.onnx", "{tmp}"], "is no file: name a model that crad export wrote"),
        (["predict", "{model}", "{tmp}/absent.png"], "no such file or folder, expected an image"),
        (["predict", "{model}", "{tmp}"], "holds no images"),
        (["predict", "{model}", "{tmp}/two.npz"], "has a, b: say which array with --key"),
        (["predict", "{model}", "{tmp}/two.npz", "--key", "c"], "unknown array in"),
        (["predict", "{model}", "{tmp}/two.npz", "--key", "a"], "images are 9x9x1, this model takes 8x8x1"),
        (["predict", "{model}", "{tmp}/objects.npy"], "is no .npy file, or holds Python objects"),
        (["predict", "{model}", "{tmp}/two.npz", "--key", "a", "--face", "own"], "Invalid value for '--face'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, reason, trained, tmp_path, capsys):
    result, _, folder = trained
    model = result.export(client=0, path=folder / "cli.safetensors")
    np.savez(tmp_path / "two.npz", a=np.zeros((2, 9, 9), np.uint8), b=np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    filled = [word.format(run=folder / "run", tmp=tmp_path, model=model) for word in words]
    code, out, err = crad_command(capsys, *filled)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("crad: ")
    assert reason.replace("{tmp}", str(tmp_path)) in err


def test_a_file_that_is_there_is_not_written_over(trained, tmp_path, capsys):
    _, _, folder = trained
    path = tmp_path / "m.safetensors"
    path.write_text("mine")
    words = ("export", folder / "run", "--client", 0, "--output", path)
    code, _, err = crad_command(capsys, *words)
    assert (code, path.read_text()) == (2, "mine")
    assert "is there already: choose another --output, or write over it with --force" in err
    assert crad_command(capsys, *words, "--force")[0] == 0
    assert crad.load_model(path).classes == tuple(WORDS)


def test_a_run_that_is_not_finished_has_nothing_to_export(trained, tmp_path, capsys):
    import shutil

    shutil.copytree(trained[2] / "run", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    code, _, err = crad_command(capsys, "export", tmp_path / "run", "--client", 0)
    assert code == 2
    assert err == f"crad: {tmp_path / 'run'} is not finished: continue it with crad run --resume {tmp_path / 'run'}\n"


def test_missing_packages_are_named_with_the_command_that_installs_them(trained, tmp_path, capsys, monkeypatch):
    _, _, folder = trained
    for name in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    target = tmp_path / "m.onnx"
    code, _, err = crad_command(capsys, "export", folder / "run", "--client", 0, "--format", "onnx", "--output", target)
    assert (code, target.exists()) == (2, False)
    assert err == f"crad: writing ONNX needs onnx and onnxscript: {install_hint('onnx')}\n"
    target.write_bytes(b"")
    code, _, err = crad_command(capsys, "predict", target, folder / "words.npz")
    assert (code, err) == (2, f"crad: running {target} needs onnxruntime: {install_hint('onnx')}\n")


def test_predict_on_images_of_another_size_says_which(trained):
    with pytest.raises(DataError, match="this model takes 8x8x1"):
        trained[0].models[0].predict(np.zeros((2, 13, 13), np.uint8))
