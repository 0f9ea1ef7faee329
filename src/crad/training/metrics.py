"""Metrics beyond accuracy, each with a bootstrap interval, and withheld where there are too few samples.

Pure functions of class probabilities and labels. Everything is in percent. docs/metrics.md says what each means.

Shapes: N samples, C classes, R resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

METRIC_NAMES = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "ece")
MACRO_METRICS = ("balanced_accuracy", "macro_f1", "auroc")  # means over classes
MIN_SAMPLES = 10  # of a class, and on average of a bin of the calibration error
NUM_BINS = 15  # of confidence, for the calibration error
NUM_RESAMPLES = 200
LEVEL = 95  # percent of the resamples that an interval spans
TOO_FEW = "too few samples"
NOT_FINITE = "predictions are not finite"
BLOCK_CELLS = 4_000_000  # of samples x resamples at once

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A figure in percent with its interval, or the reason why there is none."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return self.reason
        return f"{self.value:.1f}" if self.low is None else f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True, eq=False)
class ClassificationMetrics:
    """How well samples were classified: figures by name, in percent, and what they were counted from.

    Example:
        >>> metrics = result.metrics(client=3)  # doctest: +SKIP
        >>> metrics["auroc"].value, metrics["auroc"].low, metrics["auroc"].high  # doctest: +SKIP
    """

    figures: Mapping[str, Estimate]
    counted: tuple[int, ...]  # the classes with enough samples, of which means over classes are made
    counts: tuple[int, ...]  # samples by class
    confusion: tuple[tuple[int, ...], ...]  # by true class, then by the class that was said
    class_auroc: tuple[float | None, ...]  # one class against the rest; None where it has too few samples
    resampled: Mapping[str, Floats] = field(default_factory=dict, repr=False)  # each figure in every resample

    @property
    def too_few(self) -> list[int]:
        """Return the classes that occur, but with too few samples."""
        return [label for label, count in enumerate(self.counts) if count and label not in self.counted]

    @property
    def absent(self) -> list[int]:
        """Return the classes without any sample."""
        return [label for label, count in enumerate(self.counts) if not count]

    def __getitem__(self, name: str) -> Estimate:
        return self.figures[name]

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {estimate}" for name, estimate in self.figures.items())
        return f"<ClassificationMetrics of {sum(self.counts)} samples: {figures}>"


def measure_metrics(probabilities_NC: Floats, labels_N: Integers, *, rng: np.random.Generator) -> ClassificationMetrics:
    """Measure what was said of labelled samples; rows of `probabilities_NC` sum to one.

    Samples are drawn again within their class, so every resample has the classes as often as the test set has. The same
    generator draws the same samples for another model, whose figures can then be subtracted resample by resample.
    """
    probabilities_NC = np.asarray(probabilities_NC, dtype=np.float64)
    labels_N = np.asarray(labels_N, dtype=np.int64)
    num_classes = probabilities_NC.shape[1]
    counts_C = np.bincount(labels_N, minlength=num_classes)
    counting = _Counting(probabilities_NC, labels_N, counts_C)
    once = np.ones((len(labels_N), 1), dtype=np.int32)
    values = {name: float(column[0]) for name, column in counting.figures(once).items()}
    blocks = [counting.figures(weights_NR) for weights_NR in _draw_weights(labels_N, counts_C, rng)] if values else []
    resampled = {name: np.concatenate([block[name] for block in blocks]) for name in values}
    confusion_CC = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(confusion_CC, (labels_N, counting.said_N), 1)
    class_auroc = {label: float(column[0]) for label, column in counting.class_auroc(once).items()}
    return ClassificationMetrics(
        figures={
            name: _estimate(name, values[name], resampled[name])
            if name in values
            else Estimate(None, reason=counting.reason(name))
            for name in METRIC_NAMES
        },
        counted=tuple(np.flatnonzero(counts_C >= MIN_SAMPLES).tolist()),
        counts=tuple(counts_C.tolist()),
        confusion=tuple(tuple(row) for row in confusion_CC.tolist()),
        class_auroc=tuple(class_auroc.get(label) for label in range(num_classes)),
        resampled=resampled,
    )


def mean_estimates(measured: Sequence[ClassificationMetrics]) -> dict[str, Estimate]:
    """Return the mean of every figure over several models, of those that have it, with the interval of that mean.

    Resamples are averaged one by one: on the same samples, drawn by the same generator, what the models have in common
    does not average out.
    """
    found = {}
    for name in METRIC_NAMES:
        own = [one for one in measured if one.figures[name].value is not None]
        if not own:
            reasons = [one.figures[name].reason for one in measured]
            found[name] = Estimate(None, reason=reasons[0] if reasons else TOO_FEW)
            continue
        value = float(np.mean([one.figures[name].value for one in own]))
        found[name] = _estimate(name, value, np.mean([one.resampled[name] for one in own], axis=0))
    return found


def difference_estimates(own: ClassificationMetrics, other: ClassificationMetrics) -> dict[str, Estimate]:
    """Return one model's figures minus another's on the same samples, resample by resample."""
    found = {}
    for name in METRIC_NAMES:
        ours, theirs = own.figures[name], other.figures[name]
        if ours.value is None or theirs.value is None:
            found[name] = Estimate(None, reason=ours.reason or theirs.reason)
        else:
            differences_R = own.resampled[name] - other.resampled[name]
            found[name] = _estimate(name, ours.value - theirs.value, differences_R, floor=-100.0)
    return found


def pool_metrics(measured: Sequence[ClassificationMetrics], figures: Mapping[str, Estimate]) -> ClassificationMetrics:
    """Return figures of several models with their confusion matrices added up, and mean AUROC per class."""
    columns = zip(*(one.class_auroc for one in measured), strict=True)
    aurocs = [[value for value in column if value is not None] for column in columns]
    return ClassificationMetrics(
        figures=figures,
        counted=tuple(sorted({label for one in measured for label in one.counted})),
        counts=tuple(np.sum([one.counts for one in measured], axis=0).tolist()),
        confusion=tuple(tuple(row) for row in np.sum([one.confusion for one in measured], axis=0).tolist()),
        class_auroc=tuple(float(np.mean(values)) if values else None for values in aurocs),
    )


def softmax(logits_NC: NDArray[np.floating[Any]]) -> Floats:
    """Return logits as probabilities in double precision, in which far fewer of them come out equal."""
    with np.errstate(invalid="ignore"):  # of a row that is not finite neither are the probabilities, and that is said
        powers_NC = np.exp(
            np.asarray(logits_NC, dtype=np.float64) - logits_NC.max(axis=1, keepdims=True, initial=-np.inf)
        )
        return np.asarray(powers_NC / powers_NC.sum(axis=1, keepdims=True), dtype=np.float64)


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate as a plain dictionary: value, low and high, or why there is none."""
    if estimate.value is None:
        return {"value": None, "reason": estimate.reason}
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def estimate_from_json(entry: Mapping[str, Any]) -> Estimate:
    """Read what `estimate_to_json` wrote."""
    return Estimate(entry["value"], entry.get("low"), entry.get("high"), entry.get("reason", ""))


def metrics_to_json(metrics: ClassificationMetrics) -> dict[str, Any]:
    """Return metrics as a plain dictionary, without the resamples."""
    return {
        "figures": {name: estimate_to_json(one) for name, one in metrics.figures.items()},
        "counted": list(metrics.counted),
        "counts": list(metrics.counts),
        "class_auroc": list(metrics.class_auroc),
        "confusion": [list(row) for row in metrics.confusion],
    }


def metrics_from_json(entry: Mapping[str, Any]) -> ClassificationMetrics:
    """Read what `metrics_to_json` wrote."""
    return ClassificationMetrics(
        figures={name: estimate_from_json(one) for name, one in entry["figures"].items()},
        counted=tuple(entry["counted"]),
        counts=tuple(entry["counts"]),
        confusion=tuple(tuple(row) for row in entry["confusion"]),
        class_auroc=tuple(entry["class_auroc"]),
    )


class _Counting:
    """What is counted of one model's predictions, whatever weight every sample has."""

    def __init__(self, probabilities_NC: Floats, labels_N: Integers, counts_C: Integers) -> None:
        self._labels_N, self._counts_C = labels_N, counts_C
        self.said_N = probabilities_NC.argmax(axis=1)
        self._is_finite = bool(np.isfinite(probabilities_NC).all())
        self._hits_N = self.said_N == labels_N
        self._counted = np.flatnonzero(counts_C >= MIN_SAMPLES)
        has_ranks = self._is_finite and self._has_classes
        self._ranks = {
            int(label): _Ranks(probabilities_NC[:, label], labels_N == label)
            for label in (self._counted if has_ranks else ())
        }
        confidence_N = probabilities_NC.max(axis=1)
        self._gap_N = self._hits_N - confidence_N
        edges = np.linspace(0, 1, NUM_BINS + 1)
        bin_N = np.clip(np.searchsorted(edges, confidence_N, side="left") - 1, 0, NUM_BINS - 1)
        self._bins = [np.flatnonzero(bin_N == number) for number in range(NUM_BINS)]

    @property
    def _has_classes(self) -> bool:
        return len(self._counted) > 1  # a mean over one class balances nothing

    def reason(self, name: str) -> str:
        """Say why there is no such figure; empty where there is one."""
        if name in ("auroc", "ece") and not self._is_finite:
            return NOT_FINITE
        is_enough = {
            "accuracy": len(self._labels_N) >= MIN_SAMPLES,
            "ece": len(self._labels_N) >= MIN_SAMPLES * NUM_BINS,
        }
        return "" if is_enough.get(name, self._has_classes) else TOO_FEW

    def figures(self, weights_NR: NDArray[np.int32]) -> dict[str, Floats]:
        """Return every figure that there are enough samples for, one value per column of weights."""
        makers = {
            "accuracy": self._accuracy,
            "balanced_accuracy": self._balanced_accuracy,
            "macro_f1": self._macro_f1,
            "auroc": self._auroc,
            "ece": self._calibration_error,
        }
        return {name: 100 * make(weights_NR) for name, make in makers.items() if not self.reason(name)}

    def class_auroc(self, weights_NR: NDArray[np.int32]) -> dict[int, Floats]:
        """Return how surely a sample of the class gets a higher probability for it than another sample, in percent."""
        return {label: 100 * ranks.auroc(weights_NR) for label, ranks in self._ranks.items()}

    def _accuracy(self, weights_NR: NDArray[np.int32]) -> Floats:
        return np.asarray(weights_NR[self._hits_N].sum(axis=0) / len(self._labels_N), dtype=np.float64)

    def _balanced_accuracy(self, weights_NR: NDArray[np.int32]) -> Floats:
        hits_CR = self._hits(weights_NR)[self._counted]
        return np.asarray((hits_CR / self._counts_C[self._counted, None]).mean(axis=0))

    def _macro_f1(self, weights_NR: NDArray[np.int32]) -> Floats:
        """Return the mean over classes of 2 hits / (samples + how often the class was said)."""
        said_CR = _sum_by(self.said_N, weights_NR, len(self._counts_C))[self._counted]
        f1_CR = 2 * self._hits(weights_NR)[self._counted] / (self._counts_C[self._counted, None] + said_CR)
        return np.asarray(f1_CR.mean(axis=0))

    def _auroc(self, weights_NR: NDArray[np.int32]) -> Floats:
        return np.asarray(np.mean([ranks.auroc(weights_NR) for ranks in self._ranks.values()], axis=0))

    def _calibration_error(self, weights_NR: NDArray[np.int32]) -> Floats:
        gaps = [np.abs((self._gap_N[where, None] * weights_NR[where]).sum(axis=0)) for where in self._bins]
        return np.asarray(np.sum(gaps, axis=0) / len(self._labels_N))

    def _hits(self, weights_NR: NDArray[np.int32]) -> Integers:
        return _sum_by(self._labels_N[self._hits_N], weights_NR[self._hits_N], len(self._counts_C))


class _Ranks:
    """One class against the rest: who of both has which place in the order of its probability; equals share one."""

    def __init__(self, score_N: Floats, is_own_N: NDArray[np.bool_]) -> None:
        order_N = score_N.argsort(kind="stable")
        sorted_N, own_N = score_N[order_N], is_own_N[order_N]
        self._own, self._others = order_N[own_N], order_N[~own_N]
        others, own = sorted_N[~own_N], sorted_N[own_N]
        below, upto = (np.searchsorted(others, own, side=side) for side in ("left", "right"))  # an own one's place
        # Only what lies between these places is added up one by one: a class's own samples are few among many classes.
        self._edges = np.unique(np.concatenate([[0, len(others)], below, upto]))
        self._below, self._upto = (np.searchsorted(self._edges, place) for place in (below, upto))

    def auroc(self, weights_NR: NDArray[np.int32]) -> Floats:
        """Return the area under the receiver operating characteristic, 0 to 1: Mann and Whitney's U, exactly."""
        passed_ER = np.zeros((len(self._edges), weights_NR.shape[1]), dtype=np.int64)
        between_ER = np.add.reduceat(weights_NR[self._others], self._edges[:-1], axis=0, dtype=np.int32)
        np.cumsum(between_ER, axis=0, out=passed_ER[1:])
        both = passed_ER[self._below] + passed_ER[self._upto]
        doubled_R = (weights_NR[self._own] * both).sum(axis=0)
        return np.asarray(doubled_R / (2 * len(self._own) * len(self._others)), dtype=np.float64)


def _sum_by(label_M: Integers, weights_MR: NDArray[np.int32], num_classes: int) -> Integers:
    """Add up the weights of samples with the same label."""
    sums_CR = np.zeros((num_classes, weights_MR.shape[1]), dtype=np.int64)
    order_M = label_M.argsort(kind="stable")
    labels, starts = np.unique(label_M[order_M], return_index=True)
    if len(labels):
        sums_CR[labels] = np.add.reduceat(weights_MR[order_M], starts, axis=0, dtype=np.int64)
    return sums_CR


def _draw_weights(labels_N: Integers, counts_C: Integers, rng: np.random.Generator) -> Iterator[NDArray[np.int32]]:
    """Draw how often every sample comes in every resample, class by class, some resamples at a time."""
    step = max(1, min(NUM_RESAMPLES, BLOCK_CELLS // max(1, len(labels_N))))
    of_class = [np.flatnonzero(labels_N == label) for label in np.flatnonzero(counts_C)]
    for start in range(0, NUM_RESAMPLES, step):
        number = min(step, NUM_RESAMPLES - start)
        weights_NR = np.empty((len(labels_N), number), dtype=np.int32)
        for where in of_class:
            size = len(where)
            drawn = rng.integers(size, size=(size, number)) * number + np.arange(number)
            weights_NR[where] = np.bincount(drawn.ravel(), minlength=size * number).reshape(size, number)
        yield weights_NR


def _estimate(name: str, value: float, resampled_R: Floats, *, floor: float = 0.0) -> Estimate:
    """Return a figure with the interval that most resamples lie in; that of the calibration error is reflected.

    Noise only adds to a calibration error, in the sample and in the resamples once more: these lie above the figure by
    about as much as it lies above the truth. The others hardly lean to one side. It reaches to the figure in any case.
    """
    low, high = np.percentile(resampled_R, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    if name == "ece":
        low, high = max(floor, 2 * value - high), 2 * value - low
    low, high = min(low, value), max(high, value)
    return Estimate(value, float(low), float(high))
