"""Several batches in flight: while one is copied or computed, the next is on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vitascope.gpu.toolkit.batching.adaptive import AdaptiveBatchSizer
from vitascope.gpu.toolkit.batching.batcher import Batcher, InferenceFn
from vitascope.gpu.toolkit.batching.dynamic import only_level
from vitascope.gpu.toolkit.batching.requests import BatchConfig, Clock

__all__ = ["StreamBatcher"]


class StreamBatcher(Batcher):
    """A ``DynamicBatcher`` with several workers, each with a CUDA stream of its own; on a CPU just threads.

    It pays where one batch does not fill the GPU, or where the host's part of a call is long. Responses come in the
    order in which batches were formed, whichever stream is faster, so streams of requests keep their order.

    Args:
        config: Sizes and times.
        inference_fn: As ``DynamicBatcher``'s, but called by several threads at a time; or one function for each
            stream, which need not be thread-safe. An engine is not: its CUDA graph has one set of buffers.
        num_streams: Batches in flight; as many as functions when these are given one by one.
        device: See ``DynamicBatcher``.
        device_id: Number of the GPU.
        sizer: See ``DynamicBatcher``; shared by the workers.
        clock: See ``DynamicBatcher``.

    Raises:
        ValueError: Fewer than one stream, or another number than functions.
        DeviceError: ``device="cuda"`` cannot be had.
        TypeError: ``inference_fn`` cannot be called.
    """

    def __init__(
        self,
        config: BatchConfig,
        inference_fn: InferenceFn | Sequence[InferenceFn],
        *,
        num_streams: int | None = None,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        sizer: AdaptiveBatchSizer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if callable(inference_fn):
            functions = [inference_fn] * (2 if num_streams is None else num_streams)
        else:
            functions = list(inference_fn)
        if not functions or (num_streams is not None and num_streams != len(functions)):
            raise ValueError(
                f"{num_streams} streams for {len(functions)} functions: there must be one for each"
            )
        super().__init__(
            config,
            functions,
            levels=[only_level(config)],
            device=device,
            device_id=device_id,
            sizer=sizer,
            clock=clock,
        )
