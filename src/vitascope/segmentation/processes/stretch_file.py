"""Finished stretches of a video as files, and the folders that hold them: a run's own, and one shared by all runs.

A file begins with a line that identifies the format. Records follow: a JSON head and binary parts, whose sizes the
head gives, and a CRC-32. The first record describes what made the stretch; then comes one for each step of the
encoders; the last is a summary. A file gets its name only when it is complete and on disk, so any file found can be
used, and two makers of the same stretch do not disturb each other.

A run's own folder lies beside its output until the output is complete. The shared folder is ``stretches`` below
Vitascope's home. Its files are found by what made them, so that a second run only makes what has changed; above a
total size, the least recently used are removed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from fractions import Fraction
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from vitascope.closing import Closing
from vitascope.config import Settings, vitascope_home
from vitascope.errors import InputError, OutputError, add_to_line
from vitascope.media.libav import wrap_output_error
from vitascope.media.remote import RemotePath, remove_folder
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.output_target import picture_folder, shortened_name
from vitascope.media.writing.segment_encoder import EncodedPacket
from vitascope.segmentation.people.kept import KeptFrames
from vitascope.segmentation.render.contact_sheet import Rgb8

_MAGIC = b"Vitascope stretch 1\n"
_SIZES, _CHECKSUM = struct.Struct("<IQ"), struct.Struct("<I")
"""Sizes of a record's head and of its parts; and the CRC-32 of all three."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Output of the encoders since the last step."""

    parameter_sets: tuple[bytes, ...] | None
    """For each output, its encoder's; only with the first packets of a stretch."""
    times: tuple[FrameTime, ...]
    """Presentation times of the encoded frames."""
    packets: tuple[tuple[EncodedPacket, ...], ...]
    """Packets of each output."""
    stills: tuple[Rgb8, ...] = ()
    """Stills for the contact sheet, uint8 RGB [H, W, 3]."""


@dataclass(frozen=True, slots=True)
class StretchSummary:
    """Facts about a stretch for the video's report."""

    frame_count: int
    cut_count: int
    corrupt_count: int
    damage: str | None
    """Why it could not be read to its end; None if it was."""
    notes: tuple[str, ...]
    network_size: tuple[int, int]
    """(height, width) of the network's input."""
    engine_name: str
    decoder: str
    shows_people: bool
    """True if somebody was found in one of its frames."""
    kept_frames: tuple[KeptFrames, ...] = ()
    """Number of its frames in which each kept person is seen."""


class StretchWriter(Closing):
    """Writes a stretch's file. A context manager; on leaving, an unfinished file is removed.

    Args:
        path: The file; its folder must exist.
        made_by: What makes it, as values that JSON can hold.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, *, made_by: Mapping[str, Any]) -> None:
        self._path = path
        name = f".{path.name}.{secrets.token_hex(4)}.part"
        is_here = not isinstance(path, RemotePath)
        self._partial = path.with_name(name) if is_here else Path(tempfile.gettempdir(), f"vitascope-{name}")
        with wrap_output_error(path, "create it"):
            self._file: BinaryIO = self._partial.open("xb")
        self._is_finished = False
        try:
            self._add(_MAGIC)
            self._record({"made_by": dict(made_by)})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the file unless it is finished."""
        if not self._is_finished:
            # Closing flushes the buffer to a disk that may be full; the file is removed anyway.
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._partial.unlink()

    def write(self, encoded: Encoded) -> None:
        """Append one step of the encoders.

        Raises:
            OutputError: The disk is full, or failed.
        """
        parts = list(encoded.parameter_sets or ())
        packets = []
        for of_output in encoded.packets:
            heads = []
            for packet in of_output:
                names = [name for name, _ in packet.side_data]
                heads.append((packet.pts, packet.dts, packet.is_keyframe, names))
                parts += [packet.data, *(content for _, content in packet.side_data)]
            packets.append(heads)
        parts += [still.tobytes() for still in encoded.stills]
        times = [(time.pts, str(time.time_base), time.duration) for time in encoded.times]
        head: dict[str, Any] = {"times": times, "packets": packets}
        if encoded.parameter_sets is not None:
            head["parameter_sets"] = len(encoded.parameter_sets)
        if encoded.stills:
            head["stills"] = [still.shape for still in encoded.stills]
        self._record(head, parts)

    def finish(self, summary: StretchSummary) -> None:
        """Complete the file and give it its name, replacing an existing one.

        Raises:
            OutputError: The disk is full, or failed.
        """
        self._record({"summary": asdict(summary)})
        with wrap_output_error(self._path, "finish it"):
            self._file.flush()
            os.fsync(self._file.fileno())  # so that a power cut cannot leave half a file under the final name
            self._file.close()
            if isinstance(self._path, RemotePath):
                self._path.receive(self._partial)
                self._partial.unlink()
            else:
                self._partial.replace(self._path)
        self._is_finished = True

    def _record(self, head: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
        text = json.dumps({**head, "sizes": [*map(len, parts)]}, separators=(",", ":")).encode()
        body = b"".join(parts)
        content = b"".join((_SIZES.pack(len(text), len(body)), text, body))
        self._add(content + _CHECKSUM.pack(zlib.crc32(content)))

    def _add(self, content: bytes) -> None:
        with wrap_output_error(self._path, "write it"):
            self._file.write(content)


class StretchFile:
    """A finished stretch.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.summary: StretchSummary | None = None
        """Set once the file was read to its end."""

    def is_whole(self, *, made_by: Mapping[str, Any]) -> bool:
        """True if the file is what would be made now, complete and undamaged; sets ``summary``.

        Args:
            made_by: What would make it now.
        """
        try:
            records = self._records()
            # Compare as JSON, which has no tuples.
            if next(records)[0].get("made_by") != json.loads(json.dumps(dict(made_by))):
                return False
            for _ in records:
                pass
        except OutputError:
            return False
        assert self.summary is not None  # set by reading to the end
        return self.summary.damage is None

    def encoded(self) -> Iterator[Encoded]:
        """Yield all steps of the encoders, in order; set ``summary`` at the end.

        Raises:
            OutputError: The file is missing or damaged.
        """
        records = self._records()
        next(records)
        for head, parts in records:
            taken = iter(parts)
            sets = head.get("parameter_sets")
            parameter_sets = None if sets is None else tuple(next(taken) for _ in range(sets))
            packets = tuple(
                tuple(
                    EncodedPacket(
                        next(taken), pts, dts, is_keyframe, tuple((name, next(taken)) for name in names)
                    )
                    for pts, dts, is_keyframe, names in of_output
                )
                for of_output in head["packets"]
            )
            yield Encoded(
                parameter_sets,
                tuple(FrameTime(pts, Fraction(base), duration) for pts, base, duration in head["times"]),
                packets,
                tuple(
                    np.frombuffer(next(taken), np.uint8).reshape(shape) for shape in head.get("stills", ())
                ),
            )

    def _records(self) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
        """Head and parts of all records but the last, which becomes ``summary``."""
        with wrap_output_error(self.path, "read it"), self.path.open("rb") as file:
            size = self.path.stat().st_size
            if file.read(len(_MAGIC)) != _MAGIC:
                raise self._damaged()
            while len(sizes := file.read(_SIZES.size)) == _SIZES.size:
                text_size, body_size = _SIZES.unpack(sizes)
                if text_size + body_size > size:
                    break
                text, body, sum_of_all = map(file.read, (text_size, body_size, _CHECKSUM.size))
                if sum_of_all != _CHECKSUM.pack(zlib.crc32(b"".join((sizes, text, body)))):
                    break
                head = json.loads(text)
                if "summary" in head:
                    self.summary = _summary(head["summary"])
                    return
                ends = [*accumulate(head["sizes"], initial=0)]
                yield head, [body[begin:end] for begin, end in pairwise(ends)]
            raise self._damaged()

    def _damaged(self) -> OutputError:
        return OutputError(f"{self.path}: the file is damaged; --resume makes this stretch again")


def _summary(values: dict[str, Any]) -> StretchSummary:
    height, width = values.pop("network_size")
    kept_frames = tuple(KeptFrames(*one) for one in values.get("kept_frames", ()))
    sequences = {"notes": tuple(values["notes"]), "kept_frames": kept_frames}
    return StretchSummary(**values | sequences | {"network_size": (height, width)})


_SUFFIX, _PARTIAL_SUFFIX = ".stretch", ".part"
_ABANDONED_SECONDS = 3600.0


class WorkFolder:
    """The folder of a run beside its output, created if necessary. A context manager.

    The outputs are locked, so no other run uses the folder.

    It is removed after success, and after errors in the input, which another run would meet again. Otherwise finished
    stretches stay, and the error says so.

    Args:
        output: The first output of the video.
        resume: Keep stretches of an earlier run; otherwise they are removed.

    Raises:
        OutputError: The folder cannot be created or emptied.
    """

    def __init__(self, output: Path, *, resume: bool) -> None:
        pictures = picture_folder(output)
        target = (output if pictures is None else pictures.folder).absolute()
        self.path = target.with_name(f".{shortened_name(target.name)}.stretches")
        with wrap_output_error(self.path, "create it"):
            if self.path.exists() and not resume:
                remove_folder(self.path)
            self.path.mkdir(exist_ok=True)
            for left_over in self.path.glob(".*.part"):  # from processes that were killed
                left_over.unlink()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove the folder, unless another run can continue from it."""
        count = finished_stretches(self.path)
        if error is None or not count or getattr(error, "exit_code", None) == InputError.exit_code:
            self.remove()
            return
        for left_over in self.path.glob(".*.part"):  # from processes that were just stopped
            left_over.unlink(missing_ok=True)
        add_to_line(
            error, f"--resume continues from {count} finished stretch{'es' * (count > 1)} in {self.path.name}"
        )

    def with_copy_of(self, file: Path) -> Path:
        """Copy a file into the folder, for all makers; returns the copy's path.

        Raises:
            OutputError: The copy cannot be written.
        """
        copy = self.path / file.name
        with wrap_output_error(copy, "write it"):
            if isinstance(copy, RemotePath):
                copy.receive(file)
            else:
                shutil.copyfile(file, copy)
        return copy

    def file_of(self, number: int) -> Path:
        """The path of a stretch's file."""
        return self.path / f"{number:05}{_SUFFIX}"

    def remove(self) -> None:
        """Remove the folder and its content; it may be missing."""
        with suppress(OSError):
            remove_folder(self.path)


def finished_stretches(folder: Path) -> int:
    """Number of finished stretches in a video's folder; 0 if the folder does not exist."""
    return sum(1 for _ in folder.glob(f"*{_SUFFIX}"))


class KeptStretches:
    """The folder of finished stretches that runs share.

    Args:
        most_bytes: Maximum size of all stretches together, in bytes; a larger stretch is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._folder, self._most_bytes = _folder(), most_bytes

    @classmethod
    def of(cls, settings: Settings, *, wanted: bool | None = None) -> Self | None:
        """The folder, if the settings ask for it: with matte caching, or with hints.

        Args:
            settings: The run's settings.
            wanted: Overrides the settings if given.
        """
        if wanted is None:
            wanted = settings.processing.enable_caching or settings.people.hints is not None
        return cls(int(settings.processing.cache_size_gb * 1e9)) if wanted else None

    def take(self, made_by: Mapping[str, Any], path: Path) -> bool:
        """Link a kept stretch that was made by this to the caller's path; False if there is none."""
        kept = self._file(made_by)
        try:
            _put(kept, path)
            os.utime(kept, ns=(time.time_ns(),) * 2)
        except OSError:  # not made, or just removed
            return False
        return True

    def keep(self, made_by: Mapping[str, Any], path: Path) -> None:
        """Keep a finished stretch; if the disk refuses, it is made again next time."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._make_room(path.stat().st_size):
                _put(path, self._file(made_by))

    def _file(self, made_by: Mapping[str, Any]) -> Path:
        text = json.dumps(made_by, sort_keys=True)
        return self._folder / f"{blake2b(text.encode(), digest_size=20).hexdigest()}{_SUFFIX}"

    def _make_room(self, size: int) -> bool:
        """Remove the least recently used stretches until ``size`` bytes fit; False if they never can."""
        if size > self._most_bytes:
            return False
        for left_over in self._folder.glob(f"*{_PARTIAL_SUFFIX}"):  # from processes that were killed
            if left_over.stat().st_mtime + _ABANDONED_SECONDS < time.time():
                left_over.unlink(missing_ok=True)
        files = [(file.stat(), file) for file in kept_stretch_files()]
        total = sum(known.st_size for known, _ in files)
        for known, file in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total + size <= self._most_bytes:
                break
            total -= known.st_size
            file.unlink(missing_ok=True)
        return True


def kept_stretch_files() -> list[Path]:
    """All kept stretches, of all runs."""
    return list(_folder().glob(f"*{_SUFFIX}"))


def _folder() -> Path:
    return vitascope_home() / "stretches"


def _put(source: Path, target: Path) -> None:
    """Link a file, which nobody changes, to another name; copy it if that is on another disk."""
    partial = target.with_name(f".{secrets.token_hex(8)}{_PARTIAL_SUFFIX}")
    try:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)  # rename does nothing if both are names of one file
