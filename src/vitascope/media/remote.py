"""Files behind a URL, as paths: S3, Google's and Microsoft's stores, SFTP and all others that fsspec supports.

They are read by ranges, a few of which are cached, never as a whole. A file being written appears under its name only
when complete, as object stores work.

Source: https://filesystem-spec.readthedocs.io
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.request import url2pathname
from zlib import crc32

from vitascope.errors import MissingDependencyError, UsageError

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://(.*)", re.DOTALL)
"""At least two letters: ``C:`` is a drive."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")
_STORES = frozenset({"abfs", "adl", "az", "gcs", "gs", "memory", "oss", "s3", "s3a"})
"""Object stores have no folders, only names with slashes."""
_BLOCK_BYTES, _BLOCKS = 4 << 20, 8
"""Size of a request in bytes, and number of cached blocks per open file: demuxers read forwards, with occasional
reads of an index elsewhere."""

if TYPE_CHECKING:
    _Base = Path
else:
    _Base = type(Path())


def path_of(name: str | bytes | PathLike[str]) -> Path:
    """Make a path on this machine or behind a URL.

    Args:
        name: As a user wrote it, such as ``s3://bucket/in/a.mp4``, or as file browsers pass it on:
            ``file:///a%20b.mp4`` is a file on this machine (RFC 8089).

    Raises:
        UsageError: The URL names a file on another machine, or the name is not possible for a file.
    """
    if isinstance(name, Path):
        # A URL that was once made into a local path has lost a slash.
        is_url = not isinstance(name, RemotePath) and len(name.parts) > 1 and _SCHEME.fullmatch(name.parts[0])
        if is_url and name.parts[0] == "file:":
            return _local("/".join(name.parts[1:]).removeprefix("localhost/"))
        return RemotePath(*name.parts) if is_url else name
    text = os.fsdecode(name)
    if not text:  # as a path it would mean the working folder
        raise UsageError("a file name is empty")
    if "\0" in text:
        raise UsageError(f"{text!r}: a file name cannot contain a zero byte")
    match = _URL.fullmatch(text)
    if match is None:
        return Path(text)
    if match[1] == "file":
        host, _, rest = match[2].partition("/")
        if host not in ("", "localhost"):
            raise UsageError(f"{text}: is a file of {host}; one of this machine has three slashes: file:///…")
        return _local(rest)
    return RemotePath(f"{match[1]}:", *(part for part in match[2].split("/") if part))


def local_path_of(name: str | bytes | PathLike[str]) -> Path:
    """Make a path on this machine, for functions that do not support URLs.

    Args:
        name: As for ``path_of``.

    Raises:
        UsageError: As ``path_of``; or the name is the URL of a store.
    """
    path = path_of(name)
    if isinstance(path, RemotePath):
        raise UsageError(
            f"{path}: only `vitascope segment`, `people` and `vr convert` take URLs; give a file on this machine"
        )
    return path


def _local(rest: str) -> Path:
    """The file on this machine for the part after ``file:///``."""
    path = url2pathname(f"/{rest.lstrip('/')}")
    if "\0" in path:
        raise UsageError(f"file:///{rest}: a file name cannot contain %00")
    return Path(path)


def remove_folder(folder: Path) -> None:
    """Remove a folder with its content.

    Raises:
        OSError: It cannot be removed, or does not exist.
    """
    if not isinstance(folder, RemotePath):
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


class RemotePath(_Base):
    """A path that begins with a URL's scheme; its string is the URL.

    Errors of stores are raised as the ``OSError`` that a local file would raise.

    Raises:
        MissingDependencyError: fsspec, or its package for this kind of store, is not installed.
    """

    def __str__(self) -> str:
        return f"{self.parts[0]}//{'/'.join(self.parts[1:])}"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[RemotePath], tuple[str, ...]]:
        return (RemotePath, self.parts)

    @property
    def parent(self) -> RemotePath:
        """The parent folder; a bucket is its own parent."""
        return self if len(self.parts) <= 2 else RemotePath(*self.parts[:-1])

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        """All parent folders, the nearest first, up to the bucket."""
        return tuple(RemotePath(*self.parts[:count]) for count in range(len(self.parts) - 1, 1, -1))

    def relative_to(self, *other: str | PathLike[str], **_: Any) -> Path:  # type: ignore[override]
        """The path relative to a folder of the same store.

        Raises:
            ValueError: It does not lie in that folder.
        """
        return Path(*Path(*self.parts).relative_to(*(Path(*path_of(one).parts) for one in other)).parts)

    def is_absolute(self) -> bool:
        """True: a URL is always absolute."""
        return True

    def absolute(self) -> RemotePath:
        """The path itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """The path itself: stores have no links."""
        del strict
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Size, type and time of the last change, if the store gives one; made-up inode numbers tell files apart."""
        del follow_symlinks
        with self._as_of_a_file():
            info = self._store().info(self._key)
        kind = stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG
        when = info.get("LastModified") or info.get("mtime") or info.get("created")
        seconds = when.timestamp() if hasattr(when, "timestamp") else float(when or 0)
        file, bucket = crc32(str(self).encode()), crc32("/".join(self.parts[:2]).encode())
        return os.stat_result(
            (kind | 0o644, file, bucket, 1, 0, 0, info.get("size") or 0, seconds, seconds, seconds),
            {"st_mtime_ns": round(seconds * 1e9), "st_mtime": seconds},
        )

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """True for an object, and for a prefix of other names."""
        return self._kind(follow_symlinks) is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """True for an object."""
        return self._kind(follow_symlinks) == stat.S_IFREG

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """True for a prefix of other names."""
        return self._kind(follow_symlinks) == stat.S_IFDIR

    def is_symlink(self) -> bool:
        """Always False."""
        return False

    def open(  # type: ignore[override]
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open it for reading by ranges, or for writing as a whole."""
        del buffering
        kind = mode.replace("b", "").replace("t", "")
        if kind == "x" and self.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self))
        if kind not in ("r", "w", "x"):
            raise OSError(
                errno.EOPNOTSUPP, "a store's file can only be read, or written as a whole", str(self)
            )
        options: dict[str, Any] = {"mode": "rb" if kind == "r" else "wb"}
        if kind == "r":
            options |= {
                "block_size": _BLOCK_BYTES,
                "cache_type": "blockcache",
                "cache_options": {"maxblocks": _BLOCKS},
            }
        with self._as_of_a_file():
            file = self._store().open(self._key, **options)
        return file if "b" in mode else io.TextIOWrapper(file, encoding, errors, newline)

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """Iterate over its content."""
        with self._as_of_a_file():
            names = self._store().ls(self._key, detail=False)
        yield from (path for name in names if (path := self._named(name)) != self)

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """List the files whose names match; empty if the folder does not exist."""
        if self.is_dir():
            yield from (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def rglob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """List all files below it whose names match."""
        with self._as_of_a_file():
            names = self._store().find(self._key)
        yield from (path for path in map(self._named, names) if fnmatchcase(path.name, pattern))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Create a folder, if the store has folders."""
        del mode, parents
        if self.parts[0].rstrip(":") not in _STORES:
            with self._as_of_a_file():
                self._store().makedirs(self._key, exist_ok=exist_ok)

    def rmdir(self) -> None:
        """Remove a folder, if the store has folders."""
        if self.parts[0].rstrip(":") not in _STORES:
            with self._as_of_a_file():
                self._store().rmdir(self._key)

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove a file."""
        try:
            with self._as_of_a_file():
                self._store().rm_file(self._key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def receive(self, local: Path) -> None:
        """Upload a local file; it appears when complete."""
        with self._as_of_a_file():
            if self.parts[0].rstrip(":") in _STORES:
                self._store().put_file(str(local), self._key)
                return
            arriving = self.with_name(f".{self.name}.arriving")
            self._store().put_file(str(local), arriving._key)
            self._store().mv(arriving._key, self._key)

    @property
    def _key(self) -> str:
        """Its name within the store."""
        return str(self) if self.parts[0] in ("http:", "https:") else "/".join(self.parts[1:])

    def _named(self, name: str) -> RemotePath:
        key = _URL.sub(r"\2", name)
        return RemotePath(self.parts[0], *(part for part in key.split("/") if part))

    def _kind(self, follow_symlinks: bool) -> int | None:
        try:
            return stat.S_IFMT(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _store(self) -> Any:
        return _store_of(self.parts[0].rstrip(":"))

    @contextmanager
    def _as_of_a_file(self) -> Iterator[None]:
        try:
            yield
        except (OSError, MissingDependencyError):
            raise
        except Exception as error:  # the store library's own errors: no credentials, no connection
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise OSError(text) from error


@cache
def _store_of(scheme: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f"{scheme}:// is read through fsspec: pip install 'vitascope[remote]'"
        ) from error
    try:
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise MissingDependencyError(f"{scheme}://: {' '.join(str(error).split())}") from error
