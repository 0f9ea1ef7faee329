"""`summary.json`: the outcome of a run at its selected round, from the records alone."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from crad.config import Experiment
from crad.federation.attacks import draw_attackers
from crad.randomness import TF32
from crad.runs.metrics_record import summary_metrics
from crad.runs.names import display_name
from crad.runs.records import CLIPPED_STEPS, Record
from crad.runs.selection import clients_at, honest_clients_at, honest_selected_round, selected_round
from crad.runs.source_commit import source_commit
from crad.training.clipping import ClippedSteps, added

SCHEMA = 1


def summarise(
    experiment: Experiment,
    *,
    rounds: Sequence[Record],
    partition: Mapping[str, Any],
    device: str,
    workers: int = 1,
    gpus: Sequence[str] = (),
    about: Mapping[str, Any],
    metrics: Mapping[str, Any] | None = None,
) -> Record:
    """Return the summary of a complete run; accuracies in percent, means over all clients.

    `gpus`: their names, one for each that was used; `about`: of the method; `metrics`: `metrics.json`, which is made
    when all rounds are there.
    """
    selected = selected_round(rounds)
    assert selected is not None, "the last round is always tested"
    clients = clients_at(rounds, selected["round"])
    return {
        "schema": SCHEMA,
        "method": experiment.method,
        "name": display_name(experiment),
        **about,
        "dataset": experiment.dataset,
        "preset": experiment.preset,
        "seed": experiment.seed,
        "clients": experiment.clients,
        "active": experiment.active or experiment.clients,
        "partition": experiment.partition,
        "alpha": experiment.alpha,
        "rounds": experiment.rounds,
        "best_round": selected["round"],
        "global_accuracy": selected["global_accuracy"],
        "global_accuracy_spread": _spread(clients, "global_accuracy"),
        "local_accuracy": selected["local_accuracy"],
        "local_accuracy_spread": _spread(clients, "local_accuracy"),
        "validation_accuracy": selected["validation_accuracy"],
        **({"others_accuracy": selected["others_accuracy"]} if "others_accuracy" in selected else {}),
        "last_global_accuracy": rounds[-1]["global_accuracy"],
        **_privacy(experiment, rounds),
        "last_local_accuracy": rounds[-1]["local_accuracy"],
        "global_accuracy_per_client": [client["global_accuracy"] for client in clients],
        "local_accuracy_per_client": [client["local_accuracy"] for client in clients],
        "architecture_per_client": [client["architecture"] for client in clients],
        "per_class": class_figures(clients, partition),
        "payload_bytes_per_client_round": _per_client(rounds, "payload_bytes"),
        "published_bytes_per_client_round": _per_client(rounds, "published_bytes"),
        **_helper_bytes(rounds),
        **_clipped_share(rounds),
        **_variants(selected, clients),
        **_committee(selected),
        **_under_attack(experiment, rounds),
        **summary_metrics(metrics, clients=experiment.clients),
        "round_seconds": statistics.median(record["timing"]["seconds"] for record in rounds),
        "total_seconds": sum(record["timing"]["seconds"] for record in rounds),
        "peak_memory_bytes": max(record["timing"]["peak_memory_bytes"] for record in rounds),
        **_host_memory(rounds),
        "train_images": partition["train_images"],
        "test_images": partition["global_test_size"],
        "proxy_size": partition["proxy_size"],
        "data_sha256": partition["data_sha256"],
        "hardware": {**hardware(device, gpus), "workers": workers},
        "versions": {**versions(), **_commit(), **(gpu_libraries() if device == "cuda" else {})},
    }


def hardware(device: str, gpus: Sequence[str] = ()) -> Record:
    """Return what the run was computed on; with CUDA also which GPUs, and where fp32 stands for TF32."""
    return {
        "device": device,
        **({"gpus": list(gpus), "tf32": TF32} if device == "cuda" else {}),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    packages = ("crad", "torch", "numpy", "safetensors", "pydantic")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


def _commit() -> Record:
    """Return the commit where the package runs from a source tree."""
    commit = source_commit()
    return {} if commit is None else {"commit": commit}


def gpu_libraries() -> dict[str, str]:
    """Return the versions of what computes on a GPU, as far as this process's torch knows."""
    return {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}  # type: ignore[no-untyped-call]


def _host_memory(rounds: Sequence[Record]) -> Record:
    """Return the highest memory beside GPUs, where they were used."""
    peaks = [one["timing"]["peak_host_bytes"] for one in rounds if "peak_host_bytes" in one["timing"]]
    return {"peak_host_bytes": max(peaks)} if peaks else {}


def _spread(clients: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.pstdev([client[key] for client in clients]))


def _per_client(rounds: Sequence[Record], key: str) -> float:
    # Mean over the clients that took part: what is counted for one of them in a round.
    return statistics.fmean(record.get(key, 0) / max(1, len(record["active"])) for record in rounds)


def _helper_bytes(rounds: Sequence[Record]) -> Record:
    """Return what members without data sent and received in a round, where there are any."""
    if "helpers" not in rounds[0]:
        return {}
    totals = [sum(one["sent_bytes"] + one["received_bytes"] for one in record["helpers"]) for record in rounds]
    return {"helper_bytes_per_round": statistics.fmean(totals)}


def _clipped_share(rounds: Sequence[Record]) -> Record:
    """Return the share of all clients' steps whose gradient was clipped, also by what steps are for; where counted."""
    found: dict[str, ClippedSteps] = {}
    for client in (client for record in rounds for client in record["clients"]):
        found = added(found, {name: ClippedSteps(**one) for name, one in client.get(CLIPPED_STEPS, {}).items()})
    shares = {name: one.clipped / one.steps for name, one in found.items() if one.steps}
    if not shares:
        return {}
    clipped, steps = (sum(getattr(one, part) for one in found.values()) for part in ("clipped", "steps"))
    return {"clipped_share": clipped / steps, "clipped_share_by_step": shares}


def _variants(selected: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> Record:
    """Return the other weights that clients keep, at the round that the model itself selected."""
    found = {}
    for name, means in selected.get("variants", {}).items():
        own = [client.get("variants", {}).get(name, client) for client in clients]
        spreads = {f"{key}_spread": _spread(own, key) for key in ("global_accuracy", "local_accuracy")}
        found[name] = {**means, **spreads}
    return {"variants": found} if found else {}


def _committee(selected: Mapping[str, Any]) -> Record:
    """Return how all do together at the selected round, where that was measured."""
    if "committee" not in selected:
        return {}
    about = ("rule", "teacher_prior", "evidence", "answer_temperature", "temperature", "members")  # one said by either
    figures = (*about, "global_accuracy", "local_accuracy")
    per_client = ("global_accuracy_per_client", "local_accuracy_per_client")
    found = selected["committee"]
    return {"committee": {name: found[name] for name in (*figures, *per_client, "study") if name in found}}


def _under_attack(experiment: Experiment, rounds: Sequence[Record]) -> Record:
    """Return who attacked, and the means over the honest clients at their selected round; empty without an attack."""
    if experiment.attack is None:
        return {}
    attackers = sorted(draw_attackers(experiment))
    selected = honest_selected_round(rounds, attackers)
    honest = honest_clients_at(rounds, selected, attackers)
    success = [client["attack_success"] for client in honest if "attack_success" in client]
    return {
        "attack": experiment.attack,
        "attackers": attackers,
        "honest": {
            "best_round": selected,
            "global_accuracy": statistics.fmean(client["global_accuracy"] for client in honest),
            "local_accuracy": statistics.fmean(client["local_accuracy"] for client in honest),
            **({"attack_success": statistics.fmean(success)} if success else {}),
        },
    }


def class_figures(clients: Sequence[Mapping[str, Any]], partition: Mapping[str, Any]) -> list[Record]:
    """Return global accuracy by class, over these clients, with the private samples of all and the test samples."""
    held = [sum(column) for column in zip(*partition["counts"], strict=True)]
    rows = []
    for label, name in enumerate(partition["class_names"]):
        hits = [client["global"]["hits"][label] for client in clients]
        count = clients[0]["global"]["counts"][label]  # the same test images for everybody
        rows.append(
            {
                "class": label,
                "name": name,
                "private_samples": held[label],
                "test_samples": count,
                "global_accuracy": 100.0 * statistics.fmean(hits) / count if count else None,
            }
        )
    return rows


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _privacy(experiment: Experiment, rounds: Sequence[Record]) -> Record:
    """Return what clients have spent over all rounds of private training, and by which mechanism."""
    if experiment.private_training is None:
        return {}
    spent = {client["client"]: client["privacy"] for one in rounds for client in one["clients"] if "privacy" in client}
    return {
        "privacy": {
            "unit": "one record of a client, added or removed",
            "target_epsilon": experiment.private_training,
            "delta": experiment.delta,
            "noise_multiplier": experiment.noise_multiplier,
            "max_grad_norm": experiment.max_grad_norm,
            "sampling_rate": experiment.sampling_rate,
            "accountant": experiment.accountant,
            "noise": "seeded by the run, repeatable: a simulation protects nobody",
            "epsilon_per_client": [spent[client]["epsilon"] for client in sorted(spent)],
        }
    }
