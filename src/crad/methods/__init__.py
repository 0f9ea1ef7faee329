"""The methods by name: one file per family. A method of your own is an entry point in `crad.methods` or an
import path: `package.module:Class` of a `MethodSpec`, or `package.module:METHOD` of a finished `Method`; or an object
that was passed to `crad.run`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import ValidationError

from crad.aggregation import RULES, Rule, aggregate
from crad.config import PUBLISHED, Experiment, names_where, setting_of
from crad.errors import ConfigError, first_fault, unknown_name
from crad.federation.method import Method, MethodSpec
from crad.methods.alone import CENTRALIZED, LOCAL
from crad.methods.committee import CommitteeMethod
from crad.methods.dfml import Dfml
from crad.methods.distillation import distillation_method
from crad.methods.experts import Experts
from crad.methods.fedgd import FedGd
from crad.methods.fedmd import FedMd
from crad.methods.fedmkd import FedMkd
from crad.methods.msfkd import Msfkd
from crad.models import FITTED, Architecture
from crad.plugins import call_foreign, resolve

METHODS: dict[str, Method | type[MethodSpec]] = {
    "fedmd": FedMd,
    "fedgd": FedGd,
    "msfkd": Msfkd,
    "dfml": Dfml,
    "fedmkd": FedMkd,
    **{name: distillation_method(name) for name in RULES},
    "experts": Experts,
    "committee": CommitteeMethod,
    "local": LOCAL,
    "centralized": CENTRALIZED,
}

# The rows of the paper's main table, in its order.
PAPER_METHODS = ("fedmd", "fedgd", "msfkd", "dfml", "fedmkd", "uniform", "uncertainty", "crad")


def resolve_method(name: str, settings: Mapping[str, object] | None = None) -> Method:
    """Return the method behind a name, an entry point or an import path, with its own settings."""
    found = resolve("method", name, known=METHODS, group="crad.methods")
    if isinstance(found, type) and issubclass(found, MethodSpec):
        spec = _with_settings(name, found, settings or {})
        return spec.build(name) if name in METHODS else _built(name, spec)
    if isinstance(found, MethodSpec):  # passed in memory, with its settings
        method = _built(name, found)
        changed = [key for key, value in (settings or {}).items() if method.settings.get(key) != value]
        if changed:
            raise ConfigError(f"method {name!r} was passed with {changed[0]} = {method.settings.get(changed[0])!r}")
        return method
    if not isinstance(found, Method):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigError(f"method {name!r} is {kind}, expected a crad.federation.method.Method or a MethodSpec class")
    if settings:
        raise ConfigError(f"method {name!r} has no settings of its own, got {', '.join(settings)}")
    return found


def check_recipe(experiment: Experiment, method: Method) -> None:
    """Refuse settings that the method would not look at: nobody shall believe that they had an effect."""
    rule, recipe = method.rule, experiment.recipe
    changed = [name for name in names_where(lambda one: one.is_of_teachers) if _is_changed(experiment, name)]
    if method.teachers == "nobody":  # what is published can be an attack on those who will ask it
        changed = [name for name in changed if setting_of(name).role != "world"]
    if changed and rule is None:
        raise ConfigError(
            f"{changed[0]} = {getattr(experiment, changed[0])!r} is for methods that combine snapshots by a rule, such "
            f"as crad; {method.name!r} does not"
        )
    if recipe.evidence != "reported" and rule is not None and not rule.uses_statistics:
        raise ConfigError(f"evidence = {recipe.evidence!r}: {method.name!r} looks at no evidence of its teachers")
    if experiment.private_training is not None and not method.is_private:
        raise ConfigError(
            f"private_training: {method.name!r} is not known to publish only what went through the noise: choose crad "
            "or another rule, uniform, committee or local"
        )
    if experiment.private_training is not None and rule is not None and rule not in RULES.values():
        _check_looks_at_one_sample(rule, method)
    if problem := method.refusal(experiment):
        raise ConfigError(problem)
    if fitted := [model for model in experiment.models if Architecture.parse(model).name in FITTED]:
        _check_fits_in_one_call(fitted[0], method)
    if recipe.teacher_prior == "remove" and recipe.local_loss == "balanced" and method.teachers == "clients":
        raise ConfigError(
            f"teacher_prior = 'remove' with the balanced loss of {method.name!r}: that loss has the class shares out "
            "of what teachers say already, and taking them out twice harms; set teacher_prior = 'keep' or "
            "local_loss = 'plain'"
        )
    if rule is not None:
        rule.with_filter(recipe.filter)


def _check_looks_at_one_sample(rule: Rule, method: Method) -> None:
    """Refuse a rule of a user's own that makes of a sample's teachers something else in other company."""
    generator = torch.Generator().manual_seed(1)
    counts_KC = torch.randint(5, 50, (3, 4), generator=generator).double()
    stats = (counts_KC, torch.rand(3, 4, generator=generator).double())
    one_KBC, other_KBC = (torch.rand(3, 5, 4, generator=generator).softmax(dim=2) for _ in range(2))
    other_KBC[:, :4] = one_KBC[:, :4]
    first_BC, second_BC = (aggregate(q_KBC, *stats, rule)[:4] for q_KBC in (one_KBC, other_KBC))
    if not torch.allclose(first_BC, second_BC):
        raise ConfigError(
            f"private_training: the rule of {method.name!r} combines a sample's teachers otherwise in other company, "
            "which mixes records: weigh every sample by itself"
        )


def _check_fits_in_one_call(model: str, method: Method) -> None:
    if method.needs_gradients:
        able = [name for name, one in METHODS.items() if not one.needs_gradients]
        raise ConfigError(
            f"model {model!r} is fitted in one call, and method {method.name!r} takes steps along gradients: choose "
            f"networks, or one of {', '.join(able)}"
        )


def _is_changed(experiment: Experiment, name: str) -> bool:
    """Return whether a setting is not what CRAD as published has, where its recipe says that, or else the default."""
    if hasattr(PUBLISHED, name):
        return bool(getattr(experiment.recipe, name) != getattr(PUBLISHED, name))
    return bool(getattr(experiment, name) != Experiment.model_fields[name].default)


def _with_settings(name: str, kind: type[MethodSpec], settings: Mapping[str, object]) -> MethodSpec:
    for key in settings:
        if key not in kind.model_fields:
            raise unknown_name(f"setting of method {name!r}", key, kind.model_fields)
    try:
        return kind(**settings)
    except ValidationError as error:
        raise ConfigError(f"method {name!r}: {first_fault(error)}") from error
    except Exception as error:  # a validator of the user's own
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"method {name!r}: its settings failed with {reason}") from error


def _built(name: str, spec: MethodSpec) -> Method:
    method = call_foreign("method", name, "building it", spec.build, name)
    assert isinstance(method, Method), "build is not overridden"
    return method
