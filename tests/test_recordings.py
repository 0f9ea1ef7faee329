"""Recordings and series: files with every defect, the mel front end, own statistics, and everything a run can do."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import crad
from crad.config import Experiment
from crad.data.catalog import load_dataset
from crad.data.federated_data import build_federated_data
from crad.data.kinds import KINDS, kind_of_source
from crad.data.kinds.series import SignalPreprocessor
from crad.data.readers.table_file import TableOptions
from crad.data.readers.wav import read_wav_format, read_waves
from crad.errors import ConfigError, DataError
from crad.federation.context import build_run_context
from crad.federation.method import one_peer_per_client
from crad.federation.peer import Peer
from crad.inference.engine import TeacherEngine
from crad.models import (
    FAMILIES,
    Architecture,
    InputShape,
    MelSpectrogram,
    OwnStatistics,
    SignalScaler,
    build_model,
    estimate_size,
)
from tests.conftest import change
from tests.test_resume import assert_same_weights, interrupted

NAN = float("nan")
RATE = 1000
WAVES = InputShape(3, 1, (400,), "audio", rate=RATE)
SERIES = InputShape(3, 2, (40,), "series")


def wav(samples, *, rate=RATE, bits=16, channels=1, code=1, is_extensible=False) -> bytes:
    """Write a WAV file by hand; samples are of -1 to 1, those of several channels in turn."""
    values = np.asarray(samples, dtype=np.float64)
    if code == 3:
        data = values.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        data = np.rint(values * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.rint(values * (2 ** (bits - 1) - 1)).astype("<i4")
        data = whole.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    size = channels * bits // 8
    about = struct.pack("<HHIIHH", 0xFFFE if is_extensible else code, channels, rate, rate * size, size, bits)
    if is_extensible:
        about += struct.pack("<HHIH", 22, bits, 0, code) + bytes(14)
    note = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # an odd chunk has a byte after it
    body = b"WAVEfmt " + struct.pack("<I", len(about)) + about + note + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tone(frequency: float, seconds: float = 0.4, *, loudness: float = 0.5, phase: float = 0.0) -> np.ndarray:
    time = np.arange(round(seconds * RATE)) / RATE
    return loudness * np.sin(2 * math.pi * frequency * time + phase)


@pytest.fixture(scope="session")
def whistles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people whistle low and high, one much louder than the other: `CLASS/PERSON_NUMBER.wav`."""
    folder, rng = tmp_path_factory.mktemp("sounds") / "whistles", np.random.default_rng(5)
    for name, frequency in (("low", 110.0), ("high", 260.0)):
        (folder / name).mkdir(parents=True)
        for place in range(40):
            person = ("ann", "bob")[place % 2]
            sound = tone(rng.normal(frequency, 10), rng.uniform(0.3, 0.4), phase=rng.uniform(0, 6))
            sound = (sound + rng.normal(0, 0.05, len(sound))) * (1.0 if person == "ann" else 0.02)
            (folder / name / f"{person}_{place}.wav").write_bytes(wav(sound))
    return folder


@pytest.fixture(scope="session")
def people(whistles: Path) -> Experiment:
    """The two whistlers as clients; a round takes milliseconds."""
    return Experiment(
        dataset=str(whistles),
        site="filename",
        partition="natural",
        clients=2,
        models=("mel-cnn6", "cnn1d"),
        width=0.125,
        rounds=2,
        batch_size=8,
        optimizer="adamw",
        lr=0.01,
        proxy_size=6,
        device="cpu",
        workers=1,
        seed=4,
    )


@pytest.fixture(scope="session")
def pumps() -> crad.Dataset:
    """Two plants of thirty pumps: a slow or a fast swing in two channels, in units of their own, with a gap."""
    rng = np.random.default_rng(7)
    labels, sites = np.arange(60) % 2, np.arange(60) // 2 % 2
    time = np.linspace(0, 1, 40)
    swing = np.sin(2 * np.pi * (2 + 4 * labels[:, None]) * time + rng.uniform(0, 6, (60, 1)))
    x = np.stack([swing, rng.normal(size=(60, 40))], axis=1) * (1 + 99 * sites[:, None, None])
    x[0, 0, :3] = NAN
    names = np.array(["slow", "fast"])[labels]
    return crad.Dataset.from_arrays(
        x[:48], names[:48], x[48:], names[48:], site=sites[:48].tolist(), kind="series", name="pumps"
    )


def layer_of(model: torch.nn.Module) -> OwnStatistics:
    [layer] = [module for module in model.modules() if isinstance(module, OwnStatistics)]
    return layer


# --- files


@pytest.mark.parametrize(
    ("made", "tolerance"),
    [
        ({"bits": 8}, 1e-2),
        ({"bits": 16}, 1e-4),
        ({"bits": 24}, 1e-6),
        ({"bits": 24, "is_extensible": True}, 1e-6),
        ({"bits": 32}, 1e-6),
        ({"bits": 32, "code": 3}, 1e-7),
        ({"bits": 64, "code": 3}, 1e-7),
    ],
)
def test_every_depth_reads_as_the_same_sound(tmp_path, made, tolerance):
    file, sound = tmp_path / "a.wav", tone(50, 0.02)
    file.write_bytes(wav(sound, **made))
    read = read_waves([file], length=20, rate=RATE, dtype=np.dtype(np.float32))
    assert read.shape == (1, 1, 20)
    assert read[0, 0] == pytest.approx(sound, abs=tolerance)
    assert read_wav_format(file).seconds == 0.02


def test_channels_are_mixed_into_one_and_lengths_made_equal(tmp_path):
    left, right = [0.5, 0.5, -0.5], [0.5, -0.5, -0.5]
    (tmp_path / "stereo.wav").write_bytes(wav(np.stack([left, right], axis=1).ravel(), channels=2))
    (tmp_path / "long.wav").write_bytes(wav([0.25] * 9))
    read = read_waves(sorted(tmp_path.iterdir()), length=5, rate=RATE, dtype=np.dtype(np.float32))
    assert read[:, 0] == pytest.approx(np.array([[0.25] * 5, [0.5, 0, -0.5, 0, 0]]), abs=1e-4)


def test_16_bits_stay_as_they_are(tmp_path):
    file = tmp_path / "a.wav"
    file.write_bytes(wav([-1.0, 0.0, 0.5]))
    assert read_waves([file], length=4, rate=RATE, dtype=np.dtype(np.int16))[0, 0].tolist() == [-32767, 0, 16384, 0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is an empty file"),
        (b"ID3 a song by somebody", "is no WAV file, whatever its name says"),
        (wav(tone(50))[:-100], "is cut off, 700 of 800 bytes of sound are there"),
        (wav(tone(50))[:40], "has no samples"),
        (wav([]), "has no samples"),
        (b"RIFF\0\0\0\0WAVE", "no fmt chunk"),
        (wav(tone(50), code=6, bits=8), "is compressed or of 8 bits (format 6)"),
        (wav(tone(50), rate=RATE // 2), "has 500 samples a second, the others 1000: resample it to 1000"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_its_name(tmp_path, content, reason):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.wav").write_bytes(wav(tone(50)))
        (tmp_path / name / "1.wav").write_bytes(wav(tone(50)))
    (tmp_path / "b" / "2.wav").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_dataset(str(tmp_path), seed=1)
    assert str(caught.value).startswith(f"{tmp_path / 'b' / '2.wav'}: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_of_recordings_is_known_by_its_files(whistles, tmp_path):
    assert kind_of_source(str(whistles)).name == "audio"
    dataset = load_dataset(str(whistles), seed=1, table=TableOptions(site="filename"))
    assert (dataset.kind, dataset.rate, str(dataset.train_samples.dtype)) == ("audio", RATE, "int16")
    assert dataset.train_samples.shape[:2] == (64, 1)
    assert 390 <= dataset.train_samples.shape[2] <= 400, "the longest"
    assert (dataset.class_names, dataset.site_names) == (("high", "low"), ("ann", "bob"))
    short = load_dataset(str(whistles), seed=1, seconds=0.1)
    assert short.train_samples.shape == (64, 1, 100)
    assert short.train_sites is None
    with pytest.raises(DataError, match=r"seconds is 0.0001, less than a sample"):
        load_dataset(str(whistles), seed=1, seconds=0.0001)
    for given, reason in (
        ({"resize": 8}, "resize is for images"),
        ({"table": TableOptions("x")}, "label is for tables"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_dataset(str(whistles), seed=1, **given)


def test_the_check_says_rate_lengths_classes_and_sites(whistles, crad_command, tmp_path):
    code, out, _ = crad_command("data", "check", whistles, "--site", "filename", "--seconds", "0.35")
    assert code == 0
    for words in (
        "64 for training, 16 for the test",
        "1000 samples a second, 16 bits mono",
        "0.35 s:",
        "ann 32, bob 32",
    ):
        assert words in out
    code, out, _ = crad_command("data", "check", whistles, "--seconds", "0.35", "--json")
    report = json.loads(out)
    assert (report["rate"], report["sites"], report["classes"]) == (RATE, None, {"high": 40, "low": 40})
    assert report["cut"] + report["padded"] <= 80
    for flags, said in ((("--label", "x"), "--label is for tables"), (("--site", "ward"), "'filename'")):
        code, _, err = crad_command("data", "check", whistles, *flags)
        assert code == 2
        assert said in err


# --- arrays


def test_an_array_file_that_may_be_several_things_must_be_told(tmp_path):
    rng, labels = np.random.default_rng(0), np.arange(20) % 2
    common: dict[str, Any] = {"train_labels": labels, "test_labels": labels, "train_sites": np.array(["n", "s"] * 10)}

    def stored(x, **more) -> str:
        path = tmp_path / "x.npz"
        np.savez(path, train_samples=x, test_samples=x, **common, **more)
        return str(path)

    path = stored(rng.normal(size=(20, 12)))
    with pytest.raises(DataError, match=r"rows of a table, or series in time. Say kind=table or kind=series"):
        load_dataset(path, seed=1)
    assert load_dataset(path, seed=1, kind="table").train_samples.shape == (20, 12)
    series = load_dataset(path, seed=1, kind="series")
    assert (series.train_samples.shape, series.image_size, series.in_channels) == ((20, 1, 12), (12,), 1)
    assert series.site_names == ("n", "s")
    path = stored(rng.normal(size=(20, 9, 12)))
    with pytest.raises(DataError, match=r"gray images, or series .N, channels, time.. Say kind=image or kind=series"):
        load_dataset(path, seed=1)
    assert load_dataset(path, seed=1, kind="image").train_samples.shape == (20, 9, 12, 1)
    assert load_dataset(path, seed=1, kind="series").in_channels == 9
    x = rng.normal(size=(20, 16))
    sounds = load_dataset(stored(x, rate=np.array(8000)), seed=1)
    assert (sounds.kind, sounds.rate, str(sounds.train_samples.dtype)) == ("audio", 8000, "float32")
    folder = tmp_path / "arrays"  # the same as .npy files
    folder.mkdir()
    for key, array in {**common, "train_samples": x, "test_samples": x, "rate": np.array(8000)}.items():
        np.save(folder / f"{key}.npy", array)
    again = load_dataset(str(folder), seed=1)
    assert (again.kind, again.name, again.rate, again.site_names) == ("audio", "arrays", 8000, ("n", "s"))
    (folder / "rate.npy").unlink()
    assert load_dataset(str(folder), seed=1, kind="table").train_samples.shape == (20, 16)
    with pytest.raises(ConfigError, match="unknown kind 'serie'"):
        load_dataset(path, seed=1, kind="serie")


@pytest.mark.parametrize(
    ("x", "given", "reason"),
    [
        (np.zeros((4, 9)), {"kind": "audio"}, "nobody says the sampling rate: give rate"),
        (np.zeros((4, 9), np.int32), {"kind": "audio", "rate": 8}, "x_train is int32, expected int16, or floats of -1"),
        (np.full((4, 9), NAN), {"kind": "audio", "rate": 8}, "recording 0 has a gap"),
        (np.full((4, 9), np.inf), {"kind": "series"}, "sample 0 has an infinite value"),
        (np.zeros((4, 3, 5)), {"kind": "series"}, "3 channels of 5 steps, expected 8 steps or more"),
        (np.zeros((4, 3, 5, 5)), {"kind": "series"}, "expected numbers [N, time] or [N, channels, time]"),
        (np.zeros((4, 9)), {"kind": "series", "columns": ["a"]}, "columns name those of a table"),
        (np.zeros((4, 9)), {"rate": 8}, "rate is the samples a second of recordings"),
    ],
)
def test_arrays_that_are_no_series_are_refused_in_one_line(x, given, reason):
    with pytest.raises(DataError) as caught:
        crad.Dataset.from_arrays(x, [0, 1] * 2, x, [0, 1] * 2, **given)
    assert reason in str(caught.value)


# --- the first layers


def slow_spectrogram(wave: np.ndarray, layer: MelSpectrogram, rate: int) -> np.ndarray:
    """Log-mel by the book: one frame, one frequency, one band after the other, through numpy's FFT."""
    window, hop = round(0.025 * rate), round(0.025 * rate) // 2
    size = 2 ** math.ceil(math.log2(window))
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    padded = np.concatenate([wave, np.zeros(10 * window)])
    powers = []
    for frame in range(layer.frames * layer.pooled):
        piece = padded[frame * hop : frame * hop + window] * hann / hann.sum()
        powers.append(np.abs(np.fft.rfft(piece, size)) ** 2)
    top = 2595 * math.log10(1 + rate / 2 / 700)
    corners = [700 * (10 ** (top * place / 33 / 2595) - 1) for place in range(34)]
    made = np.zeros((32, layer.frames))
    for band in range(32):
        low, centre, high = corners[band : band + 3]
        for frame in range(layer.frames):
            total = 0.0
            for one in powers[frame * layer.pooled : (frame + 1) * layer.pooled]:
                for place, power in enumerate(one):
                    frequency = place * rate / size
                    if low < frequency < high:
                        up, down = (frequency - low) / (centre - low), (high - frequency) / (high - centre)
                        total += min(up, down) * power
            made[band, frame] = math.log(total / layer.pooled + 1e-6)
    return made


@pytest.mark.parametrize(("rate", "length"), [(8000, 1200), (8000, 16_000), (4000, 50)])
def test_the_mel_front_end_equals_a_slow_one(rate, length):
    layer = MelSpectrogram(1, length, rate)
    wave = np.random.default_rng(1).normal(0, 0.2, length)
    expected = slow_spectrogram(wave, layer, rate)
    made = layer.loudness(torch.tensor(wave, dtype=torch.float32)[None, None])[0, 0]
    assert layer.size == (32, made.shape[1])
    assert 8 <= layer.frames <= 64
    if rate == 8000:  # at low rates some bands are narrower than a frequency, and have the nearest one
        assert made.numpy() == pytest.approx(expected, abs=2e-3)
    assert made.isfinite().all()


def test_a_tone_is_loudest_in_its_own_band_and_bands_are_standardised():
    layer = MelSpectrogram(1, 4000, 8000)
    time = torch.arange(4000) / 8000
    low, high = (torch.sin(2 * math.pi * frequency * time)[None, None] for frequency in (300.0, 3000.0))
    assert layer.loudness(low)[0, 0].mean(dim=1).argmax() < 8
    assert layer.loudness(high)[0, 0].mean(dim=1).argmax() > 22
    waves = torch.randn(20, 1, 4000, generator=torch.Generator().manual_seed(1))
    layer.fit(waves)
    made = layer(waves)
    assert made.mean(dim=(0, 1, 3)).abs().max() < 1e-3
    assert (made.std(dim=(0, 1, 3)) - 1).abs().max() < 1e-2


def test_channels_are_standardised_a_gap_is_the_mean_and_what_never_varies_says_nothing():
    layer = SignalScaler(2)
    layer.fit(torch.tensor([[[1.0, 3.0], [5.0, 5.0]], [[1.0, NAN], [5.0, 5.0]], [[3.0, NAN], [5.0, 5.0]]]))
    made = layer(torch.tensor([[[4.0, NAN], [7.0, 5.0]], [[1e6, 2.0], [NAN, 0.0]]]))
    assert made.tolist() == [[[2.0, 0.0], [0.0, 0.0]], [[10.0, 0.0], [0.0, 0.0]]]


# --- families


@pytest.mark.parametrize(
    ("shape", "name"), [(shape, name) for shape in (WAVES, SERIES) for name in FAMILIES[shape.kind]]
)
def test_every_family_runs_as_a_teacher_to_the_same_logits_and_its_size_is_known(shape, name):
    model = build_model(Architecture(name, 0.125), **vars(shape), seed=1)
    samples = torch.randn(70, shape.in_channels, *shape.image_size, generator=torch.Generator().manual_seed(2))
    layer_of(model).fit(samples)
    with torch.no_grad():
        logits = model.eval()(samples)
        teacher = TeacherEngine(device="cpu")
        assert torch.allclose(teacher.prepare(model, key=name)(samples), logits, atol=1e-5)
    assert logits.shape == (70, 3)
    assert (teacher._plans[name] is not None) or not name.startswith("mel"), "spectrograms run fused"
    size = estimate_size(Architecture(name, 0.125), shape)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("length", [8, 17, 64, 65, 1000])
def test_every_length_will_do(length):
    for kind in ("series", "audio"):
        for name in FAMILIES[kind]:
            if name in ("mel-resnet18", "mel-resnet18-half", "mel-cnn6-wide") and length != 8:
                continue  # the same front end
            shape = InputShape(2, 1, (length,), kind, rate=RATE if kind == "audio" else None)
            model = build_model(Architecture(name, 0.0625), **vars(shape), seed=1).eval()
            assert model(torch.zeros(2, 1, length)).shape == (2, 2)


def test_a_family_for_another_kind_is_refused_with_those_that_fit(people, tiny):
    with pytest.raises(ConfigError, match=r"model 'cnn6' is for data of kind 'image'.* kind 'audio': choose cnn1d, "):
        crad.run(change(people, models=("cnn6",)))
    with pytest.raises(ConfigError, match=r"model 'mel-cnn6' is for data of kind 'audio'.*'image': choose cnn6"):
        crad.run(change(tiny, models=("mel-cnn6",)))
    with pytest.raises(ConfigError, match=r"model 'mel-cnn6' is for .* kind 'series': choose cnn1d, resnet1d, transf"):
        build_model(Architecture("mel-cnn6"), **vars(SERIES), seed=0)


# --- whose statistics


def test_a_teacher_hears_with_its_owners_statistics_and_anothers_spoil_it(people):
    """One whistles fifty times as loud as the other; a network is right on its owner's sounds by its statistics."""
    experiment = change(people, method="local", rounds=6, models=("cnn1d",), augment=False)
    result, context = crad.run(experiment), build_run_context(experiment)
    own = [Peer(context, member) for member in one_peer_per_client(context)]
    scales = [layer_of(peer.model).state_dict()["scale"] for peer in own]
    assert float(scales[1] / scales[0]) > 20
    modules = [result.models[client].module for client in (0, 1)]
    for module, scale in zip(modules, scales, strict=True):
        assert torch.equal(layer_of(module).state_dict()["scale"], scale), "they stay through all rounds"
    sounds, labels = own[1].train.samples, own[1].train.labels

    def hits() -> float:
        return float((modules[1](sounds).argmax(dim=1) == labels).float().mean())

    before = hits()
    assert before > 0.9
    layer_of(modules[1]).load_state_dict(layer_of(modules[0]).state_dict())
    assert hits() < before - 0.2


# --- what is done to samples


def test_samples_are_moved_louder_noisier_mixed_and_hidden():
    draw = torch.Generator().manual_seed(3)
    ramp = torch.arange(1.0, 41.0).expand(300, 2, 40).clone()
    moved = SignalPreprocessor(torch.device("cpu"), "shift").augment(ramp, generator=draw)
    starts = {int(one) for one in moved[:, 0, 20]}
    assert starts == set(range(17, 26)), "up to a tenth to either side"
    assert moved.min() == 1
    assert moved.max() == 40, "what comes in is the end again"
    heard = SignalPreprocessor(torch.device("cpu"), "shift", is_silent_outside=True).augment(ramp, generator=draw)
    assert heard.min() == 0, "silence comes in"
    loud = SignalPreprocessor(torch.device("cpu"), "shift-gain-noise").augment(ramp, generator=draw)
    assert not torch.equal(loud[0], loud[1])
    plain = SignalPreprocessor(torch.device("cpu"))
    assert plain.augment(ramp, generator=draw) is ramp
    mixed = plain.mix(ramp[:1], 3 * ramp[:1], torch.tensor([0.5]), generator=draw)
    assert torch.equal(mixed, 2 * ramp[:1])
    strong = plain.change_strongly(ramp, generator=draw)
    assert int(strong[0, 0].isnan().sum()) == 10, "a quarter is hidden: of a series a gap"
    hidden = SignalPreprocessor(torch.device("cpu"), is_silent_outside=True).change_strongly(ramp, generator=draw)
    assert int((hidden[0, 0] == 0).sum()) == 10


# --- everything else works for sounds and series


@pytest.fixture(scope="module")
def heard(people, tmp_path_factory):
    """A whole run on recordings in a directory, with its committee."""
    folder = tmp_path_factory.mktemp("heard") / "run"
    return crad.run(change(people, rounds=3, committee=True), output=folder), folder


# The two whistlers and the two plants, three rounds of crad, as first measured.
GOLDEN = {"audio": [0.3089, 0.1903, 0.1750], "series": [0.3604, 0.2129, 0.3373]}


def test_golden_runs(heard, pumps):
    watched = crad.run(plants(rounds=3), data=pumps)
    for kind, result in (("audio", heard[0]), ("series", watched)):
        losses = [float(np.mean([one["losses"]["total"] for one in line["clients"]])) for line in result.rounds]
        assert losses[0] == pytest.approx(GOLDEN[kind][0], rel=2e-3), kind
        assert losses == pytest.approx(GOLDEN[kind], rel=0.1), kind


def plants(**changes) -> Experiment:
    common = {"partition": "natural", "clients": 2, "models": ("cnn1d", "transformer1d"), "width": 0.25}
    learning = {"batch_size": 8, "optimizer": "adamw", "lr": 0.01, "proxy_size": 4, "workers": 1, "seed": 4}
    return Experiment(**{**common, **learning, "device": "cpu", "rounds": 2, **changes})


def test_a_run_has_its_page_with_spectrograms_and_its_committee(heard):
    result, folder = heard
    assert "committee" in json.dumps(result.summary)
    inspection = json.loads((folder / "inspection.json").read_text())
    assert inspection["images"][0]["png"].startswith("iVBOR")
    assert inspection["words"] == {"one": "recording", "several": "recordings"}
    page = (folder / "report.html").read_text()
    assert "(64 training and 16 test recordings): 2 clients, natural" in page
    partition = json.loads((folder / "partition.json").read_text())
    assert (partition["kind"], partition["sites"]) == ("audio", ["ann", "bob"])
    sounds = load_dataset(result.experiment.dataset, seed=1).test_samples
    loaded = crad.load(folder)
    np.testing.assert_array_equal(loaded.models[1].predict_proba(sounds), result.models[1].predict_proba(sounds))
    assert loaded.committee(client=0).predict(sounds).shape == (16,)


def test_an_exported_model_takes_files_and_arrays(heard, whistles, tmp_path, crad_command):
    pytest.importorskip("onnxruntime")
    result, _ = heard
    dataset = load_dataset(str(whistles), seed=1)
    path = result.export("safetensors", client=1, path=tmp_path / "model.safetensors")
    model = crad.load_model(path)
    expected = result.models[1].predict_proba(dataset.test_samples)
    np.testing.assert_array_equal(model.predict_proba(dataset.test_samples), expected)
    assert (model.card.rate, model.card.kind, str(model.card.dtype)) == (RATE, "audio", "int16")
    code, out, _ = crad_command("predict", path, whistles / "low", "--json")
    assert code == 0
    said = json.loads(out)["predictions"]
    assert [said[0]["input"], len(said)] == ["ann_0.wav", 40]
    floats = tone(110.0)  # louder by 32768 than it looks as whole numbers, and longer than the model's length
    np.testing.assert_allclose(
        model.predict_proba(floats), model.predict_proba(np.rint(floats * 32768).astype(np.int16)), atol=1e-5
    )
    other = tmp_path / "other.wav"
    other.write_bytes(wav(tone(110.0), rate=2000))
    code, _, err = crad_command("predict", path, other)
    assert code == 2
    assert "has 2000 samples a second, the others 1000" in err
    together = result.committee(client=0, rule="uniform")  # a graph with both families in it
    assert len(together.members) == 2
    path = result.export("onnx", committee=together, path=tmp_path / "all.onnx")
    graph = crad.load_model(path)
    said_together = graph.predict_proba(dataset.test_samples)
    np.testing.assert_allclose(said_together, together.predict_proba(dataset.test_samples), atol=1e-5)
    assert (graph.card.rate, str(graph.card.dtype)) == (RATE, "int16")


def test_series_are_exported_too(pumps, tmp_path):
    pytest.importorskip("onnxruntime")
    result = crad.run(plants(rounds=1), data=pumps, output=tmp_path / "run")
    x = pumps.test_samples
    graph = crad.load_model(result.export("onnx", client=1, path=tmp_path / "1.onnx"))
    np.testing.assert_allclose(graph.predict_proba(x), result.models[1].predict_proba(x), atol=1e-5)
    assert result.models[0].predict_proba(x[0]).shape == (1, 2)
    with pytest.raises(DataError, match="series are 2x39, this model takes 2x40"):
        result.models[0].predict(x[:, :, 1:])
    picture = json.loads((tmp_path / "run" / "inspection.json").read_text())["images"][0]["png"]
    assert picture.startswith("iVBOR")


def test_what_needs_pictures_says_so(people):
    with pytest.raises(ConfigError, match="method 'fedgd' paints images only, and this is an audio data set"):
        crad.run(change(people, method="fedgd"))
    with pytest.raises(ConfigError, match="attack 'backdoor' puts a patch into images, and this is an audio data set"):
        crad.run(change(people, attack="backdoor", attackers=1))


@pytest.mark.parametrize("distill_augment", ["mixup", "strong"])
def test_students_and_teachers_meet_on_changed_sounds(people, distill_augment):
    assert crad.run(change(people, distill_augment=distill_augment, rounds=1)).summary["rounds"] == 1


@pytest.mark.usefixtures("forked_workers")
def test_two_processes_and_a_run_that_was_stopped_give_the_same_bits(people, tmp_path):
    crad.run(people, output=tmp_path / "one")
    interrupted(people, tmp_path / "stopped", after=1)
    crad.run(people, output=tmp_path / "stopped", resume=True)
    crad.run(change(people, engine="processes", workers=2), output=tmp_path / "two")
    for other in ("stopped", "two"):
        assert_same_weights(tmp_path / "one", tmp_path / other)


def test_a_client_that_never_took_part_still_has_its_own_statistics(people):
    result = crad.run(change(people, active=1, rounds=1, method="local"))
    context = build_run_context(people)
    for client, member in enumerate(one_peer_per_client(context)):
        own = layer_of(Peer(context, member).model).state_dict()
        stored = layer_of(result.models[client].module).state_dict()
        assert all(torch.equal(tensor, stored[name]) for name, tensor in own.items())


def own_network(num_classes: int, in_channels: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv1d(in_channels, 4, 9),
        torch.nn.AdaptiveMaxPool1d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, num_classes),
    )


def test_a_network_of_ones_own_is_given_standardised_samples(pumps):
    result = crad.run(plants(rounds=1), data=pumps, models=[own_network])
    scale = layer_of(result.models[1].module).state_dict()["scale"]
    assert scale[1] < 0.1, "the other unit"


def test_the_number_of_clients_and_the_models_follow_from_the_data(whistles, crad_command, tmp_path):
    words = ["--data", whistles, "--site", "filename", "--partition", "natural", "--rounds", 1, "--seconds", 0.1]
    more = ["--width", 0.0625, "--batch-size", 16, "--methods", "local,crad", "--seeds", "1", "--quiet", "--workers", 1]
    code, _, err = crad_command("compare", *words, *more, "--output", tmp_path / "both")
    assert code == 0, err
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["local", "crad"]
    run = next((tmp_path / "both").glob("*crad*"))
    summary = json.loads((run / "summary.json").read_text())
    assert summary["clients"] == 2
    code, _, err = crad_command("data", "split", *words[:6], "--output", tmp_path / "shards")
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["ann.npz", "bob.npz"]


# --- images that are not of 8 bits, or have other channels


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint16, 1), (np.float32, 5), (np.uint8, 2)])
def test_unusual_images_go_all_the_way(dtype, channels, tmp_path):
    pytest.importorskip("onnxruntime")
    rng, labels = np.random.default_rng(0), np.arange(48) % 2
    values = rng.integers(0, 100, (48, 8, 8, channels)) + 100 * labels[:, None, None, None]
    x = (values * (300 if dtype == np.uint16 else 1)).astype(dtype) - (dtype(200) if dtype == np.float32 else dtype(0))
    data = crad.Dataset.from_arrays(x, labels, x, labels)
    assert (data.train_samples.dtype, data.in_channels) == (dtype, channels)
    first = crad.Dataset.from_arrays(x.transpose(0, 3, 1, 2), labels, x, labels) if channels > 1 else data
    np.testing.assert_array_equal(first.train_samples, data.train_samples)
    common = {"clients": 2, "partition": "iid", "batch_size": 8, "workers": 1, "proxy_size": 0, "models": ("cnn6",)}
    experiment = Experiment(rounds=1, optimizer="adamw", lr=0.01, width=0.125, device="cpu", **common)
    result = crad.run(experiment, data=data, output=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "inspection.json").read_text())["images"][0]["png"].startswith("iVBOR")
    expected = result.models[0].predict_proba(x)
    assert expected.std(axis=0).min() > 0
    np.testing.assert_array_equal(crad.load(tmp_path / "run").models[0].predict_proba(x), expected)
    for format in ("onnx", "safetensors") if dtype == np.uint16 else ("safetensors",):
        model = crad.load_model(result.export(format, client=0, path=tmp_path / f"m.{format}"))
        assert model.card.dtype == dtype
        np.testing.assert_allclose(model.predict_proba(x), expected, atol=1e-5)
    if dtype != np.uint8:
        with pytest.raises(ConfigError, match=f"paints images of 8 bits only, and these are {np.dtype(dtype)}"):
            crad.run(change(experiment, method="fedgd"), data=data)
    attacked = crad.run(change(experiment, attack="backdoor", attackers=1), data=data)
    assert attacked.summary["rounds"] == 1


def test_kinds_know_their_channels():
    assert {name: kind.channel_axis for name, kind in KINDS.items() if name in ("image", "series", "audio")} == {
        "image": -1,
        "series": 0,
        "audio": 0,
    }


# --- how clients' inputs differ


def test_the_page_shows_how_inputs_differ_between_sites(heard):
    _, folder = heard
    shift = json.loads((folder / "partition.json").read_text())["input_shift"]
    assert shift["features"] == ["loudness", "length", "zero crossings"]
    [ann, bob] = [row[0] for row in shift["differences"]]
    assert ann == pytest.approx(2.0, abs=0.1), "all the spread in loudness is between the two"
    assert bob == -ann
    assert "How inputs differ" in (folder / "report.html").read_text()


def test_a_notebook_calls_clients_by_their_sites(heard):
    result, _ = heard
    assert result.partition["sites"] == ["ann", "bob"]
    assert all(f">{name}</th>" in result._repr_html_() for name in ("0: ann", "1: bob"))


def test_differences_are_means_against_the_others_in_deviations(pumps):
    data = build_federated_data(plants(proxy_size=0), pumps, device="cpu")
    shift = data.input_shift()
    values = np.concatenate([np.nanstd(pumps.train_samples[shard.indices, 0], axis=1) for shard in data.shards])
    is_own = np.repeat([True, False], [len(shard.indices) for shard in data.shards])
    expected = (values[is_own].mean() - values[~is_own].mean()) / values.std()
    place = shift["features"].index("deviation of channel 0")
    assert shift["differences"][0][place] == pytest.approx(expected, abs=0.01)


def test_images_are_compared_by_brightness_and_contrast():
    x = np.repeat(np.array([10, 200], np.uint8), 20)[:, None, None] * np.ones((8, 8), np.uint8)
    sites, blank = ["dark"] * 20 + ["light"] * 20, np.zeros((2, 8, 8), np.uint8)
    images = crad.Dataset.from_arrays(x, [0, 1] * 20, blank, [0, 1], site=sites)
    shift = build_federated_data(plants(proxy_size=0), images, device="cpu").input_shift()
    assert shift == {"features": ["brightness", "contrast"], "differences": [[-2.0, 0.0], [2.0, 0.0]]}
