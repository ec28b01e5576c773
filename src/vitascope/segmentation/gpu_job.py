"""One video's way through a GPU: frames stay there from the decoder until finished pictures come down.

::

    decode ── frames ──> preprocess ── batches ──> matte ── pictures ──> download ──> (encode)
    NVDEC                stream 1                  stream 2: network,    stream 3
                                                   then composite

What a batch needs lives until its pictures have come down, so that the memory of a frame is not given to the next one
while a kernel may still read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vitascope.frames import Frame, Rotation, StereoLayout
from vitascope.gpu.batching.adaptive import AdaptiveBatchSizer
from vitascope.gpu.download import Download
from vitascope.gpu.kernels.cuda_module import is_on_gpu, nvtx_range
from vitascope.gpu.kernels.histogram import color_histogram
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.semi_planar import upload
from vitascope.gpu.profiling.profiler import Profiler
from vitascope.gpu.queues import QueueLimits
from vitascope.gpu.stages import Group, Map, Stage
from vitascope.gpu.streams import JobStreams, memory_errors
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.gpu_batches import PendingPictures, PreparedBatch
from vitascope.segmentation.gpu_keeping import KeptMatte, MatteKeeper
from vitascope.segmentation.gpu_rendering import Coefficients, GpuPictures, GpuRenderer
from vitascope.segmentation.gpu_report import GpuReport
from vitascope.segmentation.levers.options import LeverReport
from vitascope.segmentation.levers.pictures import Pictures, Views, tile_means
from vitascope.segmentation.matte_cache import MatteCache
from vitascope.segmentation.matte_source import MatteSource
from vitascope.segmentation.matting import MattingOptions, upright_size
from vitascope.segmentation.parallelism import Parallelism
from vitascope.segmentation.plain_matte import fit_plain_matte, plain_rgb
from vitascope.segmentation.scene_cuts import SceneCutDetector
from vitascope.segmentation.shots import ShotInference
from vitascope.vr.stereo import eye_regions

__all__ = ["GpuJob", "PendingPictures", "PreparedBatch"]


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
        profiler: Times the parts of the job; one that keeps only sums when omitted.
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
        self.source = MatteSource(
            network,
            self._run_shots,
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
        self.profiler = profiler or Profiler("segment", keep_spans=0)
        self.peak_vram_bytes = 0
        self.notes: list[str] = []
        self._renderer = renderer
        self._streams = streams
        self._rotation: Rotation = rotation_degrees
        self._sizer = AdaptiveBatchSizer(
            frames_per_call,
            max_batch_size=frames_per_call,
            growing=False,
            on_shortage=self._note_shortage,
        )
        self._limits = limits
        self._parallelism = parallelism or Parallelism()
        self._cuts = SceneCutDetector(options.scene_cut_threshold)
        self._looks_for_cuts = options.scene_cut_threshold > 0
        self._looks_for_motion = options.inference.wants_tiles

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
        return GpuReport(self.profiler.gpu_seconds(), self.peak_vram_bytes)

    def keep_mattes(self, *, is_whole: bool) -> None:
        """Complete the cache of mattes, once all frames are through."""
        self.notes += self.source.finish(is_whole=is_whole)

    def lever_report(self) -> LeverReport:
        """What became of the frames, once all are through."""
        return self.source.report(len(self.regions))

    def _prepare(self, frame: Frame, images: Any | None) -> Frame:
        """Write the network's pictures of one frame, if it needs any; the frame, on the GPU."""
        wanted = self.network_input
        with self.profiler.profile("preprocess"):
            if not is_on_gpu(frame.planes[0]):
                frame = upload(frame, pool=self._streams.host_memory)
            if images is None:
                return frame
            preprocess(
                frame,
                regions=self.regions,
                size=wanted.size,
                mean=wanted.mean,
                std=wanted.std,
                layout=wanted.layout,
                rotation_degrees=self._rotation,
                dtype=wanted.dtype,
                out=images,
            )
        return frame

    def _finish_batch(self, frames: list[Frame], images: Any | None) -> PreparedBatch:
        seen = None
        if images is not None:
            images = images[: len(frames)]
            arrays = []
            if self._looks_for_cuts:
                arrays.append(color_histogram(plain_rgb(images[:, 0], self.network_input)))
            if self._looks_for_motion:
                arrays.append(tile_means(plain_rgb(images, self.network_input)))
            if arrays:
                # Not on the copying stream: there they would wait behind finished pictures, and the network for them.
                streams = self._streams
                seen = Download(arrays, stream=streams.current(), pool=streams.host_memory)
        return PreparedBatch(frames, images, seen, self._streams.event())

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

    def _run_shots(
        self, shots: ShotInference, images: Any, starts_shot: Sequence[bool]
    ) -> list[MatteEstimate]:
        with self.profiler.profile("network"):
            return shots.run(images, starts_shot, sizer=self._sizer)

    def _note_shortage(self, error: Exception, frames_per_call: int) -> None:
        self.notes.append(f"{error}; went on with {frames_per_call} frames a call")

    def _coefficients(self, estimate: MatteEstimate, images: Any | None) -> Coefficients:
        import cupy

        if estimate.gain is not None and estimate.offset is not None:
            # From the cache, and of plain mattes that a lever fitted, they come in the host's memory.
            return Coefficients(cupy.asarray(estimate.gain), cupy.asarray(estimate.offset))
        assert images is not None  # from the cache come coefficients
        assert estimate.alpha is not None  # MatteEstimate holds either form
        alpha = cupy.asnumpy(estimate.alpha)
        gain, offset = fit_plain_matte(cupy.asnumpy(images), alpha, self.network_input)
        return Coefficients(cupy.asarray(gain[:, None]), cupy.asarray(offset[:, None]))

    def _note_memory(self) -> None:
        self.peak_vram_bytes = max(self.peak_vram_bytes, self._streams.check_memory())


class _Preparing:
    """Frames in, batches out."""

    def __init__(self, job: GpuJob) -> None:
        self._job = job
        self._frames: list[Frame] = []
        self._images: Any = None
        self._size = 0

    def accumulate(self, frame: Frame, /) -> Iterable[PreparedBatch]:
        """Take one frame; the batch when it is full, and where mattes cease to be known."""
        job = self._job
        needs_pictures = job.source.needs_pictures(frame.index)
        before = self.flush() if self._frames and needs_pictures != (self._images is not None) else []
        with memory_errors():
            if not self._frames:
                self._size = job._sizer.batch_size
                job._streams.next_preparing()
                if needs_pictures:
                    import cupy

                    wanted = job.network_input
                    shape = (self._size, len(job.regions), *wanted.picture_shape())
                    self._images = cupy.empty(shape, wanted.dtype)
            images = self._images[len(self._frames)] if needs_pictures else None
            self._frames.append(job._prepare(frame, images))
        return [*before, *self.flush()] if len(self._frames) == self._size else before

    def flush(self) -> list[PreparedBatch]:
        """The batch as it is; nothing when it is empty."""
        frames, images = self._frames, self._images
        self._frames, self._images = [], None
        return [self._job._finish_batch(frames, images)] if frames else []


class _Matting:
    """Batches in, pictures on their way down out."""

    def __init__(self, job: GpuJob, renderer: GpuRenderer, wants_alpha: Callable[[int], bool]) -> None:
        self._job = job
        self._renderer = renderer
        self._wants_alpha = wants_alpha

    def accumulate(self, batch: PreparedBatch, /) -> Iterable[PendingPictures]:
        """Run the network over a batch, and draw every frame."""
        job = self._job
        pictures = job._pictures(batch)
        job._streams.computing.wait_event(batch.prepared)
        estimates = job.source.estimate(pictures)
        new = [not job.source.is_known(frame.index) for frame in batch.frames]
        memory = job.source.memory(sum(new))
        job._note_memory()
        images_of = [None] * len(new) if batch.images is None else batch.images
        for index, (frame, images, estimate, starts_shot) in enumerate(
            zip(batch.frames, images_of, estimates, pictures.starts_shot, strict=True)
        ):
            if starts_shot:
                self._renderer.start_shot()
            wants_alpha = self._wants_alpha(frame.index)
            with memory_errors():
                coefficients = job._coefficients(estimate, images)
                with job.profiler.profile("composite"):
                    drawn = self._renderer.render(frame, coefficients, with_alpha=wants_alpha)
                kept = None
                if job.keeper is not None and new[index]:
                    kept = job.keeper.come_down(
                        estimate,
                        coefficients.gain,
                        coefficients.offset,
                        starts_shot=starts_shot,
                        memory=memory if index == len(new) - 1 else None,
                    )
                pending = self._bring_down(
                    frame, drawn, kept, with_source=wants_alpha, keep=(batch, coefficients)
                )
            yield pending

    def flush(self) -> Iterable[PendingPictures]:
        """Nothing is held back."""
        return ()

    def _bring_down(
        self, frame: Frame, drawn: GpuPictures, kept: KeptMatte | None, *, with_source: bool, keep: object
    ) -> PendingPictures:
        coming = [picture for picture, stays in zip(drawn.pictures, drawn.stays, strict=True) if not stays]
        if with_source:
            coming.append(frame)
        arrays = [_dense(plane) for picture in coming for plane in picture.planes]
        if drawn.alpha is not None:
            arrays.append(_dense(drawn.alpha))
        if kept is not None:
            arrays += kept.arrays
        with nvtx_range("download"):
            streams = self._job._streams
            download = Download(arrays, stream=streams.copying, pool=streams.host_memory, keep=keep)
        source = frame if with_source else None
        return PendingPictures(frame.index, drawn, source, download, self._job.keeper, kept)


def _dense(array: Any) -> Any:
    """Decoded planes have padded rows; only dense ones come down in one copy."""
    return array if array.flags.c_contiguous else array.copy()
