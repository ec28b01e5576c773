"""What ``debug.profile_performance`` writes: where the time of a run went, beside its first output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from vitascope.gpu.pipeline_report import PipelineReport
from vitascope.gpu.stages import Stage
from vitascope.media.output_target import picture_folder

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler

__all__ = ["RunProfile", "not_profiled", "profile_paths"]

_PARTS_OF_STAGES = {"network": "matte", "composite": "matte"}
"""Spans on the GPU that are not called like the stage that they belong to."""


def profile_paths(output: Path) -> tuple[Path, Path]:
    """Where profile and trace of a run lie.

    Args:
        output: The first output; of a folder of pictures, they lie beside the folder.
    """
    pictures = picture_folder(output)
    target = output if pictures is None else pictures.folder
    return target.with_name(f"{target.name}.profile.json"), target.with_name(f"{target.name}.trace.json")


def not_profiled(*, wanted: bool) -> list[str]:
    """What to say of a run whose work is done in other processes, where no profiler looks."""
    if not wanted:
        return []
    return [
        "debug.profile_performance has no effect here: the work was shared among processes; profile one alone"
    ]


class RunProfile:
    """The profile of one run; does nothing unless it is wanted. A context manager around the run.

    Args:
        outputs: What the run writes.
        wanted: Profile the run.
        device_id: Number of the GPU whose load is looked at.
    """

    def __init__(self, outputs: Sequence[Path], *, wanted: bool, device_id: int) -> None:
        self.profiler: Profiler | None = None
        self._outputs = outputs
        self._stack = ExitStack()
        if wanted:
            from vitascope.gpu.profiling.profiler import Profiler
            from vitascope.gpu.profiling.utilisation import UtilisationSampler

            self.profiler = Profiler(f"segment {outputs[0].name}")
            self._sampler = UtilisationSampler(interval_seconds=0.1, device_id=device_id)

    def __enter__(self) -> RunProfile:
        """Start looking at processor and GPU."""
        if self.profiler is not None:
            self._stack.enter_context(self._sampler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop looking."""
        self._stack.__exit__(kind, error, trace)

    def stages(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stages of the run, each with spans around its work."""
        if self.profiler is None:
            return list(stages)
        from vitascope.gpu.profiling.stage_spans import profiled_stages

        return profiled_stages(stages, self.profiler)

    def save(self, measured: PipelineReport) -> tuple[str, ...]:
        """Write profile and trace; what the user should know of it, one line each.

        Args:
            measured: The report of the run.

        Raises:
            OutputError: A file cannot be written.
        """
        if self.profiler is None:
            return ()
        from vitascope.gpu.profiling.bottleneck import BottleneckDetector
        from vitascope.gpu.profiling.exports import write_chrome_trace, write_document

        self._stack.close()
        gpu_seconds: dict[str, float] = {}
        for name, seconds in self.profiler.gpu_seconds().items():
            stage = _PARTS_OF_STAGES.get(name, name)
            gpu_seconds[stage] = gpu_seconds.get(stage, 0.0) + seconds
        verdict = BottleneckDetector().analyze(
            measured, utilisation=self._sampler.summary(), gpu_seconds=gpu_seconds
        )
        document = self.profiler.to_dict(utilisation=self._sampler.samples())
        profile, trace = profile_paths(self._outputs[0])
        write_document({**document, "verdict": verdict.to_dict()}, profile)
        write_chrome_trace(document, trace)
        return (
            f"profile: {profile}, and {trace} for ui.perfetto.dev",
            f"profile: {verdict.main.kind.replace('_', '-')}: {verdict.main.title}",
        )
