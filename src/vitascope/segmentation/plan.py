"""Names the outputs, and refuses any that would replace an input or another output."""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

from vitascope.config import Codec, OutputKind, Settings, VideoSettings
from vitascope.errors import InputError, UsageError
from vitascope.frames import Projection, StereoLayout, VideoInfo
from vitascope.media.reading.discovery import VIDEO_SUFFIXES, FoundVideo
from vitascope.media.reading.images import IMAGE_SUFFIXES, find_images
from vitascope.media.reading.reader import VideoReader, open_video, probe
from vitascope.media.remote import path_of
from vitascope.media.writing.output_target import PictureFolder, is_written, picture_folder
from vitascope.segmentation.layout import vr_of
from vitascope.vr.file_names import without_vr_words
from vitascope.vr.packing import packed_fov
from vitascope.vr.players import PLAYERS, description_beside, player_words, vr_words

_HOME_OF_CODEC: dict[str, str] = {"prores": ".mov", "ffv1": ".mkv", "vp9": ".webm", "png": ""}
_SUFFIXES_KEPT = frozenset({".mp4", ".m4v", ".mov", ".mkv"})
_SUFFIXES_OF_FILES = VIDEO_SUFFIXES | IMAGE_SUFFIXES
_MOST_BYTES_OF_NAME = 255 - len(".part")
"""Linux's limit for a file name in bytes, less the suffix of an interrupted run. Windows and macOS allow
more: they count UTF-16 units."""


@dataclass(frozen=True, slots=True)
class PlannedVideo:
    """One input and its outputs."""

    video: Path
    outputs: tuple[tuple[OutputKind, Path], ...]
    preview: Path | None = None
    """Path of its contact sheet; None without one."""
    descriptions: tuple[Path, ...] = ()
    """JSON files written beside the outputs for a VR player."""

    @property
    def is_done(self) -> bool:
        """True if every output exists; outputs only appear complete, so nothing is left to do."""
        return all(is_written(path) for _, path in self.outputs)

    def existing(self) -> list[Path]:
        """Outputs that exist already, and existing files beside them."""
        return [*(path for _, path in self.outputs if is_written(path)), *self.beside()]

    def beside(self) -> list[Path]:
        """Existing files among those written beside the outputs."""
        beside = [*self.descriptions, *([] if self.preview is None else [self.preview])]
        return [path for path in beside if path.exists()]


def plan_outputs(
    videos: Sequence[FoundVideo],
    out: str | PathLike[str],
    kinds: Sequence[OutputKind],
    *,
    codec: Literal["auto"] | Codec = "auto",
    preview: Path | None = None,
    settings: Settings | None = None,
) -> list[PlannedVideo]:
    """Name the outputs of each input.

    A single input that was named goes to ``out`` itself: a file, or, without a suffix, a folder of pictures. It goes
    into the folder ``out`` if that ends with a slash, or exists and holds anything but an earlier run's pictures.
    Several inputs, and those found in a folder or by a glob, always go into the folder ``out``, in the same tree;
    equal names are numbered. With several kinds, the kind is appended: ``cut.mp4`` becomes ``cut_mask.mp4`` and
    ``cut_key.mp4``, ``cut/%06d.png`` becomes ``cut_mask/%06d.png`` and so on. In a folder, an output for a VR player
    gets the name that the player expects.

    Args:
        videos: The inputs.
        out: A file or a folder.
        kinds: Kinds of output to make of each input.
        codec: ``output.codec``, which decides the container in a folder.
        preview: Path of a contact sheet; with several videos, each video's name is appended.
        settings: The run's settings: they may name a player, and describe the videos.

    Raises:
        UsageError: ``out`` is a file where a folder is needed, or several kinds of pictures have no folder each.
    """
    target = path_of(out)
    previews = _previews(preview, videos)
    if len(videos) == 1 and videos[0].is_named and not takes_files(out):
        outputs = tuple((kind, _with_kind(target, kind, kinds, codec)) for kind in kinds)
        return [PlannedVideo(videos[0].path, outputs, previews[0], descriptions_of(outputs, settings))]
    looks_like_file = target.suffix.lower() in _SUFFIXES_OF_FILES and not takes_files(out)
    if target.is_file() or looks_like_file:
        what = f"{len(videos)} inputs go" if len(videos) > 1 else f"{videos[0].path} was found, so it goes"
        name = target.with_suffix("")
        instead = name if not name.is_file() else name.with_name(f"{name.name}_cut")
        raise UsageError(f"{out}: {what} into a folder, not a file; give one, such as {instead}/")
    taken: set[str] = set()
    # Inputs that keep their name choose first, so that a video added later cannot take the name of one already done.
    keeps = [
        video.relative_path.suffix.lower() == _suffix_in_folder(video, kinds[0], codec) for video in videos
    ]
    outputs_of = {
        number: _in_folder(target, videos[number], kinds, codec, taken, settings=settings)
        for number in sorted(range(len(videos)), key=lambda number: not keeps[number])
    }
    return [
        PlannedVideo(video.path, outputs_of[number], sheet, descriptions_of(outputs_of[number], settings))
        for number, (video, sheet) in enumerate(zip(videos, previews, strict=True))
    ]


def descriptions_of(
    outputs: Sequence[tuple[OutputKind, Path]], settings: Settings | None
) -> tuple[Path, ...]:
    """The JSON files for a VR player, if the outputs are for one."""
    if settings is None or settings.output.player is None:
        return ()
    reads = PLAYERS[settings.output.player].json
    return tuple(
        description_beside(path, reads)
        for kind, path in outputs
        if reads is not None and kind in ("packed-alpha", "key") and picture_folder(path) is None
    )


def file_key(path: Path) -> str:
    """A key that is equal for paths that may be the same file, even if case or the spelling of accents differ."""
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()


def takes_files(out: str | PathLike[str]) -> bool:
    """True if ``out`` is a folder for the outputs, rather than the output itself."""
    path = path_of(out)
    if str(out).endswith(("/", os.sep)) or path.name in ("", ".."):
        return True
    if not path.is_dir():
        return False
    pictures = picture_folder(path)
    is_earlier_run = pictures is not None and pictures.is_filled() and pictures.foreign_name() is None
    return bool(path.suffix) or not is_earlier_run


def _with_kind(path: Path, kind: OutputKind, kinds: Sequence[OutputKind], codec: str) -> Path:
    if len(kinds) == 1:
        return path
    pictures = picture_folder(path)
    if (
        pictures is not None and pictures.folder != path
    ):  # a pattern: a folder for each kind, with the same names
        if pictures.folder.name in ("", ".."):
            raise UsageError(
                f"{path}: {len(kinds)} kinds need a folder each; give a folder, such as frames/{path.name}"
            )
        return pictures.folder.with_name(f"{pictures.folder.name}_{kind}") / path.name
    suffix = path.suffix
    if kind == "alpha" and suffix.lower() in (".mp4", ".m4v"):
        suffix = _HOME_OF_CODEC[codec] if codec in ("vp9", "ffv1", "prores") else ".mov"
    return path.with_name(f"{path.stem}_{kind}{suffix}")


def _in_folder(
    folder: Path,
    video: FoundVideo,
    kinds: Sequence[OutputKind],
    codec: str,
    taken: set[str],
    *,
    settings: Settings | None = None,
) -> tuple[tuple[OutputKind, Path], ...]:
    """The outputs of one of several videos, under the first name that is free for all its kinds."""
    suffixes = {kind: _suffix_in_folder(video, kind, codec) for kind in kinds}
    words = {kind: _ending_for_player(video, kind, settings) for kind in kinds}
    endings = {
        kind: f"_{kind}" if words[kind] is None and len(kinds) > 1 else words[kind] or "" for kind in kinds
    }
    shortest = [(kind, Path(f"x{endings[kind]}{suffixes[kind]}")) for kind in kinds]
    names = [path.name for _, path in shortest] + [path.name for path in descriptions_of(shortest, settings)]
    room = _MOST_BYTES_OF_NAME + len("x") - max(map(len, names))
    stem = _stem(video)
    for addition in _additions(video, set(suffixes.values())):
        outputs = []
        for kind, suffix in suffixes.items():
            # Old words about layout or projection could contradict the new ones.
            own = stem if words[kind] is None else without_vr_words(stem)
            name = _shortened(own, room - len(os.fsencode(addition))) + addition + endings[kind]
            if suffix in ("", ".png"):  # in these, "." would begin a suffix and "%" a number
                name = re.sub(r"[%.]", "_", name)
            outputs.append((kind, folder / video.relative_path.parent / f"{name}{suffix}"))
        keys = {file_key(path) for _, path in outputs}
        if not keys & taken:
            break
    taken |= keys
    return tuple(outputs)


def _ending_for_player(video: FoundVideo, kind: OutputKind, settings: Settings | None) -> str | None:
    """The end of a name as VR players expect it; None if they have no rule, or none is requested."""
    if settings is None or kind not in ("packed-alpha", "key"):
        return None
    output = settings.output
    player = None if output.player is None else PLAYERS[output.player]
    if kind == "packed-alpha":
        if player is not None and kind in player.kinds:
            return player_words(player, kind=kind, fov_degrees=output.packed_fov_degrees)
        # With the input's name, a player would take it for the input's layout.
        return _packed_words(video, settings)
    if player is None:
        return None
    try:
        found = vr_of(probe(video.path), settings.video)
    except InputError:  # whoever opens it reports the error
        return None
    return player_words(
        player,
        kind="key-color",
        layout=found.layout,
        projection=found.projection,
        fov_degrees=found.fov_degrees,
        right_eye_first=found.right_eye_first,
        is_half=found.is_half,
    )


def _packed_words(video: FoundVideo, settings: Settings) -> str | None:
    """The end of a name for packed alpha, with its field of view; None for pictures and unreadable files."""
    if video.path.suffix.lower() in IMAGE_SUFFIXES or video.path.is_dir():
        return None
    try:
        lenses = vr_of(probe(video.path), settings.video).lenses
    except InputError:  # whoever opens it reports the error
        return None
    return vr_words(
        StereoLayout.SIDE_BY_SIDE,
        Projection.FISHEYE,
        fov_degrees=packed_fov(lenses, settings.output.packed_fov_degrees),
        is_packed_alpha=True,
    )


def _stem(video: FoundVideo) -> str:
    """A video's name without its suffix; for numbered pictures, without the number."""
    source = video.relative_path
    stem = source.name if video.path.is_dir() else source.stem
    if _is_sequence(video) and "%" in stem:
        stem = re.sub(r"%\d*d", "", stem).strip("_-. ") or video.path.absolute().parent.name or "pictures"
    return stem


def _additions(video: FoundVideo, suffixes: set[str]) -> Iterator[str]:
    """Endings that distinguish a video's name from others, the best first; endless."""
    yield ""
    ending = video.relative_path.suffix.lower()
    if ending and ending not in suffixes and not _is_sequence(video):  # a.mp4 and a.avi side by side
        yield f"_{ending.lstrip('.')}"
    for number in itertools.count(2):
        yield f"_{number}"


def _shortened(stem: str, room: int) -> str:
    """A stem cut to ``room`` bytes, for names longer than file systems allow."""
    while stem and len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return stem


def _suffix_in_folder(video: FoundVideo, kind: OutputKind, codec: str) -> str:
    suffix = video.relative_path.suffix.lower()
    if _is_sequence(video) and codec in ("auto", "png"):
        return ""
    if suffix in IMAGE_SUFFIXES and not _is_sequence(video):
        return ".png"
    if codec in _HOME_OF_CODEC:
        return _HOME_OF_CODEC[codec]
    if kind == "alpha":
        return ".mov"
    return suffix if suffix in _SUFFIXES_KEPT else ".mp4"


def _is_sequence(video: FoundVideo) -> bool:
    """True for a folder, a pattern or a glob of images."""
    is_pattern = video.path.suffix.lower() in IMAGE_SUFFIXES and not video.path.is_file()
    return is_pattern or video.path.is_dir()


def _previews(preview: Path | None, videos: Sequence[FoundVideo]) -> list[Path | None]:
    if preview is None or len(videos) == 1:
        return [preview] * len(videos)
    sheets: list[Path | None] = []
    taken: set[str] = set()
    for video in videos:
        name = "_".join((preview.stem, *video.relative_path.with_suffix("").parts))
        room = _MOST_BYTES_OF_NAME - len(preview.suffix) - len("_999999")
        name = _shortened(name, room)
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        sheet = next(
            sheet
            for sheet in (preview.with_name(f"{name}{preview.suffix}") for name in names)
            if file_key(sheet) not in taken
        )
        taken.add(file_key(sheet))
        sheets.append(sheet)
    return sheets


_Identity = tuple[int, int]
"""Device and inode: the same for every path of one file."""


def refuse_clashes(
    planned: Sequence[PlannedVideo], *, settings: Settings, settings_files: Sequence[Path] = ()
) -> None:
    """Refuse outputs that would replace an input or something else, before anything opens.

    Args:
        planned: Every video of the run: an output of one may be the input of another.
        settings: The run's settings: they name the background and the network.
        settings_files: Files that settings were read from.

    Raises:
        UsageError: An output or a contact sheet is an input, the background, a settings file or the network; two are
            the same file; or a folder of pictures would replace other files.
    """
    read = _ReadFiles(planned, settings=settings, settings_files=settings_files)
    written = _WrittenFiles()
    for plan in planned:
        for _, path in plan.outputs:
            pictures = picture_folder(path)
            if pictures is None:
                read.refuse(path, video=plan.video, what="output")
                written.add(path)
            else:
                read.refuse_folder(pictures, video=plan.video)
                _refuse_other_things(pictures)
                written.add(pictures.folder, is_folder=True)
        for path in plan.descriptions:
            read.refuse(path, video=plan.video, what="description for the player")
            written.add(path)
        if plan.preview is not None:
            if plan.preview.is_dir():
                raise UsageError(f"{plan.preview}: the contact sheet is a file; give one in that folder")
            read.refuse(plan.preview, video=plan.video, what="contact sheet")
            if plan.preview.suffix.lower() != ".png":
                raise UsageError(
                    f"{plan.preview}: the contact sheet is a PNG; give it a name that ends in .png"
                )
            written.add(plan.preview)
    written.refuse_files_in_folders()


class _ReadFiles:
    """Everything that a run reads, by identity, so that links and other spellings of a path are recognised."""

    def __init__(
        self, planned: Sequence[PlannedVideo], *, settings: Settings, settings_files: Sequence[Path]
    ) -> None:
        self._roles: dict[_Identity, str] = {}
        self._videos: dict[_Identity, Path] = {}
        self._folders: dict[_Identity, str] = {}
        seen_folders: set[Path] = set()
        others = [("a settings file", path) for path in settings_files]
        if settings.output.background is not None:
            others.append(("the background", settings.output.background))
        if settings.people.hints is not None:
            others.append(("the hints", settings.people.hints))
        if settings.model.kind is not None:
            others.append(("the network", Path(settings.model.name)))
        inputs = [(plan.video, file) for plan in planned for file in _files_of(plan.video)]
        for role, path in [*(("another input", file) for _, file in inputs), *others]:
            self._remember(path, role, seen_folders)
        for video, file in inputs:
            identity = _identity(file)
            if identity is not None:
                self._videos[identity] = video

    def refuse(self, path: Path, *, video: Path, what: str) -> None:
        """Refuse an output that would replace one of these files."""
        identity = _identity(path)
        if identity is None or identity not in self._roles:
            return
        role = self._roles[identity]
        if self._videos.get(identity) == video:
            role = "the input"
        raise UsageError(f"{path}: the {what} is {role}; choose another file")

    def refuse_folder(self, pictures: PictureFolder, *, video: Path) -> None:
        """Refuse to replace a folder that contains one of these files."""
        identity = _identity(pictures.folder)
        if identity is not None and identity in self._folders:
            role = self._folders[identity].replace("another input", "an input")
            raise UsageError(
                f"{pictures.folder}: the pictures of {video} would replace this folder, which contains {role}; "
                f"{_advice(pictures)}"
            )

    def _remember(self, path: Path, role: str, seen_folders: set[Path]) -> None:
        identity = _identity(path)
        if identity is None:  # does not exist; opening it reports the error
            return
        self._roles.setdefault(identity, role)
        folder = Path(os.path.realpath(path)).parent
        for parent in (folder, *folder.parents):
            if parent in seen_folders:
                break
            seen_folders.add(parent)
            inside = _identity(parent)
            if inside is not None:
                self._folders.setdefault(inside, role)


class _WrittenFiles:
    """List everything that a run writes, by name, because the files may not exist yet."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        self._folders: set[str] = set()

    def add(self, path: Path, *, is_folder: bool = False) -> None:
        key = file_key(path)
        if key in self._paths:
            raise UsageError(f"{path}: two outputs would be the same file; give them different names")
        self._paths[key] = path
        if is_folder:
            self._folders.add(key)

    def refuse_files_in_folders(self) -> None:
        """Refuse other outputs inside a folder of pictures."""
        if not self._folders:
            return
        for path in self._paths.values():
            folder = next((up for up in path.absolute().parents if file_key(up) in self._folders), None)
            if folder is not None:
                raise UsageError(f"{path}: it would lie in {folder}, which is itself a folder of pictures")


def _refuse_other_things(pictures: PictureFolder) -> None:
    if Path.cwd().is_relative_to(pictures.folder.resolve()):
        raise UsageError(
            f"{pictures.folder}: pictures cannot replace the current folder; {_advice(pictures)}"
        )
    foreign = pictures.foreign_name()
    if foreign is not None:
        raise UsageError(
            f"{pictures.folder}: pictures need a folder of their own, and this one contains {foreign}; "
            f"{_advice(pictures)}"
        )


def _advice(pictures: PictureFolder) -> str:
    return f"use a separate folder, such as {pictures.folder / 'frames' / pictures.pattern}"


def _files_of(video: Path) -> Iterator[Path]:
    """The files of an input; none if it cannot be read, as opening it will report."""
    with suppress(InputError, OSError):
        yield from find_images(video) or [video]


def _identity(path: Path) -> _Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def no_picture_between(video: str | PathLike[str], wanted: VideoSettings, info: VideoInfo) -> InputError:
    """The error for a video without a frame between the requested start and end."""
    end = "the end" if wanted.end_seconds is None else f"{wanted.end_seconds:g} s"
    length = "" if info.duration_seconds is None else f"; the video lasts {info.duration_seconds:.1f} s"
    return InputError(f"{video}: no frame between {wanted.start_seconds:g} s and {end}{length}")


def open_wanted(video: Path, wanted: VideoSettings) -> VideoReader:
    """Open the wanted part of a video, to inspect or divide it, with one decoding thread.

    Raises:
        InputError: The video cannot be read.
    """
    return open_video(
        video,
        start_seconds=wanted.start_seconds or None,
        end_seconds=wanted.end_seconds,
        max_corrupt_frames=wanted.max_corrupt_frames,
        threads=1,
    )


def look_at(video: Path, wanted: VideoSettings) -> VideoInfo:
    """The description of a video that has at least one frame in the wanted part.

    Raises:
        InputError: No frame lies between start and end, or the video cannot be read.
    """
    with open_wanted(video, wanted) as reader:
        if next(iter(reader), None) is None:
            raise no_picture_between(video, wanted, reader.info)
        return reader.info


def wanted_seconds(duration_seconds: float, wanted: VideoSettings) -> float:
    """The length of the wanted part of a video, given the video's length."""
    end = min(duration_seconds, wanted.end_seconds or duration_seconds)
    return end - wanted.start_seconds
