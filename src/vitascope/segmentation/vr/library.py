"""Describes a folder of VR videos to players that read from a web server: JSON files beside the videos, and indexes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from vitascope.config import OutputSettings, VideoSettings
from vitascope.errors import InputError, UsageError
from vitascope.frames import VideoInfo
from vitascope.media.reading.discovery import VIDEO_SUFFIXES, find_videos
from vitascope.media.reading.reader import probe
from vitascope.media.writing.output_target import PartialFile, write_whole
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.report import OutputReport
from vitascope.segmentation.writing import beside_files
from vitascope.vr.detection import VrDescription, describe_vr
from vitascope.vr.players import (
    PLAYERS,
    ServedVideo,
    as_played,
    deovr_json,
    description_beside,
    heresphere_json,
)

_SUBTITLES = (".srt", ".vtt")
_KEYED = "passthrough"
_NO_KEY_COLOR = (
    "DeoVR needs the colour behind people, which is not in the file: "
    f"--key-color {PLAYERS['deovr'].key_color}, if it was made with segment --player"
)
_EYES_EXCHANGED = (
    "the right eye comes first, which the JSON cannot say: players that read it show each eye the other's "
    "picture; packed alpha has the left one first"
)


@dataclass(frozen=True, slots=True)
class Library:
    """The files to write for a folder."""

    files: dict[Path, Any]
    """The content of each JSON file, as plain values."""
    videos: tuple[tuple[Path, VrDescription], ...]
    failures: tuple[tuple[Path, InputError], ...]
    """Unreadable videos, which are left out."""
    without_server: dict[Path, Any] = field(default_factory=dict)
    """The files beside videos as ``segment --player`` writes them, which does not know the server's address."""

    def texts(self) -> dict[Path, str]:
        """The text to write, by file."""
        return {path: _text(values) for path, values in self.files.items()}

    def replaced(self) -> list[Path]:
        """Existing files with other content: they were edited, or written before the videos changed."""
        known = {path: _text(values) for path, values in self.without_server.items()}
        return [
            path
            for path, text in self.texts().items()
            if path.exists() and not _says(path, text) and not _says(path, known.get(path, text))
        ]


def read_library(
    folder: Path, *, recursive: bool, base_url: str = "", key_color: tuple[int, int, int] | None = None
) -> Library:
    """Describe the videos of a folder for HereSphere and DeoVR.

    Beside each ``film.mp4``, the files are ``film.mp4.heresphere.json`` and ``film.mp4.deovr.json``; the folder's
    indexes are ``heresphere.json`` and ``deovr.json``.

    Args:
        folder: The library.
        recursive: Include subfolders.
        base_url: Address of the folder on a server; if empty, addresses are relative to the file that contains them.
        key_color: 8-bit RGB of the background, for videos with the word ``passthrough`` in their names.

    Raises:
        UsageError: ``base_url`` is not the address of a server.
        InputError: ``folder`` is not a folder, or contains no video.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: a library is a folder; give a folder")
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
        raise InputError(f"{folder}: contains no videos, only pictures")
    files: dict[Path, Any] = {}
    without_server: dict[Path, Any] = {}
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
        is_keyed = _KEYED in path.stem.lower()
        if is_keyed and key_color is None and not description.is_packed_alpha:
            description = replace(description, doubts=(*description.doubts, _NO_KEY_COLOR))
        if description.right_eye_first:
            description = replace(description, doubts=(*description.doubts, _EYES_EXCHANGED))
        videos.append((path, description))
        color = key_color if is_keyed else None
        described = _described(path, info, description, base_url=base_url, folder=folder, key_color=color)
        files |= {description_beside(path, name): values for name, values in described.items()}
        if base_url:
            local = _described(path, info, description, base_url="", folder=path.parent, key_color=color)
            without_server |= {description_beside(path, name): values for name, values in local.items()}
        addresses = {
            name: _url(description_beside(path, name), base_url, folder, beside=folder) for name in described
        }
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
    return Library(files, tuple(videos), tuple(failures), without_server)


def tell_player(outputs: Sequence[OutputReport], wanted: OutputSettings) -> list[str]:
    """Describe finished videos for their player, if it reads JSON.

    Args:
        outputs: The finished outputs.
        wanted: Output settings; uses ``player`` and ``key_color``.

    Returns:
        Notes, one line each: what was written, and names that the player will not recognise.

    Raises:
        OutputError: A file cannot be written; the videos are kept.
    """
    notes: list[str] = []
    for output in outputs if wanted.player is not None else ():
        if output.kind not in ("packed-alpha", "key") or not output.path.is_file():
            continue
        player = PLAYERS[wanted.player or ""]
        try:
            info = probe(output.path)
        except InputError as error:
            notes.append(f"{player.title} gets no description of {output.path.name}: {error}")
            continue
        # The run has written what it knew into the file, so frames need not be inspected again.
        found = replace(describe_vr(info), is_packed_alpha=output.kind == "packed-alpha")
        if player.json is not None:
            described = _described(
                output.path, info, found,
                base_url="", folder=output.path.parent,
                key_color=wanted.key_color.as_tuple() if output.kind == "key" else None,
            )  # fmt: skip
            path = description_beside(output.path, player.json)
            beside_files(outputs, partial(write_library, Library({path: described[player.json]}, (), ())))
            notes.append(f"{path.name} describes it to {player.title}")
            if found.right_eye_first:
                notes.append(f"{output.path.name}: {_EYES_EXCHANGED}")
        played = as_played(player, found, output.path.stem)
        if not played.startswith("plays"):
            notes.append(f"{player.title} {played}")
    return notes


def write_library(library: Library) -> None:
    """Write the files of a library atomically, the indexes last.

    Raises:
        OutputError: A file cannot be written.
    """
    written = library.texts()
    for path in written:
        PartialFile.check(path)
    for path, text in written.items():
        write_whole(path, text.encode())


def _text(values: Any) -> str:
    return json.dumps(values, indent=2) + "\n"


def _says(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def _described(
    path: Path,
    info: VideoInfo,
    description: VrDescription,
    *,
    base_url: str,
    folder: Path,
    key_color: tuple[int, int, int] | None,
) -> dict[str, Any]:
    """The description of a video for each player, by the player's name."""
    video = ServedVideo(
        description,
        title=path.stem,
        url=_url(path, base_url, folder, beside=path.parent),
        width=info.width,
        height=info.height,
        size_bytes=path.stat().st_size,
        duration_seconds=info.duration_seconds,
        subtitles=_subtitles(path, base_url, folder),
        key_color=key_color,
    )
    return {"heresphere": heresphere_json(video), "deovr": deovr_json(video)}


def _url(path: Path, base_url: str, folder: Path, *, beside: Path) -> str:
    """The address of a file: below the base URL, or relative to the file it appears in."""
    if not base_url:
        return quote(path.relative_to(beside).as_posix(), errors="surrogateescape")
    return f"{base_url.rstrip('/')}/{quote(path.relative_to(folder).as_posix(), errors='surrogateescape')}"


def _subtitles(path: Path, base_url: str, folder: Path) -> dict[str, str]:
    """Subtitle files of a video, such as ``film.srt`` or ``film.en.srt``, by the part added to its name."""
    found: dict[str, str] = {}
    for file in sorted(path.parent.iterdir()):
        if file.suffix.lower() in _SUBTITLES and (
            file.stem == path.stem or file.stem.startswith(f"{path.stem}.")
        ):
            language = file.stem[len(path.stem) + 1 :] or "subtitles"
            found[language] = _url(file, base_url, folder, beside=path.parent)
    return found
