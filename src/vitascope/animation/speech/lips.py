"""A small network that hears which shape a mouth has, in any language: float32 bands in, mouth shapes out.

Three layers see nineteen rows of mel bands about a moment, from 100 ms before to 80 ms after it. It was fitted by
``benchmarks/fit_lips.py`` to the mouth shapes (``visemes.shapes_of``) of synthetic speakers of many languages, whose
sounds are known to the millisecond, beside music and noise, in which the mouth is still.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from vitascope.animation.face import FloatArray
from vitascope.animation.speech.hearing import BANDS, WINDOW_SECONDS
from vitascope.animation.speech.visemes import PARAMETERS, ROWS_PER_SECOND, SEAL

ROWS_BEFORE = 10
ROWS_AHEAD = 8
LAG_SECONDS = ROWS_AHEAD / ROWS_PER_SECOND + WINDOW_SECONDS / 2
"""So long after a moment its shape is known."""
_FILE = Path(__file__).parents[2] / "models" / "data" / "lips.npz"
# The network's likelihood of shut lips: from here on they part, and from here on they are shut.
_PARTED, _SHUT = 0.3, 0.55


class LipNetwork:
    """Mouth shapes of what is heard. State of one stream: the rows that later ones still need."""

    def __init__(self) -> None:
        self._layers = _layers()
        self._rows = np.full((ROWS_BEFORE, BANDS), -4.0, np.float32)

    def shapes(self, bands: FloatArray) -> FloatArray:
        """Go on with what was heard next.

        Args:
            bands: float32 [rows, 26], of ``Heard``.

        Returns:
            float32 [rows, 7]: ``PARAMETERS`` of the rows that are now known, each ``ROWS_AHEAD`` rows late.
        """
        rows = np.concatenate((self._rows, bands))
        span = ROWS_BEFORE + 1 + ROWS_AHEAD
        count = max(len(rows) - span + 1, 0)
        self._rows = rows[count:]
        if not count:
            return np.zeros((0, len(PARAMETERS)), np.float32)
        seen = np.lib.stride_tricks.sliding_window_view(rows, span, axis=0)[:count]  # [rows, bands, span]
        values = np.ascontiguousarray(seen.transpose(0, 2, 1)).reshape(count, -1)
        *hidden, (weights, bias) = self._layers
        for layer, offset in hidden:
            values = np.maximum(values @ layer + offset, 0)
        shapes = np.asarray(1 / (1 + np.exp(-(values @ weights + bias))), np.float32)
        shut = np.clip((shapes[:, SEAL] - _PARTED) / (_SHUT - _PARTED), 0, 1)
        shapes[:, SEAL] = shut * shut * (3 - 2 * shut)
        return shapes


@cache
def _layers() -> tuple[tuple[FloatArray, FloatArray], ...]:
    """Weights [inputs, outputs] and biases of each layer."""
    with np.load(_FILE, allow_pickle=False) as file:
        return tuple(
            (file[f"weights{number}"].astype(np.float32), file[f"bias{number}"].astype(np.float32))
            for number in range(3)
        )
