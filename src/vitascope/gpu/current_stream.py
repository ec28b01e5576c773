"""The CUDA stream that a thread works on, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["on_cuda_stream"]


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
