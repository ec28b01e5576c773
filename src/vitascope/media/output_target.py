"""Where an output goes: one file, one picture, or a folder of numbered pictures."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vitascope.errors import UsageError
from vitascope.media.partial_file import PartialFile, PartialFolder

__all__ = ["OutputTarget"]

_FOLDER_PATTERN = "%06d.png"


class OutputTarget:
    """The output under its temporary name, and how FFmpeg is told that name.

    Args:
        path: As the user named it. With the muxer ``image2``: a folder, a pattern such as ``frame_%05d.png``, or a
            plain name for one picture.
        muxer: FFmpeg's name.

    Raises:
        OutputError: It cannot be created.
        UsageError: The pattern has not exactly one number.
    """

    def __init__(self, path: Path, *, muxer: str) -> None:
        self.path = path
        self.takes_one_frame = False
        """True for a plain picture name."""
        self._pattern: str | None = None
        self._muxer_options: dict[str, str] = {}
        self.partial: PartialFile | PartialFolder
        """Owns the temporary file or folder."""
        if muxer != "image2":
            self.partial = PartialFile(path)
        elif "%" in path.name:
            self._pattern = path.name
            self.partial = PartialFolder(path.parent, file_pattern=_files_of(path))
        elif path.suffix.lower() == ".png" and not path.is_dir():
            self.takes_one_frame = True
            self._muxer_options = {"update": "1"}
            self.partial = PartialFile(path)
        else:
            self._pattern = _FOLDER_PATTERN
            self.partial = PartialFolder(path, file_pattern=_files_of(Path(_FOLDER_PATTERN)))
        if self._pattern is not None:
            self._muxer_options = {"start_number": "0"}

    @property
    def muxer_name(self) -> str:
        """What FFmpeg is to open."""
        if self._pattern is None:
            return str(self.partial.path)
        return f"{str(self.partial.path).replace('%', '%%')}{os.sep}{self._pattern}"

    @property
    def muxer_options(self) -> dict[str, str]:
        """Options that the muxer needs for a name of this kind."""
        return dict(self._muxer_options)

    def byte_count(self) -> int:
        """Bytes of the finished output."""
        finished = self.partial.target
        if finished.is_dir():
            return sum(file.stat().st_size for file in finished.iterdir())
        return finished.stat().st_size


def _files_of(path: Path) -> re.Pattern[str]:
    """What the files of a pattern such as ``frame_%05d.png`` are called."""
    match = re.fullmatch(r"([^%]*)%(?:0(\d+))?d([^%]*)", path.name)
    if match is None:
        raise UsageError(f"{path}: write the number as %06d, once")
    head, digits, tail = match.groups()
    return re.compile(rf"{re.escape(head)}\d{{{int(digits or 1)},}}{re.escape(tail)}")
