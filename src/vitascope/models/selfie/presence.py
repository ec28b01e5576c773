"""Is anybody there? The gate that keeps an empty frame empty.

A selfie network was trained on pictures that hold a person, so it finds one in a flower, a retina scan or a wall.
How sure it looks is a poor witness. The gate therefore takes a *second look*, as a person would: it cuts out what
the matte claims, enlarges and brightens it, and shows that to both selfie networks, twice: once with some
surroundings, once from closer and mirrored (``views``). Before anybody is confirmed, and whenever that
leaves a doubt, a person detector gives a *second opinion* of the same two views (``PersonFeatures``). Both are weighed
in ``presence_classifier``; ``docs/networks.md`` says how well, ``benchmarks/fit_selfie_gate.py`` how it was fitted.

A second look costs two runs of each selfie network, so a stream takes few: on its first frame, when the matte jumps,
and then every ``CONFIRMED_INTERVALS`` frames while somebody is there, every ``DOUBTFUL_INTERVALS`` while not; the same
answer again doubles the time to the next look. In between the verdict holds.

An empty video offers a phantom many looks, and one that succeeds by chance would show it for seconds. Scores are
therefore averaged over looks, an earlier "nobody" (down to ``DOUBT_FLOOR``) included: a clear person is shown at once,
a doubtful one after a second look ``MIN_INTERVAL`` frames later agrees. Until the average is above ``SETTLED_SCORE``,
looks go on every ``UNSETTLED_INTERVALS`` frames, and the person is lost at ``UNSETTLED_LOST_SCORE``; from then on only
at ``LOST_SCORE``. The matte fades over ``FADE_FRAMES``, so nothing flickers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vitascope.errors import ModelError
from vitascope.models.network import FloatArray
from vitascope.models.selfie.presence_classifier import (
    CLAIM,
    Claimant,
    LookAgain,
    PresenceClassifier,
    evidence,
    overlap,
    shipped_classifier,
    views,
)

__all__ = ["AskOpinion", "PresenceGate"]

AskOpinion = Callable[[Sequence[FloatArray]], FloatArray]
"""Gives the features, float32 [2304], of a candidate's views, float32 [256, 256, 3] each, RGB 0..1."""

LOST_SCORE = -1.1
"""A person who was settled stays so down to this score."""
SETTLED_SCORE = 1.5
"""Above it a confirmed person is settled: few further looks, and a doubtful one ends nothing."""
UNSETTLED_LOST_SCORE = -0.5
"""Who is not settled yet stays so down to this score."""
DOUBT_FLOOR = -1.0
"""Nobody's score counts down to this when somebody seems to come: a clear person needs no second look."""

MIN_AREA = 0.001
"""Fraction of the frame above .5 below which a matte is a speck and nobody is asked for."""
CONFIRMED_INTERVALS = 48, 96
DOUBTFUL_INTERVALS = 8, 32
UNSETTLED_INTERVALS = 4, 32
"""Frames between two looks, at first and at most: while a person is settled, while nobody is there, and in between."""
MIN_INTERVAL = 3
"""Frames between two looks at the very least."""
PATIENCE_FRAMES = 12
"""Frames that a confirmed person may vanish for (an occlusion, a missed frame) before the verdict lapses."""
FADE_FRAMES = 4
CONTINUOUS_OVERLAP = 0.5
"""Overlap of two thumbnails of the matte above which it moved, and did not jump."""

_THUMBNAIL = (32, 32)


@dataclass(slots=True)
class _EyeMemory:
    """The memory of one eye's gate."""

    present: bool = False
    settled: bool = False
    """True once the average of the looks left no doubt; until the person is lost."""
    looked: bool = False
    """True from the first look on: ``score`` means something."""
    openness: float = 0.0
    score: float = 0.0
    fresh: bool = True
    """True until the first frame was judged; it opens or closes without a fade."""
    frames_since_look: int = 1_000_000
    interval: int = 0
    """Frames until the next look, if nothing jumps."""
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
    """One stream's gate.

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
        self.opinion_count = 0
        """The number of them that asked the person detector."""

    def reset(self) -> None:
        """Forget everybody: the next frame is judged anew and shown without a fade."""
        self._eyes = []

    def apply(
        self,
        alpha: FloatArray,
        pictures: FloatArray,
        look_again: LookAgain,
        ask_opinion: AskOpinion,
        *,
        claimant: Claimant,
    ) -> FloatArray:
        """Judge one time step, and fade out the mattes in which nobody is.

        Args:
            alpha: float32 [E, h, w], 0..1.
            pictures: float32 [E, h, w, 3], RGB 0..1: what the network saw.
            look_again: Shows one enlarged picture to both networks.
            ask_opinion: Shows a candidate's views to the person detector.
            claimant: The network that the frame's shape asks for.

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
            self._judge(eye, alpha[index], pictures[index], look_again, ask_opinion, claimant)
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
        ask_opinion: AskOpinion,
        claimant: Claimant,
    ) -> None:
        eye.frames_since_look += 1
        if np.count_nonzero(alpha > 0.5) < MIN_AREA * alpha.size:
            eye.frames_without_matte += 1
            if eye.frames_without_matte > PATIENCE_FRAMES:
                eye.score = min(eye.score, 0.0)  # who was there speaks for nobody who comes later
                eye.present, eye.settled, eye.thumbnail = False, False, None
            return
        eye.frames_without_matte = 0
        thumbnail = np.asarray(cv2.resize(alpha, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.float32)
        jumped = eye.thumbnail is None or overlap(eye.thumbnail, thumbnail) < CONTINUOUS_OVERLAP
        due = eye.frames_since_look >= (MIN_INTERVAL if jumped else eye.interval)
        if due and (shown := views(picture, alpha)):
            self._look(eye, alpha, shown, look_again, ask_opinion, claimant, jumped=jumped)
        if due or eye.present:
            eye.thumbnail = thumbnail

    def _look(
        self,
        eye: _EyeMemory,
        alpha: FloatArray,
        shown: Sequence[FloatArray],
        look_again: LookAgain,
        ask_opinion: AskOpinion,
        claimant: Claimant,
        *,
        jumped: bool,
    ) -> None:
        def features() -> FloatArray:
            self.opinion_count += 1
            return ask_opinion(shown)

        self.look_count += 1
        found = evidence(alpha, [look_again(view) for view in shown])
        if eye.present and eye.claim is not None:
            found[CLAIM] = eye.claim  # its matte may crumble; whether somebody is there, the looks tell
        else:
            eye.claim = found[CLAIM]
        score = self._classifier.score(found, features, claimant=claimant, confirmed=eye.present)
        was_present = eye.present
        if eye.looked:
            before = eye.score if was_present else max(eye.score, DOUBT_FLOOR)
            eye.score = (before + score) / 2
        else:
            eye.score, eye.looked = score, True
        least = LOST_SCORE if eye.settled else UNSETTLED_LOST_SCORE if was_present else 0.0
        eye.present = eye.score > least
        eye.settled = eye.present and (eye.settled or eye.score > SETTLED_SCORE)
        first, most = DOUBTFUL_INTERVALS
        if eye.present:
            first, most = CONFIRMED_INTERVALS if eye.settled and eye.score > 0 else UNSETTLED_INTERVALS
        elif score > 0:
            first = most = MIN_INTERVAL
        same = was_present == eye.present and first <= eye.interval <= most and not jumped
        eye.interval = min(2 * eye.interval, most) if same else first
        eye.frames_since_look = 0
