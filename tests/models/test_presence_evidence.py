"""Tests of the presence gate's measurements for a claim, and of its views of the claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vitascope.models.network import FloatArray
from vitascope.models.selfie.presence import (
    EVIDENCE,
    EVIDENCE_SIZE,
    LOOK_SIZE,
    Look,
    candidate_box,
    certainty_and_extent,
    enlarged,
    evidence,
    views,
)


def look_scoring(score: float) -> Look:
    """Make a look whose general summary starts with ``score``."""
    summary = np.zeros(32, np.float32)
    summary[0] = score
    empty = np.zeros((LOOK_SIZE, LOOK_SIZE), np.float32)
    return Look(alpha=empty, general_summary=summary, landscape_summary=np.zeros(32, np.float32))


def blob(x: int = 16, *, side: int = 24) -> FloatArray:
    alpha = np.zeros((64, 64), np.float32)
    alpha[20 : 20 + side, x : x + side] = 1
    return alpha


def numbers(found: FloatArray) -> dict[str, float]:
    """Return the single numbers of the evidence, by name."""
    starts = np.cumsum([0, *EVIDENCE.values()])
    return {
        name: float(found[start])
        for (name, count), start in zip(EVIDENCE.items(), starts[:-1], strict=True)
        if count == 1
    }


def test_evidence_measures_the_claim() -> None:
    alpha = np.zeros((100, 200), np.float32)
    alpha[:50, :100] = 1
    found = evidence(alpha, [look_scoring(0)])
    assert found.shape == (71,) == (EVIDENCE_SIZE,)
    assert numbers(found) == pytest.approx(
        {
            "certainty": 0,
            "extent": 0,
            "claim_certainty": 1,
            "claim_extent": 0.5,
            "claim_height": 1,
            "claim_at_top": 0.5,
            "claim_at_sides": 0.5,
        },
        abs=2e-3,
    )
    inside = np.zeros_like(alpha)
    inside[50:60, 90:100] = 0.6
    measured = numbers(evidence(inside, [look_scoring(0)]))
    assert measured["claim_certainty"] == measured["claim_at_top"] == measured["claim_at_sides"] == 0
    assert measured["claim_height"] == pytest.approx(0.36, abs=0.01)


def test_evidence_averages_both_views() -> None:
    found = evidence(blob(), [look_scoring(1), look_scoring(4)])
    np.testing.assert_allclose(found[0], 2.5)


def test_the_mirrored_matte_is_the_same_evidence() -> None:
    rng = np.random.default_rng(0)
    alpha = np.asarray(rng.random((31, 47)), np.float32)
    np.testing.assert_allclose(
        numbers(evidence(alpha, [look_scoring(0)]))["claim_at_sides"],
        numbers(evidence(np.ascontiguousarray(alpha[:, ::-1]), [look_scoring(0)]))["claim_at_sides"],
    )


def test_the_views_are_one_with_surroundings_and_one_closer_and_mirrored() -> None:
    picture = np.zeros((200, 200, 3), np.float32)
    picture[80:120, 80:100], picture[80:120, 100:120] = (1, 0, 0), (0, 0, 1)
    alpha = (picture.max(axis=2) > 0).astype(np.float32)
    first, second = views(picture, alpha)
    assert (first > 0.5).any(axis=2).mean() < (second > 0.5).any(axis=2).mean()
    assert first[128, 100].tolist() == [1, 0, 0]
    assert second[128, 100].tolist() == [0, 0, 1]
    assert views(picture, alpha * 0) == []


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 48), st.integers(1, 48)),
        elements=st.floats(0, 1, width=32),
    )
)
def test_a_box_lies_in_the_frame_and_holds_most_of_the_matte(alpha: FloatArray) -> None:
    box = candidate_box(alpha)
    mass = np.clip(alpha - 0.3, 0, 1)
    if box is None:
        assert mass.sum() == 0
        return
    rows, columns = box
    assert 0 <= rows.start < rows.stop <= alpha.shape[0]
    assert 0 <= columns.start < columns.stop <= alpha.shape[1]
    assert mass[box].sum() >= 0.9 * mass.sum() - 1e-3


def test_a_box_is_a_square_with_a_margin_where_the_frame_has_room() -> None:
    alpha = np.zeros((200, 300), np.float32)
    alpha[80:120, 140:160] = 1
    rows, columns = candidate_box(alpha) or (slice(0, 0), slice(0, 0))
    assert rows.stop - rows.start == columns.stop - columns.start == pytest.approx(60, abs=3)
    assert (rows.start + rows.stop) / 2 == pytest.approx(100, abs=2)
    assert (columns.start + columns.stop) / 2 == pytest.approx(150, abs=2)


def test_a_dark_box_is_lifted_a_bright_one_is_not_and_black_stays_black() -> None:
    box = (slice(0, 8), slice(0, 8))
    grey = np.full((8, 8, 3), 0.2, np.float32)
    assert enlarged(grey, box).max() == pytest.approx(0.8, abs=1e-3)
    assert enlarged(grey * 4.5, box).max() == pytest.approx(0.9, abs=1e-3)
    assert enlarged(grey * 0, box).max() == 0
    assert enlarged(grey * np.float32(0.1), box).max() == pytest.approx(0.12, abs=1e-3)  # noise is not lifted
    assert enlarged(grey, box).shape == (256, 256, 3)


def test_certainty_is_of_what_is_claimed_and_extent_of_the_frame() -> None:
    alpha = np.zeros((100, 100), np.float32)
    alpha[:50, :50] = 0.4
    assert certainty_and_extent(alpha) == (0, 0)
    alpha[:25, :50] = 1
    assert certainty_and_extent(alpha) == pytest.approx((0.5, 0.125**0.5), abs=2e-3)
    assert certainty_and_extent(alpha * 0) == (0, 0)
