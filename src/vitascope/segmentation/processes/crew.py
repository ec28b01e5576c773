"""Segmenting with several processes: they share each video, and this one joins what they encode into the files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from time import perf_counter

from vitascope.config import LoadedSettings, OutputKind, Settings
from vitascope.device import Device, peak_memory_bytes
from vitascope.errors import ModelUnavailableError
from vitascope.media.reading.film_index import read_film_index
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.media.writing.segment_encoder import plain
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.film_run import FilmRunner, FrameAndAlpha, Started
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.int8 import Int8Choice, int8_choice, wants_int8
from vitascope.segmentation.matting.networks import ChosenNetwork, FetchProgress
from vitascope.segmentation.output_encoding import encoding_for
from vitascope.segmentation.plan import no_picture_between
from vitascope.segmentation.processes.joining import JoinedOutputSet, join_gpu_reports
from vitascope.segmentation.processes.messages import Encoded, FilmClosed, FilmJob, OutputJob, Ready
from vitascope.segmentation.processes.plan import plan_crew, settings_for_one, warm_up_frames, worth_sharing
from vitascope.segmentation.processes.pool import WorkerPool
from vitascope.segmentation.processes.segments import FilmSegment, FilmSpan, plan_film
from vitascope.segmentation.processes.shared_film import SharedFilm
from vitascope.segmentation.render.contact_sheet import ContactSheet
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.run_profile import not_profiled
from vitascope.segmentation.writing import (
    beside_files,
    finish_files,
    keeping_what_was_written,
    planar_info,
    written_info,
)
from vitascope.vr.detection import VrDescription, refuse_packed_input

__all__ = ["ProcessCrew"]

_STILLS = 12
_OPENING_FRAMES = {"cuda": 300, "cpu": 10}
"""As long as these takes it to open a video's decoder and encoders anew: some tenths of a second."""


class ProcessCrew:
    """Worker processes, each with its network open, and what is needed to share videos among them.

    Args:
        loaded: Settings of the run.
        store: Where networks lie.
        progress: Told how far the download of a network is.

    Raises:
        VitascopeError: What a worker could not do: have the network, use its device.
        WorkerError: A process could not be started.
    """

    def __init__(
        self, loaded: LoadedSettings, *, store: ModelStore, progress: FetchProgress | None = None
    ) -> None:
        self._alone, self._store = settings_for_one(loaded), store
        loaded, note = _with_fetched_network(loaded, store, progress)
        self._loaded = loaded
        self._settings = loaded.settings
        plans = plan_crew(loaded)
        self._share = plans[0].loaded.settings
        self._pool = WorkerPool(plans, home=store.where().parent)
        self._ready = self._pool.open()
        first = self._ready[0]
        self.device = Device(
            "cpu" if self._settings.gpu.device_ids is None else "cuda",
            _labels(self._ready),
            note=first.device_note,
        )
        self.chosen = ChosenNetwork(
            first,
            first.requested if note is None else "auto",
            note or first.note,
            first.engine_reasons,
        )

    def close(self) -> None:
        """End the processes. Idempotent."""
        self._pool.close()

    def stream(self, video: Path, *, device_arrays: bool = False) -> Generator[FrameAndAlpha, None, None]:
        """Matte a video here, as ``Segmenter.stream`` says: frames do not cross processes."""
        with FilmRunner(self._alone, store=self._store) as alone:
            yield from alone.stream(video, device_arrays=device_arrays)

    def write(
        self,
        video: Path,
        outputs: Sequence[tuple[OutputKind, Path]],
        *,
        preview: Path | None,
        on_start: Callable[[Started], object] | None,
        notes: Sequence[str],
        began: float,
    ) -> SegmentReport:
        """Segment one video into files, as ``Segmenter.write`` says.

        Args:
            video: The input.
            outputs: What to write, and where; checked.
            preview: Where to write a contact sheet.
            on_start: Called once everything is open.
            notes: Of what went before.
            began: ``perf_counter`` at the start.
        """
        if not self._pool.is_open:  # a run before failed, or may not keep them
            self._ready = self._pool.open()
        try:
            unheard = not_profiled(wanted=self._settings.debug.profile_performance)
            return self._write(
                video, outputs, preview=preview, on_start=on_start, notes=[*notes, *unheard], began=began
            )
        finally:
            if not self._settings.dataloader.persistent_workers:
                self._pool.close()

    def _write(
        self,
        video: Path,
        outputs: Sequence[tuple[OutputKind, Path]],
        *,
        preview: Path | None,
        on_start: Callable[[Started], object] | None,
        notes: Sequence[str],
        began: float,
    ) -> SegmentReport:
        settings = self._settings
        with ExitStack() as stack:
            reader = stack.enter_context(self._open(video))
            vr = vr_of(reader.info, settings.video)
            refuse_packed_input(reader.info, vr)
            plan = self._plan(reader)
            int8 = self._int8(video)
            job = self._job(reader, outputs, plan, vr=vr, wants_stills=preview is not None)
            job = replace(job, int8=int8)
            sheet = ContactSheet(preview, reader.info, vr) if preview is not None else None
            files = stack.enter_context(
                JoinedOutputSet(
                    reader,
                    outputs,
                    [output.encoding for output in job.outputs],
                    trim=settings.video,
                    vr=vr,
                    settings=settings.output,
                )
            )
            film = stack.enter_context(
                SharedFilm(
                    self._pool,
                    job,
                    plan.segments,
                    workers=plan.workers,
                    beginning=plan.beginning,
                    max_corrupt_frames=settings.video.max_corrupt_frames,
                    tolerant=settings.output.keep_partial,
                    spool_folder=outputs[0][1].absolute().parent,
                )
            )
            if on_start is not None:
                on_start(Started(film, reader.expected_frame_count, vr.doubts))
            with keeping_what_was_written(files, of_damaged=settings.output.keep_partial):
                self._join(film, files, sheet)
                closed = film.finish()
            written = finish_files(files)
            if sheet is not None:
                beside_files(written, sheet.save)
            done = [stretch.done for stretch in film.stretches if stretch.done is not None]
            measured = film.snapshot()
        first = self._ready[0]
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
                        *(note for worker in closed for note in worker.notes),
                        *(note for stretch in done for note in stretch.notes),
                        *plan.notes,
                        *(() if int8 is None else (int8.note,)),
                        *notes,
                    ]
                )
            ),
            engine=closed[0].engine_name,
            engine_reasons=first.engine_reasons,
            decoder=closed[0].decoder,
            device=f"{self.device.label}, {film.worker_count} of {len(self._pool)} processes at work",
            profile=self._loaded.profile,
            stereo=vr.layout.value,
            stereo_reason=vr.layout_reason.how,
            projection=vr.projection.value,
            projection_reason=vr.projection_reason.how,
            network_size=closed[0].network_size,
            wall_seconds=perf_counter() - began,
            peak_memory_bytes=_memory_of_all(closed),
            pipeline=measured,
            gpu=join_gpu_reports([stretch.gpu for stretch in done]),
        )

    def _int8(self, video: Path) -> Int8Choice | None:
        """What becomes of the wish for INT8, the same for all stretches."""
        if self.device.kind != "cpu" or not wants_int8(self._alone):
            return None
        with FilmRunner(self._alone, store=self._store) as alone:
            return int8_choice(
                self._alone, video, alone.chosen.network, device=alone.device, store=self._store
            )

    def _open(self, video: Path) -> VideoReader:
        wanted = self._settings.video
        return open_video(
            video,
            start_seconds=wanted.start_seconds or None,
            end_seconds=wanted.end_seconds,
            max_corrupt_frames=wanted.max_corrupt_frames,
            threads=1,
        )

    def _plan(self, reader: VideoReader) -> _Plan:
        settings, info = self._settings, reader.info
        first = next(reader, None)
        if first is None:
            raise no_picture_between(info.path, settings.video, info)
        warm_up = warm_up_frames(settings, recurrent=self._ready[0].recurrent)
        whole = _Plan(first.pts, (FilmSegment(0, None, None, None),), warm_up, _notes(settings))
        count = reader.expected_frame_count
        if count is None:
            return whole.but("its length is not known")
        keyframes: Sequence[int] | None = None
        if info.container != "images":
            index = read_film_index(info.path)
            if index.why_none is not None:
                return whole.but(index.why_none)
            keyframes = index.keyframes
        frame_ticks = 1 / (info.average_frame_rate * info.time_base)
        workers = worth_sharing(count, workers=len(self._pool), warm_up=warm_up)
        if workers == 1:
            return whole.but(f"it is short ({count} frames)")
        segments = plan_film(
            FilmSpan(first.pts, round(count * frame_ticks), frame_ticks),
            keyframes=keyframes,
            workers=workers,
            most_frames=settings.processing.chunk_size,
            warm_up_frames=warm_up,
        )
        opening = _OPENING_FRAMES["cpu" if settings.gpu.device_ids is None else "cuda"]
        beginning = ceil((warm_up + opening) * len(segments) / count)
        return _Plan(first.pts, segments, warm_up, _notes(settings), workers=workers, beginning=beginning)

    def _job(
        self,
        reader: VideoReader,
        outputs: Sequence[tuple[OutputKind, Path]],
        plan: _Plan,
        *,
        vr: VrDescription,
        wants_stills: bool,
    ) -> FilmJob:
        settings, info = self._settings, planar_info(reader.info)
        jobs = []
        for kind, path in outputs:
            encoding = encoding_for(
                path,
                kind,
                info=info,
                layout=vr.layout,
                settings=settings.output,
                threads=self._share.pipeline.stages.encode.threads,
                alone=len(outputs) == 1,
                # Nobody has seen yet that NVENC describes its stream alike in several processes.
                hardware="cpu" if settings.gpu.encoder == "auto" else settings.gpu.encoder,
                parallel_encoders=1 if settings.gpu.device_ids is None else "auto",
            )
            jobs.append(
                OutputJob(
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
        return FilmJob(
            video=info.path,
            outputs=tuple(jobs),
            begin_pts=plan.begin_pts,
            end_pts=reader.end_pts,
            frame_ticks=frame_ticks,
            warm_up_frames=plan.warm_up_frames,
            still_pts=tuple(plan.begin_pts + round(length * n / stills) for n in range(stills)),
        )

    def _join(self, film: SharedFilm, files: JoinedOutputSet, sheet: ContactSheet | None) -> None:
        count = 0
        for encoded in film.encoded():
            files.write_encoded(encoded)
            if sheet is not None:
                _add_stills(sheet, encoded, count)
            count += len(encoded.times)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a video is shared."""

    begin_pts: int
    segments: tuple[FilmSegment, ...]
    warm_up_frames: int
    notes: tuple[str, ...] = ()
    workers: int = 1
    beginning: int = 1
    """Segments whose time it takes to begin a range."""

    def but(self, reason: str) -> _Plan:
        """The same, with a note that one process does it all."""
        note = f"one process did all of it: {reason}"
        return _Plan(self.begin_pts, self.segments, self.warm_up_frames, (*self.notes, note))


def _with_fetched_network(
    loaded: LoadedSettings, store: ModelStore, progress: FetchProgress | None
) -> tuple[LoadedSettings, str | None]:
    """Fetch the network once, before several processes want it; where ``auto`` cannot have it, take the other one.

    Raises:
        ModelError: It cannot be had.
    """
    name = loaded.settings.model.name
    wanted = "rvm" if name == "auto" else name
    is_file = wanted.lower().endswith(".onnx") or "/" in wanted or "\\" in wanted
    if is_file or store.is_cached(wanted):
        return loaded, None
    try:
        store.pull(wanted, progress=None if progress is None else lambda *sizes: progress(wanted, *sizes))
    except ModelUnavailableError as error:
        if name != "auto":
            raise
        return loaded.with_values({"model.name": "selfie"}), f"{error}; going on with selfie"
    return loaded, None


def _notes(settings: Settings) -> tuple[str, ...]:
    """Wishes that several processes do not follow."""
    if not settings.processing.enable_caching:
        return ()
    return ("processing.enable_caching has no effect where several processes share a video",)


def _labels(ready: Sequence[Ready]) -> str:
    """Devices in words, each once."""
    return ", ".join(dict.fromkeys(worker.device_label for worker in ready))


def _memory_of_all(closed: Sequence[FilmClosed]) -> int | None:
    """Memory of all processes, as if each had its most at the same time."""
    sizes = [peak_memory_bytes(), *(worker.peak_memory_bytes for worker in closed)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _add_stills(sheet: ContactSheet, encoded: Encoded, index: int) -> None:
    for still in encoded.stills:
        sheet.add_still(index, still)
