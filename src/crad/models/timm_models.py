"""Networks of the package timm, as `timm:NAME`: the extra crad[timm], imported when such a network is built.

Only names of timm's own registry are built, without pretrained weights: nothing is downloaded, and timm's `hf-hub:` and
`local-dir:` names are refused. Pretrained weights come from a file that the user names, see `first_weights.py`.
"""

from __future__ import annotations

import difflib
import importlib
import re
from typing import Any

import torch

from crad.errors import ConfigError, install_hint

PREFIX = "timm:"
_NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")  # an architecture, perhaps with the tag of its training


def is_timm(name: str) -> bool:
    """Return whether a model's name is one of timm's; nothing is imported to tell."""
    return name.startswith(PREFIX)


def check_timm(name: str) -> None:
    """Refuse a name that timm does not have, or any where timm is not there; imports timm."""
    timm, own = _timm(name), name.removeprefix(PREFIX)
    if _NAME.fullmatch(own) and timm.is_model(own):
        return
    nearest = difflib.get_close_matches(own, timm.list_models(), n=3, cutoff=0.5)
    hint = f"; near it: {', '.join(PREFIX + one for one in nearest)}" if nearest else ""
    raise ConfigError(
        f"unknown model {name!r}: timm {timm.__version__} has no such network{hint}; timm.list_models() has all names"
    )


def build_timm(name: str, num_classes: int, in_channels: int, image_size: tuple[int, ...]) -> torch.nn.Module:
    """Build timm's untrained network for these images; a vision transformer is made for their size."""
    check_timm(name)
    timm, own = _timm(name), name.removeprefix(PREFIX)
    about = timm.models.get_pretrained_cfg(own, allow_unregistered=True)
    sides = {"img_size": image_size} if getattr(about, "fixed_input_size", False) else {}
    model: torch.nn.Module = timm.create_model(
        own, pretrained=False, num_classes=num_classes, in_chans=in_channels, **sides
    )
    return model


def _timm(name: str) -> Any:  # noqa: ANN401  # a package that need not be there
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise _broken(name, error) from error
        raise ConfigError(f"model {name!r} needs the package timm: {install_hint('timm')}") from error
    except Exception as error:  # a torchvision for another torch fails in ways of its own
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return ConfigError(
        f"model {name!r}: timm cannot be imported ({reason}); install the torchvision that was built for torch "
        f"{torch.__version__}"
    )
