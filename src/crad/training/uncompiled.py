"""torch's optimizers without their ties to torch.compile, which no optimizer of ours passes through.

Making one, or its first step, otherwise imports torch._dynamo: a second of processor time in every process, as much as
importing torch itself.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, TypeVar

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)
TIED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")  # what torch shields from its compiler


def uncompiled(kind: type[Kind]) -> type[Kind]:
    """Return an optimizer of this kind that does the same arithmetic, step by step, and never loads the compiler.

    The class that torch offers stays as it is: other code in this process may well be compiled.
    """
    wanted: Any = kind  # mypy takes a class of optimisers for unhashable
    made: type[Kind] = _subclass(wanted)
    return made


@cache
def _subclass(kind: Any) -> Any:  # noqa: ANN401  # a cache forgets which kind
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in TIED}
    # What torch wraps around a step turns gradients off, too.
    plain["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**plain, "__module__": __name__, "__doc__": kind.__doc__})
