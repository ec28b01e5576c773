"""Named spans of time on the host and on the GPU, by any number of threads.

Each thread records its spans in a tree of names, each with its tally; ``Profiler`` merges the trees of all threads.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from random import random
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TextIO, TypeVar, overload

from vitascope.file_lock import write_file
from vitascope.gpu.number_checks import check_count
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram
from vitascope.gpu.profiling.gpu_clock import CudaEvents, GpuClock, GpuMark, GpuTime
from vitascope.gpu.profiling.tables import milliseconds, text_table

if TYPE_CHECKING:
    from vitascope.gpu.profiling.utilisation import UtilisationSample

OTHERS = "(other names)"
"""Where spans are counted once a thread has used ``_MOST_NODES`` places."""
_MOST_NODES = 1000
"""A tally takes 4 kB; names made of frame numbers must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStats:
    """Time on the GPU's own clock, over the spans in which something could be timed."""

    count: int
    """Spans that were timed."""
    left_out_count: int
    """Spans that were not timed: a place is timed so many times a second and no more. Each that was timed stands for
    those left out before it, in the sums and percentiles, too."""
    total_seconds: float
    mean_seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStats:
    """All spans of one name at one place of the tree, over all threads."""

    path: tuple[str, ...]
    """The names around it, from the outermost, and its own."""
    count: int
    total_seconds: float
    """Wall time inside."""
    self_seconds: float
    """The same without the spans inside it."""
    cpu_seconds: float
    """CPU time of the spans' own threads."""
    min_seconds: float
    mean_seconds: float
    p50_seconds: float
    """Median, within 2.2 %, as are the other percentiles."""
    p95_seconds: float
    p99_seconds: float
    max_seconds: float
    gpu: GpuStats | None
    """None if nothing was timed on a GPU."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]


GPU_INTERVAL_NS = 20_000_000
"""Between two spans of a place that are timed on the GPU, on average; events cost the host ten times a span."""
_GPU_BURST_NS = 1000 * GPU_INTERVAL_NS
"""How far a place may be ahead of that: a thousand spans, of a short run all."""
_RECENT = 32
"""Spans that a running mean looks back on."""
_COUNTED_AT_ONCE = 256
_counting = threading.Lock()  # of all profilers: taken once in so many spans


class SpanNode:
    """A name at its place; written by one thread, read by any."""

    __slots__ = (
        "_uncounted",
        "children",
        "count",
        "cpu_ns",
        "gpu_count",
        "gpu_due_ns",
        "gpu_histogram",
        "gpu_recent_seconds",
        "gpu_seconds",
        "gpu_skipped",
        "gpu_stands_for",
        "histogram",
        "min_ns",
        "path",
        "self_ns",
        "total_ns",
    )

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        self.children: dict[str, SpanNode] = {}
        self.count = self.total_ns = self.self_ns = self.cpu_ns = 0
        self.min_ns: float = math.inf
        self.histogram = LatencyHistogram()
        self._uncounted: deque[int] = deque()
        self.gpu_histogram: LatencyHistogram | None = None
        self.gpu_count = self.gpu_stands_for = self.gpu_skipped = 0
        self.gpu_seconds = self.gpu_recent_seconds = 0.0
        self.gpu_due_ns = 0

    def add(self, wall_ns: int, inside_ns: int, cpu_ns: int) -> None:
        """Count one span: its wall time, that of the spans inside it, its CPU time."""
        self.self_ns += wall_ns - inside_ns
        self.cpu_ns += cpu_ns
        uncounted = self._uncounted
        uncounted.append(wall_ns)
        if len(uncounted) >= _COUNTED_AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Count the spans that ended since the last time; from any thread."""
        if not self._uncounted:
            return
        with _counting:
            walls = []
            with suppress(IndexError):
                while True:
                    walls.append(self._uncounted.popleft())
            if not walls:
                return
            self.count += len(walls)
            self.total_ns += sum(walls)
            self.min_ns = min(self.min_ns, *walls)
            self.histogram.add_many([wall_ns * 1e-9 for wall_ns in walls])

    def gpu_weight(self, now_ns: int) -> int:
        """Number of spans that the next one stands for if it is timed on the GPU, else 0. Call it once a span.

        Args:
            now_ns: On the clock of ``time.perf_counter_ns``.
        """
        if self.gpu_due_ns > now_ns + _GPU_BURST_NS:
            self.gpu_skipped += 1
            return 0
        # Not every n-th span: work that repeats with the same period would show one of its parts alone.
        self.gpu_due_ns = max(self.gpu_due_ns, now_ns) + int(2 * GPU_INTERVAL_NS * random())
        weight, self.gpu_skipped = 1 + self.gpu_skipped, 0
        return weight

    def add_gpu(self, seconds: float, weight: int = 1) -> None:
        """Count one time of the GPU; the clock calls this from one thread at a time.

        Args:
            seconds: What it took.
            weight: As of ``gpu_weight``.
        """
        if self.gpu_histogram is None:
            self.gpu_histogram = LatencyHistogram()
        self.gpu_count += 1
        self.gpu_stands_for += weight
        self.gpu_seconds += seconds * weight
        self.gpu_histogram.add(seconds, count=weight)
        self.gpu_recent_seconds += (seconds - self.gpu_recent_seconds) / min(self.gpu_count, _RECENT)

    def gpu_total_seconds(self) -> float:
        """Seconds of all spans; the last ones that were left out are like the last that were not."""
        return self.gpu_seconds + self.gpu_skipped * self.gpu_recent_seconds

    def walk(self) -> Iterator[SpanNode]:
        """This node and all below it, each with all that has ended."""
        self.settle()
        yield self
        for child in list(self.children.values()):
            yield from child.walk()

    def absorb(self, other: SpanNode) -> None:
        """Add a node of a thread that has ended, and all below it."""
        other.settle()
        self.count += other.count
        self.total_ns += other.total_ns
        self.self_ns += other.self_ns
        self.cpu_ns += other.cpu_ns
        self.min_ns = min(self.min_ns, other.min_ns)
        self.histogram.absorb(other.histogram)
        self.gpu_count += other.gpu_count
        self.gpu_stands_for += other.gpu_stands_for + other.gpu_skipped
        self.gpu_seconds += other.gpu_total_seconds()
        if other.gpu_histogram is not None:
            self.gpu_histogram = self.gpu_histogram or LatencyHistogram()
            self.gpu_histogram.absorb(other.gpu_histogram)
        for name, child in other.children.items():
            if name not in self.children:
                self.children[name] = SpanNode(child.path)
            self.children[name].absorb(child)


class ThreadLog:
    """The spans of one thread."""

    __slots__ = ("_count", "innermost", "marks_met", "marks_set", "number", "root", "thread")

    def __init__(self, thread: threading.Thread, number: int) -> None:
        self.thread = thread
        self.number = number
        """From 1, in the order in which threads opened their first span."""
        self.root = SpanNode(())
        self.innermost: Span | None = None
        """The span that is open; None outside of all."""
        self.marks_set = 0
        """Times of the GPU that are awaited or there; written by the thread."""
        self.marks_met = 0
        """Times of the GPU that have arrived; written by the thread that collects them."""
        self._count = 0

    @property
    def ended(self) -> bool:
        """True when nothing is added any more."""
        return not self.thread.is_alive() and self.marks_met == self.marks_set

    def node(self, parent: SpanNode, name: str) -> SpanNode:
        """The node of a name below another."""
        node = parent.children.get(name)
        if node is None:
            if self._count >= _MOST_NODES and name != OTHERS:
                # Below a node that is full itself there is nowhere to go: names are counted there.
                return parent if parent.path[-1:] == (OTHERS,) else self.node(parent, OTHERS)
            self._count += 1
            node = parent.children[name] = SpanNode((*parent.path, name))
        return node


def merge_stats(roots: Iterable[SpanNode], *, by_name: bool = False) -> list[SpanStats]:
    """Statistics by path over the trees of all threads, each parent before its children.

    Args:
        roots: The root spans of the threads.
        by_name: Add up what has one name, wherever it is nested; paths then have one part.
    """
    places: dict[tuple[str, ...], list[SpanNode]] = {}
    for root in roots:
        for node in root.walk():
            if node.path:
                places.setdefault(node.path[-1:] if by_name else node.path, []).append(node)
    rows = [_stats(path, nodes) for path, nodes in places.items()]
    return _in_order([row for row in rows if row.count])


def _stats(path: tuple[str, ...], nodes: list[SpanNode]) -> SpanStats:
    latency = LatencyHistogram.summary([node.histogram for node in nodes])
    shortest = min(node.min_ns for node in nodes)
    return SpanStats(
        path=path,
        count=sum(node.count for node in nodes),
        total_seconds=sum(node.total_ns for node in nodes) * 1e-9,
        self_seconds=sum(node.self_ns for node in nodes) * 1e-9,
        cpu_seconds=sum(node.cpu_ns for node in nodes) * 1e-9,
        min_seconds=shortest * 1e-9 if latency.count else 0.0,
        mean_seconds=latency.mean_seconds,
        p50_seconds=latency.p50_seconds,
        p95_seconds=latency.p95_seconds,
        p99_seconds=latency.p99_seconds,
        max_seconds=latency.max_seconds,
        gpu=_gpu_stats(nodes),
    )


def _gpu_stats(nodes: list[SpanNode]) -> GpuStats | None:
    latency: Latency = LatencyHistogram.summary(
        [node.gpu_histogram for node in nodes if node.gpu_histogram is not None]
    )
    if not latency.count:
        return None
    timed = sum(node.gpu_count for node in nodes)
    return GpuStats(
        count=timed,
        left_out_count=sum(node.gpu_stands_for + node.gpu_skipped for node in nodes) - timed,
        total_seconds=sum(node.gpu_total_seconds() for node in nodes),
        mean_seconds=latency.mean_seconds,
        p50_seconds=latency.p50_seconds,
        p95_seconds=latency.p95_seconds,
        p99_seconds=latency.p99_seconds,
        max_seconds=latency.max_seconds,
    )


def _in_order(rows: list[SpanStats]) -> list[SpanStats]:
    """Order spans as a tree is read: siblings by their time, the longest first."""
    by_parent: dict[tuple[str, ...], list[SpanStats]] = {}
    paths = {row.path for row in rows}
    for row in rows:
        parent = row.path[:-1]
        while parent and parent not in paths:  # an outer span that is still open has no row
            parent = parent[:-1]
        by_parent.setdefault(parent, []).append(row)

    def below(parent: tuple[str, ...]) -> Iterator[SpanStats]:
        for row in sorted(by_parent.get(parent, ()), key=lambda row: -row.total_seconds):
            yield row
            yield from below(row.path)

    return list(below(()))


P = ParamSpec("P")
R = TypeVar("R")


class Span:
    """A piece of time with a name: a context manager, used once, by one thread."""

    __slots__ = (
        "_cpu_began_ns",
        "_events",
        "_gpu_weight",
        "_host_only",
        "_inside_ns",
        "_log",
        "_mark",
        "_name",
        "_node",
        "_outer",
        "_profiler",
        "began_ns",
        "cpu_ns",
        "error",
        "gpu",
        "wall_ns",
    )

    _log: ThreadLog
    _node: SpanNode

    def __init__(self, profiler: Profiler, name: str, *, host_only: bool) -> None:
        self._profiler = profiler
        self._name = name
        self._host_only = host_only
        self._events: CudaEvents | None = None
        self._gpu_weight = 1
        self._mark: GpuMark | None = None
        self._outer: Span | None = None
        self._inside_ns = 0
        self.began_ns = 0
        """On the clock of ``time.perf_counter_ns``."""
        self.wall_ns = -1
        """Nanoseconds of wall time; -1 while it is open."""
        self.cpu_ns = 0
        """Nanoseconds of CPU time of its thread."""
        self.gpu: GpuTime | None = None
        """None while the GPU is not through, and where nothing was timed on one: of a place with very many spans, most
        are not."""
        self.error: str | None = None
        """The type of the exception that left it."""

    @property
    def path(self) -> tuple[str, ...]:
        """The names around it, from the outermost, and its own."""
        return self._node.path

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def thread(self) -> ThreadLog:
        """The thread that it ran in."""
        return self._log

    def __enter__(self) -> Span:
        if self.began_ns:
            raise RuntimeError(f"span {self._name!r} was used before; profile() gives a new one each time")
        # Few calls from here on: a thousand spans a second shall not be felt.
        profiler = self._profiler
        try:
            log = profiler._local.log
        except AttributeError:
            log = profiler._open_log()
        self._log = log
        self._outer = outer = log.innermost
        around = log.root if outer is None else outer._node
        try:
            self._node = around.children[self._name]
        except KeyError:
            self._node = log.node(around, self._name)
        log.innermost = self
        events = profiler._clock.in_use()
        if events is not None:
            self._events = events
            events.push_range(self._name)
            if not self._host_only and (weight := self._node.gpu_weight(perf_counter_ns())):
                self._gpu_weight = weight
                self._mark = profiler._clock.start()
        self._cpu_began_ns = thread_time_ns()
        self.began_ns = perf_counter_ns()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.wall_ns = wall_ns = perf_counter_ns() - self.began_ns
        self.cpu_ns = thread_time_ns() - self._cpu_began_ns
        outer = self._outer
        self._node.add(wall_ns, self._inside_ns, self.cpu_ns)
        if outer is not None:
            outer._inside_ns += wall_ns
        if error is not None:
            self.error = type(error).__name__
        if self._log.innermost is self:
            while outer is not None and outer.wall_ns >= 0:  # generators may close spans out of order
                outer = outer._outer
            self._log.innermost = outer
            self._outer = None  # or a kept span would keep all that were around it
        profiler = self._profiler
        if profiler._most_spans and self.began_ns >= profiler._began_ns:  # not from before a reset
            profiler._spans.append(self)
        if self._events is not None:
            self._finish_on_gpu(self._events, failed=kind is not None)

    def _finish_on_gpu(self, events: CudaEvents, *, failed: bool) -> None:
        events.pop_range()
        self._events = None
        if self._mark is not None:
            mark, self._mark = self._mark, None
            # What failed may have broken the GPU: asking it for a time would hide why.
            if failed:
                self._profiler._clock.give_up(mark)
            else:
                self._log.marks_set += 1  # before: it may be delivered at once
                if not self._profiler._clock.stop(mark, self._deliver):
                    self._log.marks_set -= 1

    def _deliver(self, time: GpuTime) -> None:
        self.gpu = time
        self._node.add_gpu(time.seconds, self._gpu_weight)
        self._log.marks_met += 1


class _NoSpan:
    """The span of a profiler that is switched off."""

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pass


_NO_SPAN = _NoSpan()


class Profiler:
    """Times named spans: ``with profiler.profile("inference"): ...``.

    Spans nest, in each thread on its own, and are added up by their place in the nesting. A span has wall time,
    CPU time of its thread, and, where CuPy or PyTorch use a GPU, the time between two CUDA events on the
    current stream (``GpuClock``: the host never waits for them) and an NVTX range for Nsight's timelines. Inside CUDA
    graphs under capture nothing is timed on the GPU. Events cost more than the rest of a span, so a place of the
    nesting is timed on the GPU, in each thread, a thousand times in a burst and 50 times a second on average beyond; in
    sums and percentiles each of those stands for the spans that were left out before it.

    Spans belong to threads. Coroutines that take turns inside spans would get each other's nesting.

    Memory stays bounded: ``keep_spans`` single spans, of which the newest are kept, and tallies of a thousand places
    in each thread.

    Args:
        name: What is profiled, for titles.
        device: ``auto`` times the GPU where one is in use already, and imports no library; ``cuda`` insists on one;
            ``cpu`` times the host alone.
        keep_spans: Single spans that are kept for traces and timelines, each about 300 bytes; 0 keeps only sums.
        enabled: False makes every span do nothing; ``enabled`` may be changed at any time.

    Raises:
        DeviceError: ``device="cuda"``, and there is no GPU.
        ValueError: ``keep_spans`` is negative, or ``device`` is not one of the three words.
    """

    def __init__(
        self,
        name: str = "profile",
        *,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        keep_spans: int = 100_000,
        enabled: bool = True,
    ) -> None:
        check_count("keep_spans", keep_spans, least=0)
        self.name = name
        self.enabled = enabled
        self._clock = GpuClock(device=device)
        self._lock = threading.Lock()
        self._most_spans = keep_spans
        self._clear()

    def profile(self, name: str, *, host_only: bool = False) -> Span | _NoSpan:
        """A span to put around some work.

        Args:
            name: Name of the work; spans of one name at one place of the nesting are added up.
            host_only: Do not time the GPU: for work that waits for the GPU rather than feeding it.
        """
        return Span(self, name, host_only=host_only) if self.enabled else _NO_SPAN

    @overload
    def profiled(self, name: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def profiled(self, name: str | None = None, /) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def profiled(self, name: Any = None, /) -> Any:
        """Decorate a function so that every call is a span: ``@profiler.profiled`` or ``@profiler.profiled("name")``.

        Args:
            name: Name of the spans; the function's own, with its class, when omitted.

        Raises:
            TypeError: A generator or coroutine function: a call only prepares it, and the span would time nothing.
        """
        if callable(name):
            return self._wrap(name, None)
        return lambda function: self._wrap(function, name)

    def _wrap(self, function: Callable[P, R], name: str | None) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator or coroutine: put 'with profiler.profile(...)' inside it"
            )
        title = name or getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.profile(title):
                return function(*args, **kwargs)

        return timed

    def stats(self) -> list[SpanStats]:
        """Sums by place in the nesting, parents before children; waits until the GPU is done with what was timed."""
        self._clock.collect()
        return merge_stats(self._roots())

    def by_name(self) -> dict[str, SpanStats]:
        """Sums by name, wherever it is nested; waits until the GPU is done with what was timed.

        Inside itself a name counts twice: once for each span.
        """
        self._clock.collect()
        return {row.name: row for row in merge_stats(self._roots(), by_name=True)}

    def gpu_seconds(self) -> dict[str, float]:
        """GPU time by name, over all places; waits until the GPU is done with what was timed."""
        return {name: row.gpu.total_seconds for name, row in self.by_name().items() if row.gpu is not None}

    def spans(self) -> list[Span]:
        """The single spans that were kept, in the order in which they ended."""
        self._clock.collect()
        return list(self._spans)

    @property
    def dropped_count(self) -> int:
        """Single spans that are not kept, because newer ones needed the room; the sums have them."""
        ended = sum(node.count for root in self._roots() for node in root.walk())
        return max(ended - len(self._spans), 0)

    @property
    def began_ns(self) -> int:
        """When it was made or last reset, on the clock of ``time.perf_counter_ns``."""
        return self._began_ns

    @property
    def began_at(self) -> datetime:
        """The same as a date."""
        return self._began_at

    def reset(self) -> None:
        """Forget everything. Spans that are open are counted nowhere."""
        self._clock.collect()
        with self._lock:
            self._clear()

    def summary(self) -> str:
        """A table of all places, as text."""
        return _table(self.name, self.stats(), wall_seconds=(perf_counter_ns() - self._began_ns) * 1e-9)

    def print_summary(self, file: TextIO | None = None) -> None:
        """Print the table.

        Args:
            file: Where to; standard output when omitted.
        """
        (file or sys.stdout).write(self.summary() + "\n")

    def to_dict(self, *, utilisation: Sequence[UtilisationSample] = ()) -> dict[str, Any]:
        """Everything in plain values: the document that the exports are made of (``profile_document``).

        Args:
            utilisation: Samples of a ``UtilisationSampler`` that ran meanwhile.
        """
        from vitascope.gpu.profiling.document import profile_document

        return profile_document(self, utilisation=utilisation)

    def export_json(
        self, path: str | PathLike[str], *, utilisation: Sequence[UtilisationSample] = ()
    ) -> None:
        """Write sums and spans as JSON of a versioned schema (``docs/profiling.md``).

        Raises:
            OutputError: The file cannot be written.
        """
        from vitascope.gpu.profiling.document import write_document

        write_document(self.to_dict(utilisation=utilisation), Path(path))

    def export_chrome_trace(
        self, path: str | PathLike[str], *, utilisation: Sequence[UtilisationSample] = ()
    ) -> None:
        """Write the single spans for ``ui.perfetto.dev`` or ``chrome://tracing``.

        Raises:
            OutputError: The file cannot be written.
        """
        from vitascope.gpu.profiling.document import chrome_trace, write_document

        write_document(chrome_trace(self.to_dict(utilisation=utilisation)), Path(path))

    def export_png(self, path: str | PathLike[str]) -> None:
        """Draw sums and timeline as a PNG picture.

        Raises:
            MissingDependencyError: matplotlib, which draws it, is not installed.
            OutputError: The file cannot be written.
        """
        from vitascope.gpu.profiling.charts import profile_chart

        write_file(Path(path), profile_chart(self.to_dict()).to_png())

    def export_html(self, path: str | PathLike[str]) -> None:
        """Write one HTML page with table and drawing, which needs no network.

        Raises:
            MissingDependencyError: matplotlib, which draws it, is not installed.
            OutputError: The file cannot be written.
        """
        from vitascope.gpu.profiling.document import profile_page

        write_file(Path(path), profile_page(self.to_dict()).encode())

    def _clear(self) -> None:
        self._spans: deque[Span] = deque(maxlen=self._most_spans)
        self._retired = SpanNode(())
        self._logs: list[ThreadLog] = []
        self._thread_count = 0
        self._local = threading.local()
        self._began_at = datetime.now(UTC)
        self._began_ns = perf_counter_ns()

    def _roots(self) -> list[SpanNode]:
        with self._lock:
            return [self._retired, *(log.root for log in self._logs)]

    def _open_log(self) -> ThreadLog:
        """The log of a thread that opens its first span."""
        with self._lock:
            self._retire()
            self._thread_count += 1
            log = self._local.log = ThreadLog(threading.current_thread(), self._thread_count)
            self._logs.append(log)
        return log

    def _retire(self) -> None:
        """Fold the trees of threads that ended into one, so that a thread for every request costs no memory."""
        ended = [log for log in self._logs if log.ended]
        for log in ended:
            self._retired.absorb(log.root)
            self._logs.remove(log)


def _table(title: str, stats: Sequence[SpanStats], *, wall_seconds: float) -> str:
    """Spans as a tree, times in milliseconds; the column of the GPU only where it was timed."""
    if not stats:
        return f"{title}: no span has ended yet"
    on_gpu = any(row.gpu is not None for row in stats)
    heads = ["span", "count", "total ms", "self ms", "cpu ms", "mean ms", "p50 ms", "p95 ms", "p99 ms"]
    heads += ["max ms", *(["gpu ms", "gpu mean ms"] if on_gpu else []), "share"]
    rows = []
    for row in stats:
        gpu = (row.gpu.total_seconds, row.gpu.mean_seconds) if row.gpu else (None, None)
        times = (
            row.total_seconds,
            row.self_seconds,
            row.cpu_seconds,
            row.mean_seconds,
            row.p50_seconds,
            row.p95_seconds,
            row.p99_seconds,
            row.max_seconds,
        )
        rows.append(
            [
                "  " * (len(row.path) - 1) + row.name,
                str(row.count),
                *map(milliseconds, times),
                *(map(milliseconds, gpu) if on_gpu else ()),
                f"{row.total_seconds / wall_seconds:.1%}" if wall_seconds else "-",
            ]
        )
    return f"{title}: {wall_seconds:.3f} s\n" + text_table(heads, rows)
