"""Detects videos in which nobody was found, so that an empty output comes with a note."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import is_on_gpu

_SEEN = 0.5
"""Minimum share of full alpha that counts as a person. RVM gives at most 0.32 on noise and 0.24 on moving gradients."""
_FIRST_WAIT_FRAMES = 16
"""Frames before the host first waits for the GPU's result; then twice as many, and so on: once for nearly every video,
and ten times for an hour without people."""


class PeopleSeen:
    """Checks mattes until a person is found.

    Call ``look_at_finished`` on any thread, ``look_at_small`` and ``finish`` on one.

    Args:
        is_anybody: True to skip all checks.
    """

    def __init__(self, *, is_anybody: bool = False) -> None:
        self.is_anybody = is_anybody
        """True once somebody was found; for mattes on a GPU, once the host waited for the result."""
        self._most: Any = None
        """On the GPU: the largest alpha since the host last waited."""
        self._frames_since, self._wait_after = 0, _FIRST_WAIT_FRAMES

    def look_at_finished(self, alpha: Plane) -> None:
        """Check the finished alpha of a frame.

        Args:
            alpha: uint8 [H, W] 0..255 or uint16 0..65535, in the host's memory.
        """
        # Only ever set to True: another thread may have found somebody meanwhile.
        if not self.is_anybody and alpha.max() >= _SEEN * np.iinfo(alpha.dtype).max:
            self.is_anybody = True

    def look_at_small(self, alphas: Iterable[Any]) -> None:
        """Check the small mattes of the next frames; those on a GPU are checked on the current stream.

        Args:
            alphas: NumPy or CuPy float [E, h, w], 0..1, one for each frame; not iterated once somebody was found.
        """
        if self.is_anybody:
            return
        for alpha in alphas:
            if not is_on_gpu(alpha):
                self.is_anybody = self.is_anybody or bool(alpha.max() >= _SEEN)
                continue
            most = alpha.max(keepdims=True)
            self._most = most if self._most is None else np.maximum(self._most, most)  # CuPy's
            self._frames_since += 1
        if self._frames_since >= self._wait_after:
            self._wait_after *= 2
            self.finish()

    def finish(self) -> None:
        """Wait for the GPU's result, if one is pending."""
        if self._most is not None:
            self.is_anybody = self.is_anybody or bool(to_numpy(self._most).max() >= _SEEN)
            self._most, self._frames_since = None, 0
