"""Mattes that outlive a run: what the network answered for a video, kept for the next run over it.

One stretch of one video, under one set of settings that change mattes, is a list of entries of ``CacheManager``:
records of a few dozen frames each (``matte_records``), the network's memory at the last of them from which a run can
go on, and a manifest that is written after what it names. Whatever is missing, damaged or was evicted is inferred
again; a run that was interrupted, however, leaves what it had.

Entries are read once, in order, and verified as a whole by their checksum, so they are read and not mapped into memory.

The network's answers for a stretch of frames, as bytes: small, and exact where it matters.

Most of a matte is plainly background or plainly person. A sample of coefficients is *plain* where alpha is 0 (or 1)
whatever grey the picture shows there, and the same holds for its eight neighbours: everything that is interpolated
from it then is 0 (or 1), too. Plain samples are kept as two bits, the others as they are. What is unpacked refines to
the very same alpha for every picture whose greys lie in ``GREYS``: all colours that exist, with a margin for noise.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.gpu.memory.disk_cache import CacheManager
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput

GREYS = (-0.1, 1.1)
"""Means of R, G and B, full scale 1, that pictures may show."""

_HEAD = struct.Struct("<I")
_ZERO, _ONE, _OWN = 0, 1, 2
_NEIGHBOURS = np.ones((3, 3), np.uint8)


class DamagedRecordError(Exception):
    """The bytes are no record."""


def pack_estimates(estimates: Sequence[MatteEstimate]) -> npt.NDArray[np.uint8]:
    """Estimates as bytes.

    Args:
        estimates: gain and offset, float32 or float16 [E, C, h, w] in the host's memory, alpha's plane last; one and
            the same object repeatedly where a matte serves several frames, which is kept once.

    Returns:
        uint8 [n].
    """
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    at = 0
    known: dict[int, int] = {}
    for index, estimate in enumerate(estimates):
        if id(estimate) in known:
            entries.append({"same": known[id(estimate)]})
            continue
        known[id(estimate)] = index
        gain, offset = estimate.gain, estimate.offset
        assert gain is not None  # coefficients, by contract
        assert offset is not None
        kinds = _kinds(gain[:, -1], offset[:, -1])
        own = kinds == _OWN
        bits = np.packbits(np.stack([own, kinds == _ONE]))
        # Planes of the same sample apart: what is read is a run of each.
        values = [plane[:, channel][own] for plane in (gain, offset) for channel in range(gain.shape[1])]
        body = [bits.tobytes(), *(np.ascontiguousarray(value).tobytes() for value in values)]
        size = sum(map(len, body))
        entries.append({"at": at, "size": size, "shape": gain.shape, "dtype": gain.dtype.str})
        parts += body
        at += size
    head = json.dumps(entries).encode()
    return np.frombuffer(b"".join([_HEAD.pack(len(head)), head, *parts]), np.uint8)


def unpack_estimates(record: npt.NDArray[np.uint8]) -> list[MatteEstimate]:
    """The estimates of a record, in the host's memory.

    Raises:
        DamagedRecordError: The bytes are no record.
    """
    content = np.ascontiguousarray(record).data.cast("B")
    try:
        (length,) = _HEAD.unpack_from(content)
        entries = json.loads(bytes(content[_HEAD.size : _HEAD.size + length]))
        body = content[_HEAD.size + length :]
        estimates: list[MatteEstimate] = []
        for entry in entries:
            if "same" in entry:
                estimates.append(estimates[entry["same"]])
            else:
                estimates.append(
                    _unpacked(
                        body[entry["at"] : entry["at"] + entry["size"]],
                        tuple(entry["shape"]),
                        np.dtype(entry["dtype"]),
                    )
                )
    except (struct.error, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DamagedRecordError(str(error)) from error
    return estimates


def _kinds(gain: npt.NDArray[Any], offset: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """What each sample [E, h, w] is: background, person, or to be kept."""
    slope, bias = gain.astype(np.float32), offset.astype(np.float32)
    ends = [slope * np.float32(grey) + bias for grey in GREYS]
    kinds = np.full(gain.shape, _OWN, np.uint8)
    for kind, plain in ((_ZERO, np.maximum(*ends) <= 0), (_ONE, np.minimum(*ends) >= 1)):
        for eye, own in zip(kinds, plain, strict=True):
            eye[cv2.erode(own.astype(np.uint8), _NEIGHBOURS) > 0] = kind
    return kinds


def _unpacked(body: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> MatteEstimate:
    eyes, channels, height, width = shape
    count = eyes * height * width
    bit_bytes = -(-2 * count // 8)
    bits = np.unpackbits(np.frombuffer(body[:bit_bytes], np.uint8), count=2 * count)
    own, one = bits.reshape(2, eyes, height, width).astype(bool)
    kept = int(own.sum())
    values = np.frombuffer(body[bit_bytes:], dtype).reshape(2, channels, kept)
    planes = np.zeros((2, eyes, channels, height, width), dtype)
    planes[1, :, -1][one] = 1
    for target, source in zip(planes, values, strict=True):
        for channel in range(channels):
            target[:, channel][own] = source[channel]
    return MatteEstimate(gain=planes[0], offset=planes[1])


_FORMAT = 1
_RECORD_FRAMES = 32
_OWN_SHARE = 0.9
"""The share of the cache that one stretch may fill: more would push out its own beginning."""


@dataclass(slots=True)
class _Manifest:
    """The kept part of a stretch."""

    network: dict[str, Any]
    """``NetworkInput`` of its pictures."""
    records: list[int] = field(default_factory=list)
    """First frame of each record."""
    cuts: list[int] = field(default_factory=list)
    """Frames that start a shot."""
    frames: int = 0
    """In all records."""
    is_complete: bool = False
    """True when the stretch ends there."""
    end_seconds: float | None = None
    """Where the run ended that completed it; None is the video's end."""
    resume_at: int = 0
    """Frame that another run can go on with."""
    memory_slot: int | None = None
    """Which entry holds the network's memory there; None when it begins again."""
    memory_arrays: int = 0
    """Arrays of that memory."""


class MatteCache:
    """One stretch of a film: first what an earlier run kept, then what this one adds.

    ``covers`` and ``starts_shot`` may be asked by any thread; ``take`` by one, ``keep`` and ``finish`` by one.

    Args:
        entries: Where everything lies.
        key: The stretch's key, see ``stretch_key``.
        end_seconds: Where this run ends; None is the video's end.
        capacity_bytes: Most bytes of ``entries``.
        keeps_memory: True when a run can only go on exactly from the network's memory.
    """

    def __init__(
        self,
        entries: CacheManager,
        key: str,
        *,
        end_seconds: float | None,
        capacity_bytes: int,
        keeps_memory: bool,
    ) -> None:
        self._entries, self._key = entries, key
        self._end_seconds = end_seconds
        self._keeps_memory = keeps_memory
        self.first_index = 0
        """Number of the stretch's first frame."""
        self.notes: list[str] = []
        self.known_frames = 0
        """Frames, from the first on, whose mattes are here."""
        self.is_complete = False
        """True when that is all of the stretch."""
        self._manifest: _Manifest | None = None
        self._loaded: tuple[int, list[MatteEstimate]] = (0, [])
        self._open()
        self._cuts: frozenset[int] = frozenset(self._manifest.cuts if self._manifest is not None else ())
        self._room = int(capacity_bytes * _OWN_SHARE)
        self._waiting: list[MatteEstimate] = []
        self._is_stopped = self.is_complete
        self._may_go_on = True

    @property
    def network_input(self) -> NetworkInput | None:
        """What the network saw of a whole eye; None if nothing is known."""
        if self._manifest is None:
            return None
        fields = dict(self._manifest.network)
        for name in ("size", "mean", "std"):
            fields[name] = tuple(fields[name])
        return NetworkInput(**fields)

    def covers(self, index: int) -> bool:
        """True for frames whose mattes are here."""
        return index - self.first_index < self.known_frames

    def starts_shot(self, index: int) -> bool:
        """True where a covered frame starts a shot."""
        return index - self.first_index in self._cuts

    def take(self, index: int) -> MatteEstimate | None:
        """The matte of a covered frame, in the host's memory; None when it is gone meanwhile. Asked in order."""
        assert self._manifest is not None  # covered frames have one
        index -= self.first_index
        first, estimates = self._loaded
        if not first <= index < first + len(estimates):
            first = max(begin for begin in self._manifest.records if begin <= index)
            estimates = self._read(first)
            self._loaded = first, estimates
        return estimates[index - first] if index < first + len(estimates) else None

    def memory(self) -> list[FloatArray]:
        """What the network remembered after the last covered frame; empty if that is not known, or a part is gone."""
        manifest = self._manifest
        if manifest is None or manifest.memory_slot is None or self.is_complete:
            return []
        names = [
            f"{self._key}/memory/{manifest.memory_slot}/{number}" for number in range(manifest.memory_arrays)
        ]
        arrays = [array for array in map(self._entries.get, names) if array is not None]
        return arrays if len(arrays) == len(names) else []

    def keep(
        self,
        estimate: MatteEstimate,
        *,
        starts_shot: bool,
        wanted: NetworkInput,
        memory: Sequence[FloatArray] | None = None,
        before: Sequence[FloatArray] | None = None,
    ) -> None:
        """Add the next frame's matte, from ``known_frames`` on.

        Args:
            estimate: Coefficients in the host's memory.
            starts_shot: True where nothing before it counts.
            wanted: What the network saw.
            memory: What it remembers after this frame, now and then.
            before: What it remembers before this frame, where a longer run makes other mattes from here on.
        """
        if self._is_stopped:
            return
        if self._manifest is None:
            self._manifest = _Manifest(network=asdict(wanted))
        if before is not None:
            self._store(before)
            self._may_go_on = False
        if starts_shot:
            self._manifest.cuts.append(self._manifest.frames + len(self._waiting))
        self._waiting.append(estimate)
        if memory or len(self._waiting) >= _RECORD_FRAMES:
            self._store(memory or ())

    def finish(self, *, is_whole: bool, memory: Sequence[FloatArray] | None = None) -> None:
        """Write what waits.

        Args:
            is_whole: True when the stretch ended, and was not broken off.
            memory: What the network remembers after it, so that a longer stretch can go on from there.
        """
        if self._is_stopped or self._manifest is None:
            return
        self._store(memory or (), is_whole=is_whole)
        self._is_stopped = True

    def _open(self) -> None:
        content = self._entries.get(f"{self._key}/manifest")
        if content is None:
            return
        try:
            manifest = _Manifest(**json.loads(content.tobytes()))
        except (ValueError, TypeError, RecursionError):  # of another version
            return
        ends_later = manifest.end_seconds is None or (
            self._end_seconds is not None and self._end_seconds <= manifest.end_seconds
        )
        known = manifest.frames if manifest.is_complete and ends_later else manifest.resume_at
        if not known or not manifest.records:
            return
        self._manifest = manifest
        self._loaded = (0, self._read(0))
        if not self._loaded[1]:  # evicted: the oldest entries of a stretch go first
            self._manifest = None
            return
        self.known_frames = known
        self.is_complete = manifest.is_complete and ends_later
        if not self.is_complete:
            manifest.is_complete = False
            manifest.frames = known
            manifest.records = [first for first in manifest.records if first < known]
            manifest.cuts = [cut for cut in manifest.cuts if cut < known]

    def _read(self, first: int) -> list[MatteEstimate]:
        record = self._entries.get(f"{self._key}/record/{first}")
        if record is None:
            return []
        try:
            return unpack_estimates(record)
        except DamagedRecordError:
            return []

    def _store(self, memory: Sequence[FloatArray], *, is_whole: bool = False) -> None:
        manifest = self._manifest
        assert manifest is not None  # there is something to store
        try:
            if self._waiting:
                record = pack_estimates(self._waiting)
                self._room -= record.nbytes
                first = manifest.frames
                if self._room < 0 or not self._entries.put(f"{self._key}/record/{first}", record):
                    self._stop(
                        f"the cache is full after {first} frames; processing.cache_size_gb makes it larger"
                    )
                    return
                manifest.records.append(first)
                manifest.frames += len(self._waiting)
                self._waiting = []
            if memory and self._may_go_on:
                slot = 1 - (manifest.memory_slot or 0)
                for number, array in enumerate(memory):
                    self._entries.put(f"{self._key}/memory/{slot}/{number}", array)
                manifest.resume_at, manifest.memory_slot = manifest.frames, slot
                manifest.memory_arrays = len(memory)
            elif self._may_go_on and not self._keeps_memory:
                manifest.resume_at, manifest.memory_slot = manifest.frames, None
            manifest.is_complete, manifest.end_seconds = is_whole, self._end_seconds
            self._entries.put(f"{self._key}/manifest", json.dumps(asdict(manifest)).encode())
        except OutputError as error:  # mattes matter more than their copies
            self._stop(f"{error}; went on without")

    def _stop(self, note: str) -> None:
        self._is_stopped, self._waiting = True, []
        self.notes.append(note)


def stretch_key(video: str, **what: object) -> str:
    """The key of a stretch.

    Args:
        video: Its file's fingerprint.
        **what: Everything that changes mattes, by name; values with a stable ``repr``.
    """
    text = repr((_FORMAT, np.little_endian, video, sorted(what.items())))
    return f"matte/{hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}"
