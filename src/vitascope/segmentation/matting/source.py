"""Where a stream's mattes come from: the cache, as far as it goes, then the network through its levers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from vitascope.gpu.interchange import to_numpy
from vitascope.models.network import FloatArray, MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.matting.cache import MatteCache
from vitascope.segmentation.matting.levers.chain import Stream, build_chain
from vitascope.segmentation.matting.levers.options import InferenceOptions, LeverReport, Tally
from vitascope.segmentation.matting.levers.pictures import Estimator, Pictures, RunShots, Views, tile_means
from vitascope.segmentation.matting.levers.whole import Whole
from vitascope.segmentation.matting.plain_matte import plain_rgb

__all__ = ["MatteSource"]

_MEMORY_FRAMES = 240
"""Between two copies of the network's memory: what an interrupted run loses at most, and 4 to 8 MB each."""


class MatteSource:
    """Gives one stream's mattes, in order. Its network is not touched before it is needed.

    Args:
        network: Of the run.
        run: Shows pictures to a network.
        views: Makes pictures of frames whose mattes vanished from the cache.
        eye_size: (height, width) of an eye, upright, in luma samples.
        options: Levers.
        warm_up_frames: See ``ShotInference``.
        with_foreground: True where the foreground's planes are needed, too.
        first_network: For ``early_exit="selfie"``.
        cache: Of this stretch of the film; None without.

    Raises:
        UsageError: The network cannot do what the options ask for.
    """

    def __init__(
        self,
        network: MattingNetwork,
        run: RunShots,
        *,
        views: Views,
        eye_size: tuple[int, int],
        options: InferenceOptions,
        warm_up_frames: int,
        with_foreground: bool,
        first_network: MattingNetwork | None = None,
        cache: MatteCache | None = None,
    ) -> None:
        self.tally = Tally()
        self.cache = cache
        self.with_foreground = with_foreground
        known = None if cache is None or not cache.is_complete else cache.network_input
        self.network_input: NetworkInput = network.input_for(eye_size) if known is None else known
        self._views = views
        self._since_memory = 0
        self._has_begun = False
        self._broke_off = False
        self._options, self._run = options, run
        self._stream = Stream(
            network=network,
            wanted=self.network_input,
            eye_size=eye_size,
            views=views,
            warm_up_frames=warm_up_frames,
            with_foreground=with_foreground,
            first_network=first_network,
        )
        self._chain: Estimator | None = None
        if known is None:
            self._opened()

    def is_known(self, index: int) -> bool:
        """True for frames whose mattes are in the cache."""
        return self.cache is not None and self.cache.covers(index)

    def needs_pictures(self, index: int) -> bool:
        """True for frames that the network will see, and for the one before them: both tell whether a shot begins."""
        return self.cache is None or not (
            self.cache.covers(index) and (self.cache.is_complete or self.cache.covers(index + 1))
        )

    def starts_shot(self, index: int) -> bool:
        """True where a frame whose matte is in the cache starts a shot."""
        return self.cache is not None and self.cache.starts_shot(index)

    def estimate(self, pictures: Pictures) -> list[MatteEstimate]:
        """Mattes of the next frames; those from the cache are coefficients in the host's memory.

        Args:
            pictures: ``images`` may be None where all frames are known.
        """
        self.tally.frames += len(pictures)
        estimates: list[MatteEstimate] = []
        for known, group in groupby(
            range(len(pictures)), lambda index: self.is_known(pictures.frames[index].index)
        ):
            where = list(group)
            if known:
                for index in where:
                    estimates.append(self._known(pictures, index))
            else:
                estimates += self._inferred(pictures.take(where))
        return estimates

    def memory(self, frames: int) -> list[FloatArray] | None:
        """After an ``estimate``: the network's memory, where it is time to keep a copy.

        Args:
            frames: That it gave, all of them new to the cache.
        """
        if self.cache is None or not isinstance(self._chain, Whole):
            return None
        self._since_memory += frames
        if self._since_memory < _MEMORY_FRAMES:
            return None
        self._since_memory = 0
        return self._chain.memory()

    def finish(self, *, is_whole: bool) -> list[str]:
        """Complete the cache, once all frames are through; what the user should know of it.

        Args:
            is_whole: True when the film, or its stretch, ended and was not broken off.
        """
        if self.cache is None:
            return []
        memory = self._chain.memory() if isinstance(self._chain, Whole) else None
        self.cache.finish(is_whole=is_whole, memory=memory)
        return self.cache.notes

    def report(self, eyes: int) -> LeverReport:
        """What became of the frames so far.

        Args:
            eyes: Pictures of a frame.
        """
        height, width = self.network_input.size
        return self.tally.report(eyes * height * width)

    def _known(self, pictures: Pictures, index: int) -> MatteEstimate:
        assert self.cache is not None  # it said that it knows
        frame = pictures.frames[index]
        estimate = self.cache.take(frame.index)
        if estimate is not None:
            self.tally.cached_frames += 1
            self._broke_off = True
            return estimate
        images = self._views.make([frame], self.network_input)
        tiles = to_numpy(tile_means(plain_rgb(images, self.network_input)))
        return self._asked(Pictures([frame], images, [self.starts_shot(frame.index)], tiles))[0]

    def _inferred(self, pictures: Pictures) -> list[MatteEstimate]:
        if not self._has_begun and self.cache is not None and self.cache.known_frames:
            chain = self._opened()
            if isinstance(chain, Whole) and chain.remember(self.cache.memory()):
                self._broke_off = False
        self._has_begun = True
        return self._asked(pictures)

    def _asked(self, pictures: Pictures) -> list[MatteEstimate]:
        """The network's answers; what it remembers does not go on over frames that it did not see."""
        starts: Sequence[bool] = pictures.starts_shot
        if self._broke_off:
            starts = [True, *starts[1:]]
            self._broke_off = False
        return self._opened().estimate(Pictures(pictures.frames, pictures.images, starts, pictures.tiles))

    def _opened(self) -> Estimator:
        if self._chain is None:
            self._chain = build_chain(self._options, self._stream, self._run, tally=self.tally)
        return self._chain
