"""What a user's ONNX file takes: one picture, of a layout, dtype and size that the file itself says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.errors import ModelError
from vitascope.gpu.engines.engine import TensorSpec
from vitascope.models.network import FloatArray, InputLayout

__all__ = ["LONGEST_SIDE", "SIDE_MULTIPLE", "TRIAL_REGION", "PictureInput", "picture_input"]

# For networks that take any size: near what MODNet, U²-Net and DeepLab were trained at, and the deepest common
# stride of segmentation encoders.
LONGEST_SIDE, SIDE_MULTIPLE = 512, 32

_MOST_SAMPLES = 1 << 26
"""8192x8192, 800 MB as the network reads it; a file may announce any size."""

TRIAL_REGION = (1080, 1920)
"""(height, width) of the region that a network is tried with when it is opened."""


@dataclass(frozen=True, slots=True)
class PictureInput:
    """The one input of a network that takes pictures."""

    name: str
    layout: InputLayout
    dtype: np.dtype[Any]
    free_batch: bool
    fixed_size: tuple[int | None, int | None]
    """(height, width); None where the network takes any."""

    def size_for(self, region_size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the pictures for a region of (height, width)."""
        scale = LONGEST_SIDE / max(region_size)
        height, width = (
            fixed or max(round(side * scale / SIDE_MULTIPLE), 1) * SIDE_MULTIPLE
            for fixed, side in zip(self.fixed_size, region_size, strict=True)
        )
        return height, width

    def shape_for(self, count: int, size: tuple[int, int]) -> tuple[int, ...]:
        """Shape of ``count`` pictures of (height, width)."""
        return (count, 3, *size) if self.layout == "NCHW" else (count, *size, 3)

    def encode(self, pictures: FloatArray) -> npt.NDArray[Any]:
        """The pictures in the input's dtype."""
        return pictures.astype(self.dtype, copy=False)


def picture_input(path: Path, inputs: tuple[TensorSpec, ...]) -> PictureInput:
    """What a file says of its input.

    Raises:
        ModelError: It takes no pictures, or several inputs.
    """
    described = ", ".join(f"{tensor.name} {tensor.dtype} {list(tensor.shape)}" for tensor in inputs)
    refusal = ModelError(
        f"{path}: got inputs {described}, expected one picture, float [1 or N, 3, H, W] or [1 or N, H, W, 3]"
    )
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or not np.issubdtype(inputs[0].dtype, np.floating):
        raise refusal
    batch, *axes = inputs[0].shape
    layout: InputLayout
    if axes[0] == 3:
        layout, size = "NCHW", axes[1:]
    elif axes[2] == 3:
        layout, size = "NHWC", axes[:2]
    else:
        raise refusal
    if isinstance(batch, int) and batch != 1:
        raise refusal
    height, width = (side if isinstance(side, int) else None for side in size)
    if (height or 1) * (width or 1) > _MOST_SAMPLES:
        raise ModelError(
            f"{path}: it takes pictures of {width or 'any'}x{height or 'any'}; at most {_MOST_SAMPLES / 1e6:.0f} "
            "million samples can be shown to a network"
        )
    return PictureInput(inputs[0].name, layout, inputs[0].dtype, not isinstance(batch, int), (height, width))
