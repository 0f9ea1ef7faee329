"""`MODEL:weights=FILE`: a network that was trained before, from a safetensors file and from nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

import crad
from crad.config import make_experiment, to_toml
from crad.errors import ConfigError, RunError
from crad.federation.context import build_run_context
from crad.models import Architecture, FirstWeights, build_model, load_first_weights
from crad.network.agreement import make_agreement
from crad.prediction.export import export_safetensors
from crad.prediction.model_card import make_card
from crad.runs.callbacks import LambdaCallback
from crad.runs.resolution import resolve_experiment
from crad.site.local_peer import prepare_local_peer
from crad.site.settings import read_site
from tests.clinics import found_clinics
from tests.conftest import change
from tests.federation import Federation
from tests.test_resume import StopError

CNN6 = Architecture("cnn6", 0.125)


def network(num_classes: int = 4, *, channels: int = 1, seed: int = 1) -> nn.Module:
    return build_model(CNN6, num_classes=num_classes, in_channels=channels, image_size=(8, 8), seed=seed)


def saved(model: nn.Module, path: Path, **changes: torch.Tensor | None) -> Path:
    tensors = {**model.state_dict(), **{name.replace("/", "."): tensor for name, tensor in changes.items()}}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def head(model: nn.Module) -> str:
    names: list[str] = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return names[-1]


# --- the notation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cnn6:weights=a.safetensors", Architecture("cnn6", 1.0, Path("a.safetensors"))),
        ("cnn6@0.5:weights=a@2.safetensors", Architecture("cnn6", 0.5, Path("a@2.safetensors"))),
        ("timm:resnet18:weights=/w/r.safetensors", Architecture("timm:resnet18", 1.0, Path("/w/r.safetensors"))),
        ("my.models:build:weights=w", Architecture("my.models:build", 1.0, Path("w"))),
    ],
)
def test_an_entry_of_models_may_name_a_file(text, expected):
    assert Architecture.parse(text) == expected
    assert "weights" not in expected.id, "where weights come from is told to nobody"


def test_the_common_width_is_for_entries_that_say_none(tiny):
    models = ("cnn6:weights=a@1.safetensors", "cnn6@0.5:weights=b", "cnn6")
    context = build_run_context(change(tiny, models=models, width=0.25))
    assert [context.architecture_of(client).id for client in range(3)] == ["cnn6@0.25", "cnn6@0.5", "cnn6@0.25"]


def test_no_file_after_the_word_is_refused():
    with pytest.raises(ConfigError, match="'cnn6:weights=': a file must follow"):
        Architecture.parse("cnn6:weights=")


def test_the_full_path_is_written_down(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resolved = resolve_experiment(change(tiny, models=("cnn6:weights=a.safetensors", "cnn6")))
    assert resolved.models == (f"cnn6:weights={tmp_path / 'a.safetensors'}", "cnn6")
    (tmp_path / "experiment.toml").write_text(to_toml(resolved))
    assert make_experiment(path=tmp_path / "experiment.toml") == resolved


# --- the file


def test_every_tensor_is_loaded_where_all_fit(tmp_path):
    source, model = network(seed=2), network()
    loaded = load_first_weights(model, saved(source, tmp_path / "w.safetensors"), name="cnn6")
    assert loaded == FirstWeights(len(source.state_dict()), (), ())
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in source.state_dict().items())


def test_a_head_for_other_classes_keeps_its_first_values_and_is_named(tmp_path):
    source, model, untouched = network(7, seed=2), network(), network()
    last = head(model)
    loaded = load_first_weights(model, saved(source, tmp_path / "w.safetensors"), name="cnn6")
    assert loaded.left == (f"{last}.weight", f"{last}.bias")
    for name, tensor in model.state_dict().items():
        expected = untouched if name in loaded.left else source
        assert torch.equal(tensor, expected.state_dict()[name]), name
    sentence = loaded.sentence("cnn6", Path("w.safetensors"))
    assert sentence.endswith(f"from w.safetensors, left at their first values: {last}.weight, {last}.bias")


def test_half_precision_and_files_without_counters_are_understood_and_the_rest_of_a_file_is_named(tmp_path):
    source = network(seed=2)
    stored = {name: tensor.half() for name, tensor in source.state_dict().items() if tensor.is_floating_point()}
    save_file({**stored, "ema.decay": torch.ones(1)}, tmp_path / "w.safetensors")
    model = network()
    loaded = load_first_weights(model, tmp_path / "w.safetensors", name="cnn6")
    assert loaded.unused == ("ema.decay",)
    assert all(name.endswith("num_batches_tracked") for name in loaded.left)
    name = next(iter(stored))
    assert torch.equal(model.state_dict()[name], stored[name].float())


def test_what_a_run_exports_can_begin_another(tiny, tmp_path):
    peer = Federation(change(tiny, models=("cnn6",))).peer(0)
    export_safetensors(peer.model, make_card(peer.data, architecture="cnn6@0.125"), tmp_path / "model.safetensors")
    loaded = load_first_weights(network(), tmp_path / "model.safetensors", name="cnn6")
    assert loaded == FirstWeights(len(peer.model.state_dict()), (), ())


def first_convolution(model: nn.Module) -> str:
    return next(name for name, parameter in model.named_parameters() if parameter.dim() == 4)


def test_a_layer_of_another_shape_is_refused_by_name(tmp_path):
    file = saved(network(channels=3), tmp_path / "w.safetensors")
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layer = first_convolution(model)
    with pytest.raises(ConfigError) as refusal:
        load_first_weights(model, file, name="cnn6@0.125")
    assert f"'{layer}' is [4, 3, 3, 3] in the file and [4, 1, 3, 3] in the network" in str(refusal.value)
    assert f"only the head ({head(model)}) may differ" in str(refusal.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "nothing is half done"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "is not in the file"),
        (torch.full((4, 1, 3, 3), float("nan")), "has values in the file that are not finite"),
        (torch.ones(4, 1, 3, 3, dtype=torch.int64), "is int64 in the file and float32 in the network"),
    ],
)
def test_what_is_missing_or_no_number_is_refused_by_name(tmp_path, value, words):
    layer = first_convolution(network())
    file = saved(network(), tmp_path / "w.safetensors", **{layer: value})
    with pytest.raises(ConfigError, match=f"'{layer}' {words}"):
        load_first_weights(network(), file, name="cnn6")


class Bomb:
    """Unpickling it would leave a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_a_pickle_is_never_read(tmp_path):
    file, trace = tmp_path / "weights.pt", tmp_path / "trace"
    file.write_bytes(pickle.dumps({"conv": Bomb(trace)}))
    with pytest.raises(ConfigError, match=r"no safetensors file .* could run code and is never read: convert it"):
        load_first_weights(network(), file, name="cnn6")
    torch.save(network().state_dict(), file)
    with pytest.raises(ConfigError, match="is never read"):
        load_first_weights(network(), file, name="cnn6")
    assert not trace.exists()


@pytest.mark.parametrize(("name", "words"), [("gone.safetensors", "there is no such file"), (".", "weights")])
def test_a_file_that_cannot_be_read_is_refused_before_anything_is_written(tiny, tmp_path, name, words):
    models = (f"cnn6:weights={tmp_path / name}",)
    with pytest.raises(ConfigError, match=words):
        crad.run(change(tiny, models=models), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- a run with it


@pytest.fixture
def pretrained(tiny, tmp_path) -> Path:
    """Weights of another task with seven classes."""
    return saved(network(7, seed=2), tmp_path / "w.safetensors")


def test_a_client_begins_with_the_file_and_its_neighbour_with_its_seed(tiny, pretrained):
    experiment = change(tiny, models=(f"cnn6:weights={pretrained}", "cnn6"))
    with_file, without = Federation(experiment), Federation(change(tiny, models=("cnn6",)))
    stored, layer, last = load_file(pretrained), first_convolution(network()), head(network())
    for client in range(4):
        mine, plain = with_file.peer(client).model.state_dict(), without.peer(client).model.state_dict()
        assert torch.equal(mine[layer], stored[layer] if client % 2 == 0 else plain[layer])
        assert torch.equal(mine[f"{last}.weight"], plain[f"{last}.weight"]), "the head is the seed's own"


def test_a_run_says_what_was_left_and_goes_on_to_the_same_bits(tiny, pretrained, tmp_path):
    experiment = change(tiny, models=(f"cnn6:weights={pretrained}",), rounds=2, active=2, eval_every=2)
    notices: list[str] = []
    whole = crad.run(experiment, output=tmp_path / "whole", callbacks=[LambdaCallback(on_notice=notices.append)])
    last = head(network())
    [notice] = notices
    assert f"from {pretrained}, left at their first values: {last}.weight, {last}.bias" in notice

    def stop(record):
        raise StopError

    with pytest.raises(StopError):
        crad.run(experiment, output=tmp_path / "run", callbacks=[LambdaCallback(on_round=stop)])
    resumed = crad.run(experiment, output=tmp_path / "run", resume=True)
    assert resumed.rounds[-1]["clients"] == whole.rounds[-1]["clients"]


def test_a_file_that_changed_since_the_run_began_is_noticed(tiny, pretrained, tmp_path):
    """Who has not been drawn yet would begin with other weights."""
    experiment = change(tiny, models=(f"cnn6:weights={pretrained}",), rounds=2, active=2)

    def stop(record):
        raise StopError

    with pytest.raises(StopError):
        crad.run(experiment, output=tmp_path / "run", callbacks=[LambdaCallback(on_round=stop)])
    saved(network(7, seed=3), pretrained)
    with pytest.raises(RunError, match="began with other files of weights; put the old ones back"):
        crad.run(experiment, output=tmp_path / "run", resume=True)


def build(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(in_channels, 3, 8), nn.Flatten(), nn.Linear(3, num_classes))


def test_who_has_learned_needs_the_file_no_more(tiny, tmp_path):
    """Also a user's network, which is built again for every piece of work."""
    file = saved(build(7, 1), tmp_path / "w.safetensors")
    models = (f"tests.test_first_weights:build:weights={file}",)
    federation = Federation(change(tiny, models=models, rounds=2))
    assert torch.equal(federation.peer(3).model.state_dict()["0.weight"], load_file(file)["0.weight"])
    federation.next_round()
    file.unlink()
    federation.next_round()
    assert {place.state is None for place in federation.roster} == {False}


def test_a_finished_run_is_inspected_without_the_file(tiny, pretrained, tmp_path):
    crad.run(change(tiny, models=(f"cnn6:weights={pretrained}",), rounds=1), output=tmp_path / "run")
    pretrained.unlink()
    from crad.inspection import RunInspector

    inspector = RunInspector(tmp_path / "run")
    assert inspector.panel.of_student(0) == [1, 2, 3]


# --- between organisations


def test_a_member_names_its_own_file_in_its_own_settings(tmp_path):
    clinics = found_clinics(tmp_path)
    site_file = clinics.site(0)
    classes = len(clinics.agreement.classes)
    weights = site_file.parent / "mine.safetensors"
    saved(network(classes + 1, seed=2), weights)
    site_file.write_text(f'weights = "mine.safetensors"\n{site_file.read_text()}')
    part = prepare_local_peer(clinics.agreement, read_site(site_file))
    assert part.context.architecture_of(0).weights == weights.resolve()
    assert [part.context.architecture_of(client).weights for client in (1, 2)] == [None, None]
    assert part.context.architecture_of(0).id == "cnn6@0.125"
    assert "left at their first values" in str(part.word_about_weights)
    assert "weights" not in clinics.agreement.text.decode()


def test_an_agreement_cannot_name_a_file(tmp_path):
    clinics = found_clinics(tmp_path)
    table = clinics.agreement.model_dump(mode="json", exclude_none=True)
    table["members"][0]["architecture"] = "cnn6:weights=/etc/passwd"
    with pytest.raises((ConfigError, ValidationError), match="must be a model name"):
        make_agreement(table)
