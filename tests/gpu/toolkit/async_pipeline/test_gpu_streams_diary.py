"""Tests of which CUDA stream waits for which, with a fake CuPy that keeps a diary, and references as kernels."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from watched_runs import watched

from fake_cupy import FakeArray, fake_cupy
from vitascope import device as device_module
from vitascope.device import Device
from vitascope.errors import DeviceMemoryError
from vitascope.gpu import AsyncPipeline, CUDAKernelProcessor, PrefetchDataLoader
from vitascope.gpu.kernels import resize_normalize as resize_normalize_cuda
from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.gpu.memory import pinned_pool
from vitascope.gpu.toolkit import processor as processor_module

RGB = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


class OnFakeGpu(FakeArray):
    """A fake array that also says which GPU it is on."""

    device = SimpleNamespace(id=0)


OnFakeGpu.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    fake = fake_cupy()
    fake.asarray = lambda array, *_: (
        array if isinstance(array, FakeArray) else np.array(array).view(OnFakeGpu)
    )
    fake.empty = lambda shape, dtype=np.float32: np.full(shape, 77, dtype).view(OnFakeGpu)
    fake.stack = lambda arrays: np.stack(arrays).view(OnFakeGpu)
    fake.cuda.runtime.deviceSynchronize = lambda: None
    fake.cuda.get_elapsed_time = lambda start, stop: 1.0
    stream = fake.cuda.Stream
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(pinned_pool, "_SHARED", {})  # do not borrow another test's memory
    monkeypatch.setattr(device_module, "_gpu_device", lambda index: Device("cuda", "Fake GPU", index))

    def reference(images, gain, offset, *, shape, out, **options):
        made = resize_normalize(
            images.view(np.ndarray),
            mean=-np.asarray(offset) / gain,
            std=1 / np.asarray(gain),
            scale=1.0,
            **options,
        )
        fake.diary.append(("kernel", stream.here.current.ptr))
        if out is None:
            return made.view(OnFakeGpu)
        out[...] = made
        return out

    monkeypatch.setattr(resize_normalize_cuda, "_launch_resize_normalize", reference)
    return fake


def place(diary, entry):
    assert entry in diary, diary
    return diary.index(entry)


def test_an_asynchronous_call_runs_behind_the_callers_stream_and_the_caller_behind_it(cupy):
    with CUDAKernelProcessor(device="cuda", stream_count=2) as gpu, cupy.cuda.Stream() as mine:
        frame = cupy.asarray(RGB)
        pending = [gpu.fused_preprocess(frame, (8, 8), async_exec=True) for _ in range(3)]
        results = [result.wait() for result in pending]
    diary = cupy.diary
    lanes = [entry[1] for entry in diary if entry[0] == "kernel"]
    assert lanes[0] == lanes[2] != lanes[1]  # two streams, in turn
    assert mine.ptr not in lanes
    # The caller's stream records, the lane waits for that, computes and records; then the caller waits.
    recorded = next(entry for entry in diary if entry[:2] == ("record", mine.ptr))
    waited = place(diary, ("wait", lanes[0], recorded[2]))
    computed = diary.index(("kernel", lanes[0]))
    assert waited < computed
    behind = next(entry for entry in diary[computed:] if entry[:2] == ("record", lanes[0]))
    assert place(diary, ("wait", mine.ptr, behind[2])) > diary.index(behind)
    assert not any(entry[0] == "host waits" and entry[1] == recorded[2] for entry in diary)
    for result in results:
        assert isinstance(result, FakeArray)


def test_a_call_on_the_gpu_stays_on_the_callers_stream_and_does_not_wait(cupy):
    with CUDAKernelProcessor(device="cuda") as gpu, cupy.cuda.Stream() as mine:
        gpu.fused_preprocess(cupy.asarray(RGB), (8, 8))
        assert cupy.diary == [("kernel", mine.ptr)]


def test_a_call_on_tensors_runs_on_their_stream_and_leaves_it_afterwards(cupy, monkeypatch):
    monkeypatch.setattr(processor_module, "callers_stream", lambda given, device_id: 4242)
    with CUDAKernelProcessor(device="cuda") as gpu, cupy.cuda.Stream() as mine:
        gpu.fused_preprocess(cupy.asarray(RGB), (8, 8))
        assert cupy.diary == [("kernel", 4242)]
        assert cupy.cuda.get_current_stream() is mine


@pytest.mark.parametrize("handle", [None, 4242])
def test_a_gpu_without_memory_is_named_on_every_stream(cupy, monkeypatch, handle):
    def full(*_):
        raise cupy.cuda.memory.OutOfMemoryError

    monkeypatch.setattr(processor_module, "callers_stream", lambda given, device_id: handle)
    monkeypatch.setattr(cupy, "empty", full)
    with CUDAKernelProcessor(device="cuda") as gpu, pytest.raises(DeviceMemoryError, match="is used up"):
        gpu.fused_preprocess(cupy.asarray(RGB), (8, 8))


def test_one_picture_is_written_to_the_result_itself(cupy):
    """Check that no views are made: in CuPy each takes microseconds, as long as the kernel."""
    views = []

    class Counted(OnFakeGpu):
        def __getitem__(self, key):
            views.append(key)
            return super().__getitem__(key)

    Counted.__module__ = "cupy"
    out = np.zeros((1, 3, 8, 8), np.float32).view(Counted)
    with CUDAKernelProcessor(device="cuda") as gpu:
        assert gpu.fused_preprocess(np.array(RGB).view(Counted), (8, 8), out=out) is out
        assert views == []
        expected = gpu.fused_preprocess(cupy.asarray(RGB), (8, 8))
    np.testing.assert_array_equal(np.asarray(out), np.asarray(expected))


@pytest.mark.parametrize("async_exec", [False, True])
def test_a_picture_of_the_host_goes_up_and_its_result_comes_down(cupy, async_exec):
    out = np.full((1, 3, 8, 8), np.nan, np.float32)
    with CUDAKernelProcessor(device="cuda") as gpu, CUDAKernelProcessor(device="cpu") as host:
        for target in (None, out):
            result = gpu.fused_preprocess(RGB, (8, 8), out=target, async_exec=async_exec)
            result = result.wait() if async_exec else result
            assert type(result) is np.ndarray
            np.testing.assert_allclose(result, host.fused_preprocess(RGB, (8, 8)), atol=1e-5)
        assert result is out


def test_the_network_waits_for_every_picture_of_its_batch(cupy):
    """Check that a batch waits for the events of its pictures, which were made on other streams."""
    cupy.is_slow = True

    def model(batch):
        cupy.diary.append(("network", cupy.cuda.get_current_stream().ptr))
        return batch * 2

    config = {"batch_size": 3, "timeout_ms": 60_000, "preprocess_streams": 2}

    def run():
        with AsyncPipeline(model, config, device="cuda", target_size=(8, 8)) as pipeline:
            for n in range(6):
                pipeline.submit_frame(RGB, n)
            return [pipeline.get_result(timeout_s=20) for _ in range(6)]

    results = watched(run)
    assert [result.frame_id for result in results] == list(range(6))
    assert all(type(result.data) is np.ndarray for result in results)
    diary = cupy.diary
    (network,) = {entry[1] for entry in diary if entry[0] == "network"}
    makers = {entry[1] for entry in diary if entry[0] == "kernel"}
    assert network not in makers
    made = {entry[2] for entry in diary if entry[0] == "record" and entry[1] in makers}
    first, second = (n for n, entry in enumerate(diary) if entry[0] == "network")
    waits = [
        n for n, entry in enumerate(diary) if entry[0] == "wait" and entry[1] == network and entry[2] in made
    ]
    assert sum(n < first for n in waits) == 3
    assert sum(first < n < second for n in waits) == 3


def test_a_prefetched_batch_is_read_behind_its_copy(cupy):
    with cupy.cuda.Stream() as mine:
        for sample, name in PrefetchDataLoader([(RGB, "a"), (RGB, "b")], "cuda"):
            assert isinstance(sample, FakeArray)
            copied = [n for n, entry in enumerate(cupy.diary) if entry[0] == "copy"]
            assert len(copied) >= 1 + (name == "b")
            waited = {entry[2] for entry in cupy.diary if entry[0] == "wait" and entry[1] == mine.ptr}
            for n in copied[: 1 + (name == "b")]:
                behind = {e[2] for e in cupy.diary[n:] if e[0] == "record" and e[1] == cupy.diary[n][1]}
                assert cupy.diary[n][1] != mine.ptr
                assert behind & waited


def test_frames_of_a_call_are_prepared_side_by_side(cupy):
    """Check that pictures are written directly into the network's batch."""

    def brought_together(arrays):
        raise AssertionError("stacked")

    cupy.stack = brought_together
    seen = []

    def model(batch):
        seen.append((np.array(batch), sys.getswitchinterval()))
        return batch * 2

    config = {"batch_size": 3, "timeout_ms": 60_000, "preprocess_streams": 2}
    frames = [np.full((16, 16, 3), n, np.uint8) for n in range(6)]
    before = sys.getswitchinterval()

    def run():
        with AsyncPipeline(
            model, config, device="cuda", target_size=(8, 8), mean=(0, 0, 0), std=(1, 1, 1)
        ) as one:
            for frame in frames:
                one.submit_frame(frame)
            return [one.get_result(timeout_s=20) for _ in frames]

    watched(run)
    assert [list(np.round(batch[:, 0, 0, 0] * 255)) for batch, _ in seen] == [[0, 1, 2], [3, 4, 5]]
    # Threads of a pipeline on a GPU take short turns; afterwards the interval is restored.
    assert all(interval == pytest.approx(min(0.0005, before), abs=1e-5) for _, interval in seen)
    assert sys.getswitchinterval() == pytest.approx(before)


@pytest.mark.parametrize("leaves_after", [2, 6])
def test_a_prefetched_batch_is_let_go_behind_the_callers_work_also_at_the_end(cupy, leaves_after):
    cupy.is_slow = True
    with cupy.cuda.Stream() as mine:
        marked = []
        batches = iter(PrefetchDataLoader([np.full((4, 4), n, np.float32) for n in range(6)], "cuda"))
        for _ in range(leaves_after):
            next(batches)
            marked = [entry[2] for entry in cupy.diary if entry[:2] == ("record", mine.ptr)]
        batches.close()
        marked = [entry[2] for entry in cupy.diary if entry[:2] == ("record", mine.ptr)]
    assert len(marked) >= leaves_after
    waited = {entry[1] for entry in cupy.diary if entry[0] == "host waits"}
    assert set(marked) <= waited
