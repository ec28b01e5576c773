"""Shrinks a frame in its own format, for masks narrower than their video.

Every sample of the result is the mean of the window that it represents, for each eye separately. A cosited chroma
sample keeps its site: it averages the window around its position in the smaller picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, YuvFormat
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    current_device,
    fields,
    has_whole_vectors,
    is_on_gpu,
    nvtx_range,
    row_pitch,
    wait_until_ready,
)
from vitascope.gpu.kernels.region import Region, chroma_region

PlaneWindow = tuple[Region, tuple[float, float, float, float], Region]
"""The samples of a plane that may be read; the window (left, top, right, bottom) to average, in the plane's own
sample-edge coordinates; and the samples of the result's plane."""


def shrunk_regions(
    regions: Sequence[Region], *, frame_size: tuple[int, int], size: tuple[int, int]
) -> list[Region]:
    """Each region's share of the new size, in whole chroma blocks; adjacent regions stay adjacent.

    A region of odd width may get one extra sample.

    Args:
        regions: Luma samples of the frame.
        frame_size: (height, width) of the frame.
        size: (height, width) of the smaller frame, both even.

    Raises:
        ValueError: The size is odd, larger than the frame, or so small that a region vanishes.
    """
    if size[0] % 2 or size[1] % 2 or not (0 < size[0] <= frame_size[0] and 0 < size[1] <= frame_size[1]):
        raise ValueError(f"size {size} must be even and at most the frame's {frame_size} (height, width)")

    def share(edge: int, axis: int) -> int:
        return round(edge * size[axis] / frame_size[axis] / 2) * 2

    shares = []
    for region in regions:
        left, top = share(region.x, 1), share(region.y, 0)
        right, bottom = share(region.x + region.width, 1), share(region.y + region.height, 0)
        if not (left < right and top < bottom):
            raise ValueError(f"nothing of {region} is left at size {size} (height, width)")
        shares.append(Region(left, top, right - left, bottom - top))
    return shares


def shrink_frame(frame: Frame, *, regions: Sequence[Region], size: tuple[int, int]) -> Frame:
    """Shrink a picture, each eye separately.

    Runs on the frame's device: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel, on the current
    CuPy stream after ``frame.ready``.

    Args:
        frame: Any of ``frames.PIXEL_FORMATS``.
        regions: Area of each eye in luma samples; together they cover the frame.
        size: (height, width) of the result, both even and at most the frame's.

    Returns:
        A frame with the same format, colour and time; within half a code of the exact mean on the CPU, and within one
        code of that on the GPU.

    Raises:
        ValueError: The size does not match, the regions do not cover the frame, or a frame on the GPU is not
            semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if sum(region.width * region.height for region in regions) != frame.width * frame.height:
        raise ValueError(f"{list(regions)} do not cover {frame!r}")
    shares = shrunk_regions(regions, frame_size=(frame.height, frame.width), size=size)
    windows = [plane_windows(frame, region, share) for region, share in zip(regions, shares, strict=True)]
    if is_on_gpu(frame.planes[0]):
        made: Frame = _launch_shrink(frame, windows, size=size)
        return made
    chroma_width, chroma_height = frame.format.chroma_size(size[1], size[0])
    step = 1 << frame.format.sample_shift
    planes = tuple(
        np.empty((*(size if slot == 0 else (chroma_height, chroma_width)), *plane.shape[2:]), plane.dtype)
        for slot, plane in enumerate(frame.planes)
    )
    for luma_window, chroma_window in windows:
        for slot, (source, target) in enumerate(zip(frame.planes, planes, strict=True)):
            own, window, share = luma_window if slot == 0 else chroma_window
            small = _mean_of_windows(source, own, window, share.size)
            target[share.rows, share.columns] = np.rint(small / np.float32(step)).astype(np.int32) * step
    return replace(frame, planes=planes, ready=None)


def plane_windows(frame: Frame, region: Region, share: Region) -> tuple[PlaneWindow, PlaneWindow]:
    """The windows to average for an eye's luma and chroma, for its share of the smaller frame."""
    fmt = frame.format
    right, bottom = region.x + region.width, region.y + region.height
    cosited_x = fmt.chroma_shift_x and frame.color.chroma_location in ("left", "topleft")
    cosited_y = fmt.chroma_shift_y and frame.color.chroma_location == "topleft"
    # A cosited sample is a quarter of a chroma sample before the middle of its block, in both sizes: its window moves
    # forward by a quarter of an old sample and back by a quarter of a new one.
    shift_x = 0.25 * (1 - region.width / share.width) if cosited_x else 0.0
    shift_y = 0.25 * (1 - region.height / share.height) if cosited_y else 0.0
    step_x, step_y = 1 << fmt.chroma_shift_x, 1 << fmt.chroma_shift_y
    chroma_window = (
        region.x / step_x + shift_x,
        region.y / step_y + shift_y,
        right / step_x + shift_x,
        bottom / step_y + shift_y,
    )
    luma = (region, (float(region.x), float(region.y), float(right), float(bottom)), share)
    return luma, (chroma_region(region, fmt), chroma_window, chroma_region(share, fmt))


def _mean_of_windows(
    plane: Plane, own: Region, window: tuple[float, float, float, float], size: tuple[int, int]
) -> npt.NDArray[np.float32]:
    """Exact means of ``size`` equal windows; outside ``own``, its border repeats."""
    left, top, right, bottom = window
    patch = plane[own.rows, own.columns]
    is_whole = window == (own.x, own.y, own.x + own.width, own.y + own.height)
    if is_whole and size[0] <= own.height and size[1] <= own.width:
        # Rounds to whole words, as the caller would.
        small: Any = cv2.resize(patch, (size[1], size[0]), interpolation=cv2.INTER_AREA)
        words: npt.NDArray[np.float32] = small.reshape(*size, *plane.shape[2:]).astype(np.float32)
        return words
    rows = _mean_along(patch, top - own.y, bottom - own.y, size[0], axis=0)
    return _mean_along(rows, left - own.x, right - own.x, size[1], axis=1)


def _mean_along(patch: Plane, start: float, stop: float, count: int, *, axis: int) -> npt.NDArray[np.float32]:
    """Means of ``count`` equal windows along one axis, with repeated borders: float32."""
    length = patch.shape[axis]
    if start == 0.0 and stop == length and count <= length:
        if count == length:
            return patch.astype(np.float32)
        width, height = (count, patch.shape[0]) if axis else (patch.shape[1], count)
        small: Any = cv2.resize(patch.astype(np.float32), (width, height), interpolation=cv2.INTER_AREA)
        dense: npt.NDArray[np.float32] = small.reshape(height, width, *patch.shape[2:])
        return dense
    # The integral of the samples is linear between their edges, so a window's sum is the difference at its two ends.
    integral = np.zeros((*patch.shape[:axis], length + 1, *patch.shape[axis + 1 :]), np.float64)
    np.cumsum(patch, axis=axis, dtype=np.float64, out=integral[(slice(None),) * axis + (slice(1, None),)])
    edges = start + (stop - start) / count * np.arange(count + 1)
    whole = np.clip(np.floor(edges), 0, length - 1).astype(np.intp)
    shape = [1] * patch.ndim
    shape[axis] = -1
    # Outside a border, continuing the last sample's line is the same as repeating that sample.
    at_edges = np.take(integral, whole, axis=axis)
    at_edges += np.take(patch, whole, axis=axis) * (edges - whole).reshape(shape)
    mean: npt.NDArray[np.float32] = (np.diff(at_edges, axis=axis) * (count / (stop - start))).astype(
        np.float32
    )
    return mean


# Same as in shrink.cu.
_THREADS = 128
_SPAN = 2048
_MAX_EYES = 2

# Rows of a window that one thread loads at once: more cost registers without using more bandwidth.
_MOST_TAPS = 6

_AXIS = np.dtype([*fields("f4", "start", "step"), *fields("i4", "first", "last", "origin", "count")])
_PLANE = np.dtype(
    [
        *fields("u8", "data", "out"),
        *fields("i8", "pitch", "out_pitch"),
        ("x", _AXIS),
        ("y", _AXIS),
        *fields("i4", "run", "channels"),
    ]
)
_PLANES = np.dtype([("plane", _PLANE, 2 * _MAX_EYES)])


def _launch_shrink(
    frame: Frame, windows: Sequence[tuple[PlaneWindow, PlaneWindow]], *, size: tuple[int, int]
) -> Frame:
    """Run the kernel on the current CuPy stream; returns the same as ``shrink_frame``.

    Args:
        frame: NV12 or P010 in CuPy planes.
        windows: The windows to average for each eye's luma and chroma, and their targets.
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
    sources: tuple[Any, ...] = frame.planes  # CuPy arrays, whose pointers NumPy's types lack
    plan = _plan(
        frame.format,
        tuple((plane.shape, plane.strides, plane.data.ptr % 16) for plane in sources),
        tuple(windows),
        size,
        current_device(),
    )
    # Only the pointers change between frames.
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
    """A launch without its pointers."""

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
    """Plan the launch for frames of one kind. ``layouts`` are shapes, strides in bytes, and pointers modulo 16."""
    del device  # kernels are compiled for the current device
    itemsize = fmt.dtype.itemsize
    # The result is dense: rows of luma, and rows of chroma pairs.
    pitches = (size[1], 2 * fmt.chroma_size(size[1], size[0])[0])
    planes = np.zeros(1, _PLANES)
    runs, rows, most_taps = 1, 1, 1
    for eye, eye_windows in enumerate(windows):
        for slot, (own, (left, top, right, bottom), share) in enumerate(eye_windows):
            channels = slot + 1
            step = (right - left) / share.width
            # A run's windows, their ends and the alignment of its first load must fit into the span.
            run = min(int((_SPAN / channels - 24) / step), share.width)
            # Runs of equal length, so that none is much shorter than the rest.
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
