"""Tests of smoothing mattes along the motion, with pictures whose motion is known."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.gpu.kernels.along_motion import mean_along_motion

SIZE = (45, 70)


def flight(*, count=4, eyes=1, step=(3.0, -2.0), size=SIZE, seed=0):
    """Make pictures and mattes that move by ``step`` a frame: alpha, rgb, motion ahead, motion back."""
    random = np.random.default_rng(seed)
    large = [
        cv2.GaussianBlur(random.random((size[0] + 60, size[1] + 60), np.float32), (0, 0), 3)
        for _ in range(4 * eyes)
    ]
    planes = np.stack([(one - one.min()) / np.ptp(one) for one in large]).reshape(eyes, 4, *large[0].shape)
    frames = []
    for at in range(count):
        move = np.float32([[1, 0, at * step[0] - 30], [0, 1, at * step[1] - 30]])
        frames.append([[cv2.warpAffine(plane, move, size[::-1]) for plane in eye] for eye in planes])
    seen = np.array(frames, np.float32)
    ahead = np.broadcast_to(np.float32(step), (count - 1, eyes, *size, 2)).copy()
    return np.ascontiguousarray(seen[:, :, 3]), np.ascontiguousarray(seen[:, :, :3]), ahead, -ahead


def inner(planes):
    """Cut off the border, where new content comes in."""
    return planes[..., 6:-6, 6:-6]


@given(st.integers(1, 5), st.integers(1, 2), st.floats(-4, 4), st.floats(-4, 4))
def test_what_moves_without_error_stays_as_it_is(count, eyes, right, down):
    alpha, rgb, ahead, back = flight(count=count, eyes=eyes, step=(right, down))
    made = mean_along_motion(alpha, rgb, ahead, back)
    assert made.shape == alpha.shape
    assert made.dtype == np.float32
    moved = 2 * int(np.ceil(max(abs(right), abs(down)))) + 1  # two frames away, new content comes in here
    inner = (made - alpha)[..., moved:-moved, moved:-moved]
    assert np.abs(inner).max() < 0.02  # from interpolation


def test_errors_of_single_frames_fade():
    alpha, rgb, ahead, back = flight(count=7)
    noise = np.random.default_rng(1).normal(0, 0.05, alpha.shape).astype(np.float32)
    made = mean_along_motion((alpha + noise).clip(0, 1), rgb, ahead, back)
    left = inner(made - alpha)[2:-2].std()
    assert left < 0.6 * inner(noise).std()  # averaging four independent frames would leave half


def test_other_colours_do_not_count():
    alpha, rgb, ahead, back = flight(count=3)
    alpha[1], rgb[1] = 1.0, (rgb[1] + 0.5) % 1.0
    made = mean_along_motion(alpha, rgb, ahead, back)
    assert np.abs((made - alpha)[..., 8:-8, 8:-8]).max() < 0.02  # except new content at the border


def test_a_part_that_is_missing_for_a_frame_hardly_counts_beside_those_that_have_it():
    alpha, rgb, ahead, back = (np.zeros((3, 1, 9, 9), np.float32), np.full((3, 1, 3, 9, 9), 0.5, np.float32),
                               *np.zeros((2, 2, 1, 9, 9, 2), np.float32))  # fmt: skip
    alpha[[0, 2]] = 1
    made = mean_along_motion(alpha, rgb, ahead, back)
    same = np.exp(-1 / (2 * 0.6**2))
    assert made[1] == pytest.approx(np.full((1, 9, 9), 2 * same / (1 + 2 * same)), abs=1e-5)
    # The frame after the next counts half.
    assert made[0] == pytest.approx(np.full((1, 9, 9), 1.5 / (1.5 + same)), abs=1e-5)


def test_edges_get_no_haze():
    alpha, rgb, ahead, back = (np.zeros((3, 1, 9, 9), np.float32), np.full((3, 1, 3, 9, 9), 0.5, np.float32),
                               *np.zeros((2, 2, 1, 9, 9, 2), np.float32))  # fmt: skip
    alpha[:, :, 4:] = 0.995
    alpha[[0, 2], :, :2], alpha[[0, 2], :, 6:] = 0.12, 0.9
    np.testing.assert_array_equal(mean_along_motion(alpha, rgb, ahead, back)[1], alpha[1])
    alpha[[0, 2], :, :2] = 0.4
    assert mean_along_motion(alpha, rgb, ahead, back)[1, 0, 0, 0] > 0.2


def test_motion_of_smaller_pictures_is_enlarged():
    alpha, rgb, ahead, back = flight(step=(4.0, 2.0))
    noise = np.random.default_rng(2).normal(0, 0.05, alpha.shape).astype(np.float32)
    noisy = (alpha + noise).clip(0, 1)
    half = ahead[:, :, ::2, ::2] / 2
    whole = mean_along_motion(noisy, rgb, ahead, back)
    # 45 rows are no multiple of 23, so motion found there is larger by 45 / 46.
    assert np.abs(mean_along_motion(noisy, rgb, half, -half) - whole).max() < 0.05


def test_a_frame_alone_stays_as_it_is():
    alpha, rgb, ahead, back = flight(count=1)
    np.testing.assert_array_equal(mean_along_motion(alpha, rgb, ahead, back), alpha)
