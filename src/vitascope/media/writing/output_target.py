"""Where an output goes: one file, one picture, or a folder of numbered pictures."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from vitascope.errors import UsageError
from vitascope.media.av_errors import wrap_output_error
from vitascope.media.writing.partial_file import FILE_BROWSER_LITTER, PartialFile, PartialFolder

__all__ = ["OutputTarget", "PictureFolder", "is_written", "picture_folder", "refuse_unwritable"]

_FOLDER_PATTERN = "%06d.png"


@dataclass(frozen=True, slots=True)
class PictureFolder:
    """An output that is a folder of numbered pictures; a run replaces the folder as a whole."""

    folder: Path
    pattern: str
    """What the pictures are called, for example ``frame_%05d.png``."""

    @property
    def file_names(self) -> re.Pattern[str]:
        """What the pattern can print.

        Raises:
            UsageError: The pattern has not exactly one number.
        """
        match = re.fullmatch(r"([^%]*)%(?:0(\d+))?d([^%]*)", self.pattern)
        if match is None:
            raise UsageError(f"{self.folder / self.pattern}: write the number as %06d, once")
        head, digits, tail = match.groups()
        return re.compile(rf"{re.escape(head)}\d{{{int(digits or 1)},}}{re.escape(tail)}")

    def is_filled(self) -> bool:
        """True when it holds pictures of these names: folders appear only whole.

        Raises:
            OutputError: The folder cannot be looked into.
            UsageError: The pattern has not exactly one number.
        """
        return self.folder.is_dir() and any(self.file_names.fullmatch(path.name) for path in self._entries())

    def foreign_name(self) -> str | None:
        """The name of something in it that no run of ours wrote, or None.

        Raises:
            OutputError: The folder cannot be looked into.
            UsageError: The pattern has not exactly one number.
        """
        if not self.folder.is_dir():
            return None
        names = self.file_names
        return next((path.name for path in self._entries() if not names.fullmatch(path.name)), None)

    def _entries(self) -> list[Path]:
        with wrap_output_error(self.folder, "look into it"):
            return [path for path in self.folder.iterdir() if path.name not in FILE_BROWSER_LITTER]


def picture_folder(path: Path) -> PictureFolder | None:
    """The folder of pictures that an output path means; None when it means one file.

    A pattern such as ``cut/frame_%05d.png`` means its folder, with pictures of that name. A path without a suffix is
    itself the folder, and so is any folder that exists.
    """
    if path.is_dir():
        return PictureFolder(path, _FOLDER_PATTERN)
    if path.suffix.lower() not in ("", ".png"):
        return None
    if "%" in path.name:
        return PictureFolder(path.parent, path.name)
    return None if path.suffix else PictureFolder(path, _FOLDER_PATTERN)


def is_written(path: Path) -> bool:
    """True when the output is there: outputs appear only whole, so nothing is left to do.

    Raises:
        UsageError: It is a pattern without exactly one number.
    """
    pictures = picture_folder(path)
    return path.is_file() if pictures is None else pictures.is_filled()


def refuse_unwritable(path: Path) -> None:
    """Look whether an output could be created, and create nothing.

    Raises:
        OutputError: Its folder may not be written, or what is there cannot be replaced.
        UsageError: It is a pattern without exactly one number.
    """
    pictures = picture_folder(path)
    target = path if pictures is None else pictures.folder
    if pictures is None:
        PartialFile.check(target)
    else:
        PartialFolder.check(target, file_pattern=pictures.file_names)
    parents = target.absolute().parents
    nearest = next(folder for folder in parents if folder.exists())
    with_folder = nearest != parents[0] or not nearest.is_dir()
    with wrap_output_error(target, "create its folder" if with_folder else "create it"):
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if not os.access(nearest, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))


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
        pictures = picture_folder(path) if muxer == "image2" else None
        if pictures is not None:
            self._pattern = pictures.pattern
            self._muxer_options = {"start_number": "0"}
            self.partial = PartialFolder(pictures.folder, file_pattern=pictures.file_names)
            return
        self.partial = PartialFile(path)
        if muxer == "image2":
            self.takes_one_frame = True
            self._muxer_options = {"update": "1"}

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
