"""The common part of all reports on videos, and their values: plain ones for JSON, sizes in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitascope.gpu.pipeline.report import PipelineReport


def plain_value(value: Any) -> Any:
    """Convert a value for JSON, recursively: paths to text, tuples to lists."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value


def frames_in_words(count: int) -> str:
    """``1 frame``, ``48 frames``."""
    return "1 frame" if count == 1 else f"{count} frames"


def size_in_words(size_bytes: int) -> str:
    """A file's size for people, in steps of a thousand: ``15.0 MB``, ``440 kB``."""
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"


def gib(size_bytes: float | None, *, decimals: int = 0) -> str:
    """Memory for people: ``80 GiB``; ``memory unknown`` for None."""
    return "memory unknown" if size_bytes is None else f"{size_bytes / 2**30:.{decimals}f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file that was written."""

    path: Path
    codec: str
    size_bytes: int
    notes: tuple[str, ...] = ()
    """What differs from the input or from what might be expected, one line each."""

    def lines(self, *, kind: str | None = None) -> list[str]:
        """The file for people: a line, and one for each note."""
        words = [*([] if kind is None else [kind]), self.codec, size_in_words(self.size_bytes)]
        return [f"{self.path}  {', '.join(words)}", *(f"  note: {note}" for note in self.notes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoReport:
    """The report of any job on a video."""

    frame_count: int
    corrupt_count: int = 0
    """Damaged packets and pictures of the input that were skipped."""
    notes: tuple[str, ...]
    """Notes on what was not done or had no effect, one line each."""
    profile: str
    wall_seconds: float
    pipeline: PipelineReport

    @property
    def frames_per_second(self) -> float:
        """Frames over the wall time of the whole job, opening and closing of files included."""
        return self.frame_count / self.wall_seconds if self.wall_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: paths as text, times in seconds."""
        plain: dict[str, Any] = plain_value(asdict(self))
        plain["frames_per_second"] = self.frames_per_second
        return plain
