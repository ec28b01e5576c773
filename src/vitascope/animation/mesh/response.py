"""Measures once how a portrait's expressions read, so that it shows what the driver shows.

The same movement of lips or lids is read as stronger in one face than in another: because of thin lips, a turned head,
a smile that is there already. So an expression's strength is chosen by what a tracker reads from the animated portrait.
For each channel, the portrait is drawn at a few strengths and read; values in between are interpolated. A smile hides
much of an opening jaw, so the jaw is also drawn in a smile. Later, strength is added until it reads like the driver's,
within limits that keep faces human.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitascope.animation.canonical_mesh import EYES, LEFT_BROW, RIGHT_BROW, CanonicalMesh
from vitascope.animation.expression import CHIN_POINTS, ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion, FloatArray, RgbPicture, TrackedFace
from vitascope.animation.face_reading import FaceReading, mouth_width_seen, read_face
from vitascope.animation.mesh.lips import CANONICAL_WIDTH_CM, LipFit, gap_cm, unsmiled, wider
from vitascope.animation.tracking import FaceTracker

ExpressionReader = Callable[[FaceMotion], TrackedFace | None]
"""Draws the portrait in a motion and reads its face; None if it finds none."""

_SKIN = ("jawOpen", "mouthSmileLeft", "mouthSmileRight")
_JAW_IN_SMILE = "jawOpen in a smile"
"""Name of the curve of a jaw that opens in a smile; read as ``jawOpen``."""
_LIPS_MET = " with lips that meet"
"""Added to the name of a smile, for its curve with lips brought together: the smile of a portrait that shows them apart
then reads as weaker."""
_EYES = ("eyeBlinkRight", "eyeBlinkLeft")
"""In the order of ``FaceMotion.eye_closure``."""
_BROWS = ("browInnerUp", "browDown")
_PUCKER = "mouthPucker"
_PUCKER_APART = f"{_PUCKER} with lips apart"
"""Name of the curve of a pucker with lips that are ``_SPOKEN_CM`` apart."""
_GAP, _WIDER, _WIDER_APART, _GAZE = (
    "lip gap",
    "mouth wider",
    "mouth wider, lips apart",
    ("gaze sideways", "gaze down"),
)
"""Curves of readings from landmarks: the gap in centimetres, the mouth's widening relative to rest in
``LipFit.unit_cm``, and the motion of the irises in widths of the eye. Nearly all of a grin's widening is read, but 0.6
of that of a smile with closed lips."""
CHANNELS = frozenset((
    *_SKIN, *(f"{smile}{_LIPS_MET}" for smile in _SKIN[1:]), _JAW_IN_SMILE, _PUCKER, _PUCKER_APART, *_EYES,
    *_BROWS, _GAP, _WIDER, _WIDER_APART, *_GAZE,
))  # fmt: skip
"""Names of all curves."""
WIDTH_CHANNELS = frozenset((_WIDER, _WIDER_APART))
"""Names of the curves of the mouth's width."""
_GAPS_CM = np.array([0.0, 0.2, 0.4, 0.9, 1.6, 2.6])
_PUCKERS = np.array([0.0, 0.5, 0.9, 1.3])
_BROW_STRENGTHS = np.array([0.0, 0.5, 1.0, 1.6])
_GLANCES = (np.array([-0.3, -0.15, 0.15, 0.3]), np.array([-0.12, 0.12]))
_APART_CM = 1.2
"""Gap between the lips of a grin, in centimetres."""
_LEAST_READ, _MOST_READ = 0.6, 1.1
"""Minimum and maximum reading of a drawn length, as shares of it: MediaPipe reads two thirds of an iris's motion."""
_LEAST_READ_DOWN = 0.45
"""The same minimum for irises that move up and down, partly behind the lids, of which MediaPipe reads half or less."""
_MOST_MORE_GAP, _MOST_MORE_CM, _PARTED_CM = 0.5, 0.7, 0.3
"""Maximum by which lips are drawn farther apart than the driver's, as a share and as a length, lest a word become a
shout; and the driver's gap from which on they are not drawn nearer."""
_MOST_FULLER, _MOST_FULLER_CM, _FULLER_CM = 0.5, 0.4, (0.3, 0.5)
"""A tracker marks a parted mouth as more open than it is drawn, by 0.1 to 0.4 cm at gaps of 0.4 to 1.6 in six of seven
portraits, and its lips as thinner; that a speaker's real lips are fuller is seen in their own film, whose mouth differs
less from the drawn one by 0.3 and 1.1 dB if what is read too much is given to the lips. At most this share of the gap,
and this length; and the driver's gaps from which on, and from which fully."""
_STRETCHED, _SHOUTS_CM = (0.2, 0.35), (2.2, 4.0)
"""Lips that are stretched are thin: widenings by a driver's grin (0.37 to 0.4; in talk at most 0.2), and gaps of the
portrait's own lips, from which on lips are less full, and at which they are not fuller at all."""
_SPOKEN_CM, _MOST_APART = 0.8, 0.25
"""Gap at which a pucker reads as lips that are apart do: of one that is read as 0.8 with closed lips, 0.07 to 0.4 is
left. And the maximum strength that is added for that: with all that is asked for, three mouths of six would have
narrowed by 1.4 to 1.8 times as much as the driver's."""
_BROW_POINTS = list(RIGHT_BROW + LEFT_BROW)
_SKIN_STRENGTHS = np.array([0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.3])
_CLOSURES = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 1.0])
_FAR_SIDE = 0.75
"""Share of the other side's reading below which a side of a smile is too hidden to be measured by itself."""
_MOST_MORE = {
    "browInnerUp": 0.8,
    "browDown": 0.8,
    "jawOpen": 0.55,
    "mouthSmileLeft": 0.5,
    "mouthSmileRight": 0.5,
    "mouthPucker": 0.6,
    "eyeBlinkRight": 0.3,
    "eyeBlinkLeft": 0.3,
}
"""Maximum strength added to the driver's own movement."""
_MOST_ALTOGETHER = {"jawOpen": 1.15, "mouthPucker": 1.0}
"""Maximum strength up to which anything is added; a driver's jaw opened as far as possible was 1.08, and lips drawn
together as far as possible 0.7."""
_JAW_ADDED_IN_SMILE = 0.85
"""Share of a jaw's lack that is added in a smile: a driver whose teeth touch must not seem to shout."""
_NOTICED = (0.03, 0.15)
"""Changes of a weight: below the first they are noise and change nothing; from the second on they count fully."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The reading of one expression by its strength."""

    strengths: FloatArray
    """The drawn strengths, strictly increasing."""
    readings: FloatArray
    """The weight read for each strength, never decreasing."""

    def strength_for(self, reading: float) -> float:
        """The lowest strength with that reading, or the highest strength of the curve."""
        return float(np.interp(reading, self.readings, self.strengths))


class Response:
    """Strengthens expressions as far as a portrait needs.

    Args:
        basis: Displacements of expressions.
        curves: The curve of each channel.
    """

    def __init__(self, basis: ExpressionBasis, curves: Mapping[str, Curve]) -> None:
        self.curves = curves
        self._fields = np.stack([basis.field(name) for name in _SKIN])
        self._closing = basis.field("mouthClose")
        # The strengths that a displacement already holds: least squares over the mesh, and for the jaw over the chin
        # alone. A grin that bares the teeth parts the lips as far as a jaw that is a third open.
        flat = self._fields.reshape(len(_SKIN), -1)
        self._project = np.linalg.pinv(flat.T)
        jaw = np.zeros_like(self._fields[0])
        jaw[list(CHIN_POINTS)] = self._fields[0][list(CHIN_POINTS)]
        self._project[0] = jaw.reshape(-1) / np.square(jaw).sum()
        self._brows = {name: _brow_field(basis, name) for name in _BROWS}
        self._pucker = basis.field(_PUCKER)

    def adjust(
        self, displacement: FloatArray, closure: FloatArray, motion: FaceMotion, *, narrower: float
    ) -> tuple[FloatArray, FloatArray]:
        """Strengthen a displacement and closures so that they read as the motion's weights.

        Args:
            displacement: float32 [468, 3], centimetres: displacement of the portrait's face.
            closure: float32 [2].
            motion: The weights.
            narrower: Narrowing of the mouth by removing the portrait's own smile, 0 or more, in the unit of
                ``lips.wider``. It is not a pucker, and does not count as one.
        """
        held = self._project @ displacement.reshape(-1)
        more = np.array([self._more(name, float(now), motion) for name, now in zip(_SKIN, held, strict=True)])
        if motion.vertices is not None:
            more[0] = 0  # the jaw is measured: more of it would drag the mouth along
        # When the jaw drops behind closed lips, they stay closed.
        displacement = displacement + self._closing * np.float32(more[0] * (1 - _parted(displacement)))
        displacement = displacement + np.tensordot(more.astype(np.float32), self._fields, axes=1)
        drawn_together = (wider(displacement) + narrower) / wider(self._pucker)
        displacement = displacement + self._pucker * np.float32(self._more(_PUCKER, drawn_together, motion))
        for name, field in self._brows.items():
            up = displacement[_BROW_POINTS, 1] @ field[_BROW_POINTS, 1]
            held = up / np.square(field[_BROW_POINTS, 1]).sum()
            displacement = displacement + field * np.float32(self._more(name, float(held), motion))
        eyes = [self._more(name, float(now), motion) for name, now in zip(_EYES, closure, strict=True)]
        return np.asarray(displacement, np.float32), np.minimum(closure + np.array(eyes, np.float32), 1.0)

    def lips(
        self, gap: float, width: float, *, own_gap: float, own_width: float
    ) -> tuple[float, float, float]:
        """Find the gap (centimetres) and width to draw that read as the driver's, and how much of the gap lips fill.

        Args:
            gap: The driver's.
            width: Likewise.
            own_gap: Gap of the portrait at rest, which is not a shout, however small its reading.
            own_width: Widening of the portrait's mouth by a smile at rest that the driver lacks, in the unit of
                ``lips.wider``. Up to this, readings equal what is drawn.
        """
        asked, fuller = max(gap, 0.0), 0.0
        if (curve := self.curves.get(_GAP)) is not None:
            # Beyond the drawn range it continues in proportion.
            beyond = max(gap / float(curve.readings[-1]), 1.0)
            least = gap if gap > _PARTED_CM else 0.0
            most = max(gap + min(_MOST_MORE_GAP * gap, _MOST_MORE_CM), own_gap)
            reads = curve.strength_for(gap) * beyond
            gap = min(max(reads, least), most)
            fuller = min(gap - reads, _MOST_FULLER * gap, _MOST_FULLER_CM) * float(
                np.interp(asked, _FULLER_CM, (0, 1))
                * np.interp(width, _STRETCHED, (1, 0))
                * np.interp(own_gap, _SHOUTS_CM, (1, 0))
            )
        if (curve := self.curves.get(_WIDER)) is not None:
            apart = self.curves.get(_WIDER_APART, curve)
            share = min(asked / _APART_CM, 1.0)
            own_width = min(max(width, 0.0), own_width)
            more = width - own_width
            width = own_width + (1 - share) * curve.strength_for(more) + share * apart.strength_for(more)
        return gap, width, max(fuller, 0.0)

    def gaze(self, gaze: FloatArray) -> FloatArray:
        """Find the gaze [2, 2] to draw that reads as the driver's."""
        drawn = np.array(gaze, np.float32)
        for axis, name in enumerate(_GAZE):
            if (curve := self.curves.get(name)) is not None:
                drawn[:, axis] = np.interp(drawn[:, axis], curve.readings, curve.strengths)
        return drawn

    def _more(self, name: str, now: float, motion: FaceMotion) -> float:
        curve = self.curves.get(name)
        sides = _sides(name)
        change = sum(motion.expression(side) for side in sides) / len(sides)
        if curve is None or change <= _NOTICED[0]:
            return 0.0
        at_rest = float(curve.readings[0])
        reading = at_rest + change * (1 - at_rest)
        wanted = curve.strength_for(reading)
        weight = min((change - _NOTICED[0]) / (_NOTICED[1] - _NOTICED[0]), 1.0)
        share = 1.0
        if name == "jawOpen" and (smiling := self.curves.get(_JAW_IN_SMILE)) is not None:
            smile = max(0.0, min(motion.expression("mouthSmileLeft"), motion.expression("mouthSmileRight")))
            wanted += (smiling.strength_for(reading) - wanted) * smile
            share += (_JAW_ADDED_IN_SMILE - 1) * smile
        if (met := self.curves.get(f"{name}{_LIPS_MET}")) is not None and motion.vertices is not None:
            gap = max(gap_cm(motion.vertices), 0.0)
            together = met.strength_for(float(met.readings[0]) + change * (1 - float(met.readings[0])))
            wanted += (together - wanted) * max(1 - gap / _PARTED_CM, 0.0)
        if name == _PUCKER and motion.vertices is not None and (apart := self.curves.get(_PUCKER_APART)):
            parted = min(max(gap_cm(motion.vertices), 0.0) / _SPOKEN_CM, 1.0)
            opened = apart.strength_for(float(apart.readings[0]) + change * (1 - float(apart.readings[0])))
            wanted += min(max(opened - wanted, 0.0), _MOST_APART) * parted
        wanted = min(wanted, _MOST_ALTOGETHER.get(name, wanted))
        return weight * min(share * max(wanted - max(now, 0.0), 0.0), _MOST_MORE[name])


def _parted(displacement: FloatArray) -> float:
    """Share to which a displacement parts the lips: 0 up to a millimetre, 1 from 6 on."""
    return float(np.clip((gap_cm(displacement) - 0.1) / 0.5, 0, 1))


def _brow_field(basis: ExpressionBasis, name: str) -> FloatArray:
    return np.asarray(sum(basis.field(side) for side in _sides(name)), np.float32)


def _sides(name: str) -> list[str]:
    """The weights whose mean a channel is."""
    return [name] if name in BLENDSHAPE_INDEX else [f"{name}Left", f"{name}Right"]


def measure_response(
    basis: ExpressionBasis,
    lips: LipFit,
    mesh: CanonicalMesh,
    read: ExpressionReader,
    *,
    own_smile: FloatArray,
) -> Response:
    """Draw and read a portrait 55 times, or 62 times if it shows its lips apart.

    Args:
        basis: Displacements of expressions.
        lips: Of the portrait.
        mesh: The canonical face.
        read: Draws and reads.
        own_smile: float32 [468, 3], centimetres: the displacement of the portrait's own smile, which it loses as it
            draws its lips together.
    """
    still = np.zeros_like(basis.field("jawOpen"))
    smile = basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")
    curves: dict[str, Curve] = {}
    jaw = basis.field("jawOpen")
    drawn: list[TrackedFace | None] = []
    grins: list[TrackedFace | None] = []
    for names, field, beside in (
        (("jawOpen",), jaw, still),
        ((_JAW_IN_SMILE,), jaw, smile),
        (_SKIN[1:], smile, still),
    ):
        grins = drawn
        drawn = [read(FaceMotion(vertices=beside + field * np.float32(x))) for x in _SKIN_STRENGTHS]
        curves |= _curves(names, _SKIN_STRENGTHS, drawn)
    _as_the_near_side(curves, _SKIN[1:])
    if lips.shows_apart:
        closed = [lips.fit(smile * np.float32(x), gap=0.0, wider=0.0) for x in _SKIN_STRENGTHS]
        of_met = tuple(f"{name}{_LIPS_MET}" for name in _SKIN[1:])
        curves |= _curves(of_met, _SKIN_STRENGTHS, [read(FaceMotion(vertices=one)) for one in closed])
        _as_the_near_side(curves, of_met)
    pucker = basis.field(_PUCKER)
    narrowed = [
        pucker * np.float32(x) - own_smile * np.float32(unsmiled(pucker * np.float32(x))) for x in _PUCKERS
    ]
    puckered = [read(FaceMotion(vertices=one)) for one in narrowed]
    curves |= _curves((_PUCKER,), _PUCKERS, puckered)
    rounded = [
        lips.fit(
            one,
            gap=_SPOKEN_CM,
            wider=wider(pucker) * x * CANONICAL_WIDTH_CM / lips.unit_cm,
            unsmiled=unsmiled(pucker * np.float32(x)),
        )
        for x, one in zip(_PUCKERS, narrowed, strict=True)
    ]
    curves |= _curves((_PUCKER_APART,), _PUCKERS, [read(FaceMotion(vertices=one)) for one in rounded])
    closing = [read(FaceMotion(vertices=still, eye_closure=np.array([x, x], np.float32))) for x in _CLOSURES]
    curves |= _curves(_EYES, _CLOSURES, closing)
    for name in _BROWS:
        field = _brow_field(basis, name)
        faces = [read(FaceMotion(vertices=field * np.float32(x))) for x in _BROW_STRENGTHS]
        curves |= _curves((name,), _BROW_STRENGTHS, faces)
    if drawn[0] is None:
        return Response(basis, curves)
    at_rest = read_face(mesh, drawn[0])

    def reading(face: TrackedFace | None) -> FaceReading:
        return at_rest if face is None else read_face(mesh, face)

    # The smiles, grins and puckers above also give the mouth's width.
    rest_width = mouth_width_seen(drawn[0].landmarks)
    outer = at_rest.vertices[[eye.outer_corner for eye in EYES]]
    unit = float(np.linalg.norm(outer[1] - outer[0])) / lips.unit_cm

    def widths(displacements: Iterable[FloatArray], faces: Sequence[TrackedFace | None]) -> FloatArray:
        """Drawn widenings of mouths, in the unit of ``wider``, and those seen, in ``unit_cm``: [2, N]."""
        found = [
            (wider(moved), (mouth_width_seen(face.landmarks) - rest_width) * unit)
            for moved, face in zip(displacements, faces, strict=True)
            if face is not None
        ]
        return np.array(found).reshape(-1, 2).T

    narrow = widths(narrowed[1:3], puckered[1:3])
    wide = widths((smile * np.float32(x) for x in _SKIN_STRENGTHS[2:6]), drawn[2:6])
    apart = widths((smile + jaw * np.float32(x) for x in _SKIN_STRENGTHS[1:4]), grins[1:4])
    curves[_WIDER], curves[_WIDER_APART] = _bent_line(narrow, wide), _bent_line(narrow, apart)
    jaw_gap = gap_cm(jaw)
    opened = [lips.fit(jaw * np.float32(gap / jaw_gap), gap=gap, wider=0.0) for gap in _GAPS_CM]
    gaps = [gap_cm(reading(read(FaceMotion(vertices=one))).vertices) for one in opened]
    rising = np.maximum.accumulate(gaps) + np.arange(len(gaps)) * 1e-4
    curves[_GAP] = Curve(_GAPS_CM.astype(np.float32), rising.astype(np.float32))
    for axis, (name, glances) in enumerate(zip(_GAZE, _GLANCES, strict=True)):
        looks = []
        for glance in glances:
            gaze = np.zeros((2, 2), np.float32)
            gaze[:, axis] = glance
            now = reading(read(FaceMotion(vertices=still, gaze=gaze)))
            looks.append(float((now.irises - at_rest.irises)[:, axis].mean()))
        found = np.stack((glances, looks))
        curves[name] = _bent_line(found, found, least=_LEAST_READ if axis == 0 else _LEAST_READ_DOWN)
    return Response(basis, curves)


def _as_the_near_side(curves: dict[str, Curve], names: Sequence[str]) -> None:
    """Give the far side of a turned head the near side's curves of a smile, in place.

    It reads weakly, however much it smiles, and would be pulled up to its eye.
    """
    smiles = [curves[name] for name in names if name in curves]
    best = max(smiles, key=lambda curve: float(curve.readings[-1]), default=None)
    for name in names:
        if best is not None and (
            name not in curves or curves[name].readings[-1] < _FAR_SIDE * best.readings[-1]
        ):
            curves[name] = best


def _bent_line(below: FloatArray, above: FloatArray, *, least: float = _LEAST_READ) -> Curve:
    """A curve through 0 that is straight on either side; each side is fitted to drawn and seen values, [2, N]."""
    shares = [
        float(np.clip((drawn @ seen) / max(drawn @ drawn, 1e-6), least, _MOST_READ))
        for drawn, seen in (below, above)
    ]
    ends = np.array([-1.0, 0.0, 1.0], np.float32)
    return Curve(ends, np.array([-shares[0], 0.0, shares[1]], np.float32))


def _curves(
    names: tuple[str, ...], strengths: FloatArray, faces: list[TrackedFace | None]
) -> dict[str, Curve]:
    """Curves of channels that were drawn together; none where the face was lost."""
    found = [(x, face) for x, face in zip(strengths, faces, strict=True) if face is not None]
    if len(found) < 3 or found[0][0] != 0:
        return {}
    made = {}
    for name in names:
        readings = np.maximum.accumulate(
            [np.mean([face.blendshape(side) for side in _sides(name.partition(" ")[0])]) for _, face in found]
        )
        # Slightly increasing everywhere, so that each reading belongs to one strength.
        readings = readings + np.arange(len(readings)) * 1e-4
        if readings[-1] - readings[0] > 0.05:
            made[name] = Curve(np.array([x for x, _ in found]), readings)
    return made


_LEAST_CONFIDENCE = 0.3
"""Minimum confidence of a face; low, as portraits may be painted."""


@contextmanager
def steady_reader(model: Path) -> Iterator[Callable[[RgbPicture], TrackedFace | None]]:
    """Open a reader for ``MeshAnimator.calibrate``.

    MediaPipe's reading depends on how it frames the face: for a painting's small jaw opening, 0.09 when it follows the
    face from the previous picture, and 0.16 when it finds it anew. So both are done, and weights are the mean.
    Landmarks are those of the followed face, like a driver's: for another painting's lips that are 0.2 cm apart, 0.1 is
    read in this way, and 0.4 anew.

    Args:
        model: The file ``face_landmarker.task``.

    Yields:
        A function that reads the face in a picture (uint8 [H, W, 3]); None if neither way finds one.

    Raises:
        MissingDependencyError: MediaPipe is not installed.
        ModelError: The file is not a Face Landmarker.
    """
    with (
        FaceTracker(model, mode="image", min_confidence=_LEAST_CONFIDENCE) as anew,
        FaceTracker(model, mode="video", min_confidence=_LEAST_CONFIDENCE) as following,
    ):
        # A second between pictures, because MediaPipe smooths over time.
        seconds = itertools.count()

        def read(rgb: RgbPicture) -> TrackedFace | None:
            ways = (next(iter(anew.find(rgb)), None), following.track(rgb, pts_seconds=float(next(seconds))))
            found = [face for face in ways if face is not None]
            if not found:
                return None
            weights = np.mean([face.blendshapes for face in found], axis=0)
            return replace(found[-1], blendshapes=np.asarray(weights, np.float32))

        yield read
