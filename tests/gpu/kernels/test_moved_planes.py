"""Tests of planes moved by affine maps: properties of the reference, and the kernel against it."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.moved_planes import moved


def planes(shape=(3, 4, 45, 70), seed=0):
    """Make smooth planes, which depend little on where exactly they are read."""
    count, channels, height, width = shape
    coarse = np.random.default_rng(seed).random((count * channels, 5, 7), np.float32)
    large = [cv2.resize(each, (width, height), interpolation=cv2.INTER_CUBIC) for each in coarse]
    return np.stack(large).reshape(shape)


def turns(count, seed=0):
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        angle, scale = random.uniform(-0.2, 0.2), random.uniform(0.8, 1.25)
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        made.append([[cos, -sin, random.uniform(-6, 6)], [sin, cos, random.uniform(-6, 6)]])
    return np.array(made)


@given(down=st.integers(-9, 9), right=st.integers(-9, 9), beyond=st.sampled_from([None, 0.0, 1.0]))
def test_whole_shifts_are_shifts(down, right, beyond):
    whole = planes((2, 2, 12, 15))
    move = np.tile([[1.0, 0, right], [0, 1, down]], (2, 1, 1))
    border = {"mode": "edge"} if beyond is None else {"constant_values": beyond}
    wide = np.pad(whole, ((0, 0), (0, 0), (9, 9), (9, 9)), **border)
    expected = wide[..., 9 - down : 21 - down, 9 - right : 24 - right]
    np.testing.assert_allclose(moved(whole, move, beyond=beyond), expected, atol=1e-6)
    expected = wide[..., 9 + down : 21 + down, 9 + right : 24 + right]
    np.testing.assert_allclose(moved(whole, move, is_back=True, beyond=beyond), expected, atol=1e-6)


def test_what_is_moved_comes_back():
    whole, moves = planes(), turns(3)
    again = moved(moved(whole, moves), moves, is_back=True)
    seen = moved(moved(np.ones_like(whole), moves, beyond=0), moves, is_back=True, beyond=0) > 0.999
    assert seen.mean() > 0.4
    assert np.abs(again - whole)[seen].max() < 0.02


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1)])
def test_small_planes(size):
    whole = planes((2, 3, *size))
    np.testing.assert_allclose(moved(whole, np.tile(np.eye(3)[:2], (2, 1, 1))), whole, atol=1e-6)
    assert moved(whole[:0], np.zeros((0, 2, 3))).shape == (0, 3, *size)


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(45, 70), (1, 1), (1, 9), (33, 8), (135, 240)])
@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("beyond", [None, 0.0, 1.0])
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_kernel_follows_the_reference(size, is_back, beyond, is_whole):
    import cupy

    whole, moves = planes((4, 3, *size)), turns(4)
    moves[0] = np.eye(3)[:2]
    moves[1, :, 2] += 1e6  # far outside
    there = cupy.asarray(whole)
    if not is_whole:  # a part of larger planes
        there = cupy.pad(there, ((0, 0), (0, 0), (2, 1), (3, 5)))[:, :, 2:-1, 3:-5]
    expected = moved(whole, moves, is_back=is_back, beyond=beyond)
    made = moved(there, moves, is_back=is_back, beyond=beyond)
    assert made.dtype == np.float32
    # OpenCV interpolates at 1/32 of a sample; at the outside, that is 1/32 of the step.
    np.testing.assert_allclose(made.get(), expected, atol=0.05)
    assert np.abs(made.get() - expected).mean() < 2e-3
    assert moved(there[:0], moves[:0]).shape == (0, 3, *size)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("moved_planes.cu"))
def test_the_source_compiles(tmp_path, architecture):
    assert_compiles(tmp_path, "moved_planes.cu", architecture, ["moved"])
