"""From a frame and a network's small answer to a finished picture: alpha, decontamination and compositing in one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.frames import PIXEL_FORMATS, Frame, Plane, Rotation
from vitascope.gpu.kernels.composite import matte_frame, over_color, over_frame, tint
from vitascope.gpu.kernels.composite_paint import MatteOnly, OnColor, OnFrame, Paint, Tint
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.eyes import cut, each_eye, is_whole_blocks
from vitascope.gpu.kernels.foreground import decontaminate as take_foreground
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region

__all__ = ["MatteOnly", "OnColor", "OnFrame", "Paint", "Tint", "render", "render_alpha"]


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
    """Refine alpha against the picture and paint, each eye by itself.

    Runs where the frame is: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel that reads the
    picture once, ordered on the current CuPy stream. Results agree within one code.

    Args:
        frame: The picture.
        regions: Where each eye lies; together they cover the frame. On the GPU one or two.
        gain: [E, 4, h, w] as ``MatteEstimate`` has it (the foreground's R, G, B, then alpha), or [E, 1, h, w] with
            alpha alone; upright, on the frame's device. float32; float16 too on the GPU.
        offset: As gain.
        rotation_degrees: Clockwise turn that made the picture upright for the network.
        paint: What to paint.
        decontaminate: Take the network's foreground where alpha is partial; with ``OnColor`` and ``OnFrame``.
        planar: Make yuv420p or yuv420p10le of NV12 or P010, for encoders on the CPU. Planar frames stay planar.

    Returns:
        A picture of the same moment, in the frame's format unless ``planar``; a matte has the format's 4:2:0 kin of
        its own bit depth.

    Raises:
        ValueError: A background of another size or format; decontamination with a paint that shows no foreground or
            without its coefficients; on the GPU a frame that is not semi-planar, or coefficients that do not fit.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if decontaminate and not isinstance(paint, OnColor | OnFrame):
        raise ValueError(f"{type(paint).__name__} shows no foreground that could be decontaminated")
    if decontaminate and gain.shape[1] != 4:
        raise ValueError(f"gain is {gain.shape}, expected [eyes, 4, height, width] to decontaminate")
    if is_on_gpu(frame.planes[0]) and all(is_whole_blocks(region, frame) for region in regions):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.composite_launch import Coefficients, paint_on_gpu

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
            gain=gain[:, :3],
            offset=offset[:, :3],
            rotation_degrees=rotation_degrees,
        )
    return render_alpha(foreground, alpha, regions=regions, paint=paint, planar=planar)


def render_alpha(
    frame: Frame, alpha: Plane, *, regions: list[Region], paint: Paint, planar: bool = False
) -> Frame:
    """Paint with a finished alpha plane, each eye by itself: for mattes that were edited in between.

    Args:
        frame: The picture, or its foreground.
        alpha: uint8 or uint16 [H, W], on the frame's device; of ``alpha_dtype(frame)`` on the GPU.
        regions: As for ``render``.
        paint: What to paint.
        planar: As for ``render``.

    Returns:
        As ``render``.

    Raises:
        ValueError: As ``render``.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(frame.planes[0]):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.composite_launch import paint_on_gpu

        # A seam inside a chroma block cannot be told apart in chroma: such a frame is painted as a whole.
        apart = all(is_whole_blocks(region, frame) for region in regions)
        eyes = regions if apart else [Region(0, 0, frame.width, frame.height)]
        return paint_on_gpu(frame, eyes, alpha, paint, planar=planar)
    made = _paint(frame, alpha, regions, paint)
    if planar and made.format.semi_planar:
        return _planar(made)
    if not planar and frame.format.semi_planar and not made.format.semi_planar:
        return _semi_planar(made)
    return made


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
