"""A picture made to fill another one's frame: scaled, cropped, and in its format and colour."""

from __future__ import annotations

import numpy as np

from vitascope.frames import Frame, Plane, Rotation
from vitascope.gpu.kernels.color import yuv_from_rgb
from vitascope.gpu.kernels.guided import upright_to_coded
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resample import downsample_to_chroma

__all__ = ["fit_frame"]


def fit_frame(
    picture: Frame,
    *,
    like: Frame,
    regions: list[Region],
    picture_rotation_degrees: Rotation = 0,
    rotation_degrees: Rotation = 0,
) -> Frame:
    """Fill each region with the middle of a picture, as large as covers it, upright for whoever looks at the result.

    Args:
        picture: Any size, format and colour.
        like: Gives size, format, colour and moment.
        regions: Where to put it; what they leave open is black.
        picture_rotation_degrees: Clockwise turn that makes the picture upright.
        rotation_degrees: Clockwise turn that makes ``like`` upright.

    Returns:
        A frame of ``like``'s format.
    """
    rgb = np.zeros((3, like.height, like.width), np.float32)
    for region in regions:
        height, width = _turned(region.size, rotation_degrees)
        shape = _turned((height, width), picture_rotation_degrees)
        crop = _middle(picture, shape[1] / shape[0])
        upright = preprocess(
            picture, regions=[crop], size=(height, width), rotation_degrees=picture_rotation_degrees
        )[0]
        rgb[:, region.rows, region.columns] = upright_to_coded(upright, rotation_degrees)
    matrix, offset = yuv_from_rgb(like.color, like.format)
    luma, blue_difference, red_difference = (
        np.tensordot(row.astype(np.float32), rgb, axes=1) + np.float32(bias)
        for row, bias in zip(matrix, offset, strict=True)
    )
    chroma = [
        _codes(downsample_to_chroma(np.ascontiguousarray(plane), like.format, like.color), like)
        for plane in (blue_difference, red_difference)
    ]
    if like.format.semi_planar:
        return like.with_planes((_codes(luma, like), np.stack(chroma, axis=-1)))
    return like.with_planes((_codes(luma, like), *chroma))


def _turned(size: tuple[int, int], rotation_degrees: Rotation) -> tuple[int, int]:
    return (size[1], size[0]) if rotation_degrees in (90, 270) else size


def _middle(picture: Frame, aspect: float) -> Region:
    """The largest centred crop of a picture with the aspect (width over height)."""
    width = min(picture.width, max(round(picture.height * aspect), 1))
    height = min(picture.height, max(round(picture.width / aspect), 1))
    return Region((picture.width - width) // 2, (picture.height - height) // 2, width, height)


def _codes(plane: Plane, like: Frame) -> Plane:
    step = 1 << like.format.sample_shift
    return (np.clip(np.rint(plane / step), 0, 2**like.format.bit_depth - 1) * step).astype(like.format.dtype)
