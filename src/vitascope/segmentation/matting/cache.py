"""Stores the mattes of a video for the next run over it.

A stretch of a video, under one set of the settings that change mattes, is a list of entries of ``CacheManager``:
records of a few dozen frames each (``matte_records``), the network's memory at the last of them, from which a run can
continue, and a manifest that is written after the entries that it names. Missing, damaged or evicted entries are
inferred again; an interrupted run still leaves what it had.

Entries are read once, in order, and verified as a whole by their checksum, so they are read instead of being mapped
into memory.

Records hold the network's output for a stretch of frames as bytes: small, and exact where it matters.

Most of a matte is clearly background or clearly person. A sample of the coefficients is *plain* if alpha is 0
(or 1) for every grey that the picture may have there, and for its eight neighbours, too: then everything
interpolated from it is also 0 (or 1). Plain samples are stored in two bits, the others unchanged. Unpacked
coefficients refine to exactly the same alpha for every picture whose greys lie in ``GREYS``: all colours that
exist, with a margin for noise.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.memory.disk_cache import CacheManager
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch, Estimator, RememberingEstimator, tile_means
from vitascope.segmentation.matting.estimates import as_coefficients, plain_rgb
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shots import StreamNetwork

GREYS = (-0.1, 1.1)
"""Range of greys that pictures may have: the mean of R, G and B, full scale 1."""

_HEAD = struct.Struct("<I")
_ZERO, _ONE, _OWN = 0, 1, 2
_NEIGHBOURS = np.ones((3, 3), np.uint8)


class DamagedRecordError(Exception):
    """The bytes are not a valid record."""


def pack_estimates(estimates: Sequence[MatteEstimate]) -> npt.NDArray[np.uint8]:
    """Pack estimates into bytes.

    Args:
        estimates: gain and offset, float32 or float16 [E, C, h, w] in the host's memory, alpha's plane last; an object
            given several times, for frames that share a matte, is stored once.

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
        # Plane by plane, so that each is read as one run.
        values = [plane[:, channel][own] for plane in (gain, offset) for channel in range(gain.shape[1])]
        body = [bits.tobytes(), *(np.ascontiguousarray(value).tobytes() for value in values)]
        size = sum(map(len, body))
        entries.append({"at": at, "size": size, "shape": gain.shape, "dtype": gain.dtype.str})
        parts += body
        at += size
    head = json.dumps(entries).encode()
    return np.frombuffer(b"".join([_HEAD.pack(len(head)), head, *parts]), np.uint8)


def unpack_estimates(record: npt.NDArray[np.uint8]) -> list[MatteEstimate]:
    """Unpack the estimates of a record, in the host's memory.

    Raises:
        DamagedRecordError: The bytes are not a valid record.
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
    """Classify each sample [E, h, w]: background, person, or stored unchanged."""
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
"""Maximum share of the cache for one stretch: a larger one would evict its own beginning."""


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
    """Number of frames in all records."""
    is_complete: bool = False
    """True if the stretch ends after these frames."""
    end_seconds: float | None = None
    """End of the run that completed it, in seconds; None is the video's end."""
    resume_at: int = 0
    """Frame at which another run can continue."""
    memory_slot: int | None = None
    """Number of the entry with the network's memory at that frame; None if its memory starts empty there."""
    memory_arrays: int = 0
    """Arrays of that memory."""


class MatteCache:
    """The cache for one part of a video: first the mattes of an earlier run, then those of this one.

    ``covers`` and ``starts_shot`` may be called by any thread; ``take`` by one, ``keep`` and ``finish`` by one.

    Args:
        entries: The store of all entries.
        key: The stretch's key, see ``stretch_key``.
        end_seconds: Where this run ends; None is the video's end.
        capacity_bytes: Maximum bytes of ``entries``.
        keeps_memory: True if a run can only continue exactly from the network's memory.
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
        """Number of frames, from the first on, whose mattes are in the cache."""
        self.is_complete = False
        """True if these are all frames of the stretch."""
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
        """Format of the network's picture of a whole eye; None if the cache is empty."""
        if self._manifest is None:
            return None
        fields = dict(self._manifest.network)
        for name in ("size", "mean", "std"):
            fields[name] = tuple(fields[name])
        return NetworkInput(**fields)

    def covers(self, index: int) -> bool:
        """True for frames whose mattes are in the cache."""
        return index - self.first_index < self.known_frames

    def starts_shot(self, index: int) -> bool:
        """True if a covered frame starts a shot."""
        return index - self.first_index in self._cuts

    def take(self, index: int) -> MatteEstimate | None:
        """The matte of a covered frame, in the host's memory; None if evicted. Called in frame order."""
        assert self._manifest is not None  # covered frames have a record
        index -= self.first_index
        first, estimates = self._loaded
        if not first <= index < first + len(estimates):
            first = max(begin for begin in self._manifest.records if begin <= index)
            estimates = self._read(first)
            self._loaded = first, estimates
        return estimates[index - first] if index < first + len(estimates) else None

    def memory(self) -> list[FloatArray]:
        """The network's memory after the last covered frame; empty if it was not stored or a part is missing."""
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
            starts_shot: True if the frame starts a shot.
            wanted: Format of the network's picture.
            memory: The network's memory after this frame, given at intervals.
            before: The network's memory before this frame, if a longer run would make other mattes from here on.
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
        """Write everything pending.

        Args:
            is_whole: True if the stretch was run to its end.
            memory: The network's memory at the end, from which a longer stretch can continue.
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
        assert manifest is not None  # mattes are pending
        try:
            if self._waiting:
                record = pack_estimates(self._waiting)
                self._room -= record.nbytes
                first = manifest.frames
                if self._room < 0 or not self._entries.put(f"{self._key}/record/{first}", record):
                    self._stop(
                        f"the cache is full after {first} frames; raise processing.cache_size_gb to store more"
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
            self._stop(f"{error}; continued without the cache")

    def _stop(self, note: str) -> None:
        self._is_stopped, self._waiting = True, []
        self.notes.append(note)


def stretch_key(video: str, **what: object) -> str:
    """Make the key of a stretch.

    Args:
        video: Its file's fingerprint.
        **what: Everything that changes mattes, by name; values with a stable ``repr``.
    """
    text = repr((_FORMAT, np.little_endian, video, sorted(what.items())))
    return f"matte/{hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}"


_MEMORY_FRAMES = 240
"""Frames between two copies of the network's memory: an interrupted run loses at most that many. A copy takes
about 20 MB, up to 64 MB for two eyes of VR."""


class Coming(Protocol):
    """Arrays on their way from the GPU."""

    def wait(self) -> Sequence[Any]:
        """Wait for the arrays, and return them in the host's memory."""
        ...


@dataclass(frozen=True, slots=True)
class _NewMatte:
    """A matte on its way into the cache."""

    index: int
    """Index of the frame."""
    matte: MatteEstimate | Coming | None
    """None if the previous frame's matte is used again."""
    starts_shot: bool
    memory: list[FloatArray] | None
    """The network's memory after this frame, if it is stored."""
    before: list[FloatArray] | None
    """The network's memory before this frame, if another run can only continue from there."""


class CachedMattes:
    """Gets mattes from the cache, and missing ones from the network, which is opened when it is first needed.

    Args:
        cache: Mattes of this stretch of the video.
        stream: The network, and how frames are shown to it.
        open_inner: Makes the rest of the chain; called when the first matte is missing.
        download: Starts copying CuPy arrays to the host; None if all are in the host's memory.
    """

    def __init__(
        self,
        cache: MatteCache,
        stream: StreamNetwork,
        open_inner: Callable[[], Estimator],
        *,
        download: Callable[[Sequence[Any]], Coming] | None = None,
    ) -> None:
        self._cache, self._stream, self._download = cache, stream, download
        self._open_inner = open_inner
        self._inner: Estimator | None = None if cache.is_complete else open_inner()
        self._since_memory = 0
        self._has_begun = False
        self._broke_off = False
        self._sent: MatteEstimate | None = None
        self._last: MatteEstimate | None = None
        self._new: deque[_NewMatte] = deque()

    def is_known(self, index: int) -> bool:
        """True for frames whose mattes are in the cache."""
        return self._cache.covers(index)

    def needs_pictures(self, index: int) -> bool:
        """True for frames that the network will see and the one before them: both tell if a shot begins."""
        cache = self._cache
        return not (cache.covers(index) and (cache.is_complete or cache.covers(index + 1)))

    def starts_shot(self, index: int) -> bool:
        """True if a frame whose matte is in the cache starts a shot."""
        return self._cache.starts_shot(index)

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """The mattes of the next frames; those from the cache are coefficients in host memory.

        Args:
            batch: ``images`` may be None if all frames are known.
        """
        estimates: list[MatteEstimate] = []
        for known, group in groupby(range(len(batch)), lambda at: self.is_known(batch.frames[at].index)):
            where = list(group)
            if known:
                estimates += [self._known(batch, at) for at in where]
            else:
                estimates += self._inferred(batch.take(where))
        return estimates

    def store(self, last_index: int | None = None) -> None:
        """Store the new mattes up to a frame, or all; waits for downloads from a GPU.

        Called by one thread, which need not be that of ``estimate``.
        """
        while self._new and (last_index is None or self._new[0].index <= last_index):
            new = self._new.popleft()
            if isinstance(new.matte, MatteEstimate):
                self._last = new.matte
            elif new.matte is not None:
                # Copied, so that page-locked memory holds only transfers in progress.
                gain, offset = (np.array(planes) for planes in new.matte.wait())
                self._last = MatteEstimate(gain=gain, offset=offset)
            assert self._last is not None  # the first frame always has its own
            self._cache.keep(
                self._last,
                starts_shot=new.starts_shot,
                wanted=self._stream.wanted,
                memory=new.memory,
                before=new.before,
            )

    def finish(self, *, is_whole: bool) -> list[str]:
        """Complete the cache after the last frame; returns notes for the user.

        Args:
            is_whole: True if the video, or its stretch, was run to its end.
        """
        self.store()
        memory = self._inner.memory() if isinstance(self._inner, RememberingEstimator) else None
        self._cache.finish(is_whole=is_whole, memory=memory)
        return self._cache.notes

    def _known(self, batch: Batch, at: int) -> MatteEstimate:
        frame = batch.frames[at]
        estimate = self._cache.take(frame.index)
        if estimate is not None:
            self._stream.tally.cached_frames += 1
            self._broke_off = True
            return estimate
        wanted = self._stream.wanted
        images = self._stream.views.make([frame], wanted)
        tiles = to_numpy(tile_means(plain_rgb(images, wanted)))
        return self._asked(Batch([frame], images, [Change(self.starts_shot(frame.index))], tiles=tiles))[0]

    def _inferred(self, batch: Batch) -> list[MatteEstimate]:
        if not self._has_begun and self._cache.known_frames:
            inner = self._opened()
            if isinstance(inner, RememberingEstimator) and inner.remember(self._cache.memory()):
                self._broke_off = False
        self._has_begun = True
        before = None
        if batch.is_cut_short:
            inner = self._opened()
            before = (inner.memory() if isinstance(inner, RememberingEstimator) else None) or []
        return self._kept(batch, self._asked(batch), before=before)

    def _asked(self, batch: Batch) -> list[MatteEstimate]:
        """Run the network; after frames that it did not see, a new shot starts for it."""
        if self._broke_off:
            batch = replace(batch, changes=[Change.NEW_SHOT, *batch.changes[1:]])
            self._broke_off = False
        return self._opened().estimate(batch)

    def _kept(
        self, batch: Batch, estimates: Sequence[MatteEstimate], *, before: list[FloatArray] | None
    ) -> list[MatteEstimate]:
        """Convert new estimates to coefficients, on their way into the cache."""
        stream, memory = self._stream, self._memory(len(batch))
        answers: list[MatteEstimate] = []
        for at, (estimate, starts_shot) in enumerate(zip(estimates, batch.starts_shot, strict=True)):
            # A reused matte is stored once; a plain one is fitted to each of its pictures, so each fit is stored.
            is_same = estimate is self._sent and estimate.alpha is None
            self._sent = estimate
            coefficients = as_coefficients(estimate, batch.images[at], stream.wanted)
            answers.append(coefficients if estimate.alpha is not None else estimate)
            matte = None if is_same else self._begun(coefficients)
            is_last = at == len(batch) - 1
            self._new.append(
                _NewMatte(
                    batch.frames[at].index,
                    matte,
                    starts_shot,
                    memory if is_last else None,
                    None if at else before,
                )
            )
        return answers

    def _begun(self, coefficients: MatteEstimate) -> MatteEstimate | Coming:
        gain, offset = coefficients.gain, coefficients.offset
        if self._download is None or not is_on_gpu(gain):
            return coefficients
        arrays: list[Any] = [gain, offset]
        return self._download([one if one.flags.c_contiguous else one.copy() for one in arrays])

    def _memory(self, frames: int) -> list[FloatArray] | None:
        """Return the network's memory after that many more frames, if a copy is due."""
        if not isinstance(self._inner, RememberingEstimator):
            return None
        self._since_memory += frames
        if self._since_memory < _MEMORY_FRAMES:
            return None
        self._since_memory = 0
        return self._inner.memory()

    def _opened(self) -> Estimator:
        if self._inner is None:
            self._inner = self._open_inner()
        return self._inner
