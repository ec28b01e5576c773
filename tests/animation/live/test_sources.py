"""Tests of videos and recordings at their own pace, with a simulated clock; and of the green screen."""

from __future__ import annotations

import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from vitascope.animation.face import FaceMotion, RgbPicture
from vitascope.animation.live.effects import GREEN, GreenScreen
from vitascope.animation.live.sources import FilmSource, ReplaySource
from vitascope.animation.motion_file import write_motion
from vitascope.errors import InputError
from vitascope.frames import Frame
from vitascope.media.reading import paced
from vitascope.media.reading.camera import is_camera
from vitascope.media.reading.reader import VideoReader
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput


class Clock:
    """Time that only passes when somebody sleeps, or on demand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def film(tmp_path: Path) -> Path:
    path = tmp_path / "driver.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        stream.time_base = Fraction(1, 10)
        for index in range(8):
            picture = av.VideoFrame.from_ndarray(
                np.full((16, 32, 3), 20 * index + 20, np.uint8), format="rgb24"
            )
            picture.pts = index
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


def level(rgb: RgbPicture) -> int:
    return round((int(rgb[0, 0, 0]) - 20) / 20)


def test_a_film_is_shown_at_its_pace(film: Path) -> None:
    clock = Clock()
    with FilmSource(film, clock=clock, wait=clock.wait) as source:
        for index in range(8):
            picture = source.take(timeout_seconds=1)
            assert picture is not None
            assert level(picture.rgb) == picture.index == index
            assert picture.captured_seconds == pytest.approx(50 + index / 10)
            assert clock.now == pytest.approx(50 + index / 10)
            assert picture.is_first is (index == 0)
        assert source.take(timeout_seconds=1) is None
        assert source.is_over
        assert source.captured_count == 8


def test_what_is_late_falls_out(film: Path) -> None:
    clock = Clock()
    with FilmSource(film, clock=clock, wait=clock.wait) as source:
        assert source.take() is not None
        clock.now += 0.35
        late = source.take()
        assert late is not None and level(late.rgb) == 3
        assert source.captured_count == 4
        clock.now += 100
        last = source.take()
        assert last is not None and level(last.rgb) == 7
        assert source.take() is None


def test_nothing_is_due_in_time(film: Path) -> None:
    clock = Clock()
    with FilmSource(film, clock=clock, wait=clock.wait) as source:
        assert source.take(timeout_seconds=0.01) is not None
        assert source.take(timeout_seconds=0.04) is None
        assert clock.now == pytest.approx(50.04)
        following = source.take(timeout_seconds=0.1)
        assert following is not None and following.index == 1
        assert not source.is_over


@pytest.mark.parametrize("prefetch_frames", [0, 3])
def test_a_stretch_without_pictures_is_an_error(film: Path, prefetch_frames: int) -> None:
    with (
        FilmSource(film, start_seconds=30, end_seconds=40, prefetch_frames=prefetch_frames) as source,
        pytest.raises(InputError, match="no picture between 30 s and 40 s"),
    ):
        source.take(timeout_seconds=1)


@pytest.mark.parametrize("prefetch_frames", [0, 1, 3, 100])
def test_a_film_that_is_read_ahead_is_the_same(film: Path, prefetch_frames: int) -> None:
    clock = Clock()
    with FilmSource(
        film,
        start_seconds=0.2,
        end_seconds=0.5,
        prefetch_frames=prefetch_frames,
        clock=clock,
        wait=clock.wait,
    ) as source:
        levels = []
        while (picture := source.take(timeout_seconds=1)) is not None:
            levels.append(level(picture.rgb))
        assert levels == [2, 3, 4]
        assert source.is_over
        assert clock.now == pytest.approx(50.2)


def test_a_film_is_read_as_far_ahead_as_asked(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitascope.media.reading.reader import VideoReader

    read = threading.Semaphore(0)
    decode = VideoReader.__next__

    def counted(self: VideoReader) -> Frame:
        frame = decode(self)
        read.release()
        return frame

    monkeypatch.setattr(VideoReader, "__next__", counted)
    with FilmSource(film, prefetch_frames=3):
        for _ in range(4):  # three waiting, and one in progress
            assert read.acquire(timeout=5)
        assert not read.acquire(timeout=0.05)
    with FilmSource(film, prefetch_frames=0):
        assert not read.acquire(timeout=0.05)


def test_damage_met_while_reading_ahead_is_raised_where_the_picture_is_missed(
    film: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vitascope.media.reading.reader import VideoReader

    def broken(self: VideoReader) -> Frame:
        raise InputError("the disk was pulled")

    monkeypatch.setattr(VideoReader, "__next__", broken)
    with (
        FilmSource(film, prefetch_frames=2) as source,
        pytest.raises(InputError, match="the disk was pulled"),
    ):
        source.take(timeout_seconds=1)


def test_a_film_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no film")
    with pytest.raises(InputError, match=r"text\.mp4"):
        FilmSource(tmp_path / "text.mp4")


def test_a_recording_is_replayed_at_its_pace(tmp_path: Path) -> None:
    rows = [FaceMotion(scale=1 + index / 10, pts_seconds=index / 10) for index in range(5)]
    write_motion(tmp_path / "a.motion", rows, frame_rate=10)
    clock = Clock()
    with ReplaySource(tmp_path / "a.motion", clock=clock, wait=clock.wait) as source:
        for index in range(3):
            picture = source.take(timeout_seconds=1)
            assert picture is not None and picture.captured_seconds == pytest.approx(50 + index / 10)
            assert source.update(None, pts_seconds=0).scale == pytest.approx(1 + index / 10, abs=1e-3)
        assert source.take(timeout_seconds=0.01) is None
        clock.now += 10
        assert source.take() is not None
        assert source.update(None, pts_seconds=0).scale == pytest.approx(1.4, abs=1e-3)
        assert source.is_over
        assert source.take() is None
        assert not source.set_neutral()
        assert not source.find_neutral()


def test_a_part_of_a_recording(tmp_path: Path) -> None:
    rows = [FaceMotion(scale=1 + index / 10, pts_seconds=7 + index / 10) for index in range(5)]
    write_motion(tmp_path / "a.motion", rows, frame_rate=10)
    clock = Clock()
    part = {"clock": clock, "wait": clock.wait}
    with ReplaySource(tmp_path / "a.motion", start_seconds=0.05, end_seconds=0.35, **part) as source:  # type: ignore[arg-type]
        for index in (1, 2, 3):
            assert source.take(timeout_seconds=1) is not None
            assert source.update(None, pts_seconds=0).scale == pytest.approx(1 + index / 10, abs=1e-3)
        assert source.is_over
    with pytest.raises(InputError, match="no motion between --start and --end"):
        ReplaySource(tmp_path / "a.motion", start_seconds=3)


class LeftHalf:
    """A network that finds a person in the left half."""

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        del region_size
        return NetworkInput(size=(16, 32), layout="NHWC")

    def new_state(self) -> object:
        return "state"

    def infer(self, images: FloatArray, state: object) -> list[MatteEstimate]:
        assert state == "state"
        assert images.shape == (1, 1, 16, 32, 3)
        assert images.dtype == np.float32
        assert images.max() <= 1
        alpha = np.zeros((1, 16, 32), np.float32)
        alpha[:, :, :16] = 1
        return [MatteEstimate(alpha=alpha)]


def test_the_green_screen_keeps_the_person() -> None:
    picture = np.full((48, 96, 3), 200, np.uint8)
    made = GreenScreen(LeftHalf())(picture)  # type: ignore[arg-type]  # what it uses of a network
    assert made[20, 10].tolist() == [200, 200, 200]
    assert np.abs(made[20, 90].astype(int) - GREEN).max() <= 1
    assert picture.min() == 200


@pytest.mark.parametrize(
    ("driver", "camera"),
    [
        ("0", True),
        ("/dev/video2", True),
        ("rtsp://host/stream", True),
        ("talk.mp4", False),
        ("a.motion", False),
    ],
)
def test_cameras_are_told_from_files(driver: str, camera: bool) -> None:
    assert is_camera(driver) is camera


def test_a_file_that_is_called_0_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0").touch()
    monkeypatch.chdir(tmp_path)
    assert not is_camera("0")


def test_a_decoder_that_hangs_holds_up_no_end(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "_LET_GO_SECONDS", 0.05)
    may_go_on, hangs = threading.Event(), threading.Event()
    closed: list[VideoReader] = []
    read, close = VideoReader.__next__, VideoReader.close

    def hang(self: VideoReader) -> Frame:
        hangs.set()
        assert may_go_on.wait(20)
        return read(self)

    monkeypatch.setattr(VideoReader, "__next__", hang)
    monkeypatch.setattr(VideoReader, "close", closed.append)
    with FilmSource(film, prefetch_frames=1) as source:
        assert hangs.wait(5)
        thread, reader = source._ahead._thread, source._reader  # type: ignore[union-attr]
    assert closed == [], "the decoder reads from it"
    may_go_on.set()
    thread.join(5)
    close(reader)
