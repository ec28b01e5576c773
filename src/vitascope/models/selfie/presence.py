"""Decides whether anybody is in a picture: the gate that keeps an empty frame empty.

A selfie network was trained on pictures of people, so it finds one in a flower, a retina scan or a wall, and its
certainty says little. The gate therefore takes a *second look*: it cuts out the area claimed by the matte, enlarges
and brightens it, and gives it to both selfie networks twice: once with some surroundings, once closer and mirrored
(``views``). Before anybody is confirmed, and in case of doubt, a person detector gives a *second opinion* on the same
two views (``PersonFeatures``). ``PresenceClassifier`` weighs both; ``docs/networks.md`` shows its accuracy,
``benchmarks/fit_selfie_gate.py`` how it was fitted.

A second look costs two runs of each selfie network, so a stream takes few: on its first frame, when the matte jumps,
and then every ``CONFIRMED_INTERVALS`` frames while somebody is there, or every ``DOUBTFUL_INTERVALS`` otherwise; each
repeated answer doubles the interval. In between the verdict stays.

In an empty video a phantom gets many looks, and one success by chance would show it for seconds. Scores are therefore
averaged over looks, including an earlier "nobody" (limited to ``DOUBT_FLOOR``): a clear person is shown at once, a
doubtful one only when a second look ``MIN_INTERVAL`` frames later agrees. Until the average exceeds
``SETTLED_SCORE``, looks continue every ``UNSETTLED_INTERVALS`` frames, and the person is lost at
``UNSETTLED_LOST_SCORE``; after that only at ``LOST_SCORE``. The matte fades over ``FADE_FRAMES``, so nothing
flickers.

A claim is judged in two steps, because the second opinion costs four times as much as all the rest::

    quick score = weights . evidence                                           a logistic regression
    score       = bias[shape of frame] + small network(evidence, features)     one hidden layer

If the quick score is below ``surely_not``, nobody is there; a person confirmed before is still there if it is above
``surely``. In between, and before anybody is confirmed, the features are computed and the slow judge decides: above 0
is a person. The parameters are fitted by ``benchmarks/fit_selfie_gate.py`` and stored in ``data/presence_gate.npz``.

The evidence of a claim is what both selfie networks find in two closer views of it.

    of each view    both networks' summaries (32 numbers each: the globally averaged bottleneck that a decoder uses
                    to decide what matters); the general network's certainty and extent
    of the claim    certainty, extent, height of its box, how much of the frame's top and sides it touches

    certainty = pixels above .95 / pixels above .05       extent = sqrt(fraction of pixels above .5)

A claim touching the border is more likely a partly visible person; a small, uncertain one is more likely nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

import cv2
import numpy as np

from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.models.network import FloatArray

AskOpinion = Callable[[Sequence[FloatArray]], FloatArray]
"""Computes the features, float32 [2304], of a candidate's views, float32 [256, 256, 3] each, RGB 0..1."""

LOST_SCORE = -1.1
"""A settled person is lost below this score."""
SETTLED_SCORE = 1.5
"""Above this score a confirmed person is settled: there are few further looks, and a doubtful one changes nothing."""
UNSETTLED_LOST_SCORE = -0.5
"""A person who is not settled yet is lost below this score."""
DOUBT_FLOOR = -1.0
"""Lower limit of the score counted for "nobody" when somebody seems to appear, so that a clear person needs no second
look."""

MIN_AREA = 0.001
"""Share of the frame with alpha above 0.5 below which a matte is a speck, and is not examined for a person."""
CONFIRMED_INTERVALS = 48, 96
DOUBTFUL_INTERVALS = 8, 32
UNSETTLED_INTERVALS = 4, 32
"""Frames between two looks, initial and maximum: while a person is settled, while nobody is there, and in between."""
MIN_INTERVAL = 3
"""Minimum number of frames between two looks."""
PATIENCE_FRAMES = 12
"""Frames for which a confirmed person may vanish (an occlusion, a missed frame) before the verdict expires."""
FADE_FRAMES = 4
CONTINUOUS_OVERLAP = 0.5
"""Overlap of two thumbnails of the matte above which it moved without jumping."""

_THUMBNAIL = (32, 32)
MOST_APART = 0.05
"""Maximum mean difference of colour, by row, at which two mattes show one thing: in three videos, two eyes' views of
one person differed by 0.001, different people by 0.23 or more."""

PRESENCE_RULES: Final = (
    "eyes that show one thing decide together",
    (LOST_SCORE, SETTLED_SCORE, UNSETTLED_LOST_SCORE, DOUBT_FLOOR, MIN_AREA, CONTINUOUS_OVERLAP),
    (CONFIRMED_INTERVALS, DOUBTFUL_INTERVALS, UNSETTLED_INTERVALS, MIN_INTERVAL),
    (PATIENCE_FRAMES, FADE_FRAMES, _THUMBNAIL, MOST_APART),
)
"""The rules that decide about presence, apart from the classifier: mattes made by other rules are not used again."""


@dataclass(slots=True)
class _EyeMemory:
    """The memory of one eye's gate."""

    present: bool = False
    settled: bool = False
    """True once the average of the looks left no doubt, until the person is lost."""
    looked: bool = False
    """True from the first look on, when ``score`` has a meaning."""
    openness: float = 0.0
    score: float = 0.0
    fresh: bool = True
    """True until the first frame was judged, which opens or closes without fading."""
    frames_since_look: int = 1_000_000
    interval: int = 0
    """Frames until the next look, if nothing jumps."""
    frames_without_matte: int = 0
    claim: FloatArray | None = None
    """float32 [5]: the claim's part of the evidence when the person was confirmed."""
    thumbnail: FloatArray | None = None
    """float32 [32, 32]: the matte of the previous frame if present, otherwise of the last look."""

    def fade(self) -> float:
        """Move the openness one frame towards the verdict, and return it."""
        step = 1.0 if self.fresh else 1.0 / FADE_FRAMES
        target = 1.0 if self.present else 0.0
        self.openness += min(max(target - self.openness, -step), step)
        self.fresh = False
        return self.openness


class PresenceGate:
    """The gate of one stream.

    Both eyes of a stereo picture see the same people, so nobody is cut out for one eye alone: if only one eye's claim
    is confirmed, and the other's shows the same thing but scores below ``LOST_SCORE``, both looks count as looks at
    one person, and their mean decides for both. Otherwise, as for the areas ahead and behind in 360 degrees, the
    other claim needs only ``LOST_SCORE``.

    Args:
        classifier: Judges second looks; the shipped one if None.
    """

    def __init__(self, classifier: PresenceClassifier | None = None) -> None:
        self._classifier = shipped_classifier() if classifier is None else classifier
        self._eyes: list[_EyeMemory] = []
        self.look_count = 0
        """Number of second looks so far, as a measure of the gate's cost."""
        self.opinion_count = 0
        """Number of those that used the person detector."""

    def reset(self) -> None:
        """Forget everybody: the next frame is judged again and shown without fading."""
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
        """Judge one time step, and fade out the mattes of empty frames.

        Args:
            alpha: float32 [E, h, w], 0..1.
            pictures: float32 [E, h, w, 3], RGB 0..1: the network's input.
            look_again: Gives one enlarged picture to both networks.
            ask_opinion: Gives a candidate's views to the person detector.
            claimant: The network chosen by the frame's shape.

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
        if any(eye.present for eye in self._eyes) and not all(eye.present for eye in self._eyes):
            self._decide_together(alpha, pictures)
        openness = [eye.fade() for eye in self._eyes]
        return alpha * np.array(openness, np.float32)[:, None, None]

    def _decide_together(self, alpha: FloatArray, pictures: FloatArray) -> None:
        """Settle disagreements between the eyes."""
        seeing = [eye for eye in self._eyes if eye.frames_without_matte == 0]
        if len(seeing) == len(self._eyes) and _are_of_one_thing(alpha, pictures):
            # As for one eye, a person already shown is lost only at a lower score, so that steady looks give a steady
            # verdict.
            least = 0.0
            if any(eye.settled for eye in seeing):
                least = LOST_SCORE
            elif any(eye.openness > 0 for eye in seeing):
                least = UNSETTLED_LOST_SCORE
            scores = [eye.score for eye in seeing]
            is_there = min(scores) > LOST_SCORE or float(np.maximum(scores, DOUBT_FLOOR).mean()) > least
            for eye in seeing:
                eye.present, eye.settled = is_there, is_there and eye.settled
            return
        for eye in seeing:
            eye.present |= eye.score > LOST_SCORE

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
                eye.score = min(eye.score, 0.0)  # an earlier person must not speak for a later one
                eye.present, eye.settled, eye.thumbnail = False, False, None
            return
        eye.frames_without_matte = 0
        thumbnail = _thumbnail(alpha)
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
            found[CLAIM] = eye.claim  # its matte may crumble; the looks decide about presence
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


def _thumbnail(alpha: FloatArray) -> FloatArray:
    return np.asarray(cv2.resize(alpha, _THUMBNAIL, interpolation=cv2.INTER_AREA), np.float32)


def _are_of_one_thing(alpha: FloatArray, pictures: FloatArray) -> bool:
    """True if the eyes' mattes are in one place, with the same colours in every row, since disparity is along rows.

    Args:
        alpha: float32 [E, h, w], 0..1.
        pictures: float32 [E, h, w, 3], RGB 0..1.
    """
    first, *others = (
        (_thumbnail(matte), *_rows_of(matte, picture)) for matte, picture in zip(alpha, pictures, strict=True)
    )
    for thumbnail, amount, color in others:
        weights = np.minimum(amount, first[1])
        apart = np.abs(color - first[2]).mean(axis=1)
        if overlap(first[0], thumbnail) < CONTINUOUS_OVERLAP:
            return False
        if not weights.any() or np.average(apart, weights=weights) > MOST_APART:
            return False
    return True


def _rows_of(matte: FloatArray, picture: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Compute the mean alpha and mean colour of each of a thumbnail's rows, [32] and [32, 3], under a matte [h, w]."""
    held = np.dstack([picture * matte[..., None], matte]).mean(axis=1)[:, None]
    rows = np.asarray(cv2.resize(held, (1, _THUMBNAIL[1]), interpolation=cv2.INTER_AREA), np.float32)[:, 0]
    amount, color = rows[:, 3], rows[:, :3]
    color /= np.maximum(amount[:, None], np.float32(1e-6))
    return amount, color


Claimant = Literal["general", "landscape"]
"""The network whose matte claims somebody; chosen by the frame's shape."""

LOOK_SIZE = 256
"""Side of the second look's square picture: the general network's input size."""

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
"""The parts of the evidence in order, with the count of numbers in each."""
EVIDENCE_SIZE = sum(EVIDENCE.values())
CLAIM = slice(-5, None)
"""The claim's own measurements in the evidence."""

# Target for the 90th percentile of a look's brightness, and the maximum gain, beyond which noise is amplified.
_BRIGHT, _MAX_LIFT = 0.8, 6.0
_BOX_MARGIN, _CLOSE_MARGIN = 1.5, 1.1
_MIN_BOX_SIDE = 24
_BORDER = 3


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """Both networks' answers to the same enlarged picture."""

    alpha: FloatArray
    """float32 [256, 256], 0..1: the general network's matte."""
    general_summary: FloatArray
    """float32 [32]: the general network's globally averaged bottleneck."""
    landscape_summary: FloatArray
    """float32 [32]: the landscape network's."""


LookAgain = Callable[[FloatArray], Look]
"""Gives one picture, float32 [256, 256, 3], RGB 0..1, to both networks."""


def candidate_box(alpha: FloatArray, *, margin: float = _BOX_MARGIN) -> tuple[slice, slice] | None:
    """Find the area claimed by the matte: a box with 96 % of its mass on each axis, and a margin, inside the frame.

    Args:
        alpha: float32 [h, w], 0..1.
        margin: Side of the square that is cut out, divided by the longest side of that box.

    Returns:
        (rows, columns), or None if no pixel is above 0.3.
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
    """Make the second look's picture: the box at 256 x 256, brightened if dark.

    Args:
        picture: float32 [h, w, 3], RGB 0..1.
        box: From ``candidate_box``.
    """
    cut = cv2.resize(picture[box], (LOOK_SIZE, LOOK_SIZE), interpolation=cv2.INTER_LINEAR)
    lift = _BRIGHT / max(float(np.percentile(cut[::4, ::4], 90)), 1e-3)
    return np.asarray(np.clip(cut * np.clip(lift, 1.0, _MAX_LIFT), 0, 1), np.float32)


def views(picture: FloatArray, alpha: FloatArray) -> list[FloatArray]:
    """Make the two pictures of a second look: with some surroundings, and closer and mirrored.

    Args:
        picture: float32 [h, w, 3], RGB 0..1.
        alpha: float32 [h, w], 0..1.

    Returns:
        Two of float32 [256, 256, 3], RGB 0..1; none if ``candidate_box`` finds nothing.
    """
    box, close = candidate_box(alpha), candidate_box(alpha, margin=_CLOSE_MARGIN)
    if box is None or close is None:
        return []
    return [enlarged(picture, box), np.ascontiguousarray(enlarged(picture, close)[:, ::-1])]


def evidence(alpha: FloatArray, looks: Sequence[Look]) -> FloatArray:
    """Gather the evidence of a claim.

    Args:
        alpha: float32 [h, w], 0..1: the matte that claims somebody.
        looks: The networks' answers to its ``views``; at least one.

    Returns:
        float32 [71], in the order of ``EVIDENCE``; see the top of this file.
    """
    seen = [
        np.concatenate([look.general_summary, look.landscape_summary, certainty_and_extent(look.alpha)])
        for look in looks
    ]
    box, claimed = candidate_box(alpha), alpha > 0.5
    tall = 0.0 if box is None else (box[0].stop - box[0].start) / len(alpha)
    at_top = claimed[:_BORDER].mean()
    at_sides = claimed[:, :_BORDER].mean() + claimed[:, -_BORDER:].mean()
    claim = (*certainty_and_extent(alpha), tall, at_top, at_sides)
    return np.concatenate([np.mean(seen, axis=0), claim]).astype(np.float32)


def certainty_and_extent(alpha: FloatArray) -> tuple[float, float]:
    """Measure a matte's certainty and extent, 0..1 each; float32 [h, w], 0..1."""
    floor = 3e-4 * alpha.size  # a few pixels prove nothing
    certain, possible = np.count_nonzero(alpha > 0.95), np.count_nonzero(alpha > 0.05)
    return certain / (possible + floor), float(np.sqrt(np.count_nonzero(alpha > 0.5) / alpha.size))


def overlap(one: FloatArray, other: FloatArray) -> float:
    """Intersection over union of two mattes of one shape, 0..1; a few pixels count as none."""
    floor = 3e-4 * one.size
    return float(np.minimum(one, other).sum() / (np.maximum(one, other).sum() + floor))


GATE_PATH = Path(__file__).parents[1] / "data" / "presence_gate.npz"
CLAIMANTS: tuple[Claimant, ...] = ("general", "landscape")
SURE_SCORE = 4.0
"""Limit of scores on both sides, so that no single look counts for more, and the quick score's decisions count as
much."""
INPUT_LIMIT = 5.0
"""Limit of the small network's inputs, in standard deviations: stranger values are not more telling."""


@dataclass(frozen=True, slots=True, eq=False)
class QuickJudge:
    """A linear classifier of evidence."""

    weights: FloatArray
    """float32 [71], in the order of ``EVIDENCE``."""
    surely_not: Mapping[Claimant, float]
    """For a claim of each network, the score below which nobody is there."""
    surely: Mapping[Claimant, float]
    """For each, the score above which a person confirmed before is still there."""

    def score(self, found: FloatArray) -> float:
        """Log-odds of a person, up to a constant.

        Args:
            found: float32 [71], from ``evidence``.
        """
        return float(self.weights @ found)


@dataclass(frozen=True, slots=True, eq=False)
class SlowJudge:
    """One hidden layer over evidence and features."""

    centre: FloatArray
    """float32 [71 + 2304]: subtracted from evidence and features."""
    scale: FloatArray
    """float32 [71 + 2304]: multiplied with the difference."""
    hidden: FloatArray
    """float32 [H, 71 + 2304]."""
    hidden_bias: FloatArray
    """float32 [H]."""
    output: FloatArray
    """float32 [H]."""
    bias: Mapping[Claimant, float]
    """For a claim of each network, chosen so that 0 decides."""

    def score(self, found: FloatArray, features: FloatArray, *, claimant: Claimant) -> float:
        """Log-odds of a person, shifted so that 0 decides.

        Args:
            found: float32 [71], from ``evidence``.
            features: float32 [2304], from ``PersonFeatures``.
            claimant: The network whose matte is in question.
        """
        inputs = np.concatenate([found, features])
        inputs = np.clip((inputs - self.centre) * self.scale, -INPUT_LIMIT, INPUT_LIMIT)
        excited = np.maximum(self.hidden @ inputs + self.hidden_bias, 0)
        return float(self.bias[claimant] + self.output @ excited)


@dataclass(frozen=True, slots=True, eq=False)
class PresenceClassifier:
    """Both classifiers; the slow one is only used if it can change the result."""

    quick: QuickJudge
    slow: SlowJudge

    def score(
        self,
        found: FloatArray,
        ask_features: Callable[[], FloatArray],
        *,
        claimant: Claimant,
        confirmed: bool,
    ) -> float:
        """Score the evidence for a person, -4..4; 0 decides.

        Args:
            found: float32 [71], from ``evidence``.
            ask_features: Returns float32 [2304] of the same views; called at most once, and only if it matters.
            claimant: The network whose matte is in question.
            confirmed: True if somebody was there at the last look.
        """
        quick = self.quick.score(found)
        if quick < self.quick.surely_not[claimant]:
            return -SURE_SCORE
        if confirmed and quick > self.quick.surely[claimant]:
            return SURE_SCORE
        score = self.slow.score(found, ask_features(), claimant=claimant)
        return min(max(score, -SURE_SCORE), SURE_SCORE)


@cache
def shipped_classifier() -> PresenceClassifier:
    """The classifier stored beside the networks, in ``data/presence_gate.npz``."""
    with np.load(GATE_PATH, allow_pickle=False) as stored:
        arrays = {name: np.asarray(stored[name], np.float32) for name in stored.files if name != "about"}

    def by_claimant(name: str) -> dict[Claimant, float]:
        return dict(zip(CLAIMANTS, arrays[name].tolist(), strict=True))

    return PresenceClassifier(
        quick=QuickJudge(
            weights=arrays["quick_weights"],
            surely_not=by_claimant("quick_surely_not"),
            surely=by_claimant("quick_surely"),
        ),
        slow=SlowJudge(
            centre=arrays["centre"],
            scale=arrays["scale"],
            hidden=arrays["hidden"],
            hidden_bias=arrays["hidden_bias"],
            output=arrays["output"],
            bias=by_claimant("bias"),
        ),
    )


TRUNK_PATH = Path(__file__).parents[1] / "data" / "pose_detection_trunk.onnx"
FEATURE_COUNT = 2304
"""1152 means, then 1152 maxima."""

_INPUT, _SIDE = "input_1", 224


class PersonFeatures:
    """The second opinion of the presence gate: features of a person detector.

    The trunk of MediaPipe's pose detector (BlazePose), cut before its heads: 1152 feature maps of 7 x 7, each reduced
    to its mean and its maximum. The heads would find whole people with faces; the features also distinguish a torso,
    a back or legs from a lamp, a tower or a dog, which the selfie networks cannot. 2.1 MB in the wheel, about 10 ms
    per picture on one core. It is opened on first use: once in most streams, never in empty ones. Source: MediaPipe,
    Apache-2.0; provenance in ``data/NOTICE``.

    Args:
        path: The network; the shipped one if None.
        threads: Threads inside one operator; 0 uses every core.
    """

    def __init__(self, path: Path | None = None, *, threads: int = 0) -> None:
        self._path, self._threads = TRUNK_PATH if path is None else path, threads
        self._engine: OnnxRuntimeEngine | None = None
        self._closed = False

    def of(self, views: Sequence[FloatArray]) -> FloatArray:
        """Features of one candidate: the mean over its views.

        Args:
            views: float32 [h, w, 3] each, RGB 0..1; at least one.

        Returns:
            float32 [2304]; 0..6, since the trunk ends in a clipped rectifier.

        Raises:
            ModelError: It has been closed.
            EngineError: The engine cannot load the network.
        """
        if self._closed:
            raise ModelError("selfie: the network was closed")
        if self._engine is None:
            self._engine = OnnxRuntimeEngine(self._path, threads=self._threads)
        pictures = np.stack(
            [cv2.resize(view, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA) for view in views]
        )
        found = self._engine.run({_INPUT: np.asarray(pictures * 2 - 1, np.float32)}, ["mean", "max"])
        features = np.concatenate([found["mean"], found["max"]], axis=1)
        return np.asarray(features.mean(axis=0), np.float32)

    def close(self) -> None:
        """Free the engine; idempotent."""
        self._closed = True
        if self._engine is not None:
            self._engine.close()
            self._engine = None
