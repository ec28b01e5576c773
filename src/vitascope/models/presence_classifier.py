"""Weighs what is known of a claim: person or not.

In two steps, because the second opinion costs four times as much as all the rest::

    quick score = weights . evidence                                           a logistic regression
    score       = bias[shape of frame] + small network(evidence, features)     one hidden layer

Where the quick score is below ``surely_not`` nobody is there, and who was confirmed before and scores above ``surely``
is there still. In between, and before anybody is confirmed, the features are asked for, and the slow judge decides:
above 0 is a person. The numbers are fitted by ``benchmarks/fit_selfie_gate.py`` and lie in ``data/presence_gate.npz``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from vitascope.models.network import FloatArray
from vitascope.models.presence_evidence import Claimant

__all__ = [
    "CLAIMANTS",
    "GATE_PATH",
    "SURE_SCORE",
    "PresenceClassifier",
    "QuickJudge",
    "SlowJudge",
    "shipped_classifier",
]

GATE_PATH = Path(__file__).parent / "data" / "presence_gate.npz"
CLAIMANTS: tuple[Claimant, ...] = ("general", "landscape")
SURE_SCORE = 4.0
"""Scores end here on both sides: no single look counts for more, and what the quick score settles counts as much."""
INPUT_LIMIT = 5.0
"""Inputs of the small network end here, in standard deviations: what is stranger than that is not more telling."""


@dataclass(frozen=True, slots=True, eq=False)
class QuickJudge:
    """A linear classifier of evidence."""

    weights: FloatArray
    """float32 [71], in the order of ``EVIDENCE``."""
    surely_not: Mapping[Claimant, float]
    """For a claim of each network: below it nobody is there."""
    surely: Mapping[Claimant, float]
    """Above it a person who was confirmed before is there still."""

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
    """float32 [71 + 2304]: what the rest is multiplied by."""
    hidden: FloatArray
    """float32 [H, 71 + 2304]."""
    hidden_bias: FloatArray
    """float32 [H]."""
    output: FloatArray
    """float32 [H]."""
    bias: Mapping[Claimant, float]
    """For a claim of each network; such that 0 decides."""

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
    """Both judges, the slow one asked only where it matters."""

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
        """How much speaks for a person, -4..4; 0 decides.

        Args:
            found: float32 [71], from ``evidence``.
            ask_features: Gives float32 [2304] of the same views; called at most once, and only where it matters.
            claimant: The network whose matte is in question.
            confirmed: Somebody was there at the last look.
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
    """The classifier that lies beside the networks, in ``data/presence_gate.npz``."""
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
