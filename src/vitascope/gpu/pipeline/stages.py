"""Stages of a pipeline: sources, maps, groups and sinks, described before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from vitascope.errors import UsageError
from vitascope.gpu.number_checks import check_count, check_number
from vitascope.gpu.pipeline.queues import QueueLimits

T = TypeVar("T")
U = TypeVar("U")
T_contra = TypeVar("T_contra", contravariant=True)
U_co = TypeVar("U_co", covariant=True)

CONSUMER = "consumer"
"""Name of the consumer of ``Pipeline.stream`` in reports; reserved."""

_DEFAULT_LIMITS = QueueLimits()


@dataclass(frozen=True, eq=False)
class Stage:
    """Base of all stages: a name, and callbacks that run on each of the stage's threads.

    Bind a CUDA context or create per-thread objects in ``open``. ``close`` runs whenever ``open`` succeeded,
    also after a failure, and cannot tell the two apart: put work that belongs only to a complete run into
    ``Sink.finish`` or ``Grouper.flush``.

    Raises:
        ValueError: The name is empty or reserved, or ``workers`` is below 1.
    """

    name: str
    """Unique within the pipeline; names the thread ``vitascope-<name>``."""
    _: KW_ONLY
    open: Callable[[], object] | None = None
    close: Callable[[], object] | None = None
    workers: int = field(default=1, init=False)
    """Threads; more than one only for stages with independent items (``Map``)."""

    def __post_init__(self) -> None:
        """Check ``name`` and ``workers``."""
        if not self.name or self.name == CONSUMER:
            raise ValueError(f"a stage needs a name other than {CONSUMER!r}, not {self.name!r}")
        check_count(f"workers of stage {self.name!r}", self.workers)

    def _process(self, item: Any) -> Iterable[Any]:
        """Return the results of one item."""
        return (item,)

    def _complete(self) -> Iterable[Any]:
        """Return the remaining results at the end of the input."""
        return ()

    def _patience_seconds(self) -> float | None:
        """Seconds to wait for the next item before calling ``_lapse``; None waits indefinitely."""
        return None

    def _lapse(self) -> Iterable[Any]:
        """Return results to pass on after no item came in time."""
        return ()


@dataclass(frozen=True, eq=False)
class Source(Stage, Generic[T]):
    """The first stage: an iterable, iterated and closed on a thread of its own."""

    items: Iterable[T]
    _: KW_ONLY
    output: QueueLimits = _DEFAULT_LIMITS
    """The queue behind this stage."""
    first_alone_until: str | None = None
    """A slow stage that gets the first item with all cores to itself: the second item is requested once that
    stage is done with the first and waits. A fast source that runs ahead would delay the first result. Only
    ``Map`` stages, which pass every item on, may lie between."""

    def _complete(self) -> Iterable[T]:
        return self.items


@dataclass(frozen=True, eq=False)
class Map(Stage, Generic[T, U]):
    """One item in, one item out. With several workers ``work`` must be thread-safe; the order is kept."""

    work: Callable[[T], U]
    _: KW_ONLY
    workers: int = 1
    output: QueueLimits = _DEFAULT_LIMITS
    """The queue behind this stage."""

    def _process(self, item: T) -> Iterable[U]:
        return (self.work(item),)


@dataclass(frozen=True, slots=True)
class Together(Generic[T]):
    """Several results available at once: the next stage's thread is woken once for all.

    The next stage sees single items, as if they were given one by one.
    """

    items: Sequence[T]


class Grouper(Protocol[T_contra, U_co]):
    """Function of a ``Group`` stage: buffers consecutive items and returns any number. Used by one thread.

    Results may come as ``Together``.
    """

    def accumulate(self, item: T_contra, /) -> Iterable[U_co]:
        """Take one item; return completed results, often none. May be a generator."""

    def flush(self) -> Iterable[U_co]:
        """Return the remaining results at the end of the input. Not called when the run is given up."""


@runtime_checkable
class TimedGrouper(Grouper[T_contra, U_co], Protocol[T_contra, U_co]):
    """A ``Grouper`` that releases buffered items after a timeout."""

    def due_seconds(self) -> float | None:
        """Seconds to wait for the next item; None if nothing is buffered."""

    def lapse(self) -> Iterable[U_co]:
        """Return results after no item came in time. ``due_seconds`` is called again afterwards."""


@dataclass(frozen=True, eq=False)
class Group(Stage, Generic[T, U]):
    """Consecutive items in, any number out: batching, reordering, filtering, doubling frames."""

    grouper: Grouper[T, U]
    _: KW_ONLY
    output: QueueLimits = _DEFAULT_LIMITS
    """The queue behind this stage."""

    def _process(self, item: T) -> Iterable[U]:
        return self.grouper.accumulate(item)

    def _complete(self) -> Iterable[U]:
        return self.grouper.flush()

    def _patience_seconds(self) -> float | None:
        return None if self._timed is None else self._timed.due_seconds()

    def _lapse(self) -> Iterable[U]:
        return () if self._timed is None else self._timed.lapse()

    @cached_property
    def _timed(self) -> TimedGrouper[T, U] | None:
        # Cached: isinstance with a protocol looks up methods by name, and the stage asks for every item.
        return self.grouper if isinstance(self.grouper, TimedGrouper) else None


class Batched(Generic[T, U]):
    """A ``TimedGrouper`` that calls ``work`` with ``size`` consecutive items, or fewer at the end or on timeout.

    Args:
        work: Maps a batch to one result per item, or to any other number.
        size: Items per batch, at least 1.
        first_size: Items in the first batch; ``size`` if omitted. 1 gives an early first result.
        timeout_seconds: How long a batch's first item waits for others; None waits until the batch is full.

    Raises:
        ValueError: A size is below 1, or the timeout below 0.
    """

    def __init__(
        self,
        work: Callable[[Sequence[T]], Iterable[U]],
        *,
        size: int,
        first_size: int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        check_count("size", size)
        check_count("first_size", first_size, optional=True)
        check_number("timeout_seconds", timeout_seconds, least=0, optional=True)
        self._wanted = size if first_size is None else first_size
        self._work = work
        self._size = size
        self._timeout_seconds = timeout_seconds
        self._items: list[T] = []
        self._deadline = 0.0

    def accumulate(self, item: T, /) -> Iterable[U]:
        """Take one item; return the batch's results when it is full."""
        if not self._items and self._timeout_seconds is not None:
            self._deadline = perf_counter() + self._timeout_seconds
        self._items.append(item)
        return self.flush() if len(self._items) == self._wanted else ()

    def due_seconds(self) -> float | None:
        """Seconds that the buffered items still wait for others."""
        if not self._items or self._timeout_seconds is None:
            return None
        return max(self._deadline - perf_counter(), 0.0)

    def lapse(self) -> Iterable[U]:
        """Return the results of the buffered items after a timeout."""
        return self.flush()

    def flush(self) -> Iterable[U]:
        """Return the results of the last, partial batch."""
        batch, self._items = self._items, []
        if batch:
            self._wanted = self._size
        return self._work(batch) if batch else ()


@dataclass(frozen=True, eq=False)
class Sink(Stage, Generic[T]):
    """The last stage. ``finish`` follows the last item unless the run was given up, and precedes ``close``."""

    consume: Callable[[T], object]
    _: KW_ONLY
    finish: Callable[[], object] | None = None

    def _process(self, item: T) -> Iterable[Any]:
        self.consume(item)
        return ()

    def _complete(self) -> Iterable[Any]:
        if self.finish is not None:
            self.finish()
        return ()


def check_stages(stages: Sequence[Stage]) -> None:
    """Check that stages form a pipeline.

    Raises:
        UsageError: An entry is not a stage, or a stage got an argument of a wrong type.
        ValueError: The first stage is not a ``Source``, a stage is in an invalid position, a name is used
            twice, or the first item might never reach the stage named by ``first_alone_until``.
    """
    strange = [] if isinstance(stages, Stage) else [one for one in stages if not isinstance(one, Stage)]
    if strange or isinstance(stages, Stage):
        found = type(strange[0] if strange else stages).__name__
        raise UsageError(f"a pipeline takes a list of Source, Map, Group and Sink, not {found}")
    for stage in stages:
        limits = getattr(stage, "output", _DEFAULT_LIMITS)
        if not isinstance(limits, QueueLimits):
            raise UsageError(
                f"output of stage {stage.name!r} is {limits!r}, expected QueueLimits(items=…, nbytes=…)"
            )
        if isinstance(stage, Group) and not hasattr(stage.grouper, "accumulate"):
            raise UsageError(
                f"the grouper of stage {stage.name!r} is a {type(stage.grouper).__name__}, expected an object with "
                "accumulate and flush, such as Batched(function, size=4)"
            )
        if isinstance(stage, Map) and iscoroutinefunction(stage.work):
            raise UsageError(
                f"the work of stage {stage.name!r} is a coroutine; stages run plain functions on threads"
            )
    names = [stage.name for stage in stages]
    if not stages or not isinstance(stages[0], Source):
        raise ValueError(f"a pipeline begins with a Source: {names}")
    for stage in stages[1:]:
        if not isinstance(stage, Map | Group | Sink) or (isinstance(stage, Sink) and stage is not stages[-1]):
            raise ValueError(f"{type(stage).__name__} {stage.name!r} is in the wrong place: {names}")
    if len(set(names)) < len(names):
        raise ValueError(f"each stage needs a unique name: {names}")
    awaited = stages[0].first_alone_until
    if awaited is None:
        return
    if awaited not in names[1:]:
        raise ValueError(f"no stage {awaited!r} follows {names[0]!r}: {names}")
    keeping = [stage.name for stage in stages[1 : names.index(awaited)] if not isinstance(stage, Map)]
    if keeping:
        raise ValueError(f"{keeping[0]!r} may keep the first item from {awaited!r}: {names}")
