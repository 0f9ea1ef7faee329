"""Ensembles of decision trees as tensors: fitted in one call, and teachers like any network.

Every tree is a whole binary tree of one depth, laid out as a heap: the children of node n are 2n+1 and 2n+2. So there
are no child indices that somebody could send as a loop: whatever the tensors hold, a row is at a leaf after `depth`
steps. Teaching needs torch alone; scikit-learn (`crad[trees]`) is for those who fit (`tree_fit.py`).

Shapes: B rows, F columns, C classes, T trees, M inner nodes (2^depth - 1), L leaves (2^depth), K scores of a row.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crad.errors import ConfigError, install_hint
from crad.models.family import Builder, InputShape, scale_channels

SMALLEST_SHARE = 1e-6  # that an ensemble gives a class: a teacher's logits are logarithms, and all are finite


class FittedModule(nn.Module):
    """A model that is fitted in one call, where others take steps along a gradient; what is fitted is its state."""

    def fit(self, inputs: Tensor, mass_BC: Tensor, *, seed: int) -> None:
        """Learn from samples whose classes are weighed [B,C]: a row is how much each class counts for that sample."""
        raise NotImplementedError(f"{type(self).__name__} must say how it is fitted")

    def check_fittable(self, name: str) -> None:
        """Refuse, with a `ConfigError`, to begin where a package that `fit` needs is missing."""


class TreeEnsemble(FittedModule):
    """Trees over the columns of raw rows: a gap goes where its node says, and so does an unknown category."""

    column: Tensor  # [T,M] which column a node asks
    threshold: Tensor  # [T,M] a value above it goes to the right
    gap_right: Tensor  # [T,M] 0: a gap goes to the left
    limit: Tensor  # [F] values from here on are no known category
    first_node: Tensor  # [T] where a tree's nodes begin, all trees in a row
    first_leaf: Tensor

    def __init__(self, sizes: Sequence[int], *, trees: int, depth: int, values: Tensor) -> None:
        """Make one for columns of these sizes (how many categories, 0 for numbers); `values` [T,L,...] are its leaves'.

        They are a parameter for what counts and moves a model's parameters; no step is ever taken along their gradient.
        """
        super().__init__()
        self.sizes, self.trees, self.depth = tuple(sizes), trees, depth
        self.nodes, self.leaves = (1 << depth) - 1, 1 << depth
        self.values = nn.Parameter(values)
        self.register_buffer("column", torch.zeros(trees, self.nodes, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(trees, self.nodes))
        self.register_buffer("gap_right", torch.zeros(trees, self.nodes, dtype=torch.uint8))
        limits = [float(size) if size else math.inf for size in sizes]
        self.register_buffer("limit", torch.tensor(limits), persistent=False)
        self.register_buffer("first_node", torch.arange(trees) * self.nodes, persistent=False)
        self.register_buffer("first_leaf", torch.arange(trees) * self.leaves, persistent=False)

    def known(self, rows_BF: Tensor) -> Tensor:
        """Return raw rows with unknown categories as gaps."""
        return torch.where(rows_BF < self.limit, rows_BF, math.nan)

    def leaf_of(self, rows_BF: Tensor) -> Tensor:
        """Return the leaf of every tree that a row comes to, [B,T], counted over all trees in a row."""
        rows_BF = self.known(rows_BF)
        # A column that does not exist, in tensors that somebody sent, is the nearest one that does.
        columns = self.column.flatten().long().clamp(0, len(self.sizes) - 1)
        thresholds, gaps_right = self.threshold.flatten(), self.gap_right.flatten() != 0
        node_BT = self.first_node.new_zeros(1, self.trees).expand(rows_BF.shape[0], -1)
        for _ in range(self.depth):
            here_BT = node_BT + self.first_node
            value_BT = rows_BF.gather(1, columns[here_BT])
            # No gap is above anything. (A graph of ONNX cannot choose between truth values, so they are combined.)
            is_right_BT = (value_BT > thresholds[here_BT]) | (value_BT.isnan() & gaps_right[here_BT])
            node_BT = 2 * node_BT + 1 + is_right_BT.long()
        leaf_BT: Tensor = node_BT - self.nodes + self.first_leaf
        return leaf_BT

    def check_fittable(self, name: str) -> None:
        """Refuse to begin where scikit-learn is missing."""
        if importlib.util.find_spec("sklearn") is None:
            raise ConfigError(f"model {name!r} is fitted by scikit-learn, which is not there: {install_hint('trees')}")


class GradientBoosting(TreeEnsemble):
    """Trees whose leaves add up to scores: one tree a step for two classes, one per class and step for more."""

    def __init__(self, sizes: Sequence[int], *, steps: int, depth: int, num_classes: int) -> None:
        self.scores = 1 if num_classes == 2 else num_classes
        trees = steps * self.scores
        super().__init__(sizes, trees=trees, depth=depth, values=torch.zeros(trees, 2**depth))
        self.steps, self.num_classes = steps, num_classes

    def forward(self, rows_BF: Tensor) -> Tensor:
        """Return logits [B,C]: logarithms of probabilities."""
        score_BK = self.values.flatten()[self.leaf_of(rows_BF)].reshape(-1, self.steps, self.scores).sum(dim=1)
        if self.scores == 1:
            score_BK = F.pad(score_BK, (1, 0))
        return F.log_softmax(score_BK, dim=1).clamp(min=math.log(SMALLEST_SHARE))

    def fit(self, inputs: Tensor, mass_BC: Tensor, *, seed: int) -> None:
        """Fit scikit-learn's histogram gradient boosting, and keep what it found."""
        from crad.models.tree_fit import fit_gradient_boosting

        fit_gradient_boosting(self, inputs, mass_BC, seed=seed)


class RandomForest(TreeEnsemble):
    """Trees whose leaves hold class shares; the forest says their mean."""

    def __init__(self, sizes: Sequence[int], *, trees: int, depth: int, num_classes: int) -> None:
        values = torch.full((trees, 2**depth, num_classes), 1 / num_classes)
        super().__init__(sizes, trees=trees, depth=depth, values=values)

    def forward(self, rows_BF: Tensor) -> Tensor:
        """Return logits [B,C]: logarithms of probabilities."""
        share_BTC = self.values.flatten(0, 1)[self.leaf_of(rows_BF)]
        return share_BTC.mean(dim=1).clamp(min=SMALLEST_SHARE).log()

    def fit(self, inputs: Tensor, mass_BC: Tensor, *, seed: int) -> None:
        """Fit scikit-learn's random forest, and keep what it found."""
        from crad.models.tree_fit import fit_random_forest

        fit_random_forest(self, inputs, mass_BC, seed=seed)


def _gradient_boosting(shape: InputShape, *, width: float) -> nn.Module:
    [steps] = scale_channels((100,), width)
    return GradientBoosting(shape.columns, steps=steps, depth=4, num_classes=shape.num_classes)


def _random_forest(shape: InputShape, *, width: float) -> nn.Module:
    [trees] = scale_channels((100,), width)
    return RandomForest(shape.columns, trees=trees, depth=8, num_classes=shape.num_classes)


FITTED: dict[str, Builder] = {"gradient-boosting": _gradient_boosting, "random-forest": _random_forest}  # in one call
FAMILIES: dict[str, dict[str, Builder]] = {"table": FITTED}
# What of its owner's data a snapshot of these has in it, readable as it is; no statistics of a first layer.
IN_TREES = (
    "thresholds that are values of the training rows, or lie between two of them, and in every leaf the class shares "
    "of a few rows"
)
