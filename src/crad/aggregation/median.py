"""The median over the supported teachers (Eq. 5's tau), for every sample and class at once.

A class's supported teachers are its own, so the middle one stands at another place in every class. The unsupported
are moved out of the way instead, some below all deviations and some above, until the middle of all K is the middle of
the supported: then one fixed place is the answer everywhere, and nothing has to be sorted completely.

Shapes: K teachers, B samples, C classes.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

NETWORK_TEACHERS = 32  # up to here comparing whole planes [B,C] is the fastest; beyond, too many comparisons


def supported_median(value_KBC: Tensor, supported_KC: Tensor) -> Tensor:
    """Return the lower median of the supported teachers' finite values, [B,C]; infinite where nobody is supported."""
    centred_KBC = value_KBC + _moved_aside(supported_KC).to(value_KBC).unsqueeze(1)
    if len(value_KBC) > NETWORK_TEACHERS and not torch.compiler.is_exporting():  # ONNX has no median
        return centred_KBC.median(dim=0).values
    return _network_median(centred_KBC)


def _moved_aside(supported_KC: Tensor) -> Tensor:
    """Return what to add: nothing for the supported, minus or plus infinity for the others, [K,C]."""
    absent_KC = ~supported_KC
    middle_C = (supported_KC.sum(dim=0) - 1).clamp_(min=0) >> 1
    num_below_C = (len(supported_KC) - 1) // 2 - middle_C
    is_below_KC = absent_KC.cumsum(dim=0) <= num_below_C
    aside_KC = torch.zeros_like(supported_KC, dtype=torch.float32).masked_fill_(absent_KC, torch.inf)
    return aside_KC.masked_fill_(absent_KC & is_below_KC, -torch.inf)


def _network_median(value_KBC: Tensor) -> Tensor:
    planes = list(value_KBC.unbind(dim=0))
    for low, high, keeps_smaller, keeps_larger in _median_network(len(planes)):
        one, other = planes[low], planes[high]
        if keeps_smaller:
            planes[low] = torch.minimum(one, other)
        if keeps_larger:
            planes[high] = torch.maximum(one, other)
    return planes[(len(planes) - 1) // 2]


@lru_cache(maxsize=NETWORK_TEACHERS)
def _median_network(size: int) -> tuple[tuple[int, int, bool, bool], ...]:
    """Return the comparisons of a sorting network that the middle place depends on, in order.

    An entry (low, high, keeps_smaller, keeps_larger) says which of the two results is ever looked at again.
    """
    needed = {(size - 1) // 2}
    kept = []
    for low, high in reversed(_merge_exchange(size)):
        if low in needed or high in needed:
            kept.append((low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(kept))


def _merge_exchange(size: int) -> list[tuple[int, int]]:
    """Return Batcher's sorting network for any size: pairs of places to be put in order (Knuth, volume 3, 5.2.2 M)."""
    pairs = []
    top = 1 << max(0, (size - 1).bit_length() - 1)
    step = top
    while step > 0:
        offset, distance, width = 0, step, top
        while True:
            pairs += [(i, i + distance) for i in range(size - distance) if i & step == offset]
            if width == step:
                break
            offset, distance, width = step, width - step, width // 2
        step //= 2
    return pairs
