"""Tests of batching on a real GPU: streams, late arrays, memory shortages, CUDA graphs by buckets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpu_turns import release_gpu_memory
from vitascope.gpu import (
    AdaptiveBatchSizer,
    BatchConfig,
    BatchSizeOptimizer,
    DynamicBatcher,
    InferenceRequest,
    StreamBatcher,
)

pytestmark = pytest.mark.cuda

FULL = BatchConfig(max_batch_size=4, timeout_ms=10_000)


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.fixture
def torch():
    import torch

    return torch


def slow_ones(torch, n):
    """Return a tensor that the GPU fills with ``n`` after a delay, on the current stream."""
    tensor = torch.zeros(1 << 16, device="cuda")
    torch.cuda._sleep(20_000_000)  # about 10 ms
    tensor.fill_(n)
    return tensor


def test_torch_requests_are_read_when_they_are_ready(torch):
    streams = set()

    def infer(batch):
        streams.add(torch.cuda.current_stream().cuda_stream)
        return batch * 2

    def client(n):
        with torch.cuda.stream(torch.cuda.Stream()):
            return batcher.submit(InferenceRequest(slow_ones(torch, n), n)).data

    with DynamicBatcher(FULL, infer, device="cuda") as batcher, ThreadPoolExecutor(4) as clients:
        results = list(clients.map(client, range(16)))
    assert [float(result.min()) for result in results] == [2.0 * n for n in range(16)]
    assert [float(result.max()) for result in results] == [2.0 * n for n in range(16)]
    assert len(streams) == 1
    assert torch.cuda.default_stream().cuda_stream not in streams


def test_cupy_requests_are_read_when_they_are_ready(cupy, torch):
    streams = set()

    def infer(batch):
        streams.add(cupy.cuda.get_current_stream().ptr)
        return {"twice": batch * 2, "once": batch}

    def client(n):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            array = cupy.zeros(1 << 16, cupy.float32)
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                torch.cuda._sleep(20_000_000)
            array.fill(n)
            return batcher.submit(InferenceRequest(array, n)).data

    with DynamicBatcher(FULL, infer, device="cuda") as batcher, ThreadPoolExecutor(4) as clients:
        results = list(clients.map(client, range(16)))
    assert [float(result["twice"].min()) for result in results] == [2.0 * n for n in range(16)]
    assert [float(result["once"].max()) for result in results] == [float(n) for n in range(16)]
    assert 0 not in streams


def test_frames_of_the_host_may_become_results_on_the_gpu(torch):
    """Check the guide's own function, which uploads the batch itself."""
    model = torch.nn.Conv2d(3, 4, 3, padding=1).cuda()

    def infer(batch):
        with torch.inference_mode():
            return model(torch.from_numpy(batch).cuda())

    frame = np.random.default_rng(0).random((3, 32, 32), np.float32)
    with DynamicBatcher(BatchConfig(timeout_ms=0), infer) as batcher:
        response = batcher.submit(InferenceRequest(frame, "frame_001"))
    with torch.inference_mode():
        expected = model(torch.from_numpy(frame[None]).cuda())[0]
    assert response.data.is_cuda
    torch.testing.assert_close(response.data, expected)


def test_batches_in_flight_have_streams_of_their_own(torch):
    streams = set()

    def infer(batch):
        streams.add(torch.cuda.current_stream().cuda_stream)
        torch.cuda._sleep(5_000_000)
        return batch + 1

    config = BatchConfig(max_batch_size=1, timeout_ms=0)
    with StreamBatcher(config, infer, num_streams=2, device="cuda") as batcher:
        futures = [
            batcher.submit_async(InferenceRequest(torch.full((8,), n, device="cuda"), n)) for n in range(20)
        ]
        assert [float(future.result(30).data[0]) for future in futures] == [n + 1 for n in range(20)]
    assert len(streams) == 2


def test_an_engine_needs_one_graph_for_each_bucket(torch):
    from vitascope.gpu.engines import TensorSpec
    from vitascope.gpu.engines.torch_engine import TorchEngine

    torch.manual_seed(0)
    single = np.dtype(np.float32)
    engine = TorchEngine(
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 3)),
        inputs=[TensorSpec("x", single, ("n", 3, 16, 16))],
        outputs=[TensorSpec("y", single, ("n", 2, 12, 12))],
        device="cuda:0",
        allow_tf32=False,
    )
    pictures = torch.rand(37, 3, 16, 16, device="cuda")
    expected = [engine.run_tensors((picture[None],))[0][0] for picture in pictures]
    config = BatchConfig(max_batch_size=8, timeout_ms=1, bucket_sizes=(1, 4, 8))
    with engine, DynamicBatcher(config, lambda x: engine.run_tensors((x,))[0], device="cuda") as batcher:
        with ThreadPoolExecutor(13) as clients:
            responses = list(
                clients.map(lambda n: batcher.submit(InferenceRequest(pictures[n], n)), range(37))
            )
        assert engine.plan_count <= 3
        assert {response.padded_size for response in responses} <= {1, 4, 8}
        for response, wanted in zip(responses, expected, strict=True):
            torch.testing.assert_close(response.data, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.whole_gpu
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_no_frame_is_lost_when_the_gpu_runs_out_of_memory(library, cupy, torch):
    free, total = cupy.cuda.runtime.memGetInfo()
    each = free // 5  # four of these fit
    calls = []

    def infer(batch):
        calls.append(len(batch))
        if library == "cupy":
            scratch = cupy.empty(each * len(batch), cupy.uint8)
        else:
            scratch = torch.empty(each * len(batch), dtype=torch.uint8, device="cuda")
        del scratch
        return [frame * 10 for frame in batch]

    sizer = AdaptiveBatchSizer(8, max_batch_size=8, growing=False)
    assert sizer.process(range(20), infer) == [n * 10 for n in range(20)]
    assert calls[:2] == [8, 4]
    assert sizer.shortage_count == 1
    assert cupy.cuda.runtime.memGetInfo()[0] < total


@pytest.mark.whole_gpu
def test_the_best_size_is_bounded_by_memory(cupy, torch):
    release_gpu_memory()  # free idle memory, which batches could use but which does not count as free
    free, _ = cupy.cuda.runtime.memGetInfo()
    each = int(
        free / 11.5
    )  # 12 need half a share more than exists; the driver frees less than that meanwhile
    weight = torch.rand(2048, 2048, device="cuda")

    def infer(batch):
        scratch = torch.empty(each * len(batch), dtype=torch.uint8, device="cuda")
        result = batch @ weight
        del scratch
        return result

    found = BatchSizeOptimizer(
        infer,
        torch.rand(2048, device="cuda"),
        max_batch_size=64,
        rounds=3,
        max_memory_percent=1.0,
        device="cuda",
    ).search()
    assert 1 <= found.batch_size <= 11
    assert [one for one in found.measurements if one.verdict == "out of memory"]
