"""Objects passed to `crad.run` in place of names: what settings and records call them, and the objects by that name.

A name says that it was an object (`object:my_build`), of data also a hash: who continues the run must pass it again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from crad.aggregation import RULES, Rule
from crad.aggregation.rules import resolve_rule
from crad.config import Experiment
from crad.data.dataset import Dataset, check_dataset
from crad.errors import ConfigError
from crad.federation.method import Method, MethodSpec
from crad.methods import METHODS
from crad.methods.distillation import distillation_method
from crad.plugins import OBJECT, is_object
from crad.runs.records import data_fingerprint

DIGITS = 12  # of the hash in a data set's name

ModelBuilder = Callable[[int, int], nn.Module]
AnyMethod = str | Method | MethodSpec | type[MethodSpec]
AnyModel = str | ModelBuilder


@dataclass(frozen=True)
class Passed:
    """An experiment whose settings name what was passed, and the objects by these names."""

    experiment: Experiment
    objects: Mapping[str, Any] = field(default_factory=dict)


def name_objects(
    experiment: Experiment,
    *,
    data: Dataset | Path | str | None = None,
    models: Sequence[AnyModel] | None = None,
    method: AnyMethod | None = None,
    rule: Rule | str | None = None,
    label: str | None = None,
    site: str | None = None,
    text: str | Sequence[str] | None = None,
    test_data: Path | str | None = None,
) -> Passed:
    """Return the experiment with these in place of its own names; what is None stays as it is."""
    if rule is not None and method is not None:
        raise ConfigError("rule and method were both passed: a rule is the method that distils under it; leave one out")
    settings: dict[str, Any] = {}
    objects: dict[str, Any] = {}
    if isinstance(data, Dataset):
        settings["dataset"] = _data_name(data)
        objects[settings["dataset"]] = data
    elif data is not None:
        settings["dataset"] = str(data)
    columns = {"label": label, "site": site, "text": text, "test_data": None if test_data is None else str(test_data)}
    settings |= {name: value for name, value in columns.items() if value is not None}
    if models is not None:
        settings["models"] = tuple(_name_model(objects, one) for one in _listed(models))
    if method is not None:
        settings |= _name_method(objects, method, experiment)
    if rule is not None:
        settings |= _name_rule(objects, rule)
    if not settings:
        return Passed(experiment)
    return Passed(Experiment(**{**experiment.model_dump(), **settings}), objects)


def check_passed_again(stored: Experiment, objects: Mapping[str, Any], *, where: Path) -> None:
    """Refuse to go on with a run whose objects are not here, in one line that says which."""
    roles = {"data": [stored.dataset], "models": stored.models, "method": [stored.method]}
    missing = {
        role: [name for name in names if is_object(name) and name not in objects] for role, names in roles.items()
    }
    lost = [f"{role}={name.removeprefix(OBJECT)}" for role, names in missing.items() for name in dict.fromkeys(names)]
    if lost:
        words = ", ".join(f"{role}=..." for role, names in missing.items() if names)
        raise ConfigError(
            f"{where} was run with objects from Python's memory ({', '.join(lost)}), and not with the ones given now: "
            f"pass the same ones again, crad.run(experiment, {words}, output=..., resume=True)"
        )


def _data_name(data: Dataset) -> str:
    check_dataset(data, where=f"data ({data.name})")
    digest = hashlib.sha256(data_fingerprint(data).encode())
    digest.update(repr((data.class_names, data.augmentation, data.pad_to)).encode())
    return f"{OBJECT}{_word(data.name)}@{digest.hexdigest()[:DIGITS]}"


def _listed(models: Sequence[AnyModel]) -> Sequence[AnyModel]:
    if isinstance(models, str) or not isinstance(models, Sequence) or not models:
        raise ConfigError(f"models is {models!r}, expected a list of names and of functions (num_classes, in_channels)")
    return models


def _name_model(objects: dict[str, Any], model: AnyModel) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module) or not callable(model):
        raise ConfigError(
            f"models: a {type(model).__name__} is no function (num_classes, in_channels) that makes a new network: "
            "every client trains one of its own"
        )
    return _keep(objects, getattr(model, "__name__", type(model).__name__), model)


def _name_method(objects: dict[str, Any], method: AnyMethod, experiment: Experiment) -> dict[str, Any]:
    if isinstance(method, str):
        return {"method": method}
    if isinstance(method, type) and issubclass(method, MethodSpec):
        return {"method": _keep(objects, method.__name__, method)}
    if not isinstance(method, Method | MethodSpec):
        raise ConfigError(
            f"method is a {type(method).__name__}, expected a name, a crad.federation.method.Method, or a MethodSpec"
        )
    if experiment.method_settings:
        given = ", ".join(experiment.method_settings)
        raise ConfigError(f"method_settings ({given}) beside a method that was passed: set them on the object itself")
    if isinstance(method, Method):
        return {"method": _keep(objects, method.name, method)}
    return {"method": _keep(objects, type(method).__name__, method)}  # its settings are written down with the run


def _name_rule(objects: dict[str, Any], rule: Rule | str) -> dict[str, Any]:
    if isinstance(rule, str) and rule in METHODS:
        return {"method": rule}
    chosen = resolve_rule(rule)
    known = next((name for name, one in RULES.items() if one == chosen), None)
    if known is not None:
        return {"method": known}
    word = rule if isinstance(rule, str) else f"{_called(chosen.keep)}-{_called(chosen.weigh)}"
    return {"method": _keep(objects, word, distillation_method(_word(word), chosen))}


def _called(function: object) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _keep(objects: dict[str, Any], word: str, what: object) -> str:
    """Return the name of an object; two of one name are told apart by their order."""
    base = f"{OBJECT}{_word(word)}"
    name, count = base, 1
    while name in objects and objects[name] is not what:
        count += 1
        name = f"{base}-{count}"
    objects[name] = what
    return name


def _word(text: str) -> str:
    """Return a name without what means something in settings, files or commands."""
    return re.sub(r"[^\w.]+", "-", text).strip("-") or "unnamed"
