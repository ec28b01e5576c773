"""Jobs and machine as tables on a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.gpu.profiling.utilisation import UtilisationSample
from vitascope.tuning.job_line import Job

__all__ = ["job_row", "stats_table"]


def job_row(job: Job) -> tuple[str, str, str, str, str]:
    """Number, state, frames, video and outputs."""
    done = _frames_done(job)
    expected = job.expected_frame_count
    frames = "" if done is None else f"{done} of {expected}" if expected is not None else str(done)
    outputs = ", ".join(str(path) for _, path in job.planned.outputs)
    return str(job.number), job.state, frames, str(job.planned.video), outputs


def stats_table(job: Job | None, *, sample: UtilisationSample | None) -> Table:
    """How a job does, and how busy the machine is.

    Args:
        job: None when there is none to speak of.
        sample: The last look at processor and GPU.
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    rows = [("job", "none runs")] if job is None else _of_job(job)
    for name, value in [*rows, *([] if sample is None else _of_machine(sample))]:
        table.add_row(Text(name), Text(value))
    return table


def _of_job(job: Job) -> list[tuple[str, str]]:
    number, state, frames, video, _ = job_row(job)
    rows = [("job", f"{number}, {state}: {video}")]
    report = _pipeline(job)
    if report is None:
        return rows
    latency = report.latency
    rows.append(("frames", f"{frames}, {report.items_per_second:.1f} a second"))
    if report.items_per_second and job.expected_frame_count and state == "running":
        left = max(job.expected_frame_count - report.items, 0) / report.items_per_second
        rows.append(("time left", f"{left:.0f} s"))
    rows.append(
        (
            "delay",
            f"{latency.p50_seconds * 1e3:.0f} ms p50, {latency.p95_seconds * 1e3:.0f} p95, "
            f"{latency.p99_seconds * 1e3:.0f} p99, queues included",
        )
    )
    rows.append(("stages", ", ".join(f"{stage.name} {stage.load:.0%}" for stage in report.stages)))
    rows.append(("queues", ", ".join(f"{queue.name}: {queue.occupancy}" for queue in report.queues)))
    if report.bottleneck is not None:
        rows.append(("bottleneck", f"{report.bottleneck.stage}: {report.bottleneck.evidence}"))
    return rows


def _of_machine(sample: UtilisationSample) -> list[tuple[str, str]]:
    rows = []
    machine = (
        ""
        if sample.machine_cpu_percent is None
        else f"; the machine is {sample.machine_cpu_percent:.0f} % busy"
    )
    rows.append(("processor", f"{sample.process_cores:.1f} cores by this process{machine}"))
    if sample.resident_bytes is not None:
        rows.append(("memory", f"{sample.resident_bytes / 2**20:.0f} MiB"))
    gpu = sample.gpu
    if gpu is None:
        return rows
    told = (
        (gpu.gpu_percent, "{:.0f} % busy"),
        (gpu.decoder_percent, "decoder {:.0f} %"),
        (gpu.encoder_percent, "encoder {:.0f} %"),
        (None if gpu.memory_used_bytes is None else gpu.memory_used_bytes / 2**30, "{:.1f} GiB in use"),
        (gpu.power_watts, "{:.0f} W"),
        (gpu.temperature_celsius, "{:.0f} °C"),
    )
    parts = [text.format(value) for value, text in told if value is not None]
    if gpu.throttling:
        parts.append(f"held back by {', '.join(gpu.throttling)}")
    rows.append(("GPU", ", ".join(parts)))
    return rows


def _pipeline(job: Job) -> PipelineReport | None:
    if job.report is not None:
        return job.report.pipeline
    run = job.run  # taken once: the job may end between two looks
    return None if run is None else run.snapshot()


def _frames_done(job: Job) -> int | None:
    if job.report is not None:
        return job.report.frame_count
    report = _pipeline(job)
    return None if report is None else report.items
