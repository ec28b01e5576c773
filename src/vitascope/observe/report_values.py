"""What a job tells when it starts and in its report, and the conversion of such values for JSON and for people."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitascope.gpu.pipeline.report import Interruptible, PipelineReport


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
    """Format a count: ``1 frame``, ``48 frames``."""
    return "1 frame" if count == 1 else f"{count} frames"


def size_in_words(size_bytes: int) -> str:
    """Format a file's size in decimal units: ``15.0 MB``, ``440 kB``."""
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"


def gib(size_bytes: float | None, *, decimals: int = 0) -> str:
    """Format an amount of memory: ``80 GiB``; ``memory unknown`` for None."""
    return "memory unknown" if size_bytes is None else f"{size_bytes / 2**30:.{decimals}f} GiB"


class Started(NamedTuple):
    """Information for a progress display, once the files are open."""

    pipeline: Interruptible
    """``snapshot()`` returns the progress; ``interrupt()`` ends the run as Ctrl-C does."""
    expected_frame_count: int | None
    """None if the input does not say."""
    doubts: tuple[str, ...] = ()
    """Warnings about the input that the user should check early, one line each."""
    is_scan: bool = False
    """True for the search for people that precedes the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A written file."""

    path: Path
    codec: str
    size_bytes: int
    notes: tuple[str, ...] = ()
    """Differences from the input or from what might be expected, one line each."""

    def lines(self, *, kind: str | None = None) -> list[str]:
        """Describe the file in one line, followed by one line per note."""
        words = [*([] if kind is None else [kind]), self.codec, size_in_words(self.size_bytes)]
        return [f"{self.path}  {', '.join(words)}", *(f"  note: {note}" for note in self.notes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoReport:
    """The report of any job on a video."""

    frame_count: int
    corrupt_count: int = 0
    """Damaged packets and pictures of the input that were skipped."""
    notes: tuple[str, ...]
    """Notes on what was skipped or had no effect, one line each."""
    profile: str
    wall_seconds: float
    pipeline: PipelineReport

    @property
    def frames_per_second(self) -> float:
        """Frames over the wall time of the whole job, including the opening and closing of files."""
        return self.frame_count / self.wall_seconds if self.wall_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: paths as text, times in seconds."""
        plain: dict[str, Any] = plain_value(asdict(self))
        plain["frames_per_second"] = self.frames_per_second
        return plain
