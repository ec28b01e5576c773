"""Tests of RGB conversion on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_cpu, frame_on_gpu, plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import ODD_SIZES, random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.rgb import nv12_to_rgb, rgb_to_nv12

SIZES = [*ODD_SIZES, (36, 256), (18, 1300), (10, 2048)]
TOLERANCES = {"uint8": 1, "float16": 1e-3, "float32": 1e-5}


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("pad", [0, 3])
def test_to_rgb_agrees_with_the_reference(name, location, layout, dtype, pad):
    import cupy

    for size in SIZES:
        frame = random_frame(PIXEL_FORMATS[name], size, color=ColorSpec("bt601", chroma_location=location))
        expected = nv12_to_rgb(frame, layout=layout, dtype=dtype)
        out = cupy.full(expected.shape, 77, dtype)
        assert nv12_to_rgb(frame_on_gpu(frame, pad=pad), layout=layout, dtype=dtype, out=out) is out
        error = np.abs(out.get().astype(np.float64) - expected).max()
        assert error <= TOLERANCES[dtype], size


@pytest.mark.cuda
@pytest.mark.parametrize("format", ["nv12", "p010le"])
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_from_rgb_agrees_with_the_reference(format, location, layout, dtype):
    import cupy

    like = random_frame(PIXEL_FORMATS["nv12"], (2, 2))
    options = {
        "color": ColorSpec("bt2020", chroma_location=location),
        "like": like,
        "format": format,
        "layout": layout,
    }
    for size in SIZES:
        rng = np.random.default_rng(0)
        shape = (*size, 3) if layout == "NHWC" else (3, *size)
        rgb = rng.integers(0, 256, shape) if dtype == "uint8" else rng.uniform(-0.1, 1.1, shape)
        rgb = rgb.astype(dtype)
        expected = rgb_to_nv12(rgb, **options)
        actual = frame_on_cpu(rgb_to_nv12(cupy.asarray(rgb), **options))
        assert actual.color == expected.color
        word = 1 << expected.format.sample_shift
        for made, plane in zip(actual.planes, expected.planes, strict=True):
            assert made.dtype == plane.dtype
            assert np.abs(made.astype(int) - plane).max() <= word, size


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_picture_with_padded_rows_or_any_other_order_is_read_as_it_is(dtype, turned):
    rgb = np.random.default_rng(0).integers(0, 256, (21, 39, 3))
    rgb = rgb.astype(dtype) if dtype == "uint8" else (rgb / 255).astype(dtype)
    options = {"color": ColorSpec(), "like": random_frame(PIXEL_FORMATS["nv12"], (2, 2))}
    wide = plane_on_gpu(rgb, pad=3)
    if turned:
        rgb, wide = rgb[:, ::-2].swapaxes(0, 1), wide[:, ::-2].swapaxes(0, 1)
    actual, expected = frame_on_cpu(rgb_to_nv12(wide, **options)), rgb_to_nv12(rgb, **options)
    for made, plane in zip(actual.planes, expected.planes, strict=True):
        assert np.abs(made.astype(int) - plane).max() <= 1


@pytest.mark.cuda
def test_planar_frames_are_refused_on_the_gpu():
    with pytest.raises(ValueError, match="NV12 and P010"):
        nv12_to_rgb(frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p"], (8, 8))))


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("rgb.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = variants(
        "SAMPLE SHIFT RGB RGB_IS_BYTE CHANNELS_LAST COSITED_X COSITED_Y VECTORS RGB_VECTORS",
        ("unsigned char", 0, "unsigned char", 1, 1, 1, 0, 1, 1),
        ("unsigned char", 0, "__half", 0, 1, 0, 0, 1, 1),
        ("unsigned short", 6, "float", 0, 1, 1, 1, 0, 0),
        ("unsigned short", 6, "__half", 0, 0, 0, 0, 1, 1),
        ("unsigned char", 0, "unsigned char", 1, 0, 1, 1, 0, 0),
    )
    assert_compiles(tmp_path, "rgb.cu", architecture, ["to_rgb", "from_rgb"], several)
