"""The report of a finished job, as plain values and in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from vitascope.observe.report_values import VideoReport, WrittenFile, frames_in_words
from vitascope.segmentation.matting.levers.report import LeverReport
from vitascope.vr.detection import eyes_in_words


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Time and memory of a GPU."""

    span_seconds: dict[str, float]
    """Time on the GPU's clock, first launch of a part to the end of its last: ``host to device`` (frames that the
    CPU decoded), ``preprocess``, ``network``, ``composite``, ``device to host`` (pictures that the CPU encodes). Where
    the GPU waits for the host to launch the next kernel, that wait is in it."""
    peak_memory_bytes: int
    """Most memory of the GPU in use at a time, by all processes: what must fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport(WrittenFile):
    """One file that was written."""

    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport(VideoReport):
    """One video that was segmented."""

    input: Path
    outputs: tuple[OutputReport, ...]
    scene_cut_count: int
    model: str
    model_requested: str
    model_note: str | None
    """Why the model is not the one that might be expected."""
    engine: str
    engine_reasons: tuple[str, ...]
    """Why this engine, one line each: what was passed over, and for what."""
    decoder: str
    """What decoded, and why not the GPU where it could not."""
    device: str
    shows_people: bool = True
    """False where nobody was found in any frame: all that was written is background. A note says so."""
    stereo: str
    stereo_reason: str
    projection: str
    projection_reason: str
    network_size: tuple[int, int]
    """(height, width) of the network's picture."""
    peak_memory_bytes: int | None
    """Largest resident size of the process so far; None if the system does not report it."""
    levers: LeverReport | None = None
    """What became of the frames on their way to the network; None if several processes shared the video."""
    gpu: GpuReport | None = None
    """Time and memory of the GPU; None if the frames stayed on the CPU."""


def summarise(
    report: SegmentReport,
    *,
    preview: Path | None = None,
    with_stages: bool = False,
    told: Collection[str] = (),
) -> list[str]:
    """The summary after a job, a line each; the outputs first.

    Args:
        report: The job's report.
        preview: The contact sheet that it wrote.
        with_stages: Tell how busy each stage was, too.
        told: Notes that the user has seen already.
    """
    lines = []
    for output in report.outputs:
        lines += output.lines(kind=output.kind)
    if preview is not None:
        lines.append(f"{preview}  contact sheet")
    frames = frames_in_words(report.frame_count)
    pace = f": {report.frames_per_second:.1f} fps" if report.frame_count > 1 else ""
    # Nothing was measured where an earlier run had made all that was left to join.
    if pace and report.pipeline.stages:
        pace += f"; {_pace(report)}"
    lines.append(f"{frames} in {report.wall_seconds:.1f} s{pace}")
    height, width = report.network_size
    eyes = eyes_in_words(report.stereo, report.stereo_reason, report.projection, report.projection_reason)
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
    if with_stages:
        lines += [
            f"stage {stage.name}: busy {stage.load:.0%}, {stage.busy_seconds:.1f} s of {stage.workers} threads, "
            f"{stage.latency.p50_seconds * 1e3:.1f} ms p50, {stage.latency.p95_seconds * 1e3:.1f} p95"
            for stage in report.pipeline.stages
        ]
    lines += [f"engine: {reason}" for reason in report.engine_reasons]
    lines += [f"note: {note}" for note in report.notes if note not in told]
    if report.corrupt_count:
        lines.append(
            f"frames of the input that were damaged or missing: {report.corrupt_count}; the others keep their time"
        )
    return lines


def _pace(report: SegmentReport) -> str:
    """Time of a frame in the stage that sets the pace; the way through all queues says little of a file job."""
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
