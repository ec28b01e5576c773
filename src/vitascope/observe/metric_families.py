"""Every metric that is exported: its name, its type, its labels, and what it counts.

Names follow https://prometheus.io/docs/practices/naming/: the unit is in the name, in base units; a counter ends with
``_total``. No label takes more values than there are stages, queues, sinks, GPUs or kinds of errors: files have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, with all its labels' values."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    """One sentence."""


FAMILIES = (
    Family("vitascope_build_info", "gauge", ("version",), "1, with the version in a label."),
    Family("vitascope_jobs_total", "counter", ("status",), "Jobs that ended: done, skipped, failed or stopped."),
    Family("vitascope_job_running", "gauge", (), "1 while a job runs."),
    Family("vitascope_job_frames", "gauge", (), "Frames of the running job that are finished."),
    Family("vitascope_job_expected_frames", "gauge", (), "Frames that the running job will have, where it knows."),
    Family("vitascope_frames_total", "counter", (), "Frames that were finished."),
    Family("vitascope_frame_latency_seconds", "histogram", (), "Way of a frame through all stages and queues."),
    Family("vitascope_captured_frames_total", "counter", (), "Live: pictures that the camera gave."),
    Family("vitascope_repeated_frames_total", "counter", (), "Live: pictures shown again for want of movement."),
    Family("vitascope_faceless_frames_total", "counter", (), "Live: pictures without a face."),
    Family("vitascope_dropped_frames_total", "counter", ("place",), "Pictures that newer ones replaced."),
    Family("vitascope_damaged_frames_total", "counter", (), "What could not be decoded of inputs."),
    Family("vitascope_errors_total", "counter", ("kind",), "Jobs that failed, by the name of the error."),
    Family("vitascope_stage_workers", "gauge", ("stage",), "Threads of a stage."),
    Family("vitascope_stage_items_total", "counter", ("stage",), "Items that a stage took; a source: gave."),
    Family("vitascope_stage_busy_seconds_total", "counter", ("stage",), "A stage's own work, over its threads."),
    Family("vitascope_stage_busy_ratio", "gauge", ("stage",), "Share of the job's time that a stage works, 0 to 1."),
    Family("vitascope_stage_latency_seconds", "histogram", ("stage",), "Time of a stage for one item."),
    Family("vitascope_queue_items", "gauge", ("queue",), "Items that wait between two stages now."),
    Family("vitascope_queue_put_wait_seconds_total", "counter", ("queue",), "Waits for room in a queue."),
    Family("vitascope_queue_get_wait_seconds_total", "counter", ("queue",), "Waits for an item of a queue."),
    Family("vitascope_sink_frames_total", "counter", ("sink",), "Live: pictures that reached a sink."),
    Family("vitascope_sink_up", "gauge", ("sink",), "Live: 1 while a sink takes pictures, else 0."),
    Family("vitascope_cpu_seconds_total", "counter", (), "Processor time of jobs, worker processes included."),
    Family("vitascope_resident_memory_bytes", "gauge", (), "Main memory of this process."),
    Family("vitascope_gpu_memory_bytes", "gauge", ("gpu",), "Memory of a GPU in use, by all processes."),
    Family("vitascope_gpu_memory_limit_bytes", "gauge", ("gpu",), "Memory that a GPU has."),
    Family(
        "vitascope_gpu_busy_ratio",
        "gauge",
        ("gpu", "unit"),
        "Load of a GPU's kernels, memory bus, decoder and encoder, 0 to 1, over the driver's last period.",
    ),
    Family("vitascope_gpu_pcie_bytes_per_second", "gauge", ("gpu", "direction"), "PCIe traffic, to and from a GPU."),
    Family("vitascope_gpu_power_watts", "gauge", ("gpu",), "Power that a GPU draws."),
    Family("vitascope_gpu_power_limit_watts", "gauge", ("gpu",), "Power that a GPU may draw."),
    Family("vitascope_gpu_temperature_celsius", "gauge", ("gpu",), "Temperature of a GPU."),
    Family("vitascope_gpu_sm_clock_hertz", "gauge", ("gpu",), "Clock of a GPU's multiprocessors."),
    Family("vitascope_gpu_throttled", "gauge", ("gpu",), "1 while a GPU is slower than it could be, by heat or power."),
)  # fmt: skip
"""All of them, in the order in which they are exported."""
