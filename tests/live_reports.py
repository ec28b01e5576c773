"""The report of a successful live run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitascope.animation.live.report import LiveReport
from vitascope.gpu.pipeline.report import LatencyHistogram, PipelineReport


def live_report(*, latency_ms: float, **changed: Any) -> LiveReport:
    """Report ten seconds at 60 frames a second, all shown after ``latency_ms``, except for what is ``changed``."""
    latency = LatencyHistogram()
    latency.add(latency_ms / 1e3)
    pipeline = PipelineReport(
        stages=(),
        queues=(),
        latency=LatencyHistogram.summary([]),
        wall_seconds=10.0,
        cores_busy=1.0,
        finished=True,
        stopped=False,
        bottleneck=None,
    )
    report = LiveReport(
        seconds=10.0,
        animator="mesh",
        size=(512, 512),
        captured=600,
        shown=600,
        repeated=0,
        lost=0,
        target_fps=60.0,
        latency=LatencyHistogram.summary([latency]),
        sinks=(),
        pipeline=pipeline,
        utilisation=None,
    )
    return replace(report, **changed)
