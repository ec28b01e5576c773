"""What a GPU without memory is called."""

from __future__ import annotations

from types import TracebackType

from vitascope.errors import DeviceMemoryError

__all__ = ["memory_errors"]


class memory_errors:  # noqa: N801 - used as a function; a class because a generator costs more than the copies inside
    """Turn CuPy's report of a GPU without memory into ours, which says how much is left.

    Raises:
        DeviceMemoryError: The GPU has too little memory.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise ours in its place."""
        if error is None:
            return
        import cupy

        if not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
            return
        free, total = cupy.cuda.runtime.memGetInfo()
        # CuPy names its limit where there is one.
        limited = (
            " as far as gpu.max_vram_usage or gpu.memory_fraction allow" if "limit" in str(error) else ""
        )
        raise DeviceMemoryError(
            f"the GPU's memory is used up{limited}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free ({error}); "
            "smaller model.batch_size, gpu.decoder_sessions or processing.max_queue_mb need less"
        ) from error
