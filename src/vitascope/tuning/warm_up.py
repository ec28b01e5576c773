"""The beginning of a film, run once before it is measured: on a GPU the first frames are not like the others."""

from __future__ import annotations

import tempfile
from pathlib import Path

from vitascope.config import OutputKind
from vitascope.segmentation.segmenter import Segmenter
from vitascope.tuning.time_limit import stopping_after

__all__ = ["warm_up"]

_MOST_SECONDS = 3.0
"""Of a long film; what was read until then goes through to the end, so that at least one whole batch does."""


def warm_up(segmenter: Segmenter, video: Path, *, kind: OutputKind) -> None:
    """Build kernels and record CUDA graphs, which takes seconds and happens once for each network; on a CPU, nothing.

    Without it a measurement of a short film is one of its beginning: on one H200, recording took 1.1 s where the other
    230 frames took 0.1 s, and the verdict on the run was about the recording.

    Args:
        segmenter: Open, in this process; it keeps what was built.
        video: The film that will be measured, since graphs are recorded for sizes.
        kind: Picture that will be made.

    Raises:
        InputError: The film cannot be read.
        PipelineError: A stage failed.
    """
    if segmenter.device.kind != "cuda":
        return
    with (
        tempfile.TemporaryDirectory(prefix="vitascope-warm-up-") as folder,
        stopping_after(_MOST_SECONDS) as start_clock,
    ):
        segmenter.write(video, [(kind, Path(folder) / "discarded.mp4")], on_start=start_clock)
