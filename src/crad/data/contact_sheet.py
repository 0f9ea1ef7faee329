"""Many small images on one sheet, as a PNG that a person can open."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

GAP = 2
PAPER = 255


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


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an RGB picture [H,W,3] as a PNG file."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), dtype=np.uint8), pixels.reshape(height, -1)], axis=1)  # no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
