"""G: the picture, from warped appearance. SPADE (Park et al. 2019, arXiv:1903.07291)."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

__all__ = ["SpadeGenerator"]

_GUIDE_CHANNELS = 256
_HIDDEN_CHANNELS = 128
_SLOPE = 0.2
_MIDDLE_BLOCKS = 6


class SpadeGenerator(nn.Module):
    """Features to picture. 182 tensors with spectral norm, 146 without; 55 million parameters, 446 GMAC.

    Spectral norm is folded into the weights when a checkpoint is read (``weights.fold_spectral_norm``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv2d(_GUIDE_CHANNELS, 512, 3, padding=1)
        for index in range(_MIDDLE_BLOCKS):
            self.add_module(f"G_middle_{index}", _SpadeResidual(512, 512))
        self.up_0 = _SpadeResidual(512, 256)
        self.up_1 = _SpadeResidual(256, 64)
        self.conv_img = nn.Sequential(nn.Conv2d(64, 3 * 4, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, features: Tensor) -> Tensor:
        """Paint.

        Args:
            features: Float [B, 256, 64, 64] from the warping network.

        Returns:
            [B, 3, 512, 512], RGB 0..1.
        """
        x = self.fc(features)
        for index in range(_MIDDLE_BLOCKS):
            x = getattr(self, f"G_middle_{index}")(x, features)
        x = self.up_0(F.interpolate(x, scale_factor=2), features)
        x = self.up_1(F.interpolate(x, scale_factor=2), features)
        result: Tensor = self.conv_img(F.leaky_relu(x, _SLOPE)).sigmoid()
        return result


class _SpadeResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        middle = min(inputs, outputs)
        self.conv_0 = nn.Conv2d(inputs, middle, 3, padding=1)
        self.conv_1 = nn.Conv2d(middle, outputs, 3, padding=1)
        self.norm_0 = _Spade(inputs)
        self.norm_1 = _Spade(middle)
        self.is_learned_shortcut = inputs != outputs
        if self.is_learned_shortcut:
            self.conv_s = nn.Conv2d(inputs, outputs, 1, bias=False)
            self.norm_s = _Spade(inputs)

    def forward(self, x: Tensor, guide: Tensor) -> Tensor:
        shortcut = self.conv_s(self.norm_s(x, guide)) if self.is_learned_shortcut else x
        y = self.conv_0(F.leaky_relu(self.norm_0(x, guide), _SLOPE))
        y = self.conv_1(F.leaky_relu(self.norm_1(y, guide), _SLOPE))
        result: Tensor = shortcut + y
        return result


class _Spade(nn.Module):
    """Instance norm whose scale and shift are pictures, made from the guide."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp_shared = nn.Sequential(nn.Conv2d(_GUIDE_CHANNELS, _HIDDEN_CHANNELS, 3, padding=1), nn.ReLU())
        self.mlp_gamma = nn.Conv2d(_HIDDEN_CHANNELS, channels, 3, padding=1)
        self.mlp_beta = nn.Conv2d(_HIDDEN_CHANNELS, channels, 3, padding=1)

    def forward(self, x: Tensor, guide: Tensor) -> Tensor:
        hidden = self.mlp_shared(F.interpolate(guide, size=x.shape[2:]))
        result: Tensor = F.instance_norm(x) * (1 + self.mlp_gamma(hidden)) + self.mlp_beta(hidden)
        return result
