"""The networks that are built in, by the kind of data that they are for, as the modules of `networks/` say it.

Such a module says what it has: `FAMILIES`, builders by kind of data and name; `FIRST_LAYERS`, by kind, where networks
prepare samples by their owner's statistics; `FITTED`, those of its families that are fitted in one call.
"""

from __future__ import annotations

import importlib
import pkgutil

from crad.models import networks
from crad.models.family import Builder, FirstLayer, InputShape
from crad.models.own_statistics import OwnStatistics

FAMILIES: dict[str, dict[str, Builder]] = {}  # by the kind of data that they are for
ARCHITECTURES: dict[str, Builder] = {}  # all of them by name
FITTED: dict[str, Builder] = {}  # those without gradients
FIRST_LAYERS: dict[str, FirstLayer] = {}
POOL = ("resnet18", "resnet18-half", "cnn6")  # what the paper deals out to its clients in turn


def preparing_layer(name: str, shape: InputShape) -> OwnStatistics | None:
    """Return the first layer of a network of this name, which has its owner's statistics; None: it has none."""
    make = FIRST_LAYERS.get(shape.kind)
    return None if make is None else make(name, shape)


def find_networks() -> None:
    """Take up what the modules of the folder say that they have, in the order of their names."""
    for name in sorted(found.name for found in pkgutil.iter_modules(networks.__path__)):
        module = importlib.import_module(f"{networks.__name__}.{name}")
        for kind, families in module.FAMILIES.items():
            FAMILIES.setdefault(kind, {}).update(families)
            ARCHITECTURES.update(families)
        FIRST_LAYERS.update(getattr(module, "FIRST_LAYERS", {}))
        FITTED.update(getattr(module, "FITTED", {}))


find_networks()
