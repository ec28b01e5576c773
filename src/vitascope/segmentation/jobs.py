"""Chooses the way of a video: through the GPU if its frames can stay there, else through the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from fractions import Fraction
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from vitascope.config import OutputKind, Settings, vitascope_home
from vitascope.errors import EngineError
from vitascope.frames import Projection, StereoLayout, VideoInfo, YuvFormat
from vitascope.gpu.kernels.edges import EdgeOptions
from vitascope.gpu.pipeline.pipeline import quick_turns
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.media.writing.encoding import Encoding
from vitascope.models.network import MattingNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.capacity import parallelism_of
from vitascope.segmentation.film_job import CpuJob, FilmJob
from vitascope.segmentation.matting.batch import Around
from vitascope.segmentation.matting.cache import MatteCache
from vitascope.segmentation.matting.networks import open_first_network
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.render.renderer import Renderer
from vitascope.vr.detection import VrDescription, refuse_packed_input
from vitascope.vr.packing import AlphaPacker, packed_size, refuse_unpackable
from vitascope.vr.stereo import eye_regions

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler
    from vitascope.gpu.streams import JobStreams

_LATENCY_QUEUE = 2


def open_job(
    stack: ExitStack,
    network: MattingNetwork,
    outputs: Sequence[tuple[OutputKind, Encoding]],
    *,
    info: VideoInfo,
    vr: VrDescription,
    settings: Settings,
    frames_per_call: int,
    streams: JobStreams | None,
    background_begin: Fraction | None = None,
    profiler: Profiler | None = None,
    cache: MatteCache | None = None,
    limits: QueueLimits | None = None,
    around: Around | None = None,
) -> FilmJob:
    """The job of one video.

    Args:
        stack: Closes the background when the job is over.
        network: The run's.
        outputs: Kind and encoding of each.
        info: The video.
        vr: What the video is to VR: how two eyes share the frame, and what their pictures are.
        settings: The run's.
        frames_per_call: Consecutive frames for each call of the network.
        streams: CUDA streams of the GPU that shall be used; None for the CPU.
        background_begin: Time of the run's first frame in seconds, at which a moving background begins; None takes the
            first frame that comes.
        profiler: Times the parts of a job on the GPU; one of its own when omitted.
        cache: Mattes of this stretch of the video, known and to be kept; None without.
        limits: Limits of the queues between stages; those of the settings when omitted.
        around: See ``StreamMatting``.

    Raises:
        UsageError: ``replace`` without a background, ``packed-alpha`` of a flat video, a video that is packed alpha
            already, or the network cannot do what ``inference`` asks for.
        InputError: The background cannot be opened.
        ModelError: ``inference.early_exit`` names a network that the installation lacks.
    """
    refuse_packed_input(info, vr)
    first_network = None
    if settings.inference.early_exit == "selfie":
        first_network = stack.enter_context(
            closing(
                open_first_network(
                    ModelStore(vitascope_home()),
                    threads=settings.processing.num_threads,
                    on_gpu=streams is not None,
                )
            )
        )
    limits = limits or queue_limits(settings)
    open_matting = partial(
        StreamMatting,
        network,
        size=(info.height, info.width),
        layout=vr.layout,
        lens=vr.trusted_lens,
        right_eye_first=vr.right_eye_first,
        rotation_degrees=info.rotation_degrees,
        options=_matting_options(
            settings, vr, shows_people=any(kind not in ("mask", "overlay") for kind, _ in outputs)
        ),
        first_network=first_network,
        cache=cache,
        around=around,
        waits=settings.performance.mode != "latency" and (limits is None or limits.overflow != "drop_oldest"),
    )

    packer = None
    if any(kind == "packed-alpha" for kind, _ in outputs):
        refuse_unpackable(info, vr.lenses)
        packer = AlphaPacker(
            eye_regions(info.width, info.height, vr.layout),
            vr.lenses,
            right_eye_first=vr.right_eye_first,
            fov_degrees=settings.output.packed_fov_degrees,
            color=settings.output.packed_color,
        )

    def open_renderer(matting: StreamMatting) -> Renderer:
        return stack.enter_context(
            Renderer(
                outputs,
                matting,
                settings=settings.output,
                mask_size=mask_size(info, settings.output.mask_max_width),
                packer=packer,
                background_begin=background_begin,
            )
        )

    if streams is None or not can_stay_on_gpu(info.format):
        # A shot's first frames may come together with more: calls stay as large as was requested.
        sizer = AdaptiveBatchSizer(
            frames_per_call, max_batch_size=frames_per_call, min_batch_size=frames_per_call, growing=False
        )
        matting = open_matting(sizer=sizer)
        seen = len(eye_regions(info.width, info.height, vr.layout)) * prod(matting.network_input.size)
        return CpuJob(
            matting,
            open_renderer(matting),
            frames_per_call=frames_per_call,
            limits=limits,
            parallelism=parallelism_of(settings, network_samples=seen),
        )
    # Imported here: of no use without a GPU.
    from vitascope.gpu.memory.pinned_pool import Download
    from vitascope.gpu.profiling.gpu_clock import StreamTimes
    from vitascope.segmentation.gpu_job import GpuJob

    notes: list[str] = []
    times = profiler or StreamTimes()
    sizer = AdaptiveBatchSizer(
        frames_per_call,
        max_batch_size=frames_per_call,
        growing=False,
        on_shortage=lambda error, frames: notes.append(f"{error}; went on with {frames} frames a call"),
    )
    download = partial(Download, stream=streams.copying, pool=streams.host_memory)
    matting = open_matting(sizer=sizer, times=times, download=download)
    renderer = open_renderer(matting)
    stack.enter_context(_finishing(streams))
    stack.enter_context(quick_turns())
    return GpuJob(
        matting,
        renderer,
        streams=streams,
        sizer=sizer,
        times=times,
        limits=limits,
        parallelism=parallelism_of(settings),
        notes=notes,
    )


@contextmanager
def _finishing(streams: JobStreams) -> Iterator[None]:
    """Leave the GPU idle and tidy; a failure of the GPU must not take the place of the error that it caused."""
    try:
        yield
    except BaseException:
        with suppress(EngineError):
            streams.finish()
        raise
    streams.finish()


def can_stay_on_gpu(fmt: YuvFormat) -> bool:
    """True for the layouts that the GPU's kernels read, once they are NV12 or P010: 4:2:0 of 8 or 10 bits."""
    return fmt.chroma_shift_x == fmt.chroma_shift_y == 1 and fmt.bit_depth in (8, 10)


def mask_size(info: VideoInfo, max_width: int | None) -> tuple[int, int] | None:
    """(height, width) of masks: no wider than ``max_width``, in even samples of each eye; None for the frame's size.

    Rotated video counts its width as coded.
    """
    if max_width is None or info.width <= max_width:
        return None
    width = max(max_width // 4 * 4, 4)
    height = max(min(round(info.height * width / info.width / 4), info.height // 4) * 4, 4)
    return height, width


def picture_size(
    kind: OutputKind, info: VideoInfo, *, layout: StereoLayout, mask_max_width: int | None
) -> tuple[int, int]:
    """(height, width) of the pictures of an output.

    Args:
        kind: Kind of the output.
        info: The input.
        layout: How its eyes share a frame.
        mask_max_width: See ``mask_size``.
    """
    if kind == "packed-alpha":
        return packed_size(eye_regions(info.width, info.height, layout))
    smaller = mask_size(info, mask_max_width) if kind == "mask" else None
    return smaller or (info.height, info.width)


def queue_limits(settings: Settings) -> QueueLimits:
    """The limits of the queues between stages."""
    processing = settings.processing
    items = processing.max_queue_size
    if settings.performance.mode == "latency":
        items = min(items, _LATENCY_QUEUE)
    return QueueLimits(items=items, nbytes=int(processing.max_queue_mb * 1e6))


def _matting_options(settings: Settings, vr: VrDescription, *, shows_people: bool) -> MattingOptions:
    edges = settings.edges
    return MattingOptions(
        edges=EdgeOptions(threshold=edges.threshold, grow_px=edges.grow_px, feather_px=edges.feather_px),
        decontaminate=edges.decontaminate and shows_people,
        temporal_smoothing=edges.temporal_smoothing,
        scene_cut_threshold=settings.video.scene_cut_threshold,
        warm_up_frames=settings.model.warm_up_frames,
        look_ahead_frames=settings.model.look_ahead_frames,
        has_close_ups=settings.model.suits_people,
        # Along a lens that is not the eyes' own, people would be matched with what is beside them.
        inference=settings.inference
        if vr.trusted_lens is not None or vr.projection is Projection.FLAT
        else settings.inference.model_copy(update={"stereo_agreement": False}),
    )
