"""What a finished job says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.observe.report_values import plain_value
from vitascope.segmentation.gpu_report import GpuReport
from vitascope.segmentation.levers.options import LeverReport

__all__ = ["OutputReport", "SegmentReport"]


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One file that was written."""

    path: Path
    kind: str
    codec: str
    size_bytes: int
    notes: tuple[str, ...] = ()
    """What differs from the input or from what might be expected, one line each."""


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One video that was segmented."""

    input: Path
    outputs: tuple[OutputReport, ...]
    frame_count: int
    corrupt_count: int
    """Damaged packets and pictures that were skipped."""
    scene_cut_count: int
    model: str
    model_requested: str
    model_note: str | None
    """Why the model is not the one that might be expected."""
    notes: tuple[str, ...]
    """What was not done, or had no effect, one line each."""
    engine: str
    engine_reasons: tuple[str, ...]
    """Why this engine, one line each: what was passed over, and for what."""
    decoder: str
    """What decoded, and why not the GPU where it could not."""
    device: str
    profile: str
    stereo: str
    stereo_reason: str
    network_size: tuple[int, int]
    """(height, width) of the network's picture."""
    wall_seconds: float
    peak_memory_bytes: int | None
    """Largest resident size of the process so far; None where the system does not tell."""
    pipeline: PipelineReport
    levers: LeverReport | None = None
    """What became of the frames on their way to the network; None where several processes shared the film."""
    gpu: GpuReport | None = None
    """Time and memory of the GPU; None where the frames stayed on the processor."""

    @property
    def frames_per_second(self) -> float:
        """Frames over the wall time of the whole job, opening and closing of files included."""
        return self.frame_count / self.wall_seconds if self.wall_seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: paths as text, times in seconds."""
        plain: dict[str, Any] = plain_value(asdict(self))
        plain["frames_per_second"] = self.frames_per_second
        return plain
