"""The 1€ filter: little lag when something moves, little jitter when it stands.

Casiez, Roussel, Vogel, "1€ Filter: A Simple Speed-based Low-pass Filter for Noisy Input in Interactive Systems",
CHI 2012.
A first-order low pass whose cutoff grows with the speed: ``cutoff = min_cutoff + beta * |speed|``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray


def cutoff_of_window(frames: int, *, frame_rate: float = 30.0) -> float:
    """The cutoff that smooths as much as a moving average over so many frames, Hz; infinite for one frame.

    A moving average over N samples has its -3 dB point near 0.443 / N of the sample rate.
    """
    return math.inf if frames <= 1 else 0.443 * frame_rate / frames


class OneEuroFilter:
    """Filters an array, each element for itself; times may be uneven.

    Args:
        min_cutoff_hz: Cutoff of what stands still; infinite lets everything through.
        beta: How fast the cutoff grows, Hz for each unit a second.
        speed_cutoff_hz: Cutoff of the speed's own low pass (1 Hz in the paper).
    """

    def __init__(self, *, min_cutoff_hz: float, beta: float, speed_cutoff_hz: float = 1.0) -> None:
        self._min_cutoff_hz = min_cutoff_hz
        self._beta = beta
        self._speed_cutoff_hz = speed_cutoff_hz
        self._value: FloatArray | None = None
        self._speed: FloatArray | None = None
        self._seconds = 0.0

    def reset(self) -> None:
        """Forget what was; the next value passes as it is."""
        self._value = None

    def __call__(self, value: npt.NDArray[Any], *, seconds: float) -> FloatArray:
        """The filtered value.

        Args:
            value: An array, always of the same shape.
            seconds: Its time; one that does not grow counts as a very short step.
        """
        new = np.asarray(value, np.float32)
        if self._value is None or self._speed is None or math.isinf(self._min_cutoff_hz):
            self._value, self._speed, self._seconds = new.copy(), np.zeros_like(new), seconds
            return new.copy()
        step = max(seconds - self._seconds, 1e-3)
        self._seconds = max(seconds, self._seconds)
        speed = (new - self._value) / np.float32(step)
        self._speed += np.float32(_share(self._speed_cutoff_hz, step)) * (speed - self._speed)
        cutoff = self._min_cutoff_hz + self._beta * np.abs(self._speed)
        # As _share, for each element.
        rate = (2 * math.pi * step) * cutoff
        self._value = np.asarray(self._value + rate / (rate + 1) * (new - self._value), np.float32)
        return self._value.copy()


def _share(cutoff_hz: float, step_seconds: float) -> float:
    """Share of a new value that a first-order low pass takes."""
    rate = 2 * math.pi * cutoff_hz * step_seconds
    return rate / (rate + 1)
