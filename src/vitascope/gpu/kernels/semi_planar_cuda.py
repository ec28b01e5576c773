"""Launches of ``semi_planar.cu``, and the way up through page-locked memory."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitascope.errors import MissingDependencyError
from vitascope.frames import Frame, Plane, YuvFormat
from vitascope.gpu.kernels.cuda_module import cuda_kernel, nvtx_range, wait_until_ready

__all__ = ["launch_deinterleave", "launch_interleave", "upload_planes"]

_THREADS = 128
_PLANE = np.dtype([("data", "u8"), ("pitch", "i8")])

# Rows begin on this many bytes, so that kernels read them 16 bytes at a time whatever the width.
_ROW_BYTES = 64

# One buffer is filled while another is read and a third waits behind other work of the stream.
_BUFFERS_A_THREAD = 3


def launch_interleave(frame: Frame, target: YuvFormat) -> Frame:
    """NV12 or P010 from three CuPy planes, on the current stream."""
    import cupy

    luma, blue_difference, red_difference = frame.planes
    with nvtx_range("to_semi_planar"):
        wait_until_ready(frame)
        if target.sample_shift:
            luma = _shifted(luma, "shift_up", target.sample_shift)
        pairs = cupy.empty((*blue_difference.shape, 2), target.dtype)
        _launch("interleave", (blue_difference, red_difference, pairs), target.sample_shift)
    return replace(frame, planes=(luma, pairs), format=target, ready=None)


def launch_deinterleave(frame: Frame, target: YuvFormat) -> Frame:
    """yuv420p or yuv420p10le from two CuPy planes, on the current stream."""
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


def upload_planes(frame: Frame, stream: Any) -> tuple[tuple[Any, ...], Any]:
    """The planes of a 4:2:0 frame as NV12 or P010 on the GPU, and the event behind them."""
    try:
        import cupy
    except ImportError as error:
        raise MissingDependencyError(
            "a frame on the GPU needs CuPy: pip install 'vitascope[cuda]'"
        ) from error

    # A planar 10-bit frame is shifted on its way into the buffer, which costs no more than the copy.
    shift = 6 if frame.format.name == "yuv420p10le" else 0
    pitches = [_pitch_bytes(plane.shape, plane.dtype) for plane in frame.planes]
    sizes = [pitch * plane.shape[0] for pitch, plane in zip(pitches, frame.planes, strict=True)]
    offsets = [0, *np.cumsum(sizes).tolist()]
    with stream if stream is not None else cupy.cuda.get_current_stream() as current, nvtx_range("upload"):
        buffer = _STAGING.next_buffer(offsets[-1])
        for plane, pitch, offset in zip(frame.planes, pitches, offsets, strict=False):
            target = _view(buffer.bytes[offset:], plane, pitch)
            if shift:
                np.left_shift(plane, shift, out=target)
            else:
                np.copyto(target, plane)
        block = cupy.empty(offsets[-1], cupy.uint8)
        cupy.cuda.runtime.memcpyAsync(
            block.data.ptr,
            buffer.bytes.ctypes.data,
            offsets[-1],
            cupy.cuda.runtime.memcpyHostToDevice,
            current.ptr,
        )
        buffer.was_read.record(current)
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


@dataclass(slots=True, eq=False)
class _Buffer:
    bytes: Any
    """uint8 NumPy view of page-locked memory."""
    was_read: Any
    """Event behind the last copy out of it."""


class _Staging(threading.local):
    """Page-locked buffers of one thread, used in turn."""

    def __init__(self) -> None:
        self._buffers: dict[int, list[_Buffer]] = {}

    def next_buffer(self, size_bytes: int) -> _Buffer:
        """A buffer of at least this size that nobody reads any more; waits for the oldest."""
        import cupy

        # Page-locked for all GPUs, but an event belongs to one.
        ring = self._buffers.setdefault(cupy.cuda.Device().id, [])
        if len(ring) < _BUFFERS_A_THREAD:
            ring.append(_Buffer(np.empty(0, np.uint8), cupy.cuda.Event(block=True, disable_timing=True)))
            buffer = ring[-1]
        else:
            buffer = ring.pop(0)
            ring.append(buffer)
            buffer.was_read.synchronize()
        if buffer.bytes.size < size_bytes:
            # Not from CuPy's pool: the pool would lend the memory again while a copy of a thread that ended reads it.
            # Freeing it waits for the GPU.
            memory = cupy.cuda.PinnedMemoryPointer(cupy.cuda.PinnedMemory(size_bytes), 0)
            buffer.bytes = np.frombuffer(memory, np.uint8, size_bytes)
        return buffer


_STAGING = _Staging()


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
    """A new CuPy plane whose rows begin on 64 bytes."""
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
        VECTORS=int(all(_has_whole_vectors(plane) for plane in planes)),
    )
    # The narrowest plane counts the pixels: a pair of chroma samples is one.
    height, width = min((plane.shape[:2] for plane in planes), key=math.prod)
    lanes = 16 // last.dtype.itemsize
    kernel(
        (math.ceil(width / lanes / _THREADS), height),
        (_THREADS,),
        (*(_parameter(plane) for plane in planes), np.int32(width)),
    )


def _parameter(plane: Any) -> Any:
    parameter = np.zeros(1, _PLANE)
    parameter[0] = plane.data.ptr, plane.strides[0] // plane.dtype.itemsize
    return parameter


def _has_whole_vectors(plane: Any) -> bool:
    """True when every row begins on 16 bytes and may be read, and written, to a multiple of 16 bytes.

    A row that ends inside a vector is not written whole: what stands behind it may belong to somebody else.
    """
    row_bytes = math.prod(plane.shape[1:]) * plane.dtype.itemsize
    return bool(plane.data.ptr % 16 == 0 and plane.strides[0] % 16 == 0 and row_bytes % 16 == 0)
