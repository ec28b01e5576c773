"""The port behind which stretches of a video are made: give a stretch, get its file, or its error. So for short videos.

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
    """How one output's pictures are encoded."""

    kind: OutputKind
    path: Path
    info: VideoInfo
    """What the written pictures are."""
    encoding: Encoding
    hdr: HdrMetadata | None


@dataclass(frozen=True, slots=True)
class FilmOrder:
    """One video, and what is made of it."""

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
    """One stretch that is to be made."""

    film: FilmOrder
    stretch: FilmStretch
    file: Path
    """Where it goes; it appears there whole."""
    made_by: Mapping[str, Any]
    """What makes it, for its head: two stretches of which this is equal are equal."""


@dataclass(frozen=True, slots=True)
class WholeFilm:
    """A video that is one stretch, so that one of them makes its files alone."""

    planned: PlannedVideo
    """All paths are absolute."""
    resume: bool
    """Take the stretch that an earlier run left."""


@dataclass(frozen=True, slots=True)
class MakerFacts:
    """Who has its network open: what is known of it (``NetworkFacts``), and why it is this one."""

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
        """The engine without its threads, whose number changes no bit of an answer on the CPU."""
        return re.sub(r", \d+ threads?", "", self.engine_name)


@dataclass(frozen=True, slots=True)
class StretchProgress:
    """How far a stretch is."""

    pipeline: PipelineReport
    frame_count: int
    """Frames of its own that were encoded."""


@dataclass(frozen=True, slots=True)
class StretchMade:
    """The stretch's file is there: what it cost."""

    pipeline: PipelineReport
    frame_count: int
    gpu: GpuReport | None
    peak_memory_bytes: int | None
    damage: CorruptInputError | None = None
    """Why the video could not be read to the stretch's end."""


Tell = Callable[[StretchProgress], object]
"""Told some times a second how far a stretch is."""


class MakerGoneError(WorkerError):
    """Somebody who made stretches is gone for good, and has nothing to do with the stretch that it was asked for."""


class StretchMakers(Protocol):
    """Some who each make one stretch at a time. Methods may be called by one thread for each of them."""

    def __len__(self) -> int: ...

    @property
    def is_open(self) -> bool:
        """True while they have their networks open."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know of them, one line each."""

    def label(self, number: int) -> str:
        """What to call one of them in messages, for example ``the process of GPU 1``."""

    def open(self) -> Sequence[MakerFacts]:
        """Let each open its network.

        Raises:
            VitascopeError: What one could not do; none is left then.
        """

    def place(self, number: int) -> str:
        """Where one of them works: what fails there may go well at another place. One of a few words."""

    def room_bytes(self, number: int) -> int | None:
        """Memory of its GPU that one of them may use; None where it has none, or that is not known."""

    def check(self, video: Path, folder: Path) -> None:
        """Look whether all see a video and the folder that its files go to; numbers may change, for nobody works.

        Raises:
            InputError: One does not see the video.
            OutputError: One does not see the folder, or may not write there.
            WorkerError: One was lost.
        """

    def renew(self, number: int) -> None:
        """Let one that was lost begin anew, and wait until it has its network; others may work meanwhile.

        Raises:
            VitascopeError: It cannot.
            MakerGoneError: There will be no other in its place.
        """

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """Let one of them make a stretch, and wait for it. One that was lost begins anew first.

        Raises:
            VitascopeError: What went wrong there. No file is there then, and whoever makes it may be asked again.
            WorkerError: It was lost meanwhile.
            MakerGoneError: It was lost before, and there will be no other in its place.
        """

    def make_film(self, number: int, film: WholeFilm, *, tell: Tell) -> SegmentReport:
        """Let one of them make all files of a video, and wait for it.

        Raises:
            VitascopeError: As for ``make``; the files that are named are whole.
        """

    def rest(self, number: int) -> None:
        """Tell one that nothing waits for it: it closes its video and gives memory back. Does not wait for it."""

    def interrupt(self, number: int) -> None:
        """Let one end the whole video that it has in hand, as Ctrl-C would; does not wait for it."""

    def drop(self, number: int) -> None:
        """Let go of one at once: what it makes ends with an error. The next ``make`` begins anew. Idempotent."""

    def close(self) -> None:
        """Let all end, gently where nothing is made. Idempotent."""
