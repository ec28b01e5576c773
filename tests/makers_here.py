"""A crew that makes stretches in this process, for tests in which it does not matter who makes them.

A process takes more than a second to start. ``test_crew.py`` checks with two processes that separate ones
make the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vitascope.models.store.store import ModelStore
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.processes import crew
from vitascope.segmentation.processes.maker import StretchMaker, ThisProcess
from vitascope.segmentation.processes.port import MakerFacts, StretchMade, StretchOrder, Tell
from vitascope.segmentation.processes.shares import WorkerPlan
from vitascope.segmentation.segmenter import Segmenter

__all__ = ["MakersHere", "crew_here"]


class MakersHere(ThisProcess):
    """``LocalProcesses`` without processes: a maker with its own network for each plan."""

    def __init__(self, plans: Sequence[WorkerPlan], *, home: Path) -> None:
        self._plans = tuple(plans)
        runners = [FilmRunner(plan.loaded, store=ModelStore(home), keeps_mattes=False) for plan in plans]
        self._here = [ThisProcess(StretchMaker(runner)) for runner in runners]
        self._runners = runners

    def __len__(self) -> int:
        return len(self._plans)

    def label(self, number: int) -> str:
        return self._plans[number].label

    place = label

    def open(self) -> Sequence[MakerFacts]:
        return [facts for here in self._here for facts in here.open()]

    def rest(self, number: int) -> None:
        self._here[number].rest(0)

    def make(self, number: int, order: StretchOrder, *, tell: Tell) -> StretchMade:
        return self._here[number].make(0, order, tell=tell)

    def drop(self, number: int) -> None:
        self._here[number].drop(0)

    def close(self) -> None:
        for number, runner in enumerate(self._runners):
            self.rest(number)
            runner.close()


def crew_here(
    *, settings: dict[str, Any], profile: str | None = None, store: ModelStore | None = None
) -> Segmenter:
    """Open a segmenter that shares each video among two makers of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "LocalProcesses", MakersHere)
        flags = settings | {"processing.use_multiprocessing": True}
        return Segmenter(profile=profile, settings=flags, store=store)
