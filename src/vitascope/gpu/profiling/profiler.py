"""Named spans of time on the host and on the GPU, by any number of threads."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TextIO, TypeVar, overload

from vitascope.gpu.profiling.gpu_clock import CudaEvents, GpuClock, GpuMark, GpuTime
from vitascope.gpu.profiling.span_tree import SpanNode, SpanStats, ThreadLog, merge_stats

if TYPE_CHECKING:
    from vitascope.gpu.profiling.utilisation import UtilisationSample

__all__ = ["Profiler", "Span"]

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_ns = wall_ns = perf_counter_ns() - self.began_ns
        self.cpu_ns = thread_time_ns() - self._cpu_began_ns
        outer = self._outer
        self._node.add(wall_ns, self._inside_ns, self.cpu_ns)
        if outer is not None:
            outer._inside_ns += wall_ns
        if kind is not None:
            self.error = kind.__name__
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        DeviceError: ``device="cuda"``, and there is none.
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
        if keep_spans < 0:
            raise ValueError(f"keep_spans is 0 or more, not {keep_spans}")
        self.name = name
        self.enabled = enabled
        self._clock = GpuClock(device=device)
        self._lock = threading.Lock()
        self._most_spans = keep_spans
        self._clear()

    def profile(self, name: str, *, host_only: bool = False) -> Span | _NoSpan:
        """A span to put around some work.

        Args:
            name: Of the work; spans of one name at one place of the nesting are added up.
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
            name: Of the spans; the function's own, with its class, when omitted.

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
        from vitascope.gpu.profiling.tables import span_table

        return span_table(self.name, self.stats(), wall_seconds=(perf_counter_ns() - self._began_ns) * 1e-9)

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
        from vitascope.gpu.profiling.document import write_chrome_trace

        write_chrome_trace(self.to_dict(utilisation=utilisation), Path(path))

    def export_png(self, path: str | PathLike[str]) -> None:
        """Draw sums and timeline as a PNG picture.

        Raises:
            MissingDependencyError: matplotlib, which draws it, is not installed.
            OutputError: The file cannot be written.
        """
        from vitascope.gpu.profiling.charts import profile_chart
        from vitascope.gpu.profiling.document import write_file

        write_file(Path(path), profile_chart(self.to_dict()).to_png())

    def export_html(self, path: str | PathLike[str]) -> None:
        """Write one HTML page with table and drawing, which needs no network.

        Raises:
            MissingDependencyError: matplotlib, which draws it, is not installed.
            OutputError: The file cannot be written.
        """
        from vitascope.gpu.profiling.document import profile_page, write_file

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
