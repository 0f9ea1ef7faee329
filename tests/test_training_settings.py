"""How the student takes its steps: the optimiser, its learning rate in every round, and what it keeps between them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from typer.testing import CliRunner

import crad
from crad.cli import make_app
from crad.config import Experiment, make_experiment, to_toml
from crad.errors import ConfigError, RunError
from crad.federation.method import RoundContext
from crad.methods import METHODS
from crad.methods.alone import train_alone
from crad.randomness import repeatable
from crad.runs.callbacks import LambdaCallback
from crad.training.optimizer import lr_factor, make_optimizer, moments_kept
from tests.conftest import change
from tests.federation import Federation
from tests.organisations import agreed, make_identities
from tests.test_resume import StopError, assert_same_end

ADAMW = {"optimizer": "adamw", "lr": 0.003, "lr_schedule": "cosine", "warmup_rounds": 1}


def factors(**settings) -> list[float]:
    experiment = Experiment(**settings)
    return [lr_factor(experiment, number) for number in range(1, experiment.rounds + 1)]


# --- the schedule, by hand


def test_a_constant_rate_is_exactly_the_setting():
    assert factors(rounds=3) == [1.0, 1.0, 1.0]


def test_a_warm_up_rises_in_equal_steps_and_the_round_after_it_is_the_first_at_the_full_rate():
    assert factors(rounds=6, warmup_rounds=3) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_cosine_begins_at_the_full_rate_and_would_be_zero_one_round_after_the_last():
    half = math.sqrt(0.5)
    assert factors(rounds=4, lr_schedule="cosine") == pytest.approx([1.0, (1 + half) / 2, 0.5, (1 - half) / 2])
    assert factors(rounds=1, lr_schedule="cosine") == [1.0]


def test_a_cosine_falls_over_the_rounds_that_the_warm_up_leaves():
    wanted = [1 / 3, 2 / 3, 1.0, 0.75, 0.25]  # 60 and 120 degrees after the full rate
    assert factors(rounds=5, warmup_rounds=2, lr_schedule="cosine") == pytest.approx(wanted)


def test_every_round_of_a_run_trains_at_its_rate(tiny):
    """Also a client that was not drawn before: the round decides, not how often one took part."""
    seen: list[set[float]] = []
    federation = Federation(change(tiny, rounds=3, active=2, lr=0.1, lr_schedule="cosine", warmup_rounds=1))

    def note(optimizer, *words):
        seen[-1].update(group["lr"] for group in optimizer.param_groups)

    hook = register_optimizer_step_pre_hook(note)
    try:
        for _ in range(3):
            seen.append(set())
            federation.next_round()
    finally:
        hook.remove()
    assert seen == [{0.05}, {0.1}, {0.05}]


# --- the optimiser


def test_the_optimizer_is_adamw_as_the_settings_say():
    optimizer = make_optimizer(nn.Linear(2, 2), Experiment(optimizer="adamw", lr=0.25, weight_decay=0.125))
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.25, (0.9, 0.999), 0.125)


def test_the_room_that_a_state_needs_is_known():
    assert [moments_kept(Experiment(optimizer=name)) for name in ("sgd", "adamw")] == [1, 2]


def test_adamw_goes_on_where_it_was(tiny):
    """A peer that is put away and taken up again for every piece of work ends as one that never rested."""
    alone = change(tiny, method="local", clients=1, models=("cnn6",), rounds=2, optimizer="adamw", lr=0.003)
    federation = Federation(alone)
    tireless = federation.peer(0)
    for number in (1, 2):
        federation.next_round()
        with repeatable(0, device="cpu"):
            train_alone(tireless, {}, RoundContext(number, federation.engine.runner.teachers))
    stored, expected = federation.peer(0).state(), tireless.state()
    assert stored.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(stored[name], tensor), name
    batches = -(-len(tireless.train) // tiny.batch_size)
    steps = {tensor.item() for name, tensor in stored.items() if name.startswith("adamw.step.")}
    assert steps == {2 * batches}
    assert not [name for name in stored if name.startswith("momentum.")]


@pytest.fixture(scope="module")
def experiment(shallow) -> Experiment:
    return change(shallow, rounds=4, active=3, eval_every=2, **ADAMW)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("adamw") / "run"
    crad.run(experiment, output=path)
    return path


@pytest.mark.parametrize("after_rounds", [1, 3])
def test_a_run_with_adamw_cosine_and_warm_up_is_resumed_to_the_same_bits(experiment, whole, tmp_path, after_rounds):
    def stop(record):
        if record["round"] == after_rounds:
            raise StopError

    with pytest.raises(StopError):
        crad.run(experiment, output=tmp_path / "run", callbacks=[LambdaCallback(on_round=stop)])
    states = sorted((tmp_path / "run" / "checkpoint" / "states").iterdir())
    assert any(name.startswith("adamw.exp_avg_sq.") for name in load_file(states[-1]))
    crad.run(experiment, output=tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.usefixtures("forked_workers")
def test_two_workers_give_the_bits_of_one(experiment, whole, tmp_path):
    result = crad.run(change(experiment, workers=2), output=tmp_path / "run")
    assert result.summary["hardware"]["workers"] == 2
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.parametrize("method", ["crad-plus", "fedmd", "fedgd", "msfkd", "dfml", "fedmkd", "local", "centralized"])
def test_every_method_trains_the_student_with_it(method, tiny):
    """Private epochs, DFML's mutual ones and digests; FedGD's generator goes its own way."""
    assert method in METHODS
    rates: dict[str, list[float]] = {}
    highest = {"AdamW": 0.003, "Adam": 2e-4}

    def note(optimizer, *words):
        (group,) = optimizer.param_groups
        if group["betas"] != (0.5, 0.999):  # the generator's
            name = type(optimizer).__name__
            rates.setdefault(name, []).append(round(group["lr"] / highest[name], 9))

    settings = {"generator_steps": 1, "generator_batch": 8, "transfer_size": 8, "generator_warmup": 0}
    own = settings if method == "fedgd" else {}
    small = {"clients": 2, "models": ("cnn6",), "eval_every": 2, "rounds": 2, "proxy_size": 24}
    hook = register_optimizer_step_post_hook(note)
    try:
        result = crad.run(change(tiny, method=method, method_settings=own, **small, **ADAMW))
    finally:
        hook.remove()
    assert result.summary["global_accuracy"] > 0
    has_digest = method in ("fedmd", "fedgd", "msfkd")
    assert set(rates) == ({"AdamW", "Adam"} if has_digest else {"AdamW"})
    for steps in rates.values():
        assert set(steps) == {0.5, 1.0}
        assert steps == sorted(steps), "all of the first round at half the rate, all of the second at the whole"


# --- what is refused, and what stays as it was


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "adam"}, r"optimizer = 'adam': .*'sgd' or 'adamw'"),
        ({"lr_schedule": "linear"}, r"lr_schedule = 'linear': .*'constant' or 'cosine'"),
        ({"warmup_rounds": -1}, r"warmup_rounds = -1"),
        ({"rounds": 4, "warmup_rounds": 4}, r"is 4, but there are only 4 rounds: at least one .* set .* to 3 or less"),
        ({"optimizer": "adamw", "momentum": 0.5}, r"momentum is 0.5, but optimizer is 'adamw': .* leave it out"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(settings, words):
    with pytest.raises(ConfigError, match=words):
        Experiment(**settings)


@pytest.mark.parametrize(("rounds", "warmup"), [(60, 3), (300, 3), (59, 2), (20, 1), (19, 0), (1, 0)])
def test_a_trial_of_a_preset_has_its_share_of_the_warm_up(rounds, warmup):
    assert Experiment(preset="small", rounds=rounds).warmup_rounds == warmup
    assert Experiment(preset="small", rounds=rounds, warmup_rounds=0).warmup_rounds == 0, "what is said is taken"


def test_the_command_refuses_with_code_2_and_leaves_nothing(tmp_path):
    run = tmp_path / "run"
    words = ["run", "--preset", "demo", "--warmup-rounds", "10", "--output", str(run)]
    done = CliRunner().invoke(make_app(words), words)
    assert isinstance(done.exception, ConfigError)
    assert "warmup_rounds is 10, but there are only 10 rounds" in str(done.exception)
    assert not run.exists()


def test_a_run_with_a_cosine_is_not_continued_with_more_rounds(experiment, whole):
    """Its rounds would have been trained at other rates."""
    with pytest.raises(RunError, match="holds a run with other settings"):
        crad.run(change(experiment, rounds=8), output=whole, resume=True)
    words = ["run", "--resume", str(whole), "--rounds", "8"]
    assert "--rounds" in str(CliRunner().invoke(make_app(words), words).exception)


def test_an_agreement_names_them_where_they_are_not_as_before(tmp_path):
    identities = make_identities(tmp_path)
    plain, named = agreed(identities), agreed(identities, settings={"rounds": 5, **ADAMW})
    assert not {"optimizer", "lr_schedule", "warmup_rounds"} & plain.settings.keys()
    assert {key: named.settings[key] for key in ADAMW} == ADAMW
    assert named.experiment(dataset="own.npz").optimizer == "adamw"


def test_they_are_written_down_and_read_again(tmp_path):
    (tmp_path / "experiment.toml").write_text(to_toml(Experiment(**ADAMW)))
    assert make_experiment(path=tmp_path / "experiment.toml") == Experiment(**ADAMW)
    assert json.loads(Experiment(**ADAMW).model_dump_json())["warmup_rounds"] == 1
