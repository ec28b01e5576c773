"""Tests of making two eyes' mattes agree on the GPU against the reference, and of the source without a GPU."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from test_stereo_match import (
    FAR_STEPS,
    SIZE,
    STEPS,
    flat_curves,
    noisy_step,
    person,
    shifted,
    two_alike,
    two_frames,
)

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.stereo_match import blend_eyes, match_eyes, middle_disparity, smooth_disparity

SIZES = [SIZE, (41, 75), (64, 96)]


def bent(size):
    """Return curves with all three powers, on both axes."""
    curves = flat_curves(size)
    wave = np.sin(np.arange(size[0] * size[1], dtype=np.float32).reshape(size) / 50)
    curves[:, 1:] += 0.002 * wave
    return curves


@pytest.mark.cuda
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("radius", [3, 7, 12, 38])  # a thread has one sample, four, and one again
@pytest.mark.parametrize("with_start", [False, True])
@pytest.mark.parametrize("is_mutual", [False, True])
def test_matching_follows_the_reference(size, radius, with_start, is_mutual):
    import cupy

    pictures = np.stack([person(size), shifted(person(size), 4.3)])
    start = np.full((2, *size), 3.5, np.float32) if with_start else None
    expected, misfit = match_eyes(
        pictures, bent(size), STEPS, radius=radius, start=start, is_mutual=is_mutual
    )
    found, misfit_there = match_eyes(
        cupy.asarray(pictures),
        cupy.asarray(bent(size)),
        STEPS,
        radius=radius,
        start=None if start is None else cupy.asarray(start),
        is_mutual=is_mutual,
    )
    # OpenCV interpolates at 1/32 of a sample.
    assert np.abs(misfit_there.get() - misfit).max() < 5e-3
    person_there = pictures[:, 3] > 0.9
    assert np.quantile(np.abs(found.get() - expected)[person_there], 0.99) < 0.1


@pytest.mark.cuda
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("times", [2, 1.6])
def test_disparities_of_fewer_samples_follow_the_reference(size, times):
    import cupy

    pictures = np.stack([person(size), shifted(person(size), 4.3)])
    smaller = round(size[0] / times), round(size[1] / times)
    start, steps = np.full((2, *smaller), 4, np.float32), [-0.5, -0.25, 0, 0.25, 0.5]
    expected, misfit = match_eyes(pictures, bent(size), steps, radius=4, start=start, size=smaller)
    there = map(cupy.asarray, (pictures, bent(size)))
    found, misfit_there = match_eyes(*there, steps, radius=4, start=cupy.asarray(start), size=smaller)
    assert np.abs(misfit_there.get() - misfit).max() < 5e-3
    person_there = resized(np.ascontiguousarray(pictures[:, 3:]), smaller)[:, 0] > 0.9
    assert np.quantile(np.abs(found.get() - expected)[person_there], 0.99) < 0.1


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(1, 1), (5, 300), (90, 70)])
@pytest.mark.parametrize("radius", [1, 3, 10])
def test_where_nobody_is_the_first_step_fits(size, radius):
    import cupy

    random = np.random.default_rng(8)
    pictures = random.random((4, 4, *size), np.float32)
    pictures[:, 3] = 0
    start = random.random((4, *size), np.float32)
    there = map(cupy.asarray, (pictures, bent(size)))
    found, misfit = match_eyes(*there, STEPS, radius=radius, start=cupy.asarray(start))
    np.testing.assert_allclose(found.get(), start + STEPS[0], rtol=1e-6)
    assert not misfit.any()


@pytest.mark.cuda
def test_of_two_things_that_look_alike_each_gets_its_own_there_too():
    import cupy

    pictures = two_alike()
    there = map(cupy.asarray, (pictures, flat_curves()))
    found, _ = match_eyes(*there, FAR_STEPS, radius=3, is_mutual=True)
    for things in np.s_[0, 12:28, 52:55], np.s_[0, 12:28, 35:38], np.s_[1, 12:28, 31:34]:
        assert np.abs(found.get()[things] - 4).max() < 1


@pytest.mark.cuda
@pytest.mark.parametrize("size", [*SIZES, (3, 2)])
def test_the_middle_is_that_of_the_reference(size):
    import cupy

    disparity = np.random.default_rng(6).normal(size=(4, *size)).astype(np.float32).round(1)  # some equal
    np.testing.assert_array_equal(
        middle_disparity(cupy.asarray(disparity)).get(), middle_disparity(disparity)
    )


@pytest.mark.cuda
@pytest.mark.parametrize("size", [*SIZES, (9, 12)])
def test_smoothing_follows_the_reference(size):
    import cupy

    disparity = noisy_step(size)
    smooth = smooth_disparity(cupy.asarray(disparity), sigma=0.5)
    np.testing.assert_allclose(smooth.get(), smooth_disparity(disparity, sigma=0.5), atol=2e-3)
    spaced = smooth_disparity(cupy.asarray(disparity), sigma=0.5, spacing=3)
    np.testing.assert_allclose(spaced.get(), smooth_disparity(disparity, sigma=0.5, spacing=3), atol=2e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [1, 2])
def test_blending_follows_the_reference(size, scale):
    import cupy

    random = np.random.default_rng(3)
    full_size = (size[0] * scale, size[1] * scale)
    planes = np.stack([person(full_size), shifted(person(full_size), 4.3 * scale)])
    pictures = np.stack([person(size), shifted(person(size), 4.3)])
    pictures[1, :3] += 0.05 * random.random((3, *size), np.float32)  # with all degrees of trust
    disparity = np.full((2, *size), 4.3, np.float32)
    disparity[1, :, : size[1] // 3] = 9
    shown = (random.random((2, *size)) > 0.2).astype(np.float32)
    expected = blend_eyes(planes, pictures, disparity, bent(size), shown, tolerance=1)
    blended = blend_eyes(*map(cupy.asarray, (planes, pictures, disparity, bent(size), shown)), tolerance=1)
    assert np.quantile(np.abs(blended.get() - expected), 0.999) < 0.03
    assert np.abs(blended.get() - expected).mean() < 1e-3


@pytest.mark.cuda
def test_mattes_that_differ_are_blended_as_the_reference_does():
    import cupy

    random = np.random.default_rng(5)
    smooth = [cv2.GaussianBlur(plane, (0, 0), 2) for plane in random.random((4, *SIZE), np.float32)]
    planes = np.stack([smooth[:2], smooth[2:]])
    pictures = np.stack([person(), shifted(person(), 4)])
    pictures[1, :3] += 0.04 * random.random((3, *SIZE), np.float32)
    disparity, shown = np.full((2, *SIZE), 4, np.float32), np.ones((2, *SIZE), np.float32)
    given = planes, pictures, disparity, bent(SIZE), shown
    expected, blended = blend_eyes(*given, tolerance=1), blend_eyes(*map(cupy.asarray, given), tolerance=1)
    assert np.abs(expected - planes).mean() > 0.01
    # Interpolation at 1/32 of a sample changes colors, and with them the trust.
    np.testing.assert_allclose(blended.get(), expected, atol=0.03)
    assert np.abs(blended.get() - expected).mean() < 1e-3


@pytest.mark.cuda
@pytest.mark.parametrize("radius", [3, 6])
@pytest.mark.parametrize("size", SIZES)
def test_frames_together_follow_the_reference(size, radius):
    import cupy

    pictures = two_frames(size)
    expected, misfit = match_eyes(pictures, bent(size), STEPS, radius=radius, is_mutual=True)
    found, misfit_there = match_eyes(
        cupy.asarray(pictures), cupy.asarray(bent(size)), STEPS, radius=radius, is_mutual=True
    )
    assert np.abs(misfit_there.get() - misfit).max() < 5e-3
    person_there = pictures[:, 3] > 0.9
    assert np.quantile(np.abs(found.get() - expected)[person_there], 0.99) < 0.1
    planes, shown = pictures[:, 3:].copy(), np.ones((4, *size), np.float32)
    given = planes, pictures, expected, bent(size), shown
    blended = blend_eyes(*map(cupy.asarray, given), tolerance=1).get()
    assert np.quantile(np.abs(blended - blend_eyes(*given, tolerance=1)), 0.999) < 0.03


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("stereo_match.cu"))
def test_the_source_compiles(tmp_path, architecture):
    kernels = ["cost_of_steps", "best_step", "middle_disparity", "smooth_disparity"]
    kernels += ["moves_between_eyes", "believe_colors", "blend_eyes"]
    assert_compiles(tmp_path, "stereo_match.cu", architecture, kernels)
