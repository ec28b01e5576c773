"""The report of a finished job, as plain values and in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from vitascope.observe.report_values import VideoReport, WrittenFile, frames_in_words
from vitascope.vr.detection import eyes_in_words


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Time and memory of a GPU."""

    span_seconds: dict[str, float]
    """Time on the GPU's clock from the first launch of a part to the end of its last, by part: ``host to device``
    (frames that the CPU decoded), ``preprocess``, ``network``, ``composite``, ``device to host`` (pictures that the
    CPU encodes). Includes time in which the GPU waits for the host to launch the next kernel."""
    peak_memory_bytes: int
    """Peak GPU memory used by all processes together, in bytes."""


@dataclass(frozen=True, slots=True)
class LeverReport:
    """Number of frames of one video on which each lever acted."""

    cached_frames: int
    """Mattes taken from the cache."""
    reused_frames: int
    """Frames that reused the last matte because they had hardly changed."""
    early_frames: int
    """Frames matted by the first network alone."""
    cropped_frames: int
    """Frames of which the network saw only the area around people."""
    empty_frames: int
    """Frames skipped because nobody was in the last one checked, and nothing has moved since."""
    close_up_frames: int
    """Close-ups, which the network saw smaller."""
    network_share: float
    """Samples that the main network saw, relative to every frame once in full size; repeats at the start of a shot
    are not counted. Can exceed 1."""

    def lines(self, frame_count: int) -> list[str]:
        """The counts in words, as lines."""
        told = (
            (self.cached_frames, "came from the cache"),
            (self.reused_frames, "were still and reused the last matte"),
            (self.early_frames, "needed only the first network"),
            (self.cropped_frames, "were matted only around people"),
            (self.empty_frames, "had no people and were skipped"),
            (self.close_up_frames, "are close-ups and were matted smaller"),
        )
        lines = [f"{count} of {frame_count} frames {what}" for count, what in told if count]
        if self.network_share and (lines or self.network_share != 1.0):
            lines.append(f"the network saw {self.network_share:.0%} of the samples of every frame whole")
        return lines


@dataclass(slots=True)
class Tally:
    """Counts of a running job; updated by the thread that estimates mattes."""

    cached_frames: int = 0
    reused_frames: int = 0
    early_frames: int = 0
    cropped_frames: int = 0
    empty_frames: int = 0
    close_up_frames: int = 0
    samples: int = 0
    """Samples that the main network saw."""
    frames: int = 0
    """All frames, wherever their mattes came from."""

    def report(self, samples_of_frame: int) -> LeverReport:
        """The counts so far.

        Args:
            samples_of_frame: Samples of one frame at full network size, for all eyes.
        """
        counts = asdict(self)
        seen, usual = counts.pop("samples"), counts.pop("frames") * samples_of_frame
        return LeverReport(**counts, network_share=round(seen / usual, 4) if usual else 0.0)


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
    """Why another network is used than expected; None otherwise."""
    engine: str
    engine_reasons: tuple[str, ...]
    """Why this engine was chosen and others were not, one line each."""
    decoder: str
    """The decoder, and why it was not the GPU's."""
    device: str
    shows_people: bool = True
    """False if nobody was found in any frame, so that all outputs show only background; a note says so."""
    stereo: str
    stereo_reason: str
    projection: str
    projection_reason: str
    network_size: tuple[int, int]
    """(height, width) of the network's input."""
    peak_memory_bytes: int | None
    """Peak resident memory of the process so far, in bytes; None if the system does not report it."""
    levers: LeverReport | None = None
    """How often levers acted; None if several processes shared the video."""
    gpu: GpuReport | None = None
    """Time and memory of the GPU; None if the frames stayed on the CPU."""


def summarise(
    report: SegmentReport,
    *,
    preview: Path | None = None,
    with_stages: bool = False,
    told: Collection[str] = (),
) -> list[str]:
    """The summary of a job, as lines; outputs first.

    Args:
        report: The report of the job.
        preview: The contact sheet that was written.
        with_stages: Include the load of each stage.
        told: Notes that the user has already seen.
    """
    lines = []
    for output in report.outputs:
        lines += output.lines(kind=output.kind)
    if preview is not None:
        lines.append(f"{preview}  contact sheet")
    frames = frames_in_words(report.frame_count)
    pace = f": {report.frames_per_second:.1f} fps" if report.frame_count > 1 else ""
    # Without stages nothing was measured: earlier runs had made everything.
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
            f"damaged or missing frames of the input: {report.corrupt_count}; the others keep their times"
        )
    return lines


def _pace(report: SegmentReport) -> str:
    """Time per frame in the slowest stage; for a file, the time through all queues says little."""
    stages = report.pipeline.stages
    bottleneck = report.pipeline.bottleneck
    slowest = next((stage for stage in stages if bottleneck and stage.name == bottleneck.stage), stages[0])
    # A stage that takes several frames per call is timed per call.
    per_frame = slowest.latency.count / slowest.items if slowest.items else 1.0
    p50, p95, p99 = (
        seconds * per_frame * 1e3
        for seconds in (slowest.latency.p50_seconds, slowest.latency.p95_seconds, slowest.latency.p99_seconds)
    )
    return (
        f"bottleneck {slowest.name} (busy {slowest.load:.0%}; a frame takes {p50:.0f} ms p50, "
        f"{p95:.0f} p95, {p99:.0f} p99)"
    )
