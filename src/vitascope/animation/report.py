"""What a finished animation says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitascope.gpu.pipeline_report import PipelineReport

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

    @property
    def frames_per_second(self) -> float:
        """Frames over the wall time of the whole job, opening and closing of files included."""
        return self.frame_count / self.wall_seconds if self.wall_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: paths as text, times in seconds."""
        plain: dict[str, Any] = _plain(asdict(self))
        plain["frames_per_second"] = self.frames_per_second
        return plain


def summarise(report: AnimateReport) -> list[str]:
    """What a person wants to know after a job, a line each; the files first."""
    lines = []
    for file in report.files:
        lines.append(f"{file.path}  {file.codec}, {_size(file.size_bytes)}")
        lines += [f"  note: {note}" for note in file.notes]
    width, height = report.size
    pace = f"{report.frame_count} frames in {report.wall_seconds:.1f} s: {report.frames_per_second:.1f} fps"
    stages = ", ".join(
        f"{stage.name} {stage.latency.p50_seconds * 1e3:.1f} ms"
        for stage in report.pipeline.stages
        if stage.latency.count
    )
    lines.append(f"{pace}; {stages}")
    lines.append(f"{report.animator} at {width}x{height}; profile {report.profile}")
    if report.lost_count:
        lines.append(
            f"note: no face in {report.lost_count} of the driver's pictures; the portrait relaxed there"
        )
    lines += [f"note: {note}" for note in report.notes]
    return lines


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
