"""The folders in which finished stretches lie: a run's own, and one that all runs share.

A run's own is beside its output until the output is whole. What runs share lies in ``stretches`` below Vitascope's
home, by what made it, up to a size: a second cut makes only what changes. What was unused for longest goes first.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vitascope.config import Settings, vitascope_home
from vitascope.errors import InputError, add_to_line
from vitascope.media.libav import wrap_output_error
from vitascope.media.remote import RemotePath, remove_folder
from vitascope.media.writing.output_target import picture_folder, shortened_name

_SUFFIX, _PARTIAL_SUFFIX = ".stretch", ".part"
_ABANDONED_SECONDS = 3600.0


class WorkFolder:
    """The folder of a run beside its output, made where it is not there. A context manager.

    The outputs are locked, so no other run uses it.

    It is removed when all went well, and where the input is to blame, which another run would meet again. Else what is
    finished stays, and the error says so.

    Args:
        output: The first output of the video.
        resume: Keep the stretches that an earlier run made; else they are removed.

    Raises:
        OutputError: It cannot be made, or not emptied.
    """

    def __init__(self, output: Path, *, resume: bool) -> None:
        pictures = picture_folder(output)
        target = (output if pictures is None else pictures.folder).absolute()
        self.path = target.with_name(f".{shortened_name(target.name)}.stretches")
        with wrap_output_error(self.path, "create it"):
            if self.path.exists() and not resume:
                remove_folder(self.path)
            self.path.mkdir(exist_ok=True)
            for left_over in self.path.glob(".*.part"):  # of processes that were killed
                left_over.unlink()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it, unless another run can go on from it."""
        count = finished_stretches(self.path)
        if error is None or not count or getattr(error, "exit_code", None) == InputError.exit_code:
            self.remove()
            return
        for left_over in self.path.glob(".*.part"):  # of processes that were just ended
            left_over.unlink(missing_ok=True)
        add_to_line(
            error, f"--resume goes on from {count} finished stretch{'es' * (count > 1)} in {self.path.name}"
        )

    def with_copy_of(self, file: Path) -> Path:
        """Put a copy of a file there, for all who make stretches; where it is.

        Raises:
            OutputError: It cannot be written.
        """
        copy = self.path / file.name
        with wrap_output_error(copy, "write it"):
            if isinstance(copy, RemotePath):
                copy.receive(file)
            else:
                shutil.copyfile(file, copy)
        return copy

    def file_of(self, number: int) -> Path:
        """The file of a stretch."""
        return self.path / f"{number:05}{_SUFFIX}"

    def remove(self) -> None:
        """Remove it with all that lies in it; one that is gone is fine."""
        with suppress(OSError):
            remove_folder(self.path)


def finished_stretches(folder: Path) -> int:
    """How many lie in a video's folder; 0 where it is not there."""
    return sum(1 for _ in folder.glob(f"*{_SUFFIX}"))


class KeptStretches:
    """The folder of finished stretches that runs share.

    Args:
        most_bytes: Most bytes of all of them together; one that is larger is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._folder, self._most_bytes = _folder(), most_bytes

    @classmethod
    def of(cls, settings: Settings, *, wanted: bool | None = None) -> Self | None:
        """The folder as settings ask for it: where matte caching is on, or hints are given.

        Args:
            settings: The run's settings.
            wanted: Whether it is kept whatever they say.
        """
        if wanted is None:
            wanted = settings.processing.enable_caching or settings.people.hints is not None
        return cls(int(settings.processing.cache_size_gb * 1e9)) if wanted else None

    def take(self, made_by: Mapping[str, Any], path: Path) -> bool:
        """Put the stretch that was made by this under a name of the caller's; False where there is none."""
        kept = self._file(made_by)
        try:
            _put(kept, path)
            os.utime(kept, ns=(time.time_ns(),) * 2)
        except OSError:  # nobody made it, or it has just gone
            return False
        return True

    def keep(self, made_by: Mapping[str, Any], path: Path) -> None:
        """Keep a finished stretch; where the disk refuses, it is made again another time."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._make_room(path.stat().st_size):
                _put(path, self._file(made_by))

    def _file(self, made_by: Mapping[str, Any]) -> Path:
        text = json.dumps(made_by, sort_keys=True)
        return self._folder / f"{blake2b(text.encode(), digest_size=20).hexdigest()}{_SUFFIX}"

    def _make_room(self, size: int) -> bool:
        """Remove what was unused for longest until so much more fits; False for what never does."""
        if size > self._most_bytes:
            return False
        for left_over in self._folder.glob(f"*{_PARTIAL_SUFFIX}"):  # of processes that were killed
            if left_over.stat().st_mtime + _ABANDONED_SECONDS < time.time():
                left_over.unlink(missing_ok=True)
        files = [(file.stat(), file) for file in kept_stretch_files()]
        total = sum(known.st_size for known, _ in files)
        for known, file in sorted(files, key=lambda one: one[0].st_mtime_ns):
            if total + size <= self._most_bytes:
                break
            total -= known.st_size
            file.unlink(missing_ok=True)
        return True


def kept_stretch_files() -> list[Path]:
    """All that are kept, by anybody."""
    return list(_folder().glob(f"*{_SUFFIX}"))


def _folder() -> Path:
    return vitascope_home() / "stretches"


def _put(source: Path, target: Path) -> None:
    """Another name for a file that nobody changes; a copy, where the two lie on different disks."""
    partial = target.with_name(f".{secrets.token_hex(8)}{_PARTIAL_SUFFIX}")
    try:
        try:
            os.link(source, partial)
        except OSError:
            shutil.copyfile(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)  # two names of one file are not replaced by one another
