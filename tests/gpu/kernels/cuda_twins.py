"""Functions for every kernel's tests: planes on the GPU with padded rows, as decoders make them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitascope.frames import Frame


def plane_on_gpu(plane: Any, *, pad: int = 0) -> Any:
    """Copy a plane to CuPy, with rows a multiple of 16 samples plus ``pad`` apart; ``pad`` breaks alignment.

    The samples between rows must not affect any result: they are random codes, or NaN.
    """
    import cupy

    height, width, *channels = plane.shape
    aligned = -(-width // 16) * 16 + pad
    shape = (height, aligned, *channels)
    if plane.dtype.kind == "u":
        dirt = np.random.default_rng(7).integers(
            0, np.iinfo(plane.dtype).max, shape, plane.dtype, endpoint=True
        )
        padded = cupy.asarray(dirt)
    else:
        padded = cupy.full(shape, np.nan, plane.dtype)
    padded[:, :width] = cupy.asarray(plane)
    return padded[:, :width]


def frame_on_gpu(frame: Frame, *, pad: int = 0) -> Frame:
    return frame.with_planes(tuple(plane_on_gpu(plane, pad=pad) for plane in frame.planes))


def frame_on_cpu(frame: Frame) -> Frame:
    return frame.with_planes(tuple(plane.get() for plane in frame.planes))
