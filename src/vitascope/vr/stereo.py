"""Which part of a frame each eye sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import StereoLayout, VideoInfo
from vitascope.gpu.kernels.region import Region
from vitascope.vr.file_names import read_name
from vitascope.vr.projection import Lens

NO_SIGN = "no sign of stereo"


@dataclass(frozen=True, slots=True)
class DetectedLayout:
    """A stereo layout, and how it is known."""

    layout: StereoLayout
    reason: str
    """For people: ``declared``, ``stereo box``, ``file name (_SBS)`` or ``NO_SIGN``."""
    doubt: str | None = None
    """A note to check the layout, because nothing is sure; None otherwise."""


def detect_layout(info: VideoInfo, declared: StereoLayout | None = None) -> DetectedLayout:
    """The stereo layout of a video: what the user declared, else the container's box, else the file name.

    Args:
        info: The video; its ``stereo`` and ``path`` are looked at.
        declared: The user's choice; None finds out.
    """
    if declared is not None:
        return DetectedLayout(declared, "declared")
    if info.stereo is not None:
        return DetectedLayout(info.stereo, "stereo box")
    return _from_name(info.path)


# Two eyes of one scene: the median block of one half is found in the other at 0.88 and more (rectified photographs,
# warped and noisy videos), in halves of one picture at 0.63 at most.
_SAME_SCENE, _ALIKE = 0.8, 0.7
_SIDE_SAMPLES, _BLOCK_SAMPLES = 128, 16
_PARALLAX_SHARE, _MISALIGNED_SAMPLES = 0.08, 2
_LEAST_CONTRAST, _LEAST_BLOCKS = 4.0, 8


def possible_layout(width: int, height: int) -> StereoLayout | None:
    """The stereo layout that a frame of this shape may have without saying so; None for shapes of plain video."""
    if width >= 1.9 * height:
        return StereoLayout.SIDE_BY_SIDE
    # Eyes of 2:1 (360 degrees), or square ones (180 degrees) one above the other.
    is_top_bottom = 0.85 * height <= width <= 1.1 * height or 2 * width == height
    return StereoLayout.TOP_BOTTOM if is_top_bottom else None


def compare_halves(pictures: Sequence[npt.NDArray[np.uint8]], layout: StereoLayout) -> DetectedLayout | None:
    """Look whether the halves of some frames are two views of one scene.

    Blocks of one half are looked for in the other, a little to the left and right, by normalised cross-correlation.

    Args:
        pictures: Luma of frames of one video, uint8 [h, w], any size.
        layout: How they may be shared.

    Returns:
        The layout where they are; ``MONO`` with a doubt where they may be, as in all upright pictures whose halves
        are alike; None if they are not.
    """
    alike = halves_alike(pictures, layout)
    if alike in ("no", "unseen"):
        return None
    # Telephones film at 1:2, too, and a curtain or bricks look the same above and below.
    height, width = pictures[0].shape
    if alike == "yes" and height < 1.5 * width:
        return DetectedLayout(layout, "both halves show the same scene")
    flag = "sbs" if layout is StereoLayout.SIDE_BY_SIDE else "tb"
    return DetectedLayout(
        StereoLayout.MONO,
        NO_SIGN,
        f"the halves look alike, but not enough to be sure that they are two eyes: --stereo {flag} says so, "
        "--stereo mono that they are not",
    )


def halves_alike(
    pictures: Sequence[npt.NDArray[np.uint8]], layout: StereoLayout
) -> Literal["yes", "maybe", "no", "unseen"]:
    """True if the halves of some frames are two views of one scene, see ``compare_halves``; ``unseen`` in the dark."""
    scores = [score for picture in pictures if (score := _likeness(picture, layout)) is not None]
    if len(scores) < max(len(pictures) // 2, 1):
        return "unseen"  # dark, or without any texture
    score = float(np.median(scores))
    return "yes" if score >= _SAME_SCENE else "maybe" if score >= _ALIKE else "no"


def _likeness(picture: npt.NDArray[np.uint8], layout: StereoLayout) -> float | None:
    height, width = picture.shape
    first, second = (
        cv2.resize(
            picture[eye.rows, eye.columns], (_SIDE_SAMPLES, _SIDE_SAMPLES), interpolation=cv2.INTER_AREA
        ).astype(np.float32)
        for eye in eye_regions(width, height, layout)
    )
    reach = int(_SIDE_SAMPLES * _PARALLAX_SHARE)
    padding = cv2.copyMakeBorder(
        second, _MISALIGNED_SAMPLES, _MISALIGNED_SAMPLES, reach, reach, cv2.BORDER_REPLICATE
    )
    scores = []
    for top in range(0, _SIDE_SAMPLES, _BLOCK_SAMPLES):
        for left in range(0, _SIDE_SAMPLES, _BLOCK_SAMPLES):
            block = first[top : top + _BLOCK_SAMPLES, left : left + _BLOCK_SAMPLES]
            _, contrast = cv2.meanStdDev(block)  # a tenth of what NumPy takes for so few samples
            if contrast.item() < _LEAST_CONTRAST:
                continue
            around = padding[
                top : top + _BLOCK_SAMPLES + 2 * _MISALIGNED_SAMPLES, left : left + _BLOCK_SAMPLES + 2 * reach
            ]
            scores.append(float(cv2.matchTemplate(around, block, cv2.TM_CCOEFF_NORMED).max()))
    return float(np.median(scores)) if len(scores) >= _LEAST_BLOCKS else None


def eye_regions(width: int, height: int, layout: StereoLayout) -> list[Region]:
    """The luma rectangle of each eye, first eye first; together they cover the frame.

    An odd width or height gives its extra column or row to the first eye.
    """
    if layout is StereoLayout.SIDE_BY_SIDE and width >= 2:
        first = width - width // 2
        return [Region(0, 0, first, height), Region(first, 0, width - first, height)]
    if layout is StereoLayout.TOP_BOTTOM and height >= 2:
        first = height - height // 2
        return [Region(0, 0, width, first), Region(0, first, width, height - first)]
    return [Region(0, 0, width, height)]


def disparity_curves(
    lens: Lens | None, size: tuple[int, int], most: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Where one eye's samples lie in the other eye's picture, as a cubic in the disparity.

    Disparity is the distance between the eyes over that of a thing, in radians where the lens is known; else it is the
    thing's shift as a share of the picture's width.

    Args:
        lens: Projection of both eyes' pictures; None takes things to move along rows alone.
        size: (height, width) of the pictures.
        most: Largest disparity that will be asked for.

    Returns:
        float32 [2, 6, h, w], as ``gpu.kernels.stereo_match`` takes them, the left eye's first; and float32 [2, h, w]:
        1 where the other eye shows the sample's thing at every disparity up to ``most``, else 0, and the curve too.
    """
    height, width = size
    curves = np.zeros((2, 6, height, width), np.float32)
    shown = np.ones((2, height, width), np.float32)
    if lens is None:
        curves[0, 0], curves[1, 0] = -width, width
        return curves, shown
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    rays = lens.unproject(x, y)
    tried = most * np.array([1, 2, 3]) / 3
    powers = np.linalg.inv(tried[:, None] ** np.array([1, 2, 3]))
    for eye, direction in enumerate((-1, 1)):
        moved = []
        for disparity in tried:
            seen = rays.copy()
            seen[0] += direction * disparity
            with np.errstate(invalid="ignore"):
                places = lens.project(seen)
            moved.append([(places[0] - x) * width, (places[1] - y) * height])
        factors = np.tensordot(powers, np.array(moved), axes=1)  # [power, axis, h, w]
        visible = np.isfinite(factors).all(axis=(0, 1))
        shown[eye] = visible
        curves[eye] = np.where(visible, factors, 0).swapaxes(0, 1).reshape(6, height, width)
    return curves, shown


def _from_name(path: Path) -> DetectedLayout:
    name = read_name(path.stem)
    if name.layout is not None:
        return DetectedLayout(name.layout, f"file name ({name.layout_word})")
    if name.layout_word:
        return DetectedLayout(
            StereoLayout.MONO, f"{name.layout_word} alone is no sign of stereo; --stereo tb says it is"
        )
    return DetectedLayout(StereoLayout.MONO, NO_SIGN)
