"""Launch of ``steady.cu``, and what a stream keeps on the GPU between frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vitascope.frames import Frame
from vitascope.gpu.kernels.cuda_module import cuda_kernel, nvtx_range, row_pitch, wait_until_ready
from vitascope.gpu.kernels.morphology_cuda import SAMPLE_NAMES, has_aligned_rows

__all__ = ["GpuSmoothing"]

# As in steady.cu.
_COLUMNS, _ROWS = 4, 8
_BLOCK = (32, 4)
_WINDOW_SAMPLES = 25
_MOST_BITS = 10  # sums of 25 codes fit 16 bits

_SMOOTHING = np.dtype(
    [
        ("luma", "u8"),
        ("alpha", "u8"),
        ("out", "u8"),
        ("sums", "u8"),
        ("kept", "u8"),
        ("luma_pitch", "i8"),
        ("alpha_pitch", "i8"),
        ("out_pitch", "i8"),
        ("height", "i4"),
        ("width", "i4"),
        ("state_width", "i4"),
        ("first", "i4"),
        ("strength", "f4"),
        ("inverse_scale", "f4"),
    ]
)


class GpuSmoothing:
    """The past of one stream: the last frame's luma sums and its smoothed alpha.

    Args:
        frame: The first frame.
        alpha: Its alpha.

    Raises:
        ValueError: The frame has more than 10 bits.
    """

    def __init__(self, frame: Frame, alpha: Any) -> None:
        import cupy

        if frame.format.bit_depth > _MOST_BITS:
            raise ValueError(f"the GPU kernel smooths at most 10-bit video, not {frame.format.name}")
        self._kind = self._kind_of(frame, alpha)
        height, width = alpha.shape
        groups = math.ceil(width / _COLUMNS)
        self._sums = cupy.empty((height, groups, _COLUMNS), cupy.uint16)
        self._kept = cupy.empty(
            (height, groups, _COLUMNS), cupy.uint16 if alpha.dtype == np.uint8 else cupy.float32
        )
        self._is_new = True

    def fits(self, frame: Frame, alpha: Any) -> bool:
        """True when this past is of pictures like this one."""
        return self._kind == self._kind_of(frame, alpha)

    def smooth(self, frame: Frame, alpha: Any, *, strength: float, motion_scale: float) -> Any:
        """Run the kernel on the current CuPy stream; arguments and result as in ``AlphaSmoother.smooth``.

        Raises:
            KernelCompileError: The CUDA source could not be built for this GPU.
        """
        import cupy

        luma: Any = frame.planes[0]
        out = cupy.empty(alpha.shape, alpha.dtype)
        height, width = alpha.shape
        peak = 2**frame.format.bit_depth - 1
        job = np.zeros(1, _SMOOTHING)
        job[0] = (
            *(array.data.ptr for array in (luma, alpha, out, self._sums, self._kept)),
            *(
                row_pitch(array.shape, array.strides, itemsize=array.dtype.itemsize)
                for array in (luma, alpha, out)
            ),
            height,
            width,
            self._sums.shape[1],
            int(self._is_new),
            strength,
            1 / (_WINDOW_SAMPLES * peak * motion_scale),
        )
        kernel = cuda_kernel(
            "steady.cu",
            "smooth_alpha",
            SAMPLE=SAMPLE_NAMES[luma.dtype.itemsize],
            SHIFT=frame.format.sample_shift,
            ALPHA=SAMPLE_NAMES[alpha.dtype.itemsize],
            VECTORS=int(all(has_aligned_rows(array) for array in (luma, alpha, out))),
        )
        with nvtx_range("steady"):
            wait_until_ready(frame)
            kernel(
                (math.ceil(self._sums.shape[1] / _BLOCK[0]), math.ceil(height / (_ROWS * _BLOCK[1]))),
                _BLOCK,
                (job,),
            )
        self._is_new = False
        return out

    @staticmethod
    def _kind_of(frame: Frame, alpha: Any) -> tuple[Any, ...]:
        return frame.planes[0].shape, frame.format.bit_depth, alpha.dtype.name
