"""The student's optimiser: which one, its learning rate in a round, and what of it outlives the round.

The learning rate depends on the settings and the number of the round alone: whoever takes a round up, in another
process, on another machine or after a restart, trains at the same one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from crad.config import Experiment
from crad.training.uncompiled import uncompiled

# What torch keeps per parameter, and the name it has in a resting state, before that of the parameter.
KEPT: dict[str, dict[str, str]] = {
    "sgd": {"momentum_buffer": "momentum"},
    "adamw": {"step": "adamw.step", "exp_avg": "adamw.exp_avg", "exp_avg_sq": "adamw.exp_avg_sq"},
}


def make_optimizer(
    model: nn.Module, experiment: Experiment, *, round_index: int = 1, kept: Mapping[str, Tensor] | None = None
) -> torch.optim.Optimizer:
    """Make the optimiser that the settings name, at the learning rate of the round, with what it kept of the last."""
    optimizer = _new_optimizer(model, experiment, lr=experiment.lr * lr_factor(experiment, round_index))
    if kept is not None:
        load_optimizer_tensors(model, optimizer, experiment, kept)
    return optimizer


def _new_optimizer(model: nn.Module, experiment: Experiment, *, lr: float) -> torch.optim.Optimizer:
    if experiment.optimizer == "adamw":
        return uncompiled(torch.optim.AdamW)(model.parameters(), lr=lr, weight_decay=experiment.weight_decay)
    return uncompiled(torch.optim.SGD)(
        model.parameters(), lr=lr, momentum=experiment.momentum, weight_decay=experiment.weight_decay
    )


def lr_factor(experiment: Experiment, round_index: int) -> float:
    """Return the share of the highest learning rate that a round trains at; rounds count from 1.

    With W rounds of warm-up, round r of them has r / (W + 1), so round W + 1 is the first at the full rate. From there
    the cosine falls over the planned rounds R: (1 + cos(pi (r - W - 1) / (R - W))) / 2. It would be zero one round
    after the last: no round is trained for nothing.
    """
    warmup, planned = experiment.warmup_rounds, experiment.rounds
    if round_index <= warmup:
        return max(round_index, 0) / (warmup + 1)
    if experiment.lr_schedule == "constant":
        return 1.0
    progress = (round_index - warmup - 1) / (planned - warmup)
    return (1 + math.cos(math.pi * min(max(progress, 0.0), 1.0))) / 2


def moments_kept(experiment: Experiment) -> int:
    """Return how many tensors of a parameter's size the optimiser keeps for it."""
    return len(KEPT[experiment.optimizer].keys() - {"step"})


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, experiment: Experiment) -> dict[str, Tensor]:
    """Return what an optimiser keeps, under the names of a resting state; ValueError: what could not be kept."""
    names, tensors = KEPT[experiment.optimizer], {}
    for parameter_name, parameter in model.named_parameters():
        kept = optimizer.state[parameter]
        unknown = sorted(set(kept) - set(names))
        if unknown:
            raise ValueError(unknown[0])
        for key, value in kept.items():
            if value is not None:
                tensors[f"{names[key]}.{parameter_name}"] = value
    return tensors


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, experiment: Experiment, tensors: Mapping[str, Tensor]
) -> None:
    """Give an optimiser back what `optimizer_tensors` returned; a parameter that has never moved has nothing."""
    for parameter_name, parameter in model.named_parameters():
        for key, name in KEPT[experiment.optimizer].items():
            stored = tensors.get(f"{name}.{parameter_name}")
            if stored is None:
                continue
            # AdamW counts its steps in a tensor without dimensions, which stays where torch makes it: on the CPU.
            kept = stored.clone() if key == "step" else torch.empty_like(parameter).copy_(stored)
            optimizer.state[parameter][key] = kept
