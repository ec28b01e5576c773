"""Continues a portrait beyond its border, where a head that moves away uncovers what lies there.

Read there, a mirrored picture would show the head, its hair or a forehead twice. So the picture is widened before the
portrait is prepared: the colours along the border go on straight, more and more evenly, with the fine texture beside
them. Only the part within the border is drawn.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray, RgbPicture, TrackedFace
from vitascope.animation.mesh.layers import Patch
from vitascope.animation.mesh.rig import PortraitRig

_PERSON = 0.5
"""Minimum matte of a person."""
_MOST_BEYOND = 0.6
"""Maximum width of what is added on a side, in heights of the face: as far as a head is shifted."""
_NEAR = 0.35
"""Maximum distance of a person from the border, as a share of that width, at which they would be mirrored in it: places
farther out move less."""
_TEXTURE, _USUAL_PERCENT = 0.015, 75.0
"""Maximum size of texture, in heights of the face; and the percentile of texture above which a difference is an edge,
which does not go on."""
_BESIDE, _FADES = 0.04, 0.08
"""Width of the strip along the border whose texture goes on, mirrored to and fro; and the distance over which it fades
to a third, in heights of the face."""
_EVENER = 0.25
"""Distance along the border over which colours are mixed, as a standard deviation in distances from it: strands of hair
fade before they look like stripes."""


class Widened(NamedTuple):
    """A portrait that goes on beyond its border."""

    rgb: RgbPicture
    """uint8 [H, W, 3]."""
    face: TrackedFace
    """The face in that picture."""
    person: FloatArray
    """float32 [H, W], 0..1: the person, who goes on beyond the border."""
    person_seen: FloatArray
    """The same, with 0 beyond the border."""
    shown: Patch
    """Place of the original picture."""
    box: tuple[int, int, int, int]
    """Left, top, right, bottom of what can move within the original picture."""


def widened(rgb: RgbPicture, face: TrackedFace, rig: PortraitRig, matte: FloatArray) -> Widened | None:
    """Continue a portrait on the sides where the person reaches its border, or would be mirrored in it.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        face: Its face.
        rig: Its rig.
        matte: float32 [H, W], 0..1: the person; see ``find_person``.

    Returns:
        None if there are none.
    """
    margins = _margins(rig, matte)
    if not any(margins):
        return None
    left, top, right, bottom = margins
    height, width = matte.shape
    made = np.dstack((rgb, 255 * matte)).astype(np.float32)
    for margin in (top, left, bottom, right):
        # The side in turn is the upper one.
        made = np.rot90(_continued_above(made, margin, rig.face_height), -1)
    return Widened(
        np.ascontiguousarray(made[..., :3].clip(0, 255).round().astype(np.uint8)),
        replace(
            face,
            landmarks=face.landmarks + np.array([left, top, 0], np.float32),
            picture_size=(left + width + right, top + height + bottom),
        ),
        np.ascontiguousarray(made[..., 3].clip(0, 255)) * np.float32(1 / 255),
        np.pad(matte, ((top, bottom), (left, right))),
        Patch(left, top, width, height),
        (rig.box[0] + left, rig.box[1] + top, rig.box[2] + left, rig.box[3] + top),
    )


def _margins(rig: PortraitRig, matte: FloatArray) -> tuple[int, int, int, int]:
    """Pixels by which a picture goes on to the left, above, to the right and below."""
    height, width = rig.size
    outer = rig.rings.sources[-1]  # does not move
    low, high = outer.min(axis=0), outer.max(axis=0)
    left, top, right, bottom = rig.box
    person = matte[top:bottom, left:right] > _PERSON
    most = _MOST_BEYOND * rig.face_height

    def margin(beyond: float, columns: npt.NDArray[np.bool_]) -> int:
        wide = max(math.ceil(min(beyond, most)), 0)
        return wide if columns[: round(_NEAR * wide)].any() else 0

    across, down = (np.logical_or.reduce(person, axis=axis) for axis in (0, 1))
    return (
        margin(-low[0], across),
        margin(-low[1], down),
        margin(high[0] + 1 - width, across[::-1]),
        margin(high[1] + 1 - height, down[::-1]),
    )


def _continued_above(picture: FloatArray, count: int, face_height: float) -> FloatArray:
    """A picture, float32 [h, w, C], with ``count`` more rows above it; ``face_height`` is in pixels."""
    if not count:
        return picture
    strip = max(min(round(_BESIDE * face_height), len(picture) - 1), 1)
    texture = max(_TEXTURE * face_height, 0.5)
    beside = picture[: strip + math.ceil(3 * texture) + 1]
    coarse = cv2.GaussianBlur(beside, (0, 0), texture, borderType=cv2.BORDER_REPLICATE)
    fine = (beside - coarse)[: strip + 1]
    usual = np.percentile(np.abs(fine), _USUAL_PERCENT, axis=(0, 1))
    away = np.arange(count)
    to_and_fro = (strip - abs(away % (2 * strip) - strip)).clip(0, len(fine) - 1)
    fades = np.exp(-away / (_FADES * face_height))[:, None, None]
    made = fine[to_and_fro].clip(-usual, usual) * fades
    even = coarse[:1]
    made[0] += even[0]
    for row in range(1, count):
        # Deviations add up by their squares: from row to row, what is lacking.
        lacking = _EVENER * math.sqrt(2 * row - 1)
        even = cv2.GaussianBlur(even, (0, 0), lacking, borderType=cv2.BORDER_REPLICATE)
        made[row] += even[0]
    return np.concatenate((made[::-1], picture)).astype(np.float32)
