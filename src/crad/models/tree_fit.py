"""Trees are fitted by scikit-learn and kept as tensors; imported by whoever fits, `crad[trees]`.

Shapes: N rows, F columns, C classes, n nodes of one tree as scikit-learn has it, T trees, M and L as in `trees.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from crad.models.networks.trees import GradientBoosting, RandomForest, TreeEnsemble

LEARNING_RATE = 0.1  # of gradient boosting
ROWS_IN_LEAF = {"gradient-boosting": 10, "random-forest": 2}  # at least
MAX_BINS = 255  # of a column, for gradient boosting: as many as scikit-learn has
LARGEST_THRESHOLD = 1e18  # in place of infinity, which splits gaps from everything else and does not travel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FittedTree:
    """One tree as scikit-learn numbers its nodes; a leaf's children are the leaf itself."""

    column: NDArray[np.int64]  # [n]
    threshold: Floats  # [n]
    gap_right: NDArray[np.bool_]  # [n]
    left: NDArray[np.int64]  # [n]
    right: NDArray[np.int64]  # [n]
    values: Floats  # [n,...]


def fit_gradient_boosting(model: GradientBoosting, rows_NF: Tensor, mass_NC: Tensor, *, seed: int) -> None:
    """Fit every row as C weighted copies, one per class.

    Copies without weight stay: so every class is known, and a leaf's least size is in rows.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    rows, mass = _rows_of(model, rows_NF), mass_NC.detach().cpu().double().numpy()
    num_classes = model.num_classes
    booster = HistGradientBoostingClassifier(
        max_iter=model.steps,
        max_depth=model.depth,
        max_leaf_nodes=model.leaves,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=ROWS_IN_LEAF["gradient-boosting"] * num_classes,
        early_stopping=False,
        random_state=seed,
    )
    labels = np.tile(np.arange(num_classes), len(rows))
    edges_FE = bin_edges(rows)
    bins = np.repeat(bin_numbers(rows, edges_FE), num_classes, axis=0)
    with threadpool_limits(1, user_api="openmp"):  # sums over several threads are rounded differently
        booster.fit(bins, labels, sample_weight=mass.ravel())
    trees = [_boosted_tree(one.nodes, edges_FE) for step in booster._predictors for one in step]
    kept = _as_heaps(trees, depth=model.depth)
    kept["values"][: model.scores] += booster._baseline_prediction.reshape(model.scores, 1)
    _store(model, kept)


def fit_random_forest(model: RandomForest, rows_NF: Tensor, mass_NC: Tensor, *, seed: int) -> None:
    """Fit class shares with squared error, which splits as Gini impurity does on C weighted copies of every row.

    Without copies a bootstrap draws rows, and not one class of a row without the others.
    """
    from sklearn.ensemble import RandomForestRegressor

    rows, mass = _rows_of(model, rows_NF), mass_NC.detach().cpu().double().numpy()
    weight = mass.sum(axis=1)
    forest = RandomForestRegressor(
        n_estimators=model.trees,
        max_depth=model.depth,
        max_features="sqrt",
        min_samples_leaf=ROWS_IN_LEAF["random-forest"],
        random_state=seed,
    )
    forest.fit(rows, mass / weight[:, None], sample_weight=weight)
    trees = [_forest_tree(one.tree_) for one in forest.estimators_]
    _store(model, _as_heaps(trees, depth=model.depth))


def bin_edges(rows_NF: NDArray[np.float32]) -> Floats:
    """Return what divides every column into bins, in order and filled up with infinity, [F,E].

    scikit-learn would do it by the weights of copies, which takes longer than all the rest from some 1,000 rows on.
    """
    edges_FE = np.full((rows_NF.shape[1], MAX_BINS), np.inf)
    for column, edges in enumerate(edges_FE):
        known = rows_NF[:, column].astype(np.float64)
        known = np.sort(known[~np.isnan(known)])
        distinct = np.unique(known)
        found = (distinct[:-1] + distinct[1:]) / 2
        if len(distinct) > MAX_BINS:
            found = np.unique(known[np.linspace(0, len(known) - 1, MAX_BINS + 1)[1:-1].astype(np.int64)])
        edges[: len(found)] = found
    return edges_FE


def bin_numbers(rows_NF: NDArray[np.float32], edges_FE: Floats) -> Floats:
    """Return the bin of every value [N,F]: bin b or an earlier one is up to edge b. A gap stays one."""
    bins_FN = [np.searchsorted(edges, rows) for edges, rows in zip(edges_FE, rows_NF.T.astype(np.float64), strict=True)]
    return np.where(np.isnan(rows_NF), np.nan, np.stack(bins_FN, axis=1))


def round_down(threshold: Floats) -> NDArray[np.float32]:
    """Return the largest single-precision number that is not above: the same single-precision values are above it."""
    bounded = np.clip(threshold, -LARGEST_THRESHOLD, LARGEST_THRESHOLD)
    near = bounded.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near.astype(np.float64) > bounded, below, near).astype(np.float32)


def _rows_of(model: TreeEnsemble, rows_NF: Tensor) -> NDArray[np.float32]:
    """Return rows as scikit-learn takes them: a column of nothing but gaps is constant, so that no node asks for it."""
    rows: NDArray[np.float32] = model.known(rows_NF).detach().cpu().numpy()
    return np.where(np.isnan(rows).all(axis=0), np.float32(0), rows)


def _boosted_tree(nodes: NDArray[Any], edges_FE: Floats) -> FittedTree:
    is_leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
    column = np.where(is_leaf, 0, nodes["feature_idx"])
    last_bin = np.clip(np.floor(nodes["num_threshold"]), 0, MAX_BINS - 1).astype(np.int64)  # that goes to the left
    is_number = np.isfinite(nodes["num_threshold"])  # else gaps are split from everything else
    return FittedTree(
        column,
        np.where(is_leaf, 0.0, np.where(is_number, edges_FE[column, last_bin], np.inf)),
        ~is_leaf & (nodes["missing_go_to_left"] == 0),
        np.where(is_leaf, own, nodes["left"]),
        np.where(is_leaf, own, nodes["right"]),
        nodes["value"].astype(np.float64),
    )


def _forest_tree(tree: Any) -> FittedTree:  # noqa: ANN401  # scikit-learn has no types
    is_leaf, own = tree.children_left < 0, np.arange(tree.node_count)
    return FittedTree(
        np.where(is_leaf, 0, tree.feature),
        np.where(is_leaf, 0.0, tree.threshold),
        ~is_leaf & (tree.missing_go_to_left == 0),
        np.where(is_leaf, own, tree.children_left),
        np.where(is_leaf, own, tree.children_right),
        tree.value.reshape(tree.node_count, -1),
    )


def _as_heaps(trees: Sequence[FittedTree], *, depth: int) -> dict[str, NDArray[Any]]:
    """Return trees in heap order: what lies below an early leaf asks for nothing and ends in that leaf's value."""
    node_lists, leaf_lists = [], []
    for tree in trees:
        level, nodes = np.zeros(1, dtype=np.int64), []
        for _ in range(depth):
            nodes.append(level)
            level = np.stack([tree.left[level], tree.right[level]], axis=1).ravel()
        assert (tree.left[level] == level).all(), "no tree is deeper than it was allowed to become"
        node_lists.append(np.concatenate(nodes))
        leaf_lists.append(level)
    pairs = list(zip(trees, node_lists, strict=True))
    return {
        "column": np.stack([tree.column[nodes] for tree, nodes in pairs]),
        "threshold": round_down(np.stack([tree.threshold[nodes] for tree, nodes in pairs])),
        "gap_right": np.stack([tree.gap_right[nodes] for tree, nodes in pairs]),
        "values": np.stack([tree.values[leaves] for tree, leaves in zip(trees, leaf_lists, strict=True)]),
    }


@torch.no_grad()
def _store(model: TreeEnsemble, kept: dict[str, NDArray[Any]]) -> None:
    for name, values in kept.items():
        getattr(model, name).copy_(torch.from_numpy(values))
