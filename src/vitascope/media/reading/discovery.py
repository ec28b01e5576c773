"""Finds videos in files, folders and globs."""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import av

from vitascope.errors import InputError
from vitascope.media.libav import open_input, wrap_input_error
from vitascope.media.reading.damage import explain_unreadable
from vitascope.media.reading.images import IMAGE_SUFFIXES, find_images, is_image, natural_key
from vitascope.media.remote import RemotePath, path_of

VIDEO_SUFFIXES = frozenset(
    {
        ".3g2", ".3gp", ".asf", ".avi", ".flv", ".gif", ".m2ts", ".m2v", ".m4v", ".mjpeg", ".mjpg", ".mkv", ".mov",
        ".mp4", ".mpeg", ".mpg", ".mts", ".mxf", ".nut", ".ogv", ".qt", ".ts", ".vob", ".webm", ".wmv", ".y4m",
    }
)  # fmt: skip
"""Suffixes, in lower case, by which videos in a folder are found. A file that is named directly may have any suffix."""


@dataclass(frozen=True, slots=True)
class FoundVideo:
    """An input, and its path relative to the folder that was given."""

    path: Path
    """Path to open: a video file, an image, a folder of images or an image pattern."""
    relative_path: Path
    """Path below the given folder, to mirror its tree in the output; otherwise the bare name."""
    is_named: bool = True
    """False if it was found in a folder or by a glob, which may find more the next time."""


def find_videos(
    inputs: Sequence[str | PathLike[str]], *, recursive: bool, exclude: Path | None = None
) -> list[FoundVideo]:
    """List the videos of the inputs, each once, in the given order and naturally sorted within folders.

    Accepts a file whatever its name; opening it shows whether it is a video. A folder yields its visible
    videos, by suffix, and its images: those that form a numbered sequence of one size are one video, all
    others are single inputs. A glob yields what it matches: folders and files as above, images as one
    sequence. A printf pattern (``img_%04d.png``) is an image sequence.

    Args:
        inputs: Paths, globs (``*``, ``?``, ``[...]``, ``**``) and image patterns.
        recursive: Search subfolders, too.
        exclude: A folder to skip if it lies below a folder or glob that is searched: the output's, so that results
            are not taken as inputs the next time. An input inside it, or the folder itself as an input, is searched.

    Raises:
        InputError: An input does not exist or has no video; the message names it.
    """
    found: dict[Path, FoundVideo] = {}
    for name in inputs:
        with wrap_input_error(name, "look at it"):
            videos = list(_expand(path_of(name), recursive=recursive, exclude=exclude))
        if not videos:
            where = "and below it" if recursive else "itself; --recursive looks further down"
            raise InputError(f"{name}: no videos found in the folder {where}")
        # A video reached through several folders (with a link to a parent, ** finds forty) is listed once, under the
        # shortest path. A link beside a video has its own name, and so its own output.
        places = [video.path.parent.resolve() / video.path.name for video in videos]
        shortest: dict[Path, int] = {}
        for place, video in zip(places, videos, strict=True):
            length = len(video.path.parts)
            shortest[place] = min(length, shortest.get(place, length))
        for place, video in zip(places, videos, strict=True):
            if len(video.path.parts) == shortest[place]:
                found.setdefault(place, video)
    if not found:
        raise InputError("no input given")
    return list(found.values())


def folders_left_out(folder: Path, *, exclude: Path | None = None) -> list[Path]:
    """Subfolders in which ``find_videos`` would find videos if it were recursive.

    Args:
        folder: The folder that was searched.
        exclude: As for ``find_videos``.
    """
    excluded = _below(folder, exclude)
    inner = (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return sorted(
        (path for path in inner if not _is_in(path, excluded) and any(_names_of_media(path, excluded))),
        key=lambda path: natural_key(path.name),
    )


def _names_of_media(folder: Path, exclude: Path | None) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and not _is_in(Path(place, name), exclude)
        ]
        for name in names:
            if not name.startswith(".") and Path(name).suffix.lower() in VIDEO_SUFFIXES | IMAGE_SUFFIXES:
                yield name


def _expand(source: Path, *, recursive: bool, exclude: Path | None) -> Iterator[FoundVideo]:
    if source.is_file():
        yield FoundVideo(source, Path(source.name))
    elif source.is_dir():
        yield from _videos_of(source, recursive=recursive, exclude=_below(source, exclude))
    elif glob.has_magic(str(source)) and isinstance(source, RemotePath):
        raise InputError(f"{source}: patterns only work for files on this machine; give the folder")
    elif glob.has_magic(str(source)):
        yield from _matches_of(source, recursive=recursive, exclude=_below(_fixed_part(source), exclude))
    elif find_images(source) is not None:
        yield FoundVideo(source, Path(source.name))
    else:
        raise InputError(f"{source}: {explain_unreadable(source)}")


def _videos_of(folder: Path, *, recursive: bool, exclude: Path | None) -> Iterator[FoundVideo]:
    paths = [
        path for path in (folder.rglob("*") if recursive else folder.iterdir()) if not _is_in(path, exclude)
    ]
    videos = [path for path in paths if _is_video(path, below=folder)]
    images: dict[Path, list[Path]] = {}
    for path in paths:
        is_cover = bool(videos) and path.stem.casefold() in _COVERS
        if is_image(path) and not _is_hidden(path, below=folder) and not is_cover:
            images.setdefault(path.parent, []).append(path)
    found = [FoundVideo(path, path.relative_to(folder), is_named=False) for path in videos]
    for place, pictures in images.items():
        sequences = _sequences_of(pictures)
        is_all = sum(map(len, sequences)) == len(pictures) and len(sequences) == 1
        if is_all and place == folder and not found and len(images) == 1:
            yield FoundVideo(folder, Path(folder.resolve().name))
            return
        for sequence in sequences:
            source = place if is_all and place != folder else _pattern_of(sequence)
            name = place.relative_to(folder) if place != folder else Path(folder.resolve().name)
            if not is_all and (stem := _prefix_of(sequence[0]).rstrip("_-. ")):
                name = place.relative_to(folder) / stem
            found.append(FoundVideo(source, name, is_named=False))
        of_sequences = {path for sequence in sequences for path in sequence}
        found += [
            FoundVideo(path, path.relative_to(folder), is_named=False)
            for path in pictures
            if path not in of_sequences
        ]
    yield from sorted(found, key=lambda video: natural_key(str(video.relative_path)))


_COVERS = frozenset({"albumart", "cover", "folder", "poster", "thumb", "thumbnail"})
"""Pictures that media libraries keep beside videos."""
_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)
_PICTURES_LOOKED_AT = 16


def _sequences_of(pictures: Sequence[Path]) -> list[list[Path]]:
    """The pictures of a folder that form videos: names that differ only in their number, and one size."""
    if len(pictures) == 1:  # a video of one frame is written as a single numbered picture
        return [list(pictures)] if pictures[0].stem.isdigit() else []
    alike: dict[tuple[str, str], list[Path]] = {}
    names: dict[str, list[str]] = {}
    for path in sorted(pictures, key=lambda path: path.name):
        names.setdefault(path.suffix, []).append(path.name)
        if _NUMBERED.fullmatch(path.stem):
            alike.setdefault((_prefix_of(path), path.suffix), []).append(path)
    return [
        some
        for (prefix, suffix), some in alike.items()
        if len(some) == _beginning_with(names[suffix], prefix) > 1 and _is_of_one_size(some)
    ]


def _beginning_with(names: Sequence[str], prefix: str) -> int:
    """Count the sorted names that ``_pattern_of`` would match: those that continue with a digit."""
    return bisect_left(names, f"{prefix}:") - bisect_left(names, f"{prefix}0")  # a colon follows 9


def _is_of_one_size(pictures: Sequence[Path]) -> bool:
    step = max(len(pictures) // _PICTURES_LOOKED_AT, 1)
    return len({_size_of(path) for path in pictures[::step]} - {None}) <= 1


def _prefix_of(picture: Path) -> str:
    """The part before the number."""
    told = _NUMBERED.fullmatch(picture.stem)
    return picture.stem if told is None else told[1]


def _size_of(picture: Path) -> tuple[int, int] | None:
    try:
        with open_input(picture) as container:
            stream = container.streams.video[0]
            return stream.width, stream.height
    except (av.FFmpegError, OSError, IndexError):
        return None  # opening it reports the error


def _pattern_of(pictures: Sequence[Path]) -> Path:
    """A glob that matches only the pictures of a sequence, among other files of their folder."""
    first = pictures[0]
    return first.with_name(f"{glob.escape(_prefix_of(first))}[0-9]*{first.suffix}")


def _matches_of(pattern: Path, *, recursive: bool, exclude: Path | None) -> Iterator[FoundVideo]:
    names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    matches = sorted((Path(name) for name in names), key=lambda path: natural_key(str(path)))
    if not matches:
        raise InputError(f"{pattern}: nothing matches")
    images = [path for path in matches if is_image(path)]
    base = _fixed_part(pattern)
    for path in matches:
        if _is_in(path, exclude):
            continue
        if path.is_dir():
            for video in _videos_of(path, recursive=recursive, exclude=exclude):
                below = (
                    Path() if video.path == path else video.relative_path
                )  # an image folder is itself the video
                yield FoundVideo(video.path, path.relative_to(base) / below, is_named=False)
        elif _is_video(path, below=path.parent):
            yield FoundVideo(path, path.relative_to(base), is_named=False)
    if images and len(images) == len(matches):
        yield FoundVideo(pattern, Path(base.resolve().name))


def _below(searched: Path, exclude: Path | None) -> Path | None:
    """The folder to skip, resolved; None if it is itself searched, or lies elsewhere."""
    if exclude is None:
        return None
    inside, root = exclude.resolve(), searched.resolve()
    return inside if inside != root and inside.is_relative_to(root) else None


def _is_in(path: Path, folder: Path | None) -> bool:
    # The location of the path counts, not the target of a link.
    return folder is not None and (path.parent.resolve() / path.name).is_relative_to(folder)


def _fixed_part(pattern: Path) -> Path:
    """The folders of a glob, up to the first part with a wildcard."""
    fixed = Path(pattern.anchor)
    for part in pattern.parts[1:-1] if pattern.anchor else pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed /= part
    return fixed


def _is_video(path: Path, *, below: Path) -> bool:
    """By name alone; files in hidden folders below ``below`` do not count. Unfinished files end in ``.part``."""
    return path.suffix.lower() in VIDEO_SUFFIXES and not _is_hidden(path, below=below) and path.is_file()


def _is_hidden(path: Path, *, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)
