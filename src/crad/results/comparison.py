"""What `crad.compare` returns: methods and seeds on identical partitions, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crad.analysis.comparable import comparable_runs
from crad.analysis.comparison import METRICS, ComparisonRow
from crad.analysis.comparison import compare as compare_summaries
from crad.analysis.metric_rows import METRIC_TITLES
from crad.analysis.verdict import joining_verdict
from crad.report.notebook import comparison_html
from crad.report.tables import COMPARISON_HEADER, comparison_cells, markdown
from crad.results.figures import accuracy_curves
from crad.results.frames import frame
from crad.results.result import Result
from crad.runs.run_records import RunRecords

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several methods with the same seeds on the same data, each divided among the clients in the same way.

    Example:
        >>> both = crad.compare(crad.Experiment(preset="demo", rounds=2), methods=["local", "crad"])  # doctest: +SKIP
        >>> both.to_frame(), both.verdict  # doctest: +SKIP
    """

    results: tuple[Result, ...]
    rows: tuple[ComparisonRow, ...]  # one per method, in their order; differences are against the first
    directory: Path | None = None

    @property
    def verdict(self) -> str:
        """Return whether joining helped, in a sentence; empty where training alone (`local`) was not run."""
        found = joining_verdict(self._runs())
        return "" if found is None else " ".join([found.sentence, *found.lines])

    def to_frame(self) -> pandas.DataFrame:
        """Return one row per method and seed: accuracies in percent, differences to the first method, costs.

        Needs pandas.

        Example:
            >>> both.to_frame().groupby("method")["global_accuracy"].mean()  # doctest: +SKIP
        """
        summaries = [run.summary for run in self._runs()]
        first = {one["seed"]: one for one in summaries if one["name"] == self.rows[0].name}
        return frame(
            [
                {
                    "method": one["name"],
                    "seed": one["seed"],
                    **{metric: one[metric] for metric in METRICS},
                    **{f"{metric}_difference": one[metric] - first[one["seed"]][metric] for metric in METRICS},
                    **_metric_columns(one),
                    "best_round": one["best_round"],
                    "payload_bytes_per_client_round": one["payload_bytes_per_client_round"],
                    "total_seconds": one["total_seconds"],
                }
                for one in summaries
            ]
        )

    def curves(self) -> Any:  # noqa: ANN401  # an Altair chart, whose package is an extra
        """Return a chart of accuracy over rounds, a line per method with a band over its seeds. Needs `crad[report]`.

        Example:
            >>> both.curves()  # doctest: +SKIP
        """
        return accuracy_curves(self._runs())

    def __getitem__(self, method: str) -> list[Result]:
        """Return the results of a method, one per seed: `both["crad"][0].models[3]`."""
        pairs = zip(self._runs(), self.results, strict=True)
        found = [result for run, result in pairs if method in (run.summary["name"], run.summary["method"])]
        if not found:
            raise KeyError(f"{method!r} was not compared; there are {', '.join(row.name for row in self.rows)}")
        return found

    def __repr__(self) -> str:
        table = markdown(COMPARISON_HEADER, comparison_cells(self.rows))
        return f"{table}{self.verdict}".rstrip()

    def _repr_html_(self) -> str:
        """Return the table with the verdict above it, for notebooks."""
        return comparison_html(self.rows, verdict=self.verdict)

    def _runs(self) -> list[RunRecords]:
        return comparable_runs([result.records() for result in self.results])[0]


def _metric_columns(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics beyond accuracy as columns, None where there are too few samples."""
    found = summary.get("metrics", {})
    return {
        f"{test_set}_{name}": found[test_set][name]["value"]
        for test_set in ("global", "local", "pooled")
        for name in METRIC_TITLES
        if test_set in found
    }


def compare_results(results: Sequence[Result], *, directory: Path | None = None) -> Comparison:
    """Put finished runs side by side; refuse those that cannot be compared."""
    runs = [result.records() for result in results]
    kept, left_out = comparable_runs(runs)
    seeds = {run.summary["seed"] for run in left_out}
    chosen = [result for result in results if result.summary["seed"] not in seeds]
    return Comparison(tuple(chosen), tuple(compare_summaries([run.summary for run in kept])), directory)
