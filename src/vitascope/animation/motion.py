"""Turns tracked faces into motion: pose and shape, the neutral, smoothing, lost faces, the mirror image."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import INNER_LOWER_LIP, INNER_UPPER_LIP, CanonicalMesh
from vitascope.animation.expression import eyes_of
from vitascope.animation.face import (
    BLENDSHAPE_INDEX,
    BLENDSHAPES,
    FaceMotion,
    FloatArray,
    RgbPicture,
    TrackedFace,
    rotation_from_vector,
    rotation_vector,
)
from vitascope.animation.face_reading import FaceReading, read_face
from vitascope.animation.neutral import NeutralFace, NeutralSearch, is_same_person
from vitascope.errors import UsageError


def cutoff_of_window(frames: int, *, frame_rate: float = 30.0) -> float:
    """Return the cutoff in Hz that smooths like a moving average over that many frames; infinite for one.

    A moving average over N samples has its -3 dB point near 0.443 / N of the sample rate.
    """
    return math.inf if frames <= 1 else 0.443 * frame_rate / frames


class OneEuroFilter:
    """The 1€ filter: little lag in motion, little jitter at rest.

    Filters each element of an array by a first-order low pass whose cutoff grows with the speed: ``cutoff = min_cutoff
    + beta * |speed|``; times may be uneven. Casiez, Roussel, Vogel, "1€ Filter: A Simple Speed-based Low-pass Filter
    for Noisy Input in Interactive Systems", CHI 2012.

    Args:
        min_cutoff_hz: Cutoff at rest; infinite passes everything.
        beta: How fast the cutoff grows with speed, in Hz per unit per second.
        speed_cutoff_hz: Cutoff of the low pass for the speed (1 Hz in the paper).
    """

    def __init__(self, *, min_cutoff_hz: float, beta: float, speed_cutoff_hz: float = 1.0) -> None:
        self._min_cutoff_hz = min_cutoff_hz
        self._beta = beta
        self._speed_cutoff_hz = speed_cutoff_hz
        self._value: FloatArray | None = None
        self._speed: FloatArray | None = None
        self._seconds = 0.0

    def reset(self) -> None:
        """Reset the filter; the next value passes unchanged."""
        self._value = None

    def __call__(self, value: npt.NDArray[Any], *, seconds: float) -> FloatArray:
        """Filter the next value.

        Args:
            value: An array, always of the same shape.
            seconds: Time of the value; one that does not increase counts as a very short step.
        """
        new = np.asarray(value, np.float32)
        if self._value is None or self._speed is None or math.isinf(self._min_cutoff_hz):
            self._value, self._speed, self._seconds = new.copy(), np.zeros_like(new), seconds
            return new.copy()
        step = max(seconds - self._seconds, 1e-3)
        self._seconds = max(seconds, self._seconds)
        speed = (new - self._value) / np.float32(step)
        self._speed += np.float32(_share(self._speed_cutoff_hz, step)) * (speed - self._speed)
        cutoff = self._min_cutoff_hz + self._beta * np.abs(self._speed)
        # as _share, for each element
        rate = (2 * math.pi * step) * cutoff
        self._value = np.asarray(self._value + rate / (rate + 1) * (new - self._value), np.float32)
        return self._value.copy()


def _share(cutoff_hz: float, step_seconds: float) -> float:
    """Return the weight of a new value in a first-order low pass."""
    rate = 2 * math.pi * cutoff_hz * step_seconds
    return rate / (rate + 1)


CLOSED_OPENNESS = 0.07
"""Height over width of a closed eye in MediaPipe's landmarks: two blinking drivers reached 0.065 to 0.077 at least
(right and left eyes), against 0.22 to 0.30 when open."""
_WIDEST_CLOSURE = -0.6


def motion_between(
    neutral: FaceReading,
    now: FaceReading,
    *,
    face: TrackedFace,
    driver_rgb: RgbPicture | None = None,
) -> FaceMotion:
    """Compute the motion from the neutral picture to the current one.

    Args:
        neutral: The driver at rest.
        now: The driver now.
        face: The tracked face from which ``now`` was read.
        driver_rgb: The picture of ``face``, for animators that read it.
    """
    range_of_closing = np.maximum(neutral.openness - CLOSED_OPENNESS, 0.04)
    closure = (neutral.openness - now.openness) / range_of_closing
    if now.blendshapes.any():
        # The blendshape network sees lids that the landmarks miss, and vice versa.
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
"""``auto``: the face at rest, found among all faces; ``first``: the first face."""

_HOLD_SECONDS = 0.3
"""Time for which a lost face keeps its expression: MediaPipe drops single pictures in a fast turn."""
_RELAX_SECONDS = 1.0
_CROSSFADE_SECONDS = 0.35
"""Duration of the blend to a face that is found again, or to another neutral."""
_LEARNS_QUICKLY_SECONDS, _LOOKS_EVERY_SECONDS = 2.0, 0.5
"""Time in seconds for which ``auto`` looks for a better neutral in each picture, and the interval of later
looks."""
_BETTER, _CLEARLY = 0.75, 0.05
"""Use a new neutral if its score is below this share of the current one's, and lower by at least the second
value."""
_REMEMBERS = 1800
"""Number of last faces that define a live driver's usual face: a minute."""
_KNOWN_AFTER = 8
"""Number of faces after which a person who appears is recognised or counts as new."""
_MOST_PEOPLE = 8

_MOUTH_BELOW_CM, _MOUTH_FADES_CM = 1.2, 1.5
"""Height on the canonical face below which points begin to belong to the mouth, and the distance over which
that grows to fully."""
_COVERS_WITHIN_SECONDS = 0.12
"""Maximum time for which a partly covered mouth may go unnoticed."""
_OF_MOUTH = [
    index for index, name in enumerate(BLENDSHAPES) if name.startswith(("mouth", "jaw", "cheek", "tongue"))
]

# Smoothing at rest; beta lets motion through. Units per second: radians and head widths, centimetres.
_POSE_BETA = 6.0
_EXPRESSION_BETA = 5.0
_WEIGHT_BETA = 12.0
_FAST_HZ = 6.0
"""Cutoff of the speed that opens a face's filters: 1 Hz would miss the 0.15 seconds of a blink."""


class MotionEstimator:
    """Turns one driver's faces into motion. Holds the state of one stream; used by one thread.

    Args:
        mesh: The canonical face.
        neutral: How to find the driver's neutral.
        pose_window: Frames over which the head's pose is smoothed at rest; 1 does not smooth.
        expression_window: The same for the expression.
        frame_rate: Frame rate of the driver, to turn frames into time.
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
        self._search = NeutralSearch(mesh, remembers=_REMEMBERS)
        self._people = [self._search]
        self._taken: NeutralFace | None = None
        self._appeared: NeutralSearch | None = None
        self._learns_from = self._looked_at = -math.inf
        self._current: TrackedFace | None = None
        self._current_rgb: RgbPicture | None = None
        self._shown = FaceMotion(presence=0.0)  # no face was seen yet
        self._has_begun = False
        self._fade_from: FaceMotion | None = None
        self._fade_start = 0.0
        self._lost_since: float | None = None
        self._seen: deque[tuple[float, FaceReading]] = deque()
        """The last faces with a visible mouth, and their times; while the mouth is covered, only the one in
        use."""
        self.set_smoothing(pose_window=pose_window, expression_window=expression_window)

    def set_smoothing(self, *, pose_window: int, expression_window: int) -> None:
        """Change the windows; the filters start again.

        Raises:
            UsageError: A window is smaller than 1.
        """
        if pose_window < 1 or expression_window < 1:
            raise UsageError(
                f"smoothing windows of {pose_window} and {expression_window} frames; each must be at least 1"
            )
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

    def set_neutral(self, face: TrackedFace | None = None, *, rgb: RgbPicture | None = None) -> bool:
        """Use a face as the neutral from now on, and blend to it.

        Args:
            face: The face; the current one when omitted.
            rgb: The picture of that face, for animators that read it.

        Returns:
            False if no face is visible.
        """
        if face is None:
            face, rgb = self._current, self._current_rgb
        if face is None:
            return False
        self._mode = "first"
        self._take_neutral(read_face(self._mesh, face), face, rgb)
        return True

    def take_neutral(self, neutral: NeutralFace) -> None:
        """Use a neutral found elsewhere from now on, and blend to it."""
        self._mode, self._taken = "first", neutral
        self._take_neutral(neutral.reading, neutral.face, neutral.rgb)

    def learn(self) -> None:
        """Continue to look for a better neutral."""
        self._mode = "auto"

    def find_neutral(self) -> bool:
        """Use the calmest face so far as the neutral.

        Returns:
            False if no face was seen yet.
        """
        best = self._search.best()
        if best is None:
            return False
        self.take_neutral(best)
        return True

    def _take_neutral(self, reading: FaceReading, face: TrackedFace, rgb: RgbPicture | None) -> None:
        if self._neutral is not None:
            self._begin_fade(self._shown.pts_seconds)
        self._neutral, self._neutral_face, self._neutral_rgb = reading, face, rgb

    def _watch(self, face: TrackedFace, reading: FaceReading, rgb: RgbPicture | None) -> None:
        """Learn the face at rest; with ``auto``, use a better neutral or a new person's."""
        seconds = face.pts_seconds
        if self._neutral is None:
            self._learns_from = seconds
            self._take_neutral(reading, face, rgb)
        if face.is_new and len(self._search):
            self._appeared = NeutralSearch(self._mesh, remembers=_REMEMBERS)
        watching = self._search if self._appeared is None else self._appeared
        if face.mouth_covered:  # a guessed mouth says nothing about rest
            return
        watching.add(face, reading=reading, rgb=rgb)
        if self._appeared is not None and len(self._appeared) >= _KNOWN_AFTER:
            self._meet(self._appeared, seconds)
        looks = seconds - self._looked_at >= _LOOKS_EVERY_SECONDS
        if self._mode != "auto" or not (looks or seconds - self._learns_from < _LEARNS_QUICKLY_SECONDS):
            return
        self._looked_at = seconds
        best = self._search.best()
        if best is None:
            return
        if self._taken is not None:
            before, now = self._search.score(self._taken), self._search.score(best)
            if now >= min(_BETTER * before, before - _CLEARLY):
                return
        self._taken = best
        self._take_neutral(best.reading, best.face, best.rgb)

    def _meet(self, appeared: NeutralSearch, seconds: float) -> None:
        """Recognise a person who appeared, or treat them as new."""
        self._appeared = None
        face = appeared.best()
        assert face is not None  # the search holds faces
        for known in self._people:
            rest = known.best()
            if rest is not None and is_same_person(rest.reading, face.reading):
                if known is not self._search:
                    self._search, self._taken = known, None
                return
        self._search, self._taken, self._learns_from = appeared, None, seconds
        self._people = [*self._people[-_MOST_PEOPLE + 1 :], appeared]

    # --- pictures in order ------------------------------------------------------------------------------------------

    def update(
        self, face: TrackedFace | None, *, pts_seconds: float, driver_rgb: RgbPicture | None = None
    ) -> FaceMotion:
        """Compute the motion of the next picture.

        Args:
            face: The driver's face; None when it was not found.
            pts_seconds: When the picture is shown.
            driver_rgb: The picture, stored in the motion.

        Returns:
            The motion; neutral before the first face, and relaxing from the last motion while the face is
            lost.
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
        reading = self._believed(read_face(self._mesh, face), face)
        self._watch(face, reading, driver_rgb)
        assert self._neutral is not None  # _watch sets it
        motion = motion_between(self._neutral, reading, face=face, driver_rgb=driver_rgb)
        motion = replace(motion, neutral_face=self._neutral_face, neutral_rgb=self._neutral_rgb)
        motion = self._smoothed(motion, pts_seconds)
        self._shown = self._faded(motion, pts_seconds)
        self._has_begun = True
        return self._shown

    def _believed(self, reading: FaceReading, face: TrackedFace) -> FaceReading:
        """Return the reading; replace a covered mouth by its last visible reading, if there is one."""
        if face.is_new:
            self._seen.clear()
        if not face.mouth_covered:
            self._seen.append((face.pts_seconds, reading))
            # If the driver starts again, the stored faces are later than this one.
            while not 0 <= face.pts_seconds - self._seen[0][0] <= _COVERS_WITHIN_SECONDS:
                self._seen.popleft()
            return reading
        if not self._seen:
            return reading
        # A half-covered mouth is read as closing.
        believed = max(self._seen, key=lambda seen: _lips_apart(seen[1]))
        self._seen = deque([believed])
        before = believed[1]
        of_mouth = np.clip((_MOUTH_BELOW_CM - self._mesh.vertices[:, 1:2]) / _MOUTH_FADES_CM, 0, 1)
        vertices = reading.vertices + of_mouth * (before.vertices - reading.vertices)
        weights = reading.blendshapes.copy()
        weights[_OF_MOUTH] = before.blendshapes[_OF_MOUTH]
        return replace(reading, vertices=np.asarray(vertices, np.float32), blendshapes=weights)

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
        if not self._has_begun:  # a video may begin in mid-word
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
            # In head widths, so one beta fits all: an adult face is about 16 cm wide.
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


def _lips_apart(reading: FaceReading) -> float:
    """Measure the gap in the middle of the lips, in centimetres."""
    upper, lower = reading.vertices[[INNER_UPPER_LIP[5], INNER_LOWER_LIP[5]], 1]
    return float(upper - lower)


def _ease(share: float) -> float:
    """Return a smooth step from 0 to 1, flat at both ends."""
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
    """Mirrors motion.

    Args:
        mesh: The canonical face; it is symmetric, so every vertex has a partner.
    """

    def __init__(self, mesh: CanonicalMesh) -> None:
        distances = np.linalg.norm(mesh.vertices[:, None] * _ACROSS - mesh.vertices[None], axis=-1)
        self._partners = distances.argmin(axis=1)

    def __call__(self, motion: FaceMotion) -> FaceMotion:
        """Mirror a motion; tracked data (``face``, ``driver_rgb``) stays unchanged."""
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
