"""One video's way through a GPU: frames stay there from the decoder until finished pictures come down.

::

    decode ── frames ──> preprocess ── batches ──> matte ── pictures ──> download ──> (encode)
    NVDEC                stream 1                  stream 2: network,    stream 3
                                                   then composite

What a batch needs lives until its pictures have come down, so that the memory of a frame is not given to the next one
while a kernel may still read it.

The threads of all stages share one interpreter, and each call into CUDA takes it away from the others or gives it up to
them. So a stage asks for as much as it can at a time: all frames of a batch are prepared together, and drawn and
brought down by fours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from vitascope.frames import Frame, Plane, Rotation, StereoLayout
from vitascope.gpu.download import Download
from vitascope.gpu.kernels.cuda_module import is_on_gpu, nvtx_range, wait_until_ready
from vitascope.gpu.kernels.histogram import color_histogram
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.semi_planar import upload
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Group, Map, Stage, Together
from vitascope.gpu.profiling.profiler import Profiler
from vitascope.gpu.profiling.stream_times import StreamTimes
from vitascope.gpu.streams import JobStreams, memory_errors
from vitascope.gpu.toolkit.batching.adaptive import AdaptiveBatchSizer
from vitascope.models.network import FloatArray, MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.capacity import Parallelism
from vitascope.segmentation.matting.cache import MatteCache
from vitascope.segmentation.matting.levers.options import LeverReport
from vitascope.segmentation.matting.levers.pictures import Pictures, Views, tile_means
from vitascope.segmentation.matting.plain_matte import fit_plain_matte, plain_rgb
from vitascope.segmentation.matting.scene_cuts import SceneCutDetector
from vitascope.segmentation.matting.shots import ShotInference
from vitascope.segmentation.matting.source import MatteSource
from vitascope.segmentation.matting.stream import MattingOptions, upright_size
from vitascope.segmentation.render.gpu_renderer import Coefficients, GpuPictures, GpuRenderer
from vitascope.segmentation.render.renderer import Rendered
from vitascope.segmentation.report import GpuReport
from vitascope.vr.stereo import eye_regions

__all__ = [
    "DrawnFrame",
    "GpuJob",
    "KeptMatte",
    "MatteKeeper",
    "PendingPictures",
    "PreparedBatch",
    "send_down",
]


@dataclass(slots=True, eq=False)
class KeptMatte:
    """What the cache shall have of one frame."""

    arrays: list[Any]
    """gain and offset, CuPy, dense; none where the frame before has the very same."""
    starts_shot: bool
    memory: Sequence[FloatArray] | None
    """The network's, after this frame; None but now and then."""


class MatteKeeper:
    """Gives mattes to the cache, in order.

    ``come_down`` is called by the thread that launches, ``keep`` by the one that waits for what comes down.

    Args:
        cache: Of the stretch.
        wanted: What the network sees of a whole eye.
        with_foreground: Keep the foreground's planes, where there are any.
    """

    def __init__(self, cache: MatteCache, wanted: NetworkInput, *, with_foreground: bool) -> None:
        self._cache, self._wanted, self._with_foreground = cache, wanted, with_foreground
        self._sent: MatteEstimate | None = None
        self._last: MatteEstimate | None = None

    def come_down(
        self,
        estimate: MatteEstimate,
        gain: Any,
        offset: Any,
        *,
        starts_shot: bool,
        memory: Sequence[FloatArray] | None,
    ) -> KeptMatte:
        """What has to come down for the next frame.

        Args:
            estimate: Its matte: the same object as the frame before where it serves again.
            gain: Its coefficients on the GPU, [E, C, h, w].
            offset: As ``gain``.
            starts_shot: True where nothing before it counts.
            memory: The network's after this frame, where it shall be kept.
        """
        is_same = estimate is self._sent and estimate.alpha is None
        self._sent = estimate
        arrays = [] if is_same else [self._planes(gain), self._planes(offset)]
        return KeptMatte(arrays, starts_shot, memory)

    def keep(self, kept: KeptMatte, views: Sequence[Any]) -> None:
        """Give the next frame's matte to the cache.

        Args:
            kept: What ``come_down`` gave.
            views: Its arrays in the host's memory; copied.
        """
        if views:
            # Copies: page-locked memory is for what is on its way.
            self._last = MatteEstimate(gain=np.array(views[0]), offset=np.array(views[1]))
        assert self._last is not None  # only a later frame can be like the one before
        self._cache.keep(self._last, starts_shot=kept.starts_shot, wanted=self._wanted, memory=kept.memory)

    def _planes(self, planes: Any) -> Any:
        wanted = planes if self._with_foreground else planes[:, -1:]
        return wanted if wanted.flags.c_contiguous else wanted.copy()


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """Consecutive frames, and what the network will see of them, on the GPU."""

    frames: list[Frame]
    """Without events of their own: ``prepared`` stands for all of them."""
    images: Any
    """CuPy [T, E, 3, h, w] or [T, E, h, w, 3], as the network wants it; None where all mattes are known."""
    seen: Download | None
    """What tells cuts, float32 [T, 64], then what tells motion, float32 [T, 3 E, rows, columns], as far as they are
    wanted, on their way down; None when neither is."""
    prepared: Any
    """CUDA event: frames and images are there."""

    @property
    def nbytes(self) -> int:
        """Bytes held on the GPU, for the queues."""
        pictures = 0 if self.images is None else int(self.images.nbytes)
        return sum(frame.nbytes for frame in self.frames) + pictures


@dataclass(slots=True, eq=False)
class DrawnFrame:
    """What was made of one frame, still on the GPU."""

    index: int
    drawn: GpuPictures
    source: Frame | None
    """The frame itself, where it comes down, too."""
    kept: KeptMatte | None
    """For the cache; None where it has the matte, or there is none."""

    def coming(self) -> list[Any]:
        """What comes down, in dense arrays.

        The planes of every picture that does not stay on the GPU, then of the source, then alpha, then ``kept``'s.
        """
        drawn = self.drawn
        frames = [picture for picture, stays in zip(drawn.pictures, drawn.stays, strict=True) if not stays]
        if self.source is not None:
            frames.append(self.source)
        arrays = [_dense(plane) for frame in frames for plane in frame.planes]
        if drawn.alpha is not None:
            arrays.append(_dense(drawn.alpha))
        return arrays if self.kept is None else arrays + self.kept.arrays


@dataclass(slots=True, eq=False)
class PendingPictures:
    """The pictures of one frame on their way to their encoders."""

    frame: DrawnFrame
    download: Download
    """The download of this frame, and of those that were drawn with it."""
    coming: slice
    """Which of its arrays are this frame's."""
    nbytes: int
    """Bytes of page-locked memory, for the queues."""
    keeper: MatteKeeper | None

    def wait(self) -> Rendered:
        """The pictures in the host's memory (on the GPU for its own encoder), once they are there."""
        views: Iterator[Plane] = iter(self.download.wait()[self.coming])

        def on_host(frame: Frame) -> Frame:
            return replace(frame, planes=tuple(next(views) for _ in frame.planes), ready=None)

        drawn, source, kept = self.frame.drawn, self.frame.source, self.frame.kept
        pictures = [
            picture if stays else on_host(picture)
            for picture, stays in zip(drawn.pictures, drawn.stays, strict=True)
        ]
        for picture, stays in zip(pictures, drawn.stays, strict=True):
            for plane in () if stays else picture.planes:
                plane.flags.writeable = False  # so that encoders need no copy of their own
        source = None if source is None else on_host(source)
        alpha = None if drawn.alpha is None else next(views)
        if self.keeper is not None and kept is not None:
            self.keeper.keep(kept, list(views))
        return Rendered(self.frame.index, pictures, alpha, source)


def send_down(
    frames: Sequence[DrawnFrame], *, streams: JobStreams, keeper: MatteKeeper | None, keep: object
) -> list[PendingPictures]:
    """Begin to bring frames down, with one pair of events for all of them.

    Args:
        frames: Drawn on the current stream.
        streams: Of the job.
        keeper: Takes the mattes that come down.
        keep: What must live until they are there.
    """
    arrays: list[Any] = []
    parts: list[tuple[slice, int]] = []
    for frame in frames:
        own = frame.coming()
        parts.append((slice(len(arrays), len(arrays) + len(own)), sum(array.nbytes for array in own)))
        arrays += own
    with nvtx_range("download"):
        download = Download(arrays, stream=streams.copying, pool=streams.host_memory, keep=keep)
    return [
        PendingPictures(frame, download, coming, nbytes, keeper)
        for frame, (coming, nbytes) in zip(frames, parts, strict=True)
    ]


def _dense(array: Any) -> Any:
    """Decoded planes have padded rows; only dense ones come down in one copy."""
    return array if array.flags.c_contiguous else array.copy()


# As many pictures wait in the GPU's and in page-locked memory before the first of them comes down: 8K's are 50 MB each.
_FRAMES_DRAWN_TOGETHER = 4
# The driver is asked for the memory that is in use, with the interpreter in hand, and answers in some 10 to 100 µs.
_SECONDS_BETWEEN_MEMORY_CHECKS = 0.02


class GpuJob:
    """Mattes and draws one video on a GPU: owns its recurrent state.

    Args:
        network: Takes and gives CuPy arrays on the current stream.
        renderer: Draws its outputs; none of them for a run that only wants alpha.
        streams: Of this job.
        size: (height, width) of the frames as coded.
        layout: How two eyes share the frame.
        rotation_degrees: Clockwise turn that makes the picture upright.
        options: Edges, smoothing, decontamination, cuts.
        frames_per_call: Consecutive frames for each call of the network.
        limits: Of the queues between stages.
        parallelism: How far the preprocessing runs ahead.
        profiler: Times the parts of the job; when omitted, only the GPU's sums are kept.
        first_network: What looks first where ``options.inference`` asks for another network.
        cache: Mattes of this stretch of the film, known and to be kept.

    Raises:
        UsageError: The network cannot do what ``options.inference`` asks for.
    """

    def __init__(
        self,
        network: MattingNetwork,
        renderer: GpuRenderer,
        *,
        streams: JobStreams,
        size: tuple[int, int],
        layout: StereoLayout,
        rotation_degrees: Rotation,
        options: MattingOptions,
        frames_per_call: int,
        limits: QueueLimits,
        parallelism: Parallelism | None = None,
        profiler: Profiler | None = None,
        first_network: MattingNetwork | None = None,
        cache: MatteCache | None = None,
    ) -> None:
        height, width = size
        self.regions: list[Region] = eye_regions(width, height, layout)
        self.notes: list[str] = []
        self.times: Profiler | StreamTimes = profiler or StreamTimes()
        self._sizer = AdaptiveBatchSizer(
            frames_per_call,
            max_batch_size=frames_per_call,
            growing=False,
            on_shortage=partial(_note_shortage, self.notes),
        )
        # No method of this object: the network's state would hold the job, and the job it.
        self.source = MatteSource(
            network,
            partial(_run_shots, times=self.times, sizer=self._sizer),
            views=Views(self.regions, rotation_degrees),
            eye_size=upright_size(self.regions[0].size, rotation_degrees),
            options=options.inference,
            warm_up_frames=options.warm_up_frames,
            with_foreground=options.decontaminate,
            first_network=first_network,
            cache=cache,
        )
        self.network_input: NetworkInput = self.source.network_input
        self.keeper = (
            None
            if cache is None
            else MatteKeeper(cache, self.network_input, with_foreground=options.decontaminate)
        )
        self.cut_count = 0
        self.cut_pts: list[int] = []
        self.peak_vram_bytes = 0
        self._renderer = renderer
        self._streams = streams
        self._rotation: Rotation = rotation_degrees
        self._limits = limits
        self._parallelism = parallelism or Parallelism()
        self._cuts = SceneCutDetector(options.scene_cut_threshold)
        self._looks_for_cuts = options.scene_cut_threshold > 0
        self._looks_for_motion = options.inference.wants_tiles
        self._memory_checked_at = 0.0

    @property
    def frames_gathered(self) -> int:
        """Frames of a batch."""
        return self._sizer.batch_size

    @property
    def slowest_to_begin(self) -> str | None:
        """None: no stage computes on the processor, and the first gathers frames."""
        return None

    def stages(self, *, wants_alpha: Callable[[int], bool]) -> list[Stage]:
        """The stages between decoder and encoder; they give ``Rendered`` in the host's memory.

        Args:
            wants_alpha: Told a frame's index; True where alpha and the frame itself shall come down, too.
        """
        streams = self._streams
        return [
            Group(
                "preprocess",
                _Preparing(self),
                output=self._parallelism.prepared_batch_limits(self._limits),
                open=lambda: streams.bind(streams.preparing),
            ),
            Group(
                "matte",
                _Matting(self, self._renderer, wants_alpha),
                output=self._limits,
                open=lambda: streams.bind(streams.computing),
            ),
            Map(
                "download",
                PendingPictures.wait,
                output=self._limits,
                open=lambda: streams.bind(streams.copying),
            ),
        ]

    def gpu_report(self) -> GpuReport:
        """Spans on the GPU's clock, and memory; waits until the GPU is done."""
        return GpuReport(self.times.gpu_seconds(), self.peak_vram_bytes)

    def keep_mattes(self, *, is_whole: bool) -> None:
        """Complete the cache of mattes, once all frames are through."""
        self.notes += self.source.finish(is_whole=is_whole)

    def lever_report(self) -> LeverReport:
        """What became of the frames, once all are through."""
        return self.source.report(len(self.regions))

    def _to_gpu(self, frame: Frame) -> Frame:
        """The frame, at the latest from now on its way up."""
        if is_on_gpu(frame.planes[0]):
            return frame
        with memory_errors(), self.times.profile("preprocess"):
            return upload(frame, pool=self._streams.host_memory)

    def _prepare(self, frames: list[Frame], *, needs_pictures: bool) -> PreparedBatch:
        """The batch of some frames on the GPU, with the network's pictures of them if it needs any."""
        images = None
        with memory_errors(), self.times.profile("preprocess"):
            if needs_pictures:
                images = self._network_pictures(frames)
            else:
                for frame in frames:
                    wait_until_ready(frame)
        with memory_errors():
            seen = None if images is None else self._look_at(images)
        # This stream has waited for every frame, and whoever takes the batch waits for this stream.
        frames = [frame if frame.ready is None else replace(frame, ready=None) for frame in frames]
        return PreparedBatch(frames, images, seen, self._streams.event())

    def _network_pictures(self, frames: list[Frame]) -> Any:
        import cupy

        wanted = self.network_input
        images = cupy.empty((len(frames), len(self.regions), *wanted.picture_shape()), wanted.dtype)
        for place, frame in enumerate(frames):
            preprocess(
                frame,
                regions=self.regions,
                size=wanted.size,
                mean=wanted.mean,
                std=wanted.std,
                layout=wanted.layout,
                rotation_degrees=self._rotation,
                dtype=wanted.dtype,
                out=images[place],
            )
        return images

    def _look_at(self, images: Any) -> Download | None:
        """What tells cuts and motion, on its way down, as far as it is wanted."""
        arrays = []
        if self._looks_for_cuts:
            arrays.append(color_histogram(plain_rgb(images[:, 0], self.network_input)))
        if self._looks_for_motion:
            arrays.append(tile_means(plain_rgb(images, self.network_input)))
        if not arrays:
            return None
        # Not on the copying stream: there they would wait behind finished pictures, and the network for them.
        streams = self._streams
        return Download(arrays, stream=streams.current(), pool=streams.host_memory)

    def _pictures(self, batch: PreparedBatch) -> Pictures:
        """A batch as the network's source takes it, once it is known where shots begin."""
        arrays = [] if batch.seen is None else batch.seen.wait()
        starts = [False] * len(batch.frames)
        if self._looks_for_cuts and arrays:
            starts = [self._cuts.is_cut_histogram(histogram) for histogram in arrays[0]]
        for index, frame in enumerate(batch.frames):
            if self.source.is_known(frame.index):
                starts[index] = self.source.starts_shot(frame.index)
        self.cut_count += sum(starts)
        self.cut_pts += [frame.pts for frame, cut in zip(batch.frames, starts, strict=True) if cut]
        # A copy: the levers keep some of them, and the memory is given to others.
        tiles = arrays[-1].copy() if self._looks_for_motion and arrays else None
        return Pictures(batch.frames, batch.images, starts, tiles)

    def _coefficients(self, estimate: MatteEstimate, images: Any | None, place: int) -> Coefficients:
        """The coefficients of one frame of a batch; ``images`` are all of the batch's pictures."""
        import cupy

        if estimate.gain is not None and estimate.offset is not None:
            if is_on_gpu(estimate.gain) and is_on_gpu(estimate.offset):
                return Coefficients(estimate.gain, estimate.offset)
            # From the cache, and of plain mattes that a lever fitted, they come in the host's memory.
            return Coefficients(cupy.asarray(estimate.gain), cupy.asarray(estimate.offset))
        assert images is not None  # from the cache come coefficients
        assert estimate.alpha is not None  # MatteEstimate holds either form
        alpha = cupy.asnumpy(estimate.alpha)
        gain, offset = fit_plain_matte(cupy.asnumpy(images[place]), alpha, self.network_input)
        return Coefficients(cupy.asarray(gain[:, None]), cupy.asarray(offset[:, None]))

    def _note_memory(self) -> None:
        now = perf_counter()
        if now - self._memory_checked_at >= _SECONDS_BETWEEN_MEMORY_CHECKS:
            self._memory_checked_at = now
            self.peak_vram_bytes = max(self.peak_vram_bytes, self._streams.check_memory())


def _run_shots(
    shots: ShotInference,
    images: Any,
    starts_shot: Sequence[bool],
    *,
    times: Profiler | StreamTimes,
    sizer: AdaptiveBatchSizer,
) -> list[MatteEstimate]:
    with times.profile("network"):
        return shots.run(images, starts_shot, sizer=sizer)


def _note_shortage(notes: list[str], error: Exception, frames_per_call: int) -> None:
    notes.append(f"{error}; went on with {frames_per_call} frames a call")


class _Preparing:
    """Frames in, batches out."""

    def __init__(self, job: GpuJob) -> None:
        self._job = job
        self._frames: list[Frame] = []
        self._needs_pictures = False
        self._size = 0

    def accumulate(self, frame: Frame, /) -> Iterable[PreparedBatch]:
        """Take one frame; the batch when it is full, and where mattes cease to be known."""
        job = self._job
        needs_pictures = job.source.needs_pictures(frame.index)
        before = self.flush() if self._frames and needs_pictures != self._needs_pictures else []
        if not self._frames:
            self._size = job._sizer.batch_size
            self._needs_pictures = needs_pictures
            job._streams.next_preparing()
        self._frames.append(job._to_gpu(frame))
        return [*before, *self.flush()] if len(self._frames) == self._size else before

    def flush(self) -> list[PreparedBatch]:
        """The batch as it is; nothing when it is empty."""
        frames, self._frames = self._frames, []
        return [self._job._prepare(frames, needs_pictures=self._needs_pictures)] if frames else []


@dataclass(slots=True, eq=False)
class _Matted:
    """A frame and its matte, to be drawn."""

    frame: Frame
    place: int
    """In its batch."""
    estimate: MatteEstimate
    starts_shot: bool
    is_new: bool
    """True where the cache, if there is one, shall have the matte."""
    memory: Sequence[FloatArray] | None = None
    """The network's after this frame, where that shall be kept, too."""


class _Matting:
    """Batches in, pictures on their way down out."""

    def __init__(self, job: GpuJob, renderer: GpuRenderer, wants_alpha: Callable[[int], bool]) -> None:
        self._job = job
        self._renderer = renderer
        self._wants_alpha = wants_alpha

    def accumulate(self, batch: PreparedBatch, /) -> Iterable[Together[PendingPictures]]:
        """Run the network over a batch, and draw every frame."""
        matted = self._matte(batch)
        for first in range(0, len(matted), _FRAMES_DRAWN_TOGETHER):
            yield Together(self._draw(matted[first : first + _FRAMES_DRAWN_TOGETHER], batch))

    def flush(self) -> Iterable[Together[PendingPictures]]:
        """Nothing is held back."""
        return ()

    def _matte(self, batch: PreparedBatch) -> list[_Matted]:
        job = self._job
        pictures = job._pictures(batch)
        job._streams.computing.wait_event(batch.prepared)
        estimates = job.source.estimate(pictures)
        new = [not job.source.is_known(frame.index) for frame in batch.frames]
        memory = job.source.memory(sum(new))
        job._note_memory()
        matted = [
            _Matted(*parts)
            for parts in zip(batch.frames, range(len(new)), estimates, pictures.starts_shot, new, strict=True)
        ]
        matted[-1].memory = memory
        return matted

    def _draw(self, matted: Sequence[_Matted], batch: PreparedBatch) -> list[PendingPictures]:
        """Draw some frames of a batch, and send their pictures down together."""
        job, renderer = self._job, self._renderer
        with memory_errors():
            coefficients = [job._coefficients(one.estimate, batch.images, one.place) for one in matted]
            drawn: list[tuple[GpuPictures, Frame | None]] = []
            with job.times.profile("composite"):
                for one, own in zip(matted, coefficients, strict=True):
                    if one.starts_shot:
                        renderer.start_shot()
                    wants_alpha = self._wants_alpha(one.frame.index)
                    pictures = renderer.render(one.frame, own, with_alpha=wants_alpha)
                    drawn.append((pictures, one.frame if wants_alpha else None))
            frames = [
                DrawnFrame(one.frame.index, pictures, source, self._keep(one, own))
                for one, own, (pictures, source) in zip(matted, coefficients, drawn, strict=True)
            ]
            return send_down(frames, streams=job._streams, keeper=job.keeper, keep=(batch, coefficients))

    def _keep(self, one: _Matted, coefficients: Coefficients) -> KeptMatte | None:
        """What the cache shall have of a frame."""
        if self._job.keeper is None or not one.is_new:
            return None
        return self._job.keeper.come_down(
            one.estimate,
            coefficients.gain,
            coefficients.offset,
            starts_shot=one.starts_shot,
            memory=one.memory,
        )
