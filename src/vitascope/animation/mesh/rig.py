"""The rig of a portrait, built once: its face as a mesh, and rings for hair, neck and background."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import EYES, FACE_OVAL, TO_PICTURE, CanonicalMesh, Pose
from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray, TrackedFace, angles_of
from vitascope.animation.face_reading import FaceReading, read_face
from vitascope.errors import InputError

SPOKES = len(FACE_OVAL)

_FACTORS = np.array([1.0, 1.06, 1.14, 1.24, 1.36, 1.52, 1.72, 1.98, 2.26, 2.55])
"""Radii of the rings along a spoke from the face's centre; 1 is the mesh's own border. The outermost does not move."""
_HEAD_WEIGHTS = np.array([1.0, 1.0, 0.98, 0.95, 0.88, 0.74, 0.52, 0.27, 0.09, 0.0])
"""Share of the head's motion that each ring follows at the sides and above: hair moves along, the background less and
less."""
_NECK_WEIGHTS = np.array([1.0, 0.8, 0.55, 0.32, 0.17, 0.08, 0.03, 0.01, 0.0, 0.0])
"""The same below the chin, where neck and shoulders hold the head back. In four films of people who talk, what is below
the chin is 0.7, 2.5, 2.8 and 7 dB nearer to the truth than with a neck that bends gently."""
_BODY_WEIGHTS = np.array([1.0, 1.0, 0.95, 0.88, 0.8, 0.69, 0.55, 0.37, 0.17, 0.0])
"""The same for a shift of the head that is more than a neck bears: the shoulders go along."""
_TOP_REACH = 1.4
"""Factor by which rings are farther out at the top, where the mesh ends at the hairline: the skull extends beyond by
about a third of the face's height."""
_BACK_CM = -3.0
"""Depth of the head's outline (hair, ears) on the canonical face's z axis; the face is in front of its zero."""
_BACK_BY = 1.5
"""Ring radius at which that depth is reached."""
_BESIDE_SPOKE, _BULGES = 0.1, 0.02
"""Maximum distance of a vertex from a spoke to be on it, and minimum distance beyond the mesh's border to bulge; both
in lengths of the spoke."""
_UPPER_LASHES, _LOWER_LASHES = 0.035, 0.012
"""Height of lashes and wet rim, in widths of the eye."""
_UPPER_SKIN, _LOWER_SKIN = 0.35, 0.3
"""Distance from a lid's edge to skin without lashes or rim, as a share of that to the next row of points."""
_LONGEST_HAIR, _TALLER = 0.9, 0.9
"""Maximum reach of hair beyond the mesh's border, in ring radii: what reaches farther is not only hair. At the top it
may be taller by the second, in lengths of the spoke; the rings are then farther out."""
_AT_EDGE, _LEAST_SPACING = 0.015, 0.5
"""Minimum distance of the rings from the face's edge, in heights of the face (a border without width would be a
staircase in the map), and from each other, as a share of their distance at rest."""
_GRAZING, _HIDDEN = 0.4, 0.08
"""Cosines between a vertex's normal and the line of sight below which a portrait shows little of it, and nothing."""
_OUTLINE_STAYS = 0.8
"""Share of the way to a turning ball's outline, which stays in place, by which visible skin of a cheek is widened."""
_CHEEK_CM, _FACES_US_DEGREES = (4.0, 6.0), (20.0, 32.0)
"""Distances from the middle of the canonical face from which the cheek is widened, and from which fully; and the
portrait's own yaw up to which its far cheek shows enough skin for that, and from which none."""
_MEMBRANE = 0.02
"""Stiffness of the membrane, relative to that of the plate, that continues hidden parts."""
MIN_FACE_PIXELS = 40
"""Minimum size of a face: a smaller one has too few pixels for lids and lips."""


@dataclass(frozen=True, slots=True, eq=False)
class Rings:
    """K rings around the face on S spokes; the innermost, the mesh's own border, comes first."""

    sources: FloatArray
    """float32 [K, S, 2], pixels of the portrait."""
    weights: FloatArray
    """float32 [K, S]: share of the head's rigid motion, as far as the neck bears it."""
    body_weights: FloatArray
    """float32 [K, S]: share of the rest of the head's shift."""
    expression_weights: FloatArray
    """float32 [K, S]: share of the border vertex's motion by expression."""
    flatness: FloatArray
    """float32 [K, S]: 0 turns with the face's surface; 1 keeps its outline, as that of a turning ball stays."""
    depths: FloatArray
    """float32 [K, S], pixels away from the camera, from the canonical origin."""
    directions: FloatArray
    """float32 [S, 2]: unit vectors along the spokes, outward."""
    spacing: FloatArray
    """float32 [K - 1, S], pixels: minimum distance between rings k and k + 1 along a spoke."""
    rim: npt.NDArray[np.int32]
    """int32 [S]: the vertex whose expression a spoke's rings follow: that of the mesh's border, or where a turned face
    bulges beyond it, the outermost one."""
    triangles: npt.NDArray[np.int32]
    """int32 [.., 3]: indices into the rig's points; outermost first."""


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """Vertices that the portrait hardly shows follow visible ones when the head turns them towards the camera.

    There is no picture of a cheek that such a turn uncovers, so visible skin is widened instead.
    """

    shares: FloatArray
    """float32 [468], 0..1: how far a vertex follows the visible ones."""
    points: npt.NDArray[np.intp]
    """[N]: the vertices that follow."""
    continued: FloatArray
    """float32 [N, 3]: their places at rest if the visible surface is continued, in canonical centimetres; a turn moves
    them as it moves these."""
    outline: FloatArray
    """float32 [N], 0..1: how far the face's outline stays in place there, sideways."""


@dataclass(frozen=True, slots=True, eq=False)
class PortraitRig:
    """A portrait's face, ready to be bent."""

    size: tuple[int, int]
    """(height, width) of the portrait."""
    face: TrackedFace
    reading: FaceReading
    rings: Rings
    sources: FloatArray
    """float32 [468 + K * S, 2]: place in the portrait that each point of the mesh, then of the rings, shows, in
    pixels."""
    normals: FloatArray
    """float32 [468, 3]: unit normals in the portrait; negative z faces the camera."""
    carried: Carried
    lid_skin: FloatArray
    """float32 [468, 2]: each vertex's own place; for the edges of the lids, the skin beyond lashes and rim."""
    skin_triangles: npt.NDArray[np.int32]
    """int32 [898, 3], including openings, which other layers cover."""
    box: tuple[int, int, int, int]
    """Left, top, right, bottom (exclusive): all that can move."""
    face_height: float
    """Pixels from the hairline to the chin, along the face."""
    free: FloatArray
    """float32 [468, 1], 0..1: share of the face's motion that each vertex follows; 0 behind dark glasses."""
    free_eyes: FloatArray
    """float32 [2]: the same of the right and the left eye."""

    @property
    def pose(self) -> Pose:
        """Pose of the portrait's head."""
        return self.reading.pose


def build_rig(mesh: CanonicalMesh, face: TrackedFace, *, size: tuple[int, int]) -> PortraitRig:
    """Build a portrait's rig.

    Args:
        mesh: The canonical face.
        face: As tracked in the portrait.
        size: (height, width) of the portrait.

    Raises:
        InputError: The face is too small, or outside the picture.
    """
    if face.size_pixels < MIN_FACE_PIXELS:
        raise InputError(
            f"the portrait's face is {face.size_pixels:.0f} pixels wide, and {MIN_FACE_PIXELS} are needed; "
            "use a larger picture"
        )
    first, last = face.landmarks[:, :2].min(axis=0), face.landmarks[:, :2].max(axis=0)
    if (last <= 0).any() or (first >= size[::-1]).any():
        raise InputError(
            f"the portrait's face lies outside the picture, around x={(first[0] + last[0]) / 2:.0f} and "
            f"y={(first[1] + last[1]) / 2:.0f} of {size[1]}x{size[0]} pixels; its landmarks must be of this picture"
        )
    lid_skin = _lid_skin(face.landmarks)
    face = _with_lashes(face)
    reading = read_face(mesh, face)
    landmarks = face.landmarks[:MESH_VERTEX_COUNT]
    normals = _normals(mesh, landmarks)
    rings = _rings(landmarks, reading.pose)
    return PortraitRig(
        size=size,
        face=face,
        reading=reading,
        rings=rings,
        normals=normals,
        carried=_carried(mesh, normals, reading),
        sources=_sources(landmarks, rings),
        lid_skin=lid_skin,
        skin_triangles=mesh.triangles,
        box=_box(rings, size),
        face_height=_face_height(landmarks),
        free=np.ones((MESH_VERTEX_COUNT, 1), np.float32),
        free_eyes=np.ones(2, np.float32),
    )


def with_person(rig: PortraitRig, matte: FloatArray) -> PortraitRig:
    """Adapt a rig so that the head moves as a whole, as far as the person reaches.

    Args:
        rig: The portrait's rig.
        matte: float32 [H, W], 0..1: the person.
    """
    landmarks = rig.face.landmarks[:MESH_VERTEX_COUNT]
    rings = _rings(landmarks, rig.pose, matte)
    return replace(rig, rings=rings, sources=_sources(landmarks, rings), box=_box(rings, rig.size))


def _sources(landmarks: FloatArray, rings: Rings) -> FloatArray:
    """``PortraitRig.sources`` of these landmarks [468, 3] and rings."""
    return np.concatenate((landmarks[:, :2], rings.sources.reshape(-1, 2))).astype(np.float32)


def _box(rings: Rings, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """``PortraitRig.box`` of a picture of this (height, width)."""
    (height, width), outer = size, rings.sources[-1]
    left, top = np.floor(outer.min(axis=0)).astype(int)
    right, bottom = np.ceil(outer.max(axis=0)).astype(int) + 1
    return max(int(left), 0), max(int(top), 0), min(int(right), width), min(int(bottom), height)


def _with_lashes(face: TrackedFace) -> TrackedFace:
    """Move the lids' edges slightly into the eyes, so that lids carry their lashes when they close."""
    landmarks = face.landmarks.copy()
    for eye in EYES:
        upper, lower = list(eye.upper[1:-1]), list(eye.lower[1:-1])
        width = float(np.linalg.norm(landmarks[eye.outer_corner, :2] - landmarks[eye.inner_corner, :2]))
        gap = landmarks[lower] - landmarks[upper]
        opening = np.maximum(np.linalg.norm(gap[:, :2], axis=1, keepdims=True), 1e-3)
        landmarks[upper] += gap * np.minimum(_UPPER_LASHES * width / opening, 0.3)
        landmarks[lower] -= gap * np.minimum(_LOWER_LASHES * width / opening, 0.15)
    return replace(face, landmarks=landmarks)


def _lid_skin(landmarks: FloatArray) -> FloatArray:
    """Find the skin that the edges of closed lids show: float32 [468, 2]."""
    shown = landmarks[:MESH_VERTEX_COUNT, :2].copy()
    for eye in EYES:
        for edge, row, share in (
            (eye.upper, eye.upper_lid, _UPPER_SKIN),
            (eye.lower, eye.lower_lid, _LOWER_SKIN),
        ):
            inner = list(edge[1:-1])
            shown[inner] += share * (landmarks[list(row), :2] - landmarks[inner, :2])
    return shown


def _normals(mesh: CanonicalMesh, landmarks: FloatArray) -> FloatArray:
    """Unit normals of the vertices, outward, in the picture's axes: float32 [468, 3]; negative z faces the camera."""
    corners = landmarks[mesh.triangles]
    of_triangles = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals = np.zeros_like(landmarks)
    for corner in range(3):
        np.add.at(normals, mesh.triangles[:, corner], of_triangles)
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-6)
    return np.asarray(normals * -np.sign(np.median(normals[:, 2])), np.float32)


def _carried(mesh: CanonicalMesh, normals: FloatArray, reading: FaceReading) -> Carried:
    facing = -normals[:, 2]
    unseen = facing < _GRAZING
    shares = np.clip((_GRAZING - facing) / (_GRAZING - _HIDDEN), 0, 1)
    own_yaw = abs(angles_of(reading.pose.rotation)[0])
    stays = _OUTLINE_STAYS * float(np.interp(own_yaw, _FACES_US_DEGREES, (1, 0)))
    outline = stays * shares * np.interp(np.abs(mesh.vertices[:, 0]), _CHEEK_CM, (0, 1))
    return Carried(
        shares.astype(np.float32),
        np.flatnonzero(unseen),
        _continuing(mesh, unseen) @ reading.vertices,
        outline[unseen].astype(np.float32),
    )


def _continuing(mesh: CanonicalMesh, unknown: npt.NDArray[np.bool_]) -> FloatArray:
    """Weights of known vertices that continue them at the unknown ones, [N, 468].

    A plate of minimum bending continues the slope beside it; a membrane, of which a little is added, keeps the value.
    """
    weights = np.zeros((int(unknown.sum()), len(unknown)))
    if unknown.any() and not unknown.all():
        joined = np.zeros((len(unknown), len(unknown)))
        for first, second in ((0, 1), (1, 2), (2, 0)):
            ends = mesh.triangles[:, [first, second]]
            joined[ends[:, 0], ends[:, 1]] = joined[ends[:, 1], ends[:, 0]] = 1
        laplacian = np.diag(joined.sum(axis=1)) - joined
        energy = laplacian @ laplacian + _MEMBRANE * laplacian
        weights[:, ~unknown] = np.linalg.solve(
            energy[np.ix_(unknown, unknown)], -energy[np.ix_(unknown, ~unknown)]
        )
    return np.asarray(weights, np.float32)


def _rings(landmarks: FloatArray, pose: Pose, matte: FloatArray | None = None) -> Rings:
    oval = landmarks[list(FACE_OVAL)]
    centre = oval[:, :2].mean(axis=0)
    spokes = oval[:, :2] - centre
    lengths = np.maximum(np.linalg.norm(spokes, axis=1), 1e-3)
    directions = (spokes / lengths[:, None]).astype(np.float32)
    up = (pose.rotation @ TO_PICTURE)[:2, 1]
    upward = directions @ (up / max(float(np.linalg.norm(up)), 1e-6))
    at_top = _smooth(upward, 0.2, 0.8)
    reach = 1 + (_TOP_REACH - 1) * at_top
    if matte is not None:
        reach = _above_hair(matte, centre, spokes, reach, at_top)
    # Rings may be outside a tight picture, so that hair follows as in any other.
    factors = 1 + (_FACTORS[:, None] - 1) * reach[None, :]
    sources = centre + spokes[None] * factors[..., None]
    below = _smooth(-upward, 0.2, 0.75)
    # Rings up to where a turned face bulges beyond the mesh's border are part of the face.
    rim, beyond = _rim(landmarks[:, :2] - centre, directions, lengths)
    widest = _FACTORS[-1] - 1
    beyond = np.minimum(beyond / reach, 0.6 * widest)
    from_rim = 1 + np.maximum(_FACTORS[:, None] - 1 - beyond, 0) * (widest / (widest - beyond))
    head, neck, body = (
        np.interp(from_rim, _FACTORS, shares) for shares in (_HEAD_WEIGHTS, _NECK_WEIGHTS, _BODY_WEIGHTS)
    )
    if matte is not None:
        # Hair moves fully with the head, up to its end; beyond, nothing is visible.
        hair = np.maximum(beyond, _hair(matte, centre, spokes, reach))
        from_hair = 1 + np.maximum(_FACTORS[:, None] - 1 - hair, 0) * (widest / (widest - hair))
        head = np.interp(from_hair, _FACTORS, _HEAD_WEIGHTS)
    weights, body_weights = (head * (1 - below) + lower * below for lower in (neck, body))
    share_back = _smooth(from_rim, 1.0, _BACK_BY)
    border_depth = oval[:, 2] - pose.shift[2]
    depths = border_depth * (1 - share_back) - _BACK_CM * pose.scale * share_back
    # Behind the chin is the neck, which does not swing with the head.
    depths = depths * (1 - below) + np.minimum(depths, 0) * 0.3 * below
    depths[0] = border_depth
    # The first strip is the edge of chin and cheeks, where the tracker only guesses the border.
    expression = np.exp(-np.maximum(from_rim - _FACTORS[1], 0) / 0.18)
    expression[-1] = 0
    sources, expression = sources.astype(np.float32), expression.astype(np.float32)
    of_edge = expression >= 1
    spacing = np.linalg.norm(np.diff(sources, axis=0), axis=2)
    at_edge = np.minimum(spacing, _AT_EDGE * _face_height(landmarks))
    return Rings(
        sources,
        weights.astype(np.float32),
        body_weights.astype(np.float32),
        expression,
        share_back.astype(np.float32),
        depths.astype(np.float32),
        directions,
        np.where(of_edge[:-1] & ~of_edge[1:], at_edge, _LEAST_SPACING * spacing),
        rim,
        _ring_triangles(len(_FACTORS)),
    )


def _face_height(landmarks: FloatArray) -> float:
    """Pixels from the top of the face's outline to the chin."""
    return float(np.linalg.norm(landmarks[FACE_OVAL[0], :2] - landmarks[FACE_OVAL[SPOKES // 2], :2]))


def _hair(matte: FloatArray, centre: FloatArray, spokes: FloatArray, reach: FloatArray) -> FloatArray:
    """Reach of hair beyond the mesh's border along each spoke, in ring radii.

    Args:
        matte: float32 [H, W], 0..1: the person.
        centre: float32 [2], the face's middle, pixels.
        spokes: float32 [S, 2], from there to the mesh's border.
        reach: float [S]: factor by which rings are farther out.
    """
    steps = np.linspace(0, _FACTORS[-1] - 1, 48)
    ends = _ends_of_person(matte, centre, spokes, steps[:, None] * reach) / reach
    # Hair without an end is a shoulder, a hat or another person, and moves as without a matte.
    return _evened(np.where(ends <= _LONGEST_HAIR, ends, 0.0))


def _above_hair(
    matte: FloatArray, centre: FloatArray, spokes: FloatArray, reach: FloatArray, at_top: FloatArray
) -> FloatArray:
    """Move rings farther out where hair is tall, so that a head that moves up does not press it flat.

    Args:
        matte: As for ``_hair``, like the next two.
        centre: Likewise.
        spokes: Likewise.
        reach: Factor by which rings are usually farther out.
        at_top: float [S], 0..1: spokes on which hair may be tall.

    Returns:
        float [S]: such a factor.
    """
    most = _LONGEST_HAIR * reach + _TALLER * at_top
    ends = _ends_of_person(matte, centre, spokes, np.linspace(0, 1, 64)[:, None] * most)
    more = np.maximum(ends / _LONGEST_HAIR - reach, 0.0)
    return np.asarray(reach + np.maximum(more, _evened(more)))


def _ends_of_person(
    matte: FloatArray, centre: FloatArray, spokes: FloatArray, beyond: npt.NDArray[np.floating]
) -> npt.NDArray[np.floating]:
    """The first of some places beyond the mesh's border that shows no person, on each spoke; 0 if there is none.

    Args:
        matte: As for ``_hair``, like the next two.
        centre: Likewise.
        spokes: Likewise.
        beyond: float [N, S]: the places, in lengths of the spoke.
    """
    height, width = matte.shape
    places = centre + spokes * (1 + beyond)[..., None]
    x, y = (np.rint(places[..., axis]).astype(int) for axis in (0, 1))
    outside = (x < 0) | (y < 0) | (x >= width) | (y >= height)
    there = matte[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)] > 0.5
    is_end = ~there | outside
    first = np.take_along_axis(beyond, is_end.argmax(axis=0)[None], axis=0)[0]
    return np.asarray(np.where(is_end.any(axis=0), first, 0.0))


def _evened(lengths: npt.NDArray[np.floating]) -> FloatArray:
    """Lengths [S], mixed with those of the spokes beside each."""
    for _ in range(2):
        lengths = (np.roll(lengths, 1) + 2 * lengths + np.roll(lengths, -1)) / 4
    return np.asarray(lengths, np.float32)


def _rim(
    points: FloatArray, directions: FloatArray, lengths: FloatArray
) -> tuple[npt.NDArray[np.int32], FloatArray]:
    """The outermost vertex along each spoke, and its distance beyond the mesh's border, in lengths of the spoke.

    Args:
        points: float32 [468, 2], from the face's middle, pixels.
        directions: float32 [S, 2].
        lengths: float32 [S], pixels.
    """
    along = points @ directions.T  # [468, S]
    beside = np.abs(points[:, :1] * directions[:, 1] - points[:, 1:] * directions[:, 0])
    beyond = np.where(beside < _BESIDE_SPOKE * lengths, along / lengths - 1, -1)
    outermost = beyond.argmax(axis=0)
    reach = np.take_along_axis(beyond, outermost[None], axis=0)[0]
    bulges = reach > _BULGES
    return (
        np.where(bulges, outermost, FACE_OVAL).astype(np.int32),
        np.where(bulges, reach, 0).astype(np.float32),
    )


def _ring_triangles(count: int) -> npt.NDArray[np.int32]:
    rows = np.arange(MESH_VERTEX_COUNT, MESH_VERTEX_COUNT + count * SPOKES).reshape(count, SPOKES)
    inner, outer = rows[:-1], rows[1:]
    inner_next, outer_next = np.roll(inner, -1, axis=1), np.roll(outer, -1, axis=1)
    triangles = np.stack(
        (np.stack((inner, outer, outer_next), -1), np.stack((inner, outer_next, inner_next), -1)), axis=2
    )
    return np.ascontiguousarray(triangles[::-1].reshape(-1, 3), np.int32)


def _smooth(value: npt.NDArray[np.floating], low: float, high: float) -> npt.NDArray[np.floating]:
    share = np.clip((value - low) / (high - low), 0, 1)
    return np.asarray(share * share * (3 - 2 * share))
