"""Tests of the preprocessing kernel against the reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_gpu as on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import ODD_SIZES, random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region

TARGETS = [(1, 1), (9, 5), (32, 64), (70, 90)]


def smooth(frame):
    """Keep low frequencies only, for which the reference's shift of cosited chroma is almost exact."""
    import cv2

    blurred = []
    for plane in frame.planes:
        wide = cv2.GaussianBlur(plane.astype(np.float32), (0, 0), 6, borderType=cv2.BORDER_REPLICATE)
        blurred.append(
            (wide.reshape(plane.shape)).astype(plane.dtype)
            >> frame.format.sample_shift
            << frame.format.sample_shift
        )
    return frame.with_planes(tuple(blurred))


def regions_of(frame, eyes):
    if eyes == 1 or frame.width < 2:
        return [Region(0, 0, frame.width, frame.height)]
    half = frame.width - frame.width // 2
    return [Region(0, 0, half, frame.height), Region(half, 0, frame.width - half, frame.height)]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("size", [*ODD_SIZES, (135, 240), (300, 1900), (40, 4400)])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pad", [0, 3])
def test_noise_agrees_with_the_reference(name, size, target, pad):
    """Check centred chroma, where both average exactly the same windows."""
    frame = random_frame(PIXEL_FORMATS[name], size, color=ColorSpec(chroma_location="center"))
    if size[0] % 2 or size[1] % 2:
        frame = smooth(frame)  # the last chroma block sticks out, so the reference interpolates it
    regions = regions_of(frame, 1)
    if frame.width / target[1] > 2000:
        with pytest.raises(ValueError, match="too few"):
            preprocess(on_gpu(frame, pad=pad), regions=regions, size=target)
        return
    expected = preprocess(frame, regions=regions, size=target)
    actual = preprocess(on_gpu(frame, pad=pad), regions=regions, size=target).get()
    tolerance = 2e-3 if size[0] % 2 == 0 and size[1] % 2 == 0 else 3e-2
    np.testing.assert_allclose(actual, expected, atol=tolerance)


@pytest.mark.cuda
@pytest.mark.parametrize("location", ["left", "topleft"])
@pytest.mark.parametrize("eyes", [1, 2])
@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
def test_cosited_chroma_and_stereo(location, eyes, matrix):
    frame = smooth(
        random_frame(PIXEL_FORMATS["nv12"], (128, 256), color=ColorSpec(matrix, chroma_location=location))
    )
    regions = regions_of(frame, eyes)
    expected = preprocess(frame, regions=regions, size=(32, 48))
    actual = preprocess(on_gpu(frame), regions=regions, size=(32, 48)).get()
    # At the border the reference repeats the last output, the kernel the last sample.
    np.testing.assert_allclose(actual, expected, atol=1.2e-2)
    np.testing.assert_allclose(actual[..., 1:-1, 1:-1], expected[..., 1:-1, 1:-1], atol=4e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rotation_layout_dtype_and_normalisation(degrees, layout, dtype):
    frame = random_frame(
        PIXEL_FORMATS["p010le"], (64, 128), color=ColorSpec("bt2020", chroma_location="center")
    )
    options = {
        "regions": regions_of(frame, 2),
        "size": (24, 40),
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "layout": layout,
        "rotation_degrees": degrees,
    }
    actual = preprocess(on_gpu(frame), dtype=dtype, **options)
    assert actual.dtype == dtype
    np.testing.assert_allclose(
        actual.get().astype(np.float32),
        preprocess(frame, **options),
        atol=1.2e-2 if dtype == "float32" else 2e-2,
    )


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(288, 512), (33, 47), (1, 1)])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_element_of_out_is_written_and_none_beside_it(size, layout, dtype):
    import cupy

    frame = on_gpu(random_frame(PIXEL_FORMATS["nv12"], (1080, 1920)))
    memory = cupy.full(3 * size[0] * size[1] + 2, cupy.nan, dtype)
    out = memory[1:-1].reshape((1, 3, *size) if layout == "NCHW" else (1, *size, 3))
    options = {"regions": regions_of(frame, 1), "size": size, "layout": layout, "dtype": dtype}
    assert preprocess(frame, out=out, **options) is out
    assert not bool(cupy.isnan(out).any())
    assert bool(cupy.isnan(memory[[0, -1]]).all())


@pytest.mark.cuda
def test_planar_frames_are_refused_on_the_gpu():
    import cupy

    frame = random_frame(PIXEL_FORMATS["yuv420p"], (8, 8))
    frame = frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))
    with pytest.raises(ValueError, match="NV12 and P010"):
        preprocess(frame, regions=regions_of(frame, 1), size=(4, 4))


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("preprocess.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = variants(
        "SAMPLE OUTPUT VECTORS", ("unsigned char", "float", 1), ("unsigned short", "__half", 0)
    )
    assert_compiles(tmp_path, "preprocess.cu", architecture, ["preprocess"], several)
