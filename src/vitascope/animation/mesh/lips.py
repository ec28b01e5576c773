"""Brings the portrait's lips to the driver's gap and width, whatever expression the portrait has.

Added to a portrait with parted lips, a driver's movement never closes them: p, b and m are not seen. So if the driver's
lips were measured, from a face at rest with closed lips, the portrait's are brought to the same gap. A mouth widens and
narrows by as much as the driver's, a small one by the same share. The width is measured without a smile that the
driver's face at rest does not show: a broad mouth must not become broader than a face.
"""

from __future__ import annotations

import numpy as np

from vitascope.animation.canonical_mesh import (
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LOWER_LIP_ROWS,
    MOUTH_CORNERS,
    UPPER_LIP_MIDDLE,
    UPPER_LIP_ROWS,
)
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import FloatArray

_UPPER, _LOWER = np.array(INNER_UPPER_LIP[1:-1], np.intp), np.array(INNER_LOWER_LIP[1:-1], np.intp)
_TO_INNER = tuple(
    (np.array(upper[1:-1], np.intp), np.array(lower[1:-1], np.intp))
    for upper, lower in zip(UPPER_LIP_ROWS[1:], LOWER_LIP_ROWS[1:], strict=True)
)
"""Rows of points of the upper and the lower lip, from near the outer edge to the inner one."""
_TOWARDS_INNER = np.linspace(0, 1, len(_TO_INNER) + 1, dtype=np.float32)[1:]
"""Shares with which these rows follow the inner edge."""
_MIDDLE = slice(3, 6)
_MOST_CM, _MOST_BY_JAW_CM = 1.2, 3.2
"""Maximum distance by which lips alone are brought together or apart; and the additional distance by which the jaw
brings them together, for a portrait that speaks, laughs or shouts: the lips of a woman who shouts are 4.1 apart."""
_WIDEST, _NARROWEST = 1.6, 0.68
"""Maximum and minimum width of a mouth, relative to its own at rest."""
_MOST_WIDER_CM = 1.6
_LESS_NARROW = 0.5
"""Share of the excess narrowing, beyond the driver's, that is undone for lips drawn together: with all of it, a pucker
of a portrait with a broad smile could not be read."""
CANONICAL_WIDTH_CM = 5.1
"""Width of the canonical face's lips, between their corners."""
_BROAD_CM = (5.9, 6.4)
"""Widths of a portrait's mouth: up to the first it may not come from its smile, from the second on it does. Lips that
speak look like a smile, too, and are 5.8."""
_SHOWN_APART_CM = (0.1, 0.3)
"""Gaps of the portrait's own lips: below the first nothing shows between them, from the second on they are surely
parted."""
_MEETING, _MET = 0.5, 0.15
"""Shares of the portrait's own gap at which its lips begin to look closed, and at which they fully do."""
_UPPER_SHARE, _MOST_UPPER = 0.35, 0.8
"""An upper lip's share of what brings lips together; and its most, where it covers teeth that a portrait's smile bares:
lips that rest show 0.2 cm of them, and a round mouth hardly more."""
_BARE_AT_REST_CM = 0.2
_DRAWN_TOGETHER = (0.04, 0.2)
"""A mouth that a driver narrows by the first share leaves a portrait its own smile, from the second on none of it."""
_CORNERS = np.array(MOUTH_CORNERS, np.intp)
_ROUND_CM, _MOST_LOWER_CM = (0.3, 1.5), 0.8
"""Gaps from which on, and at which wholly, an open mouth is as round as the driver's, whatever smile the portrait
shows; and how far its corners are lowered for that at most."""
_LEVEL_CM = 0.05
"""So far below the middle between shut lips the mouth's corners lie at rest: 0.01 and 0.06 in two drivers."""
_NOSE, _UPPER_EDGE, _UPPER_INNER = 2, [37, 0, 267], [82, 13, 312]
_MOST_THINNED_CM = 0.25
"""An upper lip regains at most this height as its smile goes. In two drivers' grins it has 0.93 and 1.07 of its area at
rest; the lower one, which hardly becomes thinner, 1.25 and 1.33."""
_MOST_RAISED = 0.45
"""An upper lip rises by at most this share of the skin between it and the nose, whose shadow it would squeeze to a
line; a shouting driver's rose by 0.44 of it. The whole mouth is lower then."""


def gap_cm(vertices: FloatArray) -> float:
    """Gap in the middle between the lips of a face, float32 [468, 3], in centimetres; negative where they overlap."""
    apart = vertices[_UPPER, 1] - vertices[_LOWER, 1]
    return float(apart[_MIDDLE].mean())


def width_cm(vertices: FloatArray) -> float:
    """Distance of the mouth's corners, across."""
    right, left = MOUTH_CORNERS
    return float(vertices[left, 0] - vertices[right, 0])


def corners_cm(vertices: FloatArray) -> FloatArray:
    """How far below the upper lip's middle the mouth's right and left corner are: float32 [2], centimetres."""
    return np.asarray(vertices[UPPER_LIP_MIDDLE, 1] - vertices[_CORNERS, 1], np.float32)


def level_cm(vertices: FloatArray) -> float:
    """How far the mouth's corners are below the middle between the lips, float32 [468, 3], centimetres."""
    lips = (vertices[_UPPER, 1] + vertices[_LOWER, 1])[_MIDDLE].mean() / 2
    return float(lips - vertices[_CORNERS, 1].mean())


def wider(displacement: FloatArray) -> float:
    """Widening of the canonical face's mouth by a displacement, as a share of its width."""
    return _widened(displacement) / CANONICAL_WIDTH_CM


def thinned_cm(vertices: FloatArray, smile: FloatArray) -> float:
    """Height that the upper lip of a face (float32 [468, 3]) loses in a smile, in centimetres: it keeps its area."""
    width = width_cm(vertices)
    widened = width / max(width - max(_widened(smile), 0.0), 0.5 * width)
    height = float((vertices[_UPPER_EDGE, 1] - vertices[_UPPER_INNER, 1]).mean())
    return min(max(height, 0.0) * (widened - 1), _MOST_THINNED_CM)


def unsmiled(displacement: FloatArray) -> float:
    """Share of its own smile, 0..1, that a portrait loses while a displacement draws its lips together."""
    return float(np.interp(-wider(displacement), _DRAWN_TOGETHER, (0, 1)))


def shown_apart(rest: FloatArray) -> float:
    """Certainty that a portrait's lips (float32 [468, 3]) are parted, 0..1."""
    return float(np.interp(gap_cm(rest), _SHOWN_APART_CM, (0, 1)))


def lips_met(rest: FloatArray, now: FloatArray) -> float:
    """Share with which lips that a portrait shows apart are brought together: 0..1."""
    return shown_apart(rest) * float(
        np.interp(gap_cm(now) / max(gap_cm(rest), 1e-3), (_MET, _MEETING), (1, 0))
    )


class LipFit:
    """Brings a portrait's lips to a driver's gap and width.

    Args:
        basis: Displacements of expressions.
        rest: float32 [468, 3]: the portrait's face.
        bared_cm: Distance from the upper lip to the lower end of the visible upper teeth; 0 if none are visible.
        own_smile: float32 [468, 3], centimetres: the displacement of the portrait's own smile; None without one.
    """

    def __init__(
        self,
        basis: ExpressionBasis,
        rest: FloatArray,
        *,
        bared_cm: float = 0.0,
        own_smile: FloatArray | None = None,
    ) -> None:
        self._rest = rest
        self._smile_cm = 0.0 if own_smile is None else max(_widened(own_smile), 0.0)
        covers = (bared_cm - _BARE_AT_REST_CM) / max(gap_cm(rest), 1e-3)
        self._covers = min(max(covers, _UPPER_SHARE), _MOST_UPPER) - _UPPER_SHARE
        self._apart = basis.lips_apart / np.float32(gap_cm(basis.lips_apart))
        jaw = basis.field("jawOpen")
        self._jaw = jaw / np.float32(gap_cm(jaw))
        wide = sum(
            (
                basis.field(f"{name}{side}")
                for name in ("mouthStretch", "mouthDimple")
                for side in ("Left", "Right")
            ),
            np.zeros_like(basis.lips_apart),
        )
        wide[:, 1] = 0
        self._wide = wide / np.float32(_widened(wide))
        narrow = basis.field("mouthPucker")
        self._narrow = narrow / np.float32(_widened(narrow))
        self._rest_width = max(width_cm(rest), 1.0)
        self._lower = basis.lips_lower
        frowns = [basis.field(f"mouthFrown{side}")[:, 1] for side in ("Right", "Left")]
        self._corners = np.stack(
            [frown / frown[corner] for frown, corner in zip(frowns, MOUTH_CORNERS, strict=True)], axis=-1
        )
        self._room = _MOST_RAISED * max(float(rest[_NOSE, 1] - rest[_UPPER_EDGE, 1].mean()), 0.0)

    @property
    def unit_cm(self) -> float:
        """Centimetres for a ``wider`` of 1: the width of a small mouth, at most the canonical one."""
        return min(self._rest_width, CANONICAL_WIDTH_CM)

    @property
    def most_unsmiled(self) -> float:
        """Share of its own smile without which the portrait's mouth is as wide as mouths at rest are, at most 1.

        Narrower ones were read as lips drawn together.
        """
        more = max(self._rest_width - CANONICAL_WIDTH_CM, 0.0)
        return min(more / max(self._smile_cm, 1e-3), 1.0)

    @property
    def surely_broad(self) -> float:
        """Certainty that the portrait's mouth is as wide as it is because it smiles, 0..1."""
        return float(np.interp(self._rest_width, _BROAD_CM, (0, 1)))

    @property
    def shows_apart(self) -> bool:
        """True if the portrait's lips are surely parted."""
        return shown_apart(self._rest) >= 1

    def touching(self, displacement: FloatArray) -> FloatArray:
        """Limit a displacement, float32 [468, 3], so that lips do not pass through each other in the middle."""
        over = gap_cm(self._rest + displacement) - min(gap_cm(self._rest), 0.0)
        return displacement - self._apart * np.float32(min(over, 0.0))

    def fit(
        self,
        displacement: FloatArray,
        *,
        gap: float,
        wider: float,
        corners: FloatArray | None = None,
        unsmiled: float = 0.0,
        still_smiles: float = 0.0,
        smiles: float = 0.0,
        fuller_cm: float = 0.0,
        share: float = 1.0,
    ) -> FloatArray:
        """Adapt a displacement so that lips get a given gap and width.

        Args:
            displacement: float32 [468, 3], centimetres: displacement of the portrait's face.
            gap: Gap between the lips, in centimetres.
            wider: Widening of the mouth relative to rest, in ``unit_cm``.
            corners: float32 [2], centimetres: minimum distance of the right and the left corner of an open mouth below
                the upper lip's middle; corners held up by the portrait's smile are lowered. None leaves them.
            unsmiled: 0..1: the share of the portrait's own smile that is subtracted when its width at rest is measured:
                it is lost because lips are drawn together, or because the driver's face at rest shows no smile.
            still_smiles: 0..1: the share of that smile that the displacement still leaves.
            smiles: 0..1: the share of the portrait's own smile that the driver shows, too; keeps bared teeth bare.
            fuller_cm: Height, in centimetres, that both lips together gain towards each other at the cost of the gap;
                their outer edges stay.
            share: 0..1: share of the difference to make up.
        """
        at_rest = max(self._rest_width - unsmiled * self._smile_cm, 1.0)
        fitted = self._in_width(displacement, at_rest, wider, share, still_smiles)
        now = self._rest + fitted
        lack = max(gap, 0.0) - gap_cm(now)
        fitted = fitted + self._jaw * np.float32(np.clip(lack + _MOST_CM, -_MOST_BY_JAW_CM, 0) * share)
        lack = float(np.clip(lack, -_MOST_CM, _MOST_CM)) * share
        fitted = fitted + self._apart * np.float32(lack)
        fitted = fitted - self._lower * np.float32(min(lack, 0.0) * self._covers * (1 - smiles))
        raised = float((fitted[_UPPER_EDGE, 1] - fitted[_NOSE, 1]).mean())
        fitted = fitted + self._lower * np.float32(max(raised - self._room, 0.0))
        if corners is not None:
            fitted[:, 1] -= self._corners @ self._held_up(fitted, corners, share)
        if lack >= 0:
            return self._fuller(fitted, fuller_cm * share)
        # Lips meet along their whole length, or part most in the middle; the displacement field leaves slits beside it.
        now = self._rest + fitted
        gaps = now[_UPPER, 1] - now[_LOWER, 1]
        middle = max(float(gaps[_MIDDLE].mean()), 0.0)
        over = np.maximum(gaps - middle, 0) * share
        for (upper, lower), part in zip(_TO_INNER, _TOWARDS_INNER, strict=True):
            fitted[upper, 1] -= _UPPER_SHARE * part * over
            fitted[lower, 1] += (1 - _UPPER_SHARE) * part * over
        return self._fuller(fitted, fuller_cm * share)

    def _fuller(self, displacement: FloatArray, by_cm: float) -> FloatArray:
        """Bring the inner edges of parted lips nearer by a length in the middle, and the lips' skin with them."""
        if by_cm <= 0:
            return displacement
        now = self._rest + displacement
        gaps = np.maximum(now[_UPPER, 1] - now[_LOWER, 1], 0)
        middle = max(float(gaps[_MIDDLE].mean()), 1e-3)
        half = gaps * np.float32(min(by_cm / middle, 1.0) / 2)
        for (upper, lower), part in zip(_TO_INNER, _TOWARDS_INNER, strict=True):
            displacement[upper, 1] -= part * half
            displacement[lower, 1] += part * half
        return displacement

    def levelled(self, displacement: FloatArray, *, level: float, unsmiled: float) -> FloatArray:
        """Raise corners that a lost smile leaves hanging beside lips drawn together, in a float32 [468, 3].

        Args:
            displacement: Displacement of the portrait's face.
            level: Drop of the driver's corners below the middle between the lips, relative to rest, in centimetres.
            unsmiled: 0..1: the share of its own smile that the portrait lost.
        """
        if unsmiled * self._smile_cm <= 0:
            return displacement
        hangs = level_cm(self._rest + displacement) - max(level_cm(self._rest), _LEVEL_CM) - max(level, 0.0)
        raised = displacement.copy()
        raised[:, 1] += self._corners.sum(axis=1) * np.float32(unsmiled * max(hangs, 0.0))
        return raised

    def _held_up(self, displacement: FloatArray, corners: FloatArray, share: float) -> FloatArray:
        """Lift of an open mouth's corners by the portrait's own smile, float32 [2], in centimetres."""
        now = self._rest + displacement
        opened = float(np.interp(gap_cm(now), _ROUND_CM, (0, 1))) * share
        lack = corners - corners_cm(now)
        return np.asarray(lack.clip(0, _MOST_LOWER_CM) * opened, np.float32)

    def _in_width(
        self, displacement: FloatArray, at_rest: float, wider: float, share: float, still_smiles: float
    ) -> FloatArray:
        wanted = at_rest + self.unit_cm * wider
        wanted = float(np.clip(wanted, _NARROWEST * at_rest, _WIDEST * at_rest))
        lack = wanted - width_cm(self._rest + displacement)
        lack = float(np.clip(lack, -_MOST_WIDER_CM, _MOST_WIDER_CM)) * share
        if wider < 0 < lack:  # a portrait that loses its own smile meanwhile becomes narrower than it should
            return displacement + self._narrow * np.float32(_LESS_NARROW * lack)
        own = min(max(lack, -still_smiles * self._smile_cm), 0.0)
        fitted: FloatArray = displacement + self._wide * np.float32(own)
        lack -= own
        # Otherwise only the part of the driver's movement that the portrait's lacks.
        if lack * wider > 0:
            fitted += (self._wide if lack > 0 else self._narrow) * np.float32(lack)
        return fitted


def _widened(displacement: FloatArray) -> float:
    """Growth of the distance between the mouth's corners."""
    right, left = MOUTH_CORNERS
    return float(displacement[left, 0] - displacement[right, 0])
