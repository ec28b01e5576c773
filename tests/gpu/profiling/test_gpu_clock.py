"""Tests of the profiler's GPU times, on a simulated GPU that lags behind the host."""

from __future__ import annotations

import itertools
import sys
import types

import pytest

from vitascope.errors import DeviceError
from vitascope.gpu.profiling import gpu_clock as clock_module
from vitascope.gpu.profiling.gpu_clock import GpuClock
from vitascope.gpu.profiling.profiler import Profiler


class ScriptedEvents:
    """Simulates events with times set by the test; counts the host's waits."""

    def __init__(self):
        self.now_ms = 0.0
        self.through_ms = float("inf")
        """The time up to which the GPU has worked."""
        self.device = 0
        self.stream = 5
        self.in_capture = False
        self.host_waits = 0
        self.created = 0
        self.ranges = []
        self.open_ranges = 0

    def place(self):
        return self.device, self.stream

    def capturing(self):
        return self.in_capture

    def create(self):
        self.created += 1
        event = types.SimpleNamespace(at=None)
        event.record = lambda: self.record_idle(event)
        return event

    def record_idle(self, event):
        event.at = self.now_ms

    def done(self, event):
        return event.at <= self.through_ms

    def synchronize(self, event):
        self.host_waits += 1

    def elapsed_ms(self, start, stop):
        return stop.at - start.at

    def push_range(self, name):
        self.ranges.append(name)
        self.open_ranges += 1

    def pop_range(self):
        self.open_ranges -= 1


@pytest.fixture
def events(monkeypatch):
    events = ScriptedEvents()
    monkeypatch.setattr(clock_module, "cupy_events", lambda *, load: events)
    monkeypatch.setattr(clock_module, "torch_events", lambda *, load: None)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    return events


def work(profiler, events, name, milliseconds):
    with profiler.profile(name):
        events.now_ms += milliseconds


def test_gpu_time_stands_beside_host_time(events):
    profiler = Profiler()
    for milliseconds in (4.0, 2.0, 6.0):
        work(profiler, events, "network", milliseconds)
    (row,) = profiler.stats()
    assert row.gpu.count == row.count == 3
    assert row.gpu.total_seconds == pytest.approx(12e-3)
    assert row.gpu.mean_seconds == pytest.approx(4e-3)
    assert row.gpu.max_seconds == pytest.approx(6e-3)
    assert row.total_seconds < 4e-3  # the host never waited
    assert profiler.gpu_seconds() == {"network": pytest.approx(12e-3)}
    assert "gpu ms" in profiler.summary()
    assert events.ranges == ["network"] * 3
    assert events.open_ranges == 0


def test_the_host_never_waits_while_work_goes_on(events):
    events.through_ms = -1.0  # the GPU has done nothing yet
    profiler = Profiler()
    for _ in range(1000):
        work(profiler, events, "network", 1.0)
    assert events.host_waits == 0
    assert profiler.gpu_seconds() == {"network": pytest.approx(1.0)}
    (row,) = profiler.stats()
    assert events.host_waits == row.gpu.count  # because the result was requested


def test_of_very_many_spans_a_part_is_timed_and_the_sum_is_that_of_all(events):
    profiler = Profiler()
    for _ in range(5000):
        work(profiler, events, "network", 2.0)
    (row,) = profiler.stats()
    assert 900 < row.gpu.count < 1200
    assert row.gpu.count + row.gpu.left_out_count == row.count == 5000
    assert row.gpu.total_seconds == pytest.approx(10.0)
    assert row.gpu.mean_seconds == pytest.approx(2e-3)
    assert events.ranges == ["network"] * 5000  # all of them, for Nsight
    assert sum(span.gpu is not None for span in profiler.spans()) == row.gpu.count


def test_places_that_are_unlike_are_added_up_each_by_its_own_times(events):
    profiler = Profiler()
    for _ in range(10):
        with profiler.profile("outer"):
            work(profiler, events, "network", 1000.0)
    for _ in range(4000):
        work(profiler, events, "network", 0.01)
    assert profiler.gpu_seconds()["network"] == pytest.approx(10.04, rel=1e-3)
    assert profiler.by_name()["network"].gpu.p50_seconds == pytest.approx(1e-5, rel=0.05)


def test_slow_first_spans_are_not_those_that_were_left_out(events):
    profiler = Profiler()
    for n in range(5000):
        work(profiler, events, "network", 50.0 if n < 100 else 1.0)
    (row,) = profiler.stats()
    assert row.gpu.left_out_count > 3500
    assert row.gpu.total_seconds == pytest.approx(5.0 + 4.9, rel=0.01)
    assert row.gpu.p50_seconds == pytest.approx(1e-3, rel=0.05)


def test_each_place_is_timed_by_itself(events):
    profiler = Profiler()
    for _ in range(3000):
        work(profiler, events, "often", 1.0)
    for _ in range(10):
        work(profiler, events, "seldom", 1.0)
    rows = profiler.by_name()
    assert rows["often"].gpu.left_out_count > 1500
    assert (rows["seldom"].gpu.count, rows["seldom"].gpu.left_out_count) == (10, 0)


def test_events_are_used_again(events):
    profiler = Profiler()
    for _ in range(1000):
        work(profiler, events, "network", 1.0)
    assert events.created < 200


def test_times_lie_on_the_hosts_clock_and_stay_exact_over_hours(events):
    profiler = Profiler()
    for _ in range(400):
        work(profiler, events, "network", 1.0)
        events.now_ms += 60_000.0  # in float32, an hour has steps of 0.25 ms
    spans = profiler.spans()
    starts = [span.gpu.start_seconds for span in spans]
    for earlier, later in itertools.pairwise(starts):
        assert later - earlier == pytest.approx(60.001)
    assert abs(starts[0] - spans[0].began_ns * 1e-9) < 0.5
    assert {(span.gpu.device, span.gpu.stream) for span in spans} == {(0, 5)}


def test_a_gpu_that_lags_holds_up_no_times_of_another(events):
    done = events.done
    events.done = lambda event: event.device == 0 and done(event)
    create = events.create

    def made_on_current_gpu():
        event = create()
        event.device = events.device
        return event

    events.create = made_on_current_gpu
    profiler = Profiler()
    events.device = 1
    work(profiler, events, "slow", 1.0)
    events.device = 0
    for _ in range(100):
        work(profiler, events, "network", 1.0)
    assert events.host_waits == 0
    assert events.created < 80  # the first GPU's events were read and reused
    assert profiler.gpu_seconds() == {"slow": pytest.approx(1e-3), "network": pytest.approx(0.1)}
    assert [span.gpu.device for span in profiler.spans()] == [1] + [0] * 100


def test_what_waits_for_the_gpu_is_not_timed_on_it(events):
    profiler = Profiler()
    with profiler.profile("download", host_only=True):
        events.now_ms += 5.0
    assert profiler.gpu_seconds() == {}
    assert events.ranges == ["download"]


def test_inside_a_capture_nothing_is_recorded(events):
    profiler = Profiler()
    events.in_capture = True
    work(profiler, events, "network", 1.0)
    assert events.created == 0
    events.in_capture = False
    work(profiler, events, "network", 1.0)
    (row,) = profiler.stats()
    assert (row.count, row.gpu.count) == (2, 1)


def test_a_capture_that_begins_inside_leaves_nothing_to_ask_for(events):
    profiler = Profiler()
    with profiler.profile("network"):
        events.in_capture = True
    created = events.created
    events.in_capture = False
    work(profiler, events, "network", 1.0)
    assert events.created == created + 1  # its start is reused
    (row,) = profiler.stats()
    assert (row.count, row.gpu.count) == (2, 1)


def test_what_fails_is_not_asked_for_its_time(events):
    profiler = Profiler()
    with pytest.raises(MemoryError), profiler.profile("network"):
        raise MemoryError
    assert profiler.gpu_seconds() == {}
    assert events.open_ranges == 0
    created = events.created
    work(profiler, events, "network", 1.0)
    assert events.created == created + 1  # its start is reused
    assert profiler.gpu_seconds() == {"network": pytest.approx(1e-3)}


def test_the_processor_alone_where_that_is_asked_for(events):
    profiler = Profiler(device="cpu")
    work(profiler, events, "network", 1.0)
    assert events.created == 0
    assert profiler.gpu_seconds() == {}


def test_asking_for_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(clock_module, "cupy_events", lambda *, load: None)
    monkeypatch.setattr(clock_module, "torch_events", lambda *, load: None)
    with pytest.raises(DeviceError, match="device='cpu'"):
        Profiler(device="cuda")


@pytest.mark.parametrize(
    ("cupy_stream", "torch_stream", "expected"),
    [(0, 0, "cupy"), (7, 0, "cupy"), (0, 9, "torch"), (7, 9, "cupy")],
)
def test_of_two_libraries_that_one_is_timed_whose_stream_is_set(
    monkeypatch, cupy_stream, torch_stream, expected
):
    both = {"cupy": ScriptedEvents(), "torch": ScriptedEvents()}
    both["cupy"].stream, both["torch"].stream = cupy_stream, torch_stream
    monkeypatch.setattr(clock_module, "cupy_events", lambda *, load: both["cupy"])
    monkeypatch.setattr(clock_module, "torch_events", lambda *, load: both["torch"])
    for name in both:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    events, place = GpuClock().current()
    assert events is both[expected]
    assert place == events.place()


def test_a_library_that_starts_later_is_noticed(monkeypatch):
    late = ScriptedEvents()
    answers = iter([None, late])
    monkeypatch.setattr(clock_module, "torch_events", lambda *, load: next(answers))
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    clock = GpuClock()
    assert clock.current() is None
    assert clock.current() == (late, late.place())
