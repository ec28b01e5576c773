"""Tests of mask post-processing on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels import mask_postprocess as mask_postprocess_cuda
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask

DTYPES = [np.float16, np.float32]
SHAPES = [(1, 2, 1, 1), (2, 3, 1, 9), (1, 21, 17, 31), (3, 5, 32, 64), (1, 150, 65, 33), (2, 1, 50, 70)]


def scores_like(shape, dtype):
    """Make smooth regions with noise; ties and NaN occur."""
    rng = np.random.default_rng(0)
    count, classes, height, width = shape
    coarse = rng.normal(0, 1, (count, classes, -(-height // 8), -(-width // 8)))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)[:, :, :height, :width]
    scores = np.round(smooth + rng.normal(0, 0.7, shape), 1)
    scores[rng.random(shape) < 0.002] = np.nan
    return scores.astype(dtype)


def assert_same(scores, **options):
    import cupy

    on_gpu = {
        name: cupy.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }
    expected = postprocess_mask(scores, **options)
    actual = postprocess_mask(cupy.asarray(scores), **on_gpu)
    assert actual.dtype == np.uint8
    np.testing.assert_array_equal(actual.get(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.5, 6.0, 21.0])
def test_class_maps(dtype, shape, sigma):
    assert_same(scores_like(shape, dtype), smoothing_sigma=sigma)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["argmax", "threshold"])
@pytest.mark.parametrize("steps", [{}, {"smoothing_sigma": 2.0}, {"open_px": 1, "close_px": 3}])
@pytest.mark.parametrize("ema", [0.0, 0.3])
def test_masks(dtype, shape, kind, steps, ema):
    previous = np.random.default_rng(1).integers(0, 256, (shape[0], *shape[2:]), dtype=np.uint8)
    assert_same(
        scores_like(shape, dtype), kind=kind, class_index=shape[1] // 2, previous=previous, ema=ema, **steps
    )


@pytest.mark.cuda
def test_views_are_read_as_they_are():
    import cupy

    scores = scores_like((2, 4, 20, 40), np.float32)
    view = cupy.asarray(scores)[:, 1:, ::2, 3:]
    expected = postprocess_mask(scores[:, 1:, ::2, 3:], smoothing_sigma=1.0)
    np.testing.assert_array_equal(postprocess_mask(view, smoothing_sigma=1.0).get(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [*SHAPES, (2, 64, 40, 24), (1, 200, 9, 40), (3, 21, 31, 33), (2, 256, 8, 8)]
)
@pytest.mark.parametrize("options", [{}, {"class_index": 0}, {"kind": "threshold", "class_index": 0}])
def test_channels_may_come_last(dtype, shape, options):
    import cupy

    scores = scores_like(shape, dtype)
    expected = postprocess_mask(scores, **options)
    memory = cupy.asarray(np.ascontiguousarray(scores.transpose(0, 2, 3, 1)))
    np.testing.assert_array_equal(postprocess_mask(memory.transpose(0, 3, 1, 2), **options).get(), expected)
    shifted = cupy.empty(memory.size + 1, dtype)[1:].reshape(memory.shape)  # not aligned
    shifted[...] = memory
    np.testing.assert_array_equal(postprocess_mask(shifted.transpose(0, 3, 1, 2), **options).get(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["argmax", "threshold"])
@pytest.mark.parametrize(("classes", "expected"), [(21, [1]), (193, [0])])
def test_channels_last_is_read_as_it_lies(monkeypatch, kind, classes, expected):
    """Check that nothing is copied first, up to the number of classes whose scores fit into a block."""
    import cupy

    real, defined = mask_postprocess_cuda.cuda_kernel, []

    def kernel(source, name, **defines):
        defined.append(defines["CHANNELS_LAST"])
        return real(source, name, **defines)

    monkeypatch.setattr(mask_postprocess_cuda, "cuda_kernel", kernel)
    memory = cupy.zeros((2, 9, 8, classes), cupy.float16)
    postprocess_mask(memory.transpose(0, 3, 1, 2), kind=kind, class_index=0)
    assert defined == (expected if kind == "argmax" else [1])
    defined.clear()
    postprocess_mask(cupy.ascontiguousarray(memory.transpose(0, 3, 1, 2)), kind=kind, class_index=0)
    assert defined == [0]


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 3, 5, 7), (2, 21, 4, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_memory_is_told_by_strides(shape, dtype):
    count, classes, height, width = shape
    last = np.zeros((count, height, width, classes), dtype).transpose(0, 3, 1, 2)
    assert mask_postprocess_cuda._is_channels_last(last)
    assert not mask_postprocess_cuda._is_channels_last(np.zeros(shape, dtype))
    assert not mask_postprocess_cuda._is_channels_last(last[:, :, ::2])
    assert not mask_postprocess_cuda._is_channels_last(last[:, :, :, 1:])
    assert not mask_postprocess_cuda._is_channels_last(
        np.zeros((count, classes, width, height), dtype).swapaxes(2, 3)
    )
    assert mask_postprocess_cuda._is_channels_last(last[:1])


@pytest.mark.cuda
@pytest.mark.parametrize("options", [{}, {"smoothing_sigma": 1.0}, {"open_px": 2}, {"ema": 0.5}])
def test_the_result_goes_where_it_is_wanted(options):
    import cupy

    scores = scores_like((2, 3, 24, 40), np.float16)
    previous = np.random.default_rng(1).integers(0, 256, (2, 24, 40), dtype=np.uint8)
    expected = postprocess_mask(scores, class_index=1, previous=previous, **options)
    target = cupy.asarray(previous)
    made = postprocess_mask(cupy.asarray(scores), class_index=1, previous=target, out=target, **options)
    assert made is target
    np.testing.assert_array_equal(target.get(), expected)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("mask_postprocess.cu"))
def test_the_source_compiles(tmp_path, architecture):
    scores = ("float", 0), ("float", 1), ("__half", 1)
    several = variants(
        "SCORE VECTORS CHANNELS_LAST", *((*score, last) for score in scores for last in (0, 1))
    )
    entries = ["argmax", "threshold", "vote", "fade"]
    assert_compiles(tmp_path, "mask_postprocess.cu", architecture, entries, several)
