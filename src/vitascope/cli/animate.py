"""``vitascope animate``."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from vitascope.cli.options import (
    DEVICE,
    FACE,
    INPUT,
    LIVE,
    MONITORING,
    OUTPUT,
    QUALITY,
    SETTINGS,
    Assignments,
    ConfigFiles,
    Many,
    Overwrite,
    Switch,
    files_of_sinks,
    may_replace,
)
from vitascope.config import Codec, SettingsSource, given_flags, vitascope_home
from vitascope.errors import MissingDependencyError, OutputError, UsageError
from vitascope.observe.keys import PressedKeys, holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.config import LoadedSettings

_METRICS_PORT = 9100


def animate(
    portrait: Annotated[Path, Parameter(group=INPUT)],
    /,
    *,
    driver: Annotated[str, Parameter(alias="-d", group=INPUT)],
    voice: Annotated[bool | None, Parameter(negative="", group=INPUT)] = None,
    text: Annotated[str | None, Parameter(group=INPUT)] = None,
    start: Annotated[str | None, Parameter(group=INPUT)] = None,
    end: Annotated[str | None, Parameter(group=INPUT)] = None,
    out: Annotated[Path | None, Parameter(alias="-o", metavar="PATH", group=OUTPUT)] = None,
    record: Annotated[Path | None, Parameter(metavar="PATH", group=OUTPUT)] = None,
    save_landmarks: Annotated[Switch, Parameter(group=OUTPUT)] = False,
    overwrite: Annotated[Overwrite, Parameter(group=OUTPUT)] = None,
    face: Annotated[str | None, Parameter(group=FACE)] = None,
    expression: Annotated[float | None, Parameter(group=FACE)] = None,
    pose: Annotated[float | None, Parameter(group=FACE)] = None,
    mirror: Annotated[bool | None, Parameter(negative="", group=FACE)] = None,
    smoothing: Annotated[int | None, Parameter(metavar="FRAMES", group=FACE)] = None,
    animator: Annotated[Literal["auto", "mesh", "liveportrait"] | None, Parameter(group=FACE)] = None,
    sink: Annotated[list[str] | None, Many, Parameter(group=LIVE)] = None,
    duration: Annotated[float | None, Parameter(metavar="SECONDS", group=LIVE)] = None,
    profile: Annotated[str | None, Parameter(group=QUALITY)] = None,
    codec: Annotated[Literal["auto"] | Codec | None, Parameter(group=QUALITY)] = None,
    crf: Annotated[int | None, Parameter(group=QUALITY)] = None,
    preset: Annotated[str | None, Parameter(group=QUALITY)] = None,
    gpu_id: Annotated[int | None, Parameter(group=DEVICE)] = None,
    gpu_ids: Annotated[str | None, Parameter(metavar="N,N", group=DEVICE)] = None,
    fp16: Annotated[bool | None, Parameter(negative="", group=DEVICE)] = None,
    batch_size: Annotated[int | None, Parameter(group=DEVICE)] = None,
    json: Annotated[Switch, Parameter(group=MONITORING)] = False,
    quiet: Annotated[bool, Parameter(negative="", show_default=False, alias="-q", group=MONITORING)] = False,
    enable_metrics: Annotated[Switch, Parameter(group=MONITORING)] = False,
    metrics_port: Annotated[int | None, Parameter(metavar="PORT", group=MONITORING)] = None,
    tensorboard: Annotated[Path | None, Parameter(metavar="FOLDER", group=MONITORING)] = None,
    config: Annotated[ConfigFiles, Parameter(group=SETTINGS)] = (),
    set_: Annotated[Assignments, Parameter(group=SETTINGS)] = (),
) -> None:
    """Animate a portrait with a face in a video, a voice, recorded motion, or live.

    vitascope animate me.jpg -d talk.mp4 -o out.mp4    a face in a video
    vitascope animate me.jpg -d speech.wav -o out.mp4  a voice
    vitascope animate me.jpg -d 0 --sink window        live, from camera 0

    Keys of a live run, in its window or in the terminal:
    R performance report, N take this face as neutral, F find the best neutral,
    M mirror, + stronger, - weaker, [ less smoothing, ] more smoothing,
    B background, O overlay of landmarks, P pause, S snapshot,
    T try failed sinks again, Q quit, ? this list.

    Args:
        portrait: A picture with a face: photo, painting, statue.
        driver: A video of a face, a sound file, a .motion file, a camera (number or address), mic or mic:DEVICE.
        out: The video; without a suffix, a folder of pictures.
        sink: Live output: window, file:PATH, virtualcam, ndi, spout, mjpeg:PORT, udp:HOST:PORT, null; repeatable.
        record: Also write the driver's motion to a .motion file.
        save_landmarks: Save the portrait's landmarks as PORTRAIT.landmarks, so that animating it needs no face network.
        overwrite: Replace existing outputs, or refuse to; by default, ask on a terminal.
        profile: Settings to start from [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example animation.gaze=0.5.
        animator: How to draw: the mesh, LivePortrait, or auto.
        gpu_id: Number of the GPU, from 0.
        gpu_ids: GPUs that share a video's frames, such as 0,1; live runs use one.
        fp16: Run LivePortrait in half precision.
        batch_size: Driver frames per call of LivePortrait; always one in live runs.
        expression: Strength of the face; 1 is the driver's own.
        pose: Strength of the head's motion.
        face: Face of the portrait to animate: largest, or its number from the left, starting at 0.
        mirror: Move like a mirror image of the driver.
        voice: Let a video's sound move the portrait instead of the face in it.
        text: The words of the voice, in English, or a text file; makes the lips more accurate.
        smoothing: Frames over which a nearly still face is smoothed; 1 is off.
        codec: Video codec [default: auto, by the file name].
        crf: Quality on the codec's scale; lower values look better and make larger files.
        preset: Encoder preset, for example veryfast.
        start: Start time: seconds, 1:30 or 0:01:30.5.
        end: End time.
        duration: Stop a live run after this time.
        enable_metrics: Serve metrics of a live run to Prometheus on port 9100.
        metrics_port: Serve them on this port instead; 0 takes a free one.
        tensorboard: Write metrics for TensorBoard to this folder.
        json: Print as JSON.
        quiet: Print only errors.
    """
    given = {
        "animation.animator": ("--animator", animator),
        "animation.gpu_id": ("--gpu-id", gpu_id),
        "gpu.device_ids": ("--gpu-ids", gpu_ids),
        "animation.use_half_precision": ("--fp16", fp16),
        "animation.batch_size": ("--batch-size", batch_size),
        "animation.expression": ("--expression", expression),
        "animation.pose": ("--pose", pose),
        "animation.face": ("--face", face),
        "animation.mirror": ("--mirror", mirror),
        "voice.drives": ("--voice", voice),
        "voice.text": ("--text", text),
        "tracking.smoothing_window": ("--smoothing", smoothing),
        "output.codec": ("--codec", codec),
        "output.crf": ("--crf", crf),
        "output.preset": ("--preset", preset),
        "video.start_seconds": ("--start", start),
        "video.end_seconds": ("--end", end),
    }
    loaded = SettingsSource(profile=profile, files=config, assignments=set_, flags=given_flags(given)).load()
    if sink and out is not None:
        raise UsageError(
            "--out writes a file as fast as possible, --sink shows pictures live; for both, use --sink file:PATH"
        )
    if not sink and out is None:
        raise UsageError("nothing to make: give --out PATH, or --sink for live pictures")
    from vitascope.media.remote import local_path_of

    portrait = local_path_of(portrait)
    out, record = (None if path is None else local_path_of(path) for path in (out, record))
    screen = Screen()
    ask = partial(may_replace, overwrite=overwrite, screen=screen)
    if sink:
        if save_landmarks:
            raise UsageError(
                "--save-landmarks needs --out: make a short video once, for example with --end 1"
            )
        files = [*files_of_sinks(sink), *([] if record is None else [record])]
        ask([path for path in files if path.is_file()])
        _live(
            portrait,
            driver,
            sink,
            loaded,
            record=record,
            duration=duration,
            metrics_port=_METRICS_PORT if enable_metrics and metrics_port is None else metrics_port,
            tensorboard=tensorboard,
            json=json,
            quiet=quiet,
        )
        return
    assert out is not None  # or sinks, see above
    from vitascope.media.reading.camera import is_camera
    from vitascope.media.reading.microphone import is_microphone

    if is_camera(driver) or is_microphone(driver):
        kind = "microphone" if is_microphone(driver) else "camera"
        raise UsageError(
            f"--driver {driver}: a {kind} has no end; show it with --sink, for example --sink file:out.mp4"
        )
    if duration is not None:
        raise UsageError("--duration is for live runs; --end says where a driver's file stops")
    if enable_metrics or metrics_port is not None:
        flag = "--enable-metrics" if enable_metrics else "--metrics-port"
        raise UsageError(f"{flag} is for live runs, with --sink")
    # Imported here so that --help and usage errors do not wait for codecs.
    with holding_interrupts():
        from vitascope.animation import find_example
        from vitascope.animation.offline import Started, animate_file, summarise
        from vitascope.cli.options import serving_metrics
        from vitascope.models.store.store import ModelStore
        from vitascope.observe.progress import JobProgress

    page = Page()
    with (
        serving_metrics(None, screen=screen, quiet=quiet, tensorboard=tensorboard) as metrics,
        JobProgress(screen, visible=not (quiet or json)) as progress,
    ):

        def begin(job: Started) -> None:
            progress.show(portrait.name, job.pipeline, frame_count=job.expected_frame_count)
            if metrics is not None:
                metrics.follow(job.pipeline, expected_frames=job.expected_frame_count)

        report = animate_file(
            find_example(portrait),
            find_example(local_path_of(driver)),
            out,
            loaded=loaded,
            store=ModelStore(vitascope_home()),
            record=record,
            save_landmarks=save_landmarks,
            may_replace=ask,
            on_start=begin,
            fetch_progress=progress.fetched,
        )
        progress.clear()
    if json:
        page.print_json(data=report.to_dict())
    elif not quiet:
        page.print_lines(*summarise(report))


def _live(
    portrait: Path,
    driver: str,
    sinks: list[str],
    loaded: "LoadedSettings",
    *,
    record: Path | None,
    duration: float | None,
    metrics_port: int | None,
    tensorboard: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    with holding_interrupts():
        from vitascope.animation import find_example
        from vitascope.animation.live.report import summarise_live
        from vitascope.animation.live.run import animate_live
        from vitascope.animation.live.session import LiveSession
        from vitascope.animation.tracking import require_mediapipe
        from vitascope.cli.options import metrics_address, serving_metrics
        from vitascope.media.reading.camera import is_camera
        from vitascope.media.remote import local_path_of
        from vitascope.models.store.store import ModelStore

        with suppress(MissingDependencyError):  # reported later, after errors in the command line
            require_mediapipe()

    screen = Screen()
    page = Page()

    def say(*lines: str) -> None:
        if not quiet:
            screen.print_lines(*lines)

    named = driver if is_camera(driver) else str(find_example(local_path_of(driver)))
    address = metrics_address(metrics_port, None)
    with (
        PressedKeys() as keys,
        serving_metrics(address, screen=screen, quiet=quiet, tensorboard=tensorboard) as metrics,
    ):

        def begin(session: LiveSession) -> None:
            keys.hand_to(session.controls.press, at_interrupt=session.stop)
            if keys.are_read or "window" in sinks:
                say("keys: ? lists them, Q quits")
            if metrics is not None:
                metrics.follow_live(session)

        report = animate_live(
            find_example(portrait),
            named,
            sinks,
            loaded=loaded,
            store=ModelStore(vitascope_home()),
            record=record,
            seconds=duration,
            on_session=begin,
            on_report=lambda so_far: say(*summarise_live(so_far)),
            on_message=say,
        )
    if json:
        page.print_json(data=report.to_dict())
    elif not quiet:
        page.print_lines(*summarise_live(report))
    if report.failure is not None:
        raise OutputError(report.failure)
