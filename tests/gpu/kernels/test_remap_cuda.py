"""Tests of the remapping kernel against OpenCV, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_cpu, frame_on_gpu, plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.region import Region, cut
from vitascope.gpu.kernels.remap import map_shape, remap, remap_eyes, remap_stack

SHAPES = [(1, 1), (1, 7), (5, 1), (17, 31), (64, 48, 1), (33, 66, 2), (40, 30, 3), (21, 35, 4)]


def noise(shape, dtype):
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "u":
        return rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    return rng.uniform(0, 1, shape).astype(dtype)


def maps(size, source, *, parts):
    """Make places inside and outside, in multiples of 1 / ``parts``; for ``nearest`` they are never ties."""
    rng = np.random.default_rng(1)

    def axis(length):
        whole = rng.integers(-6, length + 6, size)
        return (whole + rng.integers(0, parts, size) / parts).astype(np.float32)

    return axis(source[1]), axis(source[0])


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("border", ["replicate", "constant"])
@pytest.mark.parametrize("pad", [0, 3])
def test_a_plane_agrees_with_opencv(dtype, shape, interpolation, border, pad):
    plane = noise(shape, dtype)
    # Thirds round the same way everywhere; OpenCV's tables are exact at 1/32.
    x, y = maps((37, 70), shape, parts=3 if interpolation == "nearest" else 32)
    expected = remap(plane, x, y, interpolation=interpolation, border=border)
    on_gpu = (plane_on_gpu(array, pad=pad) for array in (plane, x, y))
    actual = remap(*on_gpu, interpolation=interpolation, border=border).get()
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    tolerance = {np.uint8: 1, np.uint16: 1, np.float16: 2e-3, np.float32: 1e-4}[dtype]
    assert np.abs(actual.astype(np.float64) - expected).max() <= tolerance


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize("border", ["replicate", "constant"])
@pytest.mark.parametrize("pad", [0, 3])
def test_a_frame_agrees_with_the_reference(name, location, border, pad):
    frame = random_frame(PIXEL_FORMATS[name], (34, 62), color=ColorSpec(chroma_location=location))
    for size in ((1, 1), (1, 8), (9, 1), (17, 31), (40, 64)):
        # 1/16 of a luma sample is 1/32 of a chroma sample; between two sites it is halved, and halved again.
        y, x = np.mgrid[0 : size[0], 0 : size[1]].astype(np.float32)
        x, y = x * 0.5 - 3 + y / 4, y * 1.5 - 2
        expected = remap(frame, x, y, border=border)
        moved = remap(
            frame_on_gpu(frame, pad=pad), plane_on_gpu(x, pad=pad), plane_on_gpu(y, pad=pad), border=border
        )
        actual = frame_on_cpu(moved)
        word = 1 << frame.format.sample_shift
        assert actual.format is expected.format
        for made, plane in zip(actual.planes, expected.planes, strict=True):
            assert not (made % word).any()
            assert np.abs(made.astype(int) - plane).max() <= word, size


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("size", [(1, 2), (17, 30), (40, 64)])
def test_eyes_are_read_by_the_same_maps(name, size):
    frame = random_frame(PIXEL_FORMATS[name], (34, 64))
    regions = [Region(0, 0, 32, 34), Region(32, 0, 32, 34)]
    y, x = np.mgrid[0 : size[0], 0 : size[1]].astype(np.float32)
    x, y = x * 0.5 - 3 + y / 4, y * 1.5 - 2
    expected = remap_eyes([cut(frame, region) for region in regions], x, y, border="constant")
    on_gpu = frame_on_gpu(frame)
    eyes = [cut(on_gpu, region) for region in regions]
    actual = frame_on_cpu(remap_eyes(eyes, plane_on_gpu(x), plane_on_gpu(y), border="constant"))
    word = 1 << frame.format.sample_shift
    for made, plane in zip(actual.planes, expected.planes, strict=True):
        assert np.abs(made.astype(int) - plane).max() <= word
    one = frame_on_cpu(remap_eyes(eyes[1:], plane_on_gpu(x), plane_on_gpu(y), border="constant"))
    for made, both in zip(one.planes, actual.planes, strict=True):
        np.testing.assert_array_equal(made, both[:, made.shape[1] :])


@pytest.mark.cuda
@pytest.mark.parametrize("scale", [2, 3, 8])
@pytest.mark.parametrize("size", [(1, 1), (17, 31), (100, 130)])
def test_coarse_maps_are_read_alike(scale, size):
    picture = np.add.outer(np.arange(180), 2 * np.arange(180)).astype(np.float32)
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0, 179, map_shape(size, scale)).astype(np.float32) for _ in range(2))
    expected = remap(picture, x, y, map_scale=scale, size=size)
    actual = remap(plane_on_gpu(picture), plane_on_gpu(x), plane_on_gpu(y), map_scale=scale, size=size).get()
    # The picture is a plane of slope (1, 2); OpenCV's rounding costs 1/64 of a sample in each direction.
    np.testing.assert_allclose(actual, expected, atol=0.06)


@pytest.mark.cuda
def test_between_samples_the_gpu_is_exact():
    plane = noise((50, 60), np.float32)
    rng = np.random.default_rng(2)
    x, y = (rng.uniform(0, n - 1.01, (40, 40)).astype(np.float32) for n in (60, 50))
    x0, y0 = x.astype(int), y.astype(int)
    fx, fy = (x - x0).astype(np.float64), (y - y0).astype(np.float64)
    expected = (plane[y0, x0] * (1 - fx) + plane[y0, x0 + 1] * fx) * (1 - fy)
    expected += (plane[y0 + 1, x0] * (1 - fx) + plane[y0 + 1, x0 + 1] * fx) * fy
    actual = remap(*(plane_on_gpu(array) for array in (plane, x, y))).get()
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.cuda
def test_places_that_are_no_numbers_are_outside():
    plane = plane_on_gpu(noise((8, 8), np.uint8))
    wild = np.array([[np.nan, np.inf, -np.inf, 1e30]], np.float32)
    moved = remap(plane, plane_on_gpu(wild), plane_on_gpu(wild), border="constant").get()
    assert not moved.any()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(("count", "size"), [(1, (1, 1)), (3, (17, 31)), (8, (64, 48))])
@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_a_stack_agrees_with_opencv(dtype, count, size, weighs, adds):
    import cupy

    planes = noise((count, *size), dtype)
    map_x, map_y = maps((23, 37), size, parts=32)
    weight = noise((23, 37), np.float32) if weighs else None
    before = noise((count, 23, 37), dtype) if adds else None
    on_gpu = {
        "weight": None if weight is None else plane_on_gpu(weight, pad=3),
        "add_to": None if before is None else cupy.asarray(before),
    }
    got = remap_stack(cupy.asarray(planes), plane_on_gpu(map_x, pad=3), plane_on_gpu(map_y), **on_gpu)
    expected = remap_stack(planes, map_x, map_y, weight=weight, add_to=before)
    assert got.dtype == dtype
    assert not adds or got is on_gpu["add_to"]
    np.testing.assert_allclose(got.get(), expected, atol=1e-4 if dtype == np.float32 else 2e-3)


@pytest.mark.cuda
def test_a_stack_may_take_the_place_of_another():
    import cupy

    planes = noise((3, 17, 31), np.float32)
    map_x, map_y = maps((23, 37), (17, 31), parts=32)
    out = cupy.ones((3, 23, 37), "float32")
    assert remap_stack(cupy.asarray(planes), plane_on_gpu(map_x), plane_on_gpu(map_y), out=out) is out
    np.testing.assert_allclose(out.get(), remap_stack(planes, map_x, map_y), atol=1e-4)


@pytest.mark.cuda
def test_samples_of_eyes_may_lie_apart():
    """Check such samples, which are first copied, each eye into its own memory."""
    frame = random_frame(PIXEL_FORMATS["nv12"], (34, 64))
    regions = [Region(0, 0, 32, 34), Region(32, 0, 32, 34)]
    y, x = np.mgrid[0:34, 0:32].astype(np.float32)
    expected = remap_eyes([cut(frame, region) for region in regions], x, y)
    apart = frame_on_gpu(frame)
    apart = apart.with_planes(tuple(plane.repeat(2, axis=1)[:, ::2] for plane in apart.planes))
    eyes = [cut(apart, region) for region in regions]
    actual = frame_on_cpu(remap_eyes(eyes, plane_on_gpu(x), plane_on_gpu(y)))
    for made, plane in zip(actual.planes, expected.planes, strict=True):
        np.testing.assert_array_equal(made, plane)


@pytest.mark.cuda
def test_planes_of_a_stack_may_lie_apart():
    import cupy

    planes = noise((5, 4, 17, 31), np.float32)
    map_x, map_y = maps((23, 37), (17, 31), parts=32)
    on_gpu = cupy.asarray(planes)
    for apart, there in ((planes[:, -1], on_gpu[:, -1]), (planes[::-2, 1], on_gpu[::-2, 1])):
        got = remap_stack(there, plane_on_gpu(map_x), plane_on_gpu(map_y)).get()
        np.testing.assert_allclose(got, remap_stack(apart, map_x, map_y), atol=1e-4)


@pytest.mark.cuda
def test_planar_frames_are_refused_on_the_gpu():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p"], (8, 8)))
    place = plane_on_gpu(np.zeros((8, 8), np.float32))
    with pytest.raises(ValueError, match="NV12 and P010"):
        remap(frame, place, place)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("remap.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = variants(
        "SAMPLE PEAK STEP CHANNELS INTERPOLATION REPLICATE COARSE PAIRS FRAMES",
        ("unsigned char", 255, 1, 1, 0, 1, 0, 0, 1),
        ("unsigned char", 255, 1, 2, 1, 1, 1, 1, 2),
        ("unsigned short", 1023, 64, 2, 1, 0, 0, 1, 2),
        ("float", 0, 1, 4, 2, 1, 1, 0, 1),
        ("__half", 0, 1, 3, 2, 0, 0, 0, 1),
    )
    assert_compiles(tmp_path, "remap.cu", architecture, ["remap", "remap_frames", "remap_stack"], several)
