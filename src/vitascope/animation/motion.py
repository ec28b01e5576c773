"""From tracked faces to motion: pose and shape taken apart, the neutral, smoothing, a lost face, the mirror image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from vitascope.animation.canonical_mesh import EYES, CanonicalMesh, EyeLandmarks, Pose, fit_pose
from vitascope.animation.expression import eyes_of
from vitascope.animation.face import (
    BLENDSHAPE_INDEX,
    BLENDSHAPES,
    MESH_VERTEX_COUNT,
    FaceMotion,
    FloatArray,
    RgbPicture,
    TrackedFace,
    rotation_from_vector,
    rotation_vector,
)
from vitascope.animation.one_euro import OneEuroFilter, cutoff_of_window
from vitascope.errors import UsageError

__all__ = [
    "AUTO_SECONDS",
    "CLOSED_OPENNESS",
    "FaceReading",
    "Mirror",
    "MotionEstimator",
    "Neutral",
    "eye_frame",
    "motion_between",
    "neutral_score",
    "read_face",
]

CLOSED_OPENNESS = 0.07
"""Height over width of a closed eye as MediaPipe places its lids: the least in two drivers that blink was 0.065 to
0.077 (right and left eye of both), beside 0.22 to 0.30 open."""
_WIDEST_CLOSURE = -0.6


@dataclass(frozen=True, slots=True, eq=False)
class FaceReading:
    """Head pose and face shape of one picture."""

    pose: Pose
    vertices: FloatArray
    """float32 [468, 3]: the face without its head's pose, canonical axes and centimetres."""
    openness: FloatArray
    """float32 [2]: height over width of the right and the left eye."""
    irises: FloatArray
    """float32 [2, 2]: right and left iris from the middle between the eye's corners, in widths of the eye; x to the
    picture's right and y down, along the eye's own axes."""
    blendshapes: FloatArray


def read_face(mesh: CanonicalMesh, face: TrackedFace) -> FaceReading:
    """Take a tracked face apart."""
    pose = fit_pose(mesh, face.landmarks)
    points = pose.unplace(face.landmarks)
    frames = [eye_frame(points, eye) for eye in EYES]
    openness, irises = [], []
    for eye, (middle, along, down) in zip(EYES, frames, strict=True):
        width = float(np.linalg.norm(along))
        gaps = points[list(eye.upper[2:-2])] - points[list(eye.lower[2:-2])]
        openness.append(float(np.linalg.norm(gaps, axis=1).mean()) / width)
        offset = points[eye.iris[0]] - middle
        irises.append([float(offset @ along) / width**2, float(offset @ down) / width**2])
    return FaceReading(
        pose,
        points[:MESH_VERTEX_COUNT],
        np.array(openness, np.float32),
        np.array(irises, np.float32),
        face.blendshapes,
    )


def eye_frame(points: FloatArray, eye: EyeLandmarks) -> tuple[FloatArray, FloatArray, FloatArray]:
    """An eye's own axes in the canonical space.

    Args:
        points: float32 [468 or more, 3], canonical axes.
        eye: Which one.

    Returns:
        The middle between the corners; the vector from the corner at the left of the picture to the one at the right;
        and one as long that points down across it.
    """
    outer, inner = points[eye.outer_corner], points[eye.inner_corner]
    left, right = (outer, inner) if eye is EYES[0] else (inner, outer)
    along = right - left
    down = np.array([along[1], -along[0], 0.0], np.float32)
    down *= np.linalg.norm(along) / max(float(np.linalg.norm(down)), 1e-6)
    return (left + right) / 2, along, down


def motion_between(
    neutral: FaceReading,
    now: FaceReading,
    *,
    face: TrackedFace,
    driver_rgb: RgbPicture | None = None,
) -> FaceMotion:
    """Take the difference from the neutral picture.

    Args:
        neutral: The driver at rest.
        now: The driver now.
        face: The tracked face that ``now`` was read from.
        driver_rgb: Its picture, for animators that read it.
    """
    range_of_closing = np.maximum(neutral.openness - CLOSED_OPENNESS, 0.04)
    closure = (neutral.openness - now.openness) / range_of_closing
    if now.blendshapes.any():
        # The blendshape network sees lids that the landmarks miss, and the other way round.
        closure = 0.4 * closure + 0.6 * eyes_of(now.blendshapes, neutral.blendshapes)[0]
    return FaceMotion(
        rotation=np.asarray(now.pose.rotation @ neutral.pose.rotation.T, np.float32),
        scale=now.pose.scale / neutral.pose.scale,
        translation=np.asarray((now.pose.shift - neutral.pose.shift)[:2] / neutral.pose.scale, np.float32),
        blendshapes=now.blendshapes,
        neutral_blendshapes=neutral.blendshapes,
        vertices=now.vertices - neutral.vertices,
        eye_closure=np.clip(closure, _WIDEST_CLOSURE, 1.0).astype(np.float32),
        gaze=now.irises - neutral.irises,
        pts_seconds=face.pts_seconds,
        face=face,
        driver_rgb=driver_rgb,
    )


Neutral = Literal["auto", "first"]
"""``auto``: the most frontal and calm face seen so far; ``first``: the first face."""

_HOLD_SECONDS = 0.3
"""Time for which a lost face keeps its expression: MediaPipe drops single pictures in a fast turn."""
_RELAX_SECONDS = 1.0
_CROSSFADE_SECONDS = 0.35
"""Time that it takes to go over to a face found again, or to another neutral."""
AUTO_SECONDS = 2.0
"""``auto`` looks this long for a better neutral, then keeps it."""

# Smoothing of a still head and face; beta lets motion through. Units a second: radians and head widths, centimetres.
_POSE_BETA = 6.0
_EXPRESSION_BETA = 5.0
_WEIGHT_BETA = 12.0
_FAST_HZ = 6.0
"""Cutoff of the speed that opens the filters of a face: in the 0.15 seconds of a blink 1 Hz would notice nothing."""

_CALM = (
    "jawOpen", "mouthSmileLeft", "mouthSmileRight", "mouthPucker", "mouthFunnel", "browInnerUp", "eyeBlinkLeft",
    "eyeBlinkRight", "mouthUpperUpLeft", "mouthUpperUpRight", "mouthLowerDownLeft", "mouthLowerDownRight",
)  # fmt: skip
_CALM_INDICES = [BLENDSHAPE_INDEX[name] for name in _CALM]


def neutral_score(face: TrackedFace) -> float:
    """Score how far a face is from frontal and calm; 0 is ideal.

    Ten degrees of yaw or pitch weigh as much as an expression weight of a third.
    """
    yaw, pitch, roll = face.angles_degrees
    turned = (yaw**2 + pitch**2 + 0.5 * roll**2) / 900
    return turned + float((face.blendshapes[_CALM_INDICES] ** 2).sum())


class MotionEstimator:
    """Makes motion of one driver's faces; state of one stream, used by one thread.

    Args:
        mesh: The canonical face.
        neutral: How the driver's neutral is found.
        pose_window: Frames that the head's pose is smoothed over when it stands still; 1 does not smooth.
        expression_window: The same for the face.
        frame_rate: Of the driver, to turn frames into time.
    """

    def __init__(
        self,
        mesh: CanonicalMesh,
        *,
        neutral: Neutral = "auto",
        pose_window: int = 5,
        expression_window: int = 5,
        frame_rate: float = 30.0,
    ) -> None:
        self._mesh = mesh
        self._mode: Neutral = neutral
        self._frame_rate = frame_rate
        self._neutral: FaceReading | None = None
        self._neutral_face: TrackedFace | None = None
        self._neutral_rgb: RgbPicture | None = None
        self._best: tuple[float, TrackedFace, RgbPicture | None] | None = None
        self._auto_until = -math.inf
        self._current: TrackedFace | None = None
        self._current_rgb: RgbPicture | None = None
        self._shown = FaceMotion(presence=0.0)  # nobody was seen yet
        self._has_begun = False
        self._fade_from: FaceMotion | None = None
        self._fade_start = 0.0
        self._lost_since: float | None = None
        self.set_smoothing(pose_window=pose_window, expression_window=expression_window)

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """Change the windows; what was smoothed so far is forgotten.

        Raises:
            UsageError: A window is smaller than 1.
        """
        if pose_window < 1 or expression_window < 1:
            raise UsageError(f"smoothing windows of {pose_window} and {expression_window} frames: at least 1")
        pose = cutoff_of_window(pose_window, frame_rate=self._frame_rate)
        expression = cutoff_of_window(expression_window, frame_rate=self._frame_rate)
        self._pose_filter = OneEuroFilter(min_cutoff_hz=pose, beta=_POSE_BETA)
        self._expression_filter = OneEuroFilter(
            min_cutoff_hz=expression, beta=_EXPRESSION_BETA, speed_cutoff_hz=_FAST_HZ
        )
        self._weight_filter = OneEuroFilter(
            min_cutoff_hz=expression, beta=_WEIGHT_BETA, speed_cutoff_hz=_FAST_HZ
        )

    # --- the neutral ------------------------------------------------------------------------------------------------

    @property
    def has_neutral(self) -> bool:
        """True once a face was taken for neutral."""
        return self._neutral is not None

    def set_neutral(self, face: TrackedFace | None = None, *, rgb: RgbPicture | None = None) -> bool:
        """Take a face for neutral from now on, smoothly.

        Args:
            face: Which; the one seen now when omitted.
            rgb: The picture that the face was tracked in, for animators that read it.

        Returns:
            False when no face is seen now.
        """
        if face is None:
            face, rgb = self._current, self._current_rgb
        if face is None:
            return False
        self._mode = "first"
        self._take_neutral(face, rgb)
        return True

    def find_neutral(self) -> bool:
        """Take the most frontal and calm face seen so far for neutral.

        Returns:
            False when no face was seen yet.
        """
        return self._best is not None and self.set_neutral(self._best[1], rgb=self._best[2])

    def _take_neutral(self, face: TrackedFace, rgb: RgbPicture | None) -> None:
        if self._neutral is not None:
            self._begin_fade(self._shown.pts_seconds)
        self._neutral = read_face(self._mesh, face)
        self._neutral_face, self._neutral_rgb = face, rgb

    def _watch(self, face: TrackedFace, rgb: RgbPicture | None) -> None:
        """Keep the best face seen; in the first moments of ``auto`` take it for neutral."""
        score = neutral_score(face)
        if self._neutral is None:
            self._best = (score, face, rgb)
            self._auto_until = face.pts_seconds + AUTO_SECONDS if self._mode == "auto" else -math.inf
            self._take_neutral(face, rgb)
        elif self._best is None or score < self._best[0]:
            clearly = self._best is None or score < 0.7 * self._best[0]
            self._best = (score, face, rgb)
            if self._mode == "auto" and clearly and face.pts_seconds <= self._auto_until:
                self._take_neutral(face, rgb)

    # --- pictures in order ------------------------------------------------------------------------------------------

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """The motion of the next picture.

        Args:
            face: The driver's face; None when it was not found.
            pts_seconds: When the picture is shown.
            driver_rgb: The picture itself, handed on.

        Returns:
            Neutral before the first face; the last motion, relaxing, while the face is lost.
        """
        if face is None:
            return self._lost(pts_seconds)
        if self._lost_since is not None or face.is_new:
            self._pose_filter.reset()
            self._expression_filter.reset()
            self._weight_filter.reset()
            if self._neutral is not None:
                self._begin_fade(pts_seconds)
        self._lost_since = None
        self._current, self._current_rgb = face, driver_rgb
        self._watch(face, driver_rgb)
        assert self._neutral is not None  # _watch took one
        motion = motion_between(self._neutral, read_face(self._mesh, face), face=face, driver_rgb=driver_rgb)
        motion = replace(motion, neutral_face=self._neutral_face, neutral_rgb=self._neutral_rgb)
        motion = self._smoothed(motion, pts_seconds)
        self._shown = self._faded(motion, pts_seconds)
        self._has_begun = True
        return self._shown

    def _lost(self, pts_seconds: float) -> FaceMotion:
        self._current = self._current_rgb = None
        self._has_begun = True
        if self._lost_since is None:
            self._lost_since = pts_seconds
            self._fade_from = self._shown
        gone = pts_seconds - self._lost_since - _HOLD_SECONDS
        share = 1 - _ease(gone / _RELAX_SECONDS)
        before = self._fade_from or self._shown
        self._shown = replace(before.relaxed(share), pts_seconds=pts_seconds, face=None, driver_rgb=None)
        return self._shown

    def _begin_fade(self, pts_seconds: float) -> None:
        if not self._has_begun:  # a video may begin in the middle of a word
            return
        self._fade_from, self._fade_start = self._shown, pts_seconds

    def _faded(self, motion: FaceMotion, pts_seconds: float) -> FaceMotion:
        if self._fade_from is None:
            return motion
        share = (pts_seconds - self._fade_start) / _CROSSFADE_SECONDS
        if share >= 1:
            self._fade_from = None
            return motion
        return self._fade_from.towards(motion, _ease(share))

    def _smoothed(self, motion: FaceMotion, pts_seconds: float) -> FaceMotion:
        pose = np.concatenate(
            # Head widths, so that one beta fits all: an adult face is about 16 cm wide.
            (rotation_vector(motion.rotation), [math.log(motion.scale)], motion.translation / 16)
        )
        pose = self._pose_filter(pose, seconds=pts_seconds)
        assert motion.vertices is not None  # it was measured
        vertices = self._expression_filter(motion.vertices, seconds=pts_seconds)
        weights = self._weight_filter(
            np.concatenate((motion.blendshapes, motion.eye_closure, motion.gaze.ravel())), seconds=pts_seconds
        )
        count = len(motion.blendshapes)
        blendshapes, closure, gaze = (
            weights[:count],
            weights[count : count + 2],
            weights[count + 2 :].reshape(2, 2),
        )
        return replace(
            motion,
            rotation=rotation_from_vector(pose[:3]),
            scale=math.exp(pose[3]),
            translation=np.asarray(pose[4:] * 16, np.float32),
            vertices=vertices,
            blendshapes=blendshapes,
            eye_closure=closure,
            gaze=gaze,
        )


def _ease(share: float) -> float:
    """From 0 to 1 with level ends."""
    share = min(max(share, 0.0), 1.0)
    return share * share * (3 - 2 * share)


_ACROSS = np.array([-1.0, 1.0, 1.0], np.float32)


def _other_side(name: str) -> str:
    for side, other in (("Left", "Right"), ("Right", "Left")):
        if name.endswith(side):
            return name.removesuffix(side) + other
    return name


_SWAPPED = [BLENDSHAPE_INDEX[_other_side(name)] for name in BLENDSHAPES]


class Mirror:
    """Turns motion over.

    Args:
        mesh: The canonical face; it is symmetric, so that every vertex has a partner.
    """

    def __init__(self, mesh: CanonicalMesh) -> None:
        distances = np.linalg.norm(mesh.vertices[:, None] * _ACROSS - mesh.vertices[None], axis=-1)
        self._partners = distances.argmin(axis=1)

    def __call__(self, motion: FaceMotion) -> FaceMotion:
        """The mirror image; what was tracked (``face``, ``driver_rgb``) stays as it is."""
        vertices: FloatArray | None = None
        if motion.vertices is not None:
            vertices = np.asarray(motion.vertices[self._partners] * _ACROSS, np.float32)
        return replace(
            motion,
            rotation=np.asarray(motion.rotation * np.outer(_ACROSS, _ACROSS), np.float32),
            translation=np.asarray(motion.translation * _ACROSS[:2], np.float32),
            blendshapes=motion.blendshapes[_SWAPPED],
            neutral_blendshapes=motion.neutral_blendshapes[_SWAPPED],
            vertices=vertices,
            eye_closure=motion.eye_closure[::-1].copy(),
            gaze=np.asarray(motion.gaze[::-1] * _ACROSS[:2], np.float32),
        )
