"""Federations on tables: own statistics inside the network, every method, engine, resume, report, inspector, export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import crad
from crad.config import Experiment
from crad.errors import ConfigError
from crad.federation.context import build_run_context
from crad.federation.method import one_peer_per_client
from crad.federation.peer import Peer
from crad.inference.engine import TeacherEngine
from crad.models import FAMILIES, Architecture, InputShape, TableEncoder, build_model, estimate_size
from crad.runs.resolution import resolve_experiment
from tests.conftest import change
from tests.test_resume import assert_same_weights, interrupted
from tests.wards import ward_experiment

NAN = float("nan")
SHAPE = InputShape(3, 3, (), "table", (0, 2, 0))  # a number, two categories, a number


@pytest.fixture(scope="session")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three wards of sixty patients: the sum of two numbers decides, one ward measures in other units, one has gaps."""
    rng = np.random.default_rng(3)
    lines = ["pressure,sugar,sex,lab,ward,ill"]
    for row in range(180):
        pressure, sugar, ward = rng.normal(120, 10), rng.normal(5, 1), "abc"[row % 3]
        ill = "yes" if (pressure - 120) / 10 + (sugar - 5) > 0 else "no"
        lab = "" if ward == "c" else f"{pressure * (0.133 if ward == 'b' else 1):.2f}"
        lines.append(f"{pressure:.1f},{sugar:.2f},{'fm'[row // 3 % 2]},{lab},{ward},{ill}")
    path = tmp_path_factory.mktemp("clinics") / "clinics.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def wards(clinics: Path) -> Experiment:
    """The three wards as clients, each with another family; a round takes milliseconds."""
    return ward_experiment(clinics, models=("mlp", "mlp-deep", "tab-transformer"), width=0.25)


def fitted(rows: list[list[float]], sizes: tuple[int, ...]) -> TableEncoder:
    encoder = TableEncoder(sizes)
    encoder.fit(torch.tensor(rows))
    return encoder


def encoder_of(model: torch.nn.Module) -> TableEncoder:
    [encoder] = [module for module in model.modules() if isinstance(module, TableEncoder)]
    return encoder


# --- the first layer


def test_numbers_are_standardised_gaps_told_and_categories_one_hot():
    encoder = fitted([[1.0, 0.0], [3.0, 1.0], [NAN, NAN]], (0, 2))  # known numbers 1 and 3: mean 2, deviation 1
    prepared = encoder(torch.tensor([[4.0, 1.0], [NAN, 0.0], [2.0, NAN], [2.0, 2.0]]))
    # the number; is it a gap; is the category a gap; is it the first, the second, an unknown one
    assert prepared.tolist() == [
        [2.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        [0.0, 0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # nobody here has ever been unknown: nothing is known about it
    ]


def test_what_the_owner_never_saw_varying_says_nothing():
    # An empty column, a constant one, and one that varies: only the last is heard, and no gap is.
    encoder = fitted([[NAN, 0.1, 1.0], [NAN, 0.1, 5.0]], (0, 0, 0))
    assert encoder(torch.tensor([[233.0, 7.0, 3.0]])).tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    assert encoder(torch.tensor([[NAN, NAN, 7.0]])).tolist() == [[0.0, 0.0, 2.0, 1.0, 0.0, 0.0]]


def test_a_value_in_another_unit_is_bounded():
    assert fitted([[1.0], [3.0]], (0,))(torch.tensor([[1e6], [-1e6]]))[:, 0].tolist() == [10.0, -10.0]


def test_statistics_are_buffers_that_travel_and_are_not_trained():
    model = build_model(Architecture("mlp"), **vars(SHAPE), seed=1)
    assert {"encoder.mean", "encoder.scale"} <= model.state_dict().keys()
    assert not {"encoder.mean", "encoder.scale"} & {name for name, _ in model.named_parameters()}


# --- families


@pytest.mark.parametrize("name", FAMILIES["table"])
def test_every_family_takes_raw_rows_with_gaps_and_runs_as_a_teacher_to_the_same_logits(name):
    model = build_model(Architecture(name), **vars(SHAPE), seed=1)
    rows = torch.tensor([[1.0, 0.0, 3.0], [NAN, 1.0, 7.0], [2.0, NAN, NAN]]).repeat(30, 1)
    for module in model.modules():
        if isinstance(module, TableEncoder):
            module.fit(rows)
    logits = model.eval()(rows)
    assert logits.shape == (90, 3)
    assert logits.isfinite().all()
    with torch.no_grad():
        teacher = TeacherEngine(device="cpu").prepare(model, key=name)
        assert torch.allclose(teacher(rows), logits, atol=1e-6)
    again = build_model(Architecture(name), **vars(SHAPE), seed=1).state_dict()
    assert all(torch.equal(tensor, again[key]) for key, tensor in model.state_dict().items() if "encoder" not in key)


@pytest.mark.parametrize("name", FAMILIES["table"])
def test_its_size_is_known_before_it_is_built_and_width_counts(name):
    model = build_model(Architecture(name), **vars(SHAPE), seed=0)
    small, usual = estimate_size(Architecture(name, 0.25), SHAPE), estimate_size(Architecture(name), SHAPE)
    assert usual.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert small.parameters < usual.parameters


def test_a_family_for_another_kind_is_refused_with_those_that_fit(wards, tiny):
    with pytest.raises(
        ConfigError, match="model 'cnn6' is for data of kind 'image', and this is of kind 'table': choose mlp, "
    ):
        crad.run(change(wards, models=("mlp", "cnn6")))
    with pytest.raises(
        ConfigError, match="model 'mlp' is for data of kind 'table', and this is of kind 'image': choose cnn6, "
    ):
        crad.run(change(tiny, models=("mlp",)))
    with pytest.raises(ConfigError, match="model 'timm:resnet18' is for data of kind 'image'"):
        build_model(Architecture("timm:resnet18"), **vars(SHAPE), seed=0)


def test_attention_refuses_more_columns_than_it_can_look_at():
    with pytest.raises(ConfigError, match="looks at up to 512 columns, the table has 600: choose mlp or mlp-deep"):
        build_model(Architecture("tab-transformer"), **vars(InputShape(2, 600, (), "table", (0,) * 600)), seed=0)


def own_network(num_classes: int, in_channels: int) -> torch.nn.Module:
    return torch.nn.Linear(in_channels, num_classes)


def test_a_network_of_ones_own_is_given_prepared_values(wards):
    result = crad.run(wards, models=[own_network, "mlp"])
    [layer] = [one for one in result.models[0].module.modules() if isinstance(one, torch.nn.Linear)]
    assert layer.in_features == encoder_of(result.models[0].module).width
    assert layer.in_features == 3 + 4 + 3  # numbers, gaps, two categories and the unknown one


# --- whose statistics


def test_every_member_standardises_by_its_own_training_part_alone(wards):
    context = build_run_context(wards)
    peers = [Peer(context, member) for member in one_peer_per_client(context)]
    lab = 2  # third among the numbers
    for peer in peers:
        rows = peer.train.samples[:, 3]
        mean = encoder_of(peer.model).mean[lab]
        known = rows[~rows.isnan()]
        assert float(mean) == pytest.approx(float(known.mean()) if len(known) else 0.0, rel=1e-5)
    means = [float(encoder_of(peer.model).mean[lab]) for peer in peers]
    assert means[0] > 110
    assert 14 < means[1] < 18  # the same in another unit
    assert means[2] == 0  # nothing there


def test_a_teacher_sees_rows_as_its_owner_prepared_them_and_another_ones_statistics_spoil_it(wards):
    """Two members measure `lab` in units of their own; a network is right on its owner's rows by its statistics."""
    experiment = change(wards, method="local", rounds=8, models=("mlp",), width=1, ignore="pressure")
    result = crad.run(experiment)
    context = build_run_context(resolve_experiment(experiment))
    test = context.data.samples(context.data.shards[0].train)
    modules = [result.models[client].module for client in (0, 1)]
    rows, labels = test.samples, test.labels
    before = (modules[0](rows).argmax(dim=1) == labels).float().mean()
    assert before > 0.9
    first, second = (
        {name: tensor.clone() for name, tensor in encoder_of(module).state_dict().items()} for module in modules
    )
    encoder_of(modules[0]).load_state_dict(second)
    swapped = (modules[0](rows).argmax(dim=1) == labels).float().mean()
    assert swapped < before - 0.2
    encoder_of(modules[0]).load_state_dict(first)
    assert (modules[0](rows).argmax(dim=1) == labels).float().mean() == before


def test_statistics_stay_the_owners_through_rounds_and_methods(wards):
    context = build_run_context(wards)
    own = [encoder_of(Peer(context, member).model).mean for member in one_peer_per_client(context)]
    for method in ("crad", "dfml"):
        result = crad.run(change(wards, method=method))
        for client in range(3):
            assert torch.equal(encoder_of(result.models[client].module).mean, own[client])


# --- partitions


def test_a_client_per_site_in_the_order_of_their_names(wards):
    context = build_run_context(wards)
    sites = context.data.dataset.train_sites
    assert sites is not None
    assert [set(sites[shard.indices].tolist()) for shard in context.data.shards] == [{0}, {1}, {2}]
    assert context.data.dataset.site_names == ("a", "b", "c")


def test_the_partition_says_how_the_wards_columns_differ(wards):
    shift = build_run_context(wards).data.input_shift()
    assert shift["features"] == ["share of gaps", "pressure", "sugar", "lab"]
    assert shift["differences"][2][3] is None, "nothing there"
    assert shift["differences"][1][3] < -1, "another unit"


def test_the_number_of_clients_and_the_models_follow_from_the_data(clinics):
    given = Experiment(dataset=str(clinics), label="ill", site="ward", partition="natural")
    found = resolve_experiment(given)
    assert found.clients == 3
    assert found.models == ("mlp", "mlp-deep", "tab-transformer")


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "shards", "quantity"])
def test_tables_are_divided_in_every_other_way_too(wards, partition):
    result = crad.run(change(wards, partition=partition, clients=2, alpha=2.0, rounds=1, models=("mlp",)))
    assert result.partition is not None
    assert sum(sum(row) for row in result.partition["counts"]) == 144 - 12


def test_arrays_of_numbers_are_a_table_and_may_come_by_site():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3)).astype(np.float64)
    y = (x[:, 0] > 0).astype(int)
    x[5, 1] = np.nan
    data = crad.Dataset.from_arrays(x[:60], y[:60], x[60:], y[60:], site=[1, 2] * 30, columns=["p", "q", "r"])
    assert repr(data) == "<Dataset arrays: 60 training and 20 test rows 3, 2 classes>"
    experiment = Experiment(partition="natural", rounds=1, batch_size=16, workers=1, proxy_size=0)
    result = crad.run(experiment, data=data)
    assert result.summary["clients"] == 2
    assert result.models[0].predict_proba(x[:4]).shape == (4, 2)
    assert result.models[0].predict_proba(x[0]).shape == (1, 2)


# --- everything else works for rows


# Mean losses over the three wards, round by round: networks alone, and with trees among them.
GOLDEN = {"networks": [0.2323, 0.2851, 0.2274], "trees": [0.1895, 0.1773, 0.1696]}


def test_golden_runs(wards):
    """The wards with CRAD, as first measured; see test_golden.py for what a change of it means."""
    for name, models in (("networks", wards.models), ("trees", ("mlp", "gradient-boosting@0.1", "random-forest@0.1"))):
        rounds = crad.run(change(wards, models=models, rounds=3)).rounds
        losses = [sum(client["losses"]["total"] for client in line["clients"]) / 3 for line in rounds]
        assert losses[0] == pytest.approx(GOLDEN[name][0], rel=2e-3), name
        assert losses == pytest.approx(GOLDEN[name], rel=0.05), name


@pytest.mark.parametrize(
    "method",
    ["uniform", "crad", "crad-plus", "fedmd", "msfkd", "dfml", "fedmkd", "experts", "committee", "centralized"],
)
def test_every_method_learns_from_rows(wards, method):
    result = crad.run(change(wards, method=method))
    assert result.summary["global_accuracy"] > 50
    assert result.models[2].predict(np.zeros((1, 4), np.float32)).tolist()[0] in ("no", "yes")


def test_fedgd_says_that_it_paints_images_only(wards, tmp_path):
    with pytest.raises(ConfigError, match="method 'fedgd' paints images only, and this is a table"):
        crad.run(change(wards, method="fedgd"), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("attack", ["noise", "label-flip", "sign-flip", "free-rider", "collude", "honest"])
def test_attacks_that_need_no_picture_work(wards, attack):
    result = crad.run(change(wards, attack=attack, attackers=1, rounds=1))
    assert result.summary["honest"]["global_accuracy"] > 0


def test_a_backdoor_needs_pictures(wards):
    with pytest.raises(ConfigError, match="attack 'backdoor' puts a patch into images, and this is a table"):
        crad.run(change(wards, attack="backdoor", attackers=1))


@pytest.mark.parametrize("distill_augment", ["mixup", "strong"])
def test_inputs_are_changed_column_by_column(wards, distill_augment):
    context = build_run_context(wards)
    preprocessor = context.data.preprocessor
    rows, others = torch.tensor([[1.0, 0.0, 5.0, 9.0]]), torch.tensor([[2.0, 1.0, 6.0, 8.0]])
    made = preprocessor.mix(rows, others, torch.tensor([0.5]), generator=torch.Generator().manual_seed(1))
    assert all(
        value in pair for value, pair in zip(made[0].tolist(), zip(rows[0], others[0], strict=True), strict=True)
    )
    assert crad.run(change(wards, distill_augment=distill_augment)).summary["global_accuracy"] > 50


@pytest.mark.usefixtures("forked_workers")
def test_two_processes_give_the_same_bits(wards, tmp_path):
    crad.run(wards, output=tmp_path / "one")
    crad.run(change(wards, engine="processes", workers=2), output=tmp_path / "two")
    assert_same_weights(tmp_path / "one", tmp_path / "two")


def test_a_run_goes_on_where_it_stopped_and_its_page_shows_rows(wards, tmp_path):
    experiment = change(wards, rounds=3)
    whole = crad.run(experiment, output=tmp_path / "whole")
    interrupted(experiment, tmp_path / "stopped", after=1)
    crad.run(experiment, output=tmp_path / "stopped", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")
    inspection = json.loads((tmp_path / "whole" / "inspection.json").read_text())
    assert [name for name, _ in inspection["images"][0]["row"]] == ["pressure", "sugar", "sex", "lab"]
    assert inspection["words"] == {"one": "row", "several": "rows"}
    page = (tmp_path / "whole" / "report.html").read_text()
    assert "(144 training and 36 test rows): 3 clients, natural" in page
    partition = json.loads((tmp_path / "whole" / "partition.json").read_text())
    assert (partition["kind"], partition["sites"]) == ("table", ["a", "b", "c"])
    loaded = crad.load(tmp_path / "whole")
    row = np.array([[150.0, 8.0, 1.0, NAN]], np.float32)
    np.testing.assert_array_equal(loaded.models[2].predict_proba(row), whole.models[2].predict_proba(row))
    assert loaded.committee(client=0).predict(row).shape == (1,)


def test_a_client_that_never_took_part_still_has_its_own_statistics(wards):
    result = crad.run(change(wards, active=1, rounds=1, method="local"))
    context = build_run_context(wards)
    for client, member in enumerate(one_peer_per_client(context)):
        own = encoder_of(Peer(context, member).model).mean
        assert torch.equal(encoder_of(result.models[client].module).mean, own)


def test_an_exported_model_takes_raw_rows_by_name(wards, clinics, tmp_path, crad_command):
    pytest.importorskip("onnxruntime")
    result = crad.run(wards, output=tmp_path / "run")
    new = tmp_path / "new.csv"  # other columns, another order, a gap, an unknown category
    new.write_text("note,sex,sugar,pressure,lab\nx,f,4.0,110,\ny,diverse,6.5,?,17.2\n")
    rows = np.array([[110, 4.0, 0, NAN], [NAN, 6.5, 2, 17.2]], np.float32)
    for client, format in ((0, "onnx"), (1, "safetensors"), (2, "onnx")):
        path = result.export(format, client=client, path=tmp_path / f"model{client}.{format}")
        model = crad.load_model(path)
        expected = result.models[client].predict_proba(rows)
        np.testing.assert_allclose(model.predict_proba(rows), expected, atol=1e-5)
        assert [column.name for column in model.card.columns] == ["pressure", "sugar", "sex", "lab"]
        code, out, _ = crad_command("predict", path, new, "--json")
        assert code == 0
        said = [row["probabilities"]["yes"] for row in json.loads(out)["predictions"]]
        np.testing.assert_allclose(said, expected[:, 1], atol=1e-5)
    lacking = tmp_path / "lacking.csv"
    lacking.write_text("sex,sugar\nf,4.0\n")
    code, _, err = crad_command("predict", path, lacking)
    assert code == 2
    assert "lacks column 'pressure' and 1 more; has sex, sugar" in err


def test_a_committee_of_rows_is_one_graph(wards, tmp_path):
    pytest.importorskip("onnxruntime")
    result = crad.run(wards)
    together = result.committee(client=0)
    path = result.export("onnx", committee=together, path=tmp_path / "all.onnx")
    rows = np.array([[110, 4.0, 0, NAN]], np.float32)
    np.testing.assert_allclose(crad.load_model(path).predict_proba(rows), together.predict_proba(rows), atol=1e-5)


def test_the_command_line_has_it_all(clinics, tmp_path, crad_command):
    words = ["--data", clinics, "--label", "ill", "--site", "ward", "--partition", "natural", "--rounds", 1]
    more = ["--models", "mlp", "--batch-size", 16, "--methods", "local,crad", "--seeds", "1", "--quiet", "--workers", 1]
    code, _, err = crad_command("compare", *words, *more, "--output", tmp_path / "both")
    assert code == 0, err
    rows = json.loads((tmp_path / "both" / "comparison.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["local", "crad"]
    code, _, _ = crad_command("explain", next((tmp_path / "both").glob("*crad*")), "--student", 0, "--image", 1)
    assert code == 0
    code, out, _ = crad_command("data", "split", *words[:8], "--output", tmp_path / "shards")
    assert code == 0
    assert f"{tmp_path}/shards/b.csv: " in out
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["a.csv", "b.csv", "c.csv"]
    assert (tmp_path / "shards" / "c.csv").read_text().startswith("pressure,sugar,sex,lab,ill\n")
