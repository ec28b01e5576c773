"""Runs ``vitascope animate`` live: opens everything that a session needs from settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import cache
from math import inf
from pathlib import Path
from time import strftime

from vitascope.animation.animator import open_animator
from vitascope.animation.canonical_mesh import read_canonical_mesh
from vitascope.animation.drivers import has_no_pictures, make_estimator, open_tracker
from vitascope.animation.face import PortraitAnimator
from vitascope.animation.live.controls import Controls, LiveState
from vitascope.animation.live.effects import GreenScreen
from vitascope.animation.live.report import LiveReport
from vitascope.animation.live.session import Estimator, LiveOptions, LiveSession, Tracker
from vitascope.animation.live.sources import (
    Capped,
    EndlessDriver,
    FilmSource,
    ReplaySource,
    VoiceSource,
    open_voice,
)
from vitascope.animation.motion import Mirror
from vitascope.animation.motion_file import MOTION_SUFFIX, MotionWriter
from vitascope.animation.portrait import load_portrait, with_even_sides
from vitascope.animation.tracking import fetch_face_model
from vitascope.config import LoadedSettings, Settings, vitascope_home
from vitascope.config.loading import checked_gpus
from vitascope.errors import OutputError, UsageError
from vitascope.gpu.profiling.pipeline_profile import PipelineProfile
from vitascope.gpu.profiling.utilisation import UtilisationSampler
from vitascope.media.reading.camera import Camera, camera_named, is_camera
from vitascope.media.reading.microphone import is_microphone
from vitascope.media.sinks.file import files_of
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import Sink, SinkFormat, make_sink
from vitascope.media.sinks.window import WindowSink
from vitascope.media.writing.output_target import refuse_inputs
from vitascope.models.selfie.selfie import SelfieNetwork
from vitascope.models.store.store import ModelStore

_MOST_BEHIND_MS = 150.0
"""Maximum delay of lips behind a voice."""
_ABSENCE_SECONDS = 1.0
"""Time without a picture after which the driver counts as absent: longer than any camera's or video's interval."""


def animate_live(
    portrait: Path,
    driver: str,
    sinks: Sequence[str],
    *,
    loaded: LoadedSettings,
    store: ModelStore,
    record: Path | None = None,
    seconds: float | None = None,
    endless_fps: float | None = None,
    warm_up_pictures: int = 0,
    on_session: Callable[[LiveSession], object] | None = None,
    on_report: Callable[[LiveReport], object] | None = None,
    on_message: Callable[[str], object] | None = None,
    fetch_progress: Callable[[str, int, int], None] | None = None,
) -> LiveReport:
    """Animate a portrait into sinks until the user quits.

    Args:
        portrait: A picture file.
        driver: A camera's number or address, or a microphone (``mic``, ``mic:DEVICE``); a video, a sound file or a
            ``.motion`` file is played in real time.
        sinks: As for ``media.sinks.registry.make_sink``; at least one.
        loaded: Settings.
        store: Where the tracker's model is, or is downloaded to.
        record: File to record the driver's motion to (``.motion``).
        seconds: Duration; None runs until the key Q or the driver's end.
        endless_fps: For measuring: repeats a driver's file at this many pictures a second.
        warm_up_pictures: For measuring: number of first pictures that the figures leave out; ``seconds``
            starts after them.
        on_session: Called with the session before it runs, for keys and ``stop``.
        on_report: Called with a report when R is pressed.
        on_message: Called with one line that the user should see at once.
        fetch_progress: Called with (model, bytes so far, bytes in all) during a download.

    Returns:
        The report of the whole run; its sinks tell which of them failed.

    Raises:
        UsageError: No sink, or an unknown one; a recorded driver with ``record``; a part of a camera's video.
        InputError: Portrait or driver cannot be read.
        ModelError: The tracker's model is unavailable.
        MissingDependencyError: MediaPipe, or a package that a sink needs, is not installed.
        OutputError: A sink cannot be opened, or every one failed while the portrait moved.
        PipelineError: A stage failed.
    """
    if not sinks:
        raise UsageError("live animation needs a sink, such as window, mjpeg or file:out.mp4")
    if seconds is not None and not 0 < seconds < inf:
        raise UsageError(f"the duration of a live run must be above 0 s, not {seconds:g}")
    loaded = checked_gpus(loaded, number="animation.gpu_id")
    settings = loaded.settings
    part, encoding = settings.video, settings.output
    never_ends = is_camera(driver) or is_microphone(driver)
    if never_ends and (part.start_seconds or part.end_seconds is not None):
        kind = "microphone" if is_microphone(driver) else "camera"
        raise UsageError(f"{driver}: a {kind} has no start and end; limit it with a duration")
    if settings.voice.text is not None:
        raise UsageError("a text needs a whole file and --out: live, the words to come are unknown")
    in_file = {"codec": encoding.codec, "crf": encoding.crf, "preset": encoding.preset}
    made_sinks = [make_sink(spec, file=in_file) for spec in sinks]
    is_file = not (is_camera(driver) or is_microphone(driver))
    read = {"the portrait": portrait, "the driver": Path(driver) if is_file else None}
    for path in files_of(made_sinks):
        refuse_inputs(path, read)
    if is_camera(driver):
        if settings.voice.drives:
            raise UsageError(f"{driver}: a camera is followed by its picture; for a voice use --driver mic")
        nothing = None
    elif is_microphone(driver):
        nothing = "a voice"
    else:
        nothing = has_no_pictures(Path(driver), settings)
    replays = nothing == "recorded motion"
    if record is not None and (replays or record.suffix.lower() != MOTION_SUFFIX):
        raise UsageError(
            f"{record}: motion is recorded from a camera or a video, to a file that ends in {MOTION_SUFFIX}"
        )
    model = cache(lambda: fetch_face_model(store, fetch_progress))
    mesh = read_canonical_mesh()
    wanted = settings.animation
    face = with_even_sides(load_portrait(portrait, model=model, face=wanted.face, max_side=wanted.max_side))
    height, width = face.rgb.shape[:2]
    performance = settings.performance
    controls = Controls(
        LiveState(smoothing_window=settings.tracking.smoothing_window, mirror=wanted.mirror),
        on_message=on_message,
    )
    for sink in made_sinks:
        if isinstance(sink, WindowSink):
            sink.on_key = controls.press
    with ExitStack() as stack:
        opened = open_animator(
            face, mesh=mesh, model=model, loaded=loaded, home=vitascope_home(), stack=stack, live=True
        )
        if nothing is not None and opened.animator.needs_driver_picture:
            raise UsageError(
                f"{driver}: {nothing} has no pictures, which LivePortrait needs; use --animator mesh"
            )
        for note in (*face.notes, *opened.notes, *_notes(loaded, opened.animator)):
            if on_message is not None:
                on_message(note)
        source = _open_source(driver, settings, endless_fps, on_message, is_voice=nothing == "a voice")
        stack.enter_context(source)
        tracker: Tracker | None = None
        estimator: Estimator
        if nothing is not None:
            assert isinstance(source, ReplaySource | EndlessDriver | VoiceSource)
            estimator = source
        else:
            tracker = stack.enter_context(open_tracker(model(), settings))
            estimator = make_estimator(mesh, settings)
        recorder = None
        if record is not None:
            is_seen = nothing is None
            recorder = stack.enter_context(
                MotionWriter(record, frame_rate=30.0, with_vertices=is_seen, with_eyes=is_seen)
            )
        selfie = SelfieNetwork(store.path("selfie"), store.path("selfie-landscape"))
        stack.callback(selfie.close)
        made = SinkFormat(width, height, Fraction(performance.target_fps).limit_denominator(1001))
        outlets = [SinkOutlet(sink, made, threaded=performance.use_async_output) for sink in made_sinks]
        profile = stack.enter_context(_profile(made_sinks, record, loaded))
        session = LiveSession(
            Capped(source, frame_rate=performance.target_fps),
            tracker=tracker,
            estimator=estimator,
            animator=opened.animator,
            size=(width, height),
            outlets=outlets,
            controls=controls,
            options=LiveOptions(
                target_fps=performance.target_fps,
                max_latency_ms=_most_behind_ms(loaded, listens=nothing == "a voice"),
                listens=nothing == "a voice",
                skip_similarity=performance.frame_skip_threshold if performance.frame_skip_enabled else None,
                pose_window=settings.tracking.pose_smoothing_window,
                seconds=seconds,
                absence_seconds=max(_ABSENCE_SECONDS, 2 / performance.target_fps),
                warm_up_pictures=warm_up_pictures,
            ),
            mirror=Mirror(mesh),
            on_background=GreenScreen(selfie),
            recorder=recorder,
            set_strength=opened.set_strength,
            on_report=on_report,
            on_message=on_message,
            sampler=stack.enter_context(UtilisationSampler(device_id=wanted.gpu_id)),
            device=opened.device_label,
            with_spans=profile.stages,
        )
        try:
            report: LiveReport = session.run_shown(profile, on_start=on_session)
        except BaseException as error:
            if session.is_stuck:
                stack.pop_all()  # a hanging thread may still use these, and closing would wait for it
            elif recorder is not None and session.has_opened_sinks and isinstance(error, OutputError):
                recorder.finish()  # the recording does not depend on the sinks
            raise
        if recorder is not None:
            recorder.finish()
    return report


def _profile(sinks: Sequence[Sink], record: Path | None, loaded: LoadedSettings) -> PipelineProfile:
    """Make the profile, saved beside the first output file, else in the current folder, like snapshots."""
    target = next(iter(files_of(sinks)), record) or Path(f"animate-{strftime('%Y%m%d-%H%M%S')}")
    return PipelineProfile(
        f"animate {target.name}",
        target,
        wanted=loaded.settings.debug.profile_performance,
        device_id=loaded.settings.animation.gpu_id,
    )


def _open_source(
    driver: str,
    settings: Settings,
    endless_fps: float | None,
    on_message: Callable[[str], object] | None,
    *,
    is_voice: bool,
) -> Camera | FilmSource | ReplaySource | EndlessDriver | VoiceSource:
    performance, part = settings.performance, settings.video
    if is_voice:
        if endless_fps is not None:
            raise UsageError(f"{driver}: a voice cannot be measured; use a video or recorded motion")
        return open_voice(
            driver,
            frame_rate=min(performance.target_fps, settings.voice.frame_rate),
            seed=settings.voice.seed,
            start_seconds=part.start_seconds or None,
            end_seconds=part.end_seconds,
            on_message=on_message,
        )
    if is_camera(driver):
        return camera_named(
            driver,
            frame_rate=performance.target_fps,
            reads_ahead=performance.use_async_capture,
            on_message=on_message,
        )
    path, start, end = Path(driver), part.start_seconds, part.end_seconds
    if endless_fps is not None:
        return EndlessDriver(
            path,
            frame_rate=endless_fps,
            start_seconds=start,
            end_seconds=end,
            max_corrupt_frames=part.max_corrupt_frames,
        )
    if path.suffix.lower() == MOTION_SUFFIX:
        return ReplaySource(path, start_seconds=start, end_seconds=end)
    return FilmSource(
        path,
        start_seconds=start,
        end_seconds=end,
        max_corrupt_frames=part.max_corrupt_frames,
        prefetch_frames=performance.prefetch_frames,
    )


def _most_behind_ms(loaded: LoadedSettings, *, listens: bool) -> float:
    """Return the longest unreported delay, in ms: the user's, else that of pictures or of a voice."""
    key = "performance.max_latency_ms"
    if listens and not loaded.origin(key).explicit:
        return _MOST_BEHIND_MS
    return loaded.settings.performance.max_latency_ms


def _notes(loaded: LoadedSettings, animator: PortraitAnimator) -> tuple[str, ...]:
    wanted = loaded.settings.animation.batch_size
    if animator.needs_driver_picture and wanted.high > 1:
        return (f"animation.batch_size: {wanted} is for files; live, each picture is animated at once",)
    return ()


def measure_live(
    portrait: Path,
    driver: Path,
    *,
    loaded: LoadedSettings,
    store: ModelStore,
    seconds: float = 60.0,
    warm_up_pictures: int = 0,
    on_session: Callable[[LiveSession], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> LiveReport:
    """Measure live animation of a portrait, at ``performance.target_fps``, without showing it.

    A video measures tracker and animator, a ``.motion`` file only the animator. The driver repeats when it ends.

    Args:
        portrait: A picture file.
        driver: A video or a ``.motion`` file.
        loaded: Settings.
        store: Where the tracker's model is, or is downloaded to.
        seconds: Duration, from the first picture that counts.
        warm_up_pictures: Number of first pictures, which are slower, that the figures leave out.
        on_session: Called with the session before it runs, for ``stop``.
        on_message: Called with one line that the user should see at once.

    Returns:
        The report.

    Raises:
        VitascopeError: As ``animate_live``.
    """
    return animate_live(
        portrait,
        str(driver),
        ["null"],
        loaded=loaded,
        store=store,
        seconds=seconds,
        warm_up_pictures=warm_up_pictures,
        endless_fps=loaded.settings.performance.target_fps,
        on_session=on_session,
        on_message=on_message,
    )
