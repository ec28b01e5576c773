"""Tuning of live animation: finds the best settings through short live runs with an endless driver and no display."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitascope.animation.live.report import LiveReport
from vitascope.animation.live.run import measure_live
from vitascope.animation.motion_file import MOTION_SUFFIX
from vitascope.animation.offline import animate_file, measure_film
from vitascope.config import LoadedSettings, Settings, SettingsSource
from vitascope.config.settings import value_of
from vitascope.device import select_device
from vitascope.errors import UsageError, VitascopeError, one_line
from vitascope.gpu.memory.shortage import is_out_of_memory
from vitascope.models.store.store import ModelStore
from vitascope.tune.knobs import cell_of
from vitascope.tune.search import Effect, GridSearch, Knob, Measured, Trial, in_turns, middle
from vitascope.tune.tuned_file import TunedSettings

_SIDE, _REFINE = "animation.max_side", "tracking.refine_landmarks"
_SKIP, _SIMILARITY = "performance.frame_skip_enabled", "performance.frame_skip_threshold"
_ANIMATOR, _BATCH = "animation.animator", "animation.batch_size"
_SHARES = (0.75, 0.5, 0.375)
"""Sizes to try, as shares of the portrait's longest side."""
_LEAST_SIDE, _SIDE_STEP = 256, 16
_SIMILARITIES = (0.92, 0.85)
_BATCHES = (1, 2, 4, 8)
_AS_FAST = 0.99
"""A smaller batch is chosen if it reaches this share of the fastest one's speed, because it needs less memory."""

# Cost of each change: the share by which pictures per second or delay must improve to be worth it.
_HALF_SIDE_COSTS = 0.12
_NO_REFINEMENT_COSTS = 0.10
_SKIPPING_COSTS = 0.03
"""Cost at a similarity of 0.92, which never freezes a speaking face; lower similarities cost more."""
_MESH_COSTS = 0.20
"""Cost of the mesh in place of LivePortrait, if both are available."""


def live_knobs(loaded: LoadedSettings, *, size: tuple[int, int], animator: str) -> list[Knob]:
    """Make the grid of settings, without those that the user set.

    Args:
        loaded: Settings of the run, with their sources.
        size: (width, height) of the animated picture with these settings.
        animator: The animator that these settings choose.
    """
    now = loaded.settings
    longest = max(size)
    sides = [round(longest * share / _SIDE_STEP) * _SIDE_STEP for share in _SHARES]
    knobs = [
        Knob(_SIDE, (now.animation.max_side, *(side for side in sides if side >= _LEAST_SIDE))),
        Knob(_REFINE, _others(now.tracking.refine_landmarks, (True, False))),
        Knob(_SKIP, _others(now.performance.frame_skip_enabled, (False, True))),
        Knob(_SIMILARITY, _others(now.performance.frame_skip_threshold, _SIMILARITIES)),
    ]
    if animator != "mesh":  # both are available
        knobs.append(Knob(_ANIMATOR, (now.animation.animator, "mesh"), ordered=False))
    return [knob for knob in knobs if len(knob.values) > 1 and not loaded.origin(knob.key).explicit]


def batch_sizes(loaded: LoadedSettings) -> tuple[int, ...]:
    """Batch sizes of LivePortrait to try in videos: those in the range that the user set; none if it is one number."""
    if not loaded.origin(_BATCH).explicit:
        return _BATCHES
    wanted = loaded.settings.animation.batch_size
    between = {size for size in _BATCHES if wanted.low < size < wanted.high}
    return tuple(sorted({wanted.low, wanted.high} | between)) if wanted.low < wanted.high else ()


def kept_quality(values: Mapping[str, Any], now: Settings, *, size: tuple[int, int]) -> float:
    """Share of the quality kept when settings change: the product of 1 minus the cost of each, 0..1.

    Args:
        values: The values of a cell of ``live_knobs``, by key.
        now: The current settings.
        size: (width, height) of the animated picture with them.
    """
    kept = 1.0
    side = min(values.get(_SIDE, max(size)), max(size))
    kept *= float((1 - _HALF_SIDE_COSTS) ** math.log2(max(size) / side))
    if now.tracking.refine_landmarks and not values.get(_REFINE, True):
        kept *= 1 - _NO_REFINEMENT_COSTS
    if values.get(_SKIP, value_of(now, _SKIP)):
        similarity = float(values.get(_SIMILARITY, value_of(now, _SIMILARITY)))
        kept *= 1 - _SKIPPING_COSTS - max(_SIMILARITIES[0] - similarity, 0)
    if values.get(_ANIMATOR, value_of(now, _ANIMATOR)) == "mesh" != now.animation.animator:
        kept *= 1 - _MESH_COSTS
    return kept


def _others(now: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The current value first, then the others."""
    return (now, *(value for value in values if value != now))


_MOST_TRIALS = 14
_COMPARISONS = 2
_LEAST_SECONDS, _MOST_SECONDS = 1.0, 10.0
_WARM_UP_PICTURES = 5
_LEAST_GAIN = 1.03
"""Smaller gains are ignored: two runs of the same settings differ as much."""
_CLOSE = 0.97
_FILM_SECONDS, _FILM_SIDE = 6.0, 640


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTarget:
    """The goal for a live run, from ``performance``."""

    fps: float
    """Pictures per second."""
    max_latency_ms: float
    """Longest time from capture to the sinks for 95 % of the pictures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTuned(TunedSettings):
    """The tuner's result; ``network`` names the animator and the size of its pictures at the start."""

    target: LiveTarget
    knobs: tuple[Knob, ...]
    """The knobs, in the order of the cells of the search."""
    score_unit: str = "%"

    def figures(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Measurements before and after: ``fps``, ``latency_ms`` (95 %), and the score in percent."""
        return (
            {**self.before.figures, "score": self.before.score},
            {**self.after.figures, "score": self.after.score},
        )

    def own_figures(self) -> Mapping[str, object]:
        """Return the target."""
        return {"target_fps": self.target.fps, "max_latency_ms": self.target.max_latency_ms}

    def place_and_score(self, trial: Trial) -> Mapping[str, object]:
        """The values by key, and the score in percent."""
        values = {knob.key: knob.values[place] for knob, place in zip(self.knobs, trial.cell, strict=True)}
        return {"values": values, "score": trial.measured.score}

    def change_in_words(self) -> str:
        """The gain, and its cost."""
        old, new = self.before.figures, self.after.figures
        return (
            f"{old['fps']:.1f} -> {new['fps']:.1f} fps of {self.target.fps:g}, {self.trade_off()}; score, including "
            f"the loss of quality: {self.before.score:.0f} -> {self.after.score:.0f} %"
        )

    def trade_off(self) -> str:
        """The change of the delay, in words."""
        old, new = self.before.figures["latency_ms"], self.after.figures["latency_ms"]
        return f"{old:.0f} -> {new:.0f} ms latency (95 %) of {self.target.max_latency_ms:g}"


class LiveTuner:
    """Finds settings that animate a portrait live at ``performance.target_fps``, or near it.

    If LivePortrait animates, the fastest batch for drawing videos is found as well.

    Each trial is a live run. Its score, in percent, is the product of the share of the target's pictures, the share
    by which ``performance.max_latency_ms`` is kept, and the share of quality kept (``live_knobs.kept_quality``): 100
    if both targets are met without any loss. Settings of the user stay.

    Args:
        source: Source of the run's settings.
        portrait: A picture file.
        driver: A video of a face; a ``.motion`` file is made into a video of the portrait with that motion, for a
            tracker to follow.
        store: Store of the tracker's model.
        folder: Folder for that video.
        seconds: Time for measuring, over all trials.
        command: The command that repeats the search, as typed.
        on_trial: Called with each trial and the possible number of trials.

    Raises:
        UsageError: ``seconds`` is too short for a trial.
        ConfigError: As ``load_settings``.
    """

    def __init__(
        self,
        source: SettingsSource,
        portrait: Path,
        driver: Path,
        *,
        store: ModelStore,
        folder: Path,
        seconds: float,
        command: str,
        on_trial: Callable[[GridSearch, Trial], object] | None = None,
    ) -> None:
        least = _LEAST_SECONDS * (2 * _COMPARISONS + 2)
        if seconds < least:
            raise UsageError(f"--auto-tune needs at least {least:g} seconds of measuring, not {seconds:g}")
        self._source, self._portrait, self._driver = source, portrait, driver
        self._store, self._folder = store, folder
        self._command, self._on_trial = command, on_trial
        self._loaded = source.load({"debug.profile_performance": False})
        performance = self._loaded.settings.performance
        self._target = LiveTarget(fps=performance.target_fps, max_latency_ms=performance.max_latency_ms)
        self._most_trials = min(_MOST_TRIALS, int(seconds / _LEAST_SECONDS) - 2 * _COMPARISONS)
        self._seconds = min(seconds / (self._most_trials + 2 * _COMPARISONS), _MOST_SECONDS)
        self._size = (0, 0)
        self._of_driver: dict[str, Any] = {}
        """Settings of every trial that depend on the driver."""

    def tune(self) -> LiveTuned:
        """Search, then compare the result with the current settings.

        Raises:
            VitascopeError: The current settings do not run, none gave a picture in time, or every knob was set by
                hand.
        """
        self._driver = self._film()
        first = self._run({})
        self._size = first.size
        knobs = live_knobs(self._loaded, size=first.size, animator=first.animator)
        if not knobs:
            raise UsageError("every setting that could be tuned was set by hand; leave some out")
        settings = self._loaded.settings
        now = {knob.key: value_of(settings, knob.key) for knob in knobs}
        search = GridSearch(
            knobs,
            start=cell_of(knobs, now),
            most_trials=self._most_trials,
            unit="%",
            subject=str(self._portrait),
        )
        found = search.run(
            self._measure, on_trial=self._on_trial, enough=lambda measured: measured.score >= _CLOSE * 100
        )
        if found.best is None:
            failure = next(trial.measured.failure for trial in found.trials if trial.measured.failure)
            raise VitascopeError(f"no settings could be measured: {failure}")
        chosen = search.values(found.best)
        values = _without_idle({key: value for key, value in chosen.items() if value != now[key]}, now)
        before, after = self._in_turns(values)
        if after.score < before.score * _LEAST_GAIN:
            values, after = {}, before
        if first.animator != "mesh" and values.get(_ANIMATOR) != "mesh" and (batch := self._batch(values)):
            values[_BATCH] = batch.value
            found = replace(found, effects=(*found.effects, batch))
        return LiveTuned(
            values=values,
            before=before,
            after=after,
            search=found,
            knobs=tuple(knobs),
            target=self._target,
            device_label=select_device(settings.gpu.device, index=settings.animation.gpu_id).label,
            network=f"{first.animator} at {first.size[0]}x{first.size[1]}",
            command=self._command,
            unreachable=self._unreachable(after),
        )

    def _batch(self, values: Mapping[str, Any]) -> Effect | None:
        """Find the batch with which LivePortrait draws videos fastest; live pictures are drawn one by one."""
        rates: dict[int, float] = {}
        for size in batch_sizes(self._loaded):
            loaded = self._with({**values, _BATCH: size})
            try:
                rates[size] = measure_film(
                    self._portrait, self._driver, loaded=loaded, store=self._store, seconds=self._seconds
                )
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                break  # larger ones will not fit either
        if not rates:
            return None
        most = max(rates.values())
        size = min(size for size, rate in rates.items() if rate >= _AS_FAST * most)
        return Effect(_BATCH, size, tuple((size, 100 * rate / most) for size, rate in rates.items()))

    def _film(self) -> Path:
        """Make the driver a video that a tracker can follow, no longer than the duration requested."""
        if self._driver.suffix.lower() != MOTION_SUFFIX:
            return self._driver
        film = self._folder / "driver.mp4"
        part = self._loaded.settings.video
        end_seconds = part.start_seconds + _FILM_SECONDS
        if part.end_seconds is not None:
            end_seconds = min(end_seconds, part.end_seconds)
        loaded = self._source.load(
            {
                "animation.animator": "mesh",
                "animation.max_side": _FILM_SIDE,
                "video.end_seconds": end_seconds,
                "debug.profile_performance": False,
            }
        )
        animate_file(self._portrait, self._driver, film, loaded=loaded, store=self._store)
        self._of_driver = {"video.start_seconds": 0.0, "video.end_seconds": None}
        return film

    def _run(self, values: Mapping[str, Any]) -> LiveReport:
        return measure_live(
            self._portrait,
            self._driver,
            loaded=self._with(values),
            store=self._store,
            seconds=self._seconds,
            warm_up_pictures=_WARM_UP_PICTURES,
        )

    def _with(self, values: Mapping[str, Any]) -> LoadedSettings:
        loaded = self._source.load({"debug.profile_performance": False, **values})
        return loaded.with_values(self._of_driver)

    def _measure(self, values: Mapping[str, Any]) -> Measured:
        try:
            report = self._run(values)
        except VitascopeError as error:
            return Measured(failure=one_line(error))
        if not report.shown:
            return Measured(
                failure=f"no picture in {self._seconds:.1f} s, which is a trial's share of the duration"
            )
        fps, latency_ms = report.frames_per_second, report.latency.p95_seconds * 1e3
        reached = min(fps / self._target.fps, 1.0) * min(self._target.max_latency_ms / latency_ms, 1.0)
        kept = kept_quality(values, self._loaded.settings, size=self._size)
        return Measured(100 * reached * kept, {"fps": fps, "latency_ms": latency_ms})

    def _in_turns(self, values: Mapping[str, Any]) -> tuple[Measured, Measured]:
        """Measure old and new settings alternately, so that disturbances affect both."""
        old, new = in_turns(self._measure, values, turns=_COMPARISONS)
        for which, runs in (("in use", old), ("that were found", new)):
            failed = next((one for one in runs if one.failure), None)
            if failed is not None:
                raise VitascopeError(f"the settings {which} could not be measured: {failed.failure}")
        return middle(old), middle(new)

    def _unreachable(self, after: Measured) -> str | None:
        fps, latency_ms = after.figures["fps"], after.figures["latency_ms"]
        words = []
        if fps < self._target.fps * _CLOSE:
            words.append(f"{self._target.fps:g} fps cannot be reached here: {fps:.1f}")
        if latency_ms > self._target.max_latency_ms:
            words.append(f"{self._target.max_latency_ms:g} ms cannot be kept: {latency_ms:.0f}")
        return "; ".join(words) or None


def _without_idle(values: dict[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the similarity if nothing is compared with it."""
    skips = values.get("performance.frame_skip_enabled", now.get("performance.frame_skip_enabled", True))
    return {key: value for key, value in values.items() if skips or key != "performance.frame_skip_threshold"}
