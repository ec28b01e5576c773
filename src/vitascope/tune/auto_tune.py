"""``performance.auto_tune``: a short tune before a job, of what does not change the matte."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitascope.config import LoadedSettings, SettingsSource
from vitascope.errors import VitascopeError, one_line
from vitascope.tune.optimizer import Target, Tuner

__all__ = ["AutoTuned", "auto_tune"]

_TRIALS = 10
_SECONDS = 1.5
_MOST_SECONDS = 180.0
"""The longest tune; where a single run takes half a minute, tuning every job pays for nobody."""


@dataclass(frozen=True, slots=True)
class AutoTuned:
    """What a job starts with."""

    loaded: LoadedSettings
    values: Mapping[str, Any]
    """What was chosen, by key; empty where the settings stay."""
    note: str
    """One line for the user."""


def auto_tune(source: SettingsSource, video: Path) -> AutoTuned:
    """Try a few settings on the beginning of a video, and load the job's settings with the best of them.

    Batch size, queues, threads and decoder sessions are tried; what the user set stays. ``performance.target_fps`` ends
    it as soon as it is reached, and ``performance.max_latency_ms`` bounds it, where the user set them: a profile's
    values of both are for live runs. A video that cannot be tuned with is segmented as it is.

    Args:
        source: Where the settings of the job come from.
        video: Of several the first.

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
        return AutoTuned(loaded, {}, f"auto-tune: not possible ({one_line(error)}); going on without")
    values = dict(tuned.values)
    missed = "" if tuned.unreachable is None else f"; {tuned.unreachable}"
    if not values:
        note = f"auto-tune: the settings as they are stay, {tuned.before.score:.1f} fps{missed}"
        return AutoTuned(loaded, {}, note)
    words = ", ".join(f"{key}={value}" for key, value in values.items())
    note = f"auto-tune: {words}: {tuned.before.score:.1f} -> {tuned.after.score:.1f} fps{missed}"
    return AutoTuned(source.load(values, chosen_by="performance.auto_tune"), values, note)
