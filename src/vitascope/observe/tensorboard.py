"""Writes metrics of running jobs for TensorBoard once a second, in event files, without using its packages.

A file is a series of TFRecords (https://www.tensorflow.org/tutorials/load_data/tfrecord): the length, its masked
CRC-32C, the payload, and the payload's masked CRC-32C. Each payload is one ``Event`` of TensorBoard's event.proto, in
the wire format of protocol buffers (https://protobuf.dev/programming-guides/encoding/).

The packages that write such files cost more than they save here: PyTorch's own writer needs all of ``tensorboard`` (a
web server and gRPC). ``tensorboardX`` is small, but imports PyTorch if installed, which takes seconds before a job
begins, and writes through a multiprocessing queue whose thread outlives it. Scalars need only two messages with six
fields, and a checksum; a test reads the files back with TensorBoard's own reader.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import BinaryIO, Self

from vitascope.closing import Closing
from vitascope.errors import OutputError
from vitascope.gpu.profiling.intervals import AtIntervals
from vitascope.observe.job_counts import Readings

_INTERVAL_SECONDS = 1.0
_PREFIX = "vitascope_"
_FRAMES = "vitascope_frames_total"
_LATENCY = "vitascope_frame_latency_seconds"
_COUNTERS = (
    "vitascope_dropped_frames_total",
    "vitascope_damaged_frames_total",
    "vitascope_captured_frames_total",
    "vitascope_repeated_frames_total",
    "vitascope_faceless_frames_total",
)
_CONSTANT = (
    "vitascope_build_info",
    "vitascope_job_expected_frames",
    "vitascope_stage_workers",
    "vitascope_gpu_memory_limit_bytes",
    "vitascope_gpu_power_limit_watts",
)
"""Gauges that make no curve."""


def scalars_of(now: Readings, before: Readings, *, seconds: float) -> dict[str, float]:
    """Convert readings to values by tag: the metric's name without ``vitascope_``, and its labels.

    Speed and mean latency are those of the time between the two readings, percentiles those of the job so far; the
    rest is as the exporter shows it.

    Args:
        now: The newer readings.
        before: The older ones.
        seconds: Time between the two, above 0.
    """
    frames = _count(now, _FRAMES) - _count(before, _FRAMES)
    scalars = {"frames_per_second": frames / seconds}
    latency = now.latencies.get((_LATENCY, ()))
    if latency is not None and latency.count:
        scalars |= {
            "frame_latency_seconds/p50": latency.p50_seconds,
            "frame_latency_seconds/p95": latency.p95_seconds,
            "frame_latency_seconds/p99": latency.p99_seconds,
        }
    if frames > 0:
        scalars["frame_latency_seconds/mean"] = (_count(now, _LATENCY) - _count(before, _LATENCY)) / frames
    for (name, labels), values in now.counts.items():
        if name in _COUNTERS:
            scalars[_tag(name, labels)] = float(values[0])
    for (name, labels), value in now.gauges.items():
        if name not in _CONSTANT:
            scalars[_tag(name, labels)] = value
    return scalars


class ScalarRecorder:
    """Writes metrics once a second to an event file in its own folder. A context manager.

    The thread is named ``vitascope-scalars`` and is joined on leaving, after one more reading.

    Args:
        look: Returns the current readings; ``JobCounts.look``.
        folder: Folder of many runs; this one gets a subfolder named after the current time.
        interval_seconds: Time between two readings.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(
        self, look: Callable[[], Readings], folder: Path, *, interval_seconds: float = _INTERVAL_SECONDS
    ) -> None:
        self._look = look
        self._file = EventFile(run_folder(folder))
        self.folder = self._file.path.parent
        """Folder of this run's file."""
        self._before, self._at = look(), time.monotonic()
        self._watch = AtIntervals(self._record, interval_seconds, name="vitascope-scalars")

    def __enter__(self) -> Self:
        """Start recording."""
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Record once more, and close the file.

        Raises:
            OutputError: It could not be written completely; not raised if the block itself failed.
        """
        self._watch.end()
        failure = self._watch.failure
        with self._file:
            if failure is None:
                try:
                    self._record()
                except Exception as last:  # reported to the caller once the file is closed
                    failure = last
        if failure is not None and error is None:
            raise failure

    def _record(self) -> None:
        now, at = self._look(), time.monotonic()
        seconds = max(at - self._at, 1e-6)
        self._file.add(
            scalars_of(now, self._before, seconds=seconds),
            step=round(_count(now, _FRAMES)),
            wall_seconds=time.time(),
        )
        self._before, self._at = now, at


def _count(readings: Readings, name: str) -> float:
    """A counter's value, or the sum of a histogram; 0 before the first job."""
    values = readings.counts.get((name, ()))
    return 0.0 if values is None else float(values[0])


def _tag(name: str, labels: tuple[str, ...]) -> str:
    return "/".join((name.removeprefix(_PREFIX), *labels))


_FILE_VERSION = "brain.Event:2"
_CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C with its bits reversed: RFC 3720, appendix B.4."""
_MASK = 0xA282EAD8
_DOUBLE, _TEXT, _FLOAT, _VARINT = 1, 2, 5, 0
"""Wire types."""


class EventFile(Closing):
    """An open event file. A context manager; every call reaches the disk.

    Args:
        folder: Created if missing; TensorBoard calls it a run.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        began = time.time()
        self.path = folder / f"events.out.tfevents.{began:.0f}.vitascope.{os.getpid()}"
        """TensorBoard looks for ``tfevents`` in the name."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.path.open("wb")
        except OSError as error:
            raise self._failed(error) from error
        self._write(_number(1, began) + _field(3, _FILE_VERSION.encode()))

    def close(self) -> None:
        """Close the file; everything has been written already."""
        with suppress(OSError):  # a full disk was reported during writing
            self._file.close()

    def add(self, scalars: Mapping[str, float], *, step: int, wall_seconds: float) -> None:
        """Write the values of one moment.

        Args:
            scalars: Values by tag; TensorBoard groups tags by the part before the first ``/``. Kept as float32.
            step: Position on the axis of steps.
            wall_seconds: Seconds since 1970, UTC.

        Raises:
            OutputError: The file cannot be written.
        """
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + _single(2, value)) for tag, value in scalars.items()
        )
        self._write(_number(1, wall_seconds) + _key(2, _VARINT) + _varint(step) + _field(5, summary))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        try:
            self._file.write(length + _masked_crc(length) + event + _masked_crc(event))
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(f"{self.path}: cannot be written: {error.strerror or error}")


def run_folder(folder: Path) -> Path:
    """Name a new folder for one run inside a folder of runs, after the current time."""
    name = time.strftime("%Y%m%d-%H%M%S")
    candidates = (folder / (name if n == 1 else f"{name}-{n}") for n in count(1))
    return next(path for path in candidates if not path.exists())


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) as in RFC 3720."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


def _masked_crc(data: bytes) -> bytes:
    """Rotate and shift a checksum, since a checksum over data that contains plain checksums is weak."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    """Encode seven bits per byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(number: int, value: float) -> bytes:
    return _key(number, _DOUBLE) + struct.pack("<d", value)


def _single(number: int, value: float) -> bytes:
    return _key(number, _FLOAT) + struct.pack("<f", value)


def _field(number: int, payload: bytes) -> bytes:
    return _key(number, _TEXT) + _varint(len(payload)) + payload
