"""Whether anybody at all was found in a video: an output of background alone surprises who made it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.interchange import to_numpy

_SEEN = 0.5
"""Share of full alpha from which on somebody is there. RVM gives 0.32 of noise and 0.24 of moving gradients at most."""
_FIRST_LOOK_FRAMES = 16
"""A GPU is waited for after so many frames without a look at what was found, then after twice as many, and so on: once
for nearly every video, and ten times for an hour of nobody."""


class PeopleSeen:
    """Looks at mattes until somebody is found, and at none from then on.

    ``add_alpha`` may be called by any thread, ``add_on_gpu`` and ``finish`` by one.
    """

    def __init__(self) -> None:
        self.is_anybody = False
        """True once somebody was found; in mattes on a GPU, once it was waited for."""
        self._most: Any = None
        """On the GPU: the largest alpha since the host last looked."""
        self._frames_since, self._look_after = 0, _FIRST_LOOK_FRAMES

    def add_alpha(self, alpha: Plane) -> None:
        """Look at the finished alpha of a frame.

        Args:
            alpha: uint8 [H, W] 0..255 or uint16 0..65535, in the host's memory.
        """
        if not self.is_anybody:
            self.is_anybody = bool(alpha.max() >= _SEEN * np.iinfo(alpha.dtype).max)

    def add_on_gpu(self, alphas: Iterable[Any]) -> None:
        """Look at the small mattes of the next frames, on the current stream.

        Args:
            alphas: CuPy float [E, h, w], 0..1, one for each frame; not asked for once somebody was found.
        """
        if self.is_anybody:
            return
        for alpha in alphas:
            most = alpha.max(keepdims=True)
            self._most = most if self._most is None else np.maximum(self._most, most)  # by CuPy
            self._frames_since += 1
        if self._frames_since >= self._look_after:
            self._look_after *= 2
            self.finish()

    def finish(self) -> None:
        """Wait for what was found on a GPU, if anything is not known yet."""
        if self._most is not None:
            self.is_anybody = self.is_anybody or bool(to_numpy(self._most).max() >= _SEEN)
            self._most, self._frames_since = None, 0
