"""4:2:0 frames between three planes (software decoders and encoders) and two (GPUs), and up to the GPU.

yuv420p and NV12 hold the same codes; yuv420p10le and P010 too, but P010 holds them six bits up in their words.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from vitascope.frames import PIXEL_FORMATS, Frame, YuvFormat
from vitascope.gpu.kernels.cuda_module import is_on_gpu

if TYPE_CHECKING:
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

__all__ = ["to_planar", "to_semi_planar", "upload"]

_SEMI_PLANAR = {"yuv420p": PIXEL_FORMATS["nv12"], "yuv420p10le": PIXEL_FORMATS["p010le"]}
_PLANAR = {"nv12": PIXEL_FORMATS["yuv420p"], "p010le": PIXEL_FORMATS["yuv420p10le"]}


def to_semi_planar(frame: Frame) -> Frame:
    """The same codes as NV12 or P010, where the frame is; the frame itself when it is one already.

    Args:
        frame: yuv420p, yuv420p10le, nv12 or p010le, in NumPy planes or in CuPy planes (then one or two kernels on the
            current stream).

    Returns:
        A frame whose 8-bit luma plane is the very plane of ``frame``.

    Raises:
        ValueError: The frame has another format.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if frame.format.name in _PLANAR:
        return frame
    target = _other_layout(frame.format, _SEMI_PLANAR)
    if is_on_gpu(frame.planes[0]):
        from vitascope.gpu.kernels.semi_planar_cuda import launch_interleave

        made: Frame = launch_interleave(frame, target)
        return made
    luma, *chroma = frame.planes
    pairs: Any = cv2.merge(chroma).reshape(*chroma[0].shape, 2)
    if target.sample_shift:
        luma = np.left_shift(luma, target.sample_shift)
        np.left_shift(pairs, target.sample_shift, out=pairs)
    return frame.with_planes((luma, pairs), format=target)


def to_planar(frame: Frame) -> Frame:
    """The same codes as yuv420p or yuv420p10le, where the frame is; the frame itself when it is one already.

    Args:
        frame: nv12, p010le, yuv420p or yuv420p10le, in NumPy planes or in CuPy planes (then one or two kernels on the
            current stream). P010's six low bits are dropped.

    Returns:
        A frame whose 8-bit luma plane is the very plane of ``frame``.

    Raises:
        ValueError: The frame has another format.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if frame.format.name in _SEMI_PLANAR:
        return frame
    target = _other_layout(frame.format, _PLANAR)
    if is_on_gpu(frame.planes[0]):
        from vitascope.gpu.kernels.semi_planar_cuda import launch_deinterleave

        made: Frame = launch_deinterleave(frame, target)
        return made
    luma, pairs = frame.planes
    shift = frame.format.sample_shift
    chroma: list[Any] = [part.reshape(pairs.shape[:2]) for part in cv2.split(pairs)]
    if shift:
        luma = np.right_shift(luma, shift)
        for part in chroma:
            np.right_shift(part, shift, out=part)
    return frame.with_planes((luma, *chroma), format=target)


def upload(frame: Frame, *, stream: Any = None, pool: PinnedMemoryPool | None = None) -> Frame:
    """A frame on its way to the GPU, as NV12 or P010: through page-locked memory, in one copy, without a host wait.

    The host copies the planes into a buffer of the pool and goes on (it waits only when three frames of the calling
    thread are still being read); U and V are interleaved on the GPU.

    Args:
        frame: nv12, p010le, yuv420p or yuv420p10le in NumPy planes; it may be dropped at once.
        stream: The ``cupy.cuda.Stream`` that copies; the current one when None.
        pool: Lends the buffer; the applications' shared one when None.

    Returns:
        The frame in CuPy planes whose rows begin on 64 bytes. Its ``ready`` is the event behind the copy. The memory
        belongs to the stream's pool: hold the frame until other streams have finished reading it.

    Raises:
        ValueError: The frame has another format, or is on the GPU.
        MissingDependencyError: CuPy is not installed.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(frame.planes[0]):
        raise ValueError(f"{frame!r} is on the GPU already")
    if frame.format.name not in _PLANAR:
        _other_layout(frame.format, _SEMI_PLANAR)
    from vitascope.gpu.kernels.semi_planar_cuda import upload_planes

    planes, ready = upload_planes(frame, stream, pool)
    return replace(
        frame, planes=planes, format=_SEMI_PLANAR.get(frame.format.name, frame.format), ready=ready
    )


def _other_layout(fmt: YuvFormat, layouts: dict[str, YuvFormat]) -> YuvFormat:
    if fmt.name not in layouts:
        known = ", ".join(sorted((*_PLANAR, *_SEMI_PLANAR)))
        raise ValueError(f"{fmt.name} has no such twin; expected one of {known}")
    return layouts[fmt.name]
