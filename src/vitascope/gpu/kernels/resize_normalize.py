"""Packed or planar pictures to a network's input of another size: resize, scale, mean and deviation in one pass.

The resize is that of ``preprocess``: each axis averages the samples under an output where it shrinks (antialiased) and
interpolates between the two nearest where it grows; sample i covers [i, i + 1), borders repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.batch_normalize import (
    BatchLayout,
    batch_normalize,
    channel_affine,
    channels_of,
    check_out,
)
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.resample import resample_window

__all__ = ["resize_normalize"]


def resize_normalize(
    images: npt.NDArray[Any],
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    scale: float = 1 / 255,
    layout_in: BatchLayout = "NHWC",
    layout_out: BatchLayout = "NCHW",
    reverse_channels: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """``(resized * scale - mean) / std`` for each channel, computed in float32.

    Runs where the images are: NumPy on the CPU (OpenCV resizes); CuPy in one kernel on the GPU, ordered on the current
    stream. There results agree to 1e-4 of the largest term (float32), or to the unit in the last place (float16).

    Args:
        images: uint8, uint16, float16 or float32, [N, H, W, C] or [N, C, H, W] with 1 to 4 channels. On the GPU rows
            and pictures may be padded; samples that are not dense cost a copy.
        size: (height, width) of the result.
        mean: Of each channel of the result, after ``scale``.
        std: Of each channel of the result, not 0.
        scale: What brings code values to the range that mean and std are given in.
        layout_in: Order of the axes of ``images``.
        layout_out: Order of the axes of the result.
        reverse_channels: The last channel becomes the first: BGR to RGB.
        dtype: Element type of the result.
        out: Where to write: C-contiguous, on the images' device; a new array when omitted.

    Returns:
        [N, C, h, w] or [N, h, w, C] of ``dtype``, C-contiguous.

    Raises:
        ValueError: Shapes or dtypes do not fit, a picture or the result has no pixel, a standard deviation is 0, or
            the GPU is to shrink a row more than 1000 times.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    channels = channels_of(images, layout_in, mean, std)
    if 0 in images.shape[1:] or min(size) < 1:
        raise ValueError(f"images are {images.shape} and size is {size}, expected at least one pixel")
    picture = images.shape[2:] if layout_in == "NCHW" else images.shape[1:3]
    if picture == size and not reverse_channels:
        return batch_normalize(
            images, mean=mean, std=std, scale=scale, layout_in=layout_in, layout_out=layout_out,
            dtype=dtype, out=out,
        )  # fmt: skip
    count = images.shape[0]
    shape = (count, channels, *size) if layout_out == "NCHW" else (count, *size, channels)
    check_out(out, shape, dtype)
    gain, offset = channel_affine(mean, std, scale)
    if is_on_gpu(images):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.resize_normalize_cuda import launch_resize_normalize

        made: npt.NDArray[Any] = launch_resize_normalize(
            images, gain, offset, size=size, layout_in=layout_in, layout_out=layout_out,
            reverse_channels=reverse_channels, dtype=dtype, shape=shape, out=out,
        )  # fmt: skip
        return made
    result: npt.NDArray[Any] = np.empty(shape, dtype) if out is None else out
    window = (0.0, 0.0, float(picture[1]), float(picture[0]))
    for source, target in zip(images, result, strict=True):
        if layout_in == "NHWC":
            small = resample_window(source, window, size).reshape(*size, channels)
            planes = [small[..., channel] for channel in range(channels)]
        else:
            planes = [resample_window(plane, window, size) for plane in source]
        targets = target if layout_out == "NCHW" else np.moveaxis(target, -1, 0)
        for channel, plane in enumerate(reversed(planes) if reverse_channels else planes):
            targets[channel] = plane * gain[channel] + offset[channel]
    return result
