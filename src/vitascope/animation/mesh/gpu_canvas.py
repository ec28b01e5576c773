"""The portrait on a GPU: read there through the small map, and patches that the processor has drawn laid on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.layers import Patch
from vitascope.errors import MissingDependencyError
from vitascope.gpu.kernels.remap import remap

__all__ = ["GpuCanvas"]


class GpuCanvas:
    """A portrait in a GPU's memory.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        box: Left, top, right, bottom (exclusive): what can move.
        step: Pixels a sample of the maps.
        device: Number of the GPU.

    Raises:
        MissingDependencyError: CuPy is not installed.
    """

    def __init__(self, rgb: RgbPicture, box: tuple[int, int, int, int], *, step: int, device: int) -> None:
        try:
            import cupy
        except ImportError as error:
            raise MissingDependencyError(
                f"drawing on a GPU needs CuPy ({error}); install it with `pip install 'vitascope[cuda]'`"
            ) from error
        self._cupy = cupy
        self._device = device
        self._box = box
        self._step = step
        self.scratch: RgbPicture = rgb.copy()
        """Where the processor draws patches."""
        with cupy.cuda.Device(device):
            self._rgb = cupy.asarray(rgb)

    def draw(self, coarse: FloatArray, patches: Sequence[Patch], *, out: Any = None) -> Any:
        """The picture, on the current stream.

        Args:
            coarse: float32 [h, w, 2]: where the colours of the box come from, (x, y) in pixels; sample (j, i) belongs
                to the pixel (j * step, i * step) of the box.
            patches: Parts of ``scratch`` that lie on top.
            out: uint8 [H, W, 3] on the GPU; a new array when omitted.

        Returns:
            uint8 [H, W, 3], CuPy.
        """
        cupy = self._cupy
        left, top, right, bottom = self._box
        with cupy.cuda.Device(self._device):
            if out is None:
                out = self._rgb.copy()
            else:
                out[...] = self._rgb
            maps = cupy.asarray(np.ascontiguousarray(np.moveaxis(coarse, 2, 0)))
            out[top:bottom, left:right] = remap(
                self._rgb, maps[0], maps[1], map_scale=self._step, size=(bottom - top, right - left)
            )
            for patch in patches:
                rows = slice(patch.top, patch.top + patch.height)
                columns = slice(patch.left, patch.left + patch.width)
                out[rows, columns] = cupy.asarray(np.ascontiguousarray(self.scratch[rows, columns]))
        return out
