"""The segmentation application: videos in, people cut out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple

import cv2

from vitascope.config import LoadedSettings, OutputKind, load_settings, vitascope_home
from vitascope.device import peak_memory_bytes, select_device
from vitascope.errors import CorruptInputError
from vitascope.frames import Frame, Plane, StereoLayout
from vitascope.gpu.kernels.edges import EdgeOptions
from vitascope.gpu.pipeline import Pipeline
from vitascope.gpu.queues import QueueLimits
from vitascope.gpu.stages import Batched, Group, Map, Sink, Source, Stage
from vitascope.media.encoding import Encoding
from vitascope.media.reader import VideoReader, open_video
from vitascope.models.store import ModelStore
from vitascope.segmentation.clashes import refuse_clashes
from vitascope.segmentation.contact_sheet import ContactSheet
from vitascope.segmentation.matting import Matte, MattingOptions, StreamMatting
from vitascope.segmentation.networks import ChosenNetwork, FetchProgress, open_network
from vitascope.segmentation.output_encoding import check_kinds, encoding_for
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.rendering import Rendered, Renderer
from vitascope.segmentation.report import OutputReport, SegmentReport
from vitascope.segmentation.stretch import no_picture_between
from vitascope.segmentation.writing import OutputSet
from vitascope.vr.stereo import DetectedLayout, detect_layout

__all__ = ["FrameAndAlpha", "Segmenter", "Started"]

_HDR_TRANSFERS = frozenset({16, 18})  # H.273: PQ (SMPTE ST 2084) and HLG (ARIB STD-B67)


class FrameAndAlpha(NamedTuple):
    """One step of ``Segmenter.stream``."""

    frame: Frame
    """The picture in its native planes."""
    alpha: Plane
    """uint8 [H, W] 0..255 for 8-bit video, uint16 0..65535 for deeper video: 0 is background, full scale is person."""


class Started(NamedTuple):
    """What a progress display needs, once the files are open."""

    pipeline: Pipeline
    """``snapshot()`` tells how far it is."""
    expected_frame_count: int | None
    """None when the input does not say."""


class Segmenter:
    """Cuts people out of videos. Opens its network once; every video gets a recurrent state of its own.

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
    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        settings: Mapping[str, Any] | None = None,
        loaded: LoadedSettings | None = None,
        store: ModelStore | None = None,
        fetch_progress: FetchProgress | None = None,
    ) -> None:
        self.loaded = loaded or load_settings(profile=profile, flags=settings)
        self.settings = self.loaded.settings
        self.device = select_device(self.settings.gpu.device)
        # OpenCV splits a frame over its own threads; stages overlap instead, so one is enough for each. The setting is
        # the process's; close() gives it back.
        self._opencv_threads = cv2.getNumThreads()
        cv2.setNumThreads(1)
        self.chosen: ChosenNetwork = open_network(
            self.settings, store or ModelStore(vitascope_home()), progress=fetch_progress
        )

    def __enter__(self) -> Segmenter:
        """Use as a context manager that frees the network."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the network."""
        self.close()

    def close(self) -> None:
        """Free the network, and give OpenCV its threads back."""
        self.chosen.network.close()
        cv2.setNumThreads(self._opencv_threads)

    def stream(self, video: Path | str) -> Iterator[FrameAndAlpha]:
        """Matte a video, frame by frame, in order; decoding and inference run ahead in threads of their own.

        Leaving the loop early stops them. Nothing is written.

        Raises:
            InputError: The video cannot be opened; ``CorruptInputError`` when it stops being decodable.
            PipelineError: A stage failed.
        """
        with self._open(Path(video)) as reader:
            source = _Frames(reader)
            matting = self._matting(reader, self._layout(reader))
            stages = [*self._to_estimates(source, matting), Map("postprocess", matting.refine)]
            with closing(Pipeline(stages).stream()) as mattes:
                for matte in mattes:
                    yield FrameAndAlpha(matte.frame, matte.alpha)
            source.raise_damage()

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
        with ExitStack() as stack:
            reader = stack.enter_context(self._open(Path(video)))
            layout = self._layout(reader)
            encodings = self._encodings(reader, outputs)
            source = _Frames(reader)
            matting = self._matting(reader, layout)
            kinds = [(kind, encoding) for (kind, _), encoding in zip(outputs, encodings, strict=True)]
            renderer = stack.enter_context(
                Renderer(
                    kinds,
                    settings=self.settings.output,
                    regions=matting.regions,
                    rotation_degrees=reader.info.rotation_degrees,
                )
            )
            sheet = ContactSheet(preview, reader.info) if preview is not None else None
            files = stack.enter_context(
                OutputSet(
                    reader,
                    outputs,
                    encodings,
                    trim=self.settings.video,
                    keep_partial=self.settings.output.keep_partial,
                )
            )

            def draw(matte: Matte) -> Rendered:
                return renderer.render(matte)

            def encode(rendered: Rendered) -> None:
                files.write(rendered)
                if sheet is not None:
                    sheet.add(rendered)

            pipeline = Pipeline(
                [
                    *self._to_estimates(source, matting),
                    Map(
                        "postprocess", lambda estimated: draw(matting.refine(estimated)), output=self._limits
                    ),
                    Sink("encode", encode),
                ]
            )
            if on_start is not None:
                on_start(Started(pipeline, reader.expected_frame_count))
            try:
                measured = pipeline.run()
                source.raise_damage()
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(_kept(files)) from error
            except CorruptInputError as error:
                if not self.settings.output.keep_partial:
                    raise
                raise CorruptInputError(f"{error}; {_kept(files)}") from error
            if reader.decoded_count == 0:
                raise no_picture_between(video, self.settings.video, reader.info)
            if sheet is not None:
                sheet.save()
            written = _finish(files)
        return SegmentReport(
            input=Path(video),
            outputs=written,
            frame_count=reader.decoded_count,
            corrupt_count=reader.corrupt_count,
            scene_cut_count=matting.cut_count,
            model=self.chosen.network.name,
            notes=(*self._notes(reader, [kind for kind, _ in outputs]), *replaced),
            model_requested=self.chosen.requested,
            model_note=self.chosen.note,
            engine=self.chosen.network.engine_name,
            device=self.device.label,
            profile=self.loaded.profile,
            stereo=layout.layout.value,
            stereo_reason=layout.reason,
            network_size=matting.network_input.size,
            wall_seconds=perf_counter() - began,
            peak_memory_bytes=peak_memory_bytes(),
            pipeline=measured,
        )

    def _notes(self, reader: VideoReader, kinds: Sequence[OutputKind]) -> tuple[str, ...]:
        """What the user should know of this run: what was not done, or has no effect."""
        info = reader.info
        notes = []
        if info.container == "images" and reader.decoded_count > 1:
            notes.append(f"pictures carry no time: taken at {float(info.average_frame_rate):g} a second")
        if info.color.transfer in _HDR_TRANSFERS and {"key", "replace", "overlay"}.intersection(kinds):
            notes.append(
                "the video is HDR; the new colours are written as they are, brighter than they were meant"
            )
        if info.interlaced:
            notes.append(
                "the video is interlaced; it was matted and written as full pictures, combing included"
            )
        network = self.chosen.network
        unused = {
            "model.input_size": not network.name.startswith("rvm"),
            "model.downsample_ratio": not network.name.startswith("rvm"),
            "model.warm_up_frames": not network.recurrent,
            "model.person_class": self.settings.model.kind is None,
            "edges.decontaminate": not network.name.startswith("rvm"),
            "output.background": "replace" not in kinds,
        }
        for key, has_no_effect in unused.items():
            if has_no_effect and self.loaded.origin(key).explicit:
                notes.append(f"{key} has no effect here ({network.name}, {', '.join(kinds)})")
        return tuple(notes)

    @property
    def _limits(self) -> QueueLimits:
        processing = self.settings.processing
        return QueueLimits(items=processing.max_queue_size, nbytes=int(processing.max_queue_mb * 1e6))

    def _open(self, video: Path) -> VideoReader:
        wanted = self.settings.video
        return open_video(
            video,
            start_seconds=wanted.start_seconds or None,
            end_seconds=wanted.end_seconds,
            max_corrupt_frames=wanted.max_corrupt_frames,
            threads=self.settings.pipeline.stages.decode.threads or 0,
        )

    def _layout(self, reader: VideoReader) -> DetectedLayout:
        stereo = self.settings.video.stereo
        return detect_layout(reader.info, None if stereo == "auto" else StereoLayout(stereo))

    def _matting(self, reader: VideoReader, layout: DetectedLayout) -> StreamMatting:
        edges = self.settings.edges
        return StreamMatting(
            self.chosen.network,
            size=(reader.info.height, reader.info.width),
            layout=layout.layout,
            rotation_degrees=reader.info.rotation_degrees,
            options=MattingOptions(
                edges=EdgeOptions(
                    threshold=edges.threshold, grow_px=edges.grow_px, feather_px=edges.feather_px
                ),
                decontaminate=edges.decontaminate,
                temporal_smoothing=edges.temporal_smoothing,
                scene_cut_threshold=self.settings.video.scene_cut_threshold,
                warm_up_frames=self.settings.model.warm_up_frames,
            ),
        )

    def _to_estimates(self, source: _Frames, matting: StreamMatting) -> list[Stage]:
        batch = Batched(matting.infer, size=self.settings.frames_per_call)
        return [
            Source("decode", source, output=self._limits),
            Map("preprocess", matting.prepare, output=self._limits),
            Group("infer", batch, output=self._limits),
        ]

    def _encodings(self, reader: VideoReader, outputs: Sequence[tuple[OutputKind, Path]]) -> list[Encoding]:
        threads = self.settings.pipeline.stages.encode.threads or 0
        return [
            encoding_for(
                path,
                kind,
                info=reader.info,
                settings=self.settings.output,
                threads=threads,
                alone=len(outputs) == 1,
            )
            for kind, path in outputs
        ]


class _Frames:
    """A reader's frames; damage ends them instead of tearing the run down, so that what was read is finished."""

    def __init__(self, reader: VideoReader) -> None:
        self._reader = reader
        self._damage: CorruptInputError | None = None

    def __iter__(self) -> Iterator[Frame]:
        try:
            yield from self._reader
        except CorruptInputError as error:
            self._damage = error

    def raise_damage(self) -> None:
        """Raise what ended the frames early, if anything did."""
        if self._damage is not None:
            raise self._damage


def _kept(files: OutputSet) -> str:
    kept = files.keep_partial()
    return f"kept what was written: {', '.join(map(str, kept))}" if kept else "nothing had been written"


def _finish(files: OutputSet) -> tuple[OutputReport, ...]:
    """Complete and name the outputs; Ctrl-C waits until that is done, because nothing is gained by losing them.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed meanwhile; the outputs are there.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="vitascope-finish") as pool:
        finishing = pool.submit(files.finish)
        try:
            return finishing.result()
        except KeyboardInterrupt as error:
            names = ", ".join(str(output.path) for output in finishing.result())
            raise KeyboardInterrupt(f"the outputs were finished first: {names}") from error
