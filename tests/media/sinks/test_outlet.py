"""Tests of sinks on their threads: the newest picture wins, failures stay separate, and restarting works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_pictures import MADE, make_picture
from scripted_sink import ScriptedSink

from left_threads import left_threads
from vitascope.errors import OutputError
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import NullSink
from waiting import eventually


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not left_threads("vitascope-sink")


def test_waiting_until_it_is_open() -> None:
    with SinkOutlet(ScriptedSink(), MADE) as outlet:
        outlet.wait_open()
        assert outlet.report().state == "running"
        assert not outlet.has_failed
    for threaded in (True, False):
        with SinkOutlet(ScriptedSink(fails_in="open"), MADE, threaded=threaded) as outlet:
            with pytest.raises(OutputError, match="the cable was pulled"):
                outlet.wait_open()
            assert outlet.has_failed


def test_a_slow_sink_gets_the_newest_picture() -> None:
    sink = ScriptedSink()
    sink.may_take.clear()
    with SinkOutlet(sink, MADE) as outlet:
        outlet.offer(make_picture(0))
        assert sink.is_taking.wait(5)
        for index in range(1, 6):
            outlet.offer(make_picture(index))
        sink.may_take.set()
        eventually(lambda: len(sink.taken) == 2)
    assert sink.taken == [0, 5]
    report = outlet.report()
    assert (report.sent, report.dropped, report.state, report.error) == (2, 4, "closed", None)
    assert report.age.p50_seconds >= report.send.p50_seconds >= 0


def test_a_sink_that_has_more_to_do_does_it_between_pictures() -> None:
    class Window(ScriptedSink):
        attended = 0

        def attend(self) -> None:
            self.attended += 1
            self._pass("attend")

    sink = Window()
    with SinkOutlet(sink, MADE) as outlet:
        eventually(lambda: sink.attended >= 2)
        outlet.offer(make_picture(3))
        eventually(lambda: sink.taken == [3])
        before = sink.attended
        eventually(lambda: sink.attended > before)
    assert sink.closed == 1
    with SinkOutlet(Window(fails_in="attend"), MADE) as outlet:
        eventually(lambda: outlet.has_failed)


def test_what_waits_is_sent_before_closing() -> None:
    sink = ScriptedSink()
    with SinkOutlet(sink, MADE) as outlet:
        outlet.offer(make_picture(7))
    assert sink.taken == [7]
    assert sink.closed == 1


@pytest.mark.parametrize("where", ["open", "send", "close"])
def test_a_failure_is_told_and_kept(where: str) -> None:
    told: list[Exception] = []
    sink = ScriptedSink(fails_in=where)
    outlet = SinkOutlet(sink, MADE, on_failure=lambda _, error: told.append(error))
    outlet.start()
    outlet.offer(make_picture())
    if where == "close":
        eventually(lambda: sink.taken == [0])
    else:
        eventually(lambda: outlet.report().state == "failed")
    outlet.close()
    assert told == [sink.error] == [outlet.error]
    assert outlet.report().state == "failed"
    assert outlet.report().error == "the cable was pulled"
    assert sink.closed == 1
    outlet.offer(make_picture())  # ignored without an error


def test_what_a_library_raises_becomes_one_line_of_ours() -> None:
    sink = ScriptedSink(fails_in="send", error=ValueError("two\nlines"))
    outlet = SinkOutlet(sink, MADE)
    outlet.start()
    outlet.offer(make_picture())
    eventually(lambda: outlet.report().state == "failed")
    outlet.close()
    assert isinstance(outlet.error, OutputError)
    assert outlet.report().error == "scripted failed: two lines"


def test_a_failed_sink_can_be_started_again_beside_one_that_goes_on() -> None:
    failing, steady = ScriptedSink(fails_in="send"), ScriptedSink()
    with SinkOutlet(failing, MADE) as first, SinkOutlet(steady, MADE) as second:
        for outlet in (first, second):
            outlet.offer(make_picture(1))
        eventually(lambda: first.report().state == "failed" and steady.taken == [1])
        failing.fails_in = ""
        first.start()
        for outlet in (first, second):
            outlet.offer(make_picture(2))
        eventually(lambda: failing.taken == [2] and steady.taken == [1, 2])
        assert first.report().error is None
        assert first.report().state == "running"


def test_a_sink_that_hangs_is_left_behind() -> None:
    sink = ScriptedSink()
    sink.may_take.clear()
    outlet = SinkOutlet(sink, MADE)
    outlet.start()
    outlet.offer(make_picture())
    assert sink.is_taking.wait(5)
    with pytest.raises(OutputError, match=r"did not finish within 0\.05 seconds"):
        outlet.close(timeout_seconds=0.05)
    sink.may_take.set()
    eventually(lambda: sink.closed == 1)


def test_closing_twice_and_before_starting_does_nothing() -> None:
    outlet = SinkOutlet(NullSink(), MADE)
    outlet.close()
    outlet.start()
    outlet.close()
    outlet.close()
    assert outlet.report().state == "closed"


def test_without_a_thread_nothing_is_dropped_and_failures_stay_inside() -> None:
    sink = ScriptedSink()
    outlet = SinkOutlet(sink, MADE, threaded=False)
    with outlet:
        for index in range(3):
            outlet.offer(make_picture(index))
        assert sink.taken == [0, 1, 2]
        sink.fails_in = "send"
        outlet.offer(make_picture(3))
        assert outlet.report().state == "failed"
        outlet.offer(make_picture(4))
    assert sink.taken == [0, 1, 2]
    assert outlet.report().dropped == 0
    sink.fails_in = ""
    with outlet:
        outlet.offer(make_picture(5))
    assert (sink.taken[-1], outlet.report().state, sink.closed) == (5, "closed", 2)
