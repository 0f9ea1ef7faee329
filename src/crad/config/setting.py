"""What a setting is: the values it may have, and what it is to the rest of the package.

Every field of `Experiment` (`experiment_fields.py`) carries a `Setting`: whoever needs a list of settings asks for it
with `names_of` (`setting_lists.py`). By hand stand only exceptions to such a list, beside the reason for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

# TOML has no null and a flag no empty value: this word switches a limit off.
NONE = "none"

Unsupported = Literal["consensus", "zero"]
Standardize = Literal["own", "schema"]
Device = Literal["auto", "cpu", "cuda", "mps"]
PartitionKind = Literal["dirichlet", "iid", "shards", "quantity", "natural"]
OptimizerKind = Literal["sgd", "adamw"]
LrSchedule = Literal["constant", "cosine"]
LocalLoss = Literal["plain", "balanced"]
EvidenceSource = Literal["reported", "own", "pooled"]
FilterKind = Literal["median", "support", "self-scaled", "weighted-consensus", "weighted-median", "weighted"]
DistillAugment = Literal["same", "mixup", "strong", "cutmix", "crops", "patches"]
TeacherPrior = Literal["keep", "remove"]
DistillSchedule = Literal["constant", "rising"]
Accountant = Literal["prv", "rdp"]
Norm = Literal["batch", "group"]
AttackKind = Literal[
    "noise",
    "label-flip",
    "label-flip-pairs",
    "sign-flip",
    "inflated",
    "backdoor",
    "free-rider",
    "collude",
    "honest",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
AtLeastOne = Annotated[int, Field(ge=1)]


def _printable_line(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be one printable line without spaces around it")
    return text


# What others may have written and a page or a terminal will show.
TextLine = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable_line)]


def _whole_or_auto(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and value >= 1):
        return value
    if isinstance(value, str) and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise ValueError("expected auto or a whole number of at least 1")


def _comma_separated(value: object) -> object:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ",".join(value) or None
    return value


def _pairs(value: object) -> object:
    """Return a dictionary, such as {"chol": 0} or {"age": (0, 120)}, as a flag says it."""
    if not isinstance(value, Mapping):
        return _comma_separated(value)
    for name in value:
        if not isinstance(name, str) or set(name) & set(",="):
            raise ValueError(f"column {name!r} cannot be named here: it must be a text without commas and equals signs")
    return _comma_separated([f"{name}={_either_end(one)}" for name, one in value.items()])


def _either_end(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _norm_or_none(value: object) -> object:
    if value is None or value == NONE:
        return NONE
    try:
        norm = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        norm = math.nan
    if not 0 < norm < math.inf:
        raise ValueError("expected a number above 0, or none")
    return norm


Names = Annotated[
    str | None, BeforeValidator(_comma_separated)
]  # several, as a flag has them; a list is understood too
Pairs = Annotated[str | None, BeforeValidator(_pairs)]  # the same of COLUMN=VALUE; a dictionary is understood too
TeacherPrecision = Literal["fp32", "bf16"]
EngineKind = Literal["auto", "serial", "processes", "ray"]
ClipNorm = Annotated[float | Literal["none"], BeforeValidator(_norm_or_none)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(_whole_or_auto)]


# Where a setting stands in the help, in this order.
Panel = Literal[
    "Experiment",
    "Data",
    "Models",
    "Training",
    "Distillation",
    "Federation",
    "Privacy",
    "Evaluation",
    "Simulated attacks",
    "Execution",
]
# What a setting decides. All but execution decide the outcome of a run, and so its identity.
Role = Literal[
    "method",  # which method learns, with which settings of its own
    "recipe",  # what a method stands for, and the setting wins over it: see Recipe
    "world",  # the data, its division and who takes part: runs that differ here are neither seeds nor compared
    "learning",  # how everybody learns: runs of one name that differ here are told apart by it
    "extent",  # which run of several, how long, how often tested: neither compared nor mistaken for a seed
    "execution",  # how a run is executed and what is measured beside it, never what is learned (on one kind of device)
]
# Who decides it in a federation of organisations.
Sharing = Literal[
    "agreed",  # all alike: may stand in the settings of federation.toml, and is part of its hash
    "agreed elsewhere",  # all alike, said in a field of its own in federation.toml, which is in the hash too: the seed
    "private",  # each organisation for itself, in peer.toml
    "simulated",  # nobody: only a simulation has a choice
]
ALWAYS_THERE = object()


@dataclass(frozen=True)
class Setting:
    """What a field of `Experiment` is to the rest of the package, said in this one place."""

    help: str
    panel: Panel
    role: Role
    sharing: Sharing
    _: KW_ONLY
    before: object = ALWAYS_THERE  # at this value a run is what it was before the setting came: no part of a hash
    is_unsaid_before: bool = False  # of a recipe: agreements leave it out at `before`; the first four are always said
    stored_as: str | None = None  # an older name: the key in files and hashes, and a hidden flag
    also_called: str | None = None  # another name that people guess: understood as a key and a hidden flag
    metavar: str | None = None  # what the flag wants; left out: what the field's type says
    words: Mapping[object, str] = field(default_factory=dict)  # values as the name of a run says them
    is_said_alone: bool = False  # the value says what it is: "cifar10", not "dataset cifar10"
    is_of_teachers: bool = False  # who trains alone has no use for it
    is_of_engine: bool = False  # a value for one engine may not fit another
    sets_pace: bool = False  # rounds of runs that agree in these take about as long
