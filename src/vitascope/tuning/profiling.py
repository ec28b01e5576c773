"""Profiling tools around a run: each leaves its files, and says the three things that matter."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitascope.errors import UsageError
from vitascope.gpu.profiling.document import load_profile
from vitascope.gpu.profiling.tables import text_table
from vitascope.media.metadata.probe import probe
from vitascope.tuning.limited_run import LimitedRun, run_for
from vitascope.tuning.nsight import profile_with_ncu, profile_with_nsys

__all__ = ["Profiled", "Tool", "profile_video"]

_SILENT = "6"
"""Above the level of what PyTorch's recorder (Kineto) writes to stderr when it starts and stops."""

Tool = Literal["pytorch", "nsight-systems", "nsight-compute", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a tool found."""

    tool: Tool
    findings: tuple[str, ...]
    """The three things that matter, one sentence each."""
    table: str
    """Figures as text."""
    files: tuple[Path, ...]
    """What was written."""


def profile_video(run: LimitedRun, *, tool: Tool, folder: Path) -> Profiled:
    """Run a tool around the segmentation of a video.

    Args:
        run: What to run, and for how long.
        tool: Which.
        folder: Where its files go; it is made.

    Raises:
        UsageError: A time that is not positive.
        MissingDependencyError: The tool is not installed.
        DeviceError: It needs a GPU, or a right that this user does not have.
        InputError: The video cannot be read.
        OutputError: A file cannot be written.
    """
    if not 0 < run.seconds <= 86400:
        raise UsageError(f"a profile takes more than 0 and at most 86400 seconds, not {run.seconds:g}")
    probe(run.video)  # what cannot be read is said here, not by a tool around a child process
    tools: dict[Tool, Callable[[LimitedRun, Path], Profiled]] = {
        "pytorch": _pytorch,
        "memory": _memory,
        "nsight-systems": _nsight_systems,
        "nsight-compute": _nsight_compute,
    }
    return tools[tool](run, folder)


def _pytorch(run: LimitedRun, folder: Path) -> Profiled:
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)  # it asks nobody else, and only when PyTorch is loaded
    from vitascope.gpu.profiling.cuda import CUDAProfiler

    profiler = CUDAProfiler()
    report = run_for(run, around=lambda: profiler, keep_in=folder)
    profiler.export_chrome_trace(folder / "pytorch.trace.json")
    profiler.export_json(folder / "kernels.json")
    stages = load_profile(folder / "stages.json")
    verdict = stages["verdict"]["main"]
    timeline, kernels, operators = profiler.timeline(), profiler.kernels(), profiler.operators()
    findings = [f"{verdict['title']}; {verdict['advice']}"]
    if profiler.on_gpu:
        if kernels:
            top = kernels[0]
            findings.append(
                f"the costliest kernel is {top.name}: {top.share:.0%} of the GPU's time, {top.count} launches"
            )
        findings.append(
            f"the GPU lay idle {timeline.idle_share:.0%} of the time; "
            f"the host waited for it {timeline.sync_count} times, {timeline.sync_seconds * 1e3:.0f} ms"
        )
    elif operators:
        top_operator = operators[0]
        findings.append(
            f"the costliest operator is {top_operator.name}: {top_operator.cpu_seconds * 1e3:.0f} ms in "
            f"{top_operator.count} calls"
        )
    if not kernels and not operators:
        findings.append(f"PyTorch did nothing here: {report.engine} computed the network")
    findings.append(_speed(report.frame_count, report.pipeline.items_per_second))
    return Profiled(
        tool="pytorch",
        findings=tuple(findings[:3]),
        table="\n\n".join([_stage_table(stages), *([profiler.summary()] if kernels or operators else [])]),
        files=_written(folder, "pytorch.trace.json", "kernels.json", "stages.json", "stages.trace.json"),
    )


def _stage_table(profile: dict[str, Any]) -> str:
    """Where the time of a run went, by stage; threads of several stages overlap."""
    wall = profile["wall_seconds"]
    rows = [
        (
            " > ".join(place["path"]),
            str(place["count"]),
            f"{place['mean_seconds'] * 1e3:.2f}",
            f"{place['p95_seconds'] * 1e3:.2f}",
            f"{place['total_seconds'] / wall:.0%}",
            "-" if place["gpu"] is None else f"{place['gpu']['mean_seconds'] * 1e3:.2f}",
        )
        for place in profile["summary"]
    ]
    return text_table(("stage", "calls", "mean ms", "p95 ms", "of the time", "GPU ms"), rows)


def _memory(run: LimitedRun, folder: Path) -> Profiled:
    from vitascope.gpu.profiling.memory import MemoryProfiler

    memory = MemoryProfiler(interval_seconds=0.02)
    report = run_for(run, around=lambda: memory)
    for name, export in (
        ("memory.json", memory.export_json),
        ("memory.html", memory.export_html),
        ("memory.png", memory.export_png),
    ):
        export(folder / name)
    peak, leaks = memory.peak(), memory.leaks()
    findings = []
    if peak.resident_bytes is not None:
        findings.append(f"at most {peak.resident_bytes / 1e6:.0f} MB of main memory")
    if peak.gpu_used_bytes is not None and peak.gpu_allocated_bytes is not None:
        kept = (peak.gpu_reserved_bytes or 0) - peak.gpu_allocated_bytes
        findings.append(
            f"at most {peak.gpu_used_bytes / 1e6:.0f} MB of the GPU's, {peak.gpu_allocated_bytes / 1e6:.0f} MB "
            f"of it in arrays of this process, {max(kept, 0) / 1e6:.0f} MB kept by its allocators"
        )
    else:
        findings.append("no GPU was looked at")
    findings.append("; ".join(leak.sentence() for leak in leaks) or "nothing keeps growing")
    if len(findings) < 3:
        findings.append(_speed(report.frame_count, report.pipeline.items_per_second))
    return Profiled(
        tool="memory",
        findings=tuple(findings),
        table=memory.summary(),
        files=_written(folder, "memory.html", "memory.json", "memory.png"),
    )


def _nsight_systems(run: LimitedRun, folder: Path) -> Profiled:
    findings, table = profile_with_nsys(run, folder)
    files = _written(folder, "nsight-systems.nsys-rep", "nsight-systems.sqlite", "stages.json")
    return Profiled(tool="nsight-systems", findings=findings, table=table, files=files)


def _nsight_compute(run: LimitedRun, folder: Path) -> Profiled:
    findings, table = profile_with_ncu(run, folder)
    files = _written(folder, "nsight-compute.ncu-rep")
    return Profiled(tool="nsight-compute", findings=findings, table=table, files=files)


def _speed(frames: int, per_second: float) -> str:
    return f"{frames} frames at {per_second:.1f} a second, with the profiler's own cost"


def _written(folder: Path, *names: str) -> tuple[Path, ...]:
    return tuple(folder / name for name in names if (folder / name).exists())
