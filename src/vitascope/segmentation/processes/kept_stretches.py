"""Finished stretches of earlier runs, by what made them, so that a second cut makes only those that change.

They lie in ``stretches`` below Vitascope's home, up to a size; what was unused for longest goes first.
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
from typing import Any, Self

from vitascope.config import Settings, vitascope_home

_SUFFIX, _PARTIAL_SUFFIX = ".stretch", ".part"
_ABANDONED_SECONDS = 3600.0


class KeptStretches:
    """The folder of finished stretches.

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
