"""Profiling tools around a run: each writes its files and reports its three main findings.

Besides our own and PyTorch's profilers, NVIDIA's Nsight Systems (``nsys``) and Nsight Compute (``ncu``):
https://docs.nvidia.com/nsight-systems/UserGuide/, https://docs.nvidia.com/nsight-compute/NsightComputeCli/
"""

from __future__ import annotations

import csv
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

from vitascope.bench.limited_run import LimitedRun, run_for
from vitascope.errors import DeviceError, InputError, MissingDependencyError, UsageError, VitascopeError
from vitascope.gpu.profiling.bottleneck import Finding
from vitascope.gpu.profiling.charts import require_matplotlib
from vitascope.gpu.profiling.cuda import CUDAProfiler, union_of
from vitascope.gpu.profiling.document import load_profile
from vitascope.gpu.profiling.tables import milliseconds, text_table
from vitascope.media.reading.reader import probe
from vitascope.segmentation.report import SegmentReport

_EXTRA_SECONDS = 900  # opening networks, compiling kernels, writing reports
_KERNELS_MEASURED = 200
"""ncu runs each kernel many times, once for each group of counters; a run has thousands of similar launches."""
_COUNTERS = {
    "occupancy %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "threads/warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "L1 hit %": "l1tex__t_sector_hit_rate.pct",
    "L2 hit %": "lts__t_sector_hit_rate.pct",
    "DRAM %": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "µs": "gpu__time_duration.sum",
}
_SYNC = "%Synchronize%"
_NO_KERNEL: tuple[tuple[str, ...], str] = ("no kernel ran: the work was done on the CPU",), "no kernels"


def _tool(name: str, product: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingDependencyError(
            f"{name} is not installed, or not on the PATH: it comes with {product} "
            f"(https://developer.nvidia.com/{product.lower().replace(' ', '-')})"
        )
    return found


def _child(run: LimitedRun) -> list[str]:
    return [sys.executable, "-m", "vitascope.bench.limited_run", *run.arguments()]


def _call(command: Sequence[str], *, timeout_seconds: float) -> str:
    """Run a tool and return what it printed.

    Raises:
        DeviceError: It may not read counters, or found no GPU.
        VitascopeError: It failed, or did not end in time.
    """
    name = Path(command[0]).name
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_seconds, check=False, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise VitascopeError(f"{name} did not end within {timeout_seconds:.0f} s") from error
    except OSError as error:
        raise VitascopeError(f"{name} cannot be started: {error}") from error
    said = answer.stdout + answer.stderr
    if "ERR_NVGPUCTRPERM" in said:
        raise DeviceError(
            f"{name} may not read the GPU's counters: the administrator must allow it, see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
    if answer.returncode:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        raise VitascopeError(
            f"{name} failed (exit code {answer.returncode}): {lines[-1] if lines else 'it said nothing'}"
        )
    return answer.stdout


def _nsight_systems(run: LimitedRun, folder: Path) -> Profiled:
    """Record the system's timeline."""
    nsys = _tool("nsys", "Nsight Systems")
    folder.mkdir(parents=True, exist_ok=True)
    report, database = folder / "nsight-systems.nsys-rep", folder / "nsight-systems.sqlite"
    limit = run.seconds + _EXTRA_SECONDS
    options = ["--trace=cuda,nvtx,osrt", "--sample=none", "--force-overwrite=true", f"--output={report}"]
    options.append("--cpuctxsw=none")  # most of the file's size, and nothing reads it
    options.append("--cuda-graph-trace=node")  # by default a graph is one span, without its kernels
    if run.device().kind == "cuda":
        # Capture from cudaProfilerStart on; before it the child builds kernels and records graphs. It goes on after
        # the end.
        options += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    child = [*_child(run), "--keep-in", str(folder)]
    for earlier in (report, database, folder / "stages.json"):
        earlier.unlink(missing_ok=True)  # it could be mistaken for this run's
    _call([nsys, "profile", *options, *child], timeout_seconds=limit)
    if not report.exists():
        raise VitascopeError(f"nsys recorded nothing: {report} was not written")
    _call(
        [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report)],
        timeout_seconds=limit,
    )
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as rows:
        findings, table = _read_nsys(rows)
    files = _written(folder, report.name, database.name, "stages.json")
    return Profiled(tool="nsight-systems", findings=findings, table=table, files=files)


def _read_nsys(rows: sqlite3.Connection) -> tuple[tuple[str, ...], str]:
    tables = {name for (name,) in rows.execute("select name from sqlite_master where type = 'table'")}
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
        return _NO_KERNEL
    kernels = list(
        rows.execute(
            "select s.value, count(*), sum(k.end - k.start) from CUPTI_ACTIVITY_KIND_KERNEL k "
            "join StringIds s on s.id = k.shortName group by s.value order by 3 desc"
        )
    )
    work = [
        _stretches(rows, table) for table in ("KERNEL", "MEMCPY") if f"CUPTI_ACTIVITY_KIND_{table}" in tables
    ]
    stretches = sorted(stretch for part in work for stretch in part)
    busy, gaps = union_of(stretches)
    span = max(end for _, end in stretches) - stretches[0][0]
    total = sum(row[2] for row in kernels)
    name, count, nanoseconds = kernels[0]
    findings = [
        f"the GPU was idle {1 - busy / span:.0%} of the time between its first and last work; "
        f"the longest gap was {max(gaps, default=0) / 1e6:.2f} ms",
        f"the most expensive kernel is {name}: {nanoseconds / total:.0%} of all kernels' time, {count} launches",
        _host_waits(rows, tables),
    ]
    heads = ["kernel", "count", "total ms", "mean ms"]
    table = [
        [kernel, str(n), milliseconds(time / 1e9), milliseconds(time / n / 1e9)]
        for kernel, n, time in kernels[:15]
    ]
    return tuple(findings), text_table(heads, table) + _copies(rows, tables)


def _stretches(rows: sqlite3.Connection, kind: str) -> list[tuple[int, int]]:
    return list(rows.execute(f"select start, end from CUPTI_ACTIVITY_KIND_{kind}"))


def _host_waits(rows: sqlite3.Connection, tables: set[str]) -> str:
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables:
        return "the host's calls to the GPU were not recorded"
    ((count, nanoseconds),) = rows.execute(
        "select count(*), coalesce(sum(r.end - r.start), 0) from CUPTI_ACTIVITY_KIND_RUNTIME r "
        "join StringIds s on s.id = r.nameId where s.value like ?",
        (_SYNC,),
    )
    return f"the host waited for the GPU {count} times, {nanoseconds / 1e6:.0f} ms in all, over all threads"


def _copies(rows: sqlite3.Connection, tables: set[str]) -> str:
    if "CUPTI_ACTIVITY_KIND_MEMCPY" not in tables:
        return ""
    # CUpti_ActivityMemcpyKind: 1 is host to device, 2 is device to host, 8 is within a device.
    names = {1: "host to GPU", 2: "GPU to host", 8: "within the GPU"}
    lines = [
        f"copies {names.get(kind, f'of kind {kind}')}: {count}, {nbytes / 1e6:.1f} MB, {milliseconds(time / 1e9)} ms"
        for kind, count, nbytes, time in rows.execute(
            "select copyKind, count(*), sum(bytes), sum(end - start) from CUPTI_ACTIVITY_KIND_MEMCPY "
            "group by copyKind order by 4 desc"
        )
    ]
    return "\n" + "\n".join(lines)


def _nsight_compute(run: LimitedRun, folder: Path) -> Profiled:
    """Measure the counters of single kernels."""
    ncu = _tool("ncu", "Nsight Compute")
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / "nsight-compute.ncu-rep"
    options = ["--target-processes=all", "--nvtx", "--force-overwrite", f"--export={report}"]
    options += [f"--metrics={','.join(_COUNTERS.values())}", f"--launch-count={_KERNELS_MEASURED}"]
    options.append("--profile-from-start=off")  # as above: cudaProfilerStart begins the measurement
    limit = run.seconds + _EXTRA_SECONDS
    report.unlink(missing_ok=True)
    _call([ncu, *options, *_child(run)], timeout_seconds=limit)
    findings, table = _NO_KERNEL
    if report.exists():
        findings, table = _read_ncu(
            _call(
                [ncu, f"--import={report}", "--csv", "--page=raw", "--print-units=base"],
                timeout_seconds=limit,
            )
        )
    files = _written(folder, report.name)
    return Profiled(tool="nsight-compute", findings=findings, table=table, files=files)


def _read_ncu(page: str) -> tuple[tuple[str, ...], str]:
    """Read the raw page: headings, units, then one row for each launch."""
    lines = [line for line in page.splitlines() if line and not line.startswith("==")]
    rows = list(csv.DictReader(lines))[1:]
    launches: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        figures = {name: _number(row.get(counter)) for name, counter in _COUNTERS.items()}
        known = {name: value for name, value in figures.items() if value is not None}
        known["µs"] = known.get("µs", 0.0) / 1e3  # base units are nanoseconds
        launches.setdefault(row["Kernel Name"], []).append(known)
    if not launches:
        return ("no kernel was measured",), "no kernels"
    ordered = sorted(launches.items(), key=lambda item: -sum(launch["µs"] for launch in item[1]))
    total = sum(launch["µs"] for _, found in ordered for launch in found) or 1.0
    name, found = ordered[0]
    share = sum(launch["µs"] for launch in found) / total
    middle = {figure: _median(found, figure) for figure in _COUNTERS}
    memory, compute = middle["DRAM %"], middle["SM %"]
    bound = "neither memory nor arithmetic is near its limit: more work for each launch, or fewer launches, would help"
    if max(memory, compute) >= 60:
        bound = "it is bound by memory" if memory >= compute else "it is bound by arithmetic"
    findings = (
        f"the most expensive kernel is {name}: {share:.0%} of the time of {len(rows)} launches",
        f"it reaches {memory:.0f} % of the memory's speed and {compute:.0f} % of the arithmetic's; {bound}",
        f"its occupancy is {middle['occupancy %']:.0f} %, with {middle['registers']:.0f} registers a thread and "
        f"{middle['threads/warp']:.1f} of 32 threads active",
    )
    heads = ["kernel", "launches", *_COUNTERS]
    table = [
        [kernel[:60], str(len(them)), *(f"{_median(them, figure):.1f}" for figure in _COUNTERS)]
        for kernel, them in ordered[:15]
    ]
    return findings, text_table(heads, table)


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:  # this GPU does not have the counter
        return None


def _median(launches: Sequence[dict[str, float]], figure: str) -> float:
    return median([launch[figure] for launch in launches if figure in launch] or [0.0])


_LEAST_SECONDS_OF_MEMORY = 10.0
"""A run's queues are full after a few seconds; growth within less time is theirs, or of the decoder's and encoder's
buffers."""
_SILENT = "6"
"""Above the level of the messages that PyTorch's recorder (Kineto) writes to stderr when it starts and stops."""

Tool = Literal["stages", "pytorch", "nsight-systems", "nsight-compute", "memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The findings of a tool."""

    tool: Tool
    findings: tuple[str, ...]
    """The three main findings, one sentence each."""
    table: str
    """The figures as text."""
    files: tuple[Path, ...]
    """The files written."""


def profile_video(run: LimitedRun, *, tool: Tool, folder: Path) -> Profiled:
    """Run a tool around the segmentation of a video.

    Args:
        run: What to run, and for how long.
        tool: The tool to use.
        folder: Folder for its files; created if missing.

    Raises:
        UsageError: The time is not positive.
        MissingDependencyError: The tool, or the library that draws its charts, is not installed.
        DeviceError: It needs a GPU, or a permission that this user does not have.
        InputError: The video cannot be read.
        OutputError: A file cannot be written.
    """
    if not 0 < run.seconds <= 86400:
        raise UsageError(f"a profile takes more than 0 and at most 86400 seconds, not {run.seconds:g}")
    if tool == "memory":
        require_matplotlib()
    probe(run.video)  # report an unreadable video here, not through a tool around a child process
    tools: dict[Tool, Callable[[LimitedRun, Path], Profiled]] = {
        "stages": _stages,
        "pytorch": _pytorch,
        "memory": _memory,
        "nsight-systems": _nsight_systems,
        "nsight-compute": _nsight_compute,
    }
    return tools[tool](run, folder)


def _stages(run: LimitedRun, folder: Path) -> Profiled:
    report = run_for(run, keep_in=folder)
    profile = load_profile(folder / "stages.json")
    verdict = profile["verdict"]["main"]
    speed = f"{report.frame_count} frames at {report.pipeline.items_per_second:.1f} a second"
    return Profiled(
        tool="stages",
        findings=(f"{verdict['title']}; {verdict['advice']}", "; ".join(verdict["evidence"]), speed),
        table=_stage_table(profile),
        files=_written(folder, "stages.json", "stages.trace.json"),
    )


def _pytorch(run: LimitedRun, folder: Path) -> Profiled:
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)  # Kineto only reads it when PyTorch is loaded
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
                f"the most expensive kernel is {top.name}: {top.share:.0%} of the GPU's time, {top.count} launches"
            )
        findings.append(
            f"the GPU was idle {timeline.idle_share:.0%} of the time; "
            f"the host waited for it {timeline.sync_count} times, {timeline.sync_seconds * 1e3:.0f} ms"
        )
    elif operators:
        top_operator = operators[0]
        findings.append(
            f"the most expensive operator is {top_operator.name}: {top_operator.cpu_seconds * 1e3:.0f} ms in "
            f"{top_operator.count} calls"
        )
    if not kernels and not operators:
        findings.append(
            f"PyTorch did nothing here: {report.engine} computed the network; -t stages has the time of each stage, "
            "and vitascope bench run --only batch the network's operators"
        )
    findings.append(_speed(report.frame_count, report.pipeline.items_per_second))
    return Profiled(
        tool="pytorch",
        findings=tuple(findings[:3]),
        table="\n\n".join([_stage_table(stages), *([profiler.summary()] if kernels or operators else [])]),
        files=_written(folder, "pytorch.trace.json", "kernels.json", "stages.json", "stages.trace.json"),
    )


def _stage_table(profile: dict[str, Any]) -> str:
    """A table of a run's time by stage; the threads of several stages overlap."""
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

    memory = MemoryProfiler(interval_seconds=0.02, least_seconds=_LEAST_SECONDS_OF_MEMORY)
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
        findings.append("no GPU was measured")
    told = "; ".join(leak.sentence() for leak in leaks) or "nothing keeps growing"
    findings.append(memory.too_short() or told)
    if len(findings) < 3:
        findings.append(_speed(report.frame_count, report.pipeline.items_per_second))
    return Profiled(
        tool="memory",
        findings=tuple(findings),
        table=memory.summary(),
        files=_written(folder, "memory.html", "memory.json", "memory.png"),
    )


def _speed(frames: int, per_second: float) -> str:
    return f"{frames} frames at {per_second:.1f} a second, with the profiler's own cost"


def _written(folder: Path, *names: str) -> tuple[Path, ...]:
    return tuple(folder / name for name in names if (folder / name).exists())


_LEAST_FRAMES = 20


class Detected:
    """A run and the verdict on it."""

    def __init__(self, report: SegmentReport, verdict: dict[str, Any]) -> None:
        self.report = report
        self.main = _finding(verdict["main"])
        """The most important finding."""
        self.others = tuple(_finding(other) for other in verdict["others"])

    def lines(self) -> list[str]:
        """Lines for people: speed, verdict, evidence, the one recommended change, and each stage's share."""
        report = self.report
        lines = [
            f"{report.frame_count} frames at {report.pipeline.items_per_second:.1f} fps, {report.model} on "
            f"{report.device}",
            *self.main.lines(),
            *(f"also: {other.title}; {other.advice}" for other in self.others),
        ]
        busy = ", ".join(f"{stage.name} {stage.load:.0%}" for stage in report.pipeline.stages)
        return [*lines, f"busy: {busy}"]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "input": str(self.report.input),
            "frame_count": self.report.frame_count,
            "frames_per_second": self.report.pipeline.items_per_second,
            "findings": [asdict(one) for one in (self.main, *self.others)],
            "stages": {stage.name: stage.load for stage in self.report.pipeline.stages},
        }


def detect_bottlenecks(run: LimitedRun) -> Detected:
    """Segment a clip, discard its pictures, and find the bottleneck.

    Raises:
        InputError: The clip cannot be read, or is too short for a verdict.
        VitascopeError: As ``Segmenter``.
    """
    with TemporaryDirectory(prefix="vitascope-") as folder:
        report = run_for(run, keep_in=Path(folder))
        if report.frame_count < _LEAST_FRAMES:
            raise InputError(
                f"{run.video}: {report.frame_count} frames are too few for a verdict, {_LEAST_FRAMES} are needed; "
                "take a longer clip, or none, for a synthetic one"
            )
        verdict = load_profile(Path(folder) / "stages.json")["verdict"]
    return Detected(report, verdict)


def _finding(plain: dict[str, Any]) -> Finding:
    return Finding(**{**plain, "evidence": tuple(plain["evidence"])})
