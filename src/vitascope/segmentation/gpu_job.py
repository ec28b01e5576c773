"""The stages of a video on a GPU: frames stay there from the decoder to the finished pictures.

::

    decode ── frames ──> preprocess ── batches ──> matte ── pictures ──> download ──> (encode)
    NVDEC                stream 1                  stream 2: network,    stream 3
                                                   then composite

A batch's arrays live until its pictures are downloaded, so that no memory is reused while a kernel may still read it.

The threads of all stages share one interpreter lock, and each call into CUDA may release or take it. So a stage does
as much as possible per call: it prepares all frames of a batch together, and draws and downloads four at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu, nvtx_range, wait_until_ready
from vitascope.gpu.kernels.semi_planar import upload
from vitascope.gpu.memory.pinned_pool import Download
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Group, Map, Stage, Together
from vitascope.gpu.profiling.gpu_clock import StreamTimes
from vitascope.gpu.profiling.profiler import Profiler
from vitascope.gpu.streams import JobStreams
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.segmentation.capacity import Parallelism
from vitascope.segmentation.film_job import FilmJob, every_frame
from vitascope.segmentation.matting.batch import Batch, Matted
from vitascope.segmentation.matting.stream import StreamMatting
from vitascope.segmentation.render.renderer import Rendered, Renderer
from vitascope.segmentation.report import GpuReport

# This many pictures wait in GPU and page-locked memory before the first is downloaded; an 8K picture takes 50 MB.
_FRAMES_DRAWN_TOGETHER = 4
# Frames on which a caller may have pending work before the host waits for it.
_MOST_HANDED_OVER = 16
# Asking the driver for the memory in use takes 10 to 100 µs, with the interpreter lock held.
_SECONDS_BETWEEN_MEMORY_CHECKS = 0.02


class GpuJob(FilmJob):
    """Mattes and composites on a GPU.

    Args:
        matting: As for ``FilmJob``; its network takes and returns CuPy arrays on the current stream.
        renderer: As for ``FilmJob``.
        streams: CUDA streams of this job.
        sizer: Sets the consecutive frames per call of the network; the one that ``matting`` uses.
        times: Times the parts of the job; the one that ``matting`` uses.
        limits: As for ``FilmJob``.
        parallelism: As for ``FilmJob``.
        notes: As for ``FilmJob``.
    """

    def __init__(
        self,
        matting: StreamMatting,
        renderer: Renderer,
        *,
        streams: JobStreams,
        sizer: AdaptiveBatchSizer,
        times: Profiler | StreamTimes,
        limits: QueueLimits,
        parallelism: Parallelism | None = None,
        notes: list[str] | None = None,
    ) -> None:
        super().__init__(matting, renderer, limits=limits, parallelism=parallelism, notes=notes)
        self.streams, self.sizer, self.times = streams, sizer, times
        self.peak_vram_bytes = 0
        self._memory_checked_at = 0.0

    @property
    def frames_gathered(self) -> int:
        """Frames per batch."""
        return self.sizer.batch_size

    @property
    def slowest_to_begin(self) -> str | None:
        """None: no stage computes on the CPU, and the first one gathers frames."""
        return None

    def stages(
        self,
        *,
        wants_alpha: Callable[[int], bool],
        draws: Callable[[Frame], bool] = every_frame,
        on_device: bool = False,
    ) -> list[Stage]:
        """As ``FilmJob.stages``."""
        streams = self.streams
        last = (
            Map("hand over", self._handed_over, output=self._limits)
            if on_device
            else Map(
                "download",
                self._arrived,
                output=self._limits,
                open=lambda: streams.bind(streams.copying),
            )
        )
        return [
            Group(
                "preprocess",
                _Preparing(self),
                output=self._parallelism.prepared_batch_limits(self._limits),
                open=lambda: streams.bind(streams.preparing),
            ),
            Group(
                "matte",
                _Matting(self, wants_alpha, draws, on_device=on_device),
                output=self._limits,
                open=lambda: streams.bind(streams.computing),
            ),
            last,
        ]

    def gpu_report(self) -> GpuReport:
        """Time on the GPU's clock, and peak memory; waits until the GPU is done."""
        return GpuReport(self.times.gpu_seconds(), self.peak_vram_bytes)

    def note_memory(self) -> None:
        """Record the GPU memory in use, at most every 0.02 seconds."""
        now = perf_counter()
        if now - self._memory_checked_at >= _SECONDS_BETWEEN_MEMORY_CHECKS:
            self._memory_checked_at = now
            self.peak_vram_bytes = max(self.peak_vram_bytes, self.streams.check_memory())

    def _arrived(self, pending: PendingPictures) -> Rendered:
        rendered = pending.wait()
        self.matting.store(rendered.index)
        return rendered

    def _handed_over(self, pictures: PicturesOnGpu) -> PicturesOnGpu:
        self.matting.store(pictures.drawn.index)
        return pictures


class _Preparing:
    """Turns frames into batches, and finds cuts: this thread mostly waits, while the next one is the slowest."""

    def __init__(self, job: GpuJob) -> None:
        self._job = job
        self._frames: list[Frame] = []
        self._needs_pictures = False
        self._size = 0

    def accumulate(self, frame: Frame, /) -> Iterable[Batch]:
        """Add one frame; return a batch when it is full, or when frames with cached mattes begin or end."""
        job = self._job
        needs_pictures = job.matting.needs_pictures(frame.index)
        before = self.flush() if self._frames and needs_pictures != self._needs_pictures else []
        if not self._frames:
            self._size = job.sizer.batch_size
            self._needs_pictures = needs_pictures
            job.streams.next_preparing()
        self._frames.append(self._on_gpu(frame))
        return [*before, *self.flush()] if len(self._frames) == self._size else before

    def flush(self) -> list[Batch]:
        """Return the incomplete batch; nothing if it is empty."""
        frames, self._frames = self._frames, []
        return [self._prepared(frames)] if frames else []

    def _on_gpu(self, frame: Frame) -> Frame:
        """Return the frame on the GPU; start its upload if it is on the host."""
        if is_on_gpu(frame.planes[0]):
            return frame
        job = self._job
        with memory_errors():
            return upload(
                frame, pool=job.streams.host_memory, timed=lambda: job.times.profile("host to device")
            )

    def _prepared(self, frames: list[Frame]) -> Batch:
        streams = self._job.streams
        with memory_errors():
            batch = self._job.matting.prepare(frames)
            if batch.images is None:
                for frame in frames:
                    wait_until_ready(frame)
            # On the copying stream, the tiles would wait behind finished pictures. Levers and the detector keep some,
            # and pinned memory is reused, so they are copied.
            if batch.tiles is not None:
                seen = Download([batch.tiles], stream=streams.current(), pool=streams.host_memory)
                batch.tiles = seen.wait()[0].copy()
        self._job.matting.find_cuts(batch)
        # This stream waits for every frame, and the stage that takes the batch waits for this stream.
        batch.frames = [frame if frame.ready is None else replace(frame, ready=None) for frame in frames]
        batch.prepared = streams.event()
        return batch


class _Matting:
    """Turns batches into pictures that are being downloaded."""

    def __init__(
        self,
        job: GpuJob,
        wants_alpha: Callable[[int], bool],
        draws: Callable[[Frame], bool],
        *,
        on_device: bool,
    ) -> None:
        self._job = job
        self._wants_alpha, self._draws = wants_alpha, draws
        self._on_device = on_device

    def accumulate(self, batch: Batch, /) -> Iterable[Together[PendingPictures | PicturesOnGpu]]:
        """Run the network over a batch, and draw every frame that need not wait for the next batch."""
        job = self._job
        job.streams.computing.wait_event(batch.prepared)
        yield from self._drawn(job.matting.infer([batch]))

    def flush(self) -> Iterable[Together[PendingPictures | PicturesOnGpu]]:
        """Return the frames that waited for later ones."""
        yield from self._drawn(self._job.matting.infer_rest())

    def _drawn(self, matted: list[Matted]) -> Iterator[Together[PendingPictures | PicturesOnGpu]]:
        """Draw the frames and drop them: once drawn, each also holds colours beside its matte."""
        self._job.note_memory()
        while matted:
            some = matted[:_FRAMES_DRAWN_TOGETHER]
            del matted[:_FRAMES_DRAWN_TOGETHER]
            yield Together(self._draw(some))

    def _draw(self, matted: Sequence[Matted]) -> Sequence[PendingPictures] | Sequence[PicturesOnGpu]:
        """Draw some frames, and start one download for their pictures, unless they stay on the GPU."""
        job = self._job
        with memory_errors():
            drawn_ones = [self._draws(one.frame) for one in matted]
            for one, draws in zip(matted, drawn_ones, strict=True):
                if draws:
                    job.matting.settle(one)
            with job.times.profile("composite"):
                drawn = [
                    job.renderer.render(one, with_source=self._wants_alpha(one.frame.index), draws=draws)
                    for one, draws in zip(matted, drawn_ones, strict=True)
                ]
            if self._on_device:
                drawn_event = job.streams.event()
                return [PicturesOnGpu(one, drawn_event, matted) for one in drawn]
            return _sent_down(
                drawn,
                stays=job.renderer.stays,
                streams=job.streams,
                keep=matted,
                timed=lambda: job.times.profile("device to host"),
            )


@dataclass(slots=True, eq=False)
class PicturesOnGpu:
    """The pictures of one frame that stay on the GPU."""

    drawn: Rendered
    ready: Any
    """CUDA event that follows the drawing."""
    keep: object
    """Arrays that must live until the consumer has waited for ``ready``."""

    @property
    def nbytes(self) -> int:
        """Bytes held on the GPU, for the queues."""
        return self.drawn.nbytes


def on_callers_stream(steps: Iterable[PicturesOnGpu], *, device: int) -> Generator[Rendered, None, None]:
    """Hand pictures on the GPU to a caller on the current CuPy stream, without blocking the host.

    Work that the caller launches on that stream runs after the drawing. A frame's memory is reused only when the GPU
    has finished what the caller launched before it asked for the next frame.

    Args:
        steps: The frames, in order.
        device: The CUDA device that they are on.
    """
    import cupy

    held: deque[tuple[PicturesOnGpu, Any]] = deque()
    try:
        for step in steps:
            with cupy.cuda.Device(device):
                cupy.cuda.get_current_stream().wait_event(step.ready)
            yield step.drawn
            with cupy.cuda.Device(device):
                used = cupy.cuda.Event(disable_timing=True)
                used.record()
            held.append((step, used))
            while held and (held[0][1].done or len(held) > _MOST_HANDED_OVER):
                held.popleft()[1].synchronize()
    finally:
        for _, used in held:
            used.synchronize()


@dataclass(slots=True, eq=False)
class PendingPictures:
    """The pictures of one frame that are being downloaded to their encoders."""

    drawn: Rendered
    """The pictures on the GPU."""
    stays: tuple[bool, ...]
    """For each picture, True if its encoder takes it on the GPU."""
    download: Download
    """The download, shared with frames that were drawn together."""
    coming: slice
    """This frame's part of the arrays: the planes of each picture that does not stay, those of the source, then
    alpha."""
    nbytes: int
    """Bytes of page-locked memory, for the queues."""

    def wait(self) -> Rendered:
        """Wait for the pictures; they are in host memory, or on the GPU for its encoder."""
        views: Iterator[Plane] = iter(self.download.wait()[self.coming])
        drawn = self.drawn

        def on_host(frame: Frame) -> Frame:
            return replace(frame, planes=tuple(next(views) for _ in frame.planes), ready=None)

        pictures = []
        for picture, stays in zip(drawn.pictures, self.stays, strict=bool(drawn.pictures)):
            arrived = picture if stays else on_host(picture)
            for plane in () if stays else arrived.planes:
                plane.flags.writeable = False  # so that encoders need no copy
            pictures.append(arrived)
        source = None if drawn.source is None else on_host(drawn.source)
        return Rendered(drawn.index, pictures, None if drawn.alpha is None else next(views), source)


def _sent_down(
    drawn: Sequence[Rendered],
    *,
    stays: tuple[bool, ...],
    streams: JobStreams,
    keep: object,
    timed: Callable[[], AbstractContextManager[object]],
) -> list[PendingPictures]:
    """Start one download for several frames, with one pair of events.

    Args:
        drawn: The frames, drawn on the current stream.
        stays: For each picture of a frame, True if it stays on the GPU.
        streams: CUDA streams of the job.
        keep: Objects that must live until the download is complete.
        timed: Opens a timer around the copies.
    """
    arrays: list[Any] = []
    parts: list[tuple[slice, int]] = []
    for frame in drawn:
        own = _coming(frame, stays)
        parts.append((slice(len(arrays), len(arrays) + len(own)), sum(array.nbytes for array in own)))
        arrays += own
    with nvtx_range("download"):
        download = Download(arrays, stream=streams.copying, pool=streams.host_memory, keep=keep, timed=timed)
    return [
        PendingPictures(frame, stays, download, coming, nbytes)
        for frame, (coming, nbytes) in zip(drawn, parts, strict=True)
    ]


def _coming(drawn: Rendered, stays: tuple[bool, ...]) -> list[Any]:
    # A frame that is not drawn has no pictures; it is included so that it lives until the GPU is done with it.
    pictures = zip(drawn.pictures, stays, strict=bool(drawn.pictures))
    frames = [picture for picture, own in pictures if not own]
    if drawn.source is not None:
        frames.append(drawn.source)
    arrays: list[Any] = [plane for frame in frames for plane in frame.planes]
    if drawn.alpha is not None:
        arrays.append(drawn.alpha)
    # Decoded planes have padded rows; only contiguous arrays are downloaded in one copy.
    return [array if array.flags.c_contiguous else array.copy() for array in arrays]
