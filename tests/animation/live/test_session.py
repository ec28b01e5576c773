"""Tests of the live loop with a scripted camera and stages of known speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from live_runs import KeepingSink, Live

from left_threads import left_threads
from vitascope.animation.live.report import summarise_live, verdict
from vitascope.animation.live.session import LiveOptions
from vitascope.errors import OutputError, PipelineError
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSample, UtilisationSampler
from vitascope.media.sinks.sink import LivePicture, NullSink


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not left_threads("vitascope")


def test_pictures_go_through_and_are_counted() -> None:
    with Live() as live:
        for level in (1, 2, 3):
            live.show(level)
    assert live.result is not None
    assert (live.result.captured, live.result.shown, live.result.lost) == (3, 3, 0)
    assert live.sink.levels == [1, 2, 3]
    assert live.result.latency.count == 3
    assert live.result.sinks[0].sent == 3


def test_a_slow_animator_costs_pictures_and_not_time() -> None:
    with Live() as live:
        live.show(1)
        live.parts.may_animate.clear()
        for level in range(2, 30):
            live.camera.give(level)
            time.sleep(0.002)
        live.until(lambda: 29 in live.parts.tracked)
        live.parts.may_animate.set()
        live.until(lambda: live.sink.levels[-1] == 29)
    assert len(live.sink.levels) <= 5  # in progress, waiting, and the newest
    assert live.result is not None and live.result.dropped >= 20


def test_a_failed_sink_does_not_stop_the_others() -> None:
    class Broken(NullSink):
        def send(self, picture: LivePicture) -> None:
            raise OutputError("the cable was pulled")

    keeping = KeepingSink()
    live = Live(sinks=[Broken(), keeping])
    live.sink = keeping
    with live:
        for level in (1, 2):
            live.show(level)
    assert live.result is not None
    assert [sink.state for sink in live.result.sinks] == ["failed", "running"] or live.result.sinks[0].error
    assert keeping.levels == [1, 2]


def test_the_run_ends_when_every_sink_has_failed() -> None:
    class Broken(NullSink):
        def send(self, picture: LivePicture) -> None:
            raise OutputError("the cable was pulled")

    with Live(sinks=[Broken(), Broken()]) as live:
        live.camera.give(1)
        live.thread.join(5)
        assert not live.thread.is_alive()
    assert isinstance(live.error, OutputError)
    assert "the cable was pulled" in str(live.error)


def test_a_failing_stage_ends_the_run_and_is_named() -> None:
    with Live() as live:
        live.parts.fails = True
        live.camera.give(1)
        live.thread.join(10)
        assert not live.thread.is_alive(), "a camera that gives nothing more must not hold it"
    assert isinstance(live.error, PipelineError)
    assert "animate" in "".join(getattr(live.error.exceptions[0], "__notes__", []))
    assert str(live.error).startswith("stage 'animate', item 0: picture 0 of the driver: the animator broke")


def test_requests_reach_the_estimator() -> None:
    with Live(options=LiveOptions(pose_window=9)) as live:
        for key in "nf]":
            live.session.controls.press(key)
        live.show(1)
        live.parts.has_face = False
        live.session.controls.press("n")
        live.show(2)
    assert live.parts.calls == ["neutral", "best", (9, 6), "neutral"]
    neutrals = [said for said in live.said if "neutral" in said]
    assert neutrals == [
        "neutral: this face",
        "neutral: the calmest face so far",
        "no face is visible: the neutral stays",
    ]
    assert live.result is not None and live.result.lost == 1


def test_pausing_holds_the_picture() -> None:
    with Live() as live:
        live.show(1)
        live.session.controls.press("p")
        time.sleep(0.02)
        live.camera.give(2)
        time.sleep(0.2)
        assert live.sink.levels == [1]
        live.session.controls.press("p")
        live.show(3)
    assert live.sink.levels == [1, 3]
    assert live.result is not None
    assert (live.result.captured, live.result.shown) == (2, 2)  # a pause does not count as slow


def test_a_driver_who_barely_moves_is_not_animated() -> None:
    with Live(options=LiveOptions(skip_similarity=0.92)) as live:
        live.show(100)
        for _ in range(3):
            before = len(live.sink.levels)
            live.camera.give(100)
            live.until(lambda before=before: len(live.sink.levels) > before)  # type: ignore[misc]
        live.show(140)
    assert live.parts.animated == [101, 141]
    assert live.result is not None and live.result.repeated == 3


def test_keys_act_on_a_driver_who_sits_still() -> None:
    live = Live(options=LiveOptions(skip_similarity=0.92), on_background=lambda rgb: rgb + np.uint8(100))
    with live:
        live.show(100)
        live.session.controls.press("b")
        live.camera.give(100)
        live.until(lambda: live.sink.levels[-1] == 200)


def test_a_movement_whose_picture_fell_out_is_shown_with_the_next() -> None:
    with Live(options=LiveOptions(skip_similarity=0.92)) as live:

        def tracked(count: int) -> None:
            live.until(lambda: live.session.report().pipeline.stages[1].items == count)

        live.show(100)
        live.parts.may_animate.clear()
        live.camera.give(140)  # being animated
        live.until(lambda: live.session._at_work == {"animate"})
        live.camera.give(180)  # waits
        tracked(3)
        live.camera.give(180)  # replaces it, and has hardly moved
        tracked(4)
        live.parts.may_animate.set()
        live.until(lambda: live.sink.levels[-1] == 180)
    assert live.result is not None and live.result.repeated == 0


def test_slow_drift_is_animated() -> None:
    with Live(options=LiveOptions(skip_similarity=0.92)) as live:
        live.show(100)
        for level in range(101, 104):  # one level is 0.4 % of the scale: enough of a difference each time
            live.show(level)
    assert len(live.parts.animated) == 4


def test_a_camera_that_is_back_begins_a_new_track() -> None:
    with Live() as live:
        live.show(1)
        live.camera.give(2, is_first=True)
        live.until(lambda: live.sink.levels[-1] == 2)
    assert live.parts.new == [False, True]


def test_a_camera_that_gives_nothing_lets_the_portrait_relax() -> None:
    with Live(options=LiveOptions(absence_seconds=0.05)) as live:
        live.show(1)
        live.until(lambda: len(live.sink.levels) >= 3)
        assert live.parts.tracked == [1], "no picture is tracked twice"
        live.parts.calls.clear()
        live.show(7)
    assert live.result is not None
    assert live.result.lost >= 2
    assert live.result.dropped == 0


def test_strength_and_background_reach_what_they_change() -> None:
    strengths: list[float] = []
    live = Live(set_strength=strengths.append, on_background=lambda rgb: rgb + np.uint8(100))
    with live:
        live.show(1)
        live.session.controls.press("+")
        live.session.controls.press("b")
        live.camera.give(2)
        live.until(lambda: live.sink.levels[-1] == 102)
    assert strengths == [pytest.approx(1.1)]


def test_the_overlay_shows_the_driver_in_a_corner() -> None:
    shown: list[np.ndarray] = []

    class Keeping(NullSink):
        def send(self, picture: LivePicture) -> None:
            shown.append(picture.rgb)

    live = Live(sinks=[Keeping()])
    with live:
        live.session.controls.press("o")
        live.camera.give(9)
        live.until(lambda: bool(shown))
    assert shown[0].shape == (24, 32, 3)
    assert (shown[0][:7, :9] != 9).any()  # dots
    assert (shown[0][10:, 12:] == 9).all()


def test_snapshots_and_reports_come_when_asked_for(tmp_path: Path) -> None:
    with Live(options=LiveOptions(snapshot_folder=tmp_path)) as live:
        live.session.controls.press("s")
        live.session.controls.press("r")
        live.show(77)
        live.until(lambda: bool(live.reports))
    (picture,) = tmp_path.glob("portrait-*.png")
    assert cv2.imread(str(picture))[0, 0].tolist() == [77, 77, 77]
    assert live.said == [f"snapshot: {picture}"]
    assert live.reports[0].shown == 1


def test_a_snapshot_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with Live(options=LiveOptions(snapshot_folder=tmp_path / "none")) as live:
        live.session.controls.press("s")
        live.show(1)
        live.until(lambda: bool(live.said))
    assert live.said[0].startswith("cannot write the snapshot")


def test_a_run_ends_by_itself_after_its_time() -> None:
    live = Live(options=LiveOptions(seconds=0.05))
    with live:
        live.show(1)
        live.thread.join(5)
        assert not live.thread.is_alive()
    assert live.result is not None and live.result.seconds >= 0.05


def test_a_report_before_anything_was_measured() -> None:
    assert Live(sampler=UtilisationSampler()).session.report().utilisation is None


def test_the_verdict_names_what_is_poor() -> None:
    with Live(options=LiveOptions(target_fps=1)) as live:
        live.show(1)
        time.sleep(0.05)
        live.show(2)
        time.sleep(0.1)
    assert live.result is not None
    assert verdict(live.result)[0].startswith("good: ")
    lines = summarise_live(live.result)
    assert lines[0].startswith("2 pictures in ")
    assert any(line.startswith("keeping: 2 sent") for line in lines)
    poor = replace(live.result, target_fps=60, captured=40, seconds=1.0)
    assert verdict(poor)[0].startswith("poor: 2 fps of 40 possible; ")
    limited = replace(live.result, target_fps=60, captured=2, seconds=1.0)
    assert verdict(limited)[0] == "fair: 2 fps of 60 wanted; the driver is no faster"
    assert "poor: 38 of 40 pictures dropped" in verdict(poor)
    assert any("rarely found" in line for line in verdict(replace(poor, lost=2)))
    assert not any("rarely found" in line for line in verdict(poor))
    assert live.result.to_dict()["frames_per_second"] == live.result.frames_per_second


def test_a_hot_gpu_is_warned_of() -> None:
    hot = Utilisation(
        sample_count=9,
        seconds=1.0,
        cores=8,
        process_cores=1.0,
        gpu_percent=85.0,
        temperature_celsius_max=83.0,
    )

    class Sampler(UtilisationSampler):
        def samples(self) -> list[UtilisationSample]:
            look = UtilisationSample(
                seconds=1.0, process_cores=1.0, machine_cpu_percent=None, resident_bytes=None, gpu=None
            )
            return [look, look]

        def summary(self) -> Utilisation:
            return hot

    with Live(sampler=Sampler()) as live:
        live.show(1)
    assert live.result is not None
    assert verdict(live.result)[-1] == "warning: the GPU is at 83 °C; keep it below 80"
    assert "GPU 85 %, 0.0 GiB, 83 °C" in summarise_live(live.result)
