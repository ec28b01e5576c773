"""Where does the time of a pipeline go? Spans, memory, load, and the verdict, for a pipeline with a slow stage.

Usage: python examples/profile_pipeline.py [--device cpu] [--frames 60] [--out profile/]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from vitascope.errors import MissingDependencyError
from vitascope.gpu import BottleneckDetector, Group, Map, MemoryProfiler, Pipeline, Profiler, Sink, Source
from vitascope.gpu.pipeline import Batched
from vitascope.gpu.profiling.bottleneck import Verdict
from vitascope.gpu.profiling.pipeline_profile import profiled_stages
from vitascope.gpu.profiling.utilisation import UtilisationSampler

Frame = np.ndarray


def main(
    *, device: Literal["auto", "cuda", "cpu"] = "auto", frames: int = 60, out: Path | None = None
) -> Verdict:
    """Run the pipeline under the profiler; print the tables, write the files, return the verdict."""
    profiler = Profiler("example", device=device)

    @profiler.profiled
    def shrink(frame: Frame) -> Frame:
        return cv2.resize(frame, (128, 72), interpolation=cv2.INTER_AREA)

    def infer(batch: Sequence[Frame]) -> list[Frame]:
        with profiler.profile("stack"):
            images = np.stack(batch)
        with profiler.profile("network"):
            return list(images.mean(axis=3))

    def draw(mask: Frame) -> Frame:
        """The slow one, on purpose: a strong blur, at full size."""
        return cv2.GaussianBlur(cv2.resize(mask, (640, 360)), (0, 0), 9)

    drawn: list[Any] = []
    random = np.random.default_rng(0)
    source = (random.integers(0, 255, (360, 640, 3), np.uint8) for _ in range(frames))
    stages = [
        Source("decode", source),
        Map("preprocess", shrink),
        Group("infer", Batched(infer, size=4)),
        Map("postprocess", draw),
        Sink("encode", lambda picture: drawn.append(picture.mean())),
    ]
    with (
        UtilisationSampler(interval_seconds=0.05, device=device) as sampler,
        MemoryProfiler(device=device) as memory,
    ):
        report = Pipeline(profiled_stages(stages, profiler)).run()

    profiler.print_summary()
    memory.print_summary()
    verdict = BottleneckDetector().analyze(
        report, utilisation=sampler.summary(), gpu_seconds=profiler.gpu_seconds()
    )
    print(verdict.text())
    if out is not None:
        profiler.export_json(out / "profile.json", utilisation=sampler.samples())
        profiler.export_chrome_trace(out / "trace.json", utilisation=sampler.samples())
        print(f"ui.perfetto.dev opens {out / 'trace.json'}")
        try:
            profiler.export_html(out / "profile.html")
            profiler.export_png(out / "profile.png")
            print(f"{out / 'profile.html'} shows it, too")
        except MissingDependencyError as error:  # what draws charts is in an extra
            print(f"no charts: {error}")
    return verdict


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "vitascope-profile")
    options = parser.parse_args()
    main(device=options.device, frames=options.frames, out=options.out)
