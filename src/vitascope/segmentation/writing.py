"""The output files of one job: either all are finished, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from vitascope.closing import Closing
from vitascope.config import OutputKind, OutputSettings, VideoSettings
from vitascope.errors import CorruptInputError, OutputError
from vitascope.frames import PIXEL_FORMATS, Frame, Projection, StereoLayout, VideoInfo
from vitascope.gpu.kernels.color import matte_color
from vitascope.media.metadata.spherical import SphericalMetadata
from vitascope.media.reading.reader import VideoReader
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.writer import VideoWriter, WriteReport
from vitascope.segmentation.output_encoding import picture_size
from vitascope.segmentation.render.renderer import Rendered, mask_is_full_range
from vitascope.segmentation.report import OutputReport
from vitascope.vr.detection import VrDescription
from vitascope.vr.packing import packed_fov

_T = TypeVar("_T")


class OutputSet(Closing):
    """One writer per output. Leaving the context without ``finish`` or ``keep_partial`` removes everything.

    Args:
        reader: The input: gives size, colour, timing, HDR metadata and the streams to copy.
        outputs: Kind and path of each output.
        encodings: Encoding of each output, in the same order.
        trim: The part of the input that is written.
        vr: Layout and projection of the input.
        settings: Settings of the outputs.

    Raises:
        OutputError: A file cannot be created.
    """

    _writer: type[VideoWriter] = VideoWriter

    def __init__(
        self,
        reader: VideoReader,
        outputs: Sequence[tuple[OutputKind, Path]],
        encodings: Sequence[Encoding],
        *,
        trim: VideoSettings,
        vr: VrDescription,
        settings: OutputSettings,
    ) -> None:
        self._kinds = [kind for kind, _ in outputs]
        self._writers: list[VideoWriter] = []
        info = planar_info(reader.info)
        source = info.path if info.path.is_file() and info.container != "images" else None
        try:
            for (kind, path), encoding in zip(outputs, encodings, strict=True):
                written = written_info(kind, info, encoding, vr=vr, settings=settings)
                self._writers.append(
                    self._writer(
                        path,
                        info=written,
                        encoding=encoding,
                        copy_from=source,
                        spherical="source" if _is_alike(written, info) else _metadata_of(written),
                        start_seconds=trim.start_seconds or None,
                        end_seconds=trim.end_seconds,
                        hdr=None if kind == "mask" else reader.hdr,
                    )
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the files that were neither finished nor kept."""
        for writer in self._writers:
            writer.discard()

    def write(self, rendered: Rendered) -> None:
        """Encode the next frame into every file."""
        for kind, writer, picture in zip(self._kinds, self._writers, rendered.pictures, strict=True):
            if kind == "alpha":
                assert rendered.alpha is not None  # this kind requests it
                writer.write_with_alpha(picture, rendered.alpha)
            else:
                writer.write(picture)

    def finish(self) -> tuple[OutputReport, ...]:
        """Complete every file and give it its name.

        Raises:
            OutputError: The disk failed, or no frame was written.
        """
        for writer in self._writers:
            writer.complete()
        # Publish only when all are complete, so that a failure leaves none.
        for writer in self._writers:
            writer.publish()
        return tuple(
            _summarise(kind, writer.report) for kind, writer in zip(self._kinds, self._writers, strict=True)
        )

    def keep_partial(self) -> list[Path]:
        """Complete what can be completed and keep it as ``.part``; returns the paths."""
        kept = [writer.keep_partial() for writer in self._writers]
        return [path for path in kept if path is not None]


def planar_info(info: VideoInfo) -> VideoInfo:
    """A video's description with its pixel format as encoders take it: planar instead of NV12 or P010."""
    planar = {"nv12": "yuv420p", "p010le": "yuv420p10le"}.get(info.format.name)
    return info if planar is None else replace(info, format=PIXEL_FORMATS[planar])


def written_info(
    kind: OutputKind, info: VideoInfo, encoding: Encoding, *, vr: VrDescription, settings: OutputSettings
) -> VideoInfo:
    """The description of the pictures of one output.

    Args:
        kind: Kind of the output.
        info: The input's facts, its format planar.
        encoding: How the output is encoded.
        vr: Layout and projection of the input; written where VR players look for them.
        settings: Settings of the outputs.
    """
    if settings.player is not None and kind != "mask":
        info = replace(
            info,
            stereo=vr.layout,
            projection=vr.projection,
            right_eye_first=vr.right_eye_first,
            fov_degrees=vr.fov_degrees,
        )
    height, width = picture_size(kind, info, layout=vr.layout, mask_max_width=settings.mask_max_width)
    match kind:
        case "mask":
            color = matte_color(info.color, full_range=mask_is_full_range(encoding))
            return replace(info, color=color, width=width, height=height)
        case "packed-alpha":
            return replace(
                info,
                width=width,
                height=height,
                sample_aspect_ratio=Fraction(1),
                stereo=StereoLayout.SIDE_BY_SIDE,
                projection=Projection.FISHEYE,
                right_eye_first=False,
                fov_degrees=packed_fov(vr.lenses, settings.packed_fov_degrees),
            )
        case _:
            return info


def _metadata_of(info: VideoInfo) -> SphericalMetadata:
    return SphericalMetadata(
        info.stereo, info.projection, right_eye_first=info.right_eye_first, fov_degrees=info.fov_degrees
    )


def _is_alike(info: VideoInfo, other: VideoInfo) -> bool:
    return _metadata_of(info) == _metadata_of(other)


def changes_of_streams(written: WriteReport) -> list[str]:
    """Notes on audio and subtitles that were not copied, one line each."""
    return [stream.in_words() for stream in written.streams if stream.action != "copied"]


def _summarise(kind: OutputKind, written: WriteReport) -> OutputReport:
    return OutputReport(
        path=written.path,
        kind=kind,
        codec=written.codec,
        size_bytes=written.byte_count,
        notes=(*written.notes, *changes_of_streams(written)),
    )


class FramesUntilDamage:
    """The frames of a reader; damage ends the iteration instead of the run, so that earlier frames are finished."""

    def __init__(self, reader: VideoReader) -> None:
        self._reader = reader
        self._damage: CorruptInputError | None = None

    def __iter__(self) -> Iterator[Frame]:
        try:
            yield from self._reader
        except CorruptInputError as error:
            self._damage = error

    def raise_damage(self) -> None:
        """Raise the damage that ended the frames early, if any; only once."""
        damage, self._damage = self._damage, None
        try:
            if damage is not None:
                raise damage
        finally:
            del damage  # its traceback holds this frame: a cycle that would live until the next collection


def _kept_files(files: OutputSet) -> str:
    """Keep what an unfinished run has written; returns a few words about it."""
    kept = files.keep_partial()
    return f"kept what was written: {', '.join(map(str, kept))}" if kept else "nothing was written yet"


@contextmanager
def keeping_what_was_written(files: OutputSet, *, of_damaged: bool) -> Iterator[None]:
    """Keep what was written after Ctrl-C, and after damage if requested; the error says so."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(_kept_files(files)) from error
    except CorruptInputError as error:
        if not of_damaged:
            raise
        raise CorruptInputError(f"{error}; {_kept_files(files)}") from error


def beside_files(written: Sequence[OutputReport], save: Callable[[], _T]) -> _T:
    """Write a file beside finished outputs (a contact sheet, a profile); if it fails, the outputs stay.

    Raises:
        OutputError: The file cannot be written; the message says that the outputs are finished.
    """
    try:
        return save()
    except OutputError as error:
        names = ", ".join(str(output.path) for output in written)
        raise OutputError(f"{error}; these files are finished: {names}") from error


def finish_files(files: OutputSet) -> tuple[OutputReport, ...]:
    """Complete and name the outputs; a Ctrl-C takes effect after that, since most of the work is done.

    Raises:
        OutputError: As ``OutputSet.finish``.
        KeyboardInterrupt: Ctrl-C was pressed meanwhile; the outputs are finished.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="vitascope-finish") as pool:
        finishing = pool.submit(files.finish)
        try:
            return finishing.result()
        except KeyboardInterrupt as error:
            names = ", ".join(str(output.path) for output in finishing.result())
            raise KeyboardInterrupt(f"the outputs were finished first: {names}") from error
