"""Finds the driver's face at rest, among all faces seen of one person.

A face counts as resting by its geometry: lips together, eyes as open as usual and looking where they usually look, no
smile, head and face still and in their usual place. Expression weights also count; alone they would take parted lips, a
blink or a glance for rest. "Usual" is the median over all faces, so that a camera below the face or a slanted view does
not count as a turn. A smile, speech or a glance that lasts throughout is subtracted.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from vitascope.animation.canonical_mesh import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LEFT_BROW,
    MOUTH_CORNERS,
    RIGHT_BROW,
    CanonicalMesh,
)
from vitascope.animation.expression import basis_of
from vitascope.animation.face import (
    BLENDSHAPE_INDEX,
    BLENDSHAPES,
    FloatArray,
    RgbPicture,
    TrackedFace,
    angles_of,
)
from vitascope.animation.face_reading import FaceReading, read_face

_CALM = (
    "jawOpen", "mouthSmileLeft", "mouthSmileRight", "mouthPucker", "mouthFunnel", "browInnerUp", "eyeBlinkLeft",
    "eyeBlinkRight", "mouthUpperUpLeft", "mouthUpperUpRight", "mouthLowerDownLeft", "mouthLowerDownRight",
)  # fmt: skip
_CALM_INDICES = [BLENDSHAPE_INDEX[name] for name in _CALM]
_GAP, _WIDTH, _OPENNESS, _BROWS, _WEIGHTS, _SPEED = range(6)
_IRIS, _ANGLES, _PLACE = slice(6, 8), slice(8, 11), slice(11, 14)
_MEASURES = 14
_CLOSED_GAP = 0.03
"""Maximum gap of lips, in distances between the eyes' outer corners, that may be closed: trackers read closed lips as
up to 0.02."""
_ENOUGH_SHUT = 0.1
"""Minimum share of faces with closed lips for these to define the usual width of the mouth: the rest face of somebody
who smiles all the time and once draws the lips together is the smile."""
_USUAL_LIDS = 0.9
"""Minimum share of their widest usual opening at which lids count as open."""
_AT_REST, _NOISE = 0.35, 0.08
"""If the calmest face of a driver has a mouth weight above the first, the driver smiles or speaks all the time: then
all weights above the second are subtracted. A grin without a calm face in the video leaves the lips 0.2 cm from their
rest, 0.8 to 1.1 cm without this."""
_OF_FULL_LIPS = [BLENDSHAPE_INDEX[name] for name in ("mouthPucker", "mouthFunnel")]
"""Weights that are read from full or small lips at rest: up to the first value above they are the person's own shape,
and stay. The rest of a painted girl with parted lips is read as a pucker of 0.29; with it subtracted, she puckered
throughout her own video."""
_PARTED_GAP = 0.04
"""Minimum gap of the lips in a driver's calmest face for somebody who speaks all the time: then mouth weights are
subtracted, too. A smaller gap is the person's own, and the portrait's lips are parted as well."""
_SHUT_CM, _MOST_BOWED_CM = 0.08, 0.04
"""Gap of lips that are taken for shut (six shut mouths were read as 0 to 0.08), and how far the middle of the line on
which they meet may lie above, or below, the line between the mouth's corners: what is left of a grin bows it by 0.25.
In four faces at rest it lies 0.02, 0.11 and 0.12 above, and 0.11 below."""
_ASIDE, _EYE_TURNS = 0.1, 0.25
"""Maximum glance aside at rest, in widths of the eye, even if it lasts: at rest, eyes look at the camera. A turned head
moves irises that stay at the camera by the second value times the sine of the angle: 0.08 in a painting turned by 16
degrees, 0.12 in one by 32."""
_NOT_OF_THE_MOUTH = [
    index for index, name in enumerate(BLENDSHAPES) if not name.startswith(("mouth", "jaw", "cheek"))
]
_KNOWN_AFTER = 30
_NEAR_THE_BEST, _MOST_AVERAGED = 0.1, 12
"""Maximum difference from the best score, and maximum number, of the faces that are averaged with the best, so that a
tracker's noise is not taken for expression."""
_CANDIDATES, _WITH_PICTURES = 64, 8
_TRUST_EVERY = 128
_GONE_SECONDS = 0.25
"""Maximum time between two faces for measuring how fast a face moves."""
_BONES = (33, 133, 362, 263, 168, 6, 197, 4, 1, 48, 278, 98, 327, 129, 358, 127, 356, 234, 454, 10, 151, 9)
"""Landmarks that expressions hardly move."""
_SAME_PERSON_CM = 0.18
"""Maximum mean distance of these points in two rest faces of one person: it is 0.04 to 0.13 between parts of one
person's video, 0.22 to 0.44 between five people."""


@dataclass(frozen=True, slots=True, eq=False)
class NeutralFace:
    """A person at rest."""

    reading: FaceReading
    """Mean of the calmest faces, in the pose of the calmest."""
    face: TrackedFace
    """The calmest."""
    rgb: RgbPicture | None
    """The picture that it was tracked in, where pictures are kept."""
    measures: FloatArray


@dataclass(slots=True, eq=False)
class _Candidate:
    measures: FloatArray
    face: TrackedFace
    reading: FaceReading
    rgb: RgbPicture | None


class NeutralSearch:
    """Stores one person's faces, and finds the one at rest. Used by one thread.

    Args:
        mesh: The canonical face.
        remembers: Number of the last faces that say what is usual; None takes all.
    """

    def __init__(self, mesh: CanonicalMesh, *, remembers: int | None = None) -> None:
        self._mesh, self._basis = mesh, basis_of(mesh)
        self._measures: deque[FloatArray] = deque(maxlen=remembers)
        self._candidates: list[_Candidate] = []
        self._before: tuple[float, FloatArray] | None = None

    def __len__(self) -> int:
        """Number of faces that define the usual face."""
        return len(self._measures)

    def add(
        self, face: TrackedFace, *, reading: FaceReading | None = None, rgb: RgbPicture | None = None
    ) -> None:
        """Take the next face.

        Args:
            face: As tracked.
            reading: The same, taken apart; done here when omitted.
            rgb: The picture that it was tracked in, for animators that read it.
        """
        reading = read_face(self._mesh, face) if reading is None else reading
        measures = _measured(reading)
        if self._before is not None:
            seconds, before = self._before
            if 0 < face.pts_seconds - seconds <= _GONE_SECONDS:
                speed = abs(measures[_GAP] - before[_GAP]) / (30 * (face.pts_seconds - seconds))
                measures[_SPEED], before[_SPEED] = speed, max(speed, before[_SPEED])
        self._before = (face.pts_seconds, measures)
        self._measures.append(measures)
        self._candidates.append(_Candidate(measures, face, reading, rgb))
        if len(self._candidates) >= _CANDIDATES + _TRUST_EVERY:
            self._forget()

    def best(self) -> NeutralFace | None:
        """The face at rest; None before the first one."""
        if not self._candidates:
            return None
        scores = self._forget()
        best = self._candidates[0]
        calm = [
            candidate.reading
            for candidate, score in zip(self._candidates, scores, strict=True)
            if score <= scores[0] + _NEAR_THE_BEST
        ][:_MOST_AVERAGED]
        mean = {
            name: np.mean([getattr(reading, name) for reading in calm], axis=0).astype(np.float32)
            for name in ("vertices", "openness", "irises", "blendshapes")
        }
        reading = self._rested(replace(best.reading, **mean))
        reading = replace(reading, irises=_at_the_camera(reading))
        return NeutralFace(reading, best.face, best.rgb, best.measures)

    def score(self, neutral: NeutralFace) -> float:
        """Distance of a face from rest, by all faces so far; 0 is ideal, a small smile, blink or turn about 0.3."""
        return float(self._scores(neutral.measures[None])[0])

    def _rested(self, reading: FaceReading) -> FaceReading:
        """Subtract parted lips, and a smile, a word or an open mouth of a driver who never rests."""
        weights = _mouth_weights(reading)
        calm = weights.max() <= _AT_REST and _measured(reading)[_GAP] <= _PARTED_GAP
        if calm:
            weights[:] = 0
        weights[[index for index in _OF_FULL_LIPS if weights[index] <= _AT_REST]] = 0
        vertices = reading.vertices - self._basis.displacement(weights)
        # The jaw's share is among the weights; what is left is lips alone, such as those of a grin with clenched teeth.
        apart = self._basis.lips_apart
        gap = float(vertices[13, 1] - vertices[14, 1])
        excess = max(gap - _SHUT_CM, 0.0)
        if calm:  # what is clearly no shut pair of lips is parted by all of its gap
            excess = min(2 * excess, gap)
        vertices = vertices - apart * np.float32(excess / (apart[13, 1] - apart[14, 1]))
        if weights.max() > _AT_REST and _measured(reading)[_GAP] > _PARTED_GAP:
            vertices = self._lips_met(vertices)
        return replace(reading, vertices=vertices, blendshapes=reading.blendshapes - weights)

    def _lips_met(self, vertices: FloatArray) -> FloatArray:
        """Bring lips together along the line on which people's meet: what an expression leaves is not its field."""
        upper, lower = list(INNER_UPPER_LIP[1:-1]), list(INNER_LOWER_LIP[1:-1])
        right, left = vertices[MOUTH_CORNERS[0]], vertices[MOUTH_CORNERS[1]]
        across = vertices[upper, 0]
        share = (across - right[0]) / max(float(left[0] - right[0]), 1e-3)
        straight = right[1] + share * (left[1] - right[1])
        middle = len(upper) // 2
        gap = min(max(float(vertices[upper[middle], 1] - vertices[lower[middle], 1]), 0.0), _SHUT_CM)
        bow = float(vertices[upper[middle], 1] + vertices[lower[middle], 1]) / 2 - straight[middle]
        arc = 1 - (2 * share - 1) ** 2
        line = straight + np.clip(bow, -_MOST_BOWED_CM, _MOST_BOWED_CM) * arc
        met = vertices.copy()
        for points, side in ((upper, 0.5), (lower, -0.5)):
            # Lips and the skin beside them go along as they do when lips part.
            field = np.where(
                np.sign(self._basis.lips_apart[:, 1]) == np.sign(side), self._basis.lips_apart[:, 1], 0
            )
            lack = (line + side * gap * arc - vertices[points, 1]) / field[points]
            met[:, 1] += field * np.interp(vertices[:, 0], across, lack)
        return met

    def _closed(self) -> float:
        """The lip gap of closed lips."""
        gaps = [measures[_GAP] for measures in self._measures]
        return min(float(np.percentile(gaps, 10)), _CLOSED_GAP)

    def _forget(self) -> FloatArray:
        """Keep the best candidates only, in order; their scores."""
        scores = self._scores(np.stack([candidate.measures for candidate in self._candidates]))
        order = np.argsort(scores, kind="stable")[:_CANDIDATES]
        self._candidates = [self._candidates[index] for index in order]
        for candidate in self._candidates[_WITH_PICTURES:]:
            candidate.rgb = None
        return np.asarray(scores[order])

    def _scores(self, of: FloatArray) -> FloatArray:
        """Scores [N] of measures [N, 14]."""
        seen = np.stack(self._measures)
        closed = self._closed()
        shut = seen[seen[:, _GAP] <= closed + _CLOSED_GAP]
        width = float(np.median((shut if len(shut) >= _ENOUGH_SHUT * len(seen) else seen)[:, _WIDTH]))
        lids = _USUAL_LIDS * float(np.percentile(seen[:, _OPENNESS], 80))
        looking = seen[seen[:, _OPENNESS] >= lids * _USUAL_LIDS]
        usual = np.median(seen, axis=0)
        usual[_IRIS] = np.median(looking[:, _IRIS], axis=0)
        off = (of - usual) ** 2
        # A few pictures do not show what is usual.
        known = min(len(seen) / _KNOWN_AFTER, 1.0)
        return np.asarray(
            (np.maximum(of[:, _GAP] - closed, 0) / 0.03) ** 2
            + (np.maximum(lids - of[:, _OPENNESS], 0) / (0.3 * lids + 1e-6)) ** 2
            + of[:, _ANGLES] ** 2 @ np.array([1.0, 1.0, 0.5]) / 30**2
            + of[:, _WEIGHTS]
            + (of[:, _SPEED] / 0.02) ** 2
            + known
            * (
                ((of[:, _WIDTH] - width) / 0.07) ** 2
                + off[:, _BROWS] / 0.03**2
                + off[:, _IRIS].sum(axis=1) / 0.08**2
                + off[:, _ANGLES].sum(axis=1) / 15**2
                + off[:, _PLACE] @ np.array([1 / 4**2, 1 / 4**2, 1 / 0.15**2])
            )
        )


def _measured(reading: FaceReading) -> FloatArray:
    """Measures of rest: float32 [14]; lengths in distances of the eyes' outer corners, place in centimetres."""
    points = reading.vertices
    corners = [index for eye in EYES for index in (eye.outer_corner, eye.inner_corner)]
    unit = float(np.linalg.norm(points[corners[0]] - points[corners[2]]))
    made = np.zeros(_MEASURES, np.float32)
    made[_GAP] = max(float(points[[82, 13, 312], 1].mean() - points[[87, 14, 317], 1].mean()), 0.0) / unit
    made[_WIDTH] = np.linalg.norm(points[MOUTH_CORNERS[0]] - points[MOUTH_CORNERS[1]]) / unit
    made[_OPENNESS] = reading.openness.mean()
    made[_BROWS] = (points[list(RIGHT_BROW + LEFT_BROW), 1].mean() - points[corners, 1].mean()) / unit
    made[_WEIGHTS] = np.square(reading.blendshapes[_CALM_INDICES]).sum()
    made[_IRIS] = reading.irises.mean(axis=0)
    made[_ANGLES] = angles_of(reading.pose.rotation)
    made[_PLACE] = [*(reading.pose.shift[:2] / reading.pose.scale), np.log(reading.pose.scale)]
    return made


def _mouth_weights(reading: FaceReading) -> FloatArray:
    """The weights that move lips, jaw and cheeks, float32 [52]; others, and what is noise, are 0."""
    weights = np.where(reading.blendshapes > _NOISE, reading.blendshapes, 0)
    weights[_NOT_OF_THE_MOUTH] = 0
    return np.asarray(weights, np.float32)


def _at_the_camera(reading: FaceReading) -> FloatArray:
    """Irises [2, 2] that rest: those of eyes that look aside look at the camera."""
    yaw = math.radians(angles_of(reading.pose.rotation)[0])
    aside = float(reading.irises[:, 0].mean()) + _EYE_TURNS * math.sin(yaw)
    irises = reading.irises.copy()
    if abs(aside) > _ASIDE:
        irises[:, 0] -= np.float32(aside)
    return irises


def is_same_person(one: FaceReading, other: FaceReading) -> bool:
    """True if the bones of two faces at rest are those of one person."""
    bones = list(_BONES)
    apart = np.linalg.norm(one.vertices[bones] - other.vertices[bones], axis=1).mean()
    return bool(apart < _SAME_PERSON_CM)
