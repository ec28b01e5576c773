"""Named spans of time on the host and on the GPU, from any number of threads.

Each thread records its spans in a tree of names, with a tally per node; ``Profiler`` merges the trees.
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
"""Counts further names once a thread has used ``_MOST_NODES`` nodes."""
_MOST_NODES = 1000
"""A tally takes 4 kB; names with frame numbers must not fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStats:
    """Time on the GPU's own clock, over the spans that were timed on it."""

    count: int
    """Timed spans."""
    left_out_count: int
    """Spans that were not timed, because timing is rate-limited per node. Each timed span also stands for the
    untimed ones before it, in sums and percentiles."""
    total_seconds: float
    mean_seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStats:
    """All spans of one name at one node of the tree, over all threads."""

    path: tuple[str, ...]
    """Names of the enclosing spans, outermost first, and its own."""
    count: int
    total_seconds: float
    """Wall time inside the spans."""
    self_seconds: float
    """Wall time without nested spans."""
    cpu_seconds: float
    """CPU time of the spans' own threads."""
    min_seconds: float
    mean_seconds: float
    p50_seconds: float
    """Median, within 2.2 %, like the other percentiles."""
    p95_seconds: float
    p99_seconds: float
    max_seconds: float
    gpu: GpuStats | None
    """None if no span was timed on a GPU."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path[-1]


GPU_INTERVAL_NS = 20_000_000
"""Average interval between spans of a node timed on the GPU; events cost the host ten times a span."""
_GPU_BURST_NS = 1000 * GPU_INTERVAL_NS
"""Allowed burst: a thousand spans, which covers a short run."""
_RECENT = 32
"""Spans covered by a running mean."""
_COUNTED_AT_ONCE = 256
_counting = threading.Lock()  # shared by all profilers; taken once per many spans


class SpanNode:
    """A name at its place in the tree; written by one thread, read by any."""

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
        """Count a span: its wall time, that of nested spans, and its CPU time."""
        self.self_ns += wall_ns - inside_ns
        self.cpu_ns += cpu_ns
        uncounted = self._uncounted
        uncounted.append(wall_ns)
        if len(uncounted) >= _COUNTED_AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Merge the spans that ended since the last call; from any thread."""
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
        """Number of spans that the next one represents if timed on the GPU, else 0. Call it once per span.

        Args:
            now_ns: Time on ``time.perf_counter_ns``.
        """
        if self.gpu_due_ns > now_ns + _GPU_BURST_NS:
            self.gpu_skipped += 1
            return 0
        # Not every n-th span: if the work had the same period, only one of its parts would be timed.
        self.gpu_due_ns = max(self.gpu_due_ns, now_ns) + int(2 * GPU_INTERVAL_NS * random())
        weight, self.gpu_skipped = 1 + self.gpu_skipped, 0
        return weight

    def add_gpu(self, seconds: float, weight: int = 1) -> None:
        """Count a GPU time; the clock calls this from one thread at a time.

        Args:
            seconds: Duration of the span.
            weight: Result of ``gpu_weight``.
        """
        if self.gpu_histogram is None:
            self.gpu_histogram = LatencyHistogram()
        self.gpu_count += 1
        self.gpu_stands_for += weight
        self.gpu_seconds += seconds * weight
        self.gpu_histogram.add(seconds, count=weight)
        self.gpu_recent_seconds += (seconds - self.gpu_recent_seconds) / min(self.gpu_count, _RECENT)

    def gpu_total_seconds(self) -> float:
        """Estimated seconds of all spans; the latest untimed ones count like the latest timed ones."""
        return self.gpu_seconds + self.gpu_skipped * self.gpu_recent_seconds

    def walk(self) -> Iterator[SpanNode]:
        """Iterate over this node and its descendants, after merging their ended spans."""
        self.settle()
        yield self
        for child in list(self.children.values()):
            yield from child.walk()

    def absorb(self, other: SpanNode) -> None:
        """Add the tree of a thread that has ended."""
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
    """Spans of one thread."""

    __slots__ = ("_count", "innermost", "marks_met", "marks_set", "number", "root", "thread")

    def __init__(self, thread: threading.Thread, number: int) -> None:
        self.thread = thread
        self.number = number
        """Number from 1, in the order of the threads' first spans."""
        self.root = SpanNode(())
        self.innermost: Span | None = None
        """The innermost open span; None if there is none."""
        self.marks_set = 0
        """GPU times pending or delivered; written by the thread."""
        self.marks_met = 0
        """GPU times delivered; written by the collecting thread."""
        self._count = 0

    @property
    def ended(self) -> bool:
        """True when nothing is added any more."""
        return not self.thread.is_alive() and self.marks_met == self.marks_set

    def node(self, parent: SpanNode, name: str) -> SpanNode:
        """Get or create the child node of a name."""
        node = parent.children.get(name)
        if node is None:
            if self._count >= _MOST_NODES and name != OTHERS:
                # Below a full node there is no room: further names are counted there.
                return parent if parent.path[-1:] == (OTHERS,) else self.node(parent, OTHERS)
            self._count += 1
            node = parent.children[name] = SpanNode((*parent.path, name))
        return node


def merge_stats(roots: Iterable[SpanNode], *, by_name: bool = False) -> list[SpanStats]:
    """Merge all threads' trees into statistics by path, each parent before its children.

    Args:
        roots: Root nodes of the threads.
        by_name: Merge equal names wherever nested; paths then have one part.
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
    """Order spans depth-first, siblings by time, longest first."""
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
    """A named span of time: a context manager, used once, by one thread."""

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
        """Start time, on ``time.perf_counter_ns``."""
        self.wall_ns = -1
        """Wall time in nanoseconds; -1 while open."""
        self.cpu_ns = 0
        """CPU time of its thread, in nanoseconds."""
        self.gpu: GpuTime | None = None
        """None until the GPU has finished, and if the span was not timed on one, as most spans of a busy node
        are not."""
        self.error: str | None = None
        """Type of the exception that left the span."""

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the enclosing spans, outermost first, and its own."""
        return self._node.path

    @property
    def name(self) -> str:
        """The span's name."""
        return self._name

    @property
    def thread(self) -> ThreadLog:
        """The thread that it ran in."""
        return self._log

    def __enter__(self) -> Span:
        if self.began_ns:
            raise RuntimeError(f"span {self._name!r} was used before; profile() gives a new one each time")
        # Keep calls to a minimum: a thousand spans per second must cost almost nothing.
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
            self._outer = None  # otherwise a kept span would keep all enclosing ones
        profiler = self._profiler
        if profiler._most_spans and self.began_ns >= profiler._began_ns:  # ignore spans from before a reset
            profiler._spans.append(self)
        if self._events is not None:
            self._finish_on_gpu(self._events, failed=kind is not None)

    def _finish_on_gpu(self, events: CudaEvents, *, failed: bool) -> None:
        events.pop_range()
        self._events = None
        if self._mark is not None:
            mark, self._mark = self._mark, None
            # A failure may have broken the GPU: querying a time would hide the cause.
            if failed:
                self._profiler._clock.give_up(mark)
            else:
                self._log.marks_set += 1  # first, because it may be delivered at once
                if not self._profiler._clock.stop(mark, self._deliver):
                    self._log.marks_set -= 1

    def _deliver(self, time: GpuTime) -> None:
        self.gpu = time
        self._node.add_gpu(time.seconds, self._gpu_weight)
        self._log.marks_met += 1


class _NoSpan:
    """The span of a disabled profiler."""

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pass


_NO_SPAN = _NoSpan()


class Profiler:
    """Times named spans: ``with profiler.profile("inference"): ...``.

    Spans nest per thread and are summed by their path. A span has wall time, CPU time of its thread, and, if
    CuPy or PyTorch use a GPU, the time between two CUDA events on the current stream (``GpuClock``: the host
    never waits for them) and an NVTX range for Nsight's timelines. Nothing is timed on the GPU while a CUDA
    graph is captured. Events cost more than the rest of a span, so each path and thread is timed on the GPU a
    thousand times in a burst, then 50 times a second on average; in sums and percentiles a timed span also
    stands for the untimed ones before it.

    Spans belong to threads. Coroutines that interleave inside spans would mix up their nesting.

    Memory is bounded: the newest ``keep_spans`` spans, and tallies of a thousand paths per thread.

    Args:
        name: Title of the profile.
        device: ``auto`` times the GPU if one is already in use, and imports no library; ``cuda`` requires
            one; ``cpu`` times the host alone.
        keep_spans: Number of single spans kept for traces and timelines, about 300 bytes each; 0 keeps only
            sums.
        enabled: False makes every span a no-op; can be changed at any time.

    Raises:
        DeviceError: ``device="cuda"`` without a GPU.
        ValueError: ``keep_spans`` is negative, or ``device`` is unknown.
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
        """Make a span, to use as a context manager around some work.

        Args:
            name: Name of the work; spans of equal name and nesting are summed.
            host_only: Skip GPU timing, for work that only waits for the GPU.
        """
        return Span(self, name, host_only=host_only) if self.enabled else _NO_SPAN

    @overload
    def profiled(self, name: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def profiled(self, name: str | None = None, /) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def profiled(self, name: Any = None, /) -> Any:
        """Decorate a function so that each call is a span: ``@profiler.profiled`` or ``@profiler.profiled("name")``.

        Args:
            name: Name of the spans; the function's qualified name if omitted.

        Raises:
            TypeError: The function is a generator or coroutine function, whose call only prepares it.
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
        """Sums by path, parents before children; waits for pending GPU times."""
        self._clock.collect()
        return merge_stats(self._roots())

    def by_name(self) -> dict[str, SpanStats]:
        """Sums by name, wherever nested; waits for pending GPU times.

        A name nested inside itself counts twice: once per span.
        """
        self._clock.collect()
        return {row.name: row for row in merge_stats(self._roots(), by_name=True)}

    def gpu_seconds(self) -> dict[str, float]:
        """GPU time by name, over all paths; waits for pending GPU times."""
        return {name: row.gpu.total_seconds for name, row in self.by_name().items() if row.gpu is not None}

    def spans(self) -> list[Span]:
        """The kept spans, in the order in which they ended."""
        self._clock.collect()
        return list(self._spans)

    @property
    def dropped_count(self) -> int:
        """Single spans dropped for newer ones; the sums include them."""
        ended = sum(node.count for root in self._roots() for node in root.walk())
        return max(ended - len(self._spans), 0)

    @property
    def began_ns(self) -> int:
        """Time of creation or of the last reset, on ``time.perf_counter_ns``."""
        return self._began_ns

    @property
    def began_at(self) -> datetime:
        """``began_ns`` as a date."""
        return self._began_at

    def reset(self) -> None:
        """Drop all data. Open spans will not be counted."""
        self._clock.collect()
        with self._lock:
            self._clear()

    def summary(self) -> str:
        """Format a table of all paths as text."""
        return _table(self.name, self.stats(), wall_seconds=(perf_counter_ns() - self._began_ns) * 1e-9)

    def print_summary(self, file: TextIO | None = None) -> None:
        """Print the table.

        Args:
            file: Output file; standard output if omitted.
        """
        (file or sys.stdout).write(self.summary() + "\n")

    def to_dict(self, *, utilisation: Sequence[UtilisationSample] = ()) -> dict[str, Any]:
        """Return everything as plain values: the document behind the exports (``profile_document``).

        Args:
            utilisation: Samples of a ``UtilisationSampler`` that ran at the same time.
        """
        from vitascope.gpu.profiling.document import profile_document

        return profile_document(self, utilisation=utilisation)

    def export_json(
        self, path: str | PathLike[str], *, utilisation: Sequence[UtilisationSample] = ()
    ) -> None:
        """Write sums and spans as JSON with a versioned schema (``docs/profiling.md``).

        Raises:
            OutputError: The file is not writable.
        """
        from vitascope.gpu.profiling.document import write_document

        write_document(self.to_dict(utilisation=utilisation), Path(path))

    def export_chrome_trace(
        self, path: str | PathLike[str], *, utilisation: Sequence[UtilisationSample] = ()
    ) -> None:
        """Write the single spans for ``ui.perfetto.dev`` or ``chrome://tracing``.

        Raises:
            OutputError: The file is not writable.
        """
        from vitascope.gpu.profiling.document import chrome_trace, write_document

        write_document(chrome_trace(self.to_dict(utilisation=utilisation)), Path(path))

    def export_png(self, path: str | PathLike[str]) -> None:
        """Draw sums and timeline as a PNG file.

        Raises:
            MissingDependencyError: matplotlib is not installed.
            OutputError: The file is not writable.
        """
        from vitascope.gpu.profiling.charts import profile_chart

        write_file(Path(path), profile_chart(self.to_dict()).to_png())

    def export_html(self, path: str | PathLike[str]) -> None:
        """Write table and charts as a self-contained HTML page.

        Raises:
            MissingDependencyError: matplotlib is not installed.
            OutputError: The file is not writable.
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
        """Create the log of a thread at its first span."""
        with self._lock:
            self._retire()
            self._thread_count += 1
            log = self._local.log = ThreadLog(threading.current_thread(), self._thread_count)
            self._logs.append(log)
        return log

    def _retire(self) -> None:
        """Merge the trees of ended threads, so that a thread per request costs no memory."""
        ended = [log for log in self._logs if log.ended]
        for log in ended:
            self._retired.absorb(log.root)
            self._logs.remove(log)


def _table(title: str, stats: Sequence[SpanStats], *, wall_seconds: float) -> str:
    """Format spans as a tree, times in milliseconds; with a GPU column only if it was timed."""
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
