"""Check that the asynchronous pipeline gives the CPU's results on a GPU, for every kind of frame and network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_async_pipeline import RGB, run_through
from watched_runs import watched

from pictures import random_frame
from vitascope.errors import PipelineError
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu import AsyncPipeline

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("no_thread_outlives_its_pipeline")]


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1))


def on_host(array):
    if isinstance(array, np.ndarray):
        return array
    return array.get() if hasattr(array, "get") else array.cpu().numpy()


def makers():
    import cupy

    return [np.asarray, cupy.asarray, torch.from_numpy, lambda array: torch.from_numpy(array).cuda()]


@pytest.mark.parametrize("maker", range(4))
@pytest.mark.parametrize("postprocess", [None, "mask"])
def test_results_are_the_hosts_in_the_frames_kind(maker, postprocess):
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (60, 80, 3), dtype=np.uint8) for _ in range(40)]
    options = {"target_size": (48, 64), "postprocess": postprocess}
    expected = run_through(AsyncPipeline(network(), device="cpu", **options), pictures)
    frames = [makers()[maker](picture) for picture in pictures]
    pipeline = AsyncPipeline(network(), {"batch_size": 4, "queue_size": 8}, device="cuda", **options)
    results = run_through(pipeline, frames)
    assert [result.frame_id for result in results] == list(range(40))
    for result, wanted, frame in zip(results, expected, frames, strict=True):
        assert type(result.data) is type(frame)
        assert str(getattr(result.data, "device", "")) == str(getattr(frame, "device", ""))
        got, want = on_host(result.data), np.asarray(wanted.data)
        if postprocess == "mask":
            assert (got == want).mean() > 0.99
        else:
            np.testing.assert_allclose(got, want, atol=2e-2)  # TF32 in the convolutions
    stats = pipeline.get_stats()
    assert stats.gpu_busy is not None
    assert 0 < stats.gpu_busy <= 1


@pytest.mark.parametrize("name", ["nv12", "p010le", "yuv420p"])
def test_frames_of_the_host(name):
    centred = ColorSpec(chroma_location="center")
    frames = [random_frame(PIXEL_FORMATS[name], (64, 96), color=centred, seed=n) for n in range(6)]
    expected = run_through(AsyncPipeline(network(), device="cpu", target_size=(32, 48)), frames)
    results = run_through(AsyncPipeline(network(), device="cuda", target_size=(32, 48)), frames)
    for result, wanted in zip(results, expected, strict=True):
        assert isinstance(result.data, np.ndarray)
        np.testing.assert_allclose(result.data, wanted.data, atol=3e-2)


def test_a_callable_gets_cupy_arrays():
    import cupy

    def model(batch):
        assert isinstance(batch, cupy.ndarray)
        return batch * 2

    (result,) = run_through(AsyncPipeline(model, device="cuda"), [RGB])
    np.testing.assert_allclose(result.data, np.moveaxis(RGB, -1, 0) * np.float32(2 / 255), atol=1e-5)


def test_memory_that_is_used_again_at_once_holds_no_other_frames_pixels():
    """Check that each result is from its own frame; a stream that reads too late would see another one's pixels."""
    import cupy

    def slow(batch):
        for _ in range(20):
            batch = batch * 1.0
        return batch

    frames = [cupy.full((270, 480, 3), n % 251, cupy.uint8) for n in range(300)]
    config = {"batch_size": 4, "queue_size": 6, "preprocess_streams": 4, "postprocess_threads": 4}
    results = run_through(AsyncPipeline(slow, config, device="cuda", target_size=(128, 128)), frames)
    means = [float(result.data.mean()) * 255 for result in results]
    np.testing.assert_allclose(means, [n % 251 for n in range(300)], atol=1e-2)


def test_a_frame_that_the_callers_stream_has_yet_to_write():
    stream = torch.cuda.Stream()
    with AsyncPipeline(lambda batch: batch, device="cuda") as pipeline:
        with torch.cuda.stream(stream):
            frame = torch.zeros((270, 480, 3), dtype=torch.uint8, device="cuda")
            torch.cuda._sleep(50_000_000)
            frame.fill_(255)
            pipeline.submit_frame(frame)
        result = watched(lambda: pipeline.get_result(timeout_s=20))
    assert float(result.data.min()) == 1.0


def test_a_failing_network_on_the_gpu_is_told():
    def model(batch):
        raise RuntimeError("no")

    with (
        pytest.raises(PipelineError, match="the network failed: no"),
        AsyncPipeline(model, device="cuda") as pipeline,
    ):
        pipeline.submit_frame(RGB)
        watched(lambda: pipeline.get_result(timeout_s=None))
