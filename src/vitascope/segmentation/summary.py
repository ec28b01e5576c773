"""A report in words."""

from __future__ import annotations

from pathlib import Path

from vitascope.observe.report_values import frames_in_words, size_in_words
from vitascope.segmentation.report import SegmentReport

__all__ = ["summarise"]


def summarise(report: SegmentReport, *, preview: Path | None = None) -> list[str]:
    """What a person wants to know after a job, a line each; the outputs first.

    Args:
        report: Of the job.
        preview: The contact sheet that it wrote.
    """
    lines = []
    for output in report.outputs:
        lines.append(f"{output.path}  {output.kind}, {output.codec}, {size_in_words(output.size_bytes)}")
        lines += [f"  note: {note}" for note in output.notes]
    if preview is not None:
        lines.append(f"{preview}  contact sheet")
    frames = frames_in_words(report.frame_count)
    lines.append(
        f"{frames} in {report.wall_seconds:.1f} s: {report.frames_per_second:.1f} fps; {_pace(report)}"
    )
    height, width = report.network_size
    eyes = f"{report.stereo} ({report.stereo_reason})"
    lines.append(f"{report.model} at {width}x{height} on {report.engine}; profile {report.profile}, {eyes}")
    if report.gpu is not None:
        parts = ", ".join(
            f"{name} {seconds / max(report.frame_count, 1) * 1e3:.2f} ms"
            for name, seconds in report.gpu.span_seconds.items()
        )
        memory = report.gpu.peak_memory_bytes / 2**30
        lines.append(
            f"on the GPU a frame took: {parts}, launches included; {memory:.1f} GiB of its memory in use; "
            f"decoded by {report.decoder}"
        )
    if report.levers is not None:
        lines += report.levers.lines(report.frame_count)
    lines += [f"engine: {reason}" for reason in report.engine_reasons]
    lines += [f"note: {note}" for note in report.notes]
    if report.corrupt_count:
        lines.append(
            f"frames of the input that were damaged or missing: {report.corrupt_count}; the others keep their time"
        )
    return lines


def _pace(report: SegmentReport) -> str:
    """How long a frame keeps the stage that sets the pace; the way through all queues says little of a file job."""
    stages = report.pipeline.stages
    bottleneck = report.pipeline.bottleneck
    slowest = next((stage for stage in stages if bottleneck and stage.name == bottleneck.stage), stages[0])
    # A stage that takes several frames at a time is timed by the call.
    per_frame = slowest.latency.count / slowest.items if slowest.items else 1.0
    p50, p95, p99 = (
        seconds * per_frame * 1e3
        for seconds in (slowest.latency.p50_seconds, slowest.latency.p95_seconds, slowest.latency.p99_seconds)
    )
    return (
        f"bottleneck {slowest.name} (busy {slowest.load:.0%}; a frame takes {p50:.0f} ms p50, "
        f"{p95:.0f} p95, {p99:.0f} p99)"
    )
