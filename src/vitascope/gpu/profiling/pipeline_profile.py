"""Where the time of a pipeline's run went, in two files beside what the run writes: a profile and a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.gpu.pipeline.stages import Group, Grouper, Map, Sink, Source, Stage

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler

_NO_PARTS: Mapping[str, str] = {}


def paths_beside(target: Path) -> tuple[Path, Path]:
    """Paths of profile and trace of a run that writes this file or folder."""
    return target.with_name(f"{target.name}.profile.json"), target.with_name(f"{target.name}.trace.json")


class PipelineProfile:
    """The profile of one run; does nothing unless it is wanted. A context manager around the run.

    Args:
        name: What the profile is called.
        target: A file or folder that the run writes; the profile lies beside it.
        wanted: Profile the run.
        device_id: Number of the GPU whose load is looked at.
        parts_of_stages: Spans on the GPU that are not called like the stage that they belong to, and that stage.
    """

    def __init__(
        self,
        name: str,
        target: Path,
        *,
        wanted: bool,
        device_id: int,
        parts_of_stages: Mapping[str, str] = _NO_PARTS,
    ) -> None:
        self.profiler: Profiler | None = None
        self._target = target
        self._parts_of_stages = parts_of_stages
        self._stack = ExitStack()
        if wanted:
            from vitascope.gpu.profiling.profiler import Profiler
            from vitascope.gpu.profiling.utilisation import UtilisationSampler

            self.profiler = Profiler(name)
            self._sampler = UtilisationSampler(interval_seconds=0.1, device_id=device_id)

    def __enter__(self) -> Self:
        """Start looking at CPU and GPU."""
        if self.profiler is not None:
            self._stack.enter_context(self._sampler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop looking, and forget the spans, which hold their profiler."""
        self._stack.__exit__(kind, error, trace)
        if self.profiler is not None and kind is None:  # a GPU that failed is not asked again
            self.profiler.reset()

    def stages(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages of the run, each with spans around its work."""
        if self.profiler is None:
            return list(stages)
        return profiled_stages(stages, self.profiler)

    def save(self, measured: PipelineReport) -> tuple[str, ...]:
        """Write profile and trace; what the user should know of it, one line each.

        Args:
            measured: The report of the run; the verdict is about its stages.

        Raises:
            OutputError: A file cannot be written.
        """
        if self.profiler is None:
            return ()
        from vitascope.gpu.profiling.bottleneck import BottleneckDetector
        from vitascope.gpu.profiling.document import chrome_trace, write_document

        self._stack.close()
        verdict = BottleneckDetector().analyze(
            measured,
            utilisation=self._sampler.summary(),
            gpu_seconds=seconds_by_stage(self.profiler.gpu_seconds(), self._parts_of_stages),
        )
        document = self.profiler.to_dict(utilisation=self._sampler.samples())
        profile, trace = paths_beside(self._target)
        write_document({**document, "verdict": verdict.to_dict()}, profile)
        write_document(chrome_trace(document), trace)
        return (
            f"profile: {profile}, and {trace} for ui.perfetto.dev",
            f"profile: {verdict.main.kind.replace('_', '-')}: {verdict.main.title}",
        )


def seconds_by_stage(seconds: Mapping[str, float], parts_of_stages: Mapping[str, str]) -> dict[str, float]:
    """Add up what parts of stages took; a part that is not among ``parts_of_stages`` is a stage by itself."""
    by_stage: dict[str, float] = {}
    for name, spent in seconds.items():
        stage = parts_of_stages.get(name, name)
        by_stage[stage] = by_stage.get(stage, 0.0) + spent
    return by_stage


T = TypeVar("T")
_END = object()


def profiled_stages(stages: Sequence[Stage], profiler: Profiler) -> list[Stage]:
    """The same stages, each with a span of its name around every piece of work; waiting at queues is outside.

    Only the host is timed: a stage may wait for the GPU rather than feed it. Spans inside a stage's own code time
    the GPU, and lie inside its span.

    Args:
        stages: The stages of a ``Pipeline`` that is about to be made.
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
        """Flush the stage, timed in a span."""
        with self._profiler.profile(self._name, host_only=True):
            results = self._grouper.flush()
        return self._when_made(results)

    def _when_made(self, results: Iterable[Any]) -> Iterable[Any]:
        """Collections are there already; only what works while it is iterated gets spans for that."""
        return results if isinstance(results, Sequence) else _pieces(results, self._profiler, self._name)
