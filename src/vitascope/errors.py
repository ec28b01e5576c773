"""Every error that Vitascope raises on purpose.

::

    Exception
    └── VitascopeError                 exit code 1
        ├── UsageError                 2   the command line contradicts itself
        │   └── ConfigError            2   a setting that is unknown, malformed or out of range
        ├── InputError                 3   a file that cannot be read, or holds no video
        │   └── CorruptInputError      3   a video that stops being decodable
        ├── OutputError                4   a file that cannot be written
        │   └── BeingWrittenError      4   another run writes it
        ├── ModelError                 5   a network that cannot be had, verified or used
        │   ├── ModelUnavailableError  5   not on this machine, and it could not be fetched
        │   └── ModelChecksumError     5   the bytes are not those the catalogue names
        ├── EngineError                5   an inference engine that failed
        │   └── DeviceMemoryError      5   a GPU that has too little memory left
        ├── BatchingError              5   a request that a batcher did not compute
        │   ├── RequestRejectedError   5   no room, or its deadline passed
        │   └── BatcherStoppedError    5   the batcher does not run any more, or not yet
        ├── DeviceError                5   a GPU that is missing, or that cannot be used
        ├── MemoryLimitError           5   a pool of memory whose cap is reached
        ├── KernelCompileError         5   CUDA source that the driver's compiler refused
        ├── MissingDependencyError     5   an optional package that is not installed
        ├── WorkerError                1   a worker process that ended, or could not be started
        └── PipelineError              the code of its first cause; also an ExceptionGroup

A message says what failed, what was met, what was expected and what to do; it names the file it is about and
fits on one line, because the command line prints it as it is. Errors of other libraries are wrapped where they
enter (media, engines, store) and are kept as ``__cause__``; ``--debug`` shows them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = [
    "BatcherStoppedError",
    "BatchingError",
    "BeingWrittenError",
    "ConfigError",
    "CorruptInputError",
    "DeviceError",
    "DeviceMemoryError",
    "EngineError",
    "InputError",
    "KernelCompileError",
    "MemoryLimitError",
    "MissingDependencyError",
    "ModelChecksumError",
    "ModelError",
    "ModelUnavailableError",
    "OutputError",
    "PipelineError",
    "RequestRejectedError",
    "UsageError",
    "VitascopeError",
    "WorkerError",
    "add_to_line",
    "did_you_mean",
    "let_go",
    "one_line",
]


class VitascopeError(Exception):
    """Base of all errors that Vitascope raises on purpose."""

    exit_code: int = 1


class UsageError(VitascopeError, ValueError):
    """The request contradicts itself, for example an output that is also the input."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting that is unknown, malformed or out of range; the message names its key and origin."""


class InputError(VitascopeError):
    """A file that cannot be opened, is not a video, or holds no video stream."""

    exit_code = 3


class CorruptInputError(InputError):
    """A video that opened, but cannot be decoded to the end (truncated, or too much damage)."""


class OutputError(VitascopeError):
    """A file that cannot be written: no permission, no space, or a codec that the container does not support."""

    exit_code = 4


class BeingWrittenError(OutputError):
    """A file that another run, or another thread of this one, is writing."""


class ModelError(VitascopeError):
    """A network that cannot be found, verified, understood or run."""

    exit_code = 5


class ModelUnavailableError(ModelError):
    """A network that is not on this machine and could not be fetched; the message names the command to fetch it."""


class ModelChecksumError(ModelError):
    """A file whose sha256 differs from the catalogue; it is never loaded."""


class EngineError(VitascopeError):
    """An inference engine that could not be opened, or that failed while running."""

    exit_code = 5


class DeviceMemoryError(EngineError):
    """A GPU ran out of memory; the message says how much was requested and how much was free."""


class BatchingError(VitascopeError):
    """A request that a batcher did not compute."""

    exit_code = 5


class RequestRejectedError(BatchingError):
    """A rejected request: the queue was full, or the deadline passed while it waited."""


class BatcherStoppedError(BatchingError):
    """A request to a batcher that was stopped, or not started."""


class DeviceError(VitascopeError):
    """A GPU that was requested but is missing, or whose driver cannot be used; the message says what to do."""

    exit_code = 5


class MemoryLimitError(VitascopeError, MemoryError):
    """A pool of host memory is exhausted, or a request is larger than the whole pool."""

    exit_code = 5


class KernelCompileError(VitascopeError):
    """A CUDA kernel that could not be built for this GPU; the compiler's log is the cause."""

    exit_code = 5


class MissingDependencyError(VitascopeError, ImportError):
    """An optional package is needed but not installed; the message names the extra to install."""

    exit_code = 5


class WorkerError(VitascopeError):
    """A worker process that ended by itself (killed, out of memory), or could not be started."""


class PipelineError(ExceptionGroup[Exception], VitascopeError):
    """One or more stages of a running pipeline failed; each cause carries a note with its stage and frame.

    Attributes:
        exceptions: The causes, first failure first.
    """

    @property
    # mypy: a property in the place of a plain attribute; callers only read it.
    def exit_code(self) -> int:  # type: ignore[override]
        """The exit code of the first cause, or 1 if that is not a ``VitascopeError``."""
        return getattr(self.exceptions[0], "exit_code", 1)

    # mypy: typeshed makes derive generic over the exceptions; a PipelineError holds any Exception.
    def derive(self, excs: Sequence[Exception]) -> PipelineError:  # type: ignore[override]
        """Build a group of the same kind; ``ExceptionGroup.split`` calls this."""
        return PipelineError(self.message, list(excs))


def one_line(error: VitascopeError) -> str:
    """The message of an error; for a failed pipeline, that of its first cause if it is a ``VitascopeError``."""
    if isinstance(error, PipelineError) and isinstance(error.exceptions[0], VitascopeError):
        return one_line(error.exceptions[0])
    return " ".join(str(error.message if isinstance(error, PipelineError) else error).split())


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """``; did you mean NAME?``, for a message about an unknown word; empty if no known word is close."""
    near = get_close_matches(str(word).lower(), words, n=1, cutoff=0.7)  # at 0.6 gpu is near cpu
    return f"; did you mean {near[0]}?" if near else ""


def add_to_line(error: BaseException, words: str) -> None:
    """Append text to the message of an error; for a failed pipeline, to that of its first cause."""
    if isinstance(error, PipelineError):
        add_to_line(error.exceptions[0], words)
    else:
        error.args = ("; ".join(filter(None, (str(error), words))),)


def let_go(error: BaseException) -> None:
    """Clear the frames in the traceback of a stored error and of its causes; the traceback still prints.

    What was on its way when a run failed (frames, memory of a GPU, surfaces of its decoder) lives as long as the error
    otherwise.
    """
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
