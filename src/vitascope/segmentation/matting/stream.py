"""Mattes a video from frames to alpha: prepare, infer, refine. The same on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, groupby
from math import prod
from typing import Any

import numpy as np

from vitascope.config.compute import InferenceSettings
from vitascope.frames import Frame, Plane, Rotation, StereoLayout
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges
from vitascope.gpu.kernels.foreground import colors_size, decontaminate, local_colors
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.steady import AlphaSmoother
from vitascope.gpu.memory.host_arrays import RecycledArrays
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput, side_multiple
from vitascope.segmentation.matting.batch import (
    Around,
    Batch,
    BeginningEstimator,
    Estimator,
    Matted,
    Unfinished,
    tile_means,
)
from vitascope.segmentation.matting.cache import CachedMattes, Coming, MatteCache
from vitascope.segmentation.matting.estimates import as_coefficients, plain_rgb, small_alpha
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.levers.chain import build_chain
from vitascope.segmentation.matting.people_seen import PeopleSeen
from vitascope.segmentation.matting.scene_cuts import Change, SceneCutDetector
from vitascope.segmentation.matting.shot_windows import ShotBeginnings, ShotWindows
from vitascope.segmentation.matting.shots import EyeViews, StreamNetwork, Times
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement
from vitascope.segmentation.report import LeverReport
from vitascope.vr.projection import Lens
from vitascope.vr.stereo import eye_regions


@dataclass(frozen=True, slots=True)
class MattingOptions:
    """Matting settings, as plain values."""

    edges: EdgeOptions = field(default_factory=EdgeOptions)
    decontaminate: bool = False
    temporal_smoothing: float = 0.0
    scene_cut_threshold: float = 0.05
    warm_up_frames: int = 3
    """How often a recurrent network sees the first picture of a shot before its output counts."""
    look_ahead_frames: int = 0
    """Number of a shot's first frames to collect, so that a network with a spatial memory can see them backwards before
    the first is matted; 0, as in live runs, holds nothing back."""
    has_close_ups: bool = False
    """True to show a network with a spatial memory smaller pictures while people fill them, see ``CloseUps``."""
    inference: InferenceSettings = field(default_factory=InferenceSettings)

    @property
    def alters_alpha(self) -> bool:
        """True if alpha is changed after the network's coefficients are applied."""
        return self.edges.active or self.temporal_smoothing > 0


@dataclass(slots=True, eq=False)
class Matte:
    """A frame and its finished alpha."""

    frame: Frame
    alpha: Plane
    """uint8 [H, W] 0..255 for 8-bit frames, uint16 0..65535 for deeper ones; on the frame's device."""
    foreground: Frame
    """The frame with the old background's colour removed from soft edges; the frame itself without decontamination."""


class StreamMatting:
    """Mattes one video: owns its recurrent state, its eyes, and its smoothing.

    ``prepare``, ``find_cuts``, ``infer`` and ``refine`` may run on different threads: ``find_cuts`` and ``infer`` each
    on one, in frame order; the others on any number, except ``refine`` if ``refines_in_order``.

    Args:
        network: May be shared with other streams; only this object's state changes.
        size: (height, width) of the frames as coded.
        layout: Layout of the eyes in the frame.
        rotation_degrees: Clockwise turn that makes the picture upright.
        options: The settings.
        lens: Projection of each eye, upright; None for flat pictures. Equirectangular eyes, and fisheye ones for
            networks without memory, are shown as ``FisheyeViews``, unless a lever crops them.
        right_eye_first: True when the left or upper half is the right eye's.
        first_network: The first network, if ``options.inference`` asks for one.
        cache: The cache of mattes for this stretch of the video.
        sizer: Limits the number of frames in one call on a GPU.
        times: Times the steps on a GPU.
        download: Starts to copy new mattes from a GPU for the cache.
        around: Wraps an estimator around all others, to tell people apart.
        waits: True to hold frames that may start a shot until those after them decide. In live runs, which hold nothing
            back, a shot starts at the frame that decides: up to ``LOOK_AHEAD_FRAMES`` late.

    Raises:
        UsageError: The network does not support what ``options.inference`` asks for; looking back is skipped instead.
    """

    def __init__(
        self,
        network: MattingNetwork,
        *,
        size: tuple[int, int],
        layout: StereoLayout,
        rotation_degrees: Rotation = 0,
        options: MattingOptions,
        lens: Lens | None = None,
        right_eye_first: bool = False,
        first_network: MattingNetwork | None = None,
        cache: MatteCache | None = None,
        sizer: AdaptiveBatchSizer | None = None,
        times: Times | None = None,
        download: Callable[[Sequence[Any]], Coming] | None = None,
        around: Around | None = None,
        waits: bool = True,
    ) -> None:
        height, width = size
        self.regions: list[Region] = eye_regions(width, height, layout)
        self.rotation_degrees: Rotation = rotation_degrees
        self.options = options
        self.cut_pts: list[int] = []
        """pts of the frames that started a shot so far."""
        self.told_changes: Callable[[Frame], Change] | None = None
        """Tells the change of the next frame, if another stage finds cuts; None if cuts are found here."""
        eye_size = upright_size(self.regions[0].size, rotation_degrees)
        known = None if cache is None or not cache.is_complete else cache.network_input
        self._fisheye: FisheyeViews | None = None
        if known is None and options.inference.shows_whole_eyes and FisheyeViews.suit(lens, network):
            self._fisheye = FisheyeViews.of_network(lens, network, eye_size)
            known = self._fisheye.eye
        self.network_input: NetworkInput = network.input_for(eye_size) if known is None else known
        agreement: StereoAgreement | None = None
        # If all mattes are known, this must not open a deferred network.
        may_wait = waits and (cache is None or not cache.is_complete)
        remembers = may_wait and network.recurrent and side_multiple(network) is not None
        inference = options.inference
        inference = inference.model_copy(
            update={
                "bidirectional": inference.may_look_back and remembers,
                "missed_people": inference.may_look_for_missed and remembers,
            }
        )
        # In eyes turned by 90 or 270 degrees, disparities would be vertical.
        if (
            inference.stereo_agreement
            and inference.shows_whole_eyes
            and len(self.regions) == 2
            and rotation_degrees == 0
        ):
            shown = (lens, self.network_input) if self._fisheye is None else self._fisheye.as_pictures
            agreement = StereoAgreement.of_eyes(*shown, right_eye_first=right_eye_first)
        self._views = EyeViews(self.regions, rotation_degrees)
        self._memory_of_shown, self._memory_of_colors = RecycledArrays(), RecycledArrays()
        self._times = times
        stream = StreamNetwork(
            network,
            wanted=self.network_input,
            eye_size=eye_size,
            views=self._views,
            warm_up_frames=options.warm_up_frames,
            look_ahead_frames=options.look_ahead_frames if waits else 0,
            first_network=first_network,
            sizer=sizer,
            times=times,
            fisheye=self._fisheye,
            agreement=agreement,
            has_close_ups=options.has_close_ups and network.recurrent and side_multiple(network) is not None,
        )
        self._tally = stream.tally
        self._shot = 0
        self._cached: CachedMattes | None = None
        self._mattes: Estimator
        if cache is None:
            self._mattes = build_chain(inference, stream)
        else:
            open_inner = partial(build_chain, inference, stream)
            self._mattes = self._cached = CachedMattes(cache, stream, open_inner, download=download)
        self._beginnings: ShotBeginnings | ShotWindows = ShotBeginnings(
            options.look_ahead_frames if remembers else 0
        )
        if inference.bidirectional:
            self._beginnings = ShotWindows()
        if around is not None:
            self._mattes = around(self._mattes, self.network_input)
        self._seen = PeopleSeen(is_anybody=not waits)  # live runs need no note: their picture is watched
        self._cuts = SceneCutDetector(options.scene_cut_threshold)
        self._waits = waits
        self._undecided: Batch | None = None
        self._smoother = AlphaSmoother(options.temporal_smoothing)
        self._smoothed_shot = 0

    @property
    def picture_bytes(self) -> int:
        """Bytes of a frame's pictures for the network, including the eyes' own that fisheye ones are made from."""
        samples = 3 * prod(self.network_input.size)
        if self._fisheye is not None:
            samples += 3 * self._fisheye.samples(1, 1)
        return len(self.regions) * samples * np.dtype(self.network_input.dtype).itemsize

    def needs_pictures(self, index: int) -> bool:
        """False if the network need not see a frame, because its matte is in the cache."""
        return self._cached is None or self._cached.needs_pictures(index)

    def prepare(self, frames: Sequence[Frame]) -> Batch:
        """Make the network's pictures, unless mattes are known; on any thread, in any order.

        Args:
            frames: Consecutive, on one device; all of them with ``needs_pictures``, or none.
        """
        if not self.needs_pictures(frames[0].index):
            return Batch(frames, None)
        with nullcontext() if self._times is None else self._times.profile("preprocess"):
            batch = Batch(frames, self._views.make(frames, self.network_input))
        if self._finishes_apart(batch) and self._fisheye is not None:
            batch.shown = self._fisheye.show(batch.images, memory=self._memory_of_shown)
        for_levers = self.options.inference.wants_tiles
        looks_for_cuts = self.options.scene_cut_threshold > 0 and self.told_changes is None
        if for_levers or looks_for_cuts:
            eyes = batch.images if for_levers else batch.images[:, :1]  # cuts need only one
            batch.tiles = tile_means(plain_rgb(eyes, self.network_input))
        return batch

    def find_cuts(self, batch: Batch) -> Batch:
        """Decide where shots begin, as far as the frames up to the end of a batch tell; returns the batch.

        Args:
            batch: The next one, with its tiles in the host's memory.
        """
        if self.told_changes is not None:
            batch.decided = list(map(self.told_changes, batch.frames))
        elif batch.images is None or self.options.scene_cut_threshold <= 0:
            batch.decided = [*self._cuts.finish(), *[Change.SMALL] * len(batch)]
        else:
            decided = self._cuts.see(batch.tiles[:, :3])
            if self._waits:
                batch.decided = list(chain.from_iterable(decided))
            else:
                batch.decided = [Change(Change.NEW_SHOT in changes) for changes in decided]
        return batch

    def infer(self, batches: Sequence[Batch]) -> list[Matted]:
        """Run the network over consecutive frames; a cut inside a batch splits it.

        Args:
            batches: In order, each after ``find_cuts``.

        Returns:
            One for each frame, in order. Frames that wait, see ``waits``, come with later ones or from ``infer_rest``.
        """
        matted: list[Matted] = []
        for without_pictures, group in groupby(batches, lambda batch: batch.images is None):
            some = list(group)
            decided = [change for batch in some for change in batch.decided]
            batch, waiting = Batch.joined(some), self._undecided
            if waiting is not None and without_pictures:
                matted += self._infer_decided(waiting, decided[: len(waiting)])
                del decided[: len(waiting)]
            elif waiting is not None:
                with memory_errors():
                    batch = Batch.joined([waiting, batch])
            matted += self._infer_decided(batch, decided)
        return matted

    def infer_rest(self) -> list[Matted]:
        """Matte the waiting frames at the end of the stream."""
        matted: list[Matted] = []
        if self._undecided is not None:
            matted += self._infer_decided(self._undecided, self._cuts.finish())
        for batch in self._beginnings.flush():
            matted += self._matted(batch)
        self._seen.finish()
        return matted

    def _infer_decided(self, batch: Batch, decided: list[Change]) -> list[Matted]:
        """Matte the frames for which cuts are decided; the others wait."""
        count = len(decided)
        self._undecided = batch.take(range(count, len(batch))) if count < len(batch) else None
        if not count:
            return []
        batch = batch.take(range(count))
        if self._cached is not None:
            for at, frame in enumerate(batch.frames):
                if self._cached.is_known(frame.index):
                    decided[at] = Change(self._cached.starts_shot(frame.index))
        batch.changes = decided
        pairs = zip(batch.frames, decided, strict=True)
        self.cut_pts += [frame.pts for frame, change in pairs if change.starts_shot]
        self._tally.frames += count
        return [one for complete in self._beginnings.add(batch) for one in self._matted(complete)]

    def _matted(self, batch: Batch) -> list[Matted]:
        unfinished: Sequence[Unfinished | None] = [None] * len(batch)
        if isinstance(self._mattes, BeginningEstimator) and self._finishes_apart(batch):
            unfinished = answers = self._mattes.begin(batch)
            estimates = [answer.estimate for answer in answers]
        else:
            estimates = self._mattes.estimate(batch)
        self._look_for_people(batch, estimates)
        shots = list(accumulate(batch.starts_shot, initial=self._shot))[1:]
        self._shot = shots[-1]
        source = batch if is_on_gpu(batch.frames[0].planes[0]) else None
        needs_images = self.options.decontaminate and batch.images is not None
        return [
            Matted(
                frame,
                estimate,
                shot,
                batch.images[at] if needs_images or estimate.alpha is not None else None,
                source,
                unfinished=left,
            )
            for at, (frame, estimate, shot, left) in enumerate(
                zip(batch.frames, estimates, shots, unfinished, strict=True)
            )
        ]

    def _look_for_people(self, batch: Batch, estimates: Sequence[MatteEstimate]) -> None:
        """Look for people in small mattes, on a GPU; on the CPU, the finished alpha is checked instead."""
        if not is_on_gpu(batch.frames[0].planes[0]):
            return
        if batch.images is None or not is_on_gpu(batch.images):
            # Unknown for mattes from the cache, so no note is given.
            self._seen.is_anybody = True
            return
        pairs = zip(estimates, batch.images, strict=True)
        with memory_errors():
            self._seen.look_at_small(
                small_alpha(estimate, images, self.network_input) for estimate, images in pairs
            )

    def _finishes_apart(self, batch: Batch) -> bool:
        """True on the CPU if no lever needs finished mattes: the threads that draw finish them."""
        return (
            isinstance(self._mattes, BeginningEstimator)
            and batch.images is not None
            and not is_on_gpu(batch.images)
        )

    def store(self, last_index: int | None = None) -> None:
        """Store the new mattes up to a frame in the cache, if there is one."""
        if self._cached is not None:
            self._cached.store(last_index)

    def finish(self, *, is_whole: bool) -> list[str]:
        """Complete the cache of mattes after the last frame; returns notes for the user.

        Args:
            is_whole: True if the video, or its stretch, was run to its end.
        """
        return [] if self._cached is None else self._cached.finish(is_whole=is_whole)

    def report(self) -> LeverReport:
        """The levers' report so far."""
        pictures, (height, width) = len(self.regions), self.network_size
        if self._fisheye is not None:
            pictures *= self._fisheye.count
        return self._tally.report(pictures * height * width)

    @property
    def shows_people(self) -> bool:
        """False if nobody was found in any frame, once all are done; True if unknown."""
        return self._seen.is_anybody

    @property
    def network_size(self) -> tuple[int, int]:
        """(height, width) of the pictures that the network sees."""
        return self.network_input.size if self._fisheye is None else self._fisheye.size

    @property
    def refines_in_order(self) -> bool:
        """True if ``refine`` must be called in frame order, as it smooths over time."""
        return self.options.temporal_smoothing > 0

    def settle(self, matted: Matted) -> MatteEstimate:
        """The matte as coefficients on the frame's device, stored in ``matted`` from then on.

        With decontamination, the colours of person and scene come before alpha's, as from ``local_colors``.
        """
        if matted.unfinished is not None:
            matted.estimate, matted.unfinished = matted.unfinished.finish(), None
        if matted.is_settled:
            return matted.estimate
        estimate = as_coefficients(matted.estimate, matted.images, self.network_input)
        on_gpu = is_on_gpu(matted.frame.planes[0])
        if is_on_gpu(estimate.gain) != on_gpu:
            # Estimates from the cache and of plain mattes are in the host's memory.
            arrays = array_module(on_gpu=on_gpu)
            estimate = MatteEstimate(
                gain=arrays.asarray(estimate.gain), offset=arrays.asarray(estimate.offset)
            )
        if self.options.decontaminate:
            estimate = self._with_colors(matted, estimate)
        matted.estimate, matted.is_settled = estimate, True
        return estimate

    def _with_colors(self, matted: Matted, estimate: MatteEstimate) -> MatteEstimate:
        gain, offset = estimate.gain, estimate.offset
        assert gain is not None  # coefficients, by contract
        assert offset is not None
        images = matted.images
        if images is None:  # the matte is from the cache, and no network saw the frame
            images = self._views.make([matted.frame], self.network_input)[0]
        rgb = plain_rgb(images, self.network_input)
        height, width = gain.shape[-2:]
        size = colors_size((height, width))
        if rgb.shape[-2:] != size:
            rgb = resized(array_module(on_gpu=is_on_gpu(rgb)).ascontiguousarray(rgb), size)
        eyes, channels = rgb.shape[:2]
        out = None if is_on_gpu(rgb) else self._memory_of_colors.empty((2, eyes, channels + 1, height, width))
        person, scene = local_colors(rgb, gain, offset, out=out)
        return MatteEstimate(gain=person, offset=scene)

    def refine(self, matted: Matted) -> Matte:
        """Full-resolution alpha: guided refinement, smoothing over time, then the edge options."""
        frame, estimate, options = matted.frame, self.settle(matted), self.options
        assert estimate.gain is not None  # coefficients, by contract
        assert estimate.offset is not None
        place: dict[str, Any] = {"regions": self.regions, "rotation_degrees": self.rotation_degrees}
        alpha = refine_alpha(frame, gain=estimate.gain[:, -1], offset=estimate.offset[:, -1], **place)
        foreground = frame
        if options.decontaminate:
            person, scene = estimate.gain[:, :3], estimate.offset[:, :3]
            foreground = decontaminate(frame, alpha, person=person, scene=scene, **place)
        if options.temporal_smoothing > 0:
            if matted.shot != self._smoothed_shot:  # a live run may have dropped the frame that started it
                self._smoother.reset()
                self._smoothed_shot = matted.shot
            alpha = self._smoother.smooth(frame, alpha)
        if options.edges.active:
            alpha = adjust_edges(alpha, options.edges, regions=self.regions)
        if not is_on_gpu(alpha):
            self._seen.look_at_finished(alpha)
        return Matte(frame, alpha, foreground)


def upright_size(size: tuple[int, int], rotation_degrees: Rotation) -> tuple[int, int]:
    """(height, width) of a coded picture once it is turned upright."""
    height, width = size
    return (width, height) if rotation_degrees in (90, 270) else (height, width)
