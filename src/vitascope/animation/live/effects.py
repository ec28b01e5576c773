"""Effects on a live picture: the portrait on green, for chroma keying elsewhere; the driver in a corner."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.face import RgbPicture, TrackedFace
from vitascope.models.network import MattingNetwork

GREEN = (0, 177, 64)
"""Colour of green-screen cloth, R'G'B'."""
_SOFT_EDGE = (0.2, 0.9)
"""Alpha stretched to 0..1 against the halo of the small network's mattes, as in the profile ``fast``."""


class GreenScreen:
    """Puts a picture's person on green, matted frame by frame by the bundled network. Used by one thread.

    Args:
        network: A matting network for NHWC pictures in 0..1 that returns alpha; owned by the caller.
    """

    def __init__(self, network: MattingNetwork) -> None:
        self._network = network
        self._state = network.new_state()

    def __call__(self, rgb: RgbPicture) -> RgbPicture:
        """Put the person of uint8 [H, W, 3] on green; returns a new array."""
        height, width = rgb.shape[:2]
        wanted = self._network.input_for((height, width))
        small = cv2.resize(rgb, (wanted.size[1], wanted.size[0]), interpolation=cv2.INTER_AREA)
        images = np.multiply(small, np.float32(1 / 255), dtype=np.float32)[None, None]
        (estimate,) = self._network.infer(images, self._state)
        assert estimate.alpha is not None  # the selfie networks return alpha
        low, high = _SOFT_EDGE
        alpha = np.clip((estimate.alpha[0] - low) / (high - low), 0, 1)
        share = cv2.resize(np.asarray(alpha, np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
        green = np.empty_like(rgb)
        green[...] = GREEN
        return np.asarray(cv2.blendLinear(rgb, green, share, 1 - share), np.uint8)


def with_overlay(rgb: RgbPicture, driver: RgbPicture, face: TrackedFace) -> RgbPicture:
    """Draw the driver's picture and its landmarks, small, in the portrait's upper left corner.

    Args:
        rgb: The portrait, uint8 [H, W, 3]; unchanged.
        driver: The driver's picture, uint8 [h, w, 3].
        face: The face found in it, with landmarks in its pixels.

    Returns:
        A new array like ``rgb``.
    """
    height, width = rgb.shape[:2]
    scale = min(0.3 * width / driver.shape[1], 0.3 * height / driver.shape[0])
    size = max(round(driver.shape[1] * scale), 1), max(round(driver.shape[0] * scale), 1)
    small = cv2.resize(driver, size, interpolation=cv2.INTER_AREA)
    for x, y in face.landmarks[:, :2] * scale:
        cv2.circle(small, (round(float(x)), round(float(y))), 1, (90, 255, 120), -1, cv2.LINE_AA)
    made = rgb.copy()
    made[: size[1], : size[0]] = small
    return made
