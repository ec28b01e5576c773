from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_batch_normalize import MEAN, STD, noise

from pictures import ODD_SIZES
from vitascope.gpu.kernels.resize_normalize import resize_normalize

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "scale": 1.0}


def axis_weights(length, count):
    """Build dense [count, length] weights from the documented resize: exact, slow and independent."""
    weights = np.zeros((count, length))
    step = length / count
    for output in range(count):
        if step >= 1:
            begin, end = output * step, (output + 1) * step
            for sample in range(length):
                weights[output, sample] = max(min(sample + 1, end) - max(sample, begin), 0) / step
        else:
            centre = min(max((output + 0.5) * step - 0.5, 0), length - 1)
            below = int(centre)
            weights[output, below] += 1 - (centre - below)
            weights[output, min(below + 1, length - 1)] += centre - below
    return weights


def oracle(nhwc, size):
    rows, columns = axis_weights(nhwc.shape[1], size[0]), axis_weights(nhwc.shape[2], size[1])
    return np.einsum("yi,nijc,xj->nyxc", rows, nhwc.astype(np.float64), columns)


@pytest.mark.parametrize("size_in", ODD_SIZES)
@pytest.mark.parametrize("size", [(1, 1), (9, 5), (40, 50)])
def test_it_is_the_area_mean_or_the_line_between_neighbours(size_in, size):
    images = noise((2, *size_in, 3), np.uint8)
    got = resize_normalize(images, size=size, layout_out="NHWC", **PLAIN)
    np.testing.assert_allclose(got, oracle(images, size), atol=0.02)


@given(
    size_in=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.integers(1, 4),
)
def test_a_flat_picture_stays_flat_and_nothing_leaves_its_range(size_in, size, channels):
    options = {"mean": (0.0,) * channels, "std": (1.0,) * channels, "scale": 1.0}
    flat = np.full((1, *size_in, channels), 200, np.uint8)
    np.testing.assert_allclose(resize_normalize(flat, size=size, **options), 200, rtol=1e-5)
    images = noise((1, *size_in, channels), np.uint8)
    got = resize_normalize(images, size=size, **options)
    assert got.min() >= images.min() - 1e-2
    assert got.max() <= images.max() + 1e-2


@pytest.mark.parametrize("dtype_in", [np.uint8, np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("layout_in", ["NCHW", "NHWC"])
@pytest.mark.parametrize("layout_out", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_layout_and_dtype_is_the_formula(dtype_in, layout_in, layout_out, dtype):
    nhwc = noise((2, 12, 17, 3), dtype_in)
    scale = 1 / 65535 if dtype_in == np.uint16 else 1 / 255
    expected = (oracle(nhwc, (5, 6)) * scale - MEAN) / STD
    images = nhwc if layout_in == "NHWC" else np.moveaxis(nhwc, -1, 1).copy()
    got = resize_normalize(
        images, size=(5, 6), mean=MEAN, std=STD, scale=scale, layout_in=layout_in, layout_out=layout_out, dtype=dtype
    )  # fmt: skip
    assert got.dtype == dtype
    assert got.flags["C_CONTIGUOUS"]
    got = got if layout_out == "NHWC" else np.moveaxis(got, 1, -1)
    np.testing.assert_allclose(got, expected, atol=2e-4 if dtype == "float32" else 4e-3)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channel_counts(channels):
    images = noise((1, 8, 10, channels), np.uint8)
    options = {"mean": (0.1,) * channels, "std": (0.5,) * channels}
    got = resize_normalize(images, size=(3, 4), layout_out="NHWC", **options)
    np.testing.assert_allclose(got, (oracle(images, (3, 4)) / 255 - 0.1) / 0.5, atol=1e-4)


@pytest.mark.parametrize("size", [(8, 8), (4, 12)])
def test_channels_come_out_reversed_with_the_mean_of_the_result(size):
    bgr = noise((1, 8, 8, 3), np.uint8)
    rgb = np.ascontiguousarray(bgr[..., ::-1])
    options = {"size": size, "mean": MEAN, "std": STD}
    np.testing.assert_allclose(
        resize_normalize(bgr, reverse_channels=True, **options), resize_normalize(rgb, **options), atol=1e-5
    )


def test_views_and_targets():
    whole = noise((2, 40, 60, 3), np.uint8)
    view = whole[:, 4:33:2, 7:50]
    out = np.full((2, 3, 9, 11), np.nan, np.float32)
    assert resize_normalize(view, size=(9, 11), mean=MEAN, std=STD, out=out) is out
    np.testing.assert_array_equal(out, resize_normalize(view.copy(), size=(9, 11), mean=MEAN, std=STD))


def test_the_same_size_is_only_normalised():
    images = noise((1, 6, 7, 3), np.uint8)
    got = resize_normalize(images, size=(6, 7), layout_out="NHWC", **PLAIN)
    np.testing.assert_array_equal(got, images.astype(np.float32))


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (np.zeros((4, 4, 3), np.uint8), {}, "expected 4 axes"),
        (np.zeros((1, 4, 4, 3), np.int32), {}, "expected 4 axes"),
        (np.zeros((1, 4, 4, 2), np.uint8), {}, "expected the same number"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"std": (1, 0, 1)}, "none to be 0"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"size": (0, 3)}, "at least one pixel"),
        (np.zeros((1, 0, 4, 3), np.uint8), {}, "at least one pixel"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"out": np.zeros((1, 3, 2, 2), np.float16)}, "out is"),
    ],
)
def test_what_does_not_fit_is_refused(images, options, message):
    with pytest.raises(ValueError, match=message):
        resize_normalize(images, **{"size": (2, 2), "mean": MEAN, "std": STD, **options})
