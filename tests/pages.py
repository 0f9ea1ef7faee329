"""Records as a run would leave them, and a page as a reader without a browser finds it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from crad.config import Experiment
from crad.runs.run_records import RunRecords

PARTITION = {
    "class_names": ["cat", "dog & <owl>"],
    "counts": [[11, 22], [33, 44]],
    "data_sha256": "0" * 64,
}
VOID = {"meta", "img", "input", "br"}


def summary(method="crad", *, seed=1024, overall=60.0, local=80.0, **changes):
    return {
        "method": method,
        "name": method,
        "dataset": "cifar10",
        "preset": "mini",
        "seed": seed,
        "clients": 2,
        "active": 2,
        "partition": "dirichlet",
        "alpha": 0.3,
        "rounds": 3,
        "best_round": 2,
        "global_accuracy": overall,
        "global_accuracy_spread": 1.25,
        "local_accuracy": local,
        "local_accuracy_spread": 1.5,
        "global_accuracy_per_client": [overall + 1.25, overall - 1.25],
        "local_accuracy_per_client": [local + 1.5, local - 1.5],
        "architecture_per_client": ["resnet18", "cnn6@0.125"],
        "per_class": [
            {"class": 0, "name": "cat", "private_samples": 44, "test_samples": 7, "global_accuracy": overall + 5},
            {"class": 1, "name": "dog & <owl>", "private_samples": 66, "test_samples": 9, "global_accuracy": None},
        ],
        "payload_bytes_per_client_round": 3 * 2**20,
        "published_bytes_per_client_round": 1.5 * 2**20,
        "round_seconds": 4.25,
        "peak_memory_bytes": 5 * 2**20,
        "total_seconds": 12.0,
        "train_images": 4000,
        "test_images": 1000,
        "hardware": {"device": "cpu", "processor": "Some <fast> CPU", "cores": 2, "workers": 1},
        "versions": {"python": "3.11", "torch": "2.13.0"},
        **changes,
    }


def run_of(outcome, *, num_rounds=3, path=None, inspection=None, partition=PARTITION, **settings):
    """The records behind a summary; its rounds are only counted."""
    keys = ("method", "dataset", "preset", "seed", "clients", "partition", "rounds")
    experiment = Experiment(**{key: outcome[key] for key in keys}, **settings)
    rounds = [{"round": i, "global_accuracy": 50.0} for i in range(1, num_rounds + 1)]
    return RunRecords(experiment, partition, rounds, outcome, inspection, path)


class Page(HTMLParser):
    """What a reader finds: visible text, tables cell by cell, tags; and whether all that was opened is closed."""

    def __init__(self, html):
        super().__init__()
        self.words: list[str] = []
        self.opened: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(html)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.opened.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag

    def handle_data(self, data):
        if self.opened and self.opened[-1] in ("script", "style"):
            return
        self.words.append(data)
        if self.opened and self.opened[-1] in ("th", "td"):
            self.tables[-1][-1][-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def table(self, first, *, column=0):
        """The rows below the header of the first table whose header has this word at a place."""
        return next(rows[1:] for rows in self.tables if rows and rows[0][column : column + 1] == [first])


def script_data(html):
    """The JSON that the page's scripts read, as text."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    return found
