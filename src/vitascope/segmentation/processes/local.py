"""Processes of this machine that make stretches: started, listened to, and gone when they are not needed any more.

A process that dies is noticed at once, because its connection ends; the next stretch that it is given starts another in
its place. A run that dies takes its processes along for the same reason: each ends itself when its connection does.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from vitascope.device import select_device
from vitascope.errors import WorkerError
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.capacity import gpu_room_bytes
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.processes.maker import StretchMaker
from vitascope.segmentation.processes.port import (
    Failed,
    MakerFacts,
    StretchMade,
    StretchOrder,
    StretchProgress,
    Tell,
    WholeFilm,
)
from vitascope.segmentation.processes.shares import WorkerPlan
from vitascope.segmentation.report import SegmentReport

_GENTLE_SECONDS = 10.0
"""How long a process that was told to end may take; freeing a GPU takes a second."""
_FIRM_SECONDS = 5.0
_INTERRUPT, _REST = "interrupt", "rest"


class LocalProcesses:
    """``StretchMakers`` of this machine.

    They are spawned, not forked: CUDA and threads survive no fork.

    Args:
        plans: One for each process.
        home: Vitascope's directory, where networks lie.
    """

    def __init__(self, plans: Sequence[WorkerPlan], *, home: Path) -> None:
        self._plans = tuple(plans)
        self._home = home
        self._workers: dict[int, _Worker] = {}
        self._changing = threading.Lock()
        """Held while processes come or go, so that none comes after all were ended."""
        self._is_open = False

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def is_open(self) -> bool:
        """See ``StretchMakers``."""
        return self._is_open

    @property
    def notes(self) -> Sequence[str]:
        """None."""
        return ()

    def label(self, number: int) -> str:
        """See ``StretchMakers``."""
        return self._plans[number].label

    def open(self) -> Sequence[MakerFacts]:
        """Start all processes, and wait until each has its network.

        Raises:
            VitascopeError: What a process could not do; none is left then.
            WorkerError: A process could not be started, or ended.
            KeyboardInterrupt: Ctrl-C; none is left then.
        """
        self._is_open = True
        try:
            started = [self._start(number) for number in range(len(self._plans))]
            return [self._answer(number, worker) for number, worker in enumerate(started)]
        except BaseException:
            self._end_all()
            raise

    def place(self, number: int) -> str:
        """See ``StretchMakers``: processes fail each by itself."""
        return self._plans[number].label

    def room_bytes(self, number: int) -> int | None:
        """See ``StretchMakers``."""
        plan = self._plans[number]
        if not plan.gpu_processes:
            return None
        settings = plan.loaded.settings
        total = select_device("cuda", index=settings.gpu.device_id).memory_bytes
        return None if total is None else gpu_room_bytes(settings, total, processes=plan.gpu_processes)

    def check(self, video: Path, folder: Path) -> None:
        """See ``StretchMakers``: processes of one machine see what it sees."""

    def renew(self, number: int) -> None:
        """See ``StretchMakers``."""
        self._begun(number)

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """See ``StretchMakers``."""
        made = self._ask(number, order, tell)
        assert isinstance(made, StretchMade)  # what ``serve`` sends
        return made

    def make_film(self, number: int, film: WholeFilm, *, tell: Tell) -> SegmentReport:
        """See ``StretchMakers``."""
        report = self._ask(number, film, tell)
        assert isinstance(report, SegmentReport)
        return report

    def rest(self, number: int) -> None:
        """See ``StretchMakers``."""
        self._tell(number, _REST)

    def interrupt(self, number: int) -> None:
        """See ``StretchMakers``."""
        self._tell(number, _INTERRUPT)

    def _tell(self, number: int, what: str) -> None:
        """Say something to a process that it does not answer."""
        worker = self._workers.get(number)
        if worker is not None:
            with suppress(OSError):
                worker.connection.send(what)

    def drop(self, number: int) -> None:
        """See ``StretchMakers``."""
        with self._changing:
            worker = self._workers.pop(number, None)
        if worker is not None:
            _end([worker.process])

    def _ask(self, number: int, order: StretchOrder | WholeFilm, tell: Tell) -> Any:
        """What a process makes of an order."""
        worker = self._begun(number)
        with suppress(OSError):  # one that is gone is noticed by waiting for its answer
            worker.connection.send(order)
        while isinstance(answer := self._answer(number, worker), StretchProgress):
            tell(answer)
        return answer

    def _begun(self, number: int) -> _Worker:
        """A process that has its network; another, if it was lost."""
        worker = self._workers.get(number)
        if worker is None:
            worker = self._start(number)
            self._answer(number, worker)
        return worker

    def close(self) -> None:
        """See ``StretchMakers``."""
        with self._changing:
            workers = list(self._workers.values())
        for worker in workers:
            with suppress(OSError):
                worker.connection.send(None)
        for worker in workers:
            worker.process.join(_GENTLE_SECONDS)
        self._end_all()

    def _end_all(self) -> None:
        """End all processes; ``open`` begins anew."""
        with self._changing:
            self._is_open = False
            workers, self._workers = list(self._workers.values()), {}
        _end([worker.process for worker in workers])

    def _start(self, number: int) -> _Worker:
        plan = self._plans[number]
        context = multiprocessing.get_context("spawn")
        with self._changing:
            if not self._is_open:
                raise WorkerError(f"{plan.label} was ended")
            ours, theirs = context.Pipe()
            process = context.Process(
                target=serve,
                args=(theirs, plan, self._home),
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
            worker = self._workers[number] = _Worker(process, ours)
            return worker

    def _answer(self, number: int, worker: _Worker) -> Any:
        """What a process says next, waited for.

        Raises:
            VitascopeError: What went wrong there.
            WorkerError: It is gone.
        """
        # The sentinel, too: a compiler that the process has started may hold the connection open after its end.
        if worker.connection in wait([worker.connection, worker.process.sentinel]):
            with suppress(EOFError, OSError):
                answer = worker.connection.recv()
                if isinstance(answer, Failed):
                    raise answer.raised_in(self.label(number))
                return answer
        raise self._loss(number, worker)

    def _loss(self, number: int, worker: _Worker) -> WorkerError:
        """The error for a process that is gone, which is forgotten."""
        with self._changing:
            if self._workers.get(number) is worker:
                del self._workers[number]
        process = worker.process
        process.join(_FIRM_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
                if -code == getattr(signal, "SIGKILL", 0):
                    how += ", perhaps because the machine ran out of memory"
                return WorkerError(f"{self.label(number)} {how}")
        return WorkerError(f"{self.label(number)} ended by itself (exit code {code})")


_Order = StretchOrder | WholeFilm | str | None
"""What to make; ``_REST``; None: all is over."""


@dataclass(frozen=True, slots=True)
class _Worker:
    process: SpawnProcess
    connection: Connection


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(_FIRM_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def serve(connection: Connection, plan: WorkerPlan, home: Path) -> None:
    """Make stretches until the run says that it is over: what a process does.

    A run that is gone (it crashed, or was killed) ends the process at once: there is nothing here to tidy up, since
    what is half-made has no name.
    """
    # Ctrl-C reaches all processes of a terminal; the run decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    interrupted = threading.Event()
    threading.Thread(
        target=_receive, args=(connection, orders, interrupted), name="vitascope-orders", daemon=True
    ).start()
    sending = threading.Lock()

    def send(answer: object) -> None:
        with sending, suppress(OSError):  # the run is gone; the thread that receives ends the process
            connection.send(answer)

    try:
        runner = FilmRunner(
            plan.loaded, store=ModelStore(home), keeps_mattes=False, gpu_processes=plan.gpu_processes or 1
        )
        with StretchMaker(runner) as maker:
            send(maker.facts())
            while (order := orders.get()) is not None:
                if isinstance(order, str):
                    maker.rest()
                else:
                    send(maker.answer(order, tell=send, interrupted=interrupted))
    except Exception as error:
        send(Failed.of(error))


def _receive(
    connection: Connection,
    orders: queue.SimpleQueue[_Order],
    interrupted: threading.Event,
) -> None:
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        if order == _INTERRUPT:
            interrupted.set()
            continue
        interrupted.clear()
        orders.put(order)
        if order is None:
            return


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
