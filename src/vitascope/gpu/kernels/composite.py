"""Composite a person over a background in YUV planes: ``out = person * alpha + background * (1 - alpha)``.

The YUV matrix is linear, so blending code values is blending gamma-encoded RGB, like players, keyers and
RobustVideoMatting's own scripts. Chroma is weighted with alpha at the chroma site (``downsample_to_chroma``).
Codes are unchanged where alpha is full; elsewhere the result is within one code of exact arithmetic, because
the two products are rounded before they are added.

``render`` does everything from a network's coefficients: alpha, decontamination and compositing, on a GPU in
one pass.

Every function runs on its planes' device: NumPy on the CPU; CuPy (NV12 or P010, alpha of ``alpha_dtype``) in
one launch of ``composite.cu``, on the current CuPy stream. Results agree within one code. On the GPU,
functions raise ValueError for unsuitable planes, and KernelCompileError if the CUDA source cannot be built.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import PIXEL_FORMATS, Frame, Plane, Rotation
from vitascope.gpu.kernels.blur import blur_without
from vitascope.gpu.kernels.color import Codes, Rgb, alpha_peak, color_codes, matte_color, matte_levels
from vitascope.gpu.kernels.composite_launch import (
    Coefficients,
    MatteOnly,
    OnColor,
    OnFrame,
    Paint,
    Tint,
    chroma_weights_on_gpu,
    paint_on_gpu,
)
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.foreground import decontaminate as take_foreground
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.morphology import dilate_box
from vitascope.gpu.kernels.region import Region, cut, each_eye, is_whole_blocks, whole_frame
from vitascope.gpu.kernels.resample import downsample_to_chroma


def render(
    frame: Frame,
    *,
    regions: list[Region],
    gain: npt.NDArray[Any],
    offset: npt.NDArray[Any],
    rotation_degrees: Rotation = 0,
    paint: Paint,
    decontaminate: bool = False,
    planar: bool = False,
) -> Frame:
    """Refine alpha at full resolution and paint, each eye on its own.

    Runs on the frame's device: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel that
    reads the frame once, on the current CuPy stream. Results agree within one code.

    Args:
        frame: The frame.
        regions: Region of each eye; together they cover the frame. On the GPU one or two.
        gain: [E, 1, h, w], alpha's gain of ``MatteEstimate``, or [E, 4, h, w] preceded by the person's R, G,
            B, from ``local_colors``; upright, on the frame's device. float32; on the GPU also float16.
        offset: Like ``gain``, with the scene's colour.
        rotation_degrees: Clockwise rotation that made the picture upright for the network.
        paint: What to paint.
        decontaminate: Use the person's own colour where alpha is partial; with ``OnColor`` and ``OnFrame``.
        planar: Convert NV12 or P010 to yuv420p or yuv420p10le, for encoders on the CPU. Planar frames stay
            planar.

    Returns:
        A frame with the same time, in the frame's format unless ``planar``; a matte has the 4:2:0 format of
        its own bit depth.

    Raises:
        ValueError: The background has another size or format; ``decontaminate`` is used without colours or
            with a paint that shows no foreground; on the GPU, the frame is not semi-planar, or the
            coefficients do not match.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if decontaminate and not isinstance(paint, OnColor | OnFrame):
        raise ValueError(f"{type(paint).__name__} shows no foreground that could be decontaminated")
    if decontaminate and gain.shape[1] != 4:
        raise ValueError(f"gain is {gain.shape}, expected [eyes, 4, height, width] to decontaminate")
    if is_on_gpu(frame.planes[0]) and all(is_whole_blocks(region, frame) for region in regions):
        coefficients = Coefficients(gain, offset, rotation_degrees)
        return paint_on_gpu(frame, regions, coefficients, paint, decontaminates=decontaminate, planar=planar)
    alpha = refine_alpha(
        frame, regions=regions, gain=gain[:, -1], offset=offset[:, -1], rotation_degrees=rotation_degrees
    )
    foreground = frame
    if decontaminate:
        foreground = take_foreground(
            frame,
            alpha,
            regions=regions,
            person=gain[:, :3],
            scene=offset[:, :3],
            rotation_degrees=rotation_degrees,
        )
    return render_alpha(foreground, alpha, regions=regions, paint=paint, planar=planar)


def render_alpha(
    frame: Frame, alpha: Plane, *, regions: list[Region], paint: Paint, planar: bool = False
) -> Frame:
    """Paint with a finished alpha plane, such as an edited matte, each eye on its own.

    Args:
        frame: The frame, or its foreground.
        alpha: uint8 or uint16 [H, W], on the frame's device; of ``alpha_dtype(frame)`` on the GPU.
        regions: See ``render``.
        paint: What to paint.
        planar: See ``render``.

    Returns:
        Like ``render``.

    Raises:
        ValueError: Like ``render``.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(frame.planes[0]):
        # A seam inside a chroma block does not show in chroma, so such a frame is painted as a whole.
        apart = all(is_whole_blocks(region, frame) for region in regions)
        eyes = regions if apart else [whole_frame(frame)]
        return paint_on_gpu(frame, eyes, alpha, paint, planar=planar)
    made = _paint(frame, alpha, regions, paint)
    if planar and made.format.semi_planar:
        return _planar(made)
    if not planar and frame.format.semi_planar and not made.format.semi_planar:
        return _semi_planar(made)
    return made


def over_color(frame: Frame, alpha: Plane, rgb: Rgb) -> Frame:
    """Composite the person over one colour.

    Args:
        frame: The picture.
        alpha: uint8 or uint16 [H, W], full scale 255 or 65535.
        rgb: Background in 0..255, gamma-encoded.

    Returns:
        A frame of the same format and time.
    """
    if is_on_gpu(frame.planes[0]):
        return paint_on_gpu(frame, [whole_frame(frame)], alpha, OnColor(rgb))
    codes = color_codes(rgb, frame.color, frame.format)
    slots = _slots(frame)
    out = []
    for plane, slot in zip(frame.planes, slots, strict=True):
        filled = np.empty(plane.shape, plane.dtype)
        filled[...] = codes[slot] if plane.ndim == 3 else codes[slot][0]
        out.append(filled)
    window = _occupied(frame, alpha)
    if window is not None:
        person = cut(frame, window)
        weights = _weights(person, np.ascontiguousarray(alpha[window.rows, window.columns]))
        for target, plane, weight, slot in zip(
            cut(frame.with_planes(tuple(out)), window).planes, person.planes, weights, slots, strict=True
        ):
            target[...] = _over_constant(plane, weight, codes[slot], frame.format.sample_shift)
    return frame.with_planes(tuple(out))


def over_frame(frame: Frame, alpha: Plane, background: Frame) -> Frame:
    """Composite the person over another frame of the same size, format and colour.

    Raises:
        ValueError: The background has another size or format.
    """
    if background.format != frame.format or background.planes[0].shape != frame.planes[0].shape:
        raise ValueError(f"background is {background!r}, expected the size and format of {frame!r}")
    if is_on_gpu(frame.planes[0]):
        return paint_on_gpu(frame, [whole_frame(frame)], alpha, OnFrame(background))
    weights = _weights(frame, alpha)
    return frame.with_planes(
        tuple(
            _over_plane(plane, weight, behind, frame.format.sample_shift)
            for plane, weight, behind in zip(frame.planes, weights, background.planes, strict=True)
        )
    )


def tint(frame: Frame, alpha: Plane, rgb: Rgb, *, opacity: float) -> Frame:
    """Tint the person in the picture, to judge a matte by eye.

    Args:
        frame: The picture.
        alpha: uint8 or uint16 [H, W].
        rgb: Tint in 0..255.
        opacity: 0 leaves the picture unchanged, 1 covers the person.
    """
    if is_on_gpu(frame.planes[0]):
        return paint_on_gpu(frame, [whole_frame(frame)], alpha, Tint(rgb, opacity))
    peak = alpha_peak(alpha)
    depth = cv2.CV_8U if peak == 255 else cv2.CV_16U
    keep = cv2.addWeighted(alpha, -opacity, alpha, 0.0, float(peak), dtype=depth)
    return over_color(frame, keep, rgb)


def clear_transparent(frame: Frame, alpha: Plane, *, margin_px: int = 16) -> Frame:
    """Paint black away from people, so that the background is not kept under a transparent alpha plane.

    A margin keeps its colour, so that later scaling or softening shows no black fringe.

    Args:
        frame: The picture.
        alpha: uint8 or uint16 [H, W].
        margin_px: Width of the margin around people, in luma samples.
    """
    seen = (alpha > 0).astype(alpha.dtype) * alpha.dtype.type(alpha_peak(alpha))
    return over_color(frame, dilate_box(seen, margin_px), (0, 0, 0))


def blur_background(frame: Frame, alpha: Plane, *, sigma: float) -> Frame:
    """Composite the sharp person over the blurred picture.

    The blur gives the person no weight, so that no halo of its colour surrounds it.

    Args:
        frame: The picture, one eye.
        alpha: uint8 or uint16 [H, W].
        sigma: Standard deviation of the Gaussian, in luma samples.
    """
    behind = []
    for plane, weight in zip(frame.planes, _weights(frame, alpha), strict=True):
        scale_x, scale_y = plane.shape[1] / frame.width, plane.shape[0] / frame.height
        behind.append(blur_without(plane, weight, sigma * scale_x, sigma * scale_y))
    return over_frame(frame, alpha, frame.with_planes(tuple(behind)))


def matte_frame(frame: Frame, alpha: Plane, *, full_range: bool, bit_depth: int | None = None) -> Frame:
    """Make a grey frame from alpha: black is background, white is person.

    Args:
        frame: Source of time and primaries.
        alpha: uint8 or uint16 [H, W].
        full_range: True writes codes 0..peak (lossless files), False 16..235 and their 10-bit equals (players).
        bit_depth: 8 or 10; None for the frame's own.

    Returns:
        A yuv420p or yuv420p10le frame with neutral chroma.
    """
    depth = bit_depth or min(frame.format.bit_depth, 10)
    if is_on_gpu(alpha):
        return paint_on_gpu(frame, [whole_frame(frame)], alpha, MatteOnly(full_range, depth), planar=True)
    fmt = PIXEL_FORMATS["yuv420p" if depth == 8 else "yuv420p10le"]
    color = matte_color(frame.color, full_range=full_range)
    black, white, neutral = matte_levels(frame.color, full_range=full_range, bit_depth=depth)
    luma = cv2.addWeighted(
        alpha,
        (white - black) / alpha_peak(alpha),
        alpha,
        0.0,
        float(black),
        dtype=cv2.CV_8U if depth == 8 else cv2.CV_16U,
    )
    chroma_width, chroma_height = fmt.chroma_size(frame.width, frame.height)
    chroma = np.full((chroma_height, chroma_width), neutral, fmt.dtype)
    return frame.with_planes((luma, chroma, chroma), format=fmt, color=color)


def _paint(frame: Frame, alpha: Plane, regions: list[Region], paint: Paint) -> Frame:
    match paint:
        case OnColor(rgb):
            return each_eye(frame, alpha, regions, lambda eye, own, _: over_color(eye, own, rgb))
        case OnFrame():
            return _over_background(frame, alpha, regions, paint.background)
        case Tint(rgb, opacity):
            return each_eye(frame, alpha, regions, lambda eye, own, _: tint(eye, own, rgb, opacity=opacity))
        case MatteOnly(full_range, bit_depth):
            return matte_frame(frame, alpha, full_range=full_range, bit_depth=bit_depth)


def _over_background(frame: Frame, alpha: Plane, regions: list[Region], behind: Frame) -> Frame:
    if behind.format != frame.format or behind.planes[0].shape != frame.planes[0].shape:
        raise ValueError(f"background is {behind!r}, expected the size and format of {frame!r}")
    return each_eye(
        frame,
        alpha,
        regions,
        lambda eye, own, region: over_frame(
            eye, own, behind if eye.planes[0].shape == behind.planes[0].shape else cut(behind, region)
        ),
    )


def _planar(frame: Frame) -> Frame:
    fmt = PIXEL_FORMATS["yuv420p" if frame.format.bit_depth == 8 else "yuv420p10le"]
    luma, pair = (plane >> frame.format.sample_shift for plane in frame.planes)
    blue, red = (np.ascontiguousarray(pair[..., channel]) for channel in (0, 1))
    return frame.with_planes((luma, blue, red), format=fmt)


def _semi_planar(frame: Frame) -> Frame:
    fmt = PIXEL_FORMATS["nv12" if frame.format.bit_depth == 8 else "p010le"]
    luma, blue, red = (plane << fmt.sample_shift for plane in frame.planes)
    return frame.with_planes((luma, np.stack([blue, red], axis=-1)), format=fmt)


def _occupied(frame: Frame, alpha: Plane) -> Region | None:
    """The smallest rectangle of whole chroma blocks that contains all alpha; None if the matte is empty.

    People fill a small part of most frames, and the rest needs no arithmetic.
    """
    x, y, width, height = cv2.boundingRect(alpha if alpha.dtype == np.uint8 else (alpha > 0).astype(np.uint8))
    if width == 0:
        return None
    step_x, step_y = 1 << frame.format.chroma_shift_x, 1 << frame.format.chroma_shift_y
    # A cosited chroma sample also reads the luma samples before and after its block: add one block.
    left, top = max(x // step_x * step_x - step_x, 0), max(y // step_y * step_y - step_y, 0)
    right = min(-(-(x + width) // step_x) * step_x + step_x, frame.width)
    bottom = min(-(-(y + height) // step_y) * step_y + step_y, frame.height)
    return Region(left, top, right - left, bottom - top)


def _slots(frame: Frame) -> tuple[slice, ...]:
    """The components (of Y, U, V) stored in each plane."""
    return (slice(0, 1), slice(1, 3)) if frame.format.semi_planar else (slice(0, 1), slice(1, 2), slice(2, 3))


def _weights(frame: Frame, alpha: Plane) -> tuple[Plane, ...]:
    """Alpha at the samples of each plane; for an interleaved plane once for U and once for V.

    A chroma site whose whole block is opaque is kept unchanged, although a cosited site also reads its neighbour:
    opaque samples must keep their colour. In a block that is partly opaque, one chroma sample serves all, and is
    blended. On the GPU one plane serves both channels.
    """
    if is_on_gpu(alpha):
        return alpha, chroma_weights_on_gpu(frame, alpha)
    chroma = downsample_to_chroma(alpha, frame.format, frame.color)
    if chroma is not alpha:
        block = np.ones((1 << frame.format.chroma_shift_y, 1 << frame.format.chroma_shift_x), np.uint8)
        least = cv2.erode(alpha, block, anchor=(0, 0), borderType=cv2.BORDER_REPLICATE)
        chroma = cv2.max(chroma, np.ascontiguousarray(least[:: block.shape[0], :: block.shape[1]]))
    if frame.format.semi_planar:
        return alpha, cv2.merge([chroma, chroma])
    return alpha, chroma, chroma


def _depth(plane: Plane) -> int:
    return int(cv2.CV_8U if plane.dtype == np.uint8 else cv2.CV_16U)


def _scaled(plane: Plane, weight: Plane) -> Plane:
    """``plane * weight``, with the weight's full scale as 1, rounded to the plane's dtype."""
    if plane.dtype == weight.dtype:
        return cv2.multiply(plane, weight, scale=1.0 / alpha_peak(weight))
    return cv2.multiply(plane, weight, scale=1.0 / alpha_peak(weight), dtype=_depth(plane))


def _over_constant(plane: Plane, weight: Plane, codes: Codes, sample_shift: int) -> Plane:
    behind = np.empty_like(weight, dtype=plane.dtype)
    channels = behind[..., None] if behind.ndim == 2 else behind
    weights = weight[..., None] if weight.ndim == 2 else weight
    for channel, code in enumerate(codes):
        channels[..., channel] = _constant_behind(weights[..., channel], code, plane.dtype)
    return _whole_codes(cv2.add(_scaled(plane, weight), behind), sample_shift)


def _constant_behind(weight: Plane, code: int, dtype: np.dtype[np.uint8] | np.dtype[np.uint16]) -> Plane:
    """``code * (1 - weight)``, rounded."""
    if weight.dtype == np.uint8:
        return cv2.LUT(weight, _behind_table(code, dtype))
    remaining: npt.NDArray[np.float32] = weight.astype(np.float32) * np.float32(-code / 65535.0) + np.float32(
        code
    )
    return np.rint(remaining).astype(dtype)


@cache
def _behind_table(code: int, dtype: np.dtype[np.uint8] | np.dtype[np.uint16]) -> Plane:
    return np.rint(code * (1.0 - np.arange(256) / 255.0)).astype(dtype)


def _over_plane(plane: Plane, weight: Plane, behind: Plane, sample_shift: int) -> Plane:
    remaining = cv2.bitwise_not(weight)  # full scale minus weight
    return _whole_codes(cv2.add(_scaled(plane, weight), _scaled(behind, remaining)), sample_shift)


def _whole_codes(plane: Plane, sample_shift: int) -> Plane:
    """Round to codes. The low bits of a shifted word (P010) stay 0, as readers expect."""
    if sample_shift == 0:
        return plane
    rounded: Plane = (
        np.asarray(cv2.add(plane, np.full_like(plane, 1 << sample_shift - 1)), plane.dtype)
        >> sample_shift
        << sample_shift
    )
    return rounded
