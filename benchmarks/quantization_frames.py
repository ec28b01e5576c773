"""Real frames for calibration and comparison, and alpha from RVM's coefficients at the network's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

__all__ = ["EXAMPLE", "alpha_of", "clip_pictures"]

EXAMPLE = Path(__file__).parents[1] / "examples" / "astronaut_sbs.mp4"
"""The stereo clip of the examples: NASA's portrait of an astronaut, moving before a made background."""


def clip_pictures(clip: Path, count: int, size: tuple[int, int], *, every: int = 2) -> np.ndarray:
    """Frames of a clip as a network's pictures: float32 [T, 1, 3, h, w], RGB 0..1; the left eye of the example."""
    pictures = []
    with av.open(str(clip)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index % every:
                continue
            rgb = frame.to_ndarray(format="rgb24")
            if clip == EXAMPLE:
                rgb = rgb[:, : rgb.shape[1] // 2]
            small = cv2.resize(rgb, size[::-1], interpolation=cv2.INTER_AREA)
            pictures.append(small.transpose(2, 0, 1)[None].astype(np.float32) / 255)
            if len(pictures) == count:
                break
    return np.stack(pictures)


def alpha_of(gain: Any, offset: Any, pictures: Any) -> Any:
    """Alpha [..., h, w], 0..1, of coefficients [..., 4, h, w] and their pictures [..., 3, h, w]."""
    grey = pictures.mean(axis=-3)
    return np.clip(gain[..., 3, :, :] * grey + offset[..., 3, :, :], 0, 1)
