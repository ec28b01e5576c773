"""Tests of pictures in which large people are shrunk, and of finding people missed beside them."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.gpu.interchange import to_cupy, to_numpy
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.segmentation.matting.levers import smaller_people
from vitascope.segmentation.matting.levers.smaller_people import (
    CoarseLook,
    large_people,
    missed,
    paint_of,
    painted_over,
    taken_whole,
    with_smaller_people,
)


def test_large_people_are_told_one_by_one():
    alpha = np.zeros((100, 200), np.float32)
    alpha[:40, :24] = 1  # 960 of 20,000 samples
    alpha[50:80, 50:90] = 0.6
    alpha[40:60, 24:44] = 1  # touches the first at a corner
    alpha[10:90, 150:180] = 1
    people = large_people(alpha)
    assert (people[50:80, 50:90] == people[50, 50]).all()
    assert (people[10:90, 150:180] == people[10, 150]).all()
    assert sorted([people[50, 50], people[10, 150]]) == [1, 2]
    assert (people > 0).sum() == 30 * 40 + 80 * 30
    assert not large_people(0 * alpha).any()


def bent_around_a_corner():
    large = np.zeros((68, 120), np.int32)
    large[10:60, 20:30] = 1
    large[50:60, 30:90] = 1
    return large


def test_who_is_shown_smaller_is_in_the_paint():
    paint = paint_of(bent_around_a_corner())
    assert paint[28:42, 45:65].all()  # the middle of their box, with nobody in it
    assert paint[8, 18]
    assert not paint[3:6].any()
    assert not paint[:, 95:].any()
    assert not paint_of(0 * bent_around_a_corner()).any()


def smaller(pictures, alphas, large):
    paint = np.stack([paint_of(labels) for labels in large])
    return with_smaller_people(pictures, alphas, large, paint)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_large_people_are_shown_smaller(dtype):
    """Check a bright person of 80 x 120 samples by a dark wall; the picture is twice as fine as the matte."""
    picture, alpha = np.full((3, 272, 480), 0.2, dtype), np.zeros((1, 136, 240), np.float32)
    picture[:, 100:180, 200:320] = 0.9
    alpha[:, 50:90, 100:160] = 1
    shown = smaller(picture[None], alpha[None], large_people(alpha[0, ::2, ::2])[None])[0]
    assert shown.dtype == dtype
    assert picture.max() > 0.89  # unchanged
    bright = shown[0] > 0.55
    assert bright.sum() == pytest.approx(0.3**2 * 80 * 120, rel=0.05)
    rows, columns = np.nonzero(bright)
    assert rows.mean() == pytest.approx(139.5, abs=1)
    assert columns.mean() == pytest.approx(259.5, abs=1)
    assert np.abs(shown[:, ~bright].astype(float) - 0.2).mean() < 0.01


def a_picture(size=(68, 120), seed=5):
    pictures = np.random.default_rng(seed).random((2, 3, *size), np.float32)
    where = np.zeros((2, -(-size[0] // 4), -(-size[1] // 4)), bool)
    where[1, 3:9, 8:20] = True
    return pictures, where


def test_paint_is_what_is_around():
    pictures, where = a_picture((272, 480))
    pictures[:, :, :, :56], pictures[:, :, :, 56:] = 0.2, 0.8
    before = pictures.copy()
    painted = painted_over(pictures, where)
    assert np.array_equal(pictures, before)
    assert np.allclose(painted[0], pictures[0], atol=1e-6)
    far = np.ones(painted.shape[2:], bool)
    far[6:42, 26:86] = False
    assert np.allclose(painted[1][:, far], pictures[1][:, far], atol=1e-6)
    assert np.abs(painted[1, :, 16:32, 34] - 0.2).max() < 0.05
    assert np.abs(painted[1, :, 16:32, 78] - 0.8).max() < 0.05


@pytest.mark.parametrize("width", [1536, 12000])
def test_paint_shrinks_no_row_more_than_a_gpu_does(monkeypatch, width):
    """Check widths such as that of an eye of 1536 that is shown whole; see ``resized``."""
    shrunk = []

    def noted(planes, size):
        shrunk.append(planes.shape[3] / size[1])
        return resized(planes, size)

    monkeypatch.setattr(smaller_people, "resized", noted)
    pictures, where = a_picture((40, width))
    where[1] = True
    painted_over(pictures, where)
    assert 100 < max(shrunk) <= 1000


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 99),
)
def test_paint_lies_between_the_colours_around(height, width, dtype, seed):
    random = np.random.default_rng(seed)
    pictures = (0.25 + random.random((2, 3, height, width), np.float32) / 2).astype(dtype)
    where = random.random((2, -(-height // 4), -(-width // 4))) < 0.3
    where[:, :, 0] = False
    painted = painted_over(pictures[:, ::-1], where)
    assert painted.dtype == dtype
    assert painted.shape == pictures.shape
    assert painted.min() >= 0.249
    assert painted.max() <= 0.751


@given(height=st.integers(1, 60), width=st.integers(1, 60), seed=st.integers(0, 99))
def test_people_of_any_shape_are_shown_smaller(height, width, seed):
    random = np.random.default_rng(seed)
    alpha = cv2.resize(random.random((6, 7), np.float32), (width, height))[None]
    pictures = 0.25 + random.random((2, 3, 2 * height + 1, width), np.float32) / 2
    alphas, large = (
        np.stack([alpha, alpha[..., ::-1]]),
        [large_people(one) for one in (alpha[0], alpha[0, :, ::-1])],
    )
    shown = smaller(pictures, alphas, np.stack(large))
    assert shown.shape == pictures.shape
    assert np.isfinite(shown).all()
    assert shown.max() <= 0.751
    alone = smaller(pictures[1:], alphas[1:], large[1][None])
    np.testing.assert_array_equal(shown[1:], alone)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_gpu_shows_large_people_as_the_cpu_does(dtype):
    random = np.random.default_rng(3)
    pictures = random.random((2, 3, 271, 480), np.float32).astype(dtype)
    large = np.stack([bent_around_a_corner(), bent_around_a_corner()[::-1]])
    alphas = np.stack([cv2.GaussianBlur((one > 0).astype(np.float32), (5, 5), 0)[None] for one in large])
    shown = smaller(pictures, alphas, large)
    on_gpu = smaller(to_cupy(pictures), to_cupy(alphas), large)
    assert on_gpu.dtype == dtype
    assert np.abs(to_numpy(on_gpu).astype(float) - shown).max() < 2e-3


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(272, 480), (61, 33), (40, 1536), (8, 4001), (3, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_gpu_paints_as_the_cpu_does(size, dtype):
    pictures, where = a_picture(size)
    pictures = pictures.astype(dtype)[..., ::-1]
    painted = painted_over(pictures, where)
    on_gpu = painted_over(to_cupy(np.ascontiguousarray(pictures)), where)
    assert on_gpu.dtype == dtype
    assert np.abs(to_numpy(on_gpu).astype(float) - painted).max() < 2e-3


def somebody(left=50, *, alpha=1.0, until=300):
    picture = np.zeros((540, 200), np.float32)
    picture[100:until, left : left + 60] = alpha
    return picture


def missed_of(seen, there=None, painted=None):
    seen = np.stack(seen)
    there = np.zeros_like(seen) if there is None else np.stack(there)
    painted = np.zeros(seen.shape, bool) if painted is None else np.stack(painted)
    return missed(
        [CoarseLook(*planes) for planes in zip(seen[:, None], there[:, None], painted[:, None], strict=True)]
    )[:, 0]


def test_who_is_missed():
    assert np.array_equal(missed_of([somebody()] * 5), np.stack([somebody() > 0] * 5))
    assert not missed_of([somebody()] * 5, [somebody()] * 5).any()  # also seen in the other look
    assert not missed_of([somebody(alpha=0.78)] * 5).any()  # not sure enough
    speck = np.zeros((540, 200), np.float32)
    speck[10:19, 50:60] = 1
    assert not missed_of([speck] * 5).any()


def test_a_window_is_sure_of_somebody_on_the_mean():
    """Check that the mean sureness decides for all frames: people would flicker otherwise."""
    unsure, sure = somebody(alpha=0.7), somebody()
    assert np.array_equal(missed_of([unsure, sure, sure, unsure, sure]), np.stack([sure > 0] * 5))
    assert not missed_of([unsure, sure, unsure, unsure, unsure]).any()
    assert np.array_equal(missed_of([somebody(alpha=0.82)] * 8), np.stack([sure > 0] * 8))


def test_who_walks_is_the_same():
    walk = [somebody(left) for left in range(10, 110, 20)]
    assert np.array_equal(missed_of(walk), np.stack(walk) > 0)
    assert not missed_of([walk[0], walk[1], 0 * walk[2], walk[3], walk[4]]).any()
    assert missed_of(walk[:3]).any()  # all frames of a short window
    halves = somebody(until=180) + somebody() * (np.arange(540) > 220)[:, None]
    assert np.array_equal(missed_of([halves, halves, walk[2], halves, halves])[0], halves > 0)  # one person


def test_scenery_that_hangs_together_with_somebody_stays_out():
    beside = np.maximum(somebody(), somebody(110, alpha=0.7, until=200))
    found = missed_of([beside] * 5)
    assert found[:, 100:300, 50:100].all()
    assert not found[:, :, 115:].any()


def test_who_is_seen_in_the_paint_is_not_there():
    columns = np.arange(200)
    found = missed_of([somebody()] * 4, painted=[np.tile(columns < 70, (540, 1))] * 4)
    assert np.array_equal(found[0], (somebody() > 0) & (columns >= 70))
    assert not missed_of([somebody()] * 4, painted=[np.tile(columns < 80, (540, 1))] * 4).any()


def test_who_was_missed_in_the_frame_behind_is_missed_where_they_are_seen_in_part():
    nobody, most = 0 * somebody(), somebody(until=250)
    assert not missed_of([somebody()] * 5, [most] * 5).any()
    assert missed_of([somebody()] * 5, [nobody, *[most] * 4]).any(axis=(1, 2)).all()


@given(frames=st.integers(1, 6), seed=st.integers(0, 999))
def test_who_is_missed_is_seen_and_not_in_the_paint(frames, seed):
    random = np.random.default_rng(seed)
    coarse = random.random((frames, 5, 7), np.float32)
    seen = np.stack([cv2.resize(one, (63, 41)) for one in coarse]) ** random.uniform(0.2, 1)
    there = random.random(seen.shape, np.float32) ** 3
    painted = np.stack([cv2.resize(one, (63, 41)) > 0.8 for one in coarse[::-1]])
    found = missed_of(seen, there, painted)
    assert found.shape == seen.shape
    assert not (found & painted).any()
    assert (seen[found] > 0.5).all()
    assert found.any(axis=(1, 2)).sum() in {0, *range(min(frames, 4), frames + 1)}


def test_who_is_seen_in_part_is_taken_whole_from_the_larger_pictures():
    nothing = np.zeros((540, 200), bool)
    most, half, all_of_them = (somebody(until=end) for end in (260, 180, 300))
    assert np.array_equal(taken_whole(most > 0, all_of_them, nothing), all_of_them > 0)
    assert np.array_equal(taken_whole(half > 0, all_of_them, nothing), half > 0)
    assert np.array_equal(taken_whole(all_of_them > 0, most, nothing), all_of_them > 0)
    painted = np.arange(200) < np.where(np.arange(540) < 200, 0, 70)[:, None]
    assert np.array_equal(
        taken_whole((most > 0) & ~painted, all_of_them, painted), (all_of_them > 0) & ~painted
    )


def test_each_of_several_is_taken_whole_or_not_at_all():
    """Check people one by one: one who is agreed on, one who is not, specks, and one in the paint."""
    larger = np.zeros((61, 97), np.float32)
    larger[5:25, 5:15] = larger[5:25, 30:40] = larger[30:50, 60:80] = 0.9
    larger[::7, 90::2] = 0.9
    where, painted = np.zeros(larger.shape, bool), np.zeros(larger.shape, bool)
    where[5:19, 5:15] = where[5:18, 30:40] = where[30:50, 60:80] = True  # 14 and 13 of 20 rows
    where[0, 90] = True  # one of the specks
    painted[30:39, 60:80] = True
    wanted = where.copy()
    wanted[5:25, 5:15] = True
    assert np.array_equal(taken_whole(where, larger, painted), wanted)
    assert not taken_whole(np.zeros((1, 1), bool), np.ones((1, 1), np.float32), np.zeros((1, 1), bool)).any()
    assert not taken_whole(np.zeros((3, 1), bool), np.zeros((3, 1), np.float32), np.ones((3, 1), bool)).any()
