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
    """Time on the GPU's clock, first launch of a part to the end of its last: ``host to device`` (frames that the
    CPU decoded), ``preprocess``, ``network``, ``composite``, ``device to host`` (pictures that the CPU encodes). Where
    the GPU waits for the host to launch the next kernel, that wait is in it."""
    peak_memory_bytes: int
    """Most memory of the GPU in use at a time, by all processes: what must fit."""


@dataclass(frozen=True, slots=True)
class LeverReport:
    """How often each lever acted on the frames of one video."""

    cached_frames: int
    """Mattes that came from the cache."""
    reused_frames: int
    """Frames that changed so little that the last matte served again."""
    early_frames: int
    """Frames whose matte is the first network's."""
    cropped_frames: int
    """Frames of which the network saw people's surroundings alone."""
    empty_frames: int
    """Frames without anybody in the last look, and without motion since: not shown to the network."""
    close_up_frames: int
    """Frames that people fill: the network saw them smaller."""
    network_share: float
    """Samples that the main network saw, over those of every frame once and whole; repeats at the start of a shot
    aside. Above 1 where it sees more than that."""

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
    """Counts while a job runs; written by the thread that estimates mattes."""

    cached_frames: int = 0
    reused_frames: int = 0
    early_frames: int = 0
    cropped_frames: int = 0
    empty_frames: int = 0
    close_up_frames: int = 0
    samples: int = 0
    """Samples of all pictures that the main network saw."""
    frames: int = 0
    """All frames, however they got their matte."""

    def report(self, samples_of_frame: int) -> LeverReport:
        """The counts so far.

        Args:
            samples_of_frame: Of the whole pictures of one frame, all eyes.
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
    """The summary of a job, as lines; outputs first.

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
            f"damaged or missing frames of the input: {report.corrupt_count}; the others keep their times"
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
