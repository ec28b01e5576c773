"""Compiles the CUDA C++ sources with NVRTC on first use."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.errors import KernelCompileError, MissingDependencyError
from vitascope.frames import Frame

SOURCES = Path(__file__).parent
"""Where the ``.cu`` files lie."""

_INCLUDED = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def import_cupy() -> Any:
    """The module ``cupy``.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError("using the GPU needs CuPy: pip install 'vitascope[cuda]'") from error
    return cupy


def is_on_gpu(array: Any) -> bool:
    """True for CuPy arrays; a CPU run never imports CuPy for it."""
    return type(array).__module__.partition(".")[0] == "cupy"


def array_module(*, on_gpu: bool) -> Any:
    """``numpy``, or ``cupy`` for arrays on a GPU."""
    return import_cupy() if on_gpu else np


def wait_until_ready(frame: Frame) -> None:
    """Order the current CuPy stream behind ``frame.ready``; the host does not wait."""
    # Asking comes first: CuPy gives the interpreter away to order a stream, and to get it back takes longer.
    if frame.ready is not None and not frame.ready.done:
        cupy = import_cupy()
        cupy.cuda.get_current_stream().wait_event(frame.ready)


def current_device() -> int:
    """Number of the GPU that this thread launches on."""
    return int(import_cupy().cuda.runtime.getDevice())


def multiprocessors() -> int:
    """Multiprocessors of that GPU."""
    return _multiprocessors_of(current_device())


@lru_cache(maxsize=8)
def _multiprocessors_of(device: int) -> int:
    return int(import_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@lru_cache(maxsize=256)  # asked for every plane of every frame
def row_pitch(shape: tuple[int, ...], strides: tuple[int, ...], *, itemsize: int) -> int:
    """Samples from the beginning of a row to that of the next.

    Args:
        shape: Shape of the plane.
        strides: In bytes.
        itemsize: Bytes of a sample.

    Raises:
        ValueError: The samples of a row do not lie side by side, as kernels read them.
    """
    expected = itemsize
    for length, stride in zip(shape[:0:-1], strides[:0:-1], strict=True):
        if stride != expected and length > 1:
            raise ValueError("the samples of a row must lie next to each other")
        expected *= length
    return strides[0] // itemsize


def has_whole_vectors(
    shape: tuple[int, ...], strides: tuple[int, ...], misalignment: int, *, itemsize: int
) -> bool:
    """True when every row of a plane begins on 16 bytes and may be read to a multiple of 16 bytes.

    Args:
        shape: Shape of the plane.
        strides: In bytes.
        misalignment: Misalignment of its first sample: its address modulo 16.
        itemsize: Bytes of a sample.
    """
    row_bytes = math.prod(shape[1:]) * itemsize
    return misalignment == 0 and strides[0] % 16 == 0 and strides[0] >= -(-row_bytes // 16) * 16


def takes_vectors(plane: Any, *, is_written: bool) -> bool:
    """True when every row of a CuPy plane begins on 16 bytes and may be read, or written, 16 bytes at a time.

    A row that ends inside a vector is not written whole: what stands behind it may belong to somebody else.
    """
    row_bytes = math.prod(plane.shape[1:]) * plane.dtype.itemsize
    return (not is_written or row_bytes % 16 == 0) and has_whole_vectors(
        plane.shape, plane.strides, plane.data.ptr % 16, itemsize=plane.dtype.itemsize
    )


def fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    """Fields of one type for the ``np.dtype`` of a struct, as C declares them: ``*fields("i4", "height", "width")``."""
    return [(name, kind) for name in names]


def by_value(struct: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A structure [1] as a kernel's parameter.

    CuPy reads ``__array_interface__`` at every launch, for which NumPy describes each field again, in Python: 20 µs for
    the composite's job. Opaque bytes have no fields.
    """
    return struct.view(_opaque(struct.dtype.itemsize))


@lru_cache(maxsize=64)
def _opaque(size_bytes: int) -> np.dtype[Any]:
    return np.dtype((np.void, size_bytes))


def nvtx_range(name: str) -> _NvtxRange:
    """Name the launches inside for Nsight's timelines."""
    return _NvtxRange(name)


class _NvtxRange:
    # A class, not a generator: entered for every launch, and three times as quick.
    __slots__ = ("_name", "_nvtx")

    def __init__(self, name: str) -> None:
        self._name = name
        self._nvtx = import_cupy().cuda.nvtx

    def __enter__(self) -> None:
        self._nvtx.RangePush(self._name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._nvtx.RangePop()


def cuda_kernel(source: str, name: str, **defines: str | int) -> Any:
    """A kernel of one of the ``.cu`` files, compiled for the current device.

    Compiled once for each device and set of definitions; CuPy keeps the result on disk for the next process.

    Args:
        source: File name, for example ``preprocess.cu``.
        name: The kernel.
        defines: Preprocessor definitions: types and switches that the inner loop must not test.

    Raises:
        MissingDependencyError: CuPy is not installed.
        KernelCompileError: NVRTC refused the source, or is not installed; its log is the cause.
    """
    cupy = import_cupy()
    return _compiled(cupy.cuda.Device().id, source, name, tuple(sorted(defines.items())))


def kernel_source(source: str) -> str:
    """Text of a ``.cu`` file, with each file that it includes by ``#include "name"`` in that line's place.

    CuPy tells kernels on disk apart by this text and the options alone, not by what NVRTC would include.

    Args:
        source: File name; what it includes lies in the same folder.
    """
    path = SOURCES / source
    return _INCLUDED.sub(
        lambda line: kernel_source(str(path.with_name(line[1]))), path.read_text(encoding="utf-8")
    )


@lru_cache(maxsize=256)
def _compiled(device: int, source: str, name: str, defines: tuple[tuple[str, str | int], ...]) -> Any:
    cupy = import_cupy()
    options = ("-std=c++17", *(f"-D{key}={value}" for key, value in defines))
    module = cupy.RawModule(code=kernel_source(source), options=options, backend="nvrtc")
    try:
        return module.get_function(name)
    except (cupy.cuda.compiler.CompileException, cupy.cuda.driver.CUDADriverError) as error:
        raise KernelCompileError(f"{source}: NVRTC could not build {name} for device {device}") from error
    except (
        RuntimeError
    ) as error:  # CuPy's for a library that it cannot load: "CuPy failed to load libnvrtc.so.13"
        raise KernelCompileError(f"{source}: {name} cannot be built here: {error}") from error
