"""Check that failed sinks are retried while others continue, and that sinks that hang delay nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import av
import pytest
from live_pictures import MADE, make_picture
from scripted_sink import ScriptedSink

from left_threads import left_threads
from vitascope.errors import OutputError
from vitascope.media.sinks.file import FileSink
from vitascope.media.sinks.outlet import SinkOutlet, started_outlets
from vitascope.media.sinks.sink import LivePicture
from waiting import eventually


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not left_threads("vitascope-sink")


@pytest.mark.parametrize("threaded", [True, False])
def test_a_sink_that_fails_once_is_restarted_beside_one_that_goes_on(threaded: bool) -> None:
    failing, steady = ScriptedSink(fails_in="send"), ScriptedSink()
    told: list[Exception] = []
    first = SinkOutlet(failing, MADE, threaded=threaded, on_failure=lambda _, error: told.append(error))
    with first, SinkOutlet(steady, MADE) as second:
        assert not first.restart()  # it has not failed
        for outlet in (first, second):
            outlet.offer(make_picture(1))
        eventually(lambda: first.has_failed and steady.taken == [1])
        failing.fails_in = ""
        assert first.restart()
        first.wait_open()
        for outlet in (first, second):
            outlet.offer(make_picture(2))
        eventually(lambda: failing.taken == [2] and steady.taken == [1, 2])
        report = first.report()
    assert (report.state, report.sent, report.error, report.restarts) == ("running", 1, None, 1)
    assert report.earlier_error == "the cable was pulled"
    assert len(told) == 1
    assert (failing.opened, failing.closed) == (2, 2)
    assert second.report().restarts == 0


def test_a_restart_that_fails_again_is_told_and_can_be_repeated() -> None:
    sink = ScriptedSink(fails_in="send")
    with SinkOutlet(sink, MADE) as outlet:
        outlet.offer(make_picture())
        eventually(lambda: outlet.has_failed)
        sink.fails_in = "open"
        sink.error = OutputError("it is not there")
        assert outlet.restart()
        eventually(lambda: outlet.has_failed)
        report = outlet.report()
        assert (report.error, report.earlier_error) == ("it is not there", "the cable was pulled")
        assert report.failure == "scripted: it is not there"
        sink.fails_in = ""
        assert outlet.restart()
        outlet.wait_open()
        assert outlet.report().restarts == 2


def test_a_sink_that_still_hangs_is_not_opened_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitascope.media.sinks.outlet._LET_GO_SECONDS", 0.05)
    sink = ScriptedSink(fails_in="send")
    sink.hangs_in = "close"
    outlet = SinkOutlet(sink, MADE)
    outlet.start()
    outlet.offer(make_picture())
    assert sink.is_hanging.wait(15)
    for _ in range(2):
        began = time.monotonic()
        assert outlet.restart()
        assert time.monotonic() - began < 10, "nobody waits for a restart"
        eventually(lambda: outlet.has_failed)
        assert outlet.report().error == "scripted still hangs and cannot be started again"
    assert sink.opened == 1
    sink.hangs_in = sink.fails_in = ""
    sink.may_go_on.set()
    eventually(lambda: not left_threads("vitascope-sink-scripted"))
    assert outlet.restart()
    outlet.wait_open()
    outlet.close()
    assert outlet.report().state == "closed"


def test_a_thread_that_was_left_behind_does_not_touch_the_next_report() -> None:
    sink = ScriptedSink(fails_in="send")
    sink.hangs_in = "close"
    outlet = SinkOutlet(sink, MADE)
    outlet.start()
    outlet.offer(make_picture())
    assert sink.is_hanging.wait(15)
    outlet.restart()  # waits for the one that hangs
    sink.fails_in = sink.hangs_in = ""
    sink.may_go_on.set()
    outlet.wait_open()
    assert outlet.report().state == "running"
    outlet.close()
    assert outlet.report().state == "closed"


@pytest.mark.parametrize("where", ["open", "send"])
def test_what_is_no_exception_is_a_failure_too(where: str) -> None:
    sink = ScriptedSink(fails_in=where, error=SystemExit("a library wanted to leave"))
    with SinkOutlet(sink, MADE) as outlet:
        outlet.offer(make_picture())
        eventually(lambda: outlet.has_failed)
    assert outlet.report().error == outlet.report().failure == "scripted failed: a library wanted to leave"
    assert sink.closed == 1


@pytest.mark.parametrize("where", ["open", "send", "close"])
def test_several_that_hang_are_left_behind_in_the_time_of_one(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = [ScriptedSink(), ScriptedSink(), ScriptedSink()]
    steady = ScriptedSink()
    for sink in hanging:
        sink.hangs_in = where
    outlets = [SinkOutlet(sink, MADE) for sink in (*hanging, steady)]
    for outlet in outlets if where == "open" else ():
        outlet.wait_open = lambda: None  # type: ignore[method-assign]  # its ten seconds are another test's
    finish, moments = SinkOutlet._is_finished_by, []

    def noted(outlet: SinkOutlet, until: float, *, allowed_seconds: float) -> bool:
        moments.append(until)
        return finish(outlet, until, allowed_seconds=allowed_seconds)

    monkeypatch.setattr(SinkOutlet, "_is_finished_by", noted)
    with started_outlets(outlets, timeout_seconds=0.3):
        for outlet in outlets:
            outlet.offer(make_picture(3))
        if where != "close":
            assert all(sink.is_hanging.wait(15) for sink in hanging)
        moments.clear()  # of the opening
    assert len(moments) == 4 and len(set(moments)) == 1, "one moment for all, and no more after it"
    assert steady.taken == [3]
    assert [outlet.report().state for outlet in outlets] == ["failed"] * 3 + ["closed"]
    for outlet in outlets[:3]:
        assert outlet.report().error == "scripted did not finish within 0.3 seconds"
    for sink in hanging:
        sink.may_go_on.set()
    eventually(lambda: all(sink.closed == 1 for sink in hanging))
    eventually(lambda: not left_threads("vitascope-sink-scripted"))
    assert outlets[0].report().state == "failed", "what came too late does not count"


def test_one_that_cannot_be_opened_closes_the_others() -> None:
    good, bad = ScriptedSink(), ScriptedSink(fails_in="open")
    with (
        pytest.raises(OutputError, match="the cable was pulled"),
        started_outlets([SinkOutlet(good, MADE), SinkOutlet(bad, MADE)]),
    ):
        pytest.fail("the block must not begin")
    assert (good.opened, good.closed) == (1, 1)


def test_offering_while_it_is_closed_is_no_error() -> None:
    outlet = SinkOutlet(ScriptedSink(), MADE)
    outlet.start()
    failures: list[Exception] = []
    is_over = threading.Event()

    def offer() -> None:
        try:
            while not is_over.is_set():
                outlet.offer(make_picture())
        except Exception as error:
            failures.append(error)

    offering = threading.Thread(target=offer)
    offering.start()
    for _ in range(30):
        outlet.close()
        outlet.start()
    is_over.set()
    offering.join(10)
    outlet.close()
    assert failures == []


def test_a_file_that_is_begun_again_keeps_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "out-2.mp4").write_bytes(b"somebody else's")

    class FailingOnce(FileSink):
        def send(self, picture: LivePicture) -> None:
            if picture.index == 7:
                raise OutputError("the disk is full")
            super().send(picture)

    sink = FailingOnce(str(tmp_path / "out.mp4"))
    outlet = SinkOutlet(sink, MADE)
    with outlet:
        outlet.offer(make_picture(0))
        eventually(lambda: outlet.report().sent == 1)
        outlet.offer(make_picture(7))
        eventually(lambda: outlet.has_failed)
        assert outlet.restart()
        outlet.wait_open()
        assert sink.name == f"file:{tmp_path / 'out-3.mp4'}"
        outlet.offer(make_picture(1))
        eventually(lambda: outlet.report().sent == 1)
    for name in ("out.mp4", "out-3.mp4"):
        with av.open(str(tmp_path / name)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 1
    assert (tmp_path / "out-2.mp4").read_bytes() == b"somebody else's"
