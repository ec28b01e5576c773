"""Run ``segment`` for a few seconds and discard its output.

It is also a program, so that a tool can watch it from outside::

    python -m vitascope.bench.limited_run VIDEO --seconds 30
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

from vitascope.bench.measured_run import ALONE
from vitascope.config import OutputKind, SettingsSource
from vitascope.device import Device, select_device
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.run_profile import profile_paths
from vitascope.segmentation.segmenter import Segmenter, Started

_KIND: OutputKind = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedRun(SettingsSource):
    """The video to run, and the source of its settings."""

    video: Path
    seconds: float
    """Limit of the time for work, counted once everything is open; a shorter video ends earlier."""

    def device(self) -> Device:
        """The device that computes.

        Raises:
            ConfigError: A setting is unknown or out of range.
            DeviceError: A GPU that was requested is missing.
        """
        gpu = self.load().settings.gpu
        return select_device(gpu.device, index=gpu.device_id)

    def arguments(self) -> list[str]:
        """The same settings as command-line arguments of this program."""
        return [str(self.video), "--seconds", f"{self.seconds:g}", *self.options()]


def run_for(
    run: LimitedRun,
    *,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    keep_in: Path | None = None,
    marks_work: bool = False,
) -> SegmentReport:
    """Segment a video for a limited time, without keeping its pictures. On a GPU the network is warmed up first.

    Args:
        run: What to run. Settings that distribute or skip work are switched off: tools watch one process, and the
            warmed-up network has seen the video already.
        around: Makes a context that is entered around the work, once the network is open.
        keep_in: Folder for the profile of ``debug.profile_performance``; no profile is written when omitted.
        marks_work: Mark the beginning and end of the work for NVIDIA's tools, so that they can leave out what comes
            before.

    Raises:
        VitascopeError: As ``Segmenter``.
    """
    loaded = run.load(
        {**ALONE, "debug.profile_performance": keep_in is not None}, chosen_by="the measurement"
    )
    with tempfile.TemporaryDirectory(prefix="vitascope-") as folder, Segmenter(loaded=loaded) as segmenter:
        out = Path(folder) / "discarded.mp4"
        warm_up(segmenter, run.video, kind=_KIND)
        marks = _marked(segmenter.device) if marks_work else nullcontext()
        with stopping_after(run.seconds) as start_clock, around(), marks:
            try:
                report = segmenter.write(run.video, [(_KIND, out)], on_start=start_clock)
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt from error  # its message names a file that is deleted with the folder
        if keep_in is not None:
            keep_in.mkdir(parents=True, exist_ok=True)
            for path, name in zip(profile_paths(out), ("stages.json", "stages.trace.json"), strict=True):
                copyfile(path, keep_in / name)
    return report


@contextmanager
def _marked(device: Device) -> Iterator[None]:
    """Call ``cudaProfilerStart`` and ``cudaProfilerStop`` around a block; does nothing on a CPU."""
    if device.kind != "cuda":
        yield
        return
    import cupy
    from cupyx.profiler import profile

    with cupy.cuda.Device(device.index), profile():
        yield


@contextmanager
def stopping_after(seconds: float) -> Iterator[Callable[[Started], None]]:
    """Make an ``on_start`` for a segmenter that ends the run in an orderly way when its time is over.

    Args:
        seconds: Time from the first frame on; a shorter video ends earlier.
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
"""Time limit of the warm-up on a long video; frames read by then are processed to the end, at least one whole batch."""


def warm_up(segmenter: Segmenter, video: Path, *, kind: OutputKind) -> None:
    """Build kernels and record CUDA graphs, which takes seconds, once per network; does nothing on a CPU.

    Otherwise a measurement of a short video would mostly measure the recording.

    Args:
        segmenter: Open, and in this process; it keeps what was built.
        video: The video to be measured, since graphs are recorded for particular sizes.
        kind: Kind of picture to make.

    Raises:
        InputError: The video cannot be read.
        PipelineError: A stage failed.
    """
    if segmenter.device.kind != "cuda":
        return
    with (
        tempfile.TemporaryDirectory(prefix="vitascope-warm-up-") as folder,
        stopping_after(_MOST_SECONDS) as start_clock,
    ):
        segmenter.write(video, [(kind, Path(folder) / "discarded.mp4")], on_start=start_clock)


def _main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m vitascope.bench.limited_run")
    parser.add_argument("video", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--profile")
    parser.add_argument("-c", "--config", type=Path, action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep-in", type=Path)
    given = parser.parse_args(words)
    run = LimitedRun(
        video=given.video,
        seconds=given.seconds,
        profile=given.profile,
        files=tuple(given.config),
        assignments=tuple(given.set),
    )
    run_for(run, keep_in=given.keep_in, marks_work=True)


if __name__ == "__main__":
    _main()
