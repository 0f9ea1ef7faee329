"""Trees as peers: ensembles as tensors, fitted in one call to weighed labels, teaching and learning beside networks."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

import crad
from crad.config import Experiment
from crad.errors import ConfigError, SnapshotError, install_hint
from crad.federation.message import open_message, pack
from crad.federation.method import Learned, MethodSpec, Phase
from crad.inference.engine import TeacherEngine
from crad.methods.local_training import train_epochs
from crad.models import FITTED, Architecture, InputShape, build_model
from crad.models.networks.trees import GradientBoosting, RandomForest, TreeEnsemble
from crad.models.tree_fit import FittedTree, _as_heaps, _rows_of, bin_edges, bin_numbers, round_down
from crad.training.losses import BatchLabels, PrivateLoss, StudentLoss, private_loss
from tests.conftest import change
from tests.test_golden import without_timing
from tests.test_resume import assert_same_weights, interrupted
from tests.wards import ward_experiment

NAN = float("nan")
SIZES = (0, 3, 0, 0)  # a number, three categories, a number, one that is never there
ABLE = "crad, crad-plus, uniform, "


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three wards of fifty patients: age and the kind of pain decide; one ward has no laboratory."""
    rng = np.random.default_rng(11)
    lines = ["age,pain,lab,ward,ill"]
    for row in range(150):
        age, pain, ward = rng.normal(50, 12), ["none", "dull", "sharp"][rng.integers(3)], "abc"[row % 3]
        lab = "" if ward == "c" or rng.random() < 0.2 else f"{age + rng.normal(0, 10):.1f}"
        ill = age + 15 * (pain == "sharp") + rng.normal(0, 4) > 55
        lines.append(f"{age:.0f},{pain},{lab},{ward},{'yes' if ill else 'no'}")
    path = tmp_path_factory.mktemp("wards") / "wards.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def wards(clinics: Path) -> Experiment:
    """A network, boosting and a forest; ten trees each."""
    return ward_experiment(clinics, models=("mlp", "gradient-boosting", "random-forest"), width=0.1)


def probabilities(model: nn.Module, rows: list[list[float]]) -> Tensor:
    with torch.no_grad():
        said: Tensor = model(torch.tensor(rows)).softmax(dim=1)
    return said


def some_rows(count: int, *, seed: int, num_classes: int = 2) -> tuple[Tensor, Tensor]:
    """Rows of SIZES with gaps, and weights of classes that follow from them."""
    rng = np.random.default_rng(seed)
    rows = np.stack(
        [rng.normal(50, 10, count), rng.integers(0, 4, count), rng.normal(0, 1, count), np.full(count, NAN)], axis=1
    )
    score = np.stack([(rows[:, 0] - 50) / 10 * place + (rows[:, 1] == place) for place in range(num_classes)], axis=1)
    mass = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True) * rng.uniform(0.5, 2, (count, 1))
    rows[rng.random(rows.shape) < 0.2] = NAN
    return torch.from_numpy(rows.astype(np.float32)), torch.from_numpy(mass)


# --- what trees say


def test_a_stump_by_hand():
    model = GradientBoosting((0,), steps=1, depth=1, num_classes=2)
    model.load_state_dict(
        {
            "column": torch.zeros(1, 1, dtype=torch.int32),
            "threshold": torch.tensor([[2.0]]),
            "gap_right": torch.ones(1, 1, dtype=torch.uint8),
            "values": torch.tensor([[-1.0, math.log(3)]]),
        }
    )
    # Two is not above two. Scores are of the second class: e^-1 to one on the left, three to one on the right.
    left, right = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))], [0.25, 0.75]
    expected = torch.tensor([left, left, right, right])
    assert torch.allclose(probabilities(model, [[-5.0], [2.0], [2.5], [NAN]]), expected, atol=1e-6)


def test_a_forest_by_hand_says_the_mean_and_never_none():
    model = RandomForest((0, 2), trees=2, depth=1, num_classes=2)
    with torch.no_grad():
        model.column.copy_(torch.tensor([[0], [1]]))
        model.threshold.copy_(torch.tensor([[2.0], [0.5]]))
        model.values.copy_(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]]))
    said = probabilities(model, [[1.0, 1.0], [3.0, 1.0], [1.0, 0.0], [1.0, NAN], [1.0, 2.0]])
    # The fourth has a gap, which goes to the left; the fifth an unknown category, which is a gap.
    expected = [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    assert torch.allclose(said, torch.tensor(expected), atol=2e-6)
    assert model(torch.tensor([[1.0, 0.0]])).tolist()[0][1] == pytest.approx(math.log(1e-6))


@pytest.mark.parametrize("name", FITTED)
def test_before_it_has_learned_it_says_nothing(name):
    model = build_model(Architecture(name), **vars(InputShape(3, 4, (), "table", SIZES)), seed=1)
    assert torch.allclose(probabilities(model, [[1.0, 2.0, NAN, 4.0]]), torch.full((1, 3), 1 / 3))


def test_what_lies_below_an_early_leaf_ends_in_its_value():
    # Node 0 asks column 1; its left child is a leaf, its right one asks column 0.
    tree = FittedTree(
        column=np.array([1, 0, 0, 0, 0]),
        threshold=np.array([5.0, 0.0, 7.0, 0.0, 0.0]),
        gap_right=np.array([True, False, False, False, False]),
        left=np.array([1, 1, 3, 3, 4]),
        right=np.array([2, 1, 4, 3, 4]),
        values=np.array([0.0, 10.0, 0.0, 20.0, 30.0]),
    )
    heap = _as_heaps([tree], depth=2)
    assert heap["column"].tolist() == [[1, 0, 0]]
    assert heap["threshold"].tolist() == [[5.0, 0.0, 7.0]]
    assert heap["values"].tolist() == [[10.0, 10.0, 20.0, 30.0]]


@given(arrays(np.float64, 20, elements=st.floats(allow_nan=False)), st.floats(width=32, allow_nan=False))
def test_rounding_a_threshold_down_changes_no_decision(thresholds, value):
    bounded = np.clip(thresholds, -1e18, 1e18)
    assert ((np.float32(value) > round_down(thresholds)) == (value > bounded)).all()


@pytest.fixture
def fitted_by_sklearn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every estimator that is fitted."""
    import sklearn.ensemble

    seen: list[Any] = []
    for name in ("HistGradientBoostingClassifier", "RandomForestRegressor"):
        kind = getattr(sklearn.ensemble, name)

        def fit(self: Any, *given: Any, _fit: Any = kind.fit, **named: Any) -> Any:
            seen.append(self)
            return _fit(self, *given, **named)

        monkeypatch.setattr(kind, "fit", fit)
    return seen


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("name", FITTED)
def test_the_tensors_say_what_scikit_learn_says(name, num_classes, fitted_by_sklearn):
    model = build_model(Architecture(name, 0.2), **vars(InputShape(num_classes, 4, (), "table", SIZES)), seed=1)
    assert isinstance(model, TreeEnsemble)
    rows, mass = some_rows(400, seed=1, num_classes=num_classes)  # more values in a column than there are bins
    rows[:, 2] = rows[:, 2].nan_to_num(0.5)  # no gap here, and some in the rows that are asked about
    model.fit(rows, mass, seed=3)
    [estimator] = fitted_by_sklearn
    asked, _ = some_rows(300, seed=2)
    known = model.known(asked).numpy()
    if name == "gradient-boosting":
        said = estimator.predict_proba(bin_numbers(known, bin_edges(_rows_of(model, rows))))
    else:
        said = estimator.predict(known)
    assert np.ptp(said[:, 0]) > 0.2, "it has learned something"
    np.testing.assert_allclose(probabilities(model, asked.tolist()).numpy(), said, atol=2e-6)
    with torch.no_grad():
        teacher = TeacherEngine(device="cpu").prepare(model, key=name)
        assert torch.equal(teacher(asked), torch.cat([model(part) for part in asked.split(64)]))


def test_values_are_put_into_bins_between_them_or_of_one_size():
    few = np.array([[1.0], [4.0], [NAN], [2.0], [2.0]], np.float32)
    edges = bin_edges(few)
    assert edges[0, :3].tolist() == [1.5, 3.0, math.inf]
    numbers = bin_numbers(np.array([[0.0], [1.5], [1.6], [9.0], [NAN]], np.float32), edges)[:, 0]
    assert numbers.tolist() == pytest.approx([0, 0, 1, 2, NAN], nan_ok=True)
    many = np.random.default_rng(1).normal(size=(2550, 1)).astype(np.float32)
    sizes = np.bincount(bin_numbers(many, bin_edges(many))[:, 0].astype(int))
    assert len(sizes) == 255
    assert sizes.min() >= 8
    assert sizes.max() <= 12


@pytest.mark.parametrize("name", FITTED)
def test_the_weights_of_the_classes_are_what_is_learned(name):
    model = build_model(Architecture(name), **vars(InputShape(3, 1, (), "table", (0,))), seed=1)
    assert isinstance(model, TreeEnsemble)
    rows = torch.tensor([[0.0], [1.0]]).repeat(40, 1)
    model.fit(rows, torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.3, 2.7]]).repeat(40, 1), seed=3)
    expected = torch.tensor([[0.7, 0.2, 0.1], [0.0, 0.1, 0.9]])
    assert torch.allclose(probabilities(model, [[0.0], [1.0]]), expected, atol=0.02)


@pytest.mark.parametrize("name", FITTED)
def test_one_class_alone_or_a_few_rows_can_be_fitted(name):
    model = build_model(Architecture(name, 0.1), **vars(InputShape(2, 4, (), "table", SIZES)), seed=1)
    assert isinstance(model, TreeEnsemble)
    for count in (1, 5, 60):
        rows, _ = some_rows(count, seed=5)
        model.fit(rows, torch.tensor([[0.0, 1.0]]).repeat(count, 1), seed=3)
        said = model(rows)
        assert said.isfinite().all()
        assert (said.argmax(dim=1) == 1).all()


@pytest.mark.parametrize("name", FITTED)
def test_a_fit_follows_from_its_seed_alone(name):
    rows, mass = some_rows(100, seed=7)
    states = []
    for seed in (3, 3, 4):
        model = build_model(Architecture(name, 0.1), **vars(InputShape(2, 4, (), "table", SIZES)), seed=1)
        assert isinstance(model, TreeEnsemble)
        torch.rand(5)
        model.fit(rows, mass, seed=seed)
        states.append(model.state_dict())
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
    is_equal = all(torch.equal(tensor, states[2][key]) for key, tensor in states[0].items())
    assert is_equal is (name == "gradient-boosting"), "boosting draws nothing from so few rows"


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("gradient-boosting", 100 * (15 * 9 + 16 * 4)), ("random-forest", 100 * (255 * 9 + 256 * 2 * 4))],
)
def test_a_snapshot_is_as_large_as_it_is_documented_to_be(name, nbytes):
    model = build_model(Architecture(name), **vars(InputShape(2, 13, (), "table", (0,) * 13)), seed=0)
    assert sum(tensor.nbytes for tensor in model.state_dict().values()) == nbytes  # 20 KB, 434 KB


# --- what others send


def walked(model: TreeEnsemble, row: list[float], tree: int) -> int:
    """Go down one tree by hand."""
    node: int = 0
    for _ in range(model.depth):
        column = min(max(int(model.column[tree, node]), 0), len(model.sizes) - 1)
        value = row[column]
        is_gap = math.isnan(value) or (model.sizes[column] > 0 and value >= model.sizes[column])
        is_right = bool(model.gap_right[tree, node]) if is_gap else value > float(model.threshold[tree, node])
        node = 2 * node + 1 + int(is_right)
    return node - model.nodes


TREES, DEPTH = 3, 3
NODES = (TREES, 2**DEPTH - 1)


@settings(max_examples=30, deadline=None)
@given(
    column=arrays(np.int32, NODES),
    threshold=arrays(np.float32, NODES, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    gap_right=arrays(np.uint8, NODES),
    values=arrays(np.float32, (TREES, 2**DEPTH), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    rows=arrays(np.float32, (4, 4), elements=st.floats(-5, 5, width=32) | st.just(NAN)),
)
def test_whatever_is_sent_every_row_comes_to_a_leaf(column, threshold, gap_right, values, rows):
    model = GradientBoosting(SIZES, steps=TREES, depth=DEPTH, num_classes=2)
    sent = {"column": column, "threshold": threshold, "gap_right": gap_right, "values": values}
    message = pack({name: torch.from_numpy(one) for name, one in sent.items()}, kind="x", peer=1, round_index=1)
    read = open_message(message, sender=1, round_index=1, kind="x", expected=model.state_dict())
    model.load_state_dict(read)
    with torch.no_grad():
        leaf_BT = model.leaf_of(torch.from_numpy(rows))
        logits = model(torch.from_numpy(rows))
    expected = [[tree * 8 + walked(model, row, tree) for tree in range(TREES)] for row in rows.tolist()]
    assert leaf_BT.tolist() == expected
    assert logits.shape == (4, 2)  # so large that they overflow: found where a network's are
    assert not (logits > 0).any()


@pytest.mark.parametrize("name", ["threshold", "values"])
@pytest.mark.parametrize("wrong", [NAN, math.inf])
def test_what_is_no_number_is_refused(name, wrong):
    model = RandomForest(SIZES, trees=2, depth=2, num_classes=2)
    sent = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    sent[name].view(-1)[1] = wrong
    message = pack(sent, kind="x", peer=1, round_index=1)
    with pytest.raises(SnapshotError, match=f"peer 1 sent a non-finite value in tensor '{name}'"):
        open_message(message, sender=1, round_index=1, kind="x", expected=model.state_dict())


def test_another_number_of_trees_is_refused():
    model, larger = (RandomForest(SIZES, trees=trees, depth=2, num_classes=2) for trees in (2, 3))
    message = pack(larger.state_dict(), kind="x", peer=1, round_index=1)
    with pytest.raises(SnapshotError, match=r"I32 \[3, 3\] as tensor 'column', expected I32 \[2, 3\]"):
        open_message(message, sender=1, round_index=1, kind="x", expected=model.state_dict())


# --- what a loss asks for


def test_a_target_is_sharpened_and_shares_a_row_with_the_label():
    labels, target = BatchLabels(torch.tensor([0, 1])), torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    loss = StudentLoss(labels, target, temperature=2.0, distill_weight=0.25)
    # 9:1 is 3:1 squared
    assert torch.allclose(loss.class_mass(2), torch.tensor([[0.75 + 0.225, 0.025], [0.125, 0.875]]))


def test_the_balanced_loss_weighs_labels_not_targets_and_no_class_ten_times_over():
    labels = BatchLabels(torch.tensor([0, 1]))
    prior = torch.tensor([0.9, 0.1]).log()
    assert torch.allclose(PrivateLoss(labels, prior).class_mass(2), torch.tensor([[1 / 1.8, 0.0], [0.0, 5.0]]))
    rare = torch.tensor([0.999, 0.001]).log()
    assert PrivateLoss(labels, rare).class_mass(2)[1].tolist() == [0.0, 10.0]
    both = StudentLoss(labels, torch.tensor([[0.5, 0.5]] * 2), 3.0, distill_weight=0.5, log_prior_C=rare)
    assert both.class_mass(2)[1].tolist() == [0.25, 5.25]


def test_a_mixed_sample_is_both():
    mixed = BatchLabels(torch.tensor([0, 1]), torch.tensor([2, 1]), torch.tensor([0.75, 0.5]))
    assert PrivateLoss(mixed).class_mass(3).tolist() == [[0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]


# --- in a federation

# As first measured, seed 4, three rounds; boosting and the forest take their turns behind a network of 6 units.
GOLDEN = {"loss": [0.1895, 0.1832, 0.1814], "global": [80.0, 78.9, 80.0]}


@pytest.fixture(scope="module")
def whole(wards, tmp_path_factory) -> Any:
    return crad.run(change(wards, method="crad-plus", rounds=3), output=tmp_path_factory.mktemp("whole") / "run")


def test_golden_run(whole):
    losses = [sum(client["losses"]["total"] for client in line["clients"]) / 3 for line in whole.rounds]
    assert losses == pytest.approx(GOLDEN["loss"], rel=0.02)
    assert [line["global_accuracy"] for line in whole.rounds] == pytest.approx(GOLDEN["global"], abs=2.0)


@pytest.mark.usefixtures("forked_workers")
def test_workers_and_a_stop_change_no_bit(whole, wards, tmp_path):
    experiment = change(wards, method="crad-plus", rounds=3)
    interrupted(experiment, tmp_path / "run", after=1)
    crad.run(change(experiment, engine="processes", workers=2), output=tmp_path / "run", resume=True)
    assert_same_weights(whole.directory, tmp_path / "run")


@pytest.mark.parametrize(
    "given",
    [
        {"method": "local", "local_loss": "balanced"},
        {"method": "uniform", "distill_augment": "mixup"},
        {"method": "inverse-ce", "distill_augment": "strong", "local_loss": "balanced"},
        {"method": "experts"},
        {"method": "experts", "method_settings": {"exchange_every": 1}},
        {"method": "committee"},
        {"method": "centralized", "models": ("random-forest", "gradient-boosting")},
        {"method": "crad", "attack": "label-flip", "attackers": 1},
        {"method": "crad", "attack": "noise", "attackers": 2},
        {"method": "crad", "attack": "free-rider", "attackers": 1},
        {"method": "crad", "partition": "dirichlet", "clients": 4, "alpha": 1.0, "active": 2},
    ],
    ids=lambda given: "-".join(str(value) for value in given.values()),
)
def test_trees_take_part_in(wards, given):
    result = crad.run(change(wards, **given))
    assert result.summary["global_accuracy"] > 30
    assert result.models[0].predict(np.array([[70.0, 2.0, NAN]], np.float32)).tolist() in (["no"], ["yes"])


def test_trees_learn_from_the_others_and_teach_them(wards):
    """One ward has seen hardly any healthy patient, the other hardly any ill one; together they know both."""
    path = Path(wards.dataset)
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row[3] = {"no": "a", "yes": "b"}[row[4]] if number % 8 else "ab"[number // 8 % 2]
    skewed = path.parent / "skewed.csv"
    skewed.write_text("".join(",".join(row) + "\n" for row in [header, *rows]))
    experiment = change(wards, dataset=str(skewed), clients=2, models=tuple(FITTED), rounds=3)
    alone, together = (crad.run(change(experiment, method=method)).summary for method in ("local", "uniform"))
    assert together["global_accuracy"] > alone["global_accuracy"] + 5


def test_more_epochs_are_one_fit(wards):
    one, three = (
        crad.run(change(wards, method="local", models=tuple(FITTED), local_epochs=epochs)) for epochs in (1, 3)
    )
    assert without_timing(one.rounds) == without_timing(three.rounds)


def test_the_other_face_of_a_balanced_forest_has_its_owners_prior(whole):
    row = np.array([[55.0, 1.0, NAN]], np.float32)
    for model in whole.models:
        plain, own = (np.log(model.predict_proba(row, face)[0]) for face in ("global", "local"))
        assert own[1] - own[0] - (plain[1] - plain[0]) == pytest.approx(
            model.card.log_prior[1] - model.card.log_prior[0], abs=1e-4
        )


def test_its_models_are_exported_explained_and_asked_together(whole, tmp_path, crad_command):
    pytest.importorskip("onnxruntime")
    rows = np.array([[70.0, 2.0, NAN], [NAN, 3.0, 44.0], [30.0, NAN, 20.0]], np.float32)
    for client in (1, 2):
        path = whole.export("safetensors", client=client, path=tmp_path / f"model{client}.safetensors")
        expected = whole.models[client].predict_proba(rows)
        np.testing.assert_array_equal(crad.load_model(path).predict_proba(rows), expected)
    path = whole.export("onnx", client=1, path=tmp_path / "model.onnx")
    expected = whole.models[1].predict_proba(rows)
    np.testing.assert_allclose(crad.load_model(path).predict_proba(rows), expected, atol=1e-5)
    assert crad.load(whole.directory).committee(client=0).predict(rows).shape == (3,)
    code, _, err = crad_command("explain", whole.directory, "--student", 0, "--image", 1)
    assert code == 0, err
    assert json.loads((whole.directory / "inspection.json").read_text())["images"]


# --- what is refused


@pytest.mark.parametrize("method", ["fedmd", "msfkd", "dfml", "fedmkd", "fedgd"])
def test_a_method_of_gradients_names_those_that_work(wards, method, tmp_path):
    said = f"is fitted in one call, and method '{method}' takes steps along gradients: choose networks, or one of "
    with pytest.raises(ConfigError, match=f"model 'gradient-boosting' {said}{ABLE}"):
        crad.run(change(wards, method=method), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_trees_cannot_be_negated(wards):
    with pytest.raises(ConfigError, match=r"attack 'sign-flip' negates the last linear layer, and client [12]'s model"):
        crad.run(change(wards, attack="sign-flip", attackers=2))


def test_images_are_for_networks(tiny):
    with pytest.raises(ConfigError, match="model 'random-forest' is for data of kind 'table', and this is of kind 'im"):
        crad.run(change(tiny, models=("cnn6", "random-forest")))


def test_without_scikit_learn_a_line_says_what_to_install(wards, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError) as refused:
        crad.run(wards, output=tmp_path / "run")
    said = f"model 'gradient-boosting' is fitted by scikit-learn, which is not there: {install_hint('trees')}"
    assert str(refused.value) == said
    assert not (tmp_path / "run").exists()


def test_who_only_hears_trees_needs_no_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    model = build_model(Architecture("random-forest"), **vars(InputShape(2, 4, (), "table", SIZES)), seed=1)
    assert TeacherEngine(device="cpu").prepare(model, key="x")(torch.zeros(2, 4)).shape == (2, 2)


class OwnLoss(MethodSpec):
    """A method whose loss is a function and nothing more."""

    def phases(self):
        return [Phase("own", learn=self._learn)]

    def _learn(self, peer, messages, context):
        def loss_for(block):
            return lambda logits, where: private_loss(logits, block.labels[where])

        return Learned(train_epochs(peer, context, loss_for=loss_for))


def test_a_loss_that_cannot_be_said_as_weights_is_refused(wards):
    with pytest.raises(ConfigError, match="is fitted to weighed labels, and this method has a loss of its own"):
        crad.run(change(wards, models=("mlp", "gradient-boosting")), method=OwnLoss())
