"""Simple networks in place of LivePortrait's."""

from __future__ import annotations

import torch

from vitascope.models.liveportrait.motion import RawMotion


class SimpleNetworks:
    """Motion is the crop's mean colour; the painted square is as bright as the first keypoint moved."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.motions = 0
        self.painted: list[int] = []
        self.released = 0
        self.closed: list[float] = []
        self.is_closed = False

    def appearance(self, picture: torch.Tensor) -> torch.Tensor:
        return picture

    def motion(self, picture: torch.Tensor) -> RawMotion:
        self.motions += 1
        count = len(picture)
        expression = picture.mean((1, 2, 3)).view(count, 1, 1).repeat(1, 21, 3)
        zero = torch.zeros(count, 21, 3)
        return RawMotion(zero, expression, torch.ones(count, 1), torch.zeros(count, 3), torch.zeros(count, 3))

    def stitched(self, source: torch.Tensor, driving: torch.Tensor) -> torch.Tensor:
        assert source.shape == driving.shape
        return driving

    def closed_lips(self, source: torch.Tensor, openness: float) -> torch.Tensor:
        self.closed.append(openness)
        return torch.zeros_like(source)

    def paint(self, volume: torch.Tensor, driving: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        assert len(volume) == len(driving) == len(source)
        self.painted.append(len(driving))
        return (driving - source)[:, 0, 0].clamp(0, 1).view(-1, 1, 1, 1).expand(-1, 3, 512, 512)

    def release_idle_memory(self) -> None:
        self.released += 1

    def close(self) -> None:
        self.is_closed = True
