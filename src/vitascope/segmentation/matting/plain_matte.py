"""From a network's pictures and its plain matte to the coefficients of a guided filter."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.guided import guided_coefficients
from vitascope.models.network import NetworkInput

__all__ = ["fit_plain_matte", "plain_rgb"]

# Of the guided filter that refines a plain matte, in samples of the network's picture and squared grey levels. Chosen
# by eye on full bodies and faces among 1 to 4 and 1e-4 to 3e-2: wider windows leave halos, smaller epsilons let the
# texture of grass and hair into the matte.
_PLAIN_MATTE_RADIUS = 1
_PLAIN_MATTE_EPSILON = 1e-2


def plain_rgb(images: npt.NDArray[Any], wanted: NetworkInput) -> npt.NDArray[np.float32]:
    """A network's pictures as RGB 0..1, [..., 3, h, w], without its mean, its std and its order of axes.

    Args:
        images: [..., 3, h, w] or [..., h, w, 3], NumPy or CuPy; the result is the same.
        wanted: How they were prepared.
    """
    planes = images if wanted.layout == "NCHW" else images.swapaxes(-1, -2).swapaxes(-2, -3)
    if wanted.mean == (0.0, 0.0, 0.0) and wanted.std == (1.0, 1.0, 1.0):
        return planes
    # Channel by channel, because a CuPy array takes scalars but no NumPy array beside it.
    normal = planes.astype("float32")
    for channel, (mean, std) in enumerate(zip(wanted.mean, wanted.std, strict=True)):
        normal[..., channel, :, :] = normal[..., channel, :, :] * std + mean
    return normal


def fit_plain_matte(
    images: npt.NDArray[Any], alpha: npt.NDArray[np.float32], wanted: NetworkInput
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Guided-filter coefficients of a plain matte.

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
