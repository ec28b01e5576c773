"""Is anybody there? The gate that keeps an empty frame empty.

A selfie network was trained on pictures that hold a person, so it finds one in a flower, a retina scan or a wall.
How sure it looks is a poor witness. The gate therefore takes a *second look*, as a person would: it cuts out what
the matte claims, enlarges and brightens it, and shows that to both selfie networks. Each network's own summary of a
picture (32 numbers: the globally averaged bottleneck that its decoder uses to decide what matters) and two plain
measurements of the general network's second matte go through one linear classifier::

    score = BIAS + GENERAL_WEIGHTS . general's summary + LANDSCAPE_WEIGHTS . landscape's summary
                 + CERTAINTY_WEIGHT * certainty + EXTENT_WEIGHT * extent

    certainty = pixels above .95 / pixels above .05       extent = sqrt(fraction of pixels above .5)

The score judges the enlarged picture alone, so it does not matter how well the frame's matte met the person.
A score above 0 is a person. The weights are a logistic regression on about 10,700 pictures (people, whole, cut,
darkened and pasted small into scenes; rooms, landscapes, objects, animals, synthetic patterns). ``docs/networks.md``
has the cross-validated figures; ``benchmarks/selfie_gate.py`` measures it on pictures that everybody has.

A second look costs one run of each network, so a stream takes few: on its first frame, when the matte jumps, and then
every ``CONFIRMED_INTERVAL`` frames while somebody is there (``DOUBTFUL_INTERVAL`` while not). In between the verdict
holds. Verdicts change with hysteresis, and the matte fades over ``FADE_FRAMES``, so nothing flickers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from vitascope.errors import ModelError
from vitascope.models.network import FloatArray

__all__ = ["Look", "LookAgain", "PresenceGate", "candidate_box", "enlarged", "presence_score"]

LOOK_SIZE = 256
"""Side of the square picture that the second look is taken at: the general network's input."""

BIAS = 3.305
GENERAL_WEIGHTS = np.array(
    (
        (0.0404, 0.1007, 0.1373, -0.0059, -0.0895, 0.3886, -0.1652, 0.2570),
        (-0.0382, -0.0000, -0.0522, -0.0266, 0.0581, -0.0025, -0.1897, 0.1696),
        (0.0815, 0.3463, -0.0348, -0.4267, 0.1242, -0.4897, 0.4114, 0.2023),
        (-0.1084, 0.2923, 0.0117, 0.0502, 0.0485, -0.1989, 0.2086, -0.1113),
    ),
    np.float32,
).ravel()
LANDSCAPE_WEIGHTS = np.array(
    (
        (-0.1134, -0.0201, 0.0001, 0.1718, -0.4614, -0.0113, -0.4234, 0.5508),
        (-0.2645, 0.0192, -0.6157, 0.0897, -0.1679, 0.3105, -0.0566, 0.7076),
        (0.5082, 0.3860, 0.3095, -0.1511, -0.0582, 0.5511, -0.1839, 0.1153),
        (-0.1495, -0.1277, 0.2167, 0.0739, -0.1568, 0.4257, 0.2943, -0.0176),
    ),
    np.float32,
).ravel()
CERTAINTY_WEIGHT, EXTENT_WEIGHT = 1.8909, -0.3969

LOST_SCORE = -1.1
"""A person who was confirmed stays so down to this score; it keeps about 97 of 100 of the fitting people."""

MIN_AREA = 0.001
"""Fraction of the frame above .5 below which a matte is a speck and nobody is asked for."""
CONFIRMED_INTERVAL = 48
DOUBTFUL_INTERVAL = 8
MIN_INTERVAL = 3
"""Frames between two looks: while a person is confirmed, while not, and at the very least."""
PATIENCE_FRAMES = 12
"""How long a confirmed person may vanish (an occlusion, a missed frame) before the verdict lapses."""
FADE_FRAMES = 4
CONTINUOUS_OVERLAP = 0.5
"""Overlap of two thumbnails of the matte above which it moved, and did not jump."""

_THUMBNAIL = (32, 32)
# Of the 90th percentile of a look's brightness, and the most that darkness is lifted by: beyond it noise is lifted.
_BRIGHT, _MAX_LIFT = 0.8, 6.0
_BOX_MARGIN = 1.5
_MIN_BOX_SIDE = 24


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A second look: what both networks say of the same enlarged picture."""

    alpha: FloatArray
    """float32 [256, 256], 0..1: the general network's matte."""
    general_summary: FloatArray
    """float32 [32]: the general network's globally averaged bottleneck."""
    landscape_summary: FloatArray
    """float32 [32]: the landscape network's."""


LookAgain = Callable[[FloatArray], Look]
"""Shows one picture, float32 [256, 256, 3], RGB 0..1, to both networks."""


def candidate_box(alpha: FloatArray) -> tuple[slice, slice] | None:
    """Where the matte claims somebody: the box of 96 % of its mass on each axis, with a margin, inside the frame.

    Args:
        alpha: float32 [h, w], 0..1.

    Returns:
        (rows, columns), or None where no pixel is above 0.3.
    """
    mass = np.clip(alpha - 0.3, 0, 1)
    total = float(mass.sum())
    if total <= 0:
        return None
    extents = []
    for axis in (1, 0):
        cumulated = np.cumsum(mass.sum(axis=axis)) / total
        extents.append((int(np.searchsorted(cumulated, 0.02)), int(np.searchsorted(cumulated, 0.98)) + 1))
    side = max(*(stop - start for start, stop in extents), _MIN_BOX_SIDE) * _BOX_MARGIN
    box = []
    for (start, stop), length in zip(extents, alpha.shape, strict=True):
        extent = min(side, length)
        first = min(max((start + stop) / 2 - extent / 2, 0.0), length - extent)
        box.append(slice(int(first), int(first + extent)))
    return box[0], box[1]


def enlarged(picture: FloatArray, box: tuple[slice, slice]) -> FloatArray:
    """The second look's picture: the box at 256 x 256, and a dark one lifted so that its bright parts are bright.

    Args:
        picture: float32 [h, w, 3], RGB 0..1.
        box: From ``candidate_box``.
    """
    cut = cv2.resize(picture[box], (LOOK_SIZE, LOOK_SIZE), interpolation=cv2.INTER_LINEAR)
    lift = _BRIGHT / max(float(np.percentile(cut[::4, ::4], 90)), 1e-3)
    return np.asarray(np.clip(cut * np.clip(lift, 1.0, _MAX_LIFT), 0, 1), np.float32)


def presence_score(look: Look) -> float:
    """Log-odds that the enlarged picture shows a person, shifted so that 0 decides; see the top of this file."""
    floor = 3e-4 * look.alpha.size  # a few pixels prove nothing
    certain, possible = np.count_nonzero(look.alpha > 0.95), np.count_nonzero(look.alpha > 0.05)
    extent = np.sqrt(np.count_nonzero(look.alpha > 0.5) / look.alpha.size)
    return float(
        BIAS
        + GENERAL_WEIGHTS @ look.general_summary
        + LANDSCAPE_WEIGHTS @ look.landscape_summary
        + CERTAINTY_WEIGHT * certain / (possible + floor)
        + EXTENT_WEIGHT * extent
    )


@dataclass(slots=True)
class _EyeMemory:
    """What one eye's gate remembers."""

    present: bool = False
    openness: float = 0.0
    score: float = 0.0
    fresh: bool = True
    """True until the first frame was judged; it opens or closes without a fade."""
    frames_since_look: int = 1_000_000
    frames_without_matte: int = 0
    thumbnail: FloatArray | None = None
    """float32 [32, 32]: the matte of the previous frame while present, of the last look while not."""

    def fade(self) -> float:
        """Move the openness one frame towards the verdict, and return it."""
        step = 1.0 if self.fresh else 1.0 / FADE_FRAMES
        target = 1.0 if self.present else 0.0
        self.openness += min(max(target - self.openness, -step), step)
        self.fresh = False
        return self.openness


class PresenceGate:
    """One stream's gate; it is the ``NetworkState`` of the selfie networks.

    Both eyes of a stereo picture see the same people: once one eye's person is confirmed, the other eye
    needs only ``LOST_SCORE``, so that nobody is cut out for one eye alone.
    """

    def __init__(self) -> None:
        self._eyes: list[_EyeMemory] = []
        self.look_count = 0
        """Second looks taken so far: what the gate cost."""

    def reset(self) -> None:
        """Forget everybody: the next frame is judged anew and shown without a fade."""
        self._eyes = []

    def apply(self, alpha: FloatArray, pictures: FloatArray, look_again: LookAgain) -> FloatArray:
        """Judge one time step, and fade out the mattes in which nobody is.

        Args:
            alpha: float32 [E, h, w], 0..1.
            pictures: float32 [E, h, w, 3], RGB 0..1: what the network saw.
            look_again: Shows one enlarged picture to both networks.

        Returns:
            float32 [E, h, w]: ``alpha`` times each eye's openness; a new array.

        Raises:
            ModelError: The stream's eye count changed.
        """
        if not self._eyes:
            self._eyes = [_EyeMemory() for _ in range(len(alpha))]
        if len(self._eyes) != len(alpha):
            raise ModelError(
                f"selfie: a stream of {len(self._eyes)} eyes went on with {len(alpha)}; reset its state"
            )
        for index, eye in enumerate(self._eyes):
            self._judge(eye, alpha[index], pictures[index], look_again)
        if any(eye.present for eye in self._eyes):
            for eye in self._eyes:
                eye.present |= eye.frames_without_matte == 0 and eye.score > LOST_SCORE
        openness = [eye.fade() for eye in self._eyes]
        return alpha * np.array(openness, np.float32)[:, None, None]

    def _judge(self, eye: _EyeMemory, alpha: FloatArray, picture: FloatArray, look_again: LookAgain) -> None:
        eye.frames_since_look += 1
        if np.count_nonzero(alpha > 0.5) < MIN_AREA * alpha.size:
            eye.frames_without_matte += 1
            if eye.frames_without_matte > PATIENCE_FRAMES:
                eye.present, eye.thumbnail = False, None
            return
        eye.frames_without_matte = 0
        thumbnail = np.asarray(cv2.resize(alpha, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.float32)
        jumped = eye.thumbnail is None or _overlap(eye.thumbnail, thumbnail) < CONTINUOUS_OVERLAP
        interval = CONFIRMED_INTERVAL if eye.present and eye.score > 0 else DOUBTFUL_INTERVAL
        due = eye.frames_since_look >= (MIN_INTERVAL if jumped else interval)
        if due and (box := candidate_box(alpha)) is not None:
            self.look_count += 1
            score = presence_score(look_again(enlarged(picture, box)))
            # Another look at the same candidate, or soon after somebody was there, is further evidence.
            eye.score = (eye.score + score) / 2 if eye.present or not jumped else score
            eye.present = eye.score > (LOST_SCORE if eye.present else 0.0)
            eye.frames_since_look = 0
        if due or eye.present:
            eye.thumbnail = thumbnail


def _overlap(one: FloatArray, other: FloatArray) -> float:
    floor = 3e-4 * one.size
    return float(np.minimum(one, other).sum() / (np.maximum(one, other).sum() + floor))
