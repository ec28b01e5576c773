"""Profile a pipeline's run into two files beside its output: a profile and a trace."""

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
    """Paths of profile and trace, beside a run's output file or folder."""
    return target.with_name(f"{target.name}.profile.json"), target.with_name(f"{target.name}.trace.json")


class PipelineProfile:
    """Profiles one run if wanted, else does nothing. Use it as a context manager around the run.

    Args:
        name: Title of the profile.
        target: The run's output file or folder; the profile lies beside it.
        wanted: Whether to profile the run.
        device_id: Number of the GPU to sample.
        parts_of_stages: Maps GPU spans not named like their stage to that stage.
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
        """Start sampling CPU and GPU."""
        if self.profiler is not None:
            self._stack.enter_context(self._sampler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sampling, and drop the spans, which hold their profiler."""
        self._stack.__exit__(kind, error, trace)
        if self.profiler is not None and kind is None:  # do not query a failed GPU again
            self.profiler.reset()

    def stages(self, stages: Sequence[Stage]) -> list[Stage]:
        """Wrap the run's stages in spans."""
        if self.profiler is None:
            return list(stages)
        return profiled_stages(stages, self.profiler)

    def save(self, measured: PipelineReport) -> tuple[str, ...]:
        """Write profile and trace; return notes for the user, one line each.

        Args:
            measured: Report of the run, whose stages the verdict is about.

        Raises:
            OutputError: A file is not writable.
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
    """Sum the time of stages' parts; a name not in ``parts_of_stages`` is a stage itself."""
    by_stage: dict[str, float] = {}
    for name, spent in seconds.items():
        stage = parts_of_stages.get(name, name)
        by_stage[stage] = by_stage.get(stage, 0.0) + spent
    return by_stage


T = TypeVar("T")
_END = object()


def profiled_stages(stages: Sequence[Stage], profiler: Profiler) -> list[Stage]:
    """Wrap each stage's work in spans of the stage's name; waiting at queues is left out.

    Only the host is timed: a stage may wait for the GPU rather than feed it. Spans in a stage's own code time
    the GPU, nested in its span.

    Args:
        stages: Stages of a ``Pipeline`` to be made.
        profiler: Records the spans.
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
    """Iterate over results, each in a span: a generator works while being iterated, not when created."""
    iterator = iter(results)
    try:
        while True:
            with profiler.profile(name, host_only=True):
                result: Any = next(iterator, _END)
            if result is _END:
                return
            yield result
            del result  # otherwise it would live on while the pipeline waits
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
        """Take one item, inside a span."""
        with self._profiler.profile(self._name, host_only=True):
            results = self._grouper.accumulate(item)
        return self._when_made(results)

    def flush(self) -> Iterable[Any]:
        """Flush the stage, inside a span."""
        with self._profiler.profile(self._name, host_only=True):
            results = self._grouper.flush()
        return self._when_made(results)

    def _when_made(self, results: Iterable[Any]) -> Iterable[Any]:
        """Collections are complete already; only lazy iterables need spans."""
        return results if isinstance(results, Sequence) else _pieces(results, self._profiler, self._name)
