"""Smooths a matte over time where the picture is still: edges stop flickering, and motion stays sharp."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np

from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.color import alpha_dtype
from vitascope.gpu.kernels.cuda_module import (
    cuda_kernel,
    fields,
    is_on_gpu,
    nvtx_range,
    row_pitch,
    wait_until_ready,
)
from vitascope.gpu.kernels.morphology import SAMPLE_NAMES, has_aligned_rows

# Change of luma, as a share of full scale, at which the previous matte has lost 63 % of its weight. Sensor noise
# stays below 0.01 after the 5x5 mean; a moving edge is well above 0.05.
_MOTION_SCALE = 0.03


class AlphaSmoother:
    """Exponential moving average of alpha, gated by motion. Use one per stream.

    ``out = alpha + w * (previous_out - alpha)`` with ``w = strength * exp(-(luma change / 0.03)^2)``.

    Args:
        strength: 0 (off) to below 1: weight of the past where nothing moves.
    """

    def __init__(self, strength: float) -> None:
        self._strength = strength
        self._alpha: Plane | None = None
        self._luma: Plane | None = None
        self._gpu: GpuSmoothing | None = None

    def reset(self) -> None:
        """Reset at a scene cut: the next frame is returned unchanged."""
        self._alpha = self._luma = None
        self._gpu = None

    def smooth(self, frame: Frame, alpha: Plane) -> Plane:
        """Smooth the next frame's alpha.

        Runs on alpha's device: NumPy on the CPU; CuPy in one kernel on the GPU, on the current stream, which must be
        the same for every frame. There the past stays on the GPU, and the result is within 1 code of the CPU's (for 8
        bits; within 16 of 65535 otherwise).

        Args:
            frame: The next picture in order, on alpha's device. A change of size or depth restarts smoothing.
            alpha: uint8 or uint16 [H, W].

        Returns:
            The same dtype and shape.

        Raises:
            ValueError: On the GPU, the video has more than 10 bits.
            KernelCompileError: The CUDA source could not be built for this GPU.
        """
        if is_on_gpu(alpha):
            return self._smooth_on_gpu(frame, alpha)
        scale = float(2**frame.format.bit_depth - 1) * (1 << frame.format.sample_shift)
        luma = cv2.blur(frame.planes[0].astype(np.float32) / np.float32(scale), (5, 5))
        current = alpha.astype(np.float32)
        if self._alpha is not None and self._luma is not None and self._luma.shape == luma.shape:
            change = (luma - self._luma) / np.float32(_MOTION_SCALE)
            weight = np.float32(self._strength) * np.exp(-(change * change))
            current += weight * (self._alpha - current)
        self._alpha, self._luma = current, luma
        return np.rint(current).astype(alpha_dtype(frame))

    def _smooth_on_gpu(self, frame: Frame, alpha: Plane) -> Plane:
        if self._gpu is None or not self._gpu.fits(frame, alpha):
            self._gpu = GpuSmoothing(frame, alpha)
        made: Plane = self._gpu.smooth(frame, alpha, strength=self._strength, motion_scale=_MOTION_SCALE)
        return made


# Same as in steady.cu.
_COLUMNS, _ROWS = 4, 8
_BLOCK = (32, 4)
_WINDOW_SAMPLES = 25
_MOST_BITS = 10  # sums of 25 codes fit into 16 bits

_SMOOTHING = np.dtype(
    [
        *fields("u8", "luma", "alpha", "out", "sums", "kept"),
        *fields("i8", "luma_pitch", "alpha_pitch", "out_pitch"),
        *fields("i4", "height", "width", "state_width", "first"),
        *fields("f4", "strength", "inverse_scale"),
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
        """True if this state matches pictures like this one."""
        return self._kind == self._kind_of(frame, alpha)

    def smooth(self, frame: Frame, alpha: Any, *, strength: float, motion_scale: float) -> Any:
        """Run the kernel on the current CuPy stream; takes and returns the same as ``AlphaSmoother.smooth``.

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
