"""What every kernel's tests share: planes on the GPU with rows as decoders pad them."""

from __future__ import annotations

from typing import Any

from vitascope.frames import Frame


def plane_on_gpu(plane: Any, *, pad: int = 0) -> Any:
    """A CuPy copy whose rows are 16 samples apart or a multiple, plus ``pad`` samples, which breaks their alignment."""
    import cupy

    aligned = -(-plane.shape[1] // 16) * 16 + pad
    padded = cupy.full((plane.shape[0], aligned, *plane.shape[2:]), 255, plane.dtype)
    padded[:, : plane.shape[1]] = cupy.asarray(plane)
    return padded[:, : plane.shape[1]]


def frame_on_gpu(frame: Frame, *, pad: int = 0) -> Frame:
    return frame.with_planes(tuple(plane_on_gpu(plane, pad=pad) for plane in frame.planes))


def frame_on_cpu(frame: Frame) -> Frame:
    return frame.with_planes(tuple(plane.get() for plane in frame.planes))
