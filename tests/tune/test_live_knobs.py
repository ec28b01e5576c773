"""Tests of the settings that a tuner of live animation may change, and of their costs."""

from __future__ import annotations

import pytest

from vitascope.config import load_settings
from vitascope.tune.live_tuner import kept_quality, live_knobs


def keys(*assignments: str, size: tuple[int, int] = (1080, 1920), animator: str = "mesh") -> dict[str, tuple]:
    loaded = load_settings(assignments=assignments)
    return {knob.key: knob.values for knob in live_knobs(loaded, size=size, animator=animator)}


def test_each_knob_begins_with_the_value_as_it_is() -> None:
    assert keys() == {
        "animation.max_side": (3840, 1440, 960, 720),
        "tracking.refine_landmarks": (True, False),
        "performance.frame_skip_enabled": (False, True),
        "performance.frame_skip_threshold": (0.92, 0.85),
    }


def test_what_the_user_set_stays() -> None:
    found = keys("animation.max_side=1000", "tracking.refine_landmarks=false")
    assert set(found) == {"performance.frame_skip_enabled", "performance.frame_skip_threshold"}


def test_small_portraits_are_not_shrunk_to_nothing() -> None:
    assert keys(size=(512, 400))["animation.max_side"] == (3840, 384, 256)
    assert "animation.max_side" not in keys(size=(300, 200))


def test_the_mesh_stands_in_for_liveportrait_where_both_are_there() -> None:
    assert keys(animator="liveportrait")["animation.animator"] == ("auto", "mesh")


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({}, 1.0),
        ({"animation.max_side": 3840}, 1.0),
        ({"animation.max_side": 960}, 0.88),
        ({"animation.max_side": 480}, 0.88**2),
        ({"tracking.refine_landmarks": False}, 0.9),
        ({"performance.frame_skip_threshold": 0.85}, 1.0),  # nothing is skipped
        ({"performance.frame_skip_enabled": True}, 0.97),
        ({"performance.frame_skip_enabled": True, "performance.frame_skip_threshold": 0.85}, 0.9),
        ({"animation.animator": "mesh"}, 0.8),
        ({"animation.max_side": 960, "tracking.refine_landmarks": False}, 0.88 * 0.9),
    ],
)
def test_what_is_given_up_costs(values: dict, kept: float) -> None:
    settings = load_settings().settings
    assert kept_quality(values, settings, size=(1920, 1080)) == pytest.approx(kept)
