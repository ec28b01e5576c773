"""Check that ``AsyncPipeline`` never hangs when it ends: by ``stop``, by a failure, or when the caller leaves."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from watched_runs import BoomError, watched

from vitascope.errors import EngineError, PipelineError
from vitascope.gpu import AsyncPipeline
from vitascope.gpu.toolkit.batching.batch_arrays import stack

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")

RGB = np.full((4, 6, 3), 7, np.uint8)
STAGES = ["decode", "preprocess", "infer", "postprocess", "encode"]


def failing(stage, at):
    """Make a pipeline with a stage that fails for frame number ``at``."""

    def pass_on(frame, *_):
        return frame

    def boom(frame, *_):
        if (np.asarray(frame) == at).any():
            raise BoomError("boom")
        return frame

    functions = dict.fromkeys(STAGES, pass_on) | {stage: boom}
    model = functions.pop("infer")
    functions["preprocess"] = lambda frame, work=functions["preprocess"]: np.float32(work(frame))
    config = {"queue_size": 2, "batch_size": 2, "timeout_ms": 1}
    return AsyncPipeline(model, config, device="cpu", **functions)


def numbered(n):
    return np.full((2, 2, 3), n, np.uint8)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("at", [0, 1, 7])
def test_a_failure_in_any_stage_reaches_whoever_submits_or_takes(stage, at):
    pipeline = failing(stage, at)

    def run():
        taken = []
        with pytest.raises(PipelineError, match=f"stage '{stage}'") as caught, pipeline:
            for n in range(1000):
                pipeline.submit_frame(numbered(n % 251), n)
                while result := pipeline.get_result():
                    taken.append(result.frame_id)
        return taken, caught.value

    taken, error = watched(run)
    assert taken == list(range(len(taken)))
    assert len(taken) <= at
    told = f"{error} {error.exceptions[0]} {getattr(error.exceptions[0], '__notes__', ())}"
    assert f"frame {at}" in told or f"{at}," in told or f", {at}" in told
    first = error.exceptions[0]
    assert isinstance(first, BoomError) or (
        isinstance(first, EngineError) and isinstance(first.__cause__, BoomError)
    )


@pytest.mark.parametrize("stage", STAGES)
def test_results_before_a_failure_can_be_taken_and_every_call_after_says_it(stage):
    pipeline = failing(stage, 5).start()

    def run():
        for n in range(5):
            pipeline.submit_frame(numbered(n), n)
        first = [pipeline.get_result(timeout_s=20).frame_id for _ in range(5)]
        pipeline.submit_frame(numbered(5), 5)
        with pytest.raises(PipelineError):
            pipeline.get_result(timeout_s=None)
        with pytest.raises(PipelineError):
            pipeline.get_result()
        with pytest.raises(PipelineError):
            for n in range(100):
                pipeline.submit_frame(numbered(6), n)
        pipeline.stop()  # the failure was reported already
        return first

    assert watched(run) == list(range(5))


def test_stop_tells_a_failure_that_nobody_has_heard_of():
    pipeline = failing("encode", 0).start()
    pipeline.submit_frame(numbered(0))
    with pytest.raises(PipelineError, match="boom"):
        watched(pipeline.stop)
    pipeline.stop()


def test_the_callers_own_error_is_not_covered_up():
    def run():
        with failing("decode", 0) as pipeline:
            pipeline.submit_frame(numbered(0))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        watched(run)


def test_stop_finishes_what_was_submitted_and_its_results_remain():
    pipeline = AsyncPipeline(lambda batch: batch, {"queue_size": 3}, device="cpu").start()
    for n in range(8):
        pipeline.submit_frame(RGB, n, timeout_s=20)
    watched(pipeline.stop)
    assert [result.frame_id for result in pipeline.results()] == list(range(8))
    assert pipeline.get_result() is None
    with pytest.raises(RuntimeError, match="was stopped"):
        pipeline.submit_frame(RGB)
    pipeline.stop()
    with pytest.raises(RuntimeError, match="a with block starts it"):
        pipeline.start()


def test_stop_can_drop_what_was_submitted():
    gate, begun = threading.Event(), threading.Event()

    def blocked(batch):
        begun.set()
        gate.wait(20)
        return batch

    pipeline = AsyncPipeline(blocked, {"batch_size": 1}, device="cpu").start()
    for n in range(10):
        pipeline.submit_frame(RGB, n)
    begun.wait()
    stopping = threading.Thread(target=lambda: pipeline.stop(drain=False))
    stopping.start()
    gate.set()
    watched(stopping.join)
    assert len(list(pipeline.results())) <= 1


@pytest.mark.parametrize("drain", [True, False])
def test_whoever_waits_is_released_by_stop(drain):
    pipeline = AsyncPipeline(lambda batch: batch, device="cpu").start()
    seen = []
    waiting = threading.Thread(target=lambda: seen.append(pipeline.get_result(timeout_s=None)))
    waiting.start()
    watched(lambda: pipeline.stop(drain=drain))
    watched(waiting.join)
    assert seen == [None]


def test_a_submitter_that_waits_for_room_is_released_by_stop_and_by_a_failure():
    for fails in (False, True):
        gate, told = threading.Event(), []

        def blocked(batch, gate=gate, fails=fails):
            gate.wait(20)
            if fails:
                raise BoomError("boom")
            return batch

        pipeline = AsyncPipeline(blocked, {"queue_size": 1, "batch_size": 1}, device="cpu").start()

        def submit(pipeline=pipeline, told=told):
            try:
                while True:
                    pipeline.submit_frame(RGB, timeout_s=None)
            except (RuntimeError, PipelineError) as error:
                told.append(error)

        thread = threading.Thread(target=submit)
        thread.start()
        if not fails:
            stopping = threading.Thread(target=lambda pipeline=pipeline: pipeline.stop(drain=False))
            stopping.start()
        gate.set()
        watched(thread.join)
        assert isinstance(told[0], PipelineError if fails else RuntimeError)
        pipeline.stop()


def test_what_is_done_out_of_order_is_said():
    pipeline = AsyncPipeline(lambda batch: batch, device="cpu")
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        pipeline.submit_frame(RGB)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        pipeline.get_result(timeout_s=None)
    assert pipeline.get_result() is None
    assert pipeline.get_stats().bottleneck_stage is None
    pipeline.stop()
    assert pipeline.get_result(timeout_s=None) is None


def test_a_stage_cannot_stop_the_pipeline_that_waits_for_it():
    def encode(data, frame_id):
        with pytest.raises(RuntimeError, match=r"call finish\(\) there"):
            pipeline.stop()
        pipeline.finish()
        return data

    pipeline = AsyncPipeline(lambda batch: batch, device="cpu", encode=encode).start()
    pipeline.submit_frame(RGB)
    assert len(watched(lambda: list(pipeline.results()))) == 1
    pipeline.stop()


def test_a_network_that_gives_another_number_of_rows_is_refused():
    with (
        pytest.raises(PipelineError, match="1 rows for a batch of 2"),
        AsyncPipeline(lambda b: b[:1], {"batch_size": 2, "timeout_ms": 60_000}, device="cpu") as pipeline,
    ):
        pipeline.submit_frame(RGB)
        pipeline.submit_frame(RGB)
        watched(lambda: pipeline.get_result(timeout_s=None))


def test_pictures_of_several_sizes_need_a_target_size():
    with (
        pytest.raises(PipelineError, match="set a target_size"),
        AsyncPipeline(lambda b: b, {"batch_size": 2, "timeout_ms": 60_000}, device="cpu") as pipeline,
    ):
        pipeline.submit_frame(RGB)
        pipeline.submit_frame(RGB[:2])
        watched(lambda: pipeline.get_result(timeout_s=None))


def test_many_threads_submit_and_many_take():
    def run():
        with AsyncPipeline(lambda batch: batch, {"queue_size": 4}, device="cpu") as pipeline:
            seen = []

            def take():
                for result in pipeline.results():
                    seen.append(result.frame_id)

            def submit(first):
                for n in range(first, first + 25):
                    pipeline.submit_frame(RGB, n)

            takers = [threading.Thread(target=take) for _ in range(3)]
            submitters = [threading.Thread(target=submit, args=(25 * n,)) for n in range(4)]
            for thread in (*takers, *submitters):
                thread.start()
            for thread in submitters:
                thread.join()
            pipeline.finish()
            for thread in takers:
                thread.join()
        return seen

    assert sorted(watched(run)) == list(range(100))


def test_memory_of_frames_is_let_go():
    import gc
    import weakref

    def run():
        with AsyncPipeline(lambda batch: batch + 1, device="cpu", encode=lambda data, n: n) as pipeline:
            frame = RGB.copy()
            gone = weakref.ref(frame)
            pipeline.submit_frame(frame)
            del frame
            assert pipeline.get_result(timeout_s=20).data == 0
            pipeline.submit_frame(RGB)  # now every thread has handled another frame
            pipeline.get_result(timeout_s=20)
            gc.collect()
            return gone()

    assert watched(run) is None
    assert stack([RGB], rows=1) is not RGB
