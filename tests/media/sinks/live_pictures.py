"""Pictures to send to sinks."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np

from vitascope.media.sinks.sink import LivePicture, SinkFormat

MADE = SinkFormat(64, 48, Fraction(30))


def make_picture(
    index: int = 0, *, color: tuple[int, int, int] = (200, 60, 30), at: float | None = None
) -> LivePicture:
    rgb = np.full((MADE.height, MADE.width, 3), color, np.uint8)
    return LivePicture(rgb, captured_seconds=time.monotonic() if at is None else at, index=index)
