"""Convert arrays between NumPy, CuPy, PyTorch and DLPack, sharing memory where possible.

Any other array that speaks DLPack (JAX, TensorFlow, Paddle …) becomes a NumPy array if it is on the host, and
a CuPy array if it is on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.errors import DeviceError

ArrayKind = Literal["numpy", "cupy", "torch", "dlpack"]

_DLPACK_CUDA = (2, 13)  # kDLCUDA and kDLCUDAManaged of dlpack.h
_DLPACK_HOST = (1, 3)  # kDLCPU and kDLCUDAHost


def kind_of(array: Any) -> ArrayKind:
    """The library that an array belongs to, without importing any of them.

    Raises:
        TypeError: ``array`` is not an array.
    """
    own: Any = type(array)
    kind = _kind_of_type(own)
    if kind is None:
        raise TypeError(
            f"{type(array).__name__} is not an array; expected NumPy, CuPy, torch, or one that supports DLPack"
        )
    return kind


@lru_cache(maxsize=256)
def _kind_of_type(kind: type) -> ArrayKind | None:
    libraries = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "cupy" in libraries and hasattr(kind, "shape"):
        return "cupy"
    if issubclass(kind, np.ndarray):
        return "numpy"
    if "torch" in libraries and hasattr(kind, "is_cuda"):
        return "torch"
    return "dlpack" if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__") else None


def lies_on_gpu(array: Any) -> bool:
    """Tell whether an array of any kind is in the memory of an NVIDIA GPU.

    Raises:
        DeviceError: It is on another vendor's device.
        TypeError: ``array`` is not an array.
    """
    kind = kind_of(array)
    if kind in ("numpy", "cupy"):
        return kind == "cupy"
    if kind == "torch":
        if array.device.type not in ("cpu", "cuda"):
            raise DeviceError(f"a tensor on {array.device} cannot be read; expected cpu or cuda")
        return bool(array.is_cuda)
    device, number = array.__dlpack_device__()
    if device not in (*_DLPACK_CUDA, *_DLPACK_HOST):
        raise DeviceError(f"an array on DLPack device {device}:{number} cannot be read; expected cpu or cuda")
    return device in _DLPACK_CUDA


def to_numpy(array: Any) -> npt.NDArray[Any]:
    """View an array as NumPy; an array on a GPU is copied, and the host waits."""
    kind = kind_of(array)
    if lies_on_gpu(array):
        copy: npt.NDArray[Any] = to_cupy(array).get()
        return copy
    if kind == "numpy":
        same: npt.NDArray[Any] = array
        return same
    if kind == "torch":  # NumPy's own conversion returns a read-only array
        shared: npt.NDArray[Any] = array.detach().numpy()
        return shared
    return np.from_dlpack(array)


def on_its_way(array: Any) -> Callable[[], npt.NDArray[Any]]:
    """Start copying a NumPy or CuPy array to the host.

    Returns:
        A function that returns the array: a NumPy array itself, or a copy of a CuPy array in page-locked
        memory, which stays lent while the array lives. It waits for the copy, but not for later launches.

    Raises:
        MemoryLimitError: Too much page-locked memory is lent, and none was returned in time.
    """
    if not lies_on_gpu(array):
        return lambda: array
    import cupy

    # Imported here: page-locked memory is useless without a GPU.
    from vitascope.gpu.memory.pinned_pool import Download, shared_pool

    with array.device:
        coming = Download(
            [cupy.ascontiguousarray(array)],
            stream=cupy.cuda.get_current_stream(),
            pool=shared_pool(array.device.id),
        )
    return lambda: coming.wait()[0]


def one_after_the_other(arrays: Sequence[Any]) -> Any:
    """Concatenate NumPy or CuPy arrays along their first axis: a view if they are adjacent on a GPU, else a copy.

    CuPy copies large arrays one by one, and launching a copy takes as long as the copy itself. So adjacent ones are
    copied at once.
    """
    if kind_of(arrays[0]) != "cupy":
        return np.concatenate(list(arrays))
    runs: list[list[Any]] = []
    for each in arrays:
        if not (runs and _follows(runs[-1][0], len(runs[-1]), each)):
            runs.append([])
        runs[-1].append(each)
    views = [
        type(first)((len(run) * len(first), *first.shape[1:]), first.dtype, first.data, first.strides)
        for run in runs
        for first in run[:1]
    ]
    return views[0] if len(views) == 1 else np.concatenate(views)


def _follows(first: Any, number: int, other: Any) -> bool:
    """Whether a CuPy array is the one of this number in memory from a first one on, all of one shape and dtype."""
    return bool(
        (other.shape, other.dtype, other.strides) == (first.shape, first.dtype, first.strides)
        and other.data.mem is first.data.mem
        and other.data.ptr - first.data.ptr == number * len(first) * first.strides[0]
    )


def to_cupy(array: Any) -> Any:
    """View an array as CuPy; an array on the host is copied to the current GPU, on the current stream.

    The copy goes through the applications' shared page-locked memory: the host does not wait, and the array
    may be overwritten at once. DLPack orders CuPy's current stream behind the other library's.

    Raises:
        MemoryLimitError: Too much page-locked memory is lent, and none was returned in time.
        DeviceMemoryError: The GPU has too little memory.
    """
    kind = kind_of(array)
    if kind == "cupy":
        return array
    import cupy

    if lies_on_gpu(array):
        return cupy.from_dlpack(array.detach() if kind == "torch" else array)
    # Imported here: page-locked memory is useless without a GPU.
    from vitascope.gpu.memory.pinned_pool import shared_pool

    return shared_pool(cupy.cuda.Device().id).upload(to_numpy(array), beside=False)


def to_kind(array: Any, kind: ArrayKind, *, on_gpu: bool) -> Any:
    """Convert a NumPy or CuPy array to a kind and place, without a copy if it already has both.

    Args:
        array: NumPy or CuPy array.
        kind: Array type of the result; ``dlpack`` stands for NumPy or CuPy, which speak it.
        on_gpu: Whether the result should be on the GPU.
    """
    if kind == "torch":
        import torch

        placed = to_cupy(array) if on_gpu else to_numpy(array)
        # A view of read-only memory makes torch warn.
        if not on_gpu and not placed.flags.writeable:
            placed = placed.copy()
        return torch.utils.dlpack.from_dlpack(placed) if on_gpu else torch.from_numpy(placed)
    return to_cupy(array) if on_gpu and kind != "numpy" else to_numpy(array)
