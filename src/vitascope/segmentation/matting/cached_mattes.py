"""The cache as the last link of the chain: mattes that are known come from it, and new ones go into it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import FloatArray, MatteEstimate
from vitascope.segmentation.matting.batch import Batch, Estimator, RememberingEstimator, tile_means
from vitascope.segmentation.matting.cache import MatteCache
from vitascope.segmentation.matting.estimates import as_coefficients, plain_rgb
from vitascope.segmentation.matting.shots import StreamNetwork

_MEMORY_FRAMES = 240
"""Between two copies of the network's memory: what an interrupted run loses at most, and some 20 MB each; up to 64 for
two eyes of VR."""


class Coming(Protocol):
    """Arrays on their way from the GPU."""

    def wait(self) -> Sequence[Any]:
        """The arrays in the host's memory, once they are there."""
        ...


@dataclass(frozen=True, slots=True)
class _NewMatte:
    """A matte on its way into the cache."""

    index: int
    """The frame's."""
    matte: MatteEstimate | Coming | None
    """None if the one before serves again."""
    starts_shot: bool
    memory: list[FloatArray] | None
    """The network's after this frame, where that is kept."""
    before: list[FloatArray] | None
    """The network's before this frame, where another run can only go on from there."""


class CachedMattes:
    """Asks the network for what the cache does not have. The network is not touched before it is needed.

    Args:
        cache: Mattes of this stretch of the video.
        stream: The network, and how it is shown frames.
        open_inner: Makes the rest of the chain, when the first matte is missing.
        download: Begins to bring CuPy arrays down; None if all are in the host's memory.
    """

    def __init__(
        self,
        cache: MatteCache,
        stream: StreamNetwork,
        open_inner: Callable[[], Estimator],
        *,
        download: Callable[[Sequence[Any]], Coming] | None = None,
    ) -> None:
        self._cache, self._stream, self._download = cache, stream, download
        self._open_inner = open_inner
        self._inner: Estimator | None = None if cache.is_complete else open_inner()
        self._since_memory = 0
        self._has_begun = False
        self._broke_off = False
        self._sent: MatteEstimate | None = None
        self._last: MatteEstimate | None = None
        self._new: deque[_NewMatte] = deque()

    def is_known(self, index: int) -> bool:
        """True for frames whose mattes are in the cache."""
        return self._cache.covers(index)

    def needs_pictures(self, index: int) -> bool:
        """True for frames that the network will see, and for the one before them: both tell whether a shot begins."""
        cache = self._cache
        return not (cache.covers(index) and (cache.is_complete or cache.covers(index + 1)))

    def starts_shot(self, index: int) -> bool:
        """True where a frame whose matte is in the cache starts a shot."""
        return self._cache.starts_shot(index)

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames; those from the cache are coefficients in the host's memory.

        Args:
            batch: ``images`` may be None if all frames are known.
        """
        estimates: list[MatteEstimate] = []
        for known, group in groupby(range(len(batch)), lambda at: self.is_known(batch.frames[at].index)):
            where = list(group)
            if known:
                estimates += [self._known(batch, at) for at in where]
            else:
                estimates += self._inferred(batch.take(where))
        return estimates

    def store(self, last_index: int | None = None) -> None:
        """Give the cache the new mattes up to a frame, or all; waits for what comes down from a GPU.

        Called by one thread, which need not be that of ``estimate``.
        """
        while self._new and (last_index is None or self._new[0].index <= last_index):
            new = self._new.popleft()
            if isinstance(new.matte, MatteEstimate):
                self._last = new.matte
            elif new.matte is not None:
                # Copies: page-locked memory is for what is on its way.
                gain, offset = (np.array(planes) for planes in new.matte.wait())
                self._last = MatteEstimate(gain=gain, offset=offset)
            assert self._last is not None  # only a later frame can be like the one before
            self._cache.keep(
                self._last,
                starts_shot=new.starts_shot,
                wanted=self._stream.wanted,
                memory=new.memory,
                before=new.before,
            )

    def finish(self, *, is_whole: bool) -> list[str]:
        """Complete the cache, once all frames are through; what the user should know of it.

        Args:
            is_whole: True when the video, or its stretch, ended and was not broken off.
        """
        self.store()
        memory = self._inner.memory() if isinstance(self._inner, RememberingEstimator) else None
        self._cache.finish(is_whole=is_whole, memory=memory)
        return self._cache.notes

    def _known(self, batch: Batch, at: int) -> MatteEstimate:
        frame = batch.frames[at]
        estimate = self._cache.take(frame.index)
        if estimate is not None:
            self._stream.tally.cached_frames += 1
            self._broke_off = True
            return estimate
        wanted = self._stream.wanted
        images = self._stream.views.make([frame], wanted)
        tiles = to_numpy(tile_means(plain_rgb(images, wanted)))
        return self._asked(Batch([frame], images, [self.starts_shot(frame.index)], tiles=tiles))[0]

    def _inferred(self, batch: Batch) -> list[MatteEstimate]:
        if not self._has_begun and self._cache.known_frames:
            inner = self._opened()
            if isinstance(inner, RememberingEstimator) and inner.remember(self._cache.memory()):
                self._broke_off = False
        self._has_begun = True
        before = None
        if batch.is_cut_short:
            inner = self._opened()
            before = (inner.memory() if isinstance(inner, RememberingEstimator) else None) or []
        return self._kept(batch, self._asked(batch), before=before)

    def _asked(self, batch: Batch) -> list[MatteEstimate]:
        """The network's answers; what it remembers does not go on over frames that it did not see."""
        if self._broke_off:
            batch = replace(batch, starts_shot=[True, *batch.starts_shot[1:]])
            self._broke_off = False
        return self._opened().estimate(batch)

    def _kept(
        self, batch: Batch, estimates: Sequence[MatteEstimate], *, before: list[FloatArray] | None
    ) -> list[MatteEstimate]:
        """New estimates as coefficients, on their way into the cache."""
        stream, memory = self._stream, self._memory(len(batch))
        answers: list[MatteEstimate] = []
        for at, (estimate, starts_shot) in enumerate(zip(estimates, batch.starts_shot, strict=True)):
            # A matte that serves again is kept once; a plain one is fitted to every picture that it serves.
            is_same = estimate is self._sent and estimate.alpha is None
            self._sent = estimate
            coefficients = as_coefficients(estimate, batch.images[at], stream.wanted)
            answers.append(coefficients if estimate.alpha is not None else estimate)
            matte = None if is_same else self._begun(coefficients)
            is_last = at == len(batch) - 1
            self._new.append(
                _NewMatte(
                    batch.frames[at].index,
                    matte,
                    starts_shot,
                    memory if is_last else None,
                    None if at else before,
                )
            )
        return answers

    def _begun(self, coefficients: MatteEstimate) -> MatteEstimate | Coming:
        gain, offset = coefficients.gain, coefficients.offset
        if self._download is None or not is_on_gpu(gain):
            return coefficients
        arrays: list[Any] = [gain, offset]
        return self._download([one if one.flags.c_contiguous else one.copy() for one in arrays])

    def _memory(self, frames: int) -> list[FloatArray] | None:
        """The network's memory after so many more frames, where it is time to keep a copy."""
        if not isinstance(self._inner, RememberingEstimator):
            return None
        self._since_memory += frames
        if self._since_memory < _MEMORY_FRAMES:
            return None
        self._since_memory = 0
        return self._inner.memory()

    def _opened(self) -> Estimator:
        if self._inner is None:
            self._inner = self._open_inner()
        return self._inner
