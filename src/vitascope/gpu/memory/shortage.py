"""Running out of GPU memory: our error, how other libraries say it, and what they can give back."""

from __future__ import annotations

import gc
import re
import sys
from types import TracebackType

from vitascope.errors import DeviceMemoryError


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
        cupy = sys.modules.get("cupy")  # what has not been imported reports nothing
        if cupy is None or not isinstance(error, cupy.cuda.memory.OutOfMemoryError):
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


_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|failed to allocate|available memory|ALLOC_FAILED", re.IGNORECASE
)
_TYPES = ("OutOfMemoryError",)  # cupy.cuda.memory's, torch's and torch.cuda's


def is_out_of_memory(error: BaseException) -> bool:
    """True for ``DeviceMemoryError``, ``MemoryError``, CuPy's and torch's ``OutOfMemoryError``.

    Also for other errors of the runtime whose words say so: cuBLAS and cuDNN fail to get their workspaces as
    ``RuntimeError``, and CUDA itself as ``CUDARuntimeError``. And for an error that was raised from one of these.
    """
    if isinstance(error, DeviceMemoryError | MemoryError) or type(error).__name__ in _TYPES:
        return True
    if isinstance(error, RuntimeError) and speaks_of_memory(str(error)):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)


def release_idle_memory() -> None:
    """Give back what CuPy's and torch's allocators keep on the GPU for later, where they are in use.

    What only cycles of references still hold is freed first: an error and the frames in its traceback hold each other,
    with the arrays and the decoder's surfaces that were on their way. Nothing of that is seen in the host's memory, and
    Python would look for it much later.
    """
    gc.collect()
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def speaks_of_memory(text: str) -> bool:
    """True for the words in which libraries say that the GPU's memory does not suffice."""
    return _OUT_OF_MEMORY.search(text) is not None
