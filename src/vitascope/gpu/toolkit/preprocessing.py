"""Pictures prepared by several threads at once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from vitascope.closing import Closing
from vitascope.device import available_cores
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Map, Source
from vitascope.gpu.toolkit.processor import CUDAKernelProcessor

Prepared = TypeVar("Prepared")


class PreprocessingPipeline(Closing, Generic[Prepared]):
    """Runs one function over many pictures on ``num_threads`` threads.

    OpenCV, NumPy and the kernels leave Python's lock while they work, so threads do what other libraries need
    processes for, and no picture is copied from one to the other. A function that computes in pure Python gains
    nothing here.

    What is done to a picture is ``preprocess_frame``: override it in a subclass, or give a function.

    Args:
        num_threads: Threads; the cores that this process may use when omitted.
        preprocess_frame: What is done to one picture; the fused preprocessing when omitted.
        target_size: (height, width) for the fused preprocessing; the picture's own when omitted.
        mean: Mean of R, G and B in 0..1, for the fused preprocessing.
        std: Standard deviation of R, G and B.

    Raises:
        ValueError: ``num_threads`` is below 1.
        DeviceError: ``cuda`` was requested and cannot be had.
    """

    def __init__(
        self,
        num_threads: int | None = None,
        *,
        preprocess_frame: Callable[[Any], Prepared] | None = None,
        target_size: tuple[int, int] | None = None,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
    ) -> None:
        self.num_threads = available_cores() if num_threads is None else num_threads
        if self.num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}, expected at least 1")
        self._function = preprocess_frame
        self._target_size, self._mean, self._std = target_size, mean, std
        self._place: tuple[int, Literal["auto", "cuda", "cpu"]] = device_id, device
        is_overridden = type(self).preprocess_frame is not PreprocessingPipeline.preprocess_frame
        if preprocess_frame is None and not is_overridden:
            self._processor  # noqa: B018 - raises here what it raises

    @cached_property
    def _processor(self) -> CUDAKernelProcessor:
        return CUDAKernelProcessor(*self._place)

    def preprocess_frame(self, frame: Any) -> Prepared:
        """Prepare one picture; called by several threads at a time."""
        if self._function is not None:
            return self._function(frame)
        prepared: Prepared = self._processor.fused_preprocess(
            frame, self._target_size, mean=self._mean, std=self._std
        )
        return prepared

    def preprocess_batch(self, frames: Iterable[Any]) -> list[Prepared]:
        """Prepare every picture; results come in their order.

        Args:
            frames: As ``CUDAKernelProcessor.fused_preprocess`` or ``preprocess_frame`` take them.

        Raises:
            PipelineError: One failed; the cause has a note that names the frame, counted from 0.
        """
        return list(self.stream(frames))

    def stream(self, frames: Iterable[Any]) -> Iterator[Prepared]:
        """Prepare pictures one by one, for more than memory holds; only a few are prepared ahead."""
        limits = QueueLimits(items=self.num_threads)

        def work(numbered: tuple[int, Any]) -> Prepared:
            return self.preprocess_frame(numbered[1])

        pipeline = Pipeline(
            [
                Source("frames", enumerate(frames), output=limits),
                Map("preprocess", work, workers=self.num_threads, output=limits),
            ],
            describe=lambda numbered: f"frame {numbered[0]}",
        )
        with closing(pipeline.stream()) as results:
            yield from results

    def close(self) -> None:
        """Let the processor go; idempotent."""
        if "_processor" in vars(self):
            self._processor.close()
