from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.gpu.kernels.mask_postprocess import postprocess_mask, vote_weights


def scores_of(classes, count=None):
    """Make scores [N, C, h, w] whose argmax is ``classes`` [N, h, w]."""
    count = count or int(classes.max()) + 1
    return (np.arange(count)[None, :, None, None] == classes[:, None]).astype(np.float32)


def half_and_half(height=20, width=30):
    classes = np.zeros((1, height, width), np.int64)
    classes[:, :, width // 2 :] = 1
    return classes


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_argmax_names_the_first_largest_class(dtype):
    scores = np.random.default_rng(0).integers(0, 4, (2, 7, 9, 5)).astype(dtype)
    out = postprocess_mask(scores)
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(out, scores.argmax(axis=1))


def test_a_class_becomes_a_mask():
    classes = half_and_half()
    out = postprocess_mask(scores_of(classes, 3), class_index=1)
    np.testing.assert_array_equal(out, np.where(classes == 1, 255, 0))


def test_a_threshold_is_compared_in_single_precision():
    scores = np.array([[[[0.2998, 0.3, 0.3003]]]], np.float16)
    out = postprocess_mask(scores, kind="threshold", threshold=0.3)
    np.testing.assert_array_equal(
        out[0, 0], np.where(scores[0, 0, 0].astype(float) >= np.float32(0.3), 255, 0)
    )


def test_threshold_looks_at_the_class_asked_for():
    scores = np.zeros((1, 3, 4, 4), np.float32)
    scores[:, 2, 1] = 0.9
    out = postprocess_mask(scores, kind="threshold", class_index=2)
    assert (out[0, 1] == 255).all()
    assert out.sum() == 4 * 255


def test_opening_takes_specks_and_closing_fills_holes():
    mask = np.zeros((1, 1, 40, 40), np.float32)
    mask[..., 10:30, 10:30] = 1
    mask[..., 20, 20] = 0
    mask[..., 2, 2] = 1
    out = postprocess_mask(mask, kind="threshold", close_px=2)[0]
    assert out[20, 20] == 255
    assert out[2, 2] == 255
    out = postprocess_mask(mask, kind="threshold", open_px=2)[0]
    assert out[2, 2] == 0
    assert out[15, 15] == 255


def test_smoothing_makes_a_mask_soft_and_keeps_its_amount():
    out = postprocess_mask(scores_of(half_and_half()), class_index=1, smoothing_sigma=2.0)[0].astype(int)
    assert (np.diff(out, axis=1) >= 0).all()
    assert out[0, 0] == 0
    assert out[0, -1] == 255
    assert out[5, 14] + out[5, 15] == pytest.approx(255, abs=1)
    assert len(np.unique(out)) > 8


def test_smoothing_a_class_map_outvotes_specks_and_invents_no_class():
    classes = half_and_half()
    noisy = classes.copy()
    noisy[0, 5, 5] = 7
    noisy[0, 10, 25] = 3
    out = postprocess_mask(scores_of(noisy), smoothing_sigma=1.5)
    np.testing.assert_array_equal(out, classes)


def test_smoothing_is_a_gaussian():
    mask = (np.random.default_rng(0).random((1, 1, 50, 60)) > 0.5).astype(np.float32)
    out = postprocess_mask(mask, kind="threshold", smoothing_sigma=2.0)[0]
    expected = cv2.GaussianBlur(mask[0, 0] * 255, (13, 13), 2.0, borderType=cv2.BORDER_REPLICATE)
    np.testing.assert_allclose(out, expected, atol=1)


def test_the_average_moves_towards_the_new_mask():
    now = scores_of(half_and_half())
    first = postprocess_mask(now[:, ::-1].copy(), class_index=1, previous=None, ema=0.75)
    second = postprocess_mask(now, class_index=1, previous=first, ema=0.75)
    assert (first[..., :15] == 255).all()
    assert (second[..., :15] == 191).all()
    assert (second[..., 15:] == 64).all()


def test_the_result_may_replace_the_previous_one():
    scores = np.random.default_rng(0).random((2, 3, 8, 9)).astype(np.float32)
    previous = np.random.default_rng(1).integers(0, 256, (2, 8, 9), dtype=np.uint8)
    expected = postprocess_mask(scores, class_index=1, previous=previous, ema=0.5)
    assert postprocess_mask(scores, class_index=1, previous=previous, ema=0.5, out=previous) is previous
    np.testing.assert_array_equal(previous, expected)


@given(sigma=st.floats(0.05, 21))
@settings(max_examples=50, deadline=None)
def test_weights_are_symmetric_and_sum_to_one(sigma):
    weights = vote_weights(sigma)
    assert weights.sum() == 4096
    assert (weights == weights[::-1]).all()
    assert (weights >= 0).all()


SCORES = np.zeros((1, 3, 4, 4), np.float32)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (SCORES[0], {}, "expected float16 or float32"),
        (SCORES.astype(np.float64), {}, "expected float16 or float32"),
        (np.zeros((1, 257, 1, 1), np.float32), {}, "at most 256"),
        (SCORES, {"kind": "threshold"}, "needs a class index"),
        (SCORES, {"class_index": 3}, "expected 0 to 2"),
        (SCORES, {"smoothing_sigma": 22}, "expected 0 to 21"),
        (SCORES, {"class_index": 0, "open_px": 257}, "open_px is 257"),
        (SCORES, {"class_index": 0, "close_px": -1}, "close_px is -1"),
        (SCORES, {"class_index": 0, "ema": 1.0}, "below 1"),
        (SCORES, {"open_px": 1}, "class map"),
        (SCORES, {"ema": 0.5}, "class map"),
        (SCORES, {"out": np.zeros((4, 4), np.uint8)}, "out is"),
        (SCORES, {"class_index": 0, "ema": 0.5, "previous": np.zeros((1, 4, 4), np.float32)}, "previous is"),
    ],
)
def test_what_has_no_meaning_is_refused(scores, options, message):
    with pytest.raises(ValueError, match=message):
        postprocess_mask(scores, **options)
