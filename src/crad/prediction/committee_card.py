"""What travels with a committee: its members, what their owners say of them, and how they are combined."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from crad.aggregation import Rule
from crad.aggregation.committee_rule import CommitteeRule, make_committee_rule
from crad.errors import RunError
from crad.federation.class_statistics import stack_statistics
from crad.federation.message import Statistics
from crad.prediction.model_card import ModelCard

FORMAT = "crad-committee 1"
FACES_OF_COMMITTEE = (
    "global: for images from anywhere; local: with log_prior added to the logarithm of the global probabilities, for "
    "images in which classes are as frequent as among the client's own"
)


@dataclass(frozen=True)
class CommitteeMember:
    """One of a committee: whose model it is, what it takes to run it, and what its owner says of it per class."""

    client: int
    card: ModelCard
    statistics: Statistics


@dataclass(frozen=True)
class CommitteeCard:
    """What travels with a committee: preprocessing and class names of all, the members, and how they are combined."""

    model: ModelCard  # its log_prior is that of the client whom it serves, None: nobody's
    members: tuple[CommitteeMember, ...]
    client: int | None  # whom it serves
    settings: Mapping[str, Any]  # of its rule, by name

    def committee_rule(self, rule: Rule | None = None) -> CommitteeRule:
        """Return how the members are combined; `rule` in place of the one that is named."""
        settings = dict(self.settings)
        named = settings.pop("rule")
        stats = stack_statistics([member.statistics for member in self.members])
        return make_committee_rule(named if rule is None else rule, stats, **settings)

    def select(self, clients: Sequence[int]) -> CommitteeCard:
        """Return the card of a committee of some of the members."""
        return replace(self, members=tuple(member for member in self.members if member.client in clients))

    def to_metadata(self) -> dict[str, str]:
        """Return all of it as texts, for the metadata of a file; values other than texts are JSON."""
        members = [
            {
                "client": member.client,
                "architecture": member.card.architecture,
                "statistics": member.statistics.model_dump(mode="json"),
            }
            for member in self.members
        ]
        committee = {"client": self.client, "settings": dict(self.settings), "members": members}
        about = {**self.model.to_metadata(), "format": FORMAT, "committee": json.dumps(committee)}
        return {**about, "faces": FACES_OF_COMMITTEE}

    @classmethod
    def from_metadata(cls, about: Mapping[str, str], *, where: str) -> CommitteeCard:
        """Read what `to_metadata` wrote; `where` opens the refusal of anything else."""
        model = ModelCard.from_metadata(about, where=where)
        try:
            said = json.loads(about["committee"])
            members = tuple(_member_from(entry, model) for entry in said["members"])
            settings = {name: said["settings"][name] for name in SETTINGS}
            client = None if said["client"] is None else int(said["client"])
            if not members or len({member.client for member in members}) < len(members):
                raise ValueError("its members")
        except (KeyError, ValueError, TypeError, AttributeError, ValidationError) as error:
            reason = " ".join(str(error).split())[:200]
            raise RunError(f"{where} is no committee that crad exported: it lacks or spoils {reason}") from error
        return cls(model, members, client, settings)


SETTINGS = ("rule", "teacher_prior", "temperature", "min_support", "epsilon", "unsupported")


def is_committee(about: Mapping[str, str]) -> bool:
    """Return whether a file's metadata is that of a committee."""
    return about.get("format", "").startswith(FORMAT.split()[0] + " ")


def _member_from(entry: Mapping[str, Any], model: ModelCard) -> CommitteeMember:
    statistics = Statistics(**entry["statistics"])
    columns = (statistics.counts, statistics.accuracies, statistics.cross_entropies)
    if any(len(column) != model.num_classes for column in columns if column is not None):
        raise ValueError(f"the statistics of member {entry['client']}")
    return CommitteeMember(int(entry["client"]), model.of(str(entry["architecture"]), None), statistics)
