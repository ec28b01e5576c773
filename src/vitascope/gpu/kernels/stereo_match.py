"""Aligns the mattes of two eyes: matches what both eyes show, and averages it.

People are matched, not pictures: a difference of colour is weighted by how much either eye sees a person there, so
that a window on an outline finds the person's disparity, whatever is behind. Windows are matched by the sum of
absolute differences (Scharstein and Szeliski, "A Taxonomy and Evaluation of Dense Two-Frame Stereo Correspondence
Algorithms", 2002). Such sums rise linearly from the true disparity, so two lines of equal slope through the best
three values give a sub-sample result; a parabola would pull it towards whole steps.

A sample's position in the other eye is a cubic function of the disparity, per sample (``curves``): a lens bends the
path of an object across the picture as it comes nearer.

The other eye's matte is read there by cubic convolution (Keys, "Cubic Convolution Interpolation for Digital Image
Processing", 1981; Catmull-Rom): linear reads blur outlines by more than the mean improves them. The colours around
decide how far it counts: where both eyes show the same person, their mattes are averaged however much they differ. A
sample on an outline is mixed with the background, which differs between the eyes, so the person beside it has more
weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import (
    array_module,
    by_value,
    cuda_kernel,
    fields,
    is_on_gpu,
    nvtx_range,
)
from vitascope.gpu.kernels.resize_normalize import resized

FloatArray = npt.NDArray[np.float32]

# Largest difference of colour that counts, 0..1: above it, the samples show different things. The weight of an alpha
# difference is enough to match people without texture by their outlines, but too small to join two that differ.
_MOST_COLOR, _ALPHA_WEIGHT = 0.15, 0.05
# Difference of a person's colour up to which two samples count as the same, and from which they do not. On synthetic
# clips, 0.03 and 0.06 increased alpha's error for people who hide one another.
_SAME_COLOR, _OTHER_COLOR = 0.02, 0.05
_COLOR_RADIUS = 2
"""Radius in which colours are compared, weighted with the fourth power of alpha. Comparing single samples left the
eyes further apart on nearly all synthetic clips."""
_LEAST_PERSON = 0.1
"""Added to the weights by which differences are divided: where nobody is, the difference is then 0."""
_MEAN_COLOR = np.array([[1 / 3, 1 / 3, 1 / 3, 0]], np.float32)
"""Weights of R, G, B and alpha in the mean colour."""


def match_eyes(
    pictures: FloatArray,
    curves: FloatArray,
    steps: Sequence[float],
    *,
    radius: int,
    start: FloatArray | None = None,
    size: tuple[int, int] | None = None,
    is_mutual: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Find people's disparity at each sample of both eyes, among given steps, for N pairs of left and right eye.

    Runs on the pictures' device. CPU and GPU results differ by rounding, and where two disparities match equally
    well.

    Args:
        pictures: float32 [2 N, 4, h, w], C-contiguous: R, G, B and alpha of each eye, 0..1.
        curves: float32 [2, 6, h, w]: for each sample of an eye, the coefficients of the disparity, its square and its
            cube, for the displacement in the other eye to the right, then downwards, in samples.
        steps: The disparities to try, at least 3, equally spaced; relative to ``start``.
        radius: Radius of the window in samples of the result; at most 38 on a GPU, whose blocks store the
            surroundings. Borders repeat.
        start: float32 [2 N, h, w] of the result's size; 0 if omitted.
        size: (height, width) of the result, at most that of the pictures, which is the default. Costs are computed
            from the pictures' samples, and averaged. Not with ``is_mutual``.
        is_mutual: Add to each disparity's cost the amount by which it exceeds the best cost at the position that it
            leads to: of similar objects, such as two people's shoes, each then gets its own match.

    Returns:
        float32 [2 N, *size] in the unit of ``curves``; and the cost of each, 0 to 0.25, of the same shape. With
        ``is_mutual`` -0.25 to 0.5; below 0, it matches that position better than all others.

    Raises:
        ValueError: ``size`` is used with ``is_mutual``.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    shape = pictures.shape[2:]
    size = shape if size is None else size
    if is_mutual and size != shape:
        raise ValueError(
            f"a result of {size} for pictures of {shape} cannot be mutual: both sizes must be equal"
        )
    start_of_pictures = None if start is None else _at_size(start, shape)
    if is_on_gpu(pictures):
        on_gpu: tuple[FloatArray, FloatArray] = _match_on_gpu(
            pictures, curves, steps, radius, start, start_of_pictures, size, is_mutual=is_mutual
        )
        return on_gpu
    columns, rows = np.arange(shape[1], dtype=np.float32), np.arange(shape[0], dtype=np.float32)[:, None]

    def places(eye: int, step: float) -> tuple[FloatArray, FloatArray]:
        disparity: Any = np.float32(step)
        if start_of_pictures is not None:
            disparity = start_of_pictures[eye] + disparity
        across, down = _displacement(curves[eye % 2], disparity)
        across += columns
        down += rows
        return across, down

    side = (2 * radius + 1, 2 * radius + 1)
    found, misfit = (np.empty((len(pictures), *size), np.float32) for _ in range(2))
    # Each eye's costs are overwritten by the other's, unless both are compared.
    costs = np.empty((2 if is_mutual else 1, len(steps), *size), np.float32)
    other, apart = (np.empty((*shape, 4), np.float32) for _ in range(2))
    color, alpha = np.empty(shape, np.float32), np.empty(shape, np.float32)
    for left in range(0, len(pictures), 2):
        both = left, left + 1
        eyes = [cv2.merge(list(pictures[eye])) for eye in both]
        for eye, own, opposite in zip(both, eyes, reversed(eyes), strict=True):
            own_alpha, own_costs = pictures[eye, 3], costs[eye % len(costs)]
            for step, cost in zip(steps, own_costs, strict=True):
                cv2.remap(
                    opposite,
                    *places(eye, step),
                    cv2.INTER_LINEAR,
                    dst=other,
                    borderMode=cv2.BORDER_REPLICATE,
                )
                cv2.absdiff(own, other, dst=apart)
                cv2.transform(apart, _MEAN_COLOR, dst=color)
                np.minimum(color, np.float32(_MOST_COLOR), out=color)
                np.maximum(own_alpha, cv2.extractChannel(other, 3, dst=alpha), out=alpha)
                color *= alpha
                cv2.scaleAdd(cv2.extractChannel(apart, 3, dst=alpha), _ALPHA_WEIGHT, color, dst=color)
                cv2.blur(_at_size(color[None], size)[0], side, dst=cost, borderType=cv2.BORDER_REPLICATE)
            if not is_mutual:
                found[eye], misfit[eye] = _best_steps(own_costs, steps)
        if is_mutual:
            least = costs.min(axis=1)
            for eye, own_costs, others in zip(both, costs, least[::-1], strict=True):
                for step, cost in zip(steps, own_costs, strict=True):
                    cost += cost - _between(others, *places(eye, step))
                found[eye], misfit[eye] = _best_steps(own_costs, steps)
    return (found if start is None else found + start), misfit


def _at_size(planes: FloatArray, size: tuple[int, int]) -> FloatArray:
    """Resize planes [N, h, w]; returned unchanged at their own size."""
    return planes if planes.shape[1:] == size else resized(planes[:, None], size)[:, 0]


def _best_steps(costs: FloatArray, steps: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """The disparity with the lowest cost at each sample, interpolated, and the cost of the nearest step."""
    count, height, width = costs.shape
    least, best = costs[0].copy(), np.zeros((height, width), np.float32)
    # A sample's costs are a whole picture apart in memory, so going picture by picture is much faster than argmin.
    before, after = np.full_like(least, np.inf), costs[1].copy()
    for number in range(1, count):
        better = costs[number] < least
        following = costs[min(number + 1, count - 1)]
        for kept, new in ((least, costs[number]), (before, costs[number - 1]), (after, following)):
            np.copyto(kept, new, where=better)
        best[better] = number
    rise = np.maximum(before, after) - least
    inside = (best > 0) & (best < count - 1) & (rise > _LEAST_RISE)
    part = np.divide(before - after, 2 * rise, where=inside, out=np.zeros_like(least))
    return steps[0] + (best + part.clip(-0.5, 0.5)) * np.float32(steps[1] - steps[0]), least


def middle_disparity(disparity: FloatArray) -> FloatArray:
    """Remove isolated outliers of disparity, keeping the steps between objects (median).

    Args:
        disparity: float32 [N, h, w], C-contiguous.

    Returns:
        float32 [N, h, w]: the median of 5x5 samples, with repeated borders; equal on CPU and GPU.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(disparity):
        on_gpu: FloatArray = _middle_on_gpu(disparity)
        return on_gpu
    return np.stack([cv2.medianBlur(plane, 2 * _MIDDLE_RADIUS + 1) for plane in disparity])


def smooth_disparity(disparity: FloatArray, *, sigma: float, spacing: int = 1) -> FloatArray:
    """Remove noise from disparities, keeping the steps between objects (bilateral filter; Tomasi, Manduchi, 1998).

    Args:
        disparity: float32 [N, h, w], C-contiguous.
        sigma: Typical difference between neighbours on one object; a difference twice as large hardly counts.
        spacing: Read only every n-th sample, with n times the reach, in the same time.

    Returns:
        float32 [N, h, w]; the GPU's result differs by the rounding of OpenCV's weight table.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if spacing > 1:
        smoothed: FloatArray = _smooth_apart(disparity, sigma, spacing)
        return smoothed
    if is_on_gpu(disparity):
        on_gpu: FloatArray = _smooth_on_gpu(disparity, sigma)
        return on_gpu
    side = 2 * _SMOOTH_RADIUS + 1
    return np.stack([cv2.bilateralFilter(plane, side, sigma, _SMOOTH_SIGMA) for plane in disparity])


def _smooth_apart(disparity: Any, sigma: float, spacing: int) -> Any:
    """Smooth the interleaved pictures separately; borders repeat to make them equal in size."""
    arrays, (count, height, width) = array_module(on_gpu=is_on_gpu(disparity)), disparity.shape
    more = -height % spacing, -width % spacing
    if any(more):
        disparity = arrays.pad(disparity, ((0, 0), (0, more[0]), (0, more[1])), mode="edge")
    rows, columns = (side // spacing for side in disparity.shape[1:])
    apart = disparity.reshape(count, rows, spacing, columns, spacing).transpose(0, 2, 4, 1, 3)
    smoothed = smooth_disparity(
        arrays.ascontiguousarray(apart).reshape(-1, rows, columns), sigma=sigma
    ).reshape(count, spacing, spacing, rows, columns)
    together = smoothed.transpose(0, 3, 1, 4, 2).reshape(count, rows * spacing, columns * spacing)
    return arrays.ascontiguousarray(together[:, :height, :width])


def blend_eyes(
    planes: FloatArray,
    pictures: FloatArray,
    disparity: FloatArray,
    curves: FloatArray,
    shown: FloatArray,
    *,
    tolerance: float,
) -> FloatArray:
    """Average both eyes' mattes where both show the same thing; elsewhere each keeps its own.

    A position is shown by both if the two eyes' disparities agree, and the person around it has the same colours.

    Args:
        planes: float32 [2 N, C, H, W], C-contiguous, for each eye.
        pictures: float32 [2 N, 4, h, w], as for ``match_eyes``.
        disparity: float32 [2 N, h, w], the result of ``match_eyes``.
        curves: The ``curves`` used for that.
        shown: float32 [2 N, h, w], 0..1: maximum weight of each position.
        tolerance: Largest difference to the other eye's disparity at the position that this eye's leads to; above it,
            the other eye shows something else.

    Returns:
        float32 [2 N, C, H, W]; CPU and GPU differ, because OpenCV reads at multiples of 1/32 sample.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(planes):
        blended: FloatArray = _blend_on_gpu(planes, pictures, disparity, curves, shown, tolerance)
        return blended
    height, width = disparity.shape[1:]
    full_height, full_width = planes.shape[2:]
    columns, rows = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, None]
    full_columns = np.arange(full_width, dtype=np.float32)
    full_rows = np.arange(full_height, dtype=np.float32)[:, None]
    # Colour, alpha and disparity are read together.
    eyes = [cv2.merge([*picture, one]) for picture, one in zip(pictures, disparity, strict=True)]
    blended = planes.copy()
    for eye in range(len(planes)):
        across, down = _displacement(curves[eye % 2], disparity[eye])
        apart = _between(eyes[eye ^ 1], across + columns, down + rows)
        share = shown[eye] * (np.abs(apart[..., 4] - disparity[eye]) <= tolerance) / np.float32(2)
        person = np.maximum(pictures[eye, 3], apart[..., 3])
        person *= person
        person *= person
        apart -= eyes[eye]
        color = sum(np.abs(apart[..., channel]) for channel in range(3)) / np.float32(3)
        misfit = np.minimum(color, _MOST_COLOR) * person
        misfit, person = (
            cv2.blur(plane, (2 * _COLOR_RADIUS + 1,) * 2, borderType=cv2.BORDER_REPLICATE)
            for plane in (misfit, person)
        )
        misfit /= person + np.float32(_LEAST_PERSON)
        share *= ((_OTHER_COLOR - misfit) / (_OTHER_COLOR - _SAME_COLOR)).clip(0, 1)
        moves = across * np.float32(full_width / width), down * np.float32(full_height / height), share
        move_x, move_y, weight = (
            cv2.resize(plane, (full_width, full_height), interpolation=cv2.INTER_LINEAR) for plane in moves
        )
        places = _Places.at(move_x + full_columns, move_y + full_rows)
        for plane, target, other in zip(planes[eye], blended[eye], planes[eye ^ 1], strict=True):
            change = places.read(other)
            change -= plane
            change *= weight
            target += change
    return blended


def _between(picture: Any, map_x: FloatArray, map_y: FloatArray) -> Any:
    """Read a picture between its samples; borders repeat."""
    return cv2.remap(picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


class _Places(NamedTuple):
    """Positions between the samples of planes, with half the product of the distances to both neighbours."""

    map_x: FloatArray
    map_y: FloatArray
    share_x: FloatArray
    share_y: FloatArray

    @classmethod
    def at(cls, map_x: FloatArray, map_y: FloatArray) -> _Places:
        """Make positions from columns and rows."""
        part_x, part_y = map_x - np.floor(map_x), map_y - np.floor(map_y)
        share_x, share_y = (part * (1 - part) / np.float32(2) for part in (part_x, part_y))
        return cls(map_x + _MARGIN, map_y + _MARGIN, share_x, share_y)

    def read(self, plane: FloatArray) -> FloatArray:
        """Read a plane with Catmull-Rom weights of 4x4 samples; borders repeat.

        Along an axis, this is the linear read of the plane, less ``t (1 - t) / 2`` times the linear read of its
        second differences.
        """
        around = cv2.copyMakeBorder(plane, _MARGIN, _MARGIN, _MARGIN, _MARGIN, cv2.BORDER_REPLICATE)
        across, down, both = (
            cv2.sepFilter2D(around, -1, *weights, borderType=cv2.BORDER_REPLICATE)
            for weights in ((_SECOND, _ONE), (_ONE, _SECOND), (_SECOND, _SECOND))
        )
        read = _between(cv2.merge([around, across, down, both]), self.map_x, self.map_y)
        linear, across, down, both = (np.asarray(each, np.float32) for each in cv2.split(read))
        # linear - share_x * across - share_y * (down - share_x * both), in place
        both *= self.share_x
        down -= both
        down *= self.share_y
        across *= self.share_x
        linear -= across
        linear -= down
        return linear


_MARGIN = 2
"""Number of repeated samples around a plane."""
_ONE, _SECOND = np.array([1], np.float32), np.array([1, -2, 1], np.float32)
"""Weights of a plane's own samples, and of its second differences."""
_LEAST_RISE = 1e-9
"""Rise below which three costs count as equal, without a minimum in between."""
_MIDDLE_RADIUS = 2
"""Radius of the median, in samples; same as in stereo_match.cu."""
_SMOOTH_RADIUS, _SMOOTH_SIGMA = 7, 5.0
"""In samples: people are smooth, but window matching is noisy."""
MATCHING_RULES: Final = (
    "colors are compared around a place",
    (_MOST_COLOR, _ALPHA_WEIGHT, _SAME_COLOR, _OTHER_COLOR, _COLOR_RADIUS, _LEAST_PERSON),
    (_MIDDLE_RADIUS, _SMOOTH_RADIUS, _SMOOTH_SIGMA),
)
"""Rules that mattes averaged over both eyes depend on."""


def _displacement(curves: FloatArray, disparity: Any) -> tuple[FloatArray, FloatArray]:
    """Displacement of each sample in the other eye, to the right and downwards."""
    across, down = (disparity * factors[2] for factors in (curves[:3], curves[3:]))
    for way, factors in ((across, curves[:3]), (down, curves[3:])):  # in place: each is picture-sized
        way += factors[1]
        way *= disparity
        way += factors[0]
        way *= disparity
    return across, down


# Same as in stereo_match.cu.
_BLOCK = (32, 8)
_STEPS_OF_A_THREAD = 5
"""Number of steps whose costs one thread computes: what does not depend on the step is read once."""
_WIDE = 6
"""Radius of a window from which on each thread computes several samples."""
_MOST_TILE_BYTES = 48 << 10
"""Shared memory per block that every GPU has."""

_MATCH = np.dtype(
    [
        *fields("u8", "pictures", "curves", "start", "others_least", "costs", "found", "misfit"),
        *fields("i4", "height", "width", "count", "radius"),
        *fields("f4", "first", "step"),
    ],
    align=True,
)
_MIDDLE = np.dtype([*fields("u8", "disparity", "middle"), *fields("i4", "height", "width")], align=True)
_SMOOTH = np.dtype(
    [
        *fields("u8", "disparity", "smoothed"),
        *fields("i4", "height", "width", "radius"),
        *fields("f4", "of_place", "of_value"),
    ],
    align=True,
)
_BLEND = np.dtype(
    [
        *fields("u8", "planes", "blended", "pictures", "disparity", "curves", "shown", "moves"),
        *fields("i4", "height", "width", "full_height", "full_width", "channels"),
        ("tolerance", "f4"),
    ],
    align=True,
)


def _match_on_gpu(
    pictures: Any,
    curves: Any,
    steps: Sequence[float],
    radius: int,
    start: Any,
    start_of_pictures: Any,
    size: tuple[int, int],
    *,
    is_mutual: bool,
) -> Any:
    import cupy

    eyes, _, height, width = pictures.shape
    pictures, curves = cupy.ascontiguousarray(pictures), cupy.ascontiguousarray(curves)
    start, start_of_pictures = (
        None if each is None else cupy.ascontiguousarray(each) for each in (start, start_of_pictures)
    )
    costs = cupy.empty((eyes, len(steps), height, width), "float32")
    found, misfit = (cupy.empty((eyes, *size), "float32") for _ in range(2))
    job = np.zeros(1, _MATCH)
    job[0] = (
        pictures.data.ptr,
        curves.data.ptr,
        0 if start_of_pictures is None else start_of_pictures.data.ptr,
        0,
        costs.data.ptr,
        found.data.ptr,
        misfit.data.ptr,
        height,
        width,
        len(steps),
        radius,
        steps[0],
        steps[1] - steps[0],
    )
    defines = {"MOST_COLOR": f"{_MOST_COLOR}f", "ALPHA_WEIGHT": f"{_ALPHA_WEIGHT}f"}
    groups = math.ceil(len(steps) / _STEPS_OF_A_THREAD)
    with nvtx_range("match eyes"):
        cuda_kernel("stereo_match.cu", "cost_of_steps", **defines, STEPS_OF_A_THREAD=str(_STEPS_OF_A_THREAD))(
            (math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), eyes * groups),
            _BLOCK,
            (by_value(job),),
        )
        if size != (height, width):
            costs = resized(costs.reshape(-1, 1, height, width), size)
            job["costs"], job["start"] = costs.data.ptr, 0 if start is None else start.data.ptr
            job["height"], job["width"] = size
        rows = _rows_of_a_thread(radius)
        tile_bytes = _tile_bytes(radius, rows)
        grid = math.ceil(size[1] / _BLOCK[0]), math.ceil(size[0] / (_BLOCK[1] * rows))
        known = {"RADIUS": str(radius)} if radius >= _WIDE else {}
        choose = cuda_kernel("stereo_match.cu", "best_step", **defines, ROWS=str(rows), **known)
        choose((*grid, eyes), _BLOCK, (by_value(job),), shared_mem=tile_bytes)
        if is_mutual:
            least, misfit = misfit, cupy.empty_like(misfit)
            job["others_least"], job["misfit"] = least.data.ptr, misfit.data.ptr
            choose((*grid, eyes), _BLOCK, (by_value(job),), shared_mem=tile_bytes)
    return found, misfit


def _rows_of_a_thread(radius: int) -> int:
    """Number of samples in a column that a thread of ``best_step`` computes: in wide windows they share most sums."""
    if radius < _WIDE:
        return 1
    return next((rows for rows in (4, 2) if _tile_bytes(radius, rows) <= _MOST_TILE_BYTES), 1)


def _tile_bytes(radius: int, rows: int) -> int:
    """Shared memory of a ``best_step`` block: the tile, with rows aligned to 16 bytes, and its row sums."""
    across, down = math.ceil((_BLOCK[0] + 2 * radius) / 4) * 4, _BLOCK[1] * rows + 2 * radius
    return 4 * down * (across + _BLOCK[0])


def _middle_on_gpu(disparity: Any) -> Any:
    import cupy

    disparity = cupy.ascontiguousarray(disparity)
    eyes, height, width = disparity.shape
    middle = cupy.empty(disparity.shape, "float32")
    job = np.zeros(1, _MIDDLE)
    job[0] = disparity.data.ptr, middle.data.ptr, height, width
    grid = math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), eyes
    with nvtx_range("middle disparity"):
        cuda_kernel("stereo_match.cu", "middle_disparity")(grid, _BLOCK, (by_value(job),))
    return middle


def _smooth_on_gpu(disparity: Any, sigma: float) -> Any:
    import cupy

    disparity = cupy.ascontiguousarray(disparity)
    eyes, height, width = disparity.shape
    smoothed = cupy.empty(disparity.shape, "float32")
    job = np.zeros(1, _SMOOTH)
    of_place, of_value = (-0.5 / each**2 for each in (_SMOOTH_SIGMA, sigma))
    job[0] = disparity.data.ptr, smoothed.data.ptr, height, width, _SMOOTH_RADIUS, of_place, of_value
    grid = math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), eyes
    with nvtx_range("smooth disparity"):
        cuda_kernel("stereo_match.cu", "smooth_disparity")(grid, _BLOCK, (by_value(job),))
    return smoothed


def _blend_on_gpu(
    planes: Any, pictures: Any, disparity: Any, curves: Any, shown: Any, tolerance: float
) -> Any:
    import cupy

    planes, pictures, disparity, curves, shown = map(
        cupy.ascontiguousarray, (planes, pictures, disparity, curves, shown)
    )
    eyes, height, width = disparity.shape
    channels, full_height, full_width = planes.shape[1:]
    moves = cupy.empty((eyes, 5, height, width), "float32")
    blended = cupy.empty(planes.shape, "float32")
    job = np.zeros(1, _BLEND)
    job[0] = (
        *(array.data.ptr for array in (planes, blended, pictures, disparity, curves, shown, moves)),
        height,
        width,
        full_height,
        full_width,
        channels,
        tolerance,
    )
    defines = {
        "MOST_COLOR": f"{_MOST_COLOR}f",
        "SAME_COLOR": f"{_SAME_COLOR}f",
        "OTHER_COLOR": f"{_OTHER_COLOR}f",
        "COLOR_RADIUS": str(_COLOR_RADIUS),
        "LEAST_PERSON": f"{_LEAST_PERSON}f",
    }
    grid = math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), eyes
    with nvtx_range("blend eyes"):
        for name in ("moves_between_eyes", "believe_colors"):
            cuda_kernel("stereo_match.cu", name, **defines)(grid, _BLOCK, (by_value(job),))
        cuda_kernel("stereo_match.cu", "blend_eyes")(
            (math.ceil(full_width / _BLOCK[0]), math.ceil(full_height / _BLOCK[1]), eyes),
            _BLOCK,
            (by_value(job),),
        )
    return blended
