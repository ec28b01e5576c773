"""``segment`` with a clock at both ends of its pipeline, optionally without an encoder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.config import OutputKind
from vitascope.frames import Frame
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.gpu.pipeline.stages import Sink
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.film_run import FilmRun, FilmRunner
from vitascope.segmentation.output_encoding import check_kinds
from vitascope.segmentation.render.renderer import Rendered
from vitascope.segmentation.report import GpuReport
from vitascope.segmentation.segmenter import Segmenter, Started
from vitascope.segmentation.writing import FramesUntilDamage, OutputSet, finish_files

ALONE: Mapping[str, Any] = {
    "processing.use_multiprocessing": False,
    "processing.cluster": None,
    "processing.enable_caching": False,
    "gpu.device_ids": None,
    "debug.profile_performance": False,
}
"""Settings of a measured run: other processes and caches would hide what it does."""
_SHORTAGE = "continued with"
"""Appears in a job's note when its batch did not fit and was made smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One pass through a video."""

    frame_count: int
    wall_seconds: float
    """Time from the first frame requested to the last one encoded, including the encoder's own queue but not the
    opening of files and networks."""
    left_seconds: tuple[float, ...]
    """When each frame left the decoder, in seconds since the start of the run."""
    done_seconds: tuple[float, ...]
    """When the encoder took each frame, or the frame was discarded."""
    finish_seconds: float
    """Part of ``wall_seconds`` in which the encoder finished its work after the last frame; 0 without an encoder."""
    pipeline: PipelineReport
    gpu: GpuReport | None
    decoder: str
    frames_per_call: int
    """Frames per call of the network, as set."""
    network_size: tuple[int, int]
    """(height, width) of the network's picture."""
    damaged_count: int
    """Packets and pictures skipped because they could not be decoded."""
    notes: tuple[str, ...]

    @property
    def shortage_note(self) -> str | None:
        """Why its batches were smaller than set: they did not fit into GPU memory. None if they were not."""
        return next((note for note in self.notes if _SHORTAGE in note), None)

    def frames_per_second(self, batch: int) -> float:
        """Throughput in the steady state.

        The first batch, during which queues fill, is left out; the encoder's remaining work at the end is included.

        Args:
            batch: Frames per call of the network, which come out together. At least one more frame must have come
                out.
        """
        return (self.frame_count - batch) / (self.wall_seconds - self.done_seconds[batch - 1])

    def latencies_ms(self) -> list[float]:
        """Time from the decoder to the end for each frame; frames wait in queues by design."""
        return [(done - left) * 1e3 for left, done in zip(self.left_seconds, self.done_seconds, strict=True)]

    def frame_times_ms(self, batch: int) -> list[float]:
        """Time per frame in the steady state: the time of a whole batch over its frames, without the first batch.

        Args:
            batch: Frames per call of the network, which come out together.
        """
        marks = self.done_seconds[batch - 1 :: batch]
        return [(after - before) * 1e3 / batch for before, after in pairwise(marks)]


class MeasuredSegmenter(Segmenter):
    """A ``Segmenter`` measured from outside. The settings in ``ALONE`` keep its work in this process."""

    @property
    def store(self) -> ModelStore:
        """The store of its networks."""
        return self._alone().store

    def _alone(self) -> FilmRunner:
        assert isinstance(self._runner, FilmRunner)  # ALONE switches other processes off
        return self._runner

    def measure(
        self,
        video: Path,
        *,
        kind: OutputKind,
        discard: bool = False,
        on_start: Callable[[Started], object] | None = None,
    ) -> MeasuredRun:
        """Segment a video once; the outputs are deleted with their folder.

        Args:
            video: The input.
            kind: Kind of picture to make.
            discard: Make every picture, but encode none.
            on_start: Called from this thread once everything is open.

        Raises:
            InputError: The input cannot be read.
            PipelineError: A stage failed.
        """
        runner = self._alone()
        check_kinds([kind], self.settings.output)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitascope-bench-")))
            reader = stack.enter_context(runner.open_video(video))
            outputs = [(kind, folder / "measured.mp4")]
            encodings = runner.encodings(reader, outputs)
            source = FramesUntilDamage(reader)
            film = stack.enter_context(FilmRun(runner, reader, [(kind, encodings[0])], keeps_mattes=False))
            clock = _Clock()
            files: OutputSet | None = None
            if not discard:
                files = stack.enter_context(film.files(outputs, encodings))
            pipeline = film.pipeline(
                clock.leaving(source),
                wants_alpha=lambda _: False,
                then=[Sink("discard", clock.done_with) if files is None else _encoding(files, clock)],
            )
            if on_start is not None:
                on_start(Started(pipeline, reader.expected_frame_count))
            clock.start()
            measured = pipeline.run()
            taken = perf_counter()
            source.raise_damage()
            if files is not None and measured.items:  # a time limit may end a run before its first frame
                finish_files(files)
            ended = perf_counter()
            return MeasuredRun(
                frame_count=measured.items,
                wall_seconds=ended - clock.began,
                left_seconds=tuple(clock.left[: measured.items]),
                done_seconds=tuple(clock.done),
                finish_seconds=0.0 if files is None else ended - taken,
                pipeline=measured,
                gpu=film.job.gpu_report(),
                decoder=reader.decoder,
                frames_per_call=runner.frames_per_call(reader),
                network_size=film.job.matting.network_input.size,
                damaged_count=reader.corrupt_count,
                notes=tuple(film.job.notes),
            )

    def alphas(self, video: Path, *, count: int) -> list[npt.NDArray[np.float32]]:
        """The first mattes of a video: float32 [H, W], 0..1, in host memory.

        Raises:
            InputError: The input cannot be read.
            PipelineError: A stage failed.
        """
        with closing(self.stream(video)) as steps:
            return [alpha_shares(step.alpha) for step in islice(steps, count)]


class _Clock:
    """Records when frames pass; only the decoder's thread uses the first list, only the sink's the second."""

    def __init__(self) -> None:
        self.began = 0.0
        self.left: list[float] = []
        self.done: list[float] = []

    def start(self) -> None:
        """Start the clock."""
        self.began = perf_counter()

    def leaving(self, frames: FramesUntilDamage) -> Iterator[Frame]:
        """Yield the same frames, recording when each leaves."""
        for frame in frames:
            self.left.append(perf_counter() - self.began)
            yield frame

    def done_with(self, _: Rendered) -> None:
        """Record that a frame is done."""
        self.done.append(perf_counter() - self.began)


def _encoding(files: OutputSet, clock: _Clock) -> Sink[Rendered]:
    def encode(rendered: Rendered) -> None:
        files.write(rendered)
        clock.done_with(rendered)

    return Sink("encode", encode)


def alpha_shares(alpha: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Convert a matte's uint8 or uint16 codes to float32, 0..1."""
    return np.asarray(alpha, np.float32) / np.float32(np.iinfo(alpha.dtype).max)
