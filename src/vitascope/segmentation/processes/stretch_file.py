"""Finished stretches of a video as files, and the folders that they lie in: a run's own, and one that all runs share.

A file holds what made the stretch, the packets of all its frames, and what became of them. It is a line that says what
it is, then records: a JSON head and some binary parts, whose sizes the head tells,
under a CRC-32. The first record says what made the stretch, one for each step of the encoders follows, and the last
sums up. The file gets its name when it is whole and on the disk, so whoever finds one may use it, and two who make the
same stretch do not disturb one another.

A run's own folder is beside its output until the output is whole. What runs share lies in ``stretches`` below
Vitascope's home, by what made it, up to a size: a second cut makes only what changes. What was unused for longest goes
first.
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
"""Bytes of a record's head and of its parts; and the CRC-32 of all three."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """What the encoders gave out since the last time."""

    parameter_sets: tuple[bytes, ...] | None
    """Each output's encoder's; with the first packets of a stretch only."""
    times: tuple[FrameTime, ...]
    """When the encoded frames are shown."""
    packets: tuple[tuple[EncodedPacket, ...], ...]
    """For each output, its packets."""
    stills: tuple[Rgb8, ...] = ()
    """uint8 RGB [H, W, 3], for the contact sheet."""


@dataclass(frozen=True, slots=True)
class StretchSummary:
    """What the whole video's report says of a stretch."""

    frame_count: int
    cut_count: int
    corrupt_count: int
    damage: str | None
    """Why it could not be read to its end."""
    notes: tuple[str, ...]
    network_size: tuple[int, int]
    """(height, width)."""
    engine_name: str
    decoder: str
    shows_people: bool
    """Somebody was found in one of its frames."""
    kept_frames: tuple[KeptFrames, ...] = ()
    """In how many of them something of those who are kept is seen."""


class StretchWriter(Closing):
    """Writes a stretch's file. A context manager, which removes what was not finished.

    Args:
        path: The file; its folder exists.
        made_by: What makes it; JSON can say it.

    Raises:
        OutputError: It cannot be written.
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
        """Remove what was not finished."""
        if not self._is_finished:
            # What is still buffered would be written now, to a disk that may be full, and is to be removed.
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._partial.unlink()

    def write(self, encoded: Encoded) -> None:
        """Append what the encoders gave out.

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
        """Complete the file and give it its name, in place of one that is there.

        Raises:
            OutputError: The disk is full, or failed.
        """
        self._record({"summary": asdict(summary)})
        with wrap_output_error(self._path, "finish it"):
            self._file.flush()
            os.fsync(self._file.fileno())  # a power cut must not leave half of it under the final name
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
        path: Its file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.summary: StretchSummary | None = None
        """Known when all was read."""

    def is_whole(self, *, made_by: Mapping[str, Any]) -> bool:
        """True when it is what would be made now, to its end and undamaged; then ``summary`` is known.

        Args:
            made_by: What would make it now.
        """
        try:
            records = self._records()
            # As JSON has it: without tuples.
            if next(records)[0].get("made_by") != json.loads(json.dumps(dict(made_by))):
                return False
            for _ in records:
                pass
        except OutputError:
            return False
        assert self.summary is not None  # or reading had failed
        return self.summary.damage is None

    def encoded(self) -> Iterator[Encoded]:
        """All that the encoders gave out, in order; then ``summary`` is known.

        Raises:
            OutputError: The file is gone or damaged.
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
        """Heads and parts of all but the last record, which becomes ``summary``."""
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
        return OutputError(f"{self.path}: it is damaged; --resume makes this stretch again")


def _summary(values: dict[str, Any]) -> StretchSummary:
    height, width = values.pop("network_size")
    kept_frames = tuple(KeptFrames(*one) for one in values.get("kept_frames", ()))
    sequences = {"notes": tuple(values["notes"]), "kept_frames": kept_frames}
    return StretchSummary(**values | sequences | {"network_size": (height, width)})


_SUFFIX, _PARTIAL_SUFFIX = ".stretch", ".part"
_ABANDONED_SECONDS = 3600.0


class WorkFolder:
    """The folder of a run beside its output, made where it is not there. A context manager.

    The outputs are locked, so no other run uses it.

    It is removed when all went well, and where the input is to blame, which another run would meet again. Else what is
    finished stays, and the error says so.

    Args:
        output: The first output of the video.
        resume: Keep the stretches that an earlier run made; else they are removed.

    Raises:
        OutputError: It cannot be made, or not emptied.
    """

    def __init__(self, output: Path, *, resume: bool) -> None:
        pictures = picture_folder(output)
        target = (output if pictures is None else pictures.folder).absolute()
        self.path = target.with_name(f".{shortened_name(target.name)}.stretches")
        with wrap_output_error(self.path, "create it"):
            if self.path.exists() and not resume:
                remove_folder(self.path)
            self.path.mkdir(exist_ok=True)
            for left_over in self.path.glob(".*.part"):  # of processes that were killed
                left_over.unlink()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Remove it, unless another run can go on from it."""
        count = finished_stretches(self.path)
        if error is None or not count or getattr(error, "exit_code", None) == InputError.exit_code:
            self.remove()
            return
        for left_over in self.path.glob(".*.part"):  # of processes that were just ended
            left_over.unlink(missing_ok=True)
        add_to_line(
            error, f"--resume continues from {count} finished stretch{'es' * (count > 1)} in {self.path.name}"
        )

    def with_copy_of(self, file: Path) -> Path:
        """Put a copy of a file there, for all who make stretches; where it is.

        Raises:
            OutputError: It cannot be written.
        """
        copy = self.path / file.name
        with wrap_output_error(copy, "write it"):
            if isinstance(copy, RemotePath):
                copy.receive(file)
            else:
                shutil.copyfile(file, copy)
        return copy

    def file_of(self, number: int) -> Path:
        """The file of a stretch."""
        return self.path / f"{number:05}{_SUFFIX}"

    def remove(self) -> None:
        """Remove it with all that lies in it; one that is gone is fine."""
        with suppress(OSError):
            remove_folder(self.path)


def finished_stretches(folder: Path) -> int:
    """How many lie in a video's folder; 0 where it is not there."""
    return sum(1 for _ in folder.glob(f"*{_SUFFIX}"))


class KeptStretches:
    """The folder of finished stretches that runs share.

    Args:
        most_bytes: Most bytes of all of them together; one that is larger is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._folder, self._most_bytes = _folder(), most_bytes

    @classmethod
    def of(cls, settings: Settings, *, wanted: bool | None = None) -> Self | None:
        """The folder as settings ask for it: where matte caching is on, or hints are given.

        Args:
            settings: The run's settings.
            wanted: Whether it is kept whatever they say.
        """
        if wanted is None:
            wanted = settings.processing.enable_caching or settings.people.hints is not None
        return cls(int(settings.processing.cache_size_gb * 1e9)) if wanted else None

    def take(self, made_by: Mapping[str, Any], path: Path) -> bool:
        """Put the stretch that was made by this under a name of the caller's; False where there is none."""
        kept = self._file(made_by)
        try:
            _put(kept, path)
            os.utime(kept, ns=(time.time_ns(),) * 2)
        except OSError:  # nobody made it, or it has just gone
            return False
        return True

    def keep(self, made_by: Mapping[str, Any], path: Path) -> None:
        """Keep a finished stretch; where the disk refuses, it is made again another time."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._make_room(path.stat().st_size):
                _put(path, self._file(made_by))

    def _file(self, made_by: Mapping[str, Any]) -> Path:
        text = json.dumps(made_by, sort_keys=True)
        return self._folder / f"{blake2b(text.encode(), digest_size=20).hexdigest()}{_SUFFIX}"

    def _make_room(self, size: int) -> bool:
        """Remove what was unused for longest until so much more fits; False for what never does."""
        if size > self._most_bytes:
            return False
        for left_over in self._folder.glob(f"*{_PARTIAL_SUFFIX}"):  # of processes that were killed
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
    """All that are kept, by anybody."""
    return list(_folder().glob(f"*{_SUFFIX}"))


def _folder() -> Path:
    return vitascope_home() / "stretches"


def _put(source: Path, target: Path) -> None:
    """Another name for a file that nobody changes; a copy, where the two lie on different disks."""
    partial = target.with_name(f".{secrets.token_hex(8)}{_PARTIAL_SUFFIX}")
    try:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)  # two names of one file are not replaced by one another
