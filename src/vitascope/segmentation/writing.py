"""The files of one job: written together, finished together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from vitascope.config import OutputKind, VideoSettings
from vitascope.gpu.kernels.composite import matte_color
from vitascope.media.encoding import Encoding
from vitascope.media.reader import VideoReader
from vitascope.media.writer import VideoWriter, WriteReport
from vitascope.segmentation.rendering import Rendered, mask_is_full_range
from vitascope.segmentation.report import OutputReport

__all__ = ["OutputSet"]


class OutputSet:
    """One writer for each output. Leaving the context without ``finish`` or ``keep_partial`` removes everything.

    Args:
        reader: The input: gives size, colour, timing, HDR metadata and the streams to copy.
        outputs: Kind and path of each.
        encodings: How each is encoded, in the same order.
        trim: Which part of the input is written.
        keep_partial: Damaged sound ends with a note instead of ending the run.

    Raises:
        OutputError: A file cannot be created.
    """

    def __init__(
        self,
        reader: VideoReader,
        outputs: Sequence[tuple[OutputKind, Path]],
        encodings: Sequence[Encoding],
        *,
        trim: VideoSettings,
        keep_partial: bool,
    ) -> None:
        self._kinds = [kind for kind, _ in outputs]
        self._writers: list[VideoWriter] = []
        info = reader.info
        source = info.path if info.path.is_file() and info.container != "images" else None
        try:
            for (kind, path), encoding in zip(outputs, encodings, strict=True):
                is_mask = kind == "mask"
                color = matte_color(info.color, full_range=mask_is_full_range(encoding))
                self._writers.append(
                    VideoWriter(
                        path,
                        info=replace(info, color=color) if is_mask else info,
                        encoding=encoding,
                        copy_from=source,
                        start_seconds=trim.start_seconds or None,
                        end_seconds=trim.end_seconds,
                        hdr=None if is_mask else reader.hdr,
                        keep_partial=keep_partial,
                    )
                )
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> OutputSet:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove whatever was neither finished nor kept."""
        self._discard()

    def write(self, rendered: Rendered) -> None:
        """Encode the next frame into every file."""
        for kind, writer, picture in zip(self._kinds, self._writers, rendered.pictures, strict=True):
            if kind == "alpha":
                writer.write_with_alpha(picture, rendered.matte.alpha)
            else:
                writer.write(picture)

    def finish(self) -> tuple[OutputReport, ...]:
        """Complete every file and give it its name.

        Raises:
            OutputError: The disk failed, or no frame was written.
        """
        for writer in self._writers:
            writer.complete()
        # Only when all are whole does the first one get its name.
        for writer in self._writers:
            writer.publish()
        return tuple(
            _summarise(kind, writer.report) for kind, writer in zip(self._kinds, self._writers, strict=True)
        )

    def keep_partial(self) -> list[Path]:
        """Complete what can be completed and keep it as ``.part``; the paths of what was kept."""
        kept = [writer.keep_partial() for writer in self._writers]
        return [path for path in kept if path is not None]

    def _discard(self) -> None:
        for writer in self._writers:
            writer.discard()


def _summarise(kind: OutputKind, written: WriteReport) -> OutputReport:
    changes = [
        f"{stream.kind} ({stream.codec}) {stream.action}"
        + (f" to {stream.target_codec}" if stream.action == "re-encoded" else "")
        + (f": {stream.reason}" if stream.reason else "")
        for stream in written.streams
        if stream.action != "copied"
    ]
    return OutputReport(
        path=written.path,
        kind=kind,
        codec=written.codec,
        size_bytes=written.byte_count,
        notes=(*written.notes, *changes),
    )
