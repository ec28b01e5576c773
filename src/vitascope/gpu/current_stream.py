"""The CUDA stream that a thread works on for a while, and the lock for recording one as a graph.

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
    import cupy

    before = cupy.cuda.get_current_stream()
    stream.use()
    try:
        yield stream
    finally:
        before.use()


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
