"""Brings the mattes of two eyes together: matches what both eyes show, and averages it.

People are matched, not pictures: a difference of colour counts as much as either eye sees a person there, so that a
window on an outline finds the disparity of the person, whatever is behind. Windows are matched by the sum of absolute
differences (Scharstein and Szeliski, "A Taxonomy and Evaluation of Dense Two-Frame Stereo Correspondence Algorithms",
2002). Such sums rise in straight lines from the true place, so two lines of one slope through the best three give parts
of a sample; a parabola would draw them towards whole steps.

Where an eye's sample lies in the other eye is a cubic in the disparity, for each sample (``curves``): lenses bend the
way that a thing takes across the picture as it comes nearer.

The other eye's matte is read there by cubic convolution (Keys, "Cubic Convolution Interpolation for Digital Image
Processing", 1981; Catmull-Rom's): reading between two samples alone blurs outlines, by more than the mean mends. It is
believed by the colors around: where both eyes show the same person, their mattes are brought together however much they
differ. A sample on an outline is mixed with what is behind, which differs between the eyes; so the person beside it
counts for more.
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

# Largest difference of colour that counts, 0..1: above it the samples show other things. The weight of a difference of
# alpha is enough to hold people without texture by their outlines, too little to join two that differ.
_MOST_COLOR, _ALPHA_WEIGHT = 0.15, 0.05
# Difference of a person's color up to which two samples show the same, and from which they do not: on synthetic clips
# alpha's error grew for people who hide one another when 0.03 and 0.06 were believed.
_SAME_COLOR, _OTHER_COLOR = 0.02, 0.05
_COLOR_RADIUS = 2
"""Samples around in which colors are compared, each with the fourth power of alpha as its weight. Compared by a sample
alone, eyes were further apart on nearly all synthetic clips."""
_LEAST_PERSON = 0.1
"""Added to the weights that differences are divided by: where nobody is, nothing differs."""
_MEAN_COLOR = np.array([[1 / 3, 1 / 3, 1 / 3, 0]], np.float32)
"""Weights of R, G, B and alpha in the mean color."""


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
    """Find the disparity of people at each sample of both eyes, among some; of N frames, each its left and right eye.

    Runs where the pictures are; the results on the CPU and on a GPU differ by rounding, and where two disparities fit
    equally well.

    Args:
        pictures: float32 [2 N, 4, h, w], C-contiguous: R, G, B and alpha of each eye, 0..1.
        curves: float32 [2, 6, h, w]: for each sample of an eye the factors of the disparity, its square and its cube in
            how far the other eye shows it to the right, then downwards, in samples.
        steps: The disparities to try, at least 3, evenly apart; relative to ``start``.
        radius: Half the window, in samples of the result, at most 38 on a GPU, whose blocks hold what lies around them;
            borders repeat.
        start: float32 [2 N, h, w] of the result's size; 0 when omitted.
        size: (height, width) of the result, no larger than the pictures, and theirs when omitted: what the steps fit is
            told from the pictures' samples, and averaged. Not with ``is_mutual``.
        is_mutual: Add to how badly a disparity fits how much worse it is than what fits the place that it leads to
            best: of things that look alike, as the shoes of two people do, each gets its own.

    Returns:
        float32 [2 N, *size] in the unit of ``curves``, and as many of how badly the best of them fits, 0 to 0.25; with
        ``is_mutual`` -0.25 to 0.5, less than 0 where it suits the place that it leads to better than any other.

    Raises:
        ValueError: ``size`` with ``is_mutual``.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    shape = pictures.shape[2:]
    size = shape if size is None else size
    if is_mutual and size != shape:
        raise ValueError(f"a result of {size} about pictures of {shape} is not mutual: expected one size")
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
    # Those of one eye are done with before the other's are made, unless each looks at the other's.
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
    """Planes [N, h, w] at another size, as they are at their own."""
    return planes if planes.shape[1:] == size else resized(planes[:, None], size)[:, 0]


def _best_steps(costs: FloatArray, steps: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """The disparity that costs least at each sample, between steps, and what the step beside it costs."""
    count, height, width = costs.shape
    least, best = costs[0].copy(), np.zeros((height, width), np.float32)
    # A sample's costs are apart by a whole picture: picture by picture is several times as fast as argmin.
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
    """Remove isolated outliers of disparity, and keep the steps between objects (median).

    Args:
        disparity: float32 [N, h, w], C-contiguous.

    Returns:
        float32 [N, h, w]: the median of 5x5 samples, borders repeated; the same on the CPU and on a GPU.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(disparity):
        on_gpu: FloatArray = _middle_on_gpu(disparity)
        return on_gpu
    return np.stack([cv2.medianBlur(plane, 2 * _MIDDLE_RADIUS + 1) for plane in disparity])


def smooth_disparity(disparity: FloatArray, *, sigma: float, spacing: int = 1) -> FloatArray:
    """Remove noise from disparities, but keep the steps between objects (bilateral filter; Tomasi, Manduchi, 1998).

    Args:
        disparity: float32 [N, h, w], C-contiguous.
        sigma: How far neighbours of one thing are apart: what differs by twice as much hardly counts.
        spacing: Look at every so many samples, and as many times as far, for the same time.

    Returns:
        float32 [N, h, w]; the GPU's differs by what OpenCV's table of weights rounds.

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
    """Smooth each of the pictures that every so many samples make; borders repeat up to whole ones."""
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

    Both show a place where the disparities of the two eyes are the same, and the person around has the same colors.

    Args:
        planes: float32 [2 N, C, H, W], C-contiguous: of each eye.
        pictures: float32 [2 N, 4, h, w], as ``match_eyes`` takes them.
        disparity: float32 [2 N, h, w], as ``match_eyes`` gives it.
        curves: Those that it was found with.
        shown: float32 [2 N, h, w], 0..1: how much a place may count.
        tolerance: Most that the other eye's disparity may differ, where this eye's leads to: more is another thing, or
            hidden.

    Returns:
        float32 [2 N, C, H, W]; the GPU's differs by OpenCV's reading at 1/32 of a sample.

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
    # Color, alpha and disparity are read together.
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
    """Read a picture between its samples, borders repeated."""
    return cv2.remap(picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


class _Places(NamedTuple):
    """Places between the samples of planes, and half the product of how far they are from the two beside them."""

    map_x: FloatArray
    map_y: FloatArray
    share_x: FloatArray
    share_y: FloatArray

    @classmethod
    def at(cls, map_x: FloatArray, map_y: FloatArray) -> _Places:
        """Columns and rows."""
        part_x, part_y = map_x - np.floor(map_x), map_y - np.floor(map_y)
        share_x, share_y = (part * (1 - part) / np.float32(2) for part in (part_x, part_y))
        return cls(map_x + _MARGIN, map_y + _MARGIN, share_x, share_y)

    def read(self, plane: FloatArray) -> FloatArray:
        """Read a plane with Catmull-Rom's weights of 4x4 samples, borders repeated.

        On an axis these are the linear weights of the plane, less ``t (1 - t) / 2`` of those of its second differences.
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
"""Repeated samples around a plane."""
_ONE, _SECOND = np.array([1], np.float32), np.array([1, -2, 1], np.float32)
"""Weights of a plane's own samples, and of its second differences."""
_LEAST_RISE = 1e-9
"""Below it three costs are the same: without a smallest between them."""
_MIDDLE_RADIUS = 2
"""The reach of a median, in samples; the same as in stereo_match.cu."""
_SMOOTH_RADIUS, _SMOOTH_SIGMA = 7, 5.0
"""In samples: people are smooth, what is found of them has the noise of a window."""
MATCHING_RULES: Final = (
    "colors are compared around a place",
    (_MOST_COLOR, _ALPHA_WEIGHT, _SAME_COLOR, _OTHER_COLOR, _COLOR_RADIUS, _LEAST_PERSON),
    (_MIDDLE_RADIUS, _SMOOTH_RADIUS, _SMOOTH_SIGMA),
)
"""What mattes of eyes that agree depend on."""


def _displacement(curves: FloatArray, disparity: Any) -> tuple[FloatArray, FloatArray]:
    """Displacement of each sample in the other eye, to the right and downwards."""
    across, down = (disparity * factors[2] for factors in (curves[:3], curves[3:]))
    for way, factors in ((across, curves[:3]), (down, curves[3:])):  # in place: each is as large as a picture
        way += factors[1]
        way *= disparity
        way += factors[0]
        way *= disparity
    return across, down


# As in stereo_match.cu.
_BLOCK = (32, 8)
_STEPS_OF_A_THREAD = 5
"""Steps whose costs a thread tells: what does not depend on the step is read once for them."""
_WIDE = 6
"""Radius of a window from which on threads find several samples."""
_MOST_TILE_BYTES = 48 << 10
"""Shared memory that any GPU gives a block."""

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
    """How many samples below one another a thread of ``best_step`` finds: in wide windows they share most sums."""
    if radius < _WIDE:
        return 1
    return next((rows for rows in (4, 2) if _tile_bytes(radius, rows) <= _MOST_TILE_BYTES), 1)


def _tile_bytes(radius: int, rows: int) -> int:
    """Shared memory of a block of ``best_step``: the tile, of rows that begin at 16 bytes, and its rows' sums."""
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
