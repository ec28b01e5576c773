"""Another process on this machine that ends with the run.

If it dies, its connection closes, so the run notices at once. If the run dies, the process notices in the same way
and ends.
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
    """An error sent instead of an answer, with its traceback as text, because tracebacks cannot be pickled."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Wrap an error; one that cannot be pickled becomes a ``WorkerError`` with the same message."""
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception:
            copy = None
        survives = type(copy) is type(error) and str(copy) == str(error)
        sent = error if survives else WorkerError(f"{type(error).__name__}: {error}")
        return cls(sent, "".join(traceback.format_exception(error)))

    def raised_in(self, label: str) -> Exception:
        """The error, with its origin as a note and the remote traceback as its cause."""
        self.error.add_note(f"in {label}")
        self.error.__cause__ = WorkerError(f"the traceback in {label}:\n{self.trace}")
        return self.error


class SpawnedProcess:
    """A process that runs one function, and a connection to it.

    It is spawned, not forked, because CUDA and threads do not survive a fork. It ignores Ctrl-C, which reaches all
    processes of a terminal: the run decides.

    Args:
        target: An importable function. It is called in the process with its end of the connection and ``args``; its
            errors are sent back.
        args: Arguments for ``target``; they must be picklable.
        name: The process's name in the system.
        label: Its name in messages.

    Raises:
        WorkerError: It cannot be started.
    """

    def __init__(self, target: Callable[..., object], *args: object, name: str, label: str) -> None:
        self.label = label
        self.process: SpawnProcess
        """The process object of ``multiprocessing``."""
        self.is_lost = False
        """True once waiting for an answer found that it had ended by itself."""
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
        """Send an object. If the process is gone, waiting for its answer will notice."""
        with suppress(OSError):
            self._connection.send(what)

    def answer(self) -> Any:
        """Wait for the next object that it sends.

        Raises:
            VitascopeError: An error in the process.
            WorkerError: The process is gone.
        """
        # Wait for the sentinel, too: a compiler started by the process may keep the connection open after its end.
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
        """End processes at once, whatever they are doing."""
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
    """Keep spawned processes from importing the user's script, which they do not need.

    Importing would run it again. A script without ``if __name__ == "__main__"`` would start processes endlessly, and
    one from standard input cannot be imported at all.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Block Ctrl-C here, and permanently in a process started meanwhile, which inherits the mask.

    Otherwise Ctrl-C would kill a worker with a traceback before it could ignore the signal.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
