"""Read pictures, or batches of one size, in any form a caller has, and check kernels' arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy, to_numpy
from vitascope.gpu.kernels.batch_normalize import BatchLayout
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import whole_frame
from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.gpu.kernels.semi_planar import to_semi_planar, upload
from vitascope.gpu.number_checks import check_number


def full_scale(dtype: Any) -> float:
    """Factor that scales a dtype to 0..1: 1 / maximum for integers, 1 for floats."""
    return _full_scale(np.dtype(dtype))


@lru_cache(maxsize=64)
def _full_scale(dtype: np.dtype[Any]) -> float:
    return 1 / float(np.iinfo(dtype).max) if dtype.kind in "iu" else 1.0


def frame_from_nv12(planes: Any, *, color: ColorSpec | None = None) -> Frame:
    """Wrap NV12 or P010 planes as a ``Frame`` over the same memory.

    Args:
        planes: Either (luma [H, W], chroma [ceil(H/2), ceil(W/2), 2]), or both stacked as OpenCV and NVDEC
            return them, [H * 3 / 2, W] with even H and W. uint8 is NV12, uint16 is P010. NumPy or CuPy
            arrays.
        color: Matrix, range and chroma site; if omitted, limited range, the matrix players assume for the
            size, and left-sited chroma.

    Raises:
        ValueError: Shapes or dtypes are not those of NV12 or P010.
    """
    if isinstance(planes, tuple | list):
        if len(planes) != 2:
            raise ValueError(f"NV12 has two planes, luma and chroma, not {len(planes)}")
        luma, chroma = planes
    else:
        rows, width = planes.shape if planes.ndim == 2 else (0, 0)
        if not rows or rows % 3 or width % 2:
            raise ValueError(
                f"NV12 in one array is [H * 3 / 2, W] with even H and W, not {tuple(planes.shape)}"
            )
        height = rows // 3 * 2
        luma, chroma = planes[:height], planes[height:].reshape(height // 2, width // 2, 2)
    if luma.ndim != 2 or luma.dtype != chroma.dtype or luma.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"luma is {luma.dtype} {tuple(luma.shape)} and chroma {chroma.dtype}, "
            "expected two planes of uint8 (NV12) or uint16 (P010)"
        )
    height, width = luma.shape
    color = color or ColorSpec(matrix=ColorSpec.assumed_matrix(width, height), range_tagged=False)
    fmt = PIXEL_FORMATS["nv12" if luma.dtype == np.uint8 else "p010le"]
    return Frame((luma, chroma), fmt, color, 0, 0, Fraction(1))


class Picture:
    """One picture, or a batch of one size, in the caller's form.

    Args:
        given: A ``Frame``; NV12 or P010 planes, see ``frame_from_nv12``; or RGB [H, W, 3], [3, H, W], or a
            batch with a leading N. If both the last and the third axis from the end have 3 entries, channels
            are last.
        color: Colour of bare planes; a ``Frame`` has its own.

    Raises:
        TypeError: ``given`` is none of these.
        ValueError: The array is not a picture.
    """

    def __init__(self, given: Any, color: ColorSpec | None = None) -> None:
        if not (color is None or isinstance(color, ColorSpec)):
            raise TypeError(f"color is {color!r}, expected a vitascope.frames.ColorSpec, or None")
        self._given = given
        self._color = color
        self.count = 1
        """Number of pictures."""
        self.arrays: tuple[Any, ...]
        """The arrays that hold it."""
        if isinstance(given, Frame):
            self.arrays, self.size, self._layout = given.planes, (given.height, given.width), None
            return
        if isinstance(given, tuple | list):
            self.arrays, self._layout = tuple(given), None
            kinds = {kind_of(array) for array in given}
            if len(given) != 2 or len(given[0].shape) != 2 or len(kinds) != 1:
                raise ValueError("a pair of planes is luma [H, W] and chroma [h, w, 2] of one library")
            self.size = int(given[0].shape[0]), int(given[0].shape[1])
            return
        kind_of(given)  # raises if it is not an array
        self.arrays = (given,)
        shape = tuple(map(int, given.shape))
        self._layout = _layout_of(shape)
        if self._layout is None:
            self.size = shape[0] // 3 * 2, shape[1]
        else:
            self.count = shape[0] if len(shape) == 4 else 1
            first = -3 if self._layout == "NHWC" else -2
            self.size = shape[first], shape[first + 1]

    size: tuple[int, int]
    """(height, width)."""
    _layout: BatchLayout | None
    """None for YUV."""

    @property
    def is_yuv(self) -> bool:
        """Whether it is planes or a ``Frame``."""
        return self._layout is None

    def as_frame(self, place: Callable[[Any], Any], *, on_gpu: bool) -> Frame:
        """Get the frame on the kernels' device.

        Args:
            place: Moves an array there.
            on_gpu: Whether the device is a GPU, where frames are NV12 or P010.

        Raises:
            ValueError: It is RGB, or a frame in a format that the GPU's kernels do not read.
        """
        if not self.is_yuv:
            raise ValueError("an RGB picture has no planes; expected a Frame, or NV12 or P010 planes")
        frame = self._given
        if not isinstance(frame, Frame):
            many = isinstance(frame, tuple | list)
            planes = tuple(_as_own(array) for array in frame) if many else _as_own(frame)
            frame = frame_from_nv12(planes, color=self._color)
        if not on_gpu:
            return frame.with_planes(tuple(place(plane) for plane in frame.planes))
        if not is_on_gpu(frame.planes[0]):
            return upload(frame)
        return frame if frame.format.semi_planar else to_semi_planar(frame)

    def prepare(
        self,
        place: Callable[[Any], Any],
        *,
        on_gpu: bool,
        size: tuple[int, int],
        mean: tuple[float, ...],
        std: tuple[float, ...],
        layout: BatchLayout,
        reverse_channels: bool,
        dtype: Any,
        out: Any,
    ) -> Any:
        """Make a network input; see ``CUDAKernelProcessor.fused_preprocess``."""
        if self.is_yuv:
            frame = self.as_frame(place, on_gpu=on_gpu)
            bias: Any = mean
            deviation: Any = std
            return preprocess(
                frame,
                regions=[whole_frame(frame)],
                size=size,
                mean=bias,
                std=deviation,
                layout=layout,
                dtype=dtype,
                out=out,
            )
        images = place(self._given)
        layout_in: Any = self._layout
        return resize_normalize(
            # The fastest way to add an axis in CuPy.
            images if images.ndim == 4 else images.reshape(1, *images.shape),
            size=size, mean=mean, std=std, scale=full_scale(images.dtype), layout_in=layout_in, layout_out=layout,
            reverse_channels=reverse_channels, dtype=dtype, out=out,
        )  # fmt: skip


def _layout_of(shape: tuple[int, ...]) -> BatchLayout | None:
    if len(shape) == 2:
        return None
    if len(shape) in (3, 4) and shape[-1] == 3:
        return "NHWC"
    if len(shape) in (3, 4) and shape[-3] == 3:
        return "NCHW"
    raise ValueError(
        f"a picture is RGB [H, W, 3] or [3, H, W], a batch of these, or NV12 [H * 3 / 2, W], not {list(shape)}"
    )


def _as_own(array: Any) -> Any:
    """View the same memory as NumPy or CuPy, on its device."""
    return to_cupy(array) if lies_on_gpu(array) else to_numpy(array)


FLOAT_DTYPES = ("float32", "float16")
"""Element types of networks' inputs."""

_NAMES = {np.dtype(name): name for name in FLOAT_DTYPES}


def element_type(dtype: Any, out: Any, *, words: tuple[str, ...] = FLOAT_DTYPES) -> Any:
    """Normalise an element type to NumPy's name: the requested one, else that of ``out``, else float32.

    Args:
        dtype: The requested type, in any spelling; None for no request.
        out: Output array; None for a new one.
        words: Allowed names.

    Raises:
        ValueError: Another type was requested.
    """
    wanted = getattr(out, "dtype", None) if dtype is None else dtype
    if isinstance(wanted, np.dtype) and wanted in _NAMES:  # NumPy takes microseconds to name a dtype
        return _NAMES[wanted]
    name = "float32" if wanted is None else str(wanted).removeprefix("torch.")
    if name not in words:  # such as numpy.float32 itself
        with suppress(TypeError):
            name = np.dtype(wanted).name
    check_word("dtype", name, words)
    return name


def height_and_width(target_size: Any) -> tuple[int, int]:
    """Validate a size as two integers.

    Raises:
        ValueError: It is not two integers.
    """
    try:
        height, width = map(index, target_size)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"target_size is {target_size!r}, expected (height, width) in whole pixels"
        ) from error
    if min(height, width) < 1:
        raise ValueError(f"target_size is {(height, width)}, expected (height, width) of at least one pixel")
    return height, width


def check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    """Check that a word is one of those allowed.

    Raises:
        ValueError: It is not one of them.
    """
    if value not in words:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(words)}")


def check_affine(
    mean: Sequence[float], std: Sequence[float], *, scale: float = 1.0, channels: int | None = None
) -> None:
    """Check a mean, standard deviation and scale.

    Args:
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        scale: One factor for all channels.
        channels: Required number of channels; None allows any.

    Raises:
        ValueError: A value is not finite, a deviation is 0, or their number is wrong.
    """
    for name, values in (("mean", mean), ("std", std)):
        try:
            are_finite = all(map(math.isfinite, values))
        except TypeError as error:  # one number for all channels, or a string
            raise ValueError(f"{name} is {values!r}, expected a number for each channel") from error
        if not are_finite:
            raise ValueError(f"{name} is {tuple(values)}, expected finite numbers")
        if channels is not None and len(values) != channels:
            raise ValueError(f"{name} is {tuple(values)}, expected {channels} numbers, of R, G and B")
    check_number("scale", scale)
    if 0 in std:
        raise ValueError(f"std is {tuple(std)}, expected none to be 0")
