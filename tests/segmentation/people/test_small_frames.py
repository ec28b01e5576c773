"""Tests of the small frames in which people are followed."""

import numpy as np
import pytest

from vitascope.segmentation.people.small_frames import SmallFrames


def picture(shift=0, size=(90, 320), seed=1):
    """Draw blobs, shifted to the right: float32 [3, H, W]."""
    blobs = np.random.default_rng(seed).random((3, size[0] // 10, size[1] // 10), np.float32)
    return np.roll(np.kron(blobs, np.ones((1, 10, 10), np.float32)), shift, axis=2)


def follow(frames, *shifts, eyes=1, size=(90, 320)):
    made = []
    for n, shift in enumerate(shifts):
        rgb = np.stack([picture(shift + 8 * eye, size) for eye in range(eyes)])
        made.append(frames.next(n, rgb, np.ones((eyes, *size), np.float32), n == 0))
    return made


def test_a_frame_is_drawn_small_and_knows_how_it_moved():
    (first, _), (second, eye) = follow(SmallFrames(), 0, 6)
    assert first.rgb.shape == (45, 160, 3)
    assert first.pixels_a_cell == 2
    assert first.starts_shot and first.before is None
    columns = np.arange(160)[None, 20:140]
    moved = second.before[10:35, 20:140, 0] - columns
    assert np.median(moved) == pytest.approx(-3, abs=0.5)  # six pixels are three cells
    np.testing.assert_array_equal(eye, np.rint(picture(6).transpose(1, 2, 0) * 255))


def test_the_other_eye_is_found_in_the_first_and_not_kept():
    ((frame, eye),) = follow(SmallFrames(), 0, eyes=2)
    moved = frame.other[10:35, 20:140, 0] - np.arange(160)[None, 20:140]
    assert np.median(moved) == pytest.approx(-4, abs=0.5)
    assert eye.base is None


def test_a_frame_of_another_size_begins_anew():
    frames = SmallFrames()
    follow(frames, 0)
    rgb, alpha = picture(size=(160, 160))[None], np.ones((1, 160, 160), np.float32)
    frame, _ = frames.next(1, rgb, alpha, False)
    assert frame.starts_shot and frame.before is None
    assert frame.rgb.shape == (160, 160, 3)
