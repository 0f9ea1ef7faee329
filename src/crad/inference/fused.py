"""A network as a plan of fused steps: batch norm folded into the convolution, addition and ReLU in its epilogue.

The module is traced once per architecture with torch.fx. Chains of convolution, batch norm, addition and ReLU become
one step each; whatever else the graph holds runs as it is between them. A snapshot's weights are folded and packed
into the steps every time. Where a step could differ from the module (an in-place operation whose memory others see, a
constant computed from weights while tracing) there is no plan, and the module itself runs.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from crad.inference.convolution import FusedConv
from crad.inference.winograd import Workspace

_RELU_FUNCTIONS = (F.relu, torch.relu, F.relu_, torch.relu_)
_ADD_FUNCTIONS = (operator.add, operator.iadd, torch.add)
_NOTHING_IN_EVAL = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
# Fresh: the result is new memory, and its values do not depend on how the input lies in memory.
_FRESH: tuple[object, ...] = (
    *(nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Linear, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
    *(nn.GroupNorm, nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh),
    *(*_RELU_FUNCTIONS, *_ADD_FUNCTIONS, operator.sub, operator.mul, torch.mul, torch.cat, torch.mean),
    *(F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.linear, "mean", "relu", "add", "mul", "sum"),
)
_LAYOUT_SAFE = (*_FRESH, nn.Flatten, torch.flatten, getattr, operator.getitem, "flatten", "size", "dim", "contiguous")
_RESHAPES = {"view": "reshape", "view_as": "reshape_as", "reshape": "reshape"}  # channels-last maps may have no view
_KIND = "kind"  # what a node did before its target became the name of a slot, kept in its meta


class UnplannableError(Exception):
    """The module has no plan and runs as it is. Never leaves this package."""


@dataclass(frozen=True)
class Slot:
    """What fills a name of the plan: the model's attribute `target`, or the convolution there and its tail."""

    target: str
    is_conv: bool = False
    norm: str | None = None
    relu: bool = False


@dataclass(frozen=True)
class FusedPlan:
    """The steps of one architecture, as a function of the filled slots and the inputs."""

    forward: Callable[[SimpleNamespace, Tensor], Tensor]
    slots: dict[str, Slot]
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # of each convolution's maps, after the first call


def make_fused_plan(model: nn.Module) -> FusedPlan:
    """Trace and fuse; raises UnplannableError where the module has to run as it is."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        raise UnplannableError("a hook may do anything")
    graph = _trace(model)
    _drop_nothings(graph, model)
    slots: dict[str, Slot] = {}
    for node in list(graph.nodes):
        is_plain_call = len(node.args) == 1 and not node.kwargs
        if (
            _module_of(node, model, nn.Conv2d) is not None
            and is_plain_call
            and _is_foldable(model.get_submodule(str(node.target)))
        ):
            _fuse_chain(graph, node, model, slots)
    for node in list(graph.nodes):
        if not _is_fused(node):
            _adopt(graph, node, model, slots)
    return FusedPlan(_compile(graph, slots), slots)


def is_fusible(model: nn.Module) -> bool:
    """Return whether a model's weights are of the kind that the fused steps compute with."""
    state = (*model.parameters(), *model.buffers())
    return all(t.device.type == "cpu" and t.dtype == torch.float32 for t in state if t.is_floating_point())


@torch.no_grad()
def fill_slots(
    plan: FusedPlan, model: nn.Module, workspace: Workspace
) -> tuple[SimpleNamespace, list[FusedConv | Tensor]]:
    """Fill the plan's slots with copies of this model's weights; return them, and all that holds memory among them."""
    slots = SimpleNamespace()
    held: list[FusedConv | Tensor] = []
    for name, slot in plan.slots.items():
        filled = _fill(plan, name, slot, model, workspace)
        setattr(slots, name, filled)
        held += list(filled.state_dict().values()) if isinstance(filled, nn.Module) else [filled]
    return slots, held


def _fill(
    plan: FusedPlan, name: str, slot: Slot, model: nn.Module, workspace: Workspace
) -> FusedConv | nn.Module | Tensor:
    if slot.is_conv:
        conv = model.get_submodule(slot.target)
        norm = None if slot.norm is None else model.get_submodule(slot.norm)
        assert isinstance(conv, nn.Conv2d)
        assert norm is None or isinstance(norm, nn.BatchNorm2d)
        return FusedConv(conv, norm, relu=slot.relu, name=name, sizes=plan.sizes, workspace=workspace)
    value = operator.attrgetter(slot.target)(model)
    if isinstance(value, Tensor):
        return value.detach().clone()
    assert isinstance(value, nn.Module)
    return copy.deepcopy(value) if value.state_dict() else value


class _Proxy(fx.Proxy):
    """A stand-in that records `x += y` as what it is; torch.fx makes `x = x + y` of it, which others holding x miss."""


def _record_in_place(name: str) -> None:
    def record(self: _Proxy, other: object) -> object:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    setattr(_Proxy, f"__{name}__", record)


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"):
    _record_in_place(_name)


class _Tracer(fx.Tracer):
    # Otherwise what a forward computes from a buffer alone would be frozen into the plan.
    proxy_buffer_attributes = True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


def _trace(model: nn.Module) -> fx.Graph:
    try:
        graph = _Tracer().trace(copy.deepcopy(model))  # a forward may keep what it computed, here the stand-ins
    except Exception as error:  # a user's forward may raise anything when it is given a stand-in for its input
        raise UnplannableError(f"not traceable: {error}") from error
    state = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    for node in graph.nodes:
        if node.op == "get_attr" and node.target not in state:
            raise UnplannableError(f"{node.target!r} is a constant of this trace, perhaps made from weights")
    return graph


def _drop_nothings(graph: fx.Graph, model: nn.Module) -> None:
    """Take out what returns its input in evaluation mode, so that chains are unbroken."""
    for node in list(graph.nodes):
        module = _module_of(node, model, *_NOTHING_IN_EVAL)
        if module is not None and not module.training and len(node.args) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _fuse_chain(graph: fx.Graph, conv: fx.Node, model: nn.Module, slots: dict[str, Slot]) -> None:
    """Replace a convolution and what directly follows it by one node.

    Only nodes that follow each other in the order of execution are joined: then nothing can change memory in between.
    """
    chain, norm, other, relu = [conv], None, None, False
    following = _only_next(conv)
    if following is not None and _is_running_norm(following, model):
        norm, following = str(following.target), _only_next(following)
        chain.append(chain[-1].next)
    if following is not None and (found := _other_summand(following, chain[-1])) is not None:
        other = found
        chain.append(following)
        following = _only_next(following)
    if following is not None and _is_relu(following, model):
        relu = True
        chain.append(following)
    name = f"step_{len(slots)}"
    slots[name] = Slot(str(conv.target), is_conv=True, norm=norm, relu=relu)
    with graph.inserting_after(chain[-1]):
        fused = graph.call_module(name, (conv.args[0],) if other is None else (conv.args[0], other))
    fused.meta[_KIND] = FusedConv
    chain[-1].replace_all_uses_with(fused)
    for node in reversed(chain):
        graph.erase_node(node)


def _adopt(graph: fx.Graph, node: fx.Node, model: nn.Module, slots: dict[str, Slot]) -> None:
    """Keep a node as it is, as far as channels-last maps allow, and give what it needs of the model a slot."""
    if node.op in ("placeholder", "output"):
        return
    kind = node.meta[_KIND] = _kind_of(node, model)
    _refuse_visible_writes(node, model)
    if isinstance(kind, str) and kind in _RESHAPES:
        if any(isinstance(arg, torch.dtype) for arg in node.args):
            raise UnplannableError("a view as another type")
        node.target = _RESHAPES[kind]
    elif kind not in _LAYOUT_SAFE and not _writes(node, model):
        with graph.inserting_before(node):
            node.args, node.kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda arg: graph.call_function(_in_plain_layout, (arg,))
            )
    if node.op in ("call_module", "get_attr"):
        name = f"step_{len(slots)}"
        slots[name] = Slot(str(node.target))
        node.target = name


def _compile(graph: fx.Graph, slots: dict[str, Slot]) -> Callable[[SimpleNamespace, Tensor], Tensor]:
    """Compile the graph into a function of the slots, which lets go of every map after its last use."""
    attributes = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    root = {name: torch.zeros(1) if name in attributes else nn.Identity() for name in slots}
    forward: Callable[[SimpleNamespace, Tensor], Tensor] = type(fx.GraphModule(root, graph)).forward
    return forward


def _module_of(node: fx.Node, model: nn.Module, *types: type[nn.Module]) -> nn.Module | None:
    """Return the module a node calls if it is exactly of one of these types: a subclass may do anything."""
    if node.op != "call_module" or _is_fused(node):
        return None
    module = model.get_submodule(str(node.target))
    return module if type(module) in types else None


def _is_fused(node: fx.Node) -> bool:
    return node.meta.get(_KIND) is FusedConv


def _kind_of(node: fx.Node, model: nn.Module) -> object:
    """Return what a node does, as an entry of the lists above."""
    return type(model.get_submodule(str(node.target))) if node.op == "call_module" else node.target


def _is_foldable(conv: nn.Module) -> bool:
    assert isinstance(conv, nn.Conv2d)
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _is_running_norm(node: fx.Node, model: nn.Module) -> bool:
    norm = _module_of(node, model, nn.BatchNorm2d)
    return norm is not None and not norm.training and norm.running_mean is not None and norm.running_var is not None


def _is_relu(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_function":
        return node.target in _RELU_FUNCTIONS
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return _module_of(node, model, nn.ReLU) is not None


def _only_next(node: fx.Node) -> fx.Node | None:
    """Return the node executed right after this one, if nobody else uses this one."""
    following = node.next
    return following if list(node.users) == [following] and node in following.all_input_nodes else None


def _other_summand(node: fx.Node, tail: fx.Node) -> fx.Node | None:
    if node.op != "call_function" or node.target not in _ADD_FUNCTIONS or node.kwargs or len(node.args) != 2:
        return None
    left, right = node.args
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or left is right:
        return None
    if left is tail:
        return right
    return left if node.target is not operator.iadd else None  # x += conv(y) writes to x


def _refuse_visible_writes(node: fx.Node, model: nn.Module) -> None:
    """Refuse an in-place operation unless nothing but its own result shows that memory."""
    if "out" in node.kwargs:
        raise UnplannableError("writes to `out`")
    if not _writes(node, model):
        return
    written = node.args[0] if node.args else None
    if not isinstance(written, fx.Node) or list(written.users) != [node]:
        raise UnplannableError("writes to what others read")
    if written.meta.get(_KIND) not in (FusedConv, *_FRESH):  # earlier nodes have been adopted by now
        raise UnplannableError("writes to what may be a view")


def _writes(node: fx.Node, model: nn.Module) -> bool:
    """Return whether a node may write to its first input."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "_")
    is_operator = getattr(node.target, "__module__", "") == "_operator"
    in_place_operator = is_operator and (name == "setitem" or (name[0] == "i" and hasattr(operator, name[1:])))
    return (
        in_place_operator
        or name.endswith("_")
        or bool(node.kwargs.get("inplace"))
        or any(arg is True for arg in node.args)
    )


def _in_plain_layout(value: Any) -> Any:  # noqa: ANN401 - anything a forward may pass around
    """Return maps as an operation we do not know would get them from the module itself."""
    return value.contiguous() if isinstance(value, Tensor) and value.dim() == 4 else value
