"""The interface of all matting networks: pictures of one stream in, low-resolution mattes out.

A network works at its own small resolution. The caller asks ``input_for`` how to prepare its region (one eye,
or the whole picture), scales the region to that size (stretched, without keeping the aspect), and passes
consecutive frames of one stream. The result is a matte, or guided-filter coefficients, which the compositor
evaluates against the full-resolution picture.

::

    network.input_for((height, width)) -> NetworkInput        how to prepare pictures
    network.new_state()                -> NetworkState        one per stream, both eyes together
    network.infer(images, state)       -> [MatteEstimate]     one per time step, in order

Networks hold no stream's data: everything kept between frames (recurrent features, the presence gate's
memory) is in the caller's ``NetworkState``, so many streams can share one network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from vitascope.errors import ModelError
from vitascope.gpu.interchange import one_after_the_other
from vitascope.gpu.kernels.region import Region

FloatArray = npt.NDArray[np.float32]

InputLayout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True, slots=True)
class NetworkInput:
    """Form of a network's input pictures.

    Raises:
        ValueError: A size is below 1, or a standard deviation is not positive.
    """

    size: tuple[int, int]
    """(height, width) to scale the region to; the aspect may differ from the region's."""
    layout: InputLayout
    """Order of the last three axes of ``infer``'s pictures: C, H, W or H, W, C."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Mean to subtract from R, G, B, which are full-range, gamma-encoded, in 0..1."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Divisor of R, G, B after subtracting the mean."""
    dtype: Literal["float32", "float16"] = "float32"
    """Element type of ``infer``'s pictures."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if min(self.size) < 1:
            raise ValueError(f"a network input of {self.size[0]}x{self.size[1]} holds no pixel")
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std} must be positive")

    def picture_shape(self) -> tuple[int, int, int]:
        """Shape of one prepared picture: (3, height, width) or (height, width, 3)."""
        height, width = self.size
        return (3, height, width) if self.layout == "NCHW" else (height, width, 3)


@dataclass(frozen=True, slots=True, eq=False)
class MatteEstimate:
    """Low-resolution result of one time step, for all eyes: a plain matte, or guided-filter coefficients.

    Either ``alpha`` is set, or ``gain`` and ``offset``.

    Raises:
        ValueError: Both forms or none are set, or shapes do not match.
    """

    alpha: FloatArray | None = None
    """float32 [E, h, w], 0..1: a plain matte, still to be refined against the picture."""
    gain: FloatArray | None = None
    """float32 [E, 1 or 4, h, w]: factors of the guided filter (He, Sun, Tang: Guided Image Filtering, 2013);
    the last plane is alpha's. After bilinear upsampling to full size, ``alpha = gain[:, -1] * grey +
    offset[:, -1]``, where grey is the mean of R, G, B in 0..1; the compositor clips it to 0..1. Three planes
    before it are the foreground's: from networks that estimate one, which nothing requests; or, for a
    finished matte, from ``local_colors``."""
    offset: FloatArray | None = None
    """float32 [E, 1 or 4, h, w]: offsets of the guided filter, planes as in ``gain``."""

    def __post_init__(self) -> None:
        """Check that exactly one form is set, and its shape."""
        if self.alpha is not None:
            if self.gain is not None or self.offset is not None:
                raise ValueError("an estimate is a matte or a pair of coefficients, not both")
            if self.alpha.ndim != 3:
                raise ValueError(f"alpha of shape {self.alpha.shape}, expected [eyes, height, width]")
            return
        if self.gain is None or self.offset is None:
            raise ValueError("an estimate needs alpha, or both gain and offset")
        if self.gain.ndim != 4 or self.gain.shape[1] not in (1, 4) or self.gain.shape != self.offset.shape:
            raise ValueError(
                f"gain {self.gain.shape} and offset {self.offset.shape}, expected [eyes, 4 or 1, height, width]"
            )

    @property
    def planes(self) -> list[FloatArray]:
        """The arrays that are set: alpha, or gain and offset."""
        return [part for part in (self.alpha, self.gain, self.offset) if part is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held, for queue limits."""
        return sum(int(part.nbytes) for part in self.planes)

    @property
    def eye_count(self) -> int:
        """Number of eyes."""
        return int(self.planes[0].shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the low-resolution planes."""
        height, width = self.planes[0].shape[-2:]
        return int(height), int(width)

    @classmethod
    def joined(cls, estimates: Sequence[MatteEstimate]) -> MatteEstimate:
        """Concatenate the eyes of estimates of one form and size, on one device."""
        if len(estimates) == 1:
            return estimates[0]
        return cls._of_planes(
            [one_after_the_other(parts) for parts in zip(*(each.planes for each in estimates), strict=True)]
        )

    def of_eyes(self, which: slice) -> MatteEstimate:
        """Select some of the eyes."""
        return self._of_planes([each[which] for each in self.planes])

    @classmethod
    def _of_planes(cls, planes: Sequence[FloatArray]) -> MatteEstimate:
        return cls(alpha=planes[0]) if len(planes) == 1 else cls(gain=planes[0], offset=planes[1])


class NetworkState(Protocol):
    """State of one stream between frames; only the network that made it may use it."""

    def reset(self) -> None:
        """Reset: the next frame is treated as the first (scene cut, seek)."""
        ...


class StatelessState:
    """State of a network without memory."""

    __slots__ = ()

    def reset(self) -> None:
        """Do nothing: there is no state."""


@runtime_checkable
class SpatialState(NetworkState, Protocol):
    """A state whose features are aligned with the picture, so that it can be cropped like the picture.

    Parts are given in samples of the network's picture, one per eye, all of one size. They begin at multiples
    of the network's ``side_multiple``, and end at multiples or at the picture's edge.
    """

    def window(self, parts: Sequence[Region]) -> SpatialState:
        """Copy the state of parts of the pictures; empty if the state is."""
        ...

    def put(self, parts: Sequence[Region], state: SpatialState) -> None:
        """Replace the parts' features by a state from ``window`` that the network has since updated.

        Raises:
            ValueError: Either state is empty, or from another network.
        """
        ...

    def copy(self) -> SpatialState:
        """Copy the state, to continue independently; empty if the state is."""
        ...

    def take(self, state: SpatialState | None, share: FloatArray) -> None:
        """Blend in the features of another state of the same pictures.

        Args:
            state: A state of the same network; None for an empty one.
            share: float32 [E, rows, columns], 0..1, NumPy or CuPy: weight of the other state, by position.

        Raises:
            ValueError: Either state is empty, or from another network.
        """
        ...

    def stretch(self, size: tuple[int, int]) -> None:
        """Rescale the features, to continue with the same pictures at another (height, width) in samples.

        An empty state stays empty.
        """
        ...

    def mirror(self) -> None:
        """Flip the features horizontally, to continue with mirrored pictures.

        An empty state stays empty.
        """
        ...

    def arrays(self) -> list[FloatArray]:
        """Copy the features to host memory; empty before the first frame."""
        ...

    def restore(self, arrays: Sequence[FloatArray]) -> None:
        """Continue from the result of ``arrays`` of the same network; picture sizes must stay the same."""
        ...


@runtime_checkable
class FollowingState(NetworkState, Protocol):
    """A state that lets a network compute only the surroundings of people and keep the rest, if it can."""

    def follow_people(self) -> None:
        """Allow it until the state is reset: the next frames must come whole and in order; some may be missing."""
        ...


class MattingNetwork(Protocol):
    """A network that mattes people, on one engine. Call it from one thread at a time.

    A network for pictures of any size also has ``side_multiple``; see the function of that name.
    """

    @property
    def name(self) -> str:
        """Name for reports, such as ``selfie``."""
        ...

    @property
    def engine_name(self) -> str:
        """Engine in use, such as ``onnxruntime-cpu``."""
        ...

    @property
    def recurrent(self) -> bool:
        """Whether a frame's matte depends on earlier frames through the network itself."""
        ...

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """Input form for a region of (height, width) pixels; constant for a region size."""
        ...

    def new_state(self) -> NetworkState:
        """Make a state for one stream; all its eyes share it."""
        ...

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte consecutive frames of one stream, updating its state.

        Args:
            images: float32 [T, E, C, H, W] or [T, E, H, W, C] in the form of ``input_for``, normalised with
                its mean and std. T consecutive frames of one stream (T may vary between calls), E eyes.
            state: The stream's state, from this network's ``new_state``; modified in place.

        Returns:
            T estimates in order, each of E eyes.

        Raises:
            ModelError: The pictures do not match ``input_for``.
            EngineError: The engine failed.
        """
        ...

    def close(self) -> None:
        """Release the engine; the network cannot be used afterwards. Idempotent."""
        ...


def side_multiple(network: MattingNetwork) -> int | None:
    """Preferred divisor of the sides, for a network that takes pictures of any size; None for others."""
    multiple: int | None = getattr(network, "side_multiple", None)
    return multiple


def engine_notes(opened: object) -> tuple[str, ...]:
    """Report which cached engines were rebuilt and why, one line each.

    Args:
        opened: A network or an engine; without a cache there are no notes.
    """
    # Both halves of a network may report the same.
    return tuple(dict.fromkeys(getattr(opened, "notes", ())))


def join_pictures(
    images: FloatArray, *, name: str, layout: InputLayout, size: tuple[int | None, int | None]
) -> FloatArray:
    """Check the pictures passed to ``infer``, and merge time steps and eyes into one batch.

    Args:
        images: float32 [T, E, C, H, W] or [T, E, H, W, C].
        name: The network's name, for the message.
        layout: Order of the last three axes.
        size: (height, width) of the network's input; None if any.

    Returns:
        float32 [T * E, ...], C-contiguous; a view where possible.

    Raises:
        ModelError: Another dtype, rank, channel count or size.
    """
    channel_axis, height_axis, width_axis = (2, 3, 4) if layout == "NCHW" else (4, 2, 3)
    if images.ndim == 5 and images.dtype == np.float32 and min(images.shape) > 0:
        met = images.shape[height_axis], images.shape[width_axis]
        fits = all(wanted is None or wanted == got for wanted, got in zip(size, met, strict=True))
        if fits and images.shape[channel_axis] == 3:
            joined = images.reshape(-1, *images.shape[2:])
            return joined if joined.flags.c_contiguous else joined.copy()
    height, width = ("any" if side is None else str(side) for side in size)
    axes = f"3, {height}, {width}" if layout == "NCHW" else f"{height}, {width}, 3"
    raise ModelError(
        f"{name}: got pictures {images.dtype} {list(images.shape)}, expected float32 [frames, eyes, {axes}]"
    )


Level = TypeVar("Level")


def at_level(part: Region, level: int) -> Region:
    """Convert a part of the picture to a level's samples; each level has half the size, rounded up.

    Args:
        part: Region in samples of the picture; begins at a multiple of ``2 ** level``, and ends at one or at
            the picture's edge.
        level: Number of halvings.

    Raises:
        ValueError: It begins inside a sample of the level.
    """
    step = 1 << level
    if part.x % step or part.y % step:
        raise ValueError(f"{part} does not begin at a multiple of {step}")
    return Region(part.x >> level, part.y >> level, -(-part.width // step), -(-part.height // step))


def each_part(levels: Sequence[Level], parts: Sequence[Region]) -> Iterator[tuple[Level, list[Region]]]:
    """Iterate over levels of features, from half size down, with every eye's part in each."""
    for level, features in enumerate(levels, start=1):
        yield features, [at_level(part, level) for part in parts]
