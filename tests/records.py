"""Records of runs made by hand, of any size: what tables, charts and pages are made from, without a run."""

from __future__ import annotations

import statistics

from crad.config import Experiment
from crad.runs.run_records import RunRecords
from crad.runs.selection import clients_at, selected_round
from crad.runs.summary import summarise

TEST_IMAGES = 10  # of every class, for everybody
SENT_BYTES = 2**20  # by every client in a round
ABOUT = {"is_reconstruction": False, "payload_counts": "sent", "common_images": "none"}


def made_run(
    method="crad",
    *,
    seed=1,
    clients=2,
    classes=2,
    rounds=2,
    eval_every=1,
    trusts=True,
    sent_bytes=SENT_BYTES,
    better=0,
    **settings,
):
    """A run whose every number follows from its place; `better`: test images more that every client gets right."""
    experiment = Experiment(
        preset="demo", method=method, seed=seed, clients=clients, rounds=rounds, eval_every=eval_every, **settings
    )
    partition = {
        "class_names": [f"class {label}" for label in range(classes)],
        "counts": [[held(client, label, classes) for label in range(classes)] for client in range(clients)],
        "train_images": 1000,
        "global_test_size": TEST_IMAGES * classes,
        "proxy_size": 0,
        "data_sha256": "0" * 64,
    }
    records = [
        _round(index, experiment, partition, trusts=trusts, sent_bytes=sent_bytes, better=better)
        for index in range(1, rounds + 1)
    ]
    summary = summarise(experiment, rounds=records, partition=partition, device="cpu", about=ABOUT)
    assert selected_round(records) is not None
    assert len(clients_at(records, rounds)) == clients
    return RunRecords(experiment, partition, records, summary)


def held(client, label, classes):
    """Private samples: everybody holds most of the class with its own number, and nothing of the one before."""
    return 7 * ((client - label - 1) % classes)


def hits(client, label, round_index, *, seed, better):
    """Test images of a class that a client gets right."""
    return min(TEST_IMAGES, (client + 2 * label + round_index + seed) % 5 + better)


def _round(index, experiment, partition, *, trusts, sent_bytes, better):
    is_tested = index % experiment.eval_every == 0 or index == experiment.rounds
    entries = [
        _client(client, index, experiment, partition, is_tested=is_tested, trusts=trusts, better=better)
        for client in range(experiment.clients)
    ]

    def mean(key):
        return statistics.fmean(entry[key] for entry in entries)

    return {
        "round": index,
        "active": list(range(experiment.clients)),
        "missing": {},
        "validation_accuracy": mean("validation_accuracy"),
        "local_accuracy": mean("local_accuracy") if is_tested else None,
        "global_accuracy": mean("global_accuracy") if is_tested else None,
        "payload_bytes": sent_bytes * experiment.clients,
        "published_bytes": sent_bytes * experiment.clients,
        "clients": entries,
        "timing": {"seconds": 1.5 + experiment.seed, "peak_memory_bytes": 2**20},
    }


def _client(client, index, experiment, partition, *, is_tested, trusts, better):
    classes = len(partition["class_names"])
    right = [hits(client, label, index, seed=experiment.seed, better=better) for label in range(classes)]
    score = {"counts": [TEST_IMAGES] * classes, "hits": right}
    teachers = [other for other in range(experiment.clients) if other != client]
    share = round(1 / max(1, len(teachers)), 4)
    return {
        "client": client,
        "architecture": "cnn6",
        "is_active": True,
        "validation_accuracy": 40.0 + index,
        "local_accuracy": 40.0 + client / 8 + index / 8 if is_tested else None,
        "global_accuracy": 100.0 * sum(right) / (TEST_IMAGES * classes) if is_tested else None,
        "validation": {"counts": [samples // 7 for samples in partition["counts"][client]], "hits": [0] * classes},
        "local": score if is_tested else None,
        "global": score if is_tested else None,
        "losses": {},
        "trust": {str(teacher): [share] * classes for teacher in teachers} if trusts else {},
        "notes": {},
        "sent_bytes": SENT_BYTES,
        "received_bytes": 0,
    }
