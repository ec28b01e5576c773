"""``vitascope animate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from vitascope.config import Codec, FlagValue, load_settings, vitascope_home
from vitascope.errors import UsageError

__all__ = ["animate"]

_Many = Parameter(negative="", consume_multiple=False)


def animate(
    portrait: Path,
    /,
    *,
    driver: Annotated[str, Parameter(alias="-d")],
    out: Annotated[Path, Parameter(alias="-o", metavar="PATH")],
    record: Annotated[Path | None, Parameter(metavar="PATH")] = None,
    profile: str | None = None,
    config: Annotated[list[Path] | None, _Many, Parameter(alias="-c")] = None,
    set_: Annotated[list[str] | None, _Many, Parameter(name="--set")] = None,
    expression: float | None = None,
    pose: float | None = None,
    face: str | None = None,
    mirror: Annotated[bool | None, Parameter(negative="")] = None,
    smoothing: int | None = None,
    codec: Literal["auto"] | Codec | None = None,
    crf: int | None = None,
    preset: str | None = None,
    start: str | None = None,
    end: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(negative="", alias="-q")] = False,
) -> None:
    """Let a portrait move like a face in a video, or like recorded motion.

    Examples: vitascope animate portrait.jpg --driver talk.mp4 -o out.mp4 (with the driver's sound); vitascope animate
    portrait.jpg --driver talk.mp4 -o out.mp4 --record talk.motion (keeps the motion for other portraits).

    Args:
        portrait: A picture with a face: photo, painting, statue.
        driver: A video of a face, or a .motion file.
        out: The film; without a suffix, a folder of pictures.
        record: Also keep the driver's motion, in a .motion file.
        profile: Settings to begin with [default: balanced].
        config: Settings file (YAML); several override one another in order.
        set_: One setting as key=value, for example animation.gaze=0.5; see vitascope config show.
        expression: Strength of what the face does; 1 is the driver's own.
        pose: Strength of what the head does.
        face: Which face of the portrait moves: largest, or its number from the left, from 0.
        mirror: Move like a mirror image of the driver.
        smoothing: Frames over which still faces are smoothed; 1 does not smooth.
        codec: Video codec [default: auto, by the file name].
        crf: Quality on the codec's own scale; lower is better and larger.
        preset: The encoder's own preset, for example veryfast.
        start: Where the driver begins: seconds, or 1:30, or 0:01:30.5.
        end: Where the driver stops.
        json: Print the report for machines.
        quiet: Print nothing but errors.
    """
    given = {
        "animation.expression": ("--expression", expression),
        "animation.pose": ("--pose", pose),
        "animation.face": ("--face", face),
        "animation.mirror": ("--mirror", mirror),
        "tracking.smoothing_window": ("--smoothing", smoothing),
        "output.codec": ("--codec", codec),
        "output.crf": ("--crf", crf),
        "output.preset": ("--preset", preset),
        "video.start_seconds": ("--start", start),
        "video.end_seconds": ("--end", end),
    }
    flags = {key: FlagValue(value, flag) for key, (flag, value) in given.items() if value is not None}
    loaded = load_settings(profile=profile, files=config or (), assignments=set_ or (), flags=flags)
    if driver.isdigit() and not Path(driver).exists():
        raise UsageError(
            f"--driver {driver}: cameras come with the live animator; give a video or a .motion file"
        )
    # Imported here so that --help and usage errors do not wait for codecs.
    from vitascope.animation.examples import find_example
    from vitascope.animation.offline import animate_file
    from vitascope.animation.report import summarise
    from vitascope.models.store import ModelStore
    from vitascope.observe.progress import JobProgress

    screen = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    page = Console(highlight=False, markup=False, soft_wrap=True)
    if not quiet:
        for row in loaded.inactive():
            screen.print(
                f"note: {row.key} ({row.origin}) has no effect yet: it arrives with {row.arrives_with}"
            )
    with JobProgress(screen, visible=not (quiet or json)) as progress:
        report = animate_file(
            find_example(portrait),
            find_example(Path(driver)),
            out,
            loaded=loaded,
            store=ModelStore(vitascope_home()),
            record=record,
            on_start=lambda job: progress.show(
                portrait.name, job.pipeline, frame_count=job.expected_frame_count
            ),
            fetch_progress=progress.fetched,
        )
        progress.clear()
    if json:
        page.print_json(data=report.to_dict())
    elif not quiet:
        page.print("\n".join(summarise(report)))
