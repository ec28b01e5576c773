"""Tests of the frames of a call: gathered before the network, kept together after it, settled at once on a GPU."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from watched_runs import watched

from fake_cupy import FakeArray
from vitascope.device import Device
from vitascope.errors import ConfigError, EngineError, PipelineError
from vitascope.gpu import AsyncPipeline
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool
from vitascope.gpu.toolkit.async_pipeline import Call, Job, settle_on_gpu
from waiting import eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")

RGB = np.full((4, 6, 3), 7, np.uint8)
FOUR = {"batch_size": 4, "timeout_ms": 60_000, "queue_size": 8}


def results_of(pipeline, count):
    def run():
        with pipeline:
            for n in range(count):
                pipeline.submit_frame(RGB, n)
            pipeline.finish()
            return list(pipeline.results())

    return watched(run)


def test_the_next_call_is_gathered_while_one_is_computed() -> None:
    gate, begun = threading.Event(), threading.Event()

    def model(batch):
        begun.set()
        gate.wait(20)
        return batch

    with AsyncPipeline(model, FOUR, device="cpu") as pipeline:
        for n in range(8):
            pipeline.submit_frame(RGB, n)
        begun.wait(20)
        eventually(lambda: pipeline.get_stats().stages["gather"].items == 8)
        assert pipeline.get_stats().stages["infer"].items == 0
        gate.set()
        pipeline.finish()
        assert [result.frame_id for result in pipeline.results()] == list(range(8))


def test_the_network_may_not_stop_the_pipeline_that_waits_for_it() -> None:
    def model(batch):
        with pytest.raises(RuntimeError, match=r"call finish\(\) there"):
            pipeline.stop()
        return batch

    pipeline = AsyncPipeline(model, device="cpu")
    assert len(results_of(pipeline, 2)) == 2


def test_no_call_follows_one_that_failed() -> None:
    sizes = []

    def model(batch):
        sizes.append(len(batch))
        raise ValueError("no")

    with pytest.raises(PipelineError, match=r"stage 'infer'.*frames 0, 1, 2, 3: the network failed: no"):
        results_of(AsyncPipeline(model, FOUR, device="cpu"), 8)
    assert sizes == [4]


@pytest.mark.parametrize("option", [None, "postprocess", "encode"])
def test_frames_of_a_call_part_only_for_the_users_own_functions(option) -> None:
    """Check that four frames run at once, waiting for each other; without such a function a call stays whole."""
    barrier = threading.Barrier(4)

    def meet(data, _):
        barrier.wait(timeout=10)
        return data

    config = FOUR | {"postprocess_threads": 4, "encode_threads": 4}
    functions = {} if option is None else {option: meet}
    pipeline = AsyncPipeline(lambda batch: batch, config, device="cpu", **functions)
    assert [result.frame_id for result in results_of(pipeline, 8)] == list(range(8))
    report = {stage.name: stage.items for stage in pipeline.report().stages}
    assert report["infer"] == 2
    assert report["deliver"] == (2 if option is None else 8)
    assert pipeline.get_stats().stages["infer"].items == 8
    assert pipeline.get_stats().mean_batch_size == 4


def test_cuda_graphs_is_yes_or_no() -> None:
    AsyncPipeline(lambda batch: batch, {"cuda_graphs": False}, device="cpu").stop()
    with pytest.raises(ConfigError, match="cuda_graphs is 1, expected True or False"):
        AsyncPipeline(lambda batch: batch, {"cuda_graphs": 1}, device="cpu")


# --- on a GPU: a call at once, with CuPy's stand-in ------------------------------------------------------------------


class OnFakeGpu(FakeArray):
    device = SimpleNamespace(id=0)


OnFakeGpu.__module__ = "cupy"


def call_of(output, *, count, wants_gpu=()):
    kinds = ["cupy" if n in wants_gpu else "numpy" for n in range(count)]
    jobs = [Job(n, RGB, 0.0, kind=kind, wants_gpu=n in wants_gpu) for n, kind in enumerate(kinds)]
    call = Call(jobs, "frames", rows=4, output=output)
    for job in jobs:
        job.call = call
    return call


def settled(cupy, call, **options):
    stream, pool = cupy.cuda.Stream(), PinnedMemoryPool(0.01, device=Device("cuda", "fake", 0))
    with stream:
        settle_on_gpu(call, stream=stream, pool=pool, **({"as_mask": False} | options))
        settle_on_gpu(call, stream=stream, pool=pool, **({"as_mask": False} | options))  # another thread
    return [job.data for job in call.jobs]


def test_all_frames_of_a_call_come_down_in_one_copy_and_once(cupy) -> None:
    scores = np.arange(4 * 2 * 3, dtype=np.float32).reshape(4, 2, 3)
    call = call_of({"a": scores.view(OnFakeGpu), "n": (scores.view(OnFakeGpu) + 1,)}, count=3)
    results = settled(cupy, call)
    for n, result in enumerate(results):
        assert type(result["a"]) is np.ndarray
        np.testing.assert_array_equal(result["a"], scores[n])
        np.testing.assert_array_equal(result["n"][0], scores[n] + 1)
    assert [entry[0] for entry in cupy.diary].count("host waits") == 1
    assert [entry[2] for entry in cupy.diary if entry[0] == "copy"] == [3 * 24] * 2  # without the padding row
    assert all(job.call is None for job in call.jobs)
    assert call.output is None


def test_each_frames_result_is_where_the_frame_was(cupy) -> None:
    output = np.arange(8, dtype=np.float32).reshape(4, 2).view(OnFakeGpu)
    host, gpu = settled(cupy, call_of(output, count=2, wants_gpu={1}))
    assert type(host) is np.ndarray
    assert type(gpu) is OnFakeGpu
    assert (host.tolist(), gpu.tolist()) == ([0, 1], [2, 3])
    assert cupy.diary[-1][0] == "synchronize"  # any stream may read it from here on


def test_nothing_comes_down_where_nobody_wants_it(cupy) -> None:
    settled(cupy, call_of(np.zeros((4, 2), np.float32).view(OnFakeGpu), count=3, wants_gpu={0, 1, 2}))
    assert [entry[0] for entry in cupy.diary] == ["synchronize"]


def test_a_list_has_an_entry_for_each_row_and_other_things_stay(cupy) -> None:
    rows = [{"box": np.full(2, n, np.float32).view(OnFakeGpu), "name": f"person {n}"} for n in range(4)]
    results = settled(cupy, call_of(rows, count=3))
    assert [result["name"] for result in results] == ["person 0", "person 1", "person 2"]
    assert [result["box"].tolist() for result in results] == [[0, 0], [1, 1], [2, 2]]


def test_masks_are_made_of_scores_with_three_axes(cupy) -> None:
    with pytest.raises(EngineError, match=r"scores \[C, h, w\], but the network returned \[5\]"):
        settled(cupy, call_of(np.zeros((4, 5), np.float32).view(OnFakeGpu), count=2), as_mask=True)
