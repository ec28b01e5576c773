"""Worker processes: started, listened to, and gone when they are not needed any more, whatever happens.

A worker that dies is noticed at once, because its connection ends. A run that dies takes its workers along for the same
reason: each ends itself when its connection does.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType

from vitascope.config import LoadedSettings
from vitascope.errors import WorkerError
from vitascope.segmentation.processes.messages import Failed, Ready, pack, unpack
from vitascope.segmentation.processes.worker import serve

__all__ = ["WorkerPlan", "WorkerPool", "remote"]

_GENTLE_SECONDS = 10.0
"""How long a worker that was told to end may take; freeing a GPU takes a second."""
_FIRM_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What one worker is."""

    label: str
    """For messages, for example ``the process of GPU 1``."""
    loaded: LoadedSettings


class WorkerPool:
    """Processes that each have a network open.

    They are spawned, not forked: CUDA and threads survive no fork.

    Args:
        plans: One for each process.
        home: Vitascope's directory, where networks lie.
    """

    def __init__(self, plans: Sequence[WorkerPlan], *, home: Path) -> None:
        self._plans = tuple(plans)
        self._home = home
        self._workers: list[_Worker] = []
        self._listener: Callable[[int, bytes | None], object] = _ignore

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def is_open(self) -> bool:
        """True while the processes run."""
        return bool(self._workers)

    def label(self, number: int) -> str:
        """What to call a worker in messages."""
        return self._plans[number].label

    def open(self) -> list[Ready]:
        """Start all processes, and wait until each has its network.

        Raises:
            VitascopeError: What a worker could not do; none is left then.
            WorkerError: A process could not be started, or ended.
            KeyboardInterrupt: Ctrl-C; none is left then.
        """
        first: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
        self._listener = lambda number, content: first.put((number, content))
        ready: dict[int, Ready] = {}
        try:
            self._start()
            while len(ready) < len(self._plans):
                number, content = first.get()
                ready[number] = self._introduced(number, content)
        except BaseException:
            self.kill()
            raise
        return [ready[number] for number in range(len(self._plans))]

    def listen(self, listener: Callable[[int, bytes | None], object] | None) -> None:
        """Say who gets what workers send, on a thread of each worker; None as content: the worker is gone."""
        self._listener = listener or _ignore

    def send(self, number: int, message: object) -> None:
        """Send a message to a worker; one that is gone is noticed by whoever listens."""
        with suppress(OSError):
            self._workers[number].connection.send_bytes(pack(message))

    def loss(self, number: int) -> WorkerError:
        """The error for a worker that is gone."""
        process = self._workers[number].process
        process.join(_FIRM_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
                if -code == getattr(signal, "SIGKILL", 0):
                    how += ", perhaps because the machine ran out of memory"
                return WorkerError(f"{self.label(number)} {how}")
        return WorkerError(f"{self.label(number)} ended by itself (exit code {code})")

    def close(self) -> None:
        """End the processes, gently where they listen. Idempotent."""
        for number in range(len(self._workers)):
            self.send(number, None)
        for worker in self._workers:
            worker.process.join(_GENTLE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the processes at once. Idempotent."""
        self._listener = _ignore
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(_FIRM_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.receiver.join()
            worker.connection.close()
            worker.process.close()

    def _introduced(self, number: int, content: bytes | None) -> Ready:
        """What a worker said first."""
        if content is None:
            raise self.loss(number)
        message: Ready | Failed = unpack(content)
        if isinstance(message, Failed):
            raise remote(message, self.label(number))
        return message

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for number, plan in enumerate(self._plans):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve,
                args=(theirs, plan.loaded, self._home),
                name=f"vitascope-worker-{number}",
                daemon=True,
            )
            try:
                with _ctrl_c_waits(), _unknown_main():
                    process.start()
            except OSError as error:
                raise WorkerError(f"{plan.label} cannot be started: {error}") from error
            finally:
                theirs.close()
            receiver = threading.Thread(
                target=self._receive,
                args=(number, ours, process.sentinel),
                name=f"vitascope-from-worker-{number}",
                daemon=True,
            )
            self._workers.append(_Worker(process, ours, receiver))
            receiver.start()

    def _receive(self, number: int, connection: Connection, sentinel: int) -> None:
        # The sentinel, too: a compiler that the worker has started may hold the connection open after its end.
        while connection in wait([connection, sentinel]):
            try:
                content = connection.recv_bytes()
            except (EOFError, OSError):
                break
            self._listener(number, content)
        self._listener(number, None)


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    receiver: threading.Thread


def remote(failed: Failed, label: str) -> Exception:
    """A worker's error, with the place it came from as a note and its traceback as the cause."""
    error = failed.error
    error.add_note(f"in {label}")
    error.__cause__ = WorkerError(f"the traceback in {label}:\n{failed.trace}")
    return error


def _ignore(number: int, content: bytes | None) -> None:
    """Nobody listens."""
    del number, content


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
