"""Tests of a driver without end, and of what is measured with it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clips import write_clip
from vitascope.animation.face import FaceMotion
from vitascope.animation.live import run
from vitascope.animation.live.run import measure_live
from vitascope.animation.live.sources import EndlessDriver
from vitascope.animation.motion_file import write_motion
from vitascope.config import load_settings
from vitascope.errors import InputError, UsageError

EXAMPLES = Path(__file__).parents[3] / "examples"


class Clock:
    now = 9.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds + 1e-9


def test_a_recording_begins_anew_and_what_is_late_falls_out(tmp_path: Path) -> None:
    rows = [FaceMotion(scale=1 + index, pts_seconds=index) for index in range(3)]
    write_motion(tmp_path / "a.motion", rows, frame_rate=1)
    clock = Clock()
    driver = EndlessDriver(tmp_path / "a.motion", frame_rate=10, clock=clock, wait=clock.wait)
    scales = []
    for _ in range(5):
        picture = driver.take(timeout_seconds=1)
        assert picture is not None
        scales.append(driver.update(None, pts_seconds=picture.captured_seconds).scale)
    assert scales == pytest.approx([1, 2, 3, 1, 2])
    assert clock.now == pytest.approx(9.4)
    assert driver.take(timeout_seconds=0.01) is None
    clock.now = 10.05
    late = driver.take()
    assert late is not None and late.index == 10
    assert (driver.captured_count, driver.is_over) == (11, False)


def test_a_film_is_read_once(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "a.mkv",
        width=32,
        height=32,
        frame_count=3,
        paint=lambda n: np.full((32, 32, 3), 60 * n, np.uint8),
    )
    clock = Clock()
    with EndlessDriver(path, frame_rate=50, clock=clock, wait=clock.wait) as driver:
        path.unlink()
        levels = []
        for _ in range(6):
            picture = driver.take()
            assert picture is not None
            levels.append(round(int(picture.rgb[16, 16, 1]) / 60))
    assert levels == [0, 1, 2, 0, 1, 2]


def test_a_part_of_a_recording(tmp_path: Path) -> None:
    rows = [FaceMotion(scale=1 + index, pts_seconds=5 + index) for index in range(6)]
    path = tmp_path / "a.motion"
    write_motion(path, rows, frame_rate=1)
    clock = Clock()
    driver = EndlessDriver(path, frame_rate=10, start_seconds=2, end_seconds=4, clock=clock, wait=clock.wait)
    scales = []
    for _ in range(4):
        assert driver.take() is not None
        scales.append(driver.update(None, pts_seconds=0).scale)
    assert scales == pytest.approx([3, 4, 3, 4])
    with pytest.raises(InputError, match="no frame between --start and --end"):
        EndlessDriver(path, frame_rate=10, start_seconds=9)


def test_a_part_of_a_film(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "a.mkv",
        width=32,
        height=32,
        frame_count=4,
        frame_rate=Fraction(10),
        paint=lambda n: np.full((32, 32, 3), 60 * n, np.uint8),
    )
    clock = Clock()
    levels = []
    with EndlessDriver(
        path, frame_rate=50, start_seconds=0.1, end_seconds=0.3, clock=clock, wait=clock.wait
    ) as driver:
        for _ in range(4):
            picture = driver.take()
            assert picture is not None
            levels.append(round(int(picture.rgb[16, 16, 1]) / 60))
    assert levels == [1, 2, 1, 2]


@pytest.mark.parametrize("name", ["a.motion", "a.mp4"])
def test_measuring_takes_the_part_that_is_set(
    model_store: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given: dict[str, Any] = {}

    def endless(path: Path, **words: Any) -> EndlessDriver:
        given.update(words)
        raise InputError(f"{path} is not opened here")

    monkeypatch.setattr(run, "EndlessDriver", endless)
    loaded = load_settings(
        assignments=[
            *("video.start_seconds=8", "video.end_seconds=9", "video.max_corrupt_frames=3"),
            *("animation.animator=mesh", "animation.calibrate=false", "performance.target_fps=40"),
        ]
    )
    with pytest.raises(InputError, match="not opened here"):
        measure_live(EXAMPLES / "astronaut.jpg", Path(name), loaded=loaded, store=model_store)
    assert given == {"frame_rate": 40, "start_seconds": 8, "end_seconds": 9, "max_corrupt_frames": 3}


def test_measuring(face_model: Path, model_store: Any, tmp_path: Path) -> None:
    loaded = load_settings(
        assignments=["performance.target_fps=40", "animation.animator=mesh", "animation.calibrate=false"]
    )
    report = measure_live(
        EXAMPLES / "astronaut.jpg", EXAMPLES / "talk.motion", loaded=loaded, store=model_store, seconds=1.0
    )
    assert report.target_fps == 40
    assert 1.0 <= report.seconds < 40, "and not the sixty that are usual"
    assert 1 <= report.shown <= report.captured <= 40 * report.seconds + 1
    with pytest.raises(UsageError):
        measure_live(tmp_path / "a.jpg", tmp_path / "a.mp4", loaded=loaded, store=model_store, seconds=0)
