"""``vitascope vr``: inspects and converts VR videos, verifies packed alpha, and describes folders to players."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from vitascope.cli.options import Overwrite, Stereo, Switch, may_replace
from vitascope.cli.printing import facts, print_json, print_table
from vitascope.config import Codec, SettingsSource, given_flags
from vitascope.errors import UsageError, one_line
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.config import VideoSettings
    from vitascope.vr.detection import Reason

app = App(
    name="vr",
    help="Inspect and convert VR videos, check packed alpha, describe a folder to players.",
    help_format="plaintext",
)


@app.command
def info(
    video: Path,
    /,
    *,
    stereo: Stereo = None,
    projection: str | None = None,
    fov: float | None = None,
    json: Switch = False,
) -> None:
    """Show a video's layout and projection, how they were detected, and what players make of them.

    vitascope vr info wedding.mp4

    Args:
        video: A video file.
        stereo: How the two eyes share a frame: auto, mono, side-by-side (sbs) or top-bottom (tb).
        projection: Projection of each eye: auto, flat, equirect180, equirect360 or fisheye.
        fov: Field of view of each eye, in degrees.
        json: Print as JSON.
    """
    with holding_interrupts():
        from vitascope.media.reading.reader import probe
        from vitascope.segmentation.layout import vr_of
        from vitascope.vr.players import PLAYERS, as_played

    seen = probe(video)
    found = vr_of(seen, _video_settings(stereo, projection, fov), always_looks=True)
    players = {player.name: as_played(player, found, video.stem) for player in PLAYERS.values()}
    if json:
        print_json(
            {
                "input": str(video),
                "width": seen.width,
                "height": seen.height,
                "layout": {"value": found.layout.value, **_reason(found.layout_reason)},
                "projection": {"value": found.projection.value, **_reason(found.projection_reason)},
                "fov_degrees": {"value": found.fov_degrees, **_reason(found.fov_reason)},
                "right_eye_first": found.right_eye_first,
                "half": found.is_half,
                "packed_alpha": found.is_packed_alpha,
                "notes": list(found.doubts),
                "players": players,
            }
        )
        return
    layout = found.layout.value + (", right eye first" if found.right_eye_first else "")
    surface = found.projection.value + (", packed alpha" if found.is_packed_alpha else "")
    rows = [
        ("layout", _with_reason(layout, found.layout_reason)),
        ("projection", _with_reason(surface, found.projection_reason)),
        *(
            [("field of view", _with_reason(f"{found.fov_degrees:g} degrees", found.fov_reason))]
            if found.fov_degrees is not None
            else []
        ),
        *(("note", doubt) for doubt in found.doubts),
        *((PLAYERS[name].title, seen_as) for name, seen_as in players.items()),
    ]
    Page().print_lines(f"{video}: {seen.width}x{seen.height}")
    print_table(facts(rows))


@app.command
def convert(
    video: Path,
    output: Annotated[str | None, Parameter(metavar="PATH")] = None,
    /,
    *,
    to: Literal["fisheye190", "equirect180", "equirect360", "flat"],
    out: Annotated[str | None, Parameter(alias="-o", metavar="PATH")] = None,
    unpack: Literal["key", "mask"] | None = None,
    key_color: str | None = None,
    stereo: Stereo = None,
    projection: str | None = None,
    fov: float | None = None,
    start: str | None = None,
    end: str | None = None,
    codec: Literal["auto"] | Codec = "auto",
    crf: int | None = None,
    preset: str | None = None,
    keep_partial: Switch = False,
    overwrite: Overwrite = None,
    json: Switch = False,
    quiet: Annotated[bool, Parameter(negative="", show_default=False, alias="-q")] = False,
) -> None:
    """Convert a video to another projection; sound, subtitles, chapters and HDR stay.

    vitascope vr convert wedding_LR_180.mp4 --to fisheye190
    vitascope vr convert wedding_LR_180.mp4 view.mp4 --to flat
    vitascope vr convert dance_FISHEYE190_alpha.mp4 --to equirect180 --unpack key

    Args:
        video: A video file.
        output: Output file or folder [default: beside the input, named for players].
        to: Projection to make; flat is a view straight ahead, 90 degrees wide.
        out: The same, as an option.
        unpack: Unpack packed alpha: key shows people on a colour, mask is their matte.
        key_color: Colour for --unpack key: 43,230,64 or a name [default: #2BE640, as with segment --player].
        stereo: How the two eyes share a frame: auto, mono, side-by-side (sbs) or top-bottom (tb).
        projection: Projection of each eye: auto, flat, equirect180, equirect360 or fisheye.
        fov: Field of view of each eye, in degrees.
        start: Start time: seconds, 1:30 or 0:01:30.5.
        end: End time.
        codec: Video codec [default: auto, by the file name].
        crf: Quality on the codec's scale; lower values look better and make larger files.
        preset: Encoder preset, for example veryfast.
        keep_partial: If a video is damaged, keep what could be read, as a .part file.
        overwrite: Replace existing outputs, or refuse to; by default, ask on a terminal.
        json: Print as JSON.
        quiet: Print only errors.
    """
    with holding_interrupts():
        from vitascope.observe.progress import JobProgress
        from vitascope.observe.report_values import Started, frames_in_words, size_in_words
        from vitascope.segmentation.vr.conversion import convert as convert_video

    if output is not None and out is not None:
        raise UsageError(f"the output is given twice: {output} and --out {out}")
    if key_color is not None and unpack != "key":
        raise UsageError(f"--key-color {key_color} is for --unpack key")
    screen = Screen()
    with JobProgress(screen, visible=not (quiet or json)) as progress:

        def started(event: Started) -> None:
            if not quiet:
                for doubt in event.doubts:
                    screen.print_lines(f"note: {video.name}: {doubt}")
            progress.show(video.name, event.pipeline, frame_count=event.expected_frame_count)

        report = convert_video(
            video,
            output if out is None else out,
            to,
            unpack=unpack,
            key_color=_color(key_color),
            wanted=_video_settings(stereo, projection, fov, start=start, end=end),
            codec=codec,
            crf=crf,
            preset=preset,
            keep_partial=keep_partial,
            may_replace=lambda path: may_replace([path], overwrite=overwrite, screen=screen),
            on_start=started,
        )
    if json:
        print_json(report.to_dict())
        return
    if quiet:
        return
    page = Page()
    source = report.source
    page.print_lines(
        f"{report.output}  {report.width}x{report.height}, {source.layout.value}, {report.target}, {report.codec}, "
        f"{size_in_words(report.size_bytes)}"
    )
    for note in report.notes:
        page.print_lines(f"  note: {note}")
    page.print_lines(
        f"{frames_in_words(report.frame_count)} in {report.wall_seconds:.1f} s; "
        f"from {source.projection.value} ({source.projection_reason.how})"
    )
    if report.corrupt_count:
        page.print_lines(f"damaged or missing frames of the input: {report.corrupt_count}")


@app.command
def library(
    folder: Path,
    /,
    *,
    recursive: Annotated[bool, Parameter(negative="", show_default=False, alias="-r")] = False,
    base_url: str = "",
    key_color: str | None = None,
    overwrite: Overwrite = None,
    json: Switch = False,
) -> int:
    """Write JSON beside a folder's videos, so that HereSphere and DeoVR can browse them on a web server.

    vitascope vr library videos/ --base-url http://nas:8080/videos/

    Args:
        folder: Folder of videos.
        recursive: Include subfolders.
        base_url: Address under which a web server publishes the folder; by default, links are relative.
        key_color: Colour behind people in videos named for passthrough: #2BE640, 43,230,64 or a name.
        overwrite: Replace existing outputs, or refuse to; by default, ask on a terminal.
        json: Print as JSON.
    """
    with holding_interrupts():
        from vitascope.segmentation.vr.library import read_library, write_library

    screen = Screen()
    made = read_library(folder, recursive=recursive, base_url=base_url, key_color=_color(key_color))
    for _, failure in made.failures:
        screen.print_lines(f"vitascope: {one_line(failure)}")
    if not made.videos:
        return made.failures[0][1].exit_code
    may_replace(made.replaced(), overwrite=overwrite, screen=screen)
    write_library(made)
    if json:
        print_json(
            {
                "folder": str(folder),
                "files": [str(path) for path in made.files],
                "videos": [
                    {
                        "video": str(path),
                        "layout": found.layout.value,
                        "projection": found.projection.value,
                        "fov_degrees": found.fov_degrees,
                        "packed_alpha": found.is_packed_alpha,
                        "notes": list(found.doubts),
                    }
                    for path, found in made.videos
                ],
                "failures": {str(path): one_line(error) for path, error in made.failures},
            }
        )
    else:
        page = Page()
        for path, found in made.videos:
            fov = "" if found.fov_degrees is None else f" {found.fov_degrees:g}"
            alpha = ", packed alpha" if found.is_packed_alpha else ""
            page.print_lines(f"{path}: {found.layout.value}, {found.projection.value}{fov}{alpha}")
            for doubt in found.doubts:
                page.print_lines(f"  note: {doubt}")
        page.print_lines(
            f"{len(made.files)} files; indexes {folder / 'heresphere.json'} and {folder / 'deovr.json'}"
        )
    return made.failures[0][1].exit_code if made.failures else 0


@app.command
def verify(
    video: Path,
    /,
    *,
    matte: Path | None = None,
    html: Path | None = None,
    stereo: Stereo = None,
    projection: str | None = None,
    fov: float | None = None,
    overwrite: Overwrite = None,
    json: Switch = False,
    quiet: Annotated[bool, Parameter(negative="", show_default=False, alias="-q")] = False,
) -> int:
    """Unpack the alpha of a packed-alpha video as a player does, and report what a viewer would see.

    vitascope vr verify dance_FISHEYE190_alpha.mp4 --matte dance_LR_180_mask.mkv

    Args:
        video: A packed-alpha video.
        matte: Mask of the same run (--type packed-alpha,mask), to measure error, leakage and sync.
        html: Also write a page of unpacked frames: picture, matte, people on a colour.
        stereo: How the two eyes share a frame of the mask: auto, side-by-side (sbs) or top-bottom (tb).
        projection: Projection of the mask: auto, equirect180 or fisheye.
        fov: Field of view of each eye of the mask, in degrees.
        overwrite: Replace existing outputs, or refuse to; by default, ask on a terminal.
        json: Print as JSON.
        quiet: Print only problems.
    """
    with holding_interrupts():
        from vitascope.media.writing.output_target import refuse_inputs
        from vitascope.segmentation.vr.verification import verify as verify_video
        from vitascope.vr.players import PLAYERS

    if html is not None and html.exists():
        refuse_inputs(html, {"the video": video, "the mask": matte}, what="page")
        may_replace([html], overwrite=overwrite, screen=Screen())
    report = verify_video(video, matte=matte, wanted=_video_settings(stereo, projection, fov), page=html)
    problems = report.problems
    if json:
        print_json({**report.to_dict(), "problems": problems})
        return 1 if problems else 0
    if not quiet:
        rows = [
            ("frames", f"{report.frame_count}, {report.empty_frames} without people"),
            ("people", f"{report.person_share:.1%} of the discs; the eyes differ by {report.eyes_apart:.0%}"),
            ("alpha", f"{report.floor:.0f} of 255 outside people, {report.ceiling:.0f} inside people"),
        ]
        if report.matte is not None:
            found = report.matte
            rows += [
                ("error", f"{found.error_in_words}; {found.worst_frame_error:.2f} in the worst frame"),
                ("leakage", f"{found.leakage:.2f} of 255"),
                ("sync", "in step" if not found.lag_frames else f"{found.lag_frames:+d} frames"),
            ]
        rows += [(PLAYERS[name].title, seen_as) for name, seen_as in report.players.items()]
        Page().print_lines(f"{video}: packed alpha in {report.found.in_words()}")
        print_table(facts(rows))
        if html is not None:
            Page().print_lines(f"{html}  frames to look at")
    for problem in problems:
        Screen().print_lines(f"vitascope: {video}: {problem}")
    return 1 if problems else 0


def _color(key_color: str | None) -> tuple[int, int, int] | None:
    """Read ``--key-color`` as 8-bit RGB."""
    from vitascope.config import RgbColor

    try:
        return None if key_color is None else RgbColor.parse(key_color).as_tuple()
    except ValueError as error:
        raise UsageError(f"--key-color {key_color}: {error}") from error


def _video_settings(
    stereo: str | None,
    projection: str | None,
    fov: float | None,
    *,
    start: str | None = None,
    end: str | None = None,
) -> "VideoSettings":
    """Settings of the input."""
    given = {
        "video.stereo": ("--stereo", stereo),
        "video.projection": ("--projection", projection),
        "video.fov_degrees": ("--fov", fov),
        "video.start_seconds": ("--start", start),
        "video.end_seconds": ("--end", end),
    }
    return SettingsSource(flags=given_flags(given)).load().settings.video


def _reason(reason: "Reason") -> dict[str, Any]:
    return {"how": reason.how, "sureness": reason.sureness}


def _with_reason(value: str, reason: "Reason") -> str:
    return f"{value} ({reason.how}; {reason.sureness})"
