r"""Reads and writes recorded motion, ``.motion`` files of plain numbers.

The format, version 1::

    VITASCOPE-MOTION 1\n           the magic line, ASCII; the number is the format's version
    {"fields": [...], ...}\n       one line of JSON (UTF-8, at most 64 KiB), described below
    row row row …                  until the end of the file

``fields`` lists the columns of a row in order, each ``{"name": …, "type": "f2" | "f4" | "f8", "shape": [...]}``;
``blendshapes`` names the weights in their order; ``frame_rate`` is nominal (rows have their own times). A row consists
of its columns, little-endian, without gaps, and the CRC-32 of these bytes as an unsigned 32-bit number. Columns are
documented by the attributes of ``FaceMotion`` of the same names; ``rotation`` is an axis times its angle in radians.
``vertices``, ``eye_closure`` and ``gaze`` are optional. Rows are in order of ``pts_seconds``, which increases.

A reader executes nothing in a file, and reads only what the header announces.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from vitascope.animation.face import (
    BLENDSHAPES,
    MESH_VERTEX_COUNT,
    FaceMotion,
    FloatArray,
    rotation_from_vector,
    rotation_vector,
)
from vitascope.closing import Closing
from vitascope.errors import CorruptInputError, InputError, OutputError
from vitascope.media.writing.output_target import PartialFile

MOTION_SUFFIX = ".motion"
_MAGIC = b"VITASCOPE-MOTION "
_VERSION = 1
_MAX_HEADER_BYTES = 64 * 1024
_CRC_BYTES = 4
_SHAPES: dict[str, tuple[int, ...]] = {
    "pts_seconds": (),
    "presence": (),
    "rotation": (3,),
    "scale": (),
    "translation": (2,),
    "blendshapes": (len(BLENDSHAPES),),
    "neutral_blendshapes": (len(BLENDSHAPES),),
    "eye_closure": (2,),
    "gaze": (2, 2),
    "vertices": (MESH_VERTEX_COUNT, 3),
}
_REQUIRED = tuple(name for name in _SHAPES if name not in ("vertices", "eye_closure", "gaze"))
_TYPES = {"f2", "f4", "f8"}


@dataclass(frozen=True, slots=True)
class MotionHeader:
    """The header of a motion file."""

    frame_rate: float
    """Nominal rows a second."""
    has_vertices: bool
    """True if rows hold the mesh's displacement, not only blendshapes."""
    title: str = ""


class MotionWriter:
    """Writes motion as it comes. A context manager; the file gets its name when it is complete.

    Args:
        path: The file.
        frame_rate: Nominal rows a second.
        with_vertices: Also store the mesh's displacement, in half precision: 3 KB per row instead of 0.5.
        with_eyes: Store eye closure and gaze; if not (authored motion), they follow from the weights.
        title: One line of text for readers.

    Raises:
        OutputError: The file cannot be written, or is being written already.
    """

    def __init__(
        self,
        path: Path,
        *,
        frame_rate: float = 30.0,
        with_vertices: bool = True,
        with_eyes: bool = True,
        title: str = "",
    ) -> None:
        self._path = path
        names = [
            name
            for name in _SHAPES
            if (with_vertices or name != "vertices") and (with_eyes or name not in ("eye_closure", "gaze"))
        ]
        kinds = {"pts_seconds": "f8", "vertices": "f2"}
        fields = [
            {"name": name, "type": kinds.get(name, "f4"), "shape": list(_SHAPES[name])} for name in names
        ]
        self._dtype = _row_type(fields)
        self._last_seconds = -math.inf
        self.row_count = 0
        """Number of rows written so far."""
        header = {
            "fields": fields,
            "blendshapes": list(BLENDSHAPES),
            "frame_rate": frame_rate,
            "title": title,
        }
        self._partial = PartialFile(path)
        self._file: IO[bytes] | None = None
        try:
            self._file = self._partial.path.open("wb")
            self._file.write(_MAGIC + str(_VERSION).encode() + b"\n")
            self._file.write(json.dumps(header, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
            self._partial.discard()
            raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Complete the file; remove it after an error, or after a Ctrl-C before the first row."""
        if error is None or (isinstance(error, KeyboardInterrupt) and self.row_count):
            self.finish()
        else:
            self.discard()

    def write(self, motion: FaceMotion) -> None:
        """Append one motion; it is skipped if its time is not later than the last one's.

        Raises:
            OutputError: The disk failed, or the motion lacks the vertices that the file stores.
        """
        if self._file is None:
            raise OutputError(f"{self._path}: is finished; no more motion can be written")
        if motion.pts_seconds <= self._last_seconds:
            return
        self._last_seconds = motion.pts_seconds
        row = np.zeros((), self._dtype)
        for name in self._dtype.names or ():
            value = rotation_vector(motion.rotation) if name == "rotation" else getattr(motion, name)
            # Before the first face, the motion is neutral.
            row[name] = 0 if value is None else value
        data = row.tobytes()
        try:
            self._file.write(data + zlib.crc32(data).to_bytes(_CRC_BYTES, "little"))
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written ({error.strerror or error})") from error
        self.row_count += 1

    def finish(self) -> None:
        """Give the file its name. Does nothing when called again.

        Raises:
            OutputError: The disk failed, or there is no row.
        """
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
            if self.row_count:
                self._partial.commit()
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written ({error.strerror or error})") from error
        finally:
            self._partial.discard()  # no effect on a finished file
        if self.row_count == 0:
            raise OutputError(f"{self._path}: nothing was recorded: the driver gave no frame")

    def discard(self) -> None:
        """Remove the file, unless it is finished."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # buffered rows may not fit on a full disk
                file.close()
            self._partial.discard()


def write_motion(
    path: Path, motions: Iterable[FaceMotion], *, frame_rate: float = 30.0, title: str = ""
) -> None:
    """Write authored motion: weights and pose, without vertices.

    Raises:
        OutputError: The file cannot be written, or there is no motion.
    """
    with MotionWriter(
        path, frame_rate=frame_rate, with_vertices=False, with_eyes=False, title=title
    ) as writer:
        for motion in motions:
            writer.write(motion)


class MotionReader(Closing):
    """Reads a motion file: its header at once, its rows on demand. A context manager.

    Args:
        path: The file.

    Raises:
        InputError: The file cannot be read, is not a motion file, or has an unknown version.
        CorruptInputError: Its header is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: recorded motion must be a file, not a folder, a pipe or a device")
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
        try:
            self._dtype, self.header = self._read_header()
            self._begin = self._file.tell()
            size = path.stat().st_size - self._begin
        except BaseException:
            self._file.close()
            raise
        self.row_count = size // (self._dtype.itemsize + _CRC_BYTES)
        """Number of whole rows in the file."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[FaceMotion]:
        """Iterate over all motions, from the beginning.

        Raises:
            CorruptInputError: A row is damaged or cut off, holds invalid numbers, or goes back in time.
        """
        self._file.seek(self._begin)
        last_seconds, index, size = -math.inf, 0, self._dtype.itemsize
        while data := self._file.read(size + _CRC_BYTES):
            if len(data) < size + _CRC_BYTES:
                raise CorruptInputError(f"{self._path}: it is cut off in row {index}")
            if zlib.crc32(data[:size]).to_bytes(_CRC_BYTES, "little") != data[size:]:
                raise CorruptInputError(f"{self._path}: row {index} is damaged (its checksum differs)")
            motion = _motion(np.frombuffer(data[:size], self._dtype)[0])
            if motion is None or motion.pts_seconds <= last_seconds:
                raise CorruptInputError(f"{self._path}: row {index} holds invalid numbers")
            last_seconds = motion.pts_seconds
            index += 1
            yield motion
        if index == 0:
            raise CorruptInputError(f"{self._path}: it holds no motion")

    def between(self, start_seconds: float, end_seconds: float | None) -> Iterator[tuple[float, FaceMotion]]:
        """Read the motions of a stretch, each with its time in seconds since the file's first row.

        Args:
            start_seconds: Start of the stretch.
            end_seconds: End of the stretch; None reads to the end of the file.

        Raises:
            CorruptInputError: As from ``__iter__``.
        """
        first: float | None = None
        for motion in self:
            first = motion.pts_seconds if first is None else first
            seconds = motion.pts_seconds - first
            if end_seconds is not None and seconds >= end_seconds:
                return
            if seconds >= start_seconds:
                yield seconds, motion

    def _read_header(self) -> tuple[np.dtype[Any], MotionHeader]:
        magic = self._file.readline(len(_MAGIC) + 12)
        if not magic.startswith(_MAGIC) or not magic.endswith(b"\n"):
            raise InputError(
                f"{self._path}: not a motion file (it does not begin with {_MAGIC.decode().strip()})"
            )
        version = magic[len(_MAGIC) :].strip()
        if version != str(_VERSION).encode():
            raise InputError(
                f"{self._path}: a motion file of version {version.decode(errors='replace')}; "
                f"this program reads version {_VERSION}"
            )
        line = self._file.readline(_MAX_HEADER_BYTES + 1)
        if not line.endswith(b"\n"):
            raise CorruptInputError(
                f"{self._path}: its header is cut off or longer than {_MAX_HEADER_BYTES} bytes"
            )
        try:
            dtype, frame_rate, title = _read_fields(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptInputError(f"{self._path}: its header is damaged ({error})") from error
        return dtype, MotionHeader(frame_rate, "vertices" in (dtype.names or ()), title)


def _read_fields(header: dict[str, Any]) -> tuple[np.dtype[Any], float, str]:
    """Read row type, frame rate and title from a header.

    Raises:
        ValueError: A value in it is invalid.
    """
    dtype = _row_type(header["fields"])
    frame_rate = float(header.get("frame_rate", 30.0))
    if tuple(header["blendshapes"]) != BLENDSHAPES:
        raise ValueError("its blendshapes differ from this version's")
    if missing := [name for name in _REQUIRED if name not in (dtype.names or ())]:
        raise ValueError(f"it lacks {missing[0]}")
    if not 0.1 <= frame_rate <= 1000:
        raise ValueError("its frame rate is out of range")
    return dtype, frame_rate, str(header.get("title", ""))[:200]


def _row_type(fields: list[dict[str, Any]]) -> np.dtype[Any]:
    """Make the row type from the header's columns.

    Raises:
        ValueError: A column is unknown, appears twice, or has another shape or type.
    """
    columns = []
    for field in fields:
        name, kind, shape = field["name"], field["type"], tuple(field["shape"])
        if name not in _SHAPES or shape != _SHAPES[name] or kind not in _TYPES:
            raise ValueError(f"an unknown column {str(name)[:40]!r}")
        columns.append((name, f"<{kind}", shape))
    if len({column[0] for column in columns}) != len(columns):
        raise ValueError("a column appears twice")
    return np.dtype(columns)


def _motion(row: npt.NDArray[Any]) -> FaceMotion | None:
    """Convert a row to motion; None if its values are invalid."""
    names = row.dtype.names or ()
    seconds = float(row["pts_seconds"])
    values: dict[str, FloatArray] = {name: np.asarray(row[name], np.float32) for name in names}
    if not math.isfinite(seconds):
        return None
    if not all(np.isfinite(value).all() and (abs(value) < 1e6).all() for value in values.values()):
        return None
    if not 0.01 <= float(values["scale"]) <= 100:
        return None
    optional: dict[str, Any] = {
        name: values[name] for name in ("eye_closure", "gaze", "vertices") if name in names
    }
    motion = FaceMotion(
        rotation=rotation_from_vector(values["rotation"]),
        scale=float(values["scale"]),
        translation=values["translation"],
        blendshapes=values["blendshapes"],
        neutral_blendshapes=values["neutral_blendshapes"],
        presence=float(values["presence"]),
        pts_seconds=seconds,
    )
    return replace(motion, **optional)
