"""Finds outputs that need not be made again: they exist, and cover the wanted part of the video.

Outputs of a run with ``--resume``, or of a part of a video, are recorded in small files below Vitascope's home. A
record names neither input nor output; it holds the requested part, the settings, and size and date of input and
output. If an output has no record, because it was made elsewhere or has changed since, its length is compared
instead: exactly for a part of a video; for a whole one, within what headers can be trusted.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import blake2b, file_digest
from pathlib import Path
from stat import S_ISREG
from typing import Any

from vitascope.config import OutputKind, Settings, VideoSettings, vitascope_home
from vitascope.errors import ConfigError, InputError, OutputError
from vitascope.frames import VideoInfo
from vitascope.media.reading.images import find_images
from vitascope.media.reading.reader import probe
from vitascope.media.remote import RemotePath
from vitascope.media.writing.output_target import picture_folder
from vitascope.segmentation.matting.networks import is_network_file
from vitascope.segmentation.plan import PlannedVideo, wanted_seconds

_SUFFIX = ".json"
_MOST_REMEMBERED = 20_000
"""Maximum number of records; each takes one block on disk, and the oldest are removed first."""
_SECTIONS = ("model", "video", "people", "edges", "output", "inference")
_NOT_SEEN = frozenset(
    {
        "model.backend",
        "model.batch_size",
        "model.num_workers",
        "model.prefetch_factor",
        "output.keep_partial",
        "output.kinds",
        "video.end_seconds",
        "video.max_corrupt_frames",
        "video.start_seconds",
    }
)
"""Settings that no output depends on, or that are recorded in another way."""
_NAMED = frozenset({"model.name", "output.background", "people.hints"})
"""Settings that may be paths. Records hold a hash instead of the path: of a file's content, which may be edited in
place; of names, sizes and dates for a folder of images."""
_MOST_TOLD = 3
_ROUNDING_FRAMES = 1.5
"""Tolerance of a length, in frames: containers round times, and may omit the last frame's length."""
_WHOLE_SECONDS, _WHOLE_SHARE = 0.5, 0.01
"""Tolerances of a whole video's length, in seconds and as a share: some headers (AVI, FLV) give slightly more or less.
Parts are recorded, so an output without a record was made from a whole video."""


def is_finished(planned: PlannedVideo, settings: Settings) -> bool:
    """True if every output exists and covers the wanted part, so that it need not be made again.

    After a trial with ``--end 5``, ``--resume`` must not take the whole video as done. A video of unknown length
    counts as covered if there is no record. Outputs older than the hints were made without them.
    """
    if not planned.is_done:
        return False
    hints, wanted = settings.people.hints, settings.video
    try:
        if hints is not None and any(_changed(path) < _changed(hints) for _, path in planned.outputs):
            return False
        return all(_covers(planned.video, path, wanted) for _, path in planned.outputs)
    except InputError:  # not finished; if the input is unreadable, opening it reports the error later
        return False


def other_settings(planned: PlannedVideo, settings: Settings) -> str | None:
    """Make a note on a finished video, if its outputs are known to be made with other settings.

    Args:
        planned: A video for which ``is_finished`` is true.
        settings: The settings requested now.
    """
    usual, seen = _flat(Settings()), None
    for kind, path in planned.outputs:
        before = _remembered(planned.video, path).get("settings")
        if not isinstance(before, dict):
            continue
        if seen is None:
            seen = _unusual(settings)
        now = seen | {"type": kind}
        if before == now:
            continue
        pairs = {
            key: (before.get(key, usual.get(key)), now.get(key, usual.get(key))) for key in {*before, *now}
        }
        changes = [
            f"another {key}" if key in _NAMED else f"{key} {_in_words(then)}, now {_in_words(wanted)}"
            for key, (then, wanted) in sorted(pairs.items())
            if then != wanted
        ]
        if not changes:
            continue
        more = f"; and {len(changes) - _MOST_TOLD} more" if len(changes) > _MOST_TOLD else ""
        return (
            f"{path} was made with other settings ({'; '.join(changes[:_MOST_TOLD])}{more}); "
            "-y without --resume makes it again"
        )
    return None


def knows_settings(planned: PlannedVideo) -> bool:
    """False for a finished video if the settings of some output are unknown."""
    return all("settings" in _remembered(planned.video, path) for _, path in planned.outputs)


def settings_of_outputs(
    planned: PlannedVideo, settings: Settings, *, resumed: bool
) -> dict[OutputKind, dict[str, Any]]:
    """Record the settings of each output. Call this before the run: files may be edited in the meantime.

    Args:
        planned: The video, before its outputs are written.
        settings: The run's settings.
        resumed: True for a run with ``--resume``; other runs record no whole videos.

    Returns:
        The records by kind; empty if nothing is to be recorded.
    """
    if not resumed and _stretch(settings.video) == _stretch(VideoSettings()):
        return {}
    seen = _unusual(settings)
    return {kind: seen | {"type": kind} for kind, _ in planned.outputs}


def _unusual(settings: Settings) -> dict[str, Any]:
    """Return the settings that affect outputs and differ from their defaults, by key."""
    usual = _flat(Settings())
    return {key: value for key, value in _flat(settings).items() if value != usual[key]}


def _flat(settings: Settings) -> dict[str, Any]:
    """Return the settings of outputs by dotted key, as JSON values."""
    flat: dict[str, Any] = {}
    sections = settings.model_dump(mode="json", include=set(_SECTIONS))
    left: list[tuple[str, Any]] = list(sections.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()]
        elif key not in _NOT_SEEN:
            flat[key] = value
            if key in _NAMED and value is not None:
                is_path = key != "model.name" or is_network_file(value)
                flat[key] = _told_apart(str(value), is_path=is_path)
    return flat


def _told_apart(name: str, *, is_path: bool) -> str:
    """Hash a name and, for a path, a file's bytes or the sizes and dates of a folder's images."""
    mark = blake2b(os.fsencode(name), digest_size=20)
    # The value may be a colour, a missing file or a folder without images.
    with suppress(OSError, ValueError, InputError):
        pictures = find_images(Path(name)) if is_path else None
        for picture in pictures or ():  # a folder may hold thousands
            known = picture.stat()
            mark.update(os.fsencode(f"\0{picture.name}\0{known.st_size}\0{known.st_mtime_ns}"))
        # Reading a pipe would block.
        if is_path and pictures is None and S_ISREG((known := Path(name).stat()).st_mode):
            mark.update(_digest_of(name, known.st_size, known.st_mtime_ns))
    return mark.hexdigest()


@lru_cache(maxsize=8)
def _digest_of(path: str, size: int, changed_ns: int) -> bytes:
    """Hash a file's content, cached while size and date are unchanged: outputs may share a background."""
    del size, changed_ns
    with Path(path).open("rb") as file:
        return file_digest(file, partial(blake2b, digest_size=20)).digest()


def _in_words(value: Any) -> str:
    return "none" if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)


def remember_finished(
    planned: PlannedVideo,
    settings: Settings,
    *,
    made_with: Mapping[OutputKind, Mapping[str, Any]],
) -> None:
    """Record the outputs of a video; if that fails, a later run compares their length instead.

    Args:
        planned: The video, after its outputs are written.
        settings: The run's settings, with the part of the video.
        made_with: Result of ``settings_of_outputs`` before the run; if empty, nothing is recorded.
    """
    if not made_with:
        return
    wanted = settings.video
    with suppress(OSError, ConfigError, InputError, OutputError):
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        for kind, path in planned.outputs:
            made = {"stretch": _stretch(wanted), "settings": made_with[kind]}
            text = json.dumps({**_looks(planned.video, path), **made})
            partial = folder / f".{secrets.token_hex(8)}"
            try:
                partial.write_text(text)
                partial.replace(_file_of(path))
            finally:
                partial.unlink(missing_ok=True)
        remembered = [(file.stat().st_mtime_ns, file) for file in folder.glob(f"*{_SUFFIX}")]
        for _, file in sorted(remembered)[:-_MOST_REMEMBERED]:
            file.unlink(missing_ok=True)


def _covers(video: Path, output: Path, wanted: VideoSettings) -> bool:
    made = _remembered_stretch(video, output)
    if made is None:
        return _is_as_long(video, output, wanted, has_changed=_is_remembered(output))
    start, end = _stretch(wanted)
    if made[0] != start:
        return False
    if made[1] == end:
        return True
    length = probe(video).duration_seconds  # an end beyond the video's end means no end
    return length is not None and all(one is None or one >= length for one in (made[1], end))


def _stretch(wanted: VideoSettings) -> list[float | None]:
    return [wanted.start_seconds, wanted.end_seconds]


def _remembered_stretch(video: Path, output: Path) -> list[float | None] | None:
    """Read the requested start and end; None if unknown, or if input or output has changed."""
    stretch = _remembered(video, output).get("stretch")
    return stretch if isinstance(stretch, list) and len(stretch) == 2 else None


def _remembered(video: Path, output: Path) -> dict[str, Any]:
    """Read the record of an output; empty if there is none, or if input or output has changed."""
    try:
        known: dict[str, Any] = json.loads(_file_of(output).read_text())
        looks = _looks(video, output)
        if any(known.pop(name) != look for name, look in looks.items()):
            return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError, InputError, OutputError):
        return {}
    return known


def _is_remembered(output: Path) -> bool:
    try:
        return _file_of(output).exists()
    except (OSError, ConfigError, OutputError):
        return False


def _looks(video: Path, output: Path) -> dict[str, Any]:
    """Return sizes and dates of input and output, to detect changes."""
    pictures = picture_folder(output)
    sources = find_images(video) or [video]
    return {
        "input": [len(sources), sum(one.stat().st_size for one in sources), max(map(_changed, sources))],
        "output": _look(output if pictures is None else pictures.folder),
    }


def _look(path: Path) -> list[int]:
    """Return size and date of a file; size 0 for a folder, whose date changes with each renamed file."""
    known = path.stat()
    return [0 if path.is_dir() else known.st_size, known.st_mtime_ns]


def _file_of(output: Path) -> Path:
    name = str(output) if isinstance(output, RemotePath) else os.path.realpath(output)
    return _folder() / f"{blake2b(os.fsencode(name), digest_size=20).hexdigest()}{_SUFFIX}"


def _folder() -> Path:
    return vitascope_home() / "finished"


def _changed(path: Path) -> int:
    """Return the time at which a file was written, in nanoseconds; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_as_long(video: Path, output: Path, wanted: VideoSettings, *, has_changed: bool) -> bool:
    source, made = probe(video), probe(output)
    if source.duration_seconds is None or made.container == "images":
        return _has_as_many_pictures(source, made, wanted)
    if made.duration_seconds is None:
        return True
    expected = wanted_seconds(source.duration_seconds, wanted)
    tolerated = _ROUNDING_FRAMES / source.average_frame_rate
    if _stretch(wanted) == _stretch(VideoSettings()) and not has_changed:
        tolerated = max(tolerated, _WHOLE_SECONDS + _WHOLE_SHARE * expected)
    return abs(made.duration_seconds - expected) <= tolerated


def _has_as_many_pictures(source: VideoInfo, made: VideoInfo, wanted: VideoSettings) -> bool:
    """Compare the number of images in a folder, because images have no times."""
    count, duration = source.frame_count_estimate, source.duration_seconds
    if count is None or made.frame_count_estimate is None:
        return True
    if not duration:
        return made.frame_count_estimate >= count or wanted != VideoSettings()
    expected = count * wanted_seconds(duration, wanted) / duration
    return abs(made.frame_count_estimate - expected) <= _ROUNDING_FRAMES
