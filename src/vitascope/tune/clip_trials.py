"""One trial of a tuner: a short run of ``Segmenter`` over the user's clip, and how far its mattes are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.bench.measured_run import MeasuredRun, MeasuredSegmenter
from vitascope.config import LoadedSettings, SettingsSource
from vitascope.config.settings import value_of
from vitascope.device import Device
from vitascope.errors import InputError, OutputError, VitascopeError, one_line
from vitascope.gpu.memory.shortage import is_out_of_memory, release_idle_memory
from vitascope.gpu.pipeline.report import Bottleneck
from vitascope.media.reading.reader import probe
from vitascope.observe.report_values import frames_in_words
from vitascope.segmentation.segmenter import Segmenter
from vitascope.tune.knobs import QUALITY_KEYS
from vitascope.tune.search import Measured

__all__ = ["LEAST_FRAMES", "ClipTrials", "Shown"]

WARM_UP_FRAMES = 16
"""The first frames of a run, in which caches fill, graphs are recorded and threads start."""
LEAST_FRAMES = 48
"""Warm-up, and two of the largest batches."""
_COMPARED_FRAMES = 24
_MOST_COMPARED_WIDTH = 1920

# One process, and a network that really runs, whatever the job itself will do.
_ALONE: Mapping[str, Any] = {
    "processing.use_multiprocessing": False,
    "processing.cluster": None,
    "gpu.device_ids": None,
    "processing.enable_caching": False,
    "debug.profile_performance": False,
    "performance.auto_tune": False,
}
_REFERENCE: Mapping[str, Any] = {
    "gpu.precision": "fp32",
    "gpu.allow_tf32": False,
    "inference.skip_static": 0.0,
    "inference.region": "whole",
    "inference.early_exit": "off",
    "inference.scales": [1.0],
}
"""FP32, every frame shown whole, nothing guessed."""

_Mattes = list[npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Shown:
    """What the first run says of clip and network."""

    measured: Measured
    device: Device
    network: str
    network_size: tuple[int, int]
    """(height, width) of the network's picture."""
    frames_per_call: int
    """Frames in a call of the network."""
    pace: str | None = None
    """What set the pace, in words; None where no stage did."""
    run_seconds: float = 0.0
    """How long one trial takes, opening the network included."""


class ClipTrials:
    """Measures settings on the beginning of a clip.

    Args:
        source: Where the settings of the job come from.
        clip: The video.
        seconds: How long a run of the settings as they are takes, about; the video may be shorter.

    Raises:
        InputError: The clip cannot be read, or is shorter than a measurement needs.
        ConfigError: As ``load_settings``.
    """

    def __init__(self, source: SettingsSource, clip: Path, *, seconds: float) -> None:
        self._source, self.clip, self._seconds = source, clip, seconds
        self.loaded = source.load()
        self.info = probe(clip)
        self._begin = self.loaded.settings.video.start_seconds
        self._end = self.loaded.settings.video.end_seconds
        count = self._frames_within()
        if count is not None and count < LEAST_FRAMES:
            raise self._too_short(count)
        self._frames = LEAST_FRAMES
        self._reference: _Mattes | None = None
        self._errors: dict[tuple[Any, ...], float] = {}

    def begin(
        self, *, with_quality: bool, expected: Callable[[float], object] = lambda _seconds: None
    ) -> Shown:
        """Run the settings as they are: how fast they are, and how long trials shall be.

        Args:
            with_quality: Compare mattes with those of the FP32 reference, here and in all trials.
            expected: Told, before the first run, the seconds that one takes at the least, as far as the reference
                tells; what it raises ends it.

        Raises:
            VitascopeError: The settings as they are do not run.
        """
        if with_quality:
            self._reference, frame_seconds = self._mattes(
                self._source.load({**_ALONE, **_REFERENCE}, chosen_by="the reference")
            )
            # The reference may be slower than what it is held against.
            expected(frame_seconds * LEAST_FRAMES / 2)
        began = perf_counter()
        run, shown = self._run({})
        steady = run.frame_count / run.wall_seconds
        self._frames = max(LEAST_FRAMES, WARM_UP_FRAMES + round(steady * self._seconds))
        if self._frames > LEAST_FRAMES:
            began = perf_counter()
            _, shown = self._run({})
        return replace(shown, run_seconds=perf_counter() - began)

    def measure(self, values: Mapping[str, Any]) -> Measured:
        """Run with some settings chosen. What does not run with them is a failure; what cannot be read is an error.

        A batch that did not fit and was made smaller is a failure, too, but not of the settings as they are.

        Raises:
            InputError: The clip cannot be read any more.
            OutputError: The disk is full.
        """
        try:
            run, shown = self._run(values)
            return Measured(failure="out of memory") if values and run.shortage_note else shown.measured
        except (InputError, OutputError):
            raise
        except VitascopeError as error:
            failure = _failure(error)
            if failure is None:
                raise
        release_idle_memory()  # here the error, whose frames hold arrays, is nobody's any more
        return Measured(failure=failure)

    def _run(self, values: Mapping[str, Any]) -> tuple[MeasuredRun, Shown]:
        loaded = self._source.load({**_ALONE, **values})
        frames = max(self._frames, 3 * _whole_batches(loaded.settings.frames_per_call))
        loaded = self._source.load({**_ALONE, **values, **self._stretch(frames)})
        kind = loaded.settings.output.kinds[0]
        release_idle_memory()  # what an earlier trial's allocators keep is not this one's
        with MeasuredSegmenter(loaded=loaded) as segmenter:
            if segmenter.device.kind == "cuda":
                segmenter.measure(
                    self.clip, kind=kind
                )  # kernels are built and graphs recorded in the first run
            run = segmenter.measure(self.clip, kind=kind)
            figures = {"latency_ms": _latency_ms(run)}
            if run.gpu is not None:
                figures["vram_share"] = run.gpu.peak_memory_bytes / _gpu_bytes(segmenter.device)
            if self._reference is not None:
                figures["alpha_error"] = self._error(segmenter)
            shown = Shown(
                Measured(self._speed(run, loaded.settings.frames_per_call), figures),
                segmenter.device,
                segmenter.chosen.network.name,
                run.network_size,
                run.frames_per_call,
                _pace(run.pipeline.bottleneck),
            )
        return run, shown

    def _stretch(self, frames: int) -> dict[str, Any]:
        """Where to stop, so that about so many frames are run."""
        end = self._begin + (frames - 0.5) / float(self.info.average_frame_rate)
        return {"video.end_seconds": end if self._end is None else min(end, self._end)}

    def _frames_within(self) -> int | None:
        count = self.info.frame_count_estimate
        if count is None:
            return None
        rate = float(self.info.average_frame_rate)
        last = count if self._end is None else min(count, round(self._end * rate))
        return max(last - round(self._begin * rate), 0)

    def _too_short(self, count: int) -> InputError:
        return InputError(
            f"{self.clip}: {frames_in_words(count)} {'is' if count == 1 else 'are'} too few to tune with: "
            f"{WARM_UP_FRAMES} warm up, and at least "
            f"{LEAST_FRAMES} are needed; take a longer clip, or none, for a synthetic one"
        )

    def _speed(self, run: MeasuredRun, batch: int) -> float:
        """Frames a second after the warm-up, over whole batches."""
        step = _whole_batches(batch)
        marks = run.done_seconds[step - 1 :: step]
        if run.frame_count < LEAST_FRAMES - 2:
            raise self._too_short(run.frame_count)
        if len(marks) < 2:
            raise VitascopeError(f"{run.frame_count} frames are too few to measure batches of {batch}")
        return (len(marks) - 1) * step / max(marks[-1] - marks[0], 1e-6)

    def _error(self, segmenter: Segmenter) -> float:
        """Mean difference from the reference, in codes of 255; settings of one matte are compared once."""
        key = tuple(str(value_of(segmenter.settings, name)) for name in QUALITY_KEYS)
        if key not in self._errors:
            assert self._reference is not None
            mattes, _ = self._stream(segmenter)
            differences = [
                float(np.abs(one - other).mean()) for one, other in zip(mattes, self._reference, strict=True)
            ]
            self._errors[key] = float(np.mean(differences)) * 255
        return self._errors[key]

    def _mattes(self, loaded: LoadedSettings) -> tuple[_Mattes, float]:
        with Segmenter(loaded=loaded) as segmenter:
            return self._stream(segmenter)

    def _stream(self, segmenter: Segmenter) -> tuple[_Mattes, float]:
        """The first mattes, and the seconds of one; the first waits for a GPU's kernels, and is not counted."""
        step = -(
            -self.info.width // _MOST_COMPARED_WIDTH
        )  # every so manieth sample: 8K mattes would fill memory
        mattes: _Mattes = []
        with closing(segmenter.stream(self.clip)) as steps:
            for one in islice(steps, _COMPARED_FRAMES):
                if not mattes:
                    began = perf_counter()
                mattes.append(_shares(one.alpha[::step, ::step]))
        return mattes, (perf_counter() - began) / max(len(mattes) - 1, 1) if mattes else 0.0


def _pace(bottleneck: Bottleneck | None) -> str | None:
    return None if bottleneck is None else f"{bottleneck.stage} sets the pace ({bottleneck.evidence})"


def _failure(error: VitascopeError) -> str | None:
    """Why settings do not run, in words; None where it is not their fault."""
    causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    if any(isinstance(cause, InputError | OutputError) for cause in causes):
        return None
    return "out of memory" if any(map(is_out_of_memory, causes)) else one_line(error)


def _whole_batches(batch: int) -> int:
    """Frames after which the clock is read: they come in bursts, on a GPU of up to 16 where nobody says how many."""
    return max(WARM_UP_FRAMES // batch, 1) * batch


def _shares(alpha: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.asarray(alpha, np.float32) / np.float32(np.iinfo(alpha.dtype).max)


def _latency_ms(run: MeasuredRun) -> float:
    """95th percentile of a frame's way from decoder to encoder, after the warm-up."""
    return float(np.percentile(run.latencies_ms()[WARM_UP_FRAMES:], 95))


def _gpu_bytes(device: Device) -> int:
    import cupy

    with cupy.cuda.Device(device.index):
        return int(cupy.cuda.runtime.memGetInfo()[1])
