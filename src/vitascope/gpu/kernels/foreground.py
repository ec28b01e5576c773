"""The person's own colour along the edge: what the camera mixed with the background, taken apart again.

A matting network that estimates the foreground gives it as an affine function of the picture, like alpha
(``guided.py``): ``foreground = rgb + gain * rgb + offset`` for each of R, G and B. Only samples with partial alpha
are replaced; fully kept samples stay the very codes that were decoded.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation
from vitascope.gpu.kernels.color import alpha_peak, rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.guided import upright_to_coded
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resample import downsample_to_chroma, read_bilinear, upsample_to_luma

__all__ = ["decontaminate"]

FloatPlane = npt.NDArray[Any]
"""float32; OpenCV's stubs do not say which dtype they return."""

# Rows handled together: few enough that a band's float planes stay in a core's second-level cache at 4K width.
_BAND_ROWS = 32


def decontaminate(
    frame: Frame,
    alpha: Plane,
    *,
    regions: list[Region],
    gain: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
    rotation_degrees: Rotation = 0,
) -> Frame:
    """Replace the colour of partly transparent samples by the network's foreground.

    Runs where the frame is: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel, ordered on the
    current CuPy stream.

    Args:
        frame: The picture.
        alpha: uint8 or uint16 [H, W], before edge options: says which samples the camera mixed.
        regions: Where each eye lies; together they cover the frame. Nothing is read across a seam; one that cuts a
            chroma block is moved to the block's end.
        gain: float32 [N, 3, h, w], upright, one for each region, on the frame's device; float16 too on the GPU.
        offset: As gain.
        rotation_degrees: Clockwise turn that made the picture upright for the network.

    Returns:
        A frame with planes of its own; the input's are untouched.

    Raises:
        ValueError: A frame on the GPU is not semi-planar, or alpha or the coefficients do not fit it.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    regions = [_to_whole_blocks(region, frame) for region in regions]
    if is_on_gpu(frame.planes[0]):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.composite_launch import Coefficients, foreground_on_gpu

        return foreground_on_gpu(frame, alpha, regions, Coefficients(gain, offset, rotation_degrees))
    planes = tuple(plane.copy() for plane in frame.planes)
    for index, region in enumerate(regions):
        coefficients = (
            upright_to_coded(gain[index], rotation_degrees),
            upright_to_coded(offset[index], rotation_degrees),
        )
        for top in range(region.y, region.y + region.height, _BAND_ROWS):
            bottom = min(top + _BAND_ROWS, region.y + region.height)
            columns = _mixed_columns(alpha, region, top, bottom)
            if columns.size == 0:
                continue
            left = region.x + int(columns[0])
            right = region.x + int(columns[-1]) + 1
            _replace_band(
                frame, planes, alpha, region, Region(left, top, right - left, bottom - top), coefficients
            )
    return frame.with_planes(planes)


def _to_whole_blocks(region: Region, frame: Frame) -> Region:
    """The region from its first to its last chroma block; a block that a seam cuts belongs to the eye before it."""
    step_x, step_y = 1 << frame.format.chroma_shift_x, 1 << frame.format.chroma_shift_y
    left, top = -(-region.x // step_x) * step_x, -(-region.y // step_y) * step_y
    right = min(-(-(region.x + region.width) // step_x) * step_x, frame.width)
    bottom = min(-(-(region.y + region.height) // step_y) * step_y, frame.height)
    return Region(left, top, right - left, bottom - top)


def _mixed_columns(alpha: Plane, eye: Region, top: int, bottom: int) -> npt.NDArray[np.intp]:
    """The columns of an eye near which a band shows both person and background.

    Outside them neither a luma sample nor the alpha that a chroma site weighs can be partial.
    """
    near = alpha[max(top - 1, eye.y) : min(bottom + 1, eye.y + eye.height), eye.columns]
    reach = np.ones(
        (1, 5), np.uint8
    )  # a cosited site looks two columns from its block's end to the sample before it
    seen, clear = (
        cv2.dilate(np.any(found, axis=0, keepdims=True).astype(np.uint8), reach)[0]
        for found in (near > 0, near < alpha_peak(alpha))
    )
    return np.flatnonzero(seen & clear)


def _replace_band(
    frame: Frame,
    planes: tuple[Plane, ...],
    alpha: Plane,
    eye: Region,
    band: Region,
    coefficients: tuple[FloatPlane, FloatPlane],
) -> None:
    """Write the foreground of one band into ``planes`` wherever alpha is partial."""
    fmt = frame.format
    # Chroma blocks must be whole, and a cosited site looks one column to its left.
    step_x, step_y = 1 << fmt.chroma_shift_x, 1 << fmt.chroma_shift_y
    left = max(band.x // step_x * step_x - step_x, eye.x)
    top = max(band.y // step_y * step_y - step_y, eye.y)
    right = min(-(-(band.x + band.width) // step_x) * step_x + step_x, eye.x + eye.width)
    bottom = min(-(-(band.y + band.height) // step_y) * step_y + step_y, eye.y + eye.height)
    window = Region(left, top, right - left, bottom - top)
    luma, blue_difference, red_difference = _window_codes(frame, window)
    matrix, shift = rgb_from_yuv(frame.color, fmt)
    back_matrix, back_shift = yuv_from_rgb(frame.color, fmt)
    gain, offset = coefficients
    rows = _source_positions(window.y - eye.y, window.height, eye.height, gain.shape[-2])
    columns = _source_positions(window.x - eye.x, window.width, eye.width, gain.shape[-1])
    foreground = []
    for channel in range(3):
        a, b, c = (np.float32(value) for value in matrix[channel])
        rgb = luma * a + blue_difference * b + red_difference * c + np.float32(shift[channel])
        residual = rgb * read_bilinear(gain[channel], rows, columns)
        residual += read_bilinear(offset[channel], rows, columns)
        foreground.append(np.clip(rgb + residual, 0.0, 1.0))
    red, green, blue = foreground
    codes: list[FloatPlane] = [
        red * np.float32(row[0]) + green * np.float32(row[1]) + blue * np.float32(row[2]) + np.float32(bias)
        for row, bias in zip(back_matrix, back_shift, strict=True)
    ]
    matte = alpha[window.rows, window.columns]
    inside = np.zeros(matte.shape, bool)
    inside[band.y - top : band.y - top + band.height, band.x - left : band.x - left + band.width] = True
    _blend_in(planes[0][window.rows, window.columns], codes[0], _partial(matte) & inside, fmt.sample_shift)
    chroma_matte = downsample_to_chroma(matte, fmt, frame.color)
    chroma_inside = inside[::step_y, ::step_x]
    chroma_rows = slice(window.y // step_y, window.y // step_y + chroma_matte.shape[0])
    chroma_columns = slice(window.x // step_x, window.x // step_x + chroma_matte.shape[1])
    for plane, code in zip(_chroma_views(planes), codes[1:], strict=True):
        at_sites = downsample_to_chroma(code, fmt, frame.color)
        target = plane[chroma_rows, chroma_columns]
        _blend_in(target, at_sites, _partial(chroma_matte) & chroma_inside, fmt.sample_shift)


def _partial(matte: Plane) -> npt.NDArray[np.bool_]:
    partial: npt.NDArray[np.bool_] = (matte > 0) & (matte < alpha_peak(matte))
    return partial


def _blend_in(target: Plane, codes: FloatPlane, where: npt.NDArray[np.bool_], sample_shift: int) -> None:
    step = 1 << sample_shift
    peak = np.iinfo(target.dtype).max // step
    rounded = np.clip(np.rint(codes / step), 0, peak) * step
    np.copyto(target, rounded.astype(target.dtype), where=where)


def _chroma_views(planes: tuple[Plane, ...]) -> tuple[Plane, Plane]:
    if len(planes) == 2:
        return planes[1][..., 0], planes[1][..., 1]
    return planes[1], planes[2]


def _source_positions(start: int, count: int, length: int, source_length: int) -> FloatPlane:
    """Fractional low-resolution indices of ``count`` samples from ``start`` of an axis of ``length``."""
    centres = start + np.arange(count) + 0.5
    return (centres * (source_length / length) - 0.5).astype(np.float32)


def _window_codes(frame: Frame, window: Region) -> tuple[FloatPlane, FloatPlane, FloatPlane]:
    """Y, U and V codes at the luma samples of a window aligned to chroma blocks."""
    fmt = frame.format
    luma = frame.planes[0][window.rows, window.columns].astype(np.float32)
    step_x, step_y = 1 << fmt.chroma_shift_x, 1 << fmt.chroma_shift_y
    chroma_width, chroma_height = fmt.chroma_size(window.width, window.height)
    rows = slice(window.y // step_y, window.y // step_y + chroma_height)
    columns = slice(window.x // step_x, window.x // step_x + chroma_width)
    blue_difference, red_difference = (
        upsample_to_luma(
            np.ascontiguousarray(plane[rows, columns]).astype(np.float32),
            fmt,
            frame.color,
            (window.height, window.width),
        )
        for plane in _chroma_views(frame.planes)
    )
    return luma, blue_difference, red_difference
