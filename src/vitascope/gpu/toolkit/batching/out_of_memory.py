"""How libraries say that memory ran out, and what they keep that could be given back."""

from __future__ import annotations

import gc
import sys

from vitascope.errors import DeviceMemoryError
from vitascope.gpu.engines.gpu_arrays import speaks_of_memory

__all__ = ["is_out_of_memory", "release_idle_memory"]

_TYPES = ("OutOfMemoryError",)  # cupy.cuda.memory's, torch's and torch.cuda's


def is_out_of_memory(error: BaseException) -> bool:
    """True for ``DeviceMemoryError``, ``MemoryError``, CuPy's and torch's ``OutOfMemoryError``.

    Also for other errors of the runtime whose words say so: cuBLAS and cuDNN fail to get their workspaces as
    ``RuntimeError``, and CUDA itself as ``CUDARuntimeError``.
    """
    if isinstance(error, DeviceMemoryError | MemoryError) or type(error).__name__ in _TYPES:
        return True
    return isinstance(error, RuntimeError) and speaks_of_memory(str(error))


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
