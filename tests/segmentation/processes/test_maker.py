"""Tests of the frames of one stretch (warm-up, its own, those after it), and of errors that cross processes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

import pytest

from clips import write_clip
from vitascope.config import load_settings
from vitascope.errors import (
    CorruptInputError,
    EngineError,
    InputError,
    OutputError,
    PipelineError,
    WorkerError,
)
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import choose_encoding
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.matting.stream import StreamMatting
from vitascope.segmentation.processes.maker import StretchFrames, StretchMaker, ThisProcess
from vitascope.segmentation.processes.port import FilmOrder, OutputOrder, StretchOrder
from vitascope.segmentation.processes.spawned import Failed
from vitascope.segmentation.processes.stretch_file import StretchFile
from vitascope.segmentation.processes.stretches import FilmStretch

SPARSE = list(accumulate([1] * 20 + [40] * 10 + [1] * 20))
"""pts of 50 frames: in the middle each lasts as long as 40 of the others."""


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    path = tmp_path_factory.mktemp("stretch") / "in.mkv"
    return write_clip(path, pts=SPARSE, time_base=Fraction(1, 25), codec_options={"g": "8"})


def stretch_of(reader, first, *, warm_up=0, after=0, stills=()):
    """Make a stretch from frame numbers; also returns the pts of all frames of the video."""
    ticks = [frame.pts for frame in reader]
    film = FilmOrder(
        video=reader.info.path,
        outputs=(),
        begin_pts=ticks[0],
        end_pts=None,
        frame_ticks=1 / (reader.info.average_frame_rate * reader.info.time_base),
        warm_up_frames=warm_up,
        frames_after=after,
        stretch_count=1,
        frame_count=None,
        still_pts=tuple(ticks[n] for n in stills),
    )
    stretch = FilmStretch(
        first.number,
        *(None if n is None else ticks[n] for n in (first.warm_up_from, first.begin, first.end)),
    )
    return StretchFrames(reader, film, stretch), ticks


def test_a_warm_up_in_a_slow_part_goes_back_until_it_has_enough(film):
    """Check frame 28, with a warm-up of 10 that would begin at frame 27 by the average rate."""
    with open_video(film) as reader:
        frames, ticks = stretch_of(reader, FilmStretch(1, 27, 28, 40), warm_up=10)
        seen = [frame.pts for frame in frames]
    own = [pts for pts in seen if frames.owns(pts)]
    assert own == ticks[28:40]
    assert seen[-len(own) - 10 : -len(own)] == ticks[18:28]
    assert frames.damage is None


@pytest.mark.parametrize(("end", "after", "seen"), [(10, 0, 10), (10, 3, 13), (48, 10, 50), (None, 10, 50)])
def test_it_ends_so_many_frames_behind_its_own(film, end, after, seen):
    with open_video(film) as reader:
        frames, ticks = stretch_of(reader, FilmStretch(0, None, None, end), after=after)
        shown = [frame.pts for frame in frames]
    assert shown == ticks[:seen]
    assert [pts for pts in shown if frames.owns(pts)] == ticks[:end]


def test_stills_are_of_the_frames_that_it_owns(film):
    with open_video(film) as reader:
        frames, ticks = stretch_of(reader, FilmStretch(1, 4, 8, 20), warm_up=4, stills=(2, 8, 12, 30))
        by_index = {frame.index: frame.pts for frame in frames}
    assert sorted(by_index[index] for index in frames.still_indices) == [ticks[8], ticks[12]]


@pytest.mark.parametrize(("smoothing", "finished"), [(0.0, 10), (0.5, 30)])
def test_a_warm_up_is_not_drawn_and_what_smooths_sees_it(
    film, tmp_path, monkeypatch, model_store, smoothing, finished
):
    refine, refined = StreamMatting.refine, []

    def refine_and_note(self, matted):
        refined.append(matted.frame.index)
        return refine(self, matted)

    monkeypatch.setattr(StreamMatting, "refine", refine_and_note)
    target = tmp_path / "o.mp4"
    with open_video(film) as reader:
        encoding = choose_encoding(target, source_format=reader.info.format)
        frames, ticks = stretch_of(reader, FilmStretch(1, 10, 25, 35), warm_up=15, after=5)
        order = replace(frames._film, outputs=(OutputOrder("key", target, reader.info, encoding, None),))
    flags = {"edges.temporal_smoothing": smoothing, "gpu.device": "cpu"}
    loaded = load_settings(profile="fast", flags=flags)
    file = tmp_path / "one.stretch"
    with StretchMaker(FilmRunner(loaded, store=model_store, keeps_mattes=False)) as maker:
        made = maker.make(StretchOrder(order, frames._stretch, file, {}), tell=lambda _: None)
    assert made.frame_count == 10
    times = [time.pts for encoded in StretchFile(file).encoded() for time in encoded.times]
    assert times == ticks[25:35]
    assert len(refined) == finished


@pytest.fixture
def opened(monkeypatch):
    """Record the readers that makers of stretches open."""
    readers, open_it = [], FilmRunner.open_video
    monkeypatch.setattr(
        FilmRunner, "open_video", lambda self, video: readers.append(open_it(self, video)) or readers[-1]
    )
    return readers


def is_open(reader):
    try:
        next(reader, None)
    except ValueError:
        return False
    return True


class TestOneReader:
    """Check that a video stays open from one stretch to the next."""

    @pytest.fixture
    def orders(self, film, tmp_path):
        """Return orders for three stretches of one video."""
        target = tmp_path / "o.mp4"
        with open_video(film) as reader:
            encoding = choose_encoding(target, source_format=reader.info.format)
            orders = []
            for stretch in (
                FilmStretch(0, None, None, 20),
                FilmStretch(1, 12, 20, 35),
                FilmStretch(2, 27, 35, None),
            ):
                frames, _ = stretch_of(reader, stretch, warm_up=8)
                film_order = replace(
                    frames._film, outputs=(OutputOrder("key", target, reader.info, encoding, None),)
                )
                file = tmp_path / f"{stretch.number}.stretch"
                orders.append(StretchOrder(film_order, frames._stretch, file, {}))
                reader.play(None, None)
        return orders

    @pytest.fixture
    def maker(self, model_store):
        loaded = load_settings(profile="fast", flags={"gpu.device": "cpu"})
        with StretchMaker(FilmRunner(loaded, store=model_store, keeps_mattes=False)) as maker:
            yield maker

    def test_stretches_are_as_from_a_reader_of_their_own(self, maker, orders, opened):
        for order in orders[::-1]:
            maker.make(order, tell=lambda _: None)
            maker.rest()
        assert len(opened) == 3
        apart = [order.file.read_bytes() for order in orders]
        opened.clear()
        for order in orders:
            order.file.unlink()
            maker.make(order, tell=lambda _: None)
        assert [order.file.read_bytes() for order in orders] == apart
        assert len(opened) == 1
        assert is_open(opened[0])
        maker.rest()
        assert not is_open(opened[0])

    def test_another_video_and_the_end_close_it(self, maker, orders, opened, film, tmp_path):
        maker.make(orders[0], tell=lambda _: None)
        other = tmp_path / "other.mkv"
        other.write_bytes(film.read_bytes())
        order = orders[1]
        maker.make(replace(order, film=replace(order.film, video=other)), tell=lambda _: None)
        assert [is_open(reader) for reader in opened] == [False, True]
        maker.close()
        assert not is_open(opened[1])

    def test_an_error_closes_it(self, maker, orders, opened):
        maker.make(orders[0], tell=lambda _: None)
        orders[1].file.mkdir()
        with pytest.raises(OutputError):
            maker.make(orders[1], tell=lambda _: None)
        assert not is_open(opened[0])


class TestMemoryOfAGpu:
    """Check that memory stays for stretches of one size until nothing waits."""

    class Streams:
        """Simulates the GPU streams that a maker uses."""

        keeps_idle_memory = False

        def __init__(self):
            self.given_back = 0

        def finish(self, *, is_last=False):
            self.given_back += is_last
            raise EngineError("the GPU failed")  # an error that nobody here handles

    @pytest.fixture
    def maker(self, model_store, monkeypatch):
        loaded = load_settings(profile="fast", flags={"gpu.device": "cpu"})
        runner = FilmRunner(loaded, store=model_store, keeps_mattes=False)
        # There is no GPU, so the CPU decodes.
        monkeypatch.setattr(FilmRunner, "open_video", lambda _, video: open_video(video))
        runner.streams = self.Streams()
        yield StretchMaker(runner)
        runner.streams = None
        runner.close()

    def test_it_stays_for_a_video_of_the_same_size(self, maker, film, tmp_path):
        streams = maker._runner.streams
        same, other = tmp_path / "same.mkv", write_clip(tmp_path / "other.mp4", width=64, height=48)
        same.write_bytes(film.read_bytes())
        maker.open_video(film)
        before = streams.given_back
        maker.open_video(same)
        maker.close_video()
        maker.open_video(film)
        assert streams.given_back == before
        maker.open_video(other)
        assert streams.given_back == before + 1
        maker.rest()
        assert streams.given_back == before + 2

    def test_who_makes_a_whole_video_leaves_it_to_who_ordered_it(self, maker):
        streams = maker._runner.streams
        ThisProcess(maker, keeps_memory=True).rest(0)
        assert streams.given_back == 0
        ThisProcess(maker).rest(0)
        assert streams.given_back == 1


class OddError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def test_errors_survive_their_way():
    cause = InputError("a.mp4: no")
    cause.add_note("stage 'decode', item 3")
    group = PipelineError("stage 'decode': no", [cause])
    copy = pickle.loads(pickle.dumps(Failed.of(group))).raised_in("here")
    assert isinstance(copy, PipelineError)
    assert copy.exceptions[0].__notes__ == ["stage 'decode', item 3"]
    assert copy.exit_code == 3
    assert copy.__notes__ == ["in here"]
    assert isinstance(Failed.of(CorruptInputError("x")).error, CorruptInputError)
    told = Failed.of(OddError("this", "that")).error
    assert isinstance(told, WorkerError)
    assert str(told) == "OddError: this that"


@pytest.mark.parametrize(("seen", "is_its_own"), [(8, True), (10, True), (12, False)])
def test_damage_behind_a_stretch_is_the_next_ones(film, seen, is_its_own):
    def damaged(self):
        for _ in range(seen):
            yield next(self._reader)
        raise CorruptInputError("too much")

    with open_video(film) as reader:
        frames, _ = stretch_of(reader, FilmStretch(0, None, None, 10), after=5)
        reader.play(None, None)
        frames._from_warm_up = damaged.__get__(frames)
        assert len(list(frames)) == seen
    assert isinstance(frames.damage, CorruptInputError) == is_its_own
