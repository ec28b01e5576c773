"""The interface of sources of decoded pictures; containers and image sequences implement it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import av

from vitascope.frames import ChromaLocation, VideoHeaders
from vitascope.media.reading.damage import DamageCounter

LONGEST_PAUSE_SECONDS = 6 * 3600
"""A clock that jumps ahead by more was reset; MP4 cannot express much longer pauses (2^31 ticks of 90 kHz)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts(VideoHeaders):
    """Facts known before a picture is decoded."""

    size: tuple[int, int] | None = None
    """(height, width) in luma samples; None if only a picture tells."""
    sample_bytes: int = 1
    """Bytes per sample of its frames, 1 or 2; 1 if only a picture tells."""
    chroma_location: ChromaLocation | None = None
    """From the codec's headers; None if they do not say."""
    hidden_count: int = 0
    """Number of frames that the file's edit list leaves out."""


class PictureSource(Protocol):
    """Decoded pictures in presentation order, with their time base set. Not thread-safe.

    Pictures are in host memory, or CUDA pictures whose memory belongs to the decoder: it may be overwritten once the
    picture object is gone.
    """

    @property
    def facts(self) -> SourceFacts:
        """The facts from the headers."""

    @property
    def damage(self) -> DamageCounter:
        """Damage so far, and its limit."""

    @property
    def decoder(self) -> str:
        """The decoder, and why it is not the requested one; for reports."""

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position to the end; a new call invalidates earlier iterators.

        Raises:
            CorruptInputError: The damage limit is exceeded, or the file is shorter than its header says.
            InputError: The file can no longer be read.
        """

    def seek(self, pts: int) -> None:
        """Move so that ``pictures()`` starts at or before ``pts``, as near to it as the source can."""

    def rewind(self) -> None:
        """Move so that ``pictures()`` starts at the first picture."""

    def close(self) -> None:
        """Free decoder, threads and file. Idempotent."""
