"""Is anybody there? The gate that keeps an empty frame empty.

A selfie network was trained on pictures that hold a person, so it finds one in a flower, a retina scan or a wall.
How sure it looks is a poor witness. The gate therefore takes a *second look*, as a person would: it cuts out what
the matte claims, enlarges and brightens it, and shows that to both selfie networks, twice: once with some
surroundings, once from closer and mirrored. One linear classifier weighs what they say, averaged over both views,
and a few measurements of the claim itself::

    score = bias[network that claims] + weights . evidence(claim, looks)

    of each view    both networks' summaries (32 numbers each: the globally averaged bottleneck that a decoder uses
                    to decide what matters); the general network's certainty and extent
    of the claim    certainty, extent, height of its box, how much of the frame's top and sides it touches

    certainty = pixels above .95 / pixels above .05       extent = sqrt(fraction of pixels above .5)

What touches the border is more likely a person partly seen, what is small and unsure more likely nobody. A score above
0 is a person. The numbers are a logistic regression, fitted by ``benchmarks/fit_selfie_gate.py`` and kept in
``data/presence_gate.json``; each network's bias keeps nine tenths of every kind of people. ``docs/networks.md`` has the
cross-validated figures; ``benchmarks/selfie_gate.py`` measures the gate on pictures that everybody has.

A second look costs two runs of each network, so a stream takes few: on its first frame, when the matte jumps, and then
every ``CONFIRMED_INTERVAL`` frames while somebody is there (``DOUBTFUL_INTERVAL`` while not). In between the verdict
holds. Verdicts change with hysteresis, and the matte fades over ``FADE_FRAMES``, so nothing flickers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import cv2
import numpy as np

from vitascope.errors import ModelError
from vitascope.models.network import FloatArray

__all__ = [
    "EVIDENCE",
    "Claimant",
    "Look",
    "LookAgain",
    "PresenceClassifier",
    "PresenceGate",
    "candidate_box",
    "enlarged",
    "evidence",
    "shipped_classifier",
    "views",
]

Claimant = Literal["general", "landscape"]
"""The network whose matte claims somebody."""

LOOK_SIZE = 256
"""Side of the square picture that the second look is taken at: the general network's input."""

EVIDENCE = {
    "general_summary": 32,
    "landscape_summary": 32,
    "certainty": 1,
    "extent": 1,
    "claim_certainty": 1,
    "claim_extent": 1,
    "claim_height": 1,
    "claim_at_top": 1,
    "claim_at_sides": 1,
}
"""What the classifier weighs, in order, and how many numbers each is."""

LOST_SCORE = -1.1
"""A person who was confirmed stays so down to this score."""

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
_BOX_MARGIN, _CLOSE_MARGIN = 1.5, 1.1
_MIN_BOX_SIDE = 24
_BORDER = 3
_CLAIM = slice(-5, None)


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What both networks say of the same enlarged picture."""

    alpha: FloatArray
    """float32 [256, 256], 0..1: the general network's matte."""
    general_summary: FloatArray
    """float32 [32]: the general network's globally averaged bottleneck."""
    landscape_summary: FloatArray
    """float32 [32]: the landscape network's."""


LookAgain = Callable[[FloatArray], Look]
"""Shows one picture, float32 [256, 256, 3], RGB 0..1, to both networks."""


def candidate_box(alpha: FloatArray, *, margin: float = _BOX_MARGIN) -> tuple[slice, slice] | None:
    """Where the matte claims somebody: the box of 96 % of its mass on each axis, with a margin, inside the frame.

    Args:
        alpha: float32 [h, w], 0..1.
        margin: Side of the square that is cut out / longest side of that box.

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
    side = max(*(stop - start for start, stop in extents), _MIN_BOX_SIDE) * margin
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


def views(picture: FloatArray, alpha: FloatArray) -> list[FloatArray]:
    """The two pictures of a second look: with some surroundings, and from closer and mirrored.

    Args:
        picture: float32 [h, w, 3], RGB 0..1.
        alpha: float32 [h, w], 0..1.

    Returns:
        Two of float32 [256, 256, 3], RGB 0..1; none where ``candidate_box`` finds nothing.
    """
    box, close = candidate_box(alpha), candidate_box(alpha, margin=_CLOSE_MARGIN)
    if box is None or close is None:
        return []
    return [enlarged(picture, box), np.ascontiguousarray(enlarged(picture, close)[:, ::-1])]


def evidence(alpha: FloatArray, looks: Sequence[Look]) -> FloatArray:
    """What the classifier weighs.

    Args:
        alpha: float32 [h, w], 0..1: the matte that claims somebody.
        looks: What the networks said of its ``views``; at least one.

    Returns:
        float32 [71], in the order of ``EVIDENCE``; see the top of this file.
    """
    seen = [
        np.concatenate([look.general_summary, look.landscape_summary, _certainty_and_extent(look.alpha)])
        for look in looks
    ]
    box, claimed = candidate_box(alpha), alpha > 0.5
    tall = 0.0 if box is None else (box[0].stop - box[0].start) / len(alpha)
    at_top = claimed[:_BORDER].mean()
    at_sides = claimed[:, :_BORDER].mean() + claimed[:, -_BORDER:].mean()
    claim = (*_certainty_and_extent(alpha), tall, at_top, at_sides)
    return np.concatenate([np.mean(seen, axis=0), claim]).astype(np.float32)


def _certainty_and_extent(alpha: FloatArray) -> tuple[float, float]:
    floor = 3e-4 * alpha.size  # a few pixels prove nothing
    certain, possible = np.count_nonzero(alpha > 0.95), np.count_nonzero(alpha > 0.05)
    return certain / (possible + floor), float(np.sqrt(np.count_nonzero(alpha > 0.5) / alpha.size))


@dataclass(frozen=True, slots=True, eq=False)
class PresenceClassifier:
    """A linear classifier of evidence."""

    weights: FloatArray
    """float32 [71], in the order of ``EVIDENCE``."""
    bias: Mapping[Claimant, float]
    """For a claim of each network; such that 0 decides."""

    def score(self, found: FloatArray, *, claimant: Claimant) -> float:
        """Log-odds that a person is there, shifted so that 0 decides.

        Args:
            found: float32 [71], from ``evidence``.
            claimant: The network whose matte is in question.
        """
        return float(self.bias[claimant] + self.weights @ found)


@cache
def shipped_classifier() -> PresenceClassifier:
    """The classifier that lies beside the networks, in ``data/presence_gate.json``."""
    stored = json.loads((Path(__file__).parent / "data" / "presence_gate.json").read_text(encoding="utf-8"))
    weights = np.concatenate([np.atleast_1d(stored["weights"][name]) for name in EVIDENCE])
    return PresenceClassifier(weights=weights.astype(np.float32), bias=stored["bias"])


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
    claim: FloatArray | None = None
    """float32 [5]: what the evidence said of the claim when the person was confirmed."""
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

    Args:
        classifier: Judges second looks; the shipped one when None.
    """

    def __init__(self, classifier: PresenceClassifier | None = None) -> None:
        self._classifier = shipped_classifier() if classifier is None else classifier
        self._eyes: list[_EyeMemory] = []
        self.look_count = 0
        """Second looks taken so far: what the gate cost."""

    def reset(self) -> None:
        """Forget everybody: the next frame is judged anew and shown without a fade."""
        self._eyes = []

    def apply(
        self, alpha: FloatArray, pictures: FloatArray, look_again: LookAgain, *, claimant: Claimant
    ) -> FloatArray:
        """Judge one time step, and fade out the mattes in which nobody is.

        Args:
            alpha: float32 [E, h, w], 0..1.
            pictures: float32 [E, h, w, 3], RGB 0..1: what the network saw.
            look_again: Shows one enlarged picture to both networks.
            claimant: The network that made ``alpha``.

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
            self._judge(eye, alpha[index], pictures[index], look_again, claimant)
        if any(eye.present for eye in self._eyes):
            for eye in self._eyes:
                eye.present |= eye.frames_without_matte == 0 and eye.score > LOST_SCORE
        openness = [eye.fade() for eye in self._eyes]
        return alpha * np.array(openness, np.float32)[:, None, None]

    def _judge(
        self,
        eye: _EyeMemory,
        alpha: FloatArray,
        picture: FloatArray,
        look_again: LookAgain,
        claimant: Claimant,
    ) -> None:
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
        if due and (shown := views(picture, alpha)):
            self.look_count += 1
            found = evidence(alpha, [look_again(view) for view in shown])
            if eye.present and eye.claim is not None:
                found[_CLAIM] = eye.claim  # its matte may crumble; whether somebody is there, the looks tell
            else:
                eye.claim = found[_CLAIM]
            score = self._classifier.score(found, claimant=claimant)
            # Another look at the same candidate, or soon after somebody was there, is further evidence.
            eye.score = (eye.score + score) / 2 if eye.present or not jumped else score
            eye.present = eye.score > (LOST_SCORE if eye.present else 0.0)
            eye.frames_since_look = 0
        if due or eye.present:
            eye.thumbnail = thumbnail


def _overlap(one: FloatArray, other: FloatArray) -> float:
    floor = 3e-4 * one.size
    return float(np.minimum(one, other).sum() / (np.maximum(one, other).sum() + floor))
