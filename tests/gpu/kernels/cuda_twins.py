"""Shared by every kernel's tests: planes on the GPU with rows padded as by decoders."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitascope.frames import Frame


def plane_on_gpu(plane: Any, *, pad: int = 0) -> Any:
    """A CuPy copy whose rows are 16 samples apart or a multiple, plus ``pad`` samples, which breaks their alignment.

    Between rows lies what no result may show: codes at random, or what is no number.
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
