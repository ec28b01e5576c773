"""F: what the portrait looks like, as a volume of features; runs once for each portrait."""

from __future__ import annotations

from torch import Tensor, nn

from vitascope.models.liveportrait.blocks import ConvNorm2d, Residual3d

__all__ = ["VOLUME_CHANNELS", "VOLUME_DEPTH", "AppearanceExtractor"]

VOLUME_CHANNELS = 32
VOLUME_DEPTH = 16
_RESIDUALS = 6


class AppearanceExtractor(nn.Module):
    """Picture to appearance volume. 107 tensors, 0.84 million parameters, 32 GMAC."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ConvNorm2d(3, 64)
        self.down_blocks = nn.ModuleList(
            [ConvNorm2d(64, 128, halves=True), ConvNorm2d(128, 256, halves=True)]
        )
        self.second = nn.Conv2d(256, VOLUME_CHANNELS * VOLUME_DEPTH, 1)
        self.resblocks_3d = nn.Sequential()
        for index in range(_RESIDUALS):
            self.resblocks_3d.add_module(f"3dr{index}", Residual3d(VOLUME_CHANNELS))

    def forward(self, picture: Tensor) -> Tensor:
        """Extract.

        Args:
            picture: Float [B, 3, 256, 256], RGB 0..1.

        Returns:
            [B, 32, 16, 64, 64].
        """
        x = self.first(picture)
        for block in self.down_blocks:
            x = block(x)
        x = self.second(x)
        volume = x.view(x.shape[0], VOLUME_CHANNELS, VOLUME_DEPTH, *x.shape[2:])
        result: Tensor = self.resblocks_3d(volume)
        return result
