"""First weights from a file, for networks that were trained before: safetensors only, which cannot run code.

Every tensor must fit but those of the head, the last layer with weights: it was made for other classes perhaps, and
then keeps the values that it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from crad.errors import ConfigError

MAX_NAMES = 6  # of tensors in a sentence


@dataclass(frozen=True)
class FirstWeights:
    """What came of loading a file: how many tensors it gave, and what was left out on either side."""

    loaded: int
    left: tuple[str, ...]  # of the network: they keep their first values
    unused: tuple[str, ...]  # of the file: the network has no such tensor

    def sentence(self, name: str, file: Path) -> str:
        """Return it as a line for people."""
        left = f"left at their first values: {_some(self.left)}" if self.left else "none left at its first value"
        unused = f"; not used: {_some(self.unused)}" if self.unused else ""
        return f"model {name}: {self.loaded} tensors from {file}, {left}{unused}"


def load_first_weights(model: nn.Module, file: Path, *, name: str) -> FirstWeights:
    """Put a file's tensors into a network called `name`; refused with one line where they do not fit, head apart."""
    stored, own = _read(file, name), model.state_dict()
    heads = head_of(model)
    is_head = {key: any(key == head or key.startswith(f"{head}.") for head in heads) for key in own}
    is_head_kept = all(key in stored and stored[key].shape == own[key].shape for key in own if is_head[key])
    left = [key for key in own if is_head[key] and not is_head_kept]
    for key, tensor in own.items():
        if key in left:
            continue
        if key not in stored and key.endswith("num_batches_tracked"):  # older files have none, and nothing reads it
            left.append(key)
            continue
        if fault := _fault(stored.get(key), tensor):
            only = f"only the head ({', '.join(heads)}) may differ"
            raise ConfigError(f"model {name!r}: weights {file}: {key!r} {fault}; {only}")
        own[key] = stored[key].to(tensor.dtype)
    if len(left) == len(own):
        raise ConfigError(f"model {name!r}: weights {file}: none of its {len(stored)} tensors fits")
    model.load_state_dict(own)
    return FirstWeights(len(own) - len(left), tuple(left), tuple(key for key in stored if key not in own))


def head_of(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the last layer, which tells classes apart; timm's networks say which it is."""
    about = getattr(model, "pretrained_cfg", None)
    said = about.get("classifier") if isinstance(about, Mapping) else None
    if said:
        return (said,) if isinstance(said, str) else tuple(said)
    owners = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    return tuple(owners[-1:])


def file_sha256(file: Path) -> str:
    """Return what a file of weights is recognised by."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _read(file: Path, name: str) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as stored:
            return {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118  # no mapping
    except FileNotFoundError:
        raise ConfigError(f"model {name!r}: weights {file}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"model {name!r}: weights {file}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ConfigError(
            f"model {name!r}: weights {file}: no safetensors file ({error}); a pickle (.pt, .pth, .bin) could run "
            "code and is never read: convert it where it was made, with safetensors.torch.save_file"
        ) from error


def _fault(stored: Tensor | None, own: Tensor) -> str | None:
    if stored is None:
        return "is not in the file"
    if stored.shape != own.shape:
        return f"is {list(stored.shape)} in the file and {list(own.shape)} in the network"
    if stored.is_floating_point() != own.is_floating_point():
        return f"is {_kind(stored)} in the file and {_kind(own)} in the network"
    if stored.is_floating_point() and not bool(stored.isfinite().all()):
        return "has values in the file that are not finite"
    return None


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _some(names: tuple[str, ...]) -> str:
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
