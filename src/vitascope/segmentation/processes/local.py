"""Makes stretches in processes on this machine: starts, watches and ends them.

A lost process is replaced when it gets its next stretch.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vitascope.device import select_device
from vitascope.errors import WorkerError
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.capacity import gpu_room_bytes
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.processes.maker import StretchMaker
from vitascope.segmentation.processes.port import (
    MakerFacts,
    StretchMade,
    StretchOrder,
    StretchProgress,
    Tell,
    WholeFilm,
)
from vitascope.segmentation.processes.shares import WorkerPlan
from vitascope.segmentation.processes.spawned import SpawnedProcess
from vitascope.segmentation.report import SegmentReport

_GENTLE_SECONDS = 10.0
"""Time in which a process may end by itself; freeing a GPU takes a second."""
_INTERRUPT, _REST = "interrupt", "rest"


class LocalProcesses:
    """``StretchMakers`` on this machine.

    Args:
        plans: A plan for each process.
        home: Vitascope's home directory, with the networks.
    """

    def __init__(self, plans: Sequence[WorkerPlan], *, home: Path) -> None:
        self._plans = tuple(plans)
        self._home = home
        self._workers: dict[int, SpawnedProcess] = {}
        self._changing = threading.Lock()
        """Held while processes are started or ended, so that none starts after all were ended."""
        self._is_open = False

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def is_open(self) -> bool:
        """See ``StretchMakers``."""
        return self._is_open

    @property
    def notes(self) -> Sequence[str]:
        """Always empty."""
        return ()

    def label(self, number: int) -> str:
        """See ``StretchMakers``."""
        return self._plans[number].label

    def open(self) -> Sequence[MakerFacts]:
        """Start all processes, and wait until each has opened its network.

        Raises:
            VitascopeError: A process failed; all are ended then.
            WorkerError: A process could not be started, or ended by itself.
            KeyboardInterrupt: Ctrl-C; all are ended then.
        """
        self._is_open = True
        try:
            started = [self._start(number) for number in range(len(self._plans))]
            return [self._answer(number, worker) for number, worker in enumerate(started)]
        except BaseException:
            self._end_all()
            raise

    def place(self, number: int) -> str:
        """See ``StretchMakers``; each process is a place of its own."""
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
        """See ``StretchMakers``; processes on one machine see the same files."""

    def renew(self, number: int) -> None:
        """See ``StretchMakers``."""
        self._begun(number)

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """See ``StretchMakers``."""
        made = self._ask(number, order, tell)
        assert isinstance(made, StretchMade)  # sent by serve()
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
        """Send a process a message that it does not answer."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.send(what)

    def drop(self, number: int) -> None:
        """See ``StretchMakers``."""
        with self._changing:
            worker = self._workers.pop(number, None)
        if worker is not None:
            SpawnedProcess.end([worker])

    def _ask(self, number: int, order: StretchOrder | WholeFilm, tell: Tell) -> Any:
        """Send an order to a process and wait for its answer."""
        worker = self._begun(number)
        worker.send(order)
        while isinstance(answer := self._answer(number, worker), StretchProgress):
            tell(answer)
        return answer

    def _begun(self, number: int) -> SpawnedProcess:
        """A process with an open network; a new one if it was lost."""
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
            worker.send(None)
        for worker in workers:
            worker.join(_GENTLE_SECONDS)
        self._end_all()

    def _end_all(self) -> None:
        """End all processes; ``open`` can start them again."""
        with self._changing:
            self._is_open = False
            workers, self._workers = list(self._workers.values()), {}
        SpawnedProcess.end(workers)

    def _start(self, number: int) -> SpawnedProcess:
        plan = self._plans[number]
        with self._changing:
            if not self._is_open:
                raise WorkerError(f"{plan.label} was stopped")
            worker = self._workers[number] = SpawnedProcess(
                serve, plan, self._home, name=f"vitascope-worker-{number}", label=plan.label
            )
            return worker

    def _answer(self, number: int, worker: SpawnedProcess) -> Any:
        """Wait for a process's next answer; forget the process if it is gone."""
        try:
            return worker.answer()
        except Exception:
            if worker.is_lost:
                with self._changing:
                    if self._workers.get(number) is worker:
                        del self._workers[number]
            raise


_Order = StretchOrder | WholeFilm | str | None
"""An order; ``_REST`` to rest; None to end."""


def serve(connection: Connection, plan: WorkerPlan, home: Path) -> None:
    """The main function of a worker process: make stretches until the run ends.

    If the run is gone (it crashed or was killed), the process ends at once. There is nothing to tidy up: incomplete
    files have no name.
    """
    orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    interrupted = threading.Event()
    threading.Thread(
        target=_receive, args=(connection, orders, interrupted), name="vitascope-orders", daemon=True
    ).start()
    sending = threading.Lock()

    def send(answer: object) -> None:
        with sending, suppress(OSError):  # the run is gone; the receiving thread ends the process
            connection.send(answer)

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
