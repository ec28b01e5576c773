"""What RobustVideoMatting is fed: how far a picture is shrunk for the network, whichever engine runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from vitascope.models.network import NetworkInput

__all__ = ["RvmInput", "body_downsample_ratio", "state_sizes"]

_LEVELS: Final = 4
_DEEPEST_STRIDE: Final = 1 << _LEVELS


def body_downsample_ratio(size: tuple[int, int]) -> float:
    """The authors' ratio for full bodies (README of RobustVideoMatting), continued between and beyond its rows.

    Up to 512 samples nothing is shrunk; 1280 gives 0.6 in their table and 0.4 at 1920, 0.2 at 3840: a network picture
    of 768 samples on the longest side.

    Args:
        size: (height, width) of one eye, upright.
    """
    return min(1.0, 768.0 / max(size))


def state_sizes(size: Sequence[int]) -> list[tuple[int, int]]:
    """(height, width) of the states r1 to r4 for a picture of (height, width): halved each time, rounded up."""
    height, width = size
    sizes = []
    for _ in range(_LEVELS):
        height, width = -(-height // 2), -(-width // 2)
        sizes.append((height, width))
    return sizes


@dataclass(frozen=True, slots=True)
class RvmInput:
    """How pictures for the network are made."""

    downsample_ratio: float | None = None
    """Size of the network's picture relative to the region; None chooses it for full bodies."""
    longest_side: int | None = None
    """Bound on the network picture's longest side; sets the ratio when that is None."""

    def ratio_for(self, region_size: tuple[int, int]) -> float:
        """The downsample ratio in effect for a region of (height, width)."""
        if self.downsample_ratio is not None:
            return self.downsample_ratio
        if self.longest_side is not None:
            return min(1.0, self.longest_side / max(region_size))
        return body_downsample_ratio(region_size)

    def input_for(
        self, region_size: tuple[int, int], *, dtype: Literal["float32", "float16"] = "float32"
    ) -> NetworkInput:
        """RGB 0..1, NCHW; mean and std are applied inside the network. Sizes floor, as the official graph's do."""
        ratio = self.ratio_for(region_size)
        height, width = (max(int(length * ratio), _DEEPEST_STRIDE) for length in region_size)
        return NetworkInput((height, width), "NCHW", dtype=dtype)
