"""Which settings of a live animation a tuner may turn, to what, and what each of them gives up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitascope.config import LoadedSettings, Settings
from vitascope.config.catalogue import value_of
from vitascope.tuning.grid import Knob

__all__ = ["kept_quality", "live_knobs"]

_SIDE, _REFINE = "animation.max_side", "tracking.refine_landmarks"
_SKIP, _SIMILARITY = "performance.frame_skip_enabled", "performance.frame_skip_threshold"
_ANIMATOR = "animation.animator"
_SHARES = (0.75, 0.5, 0.375)
"""Of the longest side of the portrait."""
_LEAST_SIDE, _SIDE_STEP = 256, 16
_SIMILARITIES = (0.92, 0.85)

# What a setting must bring to be worth it: as a share, by how much more pictures or how much less delay.
_HALF_SIDE_COSTS = 0.12
_NO_REFINEMENT_COSTS = 0.10
_SKIPPING_COSTS = 0.03
"""At the similarity of 0.92, at which nobody who speaks is held still; more below."""
_MESH_COSTS = 0.20
"""In place of LivePortrait, where both are there."""


def live_knobs(loaded: LoadedSettings, *, size: tuple[int, int], animator: str) -> list[Knob]:
    """The grid; what the user set stays as it is.

    Args:
        loaded: Settings of the run, and where they came from.
        size: (width, height) of the animated picture with these settings.
        animator: Which one they take.
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
    if animator != "mesh":  # so both are there
        knobs.append(Knob(_ANIMATOR, (now.animation.animator, "mesh"), ordered=False))
    return [knob for knob in knobs if len(knob.values) > 1 and not loaded.origin(knob.key).explicit]


def kept_quality(values: Mapping[str, Any], now: Settings, *, size: tuple[int, int]) -> float:
    """What is kept of the picture with some settings changed: 1 less what they cost, multiplied, 0..1.

    Args:
        values: Of a cell of ``live_knobs``, by key.
        now: The settings as they are.
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
    """The value as it is, and the others."""
    return (now, *(value for value in values if value != now))
