"""Separates a portrait's person from the background, and fills in what the person hides.

Bent as one surface, a picture would drag its background along: straight lines beside a turning head would bend. So the
person is a separate layer over the background, which stays in place. A bundled network finds the person. What they hide
continues the background beside them: its colours smoothly, its texture mirrored at their outline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import FACE_OVAL
from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.layers import Patch, patch_around
from vitascope.animation.mesh.rig import PortraitRig
from vitascope.config import vitascope_home
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.models.store.store import ModelStore

_SEEN_AROUND = 0.25
"""Margin on each side of the part that can move, in widths of that part, so that the network sees head and
shoulders."""
_SEEN_SIDE = 256
"""Side of the network's input, in pixels."""
_CUT_SIDE = 320
"""Longer side, in pixels, of the picture in which the edge of hair is found by colour; takes 0.15 s."""
_NOTHING, _EDGE_UNSURE = 0.1, (0.12, 0.05)
"""Value below which a matte is empty; and the distances outward and inward, in heights of the face, by which its edge
may be wrong."""
_SOFT_EDGE, _UNSURE = 1.0, (0.2, 0.8)
"""Softness of the edge in pixels at that size, and the values of it that become 0 and 1."""
_FACE_COVERED = 0.9
"""Minimum share of the face that a valid matte covers."""
_LEAST_BACKGROUND = 0.02
"""Minimum share of visible background to continue from."""
_BEYOND = 0.04
"""Maximum distance from the matte, in heights of the face, of hair that it missed, which is found by colour."""
_RINGS, _COMPARED = ((0.5, 8), (1.0, 12), (1.75, 12), (2.5, 16)), 4000
"""Samples that a place is compared with, on circles around it: radius in units of that distance, and number of places;
and the number of background samples used to measure how much the background varies."""
_SMOOTH, _USUAL_PERCENT = 0.06, 97.0
"""Maximum size of texture, in heights of the face; and the percentile of texture above which a difference is something
else."""
_AT_EDGE = 0.5
"""Distance from the edge, as a share of that size, over which the fill changes from the colours beside it to its
own."""
_BAND_ROWS, _LEAST_GAP_PX = 128, 32
"""Rows that are laid over the background at a time; and the minimum width of a part of the person, between both sides
of the background, that is skipped because it hides it. At 1080 lines that is half of the samples."""


@dataclass(frozen=True, slots=True, eq=False)
class CutPortrait:
    """A portrait split into the person and the background behind them."""

    rgba: npt.NDArray[np.uint8]
    """uint8 [H, W, 4]: the person's colours times cover, and the cover."""
    behind: RgbPicture
    """uint8 [h, w, 3]: the background, within ``patch``."""
    patch: Patch
    """The part that can move."""
    is_whole: bool
    """True if the person covers all of the patch."""

    def over_background(self, layer: npt.NDArray[np.uint8], *, out: RgbPicture) -> None:
        """Lay the drawn person over the background.

        Args:
            layer: uint8 [h, w, 4] within ``patch``, colours times cover.
            out: uint8 [h, w, 3], modified in place.
        """
        cv2.cvtColor(layer, cv2.COLOR_RGBA2RGB, dst=out)
        if self.is_whole:
            return
        for top in range(0, len(layer), _BAND_ROWS):
            rows = np.s_[top : top + _BAND_ROWS]
            cover = np.asarray(cv2.extractChannel(layer[rows], 3), np.uint8)
            for columns in _beside_the_person(cover):
                area = out[rows, columns]
                cv2.add(area, _seen_through(cover[:, columns], self.behind[rows, columns]), dst=area)

    def folded(self, patch: Patch, rgb: RgbPicture, now: RgbPicture) -> npt.NDArray[np.uint8]:
        """A part of ``rgba``, with the portrait (``rgb``, uint8 [H, W, 3]) changed to ``now`` (uint8 [h, w, 3])."""
        made = patch.of(self.rgba).copy()
        made[..., :3] = np.clip(made[..., :3] + (now.astype(np.int16) - patch.of(rgb)), 0, 255)
        return made


def _beside_the_person(cover: npt.NDArray[np.uint8]) -> list[slice]:
    """Columns of cover (uint8 [h, w]) through which the background shows, without the widest gap between them."""
    seen = np.flatnonzero(cover.min(axis=0) < 255)
    if not len(seen):
        return []
    steps = np.diff(seen)
    if not len(steps) or steps.max() < _LEAST_GAP_PX:
        return [np.s_[seen[0] : seen[-1] + 1]]
    last = int(steps.argmax())
    return [np.s_[seen[0] : seen[last] + 1], np.s_[seen[last + 1] : seen[-1] + 1]]


def _seen_through(cover: npt.NDArray[np.uint8], behind: RgbPicture) -> RgbPicture:
    """What shows of a background behind cover (uint8 [h, w])."""
    share = cv2.cvtColor(cv2.bitwise_not(cover), cv2.COLOR_GRAY2RGB)
    return np.asarray(cv2.multiply(behind, share, scale=1 / 255), np.uint8)


def find_person(rgb: RgbPicture, rig: PortraitRig) -> FloatArray | None:
    """Find the person to whom a rig's face belongs.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        rig: The portrait's rig.

    Returns:
        The matte, float32 [H, W], 0..1, with 1 outside of what the network saw. None if something other than this
        person was found, as in statues and drawings, or if there is no background.
    """
    left, top, right, bottom = rig.box
    box = np.array([[left, top], [right - 1, bottom - 1]], np.float32)
    patch = patch_around(box, margin=_SEEN_AROUND * (right - left), size=rig.size)
    if patch is None:
        return None
    small = cv2.resize(patch.of(rgb), (_SEEN_SIDE, _SEEN_SIDE), interpolation=cv2.INTER_AREA)
    with OnnxRuntimeEngine(ModelStore(vitascope_home()).path("selfie")) as network:
        (given,), (asked,) = network.spec.inputs, network.spec.outputs
        found = network.run({given.name: small[None].astype(np.float32) / 255}, [asked.name])[asked.name][
            0, ..., 0
        ]
    matte = np.ones(rig.size, np.float32)
    by_colour = _by_colour(patch.of(rgb), found, rig.face_height)
    matte[patch.top : patch.top + patch.height, patch.left : patch.left + patch.width] = by_colour
    face = np.zeros(rig.size, np.uint8)
    oval = np.rint(rig.face.landmarks[list(FACE_OVAL), :2]).astype(np.int32)
    cv2.fillPoly(face, [oval], 1)
    inside = matte[top:bottom, left:right]
    if matte[face > 0].size == 0 or matte[face > 0].mean() < _FACE_COVERED:
        return None
    return matte if (inside < 0.5).mean() >= _LEAST_BACKGROUND else None


def _by_colour(rgb: RgbPicture, found: FloatArray, face_height: float) -> FloatArray:
    """Move the edge of a network's matte to where the colours of person and background differ.

    Args:
        rgb: uint8 [h, w, 3].
        found: float32, the network's matte of it, in any size.
        face_height: Pixels.

    Returns:
        float32 [h, w], 0..1.
    """
    height, width = rgb.shape[:2]
    scale = min(_CUT_SIDE / max(height, width), 1.0)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    picture = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA)
    alpha = cv2.resize(found, size, interpolation=cv2.INTER_LINEAR)
    unsure = (np.array(_EDGE_UNSURE) * face_height * scale).round().astype(int).clip(1)
    outward, inward = (
        cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
        for reach in unsure.tolist()
    )
    near = cv2.dilate((alpha > _NOTHING).astype(np.uint8), outward) > 0
    core = cv2.erode((alpha > 1 - _NOTHING).astype(np.uint8), inward) > 0
    classes = np.where(alpha > 0.5, cv2.GC_PR_FGD, cv2.GC_PR_BGD)
    classes = np.where(core, cv2.GC_FGD, np.where(near, classes, cv2.GC_BGD)).astype(np.uint8)
    if core.any() and not near.all():
        cv2.setRNGSeed(0)  # the same cut in every run
        models = np.zeros((2, 1, 65))
        cv2.grabCut(picture, classes, (0, 0, 1, 1), models[0], models[1], 3, cv2.GC_INIT_WITH_MASK)
    person = ((classes == cv2.GC_FGD) | (classes == cv2.GC_PR_FGD) | (alpha > 0.5)).astype(np.float32)
    soft = cv2.resize(
        cv2.GaussianBlur(person, (0, 0), _SOFT_EDGE), (width, height), interpolation=cv2.INTER_LINEAR
    )
    low, high = _UNSURE
    return np.asarray(np.clip((soft - low) / (high - low), 0, 1), np.float32)


def uncut(rgb: RgbPicture, rig: PortraitRig) -> CutPortrait:
    """A portrait as one surface, without a background."""
    left, top, right, bottom = rig.box
    cover = np.full((*rgb.shape[:2], 1), 255, np.uint8)
    behind = np.ascontiguousarray(rgb[top:bottom, left:right])
    rgba = np.ascontiguousarray(np.concatenate((rgb, cover), axis=-1))
    return CutPortrait(rgba, behind, Patch(left, top, right - left, bottom - top), True)


def cut_out(rgb: RgbPicture, rig: PortraitRig, matte: FloatArray) -> CutPortrait:
    """Cut a person out of a portrait, and fill in the background.

    At rest, both layers show the portrait unchanged: where the matte is too low for that, it is raised.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        rig: The portrait's rig.
        matte: float32 [H, W], 0..1; see ``find_person``.
    """
    made = uncut(rgb, rig)
    patch = made.patch
    seen, alpha = patch.of(rgb), matte[patch.top :, patch.left :][: patch.height, : patch.width]
    reach = max(1, round(_BEYOND * rig.face_height))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    smooth = _SMOOTH * rig.face_height
    near = cv2.dilate((alpha > 1 / 255).astype(np.uint8), disc) > 0
    hidden = near & ((alpha > 1 / 255) | _like_person(seen.astype(np.float32), alpha, near, reach))
    # Islands within the hidden part do not count as background: they would be specks in the fill.
    _, parts = cv2.connectedComponents((~hidden).astype(np.uint8), connectivity=4)
    hidden = ~np.isin(parts, np.unique(parts[~near]))
    behind = _continued(seen, ~hidden, smooth)
    colours, back = seen.astype(np.float32), behind.astype(np.float32)
    least = np.maximum((colours - back) / np.maximum(255 - back, 1), (back - colours) / np.maximum(back, 1))
    cover = np.ceil(np.clip(np.maximum(alpha, least.max(axis=-1)), 0, 1) * 255).astype(np.uint8)
    for _ in range(2):  # corrects rounding
        left_over = seen.astype(np.int16) - _seen_through(cover, behind)
        too_little = (left_over < 0).any(axis=-1) & (cover < 255)
        cover[too_little] += 1
    left_over = seen.astype(np.int16) - _seen_through(cover, behind)
    area = made.rgba[patch.top :, patch.left :][: patch.height, : patch.width]
    area[..., :3], area[..., 3] = np.clip(left_over, 0, 255), cover
    return CutPortrait(made.rgba, behind, patch, bool((cover == 255).all()))


def _like_person(
    colours: FloatArray, alpha: FloatArray, near: npt.NDArray[np.bool_], reach: int
) -> npt.NDArray[np.bool_]:
    """Find places beside a person that have the person's colours, and are connected to them.

    Places are compared with samples of both around them instead of mean colours: where a white flag meets a dark coat
    behind a white collar, the background's mean is neither, and parts of both stuck to the head.

    Args:
        colours: float32 [h, w, 3]: the portrait's.
        alpha: float32 [h, w], 0..1: the person's matte.
        near: bool [h, w]: places that are the person, or may be.
        reach: Distance from the matte to which they may be, in pixels.

    Returns:
        bool [h, w], widened by a pixel.
    """
    if near.all():
        return near
    is_person, is_behind = alpha > _UNSURE[1], ~near
    asked = np.nonzero(near & (alpha <= 1 / 255))
    of_person, behind = (_least_difference(colours, known, asked, reach) for known in (is_person, is_behind))
    # A strand of hair, or a blurred edge, differs more from the background than the background varies.
    beside = np.transpose(np.nonzero(is_behind & _grown(near, reach)))
    some = tuple(beside[:: max(len(beside) // _COMPARED, 1)].T)
    own = _least_difference(colours, is_behind, some, reach)
    usual = np.percentile(own, _USUAL_PERCENT) if len(own) else 0.0
    like = alpha > 1 / 255
    like[asked] = behind > np.maximum(of_person, usual)
    _, parts = cv2.connectedComponents(_grown(like, 1).astype(np.uint8))
    return np.asarray((parts > 0) & np.isin(parts, np.unique(parts[is_person])))


def _grown(mask: npt.NDArray[np.bool_], reach: int) -> npt.NDArray[np.bool_]:
    """Widen a mask by ``reach`` pixels."""
    return np.asarray(
        cv2.dilate(mask.astype(np.uint8), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)) > 0
    )


def _least_difference(
    colours: FloatArray,
    known: npt.NDArray[np.bool_],
    asked: tuple[npt.NDArray[np.intp], ...],
    reach: int,
) -> FloatArray:
    """Smallest difference of places (rows, columns) from known samples around them.

    Returns:
        float32 [N], in codes; infinite where nothing around is known.
    """
    rows, columns = asked
    least = np.full(len(rows), np.inf, np.float32)
    own = colours[rows, columns]
    for step, count in _RINGS:
        angles = np.arange(count) * (2 * np.pi / count) + step
        for down, across in np.rint(step * reach * np.stack((np.sin(angles), np.cos(angles)), -1)).astype(
            int
        ):
            y, x = rows + down, columns + across
            inside = (y >= 0) & (y < known.shape[0]) & (x >= 0) & (x < known.shape[1])
            at = np.flatnonzero(inside)
            at = at[known[y[at], x[at]]]
            difference = np.linalg.norm(colours[y[at], x[at]] - own[at], axis=-1)
            least[at] = np.minimum(least[at], difference)
    return least


def _continued(seen: RgbPicture, known: npt.NDArray[np.bool_], smooth: float) -> RgbPicture:
    """Fill the unknown part of a picture by continuing the known one.

    Args:
        seen: uint8 [h, w, 3].
        known: [h, w].
        smooth: Maximum size of texture, in pixels.
    """
    if not known.any():
        return seen.copy()
    colours = seen.astype(np.float32)
    soft = _spread(colours, known.astype(np.float32), smooth)
    # Mirror each place at the edge. Away from the edge, its smooth course is used: mirroring at every strand of hair
    # would give a fan of streaks.
    away, nearest = cv2.distanceTransformWithLabels(
        (~known).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    even = cv2.GaussianBlur(away, (0, 0), max(smooth, 0.5))
    slope = np.stack((cv2.Sobel(even, cv2.CV_32F, 0, 1), cv2.Sobel(even, cv2.CV_32F, 1, 0)), axis=-1)
    height, width = known.shape
    y, x = np.nonzero(~known)
    inward = slope[y, x] / np.maximum(np.linalg.norm(slope[y, x], axis=-1, keepdims=True), 1e-6)
    depth = away + (even - away) * np.clip(away / max(smooth, 1.0), 0, 1)
    mirror = np.rint(np.stack((y, x), -1) - 2 * depth[y, x, None] * inward).astype(np.intp)
    mirror_y, mirror_x = mirror.T
    there = (mirror_y >= 0) & (mirror_y < height) & (mirror_x >= 0) & (mirror_x < width)
    mirror_y, mirror_x = mirror_y.clip(0, height - 1), mirror_x.clip(0, width - 1)
    there &= known[mirror_y, mirror_x]
    texture = colours - soft
    # A missed strand of hair is not texture of the background.
    usual = np.percentile(np.abs(texture[known]), _USUAL_PERCENT)
    beyond = soft[y, x] + np.clip(texture[mirror_y, mirror_x], -usual, usual) * there[:, None]
    # At the edge, use the colours beside it, however much they differ from their surroundings: else a line shows.
    share = np.clip(away[y, x] / max(_AT_EDGE * smooth, 1.0), 0, 1)[:, None]
    places = np.zeros(int(nearest.max()) + 1, np.intp)
    places[nearest[known]] = np.flatnonzero(known)
    beside = colours.reshape(-1, 3)[places[nearest[y, x]]]
    made = seen.copy()
    made[y, x] = np.clip(np.rint(beside + (beyond - beside) * share), 0, 255)
    return made


def _spread(colours: FloatArray, share: FloatArray, smooth: float) -> FloatArray:
    """Smooth colours to ``smooth`` pixels, and spread them from where their share is 1 to everywhere else.

    Args:
        colours: float32 [h, w, 3].
        share: float32 [h, w], 0..1.
        smooth: Pixels.
    """
    levels: list[tuple[Any, Any]] = []
    weighted: Any = colours * share[..., None]
    weight: Any = share
    while min(weight.shape) > 1:
        levels.append((weighted, weight))
        weighted, weight = cv2.pyrDown(weighted), cv2.pyrDown(weight)
    made: Any = weighted / np.maximum(weight, 1e-6)[..., None]
    finest = round(np.log2(max(smooth, 1)))
    for level in range(len(levels) - 1, -1, -1):
        weighted, weight = levels[level]
        size = weight.shape[::-1]
        made = cv2.pyrUp(made.astype(np.float32), dstsize=size)
        if level >= finest:
            made = weighted + made * (1 - np.clip(weight, 0, 1))[..., None]
    return np.asarray(made, np.float32)
