"""What travels with a committee: its members, what is known of them, and how they are combined."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from pydantic import ValidationError

from crad.aggregation import Rule, TeacherStats
from crad.aggregation.committee_rule import CommitteeRule, make_committee_rule, temperature_refusal
from crad.config import EvidenceSource, TeacherPrior, Unsupported
from crad.errors import RunError, first_fault, printable
from crad.federation.class_statistics import stack_statistics
from crad.federation.message import Statistics
from crad.prediction.model_card import SPOILT, ModelCard

FORMAT = "crad-committee 1"
FACES_OF_COMMITTEE = (
    "global: for images from anywhere; local: with log_prior added to the logarithm of the global probabilities, for "
    "images in which classes are as frequent as among the client's own"
)


VERIFIED = ("counts", "accuracies", "support", "false_alarms", "others", "effective")  # always there
OPTIONAL = ("cross_entropies",)

Columns = Mapping[str, tuple[float, ...]]  # per class, by name


@dataclass(frozen=True)
class CommitteeMember:
    """One of a committee: whose model it is, what it takes to run it, and what is known of it per class."""

    client: int
    card: ModelCard
    statistics: Statistics  # what its owner says of it
    verified: Columns | None = None  # what the client whom the committee serves knows of it by its own counts


@dataclass(frozen=True)
class CommitteeCard:
    """What travels with a committee: preprocessing and class names of all, the members, and how they are combined."""

    model: ModelCard  # its log_prior is that of the client whom it serves, None: nobody's
    members: tuple[CommitteeMember, ...]
    client: int | None  # whom it serves
    settings: Mapping[str, Any]  # of its rule, by name
    note: str = ""  # why members are weighed by what they publish, where that was not asked for

    def committee_rule(self, rule: Rule | None = None) -> CommitteeRule:
        """Return how the members are combined; `rule` in place of the one that is named."""
        settings = dict(self.settings)
        named = settings.pop("rule")
        published = stack_statistics([member.statistics for member in self.members])
        columns = [member.verified for member in self.members if member.verified is not None]
        stats = stats_of(columns) if columns else published
        return make_committee_rule(named if rule is None else rule, stats, published_KC=published.counts_KC, **settings)

    def select(self, clients: Sequence[int]) -> CommitteeCard:
        """Return the card of a committee of some of the members."""
        wanted = set(clients)
        return replace(self, members=tuple(member for member in self.members if member.client in wanted))

    def to_metadata(self) -> dict[str, str]:
        """Return all of it as texts, for the metadata of a file; values other than texts are JSON."""
        members = [
            {
                "client": member.client,
                "architecture": member.card.architecture,
                "statistics": member.statistics.model_dump(mode="json"),
                **({} if member.verified is None else {"verified": member.verified}),
            }
            for member in self.members
        ]
        note = {"note": self.note} if self.note else {}
        committee = {"client": self.client, "settings": dict(self.settings), **note, "members": members}
        about = {**self.model.to_metadata(), "format": FORMAT, "committee": json.dumps(committee)}
        return {**about, "faces": FACES_OF_COMMITTEE}

    @classmethod
    def from_metadata(cls, about: Mapping[str, str], *, where: str) -> CommitteeCard:
        """Read what `to_metadata` wrote; `where` opens the refusal of anything else."""
        model = ModelCard.from_metadata(about, where=where)
        try:
            said = json.loads(about["committee"])
            if len(said["members"]) > MOST_MEMBERS:
                raise ValueError(f"its members: {len(said['members'])}, at most {MOST_MEMBERS} can be")
            members = tuple(_member_from(entry, model) for entry in said["members"])
            settings = _settings_from(said["settings"])
            if any((member.verified is None) != (settings["evidence"] == "reported") for member in members):
                raise ValueError("what is known of its members")
            client = None if said["client"] is None else _client_from(said["client"])
            note = said.get("note", "")
            if not isinstance(note, str) or not note.isprintable():
                raise ValueError("its note")
            if not members or len({member.client for member in members}) < len(members):
                raise ValueError("its members")
        except SPOILT as error:
            said_of = first_fault(error) if isinstance(error, ValidationError) else " ".join(str(error).split())
            fault = "too deeply nested JSON" if isinstance(error, RecursionError) else printable(said_of)
            raise RunError(f"{where} is no committee that crad exported: it lacks or spoils {fault}") from error
        return cls(model, members, client, settings, note)


MOST_MEMBERS = 4096  # of a committee in a file
SETTINGS = ("rule", "teacher_prior", "temperature", "min_support", "epsilon", "unsupported")


NUMBERS = {"min_support": (0.0, 1e15), "epsilon": (1e-30, 1e15)}  # of a committee in a file
HIGHEST_KNOWN = 1e15  # samples and the like that are known of a member: their sums stay numbers


def _settings_from(said: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: said[name] for name in SETTINGS}
    settings["evidence"] = said.get("evidence", "reported")  # files of before do not say it
    if not isinstance(settings["rule"], str) or not settings["rule"].isprintable():
        raise ValueError("its rule")
    choices = {"teacher_prior": TeacherPrior, "unsupported": Unsupported, "evidence": EvidenceSource}
    for name, kind in choices.items():
        if not isinstance(settings[name], str) or settings[name] not in get_args(kind):
            raise ValueError(f"its {name}")
    refusal = temperature_refusal(settings["temperature"])
    if refusal is not None:
        raise ValueError(refusal)
    for name, (lowest, highest) in NUMBERS.items():
        value = settings[name]
        if not isinstance(value, int | float) or not lowest <= value <= highest:
            raise ValueError(f"its {name}, a number of {lowest:g} to {highest:g}")
    return settings


def _client_from(said: object) -> int:
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said < 2**31:
        raise ValueError("the number of a client")
    return said


def is_committee(about: Mapping[str, str]) -> bool:
    """Return whether a file's metadata is that of a committee."""
    return about.get("format", "").startswith(FORMAT.split()[0] + " ")


def _member_from(entry: Mapping[str, Any], model: ModelCard) -> CommitteeMember:
    statistics = Statistics(**entry["statistics"])
    columns = (statistics.counts, statistics.accuracies, statistics.cross_entropies)
    if any(len(column) != model.num_classes for column in columns if column is not None):
        raise ValueError(f"the statistics of member {entry['client']}")
    verified = _columns_from(entry["verified"], model) if "verified" in entry else None
    return CommitteeMember(
        _client_from(entry["client"]), model.of(str(entry["architecture"]), None), statistics, verified
    )


def _columns_from(entry: Mapping[str, Any], model: ModelCard) -> Columns:
    names = [*VERIFIED, *(name for name in OPTIONAL if name in entry)]
    columns = {name: tuple(float(value) for value in entry[name]) for name in names}
    for column in columns.values():
        if len(column) != model.num_classes or not all(0 <= value <= HIGHEST_KNOWN for value in column):
            raise ValueError("what is known of its members")
    return columns


def columns_of(stats: TeacherStats) -> list[Columns]:
    """Return what is known of each member, as plain numbers."""
    known = {name: getattr(stats, f"{name}_KC") for name in (*VERIFIED, *OPTIONAL)}
    rows = {name: values.tolist() for name, values in known.items() if values is not None}
    return [{name: tuple(values[k]) for name, values in rows.items()} for k in range(len(stats.counts_KC))]


def stats_of(members: Sequence[Columns]) -> TeacherStats:
    """Return what `columns_of` was given, to the bit."""
    names = set.intersection(*({*one} for one in members))
    stacked = {
        f"{name}_KC": torch.tensor([one[name] for one in members], dtype=torch.float64)
        for name in (*VERIFIED, *OPTIONAL)
        if name in names
    }
    return TeacherStats(**stacked)
