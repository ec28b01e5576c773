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
"""Folder of the ``.cu`` files."""

_INCLUDED = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def import_cupy() -> Any:
    """Import ``cupy``.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError("using the GPU needs CuPy: pip install 'vitascope[cuda]'") from error
    return cupy


def is_on_gpu(array: Any) -> bool:
    """True for CuPy arrays, without importing CuPy on a CPU."""
    return type(array).__module__.partition(".")[0] == "cupy"


def array_module(*, on_gpu: bool) -> Any:
    """``numpy``, or ``cupy`` for arrays on a GPU."""
    return import_cupy() if on_gpu else np


def wait_until_ready(frame: Frame) -> None:
    """Order the current CuPy stream behind ``frame.ready``; the host does not wait."""
    # Check first: to order a stream, CuPy releases the interpreter lock, and getting it back takes longer.
    if frame.ready is not None and not frame.ready.done:
        cupy = import_cupy()
        cupy.cuda.get_current_stream().wait_event(frame.ready)


def current_device() -> int:
    """Index of the GPU that this thread launches on."""
    return int(import_cupy().cuda.runtime.getDevice())


def multiprocessors() -> int:
    """Number of multiprocessors of that GPU."""
    return _multiprocessors_of(current_device())


@lru_cache(maxsize=8)
def _multiprocessors_of(device: int) -> int:
    return int(import_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@lru_cache(maxsize=256)  # called for every plane of every frame
def row_pitch(shape: tuple[int, ...], strides: tuple[int, ...], *, itemsize: int) -> int:
    """Number of samples from one row to the next.

    Args:
        shape: Shape of the plane.
        strides: Strides in bytes.
        itemsize: Bytes per sample.

    Raises:
        ValueError: The samples of a row are not adjacent, as kernels need them.
    """
    expected = itemsize
    for length, stride in zip(shape[:0:-1], strides[:0:-1], strict=True):
        if stride != expected and length > 1:
            raise ValueError("the samples of a row must be contiguous")
        expected *= length
    return strides[0] // itemsize


def has_whole_vectors(
    shape: tuple[int, ...], strides: tuple[int, ...], misalignment: int, *, itemsize: int
) -> bool:
    """True if every row of a plane begins at a multiple of 16 bytes and may be read up to a multiple of 16 bytes.

    Args:
        shape: Shape of the plane.
        strides: Strides in bytes.
        misalignment: Address of its first sample modulo 16.
        itemsize: Bytes per sample.
    """
    row_bytes = math.prod(shape[1:]) * itemsize
    return misalignment == 0 and strides[0] % 16 == 0 and strides[0] >= -(-row_bytes // 16) * 16


def takes_vectors(plane: Any, *, is_written: bool) -> bool:
    """True if every row of a CuPy plane begins at a multiple of 16 bytes and can be read, or written, by 16 bytes.

    A row that ends inside a vector cannot be written whole: the bytes after it may belong to other data.
    """
    row_bytes = math.prod(plane.shape[1:]) * plane.dtype.itemsize
    return (not is_written or row_bytes % 16 == 0) and has_whole_vectors(
        plane.shape, plane.strides, plane.data.ptr % 16, itemsize=plane.dtype.itemsize
    )


def fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    """Fields of one type for a struct's ``np.dtype``, as in C: ``*fields("i4", "height", "width")``."""
    return [(name, kind) for name in names]


def by_value(struct: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Pass a struct [1] as a kernel parameter.

    CuPy reads ``__array_interface__`` at every launch, for which NumPy describes each field in Python: 20 µs for the
    composite's job. Opaque bytes have no fields.
    """
    return struct.view(_opaque(struct.dtype.itemsize))


@lru_cache(maxsize=64)
def _opaque(size_bytes: int) -> np.dtype[Any]:
    return np.dtype((np.void, size_bytes))


def nvtx_range(name: str) -> _NvtxRange:
    """Name the launches inside the block for Nsight's timelines."""
    return _NvtxRange(name)


class _NvtxRange:
    # A class instead of a generator, because it is entered for every launch, and is three times as fast.
    __slots__ = ("_name", "_nvtx")

    def __init__(self, name: str) -> None:
        self._name = name
        self._nvtx = import_cupy().cuda.nvtx

    def __enter__(self) -> None:
        self._nvtx.RangePush(self._name)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._nvtx.RangePop()


def cuda_kernel(source: str, name: str, **defines: str | int) -> Any:
    """Get a kernel of one of the ``.cu`` files, compiled for the current device.

    It is compiled once per device and set of definitions; CuPy stores the result on disk for the next process.

    Args:
        source: File name, such as ``preprocess.cu``.
        name: Name of the kernel.
        defines: Preprocessor definitions: types, and switches that the inner loop must not test.

    Raises:
        MissingDependencyError: CuPy is not installed.
        KernelCompileError: NVRTC rejected the source, or is not installed; its log is the cause.
    """
    cupy = import_cupy()
    return _compiled(cupy.cuda.Device().id, source, name, tuple(sorted(defines.items())))


def kernel_source(source: str) -> str:
    """Text of a ``.cu`` file, with included files (``#include "name"``) inserted.

    CuPy identifies kernels on disk only by this text and the options, not by files that NVRTC would include.

    Args:
        source: File name; included files are in the same folder.
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
    except RuntimeError as error:  # CuPy's error for a missing library: "CuPy failed to load libnvrtc.so.13"
        raise KernelCompileError(f"{source}: {name} cannot be built here: {error}") from error
