"""JSON from others, looked at before it is parsed in earnest.

A validator makes an object for every fault that it finds: a megabyte of faults becomes a gigabyte of words.
So what cannot be right by its size alone is refused first, and of the faults the first one is all that anybody hears.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from crad.errors import first_foreign_fault, printable

Model = TypeVar("Model", bound=BaseModel)


def load_object(raw: bytes | str, *, keys: Collection[str]) -> dict[str, Any]:
    """Return the object in a JSON text; ValueError unless it is one with no other keys than these."""
    try:
        table = json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(table, dict):
        raise ValueError("it is no JSON object")
    strange = next((key for key in table if key not in keys), None)
    if strange is not None:
        raise ValueError(f"it has a key {printable(strange)!r} that nobody expects")
    return table


def load_model(model: type[Model], raw: bytes | str) -> Model:
    """Return the model in a JSON text; ValueError with the first fault, made of no more than the model's own fields."""
    load_object(raw, keys=model.model_fields.keys())
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise ValueError(first_foreign_fault(error)) from error
