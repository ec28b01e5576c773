"""The effect of each expression weight on the face: our own displacement of the canonical mesh for every blendshape.

A weight moves a few anchors (lips, jaw, cheeks, brows); the skin between them follows smoothly, by interpolation with
the biharmonic kernel in space, phi(r) = r (Carr et al., "Reconstruction and Representation of 3D Objects with Radial
Basis Functions", 2001). Lengths are centimetres of the canonical face, axes its own (x to the person's left, y up, z to
the camera). Eyelids and gaze are not displacements: see ``eyes_of``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    FACE_OVAL,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LEFT_BROW,
    LOWER_LIP_ROWS,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
    RIGHT_BROW,
    UPPER_LIP_ROWS,
    CanonicalMesh,
)
from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES, FloatArray

_Vector = tuple[float, float, float]
_Spec = Callable[[int, FloatArray], _Vector]
"""The displacement of an anchor (landmark number, its place)."""

_ZERO: _Vector = (0.0, 0.0, 0.0)
_UPPER_LIP = frozenset(INNER_UPPER_LIP[1:-1] + OUTER_UPPER_LIP[1:-1])
_LOWER_LIP = frozenset(INNER_LOWER_LIP[1:-1] + OUTER_LOWER_LIP[1:-1])
_UPPER_EDGE, _LOWER_EDGE = frozenset(OUTER_UPPER_LIP[1:-1]), frozenset(OUTER_LOWER_LIP[1:-1])
_CORNERS = frozenset((61, 291, 78, 308))
_LIPS = _UPPER_LIP | _LOWER_LIP | _CORNERS
CHIN_POINTS = frozenset((152, 148, 377, 175, 199, 200, 171, 396))
"""Points that move fully with the jaw, whatever the lips do."""
_JAW = frozenset((148, 377, 176, 400, 149, 378, 150, 379, 136, 365, 172, 397, 58, 288))
_CHEEKS = frozenset((50, 280, 205, 425, 187, 411, 207, 427, 206, 426))
_PUFF = frozenset((187, 411, 207, 427, 213, 433, 192, 416, 214, 434))
_NOSE = frozenset((1, 4, 5, 6, 168, 195, 98, 327, 2, 48, 278, 129, 358))
_BROWS = frozenset(RIGHT_BROW + LEFT_BROW)
_LIDS = frozenset(point for eye in EYES for point in eye.outline)
_TEMPLES = frozenset((127, 356, 234, 454, 93, 323, 132, 361))
_ANCHORS = tuple(sorted(
    _LIPS | CHIN_POINTS | _JAW | _CHEEKS | _PUFF | _NOSE | _BROWS | _LIDS | _TEMPLES | frozenset(FACE_OVAL)
))  # fmt: skip
_LIP_HALF_WIDTH = 2.46
_JAW_ARC = {"lower lip": (0.0, -3.0, -0.9), "chin": (0.0, -2.5, -1.5)}
_CLOSED_LIPS: _Vector = (0.35, -1.4, -0.3)
"""Motion of lips that stay closed while the jaw opens; x is inward, at the corners. Measured on a driver: with the chin
1.3 cm lower, lips and corners were 0.75 cm lower."""


class ExpressionBasis:
    """Displacements of the mesh for expression weights.

    Args:
        mesh: The canonical face.
    """

    def __init__(self, mesh: CanonicalMesh) -> None:
        anchors = mesh.vertices[list(_ANCHORS)].astype(np.float64)
        among = np.linalg.norm(anchors[:, None] - anchors[None], axis=-1)
        to_all = np.linalg.norm(mesh.vertices[:, None].astype(np.float64) - anchors[None], axis=-1)
        spread = to_all @ np.linalg.inv(among)  # [468, anchors]
        self._fields = np.zeros((len(BLENDSHAPES), len(mesh.vertices), 3), np.float32)

        for rows in (UPPER_LIP_ROWS, LOWER_LIP_ROWS):
            _between_edges(spread, rows, mesh.vertices)

        def spread_out(spec: _Spec) -> FloatArray:
            moved = [spec(number, place) for number, place in zip(_ANCHORS, anchors, strict=True)]
            return np.asarray(spread @ np.array(moved, np.float64), np.float32)

        for name, spec in _specs().items():
            self._fields[BLENDSHAPE_INDEX[name]] = spread_out(spec)
        self.lips_apart = spread_out(_lips_apart)
        """float32 [468, 3]: parts the lips by about a centimetre, the lower one more; the chin follows a little."""
        self.lips_lower = spread_out(_lips_lower)
        """float32 [468, 3]: lowers both lips by a centimetre, and the chin by half of that."""
        self.upper_lip_higher = spread_out(_upper_lip_higher)
        """float32 [468, 3]: raises the upper lip by a centimetre in its middle, from its edge at the mouth on."""

    def field(self, name: str) -> FloatArray:
        """Get the displacement for a weight of 1: float32 [468, 3]."""
        made: FloatArray = self._fields[BLENDSHAPE_INDEX[name]]
        return made

    def displacement(self, weights: FloatArray) -> FloatArray:
        """Add up the displacements for weights (float32 [52], negative ones too): float32 [468, 3]."""
        flat = self._fields.reshape(len(BLENDSHAPES), -1)
        return np.asarray((np.asarray(weights, np.float32) @ flat).reshape(-1, 3), np.float32)


@lru_cache(maxsize=2)
def basis_of(mesh: CanonicalMesh) -> ExpressionBasis:
    """The displacements of a mesh, cached: every animator and neutral of the mesh needs them."""
    return ExpressionBasis(mesh)


def eyes_of(weights: FloatArray, neutral: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute closure and gaze from expression weights, for motion without landmarks.

    Args:
        weights: float32 [52].
        neutral: float32 [52], of the neutral.

    Returns:
        As ``FaceMotion.eye_closure`` [2] and ``FaceMotion.gaze`` [2, 2].
    """
    change = weights - neutral

    def of(name: str) -> float:
        return float(change[BLENDSHAPE_INDEX[name]])

    closure, gaze = [], []
    for side, outward in (("Right", -1.0), ("Left", 1.0)):
        # MediaPipe's weight of a closed eye is about 0.7, of an open one 0.1.
        closed = of(f"eyeBlink{side}") / 0.62 + 0.2 * of(f"eyeSquint{side}") - 0.45 * of(f"eyeWide{side}")
        closure.append(min(max(closed, -0.6), 1.0))
        out = of(f"eyeLookOut{side}") - of(f"eyeLookIn{side}")
        down = of(f"eyeLookDown{side}") - of(f"eyeLookUp{side}")
        # A look to the side with weight 1 moves the iris by about 0.17 widths of the eye.
        gaze.append([0.17 * outward * out, 0.10 * down])
    return np.array(closure, np.float32), np.array(gaze, np.float32)


def lids_with_gaze(gaze: FloatArray) -> FloatArray:
    """Compute the closure of eyes that look up or down, for motion without landmarks.

    Args:
        gaze: float32 [2, 2], as ``FaceMotion.gaze``.

    Returns:
        float32 [2], to be added: the upper lid stays with the iris. A look down with weight 1 covers two fifths of an
        eye, a look up opens it by a fifth.
    """
    down = gaze[:, 1]
    return np.asarray(np.where(down > 0, 4.0 * down, 2.0 * down), np.float32)


def _between_edges(
    spread: npt.NDArray[np.float64], rows: Sequence[tuple[int, ...]], vertices: FloatArray
) -> None:
    """Make a lip's points follow its two edges, in place, as the other lip is equally near to them.

    Args:
        spread: [468, anchors]: weights of the anchors' displacements in that of each point.
        rows: The lip's points.
        vertices: float32 [468, 3].
    """
    outer, inner = list(rows[0]), list(rows[-1])
    for row in map(list, rows[1:-1]):
        to_outer, to_inner = (
            np.linalg.norm(vertices[row] - vertices[edge], axis=1) for edge in (outer, inner)
        )
        share = (to_outer / (to_outer + to_inner))[:, None]
        spread[row] = spread[outer] * (1 - share) + spread[inner] * share


def _side_share(x: float, side: float) -> float:
    """Share to which a lip point belongs to a side: 0 at the middle, 1 at the corner."""
    return math.pow(min(max(side * x / _LIP_HALF_WIDTH, 0.0), 1.0), 1.4)


def _corner(vector: _Vector, cheek: _Vector = _ZERO) -> Callable[[float], _Spec]:
    """Pull half of both lips, and a cheek, by the mouth's corner."""

    def on(side: float) -> _Spec:
        def spec(number: int, place: FloatArray) -> _Vector:
            share = _side_share(float(place[0]), side) if number in _LIPS else 0.0
            part = vector
            if number in _CHEEKS and place[0] * side > 0:
                share, part = 1.0, cheek
            return side * part[0] * share, part[1] * share, part[2] * share

        return spec

    return on


def _half_lip(lips: frozenset[int], vector: _Vector, *, nostril: float = 0.0) -> Callable[[float], _Spec]:
    """Move one half of a lip, most between middle and corner."""

    def on(side: float) -> _Spec:
        def spec(number: int, place: FloatArray) -> _Vector:
            along = side * float(place[0]) / _LIP_HALF_WIDTH
            if number in (129, 358, 48, 278) and along > 0:
                return 0.0, nostril, 0.0
            share = max(1 - ((along - 0.35) / 0.75) ** 2, 0.0) if number in lips else 0.0
            return side * vector[0] * share, vector[1] * share, vector[2] * share

        return spec

    return on


def _brow(inner: float, outer: float, inward: float = 0.0) -> Callable[[float], _Spec]:
    """Move a brow up by these amounts at its inner and its outer end."""

    def on(side: float) -> _Spec:
        def spec(number: int, place: FloatArray) -> _Vector:
            if number not in _BROWS or place[0] * side < 0:
                return _ZERO
            along = min(max((abs(float(place[0])) - 1.2) / 4.0, 0.0), 1.0)
            return -side * inward * (1 - along), inner * (1 - along) + outer * along, 0.0

        return spec

    return on


def _lips(
    upper: _Vector, lower: _Vector, *, narrow: float = 0.0, forward: float = 0.0, fuller: float = 0.0
) -> _Spec:
    """Move both lips as a whole; ``narrow`` is the share of width lost, ``fuller`` what each gains in height."""

    def spec(number: int, place: FloatArray) -> _Vector:
        if number not in _LIPS:
            return _ZERO
        along = abs(float(place[0])) / _LIP_HALF_WIDTH
        part = upper if number in _UPPER_LIP else lower if number in _LOWER_LIP else _ZERO
        share = max(1 - along**2, 0.0)
        outward = 1.0 if number in _UPPER_EDGE else -1.0 if number in _LOWER_EDGE else 0.0
        return (
            -narrow * float(place[0]) + part[0] * share,
            (part[1] + outward * fuller) * share,
            part[2] * share + forward * (1 - 0.4 * along**2),
        )

    return spec


def _jaw(lower_lip: _Vector, chin: _Vector, *, corner: _Vector = _ZERO, reach_cm: float = 7.6) -> _Spec:
    """Move chin and lower lip with the jaw, and its sides less and less.

    On a driver, the share was 0.93, 0.76, 0.59, 0.44, 0.30 and 0.19 at 1.3, 2.3, 3.2, 4.1, 5.1 and 5.9 cm beside the
    chin.
    """

    def spec(number: int, place: FloatArray) -> _Vector:
        if number in _LOWER_LIP:
            along = min(abs(float(place[0])) / _LIP_HALF_WIDTH, 1.0)
            share = 1 - along**2.5
            inward = -np.sign(place[0]) * corner[0] * along
            return (
                lower_lip[0] * share + float(inward),
                lower_lip[1] * share + corner[1] * (1 - share),
                lower_lip[2] * share + corner[2] * (1 - share),
            )
        if number in _CORNERS:
            return float(-np.sign(place[0])) * corner[0], corner[1], corner[2]
        if number in _JAW:
            fade = 0.5 + 0.5 * math.cos(math.pi * min(abs(float(place[0])) / reach_cm, 1.0))
            return chin[0] * fade, chin[1] * fade, chin[2] * fade
        if number in CHIN_POINTS:
            return chin
        return _ZERO

    return spec


def _closing(jaw: _Spec) -> _Spec:
    """Close lips parted by the jaw, along their whole length."""

    def spec(number: int, place: FloatArray) -> _Vector:
        if number not in _LIPS:
            return _ZERO
        parted = jaw(number, place)
        inward, down, back = _CLOSED_LIPS
        inward *= -float(np.sign(place[0])) * min(abs(float(place[0])) / _LIP_HALF_WIDTH, 1.0)
        return inward - parted[0], down - parted[1], back - parted[2]

    return spec


def _lips_apart(number: int, place: FloatArray) -> _Vector:
    share = max(1 - (abs(float(place[0])) / _LIP_HALF_WIDTH) ** 3, 0.0)
    if number in _UPPER_LIP:
        return 0.0, 0.35 * share, 0.0
    if number in _LOWER_LIP:
        return 0.0, -0.65 * share, 0.0
    return (0.0, -0.3, 0.0) if number in CHIN_POINTS else _ZERO


def _lips_lower(number: int, place: FloatArray) -> _Vector:
    del place  # all of the mouth goes the same way
    return (0.0, -1.0, 0.0) if number in _LIPS else (0.0, -0.5, 0.0) if number in CHIN_POINTS else _ZERO


def _upper_lip_higher(number: int, place: FloatArray) -> _Vector:
    share = max(1 - (float(place[0]) / _LIP_HALF_WIDTH) ** 2, 0.0)
    return (0.0, share, 0.0) if number in _UPPER_EDGE else _ZERO


def _mouth_sideways(number: int, place: FloatArray) -> _Vector:
    del place  # all of the mouth goes the same way
    if number in _LIPS:
        return 0.75, 0.0, 0.0
    return (0.25, 0.0, 0.0) if number in CHIN_POINTS else _ZERO


def _cheek_puff(number: int, place: FloatArray) -> _Vector:
    return (float(np.sign(place[0])) * 0.45, 0.0, 0.5) if number in _PUFF else _ZERO


def _mirrored(spec: _Spec) -> _Spec:
    def other(number: int, place: FloatArray) -> _Vector:
        x, y, z = spec(number, place * np.array([-1, 1, 1], np.float32))
        return -x, y, z

    return other


def _specs() -> dict[str, _Spec]:
    """Displacements for all blendshapes that move the skin."""
    specs: dict[str, _Spec] = {
        # Measured on drivers: with jawOpen at 0.93 the chin is 2.4 cm lower, the lower lip 3.6 cm from the upper.
        "jawOpen": _jaw(_JAW_ARC["lower lip"], _JAW_ARC["chin"], corner=(0.35, -1.1, -0.15)),
        "jawForward": _jaw((0.0, 0.0, 0.6), (0.0, 0.0, 0.7)),
        "jawLeft": _jaw((0.6, 0.0, 0.0), (0.8, 0.0, 0.0)),
        # Lips that are drawn together do not shrink, but become higher.
        "mouthPucker": _lips((0.0, -0.12, 0.1), (0.0, 0.08, 0.1), narrow=0.42, forward=0.45, fuller=0.2),
        "mouthFunnel": _lips((0.0, 0.35, 0.1), (0.0, -0.5, 0.1), narrow=0.28, forward=0.5),
        "mouthRollLower": _lips(_ZERO, (0.0, 0.28, -0.35)),
        "mouthRollUpper": _lips((0.0, -0.25, -0.3), _ZERO),
        "mouthShrugLower": _jaw((0.0, 0.3, 0.2), (0.0, 0.35, 0.15), reach_cm=3.0),
        "mouthShrugUpper": _lips((0.0, 0.25, 0.2), _ZERO),
        "mouthLeft": _mouth_sideways,
        "cheekPuff": _cheek_puff,
    }
    specs["mouthClose"] = _closing(specs["jawOpen"])
    specs["jawRight"] = _mirrored(specs["jawLeft"])
    specs["mouthRight"] = _mirrored(specs["mouthLeft"])
    inner_brow = _brow(0.65, 0.1)
    specs["browInnerUp"] = _sum(inner_brow(1.0), inner_brow(-1.0))
    paired: dict[str, Callable[[float], _Spec]] = {
        # Measured on a driver: a smile of 0.95 pulls the corner by (0.95, 0.6, -0.9).
        "mouthSmile": _corner((0.95, 0.75, -0.85), (0.28, 0.22, 0.05)),
        "mouthFrown": _corner((0.1, -0.75, 0.0), (0.0, -0.12, 0.0)),
        "mouthDimple": _corner((0.45, 0.05, -0.5)),
        "mouthStretch": _corner((0.75, -0.4, -0.5)),
        "mouthPress": _corner((0.1, 0.05, -0.15)),
        "mouthLowerDown": _half_lip(_LOWER_LIP, (0.05, -0.75, -0.15)),
        "mouthUpperUp": _half_lip(_UPPER_LIP, (0.05, 0.7, -0.12), nostril=0.15),
        "noseSneer": _half_lip(_UPPER_LIP, (0.0, 0.3, 0.0), nostril=0.3),
        "cheekSquint": _corner(_ZERO, (0.0, 0.3, 0.12)),
        "browDown": _brow(-0.55, -0.3, 0.15),
        "browOuterUp": _brow(0.1, 0.65),
    }
    for name, on in paired.items():
        specs[f"{name}Left"], specs[f"{name}Right"] = on(1.0), on(-1.0)
    return specs


def _sum(first: _Spec, second: _Spec) -> _Spec:
    def both(number: int, place: FloatArray) -> _Vector:
        a, b = first(number, place), second(number, place)
        return a[0] + b[0], a[1] + b[1], a[2] + b[2]

    return both
