"""Tests of how a live run ends if something hangs, and of what happens while it is paused or a sink is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from live_runs import KeepingSink, Live

from left_threads import left_threads
from vitascope.animation.live.report import summarise_live
from vitascope.animation.live.session import LiveOptions
from vitascope.errors import OutputError, PipelineError
from vitascope.gpu.profiling.pipeline_profile import profiled_stages
from vitascope.gpu.profiling.profiler import Profiler
from vitascope.media.live_loop import LiveFigures
from vitascope.media.sinks.sink import LivePicture, NullSink
from waiting import eventually


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not left_threads("vitascope"))


def test_a_stage_that_hangs_is_given_up_after_the_run_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitascope.media.live_loop._STOP_SECONDS", 0.1)
    live = Live(options=LiveOptions(ending_seconds=0.1))
    may_go_on = threading.Event()
    monkeypatch.setattr(live.parts, "track", lambda rgb, *, pts_seconds: may_go_on.wait(20))
    with live:
        live.camera.give(1)
        live.until(lambda: live.session._at_work == {"track"})
        began = time.monotonic()
        live.session.stop()
        live.thread.join(10)
        assert not live.thread.is_alive()
        assert time.monotonic() - began < 9
        assert live.session.is_stuck
        may_go_on.set()
    assert isinstance(live.error, PipelineError)
    assert "vitascope-track did not stop" in str(live.error)


def test_a_camera_that_hangs_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitascope.media.live_loop._STOP_SECONDS", 0.1)
    live = Live(options=LiveOptions(ending_seconds=0.1))
    hangs, may_go_on = threading.Event(), threading.Event()

    def take(*, timeout_seconds: float) -> None:
        hangs.set()
        may_go_on.wait(20)

    monkeypatch.setattr(live.camera, "take", take)
    with live:
        assert hangs.wait(20)
        live.session.stop()
        live.thread.join(10)
        assert not live.thread.is_alive()
        may_go_on.set()
    assert isinstance(live.error, PipelineError)
    assert "vitascope-capture did not stop" in str(live.error)


def test_a_slow_stage_may_finish() -> None:
    live = Live(options=LiveOptions(ending_seconds=10))
    with live:
        live.parts.may_animate.clear()
        live.camera.give(5)
        live.until(lambda: bool(live.parts.tracked))
        live.session.stop()
        time.sleep(0.2)
        live.parts.may_animate.set()
        live.thread.join(10)
    assert live.error is None
    assert live.sink.levels == [5]
    assert not live.session.is_stuck


def test_a_stop_before_the_start_ends_it_at_once() -> None:
    live = Live()
    live.session.stop()
    with live:
        live.thread.join(5)
        assert not live.thread.is_alive()
    assert live.error is None
    assert live.result is not None and live.result.shown == 0


def test_many_starts_and_stops_at_any_moment() -> None:
    for wait_ms in range(40):
        with Live() as live:
            live.camera.give(1)
            time.sleep(wait_ms / 4000)
            live.session.stop()
            live.thread.join(10)
            assert not live.thread.is_alive()
        assert live.error is None


class FailingOnce(NullSink):
    name = "failing"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.levels: list[int] = []
        self.has_failed = False

    def send(self, picture: LivePicture) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise OutputError("the cable was pulled")
        self.levels.append(int(picture.rgb[0, 0, 0]))


def test_the_key_t_tries_a_failed_sink_again() -> None:
    failing, keeping = FailingOnce(), KeepingSink()
    live = Live(sinks=[failing, keeping])
    live.sink = keeping
    with live:
        live.show(1)
        live.until(lambda: live.outlets[0].has_failed)
        live.session.controls.press("t")
        live.until(lambda: "started again: failing" in live.said)
        live.outlets[0].wait_open()
        live.show(2)
        live.until(lambda: failing.levels == [2])
        live.session.controls.press("T")
        live.until(lambda: "no sink has failed" in live.said)
    assert keeping.levels == [1, 2]
    assert live.result is not None and live.error is None
    (line,) = [line for line in summarise_live(live.result) if line.startswith("failing: ")]
    assert line.startswith("failing: 1 sent, 0 dropped")
    assert line.endswith("running; started again once, after: the cable was pulled")
    assert live.result.to_dict()["sinks"][0]["restarts"] == 1


def test_reports_and_snapshots_come_while_it_is_paused(tmp_path) -> None:
    with Live(options=LiveOptions(snapshot_folder=tmp_path)) as live:
        live.show(1)
        live.session.controls.press("p")
        time.sleep(0.25)
        for key in "rs":
            live.session.controls.press(key)
        live.until(lambda: bool(live.reports) and bool(list(tmp_path.glob("portrait-*.png"))))
    assert live.reports[0].shown == 1


def test_the_first_pictures_may_be_left_out() -> None:
    count = [10]
    figures = LiveFigures(lambda: count[0], warm_up_pictures=2, warm_up_seconds=60)
    figures.begin(time.monotonic() - 50)
    for seconds_ago in (40, 30):
        count[0] += 5
        assert figures.seconds == 0
        figures.hand_over(time.monotonic() - seconds_ago, is_lost=True)
    assert (figures.shown, figures.captured, figures.lost) == (0, 0, 0)
    count[0] += 3
    figures.hand_over(time.monotonic() - 0.01, is_lost=True, is_repeat=True)
    assert (figures.shown, figures.captured, figures.lost, figures.repeated) == (1, 3, 1, 1)
    assert 0 < figures.seconds < 5
    assert figures.latency().p99_seconds < 5


def test_slow_pictures_warm_up_by_time() -> None:
    figures = LiveFigures(lambda: 1, warm_up_pictures=5)
    figures.begin(time.monotonic() - 20)
    figures.hand_over(time.monotonic() - 20)
    assert (figures.shown, figures.captured) == (0, 0)
    figures.hand_over(time.monotonic() - 0.01)
    assert figures.shown == 1


def test_a_warm_up_does_not_shorten_the_run() -> None:
    with Live(options=LiveOptions(seconds=0.2, warm_up_pictures=1)) as live:
        live.show(1)
        time.sleep(0.3)
        assert live.thread.is_alive() or live.result is not None
        live.thread.join(5)
        assert not live.thread.is_alive()
    assert live.result is not None
    assert (live.result.shown, live.result.captured) == (0, 0)
    assert live.result.seconds >= 0.2


def test_every_stage_gets_a_span() -> None:
    profiler = Profiler("live")
    with Live(with_spans=lambda stages: profiled_stages(stages, profiler)) as live:
        for level in (1, 2):
            live.show(level)
    counts = {row["path"][-1]: row["count"] for row in profiler.to_dict()["summary"]}
    assert {"track": 2, "animate": 2, "output": 2}.items() <= counts.items()
