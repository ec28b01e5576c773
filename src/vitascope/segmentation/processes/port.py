"""The interface for making stretches and short videos elsewhere: order a stretch, get its file or an error.

The maker is a process on this machine (``local.py``) or another (``cluster.py``). Only plain values cross the port.
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
    """Description of the written frames."""
    encoding: Encoding
    hdr: HdrMetadata | None


@dataclass(frozen=True, slots=True)
class FilmOrder:
    """One video and its outputs."""

    video: Path
    outputs: tuple[OutputOrder, ...]
    begin_pts: int
    """pts of the first frame of the run."""
    end_pts: int | None
    """First pts after the run; None for the video's end."""
    frame_ticks: Fraction
    """Average ticks per frame, by which frames are numbered."""
    warm_up_frames: int
    """Minimum number of frames that a stretch in the middle of the video must decode before its first."""
    frames_after: int
    """Frames that a stretch must decode after its last one, so that cuts and shots that begin near its end are
    decided as in the whole video."""
    still_pts: tuple[int, ...]
    """Times for the contact sheet (pts), in order."""
    stretch_count: int
    frame_count: int | None
    """Expected frames; None if unknown."""
    int8: Int8Choice | None = None
    """The decision on INT8, made once for all stretches."""
    scanned: Path | None = None
    """A file with the people of the video, for all makers; None if it does not matter."""


@dataclass(frozen=True, slots=True)
class StretchOrder:
    """An order for one stretch."""

    film: FilmOrder
    stretch: FilmStretch
    file: Path
    """Path of its file, which appears there only when complete."""
    made_by: Mapping[str, Any]
    """What makes it, for the file's head: stretches with equal values are equal."""


@dataclass(frozen=True, slots=True)
class WholeFilm:
    """A video that is a single stretch, so that one maker makes its files alone."""

    planned: PlannedVideo
    """All its paths are absolute."""
    resume: bool
    """Use the stretch that an earlier run left."""


@dataclass(frozen=True, slots=True)
class MakerFacts:
    """Facts about a maker with an open network (``NetworkFacts``), and why it uses this network."""

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
    """Checksum of the network's file; None if it has no file of its own."""

    @property
    def engine_kind(self) -> str:
        """The engine without its number of threads, which does not affect results on the CPU."""
        return re.sub(r", \d+ threads?", "", self.engine_name)


@dataclass(frozen=True, slots=True)
class StretchProgress:
    """Progress of a stretch."""

    pipeline: PipelineReport
    frame_count: int
    """Number of its own frames that are encoded."""


@dataclass(frozen=True, slots=True)
class StretchMade:
    """A finished stretch, with its time and memory."""

    pipeline: PipelineReport
    frame_count: int
    gpu: GpuReport | None
    peak_memory_bytes: int | None
    damage: CorruptInputError | None = None
    """Why the stretch could not be decoded to its end; None if it was."""


Tell = Callable[[StretchProgress], object]
"""Called several times a second with the progress of a stretch."""


class MakerGoneError(WorkerError):
    """A maker is gone for good, through no fault of the stretch that it was making."""


class StretchMakers(Protocol):
    """A group of makers that each make one stretch at a time. Each may be used from a thread of its own."""

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
        """Open each maker's network.

        Raises:
            VitascopeError: One failed; all are closed then.
        """

    def place(self, number: int) -> str:
        """A maker's place, in a few words: work that fails there may succeed elsewhere."""

    def room_bytes(self, number: int) -> int | None:
        """GPU memory that a maker may use; None without a GPU, or if unknown."""

    def check(self, video: Path, folder: Path) -> None:
        """Check that all makers see a video and its output folder.

        Call it while they are idle, because their numbers may change.

        Raises:
            InputError: A maker cannot see the video.
            OutputError: A maker cannot see the folder, or may not write there.
            WorkerError: All were lost.
        """

    def renew(self, number: int) -> None:
        """Restart a lost maker, and wait until its network is open; others may work meanwhile.

        Raises:
            VitascopeError: It failed to start.
            MakerGoneError: It cannot be replaced.
        """

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """Let a maker make a stretch, and wait for it. A lost maker is restarted first.

        Raises:
            VitascopeError: The stretch failed and has no file; the maker may be asked again.
            WorkerError: The maker was lost meanwhile.
            MakerGoneError: The maker was lost before and cannot be replaced.
        """

    def make_film(self, number: int, film: WholeFilm, *, tell: Tell) -> SegmentReport:
        """Let a maker make all files of a video, and wait for it.

        Raises:
            VitascopeError: As for ``make``; files under their final names are complete.
        """

    def rest(self, number: int) -> None:
        """Tell a maker that it is idle: it closes its video and frees memory. Does not wait."""

    def interrupt(self, number: int) -> None:
        """Let a maker stop its current whole video, as Ctrl-C would. Does not wait."""

    def drop(self, number: int) -> None:
        """Drop a maker at once: its current work ends with an error. The next ``make`` restarts it. Idempotent."""

    def close(self) -> None:
        """Close all makers, gently if they are idle. Idempotent."""
