"""Tests of the two judges of the presence gate, and of the shipped numbers."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pytest

from vitascope.models.network import FloatArray
from vitascope.models.selfie.presence import (
    CLAIM,
    EVIDENCE_SIZE,
    FEATURE_COUNT,
    SURE_SCORE,
    PresenceClassifier,
    QuickJudge,
    SlowJudge,
    shipped_classifier,
)


def small(rng: np.random.Generator, *, hidden: int = 3) -> SlowJudge:
    inputs = EVIDENCE_SIZE + FEATURE_COUNT
    return SlowJudge(
        centre=rng.normal(size=inputs).astype(np.float32),
        scale=rng.uniform(0.5, 2, inputs).astype(np.float32),
        hidden=rng.normal(0, 0.05, (hidden, inputs)).astype(np.float32),
        hidden_bias=rng.normal(size=hidden).astype(np.float32),
        output=rng.normal(size=hidden).astype(np.float32),
        bias={"general": 0.25, "landscape": -0.5},
    )


def plain(judge: SlowJudge, found: FloatArray, features: FloatArray) -> float:
    """Compute the same in float64, one unit at a time."""
    inputs = [
        min(max((float(value) - float(centre)) * float(scale), -5.0), 5.0)
        for value, centre, scale in zip([*found, *features], judge.centre, judge.scale, strict=True)
    ]
    score = 0.0
    for weights, bias, output in zip(judge.hidden, judge.hidden_bias, judge.output, strict=True):
        score += float(output) * max(float(np.dot(np.float64(weights), inputs)) + float(bias), 0.0)
    return score


def test_the_slow_judge_is_one_hidden_layer_over_limited_inputs() -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        judge = small(np.random.default_rng(seed))
        found = rng.normal(0, 4, EVIDENCE_SIZE).astype(np.float32)
        features = rng.uniform(0, 6, FEATURE_COUNT).astype(np.float32)
        expected = plain(judge, found, features)
        assert judge.score(found, features, claimant="general") == pytest.approx(expected + 0.25, abs=1e-4)
        assert judge.score(found, features, claimant="landscape") == pytest.approx(expected - 0.5, abs=1e-4)


def never() -> NoReturn:
    raise AssertionError("the detector was asked")


@pytest.mark.parametrize(
    ("quick", "confirmed", "expected"),
    [(-3, False, -SURE_SCORE), (-3, True, -SURE_SCORE), (3, True, SURE_SCORE)],
)
def test_what_the_quick_score_settles_costs_no_opinion(
    quick: float, confirmed: bool, expected: float
) -> None:
    weights = np.zeros(EVIDENCE_SIZE, np.float32)
    weights[0] = 1
    both = {"general": -2.0, "landscape": -9.0}, {"general": 2.0, "landscape": 9.0}
    judge = PresenceClassifier(QuickJudge(weights, *both), small(np.random.default_rng(0)))
    found = np.zeros(EVIDENCE_SIZE, np.float32)
    found[0] = quick
    assert judge.score(found, never, claimant="general", confirmed=confirmed) == expected
    asked = []

    def features() -> FloatArray:
        asked.append(1)
        return np.full(FEATURE_COUNT, 50, np.float32)

    score = judge.score(found, features, claimant="landscape", confirmed=confirmed)
    assert asked == [1]
    assert -SURE_SCORE <= score <= SURE_SCORE


def test_the_numbers_that_ship_are_whole_and_in_order() -> None:
    classifier = shipped_classifier()
    assert classifier.quick.weights.shape == (EVIDENCE_SIZE,)
    assert classifier.slow.hidden.shape == (len(classifier.slow.output), EVIDENCE_SIZE + FEATURE_COUNT)
    assert classifier.slow.centre.shape == classifier.slow.scale.shape == (EVIDENCE_SIZE + FEATURE_COUNT,)
    arrays = classifier.quick.weights, classifier.slow.hidden, classifier.slow.output, classifier.slow.scale
    assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in arrays)
    for claimant in ("general", "landscape"):
        assert classifier.quick.surely_not[claimant] < classifier.quick.surely[claimant]
    assert classifier is shipped_classifier()


def test_the_shipped_quick_judge_trusts_a_certain_claim_more() -> None:
    quick = shipped_classifier().quick
    doubtful = np.zeros(EVIDENCE_SIZE, np.float32)
    certain = doubtful.copy()
    certain[CLAIM.start] = 1
    assert quick.score(certain) > quick.score(doubtful)
