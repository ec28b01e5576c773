"""Tests of converting a frame to RGB with its own method."""

from __future__ import annotations

import av
import numpy as np
import pytest

import vitascope
from clips import write_clip
from photographs import astronaut
from pictures import solid_frame
from vitascope.errors import UsageError
from vitascope.frames import PIXEL_FORMATS


@pytest.mark.parametrize("name", ["yuv420p", "nv12", "yuv422p10le", "yuv444p"])
@pytest.mark.parametrize(("dtype", "scale"), [("uint8", 1), ("float32", 255), ("float16", 255)])
def test_a_colour_comes_out_as_it_went_in(name, dtype, scale):
    rgb = solid_frame(PIXEL_FORMATS[name], (6, 10), (0.2, 0.5, 0.8)).to_rgb(dtype=dtype)
    assert rgb.shape == (6, 10, 3)
    assert rgb.dtype == dtype
    assert rgb.flags.c_contiguous
    assert np.abs(rgb.astype(float) * scale - 255 * np.array([0.2, 0.5, 0.8])).max() <= 2


def test_a_decoded_frame_looks_as_ffmpeg_shows_it(tmp_path):
    path = write_clip(
        tmp_path / "in.mp4", width=128, height=96, frame_count=2, color_tags=(1, 1, 1, 1),
        paint=lambda index: np.ascontiguousarray(astronaut()[:96, 128:256]),
    )  # fmt: skip
    with vitascope.open_video(path) as reader:
        ours = next(reader).to_rgb()
    with av.open(str(path)) as container:
        theirs = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert np.abs(ours.astype(int) - theirs).mean() < 2


def test_arrays_on_a_device_need_one(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    with (
        vitascope.Segmenter(profile="fast", settings={"gpu.device": "cpu"}) as segmenter,
        pytest.raises(vitascope.errors.UsageError, match="device_arrays needs a GPU"),
    ):
        next(segmenter.stream(clip, device_arrays=True))


@pytest.mark.cuda
def test_arrays_stay_on_the_gpu_and_are_those_that_come_down(tmp_path):
    import cupy

    clip = write_clip(
        tmp_path / "in.mp4", width=256, height=192, frame_count=40,
        paint=lambda index: np.ascontiguousarray(np.roll(astronaut(), index, axis=1)[:192, :256]),
    )  # fmt: skip
    with vitascope.Segmenter(profile="fast", settings={"gpu.device": "cuda"}) as segmenter:
        expected = [(step.frame.index, step.alpha, step.frame.to_rgb()) for step in segmenter.stream(clip)]
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            found = [
                (step.frame.index, step.alpha.copy(), step.frame.to_rgb())
                for step in segmenter.stream(clip, device_arrays=True)
            ]
        stream.synchronize()
    assert len(found) == len(expected) == 40
    for (index, alpha, rgb), (index_gpu, alpha_gpu, rgb_gpu) in zip(expected, found, strict=True):
        assert index == index_gpu
        assert isinstance(alpha_gpu, cupy.ndarray)
        assert isinstance(rgb_gpu, cupy.ndarray)
        np.testing.assert_array_equal(alpha, cupy.asnumpy(alpha_gpu))
        assert np.abs(rgb.astype(int) - cupy.asnumpy(rgb_gpu)).max() <= 1


@pytest.mark.cuda
def test_pytorch_takes_alpha_through_dlpack(tmp_path):
    torch = pytest.importorskip("torch")
    clip = write_clip(tmp_path / "in.mp4", frame_count=3)
    with vitascope.Segmenter(profile="fast", settings={"gpu.device": "cuda"}) as segmenter:
        for _, alpha in segmenter.stream(clip, device_arrays=True):
            assert torch.from_dlpack(alpha).shape == alpha.shape


def test_another_dtype_is_refused():
    frame = solid_frame(PIXEL_FORMATS["yuv420p"], (6, 10), (0.2, 0.5, 0.8))
    assert frame.to_rgb(dtype=np.float32).dtype == np.float32
    with pytest.raises(UsageError, match="dtype is 'int8', expected uint8, float16 or float32"):
        frame.to_rgb(dtype="int8")
