"""Where and when a kernel runs for somebody else's arrays: on their stream, on a pooled stream, or on a thread."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from vitascope.device import Device
from vitascope.errors import DeviceError
from vitascope.gpu.download import Download
from vitascope.gpu.engines.gpu_arrays import import_cupy, on_stream
from vitascope.gpu.interchange import ArrayKind, kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.streams import memory_errors
from vitascope.gpu.toolkit.worker_streams import WorkerStream, open_streams, origin_of, wait_for

__all__ = ["KernelRunner", "OnStream", "OnThread", "PendingResult", "callers_stream"]


def callers_stream(arrays: tuple[Any, ...], *, device_id: int) -> int | None:
    """Handle of torch's current stream when any of the arrays is a tensor on a GPU; None for CuPy's current one."""
    for array in arrays:
        if kind_of(array) == "torch" and array.is_cuda:
            import torch

            return int(torch.cuda.current_stream(device_id).cuda_stream)
    return None


class PendingResult(ABC):
    """What ``async_exec=True`` returns.

    The inputs and ``out`` must not be written before the result is there. The result may be used on the stream that
    ``wait`` was called from; on others, the caller orders them. It need not be waited for.
    """

    @property
    @abstractmethod
    def done(self) -> bool:
        """True when the result is there; never waits. A computation that failed is done."""

    @abstractmethod
    def wait(self) -> Any:
        """The result, in the kind that the input had, or ``out``.

        An array on a GPU is returned at once: the caller's current stream (torch's for a tensor, else CuPy's) is
        ordered behind the work, and the host goes on. For an array on the host the host waits.

        Raises:
            Exception: What the computation on a worker thread raised.
        """

    @abstractmethod
    def synchronize(self) -> Any:
        """The result, once it is there: the host waits in any case.

        Raises:
            Exception: As ``wait``.
        """


class OnThread(PendingResult):
    """A result that a worker thread computes.

    Args:
        future: The computation.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """True when the thread is through."""
        return self._future.done()

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        return self._future.result()

    def synchronize(self) -> Any:
        """The result."""
        return self._future.result()


class OnStream(PendingResult):
    """A result that a CUDA stream computes.

    Args:
        event: ``cupy.cuda.Event`` behind the work.
        device_id: Number of the GPU.
        collect: Gives the result once the event has passed, or, for an array on the GPU, at any time.
        on_gpu: True when the result stays on the GPU.
    """

    def __init__(self, event: Any, *, device_id: int, collect: Callable[[], Any], on_gpu: bool) -> None:
        self.event = event
        """``cupy.cuda.Event`` behind the work; another stream can wait for it."""
        self._device_id = device_id
        self._collect = collect
        self._on_gpu = on_gpu
        self._result: Any = None
        self._collected = False

    @property
    def done(self) -> bool:
        """True when the GPU is through."""
        return bool(self.event.done)

    def wait(self) -> Any:
        """The result; see ``PendingResult``."""
        if not self._on_gpu:
            return self.synchronize()
        result = self._once()
        with import_cupy().cuda.Device(self._device_id):
            handle = callers_stream((result,), device_id=self._device_id)
            with on_stream(handle, device_id=self._device_id) as stream:
                stream.wait_event(self.event)
        return result

    def synchronize(self) -> Any:
        """The result, once it is there."""
        self.event.synchronize()
        return self._once()

    def _once(self) -> Any:
        if not self._collected:
            self._result, self._collected = self._collect(), True
        return self._result


class KernelRunner:
    """Runs computations on one device and hands results back in the kind of their first input. Thread-safe.

    Args:
        device: Where.
        stream_count: Streams, or threads on a CPU, for asynchronous computations.
    """

    def __init__(self, device: Device, *, stream_count: int) -> None:
        self.device = device
        self.on_gpu = device.kind == "cuda"
        self._stream_count = stream_count
        self._lock = threading.Lock()
        self._streams: list[WorkerStream] = []
        self._turn = itertools.count()
        self._held: deque[tuple[Any, object]] = deque()
        """Events of the pool's streams, and what must live until they have passed."""
        self._threads: ThreadPoolExecutor | None = None
        self._futures: set[Future[Any]] = set()

    def place(self, array: Any) -> Any:
        """An array where the runner computes, NumPy or CuPy, the same memory where it lies there already.

        Raises:
            DeviceError: It is on a GPU and the runner is not.
        """
        if self.on_gpu:
            return to_cupy(array)
        if lies_on_gpu(array):
            raise DeviceError(
                f"a {kind_of(array)} array on a GPU was given to what computes on {self.device.label}; "
                "use device='cuda', or bring the array to the host"
            )
        return to_numpy(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of the runner's device, contents undefined."""
        made: Any = import_cupy().empty(shape, dtype) if self.on_gpu else np.empty(shape, dtype)
        return made

    def run(self, compute: Callable[[Any], Any], arrays: Sequence[Any], *, out: Any, async_exec: bool) -> Any:
        """Compute now, or begin to.

        Args:
            compute: Gets ``out`` where the runner computes, or None, and gives the result there. It places its inputs.
            arrays: All inputs, for their kind and for the order of streams.
            out: An array of any kind that takes the result, or None.
            async_exec: Return a ``PendingResult``.

        Returns:
            ``out``, or the result in the kind of the first array.
        """
        like = arrays[0] if out is None else out
        kind, wants_gpu = kind_of(like), lies_on_gpu(like)
        if self.on_gpu:
            begin = self._begin_on_pooled_stream if async_exec else self._run_on_callers_stream
            return begin(compute, tuple(arrays), out, kind, wants_gpu)

        def job() -> Any:
            return self._compute_on_host(compute, out, kind)

        return OnThread(self._submit(job)) if async_exec else job()

    def synchronize(self) -> None:
        """Wait on the host until every asynchronous computation is through; failures belong to their results."""
        with self._lock:
            held, self._held = list(self._held), deque()
            futures = set(self._futures)
        for event, _ in held:
            event.synchronize()
        wait(futures)

    def close(self) -> None:
        """Finish what is under way, end threads, let streams go; idempotent, and it can run again."""
        self.synchronize()
        with self._lock:
            threads, self._threads, self._streams = self._threads, None, []
        if threads is not None:
            threads.shutdown()

    def _compute_on_host(self, compute: Callable[[Any], Any], out: Any, kind: ArrayKind) -> Any:
        target = None if out is None else self.place(out)
        if target is not None and not target.flags.writeable:
            raise ValueError("out cannot be written: its memory is read-only")
        result = compute(target)
        return to_kind(result, kind, on_gpu=False) if out is None else out

    def _submit(self, job: Callable[[], Any]) -> Future[Any]:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._stream_count, thread_name_prefix="vitascope-kernels")
            future = self._threads.submit(job)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _run_on_callers_stream(
        self,
        compute: Callable[[Any], Any],
        arrays: tuple[Any, ...],
        out: Any,
        kind: ArrayKind,
        wants_gpu: bool,
    ) -> Any:
        cupy, index = import_cupy(), self.device.index
        given = arrays if out is None else (*arrays, out)
        with cupy.cuda.Device(index), memory_errors():
            handle = callers_stream(given, device_id=index)
            if handle is None:  # CuPy's current one: nothing to enter
                return self._compute_on_gpu(compute, out, kind, wants_gpu)
            with on_stream(handle, device_id=index):
                return self._compute_on_gpu(compute, out, kind, wants_gpu)

    def _compute_on_gpu(
        self, compute: Callable[[Any], Any], out: Any, kind: ArrayKind, wants_gpu: bool
    ) -> Any:
        """On the current GPU and CuPy's current stream."""
        result = compute(self._target(out, wants_gpu))
        if wants_gpu:
            return to_kind(result, kind, on_gpu=True) if out is None else out
        stream = import_cupy().cuda.get_current_stream()
        return self._on_host(self._download(result, stream), out, kind)

    def _begin_on_pooled_stream(
        self,
        compute: Callable[[Any], Any],
        arrays: tuple[Any, ...],
        out: Any,
        kind: ArrayKind,
        wants_gpu: bool,
    ) -> PendingResult:
        cupy, index = import_cupy(), self.device.index
        given = arrays if out is None else (*arrays, out)
        pooled = self._next_stream()
        with cupy.cuda.Device(index), memory_errors():
            # Behind all that the caller's stream was given: the inputs are ready then, and so is memory that it had
            # from an earlier result of this stream and gave back.
            origin = origin_of(given)
            with pooled.entered():
                wait_for([origin])
                result = compute(self._target(out, wants_gpu))
                download = None if wants_gpu else self._download(result, pooled.stream)
                made = result if out is not None or not wants_gpu else to_kind(result, kind, on_gpu=True)
                event = cupy.cuda.Event(block=True, disable_timing=True)
                event.record(pooled.stream)
        with self._lock:
            while self._held and self._held[0][0].done:
                self._held.popleft()
            self._held.append((event, (given, result)))

        def collect() -> Any:
            if download is not None:
                return self._on_host(download, out, kind)
            return made if out is None else out

        return OnStream(event, device_id=index, collect=collect, on_gpu=wants_gpu)

    def _target(self, out: Any, wants_gpu: bool) -> Any:
        """``out`` on the GPU; None where the result comes down into it afterwards."""
        return to_cupy(out) if wants_gpu and out is not None else None

    def _download(self, result: Any, stream: Any) -> Download:
        # Imported here: page-locked memory is of no use without a GPU.
        from vitascope.gpu.memory.pinned_pool import shared_pool

        return Download([result], stream=stream, pool=shared_pool(self.device.index))

    def _on_host(self, download: Download, out: Any, kind: ArrayKind) -> Any:
        (array,) = download.wait()
        if out is None:
            return to_kind(array, kind, on_gpu=False)
        target = to_numpy(out)
        if target.shape != array.shape or target.dtype != array.dtype or not target.flags.writeable:
            raise ValueError(
                f"out is {target.dtype} {target.shape}, expected writable {array.dtype} {array.shape}"
            )
        np.copyto(target, array)
        return out

    def _next_stream(self) -> WorkerStream:
        with self._lock:
            if not self._streams:
                self._streams = open_streams(self.device, self._stream_count)
            return self._streams[next(self._turn) % len(self._streams)]
