"""Live segmentation: cuts people out of a camera's frames, one by one, and sends them to sinks.

::

    camera ──> a video's own stages, one frame at a time ──> sinks
          newest               newest               newest

``film_run.open_job`` builds the stages, as for a video; every live run shares the loop around them
(``media.live_loop``). A frame's pts is its time of capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from pathlib import Path
from time import monotonic, strftime
from typing import Any

import cv2
import numpy as np

from vitascope.config import DEFAULT_PROFILE, LoadedSettings, OutputKind, SettingsSource
from vitascope.device import select_device
from vitascope.errors import InputError, UsageError
from vitascope.frames import PIXEL_FORMATS, Frame, VideoInfo
from vitascope.gpu.pipeline.stages import Stage
from vitascope.gpu.profiling.pipeline_profile import PipelineProfile
from vitascope.gpu.profiling.utilisation import UtilisationSampler
from vitascope.media.live_loop import (
    NEWEST,
    LiveLoop,
    PictureSource,
    RunControls,
    RunOptions,
    RunReport,
    in_milliseconds,
)
from vitascope.media.planes import RGB_VIDEO_COLOR, planes_of, rgb_of, scale_alpha
from vitascope.media.reading.camera import Camera, CameraPicture, camera_named, is_camera
from vitascope.media.reading.paced import PacedFilm
from vitascope.media.sinks.file import files_of
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import ALPHA_FORMATS, LivePicture, Sink, SinkFormat, make_sink
from vitascope.media.sinks.window import WindowSink
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.output_target import refuse_inputs
from vitascope.segmentation.capacity import works_in_processes
from vitascope.segmentation.film_job import FilmJob
from vitascope.segmentation.film_run import FilmRunner, open_job
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.cached_film import opening
from vitascope.segmentation.notes import notes_on
from vitascope.segmentation.output_encoding import check_kinds
from vitascope.segmentation.plan import no_picture_between
from vitascope.segmentation.render.renderer import Rendered
from vitascope.segmentation.run_profile import PARTS_OF_STAGES
from vitascope.segmentation.writing import written_info
from vitascope.vr.detection import eyes_in_words

_FORMAT = PIXEL_FORMATS["yuv420p"]
_TIME_BASE = Fraction(1, 1_000_000)
_SHOWN = Encoding(codec="png", encoder="png", pixel_format="rgb24", muxer="image2")
"""Encoding of the pictures for sinks: uncompressed RGB, with all levels of a mask."""
_CAMERA_FPS = 30.0
"""Rate requested from a camera, unless ``performance.target_fps`` is set; a profile's rate is for videos and
headsets."""
_FIRST_PICTURE_SECONDS = 10.0
"""Longest wait for a camera's first picture; cameras wake up faster."""
IN_ONE_PROCESS = (
    "live runs use one process: "
    "leave out gpu.device_ids, processing.cluster and processing.use_multiprocessing"
)
_CLOSE = 0.9
"""Share of the camera's frames above which a run counts as keeping up."""


@dataclass(frozen=True, slots=True, eq=False)
class _FilmPicture:
    """A frame of a video file, at the time when it is due."""

    frame: Frame
    captured_seconds: float
    index: int


class _FilmSource(PacedFilm[_FilmPicture]):
    def __init__(self, path: Path, *, loaded: LoadedSettings) -> None:
        self._wanted = wanted = loaded.settings.video
        super().__init__(
            path,
            start_seconds=wanted.start_seconds,
            end_seconds=wanted.end_seconds,
            max_corrupt_frames=wanted.max_corrupt_frames,
            prefetch_frames=loaded.settings.performance.prefetch_frames,
        )

    def _picture_of(self, frame: Frame, captured_seconds: float) -> _FilmPicture:
        return _FilmPicture(frame, captured_seconds, frame.index)

    def _nothing(self) -> InputError:
        return no_picture_between(self.info.path, self._wanted, self.info)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveMattingReport(RunReport):
    """The report of a live run, finished or not."""

    source: str
    kind: OutputKind
    model: str
    model_note: str | None
    """Why another network is used than expected; None otherwise."""
    engine: str
    profile: str
    stereo: str
    stereo_reason: str
    projection: str
    projection_reason: str
    network_size: tuple[int, int]
    """(height, width) of the network's input."""
    notes: tuple[str, ...]
    """Settings without effect, one line each."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times in seconds."""
        plain = RunReport.to_dict(self)
        del plain["repeated"], plain["lost"]  # only animations have these
        return plain


def summarise_live(report: LiveMattingReport) -> list[str]:
    """Return the report as lines of text."""
    height, width = report.network_size
    eyes = eyes_in_words(report.stereo, report.stereo_reason, report.projection, report.projection_reason)
    lines = [
        f"{report.shown} pictures in {report.seconds:.1f} s: {report.frames_per_second:.1f} fps; "
        f"{report.kind} at {report.size[0]}x{report.size[1]} on {report.device}",
        f"latency {in_milliseconds(report.latency)}, from capture to the sinks; {report.dropped} of "
        f"{report.captured} pictures dropped",
        f"{report.model} at {width}x{height} on {report.engine}; profile {report.profile}, {eyes}",
        *report.where_it_went(),
    ]
    given = min(report.captured_per_second, report.target_fps)
    if report.frames_per_second < given * _CLOSE:
        # On a GPU, ``fast`` is no faster than ``balanced``.
        quicker = "fast" if str(report.device).startswith("CPU") else DEFAULT_PROFILE
        other = f"--profile {quicker}, or " if report.profile not in ("fast", quicker) else ""
        lines.append(
            f"late frames are dropped so that the delay does not grow; {other}a smaller camera picture lets "
            "more through"
        )
    late = report.over_limit()
    return [*lines, *([] if late is None else [late]), *(f"note: {note}" for note in report.notes)]


class LiveMatting(LiveLoop[CameraPicture | _FilmPicture]):
    """Cuts people out of one camera's picture. ``run`` works until stopped; other methods may be called meanwhile.

    Args:
        source: The camera, or a video instead.
        job: Processes the frames; its queues drop the oldest.
        info: Description of the frames.
        square: (width, height) of the picture in square pixels, before rotation.
        said: Fields of ``LiveMattingReport`` that do not change, by name.
        outlets: As for ``LiveLoop``.
        controls: Keyboard controls.
        options: Options of the loop.
        on_report: Called with a report when one was requested.
        on_message: Called with messages that the user should see at once, one line each.
        sampler: Samples the load of CPU and GPU; already started.
        with_spans: Wraps the stages in a profiler's spans.
    """

    _snapshot_name = "people"

    def __init__(
        self,
        source: PictureSource[CameraPicture | _FilmPicture],
        *,
        job: FilmJob,
        info: VideoInfo,
        square: tuple[int, int],
        said: dict[str, Any],
        outlets: Sequence[SinkOutlet],
        controls: RunControls,
        options: RunOptions,
        on_report: Callable[[LiveMattingReport], object] | None = None,
        on_message: Callable[[str], object] | None = None,
        sampler: UtilisationSampler | None = None,
        with_spans: Callable[[Sequence[Stage]], Sequence[Stage]] = list,
    ) -> None:
        super().__init__(
            source,
            outlets=outlets,
            controls=controls,
            options=options,
            on_report=on_report,
            on_message=on_message,
            sampler=sampler,
        )
        self.controls = controls
        """Keyboard controls."""
        self._info = info
        self._square = square
        self._said = said
        self._has_alpha = said["kind"] == "alpha"
        stages = job.stages(wants_alpha=lambda _: self._has_alpha)
        self._set_stages(stages, self._show, with_spans=with_spans)

    def report(self) -> LiveMattingReport:
        """Return the report of the run so far."""
        return LiveMattingReport(**self._said, **self._reported())

    def pace(self) -> str:
        """Summarise speed, latency and drops so far, in a few words."""
        figures = self._figures
        latency = figures.latency()
        rate = figures.shown / figures.seconds_shown if figures.seconds_shown else 0.0
        return (
            f"{rate:.1f} fps, {latency.p50_seconds * 1e3:.0f} ms p50 {latency.p95_seconds * 1e3:.0f} p95, "
            f"{max(figures.captured - figures.shown, 0)} dropped"
        )

    def _first_item(self, picture: CameraPicture | _FilmPicture) -> Frame:
        frame = picture.frame if isinstance(picture, _FilmPicture) else _frame_of(picture)
        if (frame.width, frame.height) != (self._info.width, self._info.height):
            raise InputError(
                f"{self._said['source']}: the frame size changed from {self._info.width}x{self._info.height} to "
                f"{frame.width}x{frame.height}; start again"
            )
        return replace(
            frame, pts=round(picture.captured_seconds / _TIME_BASE), time_base=_TIME_BASE, duration=0
        )

    def _show(self, rendered: Rendered) -> None:
        frame = rendered.pictures[0]
        alpha = scale_alpha(rendered.alpha, 8) if self._has_alpha and rendered.alpha is not None else None
        rgb, alpha = (
            None if picture is None else self._upright(picture) for picture in (rgb_of(frame), alpha)
        )
        assert rgb is not None
        self._hand_over(
            LivePicture(rgb, alpha=alpha, captured_seconds=frame.pts_seconds, index=rendered.index)
        )

    def _upright(self, picture: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Scale to square pixels, rotate upright, and crop to even sides, which encoders need."""
        if picture.shape[1::-1] != self._square:
            picture = np.asarray(cv2.resize(picture, self._square), np.uint8)
        upright = np.rot90(picture, -(self._info.rotation_degrees // 90))
        return np.ascontiguousarray(upright[: _even(upright.shape[0]), : _even(upright.shape[1])])


def _even(side: int) -> int:
    return max(side // 2 * 2, 1)


def _frame_of(picture: CameraPicture) -> Frame:
    return Frame(planes_of(picture.rgb), _FORMAT, RGB_VIDEO_COLOR, picture.index, 0, _TIME_BASE)


def live_settings(source: SettingsSource) -> tuple[LoadedSettings, str | None]:
    """Return the settings of a live run, and notes on them.

    Without a requested profile, network or settings file, a CPU uses ``fast``, which keeps up with a camera.

    Args:
        source: The requested settings.

    Raises:
        ConfigError: As ``load_settings``.
        DeviceError: A requested GPU is missing.
    """
    loaded = source.load()
    if source.profile is not None or source.files or loaded.origin("model.name").explicit:
        return loaded, None
    gpu = loaded.settings.gpu
    if select_device(gpu.device, index=gpu.device_id).kind != "cpu":
        return loaded, None
    fast = replace(source, profile="fast").load()
    return (
        fast,
        f"live on the CPU: profile fast; --profile {DEFAULT_PROFILE} has finer mattes, and drops more frames",
    )


def segment_live(
    runner: FilmRunner,
    source: str,
    sinks: Sequence[str | Sink],
    *,
    camera_size: tuple[int, int] | None = None,
    seconds: float | None = None,
    on_start: Callable[[LiveMatting], object] | None = None,
    on_report: Callable[[LiveMattingReport], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> LiveMattingReport:
    """Cut people out of a camera's picture until the user quits; see ``Segmenter.live``.

    Args:
        runner: Holds the network.
        source: A camera's number or address; a video is played at its own pace.
        sinks: As ``make_sink`` takes them, or your own ``Sink`` objects; at least one.
        camera_size: (width, height) to request from the camera.
        seconds: Stop after this time; None runs until stopped.
        on_start: Called with the run before it starts; for keys, ``stop`` and ``pace``.
        on_report: Called with a report when the key R is pressed.
        on_message: Called with messages for the user, one line each.
    """
    settings, performance = runner.settings, runner.settings.performance
    made_sinks = check_live(source, sinks, loaded=runner.loaded, camera_size=camera_size, seconds=seconds)
    (kind,) = settings.output.kinds
    controls = RunControls(on_message=on_message)
    for sink in made_sinks:
        if isinstance(sink, WindowSink):
            sink.on_key = controls.press
    with ExitStack() as stack:
        camera, info, luma = _open_source(source, runner.loaded, camera_size, on_message, stack)
        vr = vr_of(info, settings.video, luma=luma)
        if on_message is not None:
            for doubt in vr.doubts:
                on_message(f"note: {doubt}")
        profile = stack.enter_context(_profile(source, made_sinks, runner.loaded))
        job = open_job(
            stack,
            runner.chosen.network,
            [(kind, _SHOWN)],
            info=info,
            vr=vr,
            settings=settings,
            frames_per_call=1,
            streams=runner.streams,
            profiler=profile.profiler,
            limits=NEWEST,
        )
        written = written_info(kind, info, _SHOWN, vr=vr, settings=settings.output)
        height, width = written.in_square_pixels((written.height, written.width))
        square = width, height
        if info.rotation_degrees in (90, 270):
            height, width = width, height
        size = _even(width), _even(height)
        outlets = [
            SinkOutlet(
                sink,
                SinkFormat(*size, info.average_frame_rate.limit_denominator(1001)),
                threaded=performance.use_async_output,
            )
            for sink in made_sinks
        ]
        said = {
            "source": source,
            "kind": kind,
            "size": size,
            "model": runner.chosen.network.name,
            "model_note": runner.chosen.note,
            "engine": runner.chosen.network.engine_name,
            "profile": runner.loaded.profile,
            "stereo": vr.layout.value,
            "stereo_reason": vr.layout_reason.how,
            "projection": vr.projection.value,
            "projection_reason": vr.projection_reason.how,
            "network_size": job.matting.network_input.size,
            "device": runner.device.label,
            "notes": notes_on(
                info,
                [kind],
                network=opening(runner.chosen).network,
                device=runner.device,
                loaded=runner.loaded,
                is_live=True,
            )
            + _notes_on_files(made_sinks, runner.loaded),
        }
        run = LiveMatting(
            camera,
            job=job,
            info=info,
            square=square,
            said=said,
            outlets=outlets,
            controls=controls,
            options=RunOptions(
                target_fps=float(info.average_frame_rate),
                max_latency_ms=performance.max_latency_ms,
                seconds=seconds,
            ),
            on_report=on_report,
            on_message=on_message,
            sampler=stack.enter_context(UtilisationSampler(device_id=runner.device.index)),
            with_spans=profile.stages,
        )
        report: LiveMattingReport = run.run_shown(profile, on_start=on_start)
    return replace(report, notes=(*report.notes, *job.notes))


def check_live(
    source: str,
    sinks: Sequence[str | Sink],
    *,
    loaded: LoadedSettings,
    camera_size: tuple[int, int] | None = None,
    seconds: float | None = None,
    settings_files: Sequence[Path] = (),
) -> list[Sink]:
    """Refuse what a live run cannot do, before anything opens; returns the sinks.

    Args:
        source: As for ``segment_live``.
        sinks: As for ``segment_live``.
        loaded: As for ``segment_live``.
        camera_size: As for ``segment_live``.
        seconds: As for ``segment_live``.
        settings_files: Files that settings were read from; sinks may not replace them.

    Raises:
        UsageError: A live run does not support the request.
    """
    kinds, encoding, part = loaded.settings.output.kinds, loaded.settings.output, loaded.settings.video
    check_kinds(kinds, encoding)
    if len(kinds) > 1:
        raise UsageError(
            f"live runs make one kind of output, not {' and '.join(kinds)}; --type {kinds[0]} is one"
        )
    if works_in_processes(loaded.settings):
        raise UsageError(IN_ONE_PROCESS)
    if loaded.settings.people.active:
        raise UsageError(
            "live runs keep everybody, because finding people needs the whole video; leave out people.*"
        )
    if not sinks:
        raise UsageError("live segmentation needs a sink, such as window, mjpeg or file:out.mp4")
    has_alpha = kinds == ("alpha",)
    in_file = {
        "codec": encoding.codec,
        "crf": encoding.crf,
        "preset": encoding.preset,
        "with_alpha": has_alpha,
    }
    made = [make_sink(one, file=in_file) if isinstance(one, str) else one for one in sinks]
    for one in made:
        if not isinstance(one, Sink):
            raise UsageError(
                f"sinks has {one!r}, expected a word such as 'null', or an object with name, pixel_format, open, send "
                "and close"
            )
    video = None if is_camera(source) else Path(source)
    for path in files_of(made):
        refuse_inputs(path, {"the input": video, "the background": encoding.background})
        for file in settings_files:
            refuse_inputs(path, {"the settings file": file})
    for sink in made:
        if has_alpha and sink.pixel_format not in ALPHA_FORMATS:
            raise UsageError(
                f"{sink.name} cannot show transparency; use ndi, spout or file:out.mov, or --type key instead of alpha"
            )
    if seconds is not None and not 0 < seconds < inf:
        raise UsageError(f"the duration of a live run must be above 0 seconds, not {seconds:g}")
    if not is_camera(source):
        if camera_size is not None:
            raise UsageError(f"{source}: the camera size is for cameras, and this is a file; leave it out")
    elif part.start_seconds or part.end_seconds is not None:
        raise UsageError(f"{source}: a camera has no start and end; use a duration")
    return made


def _open_source(
    source: str,
    loaded: LoadedSettings,
    camera_size: tuple[int, int] | None,
    on_message: Callable[[str], object] | None,
    stack: ExitStack,
) -> tuple[Camera | _FilmSource, VideoInfo, Any]:
    """Open a camera or a video; returns it, its description and, for a camera, the luma of the first frame."""
    performance = loaded.settings.performance
    if not is_camera(source):
        film = stack.enter_context(_FilmSource(Path(source), loaded=loaded))
        return film, film.info, None
    is_asked = loaded.origin("performance.target_fps").explicit
    frame_rate = performance.target_fps if is_asked else _CAMERA_FPS
    camera = stack.enter_context(
        camera_named(
            source,
            size=camera_size,
            frame_rate=frame_rate,
            reads_ahead=performance.use_async_capture,
            on_message=on_message,
        )
    )
    give_up_at = monotonic() + _FIRST_PICTURE_SECONDS
    first = None
    while first is None:  # in short waits, so that Ctrl-C works on every system
        if monotonic() > give_up_at:
            raise InputError(f"camera {source} gave no picture in {_FIRST_PICTURE_SECONDS:g} s")
        first = camera.take(timeout_seconds=0.5)
    frame = _frame_of(first)
    info = VideoInfo(
        path=Path(source),
        width=frame.width,
        height=frame.height,
        format=_FORMAT,
        source_format="rgb24",
        color=RGB_VIDEO_COLOR,
        container="camera",
        time_base=_TIME_BASE,
        average_frame_rate=Fraction(frame_rate),
    )
    return camera, info, frame.planes[0]


def _notes_on_files(sinks: Sequence[Sink], loaded: LoadedSettings) -> tuple[str, ...]:
    """Make notes on settings for files that have no effect because no file is written."""
    if files_of(sinks):
        return ()
    wishes = (f"output.{name}" for name in ("codec", "crf", "preset"))
    return tuple(
        f"{key} has no effect here: no file is written" for key in wishes if loaded.origin(key).explicit
    )


def _profile(source: str, sinks: Sequence[Sink], loaded: LoadedSettings) -> PipelineProfile:
    """Make the profile, written beside the first output file, else to the current folder, as snapshots."""
    target = next(iter(files_of(sinks)), Path(f"segment-{strftime('%Y%m%d-%H%M%S')}"))
    return PipelineProfile(
        f"segment {source}",
        target,
        wanted=loaded.settings.debug.profile_performance,
        device_id=loaded.settings.gpu.device_id,
        parts_of_stages=PARTS_OF_STAGES,
    )
