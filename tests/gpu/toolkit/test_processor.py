"""Tests of ``CUDAKernelProcessor`` on the CPU; ``test_processor_cuda.py`` has what it shares with the GPU."""

from __future__ import annotations

import threading

import cv2
import numpy as np
import pytest
import torch

from pictures import random_frame
from vitascope.errors import DeviceError
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu import CUDAKernelProcessor
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.gpu.kernels.rgb import nv12_to_rgb

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (54, 96, 3), dtype=np.uint8)
NV12 = RNG.integers(16, 236, (81, 96), dtype=np.uint8)  # 54 x 96, both planes


class ByDlpackAlone:
    """An array of an unknown library."""

    def __init__(self, array):
        self._array = array

    @property
    def shape(self):
        return self._array.shape

    @property
    def dtype(self):
        return self._array.dtype

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


KINDS = {"numpy": np.asarray, "torch": torch.from_numpy, "dlpack": ByDlpackAlone}


@pytest.fixture
def processor():
    with CUDAKernelProcessor(device_id=0, device="cpu") as processor:
        yield processor


def expected_input(rgb=RGB, size=(32, 40), **options):
    batch = rgb if rgb.ndim == 4 else rgb[None]
    return resize_normalize(batch, size=size, mean=MEAN, std=STD, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("async_exec", [False, True])
def test_a_picture_becomes_a_network_input_of_its_own_kind(processor, kind, async_exec):
    result = processor.fused_preprocess(
        KINDS[kind](RGB), target_size=(32, 40), mean=MEAN, std=STD, async_exec=async_exec
    )
    if async_exec:
        result = result.wait()
    assert type(result) is (torch.Tensor if kind == "torch" else np.ndarray)
    np.testing.assert_array_equal(np.asarray(result), expected_input())


def test_without_a_size_or_a_mean_it_is_the_picture_from_0_to_1(processor):
    result = processor.fused_preprocess(RGB)
    np.testing.assert_allclose(result, np.moveaxis(RGB / np.float32(255), -1, 0)[None], atol=1e-6)
    halves = (RGB / np.float32(255)).astype(np.float16)
    np.testing.assert_allclose(processor.fused_preprocess(halves), result, atol=1e-3)
    deep = RGB.astype(np.uint16) * 257
    np.testing.assert_allclose(processor.fused_preprocess(deep), result, atol=1e-6)


def test_planar_pictures_batches_and_bgr(processor):
    chw = np.ascontiguousarray(np.moveaxis(RGB, -1, 0))
    options = {"target_size": (32, 40), "mean": MEAN, "std": STD}
    np.testing.assert_allclose(processor.fused_preprocess(chw, **options), expected_input(), atol=1e-4)
    batch = np.stack([RGB, RGB[::-1]])
    np.testing.assert_array_equal(processor.fused_preprocess(batch, **options), expected_input(batch))
    bgr = RGB[..., ::-1]
    np.testing.assert_allclose(
        processor.fused_preprocess(bgr, channel_order="bgr", **options), expected_input(), atol=1e-5
    )
    nhwc = processor.fused_preprocess(RGB, layout="NHWC", dtype="float16", **options)
    assert (nhwc.shape, nhwc.dtype) == ((1, 32, 40, 3), np.float16)


def test_frames_and_planes_give_what_the_kernel_gives(processor):
    frame = random_frame(PIXEL_FORMATS["yuv420p10le"], (54, 96))
    expected = preprocess(frame, regions=[Region(0, 0, 96, 54)], size=(20, 30), mean=MEAN, std=STD)
    got = processor.fused_preprocess(frame, (20, 30), mean=MEAN, std=STD)
    np.testing.assert_array_equal(got, expected)
    luma, chroma = NV12[:54], NV12[54:].reshape(27, 48, 2)
    stacked = processor.fused_preprocess(NV12, (20, 30))
    np.testing.assert_array_equal(processor.fused_preprocess((luma, chroma), (20, 30)), stacked)
    tensors = processor.fused_preprocess((torch.from_numpy(luma), torch.from_numpy(chroma)), (20, 30))
    assert isinstance(tensors, torch.Tensor)
    np.testing.assert_array_equal(tensors.numpy(), stacked)
    full = processor.fused_preprocess(NV12, (20, 30), color=ColorSpec("bt601", full_range=True))
    assert np.abs(full - stacked).max() > 0.02


def test_pictures_of_several_sizes_make_one_batch(processor):
    others = [RGB, np.ascontiguousarray(RGB[:31, :17]), NV12]
    batch = processor.fused_preprocess_batch(others, (32, 40), mean=MEAN, std=STD)
    for row, picture in zip(batch, others, strict=True):
        one = processor.fused_preprocess(picture, (32, 40), mean=MEAN, std=STD)[0]
        np.testing.assert_array_equal(row, one)
    with pytest.raises(ValueError, match="several sizes need a target_size"):
        processor.fused_preprocess_batch(others)
    with pytest.raises(ValueError, match="no picture"):
        processor.fused_preprocess_batch([])


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_out_takes_the_result_and_names_its_dtype(processor, kind):
    out = KINDS[kind](np.full((1, 3, 32, 40), np.nan, np.float16))
    assert processor.fused_preprocess(RGB, (32, 40), mean=MEAN, std=STD, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), expected_input(dtype="float16"))
    with pytest.raises(ValueError, match="out is"):
        processor.fused_preprocess(RGB, (32, 41), out=out)
    with pytest.raises(ValueError, match="read-only"):
        frozen = np.zeros((1, 3, 32, 40), np.float32)
        frozen.flags.writeable = False
        processor.fused_preprocess(RGB, (32, 40), out=frozen)


@pytest.mark.parametrize(
    "dtype", ["float16", np.float16, np.dtype(np.float16), np.dtype(">f2"), torch.float16]
)
def test_a_dtype_may_be_named_in_any_librarys_way(processor, dtype):
    assert processor.fused_preprocess(RGB, (4, 4), dtype=dtype).dtype == np.float16


@pytest.mark.parametrize("sequence", [list, np.array, np.float32, torch.tensor])
def test_mean_and_deviation_may_be_any_numbers_in_a_row(processor, sequence):
    mean, std = (0.5, 0.25, 0.0), (0.5, 0.25, 2.0)
    for picture in (RGB, NV12):
        expected = processor.fused_preprocess(picture, (8, 8), mean=mean, std=std)
        got = processor.fused_preprocess(picture, (8, 8), mean=sequence(mean), std=sequence(std))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_normalisation_of_a_batch(processor, kind):
    batch = np.stack([RGB, RGB[::-1]])
    got = processor.batch_normalize(KINDS[kind](batch), mean=MEAN, std=STD)
    np.testing.assert_allclose(
        np.asarray(got), np.moveaxis((batch / 255 - MEAN) / STD, -1, 1), rtol=1e-5, atol=1e-5
    )
    raw = processor.batch_normalize(batch, mean=(0, 0, 0), std=(1, 1, 1), scale=1.0)
    assert raw.max() == 255


@pytest.mark.parametrize("kind", KINDS)
def test_masks_by_argmax_and_smoothing(processor, kind):
    scores = RNG.normal(size=(2, 5, 24, 32)).astype(np.float32)
    got = processor.postprocess_mask(KINDS[kind](scores), smoothing_sigma=1.5)
    assert type(got) is (torch.Tensor if kind == "torch" else np.ndarray)
    np.testing.assert_array_equal(np.asarray(got), postprocess_mask(scores, smoothing_sigma=1.5))
    one = processor.postprocess_mask(KINDS[kind](scores[0]), smoothing_sigma=1.5)
    np.testing.assert_array_equal(np.asarray(one), np.asarray(got)[0])


def test_a_mask_that_steadies_itself_in_place(processor):
    scores = RNG.normal(size=(1, 1, 24, 32)).astype(np.float32)
    mask = np.full((1, 24, 32), 255, np.uint8)
    expected = postprocess_mask(scores, kind="threshold", previous=mask.copy(), ema=0.5)
    assert processor.postprocess_mask(scores, kind="threshold", previous=mask, ema=0.5, out=mask) is mask
    np.testing.assert_array_equal(mask, expected)


def test_nv12_is_what_opencv_reads_and_what_the_kernel_gives(processor):
    smooth = cv2.resize(NV12[:8, :8], (96, 81), interpolation=cv2.INTER_LINEAR)
    smooth[54:, ::2], smooth[54:, 1::2] = 110, 150  # OpenCV repeats chroma, while the kernel interpolates
    rgb = processor.nv12_to_rgb(smooth, color=ColorSpec("bt601", chroma_location="center"))
    assert rgb.shape == (54, 96, 3)
    assert np.abs(rgb.astype(int) - cv2.cvtColor(smooth, cv2.COLOR_YUV2RGB_NV12)).mean() < 1.5
    frame = random_frame(PIXEL_FORMATS["p010le"], (54, 96))
    np.testing.assert_array_equal(processor.nv12_to_rgb(frame), nv12_to_rgb(frame)[0])
    for spelling in (np.uint8, np.dtype("uint8")):
        np.testing.assert_array_equal(processor.nv12_to_rgb(frame, dtype=spelling), nv12_to_rgb(frame)[0])
        np.testing.assert_array_equal(nv12_to_rgb(frame, dtype=spelling), nv12_to_rgb(frame))
    out = np.empty((3, 54, 96), np.float32)
    assert processor.nv12_to_rgb(frame, layout="NCHW", dtype="float32", out=out) is out
    np.testing.assert_array_equal(out, nv12_to_rgb(frame, layout="NCHW", dtype="float32")[0])
    batch = processor.nv12_to_rgb_batch([NV12, NV12[::-1].copy()])
    np.testing.assert_array_equal(batch[0], processor.nv12_to_rgb(NV12))
    np.testing.assert_array_equal(processor.nv12_to_rgb_batch([NV12]), batch[:1])


def test_asynchronous_calls_run_beside_one_another(processor):
    """Check that four run at once: each waits inside until all have begun."""
    barrier = threading.Barrier(4)
    runner = processor._runner

    def meet(target):
        barrier.wait(timeout=20)
        return RGB

    pending = [runner.run(meet, [RGB], out=None, async_exec=True) for _ in range(4)]
    processor.synchronize()
    assert all(result.done for result in pending)
    assert all(result.synchronize() is RGB for result in pending)


def test_an_asynchronous_failure_belongs_to_its_result(processor):
    pending = processor.batch_normalize(RGB, mean=MEAN, std=STD, async_exec=True)
    processor.synchronize()
    with pytest.raises(ValueError, match="expected 4 axes"):
        pending.wait()


def test_it_can_be_used_after_close(processor):
    processor.fused_preprocess(RGB, async_exec=True)
    processor.close()
    assert processor.fused_preprocess(RGB, (4, 4), async_exec=True).wait().shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.fused_preprocess(np.zeros((4, 5, 7), np.uint8)), ValueError, "a picture is RGB"),
        (lambda p: p.fused_preprocess(np.zeros((4, 4, 3))), ValueError, "float64"),
        (lambda p: p.fused_preprocess("frame.png"), TypeError, "str is not an array"),
        (lambda p: p.fused_preprocess(RGB, (0, 3)), ValueError, "at least one pixel"),
        (lambda p: p.fused_preprocess(RGB, std=(1, 0, 1)), ValueError, "none to be 0"),
        (lambda p: p.fused_preprocess(np.zeros((0, 4, 3), np.uint8), (4, 4)), ValueError, "at least one pixel"),
        (lambda p: p.fused_preprocess(RGB, 512), ValueError, "target_size is 512, expected \\(height, width\\)"),
        (lambda p: p.fused_preprocess(RGB, (8, 8, 3)), ValueError, "\\(height, width\\) in whole pixels"),
        (lambda p: p.fused_preprocess(RGB, (8.5, 8)), ValueError, "in whole pixels"),
        (lambda p: p.fused_preprocess(RGB, layout="HWC"), ValueError, "layout is 'HWC', expected NCHW or NHWC"),
        (lambda p: p.fused_preprocess(RGB, channel_order="BGR"), ValueError, "expected rgb or bgr"),
        (lambda p: p.fused_preprocess(RGB, dtype="int8"), ValueError, "dtype is 'int8', expected float32 or float16"),
        (lambda p: p.fused_preprocess(RGB, out=np.empty((1, 3, 8, 8))), ValueError, "dtype is 'float64'"),
        (lambda p: p.fused_preprocess(NV12, mean=(0, 0)), ValueError, "mean is \\(0, 0\\), expected 3 numbers"),
        (lambda p: p.fused_preprocess(RGB, mean=(0, np.nan, 0)), ValueError, "expected finite numbers"),
        (lambda p: p.fused_preprocess(RGB, mean=0.5), ValueError, "mean is 0.5, expected a number for each channel"),
        (lambda p: p.fused_preprocess(NV12, color="bt709"), TypeError, "color is 'bt709', expected a vitascope.frames"),
        (lambda p: p.postprocess_mask([[0.5]]), TypeError, "list is not an array"),
        (lambda p: p.batch_normalize(RGB[None], mean=MEAN, std=STD, layout_in="CHW"), ValueError, "layout_in is 'CHW'"),
        (lambda p: p.batch_normalize(RGB[None], mean=MEAN, std=STD, scale=np.inf), ValueError, "scale is"),
        (lambda p: p.postprocess_mask(np.zeros((1, 2, 3, 3), np.float32), kind="max"), ValueError, "kind is 'max'"),
        (lambda p: p.nv12_to_rgb(NV12, dtype="int8"), ValueError, "expected uint8 or float32 or float16"),
        (lambda p: p.nv12_to_rgb(NV12, layout="HWC"), ValueError, "expected NCHW or NHWC"),
        (lambda p: p.nv12_to_rgb(RGB), ValueError, "expected NV12 or P010"),
        (lambda p: p.nv12_to_rgb(NV12[:80]), ValueError, "H \\* 3 / 2"),
        (lambda p: p.nv12_to_rgb((NV12, NV12, NV12)), ValueError, "a pair of planes"),
        (lambda p: p.nv12_to_rgb((NV12[:54], NV12[54:])), ValueError, "do not fit nv12"),
        (lambda p: p.nv12_to_rgb(NV12.astype(np.float32)), ValueError, "uint8 \\(NV12\\)"),
        (lambda p: CUDAKernelProcessor(device="cpu", stream_count=0), ValueError, "at least 1"),
        (lambda p: CUDAKernelProcessor(device="cuda"), DeviceError, "GPU 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(processor, call, error, message):
    with pytest.raises(error, match=message):
        call(processor)


def test_an_array_on_a_gpu_is_no_business_of_a_processor_on_the_host(processor):
    from fake_cupy import FakeArray

    with pytest.raises(DeviceError, match="array on a GPU was given"):
        processor.fused_preprocess(RGB.view(FakeArray))
