"""Where decoded pictures come from: the port that containers and image sequences fill, and the damage they count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import av

from vitascope.errors import CorruptInputError
from vitascope.frames import ChromaLocation

__all__ = ["DamageCounter", "PictureSource", "SourceFacts"]


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is known of a source before a picture is decoded; ``frames.VideoInfo`` explains the fields."""

    path: Path
    container: str
    codec: str
    time_base: Fraction
    average_frame_rate: Fraction
    frame_count_estimate: int | None
    duration_seconds: float | None
    sample_aspect_ratio: Fraction = Fraction(1)
    interlaced: bool = False
    chroma_location: ChromaLocation | None = None
    """From the codec's headers; None when they do not say."""
    audio_stream_count: int = 0
    subtitle_stream_count: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


class PictureSource(Protocol):
    """Decoded pictures in presentation order, with their time base set. Not thread-safe.

    Software pictures, or CUDA pictures whose memory belongs to the decoder: it may write there again once the
    picture object is gone.
    """

    @property
    def facts(self) -> SourceFacts:
        """What the headers say."""

    @property
    def damage(self) -> DamageCounter:
        """What could not be decoded so far."""

    @property
    def decoder(self) -> str:
        """What decodes, and why it is not what was asked for; for reports."""

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position to the end; the last one started is the only one that may be used.

        Raises:
            CorruptInputError: Past the damage limit, or at the end when the file is shorter than it promises.
            InputError: The file cannot be read any more.
        """

    def seek(self, pts: int) -> None:
        """Move so that ``pictures()`` starts at or before ``pts``, as near to it as the source can."""

    def rewind(self) -> None:
        """Move so that ``pictures()`` starts at the first picture."""

    def close(self) -> None:
        """Free decoder, threads and file. Idempotent."""


class DamageCounter:
    """Counts what could not be decoded and ends the reading when it is too much.

    Args:
        path: Named in the error.
        limit: Damaged packets or pictures that are tolerated.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.count = 0
        """Packets and pictures that were left out."""
        self.decoded = 0
        """Pictures that came out whole."""

    def add(self, cause: BaseException | None = None, *, count: int = 1) -> None:
        """Count what was left out.

        Raises:
            CorruptInputError: The limit is passed.
        """
        self.count += count
        if self.count > self._limit:
            raise CorruptInputError(
                f"{self._path}: too much damage: {self.count} frames could not be decoded "
                f"(video.max_corrupt_frames allows {self._limit}), {self.decoded} could"
            ) from cause
