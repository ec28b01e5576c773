"""Tests of resizing and normalising on the GPU against the reference, and of the source without a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_batch_normalize import MEAN, STD, noise

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import ODD_SIZES
from vitascope.gpu.kernels import resize_normalize as resize_normalize_cuda
from vitascope.gpu.kernels.resize_normalize import resize_normalize

OPTIONS = {"mean": MEAN, "std": STD}
SIZES_IN = [*ODD_SIZES, (135, 240), (300, 1900), (40, 4400), (256, 256)]
SIZES = [(1, 1), (9, 5), (70, 90), (33, 1024)]


def tolerances(dtype):
    # Sums have another order; half precision may then round to the other neighbour.
    return {"rtol": 1e-4, "atol": 2e-4} if dtype == "float32" else {"rtol": 2e-3, "atol": 4e-3}


@pytest.mark.cuda
@pytest.mark.parametrize("size_in", SIZES_IN)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype_in", [np.uint8, np.uint16, np.float16, np.float32])
def test_it_agrees_with_the_reference(size_in, size, dtype_in):
    import cupy

    scale = 1 / 65535 if dtype_in == np.uint16 else 1 / 255
    for layout_in in ("NHWC", "NCHW"):
        shape = (2, *size_in, 3) if layout_in == "NHWC" else (2, 3, *size_in)
        images = noise(shape, dtype_in)
        for layout_out, dtype in (("NCHW", "float16"), ("NHWC", "float32"), ("NCHW", "float32")):
            options = {**OPTIONS, "size": size, "scale": scale, "dtype": dtype}
            options |= {"layout_in": layout_in, "layout_out": layout_out}
            if size_in[1] / size[1] > 1000:
                with pytest.raises(ValueError, match="1000 samples"):
                    resize_normalize(cupy.asarray(images), **options)
                continue
            expected = resize_normalize(images, **options)
            actual = resize_normalize(cupy.asarray(images), **options)
            assert actual.dtype == expected.dtype
            np.testing.assert_allclose(actual.get(), expected, **tolerances(dtype))


@pytest.mark.parametrize("layout_in", ["NHWC", "NCHW"])
def test_a_row_that_shrinks_too_far_is_refused_whatever_the_layout(layout_in):
    shape = (1, 4, 1001, 3) if layout_in == "NHWC" else (1, 3, 4, 1001)
    strides = np.empty(shape, np.uint8).strides
    with pytest.raises(ValueError, match="at most 1000 samples to one, not 1001"):
        resize_normalize_cuda._plan(
            shape, strides, np.dtype(np.uint8), True, (1.0,) * 3, (0.0,) * 3, (4, 1), layout_in, "NCHW",
            False, "float32", 0,
        )  # fmt: skip


@pytest.mark.cuda
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("layout_in", ["NHWC", "NCHW"])
def test_other_channel_counts_and_reversed_channels(channels, layout_in):
    import cupy

    shape = (3, 20, 48, channels) if layout_in == "NHWC" else (3, channels, 20, 48)
    images = noise(shape, np.uint8)
    mean = (0.1, 0.2, 0.3, 0.4)[:channels]
    for size in ((7, 11), (20, 48)):
        options = {
            "size": size, "mean": mean, "std": (0.5,) * channels, "layout_in": layout_in, "reverse_channels": True,
        }  # fmt: skip
        np.testing.assert_allclose(
            resize_normalize(cupy.asarray(images), **options).get(),
            resize_normalize(images, **options),
            **tolerances("float32"),
        )


@pytest.mark.cuda
@pytest.mark.parametrize(
    "view",
    [
        lambda array: array[:, 3:, 5:],  # rows apart, with any start
        lambda array: array[:, :, :-16],  # rows apart, starting at 16 bytes
        lambda array: array[::2, ::2],  # every second picture and row
        lambda array: array[:, :, ::2],  # samples not dense
        lambda array: array[:, ::-1],  # upside down
        lambda array: array[..., ::-1],  # reversed channels
        lambda array: array[:0],  # none
    ],
)
def test_views_of_larger_pictures(view):
    import cupy

    images = noise((4, 60, 96, 3), np.uint8)
    options = {**OPTIONS, "size": (13, 17)}
    np.testing.assert_allclose(
        resize_normalize(view(cupy.asarray(images)), **options).get(),
        resize_normalize(view(images), **options),
        **tolerances("float32"),
    )


@pytest.mark.cuda
def test_every_element_of_out_is_written_and_none_beside_it():
    import cupy

    images = noise((2, 270, 480, 3), np.uint8)
    memory = cupy.full(2 * 3 * 128 * 100 + 2, cupy.nan, cupy.float16)
    out = memory[1:-1].reshape(2, 3, 128, 100)
    assert resize_normalize(cupy.asarray(images), size=(128, 100), dtype="float16", out=out, **OPTIONS) is out
    assert not bool(cupy.isnan(out).any())
    assert bool(cupy.isnan(memory[[0, -1]]).all())


@pytest.mark.cuda
def test_more_planes_than_a_grid_is_deep():
    import cupy

    images = noise((33_000, 2, 2, 3), np.uint8)
    planes = np.ascontiguousarray(np.moveaxis(images, -1, 1))
    actual = resize_normalize(cupy.asarray(planes), size=(1, 1), layout_in="NCHW", **OPTIONS).get()
    np.testing.assert_allclose(
        actual[..., 0, 0], (images.mean((1, 2)) / 255 - MEAN) / STD, atol=1e-4
    )  # 99,000 planes


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("resize_normalize.cu"))
def test_the_source_compiles(tmp_path, architecture):
    kinds = ("unsigned char", "__half"), ("unsigned short", "float"), ("__half", "__half"), ("float", "float")
    lanes = (1, 0), (3, 1), (4, 1)
    several = variants(
        "INPUT OUTPUT LANES_CHANNELS VECTORS",
        *(kind + lane for kind, lane in itertools.product(kinds, lanes)),
    )
    assert_compiles(tmp_path, "resize_normalize.cu", architecture, ["resize_normalize"], several)
