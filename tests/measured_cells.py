"""Benchmark results like a machine's, with rounds that vary from run to run and from round to round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitascope.bench.network_probe import ProbeEffort
from vitascope.bench.results import (
    BenchResults,
    Cell,
    CellKey,
    GpuFacts,
    Machine,
    Operation,
    Operations,
    Row,
)
from vitascope.gpu.profiling.bottleneck import Finding
from vitascope.gpu.profiling.utilisation import Utilisation

H200 = Machine(
    system="Linux",
    processor="Xeon",
    cores=16,
    memory_bytes=128 << 30,
    gpus=(GpuFacts(name="NVIDIA H200", driver="580.1", memory_bytes=140 << 30, sm_clock_mhz=1980.0),),
    versions={"python": "3.12.1", "vitascope": "0.1.0"},
    commit="abc1234",
)
LAPTOP = replace(H200, processor="Ryzen", cores=8, memory_bytes=16 << 30, gpus=())

SHORT_PROBE = ProbeEffort(fewest_calls=2, most_calls=2, seconds=0, traced_calls=1)
"""What tests of other things give the suite."""

VERDICT = Finding(
    kind="encode_bound",
    stage="encode",
    title="encoding and writing the output sets the pace",
    evidence=("encode was busy 97% of the time",),
    advice="a faster preset",
    expected_gain=1.4,
    confidence="high",
)


def key_of(resolution="1080p", batch=4, precision="fp16", stereo="mono", **fields) -> CellKey:
    width, height = {"1080p": (1920, 1080), "4K": (3840, 2160), "8K": (7680, 4320)}.get(
        resolution, (640, 360)
    )
    return CellKey(
        **{
            "clip": "synthetic",
            "resolution": resolution,
            "width": width,
            "height": height,
            "batch": batch,
            "precision": precision,
            "stereo": stereo,
            "output": "key",
            **fields,
        }
    )


def cell_of(key: CellKey, rates, *, frame_times=None, vram_mb=4000.0, stages=None, **fields) -> Cell:
    rates = [float(rate) for rate in rates]
    times = frame_times or [1e3 / rate for rate in rates]
    stages = stages or {"decode": 1.0, "preprocess": 0.5, "matte": 6.0, "download": 0.7, "encode": 9.0}
    rows = (
        Row.of("throughput", "frames/s", rates),
        Row.of("frame_time", "ms", times),
        Row.of("latency", "ms", [40.0 + time for time in times]),
        *(Row.of(f"stage/{name}", "ms", [each]) for name, each in stages.items()),
        Row.of("peak_ram", "MB", [900.0]),
        Row.of("peak_vram", "MB", [vram_mb]),
    )
    load = Utilisation(sample_count=9, seconds=1.0, cores=16, process_cores=3.0, gpu_percent=72.0)
    return Cell(
        key=key,
        status="measured",
        device="NVIDIA H200",
        engine="inductor",
        decoder="NVDEC",
        model="rvm",
        network_size=(288, 512),
        frames=96,
        rounds=len(rates),
        alpha_error=0.001,
        rows=rows,
        load=load,
        verdict=VERDICT,
        **fields,
    )


def with_operators(cell: Cell, *, network_ms=1.0) -> Cell:
    """Make a cell with the table of its network's operators."""
    conv = Operation(
        name="Conv_1", kind="Conv", shape="4x16x144x256", calls=1, ms=0.6, share=0.6, mbytes=12.0
    )
    resize = replace(conv, name="Resize_2", kind="Resize", ms=0.4, share=0.4, mbytes=30.0)
    return replace(
        cell,
        rows=(*cell.rows, Row.of("network", "ms", [network_ms] * 5)),
        operations=Operations(
            source="onnxruntime",
            ms=1.0,
            operator_count=2,
            by_time=(conv, resize),
            by_memory=(resize, conv),
            share_by_kind={"Conv": 0.6, "Resize": 0.4},
        ),
    )


def results_of(*cells: Cell, machine: Machine = H200, **fields) -> BenchResults:
    return BenchResults(
        **{
            "kind": "suite",
            "began_at": "2026-11-21T12:00:00+00:00",
            "finished": True,
            "machine": machine,
            "workload": {"suite": "full"},
            "cells": cells,
            **fields,
        }
    )


def noisy_run(draws: np.random.Generator, *, slowdown=1.0, rounds=7, noise=0.02, drift=0.01) -> BenchResults:
    """Make a suite of eight cells; each run's speed varies, as does each round, and some rounds stumble."""
    day = float(np.exp(draws.normal(0, drift)))
    cells = []
    for resolution, fps in (("1080p", 480.0), ("4K", 150.0)):
        for batch, gain in ((1, 0.7), (4, 0.9), (8, 1.0), (16, 1.02)):
            times = np.exp(draws.normal(0, noise, rounds)) * np.where(draws.random(rounds) < 0.05, 1.08, 1.0)
            cells.append(cell_of(key_of(resolution, batch), fps * gain / (times * day * slowdown)))
    return results_of(*cells)
