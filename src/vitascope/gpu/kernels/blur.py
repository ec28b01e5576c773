"""A blur that leaves people out: normalised convolution (Knutsson and Westin, 1993).

``out = G * (picture * w) / G * w`` with ``w`` how much of each sample is background and ``G`` a Gaussian: a person's
colour never reaches the samples around it. A wide Gaussian is the same at a quarter of its deviation for a sixteenth
of the work, so each axis is first shrunk to where the deviation is 4 to 8 samples, and the result grown back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu

__all__ = ["LEAST_SHARE", "BlurPlan", "blur_without", "plan_blur"]

# A window of more samples than this is not worth a smaller picture, and would not fit a GPU block's row sums.
_LARGEST_FACTOR = 480

# Share of background below which nothing is left to average, in code values of the weight: deep inside a person.
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class BlurPlan:
    """How one plane is blurred: at which size, and how far there."""

    size: tuple[int, int]
    """(height, width) of the shrunk plane."""
    sigma: tuple[float, float]
    """(vertical, horizontal) standard deviation in samples of the shrunk plane."""
    radius: tuple[int, int]
    """(vertical, horizontal) samples on each side that the Gaussian reads: four deviations."""


def plan_blur(shape: tuple[int, ...], sigma_x: float, sigma_y: float) -> BlurPlan:
    """The plan for a plane of ``shape``: the CPU and the GPU follow the same one.

    Raises:
        ValueError: A standard deviation is not above 0.
    """
    if not (sigma_x > 0 and sigma_y > 0):
        raise ValueError(f"the standard deviations must be above 0, not {sigma_x} and {sigma_y}")
    factors = [min(max(int(sigma / 4), 1), _LARGEST_FACTOR) for sigma in (sigma_y, sigma_x)]
    height, width = (max(length // factor, 1) for length, factor in zip(shape[:2], factors, strict=True))
    vertical, horizontal = sigma_y / factors[0], sigma_x / factors[1]
    # As OpenCV chooses a kernel for float samples: 8 deviations wide, odd.
    radius_y, radius_x = ((round(8 * sigma + 1) | 1) // 2 for sigma in (vertical, horizontal))
    return BlurPlan((height, width), (vertical, horizontal), (radius_y, radius_x))


def blur_without(plane: Plane, weight: Plane, sigma_x: float, sigma_y: float) -> Plane:
    """The blur of what is background, as far as the background reaches.

    Runs where the plane is: NumPy on the CPU; CuPy on the GPU, ordered on the current stream, with no float
    intermediate of the plane's own size. Borders repeat.

    Args:
        plane: uint8 or uint16 [H, W] or [H, W, 2].
        weight: uint8 or uint16, full scale 255 or 65535: how much of each sample is person and left out. The plane's
            shape, or [H, W] for all channels. On the plane's device.
        sigma_x: Horizontal standard deviation in samples of the plane, above 0.
        sigma_y: Vertical standard deviation.

    Returns:
        The plane's shape and dtype. Where no background is near (deep inside a person) it means nothing.

    Raises:
        ValueError: Shapes or dtypes do not fit, a deviation is not above 0, or one above 4300 samples on the GPU.
        KernelCompileError: The CUDA source could not be built for this GPU.

    The GPU's result is within 2 codes of the CPU's.
    """
    if weight.shape not in (plane.shape, plane.shape[:2]):
        raise ValueError(f"weight is {weight.shape}, expected {plane.shape} or {plane.shape[:2]}")
    if plane.dtype not in (np.uint8, np.uint16) or weight.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"plane is {plane.dtype} and weight {weight.dtype}, expected uint8 or uint16")
    plan = plan_blur(plane.shape, sigma_x, sigma_y)
    if is_on_gpu(plane):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.blur_cuda import launch_blur

        made: Plane = launch_blur(plane, weight, plan)
        return made
    return _blur(plane, weight, plan)


def _blur(plane: Plane, weight: Plane, plan: BlurPlan) -> Plane:
    height, width = plane.shape[:2]
    remaining: Any = cv2.bitwise_not(weight).astype(np.float32).reshape(weight.shape)
    weighted = plane * (remaining if weight.ndim == plane.ndim else remaining[..., None])
    mass, share = (_spread(part, plan) for part in (weighted, remaining))
    share = np.maximum(share, np.float32(LEAST_SHARE))
    blurred: Plane = mass / (share if share.ndim == mass.ndim else share[..., None])
    blurred = cv2.resize(blurred, (width, height), interpolation=cv2.INTER_LINEAR).reshape(plane.shape)
    return np.clip(np.rint(blurred), 0, np.iinfo(plane.dtype).max).astype(plane.dtype)


def _spread(part: Plane, plan: BlurPlan) -> Plane:
    """Shrunk and blurred."""
    (height, width), (sigma_y, sigma_x) = plan.size, plan.sigma
    small = cv2.resize(part, (width, height), interpolation=cv2.INTER_AREA)
    size = (2 * plan.radius[1] + 1, 2 * plan.radius[0] + 1)
    blurred: Plane = cv2.GaussianBlur(small, size, sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REPLICATE)
    return blurred.reshape(height, width, *part.shape[2:])
