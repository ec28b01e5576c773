"""Tests of keys: what each changes, prints and requests."""

from __future__ import annotations

import threading

import pytest

from vitascope.animation.live.controls import KEYS, Controls, LiveState


def pressed(*keys: str, state: LiveState | None = None) -> tuple[Controls, list[str]]:
    said: list[str] = []
    controls = Controls(state or LiveState(), on_message=said.append)
    for key in keys:
        assert controls.press(key)
    return controls, said


@pytest.mark.parametrize(
    ("key", "field", "before", "after"),
    [("m", "mirror", False, True), ("o", "overlay", False, True)],
)
def test_switches_go_on_and_off(key: str, field: str, before: bool, after: bool) -> None:
    controls, said = pressed(key)
    assert getattr(controls.state, field) is after
    controls.press(key.upper())
    assert getattr(controls.state, field) is before
    assert len(said) == 2


def test_a_pause_is_over_with_the_next_press() -> None:
    controls, said = pressed("p")
    assert controls.paused
    controls.press("P")
    assert not controls.paused
    assert said == ["paused", "going on"]


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("r", "report"),
        ("n", "neutral"),
        ("f", "best-neutral"),
        ("s", "snapshot"),
        ("q", "quit"),
        ("t", "restart"),
    ],
)
def test_requests_are_done_once(key: str, wanted: str) -> None:
    controls, _ = pressed(key, key)
    assert controls.take(wanted)  # type: ignore[arg-type]
    assert not controls.take(wanted)  # type: ignore[arg-type]


def test_strength_has_limits() -> None:
    controls, said = pressed("+")
    assert controls.state.strength == pytest.approx(1.1)
    assert said == ["strength 1.10"]
    controls, _ = pressed(*"-" * 60)
    assert controls.state.strength == pytest.approx(0.1)
    controls, _ = pressed(*"=" * 60)
    assert controls.state.strength == 4


def test_smoothing_has_limits_and_is_handed_on() -> None:
    controls, said = pressed("]")
    assert controls.state.smoothing_window == 6
    assert said == ["smoothing over 6 frames"]
    assert controls.take("smoothing")
    controls, _ = pressed(*"[" * 9)
    assert controls.state.smoothing_window == 1


def test_background_alternates() -> None:
    controls, said = pressed("b", "b")
    assert controls.state.background == "portrait"
    assert said == ["background: green", "background: portrait"]


def test_other_keys_do_nothing() -> None:
    controls = Controls(LiveState())
    assert not controls.press("x")
    assert not controls.press("")
    assert controls.state == LiveState()


def test_programs_change_what_keys_change() -> None:
    controls = Controls(LiveState())
    controls.change(strength=2.0, smoothing_window=9)
    assert (controls.state.strength, controls.state.smoothing_window) == (2.0, 9)
    assert controls.take("smoothing")


def test_every_key_is_described() -> None:
    assert set("rnfm+-[]bopstq?") == set(KEYS)


def test_ctrl_c_may_ask_while_a_key_is_at_work() -> None:
    """Check a request while the lock is held: the handler may interrupt a thread anywhere."""
    controls = Controls(LiveState())
    asks = threading.Thread(target=controls.request, args=("quit",), daemon=True)
    with controls._lock:
        asks.start()
        asks.join(5)
        assert not asks.is_alive()
    assert controls.take("quit")
