"""Converts 4:2:0 frames between three planes (software codecs) and two (GPUs), and uploads them.

yuv420p and NV12 store the same codes; so do yuv420p10le and P010, which shifts them left by six bits in its words.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import cv2
import numpy as np

from vitascope.frames import PIXEL_FORMATS, Frame, Plane, YuvFormat
from vitascope.gpu.current_stream import on_cuda_stream
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    import_cupy,
    is_on_gpu,
    nvtx_range,
    row_pitch,
    takes_vectors,
    wait_until_ready,
)
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool, shared_pool

_SEMI_PLANAR = {"yuv420p": PIXEL_FORMATS["nv12"], "yuv420p10le": PIXEL_FORMATS["p010le"]}
_PLANAR = {"nv12": PIXEL_FORMATS["yuv420p"], "p010le": PIXEL_FORMATS["yuv420p10le"]}


def to_semi_planar(frame: Frame) -> Frame:
    """Convert to NV12 or P010, on the frame's device; returns the frame itself if it already is.

    Args:
        frame: yuv420p, yuv420p10le, nv12 or p010le, as NumPy planes or as CuPy planes (then in one or two kernels on
            the current stream).

    Returns:
        A frame that shares its 8-bit luma plane with ``frame``.

    Raises:
        ValueError: The frame has another format.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if frame.format.name in _PLANAR:
        return frame
    target = _other_layout(frame.format, _SEMI_PLANAR)
    if is_on_gpu(frame.planes[0]):
        made: Frame = _launch_interleave(frame, target)
        return made
    luma, *chroma = frame.planes
    pairs: Any = cv2.merge(chroma).reshape(*chroma[0].shape, 2)
    if target.sample_shift:
        luma = np.left_shift(luma, target.sample_shift)
        np.left_shift(pairs, target.sample_shift, out=pairs)
    return frame.with_planes((luma, pairs), format=target)


def to_planar(frame: Frame) -> Frame:
    """Convert to yuv420p or yuv420p10le, on the frame's device; returns the frame itself if it already is.

    Args:
        frame: nv12, p010le, yuv420p or yuv420p10le, as NumPy planes or as CuPy planes (then in one or two kernels on
            the current stream). P010's six low bits are dropped.

    Returns:
        A frame that shares its 8-bit luma plane with ``frame``.

    Raises:
        ValueError: The frame has another format.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if frame.format.name in _SEMI_PLANAR:
        return frame
    target = _other_layout(frame.format, _PLANAR)
    if is_on_gpu(frame.planes[0]):
        made: Frame = _launch_deinterleave(frame, target)
        return made
    luma, pairs = frame.planes
    shift = frame.format.sample_shift
    chroma: list[Any] = [part.reshape(pairs.shape[:2]) for part in cv2.split(pairs)]
    if shift:
        luma = np.right_shift(luma, shift)
        for part in chroma:
            np.right_shift(part, shift, out=part)
    return frame.with_planes((luma, *chroma), format=target)


def upload(
    frame: Frame,
    *,
    stream: Any = None,
    pool: PinnedMemoryPool | None = None,
    timed: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Frame:
    """Start to upload a frame to the GPU as NV12 or P010, through page-locked memory, in one copy, without waiting.

    The host copies the planes into a buffer of the pool and continues (it only waits if three frames of the calling
    thread are still being copied); U and V are interleaved on the GPU.

    Args:
        frame: nv12, p010le, yuv420p or yuv420p10le as NumPy planes; may be dropped at once.
        stream: ``cupy.cuda.Stream`` for the copy; None means the current one.
        pool: Pool that lends the buffer; None means the applications' shared one.
        timed: Opens a timer around the copy, without the host's part.

    Returns:
        The frame as CuPy planes whose rows begin at multiples of 64 bytes. Its ``ready`` is an event after the copy.
        The memory belongs to the stream's pool: hold the frame until other streams have finished reading it.

    Raises:
        ValueError: The frame has another format, or is on the GPU.
        MissingDependencyError: CuPy is not installed.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(frame.planes[0]):
        raise ValueError(f"{frame!r} is on the GPU already")
    if frame.format.name not in _PLANAR:
        _other_layout(frame.format, _SEMI_PLANAR)
    planes, ready = upload_planes(frame, stream, pool, timed)
    return replace(
        frame, planes=planes, format=_SEMI_PLANAR.get(frame.format.name, frame.format), ready=ready
    )


def _other_layout(fmt: YuvFormat, layouts: dict[str, YuvFormat]) -> YuvFormat:
    if fmt.name not in layouts:
        known = ", ".join(sorted((*_PLANAR, *_SEMI_PLANAR)))
        raise ValueError(f"{fmt.name} has no such twin; expected one of {known}")
    return layouts[fmt.name]


_THREADS = 128
_PLANE = np.dtype([("data", "u8"), ("pitch", "i8")])

# Alignment of rows in bytes, so that kernels can read 16 bytes at a time whatever the width.
_ROW_BYTES = 64

# One buffer is filled while another is copied and a third waits behind other work on the stream.
_COPIES_A_THREAD = 3


def _launch_interleave(frame: Frame, target: YuvFormat) -> Frame:
    """Make NV12 or P010 from three CuPy planes, on the current stream."""
    import cupy

    luma, blue_difference, red_difference = frame.planes
    with nvtx_range("to_semi_planar"):
        wait_until_ready(frame)
        if target.sample_shift:
            luma = _shifted(luma, "shift_up", target.sample_shift)
        pairs = cupy.empty((*blue_difference.shape, 2), target.dtype)
        _launch("interleave", (blue_difference, red_difference, pairs), target.sample_shift)
    return replace(frame, planes=(luma, pairs), format=target, ready=None)


def _launch_deinterleave(frame: Frame, target: YuvFormat) -> Frame:
    """Make yuv420p or yuv420p10le from two CuPy planes, on the current stream."""
    import cupy

    luma, pairs = frame.planes
    shift = frame.format.sample_shift
    with nvtx_range("to_planar"):
        wait_until_ready(frame)
        if shift:
            luma = _shifted(luma, "shift_down", shift)
        chroma = tuple(cupy.empty(pairs.shape[:2], target.dtype) for _ in range(2))
        _launch("deinterleave", (pairs, *chroma), shift)
    return replace(frame, planes=(luma, *chroma), format=target, ready=None)


def upload_planes(
    frame: Frame,
    stream: Any,
    pool: PinnedMemoryPool | None,
    timed: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> tuple[tuple[Any, ...], Any]:
    """The planes of a 4:2:0 frame as NV12 or P010 on the GPU, and an event after their upload."""
    cupy = import_cupy()
    # Planar 10-bit frames are shifted while they are copied into the buffer, which takes no longer.
    shift = 6 if frame.format.name == "yuv420p10le" else 0
    pitches = [_pitch_bytes(plane.shape, plane.dtype) for plane in frame.planes]
    sizes = [pitch * plane.shape[0] for pitch, plane in zip(pitches, frame.planes, strict=True)]
    offsets = [0, *np.cumsum(sizes).tolist()]
    with on_cuda_stream(stream or cupy.cuda.get_current_stream()) as current, nvtx_range("upload"):
        pool = pool or shared_pool(cupy.cuda.Device().id)
        _IN_FLIGHT.wait_for_room()
        lease = pool.lease(offsets[-1])
        for plane, pitch, offset in zip(frame.planes, pitches, offsets, strict=False):
            target = _view(lease.array[offset:], plane, pitch)
            if shift:
                np.left_shift(plane, shift, out=target)
            else:
                np.copyto(target, plane)
        block = cupy.empty(offsets[-1], cupy.uint8)
        with timed():
            cupy.cuda.runtime.memcpyAsync(
                block.data.ptr,
                lease.array.ctypes.data,
                offsets[-1],
                cupy.cuda.runtime.memcpyHostToDevice,
                current.ptr,
            )
        was_read = cupy.cuda.Event(block=True, disable_timing=True)
        was_read.record(current)
        lease.release(after=was_read)
        _IN_FLIGHT.events.append(was_read)
        planes = tuple(
            _device_view(block, offset, plane, pitch)
            for plane, pitch, offset in zip(frame.planes, pitches, offsets, strict=False)
        )
        if len(planes) == 3:
            luma, blue_difference, red_difference = planes
            pairs = _device_plane((*blue_difference.shape, 2), blue_difference.dtype)
            _launch("interleave", (blue_difference, red_difference, pairs), 0)
            planes = (luma, pairs)
        ready = cupy.cuda.Event(disable_timing=True)
        ready.record(current)
    return planes, ready


class _InFlight(threading.local):
    """The latest copies of one thread: a host that fills buffers faster than they are copied must wait."""

    def __init__(self) -> None:
        self.events: deque[Any] = deque()

    def wait_for_room(self) -> None:
        """Wait for the oldest copy if there are too many."""
        while len(self.events) >= _COPIES_A_THREAD:
            self.events.popleft().synchronize()


_IN_FLIGHT = _InFlight()


def _pitch_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    row_bytes = math.prod(shape[1:]) * int(dtype.itemsize)
    return -(-row_bytes // _ROW_BYTES) * _ROW_BYTES


def _strides(shape: tuple[int, ...], dtype: Any, pitch: int) -> tuple[int, ...]:
    return (pitch, *(2 * dtype.itemsize, dtype.itemsize)[3 - len(shape) :])


def _view(memory: Any, plane: Plane, pitch: int) -> Any:
    return np.ndarray(plane.shape, plane.dtype, memory, strides=_strides(plane.shape, plane.dtype, pitch))


def _device_view(block: Any, offset: int, plane: Plane, pitch: int) -> Any:
    import cupy

    strides = _strides(plane.shape, plane.dtype, pitch)
    return cupy.ndarray(plane.shape, plane.dtype, block.data + offset, strides=strides)


def _device_plane(shape: tuple[int, ...], dtype: Any) -> Any:
    """A new CuPy plane whose rows begin at multiples of 64 bytes."""
    import cupy

    pitch = _pitch_bytes(shape, dtype)
    block = cupy.empty(shape[0] * pitch, cupy.uint8)
    return cupy.ndarray(shape, dtype, block.data, strides=_strides(shape, dtype, pitch))


def _shifted(luma: Any, name: str, shift: int) -> Any:
    import cupy

    out = cupy.empty(luma.shape, luma.dtype)
    _launch(name, (luma, out), shift)
    return out


def _launch(name: str, planes: tuple[Any, ...], shift: int) -> None:
    last = planes[-1]
    kernel = cuda_kernel(
        "semi_planar.cu",
        name,
        SAMPLE="unsigned char" if last.dtype.itemsize == 1 else "unsigned short",
        SHIFT=shift,
        VECTORS=int(all(takes_vectors(plane, is_written=True) for plane in planes)),
    )
    # The narrowest plane sets the number of pixels: a pair of chroma samples counts as one.
    height, width = min((plane.shape[:2] for plane in planes), key=math.prod)
    lanes = 16 // last.dtype.itemsize
    kernel(
        (math.ceil(width / lanes / _THREADS), height),
        (_THREADS,),
        (*(_parameter(plane) for plane in planes), np.int32(width)),
    )


def _parameter(plane: Any) -> Any:
    parameter = np.zeros(1, _PLANE)
    parameter[0] = plane.data.ptr, row_pitch(plane.shape, plane.strides, itemsize=plane.dtype.itemsize)
    return by_value(parameter)
