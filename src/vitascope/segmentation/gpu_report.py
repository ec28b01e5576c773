"""What a job on a GPU says of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuReport"]


@dataclass(frozen=True, slots=True)
class GpuReport:
    """Time and memory of a GPU."""

    span_seconds: dict[str, float]
    """Time on the GPU's clock from the first launch of a part to the end of its last: ``preprocess``, ``network``,
    ``composite``. Where the GPU waits for the host to launch the next kernel, that wait is in it."""
    peak_memory_bytes: int
    """Most memory of the GPU in use at a time, by all processes: what must fit."""
