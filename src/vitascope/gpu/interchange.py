"""Converts arrays between libraries, without a copy where possible.

NumPy and CuPy arrays and torch tensors are known; anything else that speaks DLPack (JAX, TensorFlow, Paddle …) is taken
by that protocol and comes out as a NumPy array from the host and as a CuPy array from a GPU.
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
        TypeError: It is no array.
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
    """True if an array of any kind is in the memory of an NVIDIA GPU.

    Raises:
        DeviceError: It is on a device of another make.
        TypeError: It is no array.
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
    """The same memory as a NumPy array; of an array on a GPU a copy, for which the host waits."""
    kind = kind_of(array)
    if lies_on_gpu(array):
        copy: npt.NDArray[Any] = to_cupy(array).get()
        return copy
    if kind == "numpy":
        same: npt.NDArray[Any] = array
        return same
    if kind == "torch":  # NumPy's own way in gives memory that it will not write to
        shared: npt.NDArray[Any] = array.detach().numpy()
        return shared
    return np.from_dlpack(array)


def on_its_way(array: Any) -> Callable[[], npt.NDArray[Any]]:
    """Begin to bring a NumPy or CuPy array to the host.

    Returns:
        Gives it: the same array; of one on a GPU a copy in page-locked memory, which is lent as long as it is held.
        The host waits for it, but not for what was launched meanwhile.

    Raises:
        MemoryLimitError: Too much page-locked memory is lent, and none came back in time.
    """
    if not lies_on_gpu(array):
        return lambda: array
    import cupy

    # Imported here: page-locked memory is of no use without a GPU.
    from vitascope.gpu.memory.pinned_pool import Download, shared_pool

    with array.device:
        coming = Download(
            [cupy.ascontiguousarray(array)],
            stream=cupy.cuda.get_current_stream(),
            pool=shared_pool(array.device.id),
        )
    return lambda: coming.wait()[0]


def one_after_the_other(arrays: Sequence[Any]) -> Any:
    """Join NumPy or CuPy arrays along their first axis: a view where they are parts of one on a GPU, else a copy.

    CuPy copies large arrays one by one, and to launch a copy takes as long as the copy itself.
    """
    first = arrays[0]
    if kind_of(first) != "cupy":
        return np.concatenate(list(arrays))
    kind, memory, begin = (first.shape, first.dtype, first.strides), first.data.mem, first.data.ptr
    length = len(first) * first.strides[0]
    if any(
        (each.shape, each.dtype, each.strides) != kind
        or each.data.mem is not memory
        or each.data.ptr - begin != number * length
        for number, each in enumerate(arrays)
    ):
        return np.concatenate(list(arrays))
    shape = (len(arrays) * len(first), *first.shape[1:])
    return type(first)(shape, first.dtype, first.data, first.strides)


def to_cupy(array: Any) -> Any:
    """The same memory as a CuPy array; of an array on the host a copy on the current GPU and stream.

    The copy goes through the page-locked memory that the applications share; the host does not wait for it, and the
    array may be written at once. What the other library has under way on its current stream comes before what follows
    on CuPy's (DLPack sees to it).

    Raises:
        MemoryLimitError: Too much page-locked memory is lent, and none came back in time.
        DeviceMemoryError: The GPU has too little memory.
    """
    kind = kind_of(array)
    if kind == "cupy":
        return array
    import cupy

    if lies_on_gpu(array):
        return cupy.from_dlpack(array.detach() if kind == "torch" else array)
    # Imported here: page-locked memory is of no use without a GPU.
    from vitascope.gpu.memory.pinned_pool import shared_pool

    return shared_pool(cupy.cuda.Device().id).upload(to_numpy(array), beside=False)


def to_kind(array: Any, kind: ArrayKind, *, on_gpu: bool) -> Any:
    """Convert a NumPy or CuPy array to a kind and place, without a copy if it is there already.

    Args:
        array: NumPy or CuPy.
        kind: ``dlpack`` gives what speaks it here: NumPy or CuPy.
        on_gpu: Where the result is to be.
    """
    if kind == "torch":
        import torch

        placed = to_cupy(array) if on_gpu else to_numpy(array)
        # A view of read-only memory makes torch warn.
        if not on_gpu and not placed.flags.writeable:
            placed = placed.copy()
        return torch.utils.dlpack.from_dlpack(placed) if on_gpu else torch.from_numpy(placed)
    return to_cupy(array) if on_gpu and kind != "numpy" else to_numpy(array)
