"""Sizes of RobustVideoMatting's calls: its pictures, its states, and frames at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from vitascope.models.network import NetworkInput

__all__ = ["LEVELS", "RvmInput", "body_downsample_ratio", "frame_chunks", "state_sizes"]

LEVELS: Final = 4
"""The decoder's levels with a state: r1 to r4."""

_DEEPEST_STRIDE: Final = 1 << LEVELS


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
    for _ in range(LEVELS):
        height, width = -(-height // 2), -(-width // 2)
        sizes.append((height, width))
    return sizes


@dataclass(frozen=True, slots=True)
class RvmInput:
    """The size of the network's pictures."""

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


def frame_chunks(frames: int, most: int) -> list[int]:
    """Cut a number of frames into powers of two, so that few numbers of frames need a plan: 13 is 8, 4 and 1.

    Args:
        frames: At least 1.
        most: Bound on each part; the largest power of two in it is the largest part.
    """
    largest = 1 << (most.bit_length() - 1)
    parts = [largest] * (frames // largest)
    rest = frames % largest
    return parts + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]
