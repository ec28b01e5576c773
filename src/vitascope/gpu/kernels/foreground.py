"""Recovers the person's own colour along the edge, where the camera mixed it with the background.

Blur fusion (Forte, "Approximate Fast Foreground Colour Estimation", ICIP 2021): near each sample, the colours of
person and scene are averages of the picture over a wide area, weighted with alpha and its complement. The person's
colour is then averaged from that first estimate over a narrow area. (The paper also averages the scene's colour
again, which changes nothing, because it is already smooth.) The remainder that the two colours do not explain is
added to the person in proportion to alpha::

    foreground = person + alpha * (picture - alpha * person - (1 - alpha) * scene)

Both averages are smooth, so they are computed in small pictures (``local_colors``) and interpolated. Only the last
line reads the full picture, and only where alpha is partial (``decontaminate``): all other samples keep their decoded
codes. It is computed in Y, U and V, which are affine in R, G and B, like the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation, YuvFormat
from vitascope.gpu.kernels.color import alpha_peak, yuv_from_rgb
from vitascope.gpu.kernels.composite_launch import Coefficients, foreground_on_gpu
from vitascope.gpu.kernels.cuda_module import array_module, cuda_kernel, is_on_gpu, nvtx_range
from vitascope.gpu.kernels.guided import upright_to_coded
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resample import downsample_to_chroma
from vitascope.gpu.kernels.resize_normalize import resized

FloatPlane = npt.NDArray[Any]
"""float32; OpenCV's stubs do not declare the dtype."""

# Same as in foreground.cu. In samples of a network's picture, with a longest side of 256 to 1024: wide is about a
# tenth of the picture, narrow about a hundredth; the paper's 90 and 6 are for pictures of 1000 and more.
_CELL = 8
"""Side of a cell, over which wide averages are gathered, in samples."""
_WIDE_CELLS = 5
_NARROW = 4
_LEAST_SHARE = 1e-3
"""Minimum share of the wider average in a window; far from people, only that average counts."""
_NOTHING = 1e-4
"""Weight of a window below which it consists of rounding errors."""
_MOST_SIDE = 1024
"""Longest side of the pictures in which averages are computed; in larger ones they would cover too small an area."""


def colors_size(size: tuple[int, int]) -> tuple[int, int]:
    """The size (height, width) of the pictures in which colours are estimated, for coefficients of a given size."""
    shrink = min(_MOST_SIDE / max(size), 1.0)
    height, width = (max(round(side * shrink), 1) for side in size)
    return height, width


def local_colors(
    rgb: npt.NDArray[Any],
    gain: npt.NDArray[Any],
    offset: npt.NDArray[Any],
    *,
    out: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The colours of person and scene near each sample of a small picture, added to alpha's coefficients.

    Runs on the arrays' device: NumPy on the CPU; CuPy in three small kernels on the GPU, on the current stream.
    Results agree to 1e-3.

    Args:
        rgb: float16 or float32 [E, 3, ...], 0..1: the picture at ``colors_size`` of the coefficients' size.
        gain: float16 or float32 [E, 1, h, w], alpha's gain as in ``MatteEstimate``.
        offset: Likewise, alpha's offset.
        out: float32 [2, E, 4, h, w]: output memory on the CPU.

    Returns:
        ``gain`` and ``offset`` with their dtype, [E, 4, h, w], as for ``render``: the person's R, G and B before
        alpha's gain, the scene's R, G and B before its offset. In a window with only person or only background, both
        colours are the picture's own.

    Raises:
        ValueError: Shapes do not match.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    eyes, channels, height, width = rgb.shape
    size = gain.shape[-2:]
    if (
        channels != 3
        or gain.shape != (eyes, 1, *size)
        or offset.shape != gain.shape
        or colors_size(size) != (height, width)
    ):
        raise ValueError(
            f"rgb is {rgb.shape}, gain {gain.shape}, offset {offset.shape}: expected [E, 1, h, w] of both, "
            f"and rgb of [E, 3, {', '.join(map(str, colors_size(size)))}]"
        )
    if size != (height, width):
        arrays = array_module(on_gpu=is_on_gpu(rgb))
        small = local_colors(rgb, *(resized(plane, (height, width)) for plane in (gain, offset)))
        both = arrays.empty((2, eyes, 4, *size), "float32") if out is None else out
        for target, colors, own in zip(both, small, (gain, offset), strict=True):
            target[:, :3] = resized(colors[:, :3], size)
            target[:, 3:] = own
        return both[0].astype(gain.dtype, copy=False), both[1].astype(gain.dtype, copy=False)
    if is_on_gpu(rgb):
        return _launch_local_colors(rgb, gain, offset)
    made = np.empty((2, eyes, 4, height, width), np.float32) if out is None else out
    for eye, picture in enumerate(rgb.astype(np.float32, copy=False)):
        grey = (picture[0] + picture[1] + picture[2]) * np.float32(1 / 3)
        alpha = gain[eye, 0] * grey + offset[eye, 0]
        np.clip(alpha, 0, 1, out=alpha)
        made[:, eye, :3] = picture
        _fill_near_people(made[:, eye, :3], picture, alpha.astype(np.float32, copy=False))
    made[0, :, 3:], made[1, :, 3:] = gain, offset
    return made[0].astype(gain.dtype, copy=False), made[1].astype(gain.dtype, copy=False)


def _fill_near_people(made: FloatPlane, picture: FloatPlane, alpha: FloatPlane) -> None:
    """Write person and scene [2, 3, h, w] wherever alpha is above 0 nearby."""
    x, y, columns, rows = cv2.boundingRect((alpha > 0).astype(np.uint8))
    if not columns:
        return
    height, width = alpha.shape
    # The area to compute, and the larger area that it is computed from.
    top, bottom = max(y - _NARROW, 0), min(y + rows + _NARROW, height)
    left, right = max(x - _NARROW, 0), min(x + columns + _NARROW, width)
    outer = slice(max(top - _NARROW, 0), bottom + _NARROW), slice(max(left - _NARROW, 0), right + _NARROW)
    inner = (
        slice(top - outer[0].start, bottom - outer[0].start),
        slice(left - outer[1].start, right - outer[1].start),
    )
    own = np.ascontiguousarray(alpha[outer])
    weight, rest_weight = (_sums(share, _NARROW)[inner] for share in (own, 1 - own))
    least = np.float32(_LEAST_SHARE * (2 * _NARROW + 1) ** 2)
    is_mixed = (weight > _NOTHING) & (rest_weight > _NOTHING)
    weight += least
    place = slice(top, bottom), slice(left, right)
    for channel, (person, scene) in enumerate(_wide_colors(picture, alpha, outer)):
        # own * (person + own * (seen - scene - own * (person - scene))), in place
        first = person - scene
        first *= own
        np.subtract(picture[channel][outer] - scene, first, out=first)
        first *= own
        first += person
        first *= own
        found = _sums(first, _NARROW)[inner]
        found += least * person[inner]
        found /= weight
        for which, color in enumerate((found, scene[inner])):
            np.copyto(made[which, channel][place], color, where=is_mixed)


def _wide_colors(
    picture: FloatPlane, alpha: FloatPlane, part: tuple[slice, slice]
) -> Iterator[tuple[FloatPlane, FloatPlane]]:
    """Averages of person and scene over many cells, for each channel in turn: float32, at the samples of an area."""
    # The cells between which its samples lie, and all cells that contribute to them.
    between, around = [], []
    for samples, length in zip(part, alpha.shape, strict=True):
        count = -(-length // _CELL)
        first = max(samples.start // _CELL - 1, 0)
        last = min((min(samples.stop, length) - 1) // _CELL + 2, count)
        begin, end = max(first - _WIDE_CELLS, 0), min(last + _WIDE_CELLS, count)
        between.append(slice(first - begin, last - begin))
        around.append((begin, end, samples.start - first * _CELL, min(samples.stop, length) - first * _CELL))
    (top, bottom, *rows), (left, right, *columns) = around
    seen = slice(top * _CELL, bottom * _CELL), slice(left * _CELL, right * _CELL)
    cells, inside = tuple(between), (slice(*rows), slice(*columns))

    def sums(plane: FloatPlane) -> FloatPlane:
        return _sums(_cell_sums(plane), _WIDE_CELLS)[cells]

    def at_samples(means: FloatPlane) -> FloatPlane:
        return cv2.resize(means, None, fx=_CELL, fy=_CELL, interpolation=cv2.INTER_LINEAR)[inside]

    count = _sample_counts(*alpha.shape)[top:bottom, left:right][cells]
    own_alpha = alpha[seen]
    weight = sums(own_alpha)
    least = np.float32(_LEAST_SHARE) * count
    for plane in picture:
        whole, own = sums(plane[seen]), sums(plane[seen] * own_alpha)
        prior = least * (whole / count)
        yield (
            at_samples((own + prior) / (weight + least)),
            at_samples((whole - own + prior) / (count - weight + least)),
        )


@lru_cache(maxsize=8)
def _sample_counts(height: int, width: int) -> FloatPlane:
    """Number of samples in the cells around each cell of a picture."""
    return _sums(_cell_sums(np.ones((height, width), np.float32)), _WIDE_CELLS)


def _cell_sums(plane: FloatPlane) -> FloatPlane:
    height, width = plane.shape
    rows, columns = -(-height // _CELL), -(-width // _CELL)
    below, beside = rows * _CELL - height, columns * _CELL - width
    if below or beside:
        plane = cv2.copyMakeBorder(plane, 0, below, 0, beside, cv2.BORDER_CONSTANT, value=0)
    return cv2.resize(plane, (columns, rows), interpolation=cv2.INTER_AREA) * np.float32(_CELL * _CELL)


def _sums(plane: FloatPlane, radius: int) -> FloatPlane:
    side = 2 * radius + 1
    return cv2.boxFilter(plane, cv2.CV_32F, (side, side), normalize=False, borderType=cv2.BORDER_CONSTANT)


def decontaminate(
    frame: Frame,
    alpha: Plane,
    *,
    regions: list[Region],
    person: npt.NDArray[np.float32],
    scene: npt.NDArray[np.float32],
    rotation_degrees: Rotation = 0,
) -> Frame:
    """Replace the colour of partly transparent samples by the person's own.

    Runs on the frame's device: NumPy planes on the CPU; CuPy planes (NV12 or P010) in one CUDA kernel, on the current
    CuPy stream.

    Args:
        frame: The picture.
        alpha: uint8 or uint16 [H, W], before edge options, since it tells which samples the camera mixed.
        regions: Area of each eye; together they cover the frame. Nothing is read across a seam; a seam inside a
            chroma block is moved to the block's end.
        person: float32 [N, 3, h, w], also float16 on the GPU: colour of people nearby, R, G, B in 0..1, upright, one
            for each region, on the frame's device; from ``local_colors``.
        scene: Likewise, colour of the scene behind them.
        rotation_degrees: Clockwise rotation that made the picture upright for the network.

    Returns:
        A frame with new planes.

    Raises:
        ValueError: A frame on the GPU is not semi-planar, or alpha or the colours do not match it.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    regions = [_to_whole_blocks(region, frame) for region in regions]
    if is_on_gpu(frame.planes[0]):
        return foreground_on_gpu(frame, alpha, regions, Coefficients(person, scene, rotation_degrees))
    planes = tuple(plane.copy() for plane in frame.planes)
    matrix, shift = yuv_from_rgb(frame.color, frame.format)
    affine = np.hstack([matrix, shift[:, None]]).astype(np.float32)
    step_x, step_y = 1 << frame.format.chroma_shift_x, 1 << frame.format.chroma_shift_y
    location = frame.color.chroma_location
    site_x = 0.5 if location in ("left", "topleft") else step_x / 2
    site_y = 0.5 if location == "topleft" else step_y / 2
    for index, region in enumerate(regions):
        colors = [upright_to_coded(one[index], rotation_degrees) for one in (person, scene)]
        part = _around_people(alpha, region, step_x, step_y)
        if part is None:
            continue
        matte = np.ascontiguousarray(alpha[part.rows, part.columns])
        rows = slice(part.y // step_y, -(-(part.y + part.height) // step_y))
        columns = slice(part.x // step_x, -(-(part.x + part.width) // step_x))
        top, left = part.y - region.y, part.x - region.x
        for channels, sites, shares, place, steps in (
            (slice(0, 1), [planes[0][part.rows, part.columns]], matte, (0.5, 0.5), (1, 1)),
            (
                slice(1, 3),
                [plane[rows, columns] for plane in _chroma_views(planes)],
                downsample_to_chroma(matte, frame.format, frame.color),
                (site_y, site_x),
                (step_y, step_x),
            ),
        ):
            where = np.flatnonzero(cv2.inRange(shares, 1, alpha_peak(shares) - 1))
            if not where.size:
                continue
            y, x = np.divmod(where.astype(np.int32), np.int32(shares.shape[1]))
            share = shares[y, x] * np.float32(1 / alpha_peak(shares))
            height, width = colors[0].shape[1:]
            # Half a sample, because a sample's position is its centre.
            down, across = (
                (at * np.float32(step) + np.float32(site + first)) * np.float32(small / full)
                - np.float32(0.5)
                for at, step, site, first, small, full in (
                    (y, steps[0], place[0], top, height, region.height),
                    (x, steps[1], place[1], left, width, region.width),
                )
            )
            near = _read_converted(colors, down, across, affine[channels])
            for plane, own, behind in zip(sites, near[: len(sites)], near[len(sites) :], strict=True):
                codes = own + share * (plane[y, x] - behind - share * (own - behind))
                plane[y, x] = _rounded(codes, frame.format).astype(plane.dtype)
    return frame.with_planes(planes)


def _around_people(alpha: Plane, region: Region, step_x: int, step_y: int) -> Region | None:
    """The part of a region, in whole chroma blocks, outside which alpha is 0 at every site; None means all of it."""
    seen = alpha[region.rows, region.columns]
    x, y, width, height = cv2.boundingRect(seen if seen.dtype == np.uint8 else (seen > 0).astype(np.uint8))
    if not width:
        return None
    # A site also reads the samples beside its own.
    left, top = max(x - 1, 0) // step_x * step_x, max(y - 1, 0) // step_y * step_y
    right = min(-(-(x + width + 1) // step_x) * step_x, region.width)
    bottom = min(-(-(y + height + 1) // step_y) * step_y, region.height)
    return Region(region.x + left, region.y + top, right - left, bottom - top)


def _to_whole_blocks(region: Region, frame: Frame) -> Region:
    """Extend a region to whole chroma blocks; a block cut by a seam belongs to the eye before it."""
    step_x, step_y = 1 << frame.format.chroma_shift_x, 1 << frame.format.chroma_shift_y
    left, top = -(-region.x // step_x) * step_x, -(-region.y // step_y) * step_y
    right = min(-(-(region.x + region.width) // step_x) * step_x, frame.width)
    bottom = min(-(-(region.y + region.height) // step_y) * step_y, frame.height)
    return Region(left, top, right - left, bottom - top)


def _rounded(codes: FloatPlane, fmt: YuvFormat) -> FloatPlane:
    step = np.float32(1 << fmt.sample_shift)
    rounded: FloatPlane = np.clip(np.rint(codes / step), 0, 2**fmt.bit_depth - 1) * step
    return rounded


def _read_converted(
    colors: Sequence[FloatPlane], rows: FloatPlane, columns: FloatPlane, affine: FloatPlane
) -> FloatPlane:
    """Read colours bilinearly at N positions; borders repeat.

    Args:
        colors: Two pictures, [3, h, w] each, R, G and B.
        rows: float32 [N], fractional indices.
        columns: float32 [N], fractional indices.
        affine: float32 [C, 4], from R, G, B and 1 to the wanted channels.

    Returns:
        float32 [2 C, N].
    """
    _, height, width = colors[0].shape
    rows, columns = np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)
    upper, first = rows.astype(np.int32), columns.astype(np.int32)
    down, across = rows - upper, columns - first
    # Only the area around the positions is converted, because it has fewer samples than are read.
    top, bottom = int(upper.min()), min(int(upper.max()) + 2, height)
    left, right = int(first.min()), min(int(first.max()) + 2, width)
    corner = (upper - np.int32(top)) * np.int32(right - left) + (first - np.int32(left))
    below = np.where(upper < height - 1, np.int32(right - left), np.int32(0))
    beside = (first < width - 1).astype(np.int32)
    corners = corner, corner + beside, corner + below, corner + below + beside
    made = np.empty((len(colors), len(affine), len(rows)), np.float32)
    for color, targets in zip(colors, made, strict=True):
        red, green, blue = np.ascontiguousarray(color[:, top:bottom, left:right], np.float32)
        for (of_red, of_green, of_blue, constant), target in zip(affine.tolist(), targets, strict=True):
            plane = cv2.scaleAdd(blue, of_blue, cv2.addWeighted(red, of_red, green, of_green, constant))
            read, opposite, lower, last = (plane.take(at) for at in corners)
            _approach(read, opposite, across)
            _approach(lower, last, across)
            _approach(read, lower, down)
            target[...] = read
    return made.reshape(-1, len(rows))


def _approach(first: FloatPlane, second: FloatPlane, share: FloatPlane) -> None:
    """Move the first towards the second by a share, in place; the second is overwritten."""
    second -= first
    second *= share
    first += second


def _chroma_views(planes: tuple[Plane, ...]) -> tuple[Plane, Plane]:
    if len(planes) == 2:
        return planes[1][..., 0], planes[1][..., 1]
    return planes[1], planes[2]


_BLOCK = 32, 8


def _launch_local_colors(rgb: Any, gain: Any, offset: Any) -> tuple[Any, Any]:
    """Run the kernels on the current CuPy stream; takes and returns the same as ``local_colors``.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    eyes, _, height, width = rgb.shape
    if gain.dtype != offset.dtype:
        gain, offset = gain.astype("float32"), offset.astype("float32")
    rgb, gain, offset = (cupy.ascontiguousarray(array) for array in (rgb, gain, offset))
    rows, columns = -(-height // _CELL), -(-width // _CELL)
    sums = cupy.empty((eyes, rows, columns, 8), cupy.float32)
    wide = cupy.empty_like(sums)
    person, scene = (cupy.empty((eyes, 4, height, width), gain.dtype) for _ in range(2))
    names = {"COLOR": rgb.dtype, "COEFFICIENT": gain.dtype}
    defines = {name: "__half" if dtype == np.float16 else "float" for name, dtype in names.items()}
    size = np.int32(height), np.int32(width)
    gather, spread, near = (
        cuda_kernel("foreground.cu", name, **defines)
        for name in ("gather_cells", "spread_cells", "near_colors")
    )
    with nvtx_range("local colors"):
        gather((columns, rows, eyes), (_CELL, _CELL), (rgb, gain, offset, sums, *size))
        over_cells = -(-columns // _BLOCK[0]), -(-rows // _BLOCK[1]), eyes
        spread(over_cells, _BLOCK, (sums, wide, np.int32(rows), np.int32(columns)))
        over_samples = -(-width // _BLOCK[0]), -(-height // _BLOCK[1]), eyes
        near(over_samples, _BLOCK, (rgb, gain, offset, wide, person, scene, *size))
    return person, scene
