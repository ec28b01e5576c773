"""Tests of smoothing the mattes of a shot along its motion."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import cv2
import numpy as np
import pytest

from pictures import solid_frame
from vitascope.device import available_cores
from vitascope.errors import DeviceMemoryError
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.along_motion import REACH_FRAMES
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.levers import motion_smoothing
from vitascope.segmentation.matting.levers.motion_smoothing import MotionSmoothing
from vitascope.segmentation.matting.shots import EyeViews

SIZE = (48, 80)
WANTED = NetworkInput(SIZE, "NCHW")


def textured(*, right):
    """Make a frame of stripes and spots, shifted to the right."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    columns = columns - right
    luma = 120 + 50 * np.sin(columns / 4) * np.cos(rows / 5) + 30 * np.sin((columns + rows) / 11)
    frame = solid_frame(PIXEL_FORMATS["yuv420p"], SIZE, (0.5, 0.5, 0.5))
    return frame.with_planes((luma.astype(np.uint8), *frame.planes[1:]))


def flickering(count, *, right=2):
    """Make frames that move, and uniform mattes of them that alternate between 0.7 and 0.8."""
    alphas = [0.8 if at % 2 else 0.7 for at in range(count)]
    estimates = [
        MatteEstimate(gain=np.zeros((1, 1, *SIZE), np.float32), offset=np.full((1, 1, *SIZE), alpha, np.float32))
        for alpha in alphas
    ]  # fmt: skip
    return [textured(right=right * at) for at in range(count)], estimates


def smoothing(sizer=None):
    return MotionSmoothing(
        EyeViews([Region(0, 0, SIZE[1], SIZE[0])], 0), WANTED, ThreadPoolExecutor(available_cores()), sizer
    )


EVERYWHERE = np.ones((3, 5), np.float32)


def smoothed(lever, frames, estimates, people=EVERYWHERE):
    found = lever.smooth(frames, estimates, lever.watch(lever.show(frames), people))
    return np.array([one.offset.mean() for one in found])


def test_flicker_fades():
    frames, estimates = flickering(12)
    made = smoothed(smoothing(), frames, estimates)
    assert np.abs(np.diff(made[2:-2])).max() < 0.03  # 0.1 before


def test_windows_follow_one_another_as_one_does_but_for_what_comes_after_them():
    frames, estimates = flickering(20)
    whole = smoothed(smoothing(), frames, estimates)
    lever = smoothing()
    parts = [smoothed(lever, frames[at:end], estimates[at:end]) for at, end in ((0, 9), (9, 10), (10, 20))]
    apart = np.concatenate(parts)
    has_next = [at not in (7, 8, 9) for at in range(20)]
    assert apart[has_next] == pytest.approx(whole[has_next], abs=1e-6)
    assert np.abs(apart - whole)[[8, 9]].min() > 0.005


def test_a_window_that_is_smoothed_again_leaves_nothing_of_the_first_time():
    """Check that only the last smoothing of a window counts, also in the next window.

    On a GPU a window is smoothed before all is known of its mattes.
    """
    frames, estimates = flickering(16)
    nobody = [MatteEstimate(gain=one.gain, offset=np.zeros_like(one.offset)) for one in estimates]
    once, twice = smoothing(), smoothing()
    for part in (slice(8), slice(8, 16)):
        motion = twice.watch(twice.show(frames[part]), EVERYWHERE)
        twice.smooth(frames[part], nobody[part], motion)
        made = [one.offset for one in twice.smooth(frames[part], estimates[part], motion)]
        expected = once.smooth(frames[part], estimates[part], once.watch(once.show(frames[part]), EVERYWHERE))
        np.testing.assert_array_equal(made, [one.offset for one in expected])


@pytest.mark.parametrize("most", [1, 2, 3, 6])
def test_where_memory_is_short_fewer_frames_at_a_time_give_the_same_mattes(monkeypatch, most):
    def short(alpha, *given, mean=motion_smoothing.mean_along_motion):
        if len(alpha) > most + 2 * REACH_FRAMES:
            raise DeviceMemoryError("too many")
        return mean(alpha, *given)

    frames, estimates = flickering(20)
    lever, sizer = smoothing(), AdaptiveBatchSizer(16, max_batch_size=16, growing=False)
    whole = [smoothed(lever, frames[part], estimates[part]) for part in (slice(11), slice(11, 20))]
    monkeypatch.setattr(motion_smoothing, "mean_along_motion", short)
    lever = smoothing(sizer)
    for part, expected in zip((slice(11), slice(11, 20)), whole, strict=True):
        np.testing.assert_array_equal(smoothed(lever, frames[part], estimates[part]), expected)
    assert sizer.shortage_count


def test_a_part_that_a_window_misses_in_one_frame_is_restored_alone():
    frames, estimates = flickering(9)
    for one in estimates:
        one.offset[:] = 0.95
    missed = np.s_[..., 12:32, 24:44]
    estimates[3].offset[missed] = 0
    lever = smoothing()
    lever.smooth(frames[:2], estimates[:2], lever.watch(lever.show(frames[:2]), EVERYWHERE))
    motion = lever.watch(lever.show(frames[2:]), EVERYWHERE)
    made = [one.offset for one in lever.restored(frames[2:], estimates[2:], motion)]
    assert made[1][..., 16:28, 28:40].min() > 0.7  # its own frame votes, too
    made[1] = estimates[3].offset
    np.testing.assert_allclose(made, [one.offset for one in estimates[2:]], atol=1e-6)
    assert not estimates[3].offset[missed].any()


def test_each_eye_has_its_own_missing_parts():
    frames, estimates = flickering(8)
    wide = [
        frame.with_planes(tuple(np.concatenate([plane, plane], axis=1) for plane in frame.planes))
        for frame in frames
    ]
    for one in estimates:
        one.offset[:] = 0.95
    estimates[3].offset[..., 12:32, 24:44] = 0
    views = EyeViews([Region(x, 0, SIZE[1], SIZE[0]) for x in (0, SIZE[1])], 0)
    lever, single = MotionSmoothing(views, WANTED, ThreadPoolExecutor(1)), smoothing()
    both = [
        MatteEstimate(
            gain=np.concatenate([one.gain, one.gain]), offset=np.concatenate([one.offset, other.offset])
        )
        for one, other in zip(estimates, [*estimates[:3], estimates[2], *estimates[4:]], strict=True)
    ]
    made = lever.restored(wide, both, lever.watch(lever.show(wide), EVERYWHERE))
    alone = single.restored(frames, estimates, single.watch(single.show(frames), EVERYWHERE))
    assert np.abs(alone[3].offset - estimates[3].offset).max() > 0.5
    for one, first, before in zip(made, alone, both, strict=True):
        np.testing.assert_array_equal(one.offset[:1], first.offset)
        np.testing.assert_array_equal(one.offset[1:], before.offset[1:])


@pytest.mark.parametrize("people", [EVERYWHERE, 0 * EVERYWHERE])
def test_a_window_without_motion_stays(people):
    frames, estimates = flickering(1 if people.any() else 4)
    lever = smoothing()
    assert lever.restored(frames, estimates, lever.watch(lever.show(frames), people)) == estimates


def test_another_shot_begins_anew():
    frames, estimates = flickering(6)
    lever = smoothing()
    smoothed(lever, frames[:3], estimates[:3])
    lever.begin_shot()
    assert smoothed(lever, frames[3:], estimates[3:]) == pytest.approx(
        smoothed(smoothing(), frames[3:], estimates[3:])
    )


def test_a_shot_of_one_frame_stays_as_it_is():
    frames, estimates = flickering(1)
    assert smoothed(smoothing(), frames, estimates) == pytest.approx([0.7], abs=1e-6)


def test_only_places_with_people_are_smoothed():
    frames, estimates = flickering(6)
    people = np.zeros((8, 10), np.float32)
    people[3:5, 5] = 0.5
    lever = smoothing()
    motion = lever.watch(lever.show(frames), people)
    assert motion.box == (slice(12, 36), slice(32, 56))  # one more cell of 6 x 8 samples on each side
    made = lever.smooth(frames, estimates, motion)
    change = np.array([one.offset - before.offset for one, before in zip(made, estimates, strict=True)])
    assert np.abs(change[..., 12:36, 32:56]).mean(axis=(1, 2, 3, 4)).min() > 0.01
    change[..., 12:36, 32:56] = 0
    assert not change.any()


def test_where_nobody_is_nothing_is_done():
    frames, estimates = flickering(4)
    lever = smoothing()
    smoothed(lever, frames[:2], estimates[:2])
    motion = lever.watch(lever.show(frames[2:]), 0 * EVERYWHERE)
    assert not motion.moves
    assert lever.smooth(frames[2:], estimates[2:], motion) == estimates[2:]
    assert smoothed(lever, frames[:1], estimates[:1]) == pytest.approx([0.7], abs=1e-6)  # starts again


def test_motion_that_nobody_waits_for_is_not_looked_for(monkeypatch):
    begun, may_end = [], Event()

    def find(picture, following, *, out):
        begun.append(picture)
        may_end.wait(20)

    monkeypatch.setattr(motion_smoothing, "_find_moves", find)
    frames, _ = flickering(24)
    lever = smoothing()
    motion = lever.watch(lever.show(frames), EVERYWHERE)
    motion.cancel()
    may_end.set()
    assert len(begun) <= available_cores()
    assert all(move.cancelled() for move in motion.moves[available_cores() :])


def test_motion_is_found_in_pictures_of_a_bounded_size(monkeypatch):
    monkeypatch.setattr(motion_smoothing, "_MOTION_SIDE", 40)
    frames, estimates = flickering(6)
    lever = smoothing()
    motion = lever.watch(lever.show(frames), EVERYWHERE)
    assert motion.ways(on_gpu=False).shape == (2, 5, 1, 12, 20, 2)
    made = np.array([one.offset.mean() for one in lever.smooth(frames, estimates, motion)])
    assert np.abs(np.diff(made[2:-2])).max() < 0.03


def moves_between(picture, following):
    out = np.full((2, -(-picture.shape[0] // 2), -(-picture.shape[1] // 2), 2), np.nan, np.float32)
    motion_smoothing._find_moves(picture, following, out=out)
    return out


@pytest.mark.parametrize("size", [(1, 1), (3, 50), (17, 16)])
def test_motion_of_small_pictures(size):
    assert np.isfinite(moves_between(*np.random.default_rng(3).integers(0, 255, (2, *size), np.uint8))).all()


def test_motion_is_found_there_and_back():
    noise = np.random.default_rng(4).integers(0, 255, (96, 128), np.uint8)
    picture = cv2.GaussianBlur(noise, (0, 0), 3)
    there, back = moves_between(picture, np.roll(picture, 4, axis=1))
    inside = np.s_[8:-8, 8:-8]
    assert there[inside].mean(axis=(0, 1)) == pytest.approx([2, 0], abs=0.2)  # in pictures of half the size
    assert back[inside].mean(axis=(0, 1)) == pytest.approx([-2, 0], abs=0.2)
