"""What the client whom a committee serves knows of its members, from what the run wrote down, without the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pydantic import ValidationError

from crad.aggregation.member_tally import MemberTally, evidence_of
from crad.config import EvidenceSource, TeacherPrior
from crad.errors import ConfigError, RunError, unknown_name
from crad.federation.class_statistics import stack_statistics
from crad.federation.message import Statistics
from crad.prediction.committee_card import Columns, columns_of
from crad.prediction.run_models import RunModels
from crad.runs.records import Record


@dataclass(frozen=True)
class KnownMembers:
    """What members are judged by, what is known of each, and why not by more than they publish."""

    source: EvidenceSource
    columns: Mapping[int, Columns] = field(default_factory=dict)  # by client; empty: what they publish
    note: str = ""


def known_members(
    models: RunModels, client: int | None, *, asked: EvidenceSource | None, teacher_prior: TeacherPrior
) -> KnownMembers:
    """Return what a client knows of everybody's model by its own counts; refuse what was asked for and is not there."""
    if asked is not None and asked not in get_args(EvidenceSource):
        raise unknown_name("value of 'evidence'", asked, get_args(EvidenceSource))
    source = asked or models.experiment.committee_evidence
    if source == "reported":
        return KnownMembers(source)
    lacking = _what_lacks(models, client)
    if lacking is not None:
        if asked is not None:
            raise ConfigError(f"evidence = {asked!r}: {lacking}; say 'reported', or leave it out")
        return KnownMembers("reported", note=lacking)
    assert client is not None, "looked at above"
    peers = {one: peer for one in range(len(models)) if _has_learned(models, peer := models.peer_of(one))}
    said = {
        one: found
        for one, peer in peers.items()
        if (found := published_statistics(peer, classes=models.num_classes)) is not None
    }
    if not said:
        return KnownMembers("reported")
    served = models.peer_of(client)
    samples_C = served["validation_counts"][served["clients"].index(client)]
    stats = evidence_of(
        stack_statistics(list(said.values())),
        [_tally(peers[one], client, samples_C=samples_C) for one in said],
        samples_C=samples_C,
        teacher_prior=teacher_prior,
        source=source,
    )
    return KnownMembers(source, dict(zip(said, columns_of(stats), strict=True)))


def published_statistics(peer: Record, *, classes: int) -> Statistics | None:
    """Return what a peer publishes of its model, of so many classes; None where that is damaged."""
    said = peer.get("statistics")
    if said is None:
        raise RunError("this run does not say what its clients published of their models: run it again")
    try:
        # Noise can bring a count below zero: then it counts as none. What is no number stays as it is, and is refused.
        found = Statistics(**{**said, "counts": [0.0 if count < 0 else count for count in said["counts"]]})
    except (ValidationError, KeyError, TypeError, OverflowError):
        return None
    columns = (found.counts, found.accuracies, found.cross_entropies)
    return found if all(len(column) == classes for column in columns if column is not None) else None


def _what_lacks(models: RunModels, client: int | None) -> str | None:
    """Return why nothing was counted, None where it was."""
    if client is None:
        return "it serves no client in particular, so nobody has counted anything"
    learned = [peer for peer in models.record["peers"] if _has_learned(models, peer)]
    if not all("tallies" in peer for peer in learned) or "validation_counts" not in models.peer_of(client):
        return "this run did not count what members make of the clients' validation images"
    if not sum(models.peer_of(client)["validation_counts"][0]):
        return f"client {client} has no validation images to count on"
    return None


def _has_learned(models: RunModels, peer: Record) -> bool:
    return models.states[peer["index"]] is not None


def _tally(peer: Record, client: int, *, samples_C: Sequence[int]) -> MemberTally:
    try:
        found = MemberTally.from_json(peer["tallies"][client])
        for hits, alarms in ((found.hits, found.alarms), (found.corrected_hits, found.corrected_alarms)):
            is_more = any(hit > count for hit, count in zip(hits, samples_C, strict=True))
            if is_more or max(alarms) > sum(samples_C):
                raise ValueError("more than there are samples")
        return found
    except (IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise RunError(
            f"what client {client} counted of client {peer['clients'][0]} is damaged in models.json: run it again, or "
            "say evidence='reported'"
        ) from error
