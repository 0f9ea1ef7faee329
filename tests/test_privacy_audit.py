"""One-run audits: the bound by hand and against a slow sum, broken mechanisms caught, the right one not accused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import crad
from crad.analysis.privacy_audit import audit_run
from crad.errors import ConfigError, RunError
from crad.methods import local_training
from crad.privacy.accountant import training_epsilon
from crad.privacy.audit import Guesses, best_bound, count_guesses, count_guesses_in, epsilon_lower_bound, p_value
from crad.training.canaries import draw_canaries
from crad.training.epoch import Block, LossMeter
from crad.training.private_step import check_private, clipped_sums, poisson_blocks, train_privately_on_block
from tests.conftest import change

# --- the bound


def test_a_perfect_attack_by_hand():
    # Twenty of twenty: q^20 = 0.05 at q = 0.86089, and ln(q / (1 - q)) = 1.8226.
    assert epsilon_lower_bound(Guesses(20, 20, 20), delta=0.0, confidence=0.95) == pytest.approx(1.8226, abs=1e-3)
    assert p_value(Guesses(2, 2, 2), epsilon=0.0, delta=0.0) == pytest.approx(0.25)
    # delta adds 2 m delta times the larger of P[X = 1] / 1 = 0.5 and P[X < 2] / 2 = 0.375.
    assert p_value(Guesses(2, 2, 2), epsilon=0.0, delta=0.01) == pytest.approx(0.25 + 2 * 2 * 0.01 * 0.5)


def test_few_guesses_prove_nothing():
    for guesses in (Guesses(0, 0, 0), Guesses(4, 4, 4), Guesses(100, 50, 25)):
        assert epsilon_lower_bound(guesses, delta=0.0, confidence=0.95) == 0.0


counted = st.integers(1, 60).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, r), st.integers(r, 3 * r)))


@given(counted, st.floats(0, 6), st.floats(0, 1e-2))
def test_the_p_value_is_the_slow_sum(counts, epsilon, delta):
    r, v, m = counts
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    chance = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    alpha = max((sum(chance[v - i : v]) / i for i in range(1, v + 1)), default=0.0)
    expected = min(1.0, sum(chance[v:]) + 2 * m * delta * alpha)
    assert p_value(Guesses(m, r, v), epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(counted, st.floats(0, 1e-4), st.floats(0.5, 0.999))
def test_bounds_rise_with_right_guesses_up_to_the_ceiling(counts, delta, confidence):
    r, v, m = counts

    def bound(correct: int) -> float:
        return epsilon_lower_bound(Guesses(m, r, correct), delta=delta, confidence=confidence)

    assert bound(max(0, v - 1)) <= bound(v) + 1e-9
    assert bound(v) <= bound(r) + 1e-9
    assert bound(r // 2) == 0.0, "by chance"
    found = best_bound([Guesses(m, r, v), Guesses(m, r, r)], delta=delta, confidence=confidence)
    assert found.epsilon <= found.ceiling <= bound(r) + 1e-9


def test_the_highest_are_guessed_in_and_the_lowest_out():
    scores, coins = [0.1, 5.0, -3.0, 0.2, 4.0, -2.0], [True, True, False, False, False, False]
    assert count_guesses(scores, coins, share=0.7) == Guesses(6, 4, 3)
    assert count_guesses(scores, coins, share=0.1) == Guesses(6, 0, 0)
    assert Guesses(6, 4, 3) + Guesses(1, 1, 0) == Guesses(7, 5, 3)


# --- canaries


def small(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 128), nn.Tanh(), nn.Linear(128, num_classes))


def test_only_the_highest_are_guessed_in():
    scores, coins = [0.0, 3.0, 1.0, 2.0, 0.0, 0.0], [True, True, False, True, False, False]
    assert count_guesses_in(scores, coins, share=1 / 3) == Guesses(6, 2, 2)
    assert count_guesses_in(scores, coins, share=0.5) == Guesses(6, 3, 2)
    assert count_guesses_in(scores, coins, share=0.1) == Guesses(6, 0, 0)


def test_a_canary_adds_exactly_the_norm_at_its_place():
    model = small(2, 1)
    canaries = draw_canaries(model, 300, name="small", seed=3)
    assert len(canaries.places_K.unique()) == 300
    block = Block(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), canaries=canaries)
    sums = clipped_sums(model, block, loss_of=lambda *_: pytest.fail("no sample"), max_norm=0.5, meter=LossMeter())
    row = torch.cat([one.flatten() for one in sums.values()])
    torch.testing.assert_close(row[canaries.places_K], 0.5 * canaries.signs_K)
    assert int((row != 0).sum()) == 300
    with pytest.raises(ConfigError, match="canaries = 99999: model 'small' has 8578 weights"):
        draw_canaries(model, 99999, name="small", seed=3)


def test_batch_norm_is_refused_before_any_audit():
    with pytest.raises(ConfigError, match="has BatchNorm1d, which mixes the records"):
        check_private(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64)), name="smuggled")


# --- whole runs


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (120, 8, 8, 1), dtype=np.uint8), np.arange(120) % 2
    return crad.Dataset.from_arrays(x[:100], y[:100], x[100:], y[100:])


@pytest.fixture(scope="module")
def audited():
    """A claim of 0.5 and a thousand canaries for each of two clients."""
    return crad.Experiment(
        method="local",
        clients=2,
        rounds=3,
        partition="iid",
        private_training=0.5,
        noise_multiplier=4.25,
        sampling_rate=0.1,
        canaries=1000,
        seed=1,
        workers=1,
        lr=0.1,
        eval_every=3,
        metrics=False,
        committee=False,
    )


@pytest.fixture(scope="module")
def finished(audited, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit") / "run"
    crad.run(audited, data=data, models=[small], output=folder)
    return folder


def test_the_correct_mechanism_is_not_accused(audited, data, finished, tmp_path):
    audits = [audit_run(finished)]
    for seed in (2, 3, 4):
        crad.run(change(audited, seed=seed), data=data, models=[small], output=tmp_path / str(seed))
        audits.append(audit_run(tmp_path / str(seed)))
    for audit in audits:
        assert not audit.broken
        assert audit.whole.canaries == 2000
        assert audit.whole.claimed_epsilon == pytest.approx(0.5, abs=0.01)
        assert "not evidence of privacy" in audit.sentence
        assert f"{audit.whole.ceiling:.2f}" in audit.sentence


def less_noise(factor):
    step = train_privately_on_block

    def broken(*args, plan, **settings):
        step(*args, plan=replace(plan, noise_multiplier=factor * plan.noise_multiplier), **settings)

    return "train_privately_on_block", broken


def everybody_in_every_batch():
    blocks = poisson_blocks

    def broken(*args, plan, **settings):
        return blocks(*args, plan=replace(plan, sampling_rate=1.0), **settings)

    return "poisson_blocks", broken


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "fault",
    [lambda: less_noise(0.0), lambda: less_noise(0.1), everybody_in_every_batch],
    ids=["no noise", "a tenth of the noise", "rate 1"],
)
def test_a_broken_mechanism_is_caught(fault, seed, audited, data, tmp_path, monkeypatch):
    name, broken = fault()
    monkeypatch.setattr(local_training, name, broken)
    crad.run(change(audited, seed=seed), data=data, models=[small], output=tmp_path / "run")
    audit = audit_run(tmp_path / "run")
    assert audit.whole.is_broken
    assert audit.whole.epsilon_lower_bound > 2 * audit.whole.claimed_epsilon
    assert audit.sentence.startswith("BROKEN")


def test_without_noise_every_canary_is_told_whatever_the_records_do(audited, data, tmp_path, monkeypatch):
    """One who knows the records takes their part out: a claim of four is refuted."""
    name, broken = less_noise(0.0)
    monkeypatch.setattr(local_training, name, broken)
    claiming = change(audited, private_training=4.0, noise_multiplier=None, canaries=1500)
    crad.run(claiming, data=data, models=[small], output=tmp_path / "run")
    audit = audit_run(tmp_path / "run")
    assert audit.whole.correct == audit.whole.guesses == 1000
    assert audit.whole.epsilon_lower_bound > audit.whole.claimed_epsilon > 3.9
    assert audit.whole.is_broken
    for entry in json.loads((tmp_path / "run" / "canaries.json").read_text())["clients"]:
        steps = entry["step_scores"]
        taken = [one for one, coin in zip(steps, entry["is_included"], strict=True) if coin]
        others = [one for one, coin in zip(steps, entry["is_included"], strict=True) if not coin]
        assert max(map(abs, others)) < 1e-3
        # Of thirty steps each is in by its own coin of 0.1: so many clipping norms are in the sums of all.
        assert sum(taken) / len(taken) == pytest.approx(30 * 0.1, rel=0.1)
        assert all(abs(one - round(one)) < 1e-3 for one in taken)


def test_the_same_file_after_a_stop(audited, data, finished, tmp_path):
    class Stop(crad.Callback):
        def on_round(self, record, *args, **kwargs):
            if record["round"] == 2:
                raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        crad.run(audited, data=data, models=[small], output=folder, callbacks=[Stop()])
    with pytest.raises(RunError, match="is not there yet: finish the run"):
        audit_run(folder)
    crad.run(audited, data=data, models=[small], output=folder, resume=True)
    assert (folder / "canaries.json").read_bytes() == (finished / "canaries.json").read_bytes()


def test_the_same_file_from_workers_and_with_teachers(shallow, forked_workers, tmp_path):
    experiment = change(shallow, rounds=2, private_training=8.0, noise_multiplier=1.0, sampling_rate=0.5, canaries=50)
    crad.run(experiment, output=tmp_path / "one")
    crad.run(change(experiment, workers=2, engine="processes"), output=tmp_path / "two")
    one, two = ((tmp_path / name / "canaries.json").read_bytes() for name in ("one", "two"))
    assert one == two
    assert [len(entry["scores"]) for entry in json.loads(one)["clients"]] == [50] * 4


def test_the_command(finished, crad_command, tmp_path):
    code, out, _ = crad_command("audit", "privacy", finished)
    assert code == 0
    assert "whole run" in out
    assert "not evidence of privacy" in " ".join(out.split())
    code, out, _ = crad_command("audit", "privacy", finished, "--json", "--confidence", "0.9")
    assert code == 0
    assert json.loads(out)["is_broken"] is False
    assert json.loads(out)["confidence"] == 0.9
    broken = shutil.copytree(finished, tmp_path / "broken")
    record = json.loads((broken / "canaries.json").read_text())
    for entry in record["clients"]:
        entry["scores"] = [float(coin) for coin in entry["is_included"]]
    (broken / "canaries.json").write_text(json.dumps(record))
    code, out, _ = crad_command("audit", "privacy", broken)
    assert code == 1
    assert "BROKEN" in out


def test_a_claim_at_a_smaller_delta_is_that_of_the_same_noise(finished, crad_command):
    own, smaller = audit_run(finished), audit_run(finished, delta=1e-8)
    rounds = [json.loads(line) for line in (finished / "rounds.jsonl").read_text().splitlines()]
    assert rounds[-1]["clients"][0]["privacy"]["steps"] == 30
    at_1e_8 = training_epsilon(4.25, rate=0.1, steps=30, delta=1e-8, accountant="prv")
    assert smaller.whole.claimed_epsilon == pytest.approx(at_1e_8)
    assert smaller.whole.claimed_epsilon > own.whole.claimed_epsilon
    assert smaller.whole.ceiling > own.whole.ceiling, "fewer canaries may fail by chance"
    code, out, _ = crad_command("audit", "privacy", finished, "--json", "--delta", "1e-8")
    assert (code, json.loads(out)["delta"]) == (0, 1e-8)


def test_who_could_refute_nothing_is_told_of_the_smaller_delta(finished):
    audit = audit_run(finished)
    assert "(--delta 1e-5)" not in audit.sentence
    powerless = replace(audit, delta=1e-3, whole=replace(audit.whole, ceiling=0.1))
    assert powerless.sentence.endswith("ask for a smaller one (--delta 1e-5).")


def test_bad_input_is_one_line_and_code_2(audited, finished, data, crad_command, tmp_path):
    crad.run(change(audited, canaries=0, rounds=1), data=data, models=[small], output=tmp_path / "none")
    plain = {"canaries": 0, "private_training": None, "noise_multiplier": None, "rounds": 1}
    crad.run(change(audited, **plain), data=data, models=[small], output=tmp_path / "plain")
    missing = shutil.copytree(finished, tmp_path / "missing")
    (missing / "canaries.json").unlink()
    damaged = shutil.copytree(finished, tmp_path / "damaged")
    (damaged / "canaries.json").write_text('{"clients": [{"client": 0}]}')
    cases = {
        (tmp_path / "none",): "has no canaries",
        (tmp_path / "plain",): "was not trained with privacy",
        (missing,): "canaries.json is missing",
        (damaged,): "is damaged: expected every client's scores",
        (tmp_path,): "is no run directory",
        (finished, "--confidence", "2"): "confidence 2: expected at least 0.5",
        (finished, "--delta", "0"): "delta 0: expected more than 0 and at most 1e-05",
        (finished, "--delta", "0.1"): "delta 0.1: expected more than 0 and at most 1e-05",
        (finished, "--delta", "nan"): "delta nan: expected more than 0",
    }
    for words, line in cases.items():
        code, _, err = crad_command("audit", "privacy", *words)
        assert code == 2, words
        assert line in err
        assert err.count("\n") == 1


def test_canaries_without_privacy_are_refused(audited):
    with pytest.raises(ConfigError, match="canaries = 1000: they audit private training"):
        change(audited, private_training=None, noise_multiplier=None)
