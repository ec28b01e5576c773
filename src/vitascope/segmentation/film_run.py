"""One run over a video: puts decoder, matting, rendering and encoder together.

A ``FilmRunner`` holds what the runs of one process share: its device and the open network. For each video it opens a
``FilmRun``, which makes the pipeline::

    frames ──> decode ──> the job's stages ──> a sink, or the caller
                          (on the CPU or the GPU)

Files, streams to Python, stretches made for another process, and benchmarks differ only in the frames that go in and
in the last stages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import cv2

from vitascope.closing import Closing
from vitascope.config import LoadedSettings, OutputKind, Settings, vitascope_home
from vitascope.device import peak_memory_bytes, select_device
from vitascope.errors import EngineError
from vitascope.frames import Frame, Plane, Projection, VideoInfo
from vitascope.gpu.kernels.edges import EdgeOptions
from vitascope.gpu.memory.host_heap import give_back_free_memory, keep_heaps_small
from vitascope.gpu.pipeline.pipeline import Pipeline, quick_turns
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Sink, Source, Stage
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.output_target import refuse_unwritable
from vitascope.models.network import MattingNetwork
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started
from vitascope.segmentation.capacity import (
    can_stay_on_gpu,
    decoder_sessions,
    frames_per_call,
    open_streams,
    parallelism_of,
    queue_limits,
    session_buffer_bytes,
)
from vitascope.segmentation.film_job import CpuJob, FilmJob, every_frame
from vitascope.segmentation.layout import vr_of, vr_of_run
from vitascope.segmentation.matting.batch import Around
from vitascope.segmentation.matting.cache import MatteCache
from vitascope.segmentation.matting.cached_film import (
    keeps_findings,
    notes_on_cache,
    open_matte_cache,
    open_or_defer,
    opening,
)
from vitascope.segmentation.matting.int8 import Int8Choice, int8_choice, int8_network
from vitascope.segmentation.matting.networks import FetchProgress, open_first_network, open_network
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.notes import notes_on, notes_on_people, notes_on_reading
from vitascope.segmentation.output_encoding import encoding_for, hardware_for, mask_size
from vitascope.segmentation.plan import PlannedVideo, no_picture_between
from vitascope.segmentation.render.contact_sheet import ContactSheet
from vitascope.segmentation.render.renderer import WITHOUT_FOREGROUND, Rendered, Renderer
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.run_profile import run_profile
from vitascope.segmentation.writing import (
    FramesUntilDamage,
    OutputSet,
    beside_files,
    finish_files,
    keeping_what_was_written,
    planar_info,
)
from vitascope.vr.detection import VrDescription, refuse_packed_input
from vitascope.vr.packing import AlphaPacker, refuse_unpackable
from vitascope.vr.stereo import eye_regions

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler
    from vitascope.gpu.streams import JobStreams
    from vitascope.models.finders import SalientObjects
    from vitascope.segmentation.gpu_job import PicturesOnGpu
    from vitascope.segmentation.people.held import FindSalient
    from vitascope.segmentation.people.hinted import Keeping


class FrameAndAlpha(NamedTuple):
    """One step of a stream."""

    frame: Frame
    """The frame, in its own planes."""
    alpha: Plane
    """uint8 [H, W], 0 to 255, for 8-bit video; uint16, 0 to 65535, for deeper video. 0 is background, full scale is
    person."""


class FilmRunner(Closing):
    """Runs videos, one at a time, through one network on one device, in this process. A context manager.

    Args:
        loaded: Settings of a run on a device of this process.
        store: The store of networks.
        keeps_mattes: False if frames are not counted from the start of the video, so that the cache of mattes cannot be
            used.
        gpu_processes: Number of processes that share the GPU, including this one.
        fetch_progress: Called with the progress of a network's download.

    Raises:
        ModelError: The network is not available.
        EngineError: The engine cannot load it.
        DeviceError: A requested GPU is missing.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        store: ModelStore,
        keeps_mattes: bool = True,
        gpu_processes: int = 1,
        fetch_progress: FetchProgress | None = None,
    ) -> None:
        keep_heaps_small()
        self._gpu_processes = gpu_processes
        self.loaded = loaded
        self.settings = settings = loaded.settings
        self.store = store
        self._salient: SalientObjects | None = None
        self.device = select_device(settings.gpu.device, index=settings.gpu.device_id)
        self.streams = open_streams(self.device, settings)
        # Stages run in parallel, so one OpenCV thread each is enough. The number is global to the process; close()
        # restores it.
        self._opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        try:
            self.chosen = open_or_defer(
                settings,
                store if keeps_mattes else None,
                lambda: open_network(settings, store, device=self.device, progress=fetch_progress),
            )
        except BaseException:
            self._give_back()
            raise

    def close(self) -> None:
        """Free the networks, and restore OpenCV's threads."""
        self.chosen.network.close()
        if self._salient is not None:
            self._salient.close()
            self._salient = None
        self._give_back()

    def open_salient(self) -> FindSalient:
        """The network that finds held objects: opened on first use, and kept for later videos.

        Raises:
            ModelError: The network is not available.
            EngineError: The engine cannot load it.
        """
        if self._salient is None:
            from vitascope.models.finders import SalientObjects  # takes 0.15 s; few videos need it

            threads = self.settings.processing.num_threads
            self._salient = SalientObjects(self.store.pull("isnet"), threads=threads)
        return self._salient.find

    def take(self, loaded: LoadedSettings) -> None:
        """Use other settings from the next video on; the network, device and threads do not change.

        Args:
            loaded: Settings that differ only in ``video``, ``people``, ``edges`` and ``output``.
        """
        self.loaded, self.settings = loaded, loaded.settings

    def _give_back(self) -> None:
        """Restore what is global to the process: limits of GPU memory, and OpenCV's threads."""
        if self.streams is not None:
            self.streams.close()
        cv2.setNumThreads(self._opencv_threads)

    def open_video(self, video: Path) -> VideoReader:
        """Open a reader for the part of the video, with the decoder and sessions of the settings.

        Raises:
            InputError: The video cannot be opened.
        """
        wanted = self.settings.video
        return open_video(
            video,
            start_seconds=wanted.start_seconds or None,
            end_seconds=wanted.end_seconds,
            max_corrupt_frames=wanted.max_corrupt_frames,
            threads=self.settings.pipeline.stages.decode.threads or 0,
            cuda_device=None if self.streams is None else self.device.index,
            decoder_sessions=decoder_sessions(
                self.settings, video, streams=self.streams, gpu_processes=self._gpu_processes
            ),
            session_buffer_bytes=session_buffer_bytes(
                self.settings, streams=self.streams, gpu_processes=self._gpu_processes
            ),
        )

    def frames_per_call(self, reader: VideoReader, picture_bytes: int = 0) -> int:
        """Return the frames per call of the network, given the bytes of a frame that it sees."""
        return frames_per_call(self.loaded, reader.info, streams=self.streams, picture_bytes=picture_bytes)

    def encodings(self, reader: VideoReader, outputs: Sequence[tuple[OutputKind, Path]]) -> list[Encoding]:
        """Choose the encoding of each output.

        Raises:
            OutputError: A container cannot hold an output.
        """
        layout = vr_of(reader.info, self.settings.video).layout
        threads = self.settings.pipeline.stages.encode.threads or 0
        return [
            encoding_for(
                path,
                kind,
                info=planar_info(reader.info),
                layout=layout,
                settings=self.settings.output,
                threads=threads,
                alone=len(outputs) == 1,
                hardware=hardware_for(self.settings.gpu, output_count=len(outputs)),
                # A GPU delivers frames faster than one CPU encoder accepts them.
                parallel_encoders=1 if self.streams is None else "auto",
                device_id=self.settings.gpu.device_id,
            )
            for kind, path in outputs
        ]

    def stream(self, video: Path, *, device_arrays: bool = False) -> Generator[FrameAndAlpha, None, None]:
        """Matte a video, frame by frame, in order; see ``Segmenter.stream``."""
        with self.open_video(video) as reader, FilmRun(self, reader, [], keeps_mattes=True) as film:
            source = FramesUntilDamage(reader)
            # A stream's caller waits for the first frame, a file's user for the last.
            pipeline = film.pipeline(
                source, wants_alpha=lambda _: True, first_frame_soon=True, on_device=device_arrays
            )
            with (
                closing(pipeline.stream()) as made,
                closing(self._on_callers_stream(made) if device_arrays else made) as rendered,
            ):
                for step in rendered:
                    assert step.source is not None  # wants_alpha is True for every frame
                    assert step.alpha is not None
                    yield FrameAndAlpha(step.source, step.alpha)
            source.raise_damage()
            film.job.keep_mattes(is_whole=True)

    def _on_callers_stream(self, steps: Iterable[PicturesOnGpu]) -> Generator[Rendered, None, None]:
        from vitascope.segmentation.gpu_job import on_callers_stream  # imported here: needs a GPU

        return on_callers_stream(steps, device=self.device.index)

    def write(
        self,
        planned: PlannedVideo,
        *,
        on_start: Callable[[Started], object] | None,
        notes: Sequence[str],
        began: float,
    ) -> SegmentReport:
        """Segment one video into files; see ``Segmenter.write``.

        Args:
            planned: The input and its outputs, already checked.
            on_start: Called once everything is open, from this thread.
            notes: Earlier notes.
            began: ``perf_counter`` at the start.
        """
        outputs, preview = planned.outputs, planned.preview
        if preview is not None:
            refuse_unwritable(preview)  # fail now, not after an hour of work
        with ExitStack() as stack:
            reader = stack.enter_context(self.open_video(planned.video))
            encodings = self.encodings(reader, outputs)
            kinds = [(kind, encoding) for (kind, _), encoding in zip(outputs, encodings, strict=True)]
            profile = stack.enter_context(
                run_profile(
                    [path for _, path in outputs],
                    wanted=self.settings.debug.profile_performance,
                    device_id=self.device.index,
                )
            )
            film = stack.enter_context(
                FilmRun(self, reader, kinds, profiler=profile.profiler, keeps_mattes=True)
            )
            sheet = None
            if preview is not None:
                sheet = ContactSheet(preview, reader.info, film.vr, kind=outputs[0][0])
            files = stack.enter_context(film.files(outputs, encodings))
            source = FramesUntilDamage(reader)

            def encode(rendered: Rendered) -> None:
                files.write(rendered)
                if sheet is not None:
                    sheet.add(rendered)

            pipeline = film.pipeline(
                source,
                wants_alpha=lambda index: sheet is not None and sheet.wants(index),
                then=[Sink("encode", encode)],
                observed=profile.stages,
            )
            if on_start is not None:
                on_start(Started(pipeline, reader.expected_frame_count, film.vr.doubts))
            with keeping_what_was_written(files, of_damaged=self.settings.output.keep_partial):
                measured = pipeline.run()
                source.raise_damage()
            if reader.decoded_count == 0:
                raise no_picture_between(planned.video, self.settings.video, reader.info)
            job = film.job
            job.keep_mattes(is_whole=not measured.stopped)
            gpu = job.gpu_report()
            written = finish_files(files)
            profiled = beside_files(written, partial(profile.save, measured))
            if sheet is not None:
                beside_files(written, sheet.save)
        give_back_free_memory()  # so that the next video is not allocated among the freed blocks
        return SegmentReport(
            input=planned.video,
            outputs=written,
            frame_count=reader.decoded_count,
            corrupt_count=reader.corrupt_count,
            scene_cut_count=len(job.matting.cut_pts),
            model=self.chosen.network.name,
            notes=(
                *notes_on_people(self.settings, shows_people=job.matting.shows_people),
                *film.notes_on_kept(),
                *(notes_on_cache() if keeps_findings(self.settings) else ()),
                *notes_on_reading(reader),
                *notes_on(
                    reader.info,
                    [kind for kind, _ in outputs],
                    network=opening(self.chosen).network,
                    device=self.device,
                    loaded=self.loaded,
                ),
                *job.notes,
                *film.notes,
                *(() if film.int8 is None else (film.int8.note,)),
                *notes,
                *profiled,
            ),
            model_requested=self.chosen.requested,
            model_note=self.chosen.note,
            engine=film.network.engine_name,
            engine_reasons=opening(self.chosen).engine_reasons,
            decoder=reader.decoder,
            device=self.device.label,
            shows_people=job.matting.shows_people,
            profile=self.loaded.profile,
            stereo=film.vr.layout.value,
            stereo_reason=film.vr.layout_reason.how,
            projection=film.vr.projection.value,
            projection_reason=film.vr.projection_reason.how,
            network_size=job.matting.network_size,
            wall_seconds=perf_counter() - began,
            peak_memory_bytes=peak_memory_bytes(),
            pipeline=measured,
            levers=job.matting.report(),
            gpu=gpu,
        )


class FilmRun:
    """One run over a video or a stretch of it. A context manager; its pipeline runs once.

    Args:
        runner: Holds the network.
        reader: The video.
        kinds: Kind and encoding of each output; none for a run that only wants alpha.
        profiler: Times the parts of a job on the GPU; by default a new one.
        keeps_mattes: True if the cache of mattes may be used, if it is on.
        stretch: Identifies the part of the video, if it is one: mattes are stored per part.
        background_begin: Time in seconds at which a moving background begins; None means the first frame.
        int8: The earlier decision on INT8; None decides here.
        around: Wraps the estimators of the video, for example to keep only some people.

    Raises:
        UsageError: The network does not support the settings, or a person to keep is not in the video.
        InputError: The background cannot be opened.
        EngineError: INT8 was requested, but is not accurate enough for this video.
    """

    def __init__(
        self,
        runner: FilmRunner,
        reader: VideoReader,
        kinds: Sequence[tuple[OutputKind, Encoding]],
        *,
        profiler: Profiler | None = None,
        keeps_mattes: bool = False,
        stretch: str | None = None,
        background_begin: Fraction | None = None,
        int8: Int8Choice | None = None,
        around: Around | None = None,
    ) -> None:
        self._runner, self._reader = runner, reader
        settings = runner.settings
        self.vr = vr_of_run(reader.info, settings.video)
        per_call = runner.frames_per_call(reader)
        self.notes: tuple[str, ...] = ()
        """Notes on the people to keep."""
        self._keeping: Keeping | None = None
        if around is None and settings.people.active:
            from vitascope.segmentation.people import hinted  # imported here: most runs keep everybody

            self._keeping = hinted.Keeping(reader, self.vr, settings, open_salient=runner.open_salient)
            around, self.notes = self._keeping.around, self._keeping.notes
        self._stack = ExitStack()
        try:
            self.network: MattingNetwork = runner.chosen.network
            self.int8 = int8 or int8_choice(
                runner.loaded, reader.info.path, self.network, device=runner.device, store=runner.store
            )
            if self.int8 is not None and self.int8.decoder is not None:
                self.network = self._stack.enter_context(
                    closing(int8_network(runner.loaded, self.network, self.int8, store=runner.store))
                )
            self._cache = None
            if keeps_mattes and not settings.people.keep_held:  # this needs the frames
                self._cache = open_matte_cache(
                    reader.info.path,
                    settings=settings,
                    network=self.network,
                    store=runner.store,
                    vr=self.vr,
                    device=runner.device,
                    frames_per_call=per_call,
                    stretch=stretch,
                    int8_decoder=None if self.int8 is None else self.int8.decoder,
                )
            self.job: FilmJob = open_job(
                self._stack,
                self.network,
                kinds,
                info=reader.info,
                vr=self.vr,
                settings=settings,
                frames_per_call=per_call,
                fitted=partial(runner.frames_per_call, reader),
                streams=runner.streams,
                background_begin=background_begin,
                profiler=profiler,
                cache=self._cache,
                around=around,
            )
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the background, and leave the GPU idle."""
        self._stack.__exit__(kind, error, trace)

    def notes_on_kept(self) -> tuple[str, ...]:
        """Make a note on kept people who were seen in few frames, once all frames are done."""
        if self._keeping is None:
            return ()
        frames = self._keeping.seen.frames
        loaded = self._runner.loaded
        return self._keeping.notes_on(frames, network=self.network.name, profile=loaded.profile)

    def count_from(self, index: int) -> None:
        """Set the index of the first frame, if it is not 0, before that frame arrives."""
        if self._cache is not None:
            self._cache.first_index = index

    def files(
        self,
        outputs: Sequence[tuple[OutputKind, Path]],
        encodings: Sequence[Encoding],
    ) -> OutputSet:
        """Open the output files of a whole video; returns a context manager.

        Raises:
            OutputError: A file cannot be created.
        """
        settings = self._runner.settings
        return OutputSet(
            self._reader,
            outputs,
            encodings,
            trim=settings.video,
            vr=self.vr,
            settings=settings.output,
        )

    def pipeline(
        self,
        frames: Iterable[Frame],
        *,
        wants_alpha: Callable[[int], bool],
        draws: Callable[[Frame], bool] = every_frame,
        then: Sequence[Stage] = (),
        first_frame_soon: bool = False,
        on_device: bool = False,
        observed: Callable[[Sequence[Stage]], Sequence[Stage]] = list,
    ) -> Pipeline:
        """Make the pipeline of this run.

        Args:
            frames: The decoded frames, iterated on the decoder's thread.
            wants_alpha: Called with a frame's index; True if alpha and the frame itself are needed, too.
            draws: False for a frame that only later frames need; see ``FilmJob.stages``.
            then: The stages after rendering, up to the ``Sink``, whose thread is bound to the copying stream on a
                GPU; empty for a stream to the caller.
            first_frame_soon: Give the first frame all cores, because somebody is waiting for it.
            on_device: Leave pictures on the GPU; see ``FilmJob.stages``.
            observed: Wraps the stages, for measuring.
        """
        runner = self._runner
        limits = replace(queue_limits(runner.settings), wake_items=self.job.frames_gathered)
        alone = self.job.slowest_to_begin if first_frame_soon else None
        stages: list[Stage] = [
            Source("decode", frames, output=limits, first_alone_until=alone),
            *self.job.stages(wants_alpha=wants_alpha, draws=draws, on_device=on_device),
        ]
        stages += then
        if then and (streams := runner.streams) is not None:
            stages[-1] = replace(stages[-1], open=partial(streams.bind, streams.copying))
        return Pipeline(observed(stages))


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
    fitted: Callable[[int], int] | None = None,
    background_begin: Fraction | None = None,
    profiler: Profiler | None = None,
    cache: MatteCache | None = None,
    limits: QueueLimits | None = None,
    around: Around | None = None,
) -> FilmJob:
    """Open the job of one video: on the GPU if its frames can stay there, else on the CPU.

    Args:
        stack: Closes what the job opens.
        network: The run's network.
        outputs: Kind and encoding of each output.
        info: The video.
        vr: Layout and projection of the video.
        settings: The run's settings.
        frames_per_call: Consecutive frames for each call of the network.
        fitted: Returns how many of them fit in GPU memory, given the bytes per frame that the network sees; by
            default all.
        streams: CUDA streams of the GPU to use; None for the CPU.
        background_begin: Time of the run's first frame in seconds, at which a moving background begins; None means the
            first frame.
        profiler: Times the parts of a job on the GPU; by default a new one.
        cache: Stored and new mattes of this part of the video; None without a cache.
        limits: Limits of the queues between stages; by default those of the settings.
        around: See ``StreamMatting``.

    Raises:
        UsageError: ``replace`` without a background, ``packed-alpha`` of a flat video, a video that is already packed
            alpha, or a network that does not support the ``inference`` settings.
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
            settings, vr, shows_people=any(kind not in WITHOUT_FOREGROUND for kind, _ in outputs)
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
        # A shot's first frames may join a larger call, so calls keep the requested size.
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
    # Imported here: these need a GPU.
    from vitascope.gpu.memory.pinned_pool import Download
    from vitascope.gpu.profiling.gpu_clock import StreamTimes
    from vitascope.segmentation.gpu_job import GpuJob

    notes: list[str] = []
    times = profiler or StreamTimes()
    sizer = AdaptiveBatchSizer(
        frames_per_call,
        max_batch_size=frames_per_call,
        growing=False,
        on_shortage=lambda error, frames: notes.append(f"{error}; continued with {frames} frames per call"),
    )
    download = partial(Download, stream=streams.copying, pool=streams.host_memory)
    matting = open_matting(sizer=sizer, times=times, download=download)
    if fitted is not None:
        sizer.at_most(fitted(matting.picture_bytes))
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
    """Leave the GPU idle; a failure while doing so must not hide the error that caused it."""
    try:
        yield
    except BaseException:
        with suppress(EngineError):
            streams.finish()
        raise
    streams.finish()


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
        # With an untrusted lens, the two eyes' rays do not match, so people would be compared with the wrong places.
        inference=settings.inference
        if vr.trusted_lens is not None or vr.projection is Projection.FLAT
        else settings.inference.model_copy(update={"stereo_agreement": False}),
    )
