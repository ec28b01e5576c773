"""What an ``AsyncPipeline`` is made of, in plain values, and what it gives back: results, and how it is doing."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from vitascope.errors import ConfigError
from vitascope.gpu.pipeline.queues import QueueReport
from vitascope.gpu.pipeline.report import Latency, StageReport

__all__ = ["AsyncConfig", "AsyncResult", "AsyncStats"]


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


_MOST = {"batch_size": 4096, "queue_size": 100_000, "timeout_ms": 60_000}
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig:
    """Threads, streams, sizes and times of an ``AsyncPipeline``.

    Raises:
        ConfigError: A value is no number, or out of range.
    """

    decode_threads: int = 2
    """Threads that decode what was submitted as bytes or paths (or run ``decode``)."""
    preprocess_streams: int = 2
    """Pictures that are prepared at a time: threads, each with a CUDA stream of its own on a GPU."""
    batch_size: int = 4
    """Most frames in one call of the network."""
    postprocess_threads: int = 1
    """Threads that make a result from the network's answer, each with a CUDA stream of its own on a GPU."""
    encode_threads: int = 2
    """Threads that run ``encode``."""
    queue_size: int = 16
    """Most frames that wait before each stage, and most results that wait to be taken; also bounded in bytes."""
    timeout_ms: float = 10.0
    """Milliseconds after which a batch runs although it is not full; 0 takes what is there."""
    cuda_graphs: bool = True
    """Record a torch module as CUDA graphs, one for each of the batch sizes 1, 2, 4 … up to ``batch_size``; smaller
    batches are filled up. False runs it operation by operation, as a module that waits for the GPU in between needs it.
    Without meaning for engines and callables, and on a CPU."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not isinstance(self.cuda_graphs, bool):
            raise ConfigError(f"cuda_graphs is {self.cuda_graphs!r}, expected True or False")
        for item in fields(self):
            if item.name == "cuda_graphs":
                continue
            value, least = getattr(self, item.name), 0 if item.name == "timeout_ms" else 1
            most = _MOST.get(item.name, _MOST_THREADS)
            wanted = (int,) if least else (int, float)
            if (
                isinstance(value, bool)
                or not isinstance(value, wanted)
                or not least <= value <= most
                or math.isnan(value)
            ):
                kind = "a whole number" if least else "a number"
                raise ConfigError(f"{item.name} is {value!r}, expected {kind} from {least} to {most}")

    @classmethod
    def of(cls, config: AsyncConfig | Mapping[str, Any] | None) -> AsyncConfig:
        """From a mapping of the field names; what is missing keeps its default.

        Raises:
            ConfigError: A key is unknown, or a value is out of range.
        """
        if config is None:
            return cls()
        if isinstance(config, AsyncConfig):
            return config
        known = [item.name for item in fields(cls)]
        for key in config:
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
                raise ConfigError(f"an AsyncPipeline has no setting {key!r}{hint}")
        return cls(**config)
