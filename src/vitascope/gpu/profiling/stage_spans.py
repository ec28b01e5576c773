"""Spans around the work of pipeline stages, without a change to the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from vitascope.gpu.pipeline.stages import Group, Grouper, Map, Sink, Source, Stage
from vitascope.gpu.profiling.profiler import Profiler

__all__ = ["profiled_stages"]

T = TypeVar("T")
_END = object()


def profiled_stages(stages: Sequence[Stage], profiler: Profiler) -> list[Stage]:
    """The same stages, each with a span of its name around every piece of work; waiting at queues is outside.

    Only the host is timed: a stage may wait for the GPU rather than feed it. Spans inside a stage's own code time
    the GPU, and lie inside its span.

    Args:
        stages: Of a ``Pipeline`` that is about to be made.
        profiler: Takes the spans.
    """
    return [_profiled(stage, profiler) for stage in stages]


def _profiled(stage: Stage, profiler: Profiler) -> Stage:
    name = stage.name
    match stage:
        case Source():
            return replace(stage, items=_Iterable(stage.items, profiler, name))
        case Map():
            return replace(stage, work=_call(stage.work, profiler, name))
        case Group():
            return replace(stage, grouper=_Grouper(stage.grouper, profiler, name))
        case Sink():
            finish = None if stage.finish is None else _call(stage.finish, profiler, f"{name}: finish")
            return replace(stage, consume=_call(stage.consume, profiler, name), finish=finish)
    return stage


def _call(work: Callable[..., T], profiler: Profiler, name: str) -> Callable[..., T]:
    def timed(*items: Any) -> T:
        with profiler.profile(name, host_only=True):
            return work(*items)

    return timed


def _pieces(results: Iterable[T], profiler: Profiler, name: str) -> Iterator[T]:
    """Results one by one, each in a span of its own: a generator works while it is iterated, not when it is made."""
    iterator = iter(results)
    try:
        while True:
            with profiler.profile(name, host_only=True):
                result: Any = next(iterator, _END)
            if result is _END:
                return
            yield result
            del result  # or it would live on while the pipeline waits
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


class _Iterable(Iterable[T]):
    def __init__(self, items: Iterable[T], profiler: Profiler, name: str) -> None:
        self._items, self._profiler, self._name = items, profiler, name

    def __iter__(self) -> Iterator[T]:
        return _pieces(self._items, self._profiler, self._name)


class _Grouper:
    def __init__(self, grouper: Grouper[Any, Any], profiler: Profiler, name: str) -> None:
        self._grouper, self._profiler, self._name = grouper, profiler, name

    def accumulate(self, item: Any, /) -> Iterable[Any]:
        """Take one item, in a span."""
        with self._profiler.profile(self._name, host_only=True):
            results = self._grouper.accumulate(item)
        return self._when_made(results)

    def flush(self) -> Iterable[Any]:
        """What is left, in a span."""
        with self._profiler.profile(self._name, host_only=True):
            results = self._grouper.flush()
        return self._when_made(results)

    def _when_made(self, results: Iterable[Any]) -> Iterable[Any]:
        """Collections are there already; only what works while it is iterated gets spans for that."""
        return results if isinstance(results, Sequence) else _pieces(results, self._profiler, self._name)
