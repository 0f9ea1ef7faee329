"""What a smaller committee knows: `python -m benchmarks.studies.committee_size FOLDER [DATA [SEED,... [PRESET]]]`.

Models trained alone and exchanged once, preset mini unless said: the runs of `crad reproduce committee_rules`, taken
from its folder (runs/reproduce-PRESET) where they are finished, trained there where not. For every client committees of
one, two, ... members, chosen on its own validation half as `--committee-size` does it: accuracy on the common test
images without a prior, accuracy on the client's own test half with its prior, and milliseconds an image on one core.
What is measured is appended to FOLDER/committee_size.jsonl, and nothing in it is measured twice; a chart of it is drawn
beside it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import crad
from benchmarks.studies.measured import add_line, read_lines
from crad.config import Experiment
from crad.federation.context import build_run_context
from crad.paper.plan import stored_run
from crad.prediction.committee_choice import TIMED_IMAGES

SIZES = (1, 2, 3, 5, 7, 10)
SEEDS = (1, 2, 3)
MEASURED = "committee_size.jsonl"
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "pathmnist": "PathMNIST"}


def main(words: Sequence[str]) -> None:
    """Measure what is missing, then print a table and draw a chart of all that is there."""
    folder, dataset = Path(words[0]), words[1] if len(words) > 1 else "cifar10"
    seeds = [int(one) for one in words[2].split(",")] if len(words) > 2 else SEEDS
    preset = words[3] if len(words) > 3 else "mini"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MEASURED
    for seed in seeds:
        key = {"preset": preset, "dataset": dataset, "seed": seed}
        if not any(key.items() <= one.items() for one in read_lines(path)):
            for line in measure(trained(Path("runs") / f"reproduce-{preset}", **key)):
                add_line(path, {**key, **line})
    show(read_lines(path))
    draw(read_lines(path), folder / "committee-size.svg")


def trained(folder: Path, **settings: Any) -> crad.Result:  # noqa: ANN401  # settings of an experiment
    """Return a run of the committee, which `crad reproduce committee_rules` has in the same place, finished."""
    stored = stored_run(folder, Experiment(method="committee", committee_study=True, workers=1, **settings))
    return crad.run(stored.experiment, output=stored.path, resume=stored.state != "new")


def measure(result: crad.Result) -> list[dict[str, Any]]:
    """Ask committees of every size, chosen by each client of a finished run."""
    data = build_run_context(result.experiment).data
    samples, clients = data.dataset, result.experiment.clients
    found: dict[int, list[tuple[float, float, float]]] = {}
    for client in range(clients):
        whole = result.committee(client)
        places = {member: place for place, member in enumerate(whole.members)}
        shard = data.shards[client]
        everywhere = whole.torch_predictor.answers_of(samples.test_samples, "global")
        costs = whole.torch_predictor.costs(samples.test_samples[:TIMED_IMAGES])
        at_home = whole.torch_predictor.answers_of(samples.train_samples[shard.test], "local")
        known = samples.train_samples[shard.validation], samples.train_labels[shard.validation]
        for size in (size for size in SIZES if size <= clients):
            chosen = whole.chosen(size, *known) if size < clients else whole
            members = sorted(places[member] for member in chosen.members)
            cost = sum(costs[member].milliseconds for member in members)
            found.setdefault(size, []).append(
                (
                    accuracy(everywhere(members), samples.test_labels),
                    accuracy(at_home(members), samples.train_labels[shard.test]),
                    cost / TIMED_IMAGES,
                )
            )
    return [
        {
            "size": size,
            "global_accuracy": round(statistics.fmean(one[0] for one in asking), 2),
            "local_accuracy": round(statistics.fmean(one[1] for one in asking), 2),
            "milliseconds": round(statistics.fmean(one[2] for one in asking), 3),
        }
        for size, asking in found.items()
    ]


def accuracy(said_BC: torch.Tensor, labels: Any) -> float:  # noqa: ANN401  # numpy or torch
    """Return percent right."""
    return 100 * float((said_BC.argmax(dim=1) == torch.as_tensor(labels)).float().mean())


def show(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print a Markdown table: means over the seeds."""
    print(*table(lines), sep="\n")


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the means over the seeds as Markdown."""
    made = ["| data | members at most | global % | local % | ms an image | seeds |", "|---|---:|---:|---:|---:|---:|"]
    for one in means(lines):
        cells = f"{one['global_accuracy']:.1f} | {one['local_accuracy']:.1f} | {one['milliseconds']:.2f}"
        made.append(f"| {one['data']} | {one['size']} | {cells} | {one['seeds']} |")
    return made


def means(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every preset's, data set's and size's means over the seeds."""
    keys = sorted({(one["preset"], one["dataset"], one["size"]) for one in lines})
    rows = []
    for key in keys:
        same = [one for one in lines if (one["preset"], one["dataset"], one["size"]) == key]
        preset, dataset, size = key
        figures = ("global_accuracy", "local_accuracy", "milliseconds")
        mean = {name: statistics.fmean(one[name] for one in same) for name in figures}
        label = f"{NAMES.get(dataset, dataset)}, {preset}"
        rows.append({"data": label, "size": size, "seeds": len(same), **mean})
    return rows


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw accuracy over milliseconds, a panel for each face and a line for each data set."""
    import altair as alt  # late: who only reads the lines draws nothing

    faces = {"global_accuracy": "on images from anywhere", "local_accuracy": "on images like the client's own"}
    rows = [{**one, "accuracy": one[name], "face": label} for one in means(lines) for name, label in faces.items()]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("milliseconds:Q", title="milliseconds an image, one core"),
        y=alt.Y("accuracy:Q", title="accuracy (%)", scale=alt.Scale(zero=False)),
        color=alt.Color("data:N", title=None),
    )
    points = base.mark_point(filled=True, size=60).encode(shape=alt.Shape("data:N", legend=None))
    sizes = base.mark_text(dy=-11, fontSize=11).encode(text=alt.Text("size:Q"))
    panel = (base.mark_line() + points + sizes).properties(width=280, height=230)
    panel.facet(column=alt.Column("face:N", title=None)).save(str(path))


if __name__ == "__main__":
    main(sys.argv[1:])
