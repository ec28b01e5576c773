"""Explain what a run would do, without doing it (``--dry-run``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitascope.config import LoadedSettings, Settings, vitascope_home
from vitascope.config.loading import refuse_missing_gpus
from vitascope.device import select_device
from vitascope.errors import VitascopeError, one_line
from vitascope.frames import Projection, StereoLayout, VideoInfo
from vitascope.media.reading.reader import probe
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.output_target import picture_folder, refuse_unwritable
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import size_in_words
from vitascope.segmentation.finished import is_finished, other_settings
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.networks import foresee_network
from vitascope.segmentation.output_encoding import check_kinds, encoding_for, hardware_for, picture_size
from vitascope.segmentation.plan import PlannedVideo, look_at, wanted_seconds
from vitascope.segmentation.segmenter import Segmenter
from vitascope.vr.detection import VrDescription, refuse_packed_input
from vitascope.vr.packing import refuse_unpackable

_TRIAL_FRAMES = 36


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time and size of a run, estimated from a trial on its first frames."""

    frames: int
    """Number of frames in the trial."""
    wall_seconds: float
    nbytes: int
    """Size of all outputs."""

    def in_words(self) -> str:
        """Return the estimate in words, such as ``0:01:30 and 12 MB``."""
        return f"{timedelta(seconds=round(self.wall_seconds))} and {size_in_words(self.nbytes)}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a run would do with one video."""

    planned: PlannedVideo
    info: VideoInfo
    vr: VrDescription
    model: str
    """The network, and whether it is on this machine: ``rvm (would be downloaded), else selfie``."""
    encodings: tuple[Encoding, ...]
    skipped: bool
    """True if only missing outputs were requested, and every one exists."""
    stretch_seconds: float | None
    """Length of the requested part; None if unknown."""
    estimate: Estimate | None = None
    """From a trial; None if none was made."""
    note: str | None = None
    """A note on a video that is already done."""

    def lines(self) -> list[str]:
        """Return the explanation as lines of text."""
        info = self.info
        seconds = "unknown length" if info.duration_seconds is None else f"{info.duration_seconds:.1f} s"
        if self.stretch_seconds is not None and self.stretch_seconds != info.duration_seconds:
            seconds = f"{self.stretch_seconds:.1f} s of {seconds}"
        pace = f"{float(info.average_frame_rate):.3f} fps, {seconds}, "
        if info.container == "images" and info.frame_count_estimate == 1:
            pace = ""  # a single photo
        head = (
            f"{info.path}: {info.width}x{info.height} {info.codec} {info.format.name}, {pace}"
            f"{self.vr.in_words()}, network {self.model}"
        )
        if self.skipped:
            return [head, "  done already", *([] if self.note is None else [f"  note: {self.note}"])]
        lines = [head, *(f"  note: {doubt}" for doubt in self.vr.doubts)]
        for (kind, path), encoding in zip(self.planned.outputs, self.encodings, strict=True):
            pictures = picture_folder(path)
            there = path.exists() if pictures is None else pictures.is_filled()
            replaced = f" (replaces the {'file' if pictures is None else 'folder'} there)" if there else ""
            lines.append(f"  {kind} -> {path}: {encoding.encoder} {encoding.pixel_format}{replaced}")
            lines += [f"    note: {note}" for note in encoding.notes]
        for path in self.planned.descriptions:
            lines.append(
                f"  description for the player -> {path}{' (replaces the file there)' * path.exists()}"
            )
        if self.planned.preview is not None:
            lines.append(f"  contact sheet -> {self.planned.preview}")
        if self.estimate is not None:
            lines.append(f"  about {self.estimate.in_words()}, from a trial of {self.estimate.frames} frames")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values for JSON."""
        return {
            "input": str(self.info.path),
            "status": "skipped" if self.skipped else "planned",
            "width": self.info.width,
            "height": self.info.height,
            "stereo": self.vr.layout.value,
            "stereo_reason": self.vr.layout_reason.how,
            "projection": self.vr.projection.value,
            "projection_reason": self.vr.projection_reason.how,
            "model": self.model,
            "seconds": self.stretch_seconds,
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "descriptions": [str(path) for path in self.planned.descriptions],
            "preview": None if self.planned.preview is None else str(self.planned.preview),
            "outputs": [
                {
                    "kind": kind,
                    "path": str(path),
                    "encoder": encoding.encoder,
                    "pixel_format": encoding.pixel_format,
                }
                for (kind, path), encoding in zip(self.planned.outputs, self.encodings, strict=True)
            ],
        }


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one video would fail."""

    planned: PlannedVideo
    error: VitascopeError

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain values for JSON."""
        return {"input": str(self.planned.video), "status": "failed", "error": one_line(self.error)}


def explain_all(
    planned: Sequence[PlannedVideo],
    settings: Settings,
    *,
    resume: bool = False,
    store: ModelStore | None = None,
    try_with: LoadedSettings | None = None,
) -> Iterator[Explanation | Refusal]:
    """Explain for each video what ``Segmenter.write`` would do, or why it would fail before the first frame.

    Reads headers and the first frame. Downloads and writes nothing, except for the trial of ``try_with``.

    Args:
        planned: Inputs and outputs.
        settings: The run's settings.
        resume: Skip videos whose outputs exist.
        store: The store of networks; by default the user's own.
        try_with: The run's settings, to estimate time and size from a trial on the first frames, in a temporary
            folder. Videos of the same kind share one trial; there is none if this is omitted, or if the network would
            have to be downloaded.

    Raises:
        VitascopeError: The whole run would fail, because the device, the network or the background is not available.
    """
    model = _foresee(settings, store)
    tried: dict[str, _Trial | None] = {}
    for plan in planned:
        try:
            explained = _explain(plan, settings, model=model, resume=resume)
            if try_with is not None and model.endswith("(here)") and not explained.skipped:
                alike = _what_sets_the_pace(explained)
                if alike not in tried:
                    tried[alike] = _tried(explained, try_with, store)
                explained = replace(explained, estimate=_estimate(explained, tried[alike]))
            yield explained
        except VitascopeError as error:
            yield Refusal(plan, error)


def total_in_words(explained: Sequence[Explanation | Refusal]) -> str:
    """Describe time and size of a whole run in one line."""
    wanted = [item for item in explained if isinstance(item, Explanation) and not item.skipped]
    videos = [item for item in wanted if item.info.container != "images"]
    estimates = [item.estimate for item in wanted if item.estimate is not None]
    parts = [f"{len(wanted)} of {len(explained)} inputs would be done"]
    if videos:
        seconds = timedelta(seconds=round(sum(item.stretch_seconds or 0 for item in videos)))
        parts.append(f"{seconds} of video")
    if estimates:
        total = Estimate(
            frames=sum(one.frames for one in estimates),
            wall_seconds=sum(one.wall_seconds for one in estimates),
            nbytes=sum(one.nbytes for one in estimates),
        )
        of_some = f" for {len(estimates)} of them" if len(estimates) < len(wanted) else ""
        parts.append(f"about {total.in_words()}{of_some}")
    if done := sum(isinstance(item, Explanation) and item.skipped for item in explained):
        parts.append(f"{done} done already")
    if refused := sum(isinstance(item, Refusal) for item in explained):
        parts.append(f"{refused} would fail")
    return ", ".join(parts)


def _foresee(settings: Settings, store: ModelStore | None) -> str:
    """Check what all videos of a run share; returns the network in words."""
    check_kinds(settings.output.kinds, settings.output)
    refuse_missing_gpus(settings)
    select_device(settings.gpu.device, index=settings.gpu.device_id)
    model = foresee_network(settings, store or ModelStore(vitascope_home()))
    if "replace" in settings.output.kinds and settings.output.background is not None:
        probe(settings.output.background)
    return model


def _explain(planned: PlannedVideo, settings: Settings, *, model: str, resume: bool) -> Explanation:
    info = look_at(planned.video, settings.video)
    sheets = [] if planned.preview is None else [planned.preview]
    for path in (*(path for _, path in planned.outputs), *planned.descriptions, *sheets):
        refuse_unwritable(path)
    vr = vr_of(info, settings.video)
    if vr.layout is not StereoLayout.MONO or vr.projection is not Projection.FLAT:
        # A run starts with boxes, name or flags alone; frames may contradict them, and here there is time to
        # check.
        vr = vr_of(info, settings.video, always_looks=True)
    refuse_packed_input(info, vr)
    if any(kind == "packed-alpha" for kind, _ in planned.outputs):
        refuse_unpackable(info, vr.lenses)
    sizes = [
        picture_size(kind, info, layout=vr.layout, mask_max_width=settings.output.mask_max_width)
        for kind, _ in planned.outputs
    ]
    encodings = tuple(
        encoding_for(
            path,
            kind,
            info=info,
            layout=vr.layout,
            settings=settings.output,
            threads=0,
            alone=len(planned.outputs) == 1,
            hardware=hardware_for(settings.gpu, output_count=len(planned.outputs)),
            device_id=settings.gpu.device_id,
        ).for_size(width, height)
        for (kind, path), (height, width) in zip(planned.outputs, sizes, strict=True)
    )
    skipped = resume and is_finished(planned, settings)
    return Explanation(
        planned=planned,
        info=info,
        vr=vr,
        model=model,
        encodings=encodings,
        skipped=skipped,
        note=other_settings(planned, settings) if skipped else None,
        stretch_seconds=(
            None if info.duration_seconds is None else wanted_seconds(info.duration_seconds, settings.video)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """Time and size measured in a trial on the first frames of a video."""

    seconds: float
    """Length of the part."""
    frames: int
    wall_seconds: float
    nbytes: int


def _estimate(explained: Explanation, trial: _Trial | None) -> Estimate | None:
    """Scale the trial of a similar video to this one."""
    if trial is None or explained.stretch_seconds is None:
        return None
    times_longer = explained.stretch_seconds / trial.seconds
    return Estimate(trial.frames, trial.wall_seconds * times_longer, round(trial.nbytes * times_longer))


def _what_sets_the_pace(explained: Explanation) -> str:
    """Return a key that is equal for videos that take the same time and bytes per second."""
    info = explained.info
    outputs = [(kind, path.suffix) for kind, path in explained.planned.outputs]
    kind = (info.container == "images", info.codec, info.source_format, info.duration_seconds is None)
    size = (info.width, info.height, info.average_frame_rate)
    return repr((kind, size, explained.vr.layout, explained.vr.projection, outputs))


def _tried(explained: Explanation, loaded: LoadedSettings, store: ModelStore | None) -> _Trial | None:
    """Run the first frames of a video into a temporary folder; None if its length is unknown."""
    seconds, video = explained.stretch_seconds, loaded.settings.video
    if seconds is None or explained.info.container == "images":
        return None
    length = min(seconds, max(_TRIAL_FRAMES / float(explained.info.average_frame_rate), 0.1))
    trial = loaded.with_values({"video.end_seconds": video.start_seconds + length})
    with TemporaryDirectory(prefix="vitascope-") as folder, Segmenter(loaded=trial, store=store) as segmenter:
        outputs = [
            (kind, Path(folder) / f"{number}{path.suffix}")
            for number, (kind, path) in enumerate(explained.planned.outputs)
        ]
        try:
            report = segmenter.write(explained.planned.video, outputs)
        except KeyboardInterrupt as error:  # its message would name files that are deleted with the folder
            raise KeyboardInterrupt from error
    written = sum(output.size_bytes for output in report.outputs)
    return _Trial(length, report.frame_count, report.pipeline.wall_seconds, written)
