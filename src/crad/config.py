"""The settings of one experiment: from a preset, a TOML file and flags, validated once at the edge.

Flags win over the file, the file wins over the preset. The keys of the TOML file are the field names below;
the flags are the same words with hyphens.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from crad.errors import ConfigError, unknown_name

Unsupported = Literal["consensus", "zero"]
Device = Literal["auto", "cpu", "cuda", "mps"]
PartitionKind = Literal["dirichlet", "iid", "shards"]
LocalLoss = Literal["plain", "balanced"]
EvidenceSource = Literal["reported", "own", "pooled"]
FilterKind = Literal["median", "support", "self-scaled", "weighted-consensus", "weighted-median", "weighted"]
Matching = Literal["same", "mixup", "strong"]
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


def _whole_or_auto(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and value >= 1):
        return value
    if isinstance(value, str) and value.isdecimal() and int(value) >= 1:
        return int(value)
    raise ValueError("expected auto or a whole number of at least 1")


TeacherPrecision = Literal["fp32", "bf16"]
EngineKind = Literal["auto", "serial", "processes", "ray"]
Workers = Annotated[int | Literal["auto"], BeforeValidator(_whole_or_auto)]


@dataclass(frozen=True)
class Recipe:
    """How a student learns and whom it believes. What stands here is CRAD as published."""

    local_loss: LocalLoss = "plain"
    evidence: EvidenceSource = "reported"
    filter: FilterKind | None = None  # None: the rule's own
    matching: Matching = "same"


PUBLISHED = Recipe()
# Methods that are a rule under another recipe; a setting of the same name wins over it.
RECIPES: dict[str, Recipe] = {
    "crad-plus": Recipe(local_loss="balanced", evidence="pooled", filter="weighted-consensus", matching="same"),
}


class Experiment(BaseModel):
    """Everything that decides the outcome of a run. Frozen; an unknown key is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str = Field(
        "cifar10", min_length=1, description="Data set: a known name, an .npz file or a folder of class folders"
    )
    method: str = Field(
        "crad",
        description="Method: crad, crad-plus, uniform, uncertainty, an ablation rule, fedmd, fedgd, msfkd, dfml, "
        "fedmkd, local, centralized, or your own as package.module:Class",
    )
    method_settings: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="Settings of the method's own, as name=value,..."
    )
    preset: str = Field("paper", description="Where the other defaults come from: paper, mini, demo")
    seed: Annotated[int, Field(ge=0)] = Field(1024, description="Seed of every random draw")
    clients: AtLeastOne = Field(10, description="Number of clients N")
    active: AtLeastOne | None = Field(None, description="Clients drawn to take part in a round [default: all]")
    rounds: AtLeastOne = Field(300, description="Communication rounds R")
    partition: PartitionKind = Field("dirichlet", description="How the data is divided among the clients")
    alpha: Positive = Field(0.3, description="Dirichlet concentration: smaller is more skewed")
    classes_per_client: AtLeastOne = Field(2, description="Classes a client holds under --partition shards")
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="Share of each shard held out, half for validation and half for testing"
    )
    train_limit: AtLeastOne | None = Field(None, description="Class-balanced subset of the training images")
    test_limit: AtLeastOne | None = Field(None, description="Class-balanced subset of the test images")
    proxy_size: Annotated[int, Field(ge=0)] = Field(
        500, description="Images taken out before the partition for the methods that need a proxy set"
    )
    models: tuple[str, ...] = Field(
        ("resnet18", "resnet18-half", "cnn6"),
        min_length=1,
        description="Architectures, given to the clients in turn, separated by commas",
    )
    width: Annotated[float, Field(gt=0, le=4)] = Field(1.0, description="Factor on the channel counts of our models")
    local_epochs: AtLeastOne = Field(1, description="Epochs over the own shard per round")
    batch_size: Annotated[int, Field(ge=2)] = Field(64, description="Batch size; a last batch of one is dropped")
    lr: Positive = Field(0.01, description="Learning rate of SGD")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="Momentum of SGD")
    weight_decay: NotNegative = Field(5e-4, description="Weight decay of SGD")
    clip_norm: Positive = Field(5.0, description="Gradients are clipped to this L2 norm")
    augment: bool = Field(True, description="Random crops and flips, as the data set allows")
    temperature: Positive = Field(3.0, description="Distillation temperature T")
    distill_weight: Annotated[float, Field(ge=0, le=1)] = Field(0.7, description="Distillation weight lambda")
    min_support: NotNegative = Field(2, description="Validation samples a teacher needs to speak for a class")
    unsupported: Unsupported = Field("consensus", description="A class nobody supports: plain mean, or literal zero")
    epsilon: Positive = Field(1e-8, description="Guards divisions in the rule")
    private_counts: Positive | None = Field(None, description="Publish counts with Laplace noise of this epsilon")
    local_loss: LocalLoss | None = Field(
        None, description="Private loss: plain, or balanced by the client's own class prior [default: the method's]"
    )
    evidence: EvidenceSource | None = Field(
        None,
        description="What teachers are judged by: reported, own (counted on the student's shard) or pooled "
        "[default: the method's]",
    )
    filter: FilterKind | None = Field(
        None,
        description="Who agrees: median, support, self-scaled, weighted-consensus, weighted-median, weighted "
        "[default: the rule's own]",
    )
    matching: Matching | None = Field(
        None, description="Inputs on which student and teachers meet: same, mixup, strong [default: the method's]"
    )
    attack: AttackKind | None = Field(
        None,
        description="What attackers do (simulation): noise, label-flip, label-flip-pairs, sign-flip, inflated, "
        "backdoor, free-rider, collude; honest: nothing, as a control",
    )
    attackers: Annotated[int, Field(ge=0)] = Field(0, description="Clients that attack, drawn by the seed")
    eval_every: AtLeastOne = Field(1, description="Rounds between evaluations on the test sets")
    device: Device = Field("auto", description="Where to compute")
    teacher_precision: TeacherPrecision = Field("fp32", description="Numbers in which teachers run; bf16 needs CUDA")
    engine: EngineKind = Field("auto", description="Where clients run: in this process, in processes here, or on Ray")
    workers: Workers = Field("auto", description="Processes, one client at a time each; auto: one per core")
    ray_address: str | None = Field(None, description="Ray cluster to join with --engine ray [default: start one here]")

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # pydantic checks each
        """Settings over those of their preset; refused with one clear line."""
        try:
            super().__init__(**_over_preset(settings))
        except ValidationError as error:
            raise ConfigError(_one_line(error)) from error

    def __hash__(self) -> int:
        """Equal experiments hash alike; the method's settings are a dictionary, which has no hash of its own."""
        return hash((self.model_dump_json(exclude={"method_settings"}), frozenset(self.method_settings.items())))

    @property
    def recipe(self) -> Recipe:
        """How students learn here: what was set, over what the method stands for."""
        given = {name: getattr(self, name) for name in asdict(PUBLISHED)}
        return replace(
            RECIPES.get(self.method, PUBLISHED), **{name: value for name, value in given.items() if value is not None}
        )

    @model_validator(mode="after")
    def _check_together(self) -> Experiment:
        if self.active is not None and self.active > self.clients:
            raise ValueError(f"active is {self.active}, but there are only {self.clients} clients")
        if problem := self._attack_problem():
            raise ValueError(problem)
        if self.engine == "serial" and self.workers not in ("auto", 1):
            raise ValueError(f"engine serial is one process, but workers is {self.workers}; choose engine processes")
        if self.ray_address is not None and self.engine != "ray":
            raise ValueError(f"ray_address is for engine ray, but engine is {self.engine}")
        return self

    def _attack_problem(self) -> str | None:
        if self.attackers >= self.clients:
            return f"attackers is {self.attackers}, but there are only {self.clients} clients: one must be honest"
        if self.attack is not None and not self.attackers:
            return f"attack is {self.attack!r}, but attackers is 0: say how many clients attack"
        if self.attackers and self.attack is None:
            known = ", ".join(get_args(AttackKind))
            return f"attackers is {self.attackers}, but no attack is chosen: set attack to one of {known}"
        if self.attack == "collude" and self.active is not None and self.active < self.clients:
            return (
                f"attack is 'collude', but only {self.active} of {self.clients} clients are active in a round: who "
                "misses rounds cannot publish what the others do; leave out active"
            )
        return None


# Settings of earlier versions, and what each says.
ALIASES = {"liars": "Short for attack noise by N attackers"}

# Fields that change how a run is executed, never what comes out of it (on one kind of device).
EXECUTION_FIELDS = frozenset({"device", "engine", "workers", "ray_address"})

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's protocol in full: needs a GPU, or days.
    "paper": {},
    # What a two-core machine finishes in about ten minutes a method.
    "mini": {
        "rounds": 30,
        "train_limit": 4000,
        "test_limit": 1000,
        "proxy_size": 400,
        "width": 0.125,
        "batch_size": 16,
        "eval_every": 2,
    },
    # Seconds, on images that come inside a dependency.
    "demo": {
        "dataset": "digits",
        "clients": 6,
        "rounds": 10,
        "proxy_size": 100,
        "width": 0.25,
        "batch_size": 16,
        "lr": 0.05,
        "distill_weight": 0.4,
        "eval_every": 2,
    },
}


def make_experiment(settings: Mapping[str, Any] | None = None, *, path: Path | None = None) -> Experiment:
    """An experiment from flags over a TOML file over a preset; refused with one clear line."""
    from_file = {} if path is None else read_toml(path)
    return Experiment(**{**from_file, **(settings or {})})


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in an `experiment.toml`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the experiment file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def to_toml(experiment: Experiment) -> str:
    """Everything needed to repeat the experiment, as TOML; it does not depend on what a preset says later."""
    settings = experiment.model_dump(mode="json")
    return tomli_w.dumps({key: NONE if value is None else value for key, value in settings.items()})


def changed_settings(experiment: Experiment) -> dict[str, Any]:
    """What a command needs beside the preset to repeat the experiment."""
    preset = Experiment(preset=experiment.preset).model_dump()
    return {key: value for key, value in experiment.model_dump().items() if value != preset[key]}


def to_flags(settings: Mapping[str, Any]) -> str:
    """Settings as they are written on a command line."""
    words = []
    for key, value in settings.items():
        flag = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        words.append(f"--{flag} {shlex.quote(setting_text(value))}")
    return " ".join(words)


def setting_text(value: object) -> str:
    """The value of a setting as a flag says it."""
    if isinstance(value, Mapping):
        value = tuple(f"{name}={one}" for name, one in value.items())
    return NONE if value is None else ",".join(value) if isinstance(value, tuple) else str(value)


def _over_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    preset = settings.get("preset", "paper")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    for key in settings:
        if key not in Experiment.model_fields and key not in ALIASES:
            raise unknown_name("setting", key, Experiment.model_fields)
    merged = {**PRESETS[preset], **_without_liars(settings)}
    if isinstance(merged.get("models"), str):
        merged["models"] = tuple(part.strip() for part in merged["models"].split(","))
    if isinstance(merged.get("method_settings"), str):
        merged["method_settings"] = parse_pairs(merged["method_settings"])
    return {key: None if value == NONE and key in _OPTIONAL else value for key, value in merged.items()}


def _without_liars(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`liars = N` said the only attack there was; files and commands that say it mean what they meant."""
    others = {key: value for key, value in settings.items() if key != "liars"}
    liars = settings.get("liars", 0)
    if liars in (0, "0"):
        return others
    said = {key: value for key, value in others.items() if key in ("attack", "attackers") and value not in (0, "0")}
    if any(value not in (None, NONE) for value in said.values()):
        raise ConfigError(f"liars = {liars!r} is short for attack noise by as many: leave it out beside attack")
    try:
        number = int(liars)
    except (TypeError, ValueError):
        number = -1
    if isinstance(liars, bool | float) or number < 0:
        raise ConfigError(f"liars = {liars!r}: expected a whole number of clients, 0 or more")
    return {**others, "attack": "noise", "attackers": number}


def parse_pairs(text: str) -> dict[str, bool | int | float | str]:
    """`mu=0.3,mode=pooled` as a dictionary; numbers and true or false become what they say."""
    pairs: dict[str, bool | int | float | str] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not name or not equals or not value or name in pairs:
            raise ConfigError(f"method_settings = {text!r}: expected name=value pairs separated by commas")
        pairs[name] = _plain_value(value)
    return pairs


def _plain_value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _one_line(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"][:1])
    message = first["msg"].removeprefix("Value error, ")
    return message if not key else f"{key} = {first['input']!r}: {message[0].lower()}{message[1:]}"


# TOML has no null and a flag no empty value: this word switches a limit off.
NONE = "none"
_OPTIONAL = frozenset(name for name, field in Experiment.model_fields.items() if field.default is None)
