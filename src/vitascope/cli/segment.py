"""``vitascope segment``."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args

from cyclopts import Parameter

from vitascope.cli.options import (
    DEVICE,
    INPUT,
    LIVE,
    MATTE,
    MONITORING,
    OUTPUT,
    PEOPLE,
    QUALITY,
    SETTINGS,
    STEREO,
    Assignments,
    ConfigFiles,
    Many,
    MetricsAddress,
    files_of_sinks,
    may_replace,
    metrics_address,
    serving_metrics,
    watch_gpus,
)
from vitascope.cli.printing import print_json, print_json_line
from vitascope.config import Codec, OutputKind, PlayerName, SettingsSource, given_flags
from vitascope.config.flags import FlagValue, PersonWord
from vitascope.errors import OutputError, UsageError, VitascopeError, did_you_mean, one_line
from vitascope.media.remote import path_of
from vitascope.observe.keys import PressedKeys, holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.config import LoadedSettings
    from vitascope.segmentation.plan import PlannedVideo
    from vitascope.segmentation.processes.film_queue import FilmQueue
    from vitascope.segmentation.segmenter import Segmenter, Started


class _Told(NamedTuple):
    """The result for one input."""

    video: Path
    fields: dict[str, Any]
    """Values for machines."""
    error: VitascopeError | None


def segment(
    *inputs: Annotated[str, Parameter(group=INPUT)],
    recursive: Annotated[bool, Parameter(negative="", show_default=False, alias="-r", group=INPUT)] = False,
    start: Annotated[str | None, Parameter(group=INPUT)] = None,
    end: Annotated[str | None, Parameter(group=INPUT)] = None,
    resume: Annotated[bool, Parameter(negative="", show_default=False, group=INPUT)] = False,
    out: Annotated[str | None, Parameter(alias="-o", metavar="PATH", group=OUTPUT)] = None,
    type_: Annotated[
        list[OutputKind | str] | None, Many, Parameter(name=["--type", "-t"], metavar="KIND", group=OUTPUT)
    ] = None,
    output: Annotated[list[str] | None, Many, Parameter(show=False)] = None,
    key_color: Annotated[str | None, Parameter(group=OUTPUT)] = None,
    background: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    preview: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    keep_partial: Annotated[bool | None, Parameter(negative="", group=OUTPUT)] = None,
    overwrite: Annotated[
        bool | None, Parameter(name=["--overwrite", "-y"], negative=["--no-overwrite", "-n"], group=OUTPUT)
    ] = None,
    threshold: Annotated[str | None, Parameter(metavar="LOW,HIGH", group=MATTE)] = None,
    grow: Annotated[float | None, Parameter(metavar="PIXELS", group=MATTE)] = None,
    feather: Annotated[float | None, Parameter(metavar="PIXELS", group=MATTE)] = None,
    smoothing: Annotated[float | None, Parameter(group=MATTE)] = None,
    decontaminate: Annotated[bool | None, Parameter(group=MATTE)] = None,
    keep: Annotated[str | None, Parameter(metavar="N,N", group=PEOPLE)] = None,
    exclude: Annotated[str | None, Parameter(metavar="N,N", group=PEOPLE)] = None,
    keep_held: Annotated[bool | None, Parameter(negative="", group=PEOPLE)] = None,
    hints: Annotated[Path | None, Parameter(group=PEOPLE)] = None,
    model: Annotated[str | None, Parameter(alias="-m", group=MATTE)] = None,
    kind: Annotated[Literal["matte", "binary", "semantic", "yolo-seg"] | None, Parameter(group=MATTE)] = None,
    stereo: Annotated[str | None, Parameter(name=["--stereo", "--layout"], group=STEREO)] = None,
    player: Annotated[PlayerName | None, Parameter(group=STEREO)] = None,
    projection: Annotated[str | None, Parameter(group=STEREO)] = None,
    fov: Annotated[float | None, Parameter(metavar="DEGREES", group=STEREO)] = None,
    camera: Annotated[str | None, Parameter(group=LIVE)] = None,
    camera_size: Annotated[str | None, Parameter(metavar="WIDTHxHEIGHT", group=LIVE)] = None,
    sink: Annotated[list[str] | None, Many, Parameter(group=LIVE)] = None,
    duration: Annotated[float | None, Parameter(metavar="SECONDS", group=LIVE)] = None,
    profile: Annotated[str | None, Parameter(group=QUALITY)] = None,
    codec: Annotated[Literal["auto"] | Codec | None, Parameter(group=QUALITY)] = None,
    crf: Annotated[int | None, Parameter(group=QUALITY)] = None,
    preset: Annotated[str | None, Parameter(group=QUALITY)] = None,
    skip_static: Annotated[float | None, Parameter(group=QUALITY)] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, Parameter(group=DEVICE)] = None,
    gpu_id: Annotated[int | None, Parameter(group=DEVICE)] = None,
    gpu_ids: Annotated[str | None, Parameter(metavar="N,N", group=DEVICE)] = None,
    cluster: Annotated[str | None, Parameter(metavar="ADDRESS", group=DEVICE)] = None,
    mode: Annotated[Literal["auto", "throughput", "latency"] | None, Parameter(group=DEVICE)] = None,
    backend: Annotated[
        Literal["auto", "triton", "torch", "onnxruntime", "inductor", "tensorrt"] | None,
        Parameter(group=DEVICE),
    ] = None,
    precision: Annotated[Literal["fp32", "fp16", "int8", "mixed"] | None, Parameter(group=DEVICE)] = None,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False, group=MONITORING)] = False,
    json: Annotated[bool, Parameter(negative="", show_default=False, group=MONITORING)] = False,
    json_lines: Annotated[bool, Parameter(negative="", show_default=False, group=MONITORING)] = False,
    quiet: Annotated[bool, Parameter(negative="", show_default=False, alias="-q", group=MONITORING)] = False,
    verbose: Annotated[
        bool, Parameter(negative="", show_default=False, alias="-v", group=MONITORING)
    ] = False,
    metrics_port: Annotated[int | None, Parameter(metavar="PORT", group=MONITORING)] = None,
    metrics_host: Annotated[str | None, Parameter(metavar="ADDRESS", group=MONITORING)] = None,
    tensorboard: Annotated[Path | None, Parameter(metavar="FOLDER", group=MONITORING)] = None,
    config: Annotated[ConfigFiles, Parameter(group=SETTINGS)] = (),
    set_: Annotated[Assignments, Parameter(group=SETTINGS)] = (),
) -> int:
    """Cut every person out of videos.

    vitascope segment in.mp4 out.mp4               people on green
    vitascope segment in.mp4 cut.mov --type alpha  people on transparency
    vitascope segment videos/ cut/ -r --resume     a folder, without finished videos
    vitascope segment --camera 0 --sink window     live, from camera 0; Q quits

    Args:
        inputs: Videos, images, folders or globs, followed by the output unless --out gives it.
        out: Output file; a folder for several inputs or, without a suffix, for pictures.
        type_: Kind of output; several (mask,key) are written in one pass [default: key].
        output: The former name of --type.
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
        model: Network: a name from vitascope models list, an ONNX file, or auto.
        kind: Output of your own ONNX file.
        stereo: How the two eyes share a frame: auto, mono, side-by-side (sbs) or top-bottom (tb).
        player: Write a file that this VR player shows with passthrough, under a name that it recognises.
        projection: Projection of each eye: auto, flat, equirect180, equirect360 or fisheye.
        fov: Field of view of each eye.
        threshold: Alpha levels that become 0 and 1, for example 0.1,0.9.
        grow: Grow people; negative shrinks them.
        camera: Cut live from a camera (number from 0, or address such as rtsp://...), or from a video at its own pace.
        camera_size: Frame size to request from the camera, such as 1280x720.
        sink: Live output: window, file:PATH, virtualcam, ndi, spout, mjpeg:PORT, udp:HOST:PORT, null; repeatable
            [default: window, or the file of --out].
        duration: Stop a live run after this time.
        keep: Keep only these people: numbers from vitascope people, largest, or pov (the wearer).
        exclude: Keep everybody except these people.
        keep_held: Also keep what kept people hold (a ball, a cup, a guitar); slower, and fetches a network (88 MB).
        hints: Hints file: whom to keep and when, clicks, boxes, strokes, regions.
        feather: Soften edges.
        smoothing: Steady the matte over time, 0 to 1.
        decontaminate: Remove the old background's colour from soft edges, or leave it [default: remove].
        key_color: Colour behind people in key: #78FF9B, 120,255,155 or a name.
        background: Image or video behind people in replace.
        codec: Video codec [default: auto, by the file name].
        crf: Quality on the codec's scale; lower values look better and make larger files.
        preset: Encoder preset, for example veryfast.
        start: Start time: seconds, 1:30 or 0:01:30.5.
        end: End time.
        device: Device to compute on; auto takes the GPU if it works.
        gpu_id: Number of the GPU, from 0.
        gpu_ids: GPUs that share each video, such as 0,1; 0,0 is two processes on one.
        cluster: Ray cluster whose machines share each video: auto (this machine's), HOST:PORT or ray://HOST:PORT.
        mode: Optimise throughput (8 to 16 frames per call, INT8 if accurate enough) or latency (one frame per call).
        backend: Engine that runs the network; auto takes the fastest that works here.
        precision: Precision on a GPU; int8 is for rvm on the CPU.
        skip_static: Reuse the last matte while the picture changes less than this, 0 to 1; 0.01 for a still camera.
        recursive: Include subfolders.
        resume: Skip finished inputs, and continue those that several processes left unfinished.
        keep_partial: If a video is damaged, keep what could be read, as a .part file.
        preview: Also write a contact sheet (PNG) of up to twelve frames.
        overwrite: Replace existing outputs, or refuse to; by default, ask on a terminal.
        dry_run: Show what would be done, without doing it.
        json: Print a JSON list with the status of each input, and its report or error.
        json_lines: Print JSON events during the run, one per line.
        quiet: Print only errors.
        verbose: Also print how busy each stage was.
        metrics_port: Serve metrics to Prometheus on this port; 0 takes a free one.
        metrics_host: Address to serve them on [default: 127.0.0.1].
        tensorboard: Write metrics for TensorBoard to this folder.
    """
    if camera is None:
        for flag, value in (("--camera-size", camera_size), ("--sink", sink), ("--duration", duration)):
            if value is not None:
                raise UsageError(f"{flag} is for live runs: give a camera or a video with --camera")
        types = None if type_ is None else ",".join(type_)
        lists = {"--type": types, "--keep": keep, "--exclude": exclude, "--gpu-ids": gpu_ids}
        _refuse_rest_of_lists(
            inputs, {flag: words.split(",") for flag, words in lists.items() if words is not None}
        )
        inputs, out = _split(inputs, out, output)
    given = {
        "output.kinds": ("--type", _kinds(type_, output)),
        "model.name": ("--model", model),
        "model.kind": ("--kind", kind),
        "video.stereo": ("--stereo", stereo),
        "video.projection": ("--projection", projection),
        "output.player": ("--player", player),
        "video.fov_degrees": ("--fov", fov),
        "output.key_color": ("--key-color", key_color),
        "output.background": ("--background", None if background is None else str(background)),
        "output.codec": ("--codec", codec),
        "output.crf": ("--crf", crf),
        "output.preset": ("--preset", preset),
        "output.keep_partial": ("--keep-partial", keep_partial),
        "people.keep": ("--keep", keep),
        "people.exclude": ("--exclude", exclude),
        "people.keep_held": ("--keep-held", keep_held),
        "people.hints": ("--hints", None if hints is None else str(hints)),
        "edges.threshold": ("--threshold", None if threshold is None else _levels(threshold)),
        "edges.grow_px": ("--grow", grow),
        "edges.feather_px": ("--feather", feather),
        "edges.temporal_smoothing": ("--smoothing", smoothing),
        "edges.decontaminate": ("--decontaminate", decontaminate),
        "video.start_seconds": ("--start", start),
        "video.end_seconds": ("--end", end),
        "gpu.device": ("--device", device),
        "gpu.device_id": ("--gpu-id", gpu_id),
        "gpu.device_ids": ("--gpu-ids", gpu_ids),
        "processing.cluster": ("--cluster", cluster),
        "gpu.precision": ("--precision", precision),
        "performance.mode": ("--mode", mode),
        "model.backend": ("--backend", backend),
        "inference.skip_static": ("--skip-static", skip_static),
    }
    flags = given_flags(given)
    metrics_at = metrics_address(metrics_port, metrics_host)
    if metrics_at is not None and dry_run:
        raise UsageError("--metrics-port has nothing to serve with --dry-run")
    if json_lines and (json or dry_run):
        raise UsageError(
            f"--json-lines prints events during a run; leave {'--json' if json else '--dry-run'} out"
        )
    if tensorboard is not None and dry_run:
        raise UsageError("--tensorboard has nothing to record with --dry-run")
    source = SettingsSource(profile=profile, files=config, assignments=set_, flags=flags)
    if camera is not None:
        files_alone = {
            "--keep": keep,
            "--exclude": exclude,
            "--keep-held": keep_held,
            "--hints": hints,
            "--recursive": recursive,
            "--resume": resume,
            "--preview": preview,
            "--keep-partial": keep_partial,
            "--dry-run": dry_run,
            "--gpu-ids": gpu_ids,
            "--cluster": cluster,
            "--mode": mode,
            "--verbose": verbose,
            "--json-lines": json_lines,
        }
        _refuse_with_camera(inputs, [flag for flag, value in files_alone.items() if value])
        return _live(
            camera,
            [*(sink or ()), *(() if out is None else [f"file:{out}"])] or ["window"],
            source,
            camera_size=None if camera_size is None else _size(camera_size),
            duration=duration,
            overwrite=overwrite,
            metrics_at=metrics_at,
            tensorboard=tensorboard,
            json=json,
            quiet=quiet,
        )
    assert out is not None  # split above
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.segmentation.batch import failure_to_dict, plan_batch, refuse_closed_outputs
        from vitascope.segmentation.finished import is_finished
        from vitascope.segmentation.notes import notes_on_player

    screen = Screen()
    videos: Sequence[str | Path] = inputs
    items: list[_Told] = []
    try:
        loaded = source.load()
        _refuse_without_kind(loaded, flags)
        planned = plan_batch(
            inputs,
            out,
            loaded.settings,
            recursive=recursive,
            preview=None if preview is None else path_of(preview),
            settings_files=source.files,
        )
        videos = [plan.video for plan in planned]
        if not resume:
            refuse_closed_outputs(planned)
        if not quiet:
            _tell_of_pictures(planned, screen=screen)
            if not recursive:
                _tell_of_folders(inputs, Path(out), screen=screen)
            screen.print_lines(*(f"note: {note}" for note in notes_on_player(loaded.settings.output)))
        if loaded.settings.performance.auto_tune and not dry_run:
            loaded = _tuned(source, planned, screen=None if quiet else screen)
        if dry_run:
            items = _explain(loaded, planned, resume=resume, screen=screen, chatty=not json)
        else:
            there = [path for plan in planned for path in (plan.beside() if resume else plan.existing())]
            if resume and there:  # finished inputs write nothing more
                left = [plan for plan in planned if not is_finished(plan, loaded.settings)]
                there = [path for plan in left for path in plan.beside()]
            otherwise = "" if resume else ", --resume skips finished inputs"
            may_replace(there, overwrite=overwrite, screen=screen, otherwise=otherwise)
            _segment(
                loaded,
                planned,
                items,
                resume=resume,
                screen=screen,
                quiet=quiet,
                chatty=not (quiet or json or json_lines),
                keeps=json,
                tells=json_lines,
                verbose=verbose,
                metrics_at=metrics_at,
                tensorboard=tensorboard,
            )
    except VitascopeError as error:  # refused as a whole: it applies to every input not done
        undone = [failure_to_dict(video, error) for video in _undone(videos, items)]
        _tell_undone(undone, items, json=json, json_lines=json_lines)
        raise
    except KeyboardInterrupt:
        undone = [{"input": str(video), "status": "interrupted"} for video in _undone(videos, items)]
        _tell_undone(undone, items, json=json, json_lines=json_lines)
        if len(videos) > 1 and not (json or json_lines or quiet or dry_run):
            done = sum(item.error is None for item in items)
            screen.print_lines(
                f"note: {done} of {len(videos)} inputs are done; --resume continues with the others"
            )
        raise
    if json:
        place = {video: number for number, video in enumerate(map(path_of, videos))}
        print_json([item.fields for item in sorted(items, key=lambda item: place[item.video])])
    errors = [item.error for item in items if item.error is not None]
    if len(items) == 1 and errors:
        raise errors[0]
    return errors[0].exit_code if errors else 0


def _undone(videos: Sequence[str | Path], items: Sequence[_Told]) -> list[str | Path]:
    """Inputs without a result; several processes finish them in another order."""
    told = {item.video for item in items}
    return [video for video in videos if path_of(video) not in told]


def _tell_undone(
    undone: list[dict[str, Any]], items: Sequence[_Told], *, json: bool, json_lines: bool
) -> None:
    """Report inputs that the run did not reach, for machines."""
    if json:
        print_json([*(item.fields for item in items), *undone])
    if json_lines:
        for fields in undone:
            print_json_line({"event": fields["status"], **fields})


def _split(inputs: tuple[str, ...], out: str | None, former: list[str] | None) -> tuple[tuple[str, ...], str]:
    """Split inputs and output, which ``--out`` or the last word gives."""
    if out is not None:
        return inputs, out
    if len(inputs) > 1:
        return inputs[:-1], inputs[-1]
    if not inputs:
        raise UsageError("no input given: try vitascope segment in.mp4 out.mp4, or --camera 0 for live")
    path = next((word for word in former or () if "." in word or "/" in word), None)
    raise UsageError(
        f"no output given: try vitascope segment {inputs[0]} {path or 'out.mp4'}"
        + (" (--output is the old name of --type, the kind of output)" if path else "")
    )


_LISTS: Final[Mapping[str, tuple[str, Callable[[str], bool]]]] = {
    "--type": ("mask,key", lambda word: word in get_args(OutputKind)),
    "--keep": ("1,2", lambda word: word.isdecimal() or word in get_args(PersonWord)),
    "--exclude": ("1,2", lambda word: word.isdecimal() or word in get_args(PersonWord)),
    "--gpu-ids": ("0,1", str.isdecimal),
}
"""Flags that take several values as one word, each with an example and a test for one value."""


def _refuse_rest_of_lists(words: Sequence[str], flags: Mapping[str, Collection[str]]) -> None:
    """Refuse ``--keep 1 2``, where 2 would be the output; but accept ``clips mask --type mask``."""
    for word in words:
        for flag, values in flags.items():
            example, is_one = _LISTS[flag]
            if word not in values and is_one(word) and not Path(word).exists():
                raise UsageError(
                    f"{word}: separate the values of {flag} with commas: {flag} {example}; a file or folder of that "
                    f"name is ./{word}"
                )


def _kinds(given: Sequence[str] | None, former: Sequence[str] | None) -> list[str] | None:
    """The kinds to write, from ``--type mask,key`` or from several flags."""
    flag, words = ("--type", given) if given is not None else ("--output", former)
    if words is None:
        return None
    kinds = [kind for word in words for kind in word.split(",") if kind]
    for kind in kinds:
        if kind not in get_args(OutputKind):
            known = get_args(OutputKind)
            hint = did_you_mean(kind, known)
            if "." in kind or "/" in kind:
                hint = "; the output path goes to --out"
            raise UsageError(f"{flag} {kind}: expected one of {', '.join(known)}{hint}")
    return kinds


def _levels(text: str) -> list[float]:
    """Read two levels of alpha, ``0.1,0.9``."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise UsageError(f"--threshold {text}: expected two levels of alpha, for example 0.1,0.9") from None
    return [low, high]


def _tell_of_pictures(planned: "Sequence[PlannedVideo]", *, screen: Screen) -> None:
    """Say whether pictures in a folder become a video or are treated one by one."""
    from vitascope.media.reading.images import IMAGE_SUFFIXES

    if len(planned) < 2:
        return
    sequences = [plan.video for plan in planned if not plan.video.is_file()]
    single = sum(plan.video.is_file() and plan.video.suffix.lower() in IMAGE_SUFFIXES for plan in planned)
    for video in sequences:
        screen.print_lines(f"note: {video}: its numbered pictures are treated as one video")
    if single:
        screen.print_lines(f"note: {single} of {len(planned)} inputs are single pictures")


def _tell_of_folders(inputs: Sequence[str], out: Path, *, screen: Screen) -> None:
    """Say which subfolders of a folder are left out."""
    from vitascope.media.reading.discovery import folders_left_out

    for folder in filter(Path.is_dir, map(Path, inputs)):
        if left_out := [path.name for path in folders_left_out(folder, exclude=out)]:
            some = ", ".join(left_out[:3]) + ", ..." * (len(left_out) > 3)
            what = "a folder in it is" if len(left_out) == 1 else f"{len(left_out)} folders in it are"
            screen.print_lines(f"note: {folder}: {what} left out ({some}); --recursive includes them")


def _refuse_with_camera(words: Sequence[str], flags: Sequence[str]) -> None:
    if words:
        raise UsageError(
            f"{words[0]}: --camera is the input; give the file to write with -o, such as -o {words[-1]}"
        )
    if flags:
        raise UsageError(f"{flags[0]} is for files; leave it out with --camera")


_NO_PLAYER_SHOWS: Final = frozenset({"mask", "alpha"})
"""Kinds for editing programs, which no VR player can show."""


def _refuse_without_kind(loaded: "LoadedSettings", flags: Mapping[str, FlagValue]) -> None:
    """Refuse a flag for a kind of output that is not made; a setting in a file may wait for one."""
    from vitascope.config import OriginKind  # imports all checks of settings, loaded by now

    kinds, origin = loaded.settings.output.kinds, loaded.origin("output.kinds")
    named = ",".join(kinds)
    is_by_flag = origin.kind not in (OriginKind.FILE, OriginKind.SET)
    if "output.player" in flags and not set(kinds) - _NO_PLAYER_SHOWS:
        player = flags["output.player"]
        way = "leave --type out" if is_by_flag else f"take output.kinds out of {origin}"
        raise UsageError(
            f"{player.name} {player.value}: no VR player can show {named}; {way}, or {player.name}"
        )
    for key, kind in (("output.background", "replace"), ("output.key_color", "key")):
        if key in flags and kind not in kinds:
            here = "here the type is" if is_by_flag else f"{origin} sets output.kinds:"
            raise UsageError(f"{flags[key].name} is for --type {kind}; {here} {named}")


def _size(text: str) -> tuple[int, int]:
    """Read a picture's size, ``1280x720``."""
    width, separator, height = text.lower().partition("x")
    if not (separator and width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise UsageError(f"--camera-size {text}: expected WIDTHxHEIGHT, for example 1280x720")
    return int(width), int(height)


def _live(
    camera: str,
    sinks: list[str],
    source: SettingsSource,
    *,
    camera_size: tuple[int, int] | None,
    duration: float | None,
    overwrite: bool | None,
    metrics_at: MetricsAddress | None,
    tensorboard: Path | None,
    json: bool,
    quiet: bool,
) -> int:
    with holding_interrupts():
        from vitascope.observe.progress import JobProgress
        from vitascope.segmentation.live import LiveMatting, check_live, live_settings, summarise_live
        from vitascope.segmentation.segmenter import Segmenter

    screen, page = Screen(), Page()

    def say(*lines: str) -> None:
        if not quiet:
            screen.print_lines(*lines)

    loaded, note = live_settings(source)
    _refuse_without_kind(loaded, source.flags)
    check_live(
        camera,
        sinks,
        loaded=loaded,
        camera_size=camera_size,
        seconds=duration,
        settings_files=source.files,
    )
    may_replace([path for path in files_of_sinks(sinks) if path.exists()], overwrite=overwrite, screen=screen)
    with (
        serving_metrics(metrics_at, screen=screen, quiet=quiet, tensorboard=tensorboard) as metrics,
        JobProgress(screen, visible=not (quiet or json)) as progress,
        Segmenter(loaded=loaded, fetch_progress=progress.fetched) as segmenter,
        PressedKeys() as keys,
    ):

        def begin(run: LiveMatting) -> None:
            gpu_note = watch_gpus(metrics, _gpus(segmenter))
            for line in (note, segmenter.device.note, segmenter.chosen.note, gpu_note):
                if line:
                    say(f"note: {line}")
            keys.hand_to(run.controls.press, at_interrupt=run.stop)
            if keys.are_read or "window" in sinks:
                say("keys: ? lists them, Q quits")
            progress.show(camera, run, frame_count=None, pace=run.pace)
            if metrics is not None:
                metrics.follow_live(run)

        report = segmenter.live(
            camera,
            sinks,
            camera_size=camera_size,
            seconds=duration,
            on_start=begin,
            on_report=lambda so_far: say(*summarise_live(so_far)),
            on_message=say,
        )
        progress.clear()
    if json:
        print_json(report.to_dict())
    elif not quiet:
        page.print_lines(*summarise_live(report))
    if report.failure is not None:
        raise OutputError(report.failure)
    return 0


def _tuned(
    source: SettingsSource, planned: "list[PlannedVideo]", *, screen: Screen | None
) -> "LoadedSettings":
    with holding_interrupts():
        from vitascope.tune.optimizer import auto_tune

    tuned = auto_tune(source, planned[0].video)
    if screen is not None:
        screen.print_lines(f"note: {tuned.note}")
    return tuned.loaded


def _explain(
    loaded: "LoadedSettings", planned: "list[PlannedVideo]", *, resume: bool, screen: Screen, chatty: bool
) -> list[_Told]:
    with holding_interrupts():
        from vitascope.config import vitascope_home
        from vitascope.models.store.store import ModelStore
        from vitascope.segmentation.capacity import suited_to_device
        from vitascope.segmentation.dry_run import Explanation, explain_all, total_in_words

    page, loaded = Page(), suited_to_device(loaded, ModelStore(vitascope_home()))
    items: list[_Told] = []
    explained = []
    for item in explain_all(planned, loaded.settings, resume=resume, try_with=loaded):
        explained.append(item)
        video = planned[len(items)].video
        items.append(_Told(video, item.to_dict(), None if isinstance(item, Explanation) else item.error))
        if isinstance(item, Explanation):
            if chatty:
                page.print_lines(*item.lines())
        elif len(planned) > 1:
            screen.print_lines(f"vitascope: {one_line(item.error)}")
    if chatty and len(planned) > 1:
        page.print(total_in_words(explained))
    return items


def _segment(
    loaded: "LoadedSettings",
    planned: "list[PlannedVideo]",
    items: list[_Told],
    *,
    resume: bool,
    screen: Screen,
    quiet: bool,
    chatty: bool,
    keeps: bool,
    tells: bool,
    verbose: bool,
    metrics_at: MetricsAddress | None,
    tensorboard: Path | None,
) -> None:
    """Segment, and append each result to ``items``; reports only if ``keeps``, since there may be thousands."""
    with holding_interrupts():
        from vitascope.observe.progress import JobProgress
        from vitascope.segmentation.batch import segment_all
        from vitascope.segmentation.notes import notes_on_people, notes_on_player
        from vitascope.segmentation.report import summarise
        from vitascope.segmentation.segmenter import Segmenter

    page = Page()
    doubts: set[tuple[Path, str]] = set()
    with (
        serving_metrics(metrics_at, screen=screen, quiet=quiet, tensorboard=tensorboard) as metrics,
        JobProgress(screen, visible=chatty, tell=print_json_line if tells else None) as progress,
        Segmenter(loaded=loaded, fetch_progress=progress.fetched) as segmenter,
    ):

        def started(plan: "PlannedVideo", event: "Started") -> None:
            for doubt in event.doubts:
                if not quiet and (plan.video, doubt) not in doubts:  # the search reports them too
                    doubts.add((plan.video, doubt))
                    screen.print_lines(f"note: {plan.video.name}: {doubt}")
            name = str(plan.video) if tells else plan.video.name
            name = f"{name}: who is in it" if event.is_scan else name
            if tells and not event.is_scan:
                expected = event.expected_frame_count
                print_json_line({"event": "began", "input": name, "expected_frame_count": expected})
            if queue is not None:
                return
            progress.show(name, event.pipeline, frame_count=event.expected_frame_count)
            if event.is_scan:
                return
            if metrics is not None:
                metrics.follow(event.pipeline, expected_frames=event.expected_frame_count)

        queue: FilmQueue | None = None

        def begin_queue(begun: "FilmQueue") -> None:
            nonlocal queue
            queue = begun
            name = f"{len(planned)} videos"
            progress.show(name, begun, frame_count=begun.frame_count, pace=begun.pace, counts=begun.counts)
            if metrics is not None:
                metrics.follow_queue(begun)

        gpu_note = watch_gpus(metrics, _gpus(segmenter))
        if not quiet:
            for note in (segmenter.device.note, segmenter.chosen.note, gpu_note):
                if note:
                    screen.print_lines(f"note: {note}")
        for outcome in segment_all(segmenter, planned, resume=resume, on_start=started, on_queue=begin_queue):
            progress.clear()
            if metrics is not None:
                damaged = 0 if outcome.report is None else outcome.report.corrupt_count
                metrics.job_ended(outcome.status, error=outcome.error, damaged_frames=damaged)
            fields = outcome.to_dict() if keeps or tells else {}
            items.append(_Told(outcome.planned.video, fields if keeps else {}, outcome.error))
            if tells:
                print_json_line({"event": outcome.status, **fields})
            if outcome.error is not None:
                if len(planned) > 1:  # a single failure is reported with all errors, and traced with --debug
                    screen.print_lines(f"vitascope: {one_line(outcome.error)}")
            elif outcome.report is not None:
                told = notes_on_people(segmenter.settings, shows_people=outcome.report.shows_people)
                for note in () if quiet else told:
                    screen.print_lines(f"note: {outcome.planned.video.name}: {note}")
                if chatty:
                    lines = summarise(
                        outcome.report,
                        preview=outcome.planned.preview,
                        with_stages=verbose,
                        told=(*told, *notes_on_player(segmenter.settings.output)),
                    )
                    page.print_lines(*lines)
            else:
                if chatty:
                    doubt = "" if outcome.knows_settings else "; its settings are unknown"
                    page.print_lines(f"{outcome.planned.video}: done already{doubt}")
                if outcome.note is not None and not quiet:
                    screen.print_lines(f"note: {outcome.note}")
            if queue is not None:
                progress.go_on(queue)
        if metrics is not None:
            metrics.queue_ended()
    if chatty and len(items) > 1:
        failed = [str(item.video) for item in items if item.error is not None]
        tail = f", {len(failed)} failed: {', '.join(failed)}" if failed else ""
        page.print_lines(f"{len(items) - len(failed)} of {len(items)} inputs done{tail}")


def _gpus(segmenter: "Segmenter") -> list[int]:
    """Numbers of this machine's GPUs that compute."""
    if segmenter.device.kind == "cpu" or segmenter.settings.processing.cluster is not None:
        return []
    return list(dict.fromkeys(segmenter.settings.gpu.device_ids or [segmenter.device.index]))
