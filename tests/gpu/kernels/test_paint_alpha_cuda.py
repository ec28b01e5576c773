"""Tests of painting alpha on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_cpu, frame_on_gpu, plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.paint_alpha import PaintedPart, paint_alpha
from vitascope.gpu.kernels.region import Region

# Picture sizes, and parts (number, from (y, x), to (y, x), size (h, w)) that neither share nor touch chroma
# samples.
CASES = [
    ((2, 2), [(0, (0, 0), (0, 0), (2, 2))]),
    ((2, 14), [(1, (1, 0), (1, 1), (1, 3)), (0, (0, 2), (0, 8), (2, 6))]),
    ((6, 2), [(0, (3, 1), (3, 0), (3, 2))]),
    ((34, 62), [(0, (0, 0), (0, 0), (9, 20)), (1, (2, 3), (21, 32), (13, 29)), (1, (0, 0), (17, 3), (1, 1))]),
    ((18, 1300), [(1, (3, 0), (5, 7), (13, 1293))]),
]


def parts_of(placed):
    return [
        PaintedPart(
            number, Region(source[1], source[0], *size[::-1]), Region(target[1], target[0], *size[::-1])
        )
        for number, source, target, size in placed
    ]


def some_alpha(seed=0):
    """Make two alphas, and a mask of where they apply: three quarters of their samples."""
    rng = np.random.default_rng(seed)
    alpha = rng.random((2, 20, 1300), np.float32)
    alpha.reshape(-1)[[0, -1]] = 0, 1
    return alpha, rng.random(alpha.shape[1:]) < 0.75


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("color", ["red", "grey"])
@pytest.mark.parametrize("pad", [0, 3])
def test_the_gpu_agrees_with_the_reference(name, location, full_range, color, pad):
    spec = ColorSpec("bt709", full_range, chroma_location=location)
    alpha, inside = some_alpha()
    alphas_on_gpu = plane_on_gpu(alpha.reshape(40, 1300), pad=pad).reshape(2, 20, 1300)
    for size, placed in CASES:
        frame = random_frame(PIXEL_FORMATS[name], size, color=spec)
        mine, theirs = frame_on_gpu(frame, pad=pad), frame.with_planes(tuple(map(np.copy, frame.planes)))
        paint_alpha(theirs, alpha, inside, parts_of(placed), color=color)
        paint_alpha(mine, alphas_on_gpu, plane_on_gpu(inside, pad=pad), parts_of(placed), color=color)
        step = 1 << frame.format.sample_shift
        for slot, (got, wanted) in enumerate(zip(frame_on_cpu(mine).planes, theirs.planes, strict=True)):
            off = np.abs(got.astype(int) - wanted.astype(int))
            assert off.max() <= (0 if slot else step), (size, slot)
            assert (off > 0).mean() < 0.01


@pytest.mark.cuda
def test_a_planar_frame_on_the_gpu_is_refused():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p"], (4, 4)))
    with pytest.raises(ValueError, match="NV12 and P010"):
        paint_alpha(frame, *map(plane_on_gpu, some_alpha()), [], color="red")


@pytest.mark.parametrize(
    "placed",
    [
        [(0, (0, 0), (0, 0), (5, 4))],  # taller than the picture
        [(0, (0, 0), (0, 3), (2, 4))],
        [(2, (0, 0), (0, 0), (2, 2))],  # there are only two alphas
        [(0, (19, 0), (0, 0), (2, 2))],
    ],
)
def test_parts_that_do_not_fit_are_refused(placed):
    frame = random_frame(PIXEL_FORMATS["nv12"], (4, 6))
    with pytest.raises(ValueError, match="is not inside"):
        paint_alpha(frame, *some_alpha(), parts_of(placed), color="red")


def test_sizes_that_do_not_fit_are_refused():
    odd = random_frame(PIXEL_FORMATS["nv12"], (5, 6))
    alpha, inside = some_alpha()
    with pytest.raises(ValueError, match="whole chroma samples"):
        paint_alpha(odd, alpha, inside, [], color="red")
    with pytest.raises(ValueError, match="inside is"):
        paint_alpha(random_frame(PIXEL_FORMATS["nv12"], (4, 6)), alpha, inside[1:], [], color="red")


@pytest.mark.parametrize("name", ["nv12", "yuv420p10le", "yuv444p"])
def test_what_is_not_painted_stays_as_it_is(name):
    """Check samples outside the parts, and those inside where the alphas do not apply."""
    frame = random_frame(PIXEL_FORMATS[name], (34, 62))
    before = [plane.copy() for plane in frame.planes]
    alpha, inside = some_alpha()
    paint_alpha(frame, alpha, np.zeros_like(inside), parts_of(CASES[3][1]), color="red")
    for plane, old in zip(frame.planes, before, strict=True):
        np.testing.assert_array_equal(plane, old)
    paint_alpha(frame, alpha, inside, parts_of([(0, (1, 2), (13, 31), (6, 5))]), color="red")
    changed = np.argwhere(frame.planes[0] != before[0])
    assert len(changed)
    assert inside[tuple((changed - (12, 29)).T)].all()
    assert changed.min(0).tolist() >= [13, 31]
    assert (changed.max(0) <= (18, 35)).all()


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("paint_alpha.cu"))
def test_the_source_compiles(tmp_path, architecture):
    several = variants(
        "SAMPLE COSITED_X COSITED_Y",
        ("unsigned char", 1, 0),
        ("unsigned short", 0, 0),
        ("unsigned char", 1, 1),
    )
    assert_compiles(tmp_path, "paint_alpha.cu", architecture, ["paint_alpha"], several)
