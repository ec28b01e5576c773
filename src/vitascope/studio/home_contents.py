"""Lists everything that Vitascope keeps in its home: purpose and size of each part, and which may be deleted.

``vitascope cache clear`` deletes what can be made again automatically. Built engines, people found in videos and the
studio's jobs are deleted only when named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, NamedTuple

from vitascope.config import vitascope_home
from vitascope.errors import OutputError, UsageError, did_you_mean
from vitascope.file_lock import exclusive_lock
from vitascope.media.libav import wrap_output_error
from vitascope.segmentation.matting.cached_film import CacheContents, cache_contents, clear_cache

_ABANDONED_SECONDS: Final = 3600.0
"""A hidden file is being written; one that did not change for this long was left by a crash."""


class Part(NamedTuple):
    """One part of the home."""

    name: str
    places: tuple[str, ...]
    """Folders and files below the home."""
    purpose: str
    is_spare: bool = False
    """True for what is made again automatically."""
    is_cache: bool = False
    """True for a folder of ``CacheManager``, which has an index and a lock."""
    lock: str | None = None
    """Lock file of the writer."""
    refusal: str | None = None
    """What deletes it instead; None if it is deleted here."""


PARTS: Final = (
    Part("mattes", ("mattes",), "mattes of videos, for another output", is_spare=True, is_cache=True),
    Part("stretches", ("stretches",), "finished stretches, for a second cut", is_spare=True),
    Part("quantized", ("quantized",), "networks in INT8", is_spare=True, is_cache=True),
    Part("proxies", ("studio/proxies",), "the studio's copies for browsers", is_spare=True),
    Part("cuts", ("studio/cuts",), "scene cuts, for the studio's timeline", is_spare=True),
    Part("people", ("people",), "people found in videos; hints use their numbers"),
    Part("finished", ("finished",), "how each output was made, for --resume"),
    Part("engines", ("engines",), "built engines, and the results of their checks"),
    Part("tuning", ("optimization_history.jsonl",), "measurements of vitascope optimize"),
    Part(
        "studio",
        ("studio/queue.json", "studio/cookie.key"),
        "the studio's jobs, and the key of its cookies",
        lock="studio/queue.lock",
    ),
    Part(
        "models",
        ("models",),
        "fetched networks",
        refusal="`vitascope models remove` deletes networks by name",
    ),
    Part(
        "liveportrait",
        ("liveportrait",),
        "LivePortrait's weights",
        refusal="these files were put there by hand; delete the folder by hand",
    ),
)
"""All parts that have their own place."""


def contents_of(part: Part) -> CacheContents:
    """Measure a part: all zero if it never held anything. Its folder is the first of its places.

    Raises:
        ConfigError: The home folder is unknown.
    """
    home = vitascope_home()
    first = home / part.places[0]
    return cache_contents(first) if part.is_cache else _counted(first, _files_of(part))


def rest_of_home() -> CacheContents:
    """Files in the home that belong to no part: locks, and files of other versions or of the user."""
    home = vitascope_home()
    known = [home / place for part in PARTS for place in part.places]
    return _counted(
        home,
        (file for file in _files(home) if not any(file.is_relative_to(place) for place in known)),
    )


def clear_parts(names: Sequence[str]) -> list[tuple[Part, CacheContents]]:
    """Delete parts of the home; files being written stay.

    Args:
        names: Names of parts.

    Returns:
        Each part with its former contents.

    Raises:
        UsageError: There is no such part, or it cannot be deleted here; then nothing is deleted.
        OutputError: A running studio uses these jobs, or a folder cannot be written.
    """
    by_name = {part.name: part for part in PARTS}
    if unknown := [name for name in names if name not in by_name]:
        raise UsageError(
            f"{unknown[0]!r}: expected some of {', '.join(by_name)}{did_you_mean(unknown[0], by_name)}"
        )
    parts = [by_name[name] for name in dict.fromkeys(names)]
    for part in parts:
        if part.refusal is not None:
            raise UsageError(f"{part.name}: {part.refusal}")
    with ExitStack() as writers:
        for part in parts:  # check all before deleting any
            writers.enter_context(_writer_away(part))
        return [(part, _clear(part)) for part in parts]


def _clear(part: Part) -> CacheContents:
    held = contents_of(part)
    if part.is_cache:
        clear_cache(held.folder)
        return held
    with wrap_output_error(held.folder, "empty it"):
        for file in _files_of(part):
            if not _is_being_written(file):
                file.unlink(missing_ok=True)
    return held


@contextmanager
def _writer_away(part: Part) -> Iterator[None]:
    """Keep the writer of a part from starting, and refuse if it is running."""
    lock = None if part.lock is None else vitascope_home() / part.lock

    def refuse() -> None:
        raise OutputError(f"{lock}: a studio is running and would write its jobs again; quit it first")

    there = lock is not None and lock.exists()
    with exclusive_lock(lock, on_wait=refuse) if lock is not None and there else nullcontext():
        yield


def _is_being_written(file: Path) -> bool:
    try:
        return file.name.startswith(".") and time.time() < file.lstat().st_mtime + _ABANDONED_SECONDS
    except OSError:  # it has been renamed by now, or is gone
        return True


def _files_of(part: Part) -> Iterator[Path]:
    for place in part.places:
        yield from _files(vitascope_home() / place)


def _files(place: Path) -> Iterator[Path]:
    """Files at and below a place; links to folders are not followed, and if the place itself is one, it is not ours."""
    if place.is_file():
        yield place
    if place.is_symlink():
        return
    for folder, _, names in os.walk(place):
        yield from (Path(folder, name) for name in names)


def _counted(folder: Path, files: Iterable[Path]) -> CacheContents:
    entries = size_bytes = 0
    for file in files:
        with suppress(OSError):  # it has just been deleted
            size_bytes += file.lstat().st_size
            entries += 1
    return CacheContents(folder, entries, size_bytes)
