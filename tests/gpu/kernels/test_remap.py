from __future__ import annotations

import numpy as np
import pytest

from pictures import ODD_SIZES, random_frame, solid_frame, strided
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels import cuda_module
from vitascope.gpu.kernels import remap as remap_module
from vitascope.gpu.kernels.region import Region, cut
from vitascope.gpu.kernels.remap import map_shape, remap, remap_eyes, remap_stack


def identity(size):
    y, x = np.mgrid[0 : size[0], 0 : size[1]].astype(np.float32)
    return x, y


def noise(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "u":
        return rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    return rng.uniform(0, 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (9, 6, 1), (9, 6, 2), (9, 6, 3), (9, 6, 4)])
@pytest.mark.parametrize("interpolation", ["nearest", "linear", "cubic"])
def test_the_identity_changes_nothing(dtype, shape, interpolation):
    plane = noise(shape, dtype)
    same = remap(plane, *identity(shape[:2]), interpolation=interpolation)
    assert same.dtype == dtype
    np.testing.assert_array_equal(same, plane)


def test_linear_is_the_closed_form():
    plane = noise((40, 50), np.float32)
    rng = np.random.default_rng(1)
    # Multiples of 1/32, OpenCV's interpolation step.
    x, y = (rng.integers(0, 32 * (n - 1), (30, 20)).astype(np.float32) / 32 for n in (50, 40))
    x0, y0 = x.astype(int), y.astype(int)
    fx, fy = x - x0, y - y0
    x1, y1 = np.minimum(x0 + 1, 49), np.minimum(y0 + 1, 39)
    expected = (plane[y0, x0] * (1 - fx) + plane[y0, x1] * fx) * (1 - fy)
    expected += (plane[y1, x0] * (1 - fx) + plane[y1, x1] * fx) * fy
    np.testing.assert_allclose(remap(plane, x, y), expected, atol=1e-5)


def test_what_lies_outside():
    plane = np.array([[10, 20], [30, 40]], np.uint8)
    x = np.array([[-3, 0, 5]], np.float32)
    y = np.array([[-3, 9, 1]], np.float32)
    np.testing.assert_array_equal(remap(plane, x, y), [[10, 30, 40]])
    np.testing.assert_array_equal(remap(plane, x, y, border="constant"), [[0, 0, 0]])
    half_out = remap(plane, np.array([[-0.5]], np.float32), np.array([[0]], np.float32), border="constant")
    assert half_out[0, 0] == 5


@pytest.mark.parametrize("name", ["yuv420p", "yuv444p10le", "nv12", "p010le"])
@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
def test_outside_a_frame_is_black_and_codes_stay_codes(name, interpolation):
    fmt = PIXEL_FORMATS[name]
    frame = strided(random_frame(fmt, (18, 24)))
    x, y = identity((18, 24))
    moved = remap(frame, x + np.float32(0.3), y, interpolation=interpolation, border="constant")
    assert moved.format is fmt
    word = 1 << fmt.sample_shift
    for plane in moved.planes:
        assert not (plane % word).any()
        assert plane.max() <= ((1 << fmt.bit_depth) - 1) * word
    away = remap(frame, x + 100, y, border="constant")
    black = solid_frame(fmt, (18, 24), (0, 0, 0))
    for plane, expected in zip(away.planes, black.planes, strict=True):
        np.testing.assert_array_equal(plane, expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_stack_is_its_planes_weighed_and_added(dtype):
    rng = np.random.default_rng(0)
    planes = rng.random((7, 9, 13)).astype(dtype)
    map_x, map_y = (rng.uniform(-2, 14, (5, 7)).astype(np.float32) for _ in range(2))
    weight = rng.random((5, 7)).astype(np.float32)
    alone = np.stack([remap(plane, map_x, map_y) for plane in planes])
    np.testing.assert_allclose(remap_stack(planes, map_x, map_y), alone, atol=1e-3)
    total = np.ones((7, 5, 7), dtype)
    assert remap_stack(planes, map_x, map_y, weight=weight, add_to=total) is total
    np.testing.assert_allclose(total, 1 + alone * weight, atol=3e-3)
    assert remap_stack(planes, map_x, map_y, weight=weight, out=total) is total
    np.testing.assert_allclose(total, alone * weight, atol=3e-3)
    with pytest.raises(ValueError, match="expected float16"):
        remap_stack(planes, map_x, map_y, add_to=total, out=total)


def test_a_stack_that_does_not_fit_is_refused():
    place = np.zeros((2, 2), np.float32)
    for planes in (np.zeros((3, 3), np.float32), np.zeros((1, 3, 3), np.uint8)):
        with pytest.raises(ValueError, match="float16 or float32"):
            remap_stack(planes, place, place)
    with pytest.raises(ValueError, match="for \\(1, 2, 2\\)"):
        remap_stack(np.zeros((1, 3, 3), np.float32), place, place, add_to=np.zeros((1, 3, 3), np.float32))


@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize("name", ["nv12", "yuv420p", "yuv422p"])
def test_chroma_comes_from_where_its_luma_does(location, name):
    """Check shifts by whole blocks, and by one sample, which moves a chroma ramp by half a chroma step."""
    fmt = PIXEL_FORMATS[name]
    frame = random_frame(fmt, (16, 32), color=ColorSpec(chroma_location=location))
    x, y = identity((16, 32))
    moved = remap(frame, x + 4, y + 2)
    np.testing.assert_array_equal(moved.planes[0][:-2, :-4], frame.planes[0][2:, 4:])
    rows = 1 if fmt.chroma_shift_y else 2
    np.testing.assert_array_equal(moved.planes[1][:-rows, :-2], frame.planes[1][rows:, 2:])
    columns = np.arange(16, dtype=np.uint8).reshape(16, *(1,) * (frame.planes[1].ndim - 2)) * 8
    ramp = np.broadcast_to(columns, frame.planes[1].shape)
    sloped = frame.with_planes((frame.planes[0], *(ramp.copy() for _ in frame.planes[1:])))
    by_one = remap(sloped, x + 1, y)
    np.testing.assert_array_equal(by_one.planes[1][:, 1:-2], ramp[:, 1:-2] + 4)


@pytest.mark.parametrize("scale", [2, 3, 8])
@pytest.mark.parametrize("size", [(1, 1), (17, 31), (40, 64)])
def test_a_coarse_map_of_a_straight_motion_is_as_good_as_a_fine_one(scale, size):
    picture = np.add.outer(np.arange(80), 2 * np.arange(80)).astype(np.float32)

    def place(shape, step):
        y, x = np.mgrid[0 : shape[0], 0 : shape[1]].astype(np.float32) * step
        return 3 + 0.75 * x + 0.25 * y, 5 + 0.5 * y

    fine = remap(picture, *place(size, 1))
    coarse = remap(picture, *place(map_shape(size, scale), scale), map_scale=scale, size=size)
    np.testing.assert_allclose(coarse, fine, atol=0.1)  # 1/32 of a sample


@pytest.mark.parametrize("size", ODD_SIZES)
def test_a_frame_with_a_coarse_map(size):
    frame = random_frame(PIXEL_FORMATS["nv12"], size)
    x, y = (places * 4 for places in identity(map_shape(size, 4)))
    same = remap(frame, x, y, map_scale=4, size=size)
    np.testing.assert_array_equal(same.planes[0], frame.planes[0])
    assert same.planes[1].shape == frame.planes[1].shape


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"map_x": np.zeros((4, 5), np.float32)}, "maps are"),
        ({"map_x": np.zeros((4, 4))}, "maps are"),
        ({"map_scale": 0}, "at least 1"),
        ({"map_scale": 2}, "give size"),
        ({"map_scale": 2, "size": (8, 8)}, "needs"),
        ({"picture": np.zeros((4, 4), np.int32)}, "plane is"),
        ({"picture": np.zeros((4, 4, 5), np.uint8)}, "plane is"),
    ],
)
def test_what_does_not_fit_is_refused(change, complaint):
    arguments = {"picture": np.zeros((4, 4), np.uint8), "map_x": np.zeros((4, 4), np.float32)}
    arguments |= {"map_y": np.zeros((4, 4), np.float32), **change}
    with pytest.raises(ValueError, match=complaint):
        remap(**arguments)


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "p010le", "yuv444p"])
@pytest.mark.parametrize("count", [1, 2])
def test_eyes_are_read_by_the_same_maps(name, count):
    frame = random_frame(PIXEL_FORMATS[name], (20, 48))
    eyes = [cut(frame, Region(24 * number, 0, 24, 20)) for number in range(count)]
    y, x = np.mgrid[0:14, 0:30].astype(np.float32)
    x, y = x * 0.75 - 2, y * 1.5 - 1
    made = remap_eyes(eyes, x, y, border="constant")
    assert (made.height, made.width) == (14, 30 * count)
    for number, eye in enumerate(eyes):
        alone = remap(eye, x, y, border="constant")
        shown = cut(made, Region(30 * number, 0, 30, 14))
        for ours, wanted in zip(shown.planes, alone.planes, strict=True):
            np.testing.assert_array_equal(ours, wanted)


def test_eyes_that_differ_are_refused():
    frame = random_frame(PIXEL_FORMATS["nv12"], (8, 16))
    place = np.zeros((8, 8), np.float32)
    for eyes, maps in (
        ([], place),
        ([frame, cut(frame, Region(0, 0, 8, 8))], place),
        ([frame] * 3, place),
        ([frame] * 2, place[:, :7]),
    ):
        with pytest.raises(ValueError, match="one or two alike"):
            remap_eyes(eyes, maps, maps)


def test_a_frame_of_a_gpu_is_waited_for_where_maps_are_coarse(monkeypatch):
    frame = random_frame(PIXEL_FORMATS["nv12"], (8, 8))
    waited = []
    monkeypatch.setattr(remap_module, "is_on_gpu", lambda plane: True)
    monkeypatch.setattr(remap_module, "_remap_plane", lambda plane, *_: plane)
    monkeypatch.setattr(cuda_module, "wait_until_ready", waited.append)
    place = np.zeros(remap_module.map_shape((8, 8), 2), np.float32)
    remap(frame, place, place, map_scale=2, size=(8, 8))
    assert waited == [frame]
