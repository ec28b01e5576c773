"""What runs a stage of a pipeline: its threads, each with its own meter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from vitascope.gpu.pipeline_report import Meter
from vitascope.gpu.queues import BoundedQueue, Mark, Turnstile
from vitascope.gpu.stages import Stage, Together

if TYPE_CHECKING:
    from vitascope.gpu.pipeline import Pipeline

__all__ = ["Node", "Worker"]

_EXHAUSTED = object()


class Stopped(Exception):  # noqa: N818 - not an error: how a thread unwinds when the run is given up
    """A queue or turnstile was stopped."""


@dataclass(eq=False)
class Node:
    """A stage at its place in a pipeline."""

    stage: Stage
    inlet: BoundedQueue[tuple[float, Any]] | None
    outlet: BoundedQueue[tuple[float, Any]] | None
    turnstile: Turnstile | None
    meters: list[Meter] = field(init=False)
    """One for each worker."""
    working: int = field(init=False)
    """Workers that may still put something."""
    lets_source_go_on: threading.Event | None = None
    """Of the stage that the first item is alone until: set once it is done with that."""

    def __post_init__(self) -> None:
        """Prepare for as many workers as the stage asks for."""
        self.working = self.stage.workers
        self.meters = [Meter() for _ in range(self.stage.workers)]


class Worker:
    """One thread of a stage. Every exception ends up in ``Pipeline._fail``, with a note that says where it was.

    It holds its pipeline, which therefore lets it go when it has ended.
    """

    def __init__(self, node: Node, pipeline: Pipeline, *, meter: Meter, suffix: str) -> None:
        self.meter = meter
        self.thread = threading.Thread(
            target=self._run,
            name=f"vitascope-{node.stage.name}{suffix}",
            # Always joined; but one that hangs in native code, once reported, must not hold the process.
            daemon=True,
        )
        self._node = node
        self._pipeline = pipeline
        self._doing = "not started"
        self._item: tuple[int, Any] | None = None
        self._oldest_birth: float | None = None  # of what was taken since something was last given

    def place(self) -> str:
        """Where this thread is: stage, and item or activity."""
        current = self._item  # read once: the thread may be running
        if current is None:
            return f"stage {self._node.stage.name!r}, {self._doing} after {self.meter.items} items"
        position, item = current
        try:
            described = " ".join(self._pipeline.describe(item).split())
        except Exception as error:
            described = f"{type(item).__name__}, whose description failed: {error!r}"
        return f"stage {self._node.stage.name!r}, item {position}: {described}"

    def _run(self) -> None:
        stage = self._node.stage
        if not self._pipeline.halted and self._attempt("opening", stage.open):
            self._attempt("starting", self._pump)
            self.meter.pause()  # for one that failed at work
            self._attempt("closing", stage.close)
        self.meter.cpu_seconds = thread_time()
        self._pipeline._leave()

    def _attempt(self, doing: str, action: Callable[[], object] | None) -> bool:
        self._doing, self._item = doing, None
        try:
            if action is not None:
                action()
        except Stopped:
            return False
        except BaseException as error:
            place = self.place()
            error.add_note(place)
            self._pipeline._fail(place, error)
            return False
        return True

    def _pump(self) -> None:
        node = self._node
        if node.inlet is not None:
            while True:
                if node.lets_source_go_on is not None and self.meter.items:
                    node.lets_source_go_on.set()
                taken = node.inlet.get(timeout_seconds=node.stage._patience_seconds())
                if taken is Mark.NOTHING_YET:
                    self._lapse()
                elif isinstance(taken, Mark):
                    break
                else:
                    self._take(taken[0], *taken[1])
                del taken  # or the item would live on while this thread waits for the next
            if taken is Mark.STOP:
                raise Stopped
        self._doing = "reading" if node.inlet is None else "finishing"
        self.meter.resume()
        results = node.stage._complete()
        self.meter.pause()
        self._give(results)
        if self._pipeline._is_last_of(node) and node.outlet is not None:
            node.outlet.end()

    def _lapse(self) -> None:
        """Nothing came in the time that the stage wanted to wait."""
        self._doing = "with what it had gathered,"
        self.meter.resume()
        results = self._node.stage._lapse()
        self.meter.pause()
        self._give(results)

    def _take(self, position: int, birth: float, item: Any) -> None:
        node, meter = self._node, self.meter
        self._item = position, item
        if self._oldest_birth is None:
            self._oldest_birth = birth
        meter.resume()
        results = node.stage._process(item)
        meter.pause()
        if node.turnstile is not None and not node.turnstile.enter(position):
            raise Stopped
        self._give(results)
        if node.turnstile is not None:
            node.turnstile.leave()
        if node.outlet is None:
            meter.lap()
            self._pipeline._latency.add(perf_counter() - birth)
            self._oldest_birth = None
        meter.items += 1
        meter.cpu_seconds = thread_time()
        self._item = None

    def _give(self, results: Iterable[Any]) -> None:
        node, meter = self._node, self.meter
        iterator = iter(results)
        given = 0
        try:
            while not (node.inlet is None and self._pipeline.draining):
                meter.resume()
                result = next(iterator, _EXHAUSTED)
                meter.pause()
                if result is _EXHAUSTED or node.outlet is None:
                    break
                if node.inlet is None:
                    meter.lap()
                    meter.items += 1
                    meter.cpu_seconds = thread_time()
                birth = perf_counter() if self._oldest_birth is None else self._oldest_birth
                given += _put(node.outlet, birth, result.items if isinstance(result, Together) else (result,))
                del result
                if node.inlet is None:
                    self._pipeline.source_goes_on.wait()
        finally:
            if (close := getattr(iterator, "close", None)) is not None:
                close()
        if given and node.inlet is not None:
            meter.lap()
            self._oldest_birth = None


def _put(outlet: BoundedQueue[tuple[float, Any]], birth: float, items: Sequence[Any]) -> int:
    """Hand over what came together; gives how many.

    Raises:
        Stopped: The queue takes nothing any more.
    """
    for number, item in enumerate(items, start=1):
        nbytes = outlet.limits.size_of(item)
        if not outlet.put((birth, item), nbytes=nbytes, more_follow=number < len(items)):
            raise Stopped
    return len(items)
