"""The objects passed between stages: batches of frames for a network, and its mattes, on the CPU and the GPU.

::

    Frame ──prepare──> Batch ──estimate──> Matted ──render──> Rendered
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.models.network import FloatArray, InputLayout, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.scene_cuts import Change

TILES_LONGEST_SIDE = 48
"""Tiles along the longest side in ``tile_means``: a tile has about 16 samples of the network's picture."""


class JoinedPictures:
    """Pictures [T, E, ...] of consecutive frames, in their original arrays; joining and slicing copy nothing.

    Args:
        parts: Arrays [t, E, ...] in the host's memory, or ``JoinedPictures``; t may be 0.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts: list[npt.NDArray[Any]] = []
        for part in parts:
            self._parts += part._parts if isinstance(part, JoinedPictures) else [part]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, like an array's."""
        return len(self), *self._parts[0].shape[1:]

    @property
    def size(self) -> int:
        """Samples."""
        return sum(part.size for part in self._parts)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(part.nbytes for part in self._parts)

    def __getitem__(self, which: int | slice) -> Any:
        """Return the pictures of one frame, [E, ...], or of a range of frames."""
        if not isinstance(which, slice):
            return self[which : which + 1].together()[0]
        first, end, _ = which.indices(len(self))
        taken, begin = [], 0
        for part in self._parts:
            own = part[max(first - begin, 0) : max(end - begin, 0)]
            if len(own):
                taken.append(own)
            begin += len(part)
        return JoinedPictures(taken or [self._parts[0][:0]])

    def together(self) -> npt.NDArray[Any]:
        """Return all pictures as one array; a view if they are in one array."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)


@dataclass(slots=True, eq=False)
class Batch:
    """Consecutive frames of one stream, and the network's input for them."""

    frames: Sequence[Frame]
    images: Any
    """[T, E, ...] in the network's input format, NumPy or CuPy; None if all mattes are known."""
    changes: Sequence[Change] = ()
    """How each frame differs from those before it; empty until that is known."""
    tiles: Any = None
    """float32 [T, 3 E, rows, columns], RGB 0..1: ``tile_means`` of each frame, or only of the first eye [T,
    3, ...] if no lever needs both; cuts are found with the first eye's. None if not needed. On the images'
    device at first, in the host's memory when cuts are searched for."""
    prepared: Any = None
    """CUDA event after which frames and images are ready; None on the CPU."""
    decided: Sequence[Change] = ()
    """Changes of the frames that this batch decides, also of earlier ones that waited for it; empty until cuts are
    looked for."""
    is_cut_short: bool = False
    """True if the batch begins a shot and the run ends within the frames of its look-ahead: a longer run
    would give other mattes."""
    following: Sequence[Frame] = ()
    """The shot's next frames, for levers that run backwards from them; they come again in the next batch.
    Empty without such a lever, and at a shot's end."""
    shown: Any = None
    """[T, E * count, ...]: the fisheye pictures of ``images``, if they are made in advance; in joined batches both are
    ``JoinedPictures``."""
    made_of: Sequence[Batch] = ()
    """The batches that this one was joined or taken from. On a GPU their memory must live as long as this batch: it was
    allocated on another CUDA stream."""

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def starts_shot(self) -> Sequence[bool]:
        """For each frame, True if it starts a shot; empty until that is known."""
        return [change.starts_shot for change in self.changes]

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues."""
        pictures = sum(int(one.nbytes) for one in (self.images, self.shown) if one is not None)
        return sum(frame.nbytes for frame in self.frames) + pictures

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Join consecutive batches of one device; either all of them have images, or none has."""
        if len(batches) == 1:
            return batches[0]

        apart = all(batch.shown is not None for batch in batches)

        def together(arrays: list[Any]) -> Any:
            if apart:
                return JoinedPictures(arrays)
            # np.concatenate passes arrays on a GPU to CuPy.
            return None if arrays[0] is None else np.concatenate(arrays)

        return cls(
            [frame for batch in batches for frame in batch.frames],
            together([batch.images for batch in batches]),
            [change for batch in batches for change in batch.changes],
            tiles=None if batches[0].tiles is None else np.concatenate([batch.tiles for batch in batches]),
            shown=together([batch.shown for batch in batches]),
            made_of=[source for batch in batches for source in batch._sources()],
        )

    def take(self, indices: Sequence[int]) -> Batch:
        """Return some of the frames, in order."""
        if len(indices) == len(self):
            return self
        where = list(indices)

        def taken(pictures: Any) -> Any:
            if pictures is None:
                return None
            if where and where == list(range(where[0], where[-1] + 1)):
                return pictures[where[0] : where[-1] + 1]  # a view: nothing is copied
            if isinstance(pictures, JoinedPictures):
                return JoinedPictures([pictures[at : at + 1] for at in where])
            return pictures[where]

        return Batch(
            [self.frames[index] for index in where],
            taken(self.images),
            [self.changes[index] for index in where] if self.changes else (),
            tiles=None if self.tiles is None else self.tiles[where],
            is_cut_short=self.is_cut_short,
            following=self.following,
            shown=taken(self.shown),
            made_of=self._sources(),
        )

    def _sources(self) -> Sequence[Batch]:
        return self.made_of or (self,)


@dataclass(slots=True, eq=False)
class Matted:
    """A frame and its matte at the network's size."""

    frame: Frame
    estimate: MatteEstimate
    shot: int
    """Number of its shot, from 0; nothing is carried over between shots."""
    images: Any = None
    """[E, ...]: the network's pictures of the frame, to which a plain matte is fitted and from which colours along
    edges are taken. None if neither is needed."""
    batch: Batch | None = None
    """On a GPU, the frame's batch, whose memory must live until the frame is drawn; None on the CPU."""
    is_settled: bool = False
    """True once ``estimate`` is final."""
    unfinished: Unfinished | None = None
    """Remaining work that maps ``estimate`` to the eyes, done on the thread that draws; None if it is mapped
    already."""

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues."""
        held = self.frame, self.estimate, self.images, self.unfinished
        return sum(int(one.nbytes) for one in held if one is not None)


class Unfinished(Protocol):
    """A network's output for a frame, and the work still to do on it."""

    @property
    def estimate(self) -> MatteEstimate:
        """The network's output for the pictures that it was shown."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held in addition to the estimate, for the queues."""
        ...

    def finish(self) -> MatteEstimate:
        """The matte."""
        ...


class Estimator(Protocol):
    """Makes a matte for each frame of one stream; called in order, by one thread.

    The network is an estimator (``ShotInference``), and so is everything in front of it: levers, the cache.
    """

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Return the mattes of the next frames, one each."""
        ...


@runtime_checkable
class BeginningEstimator(Estimator, Protocol):
    """An estimator whose mattes can be finished on any thread, on the CPU."""

    def begin(self, batch: Batch) -> Sequence[Unfinished]:
        """Like ``estimate``, but without the work of ``Unfinished.finish``."""
        ...


Around = Callable[[Estimator, NetworkInput], Estimator]
"""Wraps the estimator of a video; called with it and with the network's input format."""


@runtime_checkable
class RememberingEstimator(Estimator, Protocol):
    """An estimator whose network's memory can be saved, so that another run can continue from it."""

    def memory(self) -> list[FloatArray] | None:
        """Return the network's memory of the stream; None if it cannot be saved."""
        ...

    def remember(self, memory: Sequence[FloatArray]) -> bool:
        """Restore the result of ``memory``; False if the network cannot."""
        ...


def mirrored(images: Any, layout: InputLayout) -> Any:
    """Pictures flipped left to right, as a copy on their device."""
    axis = -1 if layout == "NCHW" else -2
    return array_module(on_gpu=is_on_gpu(images)).ascontiguousarray(np.flip(images, axis))


def tiles_size(height: int, width: int) -> tuple[int, int]:
    """Return (rows, columns) of the tiles of a picture: at most 48 along the longer side."""
    shrink = max(max(height, width) / TILES_LONGEST_SIDE, 1.0)
    return max(round(height / shrink), 1), max(round(width / shrink), 1)


def tile_means(rgb: Any) -> Any:
    """Compute the mean of each tile of a picture: it averages out noise, and shows where a picture changed.

    Args:
        rgb: float32 or float16 [T, E, 3, h, w], 0..1, NumPy or CuPy, any strides.

    Returns:
        float32 [T, 3 E, *tiles_size] on the same device.
    """
    steps, eyes, _, height, width = rgb.shape
    size = tiles_size(height, width)
    arrays = array_module(on_gpu=is_on_gpu(rgb))
    pictures = arrays.ascontiguousarray(rgb.reshape(steps * eyes, 3, height, width))
    return resized(pictures, size).reshape(steps, eyes * 3, *size)
