"""Putting the painted square back into the portrait, on the device that painted it."""

from __future__ import annotations

import cv2
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor

from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.liveportrait.crop import paste_mask

__all__ = ["Paste"]


class Paste:
    """What stays the same for one portrait: where each pixel looks in the square, and how much of it shows.

    Args:
        portrait: uint8 [H, W, 3].
        to_crop: The affine map from the portrait to the square, float32 [2, 3].
        side: Of the square, pixels.
        device: Of the pictures that come.
    """

    def __init__(self, portrait: RgbPicture, to_crop: FloatArray, *, side: int, device: torch.device) -> None:
        height, width = portrait.shape[:2]
        corners = np.array([[0, 0, 1], [side, 0, 1], [0, side, 1], [side, side, 1]], np.float64)
        corners[:, :2] -= 0.5
        reached = corners @ cv2.invertAffineTransform(to_crop.astype(np.float64)).T
        left, top = (int(max(np.floor(low), 0)) for low in reached.min(axis=0))
        right, bottom = (int(high) + 1 for high in np.ceil(reached.max(axis=0)))
        self.box = (slice(top, min(bottom, height)), slice(left, min(right, width)))
        """Rows and columns of the portrait that change."""
        rows, columns = np.mgrid[self.box]
        x, y = (to_crop[axis, 0] * columns + to_crop[axis, 1] * rows + to_crop[axis, 2] for axis in (0, 1))
        # -1 and 1 are the outer edges of the outer pixels.
        grid = np.stack([(2 * x + 1) / side - 1, (2 * y + 1) / side - 1], axis=-1)
        self._grid = torch.from_numpy(grid.astype(np.float32))[None].to(device)
        mask = torch.from_numpy(paste_mask(side))[None, None].to(device)
        self._share = F.grid_sample(mask, self._grid, align_corners=False)
        kept = torch.from_numpy(portrait[self.box].astype(np.float32)).permute(2, 0, 1)[None].to(device)
        self._kept = kept * (1 - self._share)

    def into(self, painted: Tensor) -> Tensor:
        """The changed part of the portrait.

        Args:
            painted: [1, 3, side, side], RGB 0..1.

        Returns:
            uint8 [h, w, 3] of ``box``, on the same device.
        """
        sampled = F.grid_sample(painted.float(), self._grid, padding_mode="border", align_corners=False)
        blended = sampled * self._share * 255 + self._kept
        return blended[0].permute(1, 2, 0).add(0.5).clamp(0, 255).to(torch.uint8)
