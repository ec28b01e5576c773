"""Tests of sums of GPU time, with events whose times the test sets."""

from __future__ import annotations

import sys
import types

import pytest

from vitascope.gpu.profiling.gpu_clock import StreamTimes


class ScriptedGpu:
    """Simulates the part of CuPy that times need: a clock set by the test, and the GPU's progress."""

    def __init__(self):
        self.now_ms = 0.0
        self.through_ms = float("inf")
        self.made = self.host_waits = self.asked = 0
        gpu = self

        class Event:
            def __init__(self):
                gpu.made += 1
                self.at = None

            def record(self):
                self.at = gpu.now_ms

            @property
            def done(self):
                gpu.asked += 1
                return self.at <= gpu.through_ms

            def synchronize(self):
                gpu.host_waits += 1

        self.ranges = []
        self.open_ranges = 0

        def push(name):
            gpu.ranges.append(name)
            gpu.open_ranges += 1

        def pop():
            gpu.open_ranges -= 1

        self.cuda = types.SimpleNamespace(
            Event=Event,
            get_elapsed_time=lambda start, stop: stop.at - start.at,
            nvtx=types.SimpleNamespace(RangePush=push, RangePop=pop),
        )


@pytest.fixture
def gpu(monkeypatch):
    made = ScriptedGpu()
    module = types.ModuleType("cupy")
    module.cuda = made.cuda
    monkeypatch.setitem(sys.modules, "cupy", module)
    return made


def work(times, gpu, name, milliseconds):
    with times.profile(name):
        gpu.now_ms += milliseconds
    gpu.now_ms += 5.0  # between two tasks


def test_times_of_a_name_are_added_up(gpu):
    times = StreamTimes()
    for milliseconds in (4.0, 2.0, 6.0):
        work(times, gpu, "network", milliseconds)
        work(times, gpu, "composite", 1.0)
    assert times.gpu_seconds() == {"network": pytest.approx(12e-3), "composite": pytest.approx(3e-3)}
    work(times, gpu, "network", 8.0)
    assert times.gpu_seconds()["network"] == pytest.approx(20e-3)


def test_the_host_waits_for_nothing_before_it_asks_for_the_sums(gpu):
    gpu.through_ms = -1.0
    times = StreamTimes()
    for _ in range(500):
        work(times, gpu, "network", 1.0)
    assert gpu.host_waits == 0
    assert times.gpu_seconds() == {"network": pytest.approx(0.5)}
    assert gpu.host_waits == 500


def test_a_gpu_that_keeps_up_needs_few_events_and_is_seldom_asked(gpu):
    times = StreamTimes()
    for _ in range(3000):
        work(times, gpu, "composite", 1.0)
    assert gpu.made <= 70
    assert gpu.asked <= 3000
    assert times.gpu_seconds() == {"composite": pytest.approx(3.0)}


def test_what_failed_has_no_time(gpu):
    times = StreamTimes()
    work(times, gpu, "network", 2.0)
    with pytest.raises(ZeroDivisionError), times.profile("network"):
        gpu.now_ms += 100.0
        raise ZeroDivisionError
    work(times, gpu, "network", 3.0)
    assert times.gpu_seconds() == {"network": pytest.approx(5e-3)}
    assert gpu.open_ranges == 0


def test_every_piece_is_a_range_on_nsights_timeline(gpu):
    times = StreamTimes()
    work(times, gpu, "network", 1.0)
    work(times, gpu, "composite", 1.0)
    assert (gpu.ranges, gpu.open_ranges) == (["network", "composite"], 0)


def test_nothing_was_timed(gpu):
    assert StreamTimes().gpu_seconds() == {}
