"""What a GPU without memory is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vitascope.errors import DeviceMemoryError

__all__ = ["memory_errors"]


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn CuPy's report of a GPU without memory into ours, which says how much is left.

    Raises:
        DeviceMemoryError: The GPU has too little memory.
    """
    import cupy

    try:
        yield
    except cupy.cuda.memory.OutOfMemoryError as error:
        free, total = cupy.cuda.runtime.memGetInfo()
        # CuPy names its limit where there is one.
        limited = (
            " as far as gpu.max_vram_usage or gpu.memory_fraction allow" if "limit" in str(error) else ""
        )
        raise DeviceMemoryError(
            f"the GPU's memory is used up{limited}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free ({error}); "
            "smaller model.batch_size, gpu.decoder_sessions or processing.max_queue_mb need less"
        ) from error
