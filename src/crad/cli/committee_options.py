"""The flags that make a committee of a run, for `crad predict` and `crad export`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from crad.prediction.committee import Committee
    from crad.prediction.committee_choice import MemberChoice
    from crad.prediction.trained_model import TrainedModel
    from crad.results.result import Result

PANEL = "Committee"


class TeacherPriorName(StrEnum):
    """What becomes of a member's own class shares."""

    keep = "keep"
    remove = "remove"


class EvidenceName(StrEnum):
    """What members are weighed by."""

    reported = "reported"
    own = "own"
    pooled = "pooled"


IsCommittee = Annotated[
    bool, typer.Option("--committee", metavar="", help="All clients' models together.", rich_help_panel=PANEL)
]
Served = Annotated[
    int | None,
    typer.Option(
        "--client", metavar="I", help="Whom it serves: whose class shares the local face has.", rich_help_panel=PANEL
    ),
]
RuleName = Annotated[
    str | None,
    typer.Option(
        "--rule",
        metavar="NAME",
        help="How members are combined (the run's committee_rule).",
        rich_help_panel=PANEL,
    ),
]
TeacherPriorFlag = Annotated[
    TeacherPriorName | None,
    typer.Option(
        "--teacher-prior",
        help="Every member's own class shares: keep them in what it says, or remove them (as the run did).",
        rich_help_panel=PANEL,
    ),
]
EvidenceFlag = Annotated[
    EvidenceName | None,
    typer.Option(
        "--evidence",
        help="What members are judged by: what they publish, what the client counted, or both (as the run did).",
        rich_help_panel=PANEL,
    ),
]
Members = Annotated[
    str | None,
    typer.Option("--members", metavar="I,...", help="Whose models; default: everybody's.", rich_help_panel=PANEL),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--committee-size",
        metavar="COUNT",
        help="At most so many members: those that help on the client's own validation samples.",
        rich_help_panel=PANEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        help="At which members are softened to be combined (as the run did); the answer is at 1.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class CommitteeOptions:
    """What was said of a committee; None: nothing."""

    client: int | None = None
    rule: str | None = None
    teacher_prior: TeacherPriorName | None = None
    members: str | None = None
    committee_size: int | None = None
    evidence: EvidenceName | None = None
    temperature: float | None = None

    def refuse_without_committee(self, *allowed: str) -> None:
        """Refuse flags that mean nothing where no committee is asked for."""
        from crad.errors import ConfigError

        said = [one.name for one in fields(self) if getattr(self, one.name) is not None and one.name not in allowed]
        if said:
            flag = f"--{said[0].replace('_', '-')}"
            raise ConfigError(f"{flag} is for a committee: add --committee and name a run directory, or leave it out")


def make_asked_committee(result: Result, options: CommitteeOptions) -> Committee:
    """Make the committee of a finished run that was asked for."""
    from crad.errors import ConfigError

    if options.committee_size is not None and options.client is None:
        raise ConfigError("--committee-size chooses on one client's own samples: say whose with --client, such as 0")
    return result.committee(
        options.client,
        rule=options.rule,
        teacher_prior=None if options.teacher_prior is None else options.teacher_prior.value,
        evidence=None if options.evidence is None else options.evidence.value,
        members=None if options.members is None else _numbers(options.members),
        size=options.committee_size,
        temperature=options.temperature,
    )


def _numbers(text: str) -> list[int]:
    from crad.errors import ConfigError

    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ConfigError(f"--members {text}: expected clients' numbers with commas between, such as 0,2,5") from None


def committee_about(model: TrainedModel) -> dict[str, Any]:
    """Return what there is to know of a committee, as plain values under one name; nothing of a single model."""
    from crad.prediction.committee import Committee

    if not isinstance(model, Committee):
        return {}
    about = {
        "members": list(model.members),
        "left_out": {str(client): reason for client, reason in model.left_out.items()},
        "client": model.client,
        **model.about.settings,
        **({"note": model.about.note} if model.about.note else {}),
        "unsupported_classes": list(model.unsupported_classes),
        **({} if model.choice is None else {"choice": asdict(model.choice)}),
    }
    return {"committee": about}


def committee_lines(model: TrainedModel) -> list[str]:
    """Return who answers and how, in words; nothing of a single model."""
    from crad.errors import escaped
    from crad.prediction.committee import Committee

    if not isinstance(model, Committee):
        return []
    who = ", ".join(map(str, model.members))
    prior = "; each one's own class shares are taken out" if model.teacher_prior == "remove" else ""
    lines = [f"A committee of {len(model.members)} (clients {who}) by rule {model.rule}{prior}."]
    lines.append(_evidence_line(model))
    lines += [] if model.choice is None else _choice_lines(model.choice)
    lines += [f"Left out: {reason}." for reason in model.left_out.values()]
    if model.unsupported_classes:
        unsupported = ", ".join(map(escaped, model.unsupported_classes))
        lines.append(f"No member holds enough samples of these classes: {unsupported}.")
    return lines


def _evidence_line(model: Committee) -> str:
    if model.evidence == "reported":
        note = f": {model.about.note}" if model.about.note else ""
        return f"Members are judged by what they publish of themselves{note}."
    also = " and by what they publish" if model.evidence == "pooled" else ""
    return f"Members are judged by what client {model.client} counted on its own validation samples{also}."


def _choice_lines(choice: MemberChoice) -> list[str]:
    first, *added = choice.steps
    lines = [
        f"Chosen on {choice.images} validation samples, {choice.face} face:",
        f"  client {first.client} alone: {first.accuracy:.1f} %; {first.cost}",
        *(f"  and client {step.client}: {step.accuracy:.1f} %, {step.gain}; {step.cost}" for step in added),
        f"  everybody: {choice.everybody.accuracy:.1f} %; {choice.everybody.cost}",
    ]
    if added:
        lines.append(f"Chosen on one half of these images and measured on the other: {choice.checked_gain}.")
    return lines
