"""The segmentation application: videos in, people cut out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakSet

import cv2

from vitascope.config import LoadedSettings, OutputKind, load_settings, vitascope_home
from vitascope.device import peak_memory_bytes, select_device
from vitascope.errors import CorruptInputError
from vitascope.frames import Frame, Plane, StereoLayout
from vitascope.gpu.memory.host_heap import share_heaps
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.report import Interruptible
from vitascope.gpu.pipeline.stages import Sink, Source
from vitascope.media.encoding import Encoding
from vitascope.media.reader import VideoReader, open_video
from vitascope.models.store import ModelStore
from vitascope.segmentation.cached_film import open_matte_cache, open_or_defer
from vitascope.segmentation.clashes import refuse_clashes
from vitascope.segmentation.contact_sheet import ContactSheet
from vitascope.segmentation.deferred_network import opening
from vitascope.segmentation.device_ids import checked_devices, works_in_processes
from vitascope.segmentation.endings import FramesUntilDamage, finish_files, kept_files
from vitascope.segmentation.gpu_capacity import decoder_sessions, frames_per_call, open_streams
from vitascope.segmentation.jobs import Job, mask_size, open_job, queue_limits
from vitascope.segmentation.networks import FetchProgress, open_network
from vitascope.segmentation.notes import notes_on
from vitascope.segmentation.output_encoding import check_kinds, encoding_for
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.rendering import Rendered
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.run_profile import RunProfile, not_profiled
from vitascope.segmentation.stretch import no_picture_between
from vitascope.segmentation.writing import OutputSet, planar_info
from vitascope.vr.stereo import DetectedLayout, detect_layout

if TYPE_CHECKING:
    from fractions import Fraction

    from vitascope.gpu.profiling.profiler import Profiler
    from vitascope.segmentation.crew import ProcessCrew
    from vitascope.segmentation.matte_cache import MatteCache

__all__ = ["FrameAndAlpha", "Segmenter", "Started"]


class FrameAndAlpha(NamedTuple):
    """One step of ``Segmenter.stream``."""

    frame: Frame
    """The picture in its native planes."""
    alpha: Plane
    """uint8 [H, W] 0..255 for 8-bit video, uint16 0..65535 for deeper video: 0 is background, full scale is person."""


class Started(NamedTuple):
    """What a progress display needs, once the files are open."""

    pipeline: Interruptible
    """``snapshot()`` tells how far it is; ``interrupt()`` ends it as Ctrl-C does."""
    expected_frame_count: int | None
    """None when the input does not say."""


class Segmenter:
    """Cuts people out of videos. Opens its network once; every video gets a recurrent state of its own.

    One video at a time: networks and CUDA streams serve one job. Finish or close one ``stream`` before the next.

    With ``gpu.device_ids`` or ``processing.use_multiprocessing`` the network is open in worker processes instead, which
    share each video that is written; see ``docs/several-gpus.md``.

    Args:
        profile: ``fast``, ``balanced`` or ``quality``; ignored when ``loaded`` is given.
        settings: Values by dotted key, for example ``{"model.name": "selfie", "edges.feather_px": 1.5}``.
        loaded: Settings that were loaded already, instead of ``profile`` and ``settings``.
        store: Where networks lie; the user's own store when omitted.
        fetch_progress: Told how far the download of a network is.

    Raises:
        ConfigError: A setting is unknown or out of range.
        ModelError: The network cannot be had.
        EngineError: The engine cannot load it.
        DeviceError: A GPU that was asked for is missing.
        WorkerError: A worker process could not be started.
    """

    _keeps_mattes = True
    """False where frames are not counted from the film's beginning, so that the cache does not know them."""

    def __init__(
        self,
        *,
        profile: str | None = None,
        settings: Mapping[str, Any] | None = None,
        loaded: LoadedSettings | None = None,
        store: ModelStore | None = None,
        fetch_progress: FetchProgress | None = None,
    ) -> None:
        share_heaps()
        self.loaded = checked_devices(loaded or load_settings(profile=profile, flags=settings))
        self.settings = self.loaded.settings
        self._store = store or ModelStore(vitascope_home())
        self._background_begin: Fraction | None = None
        self._steps: WeakSet[Generator[FrameAndAlpha, None, None]] = WeakSet()
        self._crew = self._open_crew(fetch_progress)
        if self._crew is not None:
            self.device, self.chosen = self._crew.device, self._crew.chosen
            return
        self.device = select_device(self.settings.gpu.device, index=self.settings.gpu.device_id)
        self._streams = open_streams(self.device, self.settings)
        # OpenCV splits a frame over its own threads; stages overlap instead, so one is enough for each. The setting is
        # the process's; close() gives it back.
        self._opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        try:
            self.chosen = open_or_defer(
                self.settings,
                self._store if self._keeps_mattes else None,
                lambda: open_network(self.settings, self._store, device=self.device, progress=fetch_progress),
            )
        except BaseException:
            self._give_back()
            raise

    def __enter__(self) -> Self:
        """Use as a context manager that frees the network."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free the network."""
        self.close()

    def close(self) -> None:
        """Free the network, and give OpenCV its threads back; end worker processes, and streams that still run."""
        for steps in list(self._steps):
            steps.close()
        if self._crew is not None:
            self._crew.close()
            return
        self.chosen.network.close()
        self._give_back()

    def _give_back(self) -> None:
        """What is the process's: limits of the GPU's memory, and OpenCV's threads."""
        if self._streams is not None:
            self._streams.close()
        cv2.setNumThreads(self._opencv_threads)

    def stream(self, video: Path | str) -> Generator[FrameAndAlpha, None, None]:
        """Matte a video, frame by frame, in order; decoding and inference run ahead in threads of their own.

        Leaving the loop early stops them, and so does closing the segmenter. Nothing is written.

        Raises:
            InputError: The video cannot be opened; ``CorruptInputError`` when it stops being decodable.
            PipelineError: A stage failed.
        """
        steps = self._stream(Path(video))
        self._steps.add(steps)
        return steps

    def _stream(self, video: Path) -> Generator[FrameAndAlpha, None, None]:
        if self._crew is not None:  # frames do not cross processes: this one mattes them itself
            with Segmenter(loaded=self._crew.alone, store=self._store) as alone:
                yield from alone.stream(video)
            return
        with ExitStack() as stack:
            reader = stack.enter_context(self._open(video))
            source = FramesUntilDamage(reader)
            layout = self._layout(reader)
            job = self._job(stack, reader, layout, [], cache=self._cache(reader, layout))
            # Somebody waits for the first frame; of a file, for the last.
            decode = replace(self._source(source, job), first_alone_until=job.slowest_to_begin)
            pipeline = Pipeline([decode, *job.stages(wants_alpha=lambda _: True)])
            with closing(pipeline.stream()) as rendered:
                for step in rendered:
                    assert step.source is not None  # wants_alpha says yes to every frame
                    assert step.alpha is not None
                    yield FrameAndAlpha(step.source, step.alpha)
            source.raise_damage()
            job.keep_mattes(is_whole=True)

    def write(
        self,
        video: Path | str,
        outputs: Sequence[tuple[OutputKind, Path]],
        *,
        preview: Path | None = None,
        on_start: Callable[[Started], object] | None = None,
    ) -> SegmentReport:
        """Segment one video into files. Each appears under its name only when it is whole.

        Args:
            video: The input.
            outputs: What to write, and where.
            preview: Where to write a contact sheet (PNG); none when omitted.
            on_start: Called once everything is open, from this thread.

        Raises:
            UsageError: A kind is unknown or lacks its background; an output is something that is read; or two
                outputs are the same file.
            InputError: The input cannot be read; ``CorruptInputError`` when it stops being decodable
                (``output.keep_partial`` then keeps what was written as ``.part``).
            OutputError: An output cannot be written.
            PipelineError: A stage failed for another reason.
            KeyboardInterrupt: Ctrl-C; what was written is kept as ``.part``.
        """
        began = perf_counter()
        replaced = [f"{path} took the place of an earlier file" for _, path in outputs if path.is_file()]
        check_kinds([kind for kind, _ in outputs], self.settings.output)
        refuse_clashes([PlannedVideo(Path(video), tuple(outputs), preview)], settings=self.settings)
        if self._crew is not None:
            notes = [*replaced, *not_profiled(wanted=self.settings.debug.profile_performance)]
            return self._crew.write(
                Path(video), outputs, preview=preview, on_start=on_start, notes=notes, began=began
            )
        with ExitStack() as stack:
            reader = stack.enter_context(self._open(Path(video)))
            layout = self._layout(reader)
            encodings = self._encodings(reader, outputs)
            source = FramesUntilDamage(reader)
            kinds = [(kind, encoding) for (kind, _), encoding in zip(outputs, encodings, strict=True)]
            wanted = self.settings.debug.profile_performance
            profile = stack.enter_context(
                RunProfile([path for _, path in outputs], wanted=wanted, device_id=self.device.index)
            )
            cache = self._cache(reader, layout)
            job = self._job(stack, reader, layout, kinds, profiler=profile.profiler, cache=cache)
            sheet = ContactSheet(preview, reader.info) if preview is not None else None
            files = stack.enter_context(
                OutputSet(
                    reader,
                    outputs,
                    encodings,
                    trim=self.settings.video,
                    keep_partial=self.settings.output.keep_partial,
                    mask_size=mask_size(reader.info, self.settings.output.mask_max_width),
                )
            )

            def encode(rendered: Rendered) -> None:
                files.write(rendered)
                if sheet is not None:
                    sheet.add(rendered)

            stages = [
                self._source(source, job),
                *job.stages(wants_alpha=lambda index: sheet is not None and sheet.wants(index)),
                Sink("encode", encode, open=self._bind_encoder),
            ]
            pipeline = Pipeline(profile.stages(stages))
            if on_start is not None:
                on_start(Started(pipeline, reader.expected_frame_count))
            try:
                measured = pipeline.run()
                source.raise_damage()
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(kept_files(files)) from error
            except CorruptInputError as error:
                if not self.settings.output.keep_partial:
                    raise
                raise CorruptInputError(f"{error}; {kept_files(files)}") from error
            if reader.decoded_count == 0:
                raise no_picture_between(video, self.settings.video, reader.info)
            if sheet is not None:
                sheet.save()
            job.keep_mattes(is_whole=not measured.stopped)
            gpu = job.gpu_report()
            written = finish_files(files)
            profiled = profile.save(measured)
        return SegmentReport(
            input=Path(video),
            outputs=written,
            frame_count=reader.decoded_count,
            corrupt_count=reader.corrupt_count,
            scene_cut_count=job.cut_count,
            model=self.chosen.network.name,
            notes=(
                *notes_on(
                    reader,
                    [kind for kind, _ in outputs],
                    network=opening(self.chosen).network,
                    device=self.device,
                    loaded=self.loaded,
                ),
                *job.notes,
                *replaced,
                *profiled,
            ),
            model_requested=self.chosen.requested,
            model_note=self.chosen.note,
            engine=self.chosen.network.engine_name,
            engine_reasons=opening(self.chosen).engine_reasons,
            decoder=reader.decoder,
            device=self.device.label,
            profile=self.loaded.profile,
            stereo=layout.layout.value,
            stereo_reason=layout.reason,
            network_size=job.network_input.size,
            wall_seconds=perf_counter() - began,
            peak_memory_bytes=peak_memory_bytes(),
            pipeline=measured,
            levers=job.lever_report(),
            gpu=gpu,
        )

    def _open_crew(self, progress: FetchProgress | None) -> ProcessCrew | None:
        if not works_in_processes(self.settings):
            return None
        from vitascope.segmentation.crew import ProcessCrew  # a run in one process needs none of that

        return ProcessCrew(self.loaded, store=self._store, progress=progress)

    def _open(self, video: Path) -> VideoReader:
        wanted = self.settings.video
        return open_video(
            video,
            start_seconds=wanted.start_seconds or None,
            end_seconds=wanted.end_seconds,
            max_corrupt_frames=wanted.max_corrupt_frames,
            threads=self.settings.pipeline.stages.decode.threads or 0,
            cuda_device=None if self._streams is None else self.device.index,
            decoder_sessions=decoder_sessions(self.settings, video, streams=self._streams),
        )

    def _cache(self, reader: VideoReader, layout: DetectedLayout) -> MatteCache | None:
        return open_matte_cache(
            reader.info.path,
            settings=self.settings,
            network=self.chosen.network,
            store=self._store,
            layout=layout.layout,
            device=self.device,
            frames_per_call=self._frames_per_call(reader),
        )

    def _layout(self, reader: VideoReader) -> DetectedLayout:
        stereo = self.settings.video.stereo
        return detect_layout(reader.info, None if stereo == "auto" else StereoLayout(stereo))

    def _job(
        self,
        stack: ExitStack,
        reader: VideoReader,
        layout: DetectedLayout,
        outputs: Sequence[tuple[OutputKind, Encoding]],
        *,
        profiler: Profiler | None = None,
        cache: MatteCache | None = None,
    ) -> Job:
        return open_job(
            stack,
            self.chosen.network,
            outputs,
            info=reader.info,
            layout=layout.layout,
            settings=self.settings,
            frames_per_call=self._frames_per_call(reader),
            streams=self._streams,
            background_begin=self._background_begin,
            profiler=profiler,
            cache=cache,
        )

    def _frames_per_call(self, reader: VideoReader) -> int:
        return frames_per_call(self.loaded, reader.info, streams=self._streams)

    def _bind_encoder(self) -> None:
        """NVENC takes pictures on the GPU in this thread."""
        if self._streams is not None:
            self._streams.bind(self._streams.copying)

    def _source(self, frames: Iterable[Frame], job: Job) -> Source[Frame]:
        limits = replace(queue_limits(self.settings), wake_items=job.frames_gathered)
        return Source("decode", frames, output=limits)

    def _encodings(self, reader: VideoReader, outputs: Sequence[tuple[OutputKind, Path]]) -> list[Encoding]:
        threads = self.settings.pipeline.stages.encode.threads or 0
        return [
            encoding_for(
                path,
                kind,
                info=planar_info(reader.info),
                settings=self.settings.output,
                threads=threads,
                alone=len(outputs) == 1,
                hardware=self.settings.gpu.encoder,
                # Frames of a GPU come faster than one encoder on the processor takes them.
                parallel_encoders=1 if self._streams is None else "auto",
            )
            for kind, path in outputs
        ]
