"""``vitascope people``."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitascope.cli.options import Assignments, ConfigFiles, Overwrite, Stereo, Switch, may_replace
from vitascope.cli.printing import print_json
from vitascope.config import SettingsSource, given_flags
from vitascope.errors import OutputError
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Page, Screen


def people(
    video: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(alias="-o", metavar="SHEET.png")] = None,
    start: str | None = None,
    end: str | None = None,
    stereo: Stereo = None,
    again: Switch = False,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    overwrite: Overwrite = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
    json: Switch = False,
    quiet: Annotated[bool, Parameter(negative="", show_default=False, alias="-q")] = False,
) -> None:
    """List the people in a video: their numbers, when they are seen, and how sure that is.

    vitascope people film.mp4 -o sheet.png
    vitascope segment film.mp4 out.mp4 --keep 1,3

    The result is saved: vitascope segment uses the same numbers.

    Args:
        video: A video.
        out: Also draw a numbered sheet of the people.
        start: Start time: seconds, 1:30 or 0:01:30.5.
        end: End time.
        stereo: How the two eyes share a frame: auto, mono, side-by-side (sbs) or top-bottom (tb).
        again: Look again, even if the answer is kept.
        device: Device to compute on; auto takes the GPU if it works.
        overwrite: Replace existing outputs, or refuse to; by default, ask on a terminal.
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
        json: Print as JSON.
        quiet: Print only errors.
    """
    given = {
        "video.start_seconds": ("--start", start),
        "video.end_seconds": ("--end", end),
        "video.stereo": ("--stereo", stereo),
        "gpu.device": ("--device", device),
    }
    loaded = SettingsSource(profile=None, files=config, assignments=set_, flags=given_flags(given)).load()
    with holding_interrupts():
        from vitascope.config import vitascope_home
        from vitascope.media.remote import path_of
        from vitascope.media.writing.output_target import refuse_inputs, refuse_unwritable
        from vitascope.models.store.store import ModelStore
        from vitascope.observe.progress import JobProgress
        from vitascope.observe.report_values import Started
        from vitascope.segmentation.matting.cached_film import notes_on_cache
        from vitascope.segmentation.people.scan import find_people
        from vitascope.segmentation.people.sheet import lines_on, write_sheet
        from vitascope.segmentation.people.table import known_people
        from vitascope.segmentation.plan import look_at

    screen = Screen()
    video = path_of(video)
    if out is not None:
        out = path_of(out)
        if out.suffix.lower() != ".png":
            raise OutputError(f"{out}: the sheet is a PNG; give it a name that ends in .png")
        refuse_inputs(out, {"the input": video}, what="sheet")
        may_replace([out] if out.exists() else [], overwrite=overwrite, screen=screen)
        refuse_unwritable(out)
    table = None if again else known_people(video, loaded.settings.video)
    if table is not None:
        # It may be of the whole video, so the requested part has not been checked for pictures yet.
        look_at(video, loaded.settings.video)
    if table is None:
        with JobProgress(screen, visible=not (quiet or json)) as progress:

            def started(event: Started) -> None:
                if not quiet:
                    for doubt in event.doubts:
                        screen.print_lines(f"note: {video.name}: {doubt}")
                progress.show(video.name, event.pipeline, frame_count=event.expected_frame_count)

            table = find_people(
                video,
                loaded,
                store=ModelStore(vitascope_home()),
                fetch_progress=progress.fetched,
                on_start=started,
            )
            progress.clear()
    wanted = loaded.settings.video
    shown = table.seen_between(wanted.start_seconds, wanted.end_seconds)
    if not (quiet or json):
        for note in (*table.facts.notes, *notes_on_cache()):
            screen.print_lines(f"note: {note}")
    if json:
        print_json({"video": str(video), "people": [one.model_dump(mode="json") for one in shown]})
    elif not quiet:
        Page().print_lines(*lines_on(shown))
    if out is not None:  # last, so that a full disk does not hide the list
        write_sheet(table, out, people=shown)
