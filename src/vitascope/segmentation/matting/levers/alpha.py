"""The matte that an estimate stands for, at the network's size: what levers judge it by."""

from __future__ import annotations

from typing import Any

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.levers.pictures import array_module, resized
from vitascope.segmentation.matting.plain_matte import fit_plain_matte, plain_rgb

__all__ = ["as_coefficients", "empty_estimate", "small_alpha", "small_grey"]


def small_alpha(estimate: MatteEstimate, images: Any, wanted: NetworkInput) -> Any:
    """Alpha float32 [E, h, w], 0..1, at the estimate's size, on its device.

    Args:
        estimate: Of one frame.
        images: [E, ...] what the network saw of it.
        wanted: How that was prepared.
    """
    if estimate.alpha is not None:
        return estimate.alpha
    assert estimate.gain is not None  # MatteEstimate holds either form
    assert estimate.offset is not None
    grey = small_grey(estimate, images, wanted)
    gain, offset = (planes[:, -1].astype("float32") for planes in (estimate.gain, estimate.offset))
    return (gain * grey + offset).clip(0.0, 1.0)


def small_grey(estimate: MatteEstimate, images: Any, wanted: NetworkInput) -> Any:
    """The mean of R, G and B that the network saw, float32 [E, h, w], 0..1, at the estimate's size.

    Args:
        estimate: Of one frame.
        images: [E, ...] what the network saw of it.
        wanted: How that was prepared.
    """
    grey = plain_rgb(images, wanted).mean(axis=-3, dtype="float32")
    if grey.shape[1:] != estimate.size:
        grey = resized(grey[:, None], estimate.size)[:, 0]
    if is_on_gpu(grey) and not is_on_gpu(estimate.gain):
        grey = to_numpy(grey)  # a matte that was refined in the host's memory
    return grey


def as_coefficients(
    estimate: MatteEstimate, images: Any, wanted: NetworkInput, *, with_foreground: bool
) -> MatteEstimate:
    """The estimate as guided-filter coefficients, which stand by themselves: no picture is needed to refine them.

    Args:
        estimate: Of one frame.
        images: [E, ...] what the network saw of it, NumPy or CuPy.
        wanted: How that was prepared.
        with_foreground: Keep the foreground's planes, where there are any.

    Returns:
        gain and offset; of a plain matte in the host's memory, like the matte.
    """
    if estimate.gain is not None and estimate.offset is not None:
        if with_foreground or estimate.gain.shape[1] == 1:
            return estimate
        return MatteEstimate(gain=estimate.gain[:, -1:], offset=estimate.offset[:, -1:])
    assert estimate.alpha is not None  # MatteEstimate holds either form
    gain, offset = fit_plain_matte(to_numpy(images), to_numpy(estimate.alpha), wanted)
    return MatteEstimate(gain=gain[:, None], offset=offset[:, None])


def empty_estimate(images: Any, wanted: NetworkInput) -> MatteEstimate:
    """Nobody: coefficients of zero, alpha's alone, at the network's size and on the device of ``images``."""
    arrays = array_module(on_gpu=is_on_gpu(images))
    shape = (images.shape[0], 1, *wanted.size)
    return MatteEstimate(gain=arrays.zeros(shape, "float32"), offset=arrays.zeros(shape, "float32"))
