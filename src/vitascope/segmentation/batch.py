"""Many videos with one network: one bad file does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitascope.config import OutputKind
from vitascope.errors import VitascopeError
from vitascope.media.discovery import FoundVideo
from vitascope.segmentation.plan import PlannedVideo, plan_outputs
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.segmenter import Segmenter, Started

__all__ = ["Outcome", "segment", "segment_all"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one planned video: exactly one of a report, an error, or neither (it was done already)."""

    planned: PlannedVideo
    report: SegmentReport | None = None
    error: VitascopeError | None = None


def segment(
    video: Path | str,
    out: Path | str,
    *,
    profile: str | None = None,
    output: OutputKind | Sequence[OutputKind] | None = None,
    settings: Mapping[str, Any] | None = None,
    preview: Path | str | None = None,
) -> SegmentReport:
    """Cut every person out of one video.

    Args:
        video: Any video that FFmpeg reads, an image, or a folder of images.
        out: Where to write; the suffix chooses the container. Several kinds get suffixes.
        profile: ``fast``, ``balanced`` (default) or ``quality``.
        output: What to write: ``mask``, ``key`` (default), ``cutout``, ``alpha``, ``blur``, ``replace``, ``overlay``.
        settings: More settings by dotted key, for example ``{"edges.feather_px": 1.5}``.
        preview: Where to write a contact sheet (PNG).

    Returns:
        What was written, how fast, and with what.

    Raises:
        VitascopeError: Its subclass says what went wrong, see ``vitascope.errors``; nothing is left half-written.
    """
    flags = dict(settings or {})
    if output is not None:
        flags["output.kinds"] = [output] if isinstance(output, str) else list(output)
    with Segmenter(profile=profile, settings=flags) as segmenter:
        wanted = segmenter.settings.output
        source = FoundVideo(Path(video), Path(Path(video).name))
        (planned,) = plan_outputs([source], out, wanted.kinds, codec=wanted.codec)
        return segmenter.write(video, planned.outputs, preview=None if preview is None else Path(preview))


def segment_all(
    segmenter: Segmenter,
    planned: Sequence[PlannedVideo],
    *,
    resume: bool = False,
    preview: Path | None = None,
    on_start: Callable[[PlannedVideo, Started], object] | None = None,
) -> Iterator[Outcome]:
    """Segment videos one after another, giving each outcome as it comes.

    Args:
        segmenter: Does the work.
        planned: Inputs and outputs.
        resume: Leave out videos whose outputs all exist.
        preview: Where to write a contact sheet; of several videos each gets its stem appended.
        on_start: Called when a video's files are open.
    """
    for plan in planned:
        if resume and plan.is_done:
            yield Outcome(plan)
            continue
        sheet = preview
        if preview is not None and len(planned) > 1:
            sheet = preview.with_name(f"{preview.stem}_{plan.video.stem}{preview.suffix}")

        def started(event: Started, plan: PlannedVideo = plan) -> None:
            if on_start is not None:
                on_start(plan, event)

        try:
            yield Outcome(plan, segmenter.write(plan.video, plan.outputs, preview=sheet, on_start=started))
        except VitascopeError as error:
            yield Outcome(plan, error=error)
