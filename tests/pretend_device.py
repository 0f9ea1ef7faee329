"""A GPU that is not there: tensors that say `cuda:0` or `mps:0`, are computed on the CPU, and count what a GPU minds.

Every operation on such a tensor passes `run_pretended`. There an operation that meets tensors of two devices is refused
as a real GPU refuses it, what waits for the device is counted with the line that asked for it, and so are the bytes
that cross over. On `mps` nothing may be float64. Kernels, streams and memory limits are not pretended.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
INSIDE = torch.device("meta")  # what the device is to torch itself: the only other one that every build differentiates
CPU = torch.device("cpu")
COPY_TO, COPY_INTO = aten._to_copy.default, aten.copy_.default
# What a GPU must finish before the program goes on: a number is read, or the shape of what comes depends on values.
READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.bincount.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.repeat_interleave.Tensor,
}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


@dataclass
class Crossings:
    """What went between the pretended device and the host, and what waited for the device."""

    device: torch.device
    waits: Counter[str] = field(default_factory=Counter)  # by the line that waited, file:line
    bytes_to_host: int = 0
    bytes_to_device: int = 0

    def waited(self) -> int:
        """Return how often something waited for the device."""
        return sum(self.waits.values())


class PretendTensor(Tensor):
    """A tensor that says it is on the device, around one on the CPU."""

    held: Tensor
    crossings: Crossings
    is_meta = False  # whatever it is inside

    @staticmethod
    def __new__(cls: type[PretendTensor], held: Tensor, crossings: Crossings) -> PretendTensor:
        """Wrap a CPU tensor."""
        if crossings.device.type == "mps" and held.dtype in (torch.float64, torch.complex128):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        made: PretendTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=INSIDE,
        )
        made.held, made.crossings = held, crossings
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Return the pretended device."""
        return self.crossings.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Return what such a tensor would."""
        return self.crossings.device.type == "cuda"

    def tolist(self) -> Any:
        """Copy to the host, as a real one does."""
        return self.cpu().tolist()

    def numpy(self, **_: object) -> NoReturn:
        """Refuse, as a real one does."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Say what it pretends to be."""
        return f"PretendTensor({self.held!r}, device={self.crossings.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the tensor inside; torch's own way asks for a storage that is not there."""
        copied = PretendTensor(self.held.detach().clone(), self.crossings)
        is_parameter = getattr(self, "_is_param", False)
        memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation that at least one such tensor takes part in."""
        return run_pretended(func, args, kwargs or {}, None)


class PretendMode(TorchDispatchMode):
    """Takes over what makes tensors on the device from nothing, or moves them there."""

    def __init__(self, crossings: Crossings) -> None:
        super().__init__()
        self.crossings = crossings

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and to say so torch imports its compiler, for seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do any operation."""
        return run_pretended(func, args, kwargs or {}, self.crossings)


class NamedDevice(TorchFunctionMode):
    """Says inside torch what the device is there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do any function of torch."""
        named = kwargs or {}
        if func in (torch.device, torch.get_device_module):  # these are about its name
            return func(*args, **named)
        if func in (torch.tensor, torch.as_tensor) and self._is_ours(named.get("device")):
            rest = {name: one for name, one in named.items() if name != "device"}
            return func(*args, **rest).to(INSIDE)  # with its numbers
        if func is Tensor.__getitem__ and isinstance(args[0], PretendTensor) and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]).to(INSIDE))  # made on its device, as torch does, with its numbers
        changed = {name: INSIDE if self._is_ours(one) else one for name, one in named.items()}
        return func(*(INSIDE if self._is_ours(one) else one for one in args), **changed)

    def _is_ours(self, value: object) -> bool:
        return isinstance(value, torch.device | str) and str(value).partition(":")[0] == self._device.type


def run_pretended(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], crossings: Crossings | None) -> Any:
    """Do an operation on the CPU, and give what comes of it the device that it would have."""
    tensors = [one for one in _leaves((args, kwargs)) if isinstance(one, Tensor)]
    pretended = [one for one in tensors if isinstance(one, PretendTensor)]
    crossings = pretended[0].crossings if pretended else crossings
    assert crossings is not None
    wanted = kwargs.get("device")
    is_there = bool(pretended) if wanted is None else wanted == INSIDE
    if not is_there and not pretended:
        return func(*args, **kwargs)
    if wanted == INSIDE:
        kwargs = {**kwargs, "device": CPU}
    if func is COPY_TO or func is COPY_INTO:
        is_there = _note_copy(args, is_there if func is COPY_TO else None, crossings)
    else:
        _check_one_device(func, tensors, crossings)
        if func in READS or (func in INDEXING and _has_mask(args[1])):
            crossings.waits[_asked_from()] += 1
    made = func(*_each(_held, args), **_each(_held, kwargs))
    if not is_there:
        return made
    inside = {id(one.held): one for one in pretended}
    return _each(lambda one: inside[id(one)] if id(one) in inside else PretendTensor(one, crossings), made)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what stands in nested lists; torch's own way to do so takes longer than the operations."""
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, tuple | list | dict):
            yield from _leaves(one)
        else:
            yield one


def _each(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Return nested lists with every tensor in them changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)([_each(change, one) for one in value])
    return {name: _each(change, one) for name, one in value.items()} if isinstance(value, dict) else value


def _held(tensor: Tensor) -> Tensor:
    return tensor.held if isinstance(tensor, PretendTensor) else tensor


def _note_copy(args: tuple[Any, ...], goes_there: bool | None, crossings: Crossings) -> bool:
    """Count what a copy moves, into the first of two tensors where it is not said whereto; return whether to there."""
    source = args[0] if goes_there is not None else args[1]
    was_there = isinstance(source, PretendTensor)
    goes_there = isinstance(args[0], PretendTensor) if goes_there is None else goes_there
    size = source.numel() * source.element_size()
    if was_there and not goes_there:
        crossings.waits[_asked_from()] += 1
        crossings.bytes_to_host += size
    elif goes_there and not was_there:
        crossings.bytes_to_device += size
    return goes_there


def _check_one_device(func: Any, tensors: list[Tensor], crossings: Crossings) -> None:
    for one in tensors:
        if not isinstance(one, PretendTensor) and one.dim():  # a number may be anywhere
            raise AssertionError(
                f"{func} meets a tensor {list(one.shape)} on {one.device} and one on {crossings.device} "
                f"({_asked_from()})"
            )


def _has_mask(indices: list[Tensor | None]) -> bool:
    """Return whether values decide how much an index takes out."""
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _asked_from() -> str:
    """Return the line of the package that is at work."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if "/crad/" in name:
            return f"{name.rpartition('/crad/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


@contextmanager
def pretended_device(kind: str = "cuda", *, count: int = 1) -> Iterator[Crossings]:
    """Let torch have such a device in this block; the crossings are counted."""
    crossings, conversion = Crossings(torch.device(kind, 0)), torch.__future__
    with ExitStack() as stack:
        for name, value in _answers(kind, count).items():
            stack.enter_context(patch(name, value))
        # A parameter's kind changes with its device.
        before = conversion.get_overwrite_module_params_on_conversion()
        stack.callback(conversion.set_overwrite_module_params_on_conversion, before)
        conversion.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(NamedDevice(crossings.device))
        stack.enter_context(PretendMode(crossings))
        yield crossings


def _answers(kind: str, count: int) -> dict[str, Any]:
    """Return what torch says of the device when it is asked."""
    state = torch.zeros(16, dtype=torch.uint8)
    if kind == "mps":
        return {
            "torch.backends.mps.is_available": lambda: True,
            "torch.mps.get_rng_state": lambda *_: state,
            "torch.mps.set_rng_state": lambda *_: None,
            "torch.mps.manual_seed": lambda *_: None,
            "torch.mps.driver_allocated_memory": lambda: 5_000,
            "torch.mps.recommended_max_memory": lambda: 8 * 2**30,
        }
    return {
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.is_available": lambda: True,
        "torch.cuda.device_count": lambda: count,
        "torch.cuda.get_device_name": lambda *_: "Pretended GPU",
        "torch.cuda.get_rng_state": lambda *_: state,
        "torch.cuda.set_rng_state": lambda *_: None,
        "torch.cuda.manual_seed_all": lambda *_: None,
        "torch.cuda.is_bf16_supported": lambda including_emulation=True: True,
        "torch.cuda.mem_get_info": lambda *_: (40 * 2**30, 40 * 2**30),
        "torch.cuda.max_memory_allocated": lambda *_: 5_000,
        "torch.cuda.reset_peak_memory_stats": lambda *_: None,
        "torch.Tensor.pin_memory": lambda tensor, *_: tensor,
    }
