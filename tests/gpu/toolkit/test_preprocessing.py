from __future__ import annotations

import threading

import cv2
import numpy as np
import pytest
import torch
from watched_runs import BoomError, our_threads, watched

from vitascope.errors import PipelineError
from vitascope.gpu import CUDAKernelProcessor, PreprocessingPipeline

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")

FRAMES = [np.full((20, 30, 3), n, np.uint8) for n in range(40)]


def test_a_batch_comes_out_prepared_and_in_order():
    with PreprocessingPipeline(num_threads=4, target_size=(8, 8), mean=(0.5,) * 3, device="cpu") as pipeline:
        prepared = watched(lambda: pipeline.preprocess_batch(FRAMES))
    assert len(prepared) == len(FRAMES)
    with CUDAKernelProcessor(device="cpu") as processor:
        for frame, result in zip(FRAMES, prepared, strict=True):
            expected = processor.fused_preprocess(frame, (8, 8), mean=(0.5,) * 3)
            np.testing.assert_array_equal(result, expected)


def test_it_can_be_used_again_and_nothing_gives_nothing():
    with PreprocessingPipeline(2, device="cpu") as pipeline:
        assert pipeline.preprocess_batch([]) == []
        assert len(pipeline.preprocess_batch(FRAMES[:3])) == 3
        assert isinstance(pipeline.preprocess_batch([torch.from_numpy(FRAMES[0])])[0], torch.Tensor)


def test_num_threads_frames_are_worked_on_at_a_time():
    barrier = threading.Barrier(3)

    def meet(frame):
        barrier.wait(timeout=10)
        return frame

    pipeline = PreprocessingPipeline(num_threads=3, preprocess_frame=meet)
    assert watched(lambda: pipeline.preprocess_batch(range(9))) == list(range(9))


def test_a_failure_names_the_frame():
    def work(frame):
        if frame == 17:
            raise BoomError("boom")
        return frame

    pipeline = PreprocessingPipeline(num_threads=4, preprocess_frame=work)
    with pytest.raises(PipelineError, match=r"stage 'preprocess', item 17: frame 17: boom"):
        watched(lambda: pipeline.preprocess_batch(range(40)))


def test_a_stream_reads_little_ahead_and_can_be_left():
    read = []

    def frames():
        for n in range(10_000):
            read.append(n)
            yield n

    pipeline = PreprocessingPipeline(num_threads=2, preprocess_frame=lambda n: n * n)
    stream = pipeline.stream(frames())
    assert [next(stream) for _ in range(3)] == [0, 1, 4]
    stream.close()
    assert len(read) < 20
    assert our_threads() == []


def test_numbers_of_threads():
    assert PreprocessingPipeline(device="cpu").num_threads >= 1
    with pytest.raises(ValueError, match="at least 1"):
        PreprocessingPipeline(num_threads=0, device="cpu")


def test_a_function_of_opencvs_works_as_it_is():
    pipeline = PreprocessingPipeline(num_threads=2, preprocess_frame=lambda f: cv2.resize(f, (4, 4)))
    assert [result.shape for result in pipeline.preprocess_batch(FRAMES[:5])] == [(4, 4, 3)] * 5


@pytest.mark.cuda
def test_on_a_gpu():
    with (
        PreprocessingPipeline(num_threads=4, target_size=(8, 8), device="cuda") as pipeline,
        CUDAKernelProcessor(device="cpu") as processor,
    ):
        for frame, result in zip(FRAMES, pipeline.preprocess_batch(FRAMES), strict=True):
            np.testing.assert_allclose(result, processor.fused_preprocess(frame, (8, 8)), atol=1e-4)


def test_a_subclass_says_what_is_done_to_a_frame():
    class Halving(PreprocessingPipeline):
        def __init__(self, num_threads=32):
            super().__init__(num_threads)

        def preprocess_frame(self, frame):
            return cv2.resize(frame, None, fx=0.5, fy=0.5)

    with Halving(num_threads=4) as pipeline:
        prepared = watched(lambda: pipeline.preprocess_batch(FRAMES))
    assert [frame.shape for frame in prepared] == [(10, 15, 3)] * len(FRAMES)
    assert [int(frame[0, 0, 0]) for frame in prepared] == list(range(len(FRAMES)))


def test_a_subclass_may_add_to_what_the_pipeline_does():
    class Shifted(PreprocessingPipeline):
        def preprocess_frame(self, frame):
            return super().preprocess_frame(frame) + 1

    with Shifted(2, preprocess_frame=lambda frame: int(frame[0, 0, 0])) as pipeline:
        assert pipeline.preprocess_batch(FRAMES[:3]) == [1, 2, 3]
    with Shifted(2, target_size=(8, 8), device="cpu") as pipeline:
        (prepared,) = pipeline.preprocess_batch([np.zeros((20, 30, 3), np.uint8)])
    assert prepared.shape == (1, 3, 8, 8)
    assert (prepared == 1).all()
