"""Memory for a picture on the GPU."""

from __future__ import annotations

from typing import Any

from vitascope.frames import YuvFormat

__all__ = ["empty_planes"]


def empty_planes(fmt: YuvFormat, width: int, height: int) -> tuple[Any, ...]:
    """Dense CuPy planes one behind the other in one allocation, as encoders and single copies want them."""
    import cupy

    dtype = fmt.dtype
    chroma_width, chroma_height = fmt.chroma_size(width, height)
    luma, chroma = width * height, chroma_width * chroma_height
    memory = cupy.empty(luma + 2 * chroma, dtype).data
    # Not sliced and reshaped, which takes CuPy three times as long.
    luma_plane = cupy.ndarray((height, width), dtype, memory)
    if fmt.semi_planar:
        return luma_plane, cupy.ndarray(
            (chroma_height, chroma_width, 2), dtype, memory + luma * dtype.itemsize
        )
    return luma_plane, *(
        cupy.ndarray((chroma_height, chroma_width), dtype, memory + (luma + start) * dtype.itemsize)
        for start in (0, chroma)
    )
