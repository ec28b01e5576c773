"""How a run on one film ends: at its end, at damage, or by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from vitascope.errors import CorruptInputError
from vitascope.frames import Frame
from vitascope.media.reader import VideoReader
from vitascope.segmentation.report import OutputReport
from vitascope.segmentation.writing import OutputSet

__all__ = ["FramesUntilDamage", "finish_files", "kept_files"]


class FramesUntilDamage:
    """A reader's frames; damage ends them instead of tearing the run down, so that what was read is finished."""

    def __init__(self, reader: VideoReader) -> None:
        self._reader = reader
        self._damage: CorruptInputError | None = None

    def __iter__(self) -> Iterator[Frame]:
        try:
            yield from self._reader
        except CorruptInputError as error:
            self._damage = error

    def raise_damage(self) -> None:
        """Raise what ended the frames early, if anything did; once."""
        damage, self._damage = self._damage, None
        try:
            if damage is not None:
                raise damage
        finally:
            del damage  # its traceback holds this frame: together they would live until a search for cycles


def kept_files(files: OutputSet) -> str:
    """Keep what was written of a run that ends early, and say so in a few words."""
    kept = files.keep_partial()
    return f"kept what was written: {', '.join(map(str, kept))}" if kept else "nothing had been written"


def finish_files(files: OutputSet) -> tuple[OutputReport, ...]:
    """Complete and name the outputs; Ctrl-C waits until that is done, because nothing is gained by losing them.

    Raises:
        OutputError: As ``OutputSet.finish``.
        KeyboardInterrupt: Ctrl-C was pressed meanwhile; the outputs are there.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="vitascope-finish") as pool:
        finishing = pool.submit(files.finish)
        try:
            return finishing.result()
        except KeyboardInterrupt as error:
            names = ", ".join(str(output.path) for output in finishing.result())
            raise KeyboardInterrupt(f"the outputs were finished first: {names}") from error
