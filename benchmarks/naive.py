"""The plain reading of the paper's Algorithm 1: what one writes first.

Eager, NCHW, peers deep-copied as teachers, everything batch by batch, the rule as a loop over the classes. It draws the
same partition, weights, batches and augmentation as `crad`, so the two do the same work and reach the same weights up
to rounding; `tests/test_benchmarks.py` holds them to it.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.aggregation.filters import TIE_TOLERANCE
from crad.config import Experiment
from crad.data.preprocessing import SampleSet
from crad.federation.context import RunContext, build_run_context
from crad.models import build_model
from crad.randomness import torch_seed, torch_stream


@dataclass
class Client:
    """One member: model, optimiser, private data, and its class statistics (counts, accuracies)."""

    model: nn.Module
    optimizer: torch.optim.SGD
    train: SampleSet
    validation: SampleSet
    statistics: tuple[Tensor, Tensor]


class NaiveFederation:
    """All clients of an experiment, one round at a time."""

    def __init__(self, experiment: Experiment) -> None:
        self.context = build_run_context(experiment)
        self.clients = [self._new_client(index) for index in range(experiment.clients)]

    def run_round(self, round_index: int) -> list[float]:
        """One round in the order of Algorithm 1; the mean loss of every client."""
        frozen = [copy.deepcopy(client.model).eval() for client in self.clients]
        statistics = [client.statistics for client in self.clients]
        losses = []
        for index, client in enumerate(self.clients):
            others = [k for k in range(len(self.clients)) if k != index]
            counts_KC, accuracies_KC = (torch.stack([statistics[k][part] for k in others]) for part in (0, 1))
            peers = [frozen[k] for k in others]
            losses.append(self._train(index, client, peers, counts_KC, accuracies_KC, round_index))
            client.statistics = measure(client.model, client.validation, self.context)
        return losses

    def _new_client(self, index: int) -> Client:
        context, e = self.context, self.context.experiment
        model = build_model(
            context.architecture_of(index),
            num_classes=context.data.num_classes,
            in_channels=context.data.dataset.in_channels,
            image_size=context.data.dataset.image_size,
            seed=torch_seed(e.seed, "peer", index, "weights"),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=e.lr, momentum=e.momentum, weight_decay=e.weight_decay)
        train, validation = (
            context.data.samples(context.data.shards[index].train),
            context.data.samples(context.data.shards[index].validation),
        )
        return Client(model, optimizer, train, validation, measure(model, validation, context))

    def _train(
        self,
        index: int,
        client: Client,
        peers: list[nn.Module],
        counts_KC: Tensor,
        accuracies_KC: Tensor,
        round_index: int,
    ) -> float:
        e, prepare = self.context.experiment, self.context.data.preprocessor
        purpose = ("peer", index, "round", round_index, "epoch", 0)
        order = torch.randperm(len(client.train), generator=torch_stream(e.seed, *purpose, "shuffle"))
        images = prepare.augment(client.train.samples[order], generator=torch_stream(e.seed, *purpose, "augment"))
        labels = client.train.labels[order]
        total, samples = 0.0, 0
        for start in range(0, len(labels), e.batch_size):
            y = labels[start : start + e.batch_size]
            if len(y) < 2:
                continue  # batch norm needs two samples
            x = prepare.inputs(images[start : start + e.batch_size]).contiguous()
            with torch.no_grad():
                q_KBC = torch.stack([F.softmax(peer(x) / e.temperature, dim=1) for peer in peers])
                target_BC = class_loop_target(q_KBC, counts_KC, accuracies_KC, e.min_support, e.epsilon)
            total += self._step(client, x, y, target_BC) * len(y)
            samples += len(y)
        return total / max(1, samples)

    def _step(self, client: Client, x: Tensor, y: Tensor, target_BC: Tensor) -> float:
        e = self.context.experiment
        client.model.train()
        logits_BC = client.model(x)
        divergence = F.kl_div(F.log_softmax(logits_BC / e.temperature, dim=1), target_BC, reduction="batchmean")
        loss = (1 - e.distill_weight) * F.cross_entropy(logits_BC, y) + e.distill_weight * e.temperature**2 * divergence
        client.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if not isinstance(e.clip_norm, str):
            nn.utils.clip_grad_norm_(client.model.parameters(), e.clip_norm)
        client.optimizer.step()
        return float(loss.detach())


def class_loop_target(
    q_KBC: Tensor, counts_KC: Tensor, accuracies_KC: Tensor, min_support: float = 2, epsilon: float = 1e-8
) -> Tensor:
    """The CRAD rule as the equations read, one class after the other."""
    target_BC = torch.empty_like(q_KBC[0])
    for c in range(q_KBC.shape[2]):
        n, a, q_KB = counts_KC[:, c], accuracies_KC[:, c], q_KBC[:, :, c]
        is_supported = n >= min_support
        if not is_supported.any():
            target_BC[:, c] = q_KB.mean(dim=0)
            continue
        n, a, q_KB = n[is_supported], a[is_supported], q_KB[is_supported]
        deviation_KB = (q_KB - q_KB.mean(dim=0)).abs()
        keep_KB = deviation_KB <= deviation_KB.median(dim=0).values + TIE_TOLERANCE
        smoothed = (a * n + 2) / (n + 4)
        variance = smoothed * (1 - smoothed) / (n + 4)
        weight_KB = (1 / (variance + epsilon)).to(q_KB.dtype).unsqueeze(1) * keep_KB
        target_BC[:, c] = (weight_KB * q_KB).sum(dim=0) / (weight_KB.sum(dim=0) + epsilon)
    return target_BC / target_BC.sum(dim=1, keepdim=True)


@torch.no_grad()
def measure(model: nn.Module, images: SampleSet, context: RunContext) -> tuple[Tensor, Tensor]:
    """Validation samples held and share classified correctly, per class."""
    model.eval()
    size = context.experiment.batch_size
    guesses = [
        model(context.data.preprocessor.inputs(images.samples[start : start + size]).contiguous()).argmax(dim=1)
        for start in range(0, len(images), size)
    ]
    guess = torch.cat(guesses) if guesses else images.labels
    counts = torch.bincount(images.labels, minlength=context.data.num_classes).double()
    hits = torch.bincount(images.labels[guess == images.labels], minlength=context.data.num_classes).double()
    return counts, hits / counts.clamp(min=1)
