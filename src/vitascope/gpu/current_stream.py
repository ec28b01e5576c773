"""Temporary CUDA streams of a thread, and the lock for recording CUDA graphs.

Graphs are recorded one at a time, and nothing synchronises a whole device meanwhile.

``cudaDeviceSynchronize`` from any thread of the process breaks a recording, in every capture mode (CUDA
Runtime API, "Graph Management": such calls are not permitted during stream capture). So does freeing memory
or events on the recording thread, which the garbage collector may do at any point.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from vitascope.gpu.kernels.cuda_module import import_cupy

T = TypeVar("T")

_MOST_TRIES = 8

RECORDING = threading.RLock()
"""Held while recording a graph, and around our own device-wide waits."""


@contextmanager
def on_cuda_stream(stream: Any) -> Iterator[Any]:
    """Make a ``cupy.cuda.Stream`` current, and restore the previous one on exit.

    CuPy's own ``with stream`` restores the stream entered last: a thread bound with ``stream.use()`` would
    end up on the default stream, ahead of the work it has to wait for.

    Args:
        stream: A stream of the current GPU.

    Yields:
        The stream.
    """
    before = import_cupy().cuda.get_current_stream()
    stream.use()
    try:
        yield stream
    finally:
        before.use()


class _StreamHandle:
    """A raw stream handle, in the CUDA stream protocol that CuPy reads."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def external_stream(handle: int) -> Any:
    """Wrap a raw handle, which its owner keeps alive, as a ``cupy.cuda.Stream``."""
    return import_cupy().cuda.Stream.from_external(_StreamHandle(handle))


@contextmanager
def on_stream(handle: int | None, *, device_id: int) -> Iterator[Any]:
    """Work on one GPU and stream: kernels and CuPy allocations inside belong to it.

    Args:
        handle: CUDA stream handle; None stays on CuPy's current stream.
        device_id: Number of the GPU.

    Yields:
        The ``cupy.cuda.Stream``.
    """
    cupy = import_cupy()
    with cupy.cuda.Device(device_id):
        current = cupy.cuda.get_current_stream()
        if handle is None or handle == current.ptr:
            yield current
        else:
            with on_cuda_stream(external_stream(handle)) as stream:
                yield stream


def recorded(record: Callable[[], T]) -> T:
    """Record a graph, and retry if a device synchronisation broke the recording.

    FFmpeg's decoders synchronise as they open and close, on their own threads and without our lock.

    Args:
        record: Makes a stream, records on it and returns the graph. It raises what CuPy or PyTorch raise, and
            leaves no recording open.

    Returns:
        The result of ``record``.

    Raises:
        Exception: ``record`` failed by itself, or every recording was broken.
    """
    with RECORDING, _without_garbage_collection():
        for _ in range(_MOST_TRIES - 1):
            try:
                return record()
            except Exception as error:
                # cudaErrorStreamCaptureInvalidated, as CuPy and PyTorch report it.
                if "previous error during capture" not in str(error):
                    raise
        return record()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
