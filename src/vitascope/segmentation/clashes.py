"""No output may take the place of what a run reads, or of another output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from vitascope.config import Settings
from vitascope.errors import InputError, UsageError
from vitascope.media.images import find_images
from vitascope.media.output_target import PictureFolder, picture_folder
from vitascope.segmentation.plan import PlannedVideo, file_key

__all__ = ["refuse_clashes"]

_Identity = tuple[int, int]
"""Device and inode: the same for every path of one file."""


def refuse_clashes(
    planned: Sequence[PlannedVideo], *, settings: Settings, settings_files: Sequence[Path] = ()
) -> None:
    """Refuse, before anything opens, to write over what is read or where something else stands.

    Args:
        planned: Every video of the run: an output of one may be the input of another.
        settings: They name the background and the network.
        settings_files: Where settings were read from.

    Raises:
        UsageError: An output or a contact sheet is an input, the background, a settings file or the network; two of
            them are one file; or a folder of pictures would take the place of other things.
    """
    read = _ReadFiles(planned, settings=settings, settings_files=settings_files)
    written = _WrittenFiles()
    for plan in planned:
        for _, path in plan.outputs:
            pictures = picture_folder(path)
            if pictures is None:
                read.refuse(path, video=plan.video, what="output")
                written.add(path)
            else:
                read.refuse_folder(pictures, video=plan.video)
                _refuse_other_things(pictures)
                written.add(pictures.folder, is_folder=True)
        if plan.preview is not None:
            if plan.preview.is_dir():
                raise UsageError(f"{plan.preview}: the contact sheet is a file; name one in that folder")
            read.refuse(plan.preview, video=plan.video, what="contact sheet")
            if plan.preview.suffix.lower() != ".png":
                raise UsageError(f"{plan.preview}: the contact sheet is a PNG; let its name end in .png")
            written.add(plan.preview)
    written.refuse_files_in_folders()


class _ReadFiles:
    """Everything that a run reads, by identity, so that links and other spellings are seen through."""

    def __init__(
        self, planned: Sequence[PlannedVideo], *, settings: Settings, settings_files: Sequence[Path]
    ) -> None:
        self._roles: dict[_Identity, str] = {}
        self._videos: dict[_Identity, Path] = {}
        self._folders: dict[_Identity, str] = {}
        seen_folders: set[Path] = set()
        others = [("a settings file", path) for path in settings_files]
        if settings.output.background is not None:
            others.append(("the background", settings.output.background))
        if settings.model.kind is not None:
            others.append(("the network", Path(settings.model.name)))
        inputs = [(plan.video, file) for plan in planned for file in _files_of(plan.video)]
        for role, path in [*(("another input", file) for _, file in inputs), *others]:
            self._remember(path, role, seen_folders)
        for video, file in inputs:
            identity = _identity(file)
            if identity is not None:
                self._videos[identity] = video

    def refuse(self, path: Path, *, video: Path, what: str) -> None:
        """Refuse a file that is written where one of these lies."""
        identity = _identity(path)
        if identity is None or identity not in self._roles:
            return
        role = self._roles[identity]
        if self._videos.get(identity) == video:
            role = "the input"
        raise UsageError(f"{path}: the {what} is {role}; name another file")

    def refuse_folder(self, pictures: PictureFolder, *, video: Path) -> None:
        """Refuse a folder that is replaced while one of these lies in it."""
        identity = _identity(pictures.folder)
        if identity is not None and identity in self._folders:
            role = self._folders[identity].replace("another input", "an input")
            raise UsageError(
                f"{pictures.folder}: the pictures of {video} would replace this folder, which holds {role}; "
                f"{_advice(pictures)}"
            )

    def _remember(self, path: Path, role: str, seen_folders: set[Path]) -> None:
        identity = _identity(path)
        if identity is None:  # not there: whoever opens it will say so
            return
        self._roles.setdefault(identity, role)
        folder = Path(os.path.realpath(path)).parent
        for parent in (folder, *folder.parents):
            if parent in seen_folders:
                break
            seen_folders.add(parent)
            inside = _identity(parent)
            if inside is not None:
                self._folders.setdefault(inside, role)


class _WrittenFiles:
    """Everything that a run writes, by name, as it may not exist yet."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        self._folders: set[str] = set()

    def add(self, path: Path, *, is_folder: bool = False) -> None:
        key = file_key(path)
        if key in self._paths:
            raise UsageError(f"{path}: two outputs would be the same file; give each a name of its own")
        self._paths[key] = path
        if is_folder:
            self._folders.add(key)

    def refuse_files_in_folders(self) -> None:
        """A folder of pictures holds nothing else."""
        if not self._folders:
            return
        for path in self._paths.values():
            folder = next((up for up in path.absolute().parents if file_key(up) in self._folders), None)
            if folder is not None:
                raise UsageError(f"{path}: it would lie in {folder}, which is a folder of pictures by itself")


def _refuse_other_things(pictures: PictureFolder) -> None:
    if Path.cwd().is_relative_to(pictures.folder.resolve()):
        raise UsageError(
            f"{pictures.folder}: pictures cannot take the place of the current folder; {_advice(pictures)}"
        )
    foreign = pictures.foreign_name()
    if foreign is not None:
        raise UsageError(
            f"{pictures.folder}: pictures go into a folder of their own, and this one holds {foreign}; "
            f"{_advice(pictures)}"
        )


def _advice(pictures: PictureFolder) -> str:
    return f"name a folder of its own, such as {pictures.folder / 'frames' / pictures.pattern}"


def _files_of(video: Path) -> Iterator[Path]:
    """What an input is read from; nothing where it cannot be read, which opening it will say."""
    with suppress(InputError, OSError):
        yield from find_images(video) or [video]


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
