"""CV-CUDA's operator chains from NV12 to a normalised network input, for ``preprocess_cuda.py`` to time beside ours.

Two chains of single operators, each into tensors made once: ``linear`` samples four pixels whatever the size;
``antialias`` filters as ``preprocess`` does. CV-CUDA converts NV12 by BT.601, limited range; the chains end in FP32.
Its operator that resizes, converts and reorders in one takes no mean and deviation for each channel, and is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

try:
    import cvcuda
except ImportError:
    cvcuda = None

Chain = Callable[[int], object]
MOST_MEAN_ERROR = 0.05
"""Largest mean error of the normalised input, on a smooth picture: CV-CUDA rounds to bytes after the colour conversion,
and places chroma elsewhere."""


def available() -> bool:
    """True if CV-CUDA is installed here."""
    return cvcuda is not None


def smooth_planes(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Make NV12 on which all sensible filters agree: luma uint8 [H, W], chroma uint8 [H/2, W/2, 2]."""
    y, x = np.mgrid[:height, :width].astype(np.float32) / max(height, width)
    luma = 60 + 120 * x + 40 * np.sin(6 * y)
    halves = y[::2, ::2], x[::2, ::2]
    chroma = np.stack([118 + 20 * halves[0], 138 - 20 * halves[1]], axis=-1)
    return luma.round().astype(np.uint8), chroma.round().astype(np.uint8)


class CvCudaChains:
    """The chains, over NV12 frames that lie in one buffer each, as CV-CUDA wants them.

    Args:
        planes: Luma uint8 [H, W] and chroma uint8 [H/2, W/2, 2] of each frame, on the GPU.
        target: Height and width of the network's input.
        mean: Mean of each channel, 0..1.
        std: Likewise.
    """

    def __init__(
        self,
        planes: Sequence[tuple[torch.Tensor, ...]],
        target: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        height, width = planes[0][0].shape
        self._keep = [
            torch.cat([luma, chroma.reshape(height // 2, width)])[None, :, :, None] for luma, chroma in planes
        ]
        self._nv12 = [cvcuda.as_tensor(frame, "NHWC") for frame in self._keep]
        self._rgb = cvcuda.Tensor((1, height, width, 3), cvcuda.Type.U8, "NHWC")
        self._small = cvcuda.Tensor((1, *target, 3), cvcuda.Type.F32, "NHWC")
        self._normal = cvcuda.Tensor((1, *target, 3), cvcuda.Type.F32, "NHWC")
        self._resized = cvcuda.Tensor((1, *target, 3), cvcuda.Type.U8, "NHWC")
        self._out = torch.empty((1, 3, *target), device="cuda")
        self._planar = cvcuda.as_tensor(self._out, "NCHW")
        constants = [torch.tensor(np.float32(value), device="cuda").view(1, 1, 1, 3) for value in (mean, std)]
        self._keep += constants
        self._mean, self._std = (cvcuda.as_tensor(constant, "NHWC") for constant in constants)
        self._stream = cvcuda.as_stream(torch.cuda.current_stream())

    def linear(self, index: int) -> torch.Tensor:
        """Float32 [1, 3, H, W]; four pixels for each sample."""
        self._convert(index)
        cvcuda.resize_into(self._resized, self._rgb, cvcuda.Interp.LINEAR, stream=self._stream)
        cvcuda.convertto_into(self._small, self._resized, 1 / 255, 0, stream=self._stream)
        return self._finish()

    def antialias(self, index: int) -> torch.Tensor:
        """Float32 [1, 3, H, W]; filtered like ``preprocess``."""
        self._convert(index)
        cvcuda.hq_resize_into(
            self._normal, self._rgb, antialias=True, interpolation=cvcuda.Interp.LINEAR, stream=self._stream
        )
        cvcuda.convertto_into(self._small, self._normal, 1 / 255, 0, stream=self._stream)
        return self._finish()

    def _convert(self, index: int) -> None:
        cvcuda.cvtcolor_into(
            self._rgb, self._nv12[index], cvcuda.ColorConversion.YUV2RGB_NV12, stream=self._stream
        )

    def _finish(self) -> torch.Tensor:
        cvcuda.normalize_into(
            self._normal,
            self._small,
            self._mean,
            self._std,
            cvcuda.NormalizeFlags.SCALE_IS_STDDEV,
            stream=self._stream,
        )
        cvcuda.reformat_into(self._planar, self._normal, stream=self._stream)
        return self._out


def time_chains(
    chains: CvCudaChains, *, smooth: int, reference: Any, measure: Callable[[Chain], dict[str, float]]
) -> dict[str, Any]:
    """Check both chains against our result for BT.601, then time them.

    Args:
        chains: The chains over the frames to time and the smooth one.
        smooth: The smooth frame's number.
        reference: ``preprocess`` of it, float32 [1, 3, H, W].
        measure: Times a chain.

    Raises:
        SystemExit: CV-CUDA's result is not the same picture.
    """
    row: dict[str, Any] = {}
    for name, chain in (("linear", chains.linear), ("antialias", chains.antialias)):
        error = float(np.abs(chain(smooth).cpu().numpy() - reference).mean())
        if error > MOST_MEAN_ERROR:
            raise SystemExit(f"CV-CUDA's {name} chain is another picture: mean difference {error}")
        row |= {f"cvcuda_{name}": measure(chain), f"cvcuda_{name}_mean_difference": round(error, 5)}
    return row
