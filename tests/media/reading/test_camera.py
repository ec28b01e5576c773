"""Tests of cameras: the newest picture, its capture time, and unplugging."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import cv2
import numpy as np
import pytest

from left_threads import left_threads
from vitascope.errors import InputError
from vitascope.media.reading.camera import Camera, Capture, open_capture
from waiting import PATIENCE_SECONDS, eventually


class ScriptedCapture:
    """Returns pictures on demand; a number sets the level, and None means unplugged."""

    def __init__(self) -> None:
        self._given: list[int | None] = []
        self._changed = threading.Condition()
        self.is_closed = False

    def give(self, *levels: int | None) -> None:
        with self._changed:
            self._given += levels
            self._changed.notify_all()

    def read(self) -> np.ndarray | None:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._given), timeout=PATIENCE_SECONDS):
                return None
            level = self._given.pop(0)
        return None if level is None else np.full((4, 6, 3), level, np.uint8)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not left_threads("vitascope-camera")


def wait_for_count(camera: Camera, count: int) -> None:
    eventually(lambda: camera.captured_count >= count)


def test_the_newest_picture_wins() -> None:
    capture, began = ScriptedCapture(), time.monotonic()
    with Camera(lambda: capture) as camera:
        capture.give(1, 2, 3)
        wait_for_count(camera, 3)
        before = time.monotonic()
        picture = camera.take(timeout_seconds=PATIENCE_SECONDS)
        assert picture is not None
        assert (int(picture.rgb[0, 0, 0]), picture.index) == (3, 2)
        assert began <= picture.captured_seconds <= before
        assert camera.take(timeout_seconds=0.01) is None
        capture.give(4, None)
        following = camera.take(timeout_seconds=PATIENCE_SECONDS)
        assert following is not None and following.index == 3
        assert not following.is_first
    assert capture.is_closed


def test_an_unplugged_camera_is_found_again() -> None:
    captures = [ScriptedCapture(), ScriptedCapture()]
    attempts: list[int] = []
    states: list[str] = []

    def open_one() -> Capture:
        attempts.append(len(attempts))
        if attempts[-1] in (1, 2):
            raise InputError("camera 0 cannot be opened")
        return captures[0] if attempts[-1] == 0 else captures[1]

    with Camera(open_one, on_state=states.append, retry_seconds=0.01) as camera:
        captures[0].give(1)
        first = camera.take(timeout_seconds=PATIENCE_SECONDS)
        assert first is not None and first.is_first
        captures[0].give(None)
        captures[1].give(9)
        again = camera.take(timeout_seconds=PATIENCE_SECONDS)
        assert again is not None and again.is_first and again.index == 1
        assert camera.state == "connected"
        captures[1].give(None)
    assert captures[0].is_closed
    assert attempts == [0, 1, 2, 3]
    assert states[:3] == ["connected", "lost", "connected"]


def test_a_camera_that_hangs_is_told_once_until_it_gives_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitascope.media.reading.camera._SILENCE_SECONDS", 0.05)
    capture, states = ScriptedCapture(), []
    with Camera(lambda: capture, on_state=states.append) as camera:
        assert camera.take(timeout_seconds=0.1) is None
        assert states == [], "it was never there"
        capture.give(1)
        assert camera.take(timeout_seconds=PATIENCE_SECONDS) is not None
        for _ in range(3):
            assert camera.take(timeout_seconds=0.1) is None
        assert states == ["connected", "silent"]
        capture.give(2)
        assert camera.take(timeout_seconds=PATIENCE_SECONDS) is not None
        wait_for_count(camera, 2)
        eventually(lambda: states == ["connected", "silent", "connected"])
        monkeypatch.undo()
        capture.give(None)


def test_a_camera_that_is_not_there_is_said_at_once() -> None:
    def open_one() -> Capture:
        raise InputError("camera 3 cannot be opened")

    with pytest.raises(InputError, match="camera 3"), Camera(open_one):
        pass


def test_closing_wakes_whoever_waits() -> None:
    capture = ScriptedCapture()
    got: list[object] = []
    with Camera(lambda: capture) as camera:
        waiting = threading.Thread(target=lambda: got.append(camera.take()))
        waiting.start()
        capture.give(None)
    waiting.join(5)
    assert got == [None]


@pytest.mark.parametrize("source", [77, "/dev/no-such-camera"])
def test_opencv_refuses_what_is_not_there(source: int | str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="cannot be opened: it does not exist"):
        open_capture(source)
    assert capfd.readouterr() == ("", "")


def test_an_address_that_is_not_there_is_refused_without_a_word_of_ffmpegs() -> None:
    """Run a new process, as the first use of OpenCV's FFmpeg, which a docs example may make, sets its log level."""
    program = (
        "from vitascope.errors import InputError\n"
        "from vitascope.media.reading.camera import open_capture\n"
        "try: open_capture('rtsp://127.0.0.1:1/none')\n"
        "except InputError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said = "rtsp://127.0.0.1:1/none cannot be opened: it does not exist, or another program uses it\n"
    assert (ended.stdout, ended.stderr) == (said, "")


def test_opencv_opens_a_film_as_it_would_a_camera(tmp_path: object) -> None:
    from pathlib import Path

    import cv2

    assert isinstance(tmp_path, Path)
    path = tmp_path / "camera.avi"
    # Do not use FFmpeg: the first camera opened in a process sets how much it prints.
    own = cv2.CAP_OPENCV_MJPEG
    writer = cv2.VideoWriter(str(path), own, cv2.VideoWriter.fourcc(*"MJPG"), 30, (32, 16))
    writer.write(np.full((16, 32, 3), (30, 60, 200), np.uint8))
    writer.release()
    capture = open_capture(str(path), size=(32, 16), frame_rate=30)
    rgb = capture.read()
    assert rgb is not None and rgb.shape == (16, 32, 3)
    assert np.abs(rgb[8, 16].astype(int) - [200, 60, 30]).max() < 12
    assert capture.read() is None
    capture.close()


def test_without_reading_ahead_pictures_come_one_by_one_and_the_camera_is_found_again() -> None:
    captures = [ScriptedCapture(), ScriptedCapture()]
    opened: list[ScriptedCapture] = []

    def open_one() -> Capture:
        opened.append(captures[len(opened)])
        return opened[-1]

    with Camera(open_one, retry_seconds=0.001, reads_ahead=False) as camera:
        captures[0].give(1, 2, None)
        pictures = [camera.take(timeout_seconds=0.1) for _ in range(3)]
        assert [None if one is None else int(one.rgb[0, 0, 0]) for one in pictures] == [1, 2, None]
        assert [one.is_first for one in pictures if one is not None] == [True, False]
        captures[1].give(3)
        again = camera.take(timeout_seconds=0.1)
        assert again is not None and again.is_first and again.index == 2
    assert camera.take() is None
    assert captures[0].is_closed and captures[1].is_closed


def test_what_opencv_raises_is_a_camera_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *_: object) -> None:
            pass

        def isOpened(self) -> bool:
            return True

        def set(self, *_: object) -> bool:
            return True

        def read(self) -> tuple[bool, np.ndarray]:
            raise cv2.error("the driver went away")

        def release(self) -> None:
            pass

    monkeypatch.setattr(cv2, "VideoCapture", Broken)
    assert open_capture(0).read() is None

    def refuse(*_: object) -> None:
        raise cv2.error("no such driver")

    monkeypatch.setattr(cv2, "VideoCapture", refuse)
    with pytest.raises(InputError, match="camera 0 cannot be opened"):
        open_capture(0)
