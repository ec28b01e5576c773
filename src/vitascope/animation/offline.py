"""Runs ``vitascope animate`` on files: writes a video of the portrait with the driver's sound and timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

from vitascope.animation.animator import OpenedAnimator, open_animator
from vitascope.animation.canonical_mesh import read_canonical_mesh
from vitascope.animation.drivers import (
    Driven,
    Driver,
    no_picture_between,
    open_driver,
)
from vitascope.animation.face import RgbPicture
from vitascope.animation.landmarks_file import landmarks_path, write_landmarks
from vitascope.animation.motion import Mirror
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionWriter
from vitascope.animation.portrait import load_portrait, with_even_sides
from vitascope.animation.tracking import fetch_face_model
from vitascope.config import LoadedSettings, Settings, load_settings, vitascope_home
from vitascope.config.home import engine_cache
from vitascope.config.loading import checked_gpus
from vitascope.errors import InputError, OutputError, UsageError
from vitascope.frames import PIXEL_FORMATS, Frame, VideoInfo
from vitascope.gpu.memory.host_heap import give_back_free_memory, keep_heaps_small
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Sink
from vitascope.gpu.profiling.pipeline_profile import PipelineProfile
from vitascope.media.libav import wrap_output_error
from vitascope.media.planes import RGB_VIDEO_COLOR, planes_of
from vitascope.media.remote import local_path_of
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.output_target import picture_folder, refuse_inputs
from vitascope.media.writing.writer import VideoWriter
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started, VideoReport, WrittenFile, frames_in_words

__all__ = [
    "AnimateReport",
    "Started",
    "WrittenFile",
    "animate",
    "animate_file",
    "measure_film",
    "summarise",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnimateReport(VideoReport):
    """Report of one animated portrait."""

    portrait: Path
    driver: Path
    size: tuple[int, int]
    """(width, height) of the pictures."""
    animator: str
    files: tuple[WrittenFile, ...]
    lost_count: int
    """Number of the driver's frames without a face."""
    device: str
    """The device that drew the frames, for example ``CPU (2 cores)``."""


def summarise(report: AnimateReport) -> list[str]:
    """Summarise a job for the user, in lines; the files first."""
    lines: list[str] = []
    for file in report.files:
        lines += file.lines()
    width, height = report.size
    pace = f"{frames_in_words(report.frame_count)} in {report.wall_seconds:.1f} s: {report.frames_per_second:.1f} fps"
    stages = ", ".join(
        f"{stage.name} {stage.latency.p50_seconds * 1e3:.1f} ms"
        for stage in report.pipeline.stages
        if stage.latency.count
    )
    lines.append(f"{pace}; {stages}")
    lines.append(f"{report.animator} at {width}x{height} on {report.device}; profile {report.profile}")
    if report.lost_count:
        lines.append(
            f"note: no face in {report.lost_count} of the driver's frames; the portrait relaxes there"
        )
    if report.corrupt_count:
        lines.append(f"note: frames of the driver that were damaged or missing: {report.corrupt_count}")
    lines += [f"note: {note}" for note in report.notes]
    return lines


_OF_LIVE_RUNS = (
    *("target_fps", "max_latency_ms", "frame_skip_enabled", "frame_skip_threshold"),
    *("use_async_capture", "use_async_output"),
)
_QUEUE = QueueLimits(items=4)
_YUV420P = PIXEL_FORMATS["yuv420p"]


def animate(
    portrait: str | PathLike[str],
    driver: str | PathLike[str],
    out: str | PathLike[str],
    *,
    profile: str | None = None,
    settings: Mapping[str, Any] | None = None,
    record: Path | str | None = None,
    save_landmarks: bool = False,
) -> AnimateReport:
    """Animate a portrait with the face in a video.

    Args:
        portrait: A picture file with a face: photo, painting, statue.
        driver: A video of a face, a sound file with a voice, or a recorded ``.motion`` file.
        out: The output video; the suffix chooses the container. A folder, or a name such as
            ``frame_%05d.png``, gets one picture per frame.
        profile: Initial settings: ``balanced`` (default), ``fast``, ``quality`` or ``animator``.
        settings: More settings by dotted key, for example ``{"animation.expression": 1.2}``.
        record: Where to keep the driver's motion (``.motion``); None keeps none.
        save_landmarks: Keep what the face network found of the portrait in ``PORTRAIT.landmarks`` beside it, so that
            this picture needs no network from then on.

    Returns:
        A report: the files, the speed and the animator.

    Raises:
        VitascopeError: The subclass tells what failed, see ``animate_file``; no incomplete file remains.
    """
    return animate_file(
        local_path_of(portrait),
        local_path_of(driver),
        local_path_of(out),
        loaded=load_settings(profile=profile, flags=settings),
        store=ModelStore(vitascope_home()),
        record=None if record is None else local_path_of(record),
        save_landmarks=save_landmarks,
    )


def animate_file(
    portrait: Path,
    driver: Path,
    out: Path,
    *,
    loaded: LoadedSettings,
    store: ModelStore,
    record: Path | None = None,
    save_landmarks: bool = False,
    may_replace: Callable[[Sequence[Path]], object] | None = None,
    on_start: Callable[[Started], object] | None = None,
    fetch_progress: Callable[[str, int, int], None] | None = None,
) -> AnimateReport:
    """Animate a portrait into a file, which gets its name only when it is complete.

    Args:
        portrait: A picture file.
        driver: A video, a sound file, or a ``.motion`` file.
        out: The output video; a folder, or a name such as ``frame_%05d.png``, gets one picture per frame.
        loaded: Settings.
        store: Where the tracker's model is, or is downloaded to.
        record: Where to save the driver's motion (``.motion``); None saves none.
        save_landmarks: Keep what the face network found of the portrait in ``PORTRAIT.landmarks`` beside it, so that
            this picture needs no network from then on.
        may_replace: Called with the existing outputs; raises to keep one. Outputs are replaced when omitted.
        on_start: Called from this thread once everything is open.
        fetch_progress: Called with (model, bytes so far, bytes in all) during a download.

    Raises:
        UsageError: An output is also an input, or settings contradict each other.
        DeviceError: A requested GPU is missing.
        InputError: Portrait or driver cannot be read or has no face, or the driver has no picture between
            start and end.
        OutputError: An output cannot be written.
        ModelError: The tracker's model is unavailable.
        MissingDependencyError: MediaPipe is not installed.
        PipelineError: A stage failed.
        KeyboardInterrupt: Ctrl-C; what was written is kept as ``.part``.
    """
    began = perf_counter()
    keep_heaps_small()
    give_back_free_memory()  # from earlier runs, before this run allocates among it
    _refuse_clashes(portrait, driver, out, record)
    if may_replace is not None:
        may_replace([path for path in (out, record) if path is not None and path.is_file()])
    loaded = checked_gpus(loaded, number="animation.gpu_id")
    settings = loaded.settings
    written = (out, record, landmarks_path(portrait) if save_landmarks else None)
    replaced = tuple(f"{path} replaced an earlier file" for path in written if path and path.is_file())
    model = cache(lambda: fetch_face_model(store, fetch_progress))
    mesh = read_canonical_mesh()
    found = load_portrait(
        portrait,
        model=model,
        face=settings.animation.face,
        max_side=settings.animation.max_side,
        guess=out.with_name(f"{out.stem}.guess.png"),
        finds_anew=save_landmarks,
    )
    face = with_even_sides(found)
    with ExitStack() as stack:
        opened = open_animator(
            face, mesh=mesh, model=model, loaded=loaded, home=vitascope_home(), stack=stack
        )
        animator = opened.animator
        source = open_driver(
            driver,
            mesh=mesh,
            model=model,
            settings=settings,
            keep_pictures=animator.needs_driver_picture,
        )
        stack.enter_context(source)
        writer = stack.enter_context(_open_writer(out, face.rgb, source, settings))
        recorder = None
        if record is not None:
            recorder = stack.enter_context(
                MotionWriter(
                    record,
                    frame_rate=float(source.frame_rate),
                    with_vertices=not source.is_authored,
                    with_eyes=not source.is_authored,
                )
            )
        job = _Job(opened, recorder, Mirror(mesh) if settings.animation.mirror else None)
        profile = stack.enter_context(_profile(out, settings))
        stages = [
            *source.stages(),
            Group("animate", Batched(job.animate, size=opened.batch_size), output=_QUEUE),
            Map("convert", job.convert, output=_QUEUE),
            Sink("encode", writer.write),
        ]
        pipeline = Pipeline(profile.stages(stages))
        if on_start is not None:
            on_start(Started(pipeline, source.frame_count))
        try:
            measured = pipeline.run()
        except KeyboardInterrupt as error:
            kept = writer.keep_partial()
            said = f"kept what was written: {kept}" if kept else "nothing was written yet"
            raise KeyboardInterrupt(said) from error
        if not job.frame_count:
            raise no_picture_between(driver, settings.video.start_seconds, settings.video.end_seconds)
        if job.lost_count == job.frame_count:
            where = "it" if job.frame_count == 1 else f"any of its {job.frame_count} frames"
            raise InputError(f"{driver}: no face in {where}, so nothing would move the portrait")
        writer.finish()
        files = [_written(writer)]
        try:
            if recorder is not None and record is not None:
                recorder.finish()
                files.append(_measured(record, codec="motion"))
            if save_landmarks:
                kept = write_landmarks(
                    portrait, found.face, chosen=settings.animation.face, curves=opened.curves
                )
                files.append(_measured(kept, codec="landmarks"))
        except OutputError as error:
            names = ", ".join(str(file.path) for file in files)
            raise OutputError(f"{error}; these files are finished: {names}") from error
        profiled = profile.save(measured)
    return AnimateReport(
        portrait=portrait,
        driver=driver,
        size=(face.rgb.shape[1], face.rgb.shape[0]),
        animator=animator.name,
        files=tuple(files),
        frame_count=job.frame_count,
        lost_count=job.lost_count,
        notes=(
            *face.notes,
            *opened.notes,
            *source.notes,
            *job.notes,
            *_for_live_runs(loaded),
            *replaced,
            *profiled,
        ),
        profile=loaded.profile,
        wall_seconds=perf_counter() - began,
        pipeline=measured,
        device=opened.device_label,
        corrupt_count=source.corrupt_count,
    )


_MEASURED_PICTURES = 32
_WARM_UP_CALLS = 2


def measure_film(
    portrait: Path, driver: Path, *, loaded: LoadedSettings, store: ModelStore, seconds: float
) -> float:
    """Measure how many frames per second the animator draws; write nothing.

    Draws the motion of the driver's first frames repeatedly, in calls of ``animation.batch_size``. Opening,
    reading, tracking and encoding do not count.

    Args:
        portrait: A picture file.
        driver: A video, or a ``.motion`` file for the mesh.
        loaded: Settings.
        store: Where the tracker's model is, or is downloaded to.
        seconds: How long to draw.

    Raises:
        VitascopeError: As ``animate_file``.
    """
    settings = loaded.settings
    model = cache(lambda: fetch_face_model(store))
    mesh = read_canonical_mesh()
    wanted = settings.animation
    face = with_even_sides(load_portrait(portrait, model=model, face=wanted.face, max_side=wanted.max_side))
    with ExitStack() as stack:
        opened = open_animator(
            face, mesh=mesh, model=model, loaded=loaded, home=vitascope_home(), stack=stack
        )
        keep = opened.animator.needs_driver_picture
        # The choice of the neutral does not affect the time, and ``auto`` would read the whole driver.
        unsearched = loaded.with_values({"animation.neutral": "first"}).settings
        source = open_driver(driver, mesh=mesh, model=model, settings=unsearched, keep_pictures=keep)
        with source, closing(Pipeline(source.stages()).stream()) as driven:
            motions = [item.motion for item in islice(driven, _MEASURED_PICTURES)]
        if not motions:
            raise no_picture_between(driver, settings.video.start_seconds, settings.video.end_seconds)
        endless = cycle(motions)
        for _ in range(_WARM_UP_CALLS):
            opened.animate_batch(list(islice(endless, opened.batch_size)))
        began, count = perf_counter(), 0
        while (passed := perf_counter() - began) < seconds:
            count += len(opened.animate_batch(list(islice(endless, opened.batch_size))))
        return count / passed


class _Job:
    """Make the stages that draw and convert."""

    def __init__(self, opened: OpenedAnimator, recorder: MotionWriter | None, mirror: Mirror | None) -> None:
        self._opened = opened
        self._recorder = recorder
        self._mirror = mirror
        self.frame_count = 0
        self.lost_count = 0
        self._eased_count = 0

    @property
    def notes(self) -> list[str]:
        """Notes for the user on how well the portrait followed."""
        if not self._eased_count:
            return []
        return [
            f"in {self._eased_count} of {self.frame_count} frames the head turned farther than the portrait can show; "
            "it turns less there (to turn less everywhere: --pose 0.5)"
        ]

    def animate(self, batch: Sequence[Driven]) -> list[tuple[Driven, RgbPicture]]:
        motions = [driven.motion for driven in batch]
        if self._recorder is not None:  # not mirrored, so a replay can choose
            for driven in batch:
                seconds = float(driven.time.pts * driven.time.time_base)
                self._recorder.write(replace(driven.motion, pts_seconds=seconds))
        self.frame_count += len(batch)
        self.lost_count += sum(not driven.has_face for driven in batch)
        if self._mirror is not None:
            motions = list(map(self._mirror, motions))
        self._eased_count += sum(map(self._opened.eases, motions))
        return list(zip(batch, self._opened.animate_batch(motions), strict=True))

    def convert(self, animated: tuple[Driven, RgbPicture]) -> Frame:
        driven, rgb = animated
        time: FrameTime = driven.time
        return Frame(
            planes_of(rgb), _YUV420P, RGB_VIDEO_COLOR, driven.index, time.pts, time.time_base, time.duration
        )


def _for_live_runs(loaded: LoadedSettings) -> list[str]:
    """Notes on settings that have no effect."""
    keys = (f"performance.{key}" for key in _OF_LIVE_RUNS)
    return [
        f"{key} has no effect on a file, which gets every frame of its driver; it is for --sink"
        for key in keys
        if loaded.origin(key).explicit
    ]


def _open_writer(out: Path, rgb: RgbPicture, source: Driver, settings: Settings) -> VideoWriter:
    wanted = settings.output
    height, width = rgb.shape[:2]
    encoding = choose_encoding(
        out,
        codec=wanted.codec,
        source_format=_YUV420P,
        crf=wanted.crf,
        preset=wanted.preset,
        bit_depth=wanted.bit_depth,
        speed=wanted.speed,
        threads=settings.pipeline.stages.encode.threads or 0,
        hardware=settings.gpu.allowed_encoder,
        size=(width, height),
        cache_dir=engine_cache(),
    )
    info = VideoInfo(
        path=source.path,
        width=width,
        height=height,
        format=_YUV420P,
        source_format="yuv420p",
        color=RGB_VIDEO_COLOR,
        time_base=source.time_base,
        average_frame_rate=source.frame_rate,
        frame_count_estimate=source.frame_count,
    )
    return VideoWriter(
        out,
        info=info,
        encoding=encoding,
        copy_from=source.path if source.has_streams else None,
        start_seconds=settings.video.start_seconds or None,
        end_seconds=settings.video.end_seconds,
        spherical=None,
        hdr=None,
        keep_partial=settings.output.keep_partial,
    )


def _profile(out: Path, settings: Settings) -> PipelineProfile:
    pictures = picture_folder(out)
    return PipelineProfile(
        f"animate {out.name}",
        out if pictures is None else pictures.folder,
        wanted=settings.debug.profile_performance,
        device_id=(settings.gpu.device_ids or (settings.animation.gpu_id,))[0],
    )


def _written(writer: VideoWriter) -> WrittenFile:
    report = writer.report
    changes = [stream.in_words() for stream in report.streams if stream.action != "copied"]
    return WrittenFile(
        path=report.path,
        codec=report.codec,
        size_bytes=report.byte_count,
        notes=(*report.notes, *changes),
    )


def _measured(path: Path, *, codec: str) -> WrittenFile:
    """Report a finished file beside the video."""
    with wrap_output_error(path, "read its size"):
        return WrittenFile(path=path, codec=codec, size_bytes=path.stat().st_size)


def _refuse_clashes(portrait: Path, driver: Path, out: Path, record: Path | None) -> None:
    """Refuse outputs that overwrite an input or each other, before anything is opened."""
    if record is not None and record.suffix.lower() != MOTION_SUFFIX:
        raise UsageError(f"{record}: motion is recorded to a file that ends in {MOTION_SUFFIX}")
    for path in (path for path in (out, record) if path is not None):
        refuse_inputs(path, {"the portrait": portrait, "the driver": driver})
    if record is not None and out.absolute() == record.absolute():
        raise UsageError(f"{out}: video and motion cannot be the same file")
