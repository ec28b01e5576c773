"""Check that no exception of FFmpeg or the system leaves the media package unwrapped."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import av.error
import av.logging
import pytest

from vitascope.errors import InputError, OutputError, UsageError
from vitascope.media.libav import describe_av_error, silence_libav, wrap_input_error, wrap_output_error


@pytest.mark.parametrize(("wrap", "kind"), [(wrap_input_error, InputError), (wrap_output_error, OutputError)])
def test_every_ffmpeg_error_becomes_one_line(wrap: Callable[..., Any], kind: type[Exception]) -> None:
    assert len(av.error.classes) > 100
    for code in sorted(av.error.classes):
        original = av.error.classes[code](code, "some words\nin two lines", "clip.mp4")  # type: ignore[operator]
        with pytest.raises(kind) as error, wrap(Path("clip.mp4"), "do it"):
            raise original
        message = str(error.value)
        assert message.startswith("clip.mp4: cannot do it: "), code
        assert "\n" not in message, code
        assert len(message) > len("clip.mp4: cannot do it: "), code
        assert error.value.__cause__ is original, code


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_disk_errors_say_what_to_do(code: int) -> None:
    for original in (OSError(code, os.strerror(code)), av.error.OSError(code, "x")):
        with (
            pytest.raises(OutputError, match=r"space|permission|read-only|quota"),
            wrap_output_error("a.mp4", "write"),
        ):
            raise original


def missing(path: Path, doing: str) -> str:
    """The message for a file that the system does not find."""
    with pytest.raises(OutputError) as error, wrap_output_error(path, doing):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return str(error.value).removeprefix(f"{path}: cannot {doing}: ")


@pytest.mark.parametrize("doing", ["finish it", "write frame 12", "patch its boxes", "patch its tracks"])
def test_what_was_begun_is_called_gone(tmp_path: Path, doing: str) -> None:
    assert missing(tmp_path / "a.mp4", doing) == f"what was written of it is gone from {tmp_path}"


@pytest.mark.parametrize("doing", ["create it", "create its folder", "write it", "write the contact sheet"])
def test_a_folder_that_takes_no_file_is_named(tmp_path: Path, doing: str) -> None:
    words = f"nothing can be created in {tmp_path}; write to another folder"
    assert missing(tmp_path / "a.mp4", doing) == words
    assert missing(tmp_path, "write there") == words


@pytest.mark.parametrize(
    "doing", ["read it", "look at it", "upload it", "open libx264", "keep the partial result"]
)
def test_what_creates_nothing_is_told_what_the_system_says(tmp_path: Path, doing: str) -> None:
    assert missing(tmp_path / "a.mp4", doing) == os.strerror(errno.ENOENT)


@pytest.mark.parametrize("doing", ["create it", "write it", "finish it", "read it", "write there"])
def test_a_folder_that_is_not_there_is_to_be_created(tmp_path: Path, doing: str) -> None:
    path = tmp_path / "new" if doing == "write there" else tmp_path / "new" / "a.mp4"
    assert missing(path, doing) == "the folder does not exist; create it first"


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    link = tmp_path / "a.mp4"
    try:
        link.symlink_to(tmp_path / "gone" / "b.mp4")
    except OSError:
        pytest.skip("links need a right here")
    for doing, write in (("create it", lambda: link.open("wb")), ("write it", lambda: link.write_text("a"))):
        with pytest.raises(OutputError) as error, wrap_output_error(link, doing):
            write()
        words = f"it is a link to {tmp_path / 'gone' / 'b.mp4'}, which cannot be created; remove the link"
        assert str(error.value) == f"{link}: cannot {doing}: {words}"


def test_our_own_errors_pass_through() -> None:
    with pytest.raises(UsageError, match=r"^mine$"), wrap_input_error("a.mp4", "read"):
        raise UsageError("mine")


def test_bugs_stay_bugs() -> None:
    with pytest.raises(TypeError), wrap_input_error("a.mp4", "read"):
        raise TypeError("bug")


def test_errors_without_words_still_say_something() -> None:
    assert describe_av_error(ValueError()) == "ValueError"
    assert describe_av_error(OSError(errno.EIO, "x")) == os.strerror(errno.EIO)


def test_silence_undoes_a_hosts_logging() -> None:
    av.logging.set_level(av.logging.VERBOSE)
    silence_libav()
    assert av.logging.get_level() is None
