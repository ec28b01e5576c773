"""The corrections of a video: its hints file, for ``vitascope segment --hints``.

Each state of the file has a revision, so that nothing written meanwhile by another window or an editor is
overwritten.
"""

from __future__ import annotations

import hashlib
import threading
from json import dumps
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from vitascope.config.hints import (
    HintChanges,
    Hints,
    changed_hints,
    hints_content,
    hints_in,
    hints_yaml,
    told,
)
from vitascope.errors import ConfigError, UsageError
from vitascope.media.libav import wrap_output_error
from vitascope.media.writing.output_target import PartialFile

_NO_FILE, _UNREADABLE = "none", "unreadable"
_writing = threading.Lock()
WHAT_IS_SET: Final[Any] = {"by_alias": True, "exclude_unset": True, "exclude_none": True}
"""Options of ``model_dump`` that turn hints into plain data for the page."""
_HEAD = "# Corrections of a video, for vitascope segment --hints; vitascope studio reads and writes them.\n"


class CorrectionsClashError(UsageError):
    """Another window, or an editor, wrote the file since this page read it."""


class Corrections(NamedTuple):
    """The content of the file at one moment."""

    revision: str
    hints: Hints | None
    """None if the file has an error."""
    error: str | None = None
    """Line and reason of the error."""

    @property
    def plain(self) -> dict[str, Any] | None:
        """The hints for the page: only what the file sets."""
        return None if self.hints is None else self.hints.model_dump(mode="json", **WHAT_IS_SET)

    @property
    def json(self) -> str:
        """Everything for the page, on one line."""
        hints = "null" if self.hints is None else self.hints.model_dump_json(**WHAT_IS_SET)
        return f'{{"revision":{dumps(self.revision)},"error":{dumps(self.error)},"hints":{hints}}}'


def hints_path(video: Path) -> Path:
    """Path of a video's corrections: beside it, ``film.hints.yaml``."""
    return video.with_name(f"{video.stem}.hints.yaml")


def read_corrections(video: Path) -> Corrections:
    """Read the corrections of a video; empty if there are none.

    An error in them is returned with its line.
    """
    path = hints_path(video)
    try:
        content = _content(path)
    except ConfigError as error:
        return Corrections(_UNREADABLE, None, _told_of(error, path))
    return _corrections_of(content, path, video)


def write_corrections(video: Path, plain: object, *, revision: str) -> Corrections:
    """Rewrite the corrections of a video.

    Args:
        video: The video.
        plain: Hints as plain data, as ``Corrections.plain`` gives them.
        revision: Revision of the file that they are based on.

    Returns:
        What was written, even if it was overwritten meanwhile.

    Raises:
        CorrectionsClashError: The file has changed since.
        ConfigError: They have an invalid hint, or are too many.
        OutputError: The file cannot be written.
    """
    if not isinstance(plain, dict):
        raise ConfigError("corrections are a mapping: people, marks, never, edges")
    try:
        hints = Hints.model_validate({**plain, "video": video.name})
    except ValidationError as error:
        raise ConfigError(f"corrections: {told(error)}") from error
    made = hints_yaml(hints, head=_HEAD)
    with _writing:
        _current(hints_path(video), revision)
        _write(hints_path(video), made)
    return _corrections_of(made, hints_path(video), video)


def change_corrections(video: Path, changes: object, *, revision: str) -> Corrections:
    """Change the corrections of a video; a stroke takes as long with 100,000 others as with none.

    Args:
        video: The video.
        changes: Plain data, see ``HintChanges``.
        revision: Revision of the file that they are based on.

    Returns:
        What was written, even if it was overwritten meanwhile.

    Raises:
        CorrectionsClashError: The file has changed since.
        ConfigError: They have an invalid hint, are too many, or the file has an error.
        OutputError: The file cannot be written.
    """
    try:
        wanted = HintChanges.model_validate(changes)
    except ValidationError as error:
        raise ConfigError(f"changes: {told(error)}") from error
    path = hints_path(video)
    with _writing:
        content = _current(path, revision)
        made = changed_hints(
            b"version: 1" if content is None else content, path, wanted, video=video.name, head=_HEAD
        )
        _write(path, made)
    return _corrections_of(made, path, video)


def _corrections_of(content: bytes | None, path: Path, video: Path) -> Corrections:
    """The corrections in a content of the file."""
    revision = _revision(content)
    try:
        hints = Hints(label="") if content is None else hints_in(content, path)
    except ConfigError as error:
        return Corrections(revision, None, _told_of(error, path))
    if hints.video is not None and hints.video != video.name:
        return Corrections(
            revision, None, f"{path.name}: these hints are for {hints.video}, not for {video.name}"
        )
    return Corrections(revision, hints)


def _told_of(error: ConfigError, path: Path) -> str:
    return str(error).removeprefix(f"{path.parent}/")


def _current(path: Path, revision: str) -> bytes | None:
    """Read the file, which must have the expected revision; None if it does not exist."""
    content = _content(path)
    if _revision(content) != revision:
        raise CorrectionsClashError(f"{path.name} was changed in the meantime, in another window or by hand")
    return content


def _write(path: Path, content: bytes) -> None:
    partial = PartialFile(path)
    try:
        with wrap_output_error(path, "write the corrections"):
            partial.path.write_bytes(content)
        partial.commit()
    except BaseException:
        partial.discard()
        raise


def _content(path: Path) -> bytes | None:
    """Read a file of hints; None if it does not exist."""
    try:
        return hints_content(path)
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _revision(content: bytes | None) -> str:
    return _NO_FILE if content is None else hashlib.blake2b(content, digest_size=12).hexdigest()
