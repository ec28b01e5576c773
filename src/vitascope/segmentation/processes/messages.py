"""What a run and its worker processes say to one another: plain values, all of them.

::

    run                                worker
                                       Ready                        once its network is open
    OpenFilm                     ->
                                 <-    FilmOpened
    Take(segment)                ->                                 a stretch begins
                                 <-    Encoded ...                  packets, as they come
                                 <-    Ask                          a segment was read to its end
    Take(neighbour) or Enough    ->
                                 <-    StretchDone                  after Enough, when all is encoded
    CloseFilm                    ->
                                 <-    FilmClosed

``Failed`` may stand in for any answer; the worker then has nothing open.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from vitascope.config import OutputKind
from vitascope.errors import CorruptInputError, WorkerError
from vitascope.frames import VideoInfo
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.media.metadata.color_tags import HdrMetadata
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.segment_encoder import EncodedPacket
from vitascope.segmentation.matting.int8 import Int8Choice
from vitascope.segmentation.processes.segments import FilmSegment
from vitascope.segmentation.render.contact_sheet import Rgb8
from vitascope.segmentation.report import GpuReport

__all__ = [
    "Ask",
    "CloseFilm",
    "Encoded",
    "Enough",
    "Failed",
    "FilmClosed",
    "FilmJob",
    "FilmOpened",
    "OpenFilm",
    "OutputJob",
    "Progress",
    "Ready",
    "StretchDone",
    "Take",
    "is_encoded",
    "pack",
    "sendable",
    "unpack",
]


@dataclass(frozen=True, slots=True)
class OutputJob:
    """How one output's pictures are encoded."""

    kind: OutputKind
    path: Path
    info: VideoInfo
    """What the written pictures are."""
    encoding: Encoding
    hdr: HdrMetadata | None


@dataclass(frozen=True, slots=True)
class FilmJob:
    """One video, and what is made of it."""

    video: Path
    outputs: tuple[OutputJob, ...]
    begin_pts: int
    """pts of the first picture of the run."""
    end_pts: int | None
    """First pts that is no longer wanted; None is the video's end."""
    frame_ticks: Fraction
    """Ticks of a picture, on average: frames are numbered by it."""
    warm_up_frames: int
    """Fewest pictures that a stretch in the middle of the video must have seen before its first."""
    still_pts: tuple[int, ...]
    """Moments that the contact sheet shows, in order."""
    int8: Int8Choice | None = None
    """What became of the wish for INT8, decided once for all workers."""


@dataclass(frozen=True, slots=True)
class OpenFilm:
    """Open a video; segments of it follow."""

    job: FilmJob


@dataclass(frozen=True, slots=True)
class Take:
    """Work on a segment: begin a stretch with it, or go on with it."""

    segment: FilmSegment


@dataclass(frozen=True, slots=True)
class Enough:
    """The stretch ends behind the segment that it has."""


@dataclass(frozen=True, slots=True)
class CloseFilm:
    """Nothing more of this video."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has its network: what is known of it (``NetworkFacts``), and why it is this one."""

    name: str
    requested: str
    note: str | None
    engine_name: str
    engine_reasons: tuple[str, ...]
    recurrent: bool
    device_label: str
    device_note: str | None


@dataclass(frozen=True, slots=True)
class FilmOpened:
    """The worker can take segments."""


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
    """uint8 RGB, for the contact sheet."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The segment was read to its end: is its neighbour to be done, too?"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the stretch is."""

    report: PipelineReport


@dataclass(frozen=True, slots=True)
class StretchDone:
    """Everything of the stretch was sent."""

    pipeline: PipelineReport
    frame_count: int
    """Frames that were encoded."""
    cut_count: int
    corrupt_count: int
    damage: CorruptInputError | None
    """Why the video could not be read any further."""
    gpu: GpuReport | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilmClosed:
    """What the worker has to say of the video as a whole."""

    network_size: tuple[int, int]
    engine_name: str
    decoder: str
    notes: tuple[str, ...]
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Something went wrong; the stretch and the video are closed."""

    error: Exception
    trace: str
    """Where, as text: a traceback does not travel."""


_IS_ENCODED, _IS_OTHER = b"E", b"M"


def pack(message: object) -> bytes:
    """A message as bytes; the first one tells whether it is ``Encoded``."""
    mark = _IS_ENCODED if isinstance(message, Encoded) else _IS_OTHER
    return mark + pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def is_encoded(content: bytes) -> bool:
    """True for the bytes of ``Encoded``, which are kept as they are until their turn."""
    return content[:1] == _IS_ENCODED


def unpack(content: bytes) -> Any:
    """The message of ``pack``; only for what an own process sent."""
    return pickle.loads(memoryview(content)[1:])


def sendable(error: Exception) -> Exception:
    """An error that survives being sent; what does not becomes a ``WorkerError`` that says the same."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = None
    if type(copy) is type(error) and str(copy) == str(error):
        return error
    return WorkerError(f"{type(error).__name__}: {error}")
