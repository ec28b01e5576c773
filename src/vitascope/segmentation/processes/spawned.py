"""Another process of this machine: started, asked, heard, and gone when the run is.

One that dies is noticed at once, because its connection ends. A run that dies takes its processes along for the same
reason: each finds its connection ended.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any, Self

from vitascope.errors import WorkerError

_FIRM_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Failed:
    """An error in the place of an answer, and its traceback as text, which does not travel otherwise."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """An error that was caught; what does not survive being sent becomes a ``WorkerError`` that says the same."""
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception:
            copy = None
        survives = type(copy) is type(error) and str(copy) == str(error)
        sent = error if survives else WorkerError(f"{type(error).__name__}: {error}")
        return cls(sent, "".join(traceback.format_exception(error)))

    def raised_in(self, label: str) -> Exception:
        """The error, with the place that it came from as a note and its traceback as the cause."""
        self.error.add_note(f"in {label}")
        self.error.__cause__ = WorkerError(f"the traceback in {label}:\n{self.trace}")
        return self.error


class SpawnedProcess:
    """A process that does one thing, and a connection to it.

    It is spawned, not forked: CUDA and threads survive no fork. Ctrl-C, which reaches all processes of a terminal,
    leaves it alone: the run decides.

    Args:
        target: What it does, importable by its name. It is called there with its end of the connection and ``args``;
            an error of it is sent back.
        args: What ``target`` needs; sent to it.
        name: As the system shows it.
        label: What messages call it.

    Raises:
        WorkerError: It cannot be started.
    """

    def __init__(self, target: Callable[..., object], *args: object, name: str, label: str) -> None:
        self.label = label
        self.process: SpawnProcess
        """As the standard library knows it."""
        self.is_lost = False
        """It ended by itself, as an answer that was waited for told."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_run, args=(theirs, target, args), name=name, daemon=True)
        try:
            with _ctrl_c_waits(), _unknown_main():
                self.process.start()
        except OSError as error:
            raise WorkerError(f"{label} cannot be started: {error}") from error
        finally:
            theirs.close()

    def send(self, what: object) -> None:
        """Say something. One that is gone is noticed by waiting for its answer."""
        with suppress(OSError):
            self._connection.send(what)

    def answer(self) -> Any:
        """What it says next, waited for.

        Raises:
            VitascopeError: What went wrong there.
            WorkerError: It is gone.
        """
        # The sentinel, too: a compiler that the process has started may hold the connection open after its end.
        if self._connection in wait([self._connection, self.process.sentinel]):
            with suppress(EOFError, OSError):
                answer = self._connection.recv()
                if isinstance(answer, Failed):
                    raise answer.raised_in(self.label)
                return answer
        raise self._loss()

    def join(self, timeout_seconds: float) -> None:
        """Wait until it has ended."""
        self.process.join(timeout_seconds)

    def _loss(self) -> WorkerError:
        self.is_lost = True
        self.process.join(_FIRM_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
                if -code == getattr(signal, "SIGKILL", 0):
                    how += ", perhaps because the machine ran out of memory"
                return WorkerError(f"{self.label} {how}")
        return WorkerError(f"{self.label} ended by itself (exit code {code})")

    @staticmethod
    def end(processes: Sequence[SpawnedProcess]) -> None:
        """End some, whatever they are at."""
        for one in processes:
            one.process.terminate()
        for one in processes:
            one.process.join(_FIRM_SECONDS)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()


def _run(connection: Connection, target: Callable[..., object], args: Sequence[object]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        target(connection, *args)
    except Exception as error:
        with suppress(OSError):  # the run is gone
            connection.send(Failed.of(error))


@contextmanager
def _unknown_main() -> Iterator[None]:
    """Keep spawned processes from importing the user's script, which they need nothing of.

    They would run it again, with all that it imports; a script without ``if __name__ == "__main__"`` would start
    processes without end, and one from standard input cannot be imported at all.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Let Ctrl-C wait, here and for good in a process that starts meanwhile: it inherits what is blocked.

    A worker would otherwise die of it, with a traceback, before it could say that it does not care.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
