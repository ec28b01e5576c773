"""Whom to believe in a wide frame: the selfie network made for wide frames, or the general one.

The landscape network draws whole bodies better, and loses people who are near the camera without a visible head; the
general network, shown the frame stretched, keeps them. The surer of the two is mostly the better one
(``docs/networks.md`` has the figures). Both are asked on a stream's first claim, when the matte jumps, and every
``INTERVAL`` frames; in between the one that was surer is asked alone.
"""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.models.network import FloatArray
from vitascope.models.selfie.presence_classifier import Claimant, certainty_and_extent

__all__ = ["WideFrameChoice", "overlap"]

INTERVAL, MIN_INTERVAL = 48, 3
"""Frames between two comparisons: while the matte is steady, and at the very least."""
CLAIMED, NEAR = 0.001, 0.15
"""Parts of the frame above .5: below the first nobody is asked, from the second on the general network may speak."""
STICKINESS = 0.05
"""By so much surer the other one must be to take over from a general network that is asked already."""
CONTINUOUS_OVERLAP = 0.5
_THUMBNAIL = (32, 32)


class WideFrameChoice:
    """One wide stream's choice; all its eyes have the same network."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to the landscape network; both are asked at the next claim."""
        self.claimant: Claimant = "landscape"
        self._frames_since = 1_000_000
        self._thumbnail: FloatArray | None = None

    def is_due(self, alpha: FloatArray) -> bool:
        """Whether this time step is one to compare at; to be called once for each.

        Args:
            alpha: float32 [E, h, w], 0..1: the mattes of the network that is asked.
        """
        self._frames_since += 1
        if self._frames_since < INTERVAL and self._frames_since % MIN_INTERVAL:
            return False  # looking for jumps at every third frame is enough, and costs a third
        if np.count_nonzero(alpha > 0.5) < CLAIMED * alpha.size:
            return False
        thumbnail = np.stack([cv2.resize(eye, _THUMBNAIL, interpolation=cv2.INTER_AREA) for eye in alpha])
        jumped = self._thumbnail is None or overlap(self._thumbnail, thumbnail) < CONTINUOUS_OVERLAP
        self._thumbnail = thumbnail
        return self._frames_since >= (MIN_INTERVAL if jumped else INTERVAL)

    def compare(self, landscape: FloatArray, general: FloatArray) -> None:
        """Compare both networks' mattes of one time step, float32 [E, h, w], 0..1, and go on with the surer one."""
        self._frames_since = 0
        sure, surer = (np.mean([certainty_and_extent(eye)[0] for eye in m]) for m in (landscape, general))
        margin = STICKINESS if self.claimant == "general" else 0.0
        near = np.count_nonzero(general > 0.5) > NEAR * general.size
        self.claimant = "general" if near and surer > sure - margin else "landscape"


def overlap(one: FloatArray, other: FloatArray) -> float:
    """Intersection over union of two mattes of one shape, 0..1; a few pixels' worth counts as none."""
    floor = 3e-4 * one.size
    return float(np.minimum(one, other).sum() / (np.maximum(one, other).sum() + floor))
