"""Tests of live segmentation with a scripted camera, known answers, and sinks that keep pictures.

Each picture has a bright person on one side, in a level of its own, and black on the other. So an output
shows which picture it is, and whether its matte is its own.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from segmented_films import astronaut

from clips import write_clip
from left_over import left_by
from left_threads import left_threads
from vitascope import Segmenter
from vitascope.config import SettingsSource
from vitascope.errors import InputError, OutputError, PipelineError, UsageError
from vitascope.media.metadata.spherical import set_rotation
from vitascope.media.reading import camera as cameras
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat
from vitascope.segmentation import live
from vitascope.segmentation.live import (
    LiveMatting,
    LiveMattingReport,
    check_live,
    live_settings,
    summarise_live,
)
from vitascope.segmentation.matting.stream import StreamMatting
from waiting import eventually

KEY = (120, 255, 155)
PERIOD = 24
SIZE = (64, 96)
"""(height, width)."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not left_threads("vitascope"))


def painted(number: int) -> np.ndarray:
    """Paint picture ``number``: a person on the left in even ones, on the right in odd ones."""
    height, width = SIZE
    rgb = np.zeros((height, width, 3), np.uint8)
    side = slice(0, width // 2) if number % 2 == 0 else slice(width // 2, width)
    rgb[:, side] = level_of(number)
    return rgb


def level_of(number: int) -> int:
    return 150 + number % PERIOD * 4


def number_in(rgb: np.ndarray) -> int:
    """Return which picture this is, modulo ``PERIOD``; fail if its matte is not its own."""
    height, width = SIZE
    left, right = (rgb[8 : height - 8, at : at + width // 4].reshape(-1, 3) for at in (8, width * 5 // 8))
    person, behind = (left, right) if np.ptp(left[0]) < np.ptp(right[0]) else (right, left)
    assert np.abs(behind.astype(int) - KEY).max() <= 3
    assert np.ptp(person) <= 6
    number = round((int(np.median(person)) - 150) / 4)
    assert (number % 2 == 0) is (person is left), "the matte of another picture"
    return number


class ScriptedCapture:
    """Simulates a camera that returns pictures on demand; None means unplugged."""

    def __init__(self) -> None:
        self.given: list[np.ndarray | None] = [np.zeros((*SIZE, 3), np.uint8)]  # sets the size
        self._changed = threading.Condition()
        self.open_count = 0
        self.asked: dict[str, Any] = {}

    def give(self, *pictures: int | np.ndarray | None) -> None:
        with self._changed:
            self.given += [painted(one) if isinstance(one, int) else one for one in pictures]
            self._changed.notify_all()

    def read(self) -> np.ndarray | None:
        with self._changed:
            while not self.given:
                if not self._changed.wait(timeout=30) or self.open_count == 0:
                    return None
            return self.given.pop(0)

    def close(self) -> None:
        self.open_count -= 1


class KeepingSink:
    """Keeps the pictures that it gets."""

    name = "keeping"

    def __init__(self, pixel_format: PixelFormat = "rgb24") -> None:
        self.pixel_format: PixelFormat = pixel_format
        self.made: SinkFormat | None = None
        self.kept: list[LivePicture] = []
        self.closed = 0

    def open(self, made: SinkFormat) -> None:
        self.made = made

    def send(self, picture: LivePicture) -> None:
        self.kept.append(picture)

    def close(self) -> None:
        self.closed += 1

    @property
    def numbers(self) -> list[int]:
        return [number_in(picture.rgb) for picture in self.kept]


class Live:
    """Runs live segmentation in a thread."""

    def __init__(
        self,
        capture: ScriptedCapture,
        sinks: list[Any] | None = None,
        *,
        settings: dict[str, Any] | None = None,
        source: str = "0",
        **more: Any,
    ) -> None:
        self.capture, self.sink = capture, KeepingSink()
        self.said: list[str] = []
        self.report: LiveMattingReport | None = None
        self.error: BaseException | None = None
        self.run: LiveMatting | None = None
        self._begun = threading.Event()
        # Otherwise the second picture, which differs in every sample, would begin a shot.
        self._settings = {"video.scene_cut_threshold": 0.0, **(settings or {})}
        self._words = source, [self.sink] if sinks is None else sinks
        self._more = more
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            with Segmenter(profile="fast", settings=self._settings) as segmenter:
                self.report = segmenter.live(
                    *self._words, on_start=self._begin, on_message=self.said.append, **self._more
                )
        except BaseException as error:
            self.error = error
        self._begun.set()

    def _begin(self, run: LiveMatting) -> None:
        self.run = run
        self._begun.set()

    def __enter__(self) -> Live:
        self.thread.start()
        assert self._begun.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        if self.run is not None:
            self.run.stop()
        self.capture.give(None)
        self.thread.join(20)
        assert not self.thread.is_alive()

    def show(self, number: int) -> None:
        """Show a picture to the camera, and wait until the sink has it."""
        self.capture.give(number)
        self.until(lambda: bool(self.sink.kept) and number_in(self.sink.kept[-1].rgb) == number % PERIOD)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, (self.said, self.error)
            time.sleep(0.002)


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch, scripted: Any) -> ScriptedCapture:
    """Simulate camera 0."""
    made = ScriptedCapture()

    def open_capture(source: int | str, **asked: Any) -> ScriptedCapture:
        if source != 0:
            raise InputError(
                f"camera {source} cannot be opened: it does not exist, or another program uses it"
            )
        made.open_count += 1
        made.asked = asked
        return made

    monkeypatch.setattr(cameras, "open_capture", open_capture)
    # The camera waits for pictures, so the end of a run must not wait for it.
    monkeypatch.setattr(cameras, "_CLOSING_SECONDS", 0.1)
    return made


def test_people_come_out_on_the_key_colour_with_the_time_of_their_capture(capture) -> None:
    with Live(capture) as running:
        before = time.monotonic()
        for number in (1, 2, 3):
            running.show(number)
        running.run.stop()
        running.thread.join(20)
    assert running.error is None
    assert running.sink.numbers == [1, 2, 3]
    assert running.sink.made is not None and (running.sink.made.width, running.sink.made.height) == SIZE[::-1]
    times = [picture.captured_seconds for picture in running.sink.kept]
    assert before <= times[0] < times[1] < times[2] <= time.monotonic()
    report = running.report
    assert (report.captured, report.shown, report.dropped, report.latency.count) == (3, 3, 0, 3)
    assert 0 < report.latency.p50_seconds < 5
    first, second, *_ = summarise_live(report)
    assert first.startswith("3 pictures in ") and "; key at 96x64 on CPU" in first
    assert second.endswith("from capture to the sinks; 0 of 3 pictures dropped")
    assert running.sink.closed == 1
    running.until(lambda: capture.open_count == 0)
    assert not {"lost", "repeated"} & set(report.to_dict())


def test_who_loses_pictures_is_told_of_profiles_that_are_faster_on_this_device(capture) -> None:
    with Live(capture) as running:
        running.show(0)
        running.run.stop()
        running.thread.join(20)
    late = replace(running.report, shown=1, seconds=1.0, captured=30, target_fps=30.0)

    def advice(profile: str, device: str) -> str:
        lines = summarise_live(replace(late, profile=profile, device=device))
        (line,) = [line for line in lines if line.startswith("late frames are dropped")]
        return line.partition("; ")[2]

    smaller = "a smaller camera picture lets more through"
    on_gpu = "NVIDIA H200 (GPU 0, 140 GiB, compute capability 9.0)"
    assert advice("balanced", "CPU (2 cores)") == f"--profile fast, or {smaller}"
    assert advice("balanced", on_gpu) == advice("fast", on_gpu) == advice("fast", "CPU (2 cores)") == smaller
    assert advice("quality", on_gpu) == f"--profile balanced, or {smaller}"


def test_a_slow_network_costs_pictures_and_not_time(capture, scripted, monkeypatch) -> None:
    may_go_on, seen, infer = threading.Event(), [], scripted.infer

    def slow(images, state):
        seen.append(1)
        assert may_go_on.wait(20)
        return infer(images, state)

    with Live(capture, settings={"model.warm_up_frames": 0}) as running:
        monkeypatch.setattr(scripted, "infer", slow)
        capture.give(0)
        running.until(lambda: bool(seen))
        for number in range(1, 40):
            capture.give(number)
            time.sleep(0.002)
        running.until(lambda: not capture.given)
        time.sleep(0.1)
        may_go_on.set()
        running.until(lambda: bool(running.sink.kept) and running.sink.kept[-1].index == 40)
    indices = [picture.index for picture in running.sink.kept]
    assert indices == sorted(set(indices)) and running.sink.numbers[-1] == 39 % PERIOD
    assert len(indices) <= 4, "what was under way, what waited before each stage, and the newest"
    assert running.report.captured == 40
    (sink,) = running.report.sinks  # a newer picture may arrive before it took one
    assert running.report.dropped + sink.dropped == 40 - len(indices)


def test_no_picture_is_prepared_before_the_network_is_ready_for_it(capture, scripted, monkeypatch) -> None:
    may_go_on, prepared, prepare, infer = threading.Event(), [], StreamMatting.prepare, scripted.infer

    def noticed(self, frames):
        prepared.append(frames[0].index)
        return prepare(self, frames)

    def waiting(images, state):
        assert may_go_on.wait(20)
        return infer(images, state)

    monkeypatch.setattr(StreamMatting, "prepare", noticed)
    monkeypatch.setattr(scripted, "infer", waiting)
    with Live(capture, settings={"model.warm_up_frames": 0}) as running:
        capture.give(0)
        running.until(lambda: prepared == [1])
        for number in range(1, 10):
            capture.give(number)
            running.until(lambda: not capture.given)
            time.sleep(0.01)
        assert prepared == [1], "the others would be dropped"
        may_go_on.set()
        running.until(lambda: bool(running.sink.kept) and running.sink.kept[-1].index == 10)


def test_no_frame_gets_the_matte_or_the_place_of_another(capture, scripted, monkeypatch) -> None:
    dice, infer = random.Random(3), scripted.infer

    def uneven(images, state):
        time.sleep(dice.choice((0.0, 0.001, 0.02)))
        return infer(images, state)

    monkeypatch.setattr(scripted, "infer", uneven)
    with Live(capture, settings={"pipeline.stages.postprocess.threads": 3}) as running:
        for number in range(150):
            capture.give(number)
            time.sleep(dice.choice((0.0, 0.002, 0.004)))
            if number % 25 == 24:  # however busy the machine is
                running.until(lambda shown=number // 25: len(running.sink.kept) > shown)
        running.until(lambda: bool(running.sink.kept) and running.sink.kept[-1].index == 150)
    indices = [picture.index for picture in running.sink.kept]
    assert indices == sorted(set(indices))
    assert running.sink.numbers == [(index - 1) % PERIOD for index in indices]  # index 0 set the size
    assert len(indices) > 5


def test_a_stream_has_one_memory_and_both_eyes_share_a_call(capture, scripted) -> None:
    with Live(capture, settings={"video.stereo": "side-by-side"}) as running:
        for number in range(5):
            capture.give(painted(2 * number) + painted(2 * number + 1))  # people on both sides
            running.until(lambda number=number: len(running.sink.kept) > number)
    assert len(scripted.states) == 1
    assert set(scripted.calls) == {(1, 2)}
    assert (running.report.stereo, running.report.stereo_reason) == ("side-by-side", "declared")


@pytest.mark.parametrize(("settings", "rate"), [({}, 30), ({"performance.target_fps": 50.0}, 50)])
def test_a_camera_is_asked_for_a_rate_and_a_size(capture, settings, rate) -> None:
    with Live(capture, settings=settings, camera_size=(1280, 720)) as running:
        running.show(1)
    assert capture.asked == {"size": (1280, 720), "frame_rate": rate}
    assert running.report.target_fps == rate
    assert running.sink.made is not None and running.sink.made.frame_rate == rate


def test_two_eyes_are_noticed_in_a_cameras_picture(capture) -> None:
    eye = astronaut(0)
    both = np.concatenate([eye, np.roll(eye, 2, axis=1)], axis=1)
    capture.given = [np.ascontiguousarray(both)]
    with Live(capture) as running:
        assert running.run.report().stereo == "side-by-side"
    assert running.report.stereo_reason == "both halves show the same scene"


def test_a_failed_sink_is_told_and_the_others_go_on(capture) -> None:
    class Broken(KeepingSink):
        name = "broken"

        def send(self, picture: LivePicture) -> None:
            raise OutputError("the cable was pulled")

    keeping = KeepingSink()
    running = Live(capture, [Broken(), keeping])
    running.sink = keeping
    with running:
        for number in (1, 2):
            running.show(number)
    assert running.error is None
    assert running.said.count("broken stopped: the cable was pulled") == 1
    assert running.report.failure == "broken: the cable was pulled"
    assert keeping.numbers == [1, 2]


def test_the_run_ends_when_every_sink_has_failed(capture) -> None:
    class Broken(KeepingSink):
        def send(self, picture: LivePicture) -> None:
            raise RuntimeError("what a library raises")

    with Live(capture, [Broken()]) as running:
        capture.give(1)
        running.thread.join(10)
        assert not running.thread.is_alive()
    assert isinstance(running.error, OutputError)
    assert "what a library raises" in str(running.error)


@pytest.mark.parametrize(
    ("stage", "where"),
    [
        ("infer", "vitascope.segmentation.matting.stream.StreamMatting.prepare"),
        ("infer", "scripted"),
        ("postprocess", "vitascope.segmentation.matting.stream.StreamMatting.refine"),
        ("output", "vitascope.segmentation.live.rgb_of"),
    ],
)
def test_a_failing_stage_ends_the_run_and_leaves_a_whole_file(
    capture, scripted, monkeypatch, tmp_path, stage, where
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("it broke")

    monkeypatch.setattr("vitascope.media.live_loop._STOP_SECONDS", 30)  # no thread is left behind before

    with Live(capture, [f"file:{tmp_path / 'out.mkv'}"]) as running:
        for number in range(3):
            capture.give(number)
            running.until(lambda number=number: running.run.report().sinks[0].sent > number)
        if where == "scripted":
            monkeypatch.setattr(scripted, "infer", fail)
        else:
            monkeypatch.setattr(where, fail)
        capture.give(3)
        running.thread.join(15)
        assert not running.thread.is_alive(), "a camera that gives nothing more must not hold it"
    assert isinstance(running.error, PipelineError)
    assert f"stage {stage!r}" in str(running.error) and "it broke" in str(running.error)
    with av.open(str(tmp_path / "out.mkv")) as container:
        assert len(list(container.decode(video=0))) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["out.mkv"]


def test_a_camera_that_was_unplugged_is_waited_for(capture) -> None:
    with Live(capture) as running:
        running.show(1)
        capture.give(None)
        running.until(lambda: "camera 0 was disconnected; waiting for it" in running.said)
        running.show(2)
        running.until(lambda: len(running.said) == 3)
    assert running.said[:3] == [
        "camera 0 is connected",
        "camera 0 was disconnected; waiting for it",
        "camera 0 is connected",
    ]
    assert running.sink.numbers == [1, 2]


def test_a_camera_that_stalls_is_told_and_does_not_hold_the_end(capture, monkeypatch) -> None:
    monkeypatch.setattr(cameras, "_SILENCE_SECONDS", 0.3)
    with Live(capture) as running:
        running.show(1)
        running.until(lambda: running.said[-1] == "camera 0 gives no pictures; waiting for them")
        running.show(2)
        running.until(lambda: running.said.count("camera 0 is connected") == 2)  # and soon stalls again
        began = time.monotonic()
        running.run.stop()
        running.thread.join(10)
        assert time.monotonic() - began < 9
    assert running.error is None
    assert running.sink.numbers == [1, 2]


def test_a_camera_that_is_not_there(capture) -> None:
    with Live(capture, source="7") as running:
        pass
    assert isinstance(running.error, InputError)
    assert str(running.error).startswith("camera 7 cannot be opened")


def test_a_camera_that_gives_nothing_at_all(capture, monkeypatch) -> None:
    monkeypatch.setattr(live, "_FIRST_PICTURE_SECONDS", 0.2)
    monkeypatch.setattr(cameras, "_SILENCE_SECONDS", 0.3)
    capture.given.clear()
    with Live(capture) as running:
        pass
    assert isinstance(running.error, InputError)
    assert str(running.error) == "camera 0 gave no picture in 0.2 s"


def test_a_camera_that_changes_its_size(capture) -> None:
    with Live(capture) as running:
        running.show(1)
        capture.give(np.zeros((32, 32, 3), np.uint8))
        running.thread.join(10)
    assert isinstance(running.error, PipelineError)
    assert "0: the frame size changed from 96x64 to 32x32; start again" in str(running.error)


def test_alpha_reaches_sinks_that_take_it(capture, tmp_path) -> None:
    keeping = KeepingSink("bgra")
    running = Live(capture, [keeping, f"file:{tmp_path / 'cut.mkv'}"], settings={"output.kinds": ["alpha"]})
    with running:
        capture.give(4)
        running.until(lambda: bool(keeping.kept))
        running.until(lambda: running.run.report().sinks[1].sent == 1)
    bgra = keeping.kept[0].as_format("bgra")
    assert bgra[30, 20].tolist()[3] == 255 and np.abs(bgra[30, 20, :3].astype(int) - level_of(4)).max() <= 2
    assert bgra[30, 80].tolist() == [0, 0, 0, 0]
    with av.open(str(tmp_path / "cut.mkv")) as container:
        made = next(container.decode(video=0)).to_ndarray(format="rgba")
    assert made[30, 20, 3] == 255 and made[30, 80, 3] == 0


@pytest.mark.parametrize(
    ("kind", "person", "behind"),
    [("mask", (255,) * 3, (0,) * 3), ("cutout", (166,) * 3, (0,) * 3), ("key", (166,) * 3, KEY)],
)
def test_any_kind_of_picture(capture, kind, person, behind) -> None:
    with Live(capture, settings={"output.kinds": [kind], "processing.max_queue_size": 9}) as running:
        capture.give(4)
        running.until(lambda: bool(running.sink.kept))
    rgb = running.sink.kept[0].rgb.astype(int)
    assert rgb.shape == (*SIZE, 3)
    assert np.abs(rgb[30, 20] - person).max() <= 2
    assert np.abs(rgb[30, 80] - behind).max() <= 2
    has_no_effect = "processing.max_queue_size has no effect here: live runs show each frame at once"
    assert has_no_effect in running.report.notes


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"output.kinds": ["mask"], "output.mask_max_width": 48}, (48, 32)),
        ({"output.kinds": ["packed-alpha"], "video.stereo": "side-by-side"}, (128, 64)),
    ],
)
def test_kinds_of_another_size_than_the_cameras(capture, tmp_path, settings, size) -> None:
    settings |= {"video.projection": "equirect180"}
    running = Live(capture, [keeping := KeepingSink(), f"file:{tmp_path / 'out.mp4'}"], settings=settings)
    with running:
        capture.give(np.full((*SIZE, 3), 200, np.uint8))
        running.until(lambda: bool(keeping.kept))
        running.until(lambda: running.run.report().sinks[1].sent == 1)
    assert running.error is None
    assert keeping.made is not None
    assert (keeping.made.width, keeping.made.height) == keeping.kept[0].size == running.report.size == size
    with av.open(str(tmp_path / "out.mp4")) as container:
        frame = next(container.decode(video=0))
    assert (frame.width, frame.height) == size


def test_a_snapshot_and_a_report_come_when_asked_for(capture, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    reports: list[LiveMattingReport] = []
    with Live(capture, on_report=reports.append) as running:
        for key in "sr":
            running.run.controls.press(key)
        running.show(1)
        running.until(lambda: bool(reports) and any("snapshot" in line for line in running.said))
        assert re.fullmatch(r"[\d.]+ fps, \d+ ms p50 \d+ p95, 0 dropped", running.run.pace())
    assert len(list(tmp_path.glob("people-*.png"))) == 1
    assert reports[0].shown == 1


def film_of(path: Path, count: int = 15, **options: Any) -> Path:
    """Write half a second of video of a person who stands still."""
    return write_clip(
        path,
        width=96,
        height=64,
        frame_count=count,
        paint=lambda _: painted(4),
        frame_rate=Fraction(30),
        **options,
    )


def test_a_film_is_played_at_its_own_pace_and_ends(scripted, tmp_path) -> None:
    film = film_of(tmp_path / "film.mp4")
    sink = KeepingSink()
    began = time.monotonic()
    with Segmenter(profile="fast") as segmenter:
        report = segmenter.live(film, [sink])
    assert time.monotonic() - began >= 14 / 30
    assert report.captured == 15
    assert 1 <= report.shown == len(sink.kept) + report.sinks[0].dropped  # busy machines drop some
    assert set(sink.numbers) == {4}
    assert sink.made is not None and sink.made.frame_rate == 30


def test_a_part_of_a_film(scripted, tmp_path) -> None:
    film = film_of(tmp_path / "film.mp4")
    with Segmenter(
        profile="fast", settings={"video.start_seconds": 0.1, "video.end_seconds": 0.3}
    ) as segmenter:
        assert segmenter.live(film, ["null"]).captured in (5, 6, 7)
    with (
        Segmenter(profile="fast", settings={"video.start_seconds": 9.0}) as segmenter,
        pytest.raises((InputError, PipelineError), match="no frame between 9 s and the end"),
    ):
        segmenter.live(film, ["null"])


def test_a_film_of_odd_sides_and_ten_bits(scripted, tmp_path) -> None:
    def paint(_: int) -> np.ndarray:
        return painted(4)[:63, :95].copy()

    film = write_clip(
        tmp_path / "odd.mkv",
        width=95,
        height=63,
        frame_count=8,
        paint=paint,
        codec="ffv1",
        pixel_format="yuv420p10le",
    )
    sink = KeepingSink()
    with Segmenter(profile="fast") as segmenter:
        segmenter.live(film, [sink, f"file:{tmp_path / 'out.mp4'}"])
    assert sink.kept[0].rgb.shape == (62, 94, 3)
    assert np.abs(sink.kept[0].rgb[30, 20].astype(int) - level_of(4)).max() <= 2
    assert np.abs(sink.kept[0].rgb[30, 80].astype(int) - KEY).max() <= 3


def test_a_turned_film_is_shown_upright(scripted, tmp_path) -> None:
    film = film_of(tmp_path / "film.mp4")
    set_rotation(film, 90)
    sink = KeepingSink()
    with Segmenter(profile="fast") as segmenter:
        segmenter.live(film, [sink])
    assert sink.made is not None and (sink.made.width, sink.made.height) == SIZE
    rgb = sink.kept[0].rgb
    assert rgb.shape == (96, 64, 3)
    assert number_in(np.ascontiguousarray(np.rot90(rgb))) == 4  # the person on the left is now at the top
    assert np.abs(rgb[20, 30].astype(int) - level_of(4)).max() <= 3


@pytest.mark.parametrize(
    ("aspect", "is_turned", "size"),
    [
        ("2/1", False, (192, 64)),
        ("1/2", False, (96, 128)),
        ("2/1", True, (64, 192)),
        ("20/1", False, (96, 64)),
    ],
)
def test_pixels_that_are_not_square_are_shown_square(scripted, tmp_path, aspect, is_turned, size) -> None:
    film = write_clip(
        tmp_path / "film.mp4", frame_count=8, paint=lambda _: painted(4),
        codec_options={"x264-params": f"sar={aspect}"},
    )  # fmt: skip
    if is_turned:
        set_rotation(film, 90)
    sink = KeepingSink()
    with Segmenter(profile="fast") as segmenter:
        segmenter.live(film, [sink, f"file:{tmp_path / 'out.mp4'}"])
    assert sink.made is not None and (sink.made.width, sink.made.height) == size
    rgb = sink.kept[0].rgb
    assert rgb.shape == (*size[::-1], 3)
    coded = np.rot90(rgb) if is_turned else rgb
    number = number_in(np.ascontiguousarray(coded[:: coded.shape[0] // 64, :: coded.shape[1] // 96]))
    assert number == 4
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert ((stream.width, stream.height), stream.sample_aspect_ratio) == (size, 1)


def test_wishes_for_files_are_told_where_none_is_written(scripted, tmp_path) -> None:
    film = film_of(tmp_path / "film.mp4", count=3)
    with Segmenter(profile="fast", settings={"output.crf": 20, "model.batch_size": 4}) as segmenter:
        notes = segmenter.live(film, ["null"]).notes
        assert "output.crf has no effect here: no file is written" in notes
        assert "model.batch_size has no effect live, which takes one frame at a time" in notes
        notes = segmenter.live(film, [f"file:{tmp_path / 'o.mp4'}"]).notes
    assert not [note for note in notes if "output.crf" in note]


def test_nothing_heavy_is_left(scripted, tmp_path) -> None:
    film = film_of(tmp_path / "film.mp4", count=4)

    def job() -> None:
        with Segmenter(profile="fast") as segmenter:
            segmenter.live(film, ["null"])

    left = left_by(job)
    assert not left - Counter({"BoundedQueue": 1}), "a sink's outlet and its thread know one another, no more"


@pytest.mark.parametrize(
    ("settings", "sinks", "more", "says"),
    [
        ({"output.kinds": ["mask", "key"]}, ["null"], {}, "one kind of output, not mask and key"),
        ({}, [], {}, "needs a sink"),
        ({}, ["hologram"], {}, "unknown sink 'hologram'"),
        ({}, ["null"], {"seconds": 0.0}, "above 0 seconds"),
        ({"video.end_seconds": 5.0}, ["null"], {}, "a camera has no start and end"),
        ({"output.kinds": ["alpha"]}, ["mjpeg"], {}, "mjpeg:127.0.0.1:8890 cannot show transparency"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_opens(settings, sinks, more, says) -> None:
    loaded = SettingsSource(flags=settings).load()
    with pytest.raises(UsageError, match=says):
        check_live("0", sinks, loaded=loaded, **more)


def test_a_files_size_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="the camera size is for cameras"):
        check_live("in.mp4", ["null"], loaded=SettingsSource().load(), camera_size=(640, 480))


def test_who_asks_for_nothing_gets_the_fast_profile_on_a_cpu(tmp_path) -> None:
    loaded, note = live_settings(SettingsSource(flags={"gpu.device": "cpu"}))
    assert loaded.profile == "fast"
    assert note == "live on the CPU: profile fast; --profile balanced has finer mattes, and drops more frames"
    own = tmp_path / "own.yaml"
    own.write_text("edges: {feather_px: 1}\n")
    for source in (
        SettingsSource(profile="balanced"),
        SettingsSource(files=(own,)),
        SettingsSource(flags={"model.name": "rvm"}),
    ):
        assert live_settings(source)[0].profile == "balanced"
        assert live_settings(source)[1] is None
