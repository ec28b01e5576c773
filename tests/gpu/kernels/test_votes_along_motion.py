"""Tests of a sample's votes from other frames, along the motion: the reference, and the kernel against it."""

from __future__ import annotations

import numpy as np
import pytest
from test_along_motion import flight

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.votes_along_motion import votes_along_motion

REACH = 8


def filmed(count=6, *, eyes=1, size=(45, 70), step=(2.3, -1.6)):
    """Make RGB with alpha, and motion ahead and back."""
    alpha, rgb, ahead, back = flight(count=count, eyes=eyes, size=size, step=step)
    return np.concatenate([rgb, alpha[:, :, None]], axis=2), ahead, back


def test_a_still_picture_is_shown_by_all_frames_in_reach():
    count = 20
    seen = np.broadcast_to(
        np.random.default_rng(1).random((1, 1, 4, 9, 13), np.float32), (count, 1, 4, 9, 13)
    )
    still = np.zeros((count - 1, 1, 9, 13, 2), np.float32)
    agreed, others = votes_along_motion(seen, still, still)
    np.testing.assert_allclose(agreed, seen[:, :, 3], atol=1e-6)
    for at, shown in enumerate(others):
        expected = min(at, REACH) + min(count - 1 - at, REACH)
        np.testing.assert_allclose(shown, expected, atol=1e-5)


def test_frames_that_are_sure_outvote_one_that_is_not():
    seen, still = np.full((5, 1, 4, 6, 8), 0.5, np.float32), np.zeros((4, 1, 6, 8, 2), np.float32)
    seen[:, :, 3] = 1
    seen[2, :, 3] = 0.4
    agreed, _ = votes_along_motion(seen, still, still)
    assert agreed[2].min() > 0.98
    assert agreed[0].min() > 0.98


@pytest.mark.parametrize("change", ["colour", "way home", "out of the picture"])
def test_another_place_has_no_vote(change):
    seen, still = np.full((3, 1, 4, 6, 8), 0.5, np.float32), np.zeros((2, 1, 6, 8, 2), np.float32)
    ahead, back = still.copy(), still.copy()
    seen[1:, :, 3] = 1
    if change == "colour":
        seen[1:, :, :3] = 0.8
    elif change == "way home":
        back[...] = 6
    else:
        ahead[...], back[...] = 100, -100
    agreed, others = votes_along_motion(seen, ahead, back)
    np.testing.assert_allclose(agreed[0], 0.5, atol=1e-3)
    assert others[0].max() < 1e-2


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1)])
@pytest.mark.parametrize("count", [1, 2])
def test_small_pictures_and_few_frames(size, count):
    seen, ahead, back = filmed(count, size=size)
    agreed, others = votes_along_motion(seen, ahead, back)
    assert agreed.shape == others.shape == (count, 1, *size)
    assert np.isfinite(agreed).all()
    assert others.max() <= count - 1


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(45, 70), (1, 1), (9, 33), (64, 96)])
@pytest.mark.parametrize("eyes", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_kernel_follows_the_reference(size, eyes, count, is_whole):
    import cupy

    seen, ahead, back = filmed(count, eyes=eyes, size=size)
    seen += np.random.default_rng(5).normal(0, 0.01, seen.shape).astype(np.float32)
    given = [cupy.asarray(array) for array in (seen, ahead, back)]
    if not is_whole:  # a part of larger planes
        given[0] = cupy.pad(given[0], ((0, 0),) * 3 + ((2, 1), (3, 5)))[..., 2:-1, 3:-5]
    for made, expected in zip(votes_along_motion(*given), votes_along_motion(seen, ahead, back), strict=True):
        assert made.dtype == np.float32
        # OpenCV interpolates at 1/32 of a sample.
        assert np.abs(made.get() - expected).mean() < 0.01 * max(np.abs(expected).mean(), 0.1)


@pytest.mark.cuda
def test_motion_that_leads_far_out_of_the_picture():
    import cupy

    seen, ahead, back = filmed(3)
    ahead[:], back[:] = np.float32([1e6, -1e6]), np.float32([-1e6, 0])
    given = seen, ahead, back
    for made, expected in zip(
        votes_along_motion(*map(cupy.asarray, given)), votes_along_motion(*given), strict=True
    ):
        np.testing.assert_allclose(made.get(), expected, atol=1e-4)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("votes_along_motion.cu"))
def test_the_source_compiles(tmp_path, architecture):
    assert_compiles(tmp_path, "votes_along_motion.cu", architecture, ["votes_along_motion"])
