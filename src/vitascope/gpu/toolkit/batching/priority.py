"""Urgent requests first, the others not never."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vitascope.gpu.toolkit.batching.adaptive import AdaptiveBatchSizer
from vitascope.gpu.toolkit.batching.batcher import Batcher, InferenceFn
from vitascope.gpu.toolkit.batching.requests import BatchConfig, Clock, OnFull
from vitascope.gpu.toolkit.batching.waiting import LevelRule, OnDeadline

__all__ = ["PriorityBatcher", "PriorityLevel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityLevel:
    """How the requests of one level wait.

    Raises:
        ValueError: A queue that holds nothing, a negative time, or a word that is not one of the two.
    """

    max_queue_size: int = 256
    """Most requests of this level waiting."""
    on_full: OnFull = "reject"
    """What the next one meets: ``reject`` an error at once, ``wait`` a thread that stands still until there is room."""
    timeout_ms: float | None = None
    """In the place of ``BatchConfig.timeout_ms``: 0 for requests that wait for nobody."""
    deadline_ms: float | None = None
    """Longest wait in the queue; None: any. Looked at whenever the network is free, so a call that runs comes first."""
    on_deadline: OnDeadline = "reject"
    """What happens then: ``reject`` answers with an error; ``delay`` puts the request behind the others of its level,
    where it stays until it is its turn or it starves."""

    def __post_init__(self) -> None:
        """Check the limits."""
        if self.max_queue_size < 1:
            raise ValueError(f"a level must hold at least 1 request, not {self.max_queue_size}")
        for name, value in (("timeout_ms", self.timeout_ms), ("deadline_ms", self.deadline_ms)):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} is a time from 0, not {value}")
        if self.on_full not in ("wait", "reject") or self.on_deadline not in ("reject", "delay"):
            raise ValueError(
                "on_full is 'wait' or 'reject' and on_deadline 'reject' or 'delay', "
                f"not {self.on_full!r} and {self.on_deadline!r}"
            )


class PriorityBatcher(Batcher):
    """A ``DynamicBatcher`` with levels: a batch is filled from level 0 first.

    A request that has waited ``starvation_ms`` goes before everyone, so each is in a batch at the latest when those
    that starved before it are done, however many urgent ones keep coming. A request takes the earlier ones of its
    stream along: priority never reorders a stream.

    Args:
        config: Sizes, and the timeout of levels that name none. The queue's bounds are the levels'.
        inference_fn: See ``DynamicBatcher``.
        levels: The most urgent first; ``InferenceRequest.priority`` counts from 0.
        starvation_ms: None: the less urgent wait as long as urgent ones come.
        device: See ``DynamicBatcher``.
        device_id: Number of the GPU.
        sizer: See ``DynamicBatcher``.
        clock: See ``DynamicBatcher``.

    Raises:
        ValueError: No level, or a starvation bound that is no time.
        DeviceError: ``device="cuda"`` cannot be had.
        TypeError: ``inference_fn`` cannot be called.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fn: InferenceFn,
        *,
        levels: Sequence[PriorityLevel] = (PriorityLevel(timeout_ms=0.0), PriorityLevel()),
        starvation_ms: float | None = 1000.0,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not levels:
            raise ValueError("a batcher with priorities has at least one level")
        if starvation_ms is not None and not starvation_ms >= 0:
            raise ValueError(f"starvation_ms is a time from 0, not {starvation_ms}")
        super().__init__(
            config,
            [inference_fn],
            levels=[_rule(level, config) for level in levels],
            starvation_seconds=None if starvation_ms is None else starvation_ms / 1e3,
            device=device,
            device_id=device_id,
            sizer=sizer,
            clock=clock,
        )


def _rule(level: PriorityLevel, config: BatchConfig) -> LevelRule:
    linger_ms = config.timeout_ms if level.timeout_ms is None else level.timeout_ms
    return LevelRule(
        most_waiting=level.max_queue_size,
        on_full=level.on_full,
        linger_seconds=linger_ms / 1e3,
        deadline_seconds=None if level.deadline_ms is None else level.deadline_ms / 1e3,
        on_deadline=level.on_deadline,
    )
