"""The CUDA stream that a thread works on for a while, and the turn of whoever records one as a graph.

CUDA graphs are recorded one at a time, and while one is, nothing makes a whole device wait.

``cudaDeviceSynchronize`` from any thread of the process breaks a recording, in every capture mode (CUDA Runtime API,
"Graph Management": such calls are not permitted during stream capture).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["RECORDING", "on_cuda_stream"]

RECORDING = threading.RLock()
"""Held while a graph is recorded, and around our own waits for a whole device."""


@contextmanager
def on_cuda_stream(stream: Any) -> Iterator[Any]:
    """Work on a ``cupy.cuda.Stream`` inside, and on the one that was current before again afterwards.

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
