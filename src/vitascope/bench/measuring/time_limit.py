"""A pipeline that is stopped after so many seconds of work; opening files and networks does not count."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitascope.config import OutputKind
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.segmentation.segmenter import Segmenter, Started

__all__ = ["stopping_after", "warm_up"]


@contextmanager
def stopping_after(seconds: float) -> Iterator[Callable[[Started], None]]:
    """What a segmenter's ``on_start`` takes, so that the run ends in good order when its time is over.

    Args:
        seconds: From the first frame; a shorter film ends earlier.
    """
    timers: list[threading.Timer] = []

    def start_clock(started: Started) -> None:
        assert isinstance(started.pipeline, Pipeline)  # the work is not shared among processes
        timer = threading.Timer(seconds, started.pipeline.stop)
        timer.name = "vitascope-limit"
        timers.append(timer)
        timer.start()

    try:
        yield start_clock
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


_MOST_SECONDS = 3.0
"""How long a long video is run; what was read until then goes through to the end, at least one whole batch."""


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
