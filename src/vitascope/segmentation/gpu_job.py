"""One video's way through a GPU: frames stay there from the decoder until finished pictures come down.

::

    decode ── frames ──> preprocess ── batches ──> matte ── pictures ──> download ──> (encode)
    NVDEC                stream 1                  stream 2: network,    stream 3
                                                   then composite

What a batch needs lives until its pictures have come down, so that the memory of a frame is not given to the next one
while a kernel may still read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitascope.errors import DeviceMemoryError
from vitascope.frames import Frame, Plane, Rotation, StereoLayout
from vitascope.gpu.clock import GpuClock
from vitascope.gpu.download import Download
from vitascope.gpu.kernels.cuda_module import is_on_gpu, nvtx_range
from vitascope.gpu.kernels.histogram import color_histogram
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.semi_planar import upload
from vitascope.gpu.queues import QueueLimits
from vitascope.gpu.stages import Group, Map, Stage
from vitascope.gpu.streams import JobStreams, memory_errors
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.gpu_rendering import Coefficients, GpuPictures, GpuRenderer
from vitascope.segmentation.gpu_report import GpuReport
from vitascope.segmentation.matting import MattingOptions, fit_plain_matte, plain_rgb, upright_size
from vitascope.segmentation.rendering import Rendered
from vitascope.segmentation.scene_cuts import SceneCutDetector
from vitascope.segmentation.shots import ShotInference
from vitascope.vr.stereo import eye_regions

__all__ = ["GpuJob", "PendingPictures", "PreparedBatch"]


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """Consecutive frames, and what the network will see of them, on the GPU."""

    frames: list[Frame]
    images: Any
    """CuPy [T, E, 3, h, w] or [T, E, h, w, 3], as the network wants it."""
    histograms: Download | None
    """float32 [T, 64] on its way down; None when no cut is looked for."""
    prepared: Any
    """CUDA event: the images are there."""

    @property
    def nbytes(self) -> int:
        """Bytes held on the GPU, for the queues."""
        return sum(frame.nbytes for frame in self.frames) + int(self.images.nbytes)


@dataclass(slots=True, eq=False)
class PendingPictures:
    """The pictures of one frame on their way to their encoders."""

    index: int
    drawn: GpuPictures
    source: Frame | None
    """The frame itself, where it comes down, too."""
    download: Download
    """The planes of every picture that does not stay on the GPU, then of the source, then alpha."""

    @property
    def nbytes(self) -> int:
        """Bytes of page-locked memory, for the queues."""
        return self.download.nbytes

    def wait(self) -> Rendered:
        """The pictures in the host's memory (on the GPU for its own encoder), once they are there."""
        views: Iterator[Plane] = iter(self.download.wait())

        def on_host(frame: Frame) -> Frame:
            return replace(frame, planes=tuple(next(views) for _ in frame.planes), ready=None)

        drawn, source = self.drawn, self.source
        pictures = [
            picture if stays else on_host(picture)
            for picture, stays in zip(drawn.pictures, drawn.stays, strict=True)
        ]
        source = None if source is None else on_host(source)
        return Rendered(self.index, pictures, None if drawn.alpha is None else next(views), source)


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
    ) -> None:
        height, width = size
        self.regions: list[Region] = eye_regions(width, height, layout)
        self.network_input: NetworkInput = network.input_for(
            upright_size(self.regions[0].size, rotation_degrees)
        )
        self.cut_count = 0
        self.clock = GpuClock()
        self.peak_vram_bytes = 0
        self.notes: list[str] = []
        self._renderer = renderer
        self._streams = streams
        self._rotation: Rotation = rotation_degrees
        self._frames_per_call = frames_per_call
        self._limits = limits
        self._cuts = SceneCutDetector(options.scene_cut_threshold)
        self._looks_for_cuts = options.scene_cut_threshold > 0
        self._shots = ShotInference(network, warm_up_frames=options.warm_up_frames)

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
                output=self._limits,
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
        return GpuReport(self.clock.seconds(), self.peak_vram_bytes)

    def _prepare(self, frame: Frame, images: Any) -> Frame:
        """Write the network's pictures of one frame; the frame, on the GPU."""
        wanted = self.network_input
        with nvtx_range("preprocess"), self.clock.span("preprocess"):
            if not is_on_gpu(frame.planes[0]):
                frame = upload(frame)
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

    def _finish_batch(self, frames: list[Frame], images: Any) -> PreparedBatch:
        images = images[: len(frames)]
        histograms = None
        if self._looks_for_cuts:
            first_eyes = plain_rgb(images[:, 0], self.network_input)
            # Not on the copying stream: there they would wait behind finished pictures, and the network for them.
            histograms = Download([color_histogram(first_eyes)], stream=self._streams.preparing)
        return PreparedBatch(frames, images, histograms, self._streams.event())

    def _starts_shot(self, batch: PreparedBatch) -> list[bool]:
        if batch.histograms is None:
            return [False] * len(batch.frames)
        (histograms,) = batch.histograms.wait()
        cuts = [self._cuts.is_cut_histogram(histogram) for histogram in histograms]
        self.cut_count += sum(cuts)
        return cuts

    def _infer(self, images: Any, starts_shot: Sequence[bool]) -> list[MatteEstimate]:
        with nvtx_range("network"), self.clock.span("network"):
            return self._shots.run(
                images, starts_shot, most_frames=self._frames_per_call, on_shortage=self._use_less_memory
            )

    def _use_less_memory(self, error: DeviceMemoryError, most_frames: int) -> None:
        self._frames_per_call = most_frames
        self.notes.append(f"{error}; went on with {most_frames} frames a call")
        self._streams.release_idle_memory()

    def _coefficients(self, estimate: MatteEstimate, images: Any) -> Coefficients:
        if estimate.gain is not None and estimate.offset is not None:
            return Coefficients(estimate.gain, estimate.offset)
        import cupy

        assert estimate.alpha is not None  # MatteEstimate holds either form
        alpha = cupy.asnumpy(estimate.alpha)
        gain, offset = fit_plain_matte(cupy.asnumpy(images), alpha, self.network_input)
        return Coefficients(cupy.asarray(gain[:, None]), cupy.asarray(offset[:, None]))

    def _note_memory(self) -> None:
        self.peak_vram_bytes = max(self.peak_vram_bytes, self._streams.used_bytes())


class _Preparing:
    """Frames in, batches out."""

    def __init__(self, job: GpuJob) -> None:
        self._job = job
        self._frames: list[Frame] = []
        self._images: Any = None

    def accumulate(self, frame: Frame, /) -> Iterable[PreparedBatch]:
        """Take one frame; the batch when it is full."""
        job = self._job
        with memory_errors():
            if self._images is None:
                import cupy

                wanted = job.network_input
                shape = (job._frames_per_call, len(job.regions), *wanted.picture_shape())
                self._images = cupy.empty(shape, wanted.dtype)
            self._frames.append(job._prepare(frame, self._images[len(self._frames)]))
        return self.flush() if len(self._frames) == len(self._images) else ()

    def flush(self) -> Iterable[PreparedBatch]:
        """The batch as it is; nothing when it is empty."""
        frames, images = self._frames, self._images
        self._frames, self._images = [], None
        return [self._job._finish_batch(frames, images)] if frames else ()


class _Matting:
    """Batches in, pictures on their way down out."""

    def __init__(self, job: GpuJob, renderer: GpuRenderer, wants_alpha: Callable[[int], bool]) -> None:
        self._job = job
        self._renderer = renderer
        self._wants_alpha = wants_alpha

    def accumulate(self, batch: PreparedBatch, /) -> Iterable[PendingPictures]:
        """Run the network over a batch, and draw every frame."""
        job = self._job
        starts = job._starts_shot(batch)
        job._streams.computing.wait_event(batch.prepared)
        estimates = job._infer(batch.images, starts)
        job._note_memory()
        for frame, images, estimate, starts_shot in zip(
            batch.frames, batch.images, estimates, starts, strict=True
        ):
            if starts_shot:
                self._renderer.start_shot()
            wants_alpha = self._wants_alpha(frame.index)
            with memory_errors():
                coefficients = job._coefficients(estimate, images)
                with nvtx_range("composite"), job.clock.span("composite"):
                    drawn = self._renderer.render(frame, coefficients, with_alpha=wants_alpha)
                pending = self._bring_down(frame, drawn, with_source=wants_alpha, keep=(batch, coefficients))
            yield pending

    def flush(self) -> Iterable[PendingPictures]:
        """Nothing is held back."""
        return ()

    def _bring_down(
        self, frame: Frame, drawn: GpuPictures, *, with_source: bool, keep: object
    ) -> PendingPictures:
        coming = [picture for picture, stays in zip(drawn.pictures, drawn.stays, strict=True) if not stays]
        if with_source:
            coming.append(frame)
        arrays = [_dense(plane) for picture in coming for plane in picture.planes]
        if drawn.alpha is not None:
            arrays.append(_dense(drawn.alpha))
        with nvtx_range("download"):
            download = Download(arrays, stream=self._job._streams.copying, keep=keep)
        return PendingPictures(frame.index, drawn, frame if with_source else None, download)


def _dense(array: Any) -> Any:
    """Decoded planes have padded rows; only dense ones come down in one copy."""
    return array if array.flags.c_contiguous else array.copy()
