"""Tests of every way to end early: stop(), a consumer that leaves, Ctrl-C."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from watched_runs import ONE, BoomError, ClosingSource, batches, our_threads, watched

from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline, leave_if_halted
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink, Source, Stage
from waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


def test_stop_lets_what_was_read_through():
    source, seen, calls = ClosingSource(), [], []

    def consume(n: int) -> None:
        seen.append(n)
        if n == 20:
            pipeline.stop()

    pipeline = Pipeline(
        [
            Source("s", source),
            Map("m", lambda n: n, workers=2),
            Group("g", Batched(batches, size=3)),
            Sink("k", consume, finish=lambda: calls.append("finish")),
        ]
    )
    report = watched(pipeline.run)
    assert seen == list(range(len(seen)))
    assert report.stages[0].items == len(seen)  # one item more may be read, and not passed on
    assert source.given - len(seen) in (0, 1)
    assert calls == ["finish"]
    assert (report.finished, report.stopped) == (True, True)
    assert source.closed_in == "vitascope-s"


def test_stop_without_draining_gives_up():
    source, calls = ClosingSource(), []

    def consume(n: int) -> None:
        if n == 20:
            pipeline.stop(drain=False)

    pipeline = Pipeline(
        [
            Source("s", source),
            Sink("k", consume, finish=lambda: calls.append("finish"), close=lambda: calls.append("close")),
        ]
    )
    report = watched(pipeline.run)
    assert calls == ["close"]
    assert (report.items, report.stopped) == (21, True)
    assert source.closed_in == "vitascope-s"


@pytest.mark.parametrize("way", ["stop", "leave", "interrupt"])
def test_work_that_takes_long_ends_where_it_asks(way):
    began = threading.Event()

    def work(n: int) -> int:
        began.set()
        while True:
            leave_if_halted()
            time.sleep(0.001)

    pipeline = Pipeline(
        [Source("s", ClosingSource()), Map("m", work), *([] if way == "leave" else [Sink("k", int)])]
    )

    def end_early() -> None:
        assert began.wait(PATIENCE_SECONDS)
        pipeline.interrupt() if way == "interrupt" else pipeline.stop(drain=False)

    threading.Thread(target=end_early).start()
    match way:
        case "stop":
            watched(pipeline.run)
        case "leave":
            assert watched(lambda: list(pipeline.stream())) == []
        case _:
            with pytest.raises(KeyboardInterrupt):
                watched(pipeline.run)
    leave_if_halted()  # no effect outside a pipeline


@pytest.mark.parametrize("drain", [True, False])
def test_stop_before_the_run_and_after_it(drain):
    pipeline = Pipeline([Source("s", ClosingSource()), Sink("k", int)])
    pipeline.stop(drain=drain)
    assert watched(pipeline.run).items == 0
    ended = Pipeline([Source("s", range(3)), Sink("k", int)])
    watched(ended.run)
    ended.stop(drain=drain)
    assert (ended.snapshot().items, ended.snapshot().stopped) == (3, False)


def test_stop_wakes_a_stream_that_waits():
    release = threading.Event()

    def camera() -> Iterator[int]:
        yield 0
        assert release.wait(PATIENCE_SECONDS)

    def stop_once_it_waits(seconds_before: float) -> None:
        eventually(lambda: pipeline.snapshot().queues[0].get_wait_seconds > seconds_before)
        pipeline.stop(drain=False)
        release.set()

    def consume() -> list[int]:
        items = pipeline.stream()
        taken = [next(items)]
        seconds_before = pipeline.snapshot().queues[0].get_wait_seconds
        stopper = threading.Thread(target=stop_once_it_waits, args=(seconds_before,))
        stopper.start()
        taken += items
        stopper.join(PATIENCE_SECONDS)
        return taken

    pipeline = Pipeline([Source("s", camera())])
    assert watched(consume) == [0]


@pytest.mark.parametrize("leave_after", [1, 2, 30])
def test_a_consumer_that_breaks_stops_everything(leave_after):
    source = ClosingSource()
    pipeline = Pipeline([Source("s", source), Map("m", lambda n: n, workers=2)])

    def consume() -> int:
        for n in pipeline.stream():
            if n + 1 == leave_after:
                break
        assert our_threads() == []
        return n

    assert watched(consume) == leave_after - 1
    assert source.closed_in == "vitascope-s"
    report = pipeline.snapshot()
    assert (report.items, report.finished, report.stopped) == (leave_after, True, True)
    assert report.stages[-1].name == "consumer"


def test_a_consumer_that_crashes_sees_its_own_exception_and_no_thread_is_left():
    source = ClosingSource()

    def consume() -> None:
        for n in Pipeline([Source("s", source, output=ONE), Map("m", lambda n: n, output=ONE)]).stream():
            if n == 3:
                raise BoomError("mine")

    with pytest.raises(BoomError, match="mine"):
        watched(consume)
    assert our_threads() == []
    assert source.closed_in == "vitascope-s"


def test_a_stream_that_is_closed_by_hand_or_never_started():
    source = ClosingSource()
    with closing(Pipeline([Source("s", source)]).stream()) as items:
        assert [next(items), next(items)] == [0, 1]
        assert our_threads() == ["vitascope-s"]
    assert our_threads() == []
    assert source.closed_in == "vitascope-s"
    Pipeline([Source("s", ClosingSource())]).stream().close()
    Pipeline([Source("s", ClosingSource())]).stream()


def test_a_failure_while_a_consumer_leaves_is_not_lost():
    def fail() -> None:
        raise BoomError

    items = Pipeline([Source("s", ClosingSource(), close=fail)]).stream()
    assert next(items) == 0
    with pytest.raises(PipelineError, match="stage 's', closing"):
        watched(items.close)


def test_a_stage_that_fails_reaches_the_consumer():
    def fail(n: int) -> int:
        if n == 3:
            raise BoomError
        return n

    items = Pipeline([Source("s", ClosingSource()), Map("m", fail)]).stream()
    with pytest.raises(PipelineError, match="stage 'm', item 3: 3"):
        watched(lambda: list(items))


@pytest.fixture
def interruptible():
    """Prepare tests that must run in the main thread: a deadlock ends the process with all stacks."""
    faulthandler.dump_traceback_later(5 * PATIENCE_SECONDS, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def press_control_c() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread")
@pytest.mark.parametrize("fill", ["starved", "full"])
def test_control_c_joins_everything_and_goes_on_as_keyboard_interrupt(interruptible, fill):
    source, calls = ClosingSource(), []
    pressed = threading.Event()

    def consume(n: int) -> None:
        if n == 5:
            press_control_c()
            pressed.set()
        time.sleep(0.002 if fill == "full" else 0)

    def decode() -> Iterator[int]:
        for n in source:
            if fill == "starved" and n > 5:
                pressed.wait(PATIENCE_SECONDS)
            yield n

    pipeline = Pipeline(
        [
            Source("s", decode(), output=ONE),
            Map("m", lambda n: n, workers=2, output=ONE),
            Sink("k", consume, finish=lambda: calls.append("finish"), close=lambda: calls.append("close")),
        ]
    )
    with pytest.raises(KeyboardInterrupt) as caught:
        pipeline.run()
    assert caught.value.__cause__ is None
    assert our_threads() == []
    assert calls == ["close"]
    assert source.closed_in == "vitascope-s"
    assert (pipeline.snapshot().finished, pipeline.snapshot().stopped) == (True, True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread")
def test_control_c_keeps_what_failed_on_the_way_as_its_cause(interruptible):
    def fail() -> None:
        raise BoomError

    def consume(n: int) -> None:
        if n == 5:
            press_control_c()
        time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt) as caught:
        Pipeline([Source("s", ClosingSource()), Sink("k", consume, close=fail)]).run()
    assert isinstance(caught.value.__cause__, PipelineError)


@pytest.mark.skipif(sys.platform == "win32", reason="signals cannot be sent to a thread")
def test_control_c_while_a_stream_waits(interruptible):
    waiting, release = threading.Event(), threading.Event()

    def camera() -> Iterator[int]:
        yield 0
        assert waiting.wait(PATIENCE_SECONDS)
        eventually(lambda: pipeline.snapshot().queues[0].get_wait_seconds > seconds_before)
        press_control_c()
        assert release.wait(PATIENCE_SECONDS)

    pipeline = Pipeline([Source("s", camera())])
    items = pipeline.stream()
    assert next(items) == 0
    seconds_before = pipeline.snapshot().queues[0].get_wait_seconds
    timer = threading.Timer(0.1, release.set)  # simulates a driver that returns in the end
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        waiting.set()
        next(items)
    timer.join(PATIENCE_SECONDS)
    assert our_threads() == []


def run_to_the_end(stages: Sequence[Stage]) -> None:
    Pipeline([*stages, Sink("k", int)]).run()


def run_into_a_failure(stages: Sequence[Stage]) -> None:
    def fail(n: int) -> None:
        raise BoomError

    with pytest.raises(PipelineError):
        Pipeline([*stages, Sink("k", fail)]).run()


def leave_a_stream(stages: Sequence[Stage]) -> None:
    for _ in Pipeline(stages).stream():
        break


def stop_from_a_stage(stages: Sequence[Stage]) -> None:
    pipeline = Pipeline([*stages, Sink("k", lambda _: pipeline.stop(drain=False))])
    pipeline.run()


def test_a_thousand_runs_leave_no_thread():
    before = threading.active_count()

    def cycle() -> None:
        for n in range(1000):
            way = (run_to_the_end, run_into_a_failure, leave_a_stream, stop_from_a_stage)[n % 4]
            way([Source("s", ClosingSource(3)), Map("m", lambda n: n)])
            assert our_threads() == []

    watched(cycle)
    eventually(lambda: threading.active_count() <= before)
