"""The place of an output: one file, one picture, or a folder of pictures, which appears under its name only when whole.

`PartialFile` and `PartialFolder` own a temporary path beside the target. Exactly one of three ends follows:

- ``commit()``: synced to disk and renamed to the target, in one atomic step;
- ``discard()``: removed, together with parent folders that were made for it;
- ``keep()``: renamed to ``<target>.part``, for what an interrupted run already did.

While it is open, a lock beside the target (`WriterLock`) keeps other writers away. What a run that was killed left
behind is removed by the next one that writes the same target.
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
"""Errors of file systems that know no locks, such as some network mounts."""


class WriterLock:
    """The right to write one output, among processes and among threads: a lock file beside it.

    The operating system holds the lock, and drops it when the writer dies, however that ends. A process id would say
    nothing: containers count theirs from 1, so that the run after a crash often has the id of the crashed one. The
    file itself may stay; the next writer takes it over.

    Args:
        target: The output. Its folder exists.

    Raises:
        BeingWrittenError: Somebody is writing it.
        OSError: The lock file cannot be made.
    """

    def __init__(self, target: Path) -> None:
        self._path = target.absolute().with_name(f".{shortened_name(target.absolute().name)}.lock")
        self.is_exclusive = True
        """False where the file system has no locks: others may also be writing."""
        self._descriptor: int | None = None
        while self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._lock(descriptor, target)
                # Whoever held it before may have removed the file between our opening and our locking it.
                if _is_still_named(descriptor, self._path):
                    self._descriptor = descriptor
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def release(self) -> None:
        """Let others write; does nothing the second time."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        if (
            sys.platform == "win32"
        ):  # removes no file that is open, and no file that the next writer has opened
            os.close(descriptor)
            with suppress(OSError):
                self._path.unlink()
        else:  # removed while it is locked: no other process can have locked the same file meanwhile
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
"""File systems take 255 bytes; the rest is for what temporary names have besides."""


def shortened_name(name: str) -> str:
    """A name, or its beginning and a hash of it, to make longer names of."""
    content = os.fsencode(name)
    if len(content) <= _LONGEST_NAME_BYTES:
        return name
    digest = blake2b(content, digest_size=4).hexdigest()
    return f"{content[: _LONGEST_NAME_BYTES - 9].decode(errors='ignore')}~{digest}"


FILE_BROWSER_LITTER = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
"""Files that looking at a folder puts there; they do not make it a folder with other things."""

_TOKEN_BYTES = 4


class PartialFile:
    """A file being written next to its target.

    The temporary name is hidden, keeps the suffix (muxers choose by it) and holds a random token, so that it never
    is anybody else's, not even where the file system knows no locks. A long name is cut.

    Args:
        target: The path of the finished file. Missing parent folders are made.

    Raises:
        OutputError: The folder cannot be made or written to, the target is a folder or write-protected, or it is
            being written already.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.check(target)
        self._made_folders = _make_parents(target)
        self._lock = _lock(target, made_folders=self._made_folders)
        stem = shortened_name(target.stem)
        if self._lock.is_exclusive:
            for stale in _siblings(target, f".{stem}.", f".part{target.suffix}"):
                with suppress(OSError):  # harmless; writing goes on beside it
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
        """Refuse a target that a finished file cannot replace; creates nothing.

        Raises:
            OutputError: It is a folder or write-protected.
        """
        if target.is_dir():
            raise OutputError(f"{target}: cannot create it: it is a folder; give a file in it")
        is_here = not isinstance(target, RemotePath)
        if is_here and target.exists() and not os.access(target, os.W_OK):
            raise OutputError(f"{target}: cannot replace it: the file is write-protected")

    def commit(self) -> None:
        """Flush to disk and give the file its name.

        Raises:
            OutputError: The disk or the rename failed; the temporary file is still there.
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
        target: Behind a URL.

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
        """Upload it.

        Raises:
            OutputError: The store did not take it; the file is still here.
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
        """Upload it as ``<target>.part`` and return that path.

        Raises:
            OutputError: The store did not take it.
        """
        kept = self.target.with_name(f"{self.target.name}.part")
        with wrap_output_error(kept, "keep the partial result"):
            kept.receive(self.path)
        self.discard()
        return kept


def partial_file(target: Path) -> PartialFile:
    """A file that is being written, beside its target or, where that is behind a URL, on this machine."""
    return ArrivingFile(target) if isinstance(target, RemotePath) else PartialFile(target)


def write_whole(target: Path, content: bytes, *, what: str = "write it") -> None:
    """Write a file whole or not at all.

    Args:
        target: The path of the finished file.
        content: All of it.
        what: What cannot be done when it fails, for the message.

    Raises:
        OutputError: It cannot be written; nothing is left behind.
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
    """Write a picture whole or not at all.

    Args:
        target: The path of the finished file.
        rgb: uint8 [H, W, 3].
        what: What the picture is, for messages: ``the contact sheet``.

    Raises:
        OutputError: It cannot be written; nothing is left behind.
    """
    encoded, content = cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
    if not encoded:
        raise OutputError(f"{target}: OpenCV could not encode {what}")
    write_whole(target, content.tobytes(), what=f"write {what}")


class PartialFolder:
    """A folder of numbered files being written next to its target.

    Args:
        target: The path of the finished folder. When it exists it may hold nothing but files of an earlier run;
            these are replaced as a whole.
        file_pattern: The names of such files.

    Raises:
        OutputError: The folder cannot be made, or the target holds other things, which are left alone.
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
        """Refuse a target that a finished folder cannot replace; creates nothing.

        Raises:
            OutputError: It is a file or the current folder, or holds other things.
        """
        if not target.exists():
            return
        if not target.is_dir():
            raise OutputError(f"{target}: cannot create a folder: a file of that name exists")
        # The finished folder takes this one's place; a shell that stands in it would stand in a removed folder.
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
        """Give the folder its name, in place of an earlier run's.

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
        """Rename to ``<target>.part``, in place of an earlier one, and return that path.

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
        """Remove what killed runs left; one killed in the middle of ``commit`` gets its earlier folder back."""
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
    """The file that an interrupted run kept, needless beside the whole one; shortened names may be another's."""
    return target.absolute().with_name(f"{target.absolute().name}.part")


def _lock(target: Path, *, made_folders: list[Path]) -> WriterLock:
    """Lock a target whose parents were just made; they go again when that fails."""
    try:
        with wrap_output_error(target, "create it"):
            return WriterLock(target)
    except OutputError:
        _remove_folders(made_folders)
        raise


def _token() -> str:
    return secrets.token_hex(_TOKEN_BYTES)


def _siblings(target: Path, head: str, tail: str) -> list[Path]:
    """Paths beside a target that have a temporary name."""
    pattern = re.compile(rf"{re.escape(head)}[0-9a-f]{{{2 * _TOKEN_BYTES}}}{re.escape(tail)}")
    with wrap_output_error(target, "look into its folder"):
        return [path for path in target.absolute().parent.iterdir() if pattern.fullmatch(path.name)]


def _make_parents(target: Path) -> list[Path]:
    """Make the missing parents of a path; returns them, innermost first."""
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
    """Remove folders that were made for a discarded output, if they are still empty."""
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
    # A rename is durable once its folder is synced; systems that cannot open a folder need no such thing.
    with suppress(OSError):
        _sync(path)


_FOLDER_PATTERN = "%06d.png"


@dataclass(frozen=True, slots=True)
class PictureFolder:
    """An output that is a folder of numbered pictures; a run replaces the folder as a whole."""

    folder: Path
    pattern: str
    """The names of the pictures, for example ``frame_%05d.png``."""

    @property
    def file_names(self) -> re.Pattern[str]:
        """The names that the pattern can print.

        Raises:
            UsageError: The pattern has not exactly one number.
        """
        match = re.fullmatch(r"([^%]*)%(?:0(\d+))?d([^%]*)", self.pattern)
        if match is None:
            raise UsageError(f"{self.folder / self.pattern}: write the number once, as %06d")
        head, digits, tail = match.groups()
        return re.compile(rf"{re.escape(head)}\d{{{int(digits or 1)},}}{re.escape(tail)}")

    def is_filled(self) -> bool:
        """True when it holds pictures of these names: folders appear only whole.

        Raises:
            OutputError: The folder cannot be looked into.
            UsageError: The pattern has not exactly one number.
        """
        return self.folder.is_dir() and any(map(self.file_names.fullmatch, _entries(self.folder)))

    def foreign_name(self) -> str | None:
        """The name of something in it that no run of ours wrote, or None.

        Raises:
            OutputError: The folder cannot be looked into.
            UsageError: The pattern has not exactly one number.
        """
        return _other_name(self.folder, self.file_names) if self.folder.is_dir() else None


def _entries(folder: Path) -> list[str]:
    with wrap_output_error(folder, "look into it"):
        return [path.name for path in folder.iterdir() if path.name not in FILE_BROWSER_LITTER]


def _other_name(folder: Path, names: re.Pattern[str]) -> str | None:
    """The first name in a folder that a pattern cannot print, but for what file browsers put there."""
    return next((name for name in _entries(folder) if not names.fullmatch(name)), None)


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
    """True if the output exists; outputs appear only when complete, so nothing is left to do.

    Raises:
        UsageError: It is a pattern without exactly one number.
    """
    pictures = picture_folder(path)
    return path.is_file() if pictures is None else pictures.is_filled()


def refuse_inputs(path: Path, read: Mapping[str, Path | None], *, what: str = "output") -> None:
    """Refuse outputs that would replace an input, before anything opens; links and spellings are resolved.

    Args:
        path: What is written.
        read: Files, folders and patterns of pictures that are read, by what a message calls them; None is none.
        what: What a message calls the path.

    Raises:
        UsageError: The path is one of them, or one of their pictures.
    """
    if not path.exists():
        return
    for name, source in read.items():
        with suppress(
            InputError, OSError
        ):  # it is not there, or no pictures are: whoever opens it will say so
            files = () if source is None else (source, *(find_images(source) or ()))
            if any(file.exists() and path.samefile(file) for file in files):
                raise UsageError(f"{path}: the {what} is {name}; choose another file")


def refuse_unwritable(path: Path) -> None:
    """Look whether an output could be created, and create nothing.

    Raises:
        OutputError: Its folder may not be written, or the existing file cannot be replaced.
        UsageError: It is a pattern without exactly one number.
    """
    pictures = picture_folder(path)
    target = path if pictures is None else pictures.folder
    if pictures is None:
        PartialFile.check(target)
    else:
        PartialFolder.check(target, file_pattern=pictures.file_names)
    if isinstance(target, RemotePath):  # it says so when it is given something
        return
    nearest = _nearest(target)
    with_folder = nearest != target.absolute().parent or not nearest.is_dir()
    with wrap_output_error(target, "create its folder" if with_folder else "create it"):
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
        if not os.access(nearest, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))


class OutputTarget:
    """The output under its temporary name, and how FFmpeg gets that name.

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
        """The name that FFmpeg is to open."""
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
