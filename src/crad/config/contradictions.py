"""What settings may not say together; each alone is checked by its field."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from crad.config.setting import AttackKind

if TYPE_CHECKING:
    from crad.config.experiment_fields import ExperimentFields


def contradiction(experiment: ExperimentFields) -> str | None:
    """Return the first contradiction between settings, and what to do about it; None where there is none."""
    return (
        _among_clients(experiment)
        or _in_training(experiment)
        or _in_private_training(experiment)
        or _in_execution(experiment)
    )


def _among_clients(experiment: ExperimentFields) -> str | None:
    attack, attackers, clients, active = experiment.attack, experiment.attackers, experiment.clients, experiment.active
    if active is not None and active > clients:
        return f"active is {active}, but there are only {clients} clients"
    if attackers >= clients:
        return f"attackers is {attackers}, but there are only {clients} clients: one must be honest"
    if attack is not None and not attackers:
        return f"attack is {attack!r}, but attackers is 0: say how many clients attack"
    if attackers and attack is None:
        known = ", ".join(get_args(AttackKind))
        return f"attackers is {attackers}, but no attack is chosen: set attack to one of {known}"
    if attack == "collude" and active is not None and active < clients:
        return (
            f"attack is 'collude', but only {active} of {clients} clients are active in a round: who misses rounds "
            "cannot publish what the others do; leave out active"
        )
    return None


def _in_training(experiment: ExperimentFields) -> str | None:
    warmup, rounds, momentum = experiment.warmup_rounds, experiment.rounds, experiment.momentum
    if warmup >= rounds:
        return (
            f"warmup_rounds is {warmup}, but there are only {rounds} rounds: at least one must come after the warm-up; "
            f"set warmup_rounds to {rounds - 1} or less"
        )
    if experiment.optimizer == "adamw" and momentum != type(experiment).model_fields["momentum"].default:
        return f"momentum is {momentum:g}, but optimizer is 'adamw': momentum is SGD's, leave it out"
    return None


def _in_private_training(experiment: ExperimentFields) -> str | None:
    """Return what would let one record reach what is published by another way than through the noise."""
    epsilon = experiment.private_training
    if epsilon is None and experiment.canaries:
        return f"canaries = {experiment.canaries}: they audit private training: set private_training"
    if epsilon is None:
        return "noise_multiplier is for private training: set private_training" if experiment.noise_multiplier else None
    recipe, said = experiment.recipe, f"private_training = {epsilon:g}"
    if experiment.private_counts is not None:
        return f"{said} and private_counts = {experiment.private_counts:g}: private training noises the counts itself"
    if experiment.canaries and experiment.attackers:
        return f"canaries = {experiment.canaries} and attackers: what attackers publish is not what was trained"
    if recipe.evidence != "reported":
        return (
            f"{said}: evidence = {recipe.evidence!r} counts teachers' hits on the student's training samples, which is "
            "not noised: set evidence = 'reported'"
        )
    if recipe.missing_weight:
        return (
            f"{said}: missing_weight = {recipe.missing_weight:g} weighs samples by exact counts of the training "
            "samples, and by the others of a batch: leave missing_weight out"
        )
    if recipe.distill_augment == "strong":
        return f"{said}: distill_augment = 'strong' is not built for it: set distill_augment = 'same'"
    if recipe.distill_augment != "same":
        return (
            f"{said}: distill_augment = {recipe.distill_augment!r} mixes several records in one sample: set "
            "distill_augment = 'same'"
        )
    if experiment.norm == "batch":
        return f"{said}: norm = 'batch' mixes the records of a batch: set norm = 'group', or leave it out"
    return None


def _in_execution(experiment: ExperimentFields) -> str | None:
    engine, workers = experiment.engine, experiment.workers
    if engine == "serial" and workers not in ("auto", 1):
        return f"engine serial is one process, but workers is {workers}; choose engine processes"
    if experiment.ray_address is not None and engine != "ray":
        return f"ray_address is for engine ray, but engine is {engine}"
    return None
