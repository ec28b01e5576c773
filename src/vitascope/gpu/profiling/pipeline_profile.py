"""Where the time of a pipeline's run went, in two files beside what the run writes: a profile and a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.gpu.pipeline.stages import Stage

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler

__all__ = ["PipelineProfile", "paths_beside"]

_NO_PARTS: Mapping[str, str] = {}


def paths_beside(target: Path) -> tuple[Path, Path]:
    """Where profile and trace of a run lie that writes this file or folder."""
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
        """Start looking at processor and GPU."""
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
        from vitascope.gpu.profiling.stage_spans import profiled_stages

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
        from vitascope.gpu.profiling.document import write_chrome_trace, write_document

        self._stack.close()
        gpu_seconds: dict[str, float] = {}
        for name, seconds in self.profiler.gpu_seconds().items():
            stage = self._parts_of_stages.get(name, name)
            gpu_seconds[stage] = gpu_seconds.get(stage, 0.0) + seconds
        verdict = BottleneckDetector().analyze(
            measured, utilisation=self._sampler.summary(), gpu_seconds=gpu_seconds
        )
        document = self.profiler.to_dict(utilisation=self._sampler.samples())
        profile, trace = paths_beside(self._target)
        write_document({**document, "verdict": verdict.to_dict()}, profile)
        write_chrome_trace(document, trace)
        return (
            f"profile: {profile}, and {trace} for ui.perfetto.dev",
            f"profile: {verdict.main.kind.replace('_', '-')}: {verdict.main.title}",
        )
