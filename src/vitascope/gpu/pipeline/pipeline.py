"""Named stages on threads, bounded queues between them, and a report that says where the time went.

A pipeline is a list: one ``Source``, any number of ``Map`` and ``Group`` stages, then a ``Sink``, or none if
the caller iterates over ``stream``. Each stage runs on its own threads, so native work (decoders, inference
engines, encoders: all release the interpreter lock) overlaps.

``run`` and ``stream`` stop and join every thread before they return: at the end of the source, on an
exception in any stage, on Ctrl-C, and when the consumer of ``stream`` leaves.
"""

from __future__ import annotations

import reprlib
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time, thread_time
from typing import Any

from vitascope.device import machine_cpu_seconds
from vitascope.errors import PipelineError, VitascopeError
from vitascope.gpu.memory.host_heap import give_back_free_memory
from vitascope.gpu.number_checks import check_number
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS, BoundedQueue, Mark, Turnstile
from vitascope.gpu.pipeline.report import LatencyHistogram, Meter, PipelineReport, summarise
from vitascope.gpu.pipeline.stages import CONSUMER, Group, Map, Source, Stage, Together, check_stages
from vitascope.gpu.profiling.pace import find_bottleneck

_EXHAUSTED = object()


class Stopped(Exception):  # noqa: N818 - not an error: how a thread unwinds when the run is given up
    """The run was given up: raised by a stopped queue or turnstile, or by ``leave_if_halted``."""


_here = threading.local()
"""In a worker's thread: its ``pipeline``."""


def leave_if_halted() -> None:
    """Abandon the current item if the run was given up; call it between parts of work that takes seconds.

    Without it, Ctrl-C and leaving a stream wait until the item is done. Does nothing outside a pipeline.

    Raises:
        Stopped: The run was given up. It unwinds the stage's thread and is not a failure.
    """
    pipeline: Pipeline | None = getattr(_here, "pipeline", None)
    if pipeline is not None and pipeline.halted:
        raise Stopped


@dataclass(eq=False)
class Node:
    """A stage and its place in a pipeline."""

    stage: Stage
    inlet: BoundedQueue[tuple[float, Any]] | None
    outlet: BoundedQueue[tuple[float, Any]] | None
    turnstile: Turnstile | None
    meters: list[Meter] = field(init=False)
    """One per worker."""
    working: int = field(init=False)
    """Workers that may still put results."""
    lets_source_go_on: threading.Event | None = None
    """Set by the ``first_alone_until`` stage when it is done with the first item."""

    def __post_init__(self) -> None:
        """Create a meter for each worker."""
        self.working = self.stage.workers
        self.meters = [Meter() for _ in range(self.stage.workers)]


class Worker:
    """One thread of a stage. Exceptions go to ``Pipeline._fail``, with a note that names the stage and item.

    It holds its pipeline, so the pipeline drops it when it ends.
    """

    def __init__(self, node: Node, pipeline: Pipeline, *, meter: Meter, suffix: str) -> None:
        self.meter = meter
        self.thread = threading.Thread(
            target=self._run,
            name=f"vitascope-{node.stage.name}{suffix}",
            # Threads are always joined, but one that was reported as hanging in native code must not keep the process
            # alive.
            daemon=True,
        )
        self._node = node
        self._pipeline = pipeline
        self._doing = "not started"
        self._item: tuple[int, Any] | None = None
        self._oldest_birth: float | None = None  # of the items taken since the last result

    def place(self) -> str:
        """The thread's stage, and its item or activity."""
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
        stage, _here.pipeline = self._node.stage, self._pipeline
        if not self._pipeline.halted and self._attempt("opening", stage.open):
            self._attempt("starting", self._pump)
            self.meter.pause()  # the work of a failed worker was not paused
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
                del taken  # otherwise the item would live on while this thread waits for the next
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
        """Flush after waiting as long as the stage allows."""
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
    """Put items together and return their number.

    Raises:
        Stopped: The queue was stopped.
    """
    for number, item in enumerate(items, start=1):
        nbytes = outlet.limits.size_of(item)
        if not outlet.put((birth, item), nbytes=nbytes, more_follow=number < len(items)):
            raise Stopped
    return len(items)


_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxother = _SHORT_REPR.maxstring = 120


def describe_item(item: object) -> str:
    """An item's ``repr``, shortened to one line."""
    return " ".join(_SHORT_REPR.repr(item).split())


class Pipeline:
    """Runs stages once, until the source ends.

    Args:
        stages: A ``Source``, ``Map`` and ``Group`` stages, and a ``Sink`` unless ``stream`` is used.
        describe: Returns a one-line name of an item, for notes on exceptions.
        stop_timeout_seconds: How long a failed or stopped run waits for its threads. Python cannot end a
            thread inside native code; one that outlasts this is reported by name and abandoned.
        on_halt: Called when the run is given up, from any thread and perhaps more than once: unblocks a
            source or sink that waits for something outside the pipeline.

    Raises:
        ValueError: The stages do not form a pipeline.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        describe: Callable[[Any], str] = describe_item,
        stop_timeout_seconds: float = 60.0,
        on_halt: Callable[[], object] | None = None,
    ) -> None:
        check_stages(stages)
        self._on_halt = on_halt
        self.describe = describe
        self.halted = False
        """True when the run was given up: threads unwind as soon as they notice."""
        self.draining = False
        """True when the source should end early."""
        self.source_goes_on = threading.Event()
        """Cleared while the first item has the pipeline to itself; see ``Source.first_alone_until``."""
        check_number("stop_timeout_seconds", stop_timeout_seconds, least=0)
        self._stop_timeout_seconds = stop_timeout_seconds
        self._lock = threading.Lock()
        self._settled = threading.Event()  # set when the run was given up, or all threads are about to exit
        self._failures: list[tuple[str, BaseException]] = []  # with their places, in order
        self._stopped = False
        self._latency = LatencyHistogram()
        self._consumer = Meter()
        self._started_at = self._ended_at = 0.0
        self._process_cpu_at_start = self._process_cpu_seconds = 0.0
        self._machine_cpu_at_start: float | None = None
        self._machine_cpu_seconds: float | None = None
        self._nodes = self._link(stages)
        self._workers: list[Worker] = []  # while the threads live, because a worker holds its pipeline
        self._running = sum(node.working for node in self._nodes)
        self._ends_in_sink = self._nodes[-1].outlet is None
        self._final_report: PipelineReport | None = None

    def run(self) -> PipelineReport:
        """Run to the end and return the report.

        Raises:
            PipelineError: One or more stages raised; every cause carries a note with its stage and item.
            KeyboardInterrupt: Ctrl-C, once all threads are joined; what failed on the way is its ``__cause__``.
            ValueError: The last stage is not a ``Sink``.
            RuntimeError: The pipeline ran before.
        """
        self._check_unused()
        if not self._ends_in_sink:
            raise ValueError(
                f"run() needs a Sink at the end, not {self._nodes[-1].stage.name!r}; or use stream()"
            )
        with self._threads():
            self._wait()
        return self.snapshot()

    def stream(self) -> Generator[Any, None, None]:
        """Run, and yield the results of the last stage to the caller, who may leave at any time.

        The threads start with the first ``next`` and are joined when the generator ends or is closed. A
        ``for`` loop closes it on ``break`` and on an exception, but Python only prints what a generator
        raises while being closed. To be sure to see a stage's failure, or when calling ``next`` by hand, hold
        the generator in ``contextlib.closing``. Get the report from ``snapshot``.

        Raises:
            PipelineError: As ``run``.
            KeyboardInterrupt: As ``run``.
            ValueError: The last stage is a ``Sink``.
            RuntimeError: The pipeline ran before.
        """
        self._check_unused()
        outlet = self._nodes[-1].outlet
        if outlet is None:
            raise ValueError(
                f"stream() takes the place of the Sink {self._nodes[-1].stage.name!r}; or use run()"
            )
        return self._stream(outlet)

    def stop(self, *, drain: bool = True) -> None:
        """End the run early, from any thread, without waiting for it; ``run`` then returns as usual.

        Args:
            drain: Finish the items already read. False drops them and does not call ``finish``.
        """
        if not self._settled.is_set():
            self._stopped = True
        self.draining = True
        self.source_goes_on.set()
        if not drain:
            self._halt()

    def interrupt(self) -> None:
        """End the run as Ctrl-C does, from any thread, without waiting for it; ``run`` raises ``KeyboardInterrupt``."""
        if not self._settled.is_set():
            self._stopped = True
            self._fail("interrupted", KeyboardInterrupt())

    def owns_current_thread(self) -> bool:
        """True inside a stage's own work, where waiting for the run would deadlock."""
        current = threading.current_thread()
        return any(worker.thread is current for worker in self._workers)

    def snapshot(self) -> PipelineReport:
        """Report so far, from any thread; after the run, the final report."""
        with self._lock:
            return self._final_report or self._report()

    def _report(self) -> PipelineReport:
        now = self._ended_at or perf_counter()
        wall_seconds = now - self._started_at if self._started_at else 0.0
        rows = [(node.stage.name, node.meters) for node in self._nodes]
        if not self._ends_in_sink:
            rows.append((CONSUMER, [self._consumer]))
        stages = tuple(summarise(name, meters, wall_seconds=wall_seconds, now=now) for name, meters in rows)
        queues = tuple(node.outlet.report() for node in self._nodes if node.outlet is not None)
        cpu_seconds = self._process_cpu_seconds or process_time() - self._process_cpu_at_start
        cores_busy = cpu_seconds / wall_seconds if wall_seconds else 0.0
        return PipelineReport(
            stages=stages,
            queues=queues,
            latency=LatencyHistogram.summary([self._latency]),
            wall_seconds=wall_seconds,
            cores_busy=cores_busy,
            finished=bool(self._ended_at),
            stopped=self._stopped,
            bottleneck=find_bottleneck(stages, queues, wall_seconds=wall_seconds, cores_busy=cores_busy),
            machine_cores_busy=self._machine_cores_busy(wall_seconds),
        )

    def _machine_cores_busy(self, wall_seconds: float) -> float | None:
        before, now = self._machine_cpu_at_start, self._machine_cpu_seconds or machine_cpu_seconds()
        return None if before is None or now is None or not wall_seconds else (now - before) / wall_seconds

    def _link(self, stages: Sequence[Stage]) -> list[Node]:
        nodes: list[Node] = []
        inlet = None
        awaited = stages[0].first_alone_until if isinstance(stages[0], Source) else None
        if awaited is None:
            self.source_goes_on.set()
        for stage, follower in zip(stages, [*(stage.name for stage in stages[1:]), CONSUMER], strict=True):
            outlet: BoundedQueue[tuple[float, Any]] | None = None
            if isinstance(stage, Source | Map | Group):
                outlet = BoundedQueue(f"{stage.name} > {follower}", limits=stage.output)
            node = Node(stage, inlet, outlet, Turnstile() if stage.workers > 1 else None)
            if stage.name == awaited:
                node.lets_source_go_on = self.source_goes_on
            nodes.append(node)
            inlet = outlet
        return nodes

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Start all threads; on exit, always stop and join them and raise what they raised."""
        with self._lock:
            self._check_unused()
            self._started_at = perf_counter()
        give_back_free_memory()  # free the memory of earlier runs
        self._process_cpu_at_start = process_time()
        self._machine_cpu_at_start = machine_cpu_seconds()
        self._workers = [
            Worker(node, self, meter=meter, suffix=f"-{n}" if len(node.meters) > 1 else "")
            for node in self._nodes
            for n, meter in enumerate(node.meters)
        ]
        failure: BaseException | None = None
        try:
            try:
                for worker in self._workers:
                    try:
                        worker.thread.start()
                    except RuntimeError as error:
                        raise VitascopeError(
                            f"{error}: too little memory, or too many threads; run less beside it"
                        ) from error
                yield
                failure = self._join()
            except BaseException as error:  # Ctrl-C, a consumer that left, or a thread that could not start
                self.stop(drain=False)
                failure = self._join()
                if failure is None:
                    raise
                if isinstance(error, GeneratorExit):
                    raise failure from failure.__cause__  # drop the GeneratorExit, which is not an error
                raise error from failure
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame: a cycle until the next collection

    def _wait(self) -> None:
        while not self._settled.wait(INTERRUPT_CHECK_SECONDS):
            pass

    def _stream(self, outlet: BoundedQueue[tuple[float, Any]]) -> Generator[Any, None, None]:
        meter = self._consumer
        with self._threads():
            while not isinstance(taken := outlet.get(), Mark):
                birth, item = taken[1]
                del taken
                self._latency.add(perf_counter() - birth)
                meter.items += 1
                cpu_before = thread_time()
                meter.resume()
                try:
                    yield item
                finally:
                    meter.pause()
                    meter.lap()
                    meter.cpu_seconds += thread_time() - cpu_before
                del item
            self._wait()

    def _join(self) -> BaseException | None:
        """Join all threads and return the exception that the run raises."""
        deadline = perf_counter() + self._stop_timeout_seconds
        for worker in self._workers:
            # A thread that never started is not alive. One whose start() was interrupted finds that the run was given
            # up, and ends.
            if worker.thread.is_alive():
                worker.thread.join(max(deadline - perf_counter(), 0.0))
            if worker.thread.is_alive():
                message = (
                    f"thread {worker.thread.name} did not stop within {self._stop_timeout_seconds:g} s "
                    "and was abandoned"
                )
                left_behind = VitascopeError(message)
                left_behind.add_note(place := worker.place())
                self._failures.append((place, left_behind))
        self._process_cpu_seconds = process_time() - self._process_cpu_at_start
        self._machine_cpu_seconds = machine_cpu_seconds()
        self._ended_at = perf_counter()
        self._let_go()
        # A pipeline kept for its report must not keep the frames that the tracebacks refer to.
        failures, self._failures = self._failures, []
        if not failures:
            return None
        place, first = failures[0]
        reason = " ".join(str(first).split()) or type(first).__name__
        if isinstance(first, MemoryError) and not isinstance(first, VitascopeError):
            reason = f"out of memory: {reason}; free some, or take fewer frames at a time"
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        causes = [failure for _, failure in failures if isinstance(failure, Exception)]
        group = PipelineError(f"{place}: {reason}{more}", causes) if causes else None
        for _, failure in failures:
            if not isinstance(failure, Exception):  # SystemExit and the like cannot be in an ExceptionGroup
                failure.__cause__ = group
                return failure
        return group

    def _let_go(self) -> None:
        """Drop all but the report: stages hold decoders, network state and encoders; queues hold frames."""
        with self._lock:
            self._final_report = self._report()
            self._nodes, self._workers = [], []
            self._on_halt = None

    def _check_unused(self) -> None:
        if self._started_at:
            raise RuntimeError("a pipeline runs once; build another one")

    def _fail(self, place: str, error: BaseException) -> None:
        with self._lock:
            self._failures.append((place, error))
        self._halt()

    def _halt(self) -> None:
        self.halted = True
        self.source_goes_on.set()
        for node in self._nodes:
            if node.outlet is not None:
                node.outlet.stop()
            if node.turnstile is not None:
                node.turnstile.stop()
        if (on_halt := self._on_halt) is not None:
            on_halt()
        self._settled.set()

    def _is_last_of(self, node: Node) -> bool:
        with self._lock:
            node.working -= 1
            return node.working == 0

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._settled.set()


_TURN_SECONDS = 0.0005

_lock = threading.Lock()
_users = 0
_before = 0.0


@contextmanager
def quick_turns() -> Iterator[None]:
    """Shorten the interpreter's switch interval from five milliseconds to half of one.

    On a GPU a frame takes about a millisecond over all stages: a stage that returns from a library call must
    not wait several frames for the interpreter lock. The interval is process-wide
    (``sys.setswitchinterval``): the first to enter sets it, the last to leave restores it.
    """
    global _users, _before
    with _lock:
        if not _users:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_TURN_SECONDS, _before))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                sys.setswitchinterval(_before)
