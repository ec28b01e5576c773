"""Requests of several clients in one call."""

from __future__ import annotations

from typing import Literal

from vitascope.gpu.toolkit.batching.adaptive import AdaptiveBatchSizer
from vitascope.gpu.toolkit.batching.batcher import Batcher, InferenceFn
from vitascope.gpu.toolkit.batching.requests import BatchConfig, Clock
from vitascope.gpu.toolkit.batching.waiting import LevelRule

__all__ = ["DynamicBatcher", "only_level"]


class DynamicBatcher(Batcher):
    """Gathers requests of several threads into batches, by the rules of ``BatchConfig``.

    ::

        with DynamicBatcher(BatchConfig(max_batch_size=8, timeout_ms=5), network) as batcher:
            response = batcher.submit(InferenceRequest(picture, "frame_001"))

    One worker thread calls ``inference_fn``, on a GPU inside a CUDA stream of its own (CuPy's and torch's current
    one), so the function needs no lock. Batches are formed in order of arrival.

    Args:
        config: Sizes and times.
        inference_fn: Takes the stacked batch [rows, ...] in the requests' library, gives its results in fresh memory,
            rows first.
        device: ``cuda``, ``cpu``, or ``auto``: the GPU where there is one. It decides what is current in the worker
            thread; arrays stay where their clients have them.
        device_id: Number of the GPU; without meaning on a CPU.
        sizer: Cuts batches that the GPU's memory does not hold, and computes the parts; without one
            ``DeviceMemoryError`` reaches the clients.
        clock: What deadlines are measured by; ``time.perf_counter`` when omitted.

    Raises:
        DeviceError: ``device="cuda"`` cannot be had.
        TypeError: ``inference_fn`` cannot be called.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fn: InferenceFn,
        *,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            config,
            [inference_fn],
            levels=[only_level(config)],
            device=device,
            device_id=device_id,
            sizer=sizer,
            clock=clock,
        )


def only_level(config: BatchConfig) -> LevelRule:
    """The rule of a batcher without priorities."""
    return LevelRule(
        most_waiting=config.max_queue_size,
        on_full=config.on_full,
        linger_seconds=config.timeout_ms / 1e3,
    )
