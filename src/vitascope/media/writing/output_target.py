"""The destination of an output: one file, one picture, or a folder of pictures, which appears only when complete.

`PartialFile` and `PartialFolder` own a temporary path beside the target. One of three calls ends the writing:

- ``commit()``: synced to disk and renamed to the target, in one atomic step;
- ``discard()``: removed, together with parent folders that were created for it;
- ``keep()``: renamed to ``<target>.part``, to keep what an interrupted run has written.

Meanwhile a lock beside the target (`WriterLock`) keeps other writers away. What a killed run left behind is removed
by the next one that writes the same target.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import BeingWrittenError, InputError, OutputError, UsageError
from vitascope.media.libav import wrap_output_error
from vitascope.media.reading.images import find_images
from vitascope.media.remote import RemotePath

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_NO_LOCKS_HERE = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
"""Errors of file systems without locks, such as some network mounts."""


class WriterLock:
    """The right to write one output, among processes and threads: a lock file beside it.

    The operating system holds the lock, and releases it when the writer dies in any way. A process ID would be
    useless: containers count theirs from 1, so the run after a crash often has the ID of the crashed one. The file
    itself may stay; the next writer takes it over.

    Args:
        target: The output. Its folder must exist.

    Raises:
        BeingWrittenError: Another writer holds the lock.
        OSError: The lock file cannot be created.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.absolute().with_name(f".{shortened_name(target.absolute().name)}.lock")
        self.is_exclusive = True
        """False if the file system has no locks, so others may also be writing."""
        self._descriptor: int | None = None
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock(descriptor, target)
                # The previous owner may have removed the file between opening and locking.
                if _is_still_named(descriptor, self._path):
                    self._descriptor = descriptor
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def release(self) -> None:
        """Let others write. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if (
            sys.platform == "win32"
        ):  # the system does not remove open files; the next writer may have opened this one
            os.close(descriptor)
            with suppress(OSError):
                self._path.unlink()
        else:  # still locked, so no other process can hold the same file
            with suppress(OSError):
                self._path.unlink()
            os.close(descriptor)

    def _lock(self, descriptor: int, target: Path) -> None:
        try:
            if sys.platform == "win32":
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise BeingWrittenError(
                f"{target}: cannot create it: it is being written already; wait for the other run or end it"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise
            self.is_exclusive = False


def _is_still_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


_LONGEST_NAME_BYTES = 220
"""File systems allow 255 bytes; the rest is for what temporary names add."""


def shortened_name(name: str) -> str:
    """A name, or its beginning and a hash, as a base for longer names."""
    content = os.fsencode(name)
    if len(content) <= _LONGEST_NAME_BYTES:
        return name
    digest = blake2b(content, digest_size=4).hexdigest()
    return f"{content[: _LONGEST_NAME_BYTES - 9].decode(errors='ignore')}~{digest}"


FILE_BROWSER_LITTER = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
"""Files that file browsers create; they do not count as other content of a folder."""

_TOKEN_BYTES = 4


class PartialFile:
    """A file being written next to its target.

    The temporary name is hidden, keeps the suffix (muxers choose by it) and contains a random token, so that it is
    unique even if the file system has no locks. A long name is shortened.

    Args:
        target: The path of the finished file. Missing parent folders are created.

    Raises:
        OutputError: The folder cannot be created or written, the target is a folder or write-protected, or it is
            already being written.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.check(target)
        self._made_folders = _make_parents(target)
        self._lock = _lock(target, made_folders=self._made_folders)
        stem = shortened_name(target.stem)
        if self._lock.is_exclusive:
            for stale in _siblings(target, f".{stem}.", f".part{target.suffix}"):
                with suppress(OSError):  # harmless: writing continues beside it
                    stale.unlink()
        self.path = target.absolute().with_name(f".{stem}.{_token()}.part{target.suffix}")
        try:
            with wrap_output_error(target, "create it"):
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except OutputError:
            self._lock.release()
            _remove_folders(self._made_folders)
            raise

    @staticmethod
    def check(target: Path) -> None:
        """Check that a finished file could replace the target; creates nothing.

        Raises:
            OutputError: The target is a folder or write-protected.
        """
        if target.is_dir():
            raise OutputError(f"{target}: cannot create it: it is a folder; give a file in it")
        is_here = not isinstance(target, RemotePath)
        if is_here and target.exists() and not os.access(target, os.W_OK):
            raise OutputError(f"{target}: cannot replace it: the file is write-protected")

    def commit(self) -> None:
        """Flush to disk, and rename the file to its final name.

        Raises:
            OutputError: The disk or the rename failed; the temporary file still exists.
        """
        with wrap_output_error(self.target, "finish it"):
            _sync(self.path)
            self.path.replace(self.target)
            _sync_folder(self.target.parent)
        with suppress(OSError):
            _kept_earlier(self.target).unlink()
        self._lock.release()

    def discard(self) -> None:
        """Remove the file, if it still exists."""
        with suppress(OSError):
            self.path.unlink()
        self._lock.release()
        _remove_folders(self._made_folders)

    def keep(self) -> Path:
        """Rename to ``<target>.part`` and return that path.

        Raises:
            OutputError: The rename failed.
        """
        kept = self.path.with_name(f"{shortened_name(self.target.absolute().name)}.part")
        with wrap_output_error(kept, "keep the partial result"):
            _sync(self.path)
            self.path.replace(kept)
        self._lock.release()
        return kept


class ArrivingFile(PartialFile):
    """A local file that is uploaded when complete. Stores have no locks: the last writer wins.

    Args:
        target: A path behind a URL.

    Raises:
        OutputError: The target is a folder.
    """

    target: RemotePath

    def __init__(self, target: RemotePath) -> None:
        self.target = target
        with wrap_output_error(target, "look at it"):
            self.check(target)
        self._folder = Path(tempfile.mkdtemp(prefix="vitascope-"))
        self.path = self._folder / f"{shortened_name(target.stem)}{target.suffix}"

    def commit(self) -> None:
        """Upload the file.

        Raises:
            OutputError: The upload failed; the local file still exists.
        """
        with wrap_output_error(self.target, "upload it"):
            self.target.receive(self.path)
        with suppress(OSError):
            _kept_earlier(self.target).unlink()
        self.discard()

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self) -> Path:
        """Upload the file as ``<target>.part``; returns that path.

        Raises:
            OutputError: The upload failed.
        """
        kept = self.target.with_name(f"{self.target.name}.part")
        with wrap_output_error(kept, "keep the partial result"):
            kept.receive(self.path)
        self.discard()
        return kept


def partial_file(target: Path) -> PartialFile:
    """A file being written beside its target, or on this machine if the target is behind a URL."""
    return ArrivingFile(target) if isinstance(target, RemotePath) else PartialFile(target)


def write_whole(target: Path, content: bytes, *, what: str = "write it") -> None:
    """Write a file completely or not at all.

    Args:
        target: The path of the finished file.
        content: The complete content.
        what: The action in the error message.

    Raises:
        OutputError: The file cannot be written; nothing is left behind.
    """
    partial = partial_file(target)
    try:
        with wrap_output_error(target, what):
            partial.path.write_bytes(content)
        partial.commit()
    except BaseException:
        partial.discard()
        raise


def write_png(target: Path, rgb: npt.NDArray[np.uint8], *, what: str) -> None:
    """Write a picture completely or not at all.

    Args:
        target: The path of the finished file.
        rgb: uint8 [H, W, 3].
        what: Name of the picture in messages, such as ``the contact sheet``.

    Raises:
        OutputError: The file cannot be written; nothing is left behind.
    """
    encoded, content = cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    if not encoded:
        raise OutputError(f"{target}: OpenCV could not encode {what}")
    write_whole(target, content.tobytes(), what=f"write {what}")


class PartialFolder:
    """A folder of numbered files being written next to its target.

    Args:
        target: The path of the finished folder. If it exists, it may only contain files of an earlier run, which are
            replaced as a whole.
        file_pattern: Pattern of the file names.

    Raises:
        OutputError: The folder cannot be created, or the target has other content, which is left alone.
    """

    def __init__(self, target: Path, *, file_pattern: re.Pattern[str]) -> None:
        self.target = target
        self._file_pattern = file_pattern
        self.check(target, file_pattern=file_pattern)
        self._made_folders = _make_parents(target)
        self._lock = _lock(target, made_folders=self._made_folders)
        if self._lock.is_exclusive:
            self._clean_up()
        self._token = _token()
        self.path = target.absolute().with_name(
            f".{shortened_name(target.absolute().name)}.{self._token}.part"
        )
        try:
            with wrap_output_error(target, "create it"):
                self.path.mkdir()
        except OutputError:
            self._lock.release()
            _remove_folders(self._made_folders)
            raise

    @staticmethod
    def check(target: Path, *, file_pattern: re.Pattern[str]) -> None:
        """Check that a finished folder could replace the target; creates nothing.

        Raises:
            OutputError: The target is a file or the current folder, or has other content.
        """
        if not target.exists():
            return
        if not target.is_dir():
            raise OutputError(f"{target}: cannot create a folder: a file of that name exists")
        # A shell in the current folder would be left in a removed one.
        if Path.cwd().is_relative_to(target.resolve()):
            raise OutputError(
                f"{target}: cannot replace the current folder by pictures; give a folder in it, such as frames"
            )
        foreign = _other_name(target, file_pattern)
        if foreign is not None:
            raise OutputError(
                f"{target}: the folder holds other files ({foreign}); give a new or an empty folder"
            )

    def commit(self) -> None:
        """Rename the folder to its final name, replacing an earlier run's.

        Raises:
            OutputError: The rename failed, or the target has got other content meanwhile.
        """
        self.check(self.target, file_pattern=self._file_pattern)
        old = self.path.with_suffix(".old")
        with wrap_output_error(self.target, "finish it"):
            for file in self.path.iterdir():
                _sync(file)
            if self.target.exists():
                self.target.rename(old)
            self.path.rename(self.target)
            _sync_folder(self.target.parent)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(_kept_earlier(self.target), ignore_errors=True)
        self._lock.release()

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()
        _remove_folders(self._made_folders)

    def keep(self) -> Path:
        """Rename to ``<target>.part``, replacing an earlier one; returns that path.

        Raises:
            OutputError: The rename failed.
        """
        kept = self.path.with_name(f"{shortened_name(self.target.absolute().name)}.part")
        with wrap_output_error(kept, "keep the partial result"):
            if kept.is_dir():
                shutil.rmtree(kept)
            self.path.rename(kept)
        self._lock.release()
        return kept

    def _clean_up(self) -> None:
        """Remove what killed runs left behind; one killed during ``commit`` gets its earlier folder back."""
        head = f".{shortened_name(self.target.absolute().name)}."
        with wrap_output_error(self.target, "clean up after an earlier run"):
            for old in _siblings(self.target, head, ".old"):
                if self.target.exists():
                    shutil.rmtree(old, ignore_errors=True)
                else:
                    old.rename(self.target)
        for stale in _siblings(self.target, head, ".part"):
            shutil.rmtree(stale, ignore_errors=True)


def _kept_earlier(target: Path) -> Path:
    """The file that an interrupted run kept, no longer needed; a shortened name may belong to another target."""
    return target.absolute().with_name(f"{target.absolute().name}.part")


def _lock(target: Path, *, made_folders: list[Path]) -> WriterLock:
    """Lock a target; parents that were just created for it are removed if that fails."""
    try:
        with wrap_output_error(target, "create it"):
            return WriterLock(target)
    except OutputError:
        _remove_folders(made_folders)
        raise


def _token() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


def _siblings(target: Path, head: str, tail: str) -> list[Path]:
    """Paths beside a target with temporary names."""
    pattern = re.compile(rf"{re.escape(head)}[0-9a-f]{{{2 * _TOKEN_BYTES}}}{re.escape(tail)}")
    with wrap_output_error(target, "look into its folder"):
        return [path for path in target.absolute().parent.iterdir() if pattern.fullmatch(path.name)]


def _make_parents(target: Path) -> list[Path]:
    """Create the missing parents of a path; returns them, innermost first."""
    missing = [parent for parent in target.absolute().parents if not parent.exists()]
    with wrap_output_error(target, "create its folder"):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent)) from error
        except FileNotFoundError as error:
            raise OutputError(
                f"{target}: cannot create its folder: nothing can be created in {_nearest(target)}; write to another "
                "folder"
            ) from error
    return missing


def _nearest(target: Path) -> Path:
    """The innermost parent that exists; the root if none does (a missing drive on Windows)."""
    parents = target.absolute().parents
    return next((folder for folder in parents if folder.exists()), parents[-1])


def _remove_folders(folders: list[Path]) -> None:
    """Remove folders that were created for a discarded output, if they are still empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    # A rename is durable once its folder is synced; systems that cannot open a folder do not need it.
    with suppress(OSError):
        _sync(path)


_FOLDER_PATTERN = "%06d.png"


@dataclass(frozen=True, slots=True)
class PictureFolder:
    """An output that is a folder of numbered pictures; a run replaces the folder as a whole."""

    folder: Path
    pattern: str
    """The names of the pictures, such as ``frame_%05d.png``."""

    @property
    def file_names(self) -> re.Pattern[str]:
        """The file names that the pattern can produce.

        Raises:
            UsageError: The pattern does not contain exactly one number.
        """
        match = re.fullmatch(r"([^%]*)%(?:0(\d+))?d([^%]*)", self.pattern)
        if match is None:
            raise UsageError(f"{self.folder / self.pattern}: write the number once, as %06d")
        head, digits, tail = match.groups()
        return re.compile(rf"{re.escape(head)}\d{{{int(digits or 1)},}}{re.escape(tail)}")

    def is_filled(self) -> bool:
        """True if it contains pictures with these names; folders only appear when complete.

        Raises:
            OutputError: The folder cannot be read.
            UsageError: The pattern does not contain exactly one number.
        """
        return self.folder.is_dir() and any(map(self.file_names.fullmatch, _entries(self.folder)))

    def foreign_name(self) -> str | None:
        """The name of something in it that no run of ours wrote; None if there is nothing.

        Raises:
            OutputError: The folder cannot be read.
            UsageError: The pattern does not contain exactly one number.
        """
        return _other_name(self.folder, self.file_names) if self.folder.is_dir() else None


def _entries(folder: Path) -> list[str]:
    with wrap_output_error(folder, "look into it"):
        return [path.name for path in folder.iterdir() if path.name not in FILE_BROWSER_LITTER]


def _other_name(folder: Path, names: re.Pattern[str]) -> str | None:
    """The first name in a folder that a pattern cannot produce, except files of file browsers."""
    return next((name for name in _entries(folder) if not names.fullmatch(name)), None)


def picture_folder(path: Path) -> PictureFolder | None:
    """The folder of pictures that an output path means; None if it means a single file.

    A pattern such as ``cut/frame_%05d.png`` means its folder, with pictures of that name. A path without a suffix is
    itself the folder, and so is any existing folder.
    """
    if path.is_dir():
        return PictureFolder(path, _FOLDER_PATTERN)
    if path.suffix.lower() not in ("", ".png"):
        return None
    if "%" in path.name:
        return PictureFolder(path.parent, path.name)
    return None if path.suffix else PictureFolder(path, _FOLDER_PATTERN)


def is_written(path: Path) -> bool:
    """True if the output exists; outputs appear only when complete, so nothing is left to do.

    Raises:
        UsageError: It is a pattern that does not contain exactly one number.
    """
    pictures = picture_folder(path)
    return path.is_file() if pictures is None else pictures.is_filled()


def refuse_inputs(path: Path, read: Mapping[str, Path | None], *, what: str = "output") -> None:
    """Check that an output does not replace an input, before anything opens; links and spellings are resolved.

    Args:
        path: The output.
        read: Files, folders and patterns of pictures that are read, by their names in messages; None values are
            ignored.
        what: Name of the path in messages.

    Raises:
        UsageError: The path is one of these, or one of their pictures.
    """
    if not path.exists():
        return
    for name, source in read.items():
        with suppress(InputError, OSError):  # nothing exists there; opening it reports the error
            files = () if source is None else (source, *(find_images(source) or ()))
            if any(file.exists() and path.samefile(file) for file in files):
                raise UsageError(f"{path}: the {what} is {name}; choose another file")


def refuse_unwritable(path: Path) -> None:
    """Check that an output could be created, without creating anything.

    Raises:
        OutputError: Its folder is not writable, or the existing file cannot be replaced.
        UsageError: It is a pattern that does not contain exactly one number.
    """
    pictures = picture_folder(path)
    target = path if pictures is None else pictures.folder
    if pictures is None:
        PartialFile.check(target)
    else:
        PartialFolder.check(target, file_pattern=pictures.file_names)
    if isinstance(target, RemotePath):  # a store reports this when it is written to
        return
    nearest = _nearest(target)
    with_folder = nearest != target.absolute().parent or not nearest.is_dir()
    with wrap_output_error(target, "create its folder" if with_folder else "create it"):
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if not os.access(nearest, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))


class OutputTarget:
    """The output under its temporary name, and the name that FFmpeg needs for it.

    Args:
        path: The path that the user gave. With the muxer ``image2``: a folder, a pattern such as ``frame_%05d.png``,
            or a plain name for one picture.
        muxer: FFmpeg's name of the muxer.

    Raises:
        OutputError: The output cannot be created.
        UsageError: The pattern does not contain exactly one number.
    """

    def __init__(self, path: Path, *, muxer: str) -> None:
        self.path = path
        self.takes_one_frame = False
        """True for the plain name of a picture."""
        self._pattern: str | None = None
        self._muxer_options: dict[str, str] = {}
        self.partial: PartialFile | PartialFolder
        """The temporary file or folder."""
        pictures = picture_folder(path) if muxer == "image2" else None
        if muxer == "image2" and isinstance(path, RemotePath):
            raise OutputError(
                f"{path}: pictures can only be written to folders on this machine; give a video file"
            )
        if pictures is not None:
            self._pattern = pictures.pattern
            self._muxer_options = {"start_number": "0"}
            self.partial = PartialFolder(pictures.folder, file_pattern=pictures.file_names)
            return
        self.partial = partial_file(path)
        if muxer == "image2":
            self.takes_one_frame = True
            self._muxer_options = {"update": "1"}

    @property
    def muxer_name(self) -> str:
        """The name for FFmpeg to open."""
        if self._pattern is None:
            return str(self.partial.path)
        return f"{str(self.partial.path).replace('%', '%%')}{os.sep}{self._pattern}"

    @property
    def muxer_options(self) -> dict[str, str]:
        """Muxer options needed for this kind of name."""
        return dict(self._muxer_options)

    def byte_count(self) -> int:
        """Size of the finished output in bytes."""
        finished = self.partial.target
        if finished.is_dir():
            return sum(file.stat().st_size for file in finished.iterdir())
        return finished.stat().st_size
