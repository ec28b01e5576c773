"""What a job on a GPU says of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuReport"]


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Time and memory of a GPU."""

    busy_seconds: dict[str, float]
    """GPU time by what was done: ``preprocess``, ``network``, ``composite``."""
    peak_memory_bytes: int
    """Most memory of the GPU in use at a time, by all processes: what must fit."""
