"""Moves the points of a portrait's rig by a motion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    FACE_OVAL,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    MOUTH_CORNERS,
    TO_PICTURE,
    UPPER_LIP_MIDDLE,
    CanonicalMesh,
    EyeLandmarks,
    Pose,
)
from vitascope.animation.face import (
    FaceMotion,
    FloatArray,
    angles_of,
    rotation_from_degrees,
)
from vitascope.animation.mesh.rig import PortraitRig

_YAW_LIMIT, _PITCH_LIMIT, _ROLL_LIMIT = 27.0, 22.0, 40.0
"""Maximum turn from the portrait's own pose, in degrees: beyond, a flat picture has nothing to show."""
_TOTAL_YAW_LIMIT, _LEAST_YAW_LIMIT = 42.0, 10.0
_HIDDEN_SHARE, _LEAST_TOWARDS = 0.4, 10.0
"""A turned portrait hides one temple. Its turn towards the camera is limited further, lest a little skin is stretched
too wide: by this share of its own turn; but it may turn at least the second value, in degrees."""
_EASED_DEGREES = 3.0
"""Reduction of a turn, in degrees, from which on it is noticed."""
_CARRIED_FROM = 0.03
"""Gain in facing the camera, as a cosine, from which on skin is carried fully."""
_SHIFT_LIMIT_CM = 7.0
_NECK_CM = 1.5
"""Maximum shift of a head that its neck bears; the shoulders go along with the rest."""
_FARTHEST_CM = 6.0
"""Maximum motion of any part of a face, in centimetres; guards against damaged recordings."""
_SCALE_LIMIT = 1.25
_LINEAR_SHARE = 0.75
"""Share of its range that a soft limit leaves unchanged."""
_MEETING = 0.05
"""Place where lids meet, as a share of the opening up from the lower lid. The upper lid does most of a blink."""
_CLOSED_RISE = np.array([-0.30, -0.20, -0.12, -0.04, 0.03, 0.08, 0.13, 0.14, 0.10], np.float32)
"""Lift of the lower lid in a blink, from the outer corner to the inner, in openings of the eye: two people's mean.
The line in which lids meet slopes down to the ear."""
_RETRACTS = (0.1, 0.6)
"""Closures between which the lids' edges change from the portrait's lashes to the skin beside them."""
_OVAL = np.array(FACE_OVAL, np.intp)
_UPPER_LIP, _LOWER_LIP = np.array(INNER_UPPER_LIP[1:-1], np.intp), np.array(INNER_LOWER_LIP[1:-1], np.intp)
_CORNERS = np.array(MOUTH_CORNERS, np.intp)
_CORNER_REACH_CM, _MOST_LEVELLED_CM = 1.3, 0.8
"""Distance from a corner of the mouth at which skin follows it by a third; and the maximum by which corners are
levelled."""
_USUAL_PITCH = -8.0
"""Pitch, in degrees, that a tracker reads for faces that look straight ahead: -7 for two drivers, -9 for a portrait."""
_LID_FOLLOWS, _CREASE_FOLLOWS, _LOWER_LID_FOLLOWS = 0.7, 0.25, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Strengths with which the portrait follows; 1 is what the driver does, 0 nothing."""

    expression: float = 1.0
    """Gain of everything the face does."""
    pose: float = 1.0
    """Gain of head rotation, shift and size."""
    brows: float = 1.0
    eyes: float = 1.0
    """Gain of blinking."""
    gaze: float = 1.0
    mouth: float = 1.0
    """Gain of lips, jaw and cheeks."""


@dataclass(frozen=True, slots=True, eq=False)
class Bent:
    """A rig moved by a motion."""

    places: FloatArray
    """float32 [points, 2]: places of the rig's points in the result, pixels."""
    sources: FloatArray
    """float32 [points, 2]: places of the portrait that they show, pixels."""
    depths: FloatArray
    """float32 [468], pixels away from the camera."""
    pose: Pose
    """The pose of the head as drawn."""
    vertices: FloatArray
    """float32 [468, 3]: the face without its pose, canonical centimetres."""
    closure: FloatArray
    """float32 [2]: closure of the right and the left eye, 0 as in the portrait, 1 closed."""
    lid_retracted: FloatArray
    """float32 [2]: how far the lids' edges show skin instead of the portrait's lashes and rim, 0 open, 1 closed."""
    gaze: FloatArray
    """float32 [2, 2]: shift of the irises in widths of the eye, limited to what fits."""
    jaw_drop_cm: float
    """Drop of the jaw below where it is in the portrait."""


def bend(
    rig: PortraitRig, mesh: CanonicalMesh, motion: FaceMotion, *, displacement: FloatArray, gains: Gains
) -> Bent:
    """Move all points.

    Args:
        rig: The portrait's rig.
        mesh: The canonical face.
        motion: Pose, eyes and gaze.
        displacement: float32 [468, 3]: what the expression does to the vertices, canonical centimetres.
        gains: How strongly.
    """
    closure = (
        np.clip(motion.eye_closure * np.float32(gains.eyes * gains.expression), -0.6, 1.0) * rig.free_eyes
    )
    reach = np.clip(displacement * _vertex_gains(mesh, gains), -_FARTHEST_CM, _FARTHEST_CM) * rig.free
    vertices = rig.reading.vertices + reach
    _bend_lids(vertices, rig.reading.vertices, closure)
    _part_lips(vertices)
    pose = _moved_pose(rig.pose, motion, gains.pose)
    _level_corners(vertices, rig.reading.vertices, pose, mesh)
    points, carried = _carry(rig, pose, pose.place(vertices))
    retracted = np.clip((closure - _RETRACTS[0]) / (_RETRACTS[1] - _RETRACTS[0]), 0, 1).astype(np.float32)
    drop = float((vertices[152] - rig.reading.vertices[152])[1])
    ring_places, ring_sources = _move_rings(rig, pose, points, _carried_spokes(rig, carried))
    sources = _sources(rig, retracted)
    sources[len(points) :] = ring_sources
    return Bent(
        np.concatenate((points[:, :2], ring_places)).astype(np.float32),
        sources,
        points[:, 2],
        pose,
        vertices,
        closure.astype(np.float32),
        retracted,
        _gaze(motion, gains) * rig.free_eyes[:, None],
        max(-drop, 0.0),
    )


def _gaze(motion: FaceMotion, gains: Gains) -> FloatArray:
    """Shifts of the irises in widths of the eye: float32 [2, 2]."""
    shift = motion.gaze * np.float32(gains.gaze * gains.expression)
    return np.asarray(np.clip(shift, -0.42, 0.42), np.float32)


def _carry(rig: PortraitRig, pose: Pose, points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Carry skin that the portrait hardly shows along with its neighbours, where the head turns it towards the camera.

    Args:
        rig: The portrait's rig.
        pose: Of the head as drawn.
        points: float32 [468, 3]: the face, pixels.

    Returns:
        The face, and how far each vertex is carried, float32 [468], 0..1.
    """
    carried = rig.carried
    turn = (pose.rotation @ rig.pose.rotation.T).astype(np.float32)
    gained = rig.normals[:, 2] - rig.normals @ turn[2]  # cosines by which it faces the camera more
    shares = np.asarray(carried.shares * np.clip(gained / _CARRIED_FROM, 0, 1), np.float32)
    if not shares.any():
        return points, shares
    rest = rig.face.landmarks[carried.points]
    # Of the turn alone: lips on either side of an opening move apart, and no plate lies between them.
    by_turn = pose.place(carried.continued) - rig.pose.place(carried.continued)
    taken = by_turn - (pose.place(rig.reading.vertices[carried.points]) - rest)
    if carried.outline.any():
        stays = _like_outline(rest[:, :2], rig.pose, pose) - by_turn[:, :2]
        sideways = (pose.rotation @ TO_PICTURE)[:2, 0]
        sideways = (sideways / np.linalg.norm(sideways)).astype(np.float32)
        taken[:, :2] += ((stays @ sideways) * carried.outline)[:, None] * sideways
    points = points.copy()
    points[carried.points] += shares[carried.points, None] * taken
    return points, shares


def _like_outline(places: FloatArray, rest: Pose, pose: Pose) -> FloatArray:
    """Motion of a head's outline at places [N, 2], which a turn leaves in place: float32 [N, 2], pixels."""
    roll = rotation_from_degrees(0, 0, angles_of(pose.rotation @ rest.rotation.T)[2])[:2, :2]
    moved = (places - rest.shift[:2]) @ roll.T * (pose.scale / rest.scale) + pose.shift[:2]
    return np.asarray(moved - places, np.float32)


def _carried_spokes(rig: PortraitRig, carried: FloatArray) -> FloatArray:
    """How far the rings of each spoke go with the vertex that they follow: float32 [S], 0..1.

    As the face's border does, or what bulges beyond it; and not much more or less than the spokes beside them, lest a
    part of the outline come off.
    """
    shares = np.maximum(carried[rig.rings.rim], carried[_OVAL])
    for _ in range(2):
        round_trip = np.concatenate((shares[-1:], shares, shares[:1]))
        shares = np.maximum(shares, (round_trip[:-2] + 2 * shares + round_trip[2:]) / 4)
    return np.asarray(shares, np.float32)


def _sources(rig: PortraitRig, lid_retracted: FloatArray) -> FloatArray:
    """Choose what the points show: their own places, but for lids that close: these show what is beside lashes."""
    sources = rig.sources.copy()
    for lids, retracted in zip(_LIDS, lid_retracted, strict=True):
        for edge in (lids.upper, lids.lower):
            sources[edge] += (rig.lid_skin[edge] - sources[edge]) * retracted
    return sources


@lru_cache(maxsize=4)
def _vertex_gains(mesh: CanonicalMesh, gains: Gains) -> FloatArray:
    """Share of the displacement for each vertex: float32 [468, 1]; must not be changed."""
    x, y = np.abs(mesh.vertices[:, 0]), mesh.vertices[:, 1]
    # Trackers slide the forehead's and temples' border along with brows and head: it belongs to the skull.
    calm = np.clip((x - 5.2) / 2.2, 0, 1) * np.clip((y + 4.0) / 3.0, 0, 1)
    calm = np.maximum(calm, np.clip((y - 5.0) / 3.0, 0, 1)) * 0.7
    brow = np.clip((y - 2.6) / 1.2, 0, 1)
    mouth = np.clip((1.2 - y) / 1.5, 0, 1)
    region = gains.brows * brow + gains.mouth * mouth + (1 - brow - mouth)
    return np.asarray((1 - calm) * region * gains.expression, np.float32)[:, None]


class _Lids(NamedTuple):
    """Places of one eye's points among the vertices: int [N] each; lists would be read anew at each look."""

    upper: npt.NDArray[np.intp]
    lower: npt.NDArray[np.intp]
    corners: npt.NDArray[np.intp]
    """The outer, the inner."""
    line: npt.NDArray[np.intp]
    """Along the lower lid, both corners included."""
    upper_lid: npt.NDArray[np.intp]
    crease: npt.NDArray[np.intp]
    lower_lid: npt.NDArray[np.intp]

    @classmethod
    def of(cls, eye: EyeLandmarks) -> _Lids:
        """Look up an eye's points."""
        corners = (eye.outer_corner, eye.inner_corner)
        line = (eye.outer_corner, *eye.lower[1:-1], eye.inner_corner)
        rows = eye.upper[1:-1], eye.lower[1:-1], corners, line, eye.upper_lid, eye.crease, eye.lower_lid
        return cls(*(np.array(row, np.intp) for row in rows))


_LIDS = tuple(_Lids.of(eye) for eye in EYES)


def _bend_lids(vertices: FloatArray, rest: FloatArray, closure: npt.NDArray[np.float32]) -> None:
    """Close the eyes by their openness in the portrait, whatever the driver's measure."""
    for eye, closed in zip(_LIDS, closure, strict=True):
        rest_upper, rest_lower, rest_corners = rest[eye.upper], rest[eye.lower], rest[eye.corners]
        gap = rest_upper - rest_lower
        if closed > 0:
            # Closed lids meet in a smooth line, whatever the landmarks' unevenness.
            line = rest[eye.line] + _MEETING * np.concatenate((np.zeros((1, 3)), gap, np.zeros((1, 3))))
            smooth = _smoothing(len(line)) @ line
            smooth[:, 1] += _CLOSED_RISE * np.linalg.norm(gap[2:-2], axis=1).mean()
            meeting = smooth[1:-1].astype(np.float32)
            turned = (smooth[[0, -1]] - rest_corners) * closed
            down, raised = (meeting - rest_upper) * closed, (meeting - rest_lower) * closed
        else:
            # A wide eye lifts the upper lid, by at most a third of its opening, and hardly the lower.
            down, raised = gap * (-closed * 0.5), gap * (closed * 0.08)
            turned = np.zeros((2, 3), np.float32)
        outer, inner = (vertices[eye.corners] - rest_corners) * 0.5
        moved = outer + inner
        vertices[eye.upper] = rest_upper + moved + down
        vertices[eye.lower] = rest_lower + moved + raised
        vertices[eye.corners] = rest_corners + moved + turned
        lids = vertices[eye.upper_lid]
        vertices[eye.upper_lid] = lids + (_LID_FOLLOWS * down + (rest[eye.upper_lid] + moved - lids) * 0.7)
        vertices[eye.crease] += _CREASE_FOLLOWS * down
        vertices[eye.lower_lid] += _LOWER_LID_FOLLOWS * raised


@lru_cache(maxsize=2)
def _smoothing(count: int) -> npt.NDArray[np.float64]:
    """Matrix [count, count] that smooths a line of points and keeps its ends."""
    once = np.eye(count)
    for point in range(1, count - 1):
        once[point, point - 1 : point + 2] = 0.25, 0.5, 0.25
    return np.linalg.matrix_power(once, 3)


def _part_lips(vertices: FloatArray) -> None:
    """Keep lips from passing through one another."""
    overlap = np.maximum(vertices[_LOWER_LIP, 1] - vertices[_UPPER_LIP, 1], 0) / 2
    vertices[_UPPER_LIP, 1] += overlap
    vertices[_LOWER_LIP, 1] -= overlap


def _level_corners(vertices: FloatArray, rest: FloatArray, pose: Pose, mesh: CanonicalMesh) -> None:
    """Keep the mouth's corners as high as a face from the front shows them, in place.

    Corners that are drawn apart go back around the teeth. How far is only guessed, and of a head that is turned and
    bowed each centimetre of it is seen as height: the far corner would stand above its own lip.
    """
    lean = _lean(pose.rotation) - _USUAL_LEAN
    moved = vertices[_CORNERS] - rest[_CORNERS] - (vertices[UPPER_LIP_MIDDLE] - rest[UPPER_LIP_MIDDLE])
    risen = (moved[:, ::2] @ lean).clip(-_MOST_LEVELLED_CM, _MOST_LEVELLED_CM)
    vertices[:, 1] -= _around_corners(mesh) @ risen.astype(np.float32)


def _lean(rotation: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Height along the face that a centimetre to its left, and one towards its front, are seen as: [2]."""
    seen = (rotation @ TO_PICTURE)[:2]
    up = seen[:, 1]
    return np.asarray(up @ seen[:, ::2] / max(float(up @ up), 0.1), np.float64)


_USUAL_LEAN = _lean(rotation_from_degrees(0, _USUAL_PITCH, 0).astype(np.float64))


@lru_cache(maxsize=2)
def _around_corners(mesh: CanonicalMesh) -> FloatArray:
    """Share to which each vertex follows the mouth's right and left corner: float32 [468, 2]; must not be changed."""
    apart = np.linalg.norm(mesh.vertices[:, None] - mesh.vertices[None, _CORNERS], axis=2)
    return np.asarray(np.exp(-np.square(apart / _CORNER_REACH_CM)), np.float32)


def soft_limit(value: float, limit: float) -> float:
    """``value`` while it is small, and never more than ``limit``; smooth in between."""
    start = _LINEAR_SHARE * limit
    if abs(value) <= start:
        return value
    room = limit - start
    return math.copysign(start + room * math.tanh((abs(value) - start) / room), value)


def turns_too_far(rest: Pose, motion: FaceMotion, gain: float) -> bool:
    """Tell whether a head is drawn turned less than a motion asks for, because the portrait cannot show it.

    Args:
        rest: The pose in the portrait.
        motion: The motion to draw.
        gain: Of the pose.
    """
    yaw, pitch, roll = angles_of(motion.rotation)
    asked = yaw * gain, pitch * gain, roll * gain
    borne = _borne_angles(rest, asked)
    return max(abs(one - other) for one, other in zip(asked, borne, strict=True)) > _EASED_DEGREES


def _borne_angles(rest: Pose, asked: tuple[float, float, float]) -> tuple[float, float, float]:
    """Limit a turn (yaw, pitch, roll; degrees) to what a portrait can show."""
    yaw, pitch, roll = asked
    own_yaw = angles_of(rest.rotation)[0]
    if yaw * own_yaw < 0:  # towards the camera comes the cheek that the portrait hides
        yaw = soft_limit(yaw, max(_YAW_LIMIT - _HIDDEN_SHARE * abs(own_yaw), _LEAST_TOWARDS))
    else:
        yaw = soft_limit(yaw, max(min(_YAW_LIMIT, _TOTAL_YAW_LIMIT - abs(own_yaw)), _LEAST_YAW_LIMIT))
    return yaw, soft_limit(pitch, _PITCH_LIMIT), soft_limit(roll, _ROLL_LIMIT)


def _moved_pose(rest: Pose, motion: FaceMotion, gain: float) -> Pose:
    yaw, pitch, roll = angles_of(motion.rotation)
    turn = rotation_from_degrees(*_borne_angles(rest, (yaw * gain, pitch * gain, roll * gain)))
    size = math.exp(soft_limit(math.log(max(motion.scale, 1e-3)) * gain, math.log(_SCALE_LIMIT)))
    shift = rest.shift.copy()
    length = float(np.linalg.norm(motion.translation)) * gain
    if length > 0:
        shift[:2] += motion.translation * (gain * rest.scale * soft_limit(length, _SHIFT_LIMIT_CM) / length)
    return Pose(rest.scale * size, turn.astype(np.float64) @ rest.rotation, shift)


def _move_rings(
    rig: PortraitRig, pose: Pose, points: FloatArray, carried: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Where the rings are drawn, and what they show: float32 [K * S, 2] each.

    Args:
        rig: The portrait's rig.
        pose: Of the head as drawn.
        points: float32 [468, 3]: the face, pixels.
        carried: float32 [S]: how far the vertices are carried that the spokes' rings follow.
    """
    rings, rest = rig.rings, rig.pose
    turn = (pose.rotation @ rest.rotation.T).astype(np.float32)
    size = np.float32(pose.scale / rest.scale)
    flat = rings.sources - rest.shift[:2].astype(np.float32)  # [K, S, 2]
    like_surface = flat @ turn[:2, :2].T
    roll = angles_of(turn)[2]
    like_outline = flat @ rotation_from_degrees(0, 0, roll)[:2, :2].T
    outline = rings.flatness[..., None]
    rigid = like_surface * (1 - outline) + like_outline * outline + rings.depths[..., None] * turn[:2, 2]
    turned = rigid * size - flat
    shift = (pose.shift - rest.shift)[:2].astype(np.float32)
    expression = points[rings.rim, :2] - pose.place(rig.reading.vertices[rings.rim])[:, :2]
    length = float(np.linalg.norm(shift)) / rest.scale
    by_neck = soft_limit(length, _NECK_CM) / max(length, 1e-6)
    shifted = rings.weights * by_neck + rings.body_weights * (1 - by_neck)
    by_head = turned * rings.weights[..., None] + shift * shifted[..., None]
    of_rim = (points[rings.rim, :2] - rig.sources[rings.rim] - by_head) * carried[:, None]
    beside = expression[None] * (1 - carried[:, None]) + of_rim
    places = rings.sources + by_head + beside * rings.expression_weights[..., None]
    places[0] = points[_OVAL, :2]
    places, sources = _covering(rig, places)
    return places.reshape(-1, 2), sources.reshape(-1, 2)


def _covering(rig: PortraitRig, places: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rings in order along their spokes: what the face's edge goes over is covered, not pressed together.

    A chin that drops hides the neck behind it. So rings that would lie behind the edge lie beyond it, and show what
    the spoke shows at that place. The rings up to the edge, and the outermost, show what they always do.

    Args:
        rig: The portrait's rig.
        places: float32 [K, S, 2], wherever motion and expression take them.

    Returns:
        Places and sources, float32 [K, S, 2].
    """
    rings = rig.rings
    sources, directions, spacing = rings.sources, rings.directions, rings.spacing
    along = np.einsum("ksc,sc->ks", places, directions)
    ordered = along.copy()
    for ring in range(1, len(places) - 1):
        ordered[ring] = np.maximum(ordered[ring], ordered[ring - 1] + spacing[ring - 1])
    for ring in range(len(places) - 2, 0, -1):
        ordered[ring] = np.minimum(ordered[ring], ordered[ring + 1] - spacing[ring])
    shift = ordered - along
    moved = (np.abs(shift) > 1e-3) & (rings.expression_weights < 1)
    shown = sources
    if moved.any():
        # Where several would lie at a place, the outermost is seen behind the edge: from there on places only rise.
        seen = np.minimum.accumulate(along[::-1], axis=0)[::-1]
        count = len(seen)
        below = (seen[None] <= ordered[:, None]).sum(axis=1).clip(1, count - 1) - 1  # [K, S]
        low, high = np.take_along_axis(seen, below, axis=0), np.take_along_axis(seen, below + 1, axis=0)
        share = np.clip((ordered - low) / np.maximum(high - low, 1e-3), 0, 1)[..., None]
        inner, outer = (np.take_along_axis(sources, (below + more)[..., None], axis=0) for more in (0, 1))
        shown = np.where(moved[..., None], inner + (outer - inner) * share, sources)
    places = places + shift[..., None] * directions
    return np.asarray(places, np.float32), np.asarray(shown, np.float32)
