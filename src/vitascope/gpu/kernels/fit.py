"""Fits a picture to a frame: scales, crops and converts it to the frame's format and colour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import cv2
import numpy as np

from vitascope.frames import ColorSpec, Frame, Plane, Rotation, YuvFormat
from vitascope.gpu.kernels.color import yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import is_on_gpu, wait_until_ready
from vitascope.gpu.kernels.look_alike import look_alike
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region, chroma_region, cut, is_whole_blocks
from vitascope.gpu.kernels.resample import resample_window
from vitascope.gpu.kernels.rgb import planes_from_rgb, rgb_to_nv12
from vitascope.gpu.kernels.semi_planar import to_semi_planar, upload

Window = tuple[float, float, float, float]
"""(left, top, right, bottom) in a plane's own sample-edge coordinates."""


def fit_frame(
    picture: Frame,
    *,
    like: Frame,
    regions: Sequence[Region],
    picture_rotation_degrees: Rotation = 0,
    rotation_degrees: Rotation = 0,
) -> Frame:
    """Fill each region with the centre of a picture, scaled to cover it, and upright when displayed.

    If the colours are of the same kind and nothing is rotated, the planes are resized directly. Otherwise the
    conversion goes through RGB, and makes HDR, SDR and wide gamuts look alike. If ``like`` is on the GPU, a 4:2:0
    picture is uploaded and fitted there; any other is fitted on the CPU first. All work is ordered on the current
    CuPy stream.

    Args:
        picture: Any size, format and colour, on the CPU; or NV12 or P010 on the GPU, if ``like`` is there, too.
        like: Sets size, format, colour, time and device.
        regions: Areas to fill; the rest is black.
        picture_rotation_degrees: Clockwise rotation that makes the picture upright.
        rotation_degrees: Clockwise rotation that makes ``like`` upright.

    Returns:
        A frame in ``like``'s format, on its device. CPU and GPU agree within 2 codes of 8 bits on pictures without
        noise.

    Raises:
        ValueError: The picture is on the GPU but ``like`` is not, or ``like`` on the GPU is not semi-planar.
    """
    placed = [
        (region, _crop(picture, region, picture_rotation_degrees, rotation_degrees)) for region in regions
    ]
    turns = (picture_rotation_degrees, rotation_degrees)
    if not is_on_gpu(like.planes[0]):
        if is_on_gpu(picture.planes[0]):
            raise ValueError(f"{picture!r} is on the GPU, where {like!r} is not")
        return replace(like, planes=_fit_on_cpu(picture, like, placed, turns), ready=None)
    if not like.format.semi_planar:
        raise ValueError(f"a frame on the GPU is NV12 or P010, not {like.format.name}")
    is_whole_420 = (
        picture.format.bit_depth <= 10 and picture.format.chroma_shift_x and picture.format.chroma_shift_y
    )
    if not is_whole_420:
        made = replace(like, planes=_fit_on_cpu(picture, like, placed, turns), ready=None)
        return upload(made)
    return _fit_on_gpu(picture, like, placed, turns)


def _crop(picture: Frame, region: Region, picture_rotation: Rotation, rotation: Rotation) -> Region:
    """The largest centred crop of a picture with the region's aspect ratio, both upright."""
    shape = _turned(_turned(region.size, rotation), picture_rotation)
    aspect = shape[1] / shape[0]
    width = min(picture.width, max(round(picture.height * aspect), 1))
    height = min(picture.height, max(round(picture.width / aspect), 1))
    return Region((picture.width - width) // 2, (picture.height - height) // 2, width, height)


def _turned(size: tuple[int, int], rotation_degrees: Rotation) -> tuple[int, int]:
    return (size[1], size[0]) if rotation_degrees in (90, 270) else size


def _fit_on_cpu(
    picture: Frame, like: Frame, placed: list[tuple[Region, Region]], turns: tuple[Rotation, Rotation]
) -> tuple[Plane, ...]:
    has_same_codes = (picture.color.matrix, picture.color.full_range) == (
        like.color.matrix,
        like.color.full_range,
    )
    if has_same_codes and turns == (0, 0) and look_alike(picture.color, like.color) is None:
        return _fit_codes(picture, like, placed)
    return _by_way_of_rgb(
        np, picture, like, placed, turns, lambda rgb: planes_from_rgb(rgb, fmt=like.format, color=like.color)
    )


def _fit_on_gpu(
    picture: Frame, like: Frame, placed: list[tuple[Region, Region]], turns: tuple[Rotation, Rotation]
) -> Frame:
    import cupy

    lifted = to_semi_planar(picture) if is_on_gpu(picture.planes[0]) else upload(picture)
    wait_until_ready(lifted)
    name: Literal["nv12", "p010le"] = "nv12" if like.format.bit_depth == 8 else "p010le"
    planes = _by_way_of_rgb(
        cupy,
        lifted,
        like,
        placed,
        turns,
        lambda rgb: rgb_to_nv12(rgb, color=like.color, like=like, format=name, layout="NCHW").planes,
    )
    return replace(like, planes=planes, ready=None)


def _by_way_of_rgb(
    arrays: Any,
    picture: Frame,
    like: Frame,
    placed: list[tuple[Region, Region]],
    turns: tuple[Rotation, Rotation],
    planes_of: Callable[[Any], tuple[Plane, ...]],
) -> tuple[Plane, ...]:
    """Convert each eye separately; if a chroma block belongs to two eyes, convert both at once.

    Args:
        arrays: The module ``numpy`` or ``cupy``, for the picture's device.
        picture: The picture to fit.
        like: Sets size and format.
        placed: Regions with the crops that fill them.
        turns: Clockwise rotations that make picture and ``like`` upright.
        planes_of: Converts float32 RGB [3, H, W] to planes.
    """
    if all(is_whole_blocks(region, like) for region, _ in placed):
        planes = tuple(
            arrays.empty(plane.shape, plane.dtype) if _covers(placed, like) else _black(arrays, like, slot)
            for slot, plane in enumerate(like.planes)
        )
        whole = replace(like, planes=planes)
        for region, crop in placed:
            made = planes_of(arrays.ascontiguousarray(_upright_crop(picture, like, region, crop, turns)))
            for target, source in zip(cut(whole, region).planes, made, strict=True):
                target[...] = source
        return planes
    rgb = arrays.zeros((3, like.height, like.width), arrays.float32)
    for region, crop in placed:
        rgb[:, region.rows, region.columns] = _upright_crop(picture, like, region, crop, turns)
    return planes_of(rgb)


def _upright_crop(
    picture: Frame, like: Frame, region: Region, crop: Region, turns: tuple[Rotation, Rotation]
) -> Any:
    """RGB [3, h, w] for a region in its coded orientation, in ``like``'s colour."""
    picture_rotation, rotation = turns
    upright = preprocess(
        picture, regions=[crop], size=_turned(region.size, rotation), rotation_degrees=picture_rotation
    )[0]
    convert = look_alike(picture.color, like.color)
    if convert is not None:
        upright = convert(upright)
    # np.rot90 rotates counter-clockwise for positive k, for CuPy arrays, too.
    return np.rot90(upright, k=rotation // 90, axes=(-2, -1))


def _covers(placed: list[tuple[Region, Region]], like: Frame) -> bool:
    return sum(region.width * region.height for region, _ in placed) == like.width * like.height


def _black(arrays: Any, like: Frame, slot: int) -> Plane:
    """A black plane."""
    code = round(yuv_from_rgb(like.color, like.format)[1][min(slot, 1)])
    plane: Plane = arrays.full(like.planes[slot].shape, code, like.format.dtype)
    return plane


def _fit_codes(picture: Frame, like: Frame, placed: list[tuple[Region, Region]]) -> tuple[Plane, ...]:
    """Resize the picture's planes directly: their codes mean the same, apart from the depth."""
    target = like.format
    planes = tuple(_black(np, like, slot) for slot in range(len(like.planes)))
    luma, *chroma = planes
    if target.semi_planar:
        chroma = [chroma[0][..., 0], chroma[0][..., 1]]
    source_chroma = (
        [picture.planes[1][..., 0], picture.planes[1][..., 1]]
        if picture.format.semi_planar
        else picture.planes[1:]
    )
    for region, crop in placed:
        window = (float(crop.x), float(crop.y), float(crop.x + crop.width), float(crop.y + crop.height))
        recode = _Recoding(picture, like, 0)
        luma[region.rows, region.columns] = recode(
            _resized(picture.planes[0], window, region.size, crop, recode)
        )
        share, own = chroma_region(region, target), chroma_region(crop, picture.format)
        window = _chroma_window(picture, crop, like, region)
        recode = _Recoding(picture, like, 1)
        for plane, made in zip(source_chroma, chroma, strict=True):
            made[share.rows, share.columns] = recode(_resized(plane, window, share.size, own, recode))
    return planes


class _Recoding:
    """Converts codes between formats with the same matrix and range: an affine function of the word.

    Args:
        picture: Sets the source's format and range.
        like: Sets the target's format and range.
        slot: 0 for luma, 1 for chroma.
    """

    def __init__(self, picture: Frame, like: Frame, slot: int) -> None:
        (source, source_offset), (target, target_offset) = (
            yuv_from_rgb(frame.color, frame.format) for frame in (picture, like)
        )
        column = 0 if slot == 0 else 2  # blue's U is never 0
        self._scale = float(target[slot, column] / source[slot, column])
        self._offset = float(target_offset[slot] - self._scale * source_offset[slot])
        self._format = like.format
        is_same_word = (picture.format.dtype, picture.format.sample_shift) == (like.format.dtype, 0)
        # P010's low bits must be cleared again after averaging.
        self.is_identity = self._scale == 1.0 and self._offset == 0.0 and is_same_word

    def __call__(self, plane: Plane) -> Plane:
        """Convert to the target format's words."""
        if self.is_identity and plane.dtype == self._format.dtype:
            return plane
        step = 1 << self._format.sample_shift
        codes = plane.astype(np.float32) * np.float32(self._scale / step) + np.float32(self._offset / step)
        whole: Plane = np.clip(np.rint(codes, out=codes), 0, 2**self._format.bit_depth - 1).astype(
            self._format.dtype
        )
        return whole << self._format.sample_shift if self._format.sample_shift else whole


def _resized(plane: Plane, window: Window, size: tuple[int, int], own: Region, recode: _Recoding) -> Any:
    """Resize a window; keeps the plane's dtype if the result has the same and the window consists of whole samples."""
    samples: Window = (own.x, own.y, own.x + own.width, own.y + own.height)
    if recode.is_identity and window == samples:
        patch: Any = plane[own.rows, own.columns]
        # OpenCV's area filter only averages if both axes shrink; shrink first, then enlarge.
        smaller = (min(own.width, size[1]), min(own.height, size[0]))
        if smaller != (own.width, own.height):
            patch = cv2.resize(patch, smaller, interpolation=cv2.INTER_AREA)
        if smaller != (size[1], size[0]):
            patch = cv2.resize(patch, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
        return patch
    return resample_window(plane, window, size, within=own)


def _chroma_window(picture: Frame, crop: Region, like: Frame, region: Region) -> Window:
    """The window that a region's chroma averages, in chroma samples of the picture; each site covers its luma."""
    share = chroma_region(region, like.format)
    edges: list[float] = []
    for axis, (first, count) in enumerate(((share.x, share.width), (share.y, share.height))):
        step, site = _site(like.format, like.color, axis)
        source_step, source_site = _site(picture.format, picture.color, axis)
        if axis == 0:
            scale, origin, source_origin = crop.width / region.width, region.x, crop.x
        else:
            scale, origin, source_origin = crop.height / region.height, region.y, crop.y
        width = scale * step / source_step
        centre = (source_origin + (first * step + site - origin) * scale - source_site) / source_step + 0.5
        edges += [centre - width / 2, centre - width / 2 + count * width]
    left, right, top, bottom = edges
    return left, top, right, bottom


def _site(fmt: YuvFormat, color: ColorSpec, axis: int) -> tuple[int, float]:
    """Distance of sites along x (0) or y (1), and the first one's distance from the picture's edge, in luma samples."""
    shift = (fmt.chroma_shift_x, fmt.chroma_shift_y)[axis]
    is_cosited = color.chroma_location in (("left", "topleft"), ("topleft",))[axis]
    step = 1 << shift
    return step, 0.5 if shift and is_cosited else step / 2
