from __future__ import annotations

import numpy as np
import pytest

from vitascope.gpu.kernels.batch_normalize import batch_normalize

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    return rng.normal(100, 80, shape).astype(dtype)


@pytest.mark.parametrize("dtype_in", [np.uint8, np.uint16, np.float16, np.float32])
@pytest.mark.parametrize("layout_in", ["NCHW", "NHWC"])
@pytest.mark.parametrize("layout_out", ["NCHW", "NHWC"])
def test_it_is_the_formula(dtype_in, layout_in, layout_out):
    nhwc = noise((2, 5, 7, 3), dtype_in)
    expected = (nhwc.astype(np.float64) / 255 - MEAN) / STD
    images = nhwc if layout_in == "NHWC" else np.moveaxis(nhwc, -1, 1).copy()
    out = batch_normalize(images, mean=MEAN, std=STD, layout_in=layout_in, layout_out=layout_out)
    assert out.dtype == np.float32
    assert out.flags["C_CONTIGUOUS"]
    got = out if layout_out == "NHWC" else np.moveaxis(out, 1, -1)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_half_precision_scale_and_one_channel():
    images = noise((1, 4, 4, 1), np.uint16)
    out = batch_normalize(images, mean=(0.5,), std=(0.5,), scale=1 / 65535, dtype="float16")
    assert out.dtype == np.float16
    np.testing.assert_allclose(out[0, 0], images[0, ..., 0] / 65535 * 2 - 1, atol=1e-3)


def test_it_writes_where_it_is_told():
    images = noise((2, 3, 4, 3), np.uint8)
    out = np.full((2, 3, 3, 4), np.nan, np.float32)
    assert batch_normalize(images, mean=MEAN, std=STD, out=out) is out
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("images", "options", "message"),
    [
        (np.zeros((4, 4, 3), np.uint8), {}, "expected 4 axes"),
        (np.zeros((1, 4, 4, 3), np.int32), {}, "expected 4 axes"),
        (np.zeros((1, 4, 4, 2), np.uint8), {}, "expected the same number"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"std": (1, 0, 1)}, "none to be 0"),
        (np.zeros((1, 4, 4, 5), np.uint8), {"mean": (0,) * 5, "std": (1,) * 5}, "1 to 4"),
        (np.zeros((1, 4, 4, 3), np.uint8), {"out": np.zeros((1, 4, 4, 3), np.float32)}, "out is"),
    ],
)
def test_what_does_not_fit_is_refused(images, options, message):
    with pytest.raises(ValueError, match=message):
        batch_normalize(images, **{"mean": MEAN, "std": STD, **options})
