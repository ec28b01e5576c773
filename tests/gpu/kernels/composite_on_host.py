"""Compile ``composite.cu`` with the C++ compiler for the CPU, and fake the part of CuPy that its launch uses.

The lanes of a warp are coroutines that wait for each other where the GPU's do, so shuffles, votes and data in
shared memory behave as on the GPU. So does the arithmetic, half floats and fused multiply-adds included.
Copies that the GPU makes in the background are made at once.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import types
from pathlib import Path
from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import SOURCES

_SHIMS = Path(__file__).parent / "on_host"


class HostKernels:
    """Replaces ``cuda_kernel``: compiles each variant once, into a folder."""

    def __init__(self, folder: Path, source: Path = SOURCES / "composite.cu") -> None:
        self._folder, self._source = folder, source
        self._kernels: dict[tuple[tuple[str, str | int], ...], Any] = {}

    def __call__(self, source: str, name: str, **defines: str | int) -> Any:
        assert (source, name) == ("composite.cu", "composite")
        key = tuple(sorted(defines.items()))
        if key not in self._kernels:
            self._kernels[key] = self._compiled(defines)
        function = self._kernels[key]

        def run(
            grid: tuple[int, int, int], block: tuple[int], arguments: tuple[Any], *, shared_mem: int
        ) -> None:
            (job,) = arguments
            assert block == (32,)
            function((ctypes.c_int * 3)(*grid), ctypes.c_void_p(job.ctypes.data))

        return run

    def _compiled(self, defines: dict[str, str | int]) -> Any:
        text = " ".join(f"-D{key}={value}" for key, value in sorted(defines.items()))
        library = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
        if not library.exists():
            options = "-std=c++17 -O0 -ffp-contract=off -w -shared -fPIC"
            options += f' -I{_SHIMS} -DCOMPOSITE="{self._source}" {text}'
            command = ["c++", *options.split(), str(_SHIMS / "composite.cpp"), "-o", str(library)]
            subprocess.run(command, check=True, timeout=120)
        return ctypes.CDLL(str(library)).run_composite


class HostArray(np.ndarray):
    """A NumPy array with the additional attributes of CuPy's."""

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> np.ndarray:
        return np.array(self)


HostArray.__module__ = "cupy"


class _Memory:
    def __init__(self, owner: np.ndarray, offset: int = 0) -> None:
        self.owner, self.offset, self.ptr = owner, offset, owner.ctypes.data + offset

    def __add__(self, offset: int) -> _Memory:
        return _Memory(self.owner, self.offset + offset)


def stand_in() -> types.ModuleType:
    """Return a module to put in CuPy's place."""
    cupy: Any = types.ModuleType("cupy")

    def at_memory(shape: tuple[int, ...], dtype: Any, memory: _Memory) -> HostArray:
        count = int(np.prod(shape))
        flat = np.frombuffer(memory.owner.reshape(-1).view(np.uint8).data, dtype, count, memory.offset)
        return flat.reshape(shape).view(HostArray)

    class Allocated(HostArray):
        __module__ = "cupy"

        @property
        def data(self) -> Any:
            return _Memory(np.asarray(self))

    cupy.asarray = lambda array, dtype=None: np.array(array, dtype, order="C").view(HostArray)
    cupy.full = lambda shape, value, dtype: np.full(shape, value, dtype).view(HostArray)
    cupy.ones = lambda shape, dtype: np.ones(shape, dtype).view(HostArray)
    cupy.zeros = lambda shape, dtype: np.zeros(shape, dtype).view(HostArray)
    # A value that a kernel does not write must not be right by chance.
    cupy.empty = lambda shape, dtype: np.full(shape, 77, dtype).view(Allocated)
    cupy.ndarray, cupy.nan = at_memory, np.nan
    for name in ("float16", "float32", "float64", "uint16"):
        setattr(cupy, name, getattr(np, name))
    cupy.cuda = types.SimpleNamespace(
        get_current_stream=lambda: types.SimpleNamespace(wait_event=lambda event: None),
        nvtx=types.SimpleNamespace(RangePush=lambda name: None, RangePop=lambda: None),
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
    )
    return cupy
