"""Many small images on one sheet, or a line in time, as a PNG that a person can open."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

GAP = 2
PAPER = 255
# Told apart by colour-blind readers too.
LINES = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (90, 90, 90), (230, 159, 0))


def contact_sheet(images: NDArray[np.uint8], *, columns: int, scale: int = 1, gap: int = GAP) -> bytes:
    """Draw images [N,H,W,channels] row by row; one channel is gray, two or more than three show their first three."""
    num, height, width, channels = images.shape
    colours = np.repeat(images[..., :1], 3, axis=3) if channels < 3 else images[..., :3]
    enlarged = colours.repeat(scale, axis=1).repeat(scale, axis=2)
    rows = -(-num // columns)
    tall, wide = height * scale + gap, width * scale + gap
    sheet = np.full((rows * tall + gap, columns * wide + gap, 3), PAPER, dtype=np.uint8)
    for number, image in enumerate(enlarged):
        top, left = (number // columns) * tall + gap, (number % columns) * wide + gap
        sheet[top : top + height * scale, left : left + width * scale] = image
    return png(sheet)


def as_bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return images of any type for a picture: of 8 bits as they are, others between their darkest and lightest."""
    if images.dtype == np.uint8:
        return images
    values = images.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    return np.rint((values - low) * (PAPER / (high - low) if high > low else 0.0)).astype(np.uint8)


def line_picture(sample_CT: NDArray[Any], *, height: int = 96, width: int = 192) -> str:
    """Draw a series as a PNG in base64, a line per channel over its own range; a gap interrupts it."""
    sheet = np.full((height, width, 3), PAPER, dtype=np.uint8)
    places = np.linspace(0, sample_CT.shape[1] - 1, width * 4)
    for values, colour in zip(sample_CT.astype(np.float64)[: len(LINES)], LINES, strict=False):
        known = values[np.isfinite(values)]
        if not known.size:
            continue
        low, span = known.min(), float(np.ptp(known)) or 1.0
        drawn = np.interp(places, np.arange(len(values)), values)  # a gap beside a value is a gap
        is_known = np.isfinite(drawn)
        rows = np.rint((1 - (drawn[is_known] - low) / span) * (height - 5)).astype(int) + 2
        columns = np.repeat(np.arange(width), 4)[is_known]
        for column in np.unique(columns):
            here = rows[columns == column]
            sheet[max(0, here.min() - 1) : here.max() + 1, column] = colour
    return base64.b64encode(png(sheet)).decode()


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture [H,W,3] as a PNG file."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), dtype=np.uint8), pixels.reshape(height, -1)], axis=1)  # no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
