"""Tests of which of the two selfie networks decides for a wide stream."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.models.network import FloatArray
from vitascope.models.selfie.presence import overlap
from vitascope.models.selfie.selfie import INTERVAL, WideFrameChoice

NOBODY = np.zeros((1, 36, 64), np.float32)


def claim(certainty: float, *, x: int = 20, width: int = 24) -> FloatArray:
    """Make a claim that is partly certain."""
    alpha = NOBODY.copy()
    alpha[0, 6:30, x : x + width] = 0.7
    alpha[0, 6 : 6 + round(24 * certainty), x : x + width] = 1
    return alpha


def test_it_starts_with_the_landscape_network_and_listens_to_the_surer() -> None:
    stream = WideFrameChoice()
    assert stream.claimant == "landscape"
    stream.compare(claim(0.9), claim(0.5))
    assert stream.claimant == "landscape"
    stream.compare(claim(0.5), claim(0.9))
    assert stream.claimant == "general"
    stream.compare(claim(0.9), claim(0.2))
    assert stream.claimant == "landscape"


def test_a_general_network_that_speaks_is_not_left_for_a_trifle() -> None:
    stream = WideFrameChoice()
    stream.compare(claim(0.5), claim(0.75))
    stream.compare(claim(0.75), claim(0.75))
    assert stream.claimant == "general"
    fresh = WideFrameChoice()
    fresh.compare(claim(0.75), claim(0.75))
    assert fresh.claimant == "landscape"


def test_a_small_claim_of_the_general_network_does_not_count() -> None:
    stream = WideFrameChoice()
    stream.compare(claim(0.2, width=4), claim(1, width=4))
    assert stream.claimant == "landscape"


def test_all_eyes_count_together() -> None:
    stream = WideFrameChoice()
    sure, unsure = claim(1), claim(0.1)
    stream.compare(np.concatenate([unsure, unsure]), np.concatenate([sure, claim(0.05)]))
    assert stream.claimant == "general"


def test_comparisons_are_due_at_first_then_seldom_and_after_a_jump() -> None:
    stream = WideFrameChoice()
    assert not stream.is_due(NOBODY)
    assert stream.is_due(claim(1))
    stream.compare(claim(1), claim(0))
    due = [stream.is_due(claim(1)) for _ in range(INTERVAL)]
    assert due == [False] * (INTERVAL - 1) + [True]
    stream.compare(claim(1), claim(0))
    assert [stream.is_due(claim(1, x=x)) for x in (0, 40, 0)] == [False, False, True]


def test_a_walking_person_is_no_jump() -> None:
    stream = WideFrameChoice()
    stream.is_due(claim(1, x=0))
    stream.compare(claim(1), claim(0))
    assert not any(stream.is_due(claim(1, x=x)) for x in range(30))


def test_reset_goes_back_to_the_start() -> None:
    stream = WideFrameChoice()
    stream.compare(claim(0.1), claim(1))
    stream.reset()
    assert stream.claimant == "landscape"
    assert stream.is_due(claim(1))


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (12, 1 / 3), (24, 0.0)])
def test_overlap_is_intersection_over_union(shift: int, expected: float) -> None:
    assert overlap(claim(1, x=4), claim(1, x=4 + shift)) == pytest.approx(expected, abs=3e-3)
