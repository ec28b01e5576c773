"""The driver in a corner of the portrait, with what the tracker found."""

from __future__ import annotations

import cv2

from vitascope.animation.face import RgbPicture, TrackedFace

__all__ = ["with_overlay"]


def with_overlay(rgb: RgbPicture, driver: RgbPicture, face: TrackedFace) -> RgbPicture:
    """The portrait with the driver's picture and its landmarks, small, in its upper left corner.

    Args:
        rgb: The portrait, uint8 [H, W, 3]; not changed.
        driver: The driver's picture, uint8 [h, w, 3].
        face: What was found in it; landmarks in its pixels.

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
