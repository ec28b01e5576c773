"""A GPU and a live run with known figures."""

from __future__ import annotations

from typing import ClassVar

from vitascope.animation.live.report import LiveReport
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.report import Latency
from vitascope.gpu.pipeline.stages import Map, Sink, Source
from vitascope.gpu.profiling.utilisation import GpuFigures, GpuLimits
from vitascope.media.sinks.outlet import OutletReport
from vitascope.segmentation.processes.hands import PlaceCounts

FIGURES = GpuFigures(
    gpu_percent=87.0,
    memory_bus_percent=40.0,
    decoder_percent=12.0,
    encoder_percent=None,
    pcie_to_gpu_bytes_per_second=3e9,
    pcie_from_gpu_bytes_per_second=2e9,
    memory_used_bytes=6 << 30,
    power_watts=310.5,
    temperature_celsius=71.0,
    sm_clock_mhz=1905.0,
    throttling=("power cap",),
)
LIMITS = GpuLimits(
    name="Test GPU",
    memory_bytes=24 << 30,
    power_watts=350.0,
    slowdown_celsius=95.0,
    sm_clock_mhz=2100.0,
    pcie_bytes_per_second=31.5e9,
)


class ScriptedGpu:
    """Always returns the same figures."""

    def __init__(self):
        self.closed = 0

    def figures(self):
        return FIGURES

    def limits(self):
        return LIMITS

    def close(self):
        self.closed += 1


def finished_pipeline(count=5):
    """Return a finished pipeline."""
    pipeline = Pipeline([Source("capture", range(count)), Map("track", str), Sink("output", len)])
    pipeline.run()
    return pipeline


class ScriptedLiveRun:
    """A live run that delivered 9 pictures, of which 5 were taken."""

    def __init__(self):
        self.pipeline = finished_pipeline(5)
        self.sink_sent = 4

    def report(self):
        sink = {"dropped": 1, "send": Latency(), "age": Latency(), "error": None}
        return LiveReport(
            seconds=1.0,
            animator="mesh",
            size=(64, 64),
            captured=9,
            shown=5,
            repeated=2,
            lost=1,
            target_fps=30.0,
            latency=self.pipeline.snapshot().latency,
            sinks=(
                OutletReport(name="window", state="running", sent=self.sink_sent, **sink),
                OutletReport(name="ndi", state="failed", sent=0, **sink),
            ),
            pipeline=self.pipeline.snapshot(),
            utilisation=None,
        )


class ScriptedQueue:
    """Five videos on two nodes, of which two wait and two run."""

    waiting_count, running_count, frame_count = 2, 2, 50
    places: ClassVar = {
        "node a": PlaceCounts(busy=1, done=1, failed=0, frames=10),
        "node b": PlaceCounts(busy=2, done=0, failed=1, frames=0),
    }

    def snapshot(self):
        return finished_pipeline(5).snapshot()
