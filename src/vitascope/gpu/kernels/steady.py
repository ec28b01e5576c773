"""Temporal smoothing of a matte where the picture stands still, so that edges stop boiling and motion stays sharp."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np

from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.guided import alpha_dtype

if TYPE_CHECKING:
    from vitascope.gpu.kernels.steady_cuda import GpuSmoothing

__all__ = ["AlphaSmoother"]

# Luma change, as a share of full scale, at which the previous matte has lost 63 % of its say. Sensor noise stays
# below 0.01 after the 5x5 mean, a moving edge is well above 0.05.
_MOTION_SCALE = 0.03


class AlphaSmoother:
    """Exponential moving average of alpha, gated by motion. One for each stream.

    ``out = alpha + w * (previous_out - alpha)`` with ``w = strength * exp(-(luma change / 0.03)^2)``.

    Args:
        strength: 0 (off) to below 1: the weight of the past where nothing moves.
    """

    def __init__(self, strength: float) -> None:
        self._strength = strength
        self._alpha: Plane | None = None
        self._luma: Plane | None = None
        self._gpu: GpuSmoothing | None = None

    def reset(self) -> None:
        """Forget the past: the next frame comes back as it is (scene cut)."""
        self._alpha = self._luma = None
        self._gpu = None

    def smooth(self, frame: Frame, alpha: Plane) -> Plane:
        """Smooth the next frame's alpha.

        Runs where alpha is: NumPy on the CPU; CuPy in one kernel on the GPU, ordered on the current stream, which must
        be the same for every frame. There the past stays on the GPU, and the result is within 1 code of the CPU's
        (of 8 bits; within 16 of 65535).

        Args:
            frame: The picture, next in order; on alpha's device. Another size or depth than the last begins anew.
            alpha: uint8 or uint16 [H, W].

        Returns:
            The same dtype and shape.

        Raises:
            ValueError: On the GPU, video of more than 10 bits.
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
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.steady_cuda import GpuSmoothing

        if self._gpu is None or not self._gpu.fits(frame, alpha):
            self._gpu = GpuSmoothing(frame, alpha)
        made: Plane = self._gpu.smooth(frame, alpha, strength=self._strength, motion_scale=_MOTION_SCALE)
        return made
