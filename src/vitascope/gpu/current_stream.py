"""Sets the CUDA stream of a thread, and locks the capture of CUDA graphs.

CUDA graphs are recorded one at a time, and while one is, nothing makes a whole device wait.

``cudaDeviceSynchronize`` from any thread of the process breaks a recording, in every capture mode (CUDA Runtime API,
"Graph Management": such calls are not permitted during stream capture). So do calls that free memory or events from the
thread that records, which the garbage collector makes where it likes.
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
"""Held while a graph is recorded, and around our own waits for a whole device."""


@contextmanager
def on_cuda_stream(stream: Any) -> Iterator[Any]:
    """Make a ``cupy.cuda.Stream`` current inside, and the previous one again afterwards.

    CuPy's own ``with stream`` goes back to the stream entered last: a thread that chose its stream by ``stream.use()``
    would be on the default stream then, ahead of what it has to wait for.

    Args:
        stream: One of the current GPU.

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
    """A raw handle, as CuPy takes streams of other libraries (the CUDA stream protocol)."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def external_stream(handle: int) -> Any:
    """The ``cupy.cuda.Stream`` of a raw handle, which its owner keeps alive."""
    return import_cupy().cuda.Stream.from_external(_StreamHandle(handle))


@contextmanager
def on_stream(handle: int | None, *, device_id: int) -> Iterator[Any]:
    """Work on one GPU and one stream: kernels, and the memory that CuPy gives out, belong to it inside.

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
    """Record a graph; again if somebody else synchronised the device meanwhile.

    Decoders of FFmpeg do so as they open and close, on threads of their own that know no turns.

    Args:
        record: Records on a stream that it makes, and gives the graph. It raises what CuPy or PyTorch raise, and leaves
            nothing that is still being recorded.

    Returns:
        What ``record`` gives.

    Raises:
        Exception: ``record`` failed by itself, or its recording was broken every time.
    """
    with RECORDING, _without_garbage_collection():
        for _ in range(_MOST_TRIES - 1):
            try:
                return record()
            except Exception as error:
                # cudaErrorStreamCaptureInvalidated, in the words of CuPy and of PyTorch.
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
