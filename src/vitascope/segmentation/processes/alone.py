"""This process as the one that makes stretches, with the network that it has open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitascope.errors import WorkerError
from vitascope.gpu.pipeline.report import Interruptible
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.processes.maker import StretchMaker
from vitascope.segmentation.processes.port import FilmOrder, MakerFacts, StretchMade, StretchOrder, Tell

__all__ = ["ThisProcess"]


class ThisProcess:
    """``StretchMakers`` of one, here.

    Args:
        runner: Has the network open, and stays the caller's.
    """

    def __init__(self, runner: FilmRunner) -> None:
        self._maker = StretchMaker(runner)
        self._pipeline: Interruptible | None = None
        self._is_open = False

    def __len__(self) -> int:
        return 1

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
        del number
        return "this process"

    def open(self) -> Sequence[MakerFacts]:
        """See ``StretchMakers``."""
        self._is_open = True
        return [self._maker.facts()]

    def check(self, film: FilmOrder, folder: Path) -> None:
        """See ``StretchMakers``: this process sees what it sees."""

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        """See ``StretchMakers``."""
        if not self._is_open:
            raise WorkerError(f"{self.label(number)} was told to end")
        made = self._maker.make(order, tell=tell, on_start=self._has_started)
        return replace(made, peak_memory_bytes=0)  # the run's own, which counts it

    def kill(self) -> None:
        """See ``StretchMakers``."""
        self._is_open = False
        if self._pipeline is not None:
            self._pipeline.interrupt()

    def close(self) -> None:
        """See ``StretchMakers``."""
        self._is_open = False

    def _has_started(self, pipeline: Interruptible) -> None:
        self._pipeline = pipeline
        if not self._is_open:
            pipeline.interrupt()
