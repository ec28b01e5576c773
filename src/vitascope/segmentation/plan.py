"""Where the outputs go, and how each is encoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitascope.config import Codec, OutputKind, OutputSettings, Settings
from vitascope.errors import UsageError
from vitascope.frames import StereoLayout, VideoInfo
from vitascope.media.discovery import VIDEO_SUFFIXES, FoundVideo
from vitascope.media.encoding import Encoding, choose_encoding
from vitascope.media.images import IMAGE_SUFFIXES
from vitascope.media.probe import probe
from vitascope.vr.stereo import DetectedLayout, detect_layout

__all__ = ["Explanation", "PlannedVideo", "encoding_for", "explain", "plan_outputs"]

_HOME_OF_CODEC: dict[str, str] = {"prores": ".mov", "ffv1": ".mkv", "vp9": ".webm", "png": ""}
_SUFFIXES_KEPT = frozenset({".mp4", ".m4v", ".mov", ".mkv"})
_CODECS_WITH_ALPHA = frozenset({"auto", "prores", "vp9", "ffv1", "png"})
_CODECS_WITH_CRF = frozenset({"h264", "h265", "av1", "vp9"})
_CODECS_WITH_PRESET = frozenset({"h264", "h265", "av1", "vp9", "png"})


@dataclass(frozen=True, slots=True)
class PlannedVideo:
    """One input and what will be made of it."""

    video: Path
    outputs: tuple[tuple[OutputKind, Path], ...]

    @property
    def is_done(self) -> bool:
        """True when every output exists: outputs appear only whole, so nothing is left to do."""
        return all(path.exists() for _, path in self.outputs)


def plan_outputs(
    videos: Sequence[FoundVideo],
    out: Path | str,
    kinds: Sequence[OutputKind],
    *,
    codec: Literal["auto"] | Codec = "auto",
    into_folder: bool = False,
) -> list[PlannedVideo]:
    """Name the outputs of each input.

    One input goes to ``out`` itself, unless that is a folder (it exists as one, or is written with a slash at the
    end). Several inputs, or one that was found in a folder, go into the folder ``out``, in the tree they came from.
    Several kinds get the kind as a suffix: ``cut.mp4`` becomes ``cut_mask.mp4`` and ``cut_key.mp4``.

    Args:
        videos: The inputs.
        out: A file or a folder.
        kinds: What to make of each.
        codec: ``output.codec``: decides the container in a folder.
        into_folder: True when the inputs were named by a folder or a glob.

    Raises:
        UsageError: Several inputs, and ``out`` is a file.
    """
    path = Path(out)
    named_as_folder = str(out).endswith(("/", os.sep)) or path.is_dir()
    if not named_as_folder and len(videos) == 1 and not into_folder:
        outputs = tuple((kind, _with_kind(path, kind, kinds, codec)) for kind in kinds)
        return [PlannedVideo(videos[0].path, outputs)]
    if path.is_file() or path.suffix.lower() in VIDEO_SUFFIXES:
        raise UsageError(f"{path}: {len(videos)} inputs need a folder to go to, not a file")
    taken: set[Path] = set()
    planned = []
    for video in videos:
        outputs = tuple((kind, _in_folder(path, video, kind, kinds, codec, taken)) for kind in kinds)
        taken.update(target for _, target in outputs)
        planned.append(PlannedVideo(video.path, outputs))
    return planned


def encoding_for(
    path: Path, kind: OutputKind, *, info: VideoInfo, settings: OutputSettings, threads: int
) -> Encoding:
    """How one output is encoded.

    With several kinds in one run a codec that cannot carry alpha is not forced on ``alpha``, and ``crf`` and
    ``preset`` go only to codecs that have them; a single output takes every wish or says why it cannot.

    Raises:
        UsageError: The wishes contradict one another.
        OutputError: The container does not take the codec, or this FFmpeg build lacks it.
    """
    alone = len(settings.kinds) == 1
    codec = settings.codec
    if kind == "alpha" and codec not in _CODECS_WITH_ALPHA and not alone:
        codec = "auto"

    def choose(crf: int | None, preset: str | None) -> Encoding:
        return choose_encoding(
            path,
            codec=codec,
            source_format=info.format,
            crf=crf,
            preset=preset,
            bit_depth=settings.bit_depth,
            with_alpha=kind == "alpha",
            grey=kind == "mask",
            speed=settings.speed,
            threads=threads,
        )

    if alone:
        return choose(settings.crf, settings.preset)
    name = choose(None, None).codec
    return choose(
        settings.crf if name in _CODECS_WITH_CRF else None,
        settings.preset if name in _CODECS_WITH_PRESET else None,
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would happen to one video."""

    planned: PlannedVideo
    info: VideoInfo
    stereo: DetectedLayout
    model: str
    encodings: tuple[Encoding, ...]
    skipped: bool
    """True when every output exists and only missing ones were asked for."""

    def lines(self) -> list[str]:
        """For people."""
        info = self.info
        seconds = "unknown length" if info.duration_seconds is None else f"{info.duration_seconds:.1f} s"
        rate = float(info.average_frame_rate)
        head = (
            f"{info.path}: {info.width}x{info.height} {info.codec} {info.format.name}, {rate:.3f} fps, {seconds}, "
            f"{self.stereo.layout.value} ({self.stereo.reason}), network {self.model}"
        )
        if self.skipped:
            return [head, "  done already"]
        lines = [head]
        for (kind, path), encoding in zip(self.planned.outputs, self.encodings, strict=True):
            replaced = " (replaces the file there)" if path.exists() else ""
            lines.append(f"  {kind} -> {path}: {encoding.encoder} {encoding.pixel_format}{replaced}")
            lines += [f"    note: {note}" for note in encoding.notes]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "input": str(self.info.path),
            "width": self.info.width,
            "height": self.info.height,
            "stereo": self.stereo.layout.value,
            "stereo_reason": self.stereo.reason,
            "model": self.model,
            "skipped": self.skipped,
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


def explain(planned: PlannedVideo, settings: Settings, *, resume: bool = False) -> Explanation:
    """What ``Segmenter.write`` would do, from the file's header alone.

    Raises:
        VitascopeError: What the real run would raise before its first frame.
    """
    info = probe(planned.video)
    declared = settings.video.stereo
    refuse_clashes(planned)
    encodings = tuple(
        encoding_for(path, kind, info=info, settings=settings.output, threads=0).for_size(
            info.width, info.height
        )
        for kind, path in planned.outputs
    )
    return Explanation(
        planned=planned,
        info=info,
        stereo=detect_layout(info, None if declared == "auto" else StereoLayout(declared)),
        model=settings.model.name,
        encodings=encodings,
        skipped=resume and planned.is_done,
    )


def refuse_clashes(planned: PlannedVideo) -> None:
    """Refuse to write over the input, or two outputs into one file.

    Raises:
        UsageError: One of these would happen.
    """
    paths = [path for _, path in planned.outputs]
    for path in paths:
        if path.exists() and planned.video.exists() and path.samefile(planned.video):
            raise UsageError(f"{path}: the output is the input; name another file")
    if len({path.absolute() for path in paths}) < len(paths):
        raise UsageError(f"{paths[0]}: two outputs would be the same file")


def _with_kind(path: Path, kind: OutputKind, kinds: Sequence[OutputKind], codec: str) -> Path:
    if len(kinds) == 1:
        return path
    suffix = path.suffix
    if kind == "alpha" and suffix.lower() in (".mp4", ".m4v"):
        suffix = _HOME_OF_CODEC[codec] if codec in ("vp9", "ffv1", "prores") else ".mov"
    return path.with_name(f"{path.stem}_{kind}{suffix}")


def _in_folder(
    folder: Path,
    video: FoundVideo,
    kind: OutputKind,
    kinds: Sequence[OutputKind],
    codec: str,
    taken: set[Path],
) -> Path:
    source = video.relative_path
    suffix = _suffix_in_folder(source, video.path, kind, codec)
    ending = f"_{kind}" if len(kinds) > 1 else ""
    stem = source.stem if source.suffix else source.name
    target = folder / source.parent / f"{stem}{ending}{suffix}"
    if target in taken:  # a.mp4 and a.mkv side by side
        target = folder / source.parent / f"{stem}_{source.suffix.lstrip('.').lower()}{ending}{suffix}"
    return target


def _suffix_in_folder(source: Path, path: Path, kind: OutputKind, codec: str) -> str:
    if source.suffix.lower() in IMAGE_SUFFIXES:
        return ".png" if path.is_file() else ""
    if path.is_dir():
        return ""
    if codec in _HOME_OF_CODEC:
        return _HOME_OF_CODEC[codec]
    if kind == "alpha":
        return ".mov"
    return source.suffix.lower() if source.suffix.lower() in _SUFFIXES_KEPT else ".mp4"
