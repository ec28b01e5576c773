"""Tests of the file, the page and the UDP stream, read by other programs."""

from __future__ import annotations

import itertools
import shutil
import socket
import threading
import urllib.error
import urllib.request
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from live_pictures import MADE, make_picture

from free_ports import free_port
from vitascope.errors import OutputError
from vitascope.media.sinks.file import FileSink
from vitascope.media.sinks.sink import SinkFormat
from vitascope.media.sinks.streams import MjpegSink, UdpSink
from waiting import PATIENCE_SECONDS


def mean_rgb(frame: av.VideoFrame) -> list[float]:
    return [float(value) for value in frame.to_ndarray(format="rgb24").mean(axis=(0, 1))]


def test_a_file_keeps_the_moments_of_capture(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out.mp4"))
    sink.open(MADE)
    moments = [100.0, 100.033, 100.5, 100.5, 101.0]
    for index, at in enumerate(moments):
        sink.send(make_picture(index, at=at))
    assert not (tmp_path / "out.mp4").exists()
    sink.close()
    sink.close()
    with av.open(str(tmp_path / "out.mp4")) as film:
        frames = list(film.decode(video=0))
    assert [float(frame.pts * frame.time_base) for frame in frames] == pytest.approx(
        [0, 0.033, 0.5, 0.5, 1.0], abs=1e-3
    )
    assert mean_rgb(frames[2]) == pytest.approx([200, 60, 30], abs=6)


def test_a_file_without_pictures_is_none(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out.mp4"))
    sink.open(MADE)
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_a_recording_ends_while_its_disk_has_room_to_complete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FileSink(str(tmp_path / "out.mp4"))
    sink.open(MADE)
    for index in range(3):
        sink.send(make_picture(index, at=index / 30))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=31_000_000))
    with pytest.raises(
        OutputError, match=r"out\.mp4: 31 MB are free there, and completing the file may need 32;"
    ):
        sink.send(make_picture(3, at=3 / 30))
    sink.close()
    with av.open(str(tmp_path / "out.mp4")) as film:
        assert sum(1 for _ in film.decode(video=0)) == 3


@pytest.mark.parametrize(
    "make", [lambda path: FileSink(str(path / "o.mp4")), lambda _: UdpSink("127.0.0.1:9")]
)
def test_odd_sizes_are_refused(make: object, tmp_path: Path) -> None:
    assert callable(make)
    with pytest.raises(OutputError, match="both must be even"):
        make(tmp_path).open(SinkFormat(63, 48, Fraction(30)))


def test_a_page_shows_the_stream() -> None:
    sink = MjpegSink(str(free_port()))
    sink.open(MADE)
    try:
        with urllib.request.urlopen(sink.url, timeout=PATIENCE_SECONDS) as page:
            assert b'src="/stream.mjpg"' in page.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(sink.url + "etc/passwd", timeout=PATIENCE_SECONDS)
        sink.send(make_picture())  # nobody watches yet
        stop = threading.Event()

        def send() -> None:
            index = 0
            while not stop.wait(0.01):
                index += 1
                sink.send(make_picture(index))

        sender = threading.Thread(target=send)
        sender.start()
        try:
            with urllib.request.urlopen(sink.url + "stream.mjpg", timeout=PATIENCE_SECONDS) as stream:
                assert stream.headers["Content-Type"].startswith("multipart/x-mixed-replace")
                for _ in range(3):
                    assert stream.readline() == b"--picture\r\n"
                    assert stream.readline() == b"Content-Type: image/jpeg\r\n"
                    length = int(stream.readline().split(b":")[1])
                    assert stream.readline() == b"\r\n"
                    jpeg = stream.read(length)
                    assert stream.readline() == b"\r\n"
                    shown = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
                    assert shown.shape == (48, 64, 3)
                    assert shown.mean(axis=(0, 1)) == pytest.approx([30, 60, 200], abs=4)
        finally:
            stop.set()
            sender.join()
    finally:
        sink.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(sink.url, timeout=PATIENCE_SECONDS)


def test_a_page_can_be_opened_again_on_its_port() -> None:
    sink = MjpegSink(str(free_port()))
    for _ in range(2):
        sink.open(MADE)
        with urllib.request.urlopen(sink.url, timeout=PATIENCE_SECONDS) as page:
            assert page.status == 200
        sink.close()


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            OutputError, match=f"mjpeg:127.0.0.1:{port} cannot be opened: Address already in use"
        ):
            MjpegSink(str(port)).open(MADE)


def test_a_transport_stream_is_decoded_by_whoever_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(5)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sink = UdpSink(f"127.0.0.1:{receiver.getsockname()[1]}")
        sink.open(MADE)
        for index in range(20):
            sink.send(make_picture(index, at=50 + index / 30))
        sink.close()
        packets = []
        receiver.settimeout(0.3)
        try:
            while True:
                packets.append(receiver.recv(65536))
        except TimeoutError:
            pass
    assert all(len(packet) % 188 == 0 and packet[0] == 0x47 for packet in packets)
    (tmp_path / "got.ts").write_bytes(b"".join(packets))
    with av.open(str(tmp_path / "got.ts")) as film:
        frames = list(film.decode(video=0))
    assert len(frames) == 20
    assert mean_rgb(frames[-1]) == pytest.approx([200, 60, 30], abs=6)
    steps = {round(float((b.pts - a.pts) * a.time_base), 3) for a, b in itertools.pairwise(frames)}
    assert steps == {0.033}


def test_a_page_is_opened_without_asking_for_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> str:
        raise AssertionError("a name server that does not answer would hold up the run")

    monkeypatch.setattr(socket, "getfqdn", ask)
    sink = MjpegSink(str(free_port()))
    sink.open(MADE)
    sink.close()


@pytest.mark.parametrize("host", ["nobody.invalid", "a" * 70 + ".invalid"])
def test_a_host_that_is_not_found_is_told_before_the_first_picture(host):
    with pytest.raises(OutputError, match=f"udp:{host}:5004 cannot be opened: {host} is not found"):
        UdpSink(f"{host}:5004").open(SinkFormat(64, 48, Fraction(25)))
