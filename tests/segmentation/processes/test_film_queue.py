"""Tests of a queue of videos: longest first, short ones whole, and failures stay separate."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from clips import write_clip
from vitascope.config import VideoSettings
from vitascope.errors import EngineError, InputError, VitascopeError, WorkerError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Sink, Source
from vitascope.observe.report_values import Started
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.processes.film_queue import FilmQueue
from vitascope.segmentation.processes.hands import Hands, Piece
from vitascope.segmentation.processes.port import MakerGoneError, StretchProgress
from waiting import eventually

REPORT = Pipeline([Source("decode", range(3)), Sink("encode", lambda _: None)]).run()


@dataclass
class Report:
    """The part of a report that the queue reads."""

    frame_count: int
    notes: tuple[str, ...] = ()


class Scripted:
    """Simulates makers of whole videos, unless the script names an error, by video and place or by place."""

    def __init__(self, places, script=(), rooms=()):
        self._places = places
        self._rooms = dict(zip(places, rooms, strict=False))
        self._script = dict(script)
        self.tries = []
        self.rested = []
        self.ended = threading.Event()

    def __len__(self):
        return len(self._places)

    def place(self, number):
        return self._places[number]

    def label(self, number):
        return self._places[number]

    def room_bytes(self, number):
        return self._rooms.get(self._places[number])

    def make_film(self, number, film, *, tell):
        place = self._places[number]
        self.tries.append((film.planned.video.stem, place))
        tell(StretchProgress(REPORT, 1))
        says = self._script.get((film.planned.video.stem, place), self._script.get(place))
        if says == "wait":
            assert self.ended.wait(20)
            raise WorkerError("it was interrupted")
        if says is not None:
            raise says
        return Report(4)

    def renew(self, number):
        """Do nothing; this maker never restarts."""

    def rest(self, number):
        self.rested.append(self._places[number])

    def interrupt(self, number):
        self.ended.set()

    def drop(self, number):
        self.ended.set()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Write five videos of different lengths, and a file that is no video."""
    folder = tmp_path_factory.mktemp("queue")
    for name, frames in (("c", 12), ("a", 4), ("e", 30), ("b", 8), ("d", 20)):
        write_clip(folder / f"{name}.mp4", width=32, height=32, frame_count=frames)
    (folder / "bad.mp4").write_bytes(b"no video")
    return folder


def planned(folder, names):
    return [PlannedVideo(folder / f"{name}.mp4", (("key", Path(f"/nowhere/{name}.mp4")),)) for name in names]


def run(
    makers,
    plans,
    *,
    shared=lambda count: 1,
    write=None,
    after=None,
    gpu_bytes=lambda size, sample_bytes: 0,
):
    """Run a queue; returns the order of the videos, how each ended, and the queue."""
    began, ended = [], {}
    with Hands(makers) as hands:
        queue = FilmQueue(
            hands,
            plans,
            stretch_count=shared,
            gpu_bytes=gpu_bytes,
            write=write,
            trim=VideoSettings(),
            resume=False,
        )
        for outcome in queue.run(lambda plan, started: began.append((plan.video.stem, started))):
            ended[outcome.planned.video.stem] = outcome.error or outcome.report
            if after is not None:
                after(queue)
    assert queue.waiting_count == queue.running_count == 0
    return [name for name, _ in began], ended, queue


def test_the_longest_comes_first_and_all_are_counted(videos):
    makers = Scripted(["x"])
    began, ended, queue = run(makers, planned(videos, "abcde"))
    assert began == [*"edcba"]
    assert [name for name, _ in makers.tries] == [*"edcba"]
    assert all(report.frame_count == 4 for report in ended.values())
    assert queue.frame_count == 74
    assert queue.snapshot().items == 20
    assert queue.counts() == {"videos": 5, "videos_done": 5, "videos_failed": 0, "videos_running": 0}
    assert (queue.places["x"].done, queue.places["x"].frames, queue.places["x"].busy) == (5, 20, 0)
    assert makers.rested[-1] == "x"


def test_who_has_nothing_to_do_rests_once_until_it_has():
    makers = Scripted(["x"])
    with Hands(makers) as hands:
        for rests in (1, 2):
            hands.hand_in([Piece("a", (0,), lambda number: 4, makers.drop, makers.drop)])
            eventually(lambda rests=rests: len(makers.rested) == rests)
    assert makers.rested == ["x"] * 3


def test_what_fails_twice_at_different_nodes_fails_and_the_others_go_on(videos):
    script = {("c", node): EngineError(f"no memory at {node}") for node in "xyz"} | {
        ("d", "x"): WorkerError("x: once"),
        ("d", "y"): WorkerError("y: once"),
    }
    makers = Scripted(["x", "x", "y", "z"], script)
    _, ended, queue = run(makers, planned(videos, ["a", "b", "c", "e", "bad"]))
    assert isinstance(ended["c"], EngineError)
    assert "c.mp4 failed twice" in ended["c"].__notes__
    assert len({place for name, place in makers.tries if name == "c"}) == 2
    assert isinstance(ended["bad"], InputError)
    assert all(isinstance(ended[name], Report) for name in "abe")
    assert queue.counts()["videos_failed"] == 2


def test_a_small_gpu_gets_the_small_videos_behind_the_large_ones(tmp_path):
    """Check that a small GPU does not wait for the end of seven large videos that need the large GPU."""
    for name, side in (*((f"large{n}", 64) for n in range(7)), ("a", 32), ("b", 32)):
        write_clip(tmp_path / f"{name}.mp4", width=side, height=side, frame_count=4)
    small_done = threading.Event()

    class Patient(Scripted):
        def make_film(self, number, film, *, tell):
            if film.planned.video.stem == "large0":  # from now on only the other place can take a small one
                assert small_done.wait(20)
            report = super().make_film(number, film, tell=tell)
            if film.planned.video.stem == "b":
                small_done.set()
            return report

    makers = Patient(["small", "large"], rooms=(2 << 30, 8 << 30))
    plans = planned(tmp_path, [*(f"large{n}" for n in range(7)), "a", "b"])
    _, ended, _ = run(makers, plans, gpu_bytes=lambda size, _: (4 if size == (64, 64) else 1) << 30)
    assert all(isinstance(report, Report) for report in ended.values())
    assert {name for name, place in makers.tries if place == "small"} == {"a", "b"}
    assert {place for name, place in makers.tries if name.startswith("large")} == {"large"}
    why = "small was left out: its GPU has 2.0 GiB for it, and large0.mp4 needs about 4.0 GiB"
    assert ended["large0"].notes == (why,)
    assert ended["a"].notes == ()


def test_samples_of_ten_bits_are_weighed_as_two_bytes(tmp_path):
    for name, pixel_format in (("a", "yuv420p"), ("b", "yuv420p10le"), ("c", "nv12"), ("d", "yuv422p10le")):
        write_clip(tmp_path / f"{name}.mp4", width=32, height=48, frame_count=4, pixel_format=pixel_format)
    told = []
    run(Scripted(["x"]), planned(tmp_path, "abcd"), gpu_bytes=lambda *words: told.append(words) or 0)
    assert told == [((48, 32), 1), ((48, 32), 2)] * 2


def test_a_node_that_is_lost_costs_nothing_but_time(videos):
    makers = Scripted(["x", "y"], {"x": MakerGoneError("x is lost")})
    _, ended, queue = run(makers, planned(videos, "abcde"))
    assert all(isinstance(report, Report) for report in ended.values())
    assert queue.places["x"].done == 0
    makers = Scripted(["x"], {"x": MakerGoneError("x is lost")})
    _, ended, _ = run(makers, planned(videos, "ab"))
    assert [str(error) for error in ended.values()] == ["x is lost"] * 2


def test_long_ones_are_shared_and_short_ones_fill_the_gaps(videos):
    """Check two videos of four pieces each: all places work on the first before the second."""
    done = []

    def write(hands, plan, rank, started):
        left = threading.Semaphore(0)
        failures = []

        def piece(number):
            done.append(plan.video.stem)
            left.release()
            return 1

        started(Started(queue_of_nothing(), 4))
        hands.hand_in(
            [Piece(f"{n}", (rank, n), piece, failures.append, lambda number: None) for n in range(4)]
        )
        for _ in range(4):
            assert left.acquire(timeout=20)
        return Report(4)

    def queue_of_nothing():
        return Pipeline([Source("decode", range(3)), Sink("encode", lambda _: None)])

    makers = Scripted(["x", "y"])
    _, ended, queue = run(
        makers, planned(videos, "abcde"), shared=lambda count: 4 if count > 16 else 1, write=write
    )
    assert sorted(ended) == [*"abcde"]
    assert sorted(done) == ["d"] * 4 + ["e"] * 4
    assert done[0] == "e"
    assert sorted(name for name, _ in makers.tries) == [*"abc"]
    assert sum(place.done for place in queue.places.values()) == 8 + 3


def test_an_interrupt_ends_what_is_in_hand(videos):
    makers = Scripted(["x", "y"], {("e", "x"): "wait", ("e", "y"): "wait"})
    with pytest.raises(KeyboardInterrupt):
        run(makers, planned(videos, "ae"), after=lambda queue: queue.interrupt())
    assert makers.ended.is_set()


def test_an_error_of_our_own_ends_the_run(videos):
    makers = Scripted(["x"], {("c", "x"): ZeroDivisionError("ours")})
    with pytest.raises(ZeroDivisionError):
        run(makers, planned(videos, "abc"))


def test_a_caller_that_leaves_ends_it(videos):
    makers = Scripted(["x"], {("a", "x"): "wait"})
    with Hands(makers) as hands:
        queue = FilmQueue(
            hands,
            planned(videos, "ab"),
            stretch_count=lambda *_: 1,
            write=None,
            trim=VideoSettings(),
            resume=False,
        )
        for outcome in queue.run(lambda *_: None):
            assert not isinstance(outcome.error, VitascopeError)
            while ("a", "x") not in makers.tries:
                time.sleep(0.001)
            break
    assert makers.ended.is_set()


def test_a_video_that_is_being_opened_ends_with_the_others(videos):
    is_opening, is_interrupted = threading.Event(), threading.Event()

    class Opened:
        def interrupt(self):
            is_interrupted.set()

    def write(hands, plan, rank, started):
        is_opening.set()
        time.sleep(0.5)  # the queue is interrupted meanwhile
        started(Started(Opened(), 4))
        assert is_interrupted.is_set()
        raise KeyboardInterrupt

    with Hands(Scripted(["x"])) as hands:
        queue = FilmQueue(
            hands,
            planned(videos, "a"),
            stretch_count=lambda *_: 2,
            write=write,
            trim=VideoSettings(),
            resume=False,
        )
        threading.Thread(target=lambda: is_opening.wait(20) and queue.interrupt()).start()
        with pytest.raises(KeyboardInterrupt):
            list(queue.run(lambda *_: None))
    assert is_interrupted.is_set()
