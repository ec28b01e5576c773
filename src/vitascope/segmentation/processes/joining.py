"""The files and the reports of several processes that worked on one video, as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import cast

from vitascope.gpu.pipeline.queues import QueueReport
from vitascope.gpu.pipeline.report import Latency, PipelineReport, StageReport
from vitascope.gpu.profiling.pace import find_bottleneck
from vitascope.media.writing.segment_encoder import JoiningWriter
from vitascope.segmentation.processes.stretch_file import Encoded
from vitascope.segmentation.report import GpuReport
from vitascope.segmentation.writing import OutputSet


def join_pipeline_reports(
    reports: Sequence[PipelineReport],
    *,
    processes: int,
    frame_count: int,
    wall_seconds: float,
    finished: bool,
) -> PipelineReport:
    """One report of pipelines with the same stages.

    Times and counts are sums, and a stage's load is its busy time over the time that its pipelines ran. Percentiles are
    means of the parts', weighted by their counts: good enough to compare stages, no longer exact.

    Args:
        reports: Reports of every stretch so far; those of stretches at work included.
        processes: How many work at a time.
        frame_count: Frames that were encoded; warm-ups are in no count but those of stages.
        wall_seconds: Since the run began.
        finished: True when all is done.
    """
    if not reports:
        return PipelineReport(
            stages=(),
            queues=(),
            latency=Latency(count=frame_count),
            wall_seconds=wall_seconds,
            cores_busy=0.0,
            finished=finished,
            stopped=False,
            bottleneck=None,
        )
    ran_seconds = sum(report.wall_seconds for report in reports)
    columns = zip(*(report.stages for report in reports), strict=True)
    stages = tuple(_join_stages(column, ran_seconds, processes) for column in columns)
    queues = tuple(
        _join_queues(column) for column in zip(*(report.queues for report in reports), strict=True)
    )
    latency = _join_latencies([report.latency for report in reports], count=frame_count)
    cpu_seconds = sum(report.cores_busy * report.wall_seconds for report in reports)
    return PipelineReport(
        stages=stages,
        queues=queues,
        latency=latency,
        wall_seconds=wall_seconds,
        cores_busy=cpu_seconds / wall_seconds if wall_seconds else 0.0,
        finished=finished,
        stopped=any(report.stopped for report in reports),
        bottleneck=find_bottleneck(stages, queues, wall_seconds=ran_seconds),
    )


def join_gpu_reports(reports: Sequence[GpuReport | None]) -> GpuReport | None:
    """Time of all GPUs together, and the most memory that one of them had in use; None when none drew."""
    drawn = [report for report in reports if report is not None]
    if not drawn:
        return None
    spans: dict[str, float] = {}
    for report in drawn:
        for name, seconds in report.span_seconds.items():
            spans[name] = spans.get(name, 0.0) + seconds
    return GpuReport(spans, max(report.peak_memory_bytes for report in drawn))


def _join_stages(parts: Sequence[StageReport], ran_seconds: float, processes: int) -> StageReport:
    workers = parts[0].workers
    busy_seconds = sum(part.busy_seconds for part in parts)
    return StageReport(
        name=parts[0].name,
        workers=workers * processes,
        items=sum(part.items for part in parts),
        busy_seconds=busy_seconds,
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        load=min(busy_seconds / (ran_seconds * workers), 1.0) if ran_seconds else 0.0,
        latency=_join_latencies([part.latency for part in parts]),
    )


def _join_queues(parts: Sequence[QueueReport]) -> QueueReport:
    return QueueReport(
        name=parts[0].name,
        count=sum(part.count for part in parts),
        dropped=sum(part.dropped for part in parts),
        put_wait_seconds=sum(part.put_wait_seconds for part in parts),
        get_wait_seconds=sum(part.get_wait_seconds for part in parts),
        occupancy=sum(part.occupancy for part in parts),
        occupancy_mean=sum(part.occupancy_mean for part in parts) / len(parts),
        occupancy_max=max(part.occupancy_max for part in parts),
        nbytes_max=max(part.nbytes_max for part in parts),
    )


def _join_latencies(parts: Sequence[Latency], *, count: int | None = None) -> Latency:
    weights = [part.count for part in parts]
    total = sum(weights)

    def mean(values: list[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / total if total else 0.0

    return Latency(
        count=total if count is None else count,
        mean_seconds=mean([part.mean_seconds for part in parts]),
        p50_seconds=mean([part.p50_seconds for part in parts]),
        p95_seconds=mean([part.p95_seconds for part in parts]),
        p99_seconds=mean([part.p99_seconds for part in parts]),
        max_seconds=max((part.max_seconds for part in parts), default=0.0),
        octave_counts=tuple(map(sum, zip_longest(*(part.octave_counts for part in parts), fillvalue=0))),
    )


class JoinedOutputSet(OutputSet):
    """An ``OutputSet`` that takes packets instead of pictures."""

    _writer = JoiningWriter

    def write_encoded(self, encoded: Encoded) -> None:
        """Write what the encoders of a stretch gave out into every file.

        Raises:
            OutputError: The disk failed, or a stretch does not fit the one before.
        """
        for number, writer in enumerate(self._writers):
            joining = cast("JoiningWriter", writer)
            if encoded.parameter_sets is not None:
                joining.begin_segment(encoded.parameter_sets[number])
            joining.write_encoded(encoded.times, encoded.packets[number])
