"""Compile ``mesh.cu`` with the C++ compiler for the CPU, and fake the part of CuPy that ``GpuDrawing`` uses.

Threads run one after the other: arithmetic and indexing are the GPU's, but races do not show.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from vitascope.animation.mesh import gpu_drawing

_SHIM = r"""
#include <algorithm>
#include <cmath>
#include <cstring>
#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(threads)
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct Index { int x, y; };
static Index blockIdx, threadIdx, blockDim;
static float2 make_float2(float x, float y) { return {x, y}; }
using std::max;
using std::min;
static unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
static int __float2int_rn(float value) { return static_cast<int>(lrintf(value)); }
static float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
static void atomicMax(unsigned long long* at, unsigned long long value) { *at = max(*at, value); }
#include MESH
template <typename Kernel> void launch(const int* shape, Kernel kernel) {
    blockDim = {shape[2], shape[3]};
    for (int by = 0; by < shape[1]; ++by) for (int bx = 0; bx < shape[0]; ++bx)
        for (int ty = 0; ty < shape[3]; ++ty) for (int tx = 0; tx < shape[2]; ++tx) {
            blockIdx = {bx, by};
            threadIdx = {tx, ty};
            kernel();
        }
}
using Key = unsigned long long;
extern "C" void run_cover(const int* shape, Scene* scene, Frame* frame, Key* keys) {
    launch(shape, [&] { cover(*scene, frame, keys); });
}
extern "C" void run_resolve(const int* shape, Scene* scene, Frame* frame, Key* keys, float2* samples, int first) {
    launch(shape, [&] { resolve(*scene, frame, keys, samples, first); });
}
extern "C" void run_paint(const int* shape, Scene* scene, Frame* frame, float2* samples, unsigned char* out) {
    launch(shape, [&] { paint(*scene, frame, samples, out); });
}
"""


class _Array(np.ndarray):
    """A NumPy array with the additional attributes of CuPy's."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def _copy(to: int, origin: int, nbytes: int, kind: str, stream: int) -> None:
    ctypes.memmove(to, origin, nbytes)


def compile_for_host(folder: Path, *, points: int) -> Path:
    """Compile ``mesh.cu`` for rigs with ``points`` points."""
    source, library = folder / "mesh_on_host.cpp", folder / "mesh_on_host.so"
    source.write_text(_SHIM, encoding="utf-8")
    defines = [f'-DMESH="{gpu_drawing._SOURCE}"', f"-DPOINTS={points}"]
    subprocess.run(
        ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", *defines, str(source), "-o", str(library)],
        check=True,
        timeout=120,
    )
    return library


def install_stand_in(monkeypatch: Any, library: Path) -> list[str]:
    """Let ``import cupy`` find this module's stand-in, and ``GpuDrawing`` the kernels of the library.

    Returns:
        What was asked of the GPU, in order: kernels, ``wait``, ``record`` and ``host waits``.
    """
    diary: list[str] = []
    loaded = ctypes.CDLL(str(library))
    event = SimpleNamespace(
        record=lambda stream=None: diary.append("record"), synchronize=lambda: diary.append("host waits")
    )
    stream = SimpleNamespace(ptr=0, wait_event=lambda event: diary.append("wait"))
    nvtx = SimpleNamespace(RangePush=lambda name: None, RangePop=lambda: None)
    cupy: Any = ModuleType("cupy")
    cupy.asarray = lambda array: np.array(array, order="C").view(_Array)
    cupy.empty = lambda shape, dtype: np.empty(shape, dtype).view(_Array)
    cupy.cuda = SimpleNamespace(
        Device=nullcontext,
        Event=lambda **_: event,
        get_current_stream=lambda: stream,
        nvtx=nvtx,
        runtime=SimpleNamespace(
            CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
            memcpyAsync=_copy,
            memcpyHostToDevice="up",
            memcpyDeviceToDevice="beside",
            memsetAsync=lambda to, value, nbytes, stream: ctypes.memset(to, value, nbytes),
        ),
        driver=SimpleNamespace(CUDADriverError=type("CUDADriverError", (RuntimeError,), {})),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def kernel(source: str, name: str, **_: object) -> Callable[..., None]:
        function = getattr(loaded, f"run_{name}")

        def run(grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
            diary.append(name)
            shape = (ctypes.c_int * 4)(*(*grid, 1)[:2], *(*block, 1)[:2])
            function(
                shape,
                *(
                    ctypes.c_void_p(argument.ctypes.data)
                    if isinstance(argument, np.ndarray)
                    else ctypes.c_int(int(argument))
                    for argument in arguments
                ),
            )

        return run

    monkeypatch.setattr(gpu_drawing, "cuda_kernel", kernel)
    return diary
