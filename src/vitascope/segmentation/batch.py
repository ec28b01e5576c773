"""Many videos with one network: one bad file does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitascope.config import OutputKind, Settings, load_settings
from vitascope.errors import InputError, OutputError, VitascopeError, let_go, one_line
from vitascope.media.reading.discovery import VIDEO_SUFFIXES, FoundVideo, find_videos
from vitascope.media.remote import path_of
from vitascope.media.writing.output_target import refuse_unwritable
from vitascope.segmentation.finished import (
    is_finished,
    knows_settings,
    other_settings,
    remember_finished,
    settings_of_outputs,
)
from vitascope.segmentation.plan import PlannedVideo, plan_outputs, refuse_clashes
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.segmenter import Segmenter, Started

if TYPE_CHECKING:
    from vitascope.segmentation.processes.film_queue import FilmQueue


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one planned video: a report, an error, or neither if it was already done."""

    planned: PlannedVideo
    report: SegmentReport | None = None
    error: VitascopeError | None = None
    note: str | None = None
    """A note on a video that was already done."""
    knows_settings: bool = True
    """False for a video that was already done with unknown settings."""

    @property
    def status(self) -> Literal["done", "skipped", "failed"]:
        """Return the result in one word."""
        if self.error is not None:
            return "failed"
        return "skipped" if self.report is None else "done"

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON: ``input``, ``status``, and the report's values or the one-line ``error``."""
        if self.error is not None:
            return failure_to_dict(self.planned.video, self.error)
        fields = {} if self.report is None else self.report.to_dict()
        if self.note is not None:
            fields["notes"] = [self.note]
        return {**fields, "input": str(self.planned.video), "status": self.status}


def failure_to_dict(video: str | PathLike[str], error: VitascopeError) -> dict[str, Any]:
    """Return plain values for JSON of a video that failed, possibly before it was planned."""
    return {"input": str(video), "status": "failed", "error": one_line(error)}


def plan_batch(
    inputs: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    settings: Settings,
    *,
    recursive: bool = False,
    preview: Path | None = None,
    settings_files: Sequence[Path] = (),
) -> list[PlannedVideo]:
    """Find the inputs and name their outputs. Opens a video only if a VR player's file name depends on its content.

    Args:
        inputs: Videos, images, folders, globs and image patterns.
        out: A file or a folder, see ``plan_outputs``. If it lies below an input folder, its files are not inputs.
        settings: The run's settings.
        recursive: Search subfolders, too.
        preview: Path of a contact sheet; with several videos, each video's name is appended.
        settings_files: Files that settings were read from; outputs may not replace them.

    Raises:
        InputError: An input does not exist, or contains no video.
        UsageError: The outputs would clash with each other, or with files that are read.
    """
    wanted = settings.output
    videos = find_videos(inputs, recursive=recursive, exclude=path_of(out))
    planned = plan_outputs(videos, out, wanted.kinds, codec=wanted.codec, preview=preview, settings=settings)
    refuse_clashes(planned, settings=settings, settings_files=settings_files)
    return planned


def refuse_closed_outputs(planned: Sequence[PlannedVideo]) -> None:
    """Refuse a run if none of its outputs can be created.

    Raises:
        OutputError: None can be created, usually because the folder is not writable.
    """
    refusals = []
    for path in (path for plan in planned for _, path in plan.outputs):
        try:
            refuse_unwritable(path)
        except OutputError as error:
            refusals.append(error)
        else:
            return
    if len(refusals) > 1:
        raise OutputError(f"{refusals[0]}; this applies to all {len(refusals)} outputs")


def segment(
    video: str | PathLike[str],
    out: str | PathLike[str],
    *,
    profile: str | None = None,
    output: OutputKind | Sequence[OutputKind] | None = None,
    settings: Mapping[str, Any] | None = None,
    preview: Path | str | None = None,
) -> SegmentReport:
    """Cut every person out of one video.

    Args:
        video: Any video that FFmpeg reads, an image, or a folder of images.
        out: The output; its suffix sets the container. With several kinds, the kind is appended to the name.
        profile: ``fast``, ``balanced`` (default) or ``quality``.
        output: What to write: ``mask``, ``key`` (default), ``cutout``, ``alpha``, ``blur``, ``replace``, ``overlay``,
            ``packed-alpha``.
        settings: More settings by dotted key, for example ``{"edges.feather_px": 1.5}``.
        preview: Path of a contact sheet (PNG) to write.

    Returns:
        A report of what was written, how fast, and with which network.

    Raises:
        VitascopeError: A subclass tells what failed, see ``vitascope.errors``; no incomplete output is left.
    """
    given: Any = settings or {}
    if output is not None and isinstance(given, Mapping):  # load_settings refuses other types
        given = {**given, "output.kinds": output}
    loaded = load_settings(profile=profile, flags=given)
    wanted = loaded.settings.output
    source = _only_video(path_of(video))
    sheet = None if preview is None else path_of(preview)
    (planned,) = plan_outputs(
        [source], out, wanted.kinds, codec=wanted.codec, preview=sheet, settings=loaded.settings
    )
    refuse_clashes([planned], settings=loaded.settings)
    with Segmenter(loaded=loaded) as segmenter:
        made_with = settings_of_outputs(planned, segmenter.settings, resumed=False)
        report = segmenter.write(planned.video, planned.outputs, preview=planned.preview)
    remember_finished(planned, segmenter.settings, made_with=made_with)
    return report


def _only_video(video: Path) -> FoundVideo:
    """The single input of ``segment``; a folder counts as one if it holds the images of one video and nothing else."""
    found = [FoundVideo(video, Path(video.name))]
    if video.is_dir():
        with suppress(InputError):  # opening the folder reports the error
            found = find_videos([video], recursive=False)
    if len(found) > 1 or (video.is_dir() and found[0].path.suffix.lower() in VIDEO_SUFFIXES):
        names = ", ".join(one.path.name for one in found[:3])
        raise InputError(
            f"{video}: it is a folder of several inputs ({names}{', ...' * (len(found) > 3)}); name one of them"
        )
    return FoundVideo(found[0].path, found[0].relative_path)


def segment_all(
    segmenter: Segmenter,
    planned: Sequence[PlannedVideo],
    *,
    resume: bool = False,
    on_start: Callable[[PlannedVideo, Started], object] | None = None,
    on_queue: Callable[[FilmQueue], object] | None = None,
) -> Iterator[Outcome]:
    """Segment videos one after another, or many at once in several processes, yielding each outcome as it is ready.

    Args:
        segmenter: The open segmenter.
        planned: Inputs and outputs.
        resume: Skip videos whose outputs all exist and cover the requested part; continue the others from the
            stretches that earlier runs left.
        on_start: Called when a video's files are open.
        on_queue: Called with the queue before it starts, if several processes share several videos.

    Raises:
        UsageError: The outputs would clash with each other, or with files that are read; nothing was opened yet.
    """
    refuse_clashes(planned, settings=segmenter.settings)
    if segmenter.shares_many and len(planned) > 1:
        yield from _by_all(segmenter, planned, resume=resume, on_start=on_start, on_queue=on_queue)
        return
    for plan in planned:
        if resume and is_finished(plan, segmenter.settings):
            yield _skipped(plan, segmenter.settings)
            continue

        def started(event: Started, plan: PlannedVideo = plan) -> None:
            if on_start is not None:
                on_start(plan, event)

        made_with = settings_of_outputs(plan, segmenter.settings, resumed=resume)
        try:
            report = segmenter.write(
                plan.video, plan.outputs, preview=plan.preview, on_start=started, resume=resume
            )
            remember_finished(plan, segmenter.settings, made_with=made_with)
            yield Outcome(plan, report)
        except VitascopeError as error:
            let_go(error)  # frees memory for the next video
            yield Outcome(plan, error=error)


def _skipped(plan: PlannedVideo, settings: Settings) -> Outcome:
    return Outcome(plan, note=other_settings(plan, settings), knows_settings=knows_settings(plan))


def _by_all(
    segmenter: Segmenter,
    planned: Sequence[PlannedVideo],
    *,
    resume: bool,
    on_start: Callable[[PlannedVideo, Started], object] | None,
    on_queue: Callable[[FilmQueue], object] | None,
) -> Iterator[Outcome]:
    """Segment videos in several processes, yielding each outcome as it is ready."""
    left = []
    for plan in planned:
        if resume and is_finished(plan, segmenter.settings):
            yield _skipped(plan, segmenter.settings)
        else:
            left.append(plan)
    if not left:
        return
    made_with: dict[Path, dict[OutputKind, dict[str, Any]]] = {}

    def started(plan: PlannedVideo, event: Started) -> None:
        made_with[plan.video] = settings_of_outputs(plan, segmenter.settings, resumed=resume)
        if on_start is not None:
            on_start(plan, event)

    for ended in segmenter.write_all(
        left,
        on_queue=on_queue or (lambda _: None),
        on_start=started,
        resume=resume,
    ):
        if ended.report is not None:
            remember_finished(ended.planned, segmenter.settings, made_with=made_with[ended.planned.video])
        yield Outcome(ended.planned, ended.report, ended.error)
