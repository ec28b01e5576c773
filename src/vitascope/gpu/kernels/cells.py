"""What lies around the cells of coarse grids over a picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import cuda_kernel, is_on_gpu, nvtx_range

FloatArray = npt.NDArray[np.float32]

_THREADS = 128
"""As in cells.cu."""


def greatest_around(cells: FloatArray) -> FloatArray:
    """The greatest of each cell and the eight around it; there is nothing beyond the grid.

    Runs where the cells are: NumPy on the CPU; CuPy in one kernel, ordered on the current stream. Results are equal.

    Args:
        cells: float32 [..., rows, columns].

    Returns:
        float32 of the same shape, in memory of its own.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(cells):
        made: FloatArray = _launch(cells)
        return made
    grown = cells.copy()
    for before, after in ((np.s_[..., :-1, :], np.s_[..., 1:, :]), (np.s_[..., :-1], np.s_[..., 1:])):
        narrow = grown.copy()
        grown[after] = np.maximum(grown[after], narrow[before])
        grown[before] = np.maximum(grown[before], narrow[after])
    return grown


def _launch(cells: Any) -> Any:
    import cupy

    cells = cupy.ascontiguousarray(cells, "float32")
    made = cupy.empty_like(cells)
    rows, columns = cells.shape[-2:]
    if cells.size:
        with nvtx_range("greatest around"):
            kernel = cuda_kernel("cells.cu", "greatest_around")
            grid = math.ceil(rows * columns / _THREADS), math.prod(cells.shape[:-2])
            kernel(grid, (_THREADS,), (cells, made, np.int32(rows), np.int32(columns)))
    return made
