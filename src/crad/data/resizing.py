"""Images brought to one size, `--resize`: bilinear, smoothed where they become smaller, the same on every machine.

N images, H height, W width, C channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from crad.data.dataset import Images

AT_ONCE = 512  # images; bounds the memory


def resize_images(images_NHWC: NDArray[Any], side: int) -> Images:
    """Return images of `side` x `side` pixels; those that are so already stay as they are."""
    if images_NHWC.shape[1:3] == (side, side):
        return images_NHWC
    parts = [_resized(images_NHWC[start : start + AT_ONCE], side) for start in range(0, len(images_NHWC), AT_ONCE)]
    return np.concatenate(parts)


def _resized(images_NHWC: NDArray[Any], side: int) -> Images:
    pixels_NCHW = torch.from_numpy(images_NHWC.astype(np.float32)).permute(0, 3, 1, 2)
    drawn_NCHW = F.interpolate(pixels_NCHW, size=(side, side), mode="bilinear", antialias=True)
    made: Images = drawn_NCHW.permute(0, 2, 3, 1).contiguous().numpy()
    if images_NHWC.dtype.kind == "f":
        return made
    return np.rint(made).clip(0, np.iinfo(images_NHWC.dtype).max).astype(images_NHWC.dtype)
