"""What an ``AsyncPipeline`` gives back: results, and how it is doing."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from vitascope.gpu.latency import Latency
from vitascope.gpu.pipeline_report import StageReport
from vitascope.gpu.queues import QueueReport

__all__ = ["AsyncResult", "AsyncStats"]


@dataclass(frozen=True, slots=True, eq=False)
class AsyncResult:
    """What became of one frame."""

    frame_id: Hashable
    """As it was submitted."""
    data: Any
    """What the last stage made: see ``AsyncPipeline``."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """``total_latency``: seconds from ``submit_frame`` to here, waits included. ``stages``: seconds in the work of
    each stage, for all frames that were in its hands together; of ``infer`` the call of the network. ``batch_size``:
    frames of that call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStats:
    """How an ``AsyncPipeline`` is doing, since its start."""

    fps: float
    """Results a second, from the first submission to the last result."""
    bottleneck_stage: str | None
    """The stage that sets the pace; ``submit`` is whoever submits, ``deliver`` whoever takes results. None before the
    first frame."""
    bottleneck: str
    """Why, in one sentence; empty before the first frame."""
    submitted: int
    delivered: int
    """Results that are finished, taken or not."""
    results_waiting: int
    """Finished, not taken."""
    mean_batch_size: float
    """Frames in a call of the network; 0 before the first."""
    stages: dict[str, StageReport]
    """Busy figures by stage, in order. ``items`` are frames, but calls behind ``infer`` where no function of the user's
    own runs there."""
    queues: tuple[QueueReport, ...]
    """Between them, in order; the first holds what was submitted, the last what waits to be taken."""
    latency: Latency
    """``total_latency`` over all results."""
    cores_busy: float
    """Processor cores that the whole process kept busy on average."""
    gpu_busy: float | None
    """Share of the time from the first to the last frame that the network's stream worked; None on a CPU."""
