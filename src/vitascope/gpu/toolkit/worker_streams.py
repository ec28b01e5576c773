"""CUDA streams of worker threads, and their order relative to the submitting threads' streams.

CuPy and torch each have a current stream per thread; inside ``WorkerStream.entered`` both are the worker's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from vitascope.device import Device
from vitascope.gpu.current_stream import RECORDING, on_cuda_stream
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.toolkit.batching.batch_arrays import leaves, library_of

_PER_THREAD_STREAM = 2  # cudaStreamPerThread: another stream in each thread that names it


class WorkerStream:
    """A CUDA stream for one worker at a time; does nothing on a CPU.

    Args:
        device: The worker's device.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.stream: Any = None
        """``cupy.cuda.Stream``, non-blocking; None on a CPU."""
        if device.kind == "cuda":
            cupy = import_cupy()
            with cupy.cuda.Device(device.index):
                self.stream = cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make it CuPy's and torch's current stream inside."""
        if self.stream is None:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(import_cupy().cuda.Device(self._device.index))
            stack.enter_context(on_cuda_stream(self.stream))
            torch = _torch_on_gpu()
            if torch is not None:
                device = torch.device("cuda", self._device.index)
                stack.enter_context(torch.cuda.device(device))
                stack.enter_context(
                    torch.cuda.stream(torch.cuda.ExternalStream(self.stream.ptr, device=device))
                )
            yield


def open_streams(device: Device, count: int) -> list[WorkerStream]:
    """Open streams on one device. On a GPU the host first waits for pending work, such as uploads of weights."""
    if device.kind == "cuda":
        cupy = import_cupy()
        with cupy.cuda.Device(device.index), RECORDING:
            cupy.cuda.runtime.deviceSynchronize()
    return [WorkerStream(device) for _ in range(count)]


@dataclass(slots=True, eq=False)
class Origin:
    """Streams of a submitting thread: its arrays are ready behind them, and it reads results on them."""

    cupy_stream: Any = None
    """Its current ``cupy.cuda.Stream``; None without a CuPy array."""
    cupy_device: int = 0
    """Number of that stream's GPU."""
    torch_stream: Any = None
    """Its current ``torch.cuda.Stream``; None without a tensor on a GPU."""
    cupy_event: Any = None
    """Event behind its CuPy arrays; None to wait for the whole stream."""
    torch_event: Any = None
    """Event behind its tensors; None to wait for the whole stream."""


def origin_of(data: Any) -> Origin | None:
    """Record when a request's arrays on a GPU are ready, on the current streams; None without such arrays."""
    cupy_device = torch_device = None
    for leaf in leaves(data):
        library = library_of(leaf)
        if library == "cupy" and cupy_device is None:
            cupy_device = leaf.device.id
        elif library == "torch" and leaf.is_cuda and torch_device is None:
            torch_device = leaf.device
    return origin_on(cupy_device, torch_device, stands_still=False)


def origin_on(cupy_device: int | None, torch_device: Any, *, stands_still: bool) -> Origin | None:
    """Record the current streams like ``origin_of``, given the arrays' GPUs.

    Args:
        cupy_device: Number of the CuPy arrays' GPU; None without such arrays.
        torch_device: ``torch.device`` of the tensors on a GPU; None without any.
        stands_still: The calling thread launches nothing until its request is answered, so the reader may
            wait for its whole streams: one event per stream replaces one per request, each of which would
            release the interpreter lock.
    """
    if cupy_device is None and torch_device is None:
        return None
    origin = Origin()
    if cupy_device is not None:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(cupy_device):
            stream = cupy.cuda.get_current_stream()
            origin.cupy_stream, origin.cupy_device = stream, cupy_device
            if not stands_still or stream.ptr == _PER_THREAD_STREAM:
                origin.cupy_event = cupy.cuda.Event(disable_timing=True)
                origin.cupy_event.record(stream)
    if torch_device is not None:
        origin.torch_stream = sys.modules["torch"].cuda.current_stream(torch_device)
        if not stands_still or origin.torch_stream.cuda_stream == _PER_THREAD_STREAM:
            origin.torch_event = origin.torch_stream.record_event()
    return origin


def wait_for(origins: Iterable[Origin | None]) -> None:
    """Order the current streams behind requests' arrays, without blocking the host."""
    whole: dict[tuple[str, int, int], Origin] = {}
    for origin in origins:
        if origin is None:
            continue
        if origin.cupy_event is not None:
            sys.modules["cupy"].cuda.get_current_stream().wait_event(origin.cupy_event)
        elif origin.cupy_stream is not None:
            whole["cupy", origin.cupy_device, origin.cupy_stream.ptr] = origin
        if origin.torch_event is not None:
            _torch_waits(origin.torch_stream, origin.torch_event)
        elif origin.torch_stream is not None:
            stream = origin.torch_stream
            whole["torch", stream.device.index, stream.cuda_stream] = origin
    for (library, _, _), origin in whole.items():
        if library == "torch":
            _torch_waits(origin.torch_stream, origin.torch_stream.record_event())
            continue
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(origin.cupy_device):
            event = cupy.cuda.Event(disable_timing=True)
            event.record(origin.cupy_stream)
        cupy.cuda.get_current_stream().wait_event(event)


def _torch_waits(stream: Any, event: Any) -> None:
    sys.modules["torch"].cuda.current_stream(stream.device).wait_event(event)


def finish(output: Any, origins: Sequence[Origin | None]) -> None:
    """Block the host until results on a GPU are ready for any stream.

    Torch's results are also recorded on the submitters' streams: their memory is not reused before those
    streams' work so far is done (``torch.Tensor.record_stream``). CuPy has no equivalent.
    """
    streams: dict[int, Any] = {}
    readers = {origin.torch_stream for origin in origins if origin is not None and origin.torch_stream}
    for leaf in leaves(output):
        library = library_of(leaf)
        if library == "cupy":
            cupy = sys.modules["cupy"]
            with cupy.cuda.Device(leaf.device.id):
                stream = cupy.cuda.get_current_stream()
                streams[stream.ptr] = stream
        elif library == "torch" and leaf.is_cuda:
            stream = sys.modules["torch"].cuda.current_stream(leaf.device)
            streams[stream.cuda_stream] = stream
            for reader in readers:
                leaf.record_stream(reader)
    for stream in streams.values():
        stream.synchronize()


def _torch_on_gpu() -> Any:
    """Get ``torch`` if the caller already uses it on a GPU; never imports it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


class StreamPool:
    """Lends each thread of a stage its own stream while the thread runs; does nothing on a CPU.

    Args:
        device: The streams' device.
        count: Number of threads.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._free = open_streams(device, count)
        self._lock = threading.Lock()
        self._mine = threading.local()

    @property
    def own(self) -> WorkerStream:
        """The calling thread's stream."""
        own: WorkerStream = self._mine.own
        return own

    def take(self) -> None:
        """Make a stream of the pool current in this thread; for a stage's ``open``."""
        with self._lock:
            own = self._free.pop()
        with ExitStack() as stack:
            stack.enter_context(own.entered())
            self._mine.own, self._mine.leaving = own, stack.pop_all()

    def leave(self) -> None:
        """Wait for the stream's work and return the stream; for a stage's ``close``."""
        own, leaving = self._mine.own, self._mine.leaving
        if own.stream is not None:
            own.stream.synchronize()
        leaving.close()
        with self._lock:
            self._free.append(own)
