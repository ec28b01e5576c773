"""Converts a video to another projection: resamples each eye and keeps everything else.

::

    decode ──> unpack, of packed alpha; reproject (threads) ──> encode
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import cv2
import numpy as np

from vitascope.config import RgbColor, VideoSettings
from vitascope.device import available_cores
from vitascope.errors import UsageError
from vitascope.frames import Frame, Projection, StereoLayout, VideoInfo
from vitascope.gpu.kernels.color import Rgb, matte_color
from vitascope.gpu.kernels.composite import render_alpha
from vitascope.gpu.kernels.composite_launch import MatteOnly, OnColor
from vitascope.gpu.kernels.remap import Border, remap
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Map, Sink, Source
from vitascope.media.metadata.spherical import SphericalMetadata
from vitascope.media.reading.reader import open_video
from vitascope.media.remote import path_of
from vitascope.media.writing.encoding import CodecName, Encoding, choose_encoding
from vitascope.media.writing.output_target import is_written
from vitascope.media.writing.writer import VideoWriter
from vitascope.observe.report_values import Started
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.notes import notes_on_dynamic_hdr
from vitascope.segmentation.output_encoding import coded_format
from vitascope.segmentation.plan import no_picture_between, takes_files
from vitascope.segmentation.render.renderer import mask_is_full_range
from vitascope.segmentation.writing import FramesUntilDamage, changes_of_streams
from vitascope.vr.detection import VrDescription, lens_of
from vitascope.vr.file_names import read_name, without_vr_words
from vitascope.vr.packing import refuse_other_than_packed, unpack_discs
from vitascope.vr.players import PLAYERS, name_says, vr_words
from vitascope.vr.projection import Lens, frame_maps
from vitascope.vr.stereo import eye_regions

UnpackedKind = Literal["mask", "key"]
TargetName = Literal["fisheye190", "equirect180", "equirect360", "flat"]


@dataclass(frozen=True, slots=True)
class Target:
    """A target projection, and the shape of its eyes."""

    projection: Projection
    fov_degrees: float
    aspect: Fraction
    """Width of an eye divided by its height."""

    @property
    def lens(self) -> Lens:
        """The lens that each eye is converted to."""
        return lens_of(self.projection, self.fov_degrees, aspect=float(self.aspect))


TARGETS: dict[TargetName, Target] = {
    "fisheye190": Target(Projection.FISHEYE, 190.0, Fraction(1)),
    "equirect180": Target(Projection.HALF_EQUIRECTANGULAR, 180.0, Fraction(1)),
    "equirect360": Target(Projection.EQUIRECTANGULAR, 360.0, Fraction(2)),
    "flat": Target(Projection.FLAT, 90.0, Fraction(16, 9)),
}
"""Targets by name."""

_MARGIN = 3
"""Margin for ``frame_maps``, because frames are interpolated cubically."""
_THREADS = 4
"""Number of drawing threads; more would wait for memory."""


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """One video that was converted."""

    input: Path
    output: Path
    source: VrDescription
    target: TargetName
    width: int
    height: int
    codec: str
    size_bytes: int
    frame_count: int
    corrupt_count: int
    wall_seconds: float
    notes: tuple[str, ...]
    """Differences from the input or from expectations, one line each."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "input": str(self.input),
            "output": str(self.output),
            "layout": self.source.layout.value,
            "from": self.source.projection.value,
            "from_fov_degrees": self.source.fov_degrees,
            "to": self.target,
            **{
                name: getattr(self, name)
                for name in (
                    "width",
                    "height",
                    "codec",
                    "size_bytes",
                    "frame_count",
                    "corrupt_count",
                    "wall_seconds",
                )
            },
            "notes": list(self.notes),
        }


_UNPACKED_WORDS: dict[UnpackedKind | None, str] = {None: "", "key": "_passthrough", "mask": "_mask"}
"""Endings of the names of unpacked videos, the same that ``segment`` uses."""
_KEY_COLOR: Rgb = RgbColor.parse(PLAYERS["heresphere"].key_color).as_tuple()


def default_output(
    video: Path, source: VrDescription, target: TargetName, unpack: UnpackedKind | None = None
) -> Path:
    """The default output of a conversion: beside the input, under a name that players understand."""
    words = _words_of(source, TARGETS[target]) + _UNPACKED_WORDS[unpack]
    suffix = video.suffix if video.suffix.lower() in (".mov", ".mkv", ".mp4") else ".mp4"
    stem = without_vr_words(video.stem)
    return video.with_name(f"{stem}{words or '_flat'}{suffix}")


def convert(
    video: Path,
    output: str | PathLike[str] | None,
    target: TargetName,
    *,
    unpack: UnpackedKind | None = None,
    key_color: Rgb | None = None,
    wanted: VideoSettings | None = None,
    codec: Literal["auto"] | CodecName = "auto",
    crf: int | None = None,
    preset: str | None = None,
    keep_partial: bool = False,
    may_replace: Callable[[Path], object] | None = None,
    on_start: Callable[[Started], object] | None = None,
) -> ConversionReport:
    """Convert every eye of a video to another projection; sound, subtitles, chapters, tags and HDR metadata are kept.

    Args:
        video: The input.
        output: A file, or a folder, which exists or ends with a slash; None means ``default_output``.
        target: The new projection. Eyes keep their height; a flat view is as sharp in the middle as the source.
        unpack: What to make from packed alpha: ``key`` shows people on a colour, ``mask`` is the matte; None
            for other videos.
        key_color: The colour for ``key``, 8-bit RGB; by default that of ``segment --player``.
        wanted: Layout and projection of the input, if known, and the part to convert.
        codec: As for ``choose_encoding``.
        crf: As for ``choose_encoding``.
        preset: As for ``choose_encoding``.
        keep_partial: Keep what could be read of a damaged video, as ``<output>.part``.
        may_replace: Called with an output that exists, before it is opened; may raise.
        on_start: Called from this thread once everything is open.

    Raises:
        UsageError: The input already has the projection, or cannot be converted.
        InputError: The input cannot be read.
        OutputError: The output cannot be written.
        PipelineError: A stage failed.
        KeyboardInterrupt: Ctrl-C; what was written is kept as ``<output>.part``.
    """
    began = perf_counter()
    video, wanted = path_of(video), wanted or VideoSettings()
    start_seconds = wanted.start_seconds or None
    with open_video(
        video,
        start_seconds=start_seconds,
        end_seconds=wanted.end_seconds,
        max_corrupt_frames=wanted.max_corrupt_frames,
    ) as reader:
        info = reader.info
        source = vr_of(info, wanted, always_looks=True)
        _check(video, info, source, target, unpack)
        own = default_output(video, source, target, unpack)
        path = own if output is None else path_of(output)
        if output is not None and takes_files(output):
            path /= own.name
        encoding = choose_encoding(
            path, codec=codec, source_format=coded_format(info, codec), crf=crf, preset=preset
        )
        if may_replace is not None and is_written(path):
            may_replace(path)
        paint = _paint(encoding, unpack, key_color or _KEY_COLOR)
        made = _made_info(info, source, TARGETS[target])
        if isinstance(paint, MatteOnly):
            made = replace(made, color=matte_color(info.color, full_range=paint.full_range))
        painter = Reprojector(info, made, source, TARGETS[target], paint=paint)
        frames = FramesUntilDamage(reader)
        with (
            _single_threaded_opencv(),
            VideoWriter(
                path,
                info=made,
                encoding=encoding,
                copy_from=None if info.container == "images" else video,
                start_seconds=start_seconds,
                end_seconds=wanted.end_seconds,
                spherical=_boxes(source, TARGETS[target]),
                hdr=None if unpack == "mask" else reader.hdr,
                keep_partial=keep_partial,
            ) as writer,
        ):
            pipeline = Pipeline(
                [
                    Source("decode", frames),
                    Map("reproject", painter.paint, workers=min(available_cores(), _THREADS)),
                    Sink("encode", writer.write),
                ]
            )
            if on_start is not None:
                on_start(Started(pipeline, reader.expected_frame_count, source.doubts))
            try:
                pipeline.run()
            except KeyboardInterrupt as error:
                kept = writer.keep_partial()
                said = "nothing was written yet" if kept is None else f"kept what was written: {kept}"
                raise KeyboardInterrupt(said) from error
            frames.raise_damage()
            if reader.decoded_count == 0:
                raise no_picture_between(video, wanted, info)
        written = writer.report
    return ConversionReport(
        video,
        path,
        source,
        target,
        made.width,
        made.height,
        written.codec,
        written.byte_count,
        frame_count=written.frame_count,
        corrupt_count=reader.corrupt_count,
        wall_seconds=perf_counter() - began,
        notes=(
            *written.notes,
            *changes_of_streams(written),
            *notes_on_dynamic_hdr(reader.info),
            *_notes_on_name(video, path, source, target, unpack),
        ),
    )


class Reprojector:
    """Reprojects frames, eye by eye, on the CPU. Its maps are computed once; threads may share it.

    Args:
        info: Description of the input frames.
        made: Description of the output frames.
        source: Layout and projection of the input.
        target: The new projection.
        paint: How to draw packed alpha, which is unpacked first; None for other videos.
    """

    def __init__(
        self,
        info: VideoInfo,
        made: VideoInfo,
        source: VrDescription,
        target: Target,
        *,
        paint: MatteOnly | OnColor | None = None,
    ) -> None:
        self._paint = paint
        self._maps = frame_maps(
            source.lenses,
            target.lens,
            eye_regions(info.width, info.height, source.layout),
            eye_regions(made.width, made.height, source.layout),
            frame_size=(info.height, info.width),
            made_size=(made.height, made.width),
            margin=_MARGIN,
        )

    def paint(self, frame: Frame) -> Frame:
        """Reproject one frame. Areas that the source does not show are black; for packed alpha they are empty."""
        border: Border = "constant"
        if self._paint is not None:
            # Outside the circles, an unpacked picture shows background only.
            frame, border = _unpacked(frame, self._paint), "replicate"
        made: Frame = remap(frame, *self._maps, interpolation="cubic", border=border)
        return made


def _unpacked(frame: Frame, paint: MatteOnly | OnColor) -> Frame:
    """Turn a packed frame into a plain fisheye one of the same size, empty outside the circles, where mattes are."""
    side = frame.height
    alpha = np.hstack([cv2.resize(tile, (side, side)) for tile in unpack_discs(frame)])
    # Keep the frame's depth, in which the mattes were stored.
    dtype, peak = (np.uint8, 255) if frame.format.bit_depth == 8 else (np.uint16, 65535)
    codes = np.rint(alpha * peak).astype(dtype)
    regions = eye_regions(frame.width, frame.height, StereoLayout.SIDE_BY_SIDE)
    return render_alpha(frame, codes, regions=regions, paint=paint)


def _paint(encoding: Encoding, unpack: UnpackedKind | None, key_color: Rgb) -> MatteOnly | OnColor | None:
    """How to draw unpacked alpha: as ``segment`` draws other videos."""
    if unpack == "mask":
        return MatteOnly(mask_is_full_range(encoding), bit_depth=8 if encoding.bit_depth == 8 else 10)
    return None if unpack is None else OnColor(key_color)


def _check(
    video: Path, info: VideoInfo, source: VrDescription, target: TargetName, unpack: UnpackedKind | None
) -> None:
    """Check that a video can be converted, and does not already have the projection."""
    if info.rotation_degrees:
        raise UsageError(
            f"{video}: is stored rotated by {info.rotation_degrees} degrees, which VR players ignore; "
            "rotate its pixels first"
        )
    if unpack is not None:
        if not source.is_packed_alpha:
            raise UsageError(
                f"{video}: is not packed alpha, but {source.in_words()}; there is nothing to unpack"
            )
        refuse_other_than_packed(info)
        return
    if source.is_packed_alpha:
        raise UsageError(
            f"{video}: is packed alpha, whose mattes lie in the corners and would be lost; --unpack key shows people "
            "on a colour, --unpack mask the matte"
        )
    wanted = TARGETS[target]
    if source.projection is Projection.FLAT and source.fov_degrees is None:
        what = "is flat already" if wanted.projection is Projection.FLAT else "is taken for a flat picture"
        raise UsageError(f"{video}: {what}, and its field of view is unknown: give --projection and --fov")
    if set(source.lenses) == {wanted.lens} and not source.is_half:
        raise UsageError(f"{video}: is already {target} ({source.projection_reason.how})")


def _made_info(info: VideoInfo, source: VrDescription, target: Target) -> VideoInfo:
    """Description of the written frames."""
    eye = eye_regions(info.width, info.height, source.layout)[0]
    # Half-height views, one above the other, have twice the height when shown.
    height = float(eye.height * (2 if source.is_half and source.layout is StereoLayout.TOP_BOTTOM else 1))
    width = height * target.aspect
    if target.projection is Projection.FLAT:
        # As many samples per small angle as in the middle of the source.
        _, (above, below) = source.lenses[0].project(np.array([[0.0, 0.0], [-0.001, 0.001], [1.0, 1.0]]))
        width = 2 * math.tan(math.radians(target.fov_degrees) / 2) * height * float(below - above) / 0.002
        height = width / target.aspect
    width, height = (max(round(side / 4) * 4, 4) for side in (width, height))
    columns, rows = {StereoLayout.SIDE_BY_SIDE: (2, 1), StereoLayout.TOP_BOTTOM: (1, 2)}.get(
        source.layout, (1, 1)
    )
    return replace(
        info,
        width=columns * width,
        height=rows * height,
        sample_aspect_ratio=Fraction(1),
        stereo=source.layout,
        projection=target.projection,
        right_eye_first=source.right_eye_first,
        fov_degrees=target.fov_degrees,
    )


def _boxes(source: VrDescription, target: Target) -> SphericalMetadata | None:
    if target.projection is Projection.FLAT and source.layout is StereoLayout.MONO:
        return None
    return SphericalMetadata(
        source.layout,
        target.projection,
        right_eye_first=source.right_eye_first,
        fov_degrees=target.fov_degrees,
    )


def _words_of(source: VrDescription, target: Target) -> str:
    return vr_words(
        source.layout,
        target.projection,
        fov_degrees=target.fov_degrees,
        right_eye_first=source.right_eye_first,
    )


def _notes_on_name(
    video: Path, path: Path, source: VrDescription, target: TargetName, unpack: UnpackedKind | None
) -> list[str]:
    """A note if players would misread the output's name."""
    words = _words_of(source, TARGETS[target])
    named = read_name(path.stem)
    if path.suffix.lower() in ("", ".png"):
        return []
    if not words and {named.layout, named.projection} <= {None, StereoLayout.MONO, Projection.FLAT}:
        return []
    if name_says(path.stem, words):
        return []
    better = default_output(video.with_suffix(path.suffix), source, target, unpack).name
    return [f"players go by names, and {path.name} does not say what it is; {better} would"]


@contextmanager
def _single_threaded_opencv() -> Iterator[None]:
    """Limit OpenCV to one thread: frames are processed in parallel instead."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
