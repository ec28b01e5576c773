"""Launches ``composite.cu``: one pass over a frame for every kind of output.

Filling in the job takes longer than the kernel. Frames of one video differ only in their planes' addresses, so the
first frame's job is kept, with the base of each pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, Rotation, YuvFormat
from vitascope.gpu.kernels.color import (
    Rgb,
    alpha_dtype,
    color_codes,
    grey_bounds,
    matte_color,
    matte_levels,
    rgb_from_yuv,
    yuv_from_rgb,
)
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    current_device,
    fields,
    multiprocessors,
    nvtx_range,
    row_pitch,
    wait_until_ready,
)
from vitascope.gpu.kernels.region import Region, chroma_region, is_whole_blocks, whole_frame


@dataclass(frozen=True, slots=True)
class OnColor:
    """The person on a single colour; black makes a cutout."""

    rgb: Rgb


@dataclass(frozen=True, slots=True, eq=False)
class OnFrame:
    """The person on another picture."""

    background: Frame
    """A picture with the frame's size, format and colour, on its device."""


@dataclass(frozen=True, slots=True)
class Tint:
    """Tints the person, to judge a matte by eye."""

    rgb: Rgb
    opacity: float
    """0 leaves the picture unchanged, 1 covers the person."""


@dataclass(frozen=True, slots=True)
class MatteOnly:
    """Alpha as a grey picture: black is background, white is person."""

    full_range: bool
    """True writes codes 0..peak (lossless files), False 16..235 and their 10-bit equals (players)."""
    bit_depth: int | None = None
    """8 or 10; None for the frame's own (at most 10)."""


Paint = OnColor | OnFrame | Tint | MatteOnly
"""How to draw around a person."""

MAX_EYES = 2

_PICTURE = np.dtype([*fields("u8", "luma", "chroma"), *fields("i8", "luma_pitch", "chroma_pitch")])
_RESULT = np.dtype([*((name, _PICTURE[name]) for name in _PICTURE.names or ()), ("apart", "i8")])
_FIELD = np.dtype([*fields("u8", "alpha", "color"), *fields("i4", "row", "column", "plane")], align=True)
_EYE = np.dtype(
    [
        *fields("i4", "left", "top", "right", "bottom"),
        *((f"chroma_{side}", "i4") for side in ("left", "top", "right", "bottom")),
        *fields("i4", "columns", "rows"),
        *fields("f4", "x_step", "y_step", "y_span"),
        ("gain", _FIELD),
        ("offset", _FIELD),
    ],
    align=True,
)
_GREY = np.dtype(fields("f4", "luma", "blue", "red", "offset", "darkest", "brightest"), align=True)
_AFFINE = np.dtype([("matrix", "f4", 9), ("offset", "f4", 3)], align=True)
_BEHIND = np.dtype(fields("f4", "less", "code"), align=True)
_PAIR_BEHIND = np.dtype(fields("u4", "less", "code"), align=True)

JOB = np.dtype(
    [
        ("frame", _PICTURE),
        ("behind", _PICTURE),
        ("alpha", "u8"),
        ("result", _RESULT),
        ("eye", _EYE, MAX_EYES),
        ("grey", _GREY),
        ("yuv_from_rgb", _AFFINE),
        ("color", _BEHIND, 3),
        ("pair_color", _PAIR_BEHIND, 3),
        ("code", "f4", 3),
        ("opacity", "f4"),
        *fields("i4", "alpha_pitch", "width", "height", "rows"),
        *fields("u4", "float_bits", "half_bits"),
    ],
    align=True,
)
"""Mirrors ``Job`` of composite.cu, field by field."""

_INTEGER = 2.0**23  # INTEGER of composite.cu


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """Guided-filter coefficients of each eye, optionally with colours, upright, as for ``render``."""

    gain: Any
    """CuPy float16 or float32 [E, C, h, w], any strides; the last plane is alpha's."""
    offset: Any
    rotation_degrees: Rotation = 0


@lru_cache(maxsize=64)
def color_parameters(color: ColorSpec, fmt: YuvFormat) -> Any:
    """A job with only the colour conversions filled in; copy it before writing."""
    job = np.zeros(1, JOB)
    matrix, offset = rgb_from_yuv(color, fmt)
    back_matrix, back_offset = yuv_from_rgb(color, fmt)
    darkest, brightest = grey_bounds(color, fmt)
    job["grey"][0] = (*matrix.mean(axis=0), offset.mean(), darkest, brightest)
    job["float_bits"], job["half_bits"] = 0x47000000 if fmt.bit_depth == 8 else 0x4B000000, 0x64646464
    job["yuv_from_rgb"][0] = (back_matrix.ravel(), back_offset)
    return job


def set_behind(job: Any, codes: Sequence[int], fmt: YuvFormat) -> None:
    """Fill in the background colour: Y, U and V as code values in the format's container words."""
    peak, lift = (255.0, 32768.0) if fmt.bit_depth == 8 else (65535.0, 0.0)
    step = float(1 << fmt.sample_shift)
    for channel, code in enumerate(codes):
        job["color"][0, channel] = (-(lift + code) / (peak * step), code / step + _INTEGER)
        job["code"][0, channel] = code / step
        if fmt.bit_depth == 8:
            halves = np.array([-2048.0 - 2.0 * code, 1024.0 + code], np.float16).view(np.uint16)
            job["pair_color"][0, channel] = tuple(int(half) * 0x10001 for half in halves)


def describe_eyes(job: Any, frame: Frame, regions: Sequence[Region]) -> None:
    """Fill in the eyes' areas, and the chroma each may read: its own, unless the seam cuts a chroma block."""
    apart = all(is_whole_blocks(region, frame) for region in regions)
    for slot, region in enumerate(regions):
        chroma = chroma_region(region if apart else whole_frame(frame), frame.format)
        eye = job["eye"][0, slot]
        eye["left"], eye["top"] = region.x, region.y
        eye["right"], eye["bottom"] = region.x + region.width, region.y + region.height
        eye["chroma_left"], eye["chroma_top"] = chroma.x, chroma.y
        eye["chroma_right"], eye["chroma_bottom"] = chroma.x + chroma.width - 1, chroma.y + chroma.height - 1


def describe_cells(
    job: Any, regions: Sequence[Region], gain: Any, offset: Any, rotation_degrees: Rotation
) -> tuple[float, float]:
    """Fill in the coefficients, CuPy [E, C, h, w], whose last plane is alpha's.

    Returns:
        Maximum number of cells per sample, down and across, which a kernel's tile must hold.
    """
    steps = (0.0, 0.0)
    for slot, region in enumerate(regions):
        eye = job["eye"][0, slot]
        for name, planes in (("gain", gain), ("offset", offset)):
            eye[name], rows, columns = _field(planes[slot], rotation_degrees)
        x_step, y_step = columns / region.width, rows / region.height
        eye["columns"], eye["rows"] = columns, rows
        eye["x_step"], eye["y_step"], eye["y_span"] = x_step, y_step, 1.0 / y_step
        steps = (max(steps[0], y_step), max(steps[1], x_step))
    return steps


def _field(planes: Any, rotation_degrees: Rotation) -> tuple[tuple[int, int, int, int, int], int, int]:
    """Describe upright planes [C, h, w] in the frame's coded orientation, as the kernel walks them."""
    count, height, width = planes.shape
    plane, down, across = (stride // planes.itemsize for stride in planes.strides)
    last_down, last_across = (height - 1) * down, (width - 1) * across
    # np.rot90 rotates counter-clockwise: element (i, j) of the rotated plane is (j, w - 1 - i) of the upright one.
    start, row, column = {
        0: (0, down, across),
        90: (last_across, -across, down),
        180: (last_down + last_across, -down, -across),
        270: (last_down, across, -down),
    }[rotation_degrees]
    first = planes.data.ptr + start * planes.itemsize
    rows, columns = (width, height) if rotation_degrees in (90, 270) else (height, width)
    return (first + (count - 1) * plane * planes.itemsize, first, row, column, plane), rows, columns


_MOST_PLANS = 256
_PARAMETER = np.dtype((np.void, JOB.itemsize))


@dataclass(frozen=True, slots=True, eq=False)
class JobArrays:
    """The CuPy arrays that a job points to; None for unused ones."""

    luma: Any
    chroma: Any
    behind_luma: Any = None
    behind_chroma: Any = None
    alpha: Any = None
    made_luma: Any = None
    made_chroma: Any = None
    gain: Any = None
    offset: Any = None

    def as_tuple(self) -> tuple[Any, ...]:
        """The arrays in the order of the job's fields."""
        return (
            self.luma, self.chroma, self.behind_luma, self.behind_chroma, self.alpha,
            self.made_luma, self.made_chroma, self.gain, self.offset,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A launch, with the job of the frame for which it was built."""

    kernel: Any
    grid: tuple[int, int, int]
    shared_bytes: int
    job: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    launch: Launch
    words: Any
    """The job as uint64 words."""
    pointers: tuple[tuple[int, int, int], ...]
    """For each pointer: its word in the job, the array that it points into, and its offset in bytes."""


class LaunchPlans:
    """Launches by their common properties."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, _Plan] = {}

    def job(self, key: Hashable, arrays: JobArrays, describe: Callable[[], Launch]) -> tuple[Launch, Any]:
        """The launch, and its job with pointers into these arrays, as a kernel parameter (``by_value``).

        Args:
            key: Everything in the job but pointers; equal keys have arrays of equal layout.
            arrays: The arrays of this frame.
            describe: Describes this frame's launch, including pointers.
        """
        plan = self._plans.get(key)
        parts = arrays.as_tuple()
        if plan is None:
            launch = describe()
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = _Plan(launch, launch.job.view(np.uint64).copy(), _pointers(launch.job, parts))
            return launch, by_value(launch.job)
        words = plan.words.copy()
        for word, part, beyond in plan.pointers:
            words[word] = parts[part].data.ptr + beyond
        # Not through the job's own dtype, which NumPy compares with the words' field by field, in Python.
        return plan.launch, words.view(_PARAMETER)


def array_layout(array: Any) -> Hashable:
    """The properties of an array that a kernel's code and job depend on: everything but its address."""
    return None if array is None else (array.shape, array.strides, array.dtype.char, array.data.ptr % 16)


def _pointer_words() -> Sequence[tuple[int, int]]:
    """The words of a job that are pointers, and the field of ``JobArrays`` for each."""
    fields: Any = JOB.fields

    def at(dtype: Any, *names: str) -> int:
        offset = 0
        for name in names:
            dtype, step = dtype.fields[name][:2]
            offset += step
        return offset

    words = [
        (at(JOB, "frame", "luma"), 0),
        (at(JOB, "frame", "chroma"), 1),
        (at(JOB, "behind", "luma"), 2),
        (at(JOB, "behind", "chroma"), 3),
        (at(JOB, "alpha"), 4),
        (at(JOB, "result", "luma"), 5),
        (at(JOB, "result", "chroma"), 6),
    ]
    eyes, start = fields["eye"][:2]
    eye = eyes.base
    for number in range(MAX_EYES):
        for name, part in (("gain", 7), ("offset", 8)):
            for which in ("alpha", "color"):
                words.append((start + number * eye.itemsize + at(eye, name, which), part))
    return [(offset // 8, part) for offset, part in words]


_WORDS = _pointer_words()


def _pointers(job: Any, parts: tuple[Any, ...]) -> tuple[tuple[int, int, int], ...]:
    words = job.view(np.uint64)
    return tuple(
        (word, part, int(words[word]) - parts[part].data.ptr)
        for word, part in _WORDS
        if words[word] and parts[part] is not None
    )


# Same as in composite.cu.
_THREADS, _WIDTH, _MIXED_ROWS = 32, 8, 32
_CELL_BYTES = 16
# Above this, the kernel reads coefficients from global memory: they are then about as fine as the picture itself.
_MAX_SHARED_BYTES = 16 * 1024
# Cost of starting a strip, in rows: first cells, left neighbours, first loads.
_STRIP_OVERHEAD_ROWS = 8
# Two waves of strips at 8K: longer ones are slower around a single person, and hardly faster if all is mixed.
_MAX_STRIP_ROWS = 32
_BLOCKS = 16  # blocks per multiprocessor: 32 threads with 128 registers

_PLANS = LaunchPlans()

_Kind = Literal["ALPHA", "WEIGHTS", "MATTE", "COLOR", "FRAME", "TINT", "FOREGROUND"]
_KINDS: dict[type, _Kind] = {MatteOnly: "MATTE", OnColor: "COLOR", OnFrame: "FRAME", Tint: "TINT"}


def refine_on_gpu(frame: Frame, regions: Sequence[Region], coefficients: Coefficients) -> Plane:
    """As ``refine_alpha``, for CuPy planes."""
    import cupy

    covered = sum(region.width * region.height for region in regions) == frame.width * frame.height
    made = (cupy.empty if covered else cupy.zeros)((frame.height, frame.width), alpha_dtype(frame))
    _launch(
        "ALPHA", frame, regions, coefficients=coefficients, made=(made,), made_depth=frame.format.bit_depth
    )
    result: Plane = made
    return result


def chroma_weights_on_gpu(frame: Frame, alpha: Plane) -> Plane:
    """Alpha at the chroma sites of a frame with one region: [ceil(H / 2), ceil(W / 2)] of alpha's dtype."""
    import cupy

    width, height = frame.format.chroma_size(frame.width, frame.height)
    made = cupy.empty((height, width), alpha.dtype)
    _launch(
        "WEIGHTS",
        frame,
        [whole_frame(frame)],
        alpha=alpha,
        made=(None, made),
        made_depth=frame.format.bit_depth,
    )
    result: Plane = made
    return result


def foreground_on_gpu(
    frame: Frame, alpha: Plane, regions: Sequence[Region], coefficients: Coefficients
) -> Frame:
    """As ``decontaminate``, for CuPy planes; the coefficients are colours of person and scene, [E, 3, h, w]."""
    made = empty_planes(frame.format, frame.width, frame.height)
    _launch(
        "FOREGROUND", frame, regions, alpha=alpha, coefficients=coefficients, made=made,
        made_depth=frame.format.bit_depth, made_shift=frame.format.sample_shift, decontaminates=True,
    )  # fmt: skip
    return replace(frame, planes=made, ready=None)


def paint_on_gpu(
    frame: Frame,
    regions: Sequence[Region],
    matte: Coefficients | Plane,
    paint: Paint,
    *,
    decontaminates: bool = False,
    planar: bool = False,
) -> Frame:
    """Composite every eye separately, in one launch on the current CuPy stream.

    Args:
        frame: NV12 or P010 in CuPy planes.
        regions: At most two, of whole chroma blocks; together they cover the frame.
        matte: Coefficients, or a finished alpha plane of ``alpha_dtype(frame)`` [H, W].
        paint: What to paint.
        decontaminates: Use the person's own colour; needs coefficients with four planes.
        planar: Return yuv420p or yuv420p10le instead of NV12 or P010.

    Returns:
        A frame whose planes are dense and in one allocation; ordered on the current stream.

    Raises:
        ValueError: The frame is not semi-planar, or another argument does not match it.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    fmt, color = _made_format(frame, paint, planar=planar), frame.color
    if isinstance(paint, MatteOnly):
        color = matte_color(frame.color, full_range=paint.full_range)
    made = empty_planes(fmt, frame.width, frame.height)
    _launch(
        _KINDS[type(paint)], frame, regions, made=made, made_depth=fmt.bit_depth, made_shift=fmt.sample_shift,
        paint=paint, planar=not fmt.semi_planar, decontaminates=decontaminates,
        coefficients=matte if isinstance(matte, Coefficients) else None,
        alpha=None if isinstance(matte, Coefficients) else matte,
    )  # fmt: skip
    return replace(frame, planes=made, format=fmt, color=color, ready=None)


def _made_format(frame: Frame, paint: Paint, *, planar: bool) -> YuvFormat:
    depth = frame.format.bit_depth
    if isinstance(paint, MatteOnly) and paint.bit_depth is not None:
        depth = paint.bit_depth
    names = ("yuv420p", "yuv420p10le") if planar else ("nv12", "p010le")
    return PIXEL_FORMATS[names[depth > 8]]


def _launch(
    kind: _Kind,
    frame: Frame,
    regions: Sequence[Region],
    *,
    made: tuple[Any, ...],
    made_depth: int,
    made_shift: int = 0,
    alpha: Any = None,
    coefficients: Coefficients | None = None,
    paint: Paint | None = None,
    planar: bool = False,
    decontaminates: bool = False,
) -> None:
    if coefficients is not None and {coefficients.gain.dtype.char, coefficients.offset.dtype.char} == {
        "e",
        "f",
    }:
        # One is float16, the other float32. Other combinations are refused below.
        gain, offset = (values.astype(np.float32) for values in (coefficients.gain, coefficients.offset))
        coefficients = replace(coefficients, gain=gain, offset=offset)
    behind = paint.background if isinstance(paint, OnFrame) else None
    arrays = JobArrays(
        luma=frame.planes[0],
        chroma=frame.planes[1],
        behind_luma=None if behind is None else behind.planes[0],
        behind_chroma=None if behind is None else behind.planes[1],
        alpha=alpha,
        made_luma=made[0],
        made_chroma=made[1] if len(made) > 1 else None,
        gain=None if coefficients is None else coefficients.gain,
        offset=None if coefficients is None else coefficients.offset,
    )
    key = (
        kind,
        frame.format,
        frame.color,
        tuple(regions),
        # A background is identified by its layout; every other paint describes itself.
        (behind.format, behind.width, behind.height) if behind is not None else paint,
        None if coefficients is None else coefficients.rotation_degrees,
        (made_depth, made_shift, len(made), planar, decontaminates),
        current_device(),
        # Results are dense and begin an allocation, so the frame's layout determines theirs.
        *(array_layout(array) for array in (*frame.planes, alpha, arrays.gain, arrays.offset)),
        *(() if behind is None else (array_layout(plane) for plane in behind.planes)),
    )

    def describe() -> Launch:
        _check(frame, regions, alpha, coefficients, decontaminates=decontaminates)
        return _described(
            kind, frame, regions, made=made, made_depth=made_depth, made_shift=made_shift, alpha=alpha,
            coefficients=coefficients, paint=paint, planar=planar, decontaminates=decontaminates,
        )  # fmt: skip

    launch, job = _PLANS.job(key, arrays, describe)
    wait_until_ready(frame)
    if behind is not None:
        wait_until_ready(behind)
    with nvtx_range("composite"):
        launch.kernel(launch.grid, (_THREADS,), (job,), shared_mem=launch.shared_bytes)


def _described(
    kind: _Kind,
    frame: Frame,
    regions: Sequence[Region],
    *,
    made: tuple[Any, ...],
    made_depth: int,
    made_shift: int,
    alpha: Any,
    coefficients: Coefficients | None,
    paint: Paint | None,
    planar: bool,
    decontaminates: bool,
) -> Launch:
    """Describe a launch completely."""
    is_deep = frame.format.bit_depth > 8
    job = color_parameters(frame.color, frame.format).copy()
    job["width"], job["height"] = frame.width, frame.height
    job["frame"] = _picture(frame)
    read = [*frame.planes]
    describe_eyes(job, frame, regions)
    _describe_paint(job, frame, paint)
    if isinstance(paint, OnFrame):
        job["behind"] = _picture(paint.background)
        read += paint.background.planes
    if alpha is not None:
        job["alpha"], job["alpha_pitch"] = alpha.data.ptr, _pitch(alpha)
        read.append(alpha)
    _describe_result(job, made)
    cell_steps, coefficient = (0.0, 0.0), "float"
    if coefficients is not None:
        gain, offset = coefficients.gain, coefficients.offset
        cell_steps = describe_cells(job, regions, gain, offset, coefficients.rotation_degrees)
        coefficient = "float" if gain.dtype == np.float32 else "__half"
    tile_width = _tile_width(kind, frame)
    rows = _strip_rows(tuple(regions), tile_width, multiprocessors(), decontaminates=decontaminates)
    job["rows"] = rows
    shared_bytes = (
        _CELL_BYTES * (int(rows * cell_steps[0]) + 3) * (int(_THREADS * _WIDTH * cell_steps[1]) + 3)
    )
    is_shared = alpha is not None or shared_bytes <= _MAX_SHARED_BYTES
    kernel = cuda_kernel(
        "composite.cu",
        "composite",
        PAINT=f"PAINT_{kind}",
        DEEP=int(is_deep),
        MADE_DEEP=int(made_depth > 8),
        MADE_SHIFT=made_shift,
        COEFFICIENT=coefficient,
        ALPHA_GIVEN=int(alpha is not None),
        DECONTAMINATE=int(decontaminates),
        COSITED_X=int(frame.color.chroma_location in ("left", "topleft")),
        COSITED_Y=int(frame.color.chroma_location == "topleft"),
        PLANAR=int(planar or kind == "WEIGHTS"),
        WHOLE=int(_is_whole(frame, regions, read)),
        SHARED=int(is_shared),
    )
    # An eye's first tile begins at a multiple of 8 columns and 2 rows.
    columns = max(region.width + region.x % _WIDTH for region in regions)
    lines = max(region.height + region.y % 2 for region in regions)
    grid = (math.ceil(columns / tile_width), math.ceil(lines / rows), len(regions))
    return Launch(kernel, grid, shared_bytes if alpha is None and is_shared else 0, job)


def _check(
    frame: Frame,
    regions: Sequence[Region],
    alpha: Any,
    coefficients: Coefficients | None,
    *,
    decontaminates: bool,
) -> None:
    if not frame.format.semi_planar:
        raise ValueError(f"the GPU kernel reads NV12 and P010, not {frame.format.name}")
    if not 1 <= len(regions) <= MAX_EYES:
        raise ValueError(f"the GPU kernel paints one or two regions at once, not {len(regions)}")
    if alpha is not None and (alpha.dtype != alpha_dtype(frame) or alpha.shape != frame.planes[0].shape):
        raise ValueError(
            f"alpha is {alpha.dtype} {alpha.shape}, expected {alpha_dtype(frame)} {frame.planes[0].shape}"
        )
    if coefficients is None:
        return
    gain, offset = coefficients.gain, coefficients.offset
    if gain.shape != offset.shape or gain.ndim != 4 or gain.shape[0] != len(regions):
        raise ValueError(
            f"gain {gain.shape} and offset {offset.shape}, expected [{len(regions)}, planes, height, width]"
        )
    if {gain.dtype, offset.dtype} - {np.dtype(np.float16), np.dtype(np.float32)}:
        raise ValueError(f"gain is {gain.dtype} and offset {offset.dtype}, expected float16 or float32")
    if decontaminates and gain.shape[1] < 3:
        raise ValueError(f"decontamination needs the three planes of a colour, not {gain.shape[1]}")


def _describe_paint(job: Any, frame: Frame, paint: Paint | None) -> None:
    if isinstance(paint, OnColor | Tint):
        set_behind(job, color_codes(paint.rgb, frame.color, frame.format), frame.format)
    if isinstance(paint, Tint):
        job["opacity"] = paint.opacity
    if isinstance(paint, MatteOnly):
        depth = paint.bit_depth or frame.format.bit_depth
        job["code"][0] = matte_levels(frame.color, full_range=paint.full_range, bit_depth=depth)
    if isinstance(paint, OnFrame):
        behind = paint.background
        if behind.format != frame.format or behind.planes[0].shape != frame.planes[0].shape:
            raise ValueError(f"background is {behind!r}, expected the size and format of {frame!r}")


def _describe_result(job: Any, made: tuple[Any, ...]) -> None:
    result = job["result"][0]
    if made[0] is not None:
        result["luma"], result["luma_pitch"] = made[0].data.ptr, _pitch(made[0])
    if len(made) > 1:
        result["chroma"], result["chroma_pitch"] = made[1].data.ptr, _pitch(made[1])
    if len(made) > 2:
        result["apart"] = (made[2].data.ptr - made[1].data.ptr) // made[1].itemsize


def _picture(frame: Frame) -> tuple[int, int, int, int]:
    luma, chroma = (plane for plane in frame.planes)
    arrays: tuple[Any, Any] = (luma, chroma)  # CuPy arrays, whose pointers NumPy's types lack
    return arrays[0].data.ptr, arrays[1].data.ptr, _pitch(luma), _pitch(chroma)


def _pitch(plane: Any) -> int:
    return row_pitch(plane.shape, plane.strides, itemsize=plane.itemsize)


def _is_whole(frame: Frame, regions: Sequence[Region], read: Sequence[Any]) -> bool:
    """True if eyes, and all rows in memory, begin and end at multiples of 8 columns and 2 rows.

    The kernel's output is dense, so its layout follows from the frame's size.
    """
    return (
        frame.width % _WIDTH == 0
        and frame.height % 2 == 0
        and all(
            (region.x | region.width) % _WIDTH == 0 and (region.y | region.height) % 2 == 0
            for region in regions
        )
        and all(
            (plane.data.ptr | plane.strides[0]) % (_WIDTH * plane.itemsize) == 0
            and plane.strides[-1] == plane.itemsize
            for plane in read
        )
    )


def _tile_width(kind: _Kind, frame: Frame) -> int:
    """Columns that a warp paints: if chroma sites read the previous column, one thread only computes that."""
    is_cosited = frame.color.chroma_location in ("left", "topleft")
    return _WIDTH * (_THREADS - (is_cosited and kind not in ("ALPHA", "MATTE")))


@lru_cache(maxsize=64)
def _strip_rows(
    regions: tuple[Region, ...], tile_width: int, processors: int, *, decontaminates: bool
) -> int:
    """Rows of a warp's strip: long strips lose less at their starts, short ones fill the GPU evenly."""
    tiles_across = sum(math.ceil((region.width + region.x % _WIDTH) / tile_width) for region in regions)
    height = max(region.height + region.y % 2 for region in regions)

    def cost(rows: int) -> float:
        tiles = tiles_across * math.ceil(height / rows)
        return math.ceil(tiles / (_BLOCKS * processors)) * (rows + _STRIP_OVERHEAD_ROWS)

    # When decontaminating, a block keeps a list of samples in shared memory.
    longest = _MIXED_ROWS if decontaminates else _MAX_STRIP_ROWS
    return min(range(4, longest + 1, 2), key=cost)


def empty_planes(fmt: YuvFormat, width: int, height: int) -> tuple[Any, ...]:
    """Dense CuPy planes, contiguous in one allocation, as encoders and single copies need them."""
    import cupy

    dtype = fmt.dtype
    chroma_width, chroma_height = fmt.chroma_size(width, height)
    luma, chroma = width * height, chroma_width * chroma_height
    memory = cupy.empty(luma + 2 * chroma, dtype).data
    # Slicing and reshaping would take CuPy three times as long.
    luma_plane = cupy.ndarray((height, width), dtype, memory)
    if fmt.semi_planar:
        return luma_plane, cupy.ndarray(
            (chroma_height, chroma_width, 2), dtype, memory + luma * dtype.itemsize
        )
    return luma_plane, *(
        cupy.ndarray((chroma_height, chroma_width), dtype, memory + (luma + start) * dtype.itemsize)
        for start in (0, chroma)
    )
