from __future__ import annotations

import numpy as np
import pytest

from pictures import FORMATS, ODD_SIZES, random_frame, solid_frame, strided
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.kernels.rgb import nv12_to_rgb, planes_from_rgb, rgb_to_nv12

COLORS = [
    ColorSpec(),
    ColorSpec("bt601", full_range=True, chroma_location="center"),
    ColorSpec("bt2020", chroma_location="topleft"),
]


def smooth_rgb(size, seed=0):
    """Make float32 [H, W, 3] in 0.1..0.9 that chroma subsampling hardly changes."""
    height, width = size
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / 80
    phases = np.random.default_rng(seed).uniform(0, 6, 3)
    return np.stack([0.5 + 0.2 * np.sin(x + p) + 0.2 * np.cos(y + 2 * p) for p in phases], axis=-1).astype(
        np.float32
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_one_colour_comes_out_as_the_closed_form_says(name, color, dtype):
    frame = solid_frame(PIXEL_FORMATS[name], (5, 7), (0.9, 0.3, 0.1), color=color)
    codes = [plane.reshape(-1, plane.shape[-1] if plane.ndim == 3 else 1)[0] for plane in frame.planes]
    matrix, offset = rgb_from_yuv(color, frame.format)
    exact = np.clip(matrix @ np.concatenate(codes).astype(float) + offset, 0, 1)
    rgb = nv12_to_rgb(frame, dtype=dtype)
    assert rgb.shape == (1, 5, 7, 3)
    assert rgb.dtype == dtype
    tolerance = {"uint8": 0.5 / 255 + 1e-5, "float16": 5e-4, "float32": 1e-5}[dtype]
    levels = rgb.astype(np.float64) / (255 if dtype == "uint8" else 1)
    assert np.abs(levels - exact).max() <= tolerance


def test_chroma_is_read_where_it_sits():
    """Check a ramp in chroma, linear in the luma column: bilinear interpolation returns the line itself."""
    for location, site in (("left", 0.0), ("center", 0.5)):
        frame = solid_frame(
            PIXEL_FORMATS["nv12"], (4, 64), (0.5, 0.5, 0.5), color=ColorSpec(chroma_location=location)
        )
        ramp = 100 + (2 * np.arange(32) + site)
        chroma = frame.planes[1].copy()
        chroma[..., 1] = ramp if site == 0.0 else np.rint(ramp)
        frame = frame.with_planes((frame.planes[0], chroma))
        red = nv12_to_rgb(frame, dtype="float32")[0, 1, :, 0]
        step = np.diff(red[2:-3])
        assert step.max() - step.min() <= 1e-5


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("format", ["nv12", "p010le"])
@pytest.mark.parametrize("color", COLORS)
def test_there_and_back(layout, dtype, format, color):
    size = (54, 98)
    rgb = smooth_rgb(size)
    if dtype == "uint8":
        rgb = np.rint(rgb * 255)
    rgb = rgb.astype(dtype)
    picture = rgb if layout == "NHWC" else np.moveaxis(rgb, -1, 0)
    like = random_frame(PIXEL_FORMATS["nv12"], (2, 2))
    frame = rgb_to_nv12(picture, color=color, like=like, format=format, layout=layout)
    assert frame.format.name == format
    assert frame.color == color
    assert frame.time_base == like.time_base
    back = nv12_to_rgb(frame, layout=layout, dtype=dtype)
    scale = 1 if dtype == "uint8" else 255
    error = np.abs(back[0].astype(np.float64) - picture.astype(np.float64)) * scale
    # A code of limited-range luma is 1.16 levels, one of chroma up to 2.1: allow half a code of each, and
    # rounding.
    assert error.max() <= (2.2 if format == "nv12" else 1.01)


@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_out_is_written_and_layouts_agree(size, dtype):
    frame = strided(random_frame(PIXEL_FORMATS["p010le"], size))
    out = np.empty((1, 3, *size), dtype)
    assert nv12_to_rgb(frame, layout="NCHW", dtype=dtype, out=out) is out
    np.testing.assert_array_equal(np.moveaxis(out, 1, -1), nv12_to_rgb(frame, dtype=dtype))


@pytest.mark.parametrize("name", ["nv12", "yuv444p"])
def test_colours_that_codes_cannot_hold_are_clipped(name):
    white = np.full((3, 2, 2), 1.5, np.float32)
    planes = planes_from_rgb(white, fmt=PIXEL_FORMATS[name], color=ColorSpec(full_range=True))
    assert (planes[0] == 255).all()


@pytest.mark.parametrize(
    "rgb",
    [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((2, 4, 4, 3), np.uint8), np.zeros((4, 4, 3))],
)
def test_what_is_no_picture_is_refused(rgb):
    with pytest.raises(ValueError, match="one picture in NHWC"):
        rgb_to_nv12(rgb, color=ColorSpec(), like=random_frame(PIXEL_FORMATS["nv12"], (2, 2)))


def test_out_of_another_kind_is_refused():
    frame = random_frame(PIXEL_FORMATS["nv12"], (4, 6))
    for out in (
        np.empty((1, 4, 6, 3), np.float32),
        np.empty((1, 3, 4, 6), np.uint8),
        np.empty((1, 4, 12, 3), np.uint8)[:, :, ::2],
    ):
        with pytest.raises(ValueError, match="C-contiguous"):
            nv12_to_rgb(frame, out=out)
