"""No exception of FFmpeg or the system leaves the media package as it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import av
import av.error
import av.logging
import pytest

from vitascope.errors import InputError, OutputError, UsageError
from vitascope.media.libav import describe_av_error, silence_libav, wrap_input_error, wrap_output_error


@pytest.mark.parametrize("code", sorted(av.error.classes))
def test_every_ffmpeg_error_becomes_one_line(code: int) -> None:
    original = av.error.classes[code](code, "some words\nin two lines", "clip.mp4")  # type: ignore[operator]
    for wrap, kind in ((wrap_input_error, InputError), (wrap_output_error, OutputError)):
        with pytest.raises(kind) as error, wrap(Path("clip.mp4"), "do it"):
            raise original
        message = str(error.value)
        assert message.startswith("clip.mp4: cannot do it: ")
        assert "\n" not in message
        assert len(message) > len("clip.mp4: cannot do it: ")
        assert error.value.__cause__ is original


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_disk_errors_say_what_to_do(code: int) -> None:
    for original in (OSError(code, os.strerror(code)), av.error.OSError(code, "x")):
        with (
            pytest.raises(OutputError, match=r"space|permission|read-only|quota"),
            wrap_output_error("a.mp4", "write"),
        ):
            raise original


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
