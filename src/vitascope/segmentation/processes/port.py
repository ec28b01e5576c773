"""The interface for making stretches and short videos elsewhere: give a stretch, get its file or its error.

Who makes it is a process of this machine (``local.py``) or of another (``cluster.py``). All that crosses the port are
plain values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

from vitascope.config import OutputKind
from vitascope.errors import CorruptInputError, WorkerError
from vitascope.frames import VideoInfo
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.media.metadata.color_tags import HdrMetadata
from vitascope.media.writing.encoding import Encoding
from vitascope.segmentation.matting.int8 import Int8Choice
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.processes.stretches import FilmStretch
from vitascope.segmentation.report import GpuReport, SegmentReport


@dataclass(frozen=True, slots=True)
class OutputOrder:
    """The encoding of one output."""

    kind: OutputKind
    path: Path
    info: VideoInfo
    """What the written pictures are."""
    encoding: Encoding
    hdr: HdrMetadata | None


@dataclass(frozen=True, slots=True)
class FilmOrder:
    """One video and its outputs."""

    video: Path
    outputs: tuple[OutputOrder, ...]
    begin_pts: int
    """pts of the first picture of the run."""
    end_pts: int | None
    """First pts that is no longer wanted; None is the video's end."""
    frame_ticks: Fraction
    """Ticks of a picture, on average: frames are numbered by it."""
    warm_up_frames: int
    """Fewest pictures that a stretch in the middle of the video must have seen before its first."""
    frames_after: int
    """Pictures behind its last that a stretch must have seen, so that cuts and the beginnings of shots near its end
    are decided as if it went on."""
    still_pts: tuple[int, ...]
    """Moments that the contact sheet shows, in order."""
    stretch_count: int
    frame_count: int | None
    """Expected; None where the video does not say."""
    int8: Int8Choice | None = None
    """What became of the wish for INT8, decided once for all."""
    scanned: Path | None = None
    """Who is in the video, where that makes a difference, in a file that all see."""


@dataclass(frozen=True, slots=True)
class StretchOrder:
    """One stretch to make."""

    film: FilmOrder
    stretch: FilmStretch
    file: Path
    """Where it goes; it appears there whole."""
    made_by: Mapping[str, Any]
    """What makes it, for its head: two stretches of which this is equal are equal."""


@dataclass(frozen=True, slots=True)
class WholeFilm:
    """A video that is a single stretch, so that one maker makes its files alone."""

    planned: PlannedVideo
    """All paths are absolute."""
    resume: bool
    """Take the stretch that an earlier run left."""


@dataclass(frozen=True, slots=True)
class MakerFacts:
    """Facts about a maker with an open network (``NetworkFacts``), and why it has this network."""

    name: str
    requested: str
    note: str | None
    engine_name: str
    engine_reasons: tuple[str, ...]
    recurrent: bool
    device_kind: Literal["cpu", "cuda"]
    device_label: str
    device_note: str | None
    network_sha256: str | None
    """Checksum of the network's file; None where it has none of its own."""

    @property
    def engine_kind(self) -> str:
        """The engine without its number of threads, which does not change results on the CPU."""
        return re.sub(r", \d+ threads?", "", self.engine_name)


@dataclass(frozen=True, slots=True)
class StretchProgress:
    """Progress of a stretch."""

    pipeline: PipelineReport
    frame_count: int
    """Frames of its own that were encoded."""


@dataclass(frozen=True, slots=True)
class StretchMade:
    """A finished stretch, and its cost."""

    pipeline: PipelineReport
    frame_count: int
    gpu: GpuReport | None
    peak_memory_bytes: int | None
    damage: CorruptInputError | None = None
    """Why the video could not be read to the stretch's end."""


Tell = Callable[[StretchProgress], object]
"""Told some times a second how far a stretch is."""


class MakerGoneError(WorkerError):
    """A maker is gone for good, through no fault of the stretch that it was making."""


class StretchMakers(Protocol):
    """A group of makers that each make one stretch at a time. One thread per maker may call the methods."""

    def __len__(self) -> int: ...

    @property
    def is_open(self) -> bool:
        """True while the makers have their networks open."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user, one line each."""

    def label(self, number: int) -> str:
        """The name of a maker in messages, for example ``the process of GPU 1``."""

    def open(self) -> Sequence[MakerFacts]:
        """Let each maker open its network.

        Raises:
            VitascopeError: What one could not do; none is left then.
        """

    def place(self, number: int) -> str:
        """The place of a maker, in a few words: work that fails there may succeed elsewhere."""

    def room_bytes(self, number: int) -> int | None:
        """GPU memory that a maker may use; None without a GPU, or if unknown."""

    def check(self, video: Path, folder: Path) -> None:
        """Check that all makers see a video and its output folder. Call it while they are idle: numbers may change.

        Raises:
            InputError: One does not see the video.
            OutputError: One does not see the folder, or may not write there.
            WorkerError: One was lost.
        """

    def renew(self, number: int) -> None:
        """Restart a lost maker, and wait until it has its network; others may work meanwhile.

        Raises:
            VitascopeError: It cannot.
            MakerGoneError: There will be no other in its place.
        """

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """Let a maker make a stretch, and wait for it. A lost maker is restarted first.

        Raises:
            VitascopeError: What went wrong there. No file is there then, and whoever makes it may be asked again.
            WorkerError: It was lost meanwhile.
            MakerGoneError: It was lost before, and there will be no other in its place.
        """

    def make_film(self, number: int, film: WholeFilm, *, tell: Tell) -> SegmentReport:
        """Let a maker make all files of a video, and wait for it.

        Raises:
            VitascopeError: As for ``make``; the files that are named are whole.
        """

    def rest(self, number: int) -> None:
        """Tell a maker that it is idle: it closes its video and frees memory. Does not wait."""

    def interrupt(self, number: int) -> None:
        """Let a maker stop its current whole video, as Ctrl-C would. Does not wait."""

    def drop(self, number: int) -> None:
        """Drop a maker at once: its current work ends with an error. The next ``make`` restarts it. Idempotent."""

    def close(self) -> None:
        """End all makers, gently if they are idle. Idempotent."""
