"""RobustVideoMatting's state of a stream, and the sizes of its pictures, states and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import array_module, import_cupy
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import FloatArray, NetworkInput, SpatialState, each_part

LEVELS: Final = 4
"""The decoder's levels with a state: r1 to r4."""

_DEEPEST_STRIDE: Final = 1 << LEVELS


def body_downsample_ratio(size: tuple[int, int]) -> float:
    """The authors' ratio for full bodies (README of RobustVideoMatting), interpolated and extrapolated.

    Pictures up to 512 samples are not shrunk. Their table has 0.6 at 1280 samples, 0.4 at 1920 and 0.2 at 3840: 768
    samples on the longest side.

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
    """Longest side of the network's picture; sets the ratio when that is None."""

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
        """RGB 0..1, NCHW; mean and std are applied inside the network. Sizes are rounded down, like the authors'."""
        ratio = self.ratio_for(region_size)
        height, width = (max(int(length * ratio), _DEEPEST_STRIDE) for length in region_size)
        return NetworkInput((height, width), "NCHW", dtype=dtype)


def frame_chunks(frames: int, most: int) -> list[int]:
    """Split a number of frames into powers of two, so that few plans are needed: 13 into 8, 4 and 1.

    Args:
        frames: At least 1.
        most: Maximum of each part, rounded down to a power of two.
    """
    largest = 1 << (most.bit_length() - 1)
    parts = [largest] * (frames // largest)
    rest = frames % largest
    return parts + [1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1]


@dataclass(slots=True, eq=False)
class FollowedPeople:
    """Data of a stream kept between frames, besides its memory, where only people are computed at full size."""

    half: FloatArray
    """Features at half the picture's size, float32 [E, C, h, w]."""
    quarter: FloatArray
    """Features at a quarter of it, likewise."""
    gain: FloatArray
    """Gain of the last result, float32 [E, 1, h, w]."""
    offset: FloatArray
    """Likewise."""
    tiles: FloatArray
    """float32 [E, 3, rows, columns]: the picture's mean when each tile was last computed."""
    people: npt.NDArray[np.bool_]
    """Tiles [rows, columns] in which either eye sees somebody."""
    frames: int = 0
    """Number of frames so far in this shot."""

    def copy(self) -> FollowedPeople:
        """An independent copy."""
        half, quarter, gain, offset, tiles = (
            array.copy() for array in (self.half, self.quarter, self.gain, self.offset, self.tiles)
        )
        return FollowedPeople(half, quarter, gain, offset, tiles, self.people.copy(), self.frames)

    def arrays(self) -> list[FloatArray]:
        """All data as float32, for ``of_arrays``."""
        numbers = self.people.astype(np.float32), np.array([self.frames], np.float32)
        return [self.half, self.quarter, self.gain, self.offset, self.tiles, *numbers]

    @staticmethod
    def of_arrays(arrays: Sequence[FloatArray]) -> FollowedPeople:
        """Restore the result of ``arrays``, as a copy."""
        half, quarter, gain, offset, tiles, people, frames = (np.array(array) for array in arrays)
        return FollowedPeople(half, quarter, gain, offset, tiles, people > 0, int(frames[0]))


class RvmState:
    """The recurrent features of one stream: four float32 arrays [E, C, h, w], on the network's device."""

    __slots__ = ("_on_gpu", "follows_people", "people", "tensors")

    def __init__(self, *, on_gpu: bool = False) -> None:
        self._on_gpu = on_gpu
        self.tensors: list[FloatArray] | None = None
        """None before the first frame; CuPy arrays if the network computes on a GPU."""
        self.follows_people = False
        """True if the network may compute only what is near people, see ``follow_people``."""
        self.people: FollowedPeople | None = None
        """Where people are; None if unknown."""

    def reset(self) -> None:
        """Reset to the state of a new stream."""
        self.tensors = self.people = None
        self.follows_people = False

    def follow_people(self) -> None:
        """Allow the network to compute only what is near people in the next frames, if it can."""
        self.follows_people = True

    def window(self, parts: Sequence[Region]) -> RvmState:
        """The features of parts of the pictures, see ``SpatialState``."""
        state = RvmState(on_gpu=self._on_gpu)
        if self.tensors is not None:
            state.tensors = [
                # np.concatenate passes arrays on a GPU to CuPy.
                np.concatenate(
                    [tensor[eye : eye + 1, :, at.rows, at.columns] for eye, at in enumerate(places)]
                )
                for tensor, places in each_part(self.tensors, parts)
            ]
        return state

    def put(self, parts: Sequence[Region], state: SpatialState) -> None:
        """Replace the parts' features, see ``SpatialState``."""
        if self.tensors is None or not isinstance(state, RvmState) or state.tensors is None:
            raise ValueError("an empty state has no parts")
        # Copies, as the engine's arrays may be in use elsewhere.
        tensors = [tensor.copy() for tensor in self.tensors]
        for (tensor, places), own in zip(each_part(tensors, parts), state.tensors, strict=True):
            for eye, at in enumerate(places):
                tensor[eye, :, at.rows, at.columns] = own[eye]
        self.tensors, self.people = tensors, None

    def copy(self) -> RvmState:
        """Copy the features, see ``SpatialState``."""
        state = RvmState(on_gpu=self._on_gpu)
        state.tensors = None if self.tensors is None else [tensor.copy() for tensor in self.tensors]
        return state

    def take(self, state: SpatialState | None, share: FloatArray) -> None:
        """Blend in another state's features, see ``SpatialState``."""
        others: Sequence[Any] | None = [0.0] * LEVELS
        if state is not None:
            others = state.tensors if isinstance(state, RvmState) else None
        if self.tensors is None or others is None:
            raise ValueError("an empty state has no features")
        # In a run on a GPU, shares are there even if features are not; NumPy accepts no CuPy arrays.
        places = (import_cupy().asarray(share) if self._on_gpu else to_numpy(share))[:, None]
        tensors = []
        for own, other in zip(self.tensors, others, strict=True):
            at = _scaled(places, (own.shape[2], own.shape[3]))
            tensors.append(own + at * (other - own))
        self.tensors, self.people = tensors, None

    def stretch(self, size: tuple[int, int]) -> None:
        """Scale the features to pictures of (height, width), see ``SpatialState``."""
        self.people = None
        if self.tensors is not None:
            self.tensors = [
                _scaled(tensor, level) for tensor, level in zip(self.tensors, state_sizes(size), strict=True)
            ]

    def mirror(self) -> None:
        """Flip the features horizontally, see ``SpatialState``."""
        self.people = None
        if self.tensors is not None:
            arrays: Any = array_module(on_gpu=self._on_gpu)
            self.tensors = [arrays.ascontiguousarray(np.flip(tensor, -1)) for tensor in self.tensors]

    def arrays(self) -> list[FloatArray]:
        """Copy the features to the host, with what is known of people; see ``SpatialState``."""
        if self.tensors is None:
            return []
        if self.people is None:
            return [to_numpy(tensor) for tensor in self.tensors]
        # Copied, as they are modified in place.
        return [np.array(array) for array in (*self.tensors, *self.people.arrays())]

    def restore(self, arrays: Sequence[FloatArray]) -> None:
        """Continue from the result of ``arrays``, see ``SpatialState``."""
        make: Any = import_cupy().asarray if self._on_gpu else np.array
        self.tensors = [make(array) for array in arrays[:LEVELS]] or None
        people = arrays[LEVELS:]
        self.people = FollowedPeople.of_arrays(people) if people else None


def _scaled(features: FloatArray, size: tuple[int, int]) -> FloatArray:
    eyes, channels, height, width = features.shape
    planes = features.reshape(eyes * channels, 1, height, width)
    scaled: FloatArray = resized(planes, size).reshape(eyes, channels, *size)
    return scaled
