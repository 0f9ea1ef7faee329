"""One temperature a teacher, fitted on its own validation half, published, bounded, and checked on arrival."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import crad
from crad.config import Experiment
from crad.errors import ConfigError, SnapshotError
from crad.federation.message import Message, Statistics, statistics_to_json
from crad.federation.peer_evaluation import AVERAGE, evaluation_from_json, evaluation_to_json
from crad.federation.teachers import TeacherCache
from crad.inference.engine import soft_predictions
from crad.training.calibration import GRID, HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE, fit_temperature
from tests.conftest import change
from tests.federation import Federation
from tests.test_aggregation_properties import examples
from tests.test_golden import without_timing


def odds(value: float, *, right: int, wrong: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (value, 0) on samples of which so many are of the first class."""
    return torch.tensor([[value, 0.0]] * (right + wrong)), torch.tensor([0] * right + [1] * wrong)


# --- the fit


def test_it_is_as_sure_as_it_is_right_by_hand():
    """Three of four are right: odds of e^(4/t) = 3, so t = 4 / ln 3 = 3.64. With so many samples nothing pulls."""
    assert fit_temperature(*odds(4.0, right=3000, wrong=1000)) == pytest.approx(4 / math.log(3), rel=0.022)
    assert fit_temperature(*odds(0.5, right=3000, wrong=1000)) == pytest.approx(0.5 / math.log(3), rel=0.022)


def test_no_sample_fits_nothing_and_one_fits_little():
    assert fit_temperature(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)) == 1.0
    assert 1.0 < fit_temperature(*odds(2.0, right=0, wrong=1)) < 2.0
    few, many = (fit_temperature(*odds(4.0, right=3 * n, wrong=n)) for n in (1, 100))
    assert 1.0 < few < many


def test_it_stays_within_its_bounds():
    assert fit_temperature(*odds(50.0, right=0, wrong=100)) == HIGHEST_TEMPERATURE
    assert fit_temperature(*odds(0.1, right=1000, wrong=0)) == LOWEST_TEMPERATURE
    assert fit_temperature(torch.tensor([[math.inf, 0.0]]), torch.tensor([0])) == 1.0
    assert (min(GRID), max(GRID)) == (LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE)
    assert GRID[0] == 1.0


def test_what_the_owners_class_shares_explain_is_not_the_models_doubt():
    """Logits of nothing under shares of 3/4 and 1/4: any temperature does, so one. Without the shares it is not."""
    logits, labels = torch.zeros(8, 2), torch.tensor([0] * 6 + [1] * 2)
    prior_C = torch.tensor([0.75, 0.25]).log()
    assert fit_temperature(logits, labels, log_prior_C=prior_C) == 1.0
    assert fit_temperature(logits + prior_C, labels) == pytest.approx(1.0, abs=0.03)
    # Odds of six are three by the shares and e^(1/t) = 2 by the model: t = 1 / ln 2. Without them e^(1/t) = 6.
    sure, right = odds(1.0, right=6000, wrong=1000)
    assert fit_temperature(sure, right, log_prior_C=prior_C) == pytest.approx(1 / math.log(2), rel=0.022)
    assert fit_temperature(sure, right) == pytest.approx(1 / math.log(6), rel=0.022)
    absent_C = torch.tensor([0.0, -1e9])
    assert fit_temperature(logits[:6], labels[:6], log_prior_C=absent_C) == 1.0


@examples(25)
@given(seed=st.integers(0, 1000), samples=st.integers(1, 30))
def test_nothing_on_the_grid_is_better(seed: int, samples: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(samples, 4, generator=draws)
    labels = torch.randint(4, (samples,), generator=draws)

    def cost(t: float) -> float:
        total = 2 * math.log(t) ** 2
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
            total += math.log(sum(math.exp(z / t) for z in row)) - row[label] / t
        return total

    found = fit_temperature(logits, labels)
    assert cost(found) <= min(cost(2.0 ** (k / 32)) for k in range(-64, 97)) + 1e-9
    order = torch.randperm(samples, generator=draws)
    assert fit_temperature(logits[order], labels[order]) == pytest.approx(found, rel=0.05)


# --- published


@pytest.fixture(scope="module")
def calibrated(shallow) -> Experiment:
    return change(shallow, lr=0.05, calibration="temperature", snapshot_average=0.5, local_loss="balanced")


@pytest.fixture(scope="module")
def federation(calibrated) -> Federation:
    made = Federation(calibrated)
    made.next_round()
    return made


def test_what_is_published_fits_what_is_published(federation):
    """The average's own temperature, on its logits without its owner's prior, which is added while fitting."""
    peer = federation.peer(0)
    said = peer.statistics()
    peer.model.load_state_dict(peer.variants[AVERAGE])
    images = peer.data.samples(peer.data.shards[0].validation)
    with torch.no_grad():
        logits = peer.model.eval()(peer.data.preprocessor.inputs(images.samples))
    assert said.temperature == fit_temperature(logits, images.labels, log_prior_C=peer.log_prior_C)
    again = evaluation_from_json(json.loads(json.dumps(evaluation_to_json(peer.evaluation))))
    assert again.as_published.temperature == said.temperature


def sent(message: Message, **changes: object) -> Message:
    """The message with other words in its statistics; None takes one out."""
    manifest = json.loads(message.manifest)
    manifest["statistics"] |= changes
    manifest["statistics"] = {name: one for name, one in manifest["statistics"].items() if one is not None}
    return replace(message, manifest=json.dumps(manifest).encode())


@pytest.mark.parametrize(
    ("temperature", "line"),
    [
        (None, r"peer 1 sent no temperature, but calibration is 'temperature' here"),
        (0.24, r"malformed manifest: statistics.temperature: .*greater than or equal to 0.25"),
        (8.1, r"malformed manifest: statistics.temperature: .*less than or equal to 8"),
        (math.nan, r"malformed manifest: statistics.temperature"),
        (math.inf, r"malformed manifest: statistics.temperature"),
        ("hot", r"malformed manifest: statistics.temperature"),
    ],
)
def test_a_temperature_that_is_missing_or_out_of_bounds_is_refused(federation, temperature, line):
    message = federation.peer(1).snapshot(2)
    cache = TeacherCache(federation.context)
    assert cache.decode(message, sender=1, round_index=2).statistics.temperature is not None
    with pytest.raises(SnapshotError, match=line):
        cache.decode(sent(message, temperature=temperature), sender=1, round_index=2)


def test_a_temperature_that_nobody_agreed_on_is_refused_and_none_is_written(shallow):
    plain = Federation(shallow)
    message = plain.peer(1).snapshot(1)
    assert b"temperature" not in message.manifest
    with pytest.raises(SnapshotError, match=r"peer 1 sent a temperature, but calibration is 'none' here"):
        TeacherCache(plain.context).decode(sent(message, temperature=2.0), sender=1, round_index=1)
    kept = statistics_to_json(Statistics(counts=(1.0,), accuracies=(1.0,)))
    assert kept == {"counts": [1.0], "accuracies": [1.0], "cross_entropies": None}


# --- heard


def test_logits_are_divided_by_both_temperatures_by_hand():
    """ln 16 over T = 2 and own 2 are odds of 16^(1/4) = 2; of the other, who is at 1, of 4."""
    runs = [lambda: lambda inputs: torch.tensor([[math.log(16), 0.0]])] * 2
    for of_the_other in (1.0, None):
        q_KBC = soft_predictions(runs, torch.zeros(1, 1), temperature=2.0, own=[2.0, of_the_other])
        assert q_KBC[:, 0, 0].tolist() == [pytest.approx(2 / 3), pytest.approx(4 / 5)]


def test_it_reaches_the_training_also_of_students_who_keep_their_experts(shallow):
    said = [
        without_timing(crad.run(change(shallow, clients=2, method="experts", rounds=2, calibration=one)).rounds)
        for one in ("none", "temperature")
    ]
    losses = [[client["losses"] for client in one[-1]["clients"]] for one in said]
    assert losses[0] != losses[1]


def test_a_liar_is_sure_of_all(shallow):
    federation = Federation(change(shallow, calibration="temperature", attack="inflated", attackers=1))
    [liar] = federation.context.adversary.attackers
    assert federation.peer(liar).statistics().temperature == LOWEST_TEMPERATURE


def test_private_training_does_not_publish_what_is_not_noised():
    with pytest.raises(ConfigError, match=r"calibration = 'temperature' publishes a temperature fitted on validation"):
        Experiment(private_training=8.0, calibration="temperature")
