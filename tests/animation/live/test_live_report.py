"""Tests of the verdicts of a live report, and their wording."""

from __future__ import annotations

import pytest

from live_reports import live_report
from vitascope.animation.live.report import LiveReport, summarise_live, verdict
from vitascope.gpu.profiling.utilisation import GpuLimits, Utilisation


def a_report(*, latency_ms: float = 20.0, **changed) -> LiveReport:
    return live_report(latency_ms=latency_ms, **({"animator": "liveportrait"} | changed))


def on_gpu(**figures) -> Utilisation:
    limits = GpuLimits(
        name="a GPU",
        memory_bytes=10 << 30,
        power_watts=None,
        slowdown_celsius=None,
        sm_clock_mhz=None,
        pcie_bytes_per_second=None,
    )
    return Utilisation(
        sample_count=9,
        seconds=10.0,
        cores=8,
        process_cores=1.0,
        limits=limits,
        **{"gpu_percent": 85.0, **figures},
    )


def test_a_run_that_keeps_up() -> None:
    assert verdict(a_report(latency_ms=12)) == ["good: 60 fps", "good: 12 ms from camera to picture"]
    assert verdict(a_report(latency_ms=20)) == ["good: 60 fps"]  # neither good nor poor


def test_a_target_that_is_missed_is_said_with_what_happens_and_what_helps() -> None:
    lines = verdict(a_report(shown=200))
    assert lines[0] == "poor: 20 fps of 60 possible"
    assert lines[1].startswith(
        "late pictures are dropped so that the delay does not grow; vitascope bench animate"
    )
    assert "poor: 400 of 600 pictures dropped" in lines
    assert verdict(a_report(shown=400))[0] == "fair: 40 fps of 60 possible"
    assert not any("fall out" in line for line in verdict(a_report()))


@pytest.mark.parametrize(("latency_ms", "says"), [(14, "good: 14 ms"), (31, "poor: 31 ms")])
def test_the_guides_delays(latency_ms: float, says: str) -> None:
    assert any(line.startswith(says) for line in verdict(a_report(latency_ms=latency_ms)))


def test_the_limit_of_the_settings() -> None:
    assert any("later than 20 ms; wanted: 15" in line for line in verdict(a_report(max_latency_ms=15)))
    assert not any("wanted" in line for line in verdict(a_report(max_latency_ms=25)))


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"gpu_percent": 99.0}, "poor: the GPU is full (99 %)"),
        ({"memory_used_bytes_max": 8 << 30}, None),
        ({"memory_used_bytes_max": int(9.5 * 2**30)}, "warning: the GPU's memory is 95% full"),
        ({"temperature_celsius_max": 81.0}, "warning: the GPU is at 81 °C; keep it below 80"),
        ({"temperature_celsius_max": 80.0}, None),
        ({"gpu_percent": 20.0}, None),  # it is fast enough nevertheless
    ],
)
def test_the_gpu(figures: dict, says: str | None) -> None:
    report = a_report(utilisation=on_gpu(**figures))
    said = verdict(report)[1:]
    assert said == ([] if says is None else [says])
    assert any(line.startswith("GPU ") for line in summarise_live(report))


def test_a_gpu_that_waits_is_poor_only_where_it_holds_something_up() -> None:
    idle = on_gpu(gpu_percent=30.0)
    says = "poor: the GPU waits (30 % busy): the CPU feeds it too slowly"
    assert says in verdict(a_report(shown=200, utilisation=idle))
    assert says not in verdict(a_report(shown=200, utilisation=idle, animator="mesh"))
    assert says not in verdict(a_report(shown=200, utilisation=on_gpu()))
