"""Tests of making two eyes' mattes agree, with pictures of known disparity."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.stereo_match import blend_eyes, match_eyes, middle_disparity, smooth_disparity

SIZE = (40, 72)
STEPS = [0.5 * step for step in range(25)]


def flat_curves(size=SIZE):
    """Return curves for a flat lens, with disparity in samples: the right eye shows things further left."""
    curves = np.zeros((2, 6, *size), np.float32)
    curves[0, 0], curves[1, 0] = -1, 1
    return curves


def person(size=SIZE, *, seed=0):
    """Make a textured block on black: RGB and alpha, float32 [4, h, w]."""
    texture = np.random.default_rng(seed).random((3, *size), np.float32)
    texture = np.stack([cv2.GaussianBlur(plane, (0, 0), 1) for plane in texture])
    alpha = np.zeros(size, np.float32)
    alpha[8:32, 30:54] = 1
    return np.concatenate([texture * alpha, alpha[None]])


def shifted(planes, samples):
    """Shift to the left, also by parts of a sample."""
    move = np.float32([[1, 0, -samples], [0, 1, 0]])
    return np.stack([cv2.warpAffine(plane, move, plane.shape[::-1]) for plane in planes])


@pytest.mark.parametrize("samples", [0.0, 4.0, 7.25])
def test_the_disparity_of_a_person_is_found_in_both_eyes(samples):
    left = person()
    pictures = np.stack([left, shifted(left, samples)])
    found, misfit = match_eyes(pictures, flat_curves(), STEPS, radius=3)
    for disparity, picture in zip(found, pictures, strict=True):
        inside = cv2.erode(picture[3], np.ones((5, 5))) > 0.9
        assert np.abs(disparity[inside] - samples).max() < 0.4
    assert misfit.max() < 0.03
    mutual, _ = match_eyes(pictures, flat_curves(), STEPS, radius=3, is_mutual=True)
    for disparity, picture in zip(mutual, pictures, strict=True):
        assert np.abs(disparity[cv2.erode(picture[3], np.ones((5, 5))) > 0.9] - samples).max() < 0.4
    start = np.full((2, *SIZE), samples - 0.2, np.float32)
    finer, _ = match_eyes(pictures, flat_curves(), [-0.5, -0.25, 0, 0.25, 0.5], radius=3, start=start)
    inside = cv2.erode(left[3], np.ones((5, 5))) > 0.9
    assert np.abs(finer[0][inside] - samples).max() < 0.35


def noisy_step(size=SIZE):
    """Make a step between two things, with disparities of 4 and 9 samples, and noise."""
    disparity = np.random.default_rng(0).normal(0, 0.1, (2, *size)).astype(np.float32)
    disparity[:, :, : size[1] // 2] += 4
    disparity[:, :, size[1] // 2 :] += 9
    return disparity


def test_smoothing_takes_noise_and_leaves_steps():
    smooth = smooth_disparity(noisy_step(), sigma=0.5)
    middle = SIZE[1] // 2
    for columns, value in ((slice(0, middle), 4), (slice(middle, None), 9)):
        assert np.abs(smooth[:, :, columns] - value).std() < 0.03
        assert np.abs(smooth[:, :, columns] - value).max() < 0.1


@pytest.mark.parametrize("size", [SIZE, (41, 73)])
def test_smoothing_every_third_sample_reaches_three_times_as_far(size):
    noisy = noisy_step(size)
    spaced = smooth_disparity(noisy, sigma=0.5, spacing=3)
    assert spaced.shape == noisy.shape
    third = np.ascontiguousarray(noisy[:, 1::3, 1::3])
    rows, columns = (side // 3 for side in size)  # whole thirds only: outside them borders repeat
    by_itself = smooth_disparity(third[:, :rows, :columns], sigma=0.5)
    inside = np.s_[:, : rows - 8, : columns - 8]
    np.testing.assert_allclose(spaced[:, 1::3, 1::3][inside], by_itself[inside], atol=1e-3)
    assert np.abs(spaced - noisy).max() < 0.5  # the step stays


def test_single_places_that_nothing_around_has_are_taken_out_and_steps_stay():
    middle = SIZE[1] // 2
    expected = np.full((2, *SIZE), 4, np.float32)
    expected[:, :, middle:] = 9
    disparity = expected.copy()
    disparity[:, 3::7, 3::7] += 20
    disparity[:, 5::7, 5::7] -= 20
    assert np.array_equal(middle_disparity(disparity), expected)


def test_parts_of_a_sample_are_not_drawn_to_whole_steps():
    left = person()
    steps = [float(step) for step in range(-2, 10)]
    for samples in (4.0, 4.25, 4.5):
        found, _ = match_eyes(np.stack([left, shifted(left, samples)]), flat_curves(), steps, radius=3)
        inside = cv2.erode(left[3], np.ones((9, 9))) > 0.9
        assert abs(float(np.median(found[0][inside])) - samples) < 0.08


FAR_STEPS = [0.5 * step for step in range(49)]


def two_alike(size=SIZE):
    """Make two similar things at one distance; the second is brighter in the right eye, by more than they differ."""
    texture = cv2.GaussianBlur(np.random.default_rng(2).random((24, 13), np.float32), (0, 0), 1) / 2
    pictures = np.zeros((2, 4, *size), np.float32)
    for eye, (moved, brighter) in enumerate(((0, 0.02), (4, 0.05))):
        for left, more in ((30, 0), (47, brighter)):
            part = pictures[eye, :, 8:32, left - moved : left - moved + 13]
            part[:3], part[3] = texture + more, 1
    return pictures


def test_of_two_things_that_look_alike_each_gets_its_own():
    pictures = two_alike()
    second = np.s_[0, 12:28, 52:55]
    alone, _ = match_eyes(pictures, flat_curves(), FAR_STEPS, radius=3)
    assert np.median(alone[second]) > 20  # that of the first thing
    found, misfit = match_eyes(pictures, flat_curves(), FAR_STEPS, radius=3, is_mutual=True)
    for things in second, np.s_[0, 12:28, 35:38], np.s_[1, 12:28, 31:34]:
        assert np.abs(found[things] - 4).max() < 1
    assert misfit.max() <= 0.5


def test_disparities_of_fewer_samples_are_told_from_all_of_the_pictures():
    left = person()
    pictures = np.stack([left, shifted(left, 4.3)])
    size = SIZE[0] // 2, SIZE[1] // 2
    start, steps = np.full((2, *size), 4, np.float32), [-0.5, -0.25, 0, 0.25, 0.5]
    found, misfit = match_eyes(pictures, flat_curves(), steps, radius=4, start=start, size=size)
    assert found.shape == misfit.shape == (2, *size)
    inside = cv2.erode(left[3], np.ones((9, 9)))[::2, ::2] > 0.9
    assert np.abs(found[0][inside] - 4.3).max() < 0.25
    large = np.full((2, *SIZE), 4, np.float32)
    of_all, _ = match_eyes(pictures, flat_curves(), steps, radius=8, start=large)
    assert np.abs(found[0] - resized(of_all[:, None], size)[0, 0])[inside].max() < 0.1
    with pytest.raises(ValueError, match="both sizes must be equal"):
        match_eyes(pictures, flat_curves(), STEPS, radius=4, size=size, is_mutual=True)


def test_two_scenes_fit_badly():
    pictures = np.stack([person(), shifted(person(seed=1), 4)])
    found, misfit = match_eyes(pictures, flat_curves(), STEPS, radius=3)
    inside = cv2.erode(pictures[0, 3], np.ones((9, 9))) > 0.9
    assert misfit[0][inside].mean() > 0.06
    assert np.isfinite(found).all()


def plain_pictures(size=SIZE):
    """Make pictures without anybody, in which nothing differs."""
    return np.zeros((2, 4, *size), np.float32)


def test_what_both_eyes_show_gets_the_mean_and_what_one_shows_keeps_its_own():
    height, width = SIZE
    planes = np.stack([np.full((2, height, width), 0.25), np.full((2, height, width), 0.75)]).astype(
        np.float32
    )
    disparity = np.full((2, height, width), 4, np.float32)
    disparity[1, :, :20] = 9  # of something in front, in the right eye alone
    shown = np.ones((2, height, width), np.float32)
    shown[:, :5] = 0
    blended = blend_eyes(planes, plain_pictures(), disparity, flat_curves(), shown, tolerance=1)
    assert np.all(blended[:, :, 5:, 30:] == 0.5)
    assert np.all(blended[1, :, :, :18] == 0.75)
    assert np.all(blended[0, :, :, 6:22] == 0.25)
    assert np.all(blended[0, :, :5] == 0.25)
    assert np.all(blended[1, :, :5] == 0.75)
    assert planes[0].max() == 0.25  # the input is unchanged


def test_what_is_behind_an_outline_does_not_part_the_eyes():
    """Check that background seen through half-transparent samples does not count as a difference."""
    pictures = np.stack([person(), shifted(person(), 4)])
    pictures[:, 3] = [cv2.GaussianBlur(alpha, (0, 0), 1.5) for alpha in pictures[:, 3]]
    for picture, behind in zip(pictures, (0.3, 0.6), strict=True):
        picture[:3] = 0.45 * picture[3] + behind * (1 - picture[3])
    planes = pictures[:, 3:].copy()
    planes[1] = planes[1] ** 2
    disparity, shown = np.full((2, *SIZE), 4, np.float32), np.ones((2, *SIZE), np.float32)
    left = blend_eyes(planes, pictures, disparity, flat_curves(), shown, tolerance=1)[0, 0]
    outline = (pictures[0, 3] > 0.4) & (pictures[0, 3] < 0.9)
    both = (planes[0, 0] + shifted(planes[1], -4)[0]) / 2
    assert np.abs(planes[0, 0] - both)[outline].mean() > 0.08
    assert np.abs(left - both)[outline].mean() < 0.04


def test_mattes_that_differ_are_brought_together_where_the_person_has_one_color_in_both_eyes():
    left = person()
    pictures = np.stack([left, shifted(left, 4)])
    pictures[1, :3, 20:] += 0.06  # another person stands there
    pictures[1, 3] = 0  # the right eye's matte has nobody
    planes, disparity = pictures[:, 3:].copy(), np.full((2, *SIZE), 4, np.float32)
    shown = np.ones((2, *SIZE), np.float32)
    blended = blend_eyes(planes, pictures, disparity, flat_curves(), shown, tolerance=1)
    np.testing.assert_allclose(blended[0, 0, 10:18, 32:52], 0.5, atol=1e-6)
    np.testing.assert_allclose(blended[1, 0, 10:18, 28:48], 0.5, atol=1e-6)
    np.testing.assert_array_equal(blended[:, :, 22:30], planes[:, :, 22:30])


def test_the_other_eye_is_read_as_catmull_and_rom_have_it():
    def weights(part):
        distance = abs(part - np.arange(-1, 3))
        near = (1.5 * distance - 2.5) * distance**2 + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        return np.where(distance <= 1, near, far)

    random = np.random.default_rng(4)
    planes = random.random((2, 1, *SIZE), np.float32)
    curves = np.zeros((2, 6, *SIZE), np.float32)
    curves[0, 0], curves[0, 3] = -2.25, -1.375  # across and down, in OpenCV's steps of 1/32 sample
    disparity = np.ones((2, *SIZE), np.float32)
    shown = np.full((2, *SIZE), 2, np.float32)  # only the other eye counts
    blended = blend_eyes(planes, plain_pictures(), disparity, curves, shown, tolerance=1)
    around = np.pad(planes[1, 0], 8, mode="edge")
    for y, x in ((20, 30), (0, 0), (1, 2), (39, 71), (2, 1), (0, 71)):
        # Read at x - 2.25 and y - 1.375.
        square = around[y + 8 - 3 : y + 8 + 1, x + 8 - 4 : x + 8]
        assert abs(blended[0, 0, y, x] - weights(0.625) @ square @ weights(0.75)) < 1e-5


def test_planes_may_be_finer_than_disparities():
    planes = np.stack([person((80, 144))[3:], shifted(person((80, 144)), 8)[3:]])
    disparity = np.full((2, *SIZE), 4, np.float32)
    shown = np.ones((2, *SIZE), np.float32)
    blended = blend_eyes(planes, plain_pictures(), disparity, flat_curves(), shown, tolerance=1)
    assert np.abs(blended - planes).max() < 1e-5  # they agreed already


def two_frames(size=SIZE):
    """Make both eyes' pictures of two frames with people at different distances."""
    left = person(size)
    return np.stack([left, shifted(left, 4), left, shifted(left, 7)])


@pytest.mark.parametrize("is_mutual", [False, True])
def test_frames_together_are_matched_as_each_by_itself(is_mutual):
    pictures, start = (
        two_frames(),
        np.linspace(-1, 1, 4, dtype=np.float32)[:, None, None] + np.zeros(SIZE, np.float32),
    )
    together = match_eyes(pictures, flat_curves(), STEPS, radius=3, start=start, is_mutual=is_mutual)
    for frame in np.s_[:2], np.s_[2:]:
        alone = match_eyes(
            pictures[frame], flat_curves(), STEPS, radius=3, start=start[frame], is_mutual=is_mutual
        )
        for own, all_frames in zip(alone, together, strict=True):
            np.testing.assert_array_equal(all_frames[frame], own)
    assert np.abs(together[0][0] - together[0][2]).max() > 1


def test_frames_together_are_blended_as_each_by_itself():
    random = np.random.default_rng(4)
    planes, pictures = random.random((4, 2, *SIZE), np.float32), two_frames()
    disparity = random.random((4, *SIZE), np.float32) + np.float32([4, 4, 7, 7])[:, None, None]
    shown = random.random((4, *SIZE), np.float32)
    together = blend_eyes(planes, pictures, disparity, flat_curves(), shown, tolerance=1)
    for frame in np.s_[:2], np.s_[2:]:
        parts = (each[frame] for each in (planes, pictures, disparity))
        alone = blend_eyes(*parts, flat_curves(), shown[frame], tolerance=1)
        np.testing.assert_array_equal(together[frame], alone)
    assert np.abs(together - planes).max() > 0.1
