"""Makes stretches of videos: mattes and encodes each into its own file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from vitascope.closing import Closing
from vitascope.device import peak_memory_bytes
from vitascope.errors import CorruptInputError, EngineError, WorkerError
from vitascope.frames import Frame
from vitascope.gpu.memory.host_heap import give_back_free_memory
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.report import Interruptible
from vitascope.gpu.pipeline.stages import Sink
from vitascope.gpu.profiling.intervals import AtIntervals
from vitascope.media.reading.reader import VideoReader, read_headers
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.segment_encoder import EncodedPacket, SegmentEncoder
from vitascope.observe.report_values import Started
from vitascope.segmentation.film_run import FilmRun, FilmRunner
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.cached_film import DeferredNetwork, network_sha256, opening
from vitascope.segmentation.notes import notes_on, notes_on_reading
from vitascope.segmentation.people.hinted import Keeping
from vitascope.segmentation.processes.film_joiner import FilmJoiner, seen_seconds
from vitascope.segmentation.processes.hands import Hands
from vitascope.segmentation.processes.port import (
    FilmOrder,
    MakerFacts,
    StretchMade,
    StretchOrder,
    StretchProgress,
    Tell,
    WholeFilm,
)
from vitascope.segmentation.processes.spawned import Failed
from vitascope.segmentation.processes.stretch_file import (
    Encoded,
    KeptStretches,
    StretchSummary,
    StretchWriter,
)
from vitascope.segmentation.processes.stretches import FilmStretch
from vitascope.segmentation.render.contact_sheet import ContactSheet, Rgb8
from vitascope.segmentation.render.renderer import Rendered
from vitascope.segmentation.report import SegmentReport
from vitascope.vr.detection import VrDescription

_TELL_SECONDS = 0.25


class StretchFrames:
    """The frames of one stretch: its warm-up, its own frames, and some after them that the last ones need.

    Frames have the numbers that they have in the whole video, by its average rate. Damage ends the iteration.

    Args:
        reader: The video's reader.
        film: The video.
        stretch: The part of it.
    """

    def __init__(self, reader: VideoReader, film: FilmOrder, stretch: FilmStretch) -> None:
        self._reader = reader
        self._film = film
        self._stretch = stretch
        self.begin_pts = film.begin_pts if stretch.begin is None else stretch.begin
        """First pts that belongs to the stretch; frames before it are warm-up."""
        self.damage: CorruptInputError | None = None
        """Damage that ended the stretch's own frames early."""
        self.corrupt_count = 0
        """Number of damaged frames that were skipped among its own."""
        self.on_first: Callable[[int], object] | None = None
        """Called with the first frame's number before that frame is yielded."""
        self.still_indices: set[int] = set()
        """Numbers of the frames for the contact sheet."""

    def owns(self, pts: int) -> bool:
        """True for frames to encode."""
        return pts >= self.begin_pts and not self._is_behind(pts)

    def __iter__(self) -> Iterator[Frame]:
        reader, film = self._reader, self._film
        damaged_before = 0
        index: int | None = None
        stills = iter([pts for pts in film.still_pts if pts >= self.begin_pts])
        still = next(stills, None)
        left = film.frames_after
        try:
            for frame in self._from_warm_up():
                if index is None:
                    index = self._number(frame)
                    if self.on_first is not None:
                        self.on_first(index)
                else:
                    index += 1
                if frame.pts < self.begin_pts:
                    damaged_before = reader.corrupt_count
                elif self._is_behind(frame.pts):
                    if left == 0:
                        break
                    left -= 1
                else:
                    self.corrupt_count = max(reader.corrupt_count - damaged_before, 0)
                if still is not None and frame.pts >= max(still, self.begin_pts):
                    self.still_indices.add(index)
                    while still is not None and still <= frame.pts:
                        still = next(stills, None)
                yield replace(frame, index=index)
            else:
                if self._stretch.end is None:  # damage after the last frame counts, too
                    self.corrupt_count = reader.corrupt_count - damaged_before
        except CorruptInputError as error:
            if left == film.frames_after:  # otherwise the next stretch reports it
                self.damage = error
                self.corrupt_count = reader.corrupt_count - damaged_before

    def _is_behind(self, pts: int) -> bool:
        return self._stretch.end is not None and pts >= self._stretch.end

    def _number(self, frame: Frame) -> int:
        """A frame's number in the whole video, computed from its time."""
        return round((frame.pts - self._film.begin_pts) / self._film.frame_ticks)

    def _from_warm_up(self) -> Iterator[Frame]:
        """Frames from the warm-up to the end of the video.

        If frames last longer than average, the warm-up yields too few of them. Repeated frames do no harm, so
        the reader goes back further, and the frames in between are yielded again.
        """
        reader, film, from_pts = self._reader, self._film, self._stretch.warm_up_from
        reader.play(film.begin_pts if from_pts is None else from_pts, film.end_pts)
        seen = 0
        while (frame := next(reader, None)) is not None:
            if frame.pts < self.begin_pts:
                seen += 1
            elif from_pts is not None and seen < film.warm_up_frames and from_pts > film.begin_pts:
                from_pts = max(2 * from_pts - self.begin_pts - 1, film.begin_pts)
                reader.play(from_pts, film.end_pts)
                seen = 0
                continue
            else:
                from_pts = None  # the warm-up is complete
            yield frame


class StretchMaker(Closing):
    """Mattes and encodes stretches of videos with a network that stays open. A context manager.

    Keeps GPU memory and page-locked memory from one stretch to the next, and to the next video of the same
    size, until ``rest``, which the caller calls as soon as no stretch is waiting.

    Args:
        runner: Holds the network, for one device and a share of the CPU's cores. Its owner may run videos on it after
            ``rest``.
    """

    def __init__(self, runner: FilmRunner) -> None:
        self._runner = runner
        self._pipeline: Pipeline | None = None
        """The pipeline of the current stretch."""
        self._reader: VideoReader | None = None
        """The video of the last stretch. To open one with its decoders takes a GPU as long as 200 frames of 4K."""
        self._size: tuple[int, int] | None = None
        """(height, width) of the video that memory is kept for."""

    def close(self) -> None:
        """Close the video, and free the network."""
        self.rest()
        self._runner.close()

    def facts(self) -> MakerFacts:
        """Facts about this maker for the report."""
        runner = self._runner
        if isinstance(runner.chosen.network, DeferredNetwork):  # its engine affects results
            runner.chosen.network.opened()
        chosen, device, name = opening(runner.chosen), runner.device, runner.settings.model.name
        return MakerFacts(
            name=chosen.network.name,
            requested=chosen.requested,
            note=chosen.note,
            engine_name=chosen.network.engine_name,
            engine_reasons=chosen.engine_reasons,
            recurrent=chosen.network.recurrent,
            device_kind=device.kind,
            device_label=device.label,
            device_note=device.note,
            network_sha256=network_sha256(chosen.network.name if name == "auto" else name, runner.store),
        )

    def answer(
        self, order: StretchOrder | WholeFilm, *, tell: Tell, interrupted: threading.Event
    ) -> StretchMade | SegmentReport | Failed:
        """The result of an order, or the error.

        Args:
            order: What to make.
            tell: Called with the progress, on its own thread.
            interrupted: Set to end a whole video as Ctrl-C would.
        """
        try:
            if isinstance(order, WholeFilm):
                return self.make_film(order, tell=tell, interrupted=interrupted)
            return self.make(order, tell=tell)
        except KeyboardInterrupt as error:
            return Failed.of(WorkerError(f"it was interrupted: {error}"))
        except Exception as error:
            return Failed.of(error)

    def open_video(self, video: Path) -> VideoReader:
        """A reader for a video; it stays open until ``rest``, or until another video is needed.

        Raises:
            InputError: The video cannot be opened.
        """
        if self._reader is None or self._reader.info.path != video:
            self.close_video()
            if self._runner.streams is not None and read_headers(video).size != self._size:
                self._give_back()
            self._reader = self._runner.open_video(video)
            self._size = self._reader.info.height, self._reader.info.width
        return self._reader

    def close_video(self) -> None:
        """Close the video kept open for the next stretch. Idempotent."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
            give_back_free_memory()

    def rest(self) -> None:
        """Close the video, and release GPU memory kept for the next one. Idempotent."""
        self.close_video()
        if self._runner.streams is not None:
            self._runner.streams.keeps_idle_memory = False
        self._give_back()

    def _give_back(self) -> None:
        if (streams := self._runner.streams) is not None:
            with suppress(EngineError):  # whoever uses the GPU next will report its failure
                streams.finish(is_last=True)

    def _rest_after_an_error(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.rest()

    def stop(self) -> None:
        """End the current stretch with an error."""
        if (pipeline := self._pipeline) is not None:
            pipeline.interrupt()

    def make_film(self, film: WholeFilm, *, tell: Tell, interrupted: threading.Event) -> SegmentReport:
        """Make all files of a short video.

        Args:
            film: The video and its outputs.
            tell: Called with the progress, on its own thread.
            interrupted: Set it to end the run as Ctrl-C would.

        Raises:
            VitascopeError: The video failed; no incomplete output is left.
            KeyboardInterrupt: ``interrupted`` was set; what was written is kept as ``.part``.
        """
        runner = self._runner
        joiner = FilmJoiner(
            runner.loaded,
            [self.facts()],
            store=runner.store,
            kept=KeptStretches.of(runner.settings),
            open_video=self.open_video,
        )
        with ExitStack() as stack:
            hands = stack.enter_context(Hands(ThisProcess(self, keeps_memory=True)))

            def watch(started: Started) -> None:
                stack.enter_context(_watching(started.pipeline, tell, interrupted))

            return joiner.write(
                hands,
                film.planned,
                on_start=watch,
                notes=(),
                began=perf_counter(),
                resume=film.resume,
            )

    def make(self, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """Make one stretch into its file.

        Args:
            order: The stretch and its file.
            tell: Called with the progress, on its own thread.

        Raises:
            VitascopeError: The stretch failed; it has no file.
        """
        runner, film = self._runner, order.film
        kinds = [(output.kind, output.encoding) for output in film.outputs]
        with ExitStack() as stack:
            stack.push(self._rest_after_an_error)
            if runner.streams is not None:
                runner.streams.keeps_idle_memory = True
            reader = self.open_video(film.video)
            begin = film.begin_pts * reader.info.time_base
            keeping = None
            if runner.settings.people.active:
                span = seen_seconds(reader, film, order.stretch)
                vr = vr_of(reader.info, runner.settings.video)
                keeping = Keeping(
                    reader,
                    vr,
                    runner.settings,
                    span=span,
                    scanned=film.scanned,
                    open_salient=runner.open_salient,
                )
            run = stack.enter_context(
                FilmRun(
                    runner,
                    reader,
                    kinds,
                    keeps_mattes=True,
                    stretch=f"{order.stretch} {film.frames_after}",
                    background_begin=begin,
                    int8=film.int8,
                    around=None if keeping is None else keeping.around,
                )
            )
            file = stack.enter_context(StretchWriter(order.file, made_by=order.made_by))
            stretch = _Stretch(reader, order, file, vr=run.vr)
            stretch.frames.on_first = run.count_from
            if keeping is not None:
                keeping.seen.owns = stretch.frames.owns
            for encoder in stretch.encoders:
                stack.callback(encoder.close)
            frames, job = stretch.frames, run.job
            pipeline = run.pipeline(
                frames,
                wants_alpha=lambda index: index in frames.still_indices,
                draws=lambda frame: frames.owns(frame.pts),
                then=[Sink("encode", stretch.encode, finish=stretch.flush)],
            )
            self._pipeline = pipeline
            try:
                with _telling(lambda: tell(StretchProgress(pipeline.snapshot(), stretch.frame_count))):
                    measured = pipeline.run()
            except KeyboardInterrupt:  # from stop(), on another thread
                raise WorkerError(f"{order.file.name} was stopped") from None
            finally:
                self._pipeline = None
            job.keep_mattes(is_whole=not measured.stopped and frames.damage is None)
            notes = notes_on_reading(reader) + notes_on(
                reader.info,
                [kind for kind, _ in kinds],
                network=runner.chosen.network,
                device=runner.device,
                loaded=runner.loaded,
                is_shared=True,
            )
            file.finish(
                StretchSummary(
                    frame_count=stretch.frame_count,
                    cut_count=sum(map(frames.owns, job.matting.cut_pts)),
                    corrupt_count=frames.corrupt_count,
                    damage=None if frames.damage is None else str(frames.damage),
                    notes=(*notes, *job.notes),
                    network_size=job.matting.network_input.size,
                    engine_name=run.network.engine_name,
                    decoder=reader.decoder,
                    shows_people=job.matting.shows_people,
                    kept_frames=() if keeping is None else keeping.seen.frames,
                )
            )
        return StretchMade(
            measured, stretch.frame_count, job.gpu_report(), peak_memory_bytes(), frames.damage
        )


class ThisProcess:
    """``StretchMakers`` with a single maker, in this process.

    Args:
        maker: The maker.
        keeps_memory: True if the caller tells the maker to rest; then ``rest`` only closes the video.
    """

    notes = ()
    is_open = True

    def __init__(self, maker: StretchMaker, *, keeps_memory: bool = False) -> None:
        self._maker, self._keeps_memory = maker, keeps_memory

    def __len__(self) -> int:
        return 1

    def label(self, number: int) -> str:
        """See ``StretchMakers``."""
        del number  # there is only one
        return "this process"

    place = label

    def room_bytes(self, number: int) -> int | None:
        """See ``StretchMakers``; None, because there is no other maker to choose."""
        del number
        return None

    def open(self) -> Sequence[MakerFacts]:
        """See ``StretchMakers``."""
        return [self._maker.facts()]

    def check(self, video: Path, folder: Path) -> None:
        """See ``StretchMakers``; nothing to check in one process."""

    def renew(self, number: int) -> None:
        """See ``StretchMakers``; it cannot be lost without this process."""

    def rest(self, number: int) -> None:
        """See ``StretchMakers``."""
        del number
        if self._keeps_memory:
            self._maker.close_video()
        else:
            self._maker.rest()

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """See ``StretchMakers``."""
        del number
        made = self._maker.make(order, tell=tell)
        return replace(made, peak_memory_bytes=0)  # the run's report already counts this process

    def make_film(self, number: int, film: WholeFilm, *, tell: Tell) -> SegmentReport:
        """See ``StretchMakers``."""
        del number
        return self._maker.make_film(film, tell=tell, interrupted=threading.Event())

    def interrupt(self, number: int) -> None:
        """See ``StretchMakers``; stops the pipeline, as ``drop`` does."""
        self.drop(number)

    def drop(self, number: int) -> None:
        """See ``StretchMakers``."""
        del number
        self._maker.stop()

    def close(self) -> None:
        """See ``StretchMakers``; the owner of the maker closes it."""


class _Stretch:
    """One stretch on its way from decoder to file."""

    def __init__(
        self, reader: VideoReader, order: StretchOrder, file: StretchWriter, *, vr: VrDescription
    ) -> None:
        film = order.film
        self._file = file
        self.frames = StretchFrames(reader, film, order.stretch)
        self._sheet: ContactSheet | None = None
        if film.still_pts:
            shown = film.outputs[0]
            self._sheet = ContactSheet(shown.path, reader.info, vr, kind=shown.kind)
        self.frame_count = 0
        self._kinds = [output.kind for output in film.outputs]
        self.encoders = [
            SegmentEncoder(output.path, info=output.info, encoding=output.encoding, hdr=output.hdr)
            for output in film.outputs
        ]

    def encode(self, rendered: Rendered) -> None:
        """Encode the next frame if it belongs to the stretch; the others are not drawn."""
        if not rendered.pictures:
            return
        picture = rendered.pictures[0]
        packets: list[tuple[EncodedPacket, ...]] = []
        for kind, encoder, drawn in zip(self._kinds, self.encoders, rendered.pictures, strict=True):
            packets.append(tuple(encoder.encode(drawn, rendered.alpha if kind == "alpha" else None)))
        stills: tuple[Rgb8, ...] = ()
        if self._sheet is not None and rendered.index in self.frames.still_indices:
            stills = (self._sheet.still(rendered),)
        time = FrameTime(picture.pts, picture.time_base, picture.duration)
        sets = None
        if self.frame_count == 0:  # GPU encoders open with their first frame
            sets = tuple(encoder.parameter_sets for encoder in self.encoders)
        self.frame_count += 1
        self._file.write(Encoded(sets, (time,), tuple(packets), stills))

    def flush(self) -> None:
        """Write the packets that the encoders still hold."""
        if self.frame_count:
            packets = tuple(tuple(encoder.flush()) for encoder in self.encoders)
            self._file.write(Encoded(None, (), packets))


def _watching(film: Interruptible, tell: Tell, interrupted: threading.Event) -> AtIntervals:
    """Report the progress of a whole video, and end it when it is interrupted, while the block runs."""

    def look() -> None:
        if interrupted.is_set():
            film.interrupt()
        measured = film.snapshot()
        tell(StretchProgress(measured, measured.items))

    return _telling(look)


def _telling(tell: Callable[[], object]) -> AtIntervals:
    """Call a function several times a second while the block runs."""
    return AtIntervals(tell, _TELL_SECONDS, name="vitascope-telling")
