"""Tests of the profiler on a real GPU: its clock, streams, kernels, memory and load."""

from __future__ import annotations

import time

import pytest

from vitascope.gpu import BottleneckDetector, CUDAProfiler, MemoryProfiler, Profiler
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Map, Sink, Source
from vitascope.gpu.profiling.gpu_clock import StreamTimes
from vitascope.gpu.profiling.utilisation import NvmlGpu, UtilisationSampler

pytestmark = [pytest.mark.cuda, pytest.mark.whole_gpu]

SPIN = r"""
extern "C" __global__ void spin(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}
"""


@pytest.fixture(scope="module")
def spin():
    """Return a function that keeps the current stream busy for some milliseconds."""
    import cupy

    kernel = cupy.RawKernel(SPIN, "spin")
    kernel((1,), (1,), (1000,))
    cupy.cuda.get_current_stream().synchronize()
    return lambda milliseconds: kernel((1,), (1,), (int(milliseconds * 1e6),))


def test_gpu_time_is_that_of_the_kernels_and_the_host_does_not_wait(spin):
    import cupy

    profiler = Profiler(device="cuda")
    with profiler.profile("warm-up"):
        spin(1)
    profiler.stats()
    for _ in range(100):
        with profiler.profile("network"):
            spin(5)
    behind = cupy.cuda.Event()
    behind.record()
    assert not behind.done  # half a second of work was launched without waiting
    row = profiler.by_name()["network"]
    assert row.gpu.count == 100
    assert row.gpu.mean_seconds == pytest.approx(5e-3, rel=0.1)
    assert row.total_seconds < row.gpu.total_seconds


def test_sums_alone_are_those_of_a_profiler(spin):
    import cupy

    profiler, times = Profiler(device="cuda"), StreamTimes()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        for number in range(100):
            with profiler.profile("network"), times.profile("network"):
                spin(2)
            with times.profile("composite"), profiler.profile("composite"):
                spin(1)
            if number == 50:
                stream.synchronize()  # half are read on the way, half at the end
    sums = times.gpu_seconds()
    assert sums == pytest.approx({"network": 0.2, "composite": 0.1}, rel=0.1)
    assert profiler.gpu_seconds() == pytest.approx(sums, rel=0.02)


def test_spans_of_two_streams_lie_side_by_side(spin):
    import cupy

    profiler = Profiler(device="cuda")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    for _ in range(3):
        for stream in streams:
            with stream, profiler.profile("work"):
                spin(10)
    times = sorted(span.gpu for span in profiler.spans())
    assert {time.stream for time in times} == {stream.ptr for stream in streams}
    first, second = ([t for t in times if t.stream == stream.ptr] for stream in streams)
    for one, other in zip(first, second, strict=True):
        assert abs(one.start_seconds - other.start_seconds) < 8e-3  # they overlap
    for one in times:
        assert one.seconds == pytest.approx(10e-3, rel=0.3)


def test_a_gpu_span_begins_after_its_host_span(spin):
    profiler = Profiler(device="cuda")
    for _ in range(20):
        with profiler.profile("work"):
            spin(1)
        time.sleep(0.005)
    for span in profiler.spans():
        delay = span.gpu.start_seconds - span.began_ns * 1e-9
        assert -1e-3 < delay < 3e-3


def test_pytorchs_stream_is_timed_where_that_is_current(spin):
    torch = pytest.importorskip("torch")
    profiler = Profiler(device="cuda")
    stream = torch.cuda.Stream()
    matrix = torch.rand(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), profiler.profile("matmul"):
        for _ in range(20):
            matrix @ matrix
    (span,) = profiler.spans()
    assert span.gpu.stream == stream.cuda_stream
    assert span.gpu.seconds > 1e-4


def test_inside_a_captured_graph_nothing_is_timed():
    torch = pytest.importorskip("torch")
    profiler = Profiler(device="cuda")
    matrix = torch.rand(256, 256, device="cuda")
    matrix @ matrix  # create cuBLAS's handle outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), profiler.profile("captured"):
        matrix @ matrix
    with profiler.profile("replayed"):
        graph.replay()
    rows = profiler.by_name()
    assert rows["captured"].gpu is None
    assert rows["replayed"].gpu.count == 1


def test_the_kernel_table(spin):
    torch = pytest.importorskip("torch")
    matrix = torch.rand(1024, 1024, device="cuda")
    with CUDAProfiler(device="cuda") as profiler:
        for _ in range(10):
            matrix @ matrix
        matrix.cpu()
        spin(20)  # CuPy's kernels are included
    kernels = {row.name: row for row in profiler.kernels()}
    assert kernels["spin"].total_seconds == pytest.approx(20e-3, rel=0.1)
    assert sum(row.count for row in kernels.values()) >= 11
    assert sum(row.share for row in kernels.values()) == pytest.approx(1.0)
    assert any("DtoH" in row.kind for row in profiler.copies())
    timeline = profiler.timeline()
    assert 0.02 <= timeline.busy_seconds <= timeline.wall_seconds
    assert timeline.sync_count >= 1
    assert "GPU busy" in profiler.summary()


def test_memory_of_the_gpu():
    import cupy

    with MemoryProfiler(device="cuda", interval_seconds=0.005) as memory:
        block = cupy.zeros(256 << 20, cupy.uint8)
        time.sleep(0.05)
        del block
        cupy.get_default_memory_pool().free_all_blocks()
        time.sleep(0.05)
    first, last, peak = memory.timeline()[0].gpu, memory.timeline()[-1].gpu, memory.peak()
    assert peak.gpu_allocated_bytes >= first.in_tensors_bytes + (256 << 20)
    assert last.in_tensors_bytes < peak.gpu_allocated_bytes
    assert memory.leaks() == []


def test_a_leak_on_the_gpu():
    import cupy

    kept = []
    with MemoryProfiler(device="cuda") as memory:
        for _ in range(40):
            kept.append(cupy.zeros(1 << 20, cupy.uint8))
            memory.step()
    (leak,) = [leak for leak in memory.leaks() if leak.what == "gpu"]
    assert leak.bytes_per_step == pytest.approx(1 << 20, rel=0.01)
    assert len(kept) == 40


def keep_busy(spin, seconds):
    """Keep the GPU busy, as the driver's load figure lags by up to a second."""
    import cupy

    for _ in range(int(seconds * 100)):
        spin(10)
    cupy.cuda.get_current_stream().synchronize()


def test_load_of_the_gpu(spin):
    pytest.importorskip("pynvml")
    keep_busy(spin, 1.0)
    with UtilisationSampler(interval_seconds=0.1, device="cuda") as sampler:
        keep_busy(spin, 1.5)
    load = sampler.summary()
    assert load.gpu_percent > 50
    assert load.limits.memory_bytes > 10**9
    assert 0 < load.memory_share < 1
    with NvmlGpu() as gpu:
        assert gpu.figures().temperature_celsius > 0


def test_the_verdict_on_a_stage_that_keeps_the_gpu_busy(spin):
    pytest.importorskip("pynvml")
    import cupy

    profiler = Profiler(device="cuda")

    def infer(item):
        with profiler.profile("infer"):
            spin(20)
        cupy.cuda.get_current_stream().synchronize()
        return item

    keep_busy(spin, 1.0)
    with UtilisationSampler(interval_seconds=0.1, device="cuda") as sampler:
        report = Pipeline(
            [Source("decode", range(100)), Map("infer", infer), Sink("encode", lambda item: None)]
        ).run()
    verdict = BottleneckDetector().analyze(
        report, utilisation=sampler.summary(), gpu_seconds=profiler.gpu_seconds()
    )
    assert (verdict.main.kind, verdict.main.stage) == ("gpu_bound", "infer")
