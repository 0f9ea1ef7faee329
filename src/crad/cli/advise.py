"""`crad advise`: which method to take, from what was measured, and how sure that is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crad.cli.options import AsJson, Label
from crad.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from crad.paper.advice import Advice

Clients = Annotated[int | None, typer.Option("--clients", metavar="COUNT", help="Members of the federation (10).")]
Classes = Annotated[int | None, typer.Option("--classes", metavar="COUNT", help="Classes of the data.")]
Samples = Annotated[int | None, typer.Option("--samples", metavar="COUNT", help="Samples of a member, on average.")]
Skew = Annotated[
    str,
    typer.Option(
        "--skew",
        metavar="ALPHA|WORD",
        help="How differently labels are divided: iid, mild (1), medium (0.3), strong (0.1)",
    ),
]
TrustIn = Annotated[
    str,
    typer.Option("--trust", metavar="all|some|none", help="Whether members are honest: all, all but some, unknown."),
]
Bandwidth = Annotated[
    str | None,
    typer.Option("--bandwidth", metavar="MB[/round]", help="What a member may send: in all, or a round as 20/round."),
]
KindOf = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="images, table, text or recordings (images).")
]
Private = Annotated[
    float | None, typer.Option("--private", metavar="EPSILON", help="Differentially private training is wanted.")
]
OneModel = Annotated[bool, typer.Option("--one-model", help="Only one model may be kept and asked for a prediction.")]
For = Annotated[
    str, typer.Option("--for", metavar="all|own", help="On whose samples it shall be good: everybody's, or the own.")
]
Data = Annotated[str | None, typer.Option("--data", metavar="NAME|FILE", help="Count kind, classes and samples there.")]
ModelMb = Annotated[
    float | None, typer.Option("--model-mb", metavar="MB", help="Size of a model (as large as those measured).")
]


def advise_command(
    clients: Clients = None,
    classes: Classes = None,
    samples: Samples = None,
    skew: Skew = "medium",
    trust: TrustIn = "all",
    bandwidth: Bandwidth = None,
    kind: KindOf = None,
    private: Private = None,
    one_model: OneModel = False,
    aim: For = "all",
    data: Data = None,
    label: Label = None,
    model_mb: ModelMb = None,
    as_json: AsJson = False,
) -> None:
    """Say which method to take, by which measurements, and how sure that is; run nothing.

    Nothing is recommended more firmly than evidence/ shows it: docs/choosing.md has the rules and the figures.

    Example: crad advise --kind images --clients 10 --samples 400 --skew 0.3 --one-model
    """
    from crad.paper.advice import KIND_NAMES, Situation, advise

    kinds = tuple(KIND_NAMES.values())
    kind = OTHERWISE.get(kind, kind) if kind is not None else None
    for name, value, known in (("kind", kind or "images", kinds), ("trust", trust, TRUST), ("aim", aim, AIMS)):
        if value not in known:
            raise unknown_name(name, value, known)
    numbers = {"clients": clients, "classes": classes, "samples": samples, "private": private, "model-mb": model_mb}
    for name, number in numbers.items():
        if number is not None and not 0 < number < math.inf:
            raise ConfigError(f"--{name} {number:g}: must be a finite number above zero")
    if label is not None and data is None:
        raise ConfigError(f"--label {label}: is of a table or of texts that --data names; leave it out, or name them")
    counted = _counted(data, label) if data is not None else {}
    for name, said in (("kind", kind), ("classes", classes)):
        if counted and said is not None and said != counted[name]:
            raise ConfigError(f"--{name} {said}: {data} has {counted[name]}; leave out --{name}, or --data")
    asked = Situation(
        kind=kind or counted.get("kind", "images"),  # type: ignore[arg-type]  # checked above
        clients=clients or 10,
        classes=classes or counted.get("classes"),
        samples=samples,
        alpha=_alpha(skew),
        trust=trust,  # type: ignore[arg-type]  # checked above
        epsilon=private,
        is_one_model=one_model,
        aim=aim,  # type: ignore[arg-type]  # checked above
        dataset=data,
        label=label,
        model_mb=model_mb,
    )
    if asked.samples is None and "samples" in counted:
        asked = replace(asked, samples=max(1, counted["samples"] // asked.clients))
    total_mb, round_mb = _limits(bandwidth)
    asked = replace(asked, total_mb=total_mb, round_mb=round_mb)
    advice = advise(asked)
    if as_json:
        typer.echo(json.dumps({"asked": asdict(asked), **_as_json(advice)}, indent=1))
    else:
        _show(advice)


TRUST = ("all", "some", "none")
AIMS = ("all", "own")
PER_ROUND = "/round"
OTHERWISE = {"image": "images", "tables": "table", "texts": "text", "recording": "recordings", "audio": "recordings"}


def _alpha(skew: str) -> float | None:
    """Return the alpha that a word or a number stands for, None without skew."""
    from crad.paper.advice import SKEWS

    if skew in SKEWS:
        return SKEWS[skew]
    alpha = _number(skew)
    if alpha is None or alpha <= 0:
        raise ConfigError(f"--skew {skew!r}: say {', '.join(SKEWS)}, or an alpha above zero")
    return alpha


def _limits(bandwidth: str | None) -> tuple[float | None, float | None]:
    """Return what may be sent in all, and in any one round."""
    if bandwidth is None:
        return None, None
    amount = _number(bandwidth.removesuffix(PER_ROUND))
    if amount is None or amount < 0:
        raise ConfigError(f"--bandwidth {bandwidth!r}: say megabytes, such as 500 in all or 20{PER_ROUND}")
    return (None, amount) if bandwidth.endswith(PER_ROUND) else (amount, None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _counted(data: str, label: str | None) -> dict[str, Any]:
    """Return kind, classes and samples of a data set; read as a run would."""
    from crad.config import Experiment
    from crad.data.catalog import load_dataset
    from crad.data.readers.table_file import options_of
    from crad.paper.advice import KIND_NAMES

    settings = Experiment(dataset=data, label=label)
    dataset = load_dataset(data, table=options_of(settings), seed=settings.seed)
    if (kind := dataset.kind_of_data.name) not in KIND_NAMES:
        raise ConfigError(
            f"{data}: nothing was measured of data of kind {kind!r}: say the nearest with --kind and no --data"
        )
    return {"kind": KIND_NAMES[kind], "classes": dataset.num_classes, "samples": len(dataset.train_labels)}


def _as_json(advice: Advice) -> dict[str, object]:
    from crad.paper.advice import findings, world_file

    evidence = [
        {**asdict(one), "file": world_file(findings().worlds[one.world]), "sentence": one.sentence}
        for one in advice.evidence
    ]
    return {**asdict(advice), "evidence": evidence}


def _show(advice: Advice) -> None:
    from crad.paper.advice import megabytes

    typer.echo(f"{advice.method}: {advice.sure}")
    for line in advice.why:
        typer.echo(f"  {line}")
    for title, lines in (("But", advice.cautions), ("Measured", [one.sentence for one in advice.evidence])):
        for line in lines:
            typer.echo(f"  {title}: {line}")
    if advice.sent_mb:
        typer.echo(f"  A member sends about {megabytes(advice.sent_mb)} in all.")
    typer.echo(f"Try it:  {advice.command}")
    if advice.check:
        typer.echo(f"Does it help here?  {advice.check}")
