"""A thread's record of its spans: a tree of names, each with its tally."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import random
from typing import TYPE_CHECKING

from vitascope.gpu.pipeline.report import Latency, LatencyHistogram

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Span

__all__ = ["GPU_INTERVAL_NS", "OTHERS", "GpuStats", "SpanNode", "SpanStats", "ThreadLog", "merge_stats"]

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
        """How many spans the next one stands for if it is timed on the GPU; 0 if it is not. Called once for each.

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
        """Those that are there; written by whoever collects them."""
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
        roots: Of the threads.
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
    """As a tree is read: siblings by their time, the longest first."""
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
