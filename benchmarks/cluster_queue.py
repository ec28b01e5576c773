"""Measure what a queue of many short videos costs the distributing process: time per video, and memory.

Ray, the folder of videos and the driver's work are real; a stand-in for the segmenter answers at once with
the report of a real run. So the figures are those of the queue alone.

Prediction: opening a video's headers costs some milliseconds, a request to Ray and its answer one or two;
    only a video's two paths are kept, so memory does not grow.

Usage: python benchmarks/cluster_queue.py [--videos 10000] [--out FILE]

A row goes to ``benchmarks/results/cluster_queue.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import av
import numpy as np

from row_stamp import RESULTS, commit, write_rows
from vitascope.config import load_settings
from vitascope.device import available_cores
from vitascope.gpu.profiling.utilisation import resident_bytes
from vitascope.segmentation.batch import plan_batch, segment_all
from vitascope.segmentation.processes import cluster
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.segmenter import Segmenter

FRAMES = 25
LOGICAL_CORES = 8
"""Resources that Ray is told of: for two makers."""


def one_second(path: Path) -> Path:
    """Make a video of one second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FRAMES, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
        for n in range(FRAMES):
            shade = np.full((180, 320, 3), 5 * n, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade)))
        container.mux(stream.encode())
    return path


def stand_in(report: SegmentReport) -> type:
    """The stand-in for the segmenter on a node."""

    class Quick(cluster._Actor):
        def make(self, order: Any) -> SegmentReport:
            (written,) = report.outputs
            return replace(report, input=order.video, outputs=(replace(written, path=order.outputs[0][1]),))

    return Quick


def run(folder: Path, videos: int, report: SegmentReport) -> dict[str, Any]:
    """Run a queue of that many videos."""
    films = folder / f"films{videos}"
    films.mkdir()
    for n in range(videos):
        (films / f"{n:05}.mp4").hardlink_to(folder / "film.mp4")
    settings = {"processing.cluster": "auto", "gpu.device": "cpu"}
    loaded = load_settings(profile="fast", flags=settings)
    cluster._Actor = stand_in(report)  # type: ignore[misc]
    with Segmenter(loaded=loaded) as segmenter:
        gc.collect()
        memory = [resident_bytes()]
        cpu, began = time.process_time(), time.perf_counter()
        planned = plan_batch([films], folder / "cut", loaded.settings)
        done = 0
        for outcome in segment_all(segmenter, planned):
            assert outcome.error is None, outcome.error
            done += 1
            if done % (videos // 10) == 0:
                memory.append(resident_bytes())
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    assert done == videos
    return {
        "videos": videos,
        "driver_ms_a_video": round(1000 * cpu / videos, 2),
        "wall_ms_a_video": round(1000 * wall / videos, 2),
        "driver_memory_mb": [round((held or 0) / 1e6, 1) for held in memory],
    }


def main() -> None:
    """Measure, print, and keep the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--videos", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "cluster_queue.json")
    options = parser.parse_args()
    import ray

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one_second(folder / "film.mp4")
        with Segmenter(profile="fast", settings={"gpu.device": "cpu"}) as segmenter:
            report = segmenter.write(folder / "film.mp4", [("key", folder / "cut.mp4")])
        ray.init(
            num_cpus=LOGICAL_CORES,
            include_dashboard=False,
            namespace=cluster.CLUSTER_NAMESPACE,
            log_to_driver=False,
        )
        try:
            row = run(folder, options.videos, report)
        finally:
            ray.shutdown()
    row = {
        "claim": "a queue of one-second videos, without what cuts them",
        **row,
        "ray": version("ray"),
        "machine": f"{platform.machine()}, {available_cores()} cores",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(row))
    write_rows(options.out, [row])


if __name__ == "__main__":
    main()
