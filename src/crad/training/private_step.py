"""One step of private training: every sample's gradient by itself, clipped, summed, noised (Abadi et al. 2016).

Shapes: B samples of a Poisson batch, C classes.

The loss is that of any other training, Eq. 9 included: a mean over the samples, so that its slope at the logits of one
sample, times B, is that sample's own. From there torch.func takes the slope of every weight sample by sample. A network
of a batch is refused before anything is trained.

How much noise there is, and what is spent by it, follows from the `PrivacyPlan` of `crad.privacy.accountant`; the other
noise, on counts and hits, is added in `crad.federation.class_statistics`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from crad.data.preprocessing import Preprocessor, SampleSet
from crad.device import stopwatch
from crad.errors import ConfigError
from crad.models import FittedModule, InputShape
from crad.privacy.accountant import PrivacyPlan
from crad.randomness import generator_state, set_generator_state, torch_stream
from crad.training.canaries import Canaries, canary_gradients
from crad.training.epoch import Block, LossMeter
from crad.training.losses import Loss

CHUNK_BYTES = 256 * 2**20  # of gradients by sample that are held at once
MOST_AT_ONCE = 128  # samples whose gradients are computed together
NORM_FLOOR = 1e-12  # below any gradient's norm that matters

Draws = torch.Generator | np.random.Generator


def poisson_blocks(
    shard: SampleSet,
    *,
    preprocessor: Preprocessor,
    plan: PrivacyPlan,
    secret: int,
    purpose: tuple[str | int, ...],
    canaries: Canaries | None = None,
    draws: Callable[..., Draws] = torch_stream,
) -> Iterator[Block]:
    """Yield a round's batches, one block each: every record is in each of them with the same chance, by itself.

    A batch may be empty. Who knew the draws could tell who was in no batch: `secret` must be one between organisations,
    and `draws` use all of it.
    The canaries of an audit that are included are drawn like records, by the same draws.
    """
    records, included = len(shard.labels), None if canaries is None else canaries.included()
    total = records if included is None else records + len(included)
    for step in range(plan.steps_per_round):
        of_step = (*purpose, "private-step", step)
        chances = uniform(total, draws(secret, *of_step, "sampling"))
        chosen = (chances < plan.sampling_rate).nonzero().flatten()
        drawn = chosen[chosen < records].to(shard.labels.device)
        extra = None if included is None else included[chosen[chosen >= records] - records]
        images = shard.samples[drawn]
        if preprocessor.augmentation != "none" and len(drawn):
            images = preprocessor.augment(images, generator=torch_stream(secret, *of_step, "augment"))
        yield Block(preprocessor.inputs(images), shard.labels[drawn], epoch=step, seed=step, canaries=extra)


def train_privately_on_block(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    block: Block,
    *,
    loss_of: Callable[[Tensor, slice], Loss],
    plan: PrivacyPlan,
    expected_size: float,
    noise: Draws,
    meter: LossMeter,
    watch: Callable[[Tensor], None] | None = None,
) -> None:
    """Take one step along the noised mean of the block's clipped gradients; `expected_size` is no secret.

    `watch`, an audit's, is shown what one who knows all records sees of the rest: the released sum without theirs, all
    weights in a row.
    """
    model.train()
    with stopwatch.part("student"):
        with sdpa_kernel(SDPBackend.MATH):  # the fast kernels of attention cannot take samples one by one
            sums = clipped_sums(model, block, loss_of=loss_of, max_norm=plan.max_grad_norm, meter=meter)
        deviation = plan.noise_multiplier * plan.max_grad_norm
        for name, parameter in _trained(model).items():
            drawn = standard_normal(parameter.shape, noise).to(parameter)  # on the CPU, so that devices agree
            parameter.grad = (sums[name] + deviation * drawn) / expected_size
        if watch is not None:
            watch(_without_records(model, block, sums, plan=plan, expected_size=expected_size))
        optimizer.step()


def uniform(count: int, draws: Draws) -> Tensor:
    """Draw so many numbers in [0, 1)."""
    if isinstance(draws, np.random.Generator):
        return torch.from_numpy(draws.random(count))
    return torch.rand(count, generator=draws)


def standard_normal(shape: torch.Size, draws: Draws) -> Tensor:
    """Draw normal numbers of deviation one."""
    if isinstance(draws, np.random.Generator):
        return torch.from_numpy(draws.standard_normal(tuple(shape)))
    return torch.randn(shape, generator=draws)


def clipped_sums(
    model: nn.Module, block: Block, *, loss_of: Callable[[Tensor, slice], Loss], max_norm: float, meter: LossMeter
) -> dict[str, Tensor]:
    """Return the sum of the samples' gradients, each clipped to the norm as a whole; zeros where there is no sample."""
    weights = {name: parameter.detach() for name, parameter in _trained(model).items()}
    buffers = dict(model.named_buffers())
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def logits_of_one(weights: dict[str, Tensor], sample: Tensor) -> Tensor:
        logits_1C: Tensor = torch.func.functional_call(model, (weights, buffers), (sample[None],))
        return logits_1C[0]

    def loss_from_slope(weights: dict[str, Tensor], sample: Tensor, slope_C: Tensor) -> Tensor:
        return (logits_of_one(weights, sample) * slope_C).sum()

    one_by_one = torch.func.vmap(logits_of_one, in_dims=(None, 0), randomness="different")
    gradients_of = torch.func.vmap(torch.func.grad(loss_from_slope), in_dims=(None, 0, 0), randomness="different")
    together = _samples_at_once(weights)
    for start in range(0, len(block.labels), together):
        where = slice(start, min(start + together, len(block.labels)))
        inputs = block.inputs[where]
        drawn = generator_state(inputs.device)
        with torch.no_grad():
            logits_BC: Tensor = model(inputs)
            if not torch.equal(drawn, generator_state(inputs.device)):
                # It draws, as dropout does: the slopes must be at the very logits whose gradients are taken below.
                drawn = generator_state(inputs.device)
                logits_BC = one_by_one(weights, inputs)
                set_generator_state(inputs.device, drawn)
        gradients = gradients_of(weights, inputs, _slopes(logits_BC, where, loss_of, meter))
        _add_clipped(sums, gradients, max_norm=max_norm)
    _add_canaries(sums, block, weights, max_norm=max_norm)
    return sums


def _add_canaries(sums: dict[str, Tensor], block: Block, weights: dict[str, Tensor], *, max_norm: float) -> None:
    """Add the block's canaries to the sums, clipped like records."""
    if block.canaries is None:
        return
    together = _samples_at_once(weights)
    for gradients in canary_gradients(block.canaries, weights, max_norm=max_norm, at_once=together):
        _add_clipped(sums, gradients, max_norm=max_norm)


def _without_records(
    model: nn.Module, block: Block, sums: dict[str, Tensor], *, plan: PrivacyPlan, expected_size: float
) -> Tensor:
    """Return the released sum of a step minus its records' part, all weights in a row: canaries and noise."""
    trained = _trained(model)
    weights = {name: parameter.detach() for name, parameter in trained.items()}
    canaries = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    _add_canaries(canaries, block, weights, max_norm=plan.max_grad_norm)
    rest = []
    for name, parameter in trained.items():
        assert parameter.grad is not None, "set by the step"
        rest.append((expected_size * parameter.grad - sums[name] + canaries[name]).flatten())
    return torch.cat(rest)


def _add_clipped(sums: dict[str, Tensor], gradients: dict[str, Tensor], *, max_norm: float) -> None:
    """Add gradients by sample to the sums, each clipped to the norm as a whole."""
    squares_B = sum(one.flatten(start_dim=1).square().sum(dim=1) for one in gradients.values())
    assert isinstance(squares_B, Tensor), "a network has weights"
    norms_B = squares_B.sqrt()
    # What is not finite counts nothing: one record must not decide whether there are numbers at all.
    share_B = torch.where(norms_B.isfinite(), (max_norm / norms_B.clamp(min=NORM_FLOOR)).clamp(max=1.0), 0.0)
    for name, one in gradients.items():
        sums[name] += torch.einsum("b,b...->...", share_B, one.nan_to_num(0.0, 0.0, 0.0))


def check_private(model: nn.Module, *, name: str) -> None:
    """Refuse what has no gradient by sample: networks that mix the samples of a batch, and what is no network."""
    if isinstance(model, FittedModule):
        raise ConfigError(f"model {name!r} is fitted in one call, and private training takes steps: choose networks")
    mixing = next((kind for module in model.modules() if (kind := _mixing(module))), None)
    if mixing is not None:
        raise ConfigError(
            f"model {name!r} has {mixing}, which mixes the records of a batch or keeps what it saw of them: for "
            "private training build it with nn.GroupNorm or nn.LayerNorm"
        )


def check_unmixed(model: nn.Module, shape: InputShape, *, name: str) -> None:
    """Refuse a user's network whose outputs for a sample, or whose buffers, follow from the others of a batch."""
    device = next(model.parameters()).device
    one, other = (shape.random_samples(4, generator=torch_stream(seed, "unmixed")).to(device) for seed in (1, 2))
    other[:3] = one[:3]
    found = []
    for samples in (one, other):
        tried = copy.deepcopy(model).train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)  # the same dropout
            found.append((tried(samples)[:3], dict(tried.named_buffers())))
    (logits_BC, buffers), (others_BC, other_buffers) = found
    is_same = torch.allclose(logits_BC, others_BC, equal_nan=True)
    if not is_same or any(not torch.equal(one, other_buffers[key]) for key, one in buffers.items()):
        raise ConfigError(
            f"model {name!r} says other things of a sample in other company, or keeps what it saw: private training "
            "needs a network that looks at one sample at a time"
        )


def _mixing(module: nn.Module) -> str | None:
    is_batch_norm = isinstance(module, nn.modules.batchnorm._NormBase) and not isinstance(
        module, nn.modules.instancenorm._InstanceNorm
    )
    keeps_track = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
    return type(module).__name__ if is_batch_norm or keeps_track else None


def _slopes(logits_BC: Tensor, where: slice, loss_of: Callable[[Tensor, slice], Loss], meter: LossMeter) -> Tensor:
    """Return the slope of each sample's own loss at its logits, [B,C]."""
    logits_BC.requires_grad_()
    loss = loss_of(logits_BC, where)
    if bool(loss.total.isfinite()):  # what one record makes infinite stops nobody
        meter.add(loss, len(logits_BC))
    (slope_BC,) = torch.autograd.grad(loss.total, logits_BC)
    return slope_BC * len(logits_BC)


def _samples_at_once(weights: dict[str, Tensor]) -> int:
    """Return how many samples' gradients fit: by the network alone, so that machines agree to the bit."""
    bytes_each = sum(weight.numel() * weight.element_size() for weight in weights.values())
    return max(1, min(MOST_AT_ONCE, CHUNK_BYTES // max(1, bytes_each)))


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
