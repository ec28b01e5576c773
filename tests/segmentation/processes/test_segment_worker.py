"""The frames of one stretch: warm-up, what it owns, what it is granted; and messages that survive their way."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest

from clips import write_clip
from vitascope.errors import CorruptInputError, InputError, PipelineError, WorkerError
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.segment_encoder import EncodedPacket
from vitascope.segmentation.processes.messages import (
    Ask,
    Encoded,
    FilmJob,
    is_encoded,
    pack,
    sendable,
    unpack,
)
from vitascope.segmentation.processes.segments import FilmSegment
from vitascope.segmentation.processes.worker import StretchFrames

SPARSE = list(accumulate([1] * 20 + [40] * 10 + [1] * 20))
"""pts of 50 frames: in the middle each lasts as long as 40 of the others."""


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    path = tmp_path_factory.mktemp("stretch") / "in.mkv"
    return write_clip(path, pts=SPARSE, time_base=Fraction(1, 25), codec_options={"g": "8"})


def stretch_of(reader, first, *, warm_up=0, granted=(), stills=()):
    ticks = [frame.pts for frame in reader]
    job = FilmJob(
        video=reader.info.path,
        outputs=(),
        begin_pts=ticks[0],
        end_pts=None,
        frame_ticks=1 / (reader.info.average_frame_rate * reader.info.time_base),
        warm_up_frames=warm_up,
        still_pts=tuple(ticks[n] for n in stills),
    )
    left = list(granted)
    begin = FilmSegment(
        first.number,
        *(None if n is None else ticks[n] for n in (first.warm_up_from, first.begin, first.end)),
    )
    frames = StretchFrames(reader, job, begin, next_segment=lambda: left.pop(0) if left else None)
    return frames, ticks


def test_a_warm_up_in_a_slow_part_goes_back_until_it_has_enough(film):
    """From frame 28 on, with a warm-up of 10 that by the average rate begins at frame 27."""
    with open_video(film) as reader:
        frames, ticks = stretch_of(reader, FilmSegment(1, 27, 28, 40), warm_up=10)
        seen = [frame.pts for frame in frames]
    own = [pts for pts in seen if pts >= frames.begin_pts]
    assert own == ticks[28:40]
    assert seen[-len(own) - 10 : -len(own)] == ticks[18:28]
    assert frames.damage is None


def test_it_ends_with_its_segment_and_goes_on_when_it_is_granted_the_next(film):
    with open_video(film) as reader:
        frames, ticks = stretch_of(reader, FilmSegment(0, None, None, 10))
        assert [frame.pts for frame in frames] == ticks[:10]
        frames, ticks = stretch_of(
            _again(reader), FilmSegment(0, None, None, 10), granted=[FilmSegment(1, 0, 0, None)]
        )
        assert [frame.pts for frame in frames] == ticks


def _again(reader):
    reader.play(None, None)
    return reader


def test_stills_are_of_the_frames_that_it_owns(film):
    with open_video(film) as reader:
        frames, ticks = stretch_of(reader, FilmSegment(1, 4, 8, 20), warm_up=4, stills=(2, 8, 12, 30))
        by_index = {frame.index: frame.pts for frame in frames}
    assert sorted(by_index[index] for index in frames.still_indices) == [ticks[8], ticks[12]]


def test_messages_survive_their_way():
    packet = EncodedPacket(b"abc", 3, None, True, (("matroska_block_additional", b"x"),))
    message = Encoded((b"sets",), (FrameTime(3, Fraction(1, 25), 1),), ((packet,),))
    assert is_encoded(pack(message))
    assert unpack(pack(message)) == message
    assert not is_encoded(pack(Ask()))
    assert unpack(pack(Ask())) == Ask()


class OddError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def test_errors_survive_their_way():
    cause = InputError("a.mp4: no")
    cause.add_note("stage 'decode', item 3")
    group = PipelineError("stage 'decode': no", [cause])
    copy = unpack(pack(sendable(group)))
    assert isinstance(copy, PipelineError)
    assert copy.exceptions[0].__notes__ == ["stage 'decode', item 3"]
    assert copy.exit_code == 3
    assert isinstance(sendable(CorruptInputError("x")), CorruptInputError)
    told = sendable(OddError("this", "that"))
    assert isinstance(told, WorkerError)
    assert str(told) == "OddError: this that"


def test_damage_ends_a_stretch_and_is_kept(film):
    def damaged(self):
        yield from ()
        raise CorruptInputError("too much")

    with open_video(film) as reader:
        frames, _ = stretch_of(reader, FilmSegment(0, None, None, None))
        frames._pictures = damaged.__get__(frames)
        assert list(frames) == []
    assert isinstance(frames.damage, CorruptInputError)
