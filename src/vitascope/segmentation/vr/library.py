"""A folder of VR videos, described for players that read it from a web server: JSON beside the files, and indexes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from vitascope.config import VideoSettings
from vitascope.errors import InputError, UsageError
from vitascope.frames import VideoInfo
from vitascope.media.libav import wrap_output_error
from vitascope.media.reading.discovery import VIDEO_SUFFIXES, find_videos
from vitascope.media.reading.reader import probe
from vitascope.media.writing.output_target import PartialFile
from vitascope.segmentation.layout import vr_of
from vitascope.vr.detection import VrDescription
from vitascope.vr.players import deovr_json, heresphere_json

__all__ = ["Library", "read_library", "write_library"]

_SUBTITLES = (".srt", ".vtt")
_KEYED = "passthrough"


@dataclass(frozen=True, slots=True)
class Library:
    """What shall be written for a folder."""

    files: dict[Path, Any]
    """Plain values of each JSON file."""
    videos: tuple[tuple[Path, VrDescription], ...]
    failures: tuple[tuple[Path, InputError], ...]
    """Videos that cannot be read, which are left out."""


def read_library(
    folder: Path, *, recursive: bool, base_url: str = "", key_color: tuple[int, int, int] | None = None
) -> Library:
    """Describe the videos of a folder as HereSphere and DeoVR read them.

    Beside each ``film.mp4`` come ``film.mp4.heresphere.json`` and ``film.mp4.deovr.json``; in the folder the indexes
    ``heresphere.json`` and ``deovr.json``.

    Args:
        folder: The library.
        recursive: Descend into folders of folders.
        base_url: Where a server shows the folder; addresses are relative to the file that they stand in when empty.
        key_color: 8-bit RGB behind people, in videos that have the word ``passthrough`` in their names.

    Raises:
        UsageError: No address of a server.
        InputError: It is no folder, or holds no video.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: a library is a folder; name one")
    base = urlsplit(base_url)
    if base_url and (base.scheme not in ("http", "https") or not base.netloc):
        raise UsageError(
            f"--base-url {base_url}: expected the address of a server, such as http://nas:8080/vr/"
        )
    found = [
        video.path
        for video in find_videos([folder], recursive=recursive)
        if video.path.suffix.lower() in VIDEO_SUFFIXES and video.path.is_file()
    ]
    if not found:
        raise InputError(f"{folder}: holds no videos, only pictures")
    files: dict[Path, Any] = {}
    videos: list[tuple[Path, VrDescription]] = []
    failures: list[tuple[Path, InputError]] = []
    lists: dict[str, list[Any]] = {"heresphere": [], "deovr": []}
    for path in found:
        try:
            info = probe(path)
            description = vr_of(info, VideoSettings(), always_looks=True)
        except InputError as error:
            failures.append((path, error))
            continue
        videos.append((path, description))
        facts = _facts(path, info, url=_url(path, base_url, folder, beside=path.parent))
        beside = {name: path.with_name(f"{path.name}.{name}.json") for name in lists}
        files[beside["heresphere"]] = heresphere_json(
            description, **facts, subtitles=_subtitles(path, base_url, folder)
        )
        is_keyed = _KEYED in path.stem.lower()
        files[beside["deovr"]] = deovr_json(description, **facts, key_color=key_color if is_keyed else None)
        addresses = {name: _url(file, base_url, folder, beside=folder) for name, file in beside.items()}
        lists["heresphere"].append(addresses["heresphere"])
        lists["deovr"].append(
            {
                "title": path.stem,
                "videoLength": round(info.duration_seconds or 0),
                "thumbnailUrl": "",
                "video_url": addresses["deovr"],
            }
        )
    name = folder.resolve().name or "library"
    files[folder / "heresphere.json"] = {
        "access": 1,
        "library": [{"name": name, "list": lists["heresphere"]}],
    }
    files[folder / "deovr.json"] = {"authorized": "1", "scenes": [{"name": name, "list": lists["deovr"]}]}
    return Library(files, tuple(videos), tuple(failures))


def write_library(library: Library) -> None:
    """Write the files of a library, each whole or not at all, the indexes last.

    Raises:
        OutputError: One cannot be written.
    """
    written = {
        path: json.dumps(values, indent=2, ensure_ascii=True) for path, values in library.files.items()
    }
    for path in written:
        PartialFile.check(path)
    for path, text in written.items():
        partial = PartialFile(path)
        try:
            with wrap_output_error(path, "write it"):
                partial.path.write_text(text + "\n", encoding="utf-8")
            partial.commit()
        except BaseException:
            partial.discard()
            raise


def _facts(path: Path, info: VideoInfo, *, url: str) -> dict[str, Any]:
    return {
        "title": path.stem,
        "url": url,
        "width": info.width,
        "height": info.height,
        "size_bytes": path.stat().st_size,
        "duration_seconds": info.duration_seconds,
    }


def _url(path: Path, base_url: str, folder: Path, *, beside: Path) -> str:
    """The address of a file: below the base, or seen from a folder above it."""
    if not base_url:
        return quote(path.relative_to(beside).as_posix(), errors="surrogateescape")
    return f"{base_url.rstrip('/')}/{quote(path.relative_to(folder).as_posix(), errors='surrogateescape')}"


def _subtitles(path: Path, base_url: str, folder: Path) -> dict[str, str]:
    """Subtitle files of a video, ``film.srt`` or ``film.en.srt``, by what their names add to its own."""
    found: dict[str, str] = {}
    for file in sorted(path.parent.iterdir()):
        if file.suffix.lower() in _SUBTITLES and (
            file.stem == path.stem or file.stem.startswith(f"{path.stem}.")
        ):
            language = file.stem[len(path.stem) + 1 :] or "subtitles"
            found[language] = _url(file, base_url, folder, beside=path.parent)
    return found
