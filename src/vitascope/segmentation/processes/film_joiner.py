"""Shares one video: plans its stretches, hands them out, and joins them in order into the outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
from math import ceil, inf
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from vitascope import __version__
from vitascope.config import LoadedSettings, OutputKind
from vitascope.device import Device, peak_memory_bytes
from vitascope.errors import CorruptInputError, VitascopeError
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS, QueueReport
from vitascope.gpu.pipeline.report import Latency, PipelineReport, StageReport
from vitascope.gpu.profiling.pace import find_bottleneck
from vitascope.media.reading.film_index import read_film_index
from vitascope.media.reading.reader import VideoReader
from vitascope.media.writing.output_target import refuse_unwritable
from vitascope.media.writing.segment_encoder import JoiningWriter, plain
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started
from vitascope.segmentation.capacity import gpu_bytes_needed
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.layout import vr_of_run
from vitascope.segmentation.matting.cached_film import (
    keeps_findings,
    notes_on_cache,
    rules_of_mattes,
    video_fingerprint,
)
from vitascope.segmentation.matting.int8 import Int8Choice, int8_choice, wants_int8
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.notes import notes_on_people
from vitascope.segmentation.output_encoding import encoding_for
from vitascope.segmentation.people.hinted import Keeping
from vitascope.segmentation.plan import PlannedVideo, no_picture_between, open_wanted
from vitascope.segmentation.processes.hands import Hands, Piece
from vitascope.segmentation.processes.port import (
    FilmOrder,
    MakerFacts,
    OutputOrder,
    StretchMade,
    StretchOrder,
    StretchProgress,
)
from vitascope.segmentation.processes.shares import (
    frames_after,
    settings_for_one,
    settings_of_pictures,
    warm_up_frames,
)
from vitascope.segmentation.processes.stretch_file import (
    Encoded,
    KeptStretches,
    StretchFile,
    StretchSummary,
    WorkFolder,
)
from vitascope.segmentation.processes.stretches import FilmSpan, FilmStretch, plan_film, stretch_count
from vitascope.segmentation.render.contact_sheet import ContactSheet
from vitascope.segmentation.report import GpuReport, SegmentReport
from vitascope.segmentation.writing import (
    OutputSet,
    beside_files,
    finish_files,
    keeping_what_was_written,
    planar_info,
    written_info,
)
from vitascope.vr.detection import VrDescription, refuse_packed_input

_STILLS = 12
_MARGIN_FRAMES = 2
_OPENING_FRAMES = {"cuda": 300, "cpu": 10}
"""Time to open a video's decoder and encoders, in frames: some tenths of a second."""
_ENCODER_THREADS = {"cuda": 16, "cpu": 4}
"""Threads of a stretch's encoders, unless a setting says otherwise. The number affects the packets, so it must not
depend on how many processes share a video."""


class FilmJoiner:
    """Writes videos from stretches that several makers make, all with the same network.

    Args:
        loaded: Settings of the run.
        facts: Facts about each maker.
        store: The store of networks.
        note: Why this network was chosen; by default what the makers say.
        kept: Storage for stretches of earlier and later runs; None keeps none.
        is_alone: True if this process makes the stretches itself.
        open_video: Opens a video that this process makes itself, and closes it after its stretches; by default a CPU
            decoder with one thread is used.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        facts: Sequence[MakerFacts],
        *,
        store: ModelStore,
        note: str | None = None,
        kept: KeptStretches | None = None,
        is_alone: bool = False,
        open_video: Callable[[Path], VideoReader] | None = None,
    ) -> None:
        self._loaded, self._settings, self._facts = loaded, loaded.settings, facts
        self._kept, self._is_alone, self._open_video = kept, is_alone, open_video
        self._alone, self._store = settings_for_one(loaded), store
        first = facts[0]
        self.device = Device(first.device_kind, _labels(facts), note=first.device_note)
        self.chosen = ChosenNetwork(
            first, first.requested if note is None else "auto", note or first.note, first.engine_reasons
        )
        self._warm_up_frames = warm_up_frames(self._settings, recurrent=first.recurrent)

    def stretch_count(self, frame_count: int) -> int:
        """Number of stretches for a video of that many frames; fewer if keyframes are too far apart."""
        return stretch_count(
            frame_count,
            warm_up_frames=self._warm_up_frames,
            opening_frames=_OPENING_FRAMES[self.device.kind],
            most_frames=self._settings.processing.chunk_size,
        )

    def gpu_bytes(self, size: tuple[int, int], sample_bytes: int = 1) -> int:
        """Minimum GPU memory for a video of this size."""
        return gpu_bytes_needed(self._loaded, size, sample_bytes=sample_bytes)

    def write(
        self,
        hands: Hands,
        planned: PlannedVideo,
        *,
        on_start: Callable[[Started], object] | None,
        notes: Sequence[str],
        began: float,
        resume: bool = False,
        rank: int = 0,
    ) -> SegmentReport:
        """Segment one video into files; see ``Segmenter.write``.

        Args:
            hands: Distributes the stretches.
            planned: The input and its outputs, already checked.
            on_start: Called from this thread once everything is open.
            notes: Earlier notes.
            began: ``perf_counter`` at the start.
            resume: Continue with the stretches that an earlier run left.
            rank: Rank among several videos; the smallest goes first.
        """
        settings, video = self._settings, planned.video
        outputs, preview = planned.outputs, planned.preview
        if preview is not None:
            refuse_unwritable(preview)
        with ExitStack() as stack:
            reader = (
                stack.enter_context(open_wanted(video, self._settings.video))
                if self._open_video is None
                else self._open_video(video.absolute())
            )
            expected = reader.expected_frame_count  # read now: the makers take over the reader
            vr = vr_of_run(reader.info, settings.video)
            refuse_packed_input(reader.info, vr)
            plan = self._plan(reader)
            keeping = Keeping(reader, vr, settings) if settings.people.active else None
            order = self._order(reader, outputs, plan, vr=vr, wants_stills=preview is not None)
            int8 = self._int8(video)
            order = replace(order, int8=int8)
            sheet = None
            if preview is not None:
                sheet = ContactSheet(preview, reader.info, vr, kind=outputs[0][0])
            files = stack.enter_context(
                JoinedOutputSet(
                    reader,
                    outputs,
                    [output.encoding for output in order.outputs],
                    trim=settings.video,
                    vr=vr,
                    settings=settings.output,
                )
            )
            folder = stack.enter_context(WorkFolder(outputs[0][1], resume=resume))
            made_by = self._made_by(order, reader, keeping)
            if keeping is not None and keeping.table is not None:
                order = replace(order, scanned=folder.with_copy_of(keeping.table.path))
            needed = self.gpu_bytes(
                (reader.info.height, reader.info.width), reader.info.format.dtype.itemsize
            )
            film = stack.enter_context(
                SharedFilm(
                    hands,
                    order,
                    plan.stretches,
                    folder=folder,
                    made_by=made_by,
                    kept=self._kept,
                    max_corrupt_frames=settings.video.max_corrupt_frames,
                    tolerant=settings.output.keep_partial,
                    rank=rank,
                    gpu_bytes=needed,
                )
            )
            if on_start is not None:
                on_start(Started(film, expected, vr.doubts))
            with keeping_what_was_written(files, of_damaged=settings.output.keep_partial):
                done = _join(film, files, sheet)
            written = finish_files(files)
            folder.remove()
            if sheet is not None:
                beside_files(written, sheet.save)
            measured = film.snapshot()
        made = film.made
        if film.found_count:
            notes = [*notes, _of_earlier_runs(film.found_count, len(done))]
        first = self._facts[0]
        shows_people = any(stretch.shows_people for stretch in done)
        kept_frames = [one for stretch in done for one in stretch.kept_frames]
        notes_on_kept: tuple[str, ...] = ()
        if keeping is not None:
            notes_on_kept = keeping.notes_on(kept_frames, network=first.name, profile=self._loaded.profile)
        return SegmentReport(
            input=video,
            outputs=written,
            frame_count=sum(stretch.frame_count for stretch in done),
            corrupt_count=sum(stretch.corrupt_count for stretch in done),
            scene_cut_count=sum(stretch.cut_count for stretch in done),
            model=first.name,
            model_requested=self.chosen.requested,
            model_note=self.chosen.note,
            notes=tuple(
                dict.fromkeys(
                    [
                        *notes_on_people(settings, shows_people=shows_people),
                        *notes_on_kept,
                        *(notes_on_cache() if keeps_findings(settings) else ()),
                        *(note for stretch in done for note in stretch.notes),
                        *plan.notes,
                        *hands.makers.notes,
                        *hands.notes_on(video.name, needed),
                        *(() if int8 is None else (int8.note,)),
                        *(() if keeping is None else keeping.notes),
                        *notes,
                    ]
                )
            ),
            engine=done[0].engine_name,
            engine_reasons=first.engine_reasons,
            decoder=done[0].decoder,
            device=self.device.label
            if self._is_alone
            else f"{self.device.label}, {film.maker_count} of {len(hands)} processes at work",
            shows_people=shows_people,
            profile=self._loaded.profile,
            stereo=vr.layout.value,
            stereo_reason=vr.layout_reason.how,
            projection=vr.projection.value,
            projection_reason=vr.projection_reason.how,
            network_size=done[0].network_size,
            wall_seconds=perf_counter() - began,
            peak_memory_bytes=film.peak_memory_bytes(),
            pipeline=measured,
            gpu=join_gpu_reports([stretch.gpu for stretch in made]),
        )

    def _int8(self, video: Path) -> Int8Choice | None:
        """Decide on INT8, once for all stretches."""
        if self.device.kind != "cpu" or not wants_int8(self._alone):
            return None
        with FilmRunner(self._alone, store=self._store) as alone:
            return int8_choice(
                self._alone, video, alone.chosen.network, device=alone.device, store=self._store
            )

    def _plan(self, reader: VideoReader) -> _Plan:
        settings, info = self._settings, reader.info
        first = next(reader, None)
        if first is None:
            raise no_picture_between(info.path, settings.video, info)
        warm_up = self._warm_up_frames
        whole = _Plan(first.pts, (FilmStretch(0, None, None, None),), warm_up, is_alone=self._is_alone)
        count = reader.expected_frame_count
        if count is None:
            return whole.but("its length is unknown")
        keyframes: Sequence[int] | None = None
        if info.container != "images":
            index = read_film_index(info.path)
            if index.why_none is not None:
                return whole.but(index.why_none)
            keyframes = index.keyframes
        frame_ticks = 1 / (info.average_frame_rate * info.time_base)
        stretches = plan_film(
            FilmSpan(first.pts, round(count * frame_ticks), frame_ticks),
            keyframes=keyframes,
            count=self.stretch_count(count),
            warm_up_frames=warm_up,
        )
        if len(stretches) == 1:
            return whole.but(f"it is short ({count} frames)")
        return _Plan(first.pts, stretches, warm_up)

    def _order(
        self,
        reader: VideoReader,
        outputs: Sequence[tuple[OutputKind, Path]],
        plan: _Plan,
        *,
        vr: VrDescription,
        wants_stills: bool,
    ) -> FilmOrder:
        settings, info = self._settings, planar_info(reader.info)
        orders = []
        for kind, path in outputs:
            encoding = encoding_for(
                path,
                kind,
                info=info,
                layout=vr.layout,
                settings=settings.output,
                threads=settings.pipeline.stages.encode.threads or _ENCODER_THREADS[self.device.kind],
                alone=len(outputs) == 1,
                # It is not proven yet that NVENC writes the same stream headers in several processes.
                hardware="cpu" if settings.gpu.encoder == "auto" else settings.gpu.encoder,
                parallel_encoders=1 if self.device.kind == "cpu" else "auto",
            )
            orders.append(
                OutputOrder(
                    kind,
                    path,
                    written_info(kind, info, encoding, vr=vr, settings=settings.output),
                    plain(encoding),
                    None if kind == "mask" else reader.hdr,
                )
            )
        frame_ticks = 1 / (info.average_frame_rate * info.time_base)
        stills = 0
        if wants_stills:
            stills = min(_STILLS, reader.expected_frame_count or 1)
        length = (reader.expected_frame_count or 0) * frame_ticks
        return FilmOrder(
            video=info.path.absolute(),
            outputs=tuple(orders),
            begin_pts=plan.begin_pts,
            end_pts=reader.end_pts,
            frame_ticks=frame_ticks,
            warm_up_frames=plan.warm_up_frames,
            frames_after=frames_after(settings),
            stretch_count=len(plan.stretches),
            frame_count=reader.expected_frame_count,
            still_pts=tuple(plan.begin_pts + round(length * n / stills) for n in range(stills)),
        )

    def _made_by(
        self, order: FilmOrder, reader: VideoReader, keeping: Keeping | None
    ) -> Callable[[FilmStretch], Mapping[str, Any]]:
        """Return everything that affects a stretch of a video.

        This leaves out the paths of video and outputs, and choices of people that do not apply within the
        stretch.
        """
        settings, facts = self._settings, self._facts[0]
        background = settings.output.background
        nameless = replace(
            order,
            video=Path("in"),
            outputs=tuple(
                replace(
                    output,
                    path=Path(f"out{output.path.suffix}"),
                    info=replace(output.info, path=Path("in")),
                )
                for output in order.outputs
            ),
        )
        of_all = {
            "vitascope": __version__,
            "film": video_fingerprint(order.video),
            "also_read": None if background is None else video_fingerprint(Path(background)),
            "network": facts.network_sha256 or facts.name,
            "engine": facts.engine_kind,
            "device": self.device.kind,
            "rules": repr(rules_of_mattes(self.device.kind)),
            "settings": settings_of_pictures(settings),
            "order": blake2b(repr(nameless).encode(), digest_size=20).hexdigest(),
        }
        remembers = settings.edges.temporal_smoothing > 0

        def of_stretch(stretch: FilmStretch) -> Mapping[str, Any]:
            kept = None
            if keeping is not None:
                kept = keeping.reaching_into(*seen_seconds(reader, order, stretch, with_warm_up=remembers))
            return {**of_all, "stretch": repr(stretch), "kept": kept}

        return of_stretch


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a video is divided."""

    begin_pts: int
    stretches: tuple[FilmStretch, ...]
    warm_up_frames: int
    notes: tuple[str, ...] = ()
    is_alone: bool = False

    def but(self, reason: str) -> _Plan:
        """The same plan, with a note that one process did all the work, if there are several."""
        if self.is_alone:
            return self
        return replace(self, notes=(*self.notes, f"one process did all the work: {reason}"))


def seen_seconds(
    reader: VideoReader, film: FilmOrder, stretch: FilmStretch, *, with_warm_up: bool = True
) -> tuple[float, float]:
    """The time span of frames that can affect a stretch: its own, a margin, and its warm-up.

    A warm-up with too few frames is extended backwards, so its length counts twice.

    Args:
        reader: The video's reader.
        film: The video.
        stretch: The part of it.
        with_warm_up: False if nothing in question carries over from frame to frame.

    Returns:
        Begin and end in seconds from the video's first frame; infinity for the video's end.
    """
    margin = ceil(_MARGIN_FRAMES * film.frame_ticks)
    begin, end = 0.0, inf

    def seconds(pts: int) -> float:
        return float((pts - reader.origin_pts) * reader.info.time_base)

    if stretch.begin is not None:
        back = (
            stretch.begin - stretch.warm_up_from if with_warm_up and stretch.warm_up_from is not None else 0
        )
        begin = max(seconds(stretch.begin - 2 * back - margin), 0.0)
    if stretch.end is not None:
        end = seconds(stretch.end + margin)
    return begin, end


@dataclass(slots=True)
class _Stretch:
    """The state of one stretch in a run."""

    plan: FilmStretch
    order: StretchOrder
    file: StretchFile
    is_there: bool = False
    made: StretchMade | None = None
    """Set when a maker has made it; None if an earlier run did."""
    maker: int = -1
    """Number of the maker that made it."""
    progress: StretchProgress | None = None
    """Set while it is being made."""


class SharedFilm:
    """Submits the stretches of a video, and yields their files in order. A context manager.

    Args:
        hands: Distributes the stretches.
        film: The video.
        plan: Its stretches.
        folder: Folder for their files; existing ones are used.
        made_by: Returns what makes a stretch.
        kept: Storage for stretches of earlier and later runs; None keeps none.
        max_corrupt_frames: Maximum number of damaged frames in all stretches together.
        tolerant: True ends the video at damage; False ends the run at once.
        rank: Rank among several videos; the smallest goes first.
        gpu_bytes: GPU memory that a maker must have.
    """

    def __init__(
        self,
        hands: Hands,
        film: FilmOrder,
        plan: Sequence[FilmStretch],
        *,
        folder: WorkFolder,
        made_by: Callable[[FilmStretch], Mapping[str, Any]],
        kept: KeptStretches | None = None,
        max_corrupt_frames: int,
        tolerant: bool,
        rank: int = 0,
        gpu_bytes: int = 0,
    ) -> None:
        self._hands = hands
        self._video = film.video
        self._max_corrupt_frames = max_corrupt_frames
        self._tolerant = tolerant
        self._kept = kept
        self._stretches = []
        for stretch in plan:
            path = folder.file_of(stretch.number)
            order = StretchOrder(film, stretch, path, made_by(stretch))
            file = StretchFile(path)
            is_there = path.exists() and file.is_whole(made_by=order.made_by)
            if not is_there and kept is not None:
                is_there = kept.take(order.made_by, path) and file.is_whole(made_by=order.made_by)
            self._stretches.append(_Stretch(stretch, order, file, is_there))
        self.found_count = sum(stretch.is_there for stretch in self._stretches)
        """Number of stretches that an earlier run made."""
        waiting = [stretch for stretch in self._stretches if not stretch.is_there]
        self._pieces = [
            Piece(
                f"stretch {stretch.plan.number}",
                (rank, stretch.plan.number),
                partial(self._make, stretch),
                self._fail,
                hands.makers.drop,
                gpu_bytes,
            )
            for stretch in waiting
        ]
        self.maker_count = min(hands.count_for(gpu_bytes), len(waiting))
        """Number of makers that take part."""
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_over = False
        self._began_at = perf_counter()
        self._ended_at = 0.0

    def __enter__(self) -> SharedFilm:
        """Submit the stretches."""
        self._hands.hand_in(self._pieces)
        return self

    def __exit__(self, *_: object) -> None:
        """Withdraw the stretches; makers that still work on them stop."""
        self._is_over = True
        self._hands.withdraw(self._pieces)

    def files(self) -> Iterator[StretchFile]:
        """The file of each stretch, in order, as soon as it is ready.

        Raises:
            VitascopeError: A stretch failed.
            CorruptInputError: The video cannot be decoded further; all files before the damage were yielded.
        """
        corrupt_count = 0
        for stretch in self._stretches:
            self._wait(stretch)
            yield stretch.file
            if stretch.made is not None and stretch.made.damage is not None:
                raise stretch.made.damage
            assert stretch.file.summary is not None  # the caller has read the file
            corrupt_count += stretch.file.summary.corrupt_count
            if corrupt_count > self._max_corrupt_frames:
                raise CorruptInputError(
                    f"{self._video}: too much damage: {corrupt_count} frames could not be decoded "
                    f"(at most {self._max_corrupt_frames} are skipped)"
                )
        self._ended_at = perf_counter()

    @property
    def made(self) -> list[StretchMade]:
        """The cost of each stretch made in this run, in order."""
        return [stretch.made for stretch in self._stretches if stretch.made is not None]

    def peak_memory_bytes(self) -> int | None:
        """The sum of the peak memory of this process and all makers; None if unknown."""
        peaks: dict[int, int | None] = {-1: peak_memory_bytes()}
        for stretch in self._stretches:
            if stretch.made is not None:
                peaks[stretch.maker] = stretch.made.peak_memory_bytes  # a maker's peak never falls
        known = [peak for peak in peaks.values() if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    def snapshot(self) -> PipelineReport:
        """See ``Measured``: all stretches so far, as if made by one pipeline."""
        reports, frames = [], 0
        for stretch in self._stretches:
            if (measured := stretch.made or stretch.progress) is not None:
                reports.append(measured.pipeline)
                frames += measured.frame_count
            elif stretch.is_there and stretch.file.summary is not None:
                frames += stretch.file.summary.frame_count
        return join_pipeline_reports(
            reports,
            processes=self.maker_count,
            frame_count=frames,
            wall_seconds=(self._ended_at or perf_counter()) - self._began_at,
            finished=bool(self._ended_at),
        )

    def interrupt(self) -> None:
        """End the run like Ctrl-C, from any thread; the waiting thread gets a ``KeyboardInterrupt``."""
        self._fail(KeyboardInterrupt())

    def _wait(self, stretch: _Stretch) -> None:
        """Wait for a stretch's file; Ctrl-C and failures end the wait."""
        with self._changed:
            while not stretch.is_there:
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(INTERRUPT_CHECK_SECONDS)

    def _make(self, stretch: _Stretch, number: int) -> int:
        """Let a maker make a stretch; returns its number of frames.

        Raises:
            VitascopeError: The stretch failed.
        """

        def tell(progress: StretchProgress) -> None:
            stretch.progress = progress

        try:
            made = self._hands.makers.make(number, stretch.order, tell=tell)
        except VitascopeError:
            stretch.progress = None
            raise
        if self._kept is not None and made.damage is None:
            self._kept.keep(stretch.order.made_by, stretch.order.file)
        with self._changed:
            stretch.made, stretch.maker, stretch.is_there, stretch.progress = made, number, True, None
            self._changed.notify_all()
        if made.damage is not None and not self._tolerant:
            raise made.damage
        return made.frame_count

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None and not self._is_over:
                self._failure = error
            self._changed.notify_all()
        self._hands.withdraw(self._pieces)


def _join(film: SharedFilm, files: JoinedOutputSet, sheet: ContactSheet | None) -> list[StretchSummary]:
    """Copy the packets of all stretches into the outputs; returns the summaries."""
    count, done = 0, []
    for file in film.files():
        for encoded in file.encoded():
            files.write_encoded(encoded)
            if sheet is not None:
                for still in encoded.stills:
                    sheet.add_still(count, still)
            count += len(encoded.times)
        assert file.summary is not None  # the file was read to its end
        done.append(file.summary)
    return done


def _of_earlier_runs(found_count: int, count: int) -> str:
    """Tell how many stretches this run made, in words."""
    anew = count - found_count
    if not anew:
        return "nothing was made again: everything was there from an earlier run"
    were = "was" if anew == 1 else "were"
    return f"{anew} of {count} stretches {were} made again; the others were there from an earlier run"


def _labels(ready: Sequence[MakerFacts]) -> str:
    """The devices in words, each once."""
    return ", ".join(dict.fromkeys(worker.device_label for worker in ready))


def join_pipeline_reports(
    reports: Sequence[PipelineReport],
    *,
    processes: int,
    frame_count: int,
    wall_seconds: float,
    finished: bool,
) -> PipelineReport:
    """Merge the reports of pipelines with the same stages.

    Times and counts are summed; a stage's load is its busy time over the time that its pipelines ran. Percentiles are
    averages weighted by the counts: good enough to compare stages, but not exact.

    Args:
        reports: The reports of all stretches so far, including unfinished ones.
        processes: Number of processes that work at the same time.
        frame_count: Number of encoded frames; only the stages' counts include warm-ups.
        wall_seconds: Seconds since the run began.
        finished: True when all is done.
    """
    if not reports:
        return PipelineReport(
            stages=(),
            queues=(),
            latency=Latency(count=frame_count),
            wall_seconds=wall_seconds,
            cores_busy=0.0,
            finished=finished,
            stopped=False,
            bottleneck=None,
        )
    ran_seconds = sum(report.wall_seconds for report in reports)
    columns = zip(*(report.stages for report in reports), strict=True)
    stages = tuple(_join_stages(column, ran_seconds, processes) for column in columns)
    queues = tuple(
        _join_queues(column) for column in zip(*(report.queues for report in reports), strict=True)
    )
    latency = _join_latencies([report.latency for report in reports], count=frame_count)
    cpu_seconds = sum(report.cores_busy * report.wall_seconds for report in reports)
    return PipelineReport(
        stages=stages,
        queues=queues,
        latency=latency,
        wall_seconds=wall_seconds,
        cores_busy=cpu_seconds / wall_seconds if wall_seconds else 0.0,
        finished=finished,
        stopped=any(report.stopped for report in reports),
        bottleneck=find_bottleneck(stages, queues, wall_seconds=ran_seconds),
    )


def join_gpu_reports(reports: Sequence[GpuReport | None]) -> GpuReport | None:
    """The total time of all GPUs, and the peak memory of the fullest; None if no GPU was used."""
    drawn = [report for report in reports if report is not None]
    if not drawn:
        return None
    spans: dict[str, float] = {}
    for report in drawn:
        for name, seconds in report.span_seconds.items():
            spans[name] = spans.get(name, 0.0) + seconds
    return GpuReport(spans, max(report.peak_memory_bytes for report in drawn))


def _join_stages(parts: Sequence[StageReport], ran_seconds: float, processes: int) -> StageReport:
    workers = parts[0].workers
    busy_seconds = sum(part.busy_seconds for part in parts)
    return StageReport(
        name=parts[0].name,
        workers=workers * processes,
        items=sum(part.items for part in parts),
        busy_seconds=busy_seconds,
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        load=min(busy_seconds / (ran_seconds * workers), 1.0) if ran_seconds else 0.0,
        latency=_join_latencies([part.latency for part in parts]),
    )


def _join_queues(parts: Sequence[QueueReport]) -> QueueReport:
    return QueueReport(
        name=parts[0].name,
        count=sum(part.count for part in parts),
        dropped=sum(part.dropped for part in parts),
        put_wait_seconds=sum(part.put_wait_seconds for part in parts),
        get_wait_seconds=sum(part.get_wait_seconds for part in parts),
        occupancy=sum(part.occupancy for part in parts),
        occupancy_mean=sum(part.occupancy_mean for part in parts) / len(parts),
        occupancy_max=max(part.occupancy_max for part in parts),
        nbytes_max=max(part.nbytes_max for part in parts),
    )


def _join_latencies(parts: Sequence[Latency], *, count: int | None = None) -> Latency:
    weights = [part.count for part in parts]
    total = sum(weights)

    def mean(values: list[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / total if total else 0.0

    return Latency(
        count=total if count is None else count,
        mean_seconds=mean([part.mean_seconds for part in parts]),
        p50_seconds=mean([part.p50_seconds for part in parts]),
        p95_seconds=mean([part.p95_seconds for part in parts]),
        p99_seconds=mean([part.p99_seconds for part in parts]),
        max_seconds=max((part.max_seconds for part in parts), default=0.0),
        octave_counts=tuple(map(sum, zip_longest(*(part.octave_counts for part in parts), fillvalue=0))),
    )


class JoinedOutputSet(OutputSet):
    """An ``OutputSet`` that takes packets instead of pictures."""

    _writer = JoiningWriter

    def write_encoded(self, encoded: Encoded) -> None:
        """Write the packets of a stretch into every file.

        Raises:
            OutputError: Writing failed, or a stretch does not fit the previous one.
        """
        for number, writer in enumerate(self._writers):
            joining = cast("JoiningWriter", writer)
            if encoded.parameter_sets is not None:
                joining.begin_segment(encoded.parameter_sets[number])
            joining.write_encoded(encoded.times, encoded.packets[number])
