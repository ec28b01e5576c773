"""The size of a picture by the first bytes of its file: FFmpeg tells none of a picture that it finds too large."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from math import isqrt
from pathlib import Path

__all__ = ["LARGEST_SIDE", "declared_size", "is_too_large"]

_MOST_PIXELS, _MARGIN = (1 << 28) - 1, 128
"""FFmpeg takes so many pixels at most, and counts so many more on each side."""
LARGEST_SIDE = isqrt(_MOST_PIXELS) - _MARGIN
"""Side of the largest square, in pixels."""
_HEAD_BYTES = 1 << 20
"""Where the size stands behind what others wrote into the file: profiles, a thumbnail."""

# JPEG (ITU-T T.81, B.1.1.3): frame headers, and markers without a length.
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257


def is_too_large(size: tuple[int, int]) -> bool:
    """True for a (width, height) that no decoder of FFmpeg's takes."""
    width, height = size
    return (width + _MARGIN) * (height + _MARGIN) > _MOST_PIXELS


def declared_size(path: Path) -> tuple[int, int] | None:
    """(width, height) as a file's header says: PNG, JPEG, BMP, GIF, WebP, TIFF, and PBM to PPM; None for others.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for signature, read in _READERS.items():
        if head.startswith(signature):
            try:
                return read(head)
            except (struct.error, IndexError):  # it is cut off
                return None
    return None


def _png(head: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from(">II", head, 16)
    return width, height


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _FRAME_HEADERS:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + int(struct.unpack_from(">H", head, at + 2)[0])
    return None


def _bmp(head: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from("<ii", head, 18)
    return abs(width), abs(height)  # rows from top to bottom have a negative height


def _gif(head: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from("<HH", head, 6)
    return width, height


def _webp(head: bytes) -> tuple[int, int] | None:
    """RFC 9649: lossy, lossless, extended."""
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    return None


def _tiff(head: bytes) -> tuple[int, int] | None:
    order = "<" if head[:2] == b"II" else ">"
    (at,) = struct.unpack_from(f"{order}I", head, 4)
    (count,) = struct.unpack_from(f"{order}H", head, at)
    found: dict[int, int] = {}
    for number in range(count):
        tag, kind = struct.unpack_from(f"{order}HH", head, at + 2 + 12 * number)
        value = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", head, at + 10 + 12 * number)
        found[tag] = value[0]
    width, height = found.get(_TIFF_WIDTH), found.get(_TIFF_HEIGHT)
    return None if width is None or height is None else (width, height)


def _pnm(head: bytes) -> tuple[int, int] | None:
    match = re.match(rb"P[1-6]\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s", head)
    return None if match is None else (int(match[1]), int(match[2]))


_READERS: dict[bytes, Callable[[bytes], tuple[int, int] | None]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"BM": _bmp,
    b"GIF8": _gif,
    b"RIFF": _webp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
    **{b"P%d" % kind: _pnm for kind in range(1, 7)},
}
