"""Tests of the composite kernel on the CPU against the references: arithmetic, indexing, exchange between lanes."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
from composite_on_host import HostKernels, stand_in

from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels import composite_launch as composite_cuda
from vitascope.gpu.kernels.composite import render
from vitascope.gpu.kernels.composite_launch import LaunchPlans, MatteOnly, OnColor, OnFrame, Tint
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

KEY = (120, 255, 155)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return HostKernels(tmp_path_factory.mktemp("composite"))


@pytest.fixture
def cupy(monkeypatch, kernels):
    module = stand_in()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(composite_cuda, "cuda_kernel", kernels)
    monkeypatch.setattr(composite_cuda, "multiprocessors", lambda: 4)
    monkeypatch.setattr(composite_cuda, "current_device", lambda: 0)
    monkeypatch.setattr(composite_cuda, "_PLANS", LaunchPlans())
    return module


def picture(name, size, location="left", seed=0):
    return random_frame(PIXEL_FORMATS[name], size, color=ColorSpec(chroma_location=location), seed=seed)


def coefficients(size, *, steep, seed=3):
    """Make gain and offset float32 [1, 4, h, w], with alpha partial nearly everywhere, or hardly anywhere."""
    rng = np.random.default_rng(seed)
    gain, offset = rng.uniform(-1, 1, (1, 4, *size)), rng.uniform(0, 1, (1, 4, *size))
    gain[:, 3] *= 8 if steep else 0.5
    gain[:, :3] *= 0.1
    offset[:, :3] *= 0.1
    return gain.astype(np.float32), offset.astype(np.float32)


def errors(actual, expected):
    """Return the error of every sample in codes, for each plane."""
    for made, wanted in zip(actual.planes, expected.planes, strict=True):
        assert made.dtype == wanted.dtype
        yield np.abs(np.asarray(made).astype(int) - wanted) >> actual.format.sample_shift


PAINTS = {
    "key": OnColor(KEY),
    "tint": Tint(KEY, 0.5),
    "mask": MatteOnly(full_range=True),
    "replace": None,
}


@pytest.mark.parametrize(
    ("name", "location", "size", "paint"),
    [
        ("nv12", "left", (70, 528), "key"),
        ("nv12", "left", (37, 61), "key"),
        ("nv12", "left", (34, 272), "replace"),
        ("nv12", "left", (34, 272), "tint"),
        ("nv12", "left", (34, 272), "mask"),
        ("nv12", "center", (34, 272), "replace"),
        ("nv12", "topleft", (34, 272), "key"),
        ("p010le", "left", (34, 272), "key"),
    ],
)
@pytest.mark.parametrize("steep", [False, True])
def test_pictures_are_the_references(cupy, name, location, size, paint, steep):
    frame, behind = picture(name, size, location), picture(name, size, location, seed=9)
    on_gpu = frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))
    gain, offset = coefficients((5, 9), steep=steep)
    options = {"regions": [Region(0, 0, frame.width, frame.height)]}
    painted = PAINTS[paint] or OnFrame(behind)
    gpu_painted = PAINTS[paint] or OnFrame(
        behind.with_planes(tuple(cupy.asarray(plane) for plane in behind.planes))
    )
    made = render(on_gpu, gain=cupy.asarray(gain), offset=cupy.asarray(offset), paint=gpu_painted, **options)
    expected = render(frame, gain=gain, offset=offset, paint=painted, **options)
    for error in errors(made, expected):
        # Alpha may round either way at a tie, which moves a sample by one more code.
        assert error.max() <= 2
        assert (error > 1).mean() <= 1e-3


@pytest.mark.parametrize("size", [(36, 272), (35, 61)])
def test_alpha_is_the_references(cupy, size):
    """Check steep gains, which show that grey from integer products is as exact as from floats."""
    frame = picture("nv12", size)
    gain, offset = (planes[:, 3] for planes in coefficients((4, 7), steep=True))
    regions = [Region(0, 0, frame.width, frame.height)]
    expected = refine_alpha(frame, regions=regions, gain=gain, offset=offset)
    on_gpu = frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))
    made = refine_alpha(on_gpu, regions=regions, gain=cupy.asarray(gain), offset=cupy.asarray(offset))
    error = np.abs(np.asarray(made).astype(int) - expected)
    assert error.max() <= 1
    assert error.mean() <= 0.02


@pytest.mark.parametrize("given", ["kept", "gone"])
def test_what_is_kept_keeps_its_codes_and_the_rest_is_the_colour(cupy, given):
    """Check strips over the border of a matte: blending with alpha 0 and 1 must be exact in half floats."""
    frame = picture("nv12", (48, 512))
    offset = np.zeros((1, 4, 6, 64), np.float32)
    offset[0, 3, :, 24:40] = 1.0
    gain = np.zeros_like(offset)
    if given == "gone":
        offset[0, 3] = 1.0 - offset[0, 3]
    options = {"regions": [Region(0, 0, 512, 48)]}
    on_gpu = frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))
    made = render(on_gpu, gain=cupy.asarray(gain), offset=cupy.asarray(offset), paint=OnColor(KEY), **options)
    expected = render(frame, gain=gain, offset=offset, paint=OnColor(KEY), **options)
    flat = np.r_[0:180, 200:310, 330:512]  # except the two borders, where alpha is partial
    for plane, wanted in zip(made.planes, expected.planes, strict=True):
        columns = flat if plane.shape[1] == 512 else np.unique(flat // 2)
        np.testing.assert_array_equal(np.asarray(plane)[:, columns], wanted[:, columns])


@pytest.mark.parametrize("which", ["luma", "chroma", "behind"])
def test_rows_with_gaps_between_samples_are_refused(cupy, which):
    frame, behind, wide = picture("nv12", (48, 64)), picture("nv12", (48, 64)), picture("nv12", (48, 128))
    luma, chroma, behind_luma = (
        cupy.asarray(plane) for plane in (frame.planes[0], frame.planes[1], behind.planes[0])
    )
    match which:
        case "luma":
            luma = cupy.asarray(wide.planes[0])[:, ::2]
        case "chroma":
            chroma = cupy.asarray(wide.planes[1])[:, ::2]
        case "behind":
            behind_luma = cupy.asarray(wide.planes[0])[:, ::2]
    ones = cupy.ones((1, 1, 3, 3), np.float32)
    paint = OnFrame(behind.with_planes((behind_luma, cupy.asarray(behind.planes[1]))))
    with pytest.raises(ValueError, match="must be contiguous"):
        render(
            frame.with_planes((luma, chroma)),
            regions=[Region(0, 0, 64, 48)],
            gain=ones,
            offset=ones,
            paint=paint,
        )


@pytest.mark.parametrize(
    ("name", "location", "size"),
    [
        ("nv12", "left", (34, 272)),
        ("nv12", "topleft", (37, 61)),
        ("p010le", "center", (34, 272)),
        ("p010le", "left", (37, 61)),
    ],
)
def test_decontaminated_pictures_are_the_references(cupy, name, location, size):
    frame = picture(name, size, location)
    gain, offset = coefficients((5, 9), steep=False)
    gain[:, :3], offset[:, :3] = np.random.default_rng(1).random((2, 1, 3, 5, 9), np.float32)
    options = {
        "regions": [Region(0, 0, frame.width, frame.height)],
        "paint": OnColor(KEY),
        "decontaminate": True,
    }
    on_gpu = frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))
    made = render(on_gpu, gain=cupy.asarray(gain), offset=cupy.asarray(offset), **options)
    expected = render(frame, gain=gain, offset=offset, **options)
    for error in errors(made, expected):
        assert (error > 1).mean() <= 2e-3
