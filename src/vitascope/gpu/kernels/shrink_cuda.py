"""Launch of ``shrink.cu``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.frames import Frame, YuvFormat
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    current_device,
    has_whole_vectors,
    nvtx_range,
    row_pitch,
    wait_until_ready,
)
from vitascope.gpu.kernels.shrink import PlaneWindow

__all__ = ["launch_shrink"]

# As in shrink.cu.
_THREADS = 128
_SPAN = 2048
_MAX_EYES = 2

# Rows of a window that one thread has under way at once: more cost registers and bring no more of the bandwidth.
_MOST_TAPS = 6

_AXIS = np.dtype(
    [("start", "f4"), ("step", "f4"), ("first", "i4"), ("last", "i4"), ("origin", "i4"), ("count", "i4")]
)
_PLANE = np.dtype(
    [
        ("data", "u8"),
        ("out", "u8"),
        ("pitch", "i8"),
        ("out_pitch", "i8"),
        ("x", _AXIS),
        ("y", _AXIS),
        ("run", "i4"),
        ("channels", "i4"),
    ]
)
_PLANES = np.dtype([("plane", _PLANE, 2 * _MAX_EYES)])


def launch_shrink(
    frame: Frame, windows: Sequence[tuple[PlaneWindow, PlaneWindow]], *, size: tuple[int, int]
) -> Frame:
    """Run the kernel on the current CuPy stream; result as in ``shrink_frame``.

    Args:
        frame: NV12 or P010 in CuPy planes.
        windows: What each eye's luma and chroma average, and where to.
        size: (height, width) of the result.

    Raises:
        ValueError: The frame is not semi-planar, there are more than two eyes, or an axis shrinks more than 1000 times.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    if not frame.format.semi_planar:
        raise ValueError(f"the GPU kernel reads NV12 and P010, not {frame.format.name}")
    if len(windows) > _MAX_EYES:
        raise ValueError(f"the GPU kernel makes at most {_MAX_EYES} regions at once, not {len(windows)}")
    chroma_width, chroma_height = frame.format.chroma_size(size[1], size[0])
    out = (
        cupy.empty(size, frame.format.dtype),
        cupy.empty((chroma_height, chroma_width, 2), frame.format.dtype),
    )
    sources: tuple[Any, ...] = frame.planes  # CuPy arrays, whose pointers NumPy's types do not know
    plan = _plan(
        frame.format,
        tuple((plane.shape, plane.strides, plane.data.ptr % 16) for plane in sources),
        tuple(windows),
        size,
        current_device(),
    )
    # Only the pointers change from frame to frame.
    planes = plan.planes.copy()
    planes["plane"]["data"][0, : 2 * len(windows)] = [plane.data.ptr for plane in sources] * len(windows)
    planes["plane"]["out"][0, : 2 * len(windows)] = [plane.data.ptr for plane in out] * len(windows)
    with nvtx_range("shrink"):
        wait_until_ready(frame)
        plan.kernel(plan.grid, (_THREADS,), (by_value(planes),))
    # Ordered on the current stream: there is no event to wait for.
    return replace(frame, planes=out, ready=None)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A launch, but for the pointers."""

    kernel: Any
    grid: tuple[int, int, int]
    planes: Any


@lru_cache(maxsize=64)
def _plan(
    fmt: YuvFormat,
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...],
    windows: tuple[tuple[PlaneWindow, PlaneWindow], ...],
    size: tuple[int, int],
    device: int,
) -> _Plan:
    """The launch for frames of one kind. ``layouts`` are shapes, strides in bytes, and pointers modulo 16."""
    del device  # kernels are compiled for the current one
    itemsize = fmt.dtype.itemsize
    # The result is dense: a row of luma, and a row of pairs of chroma samples.
    pitches = (size[1], 2 * fmt.chroma_size(size[1], size[0])[0])
    planes = np.zeros(1, _PLANES)
    runs, rows, most_taps = 1, 1, 1
    for eye, eye_windows in enumerate(windows):
        for slot, (own, (left, top, right, bottom), share) in enumerate(eye_windows):
            channels = slot + 1
            step = (right - left) / share.width
            # A run's windows, their ends and the alignment of its first load must fit the span.
            run = min(int((_SPAN / channels - 24) / step), share.width)
            # Equal runs: none much shorter than the rest.
            run = math.ceil(share.width / math.ceil(share.width / run)) if run else 0
            if run < 1:
                raise ValueError(f"the GPU kernel shrinks at most 1000 samples to one, not {step:.0f}")
            planes["plane"][0, 2 * eye + slot] = (
                0,
                0,
                row_pitch(*layouts[slot][:2], itemsize=itemsize),
                pitches[slot],
                _axis(left, right, own.x, own.width, share.x, share.width),
                _axis(top, bottom, own.y, own.height, share.y, share.height),
                run,
                channels,
            )
            most_taps = max(most_taps, math.ceil((bottom - top) / share.height) + 1)
            runs, rows = max(runs, math.ceil(share.width / run)), max(rows, share.height)
    kernel = cuda_kernel(
        "shrink.cu",
        "shrink",
        SAMPLE="unsigned char" if fmt.bit_depth == 8 else "unsigned short",
        STEP=1 << fmt.sample_shift,
        TAPS=min(most_taps, _MOST_TAPS),
        VECTORS=int(all(has_whole_vectors(*layout, itemsize=itemsize) for layout in layouts)),
    )
    return _Plan(kernel, (runs, rows, 2 * len(windows)), planes)


def _axis(
    start: float, stop: float, first: int, length: int, origin: int, count: int
) -> tuple[float, float, int, int, int, int]:
    return start, (stop - start) / count, first, first + length - 1, origin, count
