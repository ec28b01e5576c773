"""The operations of ``mask_cuda.py`` as framework code does them: PyTorch, eager."""

from __future__ import annotations

import torch
from torch.nn import functional

from vitascope.gpu.kernels.morphology import structuring_element


def torch_box(plane: torch.Tensor, radius: int) -> torch.Tensor:
    """Separable max pooling, in half precision, which holds 8-bit codes exactly."""
    side = 2 * radius + 1
    across = functional.max_pool2d(plane[None, None].half(), (1, side), stride=1, padding=(0, radius))
    return functional.max_pool2d(across, (side, 1), stride=1, padding=(radius, 0))[0, 0].to(torch.uint8)


def torch_disc(plane: torch.Tensor, radius: int) -> torch.Tensor:
    """One pooled row for each row of the disc, shifted and joined."""
    height = plane.shape[0]
    picture = plane[None, None].half()
    padded = functional.pad(picture, (0, 0, radius, radius))
    most = torch.zeros_like(picture)
    for offset, row in enumerate(structuring_element("disc", radius)):
        reach = int(row.sum()) // 2
        pooled = functional.max_pool2d(
            padded[:, :, offset : offset + height], (1, 2 * reach + 1), stride=1, padding=(0, reach)
        )
        most = torch.maximum(most, pooled)
    return most[0, 0].to(torch.uint8)


def torch_gaussian(plane: torch.Tensor, sigma: float, radius: int) -> torch.Tensor:
    """Separable convolution of [N, 1, H, W] floats; borders repeat."""
    taps = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device="cuda") / sigma) ** 2)
    taps /= taps.sum()
    padded = functional.pad(plane, (radius, radius, radius, radius), mode="replicate")
    across = functional.conv2d(padded, taps[None, None, None])
    return functional.conv2d(across, taps[None, None, :, None])


def torch_edges(plane: torch.Tensor) -> torch.Tensor:
    """Threshold 0.1..0.9, grow by 2, feather by 2."""
    levels = ((plane.float() / 255 - 0.1) / 0.8).clamp(0, 1)
    grown = torch_disc((levels * 255).to(torch.uint8), 2)
    return torch_gaussian(grown[None, None].float(), 2.0, 6).round()[0, 0].to(torch.uint8)


class TorchSmoother:
    """The motion-gated average, as framework code does it."""

    def __init__(self, strength: float) -> None:
        self._strength = strength
        self._past: tuple[torch.Tensor, torch.Tensor] | None = None

    def smooth(self, luma: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        """The next frame's alpha."""
        padded = functional.pad(luma[None, None].float() / 255, (2, 2, 2, 2), mode="reflect")
        mean = functional.avg_pool2d(padded, 5, stride=1)[0, 0]
        now = alpha.float()
        if self._past is not None:
            change = (mean - self._past[0]) / 0.03
            now = now + self._strength * torch.exp(-change * change) * (self._past[1] - now)
        self._past = mean, now
        return now.round().to(torch.uint8)
