"""Packets that are read ahead of the decoder."""

from __future__ import annotations

import itertools
import threading
import time

import av
import pytest
from clips import write_clip

from vitascope.media._packets_ahead import PacketsAhead


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name == "vitascope-packets"]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 32, 33, 500])
def test_everything_comes_in_order(count):
    ahead = PacketsAhead(range(count))
    assert list(ahead) == list(range(count))
    assert list(ahead) == []  # and nothing after that
    ahead.close()
    assert not reading_threads()


def test_an_error_comes_in_its_place():
    def packets():
        yield from range(20)
        raise OSError("the disk is gone")

    ahead = PacketsAhead(packets())
    assert list(itertools.islice(ahead, 20)) == list(range(20))
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)
    assert list(ahead) == []
    ahead.close()


def test_it_reads_so_far_and_no_farther():
    read = []

    def packets():
        for number in itertools.count():
            read.append(number)
            yield number

    ahead = PacketsAhead(packets())
    deadline = time.monotonic() + 10
    while len(read) < 32 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert len(read) == 32
    for expected in range(100):
        assert next(ahead) == expected
        assert len(read) <= expected + 1 + 32
    ahead.close()
    ahead.close()
    assert not reading_threads()
    assert list(ahead) == []


def test_closing_waits_for_the_packet_that_is_being_read():
    entered, may_go = threading.Event(), threading.Event()

    def packets():
        entered.set()
        may_go.wait(10)
        yield 0

    ahead = PacketsAhead(packets())
    assert entered.wait(10)
    threading.Timer(0.05, may_go.set).start()
    ahead.close()
    assert not reading_threads()


def test_a_real_files_packets_decode_on_another_thread(tmp_path):
    path = write_clip(tmp_path / "clip.mp4", frame_count=60)
    with av.open(str(path)) as plain:
        expected = [packet.pts for packet in plain.demux(plain.streams.video[0])]
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        ahead = PacketsAhead(container.demux(stream))
        pictures, stamps = 0, []
        for packet in ahead:
            stamps.append(packet.pts)
            pictures += len(stream.decode(packet))
        ahead.close()
    assert stamps == expected
    assert pictures == 60
