"""How much privacy training and class statistics spend, and how much noise keeps them within a target.

The unit is one record of a client, added or removed. Training releases noised sums of clipped gradients over Poisson
samples; class statistics are Gaussian releases of counts and hits. A record is in one part of a shard, decided by the
record itself, so a client's account is the larger of the two, not their sum (docs/privacy-argument.md).

Here is the arithmetic alone. Noise is added in `crad.training.private_step` (gradients) and
`crad.federation.class_statistics` (counts, hits); accounts are kept by `crad.runs.records` for the clients of a
simulation and by `crad.site.privacy_account` for a member.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crad.config import Experiment
from crad.config.setting import Accountant
from crad.errors import ConfigError, install_hint

if TYPE_CHECKING:
    from opacus.accountants import IAccountant

SMALLEST_NOISE, LARGEST_NOISE = 0.05, 1e4  # standard deviations of the noise, in clipping norms
LEAST_FOR_PRV = 0.25  # of the same
ROUNDING = 1e-9  # relative: what is rounded is rounded to the safe side
PRECISION = 1e-3  # relative, of the noise that is found: always on the safe side


@dataclass(frozen=True)
class PrivacyPlan:
    """What private training of an experiment releases, all of it agreed and none of it a secret."""

    epsilon: float  # the target over all planned rounds
    delta: float
    accountant: Accountant
    noise_multiplier: float  # of the summed gradients, in clipping norms
    max_grad_norm: float
    sampling_rate: float  # with which every record is drawn, for every step
    steps_per_round: int
    statistics_releases: int  # of hits; counts are released once before
    statistics_sigma: float  # of every count and every hit

    def spent(self, *, steps: int, releases: int) -> float:
        """Return what a client has spent: the larger of both, since no record is in both parts of a shard."""
        return max(self.training_epsilon(steps), self.statistics_epsilon(releases))

    def training_epsilon(self, steps: int) -> float:
        """Return what training has spent after so many steps."""
        return training_epsilon(
            self.noise_multiplier,
            rate=self.sampling_rate,
            steps=steps,
            delta=self.delta,
            accountant=self.accountant,
        )

    def statistics_epsilon(self, releases: int) -> float:
        """Return what the counts and so many releases of hits have spent."""
        return gaussian_epsilon(self.statistics_sigma, releases=1 + releases, delta=self.delta)


def plan_of(experiment: Experiment) -> PrivacyPlan | None:
    """Return what an experiment's private training releases; None: it is not private."""
    if experiment.private_training is None:
        return None
    noise = experiment.noise_multiplier
    if noise is None:
        noise = noise_for(experiment)
    releases = statistics_releases(experiment)
    return PrivacyPlan(
        epsilon=experiment.private_training,
        delta=experiment.delta,
        accountant=experiment.accountant,
        noise_multiplier=noise,
        max_grad_norm=experiment.max_grad_norm,
        sampling_rate=experiment.sampling_rate,
        steps_per_round=steps_per_round(experiment),
        statistics_releases=releases,
        statistics_sigma=gaussian_sigma(experiment.private_training, releases=1 + releases, delta=experiment.delta),
    )


def steps_per_round(experiment: Experiment) -> int:
    """Return how many Poisson batches a round has: as many as show every record once per epoch, on average."""
    return max(1, round(experiment.local_epochs / experiment.sampling_rate))


def statistics_releases(experiment: Experiment) -> int:
    """Return how often a client releases its hits at most: after its first round, then every so many rounds."""
    return 1 + (experiment.rounds - 1) // statistics_every(experiment)


def statistics_every(experiment: Experiment) -> int:
    """Return the rounds between two releases of hits; where nothing is said five releases share the whole run."""
    return experiment.statistics_every or max(1, math.ceil(experiment.rounds / 5))


def noise_for(experiment: Experiment) -> float:
    """Return the least noise with which all planned rounds of training stay within the target."""
    return _noise_within(*noise_question(experiment))


def noise_question(experiment: Experiment) -> tuple[float, float, float, int, Accountant]:
    """Return all that decides how much noise is needed: target, delta, sampling rate, steps and accountant."""
    assert experiment.private_training is not None, "asked of private training alone"
    steps = experiment.rounds * steps_per_round(experiment)
    return experiment.private_training, experiment.delta, experiment.sampling_rate, steps, experiment.accountant


def check_noise(experiment: Experiment) -> None:
    """Refuse noise that somebody has said and that all planned rounds do not stay within the target with."""
    noise, target = experiment.noise_multiplier, experiment.private_training
    if noise is None or target is None:
        return
    spent = training_epsilon(
        noise,
        rate=experiment.sampling_rate,
        steps=experiment.rounds * steps_per_round(experiment),
        delta=experiment.delta,
        accountant=experiment.accountant,
    )
    if spent > target * (1 + PRECISION):  # another version of the accountant may round otherwise
        raise ConfigError(
            f"noise_multiplier = {noise:g} spends epsilon {spent:.3g} over all planned rounds, and private_training is "
            f"{target:g}: leave noise_multiplier out, and what is needed is found"
        )


def check_delta(delta: float, records: int, *, whose: str) -> None:
    """Refuse a delta with which a mechanism that now and then publishes a record whole would be private."""
    if delta * records >= 1:
        raise ConfigError(
            f"delta = {delta:g}, and {whose} {records} records: with that chance any of them may be published whole; "
            f"choose less than {1 / records:.1g}"
        )


@functools.cache
def _noise_within(target: float, delta: float, rate: float, steps: int, accountant: Accountant) -> float:
    """Search by halving: spending falls as the noise rises. What is returned never spends more than the target."""

    def is_within(noise: float) -> bool:
        return training_epsilon(noise, rate=rate, steps=steps, delta=delta, accountant=accountant) <= target

    low, high = SMALLEST_NOISE, 1.0
    while not is_within(high):
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            raise ConfigError(
                f"private_training = {target:g}: no noise keeps {steps} steps within it at delta = {delta:g}: ask for "
                "more, or for fewer rounds or a smaller sampling_rate"
            )
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return high


def training_epsilon(
    noise_multiplier: float, *, rate: float, steps: int, delta: float, accountant: Accountant
) -> float:
    """Return the epsilon of so many steps over Poisson samples."""
    return composed_epsilon(((noise_multiplier, rate, steps),), delta=delta, accountant=accountant)


@functools.cache
def composed_epsilon(history: tuple[tuple[float, float, int], ...], *, delta: float, accountant: Accountant) -> float:
    """Return the epsilon of steps over Poisson samples by Opacus: noise, rate and number of each kind of step.

    Without noise it has no end.
    """
    taken = [one for one in history if one[2]]
    if not taken:
        return 0.0
    if min(noise for noise, _, _ in taken) <= 0:
        return math.inf
    # With hardly any noise PRV takes minutes and finds nothing; what RDP finds is no less than the truth.
    make = _accountants()["rdp" if min(noise for noise, _, _ in taken) < LEAST_FOR_PRV else accountant]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of orders and of grids, about which nobody here can do anything
        account = make()
        account.history = taken
        try:
            return float(account.get_epsilon(delta))
        except (ValueError, RuntimeError, OverflowError):  # so little noise that the grid would not fit
            return math.inf


def _accountants() -> dict[str, Callable[[], IAccountant]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from opacus.accountants import PRVAccountant, RDPAccountant
    except ImportError as error:
        raise ConfigError(f"private training is accounted for by Opacus: {install_hint('private')}") from error
    return {"prv": PRVAccountant, "rdp": RDPAccountant}


def gaussian_sigma(epsilon: float, *, releases: int, delta: float, sensitivity: float = 1.0) -> float:
    """Return the noise of so many equal Gaussian releases that together spend epsilon (zCDP).

    Each spends `sensitivity^2 / (2 sigma^2)` of rho, and epsilon = rho + 2 sqrt(rho ln(1/delta)).
    """
    log_delta = math.log(1 / delta)
    rho = (math.sqrt(log_delta + epsilon) - math.sqrt(log_delta)) ** 2
    return sensitivity * math.sqrt(releases / (2 * rho)) * (1 + ROUNDING)


def gaussian_epsilon(sigma: float, *, releases: int, delta: float, sensitivity: float = 1.0) -> float:
    """Return what so many Gaussian releases spend together (zCDP)."""
    return gaussian_releases_epsilon([(sigma / sensitivity, releases)], delta=delta)


def gaussian_releases_epsilon(releases: Sequence[tuple[float, int]], *, delta: float) -> float:
    """Return what Gaussian releases of sensitivity one spend together: the noise and the number of each kind."""
    rho = sum(count / (2 * sigma**2) for sigma, count in releases)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
