"""Computes a matte at the network's size: alpha from guided-filter coefficients and their small picture.

Alpha is ``gain * grey + offset``, where grey is the mean of R, G and B (``MatteEstimate``). Each function runs on its
arrays' device: NumPy on the CPU; CuPy in one kernel on the current stream, where a CuPy expression would need a
launch and a pass over all planes for each operation. Results agree to rounding.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, is_on_gpu, nvtx_range

FloatArray = npt.NDArray[np.float32]

FLAT_BEYOND: Final = 0.25
"""Distance outside 0..1 at which alpha no longer follows the grey at all."""


class BoundedMatte(NamedTuple):
    """Result of ``bound_alpha``, on its input's device."""

    gain: FloatArray
    """float32 [N, 1, h, w]."""
    offset: FloatArray
    """float32 [N, 1, h, w]."""
    said: FloatArray
    """float32 [N, 3, h, w]: how sure alpha is, ``|2 alpha - 1|``; alpha; and how much it follows the picture's detail
    where it is partial, ``|gain| alpha (1 - alpha)``."""


def mean_of_channels(picture: npt.NDArray[Any], *, out: FloatArray | None = None) -> FloatArray:
    """Compute the picture's grey.

    Args:
        picture: float16 or float32 [N, C, h, w], C 3 (R, G, B) or 1 (grey).
        out: Output array on the CPU, float32 [N, h, w].

    Returns:
        float32 [N, h, w], on the picture's device.

    Raises:
        ValueError: The picture has another shape.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    _check_picture(picture)
    if is_on_gpu(picture):
        launched: FloatArray = _launch("mean_of_channels", picture)
        return launched
    if picture.shape[1] == 1:
        return picture[:, 0].astype(np.float32, copy=False)
    red, green, blue = (picture[:, channel] for channel in range(3))
    grey: FloatArray = np.add(red, green, out=out, dtype=np.float32)  # NumPy's mean takes much longer
    grey += blue
    grey /= np.float32(3)
    return grey


def alpha_at_grey(gain: npt.NDArray[Any], offset: npt.NDArray[Any], picture: npt.NDArray[Any]) -> FloatArray:
    """Compute alpha at each sample of the picture.

    Args:
        gain: float16 or float32 [N, C, h, w], C at least 1; the last plane is alpha's.
        offset: Likewise.
        picture: As for ``mean_of_channels``, of the same size and on the same device.

    Returns:
        float32 [N, h, w], 0..1.

    Raises:
        ValueError: Shapes do not match.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    _check(gain, offset, picture)
    if is_on_gpu(picture):
        launched: FloatArray = _launch("alpha_at_grey", picture, gain, offset)
        return launched
    own_gain, own_offset = (planes[:, -1].astype(np.float32) for planes in (gain, offset))
    alpha: FloatArray = (own_gain * mean_of_channels(picture) + own_offset).clip(0.0, 1.0)
    return alpha


def bound_alpha(
    gain: npt.NDArray[Any], offset: npt.NDArray[Any], picture: npt.NDArray[Any], *, is_mirrored: bool = False
) -> BoundedMatte:
    """Bound coefficients so that alpha is in 0..1 at the picture's greys; far outside, it no longer follows the grey.

    Args:
        gain: As for ``alpha_at_grey``.
        offset: As for ``alpha_at_grey``.
        picture: As for ``alpha_at_grey``.
        is_mirrored: Mirror the result horizontally.

    Raises:
        ValueError: Shapes do not match.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    _check(gain, offset, picture)
    if is_on_gpu(picture):
        launched: BoundedMatte = _launch("bound_alpha", picture, gain, offset, is_mirrored=is_mirrored)
        return launched
    own_gain, own_offset = (planes[:, -1:].astype(np.float32) for planes in (gain, offset))
    grey = mean_of_channels(picture)[:, None]
    free = own_gain * grey + own_offset
    inside = free.clip(0.0, 1.0)
    own_gain *= (1 - abs(free - inside) / FLAT_BEYOND).clip(0.0, 1.0)
    own_offset = inside - own_gain * grey
    alpha = own_gain * grey + own_offset
    said = np.concatenate([abs(2 * alpha - 1), alpha, abs(own_gain) * alpha * (1 - alpha)], axis=1)
    made = own_gain, own_offset, said
    return BoundedMatte(*(np.ascontiguousarray(np.flip(one, -1)) if is_mirrored else one for one in made))


def _check_picture(picture: npt.NDArray[Any]) -> None:
    if picture.ndim != 4 or picture.shape[1] not in (1, 3):
        raise ValueError(f"picture is {picture.shape}, expected [N, 3 or 1, height, width]")


def _check(gain: npt.NDArray[Any], offset: npt.NDArray[Any], picture: npt.NDArray[Any]) -> None:
    _check_picture(picture)
    count, _, *size = picture.shape
    for planes in (gain, offset):
        if planes.ndim != 4 or (planes.shape[0], *planes.shape[2:]) != (count, *size):
            raise ValueError(
                f"gain is {gain.shape}, offset {offset.shape}, picture {picture.shape}: they do not fit"
            )


# Same as in small_matte.cu.
_THREADS = 256
_READ = np.float16, np.float32
"""Types that the kernels read; others are converted."""
_PICTURE = np.dtype(
    [*fields("u8", "first"), *fields("i8", "step"), *fields("i4", "channels", "height", "width", "pad")]
)
_MATTE = np.dtype([*fields("u8", "gain", "offset"), *fields("i8", "gain_step", "offset_step")])


def _launch(
    name: str, picture: Any, gain: Any = None, offset: Any = None, *, is_mirrored: bool | None = None
) -> Any:
    """Run one of the kernels on the current CuPy stream; takes and returns the same as the function of that name."""
    import cupy

    picture = _with_whole_planes(picture if picture.dtype in _READ else picture.astype("float32"))
    count, channels, height, width = picture.shape
    shown = np.zeros(1, _PICTURE)
    shown[0] = picture.data.ptr, picture.strides[0] // picture.itemsize, channels, height, width, 0
    types = {"COLOR": picture.dtype}
    given: list[Any] = [by_value(shown)]
    if gain is not None:
        if gain.dtype != offset.dtype or gain.dtype not in _READ:
            gain, offset = gain.astype("float32"), offset.astype("float32")
        types["COEFFICIENT"] = gain.dtype
        own = [_with_whole_planes(planes[:, -1:]) for planes in (gain, offset)]
        matte = np.zeros(1, _MATTE)
        matte[0] = *(one.data.ptr for one in own), *(one.strides[0] // one.itemsize for one in own)
        given.append(by_value(matte))
    made: Any
    if is_mirrored is None:
        made = cupy.empty((count, height, width), "float32")
        given.append(made)
    else:
        made = BoundedMatte(*(cupy.empty((count, planes, height, width), "float32") for planes in (1, 1, 3)))
        given += [*made, np.int32(is_mirrored)]
    if picture.size:
        defines = {key: "__half" if dtype == np.float16 else "float" for key, dtype in types.items()}
        with nvtx_range("small matte"):
            kernel = cuda_kernel("small_matte.cu", name, FLAT_BEYOND=f"{FLAT_BEYOND}f", **defines)
            kernel((-(-height * width // _THREADS), count), (_THREADS,), tuple(given))
    return made


def _with_whole_planes(planes: Any) -> Any:
    """CuPy planes [N, C, h, w] with adjacent samples within a picture; pictures may be apart."""
    import cupy

    _, channels, height, width = planes.shape
    steps = (height * width, width, 1)
    lengths = (channels, height, width)
    is_whole = all(
        length == 1 or stride == step * planes.itemsize
        for length, stride, step in zip(lengths, planes.strides[1:], steps, strict=True)
    )
    return planes if is_whole else cupy.ascontiguousarray(planes)
