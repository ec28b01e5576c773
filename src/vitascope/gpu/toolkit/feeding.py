"""Feed a network: preprocess pictures on several threads, in order, or move batches to the device ahead of time."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from vitascope.closing import Closing
from vitascope.device import Device, available_cores, select_device
from vitascope.errors import DeviceError
from vitascope.gpu.current_stream import on_stream
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.number_checks import check_count
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Map, Source
from vitascope.gpu.toolkit.batching.batch_arrays import map_leaves
from vitascope.gpu.toolkit.processor import CUDAKernelProcessor
from vitascope.gpu.toolkit.worker_streams import StreamPool

Prepared = TypeVar("Prepared")


class PreprocessingPipeline(Closing, Generic[Prepared]):
    """Runs one function over many pictures on ``num_threads`` threads.

    OpenCV, NumPy and the kernels release the interpreter lock while they work, so threads do what other
    libraries need processes for, without copying pictures between them. Pure Python functions gain nothing
    here.

    Override ``preprocess_frame`` in a subclass, or pass a function, to change the preprocessing.

    Args:
        num_threads: Threads; if omitted, one per core available to this process.
        preprocess_frame: Prepares one picture; the fused preprocessing if omitted.
        target_size: (height, width) of the fused preprocessing; the picture's own size if omitted.
        mean: Mean of R, G and B in 0..1, for the fused preprocessing.
        std: Standard deviation of R, G and B.
        device: Device of the fused preprocessing.
        device_id: Number of the GPU.

    Raises:
        ValueError: ``num_threads`` is below 1.
        DeviceError: ``cuda`` was requested and is not available.
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
        check_count("num_threads", num_threads, optional=True)
        self.num_threads = available_cores() if num_threads is None else num_threads
        self._function = preprocess_frame
        self._target_size, self._mean, self._std = target_size, mean, std
        self._place: tuple[int, Literal["auto", "cuda", "cpu"]] = device_id, device
        is_overridden = type(self).preprocess_frame is not PreprocessingPipeline.preprocess_frame
        if preprocess_frame is None and not is_overridden:
            self._processor  # noqa: B018 - validates the arguments

    @cached_property
    def _processor(self) -> CUDAKernelProcessor:
        return CUDAKernelProcessor(*self._place)

    def preprocess_frame(self, frame: Any) -> Prepared:
        """Prepare one picture; called from several threads at once."""
        if self._function is not None:
            return self._function(frame)
        prepared: Prepared = self._processor.fused_preprocess(
            frame, self._target_size, mean=self._mean, std=self._std
        )
        return prepared

    def preprocess_batch(self, frames: Iterable[Any]) -> list[Prepared]:
        """Prepare all pictures and return the results in order.

        Args:
            frames: Pictures for ``CUDAKernelProcessor.fused_preprocess`` or ``preprocess_frame``.

        Raises:
            PipelineError: A picture failed; a note on the cause has its index, from 0.
        """
        return list(self.stream(frames))

    def stream(self, frames: Iterable[Any]) -> Iterator[Prepared]:
        """Prepare pictures lazily, only a few ahead, when memory cannot hold them all."""
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
        """Release the processor; idempotent."""
        if "_processor" in vars(self):
            self._processor.close()


Batch = TypeVar("Batch")


class PrefetchDataLoader(Generic[Batch]):
    """Iterates over another loader, moving batches to the device ``prefetch_factor`` batches ahead.

    A thread reads the loader. On a GPU copies run on their own stream, from page-locked memory with
    ``pin_memory``; an event orders the stream current on taking a batch behind its copy, and the host does
    not wait. Each batch comes once, in order, and each iteration iterates over the loader once.

    A batch is an array (NumPy, CuPy, torch), or a tuple, list, named tuple or dict of arrays and other
    objects, which stay as they are. On a GPU tensors stay tensors, and NumPy arrays become CuPy arrays.

    Args:
        loader: Any iterable, such as a ``torch.utils.data.DataLoader``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, or a ``torch.device``.
        prefetch_factor: Batches waiting to be taken, at least 1; the thread may hold one more.
        pin_memory: Copy through page-locked memory; otherwise copies block the thread. Ignored on a CPU.

    Raises:
        ValueError: ``prefetch_factor`` is below 1.
        DeviceError: The device is unknown or not available.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        device: Any = "auto",
        *,
        prefetch_factor: int = 2,
        pin_memory: bool = True,
    ) -> None:
        check_count("prefetch_factor", prefetch_factor)
        self.loader = loader
        self.device = _device(device)
        """The batches' device."""
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory

    def __len__(self) -> int:
        """Number of batches per iteration, if the loader has a length.

        Raises:
            TypeError: The loader has no length.
        """
        return len(self.loader)  # type: ignore[arg-type]  # a loader without a length raises what is documented

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches on the device; leaving early ends the thread.

        Raises:
            PipelineError: The loader failed, or a batch could not be copied to the device.
        """
        limits = QueueLimits(items=self.prefetch_factor, nbytes=None)
        if self.device.kind == "cpu":
            with closing(Pipeline([Source("prefetch", self.loader, output=limits)]).stream()) as batches:
                yield from batches
            return
        streams = StreamPool(self.device, 1)
        upload = _Upload(self.device, pin_memory=self.pin_memory)
        source = Source(
            "prefetch", map(upload.begin, self.loader), output=limits, open=streams.take, close=streams.leave
        )
        # Memory of the copy stream must not be written again before the caller's work on it is done.
        held: deque[_Coming] = deque()
        try:
            with closing(Pipeline([source]).stream()) as comings:
                for coming in comings:
                    upload.order_behind(coming)
                    held.append(coming)
                    try:
                        yield coming.batch
                    finally:  # also if the caller leaves here: its work is already on its stream
                        coming.used = upload.mark()
                    while len(held) > self.prefetch_factor or (
                        held and all(event.done for event in held[0].used)
                    ):
                        _let_go(held)
        finally:
            while held:
                _let_go(held)


@dataclass(slots=True, eq=False)
class _Coming:
    """A batch being uploaded."""

    batch: Any
    arrived: Any
    """``cupy.cuda.Event`` behind the copies."""
    source: Any
    """Source of the copies, kept alive until they are done."""
    used: list[Any] = field(default_factory=list)
    """Events behind the caller's work on the batch."""


def _let_go(held: deque[_Coming]) -> None:
    """Release the oldest batch, once the caller's work on it is done."""
    for event in held[0].used:
        event.synchronize()
    held.popleft()  # only now: this is the last reference to its memory


class _Upload:
    """Copies batches on the calling thread's stream, and orders the caller's streams behind the copies."""

    def __init__(self, device: Device, *, pin_memory: bool) -> None:
        self._index = device.index
        self._pin = pin_memory

    def begin(self, batch: Any) -> _Coming:
        moved = map_leaves(batch, self._up)
        arrived = import_cupy().cuda.Event(disable_timing=True)
        arrived.record()
        return _Coming(moved, arrived, batch)

    def order_behind(self, coming: _Coming) -> None:
        with import_cupy().cuda.Device(self._index):
            for handle in self._current():
                with on_stream(handle, device_id=self._index) as stream:
                    stream.wait_event(coming.arrived)

    def mark(self) -> list[Any]:
        """Record events on this thread's current streams."""
        cupy = import_cupy()
        events = []
        with cupy.cuda.Device(self._index):
            for handle in self._current():
                with on_stream(handle, device_id=self._index) as stream:
                    events.append(cupy.cuda.Event(block=True, disable_timing=True))
                    events[-1].record(stream)
        return events

    def _current(self) -> Iterable[int | None]:
        """CuPy's current stream, and torch's if torch is in use."""
        yield None
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            yield int(torch.cuda.current_stream(self._index).cuda_stream)

    def _up(self, array: Any) -> Any:
        try:
            kind = kind_of(array)
        except TypeError:  # it is a name or a number
            return array
        if lies_on_gpu(array):
            return array
        if kind == "torch":
            ready = array.pin_memory() if self._pin else array
            return ready.to(f"cuda:{self._index}", non_blocking=self._pin)
        cupy = import_cupy()
        if self._pin:
            return to_cupy(array)
        placed = cupy.empty(array.shape, array.dtype)
        placed.set(array)
        return placed


def _device(wanted: Any) -> Device:
    kind, _, number = str(wanted).partition(":")
    if kind == "cpu":
        return select_device("cpu")
    if kind in ("auto", "cuda") and (not number or number.isdecimal()):
        return select_device("cuda" if kind == "cuda" else "auto", index=int(number or 0))
    raise DeviceError(f"{wanted!r} is not a device; expected auto, cpu, cuda or cuda:N")
