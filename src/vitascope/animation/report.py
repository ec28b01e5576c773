"""What a finished animation says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.observe.report_values import plain_value, size_in_words

__all__ = ["AnimateReport", "WrittenFile", "summarise"]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file that was written."""

    path: Path
    codec: str
    size_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnimateReport:
    """One portrait that was animated."""

    portrait: Path
    driver: Path
    size: tuple[int, int]
    """(width, height) of the pictures."""
    animator: str
    files: tuple[WrittenFile, ...]
    frame_count: int
    lost_count: int
    """Pictures of the driver in which no face was found."""
    notes: tuple[str, ...]
    profile: str
    wall_seconds: float
    pipeline: PipelineReport
    device: str | None = None
    """What drew the pictures, for example ``CPU (2 cores)``."""
    corrupt_count: int = 0
    """Damaged packets or pictures of the driver, which were skipped."""

    @property
    def frames_per_second(self) -> float:
        """Frames over the wall time of the whole job, opening and closing of files included."""
        return self.frame_count / self.wall_seconds if self.wall_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: paths as text, times in seconds."""
        plain: dict[str, Any] = plain_value(asdict(self))
        plain["frames_per_second"] = self.frames_per_second
        return plain


def summarise(report: AnimateReport) -> list[str]:
    """What a person wants to know after a job, a line each; the files first."""
    lines = []
    for file in report.files:
        lines.append(f"{file.path}  {file.codec}, {size_in_words(file.size_bytes)}")
        lines += [f"  note: {note}" for note in file.notes]
    width, height = report.size
    pace = f"{report.frame_count} frames in {report.wall_seconds:.1f} s: {report.frames_per_second:.1f} fps"
    stages = ", ".join(
        f"{stage.name} {stage.latency.p50_seconds * 1e3:.1f} ms"
        for stage in report.pipeline.stages
        if stage.latency.count
    )
    lines.append(f"{pace}; {stages}")
    device = "" if report.device is None else f" on {report.device}"
    lines.append(f"{report.animator} at {width}x{height}{device}; profile {report.profile}")
    if report.lost_count:
        lines.append(
            f"note: no face in {report.lost_count} of the driver's pictures; the portrait relaxed there"
        )
    if report.corrupt_count:
        lines.append(f"note: frames of the driver that were damaged or missing: {report.corrupt_count}")
    lines += [f"note: {note}" for note in report.notes]
    return lines
