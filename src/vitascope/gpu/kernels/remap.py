"""Warps and reprojects pictures by maps, with the semantics of OpenCV's ``remap``.

``out(y, x) = picture(map_y(y, x), map_x(y, x))``; sample centres are at whole numbers. Maps may be coarser than the
result: then map sample (j, i) applies to result sample (j * map_scale, i * map_scale), with interpolation in between,
which reduces the maps' memory traffic to a sixteenth at a scale of 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.color import yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, is_on_gpu, nvtx_range
from vitascope.gpu.kernels.resample import read_bilinear
from vitascope.gpu.memory.host_arrays import scratch_array

Interpolation = Literal["nearest", "linear", "cubic"]
Border = Literal["replicate", "constant"]

_INTERPOLATIONS = {"nearest": cv2.INTER_NEAREST, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}
_BORDERS = {"replicate": cv2.BORDER_REPLICATE, "constant": cv2.BORDER_CONSTANT}
_DTYPES = tuple(np.dtype(kind) for kind in (np.uint8, np.uint16, np.float16, np.float32))


@dataclass(frozen=True, slots=True)
class MapRead:
    """How one plane is sampled.

    Output sample o reads the maps at ``o * step + shift`` on each axis, and the plane at ``place * scale + offset``.
    """

    size: tuple[int, int]
    """(height, width) of the plane's result."""
    step: tuple[float, float]
    """(y, x)."""
    shift: tuple[float, float]
    scale: tuple[float, float] = (1.0, 1.0)
    offset: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Codes:
    """The range of a plane's samples."""

    peak: int
    """Largest code; 0 for floats, which are not clipped."""
    step: int = 1
    """Distance between codes in a word: 64 in P010."""
    constant: tuple[int, ...] = ()
    """Value outside with ``border="constant"``, a word for each channel; 0 for missing channels."""


def map_shape(size: tuple[int, int], map_scale: int) -> tuple[int, int]:
    """(height, width) of the smallest maps of a scale for a result of ``size`` (height, width)."""
    return -(-(size[0] - 1) // map_scale) + 1, -(-(size[1] - 1) // map_scale) + 1


def remap(
    picture: Frame | Plane,
    map_x: npt.NDArray[np.float32],
    map_y: npt.NDArray[np.float32],
    *,
    interpolation: Interpolation = "linear",
    border: Border = "replicate",
    map_scale: int = 1,
    size: tuple[int, int] | None = None,
) -> Any:
    """Sample a plane, or all planes of a frame, at the maps' positions.

    Runs on the picture's device: OpenCV on the CPU; CuPy in one CUDA kernel, or one per plane for a frame with coarse
    maps, on the current stream (for a frame, after ``frame.ready``).

    Args:
        picture: A frame (on the GPU NV12 or P010), or a plane: uint8, uint16, float16 or float32, [H, W] or
            [H, W, C] with 1 to 4 interleaved channels.
        map_x: float32, columns of the picture (of a frame's luma) to read, on the picture's device.
        map_y: float32, rows, of the same shape.
        interpolation: ``nearest`` rounds half to even; ``cubic`` is OpenCV's (Keys, a = -0.75).
        border: Values outside: ``replicate`` repeats the picture's border, ``constant`` is 0, or black in a frame.
        map_scale: Number of result samples per map sample, at least 1.
        size: (height, width) of the result; by default that of the maps, with ``map_scale`` 1.

    Returns:
        A plane with the picture's dtype and channels, or a frame with its format, colour and time, of ``size``. Each
        chroma sample is read where its site's luma comes from. The GPU interpolates at exact positions; OpenCV 4
        rounds them to 1/32 sample for linear and cubic. At multiples of that, both agree within one code (float32
        1e-4, float16 1e-3 of full scale), elsewhere within 1/32 of the difference between neighbouring samples.

    Raises:
        ValueError: Shapes, dtypes or sizes do not match, or a frame on the GPU is not semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    size = _checked_size(map_x, map_y, map_scale, size)
    read = MapRead(size, (1 / map_scale, 1 / map_scale), (0.0, 0.0))
    if not isinstance(picture, Frame):
        peak = int(np.iinfo(picture.dtype).max) if picture.dtype.kind == "u" else 0
        return _remap_plane(picture, map_x, map_y, read, Codes(peak), interpolation, border)
    if is_on_gpu(picture.planes[0]) and map_scale == 1:
        return _launch_frames([picture], map_x, map_y, read, interpolation, border)
    _make_readable(picture)
    planes = tuple(
        _remap_plane(plane, map_x, map_y, plane_read, code, interpolation, border)
        for plane, (plane_read, code) in zip(picture.planes, _plane_reads(picture, read), strict=True)
    )
    return replace(picture, planes=planes, ready=None)


def remap_eyes(
    eyes: Sequence[Frame],
    map_x: npt.NDArray[np.float32],
    map_y: npt.NDArray[np.float32],
    *,
    border: Border = "replicate",
    places: EyePlaces | None = None,
) -> Frame:
    """Sample the eyes of a frame with the same maps, linearly, into one side-by-side frame.

    Runs on the eyes' device: OpenCV on the CPU; CuPy in one CUDA kernel on the current stream (after the first eye's
    ``ready``), which reads the maps once for both.

    Args:
        eyes: One or two frames of one size, format and colour; on the GPU NV12 or P010.
        map_x: float32 [h, w], columns of an eye's luma to read, on the eyes' device. ``w`` must be even for two eyes.
        map_y: float32 [h, w], rows.
        border: As in ``remap``, for each eye.
        places: Result of ``eye_places`` for these maps and frames like the first; saves computing it on the CPU.

    Returns:
        A frame with the first one's format, colour and time, ``w`` samples wide per eye.

    Raises:
        ValueError: Shapes, dtypes or sizes do not match, or frames on the GPU are not semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    size = _checked_size(map_x, map_y, 1, None)
    alike = {(eye.format.name, eye.color, eye.height, eye.width) for eye in eyes}
    if not 1 <= len(eyes) <= 2 or len(alike) != 1 or (len(eyes) == 2 and size[1] % 2):
        raise ValueError(
            f"{len(eyes)} eyes of {len(alike)} kinds, maps {size}: expected one or two alike, and even maps for two"
        )
    first = eyes[0]
    if is_on_gpu(first.planes[0]):
        return _launch_frames(eyes, map_x, map_y, MapRead(size, (1.0, 1.0), (0.0, 0.0)), "linear", border)
    if places is None:
        places = eye_places(first, map_x, map_y)
    planes: list[Plane] = []
    for read, slots in zip(places.reads, ((0,), range(1, len(first.planes))), strict=True):
        sources = [[eye.planes[slot] for eye in eyes] for slot in slots]
        planes += _read_beside(sources, read, border)
    return replace(first, planes=tuple(planes), ready=None)


@dataclass(frozen=True, slots=True, eq=False)
class EyePlaces:
    """Positions at which ``remap_eyes`` reads eyes of one size, format and colour on the CPU."""

    reads: tuple[_PlaneRead, _PlaneRead]
    """How luma and chroma are read."""


@dataclass(frozen=True, slots=True, eq=False)
class _PlaneRead:
    columns: npt.NDArray[np.float32]
    rows: npt.NDArray[np.float32]
    read: MapRead
    codes: Sequence[Codes]
    """The range of each plane."""


def eye_places(eye: Frame, map_x: npt.NDArray[np.float32], map_y: npt.NDArray[np.float32]) -> EyePlaces:
    """Prepare the maps for ``remap_eyes`` on the CPU; the result serves all frames like ``eye``.

    Args:
        eye: A frame with the format and colour.
        map_x: As for ``remap_eyes``.
        map_y: As for ``remap_eyes``.
    """
    size = _checked_size(map_x, map_y, 1, None)
    (luma, luma_codes), *chroma = _plane_reads(eye, MapRead(size, (1.0, 1.0), (0.0, 0.0)))
    made = []
    for read, codes in ((luma, [luma_codes]), (chroma[0][0], [code for _, code in chroma])):
        made.append(_PlaneRead(_places(map_x, read, axis=1), _places(map_y, read, axis=0), read, codes))
    return EyePlaces((made[0], made[1]))


def _read_beside(sources: Sequence[Sequence[Plane]], places: _PlaneRead, border: Border) -> list[Plane]:
    """Read each eye's planes at the same positions, side by side; OpenCV reads them together."""
    planes = [(plane, code) for eyes, code in zip(sources, places.codes, strict=True) for plane in eyes]
    at_once = _AT_ONCE if len(planes) == _AT_ONCE and planes[0][0].ndim == 2 else 1
    made: list[Plane] = []
    for first in range(0, len(planes), at_once):
        group = planes[first : first + at_once]
        constant = tuple(value for _, code in group for value in code.constant)
        read = _read_places(
            group[0][0] if at_once == 1 else cv2.merge([plane for plane, _ in group]),
            places.columns,
            places.rows,
            places.read,
            replace(group[0][1], constant=constant),
            "linear",
            border,
        )
        made += [read] if at_once == 1 else cv2.split(read)
    count = len(sources[0])
    return [
        made[first] if count == 1 else np.concatenate(made[first : first + count], axis=1)
        for first in range(0, len(made), count)
    ]


def remap_stack(
    planes: npt.NDArray[Any],
    map_x: npt.NDArray[np.float32],
    map_y: npt.NDArray[np.float32],
    *,
    weight: npt.NDArray[np.float32] | None = None,
    add_to: npt.NDArray[Any] | None = None,
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Sample several planes at the maps' positions, linearly, with repeated borders.

    Runs on the planes' device: OpenCV on the CPU; CuPy in one CUDA kernel for all planes, on the current stream.

    Args:
        planes: float16 or float32 [N, h, w].
        map_x: float32 [H, W], columns of the planes to read, on the planes' device.
        map_y: float32 [H, W], rows.
        weight: float32 [H, W], a factor for each sample of the results.
        add_to: [N, H, W] of the planes' dtype, C-contiguous; the results are added to it in place.
        out: Like ``add_to``, but overwritten; give at most one of the two.

    Returns:
        [N, H, W] of the planes' dtype; ``add_to`` or ``out`` if given. CPU and GPU agree as for ``remap``.

    Raises:
        ValueError: Shapes or dtypes do not match.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    _checked_size(map_x, map_y, 1, None)
    shape = (len(planes), *map_x.shape)
    target_of_all = out if add_to is None else add_to
    fits = target_of_all is None or (
        (target_of_all.shape, target_of_all.dtype) == (shape, planes.dtype)
        and (out is None or add_to is None)
    )
    if planes.ndim != 3 or planes.dtype not in _DTYPES[2:] or not fits:
        raise ValueError(f"planes are {planes.dtype} {planes.shape}, expected float16 or float32 for {shape}")
    if is_on_gpu(planes):
        launched: npt.NDArray[Any] = _launch_stack(
            planes, map_x, map_y, weight=weight, made=target_of_all, adds=add_to is not None
        )
        return launched
    made = np.empty(shape, planes.dtype) if target_of_all is None else target_of_all
    first = 0
    while first < len(planes):
        group = slice(first, first + (_AT_ONCE if len(planes) - first >= _WORTH_FILLING else 1))
        read = _read_together(planes[group], map_x, map_y)
        for channel, target in enumerate(made[group]):
            if weight is None and add_to is None and made.dtype == np.float32:
                cv2.extractChannel(read, channel, dst=target)
                continue
            part: Any = cv2.extractChannel(read, channel, dst=scratch_array("read plane", map_x.shape))
            if weight is not None:
                part *= weight
            if add_to is None:
                target[...] = part
            else:
                target += part
        first = group.stop
    return made


_AT_ONCE = 4
"""Number of planes that OpenCV reads together, in half the time of separate reads; four equal a single read, two do
not."""
_WORTH_FILLING = 3
"""Number of planes from which on four are read, repeating the last."""


def _read_together(
    planes: npt.NDArray[Any], map_x: npt.NDArray[np.float32], map_y: npt.NDArray[np.float32]
) -> Any:
    """Read planes at the same positions into one or four channels; the thread's next call overwrites the result."""
    sources: Any = [plane.astype(np.float32, copy=False) for plane in planes]
    if len(planes) > 1:
        sources += sources[-1:] * (_AT_ONCE - len(sources))
        sources = [cv2.merge(sources, scratch_array("merged planes", (*planes.shape[1:], _AT_ONCE)))]
    channels = (_AT_ONCE,) if len(planes) > 1 else ()
    read = scratch_array("planes read", (*map_x.shape, *channels))
    return cv2.remap(sources[0], map_x, map_y, cv2.INTER_LINEAR, dst=read, borderMode=cv2.BORDER_REPLICATE)


def _checked_size(map_x: Any, map_y: Any, map_scale: int, size: tuple[int, int] | None) -> tuple[int, int]:
    if (
        map_x.shape != map_y.shape
        or map_x.ndim != 2
        or map_x.dtype != np.float32
        or map_y.dtype != np.float32
    ):
        raise ValueError(
            f"maps are {map_x.dtype} {map_x.shape} and {map_y.dtype} {map_y.shape}, expected float32 [h, w]"
        )
    if map_scale < 1:
        raise ValueError(f"map_scale is {map_scale}, expected at least 1")
    if size is None:
        if map_scale != 1:
            raise ValueError("a coarse map does not say how large the result is: give size")
        size = (int(map_x.shape[0]), int(map_x.shape[1]))
    needed = map_shape(size, map_scale)
    if map_x.shape[0] < needed[0] or map_x.shape[1] < needed[1] or min(size) < 1:
        raise ValueError(f"maps are {map_x.shape}, a result of {size} at scale {map_scale} needs {needed}")
    return size


def _make_readable(frame: Frame) -> None:
    """Refuse frames that the GPU's kernels cannot read, and make the current stream wait for the others."""
    if not is_on_gpu(frame.planes[0]):
        return
    if not frame.format.semi_planar:
        raise ValueError(f"the GPU kernel reads NV12 and P010, not {frame.format.name}")
    from vitascope.gpu.kernels.cuda_module import wait_until_ready

    wait_until_ready(frame)


def _codes(frame: Frame) -> list[Codes]:
    """The range of each plane's samples, with black outside."""
    black = [round(code) for code in yuv_from_rgb(frame.color, frame.format)[1]]
    constants = (
        [(black[0],), (black[1], black[2])] if frame.format.semi_planar else [(code,) for code in black]
    )
    step, peak = 1 << frame.format.sample_shift, (1 << frame.format.bit_depth) - 1
    return [Codes(peak, step, constant) for constant in constants]


def _plane_reads(frame: Frame, luma: MapRead) -> list[tuple[MapRead, Codes]]:
    """How each plane of a frame is read, and the range of its samples."""
    chroma = _chroma_read(frame, luma)
    return [(chroma if slot else luma, code) for slot, code in enumerate(_codes(frame))]


def _chroma_read(frame: Frame, luma: MapRead) -> MapRead:
    """Convert a luma map to chroma samples: each chroma site is read where its luma is."""
    fmt, location = frame.format, frame.color.chroma_location
    steps = (1 << fmt.chroma_shift_y, 1 << fmt.chroma_shift_x)
    # Luma samples from the first of a block to its site.
    site_y = 0.5 if fmt.chroma_shift_y and location != "topleft" else 0.0
    site_x = 0.5 if fmt.chroma_shift_x and location == "center" else 0.0
    width, height = fmt.chroma_size(luma.size[1], luma.size[0])
    return MapRead(
        (height, width),
        (luma.step[0] * steps[0], luma.step[1] * steps[1]),
        (luma.step[0] * site_y, luma.step[1] * site_x),
        (1 / steps[0], 1 / steps[1]),
        (-site_y / steps[0], -site_x / steps[1]),
    )


def _remap_plane(
    plane: Plane,
    map_x: Any,
    map_y: Any,
    read: MapRead,
    codes: Codes,
    interpolation: Interpolation,
    border: Border,
) -> Plane:
    if (
        plane.dtype not in _DTYPES
        or plane.ndim not in (2, 3)
        or (plane.ndim == 3 and not 1 <= plane.shape[2] <= 4)
    ):
        raise ValueError(
            f"plane is {plane.dtype} {plane.shape}, expected uint8, uint16, float16 or float32 [H, W] or [H, W, 1..4]"
        )
    if is_on_gpu(plane):
        moved: Plane = _launch_remap(
            plane, map_x, map_y, read, codes, interpolation=interpolation, border=border
        )
        return moved
    columns, rows = _places(map_x, read, axis=1), _places(map_y, read, axis=0)
    return _read_places(plane, columns, rows, read, codes, interpolation, border)


def _read_places(
    plane: Plane,
    columns: npt.NDArray[np.float32],
    rows: npt.NDArray[np.float32],
    read: MapRead,
    codes: Codes,
    interpolation: Interpolation,
    border: Border,
) -> Plane:
    """Read a plane in host memory at positions from ``_places``."""
    result: Any = cv2.remap(
        plane.astype(np.float32) if plane.dtype == np.float16 else plane,
        columns,
        rows,
        _INTERPOLATIONS[interpolation],
        borderMode=_BORDERS[border],
        borderValue=(*codes.constant, 0, 0, 0, 0)[:4],
    )
    made: Plane = np.asarray(result, plane.dtype).reshape(*read.size, *plane.shape[2:])
    if codes.step * codes.peak not in (0, np.iinfo(np.uint8).max, np.iinfo(np.uint16).max):
        # 10 bits in a 16-bit word: cubic may exceed the largest code, and P010's low bits must stay 0.
        whole = np.rint(made.astype(np.float32) / codes.step)
        made = (np.minimum(whole, codes.peak) * codes.step).astype(plane.dtype)
    return made


def _places(coordinates: npt.NDArray[np.float32], read: MapRead, *, axis: int) -> npt.NDArray[np.float32]:
    """A map at the size of a plane's result, in the plane's samples."""
    height, width = read.size
    if read.step == (1.0, 1.0) and read.shift == (0.0, 0.0):
        full = coordinates[:height, :width]
    else:
        rows, columns = (
            (np.arange(count) * step + shift).astype(np.float32)
            for count, step, shift in zip(read.size, read.step, read.shift, strict=True)
        )
        full = read_bilinear(np.ascontiguousarray(coordinates), rows, columns)
    if (scale := read.scale[axis]) == 1.0 and math.isclose(read.offset[axis], 0.0):
        return np.ascontiguousarray(full)
    return full * np.float32(scale) + np.float32(read.offset[axis])


# Same as in remap.cu.
_ROWS = 4
_BLOCK = (32, 8)

_AXIS = np.dtype(fields("f4", "step", "shift", "scale", "offset"))
_PLANE = np.dtype(
    [("data", "u8"), ("pitch", "i8"), *fields("i4", "height", "width"), ("constant", "f4", 4)], align=True
)
_MAPS = np.dtype(
    [*fields("u8", "x", "y"), *fields("i8", "x_pitch", "y_pitch"), *fields("i4", "height", "width")],
    align=True,
)
_JOB = np.dtype(
    [
        ("plane", _PLANE),
        ("maps", _MAPS),
        ("out", "u8"),
        ("out_size", "i4", 2),
        ("y", _AXIS),
        ("x", _AXIS),
    ],
    align=True,
)


def _frames_job(count: int) -> np.dtype[Any]:
    """The job's dtype for a number of frames."""
    fields = [
        ("planes", _PLANE, (2, count)),
        ("maps", _MAPS),
        ("out", "u8", 2),
        ("out_size", "i4", 2),
        ("y", _AXIS),
        ("x", _AXIS),
    ]
    return np.dtype(fields, align=True)


_SAMPLES = {"uint8": "unsigned char", "uint16": "unsigned short", "float16": "__half", "float32": "float"}
_KERNEL_INTERPOLATIONS = {"nearest": 0, "linear": 1, "cubic": 2}


def _launch_remap(
    plane: Any,
    map_x: Any,
    map_y: Any,
    read: MapRead,
    codes: Codes,
    *,
    interpolation: str,
    border: str,
) -> Any:
    """Run the kernel on the current CuPy stream.

    Args:
        plane: CuPy [H, W] or [H, W, C].
        map_x: CuPy float32 [h, w].
        map_y: CuPy float32 [h, w].
        read: How result samples map to positions.
        codes: Range of the samples.
        interpolation: ``nearest``, ``linear`` or ``cubic``.
        border: ``replicate`` or ``constant``.

    Raises:
        ValueError: A plane or map has 2^31 samples or more.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    out = cupy.empty((*read.size, *plane.shape[2:]), plane.dtype)
    job = np.zeros(1, _JOB)
    plane, map_x, map_y = (_with_dense_rows(array) for array in (plane, map_x, map_y))
    _describe_plane(job["plane"][0], plane, codes)
    _describe_maps(job["maps"][0], map_x, map_y)
    job["out"], job["out_size"] = out.data.ptr, read.size
    _describe_axes(job, read)
    kernel = cuda_kernel(
        "remap.cu",
        "remap",
        CHANNELS=1 if plane.ndim == 2 else plane.shape[2],
        COARSE=int(read.step != (1.0, 1.0) or read.shift != (0.0, 0.0)),
        **_defines(plane, codes, interpolation, border),
    )
    height, width = read.size
    with nvtx_range("remap"):
        kernel(
            (math.ceil(width / _BLOCK[0]), math.ceil(height / (_BLOCK[1] * _ROWS))), _BLOCK, (by_value(job),)
        )
    return out


def _launch_frames(
    frames: Sequence[Frame],
    map_x: Any,
    map_y: Any,
    read: MapRead,
    interpolation: Interpolation,
    border: Border,
) -> Frame:
    """Sample both planes of semi-planar frames, whose maps have luma resolution, side by side."""
    import cupy

    first, count = frames[0], len(frames)
    _make_readable(first)
    codes, chroma_read = _codes(first), _chroma_read(first, read)
    map_x, map_y = map(_with_dense_rows, (map_x, map_y))
    (height, width), (chroma_height, chroma_width) = read.size, chroma_read.size
    out = (
        cupy.empty((height, count * width), first.format.dtype),
        cupy.empty((chroma_height, count * chroma_width, 2), first.format.dtype),
    )
    job = np.zeros(1, _frames_job(count))
    # Kept alive until the launch: without references, the copies could share memory.
    dense = [[_with_dense_rows(plane) for plane in frame.planes] for frame in frames]
    for number, planes in enumerate(dense):
        for slot, (plane, code) in enumerate(zip(planes, codes, strict=True)):
            _describe_plane(job["planes"][0, slot, number], plane, code)
    _describe_maps(job["maps"][0], map_x, map_y)
    job["out"], job["out_size"] = [plane.data.ptr for plane in out], read.size
    _describe_axes(job, chroma_read)
    in_pairs = map_x.shape[1] % 2 == 0 and not any(
        places.data.ptr % 8 or places.strides[0] % 8 for places in (map_x, map_y)
    )
    kernel = cuda_kernel(
        "remap.cu",
        "remap_frames",
        PAIRS=int(in_pairs),
        FRAMES=count,
        **_defines(out[0], codes[0], interpolation, border),
    )
    with nvtx_range("remap"):
        kernel(
            (math.ceil(chroma_width / _BLOCK[0]), math.ceil(chroma_height / _BLOCK[1])),
            _BLOCK,
            (by_value(job),),
        )
    return replace(first, planes=out, ready=None)


def _describe_plane(target: Any, plane: Any, codes: Codes) -> None:
    _check_reach(plane)
    target["data"], target["pitch"] = plane.data.ptr, plane.strides[0] // plane.dtype.itemsize
    target["height"], target["width"] = plane.shape[:2]
    target["constant"][: len(codes.constant)] = codes.constant


def _describe_maps(target: Any, map_x: Any, map_y: Any) -> None:
    for name, places in (("x", map_x), ("y", map_y)):
        _check_reach(places)
        target[name], target[f"{name}_pitch"] = places.data.ptr, places.strides[0] // places.dtype.itemsize
    target["height"], target["width"] = map_x.shape


def _describe_axes(job: Any, read: MapRead) -> None:
    for index, name in enumerate("yx"):
        job[name][0] = read.step[index], read.shift[index], read.scale[index], read.offset[index]


def _check_reach(array: Any) -> None:
    if array.strides[0] // array.dtype.itemsize * array.shape[0] >= 2**31:
        raise ValueError("the GPU kernel reads planes and maps of fewer than 2^31 samples")


def _defines(plane: Any, codes: Codes, interpolation: str, border: str) -> dict[str, str | int]:
    return {
        "SAMPLE": _SAMPLES[plane.dtype.name],
        "PEAK": codes.peak,
        "STEP": codes.step,
        "INTERPOLATION": _KERNEL_INTERPOLATIONS[interpolation],
        "REPLICATE": int(border == "replicate"),
    }


_STACK = np.dtype(
    [
        *fields("u8", "planes", "map_x", "map_y", "weight", "out"),
        ("pitch", "i8"),
        *fields("i4", "count", "height", "width", "out_height", "out_width", "adds"),
    ],
    align=True,
)


def _launch_stack(planes: Any, map_x: Any, map_y: Any, *, weight: Any, made: Any, adds: bool) -> Any:
    import cupy

    out = cupy.empty((len(planes), *map_x.shape), planes.dtype) if made is None else made
    map_x, map_y = map(cupy.ascontiguousarray, (map_x, map_y))
    if not planes[0].flags.c_contiguous or planes.strides[0] % planes.dtype.itemsize:
        planes = cupy.ascontiguousarray(planes)
    weight = None if weight is None else cupy.ascontiguousarray(weight)
    job = np.zeros(1, _STACK)
    for name, array in (("planes", planes), ("map_x", map_x), ("map_y", map_y), ("out", out)):
        job[name] = array.data.ptr
    job["pitch"] = planes.strides[0] // planes.dtype.itemsize
    job["weight"] = 0 if weight is None else weight.data.ptr
    job["count"], job["height"], job["width"] = planes.shape
    job["out_height"], job["out_width"] = map_x.shape
    job["adds"] = int(adds)
    kernel = cuda_kernel("remap.cu", "remap_stack", SAMPLE=_SAMPLES[planes.dtype.name], PEAK=0)
    height, width = map_x.shape
    with nvtx_range("remap"):
        kernel((math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1])), _BLOCK, (by_value(job),))
    return out


def _with_dense_rows(array: Any) -> Any:
    """The array, copied only if samples of a row are not adjacent."""
    import cupy

    expected = array.dtype.itemsize
    for axis in range(array.ndim - 1, 0, -1):
        if array.strides[axis] != expected and array.shape[axis] > 1:
            return cupy.ascontiguousarray(array)
        expected *= array.shape[axis]
    return array
