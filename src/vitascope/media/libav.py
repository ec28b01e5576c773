"""PyAV's boundary: open files uniformly, and convert its exceptions to ours and its rationals to Fractions.

::

    with wrap_input_error(path, "open it"):
        container = open_input(path)

turns FFmpeg's message into ``InputError("clip.mp4: cannot open it: no such file")``, with the original as
``__cause__``. Our own errors pass through, and so do all others that come from neither FFmpeg nor the operating
system: a ``TypeError`` here is our bug and must look like one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path

import av
import av.error
import av.logging
from av.codec.hwaccel import HWAccel
from av.container import InputContainer

from vitascope.errors import InputError, OutputError, VitascopeError
from vitascope.media.remote import RemotePath

_INPUT_REASONS = {
    errno.ENOENT: "no such file",
    errno.EACCES: "no permission to read it",
    errno.EPERM: "no permission to read it",
    errno.EISDIR: "it is a folder",
    errno.EIO: "the disk reports a read error",
}
_OUTPUT_REASONS = {
    errno.ENOENT: "the folder does not exist; create it first",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.EROFS: "the file system is read-only",
    errno.EISDIR: "it is a folder; name a file",
    errno.ENOSPC: "no space left on the device; free some or write elsewhere",
    errno.EDQUOT: "the disk quota is used up; free some space or write elsewhere",
    errno.EFBIG: "the file grew larger than the file system allows",
    errno.ENAMETOOLONG: "the file name is too long",
    errno.EIO: "the disk reports a write error",
}
_OF_WHAT_WAS_BEGUN = ("finish it", "write frame ", "patch ")
"""Prefixes of actions on a file created earlier; other write actions create one."""
_OF_WHAT_IS_NEW = ("create ", "write ")
_AV_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (av.error.InvalidDataError, "invalid data: not a media file, or damaged"),
    (av.error.DemuxerNotFoundError, "no demuxer in this FFmpeg build knows the format"),
    (av.error.DecoderNotFoundError, "no decoder in this FFmpeg build knows the codec"),
    (av.error.EncoderNotFoundError, "no such encoder in this FFmpeg build"),
    (av.error.MuxerNotFoundError, "no muxer in this FFmpeg build knows the format; check the file's suffix"),
    (av.error.PatchWelcomeError, "it uses a feature that FFmpeg does not support"),
    (av.error.NotImplementedError, "it uses a feature that FFmpeg does not support"),
    (av.error.EOFError, "it ends too early"),
    (av.error.ExternalError, "the codec's own library failed, perhaps for lack of memory"),
)


def silence_libav() -> None:
    """Keep FFmpeg's own log lines off stderr, and Python out of FFmpeg's threads. Process-wide.

    PyAV's logging callback takes the GIL from decoder threads; joining those threads while holding the GIL
    deadlocks (PyAV issue 751), which damaged files provoke because they log. ``set_level(None)`` installs the
    callback that does nothing and needs no GIL. It is PyAV's default, but a host application may have changed it.
    """
    av.logging.set_level(None)


def describe_av_error(error: Exception, reasons: dict[int, str] | None = None) -> str:
    """Describe an exception of FFmpeg, PyAV or the operating system in one short line, without the file name.

    Args:
        error: The exception.
        reasons: Descriptions by ``errno``, which override FFmpeg's.
    """
    code = getattr(error, "errno", None)
    if reasons and code in reasons:
        return reasons[code]
    for kind, words in _AV_REASONS:
        if isinstance(error, kind):
            return words
    if isinstance(error, av.FFmpegError):
        words = error.strerror or type(error).__name__
    elif isinstance(error, OSError) and code:
        words = os.strerror(code)
    else:
        words = str(error) or type(error).__name__
    return " ".join(words.split())


def open_input(path: str | PathLike[str], *, hwaccel: HWAccel | None = None) -> InputContainer:
    """Open a media file for reading; errors of FFmpeg and the system pass through.

    Args:
        path: The file.
        hwaccel: Hardware decoder; None for the CPU.
    """
    # The prefix keeps names such as "talk: part 1.mp4" from being read as a protocol, and pattern_type keeps "%03d"
    # in a name literal. A tag in an unknown encoding must not make a video unreadable.
    if isinstance(path, RemotePath):
        return av.open(path.open("rb"), "r", metadata_errors="replace", hwaccel=hwaccel)
    return av.open(
        f"file:{path}", "r", options={"pattern_type": "none"}, metadata_errors="replace", hwaccel=hwaccel
    )


def fraction_or_none(rational: Fraction | None) -> Fraction | None:
    """Convert PyAV's time base, rate or aspect; None if FFmpeg does not know it (0/1)."""
    return Fraction(rational.numerator, rational.denominator) if rational else None


def wrap_input_error(path: str | PathLike[str], doing: str) -> AbstractContextManager[None]:
    """Turn FFmpeg's and the system's errors into ``InputError("{path}: cannot {doing}: {reason}")``.

    Args:
        path: The file being read.
        doing: The action, as in "open it" or "read its streams".

    Raises:
        InputError: From any ``av.FFmpegError``, ``OSError``, or the ``ValueError`` that PyAV raises itself.
    """
    return _wrapped(InputError, lambda: _INPUT_REASONS, f"{path}: cannot {doing}")


def wrap_output_error(path: str | PathLike[str], doing: str) -> AbstractContextManager[None]:
    """Turn FFmpeg's and the system's errors into ``OutputError("{path}: cannot {doing}: {reason}")``.

    Args:
        path: The file being written.
        doing: The action, as in "create it" or "write frame 12". With "write there", ``path`` is a folder.

    Raises:
        OutputError: From any ``av.FFmpegError``, ``OSError``, or the ``ValueError`` that PyAV raises itself
            (unknown codec, no muxer for the suffix).
    """
    return _wrapped(OutputError, partial(_output_reasons, path, doing), f"{path}: cannot {doing}")


def _output_reasons(path: str | PathLike[str], doing: str) -> dict[int, str]:
    """Describe the reason: "no such file" in an existing folder means that it takes no files (/proc) or lost one."""
    if isinstance(path, RemotePath):
        return _OUTPUT_REASONS
    target = Path(path).absolute()
    folder = target if doing == "write there" else target.parent
    if not folder.is_dir():
        return _OUTPUT_REASONS
    missing = os.strerror(errno.ENOENT)
    if doing.startswith(_OF_WHAT_WAS_BEGUN):
        missing = f"what was written of it is gone from {folder}"
    elif doing.startswith(_OF_WHAT_IS_NEW):
        missing = f"nothing can be created in {folder}; write to another folder"
        if target.is_symlink() and not target.exists():
            missing = f"it is a link to {target.readlink()}, which cannot be created; remove the link"
    return _OUTPUT_REASONS | {errno.ENOENT: missing}


@contextmanager
def _wrapped(kind: type[VitascopeError], reasons: Callable[[], dict[int, str]], what: str) -> Iterator[None]:
    try:
        yield
    except VitascopeError:
        raise
    except (av.FFmpegError, OSError, ValueError) as error:
        raise kind(f"{what}: {describe_av_error(error, reasons())}") from error
