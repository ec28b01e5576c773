"""Maximum and mean of the neighbourhood of each cell in coarse grids."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import cuda_kernel, is_on_gpu, nvtx_range

FloatArray = npt.NDArray[np.float32]

_THREADS = 128
"""Same as in cells.cu."""


def greatest_around(cells: FloatArray) -> FloatArray:
    """The maximum of each cell and its eight neighbours within the grid.

    Runs on the cells' device: NumPy or OpenCV on the CPU; CuPy in one kernel, on the current stream. Results are
    equal.

    Args:
        cells: float32 [..., rows, columns].

    Returns:
        float32 of the same shape, in new memory.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(cells):
        made: FloatArray = _launch("greatest_around", cells)
        return made
    grown = cells.copy()
    for before, after in ((np.s_[..., :-1, :], np.s_[..., 1:, :]), (np.s_[..., :-1], np.s_[..., 1:])):
        narrow = grown.copy()
        grown[after] = np.maximum(grown[after], narrow[before])
        grown[before] = np.maximum(grown[before], narrow[after])
    return grown


def mean_around(cells: FloatArray) -> FloatArray:
    """The mean of each cell and its 24 neighbours; otherwise like ``greatest_around``, except for rounding.

    The grid is mirrored at its border (``cv2.BORDER_REFLECT_101``).
    """
    if is_on_gpu(cells):
        made: FloatArray = _launch("mean_around", cells)
        return made
    means = np.empty(cells.shape, np.float32)
    for at in np.ndindex(*cells.shape[:-2] if cells.size else (0,)):
        means[at] = cv2.blur(cells[at], (5, 5))
    return means


def _launch(name: str, cells: Any) -> Any:
    import cupy

    cells = cupy.ascontiguousarray(cells, "float32")
    made = cupy.empty_like(cells)
    rows, columns = cells.shape[-2:]
    if cells.size:
        with nvtx_range(name):
            grid = math.ceil(rows * columns / _THREADS), math.prod(cells.shape[:-2])
            cuda_kernel("cells.cu", name)(grid, (_THREADS,), (cells, made, np.int32(rows), np.int32(columns)))
    return made
