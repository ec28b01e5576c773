"""A frame's native planes to a network's input: the only pass over the full picture before the network.

``rgb = M @ yuv + t`` (``color.py``), each plane averaged down to the network's size first: the matrix is linear, so
resizing the three planes and converting the small picture gives the same result as converting the large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.eyes import chroma_region
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resample import chroma_window, resample_window

__all__ = ["preprocess"]

Triple = tuple[float, float, float]


def preprocess(
    frame: Frame,
    *,
    regions: Sequence[Region],
    size: tuple[int, int],
    mean: Triple = (0.0, 0.0, 0.0),
    std: Triple = (1.0, 1.0, 1.0),
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    rotation_degrees: Rotation = 0,
    dtype: Literal["float32", "float16"] = "float32",
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Crop, resize (antialiased), convert to RGB and normalise, for each region.

    Runs where the frame is: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel, ordered on the
    current CuPy stream.

    Args:
        frame: A picture in any of ``frames.PIXEL_FORMATS``.
        regions: What to cut out, in coded (unrotated) luma samples: one for each eye.
        size: (height, width) of the network's input, upright.
        mean: Subtracted from RGB in 0..1.
        std: Divides what is left.
        layout: Order of the axes of the result.
        rotation_degrees: Clockwise turn that makes the picture upright.
        dtype: Element type of the result.
        out: Where to write: C-contiguous, on the frame's device; a new array when omitted.

    Returns:
        [N, 3, h, w] or [N, h, w, 3] of ``dtype``, C-contiguous; RGB 0..1 (clipped) before mean and std.

    Raises:
        ValueError: ``out`` has another shape or dtype than the result, or gaps; or a frame on the GPU is not
            semi-planar, or the samples of its rows do not lie side by side.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    height, width = size
    shape = (len(regions), 3, height, width) if layout == "NCHW" else (len(regions), height, width, 3)
    if out is not None and (out.shape != shape or out.dtype != np.dtype(dtype) or not out.flags.c_contiguous):
        raise ValueError(f"out is {out.dtype} {out.shape}, expected {dtype} {shape}, C-contiguous")
    if is_on_gpu(frame.planes[0]):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.preprocess_cuda import launch_preprocess

        made: npt.NDArray[Any] = launch_preprocess(
            frame, regions, size=size, mean=mean, std=std, layout=layout, rotation_degrees=rotation_degrees,
            dtype=np.dtype(dtype), shape=shape, out=out,
        )  # fmt: skip
        return made
    coded_size = (width, height) if rotation_degrees in (90, 270) else (height, width)
    matrix, offset = rgb_from_yuv(frame.color, frame.format)
    result: npt.NDArray[Any] = np.empty(shape, dtype) if out is None else out
    for picture, region in zip(result, regions, strict=True):
        luma, blue_difference, red_difference = _small_planes(frame, region, coded_size)
        channels = picture if layout == "NCHW" else np.moveaxis(picture, -1, 0)
        for channel, row, bias, subtract, divide in zip(channels, matrix, offset, mean, std, strict=True):
            rgb = luma * np.float32(row[0])
            rgb += blue_difference * np.float32(row[1])
            rgb += red_difference * np.float32(row[2])
            rgb += np.float32(bias)
            np.clip(rgb, 0.0, 1.0, out=rgb)
            if subtract != 0.0 or divide != 1.0:
                rgb -= np.float32(subtract)
                rgb *= np.float32(1.0 / divide)
            # np.rot90 turns counter-clockwise for positive k.
            channel[...] = np.rot90(rgb, k=-(rotation_degrees // 90))
    return result


def _small_planes(
    frame: Frame, region: Region, size: tuple[int, int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Y, U and V of a region at the network's size, in code values."""
    luma_window = (region.x, region.y, region.x + region.width, region.y + region.height)
    window = chroma_window(region, frame.format, frame.color)
    own = chroma_region(region, frame.format)
    luma: Plane = resample_window(frame.planes[0], luma_window, size, within=region)
    if frame.format.semi_planar:
        chroma = resample_window(frame.planes[1], window, size, within=own)
        return luma, chroma[..., 0], chroma[..., 1]
    blue_difference, red_difference = (
        resample_window(plane, window, size, within=own) for plane in frame.planes[1:]
    )
    return luma, blue_difference, red_difference
