"""Tests of the tuner of live animation, on a machine of known speed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from live_reports import live_report
from vitascope.config import SettingsSource, load_settings
from vitascope.errors import EngineError, UsageError, VitascopeError
from vitascope.file_lock import write_file
from vitascope.tune import live_tuner
from vitascope.tune.live_tuner import LiveTuner
from vitascope.tune.tuned_file import append_history, read_history, tuned_text

LONGEST = 1920
PORTRAIT, DRIVER = Path("portrait.jpg"), Path("talk.mp4")


class Machine:
    """Animates a number of megapixels a second; a tracker with refinement costs ``refine_seconds`` a picture."""

    def __init__(self, *, seconds_a_megapixel: float, refine_seconds: float = 0.0) -> None:
        self.seconds_a_megapixel, self.refine_seconds = seconds_a_megapixel, refine_seconds
        self.fails_below: int | None = None
        self.is_blank_above = LONGEST
        self.runs: list[dict] = []
        self.animator = "mesh"

    def __call__(self, portrait, driver, *, loaded, store, seconds, warm_up_pictures):
        settings = loaded.settings
        side = min(settings.animation.max_side, LONGEST)
        self.runs.append({"driver": driver, "side": side, "seconds": seconds, "warm_up": warm_up_pictures})
        self.runs[-1]["part"] = settings.video.start_seconds, settings.video.end_seconds
        if self.fails_below is not None and side < self.fails_below:
            raise EngineError("the face is too small")
        work = side * side * 9 / 16 / 1e6 * self.seconds_a_megapixel
        work += self.refine_seconds * settings.tracking.refine_landmarks
        fps = min(1 / work, settings.performance.target_fps)
        return live_report(
            latency_ms=work * 1e3,
            size=(side, side * 9 // 16),
            animator=self.animator,
            captured=round(settings.performance.target_fps * 10),
            shown=0 if side > self.is_blank_above else round(fps * 10),
            target_fps=settings.performance.target_fps,
        )


@pytest.fixture
def tune(monkeypatch, tmp_path):
    """Tune a machine with some settings."""
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))

    def tuner(machine, *assignments, seconds=60.0, driver=DRIVER):
        monkeypatch.setattr(live_tuner, "measure_live", machine)
        source = SettingsSource(assignments=assignments)
        tuned = LiveTuner(
            source,
            PORTRAIT,
            driver,
            store=None,
            folder=tmp_path,
            seconds=seconds,
            command="vitascope bench animate",
        ).tune()
        return tuned, source

    return tuner


def test_a_fast_machine_gives_nothing_up(tune):
    machine = Machine(seconds_a_megapixel=0.001)
    tuned, _ = tune(machine, "performance.target_fps=30")
    assert tuned.values == {}
    assert tuned.unreachable is None
    assert len(tuned.search.trials) == 1  # the target is reached, so nothing more is tried
    assert tuned.before.figures["fps"] == 30


def test_a_slow_one_shrinks_the_picture_as_far_as_it_must(tune):
    machine = Machine(seconds_a_megapixel=0.06)  # 1.04 megapixels: 16 fps; 0.52: 32
    tuned, _ = tune(machine, "performance.target_fps=30")
    assert tuned.values == {"animation.max_side": 960}
    assert tuned.unreachable is None
    assert tuned.after.figures["fps"] == 30
    assert tuned.before.figures["fps"] == pytest.approx(8, abs=0.1)


def test_refinement_goes_only_where_it_costs(tune):
    tuned, _ = tune(Machine(seconds_a_megapixel=0.001, refine_seconds=0.1), "performance.target_fps=30")
    assert tuned.values == {"tracking.refine_landmarks": False}


def test_what_cannot_be_reached_is_said_and_the_best_is_kept(tune):
    tuned, _ = tune(Machine(seconds_a_megapixel=2.0), "performance.target_fps=90")
    assert tuned.values["animation.max_side"] == 720
    assert tuned.unreachable is not None
    assert "90 fps cannot be reached here" in tuned.unreachable
    assert "50 ms cannot be kept" in tuned.unreachable


def test_a_setting_that_does_not_run_is_passed_over(tune):
    machine = Machine(seconds_a_megapixel=2.0)
    machine.fails_below = 900
    tuned, _ = tune(machine)
    assert tuned.values["animation.max_side"] == 960
    assert any(trial.measured.failure == "the face is too small" for trial in tuned.search.trials)


def test_trials_share_the_time(tune):
    machine = Machine(seconds_a_megapixel=2.0)
    tune(machine, seconds=9.0)
    # The measurement of the current settings is extra; five trials, and two rounds of before and after.
    assert len(machine.runs) == 1 + 5 + 4
    assert {run["seconds"] for run in machine.runs} == {1.0}
    assert all(run["warm_up"] > 0 for run in machine.runs)
    with pytest.raises(UsageError, match="needs at least 6 seconds"):
        tune(machine, seconds=5.0)


def test_nothing_to_turn(tune):
    words = (
        "animation.max_side=900",
        "tracking.refine_landmarks=true",
        "performance.frame_skip_enabled=false",
    )
    with pytest.raises(UsageError, match="set by hand"):
        tune(Machine(seconds_a_megapixel=1.0), *words, "performance.frame_skip_threshold=0.9")


def test_settings_that_do_not_run_at_all(tune):
    machine = Machine(seconds_a_megapixel=1.0)
    machine.fails_below = 9999
    with pytest.raises(VitascopeError, match="too small"):
        tune(machine)


def test_a_machine_too_slow_for_one_picture(tune):
    machine = Machine(seconds_a_megapixel=2.0)
    machine.is_blank_above = 0
    with pytest.raises(VitascopeError, match=r"no settings could be measured: no picture in 3\.3 s"):
        tune(machine)
    machine.is_blank_above = 800  # the search finds something, but not how much better it is
    with pytest.raises(VitascopeError, match="the settings in use could not be measured: no picture"):
        tune(machine)


@pytest.mark.parametrize(("ends", "made_until"), [("", 14), ("video.end_seconds=9", 9)])
def test_a_film_is_made_of_the_part_that_is_set(tune, monkeypatch, ends, made_until):
    made = []

    def animate_file(portrait, driver, out, *, loaded, store):
        made.append((loaded.settings.video.start_seconds, loaded.settings.video.end_seconds))

    monkeypatch.setattr(live_tuner, "animate_file", animate_file)
    machine = Machine(seconds_a_megapixel=0.001)
    part = ["video.start_seconds=8", *([ends] if ends else [])]
    tune(machine, "performance.target_fps=30", *part, driver=Path("talk.motion"))
    assert made == [(8, made_until)]
    assert {run["part"] for run in machine.runs} == {(0, None)}  # the video is that part
    tune(machine, "performance.target_fps=30", *part)
    assert machine.runs[-1]["part"] == (8, 9 if ends else None)


def test_recorded_motion_becomes_a_film_for_the_tracker(tune, monkeypatch, tmp_path):
    made = []

    def animate_file(portrait, driver, out, *, loaded, store):
        made.append((driver, out, loaded.settings.animation.max_side, loaded.settings.animation.animator))

    monkeypatch.setattr(live_tuner, "animate_file", animate_file)
    machine = Machine(seconds_a_megapixel=0.001)
    tune(machine, "performance.target_fps=30", driver=Path("talk.motion"))
    assert made == [(Path("talk.motion"), tmp_path / "driver.mp4", 640, "mesh")]
    assert {run["driver"] for run in machine.runs} == {tmp_path / "driver.mp4"}


@pytest.fixture
def films(monkeypatch):
    """LivePortrait on a GPU that draws so many pictures a second in each batch; gives the batches that were tried."""
    tried = []

    def measure_film(portrait, driver, *, loaded, store, seconds):
        batch = loaded.settings.animation.batch_size.low
        tried.append(batch)
        assert (portrait, driver, seconds) == (PORTRAIT, DRIVER, 60 / 18)
        if batch > films.most:
            raise RuntimeError("CUDA out of memory")
        return {1: 50.0, 2: 80.0, 3: 85.0, 4: 99.5, 6: 99.0, 8: 100.0}[batch]

    monkeypatch.setattr(live_tuner, "measure_film", measure_film)
    films = type("Films", (), {"tried": tried, "most": 99})
    return films


@pytest.mark.parametrize(
    ("setting", "most", "tried", "chosen"),
    [
        ("", 99, [1, 2, 4, 8], 4),  # as fast as 8, with less memory
        ("", 3, [1, 2, 4], 2),
        ("animation.batch_size=3-6", 99, [3, 4, 6], 4),
        ("animation.batch_size=2", 99, [], None),
        ("animation.animator=mesh", 99, [], None),
    ],
)
def test_the_batch_of_liveportrait_is_that_of_films(tune, films, setting, most, tried, chosen, tmp_path):
    machine = Machine(seconds_a_megapixel=0.001)
    machine.animator = "mesh" if "mesh" in setting else "liveportrait"
    films.most = most
    tuned, source = tune(machine, "performance.target_fps=30", *([setting] if setting else []))
    assert films.tried == tried
    assert tuned.values == ({} if chosen is None else {"animation.batch_size": chosen})
    if chosen is not None:
        when = datetime(2026, 1, 2, tzinfo=UTC)
        text = tuned_text(tuned, source, subject="portrait.jpg", when=when)
        assert f"{chosen}: 99.5 %" in text or f"{chosen}: 100 %" in text
        write_file(tmp_path / "live.yaml", text.encode())
        assert load_settings(files=[tmp_path / "live.yaml"]).settings.animation.batch_size.low == chosen


def test_what_else_goes_wrong_is_not_hidden(tune, films, monkeypatch):
    def fail(*_, **__):
        raise EngineError("a network failed")

    monkeypatch.setattr(live_tuner, "measure_film", fail)
    machine = Machine(seconds_a_megapixel=0.001)
    machine.animator = "liveportrait"
    with pytest.raises(EngineError, match="a network failed"):
        tune(machine, "performance.target_fps=30")


def test_the_file_is_one_that_animate_takes(tune, tmp_path):
    tuned, source = tune(Machine(seconds_a_megapixel=0.06), "performance.target_fps=30")
    when = datetime(2026, 1, 2, tzinfo=UTC)
    text = tuned_text(tuned, source, subject="portrait.jpg", when=when)
    assert "8.0 -> 30.0 fps of 30" in text.replace("\n# ", " ")
    assert "960: 88 %" in text
    path = tmp_path / "live.yaml"
    write_file(path, text.encode())
    settings = load_settings(files=[path]).settings
    assert (settings.animation.max_side, settings.performance.target_fps) == (960, 30)
    append_history(tuned, subject="portrait.jpg", when=when, file=path)
    (line,) = read_history()
    assert line["change"] == {"animation.max_side": 960}
    assert line["network"] == "mesh at 1920x1080"
    assert line["after"]["fps"] == 30
