"""Check that objects with threads raise an error in a fork, which lacks the threads, instead of waiting forever."""

from __future__ import annotations

import numpy as np
import pytest

from forks import said_in_a_fork
from vitascope.gpu import AsyncPipeline, BatchConfig, CUDAKernelProcessor, DynamicBatcher, InferenceRequest

FRAME = np.zeros((12, 16, 3), np.uint8)
REFUSED = "UsageError: {} was opened before this process was forked, and its threads stayed behind"


@pytest.mark.parametrize("call", ["submit", "submit_async", "client"])
def test_a_batcher(call):
    request = InferenceRequest(FRAME, 1)
    with DynamicBatcher(BatchConfig(timeout_ms=1), lambda batch: batch, device="cpu") as batcher:
        batcher.submit(request)
        calls = {
            "submit": lambda: batcher.submit(request),
            "submit_async": lambda: batcher.submit_async(request).result(),
            "client": lambda: batcher.client().__enter__(),
        }
        assert said_in_a_fork(calls[call]).startswith(REFUSED.format("the batcher"))
        assert batcher.submit(request).batch_size == 1


def test_an_async_pipeline():
    with AsyncPipeline(lambda batch: batch, device="cpu", target_size=(8, 8)) as pipeline:
        pipeline.submit_frame(FRAME, "first")
        refused = REFUSED.format("the AsyncPipeline")
        assert said_in_a_fork(lambda: pipeline.submit_frame(FRAME)).startswith(refused)
        assert said_in_a_fork(lambda: pipeline.get_result(timeout_s=None)).startswith(refused)
        assert pipeline.get_result(timeout_s=30).frame_id == "first"


def test_a_processor_whose_threads_have_begun():
    with CUDAKernelProcessor(device="cpu") as processor:
        processor.fused_preprocess(FRAME, async_exec=True).wait()
        later = said_in_a_fork(lambda: processor.fused_preprocess(FRAME, async_exec=True).wait())
        assert later.startswith(REFUSED.format("the processor"))
        assert said_in_a_fork(lambda: processor.fused_preprocess(FRAME).shape) == "(1, 3, 12, 16)"
