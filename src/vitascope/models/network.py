"""The port of every matting network: pictures of one stream go in, low-resolution mattes come out.

A network works at its own small resolution. The app asks ``input_for`` how to prepare the region it cuts out
(one eye, or the whole picture), scales each region to that size (stretched, aspect not kept), and hands over
consecutive frames of one stream. What comes back is a matte, or the coefficients of a guided filter that the
compositor evaluates against the full-resolution picture.

::

    network.input_for((height, width)) -> NetworkInput        how to prepare pictures
    network.new_state()                -> NetworkState        one per stream, both eyes together
    network.infer(images, state)       -> [MatteEstimate]     one per time step, in order

Networks hold nothing of a stream: what must survive from frame to frame (recurrent features, the presence
gate's memory) lies in the ``NetworkState`` that the caller keeps, so that many streams can share one network.
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
    """The form in which a network takes pictures.

    Raises:
        ValueError: A size below 1, or a standard deviation that is not positive.
    """

    size: tuple[int, int]
    """(height, width) that the region is scaled to; the aspect need not be the region's."""
    layout: InputLayout
    """Order of the last three axes of ``infer``'s pictures: C, H, W or H, W, C."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Subtracted from R, G, B, which are full-range, gamma-encoded, in 0..1."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """R, G, B are divided by it after the mean was subtracted."""
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
    """The low-resolution result of one time step, all eyes: a plain matte, or guided-filter coefficients.

    Exactly one of the two forms is filled: ``alpha``, or ``gain`` and ``offset``.

    Raises:
        ValueError: Both forms or none, or arrays whose shapes do not fit.
    """

    alpha: FloatArray | None = None
    """float32 [E, h, w], 0..1: a plain matte that the app still refines against the picture."""
    gain: FloatArray | None = None
    """float32 [E, 1 or 4, h, w]: factors of the guided filter (He, Sun, Tang: Guided Image Filtering, 2013); the last
    plane is alpha's. After bilinear upsampling to full size, ``alpha = gain[:, -1] * grey + offset[:, -1]``, grey is
    the mean of R, G, B in 0..1; the compositor clips it to 0..1. Three planes before it are a foreground's, of networks
    that estimate one, which nothing asks for; once a matte is settled, those of ``local_colors``."""
    offset: FloatArray | None = None
    """float32 [E, 1 or 4, h, w]: offsets of the guided filter, planes as in ``gain``."""

    def __post_init__(self) -> None:
        """Check that one form is filled, and its shape."""
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
        """What is filled: alpha, or gain and offset."""
        return [part for part in (self.alpha, self.gain, self.offset) if part is not None]

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues."""
        return sum(int(part.nbytes) for part in self.planes)

    @property
    def eye_count(self) -> int:
        """Pictures of this time step."""
        return int(self.planes[0].shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the low-resolution planes."""
        height, width = self.planes[0].shape[-2:]
        return int(height), int(width)

    @classmethod
    def joined(cls, estimates: Sequence[MatteEstimate]) -> MatteEstimate:
        """Estimates of one form and size, on one device, as one: all their eyes one after the other."""
        if len(estimates) == 1:
            return estimates[0]
        return cls._of_planes(
            [one_after_the_other(parts) for parts in zip(*(each.planes for each in estimates), strict=True)]
        )

    def of_eyes(self, which: slice) -> MatteEstimate:
        """What it says of some of its eyes."""
        return self._of_planes([each[which] for each in self.planes])

    @classmethod
    def _of_planes(cls, planes: Sequence[FloatArray]) -> MatteEstimate:
        return cls(alpha=planes[0]) if len(planes) == 1 else cls(gain=planes[0], offset=planes[1])


class NetworkState(Protocol):
    """The memory that one stream carries from frame to frame; only the network that made it may use it."""

    def reset(self) -> None:
        """Forget the past: the next frame is treated as the first (scene cut, seek)."""
        ...


class StatelessState:
    """The state of a network without memory."""

    __slots__ = ()

    def reset(self) -> None:
        """Do nothing: there is no memory."""


@runtime_checkable
class SpatialState(NetworkState, Protocol):
    """A state whose features follow the layout of the picture, so that it can be cut like the picture.

    Parts are given in samples of the network's picture, one for each eye, all of one size. They begin at multiples of
    the network's ``side_multiple``, and end at such or at the picture's edge.
    """

    def window(self, parts: Sequence[Region]) -> SpatialState:
        """The state of parts of the pictures: a copy; empty if the state is."""
        ...

    def put(self, parts: Sequence[Region], state: SpatialState) -> None:
        """Write back the parts that ``window`` returned after a network changed them; the rest stays.

        Raises:
            ValueError: Either state is empty, or of another network.
        """
        ...

    def copy(self) -> SpatialState:
        """The same features apart, to go another way from here; empty if the state is."""
        ...

    def take(self, state: SpatialState | None, share: FloatArray) -> None:
        """Replace features by those of a state of the same pictures, in part.

        Args:
            state: A state of the same network; None for one that knows nothing.
            share: float32 [E, rows, columns], 0..1, NumPy or CuPy: how much of the other's, by place.

        Raises:
            ValueError: Either state is empty, or of another network.
        """
        ...

    def stretch(self, size: tuple[int, int]) -> None:
        """Go on with pictures of the same at another size, of (height, width) samples: features are scaled.

        An empty state stays empty.
        """
        ...

    def mirror(self) -> None:
        """Go on with pictures in which left and right have changed places: so do the features.

        An empty state stays empty.
        """
        ...

    def arrays(self) -> list[FloatArray]:
        """The features in the host's memory; empty before the first frame."""
        ...

    def restore(self, arrays: Sequence[FloatArray]) -> None:
        """Restore the state from ``arrays`` of the same network; the next pictures must have the same size."""
        ...


@runtime_checkable
class FollowingState(NetworkState, Protocol):
    """A state that lets a network compute only the surroundings of people, and keep the rest."""

    def follow_people(self) -> None:
        """Allow it, until the state is reset: the stream's next frames come whole and in order; some may be missing."""
        ...


class MattingNetwork(Protocol):
    """A network that mattes people, on one engine. Calls come from one thread at a time.

    A network that takes pictures of any size also has ``side_multiple``, see there.
    """

    @property
    def name(self) -> str:
        """The network's name for reports, for example ``selfie``."""
        ...

    @property
    def engine_name(self) -> str:
        """The engine that runs it, for example ``onnxruntime-cpu``."""
        ...

    @property
    def recurrent(self) -> bool:
        """True when the matte of a frame depends on the frames before it through the network itself."""
        ...

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """The form of pictures of a region of (height, width) pixels; constant for one region size."""
        ...

    def new_state(self) -> NetworkState:
        """A fresh state for one stream; all its eyes share it."""
        ...

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte consecutive frames of one stream, and carry the state over them.

        Args:
            images: float32 [T, E, C, H, W] or [T, E, H, W, C] as ``input_for`` says, prepared with its mean
                and std. T consecutive frames of one stream (T may differ from call to call), E eyes.
            state: The stream's state, made by ``new_state`` of this network; changed in place.

        Returns:
            T estimates in order, each of E eyes.

        Raises:
            ModelError: Pictures that are not prepared as ``input_for`` says.
            EngineError: The engine failed.
        """
        ...

    def close(self) -> None:
        """Release the engine; the network can't be used afterwards. May be called twice."""
        ...


def side_multiple(network: MattingNetwork) -> int | None:
    """For a network that takes pictures of any size, the number whose multiples suit it as sides; None for others."""
    multiple: int | None = getattr(network, "side_multiple", None)
    return multiple


def engine_notes(opened: object) -> tuple[str, ...]:
    """Say which engines that were kept from an earlier run were built again, and why, one line each.

    Args:
        opened: A network or an engine; those that keep nothing say nothing.
    """
    # Both halves of a network may have the same to say.
    return tuple(dict.fromkeys(getattr(opened, "notes", ())))


def join_pictures(
    images: FloatArray, *, name: str, layout: InputLayout, size: tuple[int | None, int | None]
) -> FloatArray:
    """Check the pictures that ``infer`` was given, and join time steps and eyes into one batch.

    Args:
        images: float32 [T, E, C, H, W] or [T, E, H, W, C].
        name: The network's name, for the message.
        layout: Order of the last three axes.
        size: (height, width) that the network takes; None if it takes any.

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
    """A part of the picture in the samples of a level, each level half the size of the one before, rounded up.

    Args:
        part: In samples of the picture; begins at a multiple of ``2 ** level``, and ends at one or at the picture's
            edge.
        level: The number of times that the picture was halved.

    Raises:
        ValueError: It begins inside a sample of the level.
    """
    step = 1 << level
    if part.x % step or part.y % step:
        raise ValueError(f"{part} does not begin at a multiple of {step}")
    return Region(part.x >> level, part.y >> level, -(-part.width // step), -(-part.height // step))


def each_part(levels: Sequence[Level], parts: Sequence[Region]) -> Iterator[tuple[Level, list[Region]]]:
    """For each level of features, from half size down, where every eye's part lies in it."""
    for level, features in enumerate(levels, start=1):
        yield features, [at_level(part, level) for part in parts]
