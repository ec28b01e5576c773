"""Converts a network's estimate between its two forms: alpha at its own size, and guided-filter coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.guided import guided_coefficients
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.small_matte import BoundedMatte, alpha_at_grey, bound_alpha, mean_of_channels
from vitascope.models.network import MatteEstimate, NetworkInput

# The guided filter that refines a plain matte, in samples of the network's picture and squared grey levels. Chosen
# by eye on full bodies and faces among 1 to 4 and 1e-4 to 3e-2: wider windows leave halos, smaller epsilons let the
# texture of grass and hair into the matte.
_PLAIN_MATTE_RADIUS = 1
_PLAIN_MATTE_EPSILON = 1e-2
COARSER: Final = 4
"""Factor by which mattes for telling people apart are smaller than the network's."""


def plain_rgb(images: npt.NDArray[Any], wanted: NetworkInput) -> npt.NDArray[np.float32]:
    """Convert a network's pictures to RGB 0..1, [..., 3, h, w], undoing its mean, std and order of axes.

    Args:
        images: [..., 3, h, w] or [..., h, w, 3], NumPy or CuPy; the result is the same.
        wanted: How the pictures were prepared.
    """
    planes = images if wanted.layout == "NCHW" else images.swapaxes(-1, -2).swapaxes(-2, -3)
    if wanted.mean == (0.0, 0.0, 0.0) and wanted.std == (1.0, 1.0, 1.0):
        return planes
    # Channel by channel, because CuPy arrays combine with scalars but not with NumPy arrays.
    normal = planes.astype("float32")
    for channel, (mean, std) in enumerate(zip(wanted.mean, wanted.std, strict=True)):
        normal[..., channel, :, :] = normal[..., channel, :, :] * std + mean
    return normal


def fit_plain_matte(
    images: npt.NDArray[Any], alpha: npt.NDArray[np.float32], wanted: NetworkInput
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Compute the guided-filter coefficients of a plain matte.

    Args:
        images: [E, ...] the network's pictures of one frame, in the host's memory.
        alpha: float32 [E, h, w], 0..1.
        wanted: How the pictures were prepared.

    Returns:
        gain and offset, float32 [E, h, w].
    """
    rgb = plain_rgb(images, wanted).astype(np.float32, copy=False)
    if rgb.shape[2:] != alpha.shape[1:]:
        size = (alpha.shape[2], alpha.shape[1])
        rgb = np.stack(
            [[cv2.resize(plane, size, interpolation=cv2.INTER_AREA) for plane in eye] for eye in rgb]
        )
    return guided_coefficients(rgb, alpha, radius=_PLAIN_MATTE_RADIUS, epsilon=_PLAIN_MATTE_EPSILON)


def small_alpha(estimate: MatteEstimate, images: Any, wanted: NetworkInput) -> Any:
    """Alpha float32 [E, h, w], 0..1, at the estimate's size, on its device.

    Args:
        estimate: Estimate of one frame.
        images: [E, ...] what the network saw of it.
        wanted: How that was prepared.
    """
    if estimate.alpha is not None:
        return estimate.alpha
    assert estimate.gain is not None  # MatteEstimate holds either form
    assert estimate.offset is not None
    return alpha_at_grey(estimate.gain, estimate.offset, _picture_of(estimate, images, wanted))


def small_grey(
    estimate: MatteEstimate, images: Any, wanted: NetworkInput, *, out: npt.NDArray[np.float32] | None = None
) -> Any:
    """The mean of R, G and B that the network saw, float32 [E, h, w], 0..1, at the estimate's size.

    Args:
        estimate: Estimate of one frame.
        images: [E, ...] what the network saw of it.
        wanted: How that was prepared.
        out: On the CPU: an array of the size of the images that the result may be written to.
    """
    return mean_of_channels(_picture_of(estimate, images, wanted, out=out), out=out)


def _picture_of(
    estimate: MatteEstimate, images: Any, wanted: NetworkInput, *, out: npt.NDArray[np.float32] | None = None
) -> Any:
    """What the network saw, [E, 3, h, w]; if the estimate has another size or device, its grey [E, 1, h, w]."""
    picture = plain_rgb(images, wanted)
    # A matte may be refined on the host.
    is_apart = is_on_gpu(picture) and not is_on_gpu(estimate.planes[0])
    if picture.shape[2:] == estimate.size and not is_apart:
        return picture
    grey = mean_of_channels(picture, out=out)[:, None]
    if grey.shape[2:] != estimate.size:
        grey = resized(grey, estimate.size)
    return to_numpy(grey) if is_apart else grey


def as_coefficients(estimate: MatteEstimate, images: Any, wanted: NetworkInput) -> MatteEstimate:
    """Convert an estimate to guided-filter coefficients, which can be refined without the network's picture.

    Args:
        estimate: Estimate of one frame.
        images: [E, ...] what the network saw of it, NumPy or CuPy.
        wanted: How that was prepared.

    Returns:
        alpha's gain and offset; for a plain matte in the host's memory, like the matte.
    """
    if estimate.gain is not None and estimate.offset is not None:
        if estimate.gain.shape[1] == 1:
            return estimate
        return MatteEstimate(gain=estimate.gain[:, -1:], offset=estimate.offset[:, -1:])
    assert estimate.alpha is not None  # MatteEstimate holds either form
    gain, offset = fit_plain_matte(to_numpy(images), to_numpy(estimate.alpha), wanted)
    return MatteEstimate(gain=gain[:, None], offset=offset[:, None])


def bounded(
    estimates: Sequence[MatteEstimate], images: Any, wanted: NetworkInput, *, is_mirrored: bool = False
) -> BoundedMatte:
    """Bound coefficients so that alpha stays in 0..1 at the picture's own greys, see ``bound_alpha``.

    Alpha is linear in the coefficients, so a mean of bounded coefficients is the mean of the mattes; without bounds,
    one far below 0 would outvote the others. All frames at once, because on a GPU launches take longer than the work.

    Args:
        estimates: Estimates of N frames, in either form.
        images: [N, E, ...] what the network saw of them.
        wanted: How that was prepared.
        is_mirrored: Mirror the results.

    Returns:
        Of N * E pictures, on their device.
    """
    kept = [as_coefficients(one, seen, wanted) for one, seen in zip(estimates, images, strict=True)]
    together = MatteEstimate.joined(kept)
    assert together.gain is not None  # set above
    assert together.offset is not None
    picture = _picture_of(together, images.reshape(-1, *images.shape[2:]), wanted)
    return bound_alpha(together.gain, together.offset, picture, is_mirrored=is_mirrored)


def coarse(planes: Any) -> Any:
    """Shrink planes [N, C, h, w] to a quarter of the size, to tell people apart, on their device."""
    height, width = planes.shape[2:]
    return resized(planes, (ceil(height / COARSER), ceil(width / COARSER)))


def enlarged(planes: Any, size: tuple[int, int]) -> Any:
    """Resize planes [E, C, h, w], as float32, on their device."""
    if planes.shape[2:] == size:
        return planes.astype("float32")
    return resized(array_module(on_gpu=is_on_gpu(planes)).ascontiguousarray(planes), size)


def empty_estimate(images: Any, wanted: NetworkInput) -> MatteEstimate:
    """An empty matte: zero coefficients, only for alpha, at the network's size and on the device of ``images``."""
    arrays = array_module(on_gpu=is_on_gpu(images))
    shape = (images.shape[0], 1, *wanted.size)
    return MatteEstimate(gain=arrays.zeros(shape, "float32"), offset=arrays.zeros(shape, "float32"))
