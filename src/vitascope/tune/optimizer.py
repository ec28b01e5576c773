"""Tuning: finds the fastest settings for a video on this machine, within limits, measured on the video itself.

A trial is a short run of ``Segmenter`` over the video; it measures its speed and the error of its mattes.
``auto_tune`` runs a short search before a job, over settings that do not change the matte
(``performance.auto_tune``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from vitascope.bench.measured_run import ALONE, MeasuredRun, MeasuredSegmenter, alpha_shares
from vitascope.config import LoadedSettings, SettingsSource
from vitascope.config.settings import value_of
from vitascope.device import Device
from vitascope.errors import InputError, OutputError, UsageError, VitascopeError, one_line
from vitascope.gpu.memory.shortage import is_out_of_memory, release_idle_memory
from vitascope.gpu.pipeline.report import Bottleneck
from vitascope.media.reading.reader import probe
from vitascope.observe.report_values import frames_in_words
from vitascope.segmentation.segmenter import Segmenter
from vitascope.tune.knobs import QUALITY_KEYS, batch_key, cell_of, knobs_for, preset_for, preset_values
from vitascope.tune.search import Cell, GridSearch, Limit, Measured, SearchResult, Trial, in_turns, middle
from vitascope.tune.tuned_file import NOTHING_BETTER, TunedSettings

WARM_UP_FRAMES = 16
"""The first frames of a run, in which caches fill, graphs are recorded and threads start."""
LEAST_FRAMES = 48
"""Warm-up plus two of the largest batches."""
_COMPARED_FRAMES = 24
_MOST_COMPARED_WIDTH = 1920

# One process, and a network that really runs, even if the job is different.
_ALONE: Mapping[str, Any] = {**ALONE, "performance.auto_tune": False}
_REFERENCE: Mapping[str, Any] = {
    "gpu.precision": "fp32",
    "gpu.allow_tf32": False,
    "inference.skip_static": 0.0,
    "inference.region": "whole",
    "inference.early_exit": "off",
    "inference.scales": [1.0],
}
"""FP32, with every frame computed whole."""

_Mattes = list[npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Shown:
    """Facts about the clip and network from the first run."""

    measured: Measured
    device: Device
    network: str
    network_size: tuple[int, int]
    """(height, width) of the network's picture."""
    frames_per_call: int
    """Frames per call of the network."""
    pace: str | None = None
    """What set the pace, in words; None if no stage did."""
    run_seconds: float = 0.0
    """Seconds of one trial, opening the network included."""


class ClipTrials:
    """Measures settings on the beginning of a clip.

    Args:
        source: Source of the job's settings.
        clip: The video.
        seconds: Approximate duration of a run with the current settings; the video may be shorter.

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
        """Run the current settings, to measure their speed and choose the length of trials.

        Args:
            with_quality: Compare mattes with those of the FP32 reference, here and in all trials.
            expected: Called before the first run with its minimum duration in seconds, as estimated from the
                reference; an exception from it ends the tuning.

        Raises:
            VitascopeError: The current settings do not run.
        """
        if with_quality:
            self._reference, frame_seconds = self._mattes(
                self._source.load({**_ALONE, **_REFERENCE}, chosen_by="the reference")
            )
            # the reference may be slower than the settings it is compared with
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
        """Run with some settings changed.

        Settings that do not run count as a failure; an unreadable clip is an error. A batch that did
        not fit and was made smaller is a failure too, but not for the current settings.

        Raises:
            InputError: The clip can no longer be read.
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
        release_idle_memory()  # only here is the error, whose frames hold arrays, released
        return Measured(failure=failure)

    def _run(self, values: Mapping[str, Any]) -> tuple[MeasuredRun, Shown]:
        loaded = self._source.load({**_ALONE, **values})
        frames = max(self._frames, 3 * _whole_batches(loaded.settings.frames_per_call))
        loaded = self._source.load({**_ALONE, **values, **self._stretch(frames)})
        kind = loaded.settings.output.kinds[0]
        release_idle_memory()  # memory kept by an earlier trial's allocators is not this one's
        with MeasuredSegmenter(loaded=loaded) as segmenter:
            if segmenter.device.kind == "cuda":
                # the first run builds kernels and records graphs
                segmenter.measure(self.clip, kind=kind)
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
        """The setting that ends a run after about this many frames."""
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
        """Frames per second after the warm-up, over whole batches."""
        step = _whole_batches(batch)
        marks = run.done_seconds[step - 1 :: step]
        if run.frame_count < LEAST_FRAMES - 2:
            raise self._too_short(run.frame_count)
        if len(marks) < 2:
            raise VitascopeError(f"{run.frame_count} frames are too few to measure batches of {batch}")
        return (len(marks) - 1) * step / max(marks[-1] - marks[0], 1e-6)

    def _error(self, segmenter: Segmenter) -> float:
        """Mean difference from the reference, in codes of 255; settings with the same matte are compared once."""
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
        """The first mattes, and the seconds per matte; the first, which prepares a GPU's kernels, is not counted."""
        # Only every step-th pixel is kept: 8K mattes would fill memory.
        step = -(-self.info.width // _MOST_COMPARED_WIDTH)
        mattes: _Mattes = []
        with closing(segmenter.stream(self.clip)) as steps:
            for one in islice(steps, _COMPARED_FRAMES):
                if not mattes:
                    began = perf_counter()
                mattes.append(alpha_shares(one.alpha[::step, ::step]))
        return mattes, (perf_counter() - began) / max(len(mattes) - 1, 1) if mattes else 0.0


def _pace(bottleneck: Bottleneck | None) -> str | None:
    return None if bottleneck is None else f"{bottleneck.stage} sets the pace ({bottleneck.evidence})"


def _failure(error: VitascopeError) -> str | None:
    """The reason why settings do not run; None if it is not their fault."""
    causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    if any(isinstance(cause, InputError | OutputError) for cause in causes):
        return None
    return "out of memory" if any(map(is_out_of_memory, causes)) else one_line(error)


def _whole_batches(batch: int) -> int:
    """Frames between readings of the clock: they come in bursts, on a GPU of up to 16 unless a batch size is set."""
    return max(WARM_UP_FRAMES // batch, 1) * batch


def _latency_ms(run: MeasuredRun) -> float:
    """95th percentile of a frame's time from decoder to encoder, after the warm-up."""
    return float(np.percentile(run.latencies_ms()[WARM_UP_FRAMES:], 95))


def _gpu_bytes(device: Device) -> int:
    import cupy

    with cupy.cuda.Device(device.index):
        return int(cupy.cuda.runtime.memGetInfo()[1])


_TURNS, _SLOW_TURNS = 3, 2
_SLOW_SECONDS = 15.0
"""Runs this long average out most disturbances, so two turns are enough."""
_LONGEST_SECONDS = 86_400


def turns(run_seconds: float) -> int:
    """Number of final comparisons between new and old settings."""
    return min(_SLOW_TURNS, _TURNS) if run_seconds > _SLOW_SECONDS else _TURNS


class SearchTime:
    """The clock of one search; it starts at once.

    Args:
        most_seconds: Approximate limit of the whole time, including the final comparison; None for no limit.

    Raises:
        UsageError: The time is out of range.
    """

    def __init__(self, most_seconds: float | None) -> None:
        if most_seconds is not None and not 0 < most_seconds <= _LONGEST_SECONDS:
            raise UsageError(f"a search must take more than 0 s and at most a day, not {most_seconds:g} s")
        self._most_seconds = most_seconds
        self._began = perf_counter()

    def check(self, run_seconds: float, *, runs: int = 0) -> None:
        """Refuse a limit that is too short to try and compare even once.

        Args:
            run_seconds: Duration of one run, as far as known.
            runs: Runs needed before the first trial.

        Raises:
            UsageError: The time is too short.
        """
        least = perf_counter() - self._began + run_seconds * (runs + 1 + 2 * turns(run_seconds))
        if self._most_seconds is not None and least > self._most_seconds:
            raise UsageError(
                f"a run takes about {run_seconds:.0f} s here, and a search needs at least {least:.0f} s: allow "
                f"{least / 60:.1f} minutes or more, or begin with a profile that is faster"
            )

    def is_late(self, run_seconds: float) -> bool:
        """True if the remaining time is needed for the final comparison."""
        left = float("inf") if self._most_seconds is None else self._most_seconds
        return perf_counter() - self._began + 2 * turns(run_seconds) * run_seconds > left

    def plan(self, run_seconds: float, *, trials: int, cells: int) -> str:
        """Describe the plan in one line."""
        limit = ""
        if self._most_seconds is not None:
            minutes = self._most_seconds / 60
            time = f"{minutes:.0f} minutes" if minutes >= 2 else f"{self._most_seconds:.0f} s"
            limit = f", in about {time} at most"
        runs = f"{trials} run" if trials == 1 else f"{trials} runs"
        return (
            f"up to {runs} of about {run_seconds:.2g} s each, out of {cells} combinations of settings{limit}; "
            "then the result against the current settings"
        )


MOST_TRIALS = 40
_LEAST_TRIALS = 14
_LEAST_GAIN = 1.03
"""Smaller gains are ignored: two runs of the same settings differ as much."""
_DEFAULT_ERROR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The goal of a search."""

    fps: float | None = None
    """Frames per second to reach; of all settings that reach it, the most exact is chosen. None: as fast as
    possible."""
    max_latency_ms: float | None = None
    """Longest time from decoder to encoder for 95 % of the frames, including queues."""
    min_quality: float | None = None
    """1 minus the mean difference of the matte from the FP32 reference, 0..1; None: half a code of 255, or the
    current settings' own loss."""

    @classmethod
    def of(cls, loaded: LoadedSettings) -> Self:
        """Read the target from ``performance``, where the user set it: a profile's values are meant for live runs."""
        performance = loaded.settings.performance
        return cls(
            fps=performance.target_fps if loaded.origin("performance.target_fps").explicit else None,
            max_latency_ms=performance.max_latency_ms
            if loaded.origin("performance.max_latency_ms").explicit
            else None,
        )

    def check(self) -> None:
        """Check the ranges.

        Raises:
            UsageError: A value is out of range.
        """
        if self.fps is not None and not 0 < self.fps <= 100_000:
            raise UsageError(f"--target-fps must be a number of frames a second, not {self.fps:g}")
        if self.max_latency_ms is not None and not 0 < self.max_latency_ms <= 3_600_000:
            raise UsageError(f"--max-latency-ms must be a time above 0, not {self.max_latency_ms:g}")
        if self.min_quality is not None and not 0 <= self.min_quality <= 1:
            raise UsageError(f"--min-quality must be a share from 0 to 1, not {self.min_quality:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned(TunedSettings):
    """A tuner's result; ``network`` made the mattes."""

    target: Target
    shown: Shown
    error_limit: float | None
    """Largest permitted error of the matte, in codes of 255; None if mattes were not compared."""
    others: tuple[Measured, ...]
    """Trials that ran with settings known to differ from the current ones."""
    score_unit: str = "fps"
    command: str = "vitascope optimize in.mp4"

    def figures(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Measurements before and after, by name."""
        return (
            {"fps": self.before.score, **self.before.figures},
            {"fps": self.after.score, **self.after.figures},
        )

    def change_in_words(self) -> str:
        """The gain, and its cost."""
        return f"{self.before.score:.1f} -> {self.after.score:.1f} fps ({self.gain:.2f}x); {self.trade_off()}"

    def unchanged_in_words(self) -> str:
        """Explain that nothing was better than the current settings, and what limits the speed."""
        if self.unreachable is not None:
            return NOTHING_BETTER
        if self.target.fps is not None and self.before.score >= self.target.fps:
            return "the settings as they are reach the target"
        pace = self.shown.pace
        if any(one.score >= self.before.score * _LEAST_GAIN for one in self.others):
            again = "whatever ran faster broke a limit, or was no faster when run again"
            return f"{NOTHING_BETTER}: {again}{'' if pace is None else f'; {pace}'}"
        if pace is None or not self.others:
            return NOTHING_BETTER
        return f"{NOTHING_BETTER}: {pace}, and nothing that was tried made that faster"

    @property
    def gain(self) -> float:
        """Gain in speed, as a factor."""
        return self.after.score / self.before.score

    def own_figures(self) -> Mapping[str, object]:
        """The gain, its cost, and why nothing was changed."""
        unchanged = None if self.values else self.unchanged_in_words()
        return {"gain": self.gain, "trade_off": self.trade_off(), "unchanged": unchanged}

    def place_and_score(self, trial: Trial) -> Mapping[str, object]:
        """The cell by its positions in the grid, and frames per second."""
        return {"cell": list(trial.cell), "fps": trial.measured.score}

    def trade_off(self) -> str:
        """The cost of the speed, in words."""
        words = []
        for name, unit, digits in (("alpha_error", "of 255 alpha error", 2), ("latency_ms", "ms latency", 0)):
            if name in self.after.figures:
                old, new = self.before.figures[name], self.after.figures[name]
                words.append(f"{old:.{digits}f} -> {new:.{digits}f} {unit}")
        if "vram_share" in self.after.figures:
            words.append(
                f"{self.before.figures['vram_share']:.0%} -> {self.after.figures['vram_share']:.0%} VRAM"
            )
        return ", ".join(words)


class Tuner:
    """Searches for the best settings of a job.

    Args:
        source: Source of the job's settings.
        clip: The video.
        subject: Description of the clip; a search over another one is not resumed.
        target: The goal.
        seconds: Approximate duration of one trial.
        most_trials: Limit of the number of trials; never more than a fifth of the combinations, or 14.
        most_seconds: Approximate limit of the whole time, including the final comparison. None for no limit.
        keep_quality: Change only settings that do not change the matte.
        preset: Start of the search: the name of a preset, or ``auto`` for the GPU's, if it has one; the current
            settings when omitted.
        state: File that keeps the trials until the search ends.
        resume: Continue from that file.
        replaces: Hash of the settings file that may be replaced at the end, kept with the trials.
        on_trial: Called with each trial and the possible number of trials.
        on_plan: Called once before the first trial with the plan: how long a trial takes and how many there are.

    Raises:
        InputError: The clip cannot be read, or is too short.
        UsageError: A value is out of range.
        ConfigError: As ``load_settings``.
    """

    def __init__(
        self,
        source: SettingsSource,
        clip: Path,
        *,
        subject: str,
        target: Target | None = None,
        seconds: float = 3.0,
        most_trials: int = MOST_TRIALS,
        most_seconds: float | None = None,
        keep_quality: bool = False,
        preset: str | None = None,
        state: Path | None = None,
        resume: bool = False,
        replaces: str | None = None,
        on_trial: Callable[[GridSearch, Trial], object] | None = None,
        on_plan: Callable[[str], object] | None = None,
    ) -> None:
        self._target = target or Target()
        self._target.check()
        if not 0 < seconds <= 600:
            raise UsageError(f"a trial must take more than 0 and at most 600 seconds, not {seconds:g}")
        if most_trials < 1:
            raise UsageError(f"a search needs at least one trial, not {most_trials}")
        SearchTime(most_seconds)  # report a value out of range before running anything
        self._source, self._subject = source, subject
        self._trials = ClipTrials(source, clip, seconds=seconds)
        self._most_trials, self._keep_quality = most_trials, keep_quality
        self._most_seconds, self._on_plan = most_seconds, on_plan
        self._turns = 1
        self._state, self._resume, self._on_trial = state, resume, on_trial
        self._replaces = replaces
        self._preset = preset
        self._start = {} if preset in (None, "auto") else preset_values(str(preset))

    def tune(self) -> Tuned:
        """Search, then compare the result with the current settings.

        Raises:
            VitascopeError: The current settings do not run, every knob was set by hand, or the time is too short for
                a single trial.
        """
        loaded, time = self._trials.loaded, SearchTime(self._most_seconds)
        shown = self._trials.begin(
            with_quality=not self._keep_quality, expected=lambda seconds: time.check(seconds, runs=1)
        )
        time.check(shown.run_seconds)
        self._turns = turns(shown.run_seconds)
        knobs = knobs_for(
            loaded,
            device=shown.device,
            network=shown.network,
            network_size=shown.network_size,
            keep_quality=self._keep_quality,
            bounds_latency=self._target.max_latency_ms is not None,
        )
        if not knobs:
            raise UsageError("every setting that could be tuned was set by hand; leave some out")
        limits, error_limit = self._limits(shown)
        now = {knob.key: value_of(loaded.settings, knob.key) for knob in knobs}
        key = batch_key(loaded)
        if key in now:
            now[key] = shown.frames_per_call
        if self._preset == "auto":
            info = self._trials.info
            name = preset_for(shown.device, width=info.width, height=info.height)
            self._start = {} if name is None else preset_values(name)
        begin = {**now, **self._start}
        if any(
            one.figure == "latency_ms" and shown.measured.figures[one.figure] > one.most for one in limits
        ):
            begin["performance.mode"] = "latency"  # the mode closest to such a limit
        search = GridSearch(
            knobs,
            limits,
            start=cell_of(knobs, begin),
            most_trials=max(min(self._most_trials, _grid_share(knobs)), 1),
            state=self._state,
            subject=f"{self._subject} on {shown.device.label}, {shown.network}, profile {loaded.profile}",
            resume=self._resume,
            replaces=self._replaces,
        )
        if self._on_plan is not None:
            self._on_plan(time.plan(shown.run_seconds, trials=search.most_trials, cells=len(search.cells)))
        found = search.run(
            self._trials.measure,
            on_trial=self._on_trial,
            enough=self._is_enough,
            is_late=lambda: time.is_late(shown.run_seconds),
        )
        return self._compare(search, found, shown, error_limit=error_limit, now=now)

    def _limits(self, shown: Shown) -> tuple[list[Limit], float | None]:
        limits, error_limit = [], None
        figures = shown.measured.figures
        if self._target.max_latency_ms is not None:
            limits.append(Limit("latency_ms", self._target.max_latency_ms))
        if "vram_share" in figures:
            limits.append(Limit("vram_share", self._trials.loaded.settings.gpu.max_vram_usage))
        if "alpha_error" in figures:
            quality = self._target.min_quality
            error_limit = max(_DEFAULT_ERROR, figures["alpha_error"] * 1.01)
            if quality is not None:
                error_limit = (1 - quality) * 255 + 1e-6
            limits.append(Limit("alpha_error", error_limit, decided_by=QUALITY_KEYS))
        return limits, error_limit

    def _is_enough(self, measured: Measured) -> bool:
        """True if the target is reached without any loss, so that the search can end."""
        fps = self._target.fps
        return fps is not None and measured.score >= fps and measured.figures.get("alpha_error", 0.0) < 0.05

    def _compare(
        self,
        search: GridSearch,
        found: SearchResult,
        shown: Shown,
        *,
        error_limit: float | None,
        now: Mapping[str, Any],
    ) -> Tuned:
        best = found.best
        if best is not None and self._target.fps is not None:
            best = self._most_exact(search, self._target.fps) or best
        values = _changed(search, best, now)
        before, after, is_faster = self._in_turns(values)
        # The target was reached only by chance, so compare the fastest cell instead.
        if best != found.best and after.score < (self._target.fps or 0.0):
            values = _changed(search, found.best, now)
            before, after, is_faster = self._in_turns(values)
        as_they_are = search.keeps_limits(before)
        reaches = self._target.fps is None or before.score >= self._target.fps
        if as_they_are and reaches and not is_faster:
            values, after = {}, before
        return Tuned(
            values=values,
            before=before,
            after=after,
            shown=shown,
            device_label=shown.device.label,
            network=shown.network,
            search=found,
            target=self._target,
            error_limit=error_limit,
            others=search.ran_elsewhere(now),
            unreachable=self._unreachable(search, found, after),
        )

    def _most_exact(self, search: GridSearch, fps: float) -> tuple[int, ...] | None:
        """The cell with the smallest matte error among those that reach the target; the fastest of equals."""
        good = [
            trial
            for trial in search.trials
            if search.keeps_limits(trial.measured) and trial.measured.score >= fps
        ]
        if not good:
            return None
        return min(
            good,
            key=lambda trial: (
                round(trial.measured.figures.get("alpha_error", 0.0), 1),
                -trial.measured.score,
            ),
        ).cell

    def _in_turns(self, values: Mapping[str, Any]) -> tuple[Measured, Measured, bool]:
        """Measure old and new settings alternately, so that disturbances affect both.

        Returns:
            The medians of both, and whether the new settings are faster: by enough, and in every turn.
        """
        old, new = in_turns(self._trials.measure, values, turns=self._turns)
        for runs in (old, new):
            failed = next((one for one in runs if one.failure), None)
            if failed is not None:
                raise VitascopeError(f"settings that ran before failed now: {failed.failure}")
        before, after = middle(old), middle(new)
        always = all(later.score > earlier.score for earlier, later in zip(old, new, strict=True))
        return before, after, always and after.score >= before.score * _LEAST_GAIN

    def _unreachable(self, search: GridSearch, found: SearchResult, after: Measured) -> str | None:
        ran = [trial.measured for trial in search.trials if trial.measured.failure is None]
        if not ran:
            return f"none of {len(search.trials)} trials ran: {search.trials[0].measured.failure}"
        if found.best is None:
            words = [
                f"{limit.figure} {min(one.figures[limit.figure] for one in ran):.3g} (wanted: at most {limit.most:.3g})"
                for limit in search.limits
            ]
            return f"no settings keep all limits; the best value reached for each: {', '.join(words)}"
        if self._target.fps is not None and after.score < self._target.fps:
            within = " within the limits" if search.limits else ""
            return (
                f"{self._target.fps:g} fps cannot be reached here{within}: the maximum is {after.score:.1f} fps "
                f"({', '.join(f'{key}={_plain(value)}' for key, value in search.values(found.best).items())})"
            )
        return None


def _changed(search: GridSearch, cell: Cell | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a cell that differ from the current ones."""
    values = {} if cell is None else search.values(cell)
    if values.get("performance.mode") == "latency":  # one frame at a time, whatever the batch
        values = {key: value for key, value in values.items() if not key.endswith("batch_size")}
    return {key: value for key, value in values.items() if value != now[key]}


def _grid_share(knobs: list[Any]) -> int:
    size = prod(len(knob.values) for knob in knobs)
    # A fifth of a small grid is too few to learn from; such a grid is measured whole, plus its best cell again.
    return max(size // 5, min(size + 2, _LEAST_TRIALS))


def _plain(value: Any) -> str:
    return "null" if value is None else str(value)


_TRIALS = 10
_SECONDS = 1.5
_MOST_SECONDS = 180.0
"""Time limit of a search; if a single run takes half a minute, tuning every job does not pay off."""


@dataclass(frozen=True, slots=True)
class AutoTuned:
    """The settings that a job starts with, and the reason."""

    loaded: LoadedSettings
    values: Mapping[str, Any]
    """The chosen values, by key; empty if nothing changes."""
    note: str
    """One line for the user."""


def auto_tune(source: SettingsSource, video: Path) -> AutoTuned:
    """Try a few settings on the beginning of a video, and load the job's settings with the best of them.

    It tries batch size, queues, threads and decoder sessions; settings of the user stay. Where the user set them,
    ``performance.target_fps`` ends the search as soon as it is reached, and ``performance.max_latency_ms`` limits it;
    a profile's values of both are meant for live runs. If tuning is not possible, the settings stay as they are.

    Args:
        source: Source of the job's settings.
        video: The first video, if there are several.

    Raises:
        ConfigError: As ``load_settings``.
    """
    loaded = source.load()
    try:
        tuned = Tuner(
            source,
            video,
            subject=str(video),
            target=Target.of(loaded),
            seconds=_SECONDS,
            most_trials=_TRIALS,
            most_seconds=_MOST_SECONDS,
            keep_quality=True,
        ).tune()
    except VitascopeError as error:
        return AutoTuned(loaded, {}, f"auto-tune: not possible ({one_line(error)}); continuing without")
    values = dict(tuned.values)
    missed = "" if tuned.unreachable is None else f"; {tuned.unreachable}"
    if not values:
        note = f"auto-tune: the settings as they are stay, {tuned.before.score:.1f} fps{missed}"
        return AutoTuned(loaded, {}, note)
    words = ", ".join(f"{key}={value}" for key, value in values.items())
    note = f"auto-tune: {words}: {tuned.before.score:.1f} -> {tuned.after.score:.1f} fps{missed}"
    return AutoTuned(source.load(values, chosen_by="performance.auto_tune"), values, note)
