"""Streams, checks and errors of CuPy arrays, for the engines on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.current_stream import on_cuda_stream
from vitascope.gpu.engines.engine import EngineSpec, Tensor
from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu
from vitascope.gpu.memory.shortage import speaks_of_memory


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


def wanted_outputs(spec: EngineSpec, outputs: Sequence[str] | None, *, label: str) -> list[str]:
    """Names of the outputs to return; all of them when none are named.

    Raises:
        EngineError: The network has no output of that name.
    """
    known = [tensor.name for tensor in spec.outputs]
    if outputs is None:
        return known
    if unknown := [name for name in outputs if name not in known]:
        raise EngineError(f"{label}: no output is called {unknown[0]!r}; it has {', '.join(known)}")
    return list(outputs)


def require_gpu_inputs(spec: EngineSpec, inputs: Mapping[str, Tensor], *, label: str) -> None:
    """Check inputs before their addresses are handed to a library that checks nothing.

    Raises:
        EngineError: A tensor is missing, unknown, not on the GPU, not C-contiguous, or of another dtype or shape.
    """
    expected = {tensor.name: tensor for tensor in spec.inputs}
    if set(inputs) != set(expected):
        raise EngineError(f"{label}: got inputs {sorted(inputs)}, expected {sorted(expected)}")
    for name, tensor in expected.items():
        array = inputs[name]
        if not is_on_gpu(array):
            raise EngineError(f"{label}: input {name!r} lies in the host's memory, expected a CuPy array")
        fits = len(array.shape) == len(tensor.shape) and all(
            not isinstance(side, int) or side == got
            for side, got in zip(tensor.shape, array.shape, strict=True)
        )
        if array.dtype != tensor.dtype or not fits:
            raise EngineError(
                f"{label}: input {name!r} is {array.dtype} {list(array.shape)}, "
                f"expected {tensor.dtype} {list(tensor.shape)}"
            )
        if not array.flags.c_contiguous:
            raise EngineError(f"{label}: input {name!r} is not C-contiguous")


def failure(error: Exception | str, *, label: str, what: str, on_gpu: bool = True) -> EngineError:
    """The error for a library's failure: ``DeviceMemoryError`` if its message is about the GPU's memory."""
    text = str(error).strip()
    reason = text.splitlines()[0] if text else type(error).__name__
    if on_gpu and speaks_of_memory(text):
        return DeviceMemoryError(f"{label}: {what}: the GPU has too little memory{_free_memory()}: {reason}")
    return EngineError(f"{label}: {what}: {reason}")


def _free_memory() -> str:
    try:
        free, total = import_cupy().cuda.runtime.memGetInfo()
    except Exception:  # only decorates a message; a broken context has errors of many types
        return ""
    return f" ({free / 2**30:.1f} of {total / 2**30:.1f} GiB free)"
