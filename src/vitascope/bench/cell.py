"""From passes over a video to the figures of one cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np

from vitascope.bench.measured_run import MeasuredRun, MeasuredSegmenter
from vitascope.bench.results import Cell, CellKey, Row
from vitascope.config import OutputKind
from vitascope.errors import InputError
from vitascope.gpu.profiling.bottleneck import BottleneckDetector, Finding
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSampler
from vitascope.observe.report_values import frames_in_words
from vitascope.segmentation.report import GpuReport
from vitascope.segmentation.run_profile import PARTS_OF_STAGES

__all__ = ["FEWEST_FRAMES", "Rounds", "cell_of_runs", "measure_rounds", "merged", "slice_rates", "too_short"]


FEWEST_FRAMES = 8
"""Fewer frames would measure little but opening the video and filling the queues."""
_SAMPLE_SECONDS = 0.1
_PEAKS = ("peak_ram", "peak_vram")
"""Rows with one sample, the most that was in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How often a video is run over: until ``seconds`` are spent, within these bounds."""

    fewest: int
    most: int
    seconds: float


def too_short(video: Path, *, frame_count: int, batch: int) -> str | None:
    """Why a video cannot be measured; None when it can.

    Args:
        video: The video.
        frame_count: Its frames.
        batch: Frames for each call of the network.
    """
    needed = max(FEWEST_FRAMES, 2 * batch)
    if frame_count >= needed:
        return None
    return (
        f"{video} has {frames_in_words(frame_count)}; batches of {batch} need {needed}: one to warm up, and one to "
        "measure"
    )


def measure_rounds(
    segmenter: MeasuredSegmenter, video: Path, *, kind: OutputKind, rounds: Rounds
) -> tuple[list[MeasuredRun], Utilisation]:
    """Run over a video several times, once unmeasured before.

    Args:
        segmenter: Open.
        video: The video.
        kind: Picture that is made and encoded.
        rounds: How often.

    Raises:
        VitascopeError: A run failed.
    """
    segmenter.measure(video, kind=kind)
    runs: list[MeasuredRun] = []
    began = perf_counter()
    with UtilisationSampler(interval_seconds=_SAMPLE_SECONDS, device_id=segmenter.device.index) as sampler:
        while len(runs) < rounds.fewest or (
            len(runs) < rounds.most and perf_counter() - began < rounds.seconds
        ):
            runs.append(segmenter.measure(video, kind=kind))
    return runs, sampler.summary()


def cell_of_runs(
    key: CellKey,
    segmenter: MeasuredSegmenter,
    runs: Sequence[MeasuredRun],
    load: Utilisation,
    *,
    rates: Sequence[float] | None = None,
    alpha_error: float | None = None,
    group_size: int | None = None,
) -> Cell:
    """The figures of a cell; a failure where its batch did not fit into the GPU's memory.

    Args:
        key: What was measured.
        segmenter: What measured it.
        runs: At least one; the verdict is about the one of median speed.
        load: Of CPU and GPU meanwhile.
        rates: Frames a second, the samples of ``throughput``; one for each run when omitted.
        alpha_error: Of the mattes.
        group_size: Frames that are timed together; the key's batch when omitted, which is how they come out.

    Raises:
        InputError: Too few frames came out.
    """
    shrunk = next((note for run in runs if (note := run.shortage_note)), None)
    if shrunk is not None:
        return Cell(key=key, status="failed", reason=shrunk, device=segmenter.device.label)
    group_size = group_size or key.batch
    frame_times = [time for run in runs for time in run.frame_times_ms(group_size)]
    if not frame_times:
        raise InputError(f"{key.clip}: only {runs[0].frame_count} frames came out, too few to measure")
    typical = sorted(runs, key=lambda run: run.frames_per_second(group_size))[len(runs) // 2]
    rows = [
        Row.of("throughput", "frames/s", rates or [run.frames_per_second(group_size) for run in runs]),
        Row.of("frame_time", "ms", frame_times),
        Row.of("latency", "ms", [latency for run in runs for latency in run.latencies_ms()]),
        *_stage_rows(runs),
        *_memory_rows(runs, load),
    ]
    network = segmenter.chosen.network
    return Cell(
        key=key,
        status="measured",
        device=segmenter.device.label,
        engine=network.engine_name,
        decoder=typical.decoder,
        model=network.name,
        network_size=typical.network_size,
        frames=typical.frame_count,
        rounds=len(runs),
        damaged_count=sum(run.damaged_count for run in runs),
        alpha_error=alpha_error,
        rows=tuple(rows),
        load=load,
        verdict=_verdict(typical, load),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def merged(cell: Cell, again: Cell) -> Cell:
    """A cell with the samples of another visit behind its own.

    Args:
        cell: Measured; load, verdict and operators stay what its own rounds said.
        again: Of the same key. Where it was not measured the cell stays, with a note.
    """
    if again.status != "measured":
        return replace(cell, notes=(*cell.notes, f"a later visit was not measured: {again.reason}"))
    return replace(
        cell,
        rounds=cell.rounds + again.rounds,
        damaged_count=cell.damaged_count + again.damaged_count,
        rows=tuple(_with_samples(row, again.row(row.name)) for row in cell.rows),
        notes=tuple(dict.fromkeys((*cell.notes, *again.notes))),
    )


def _with_samples(row: Row, more: Row | None) -> Row:
    if more is None:
        return row
    samples = (*row.samples, *more.samples)
    return Row.of(row.name, row.unit, [max(samples)] if row.name in _PEAKS else samples)


def slice_rates(run: MeasuredRun, *, slices: int, batch: int) -> list[float]:
    """Frames a second in consecutive parts of one pass, the first part left out: it fills the queues.

    Args:
        run: The pass.
        slices: Parts; fewer where the video is short.
        batch: Frames that come out together; no part is cut inside such a group.
    """
    marks = np.asarray(run.done_seconds[batch - 1 :: batch])
    edges = np.unique(np.linspace(0, len(marks) - 1, slices + 1).astype(int))
    if len(edges) > 2:
        edges = edges[1:]
    return [
        float((after - before) * batch / (marks[after] - marks[before])) for before, after in pairwise(edges)
    ]


def _stage_rows(runs: Sequence[MeasuredRun]) -> list[Row]:
    """Milliseconds of work for each frame, by stage; on a GPU its own time, too."""
    rows = [
        Row.of(
            f"stage/{stage.name}",
            "ms",
            [run.pipeline.stages[n].busy_seconds * 1e3 / run.frame_count for run in runs],
        )
        for n, stage in enumerate(runs[0].pipeline.stages)
    ]
    if any(run.finish_seconds for run in runs):
        rows.append(
            Row.of("stage/finish", "ms", [run.finish_seconds * 1e3 / run.frame_count for run in runs])
        )
    reports = [run.gpu for run in runs if run.gpu is not None]
    for name in reports[0].span_seconds if reports else ():
        spans = [run.gpu.span_seconds.get(name, 0.0) * 1e3 / run.frame_count for run in runs if run.gpu]
        rows.append(Row.of(f"gpu/{name}", "ms", spans))
    return rows


def _memory_rows(runs: Sequence[MeasuredRun], load: Utilisation) -> list[Row]:
    rows = []
    if load.resident_bytes_max is not None:
        rows.append(Row.of("peak_ram", "MB", [load.resident_bytes_max / 1e6]))
    peaks = [run.gpu.peak_memory_bytes for run in runs if run.gpu is not None and run.gpu.peak_memory_bytes]
    if load.memory_used_bytes_max is not None:
        peaks.append(load.memory_used_bytes_max)
    if peaks:
        rows.append(Row.of("peak_vram", "MB", [max(peaks) / 1e6]))
    return rows


def _verdict(run: MeasuredRun, load: Utilisation) -> Finding:
    return BottleneckDetector().analyze(run.pipeline, utilisation=load, gpu_seconds=_by_stage(run.gpu)).main


def _by_stage(gpu: GpuReport | None) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for name, spent in ({} if gpu is None else gpu.span_seconds).items():
        stage = PARTS_OF_STAGES.get(name, name)
        seconds[stage] = seconds.get(stage, 0.0) + spent
    return seconds
