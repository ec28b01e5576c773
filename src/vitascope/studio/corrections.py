"""The corrections of a video: its file of hints, which ``vitascope segment --hints`` takes, read and written whole.

Each state of the file has a revision, so that nobody writes over what another window or an editor wrote meanwhile.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from vitascope.config.hints import Hints, hints_yaml, read_hints, told
from vitascope.config.yaml_file import MAX_FILE_BYTES
from vitascope.errors import ConfigError, UsageError
from vitascope.media.libav import wrap_output_error
from vitascope.media.writing.output_target import PartialFile

__all__ = ["Corrections", "CorrectionsClashError", "hints_path", "read_corrections", "write_corrections"]

_NO_FILE = "none"
_writing = threading.Lock()
_HEAD = "# Corrections of a video, for vitascope segment --hints; vitascope studio reads and writes them.\n"


class CorrectionsClashError(UsageError):
    """Another window, or an editor, wrote the file since this page read it."""


class Corrections(NamedTuple):
    """The content of the file at a time."""

    revision: str
    hints: Hints | None
    """None if the file has an error."""
    error: str | None = None
    """Line and reason of it."""

    @property
    def plain(self) -> dict[str, Any] | None:
        """The hints for the page: what the file sets, and nothing else."""
        if self.hints is None:
            return None
        return self.hints.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


def hints_path(video: Path) -> Path:
    """Path of a video's corrections: beside it, ``film.hints.yaml``."""
    return video.with_name(f"{video.stem}.hints.yaml")


def read_corrections(video: Path) -> Corrections:
    """Read the corrections of a video; empty if there are none.

    A video that was given other hints by hand, or an error in them, is told with its line.
    """
    path = hints_path(video)
    revision = _revision(path)
    if revision == _NO_FILE:
        return Corrections(revision, Hints(label=""))
    try:
        hints = read_hints(path)
    except ConfigError as error:
        return Corrections(revision, None, str(error).removeprefix(f"{path.parent}/"))
    if hints.video is not None and hints.video != video.name:
        return Corrections(
            revision, None, f"{path.name}: these are hints for {hints.video}, not for {video.name}"
        )
    return Corrections(revision, hints)


def write_corrections(video: Path, plain: object, *, revision: str) -> Corrections:
    """Write the corrections of a video.

    Args:
        video: The video.
        plain: Hints as plain data, as ``Corrections.plain`` gives them.
        revision: Of the file that they were made from.

    Raises:
        CorrectionsClashError: The file is another one by now.
        ConfigError: Something in them is no hint, or they are too many.
        OutputError: The file cannot be written.
    """
    path = hints_path(video)
    if not isinstance(plain, dict):
        raise ConfigError("corrections are a mapping: people, marks, never, edges")
    try:
        hints = Hints.model_validate({**plain, "video": video.name})
    except ValidationError as error:
        raise ConfigError(f"corrections: {told(error)}") from error
    text = _HEAD + hints_yaml(hints)
    with _writing:
        if _revision(path) != revision:
            raise CorrectionsClashError(f"{path.name} was changed meanwhile, in another window or by hand")
        partial = PartialFile(path)
        try:
            with wrap_output_error(path, "write the corrections"):
                partial.path.write_text(text, encoding="utf-8")
            partial.commit()
        except BaseException:
            partial.discard()
            raise
    return read_corrections(video)


def _revision(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.blake2b(file.read(MAX_FILE_BYTES + 1), digest_size=12).hexdigest()
    except FileNotFoundError:
        return _NO_FILE
    except OSError:
        return "unreadable"
