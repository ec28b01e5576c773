"""Tests of copies for browsers: when they are needed, what they contain, how many are kept."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from typing import NamedTuple

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.errors import InputError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.reading.reader import probe
from vitascope.studio import proxies as proxies_module
from vitascope.studio.previews import BusyError
from vitascope.studio.proxies import Proxies, _proxy_size, why_no_browser_plays


@pytest.fixture
def proxies(tmp_path):
    made = Proxies(tmp_path / "copies", most_bytes=10**9)
    yield made
    made.close()


def made_of(proxies, video, *, seconds=60):
    """Wait for the copy of a video, and return it."""
    until = time.monotonic() + seconds
    while (copying := proxies.make(video)).state in ("waiting", "making"):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert copying.state == "done", copying.error
    return proxies.find(video)


def facts(path):
    with av.open(str(path)) as container:
        video = container.streams.video[0]
        times = [float(frame.time) for frame in container.decode(video)]
        return video.codec_context.name, video.format.name, [one.type for one in container.streams], times


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format", "why"),
    [
        ("a.mp4", "libx264", "yuv420p", None),
        ("a.mkv", "libx264", "yuv420p", None),
        ("a.webm", "libvpx-vp9", "yuv420p", None),
        ("a.mp4", "libx265", "yuv420p10le", None),  # some browsers can
        ("a.mp4", "libx264", "yuv420p10le", "in 8 bits and 4:2:0, and this is yuv420p10le"),
        ("a.mkv", "libx264", "yuv444p", "yuv444p"),
        ("a.mov", "prores_ks", "yuv422p10le", "cannot decode prores"),
        ("a.avi", "mpeg4", "yuv420p", "cannot read avi"),
        ("a.ts", "libx264", "yuv420p", "cannot read mpegts"),
    ],
)
def test_what_no_browser_plays_is_known(tmp_path, name, codec, pixel_format, why):
    said = why_no_browser_plays(probe(write_clip(tmp_path / name, codec=codec, pixel_format=pixel_format)))
    assert said is None if why is None else why in said


@pytest.mark.parametrize(
    ("size", "plays"),
    [
        ((1920, 1080), True),
        ((3840, 2160), True),
        ((2160, 3840), True),
        ((7680, 3840), False),
        ((5760, 2880), False),
    ],
)
def test_what_is_too_large_is_known(tmp_path, size, plays):
    info = dataclasses.replace(probe(write_clip(tmp_path / "a.mp4")), width=size[0], height=size[1])
    assert (why_no_browser_plays(info) is None) is plays


@pytest.mark.parametrize(
    ("size", "stereo", "projection", "made"),
    [
        ((96, 64), None, None, (96, 64)),
        ((97, 65), None, None, (96, 64)),
        ((3840, 2160), None, None, (1280, 720)),
        ((1080, 1920), None, None, (720, 1280)),
        ((8192, 4096), StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR, (3840, 1920)),
        ((8192, 4096), None, None, (3840, 1920)),
        ((4096, 4096), StereoLayout.TOP_BOTTOM, None, (3840, 3840)),
        ((16384, 2), None, None, (3840, 2)),
    ],
)
def test_how_large_a_copy_is(tmp_path, size, stereo, projection, made):
    info = probe(write_clip(tmp_path / "a.mp4"))
    info = dataclasses.replace(info, width=size[0], height=size[1], stereo=stereo, projection=projection)
    assert _proxy_size(info) == made[::-1]


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [("a.avi", "mpeg4", "yuv420p"), ("a.mkv", "ffv1", "yuv422p10le"), ("a.mov", "prores_ks", "yuv422p10le")],
)
def test_a_copy_shows_what_the_video_shows(tmp_path, proxies, name, codec, pixel_format):
    video = write_clip(tmp_path / name, codec=codec, pixel_format=pixel_format, audio="aac")
    copy = made_of(proxies, video)
    codec_name, made_format, streams, times = facts(copy)
    assert (codec_name, made_format, sorted(streams)) == ("h264", "yuv420p", ["audio", "video"])
    assert times == pytest.approx(facts(video)[3], abs=0.002)
    with av.open(str(video)) as source, av.open(str(copy)) as shown:
        pairs = zip(source.decode(video=0), shown.decode(video=0), strict=True)
        differences = [
            np.abs(one.to_ndarray(format="gray").astype(int) - two.to_ndarray(format="gray")).mean()
            for one, two in pairs
        ]
    assert len(differences) == 12
    assert max(differences) < 4


@pytest.mark.parametrize(
    ("name", "encoder", "heard_as"),
    [
        ("a.mkv", "ac3", "aac"),
        ("a.mkv", "eac3", "aac"),
        ("a.mov", "pcm_s16le", "aac"),
        ("a.mkv", "pcm_s24le", "aac"),
        ("a.mov", "alac", "aac"),
        ("a.mkv", "mp2", "aac"),
        ("a.mkv", "aac", None),
        ("a.mkv", "libmp3lame", None),
        ("a.mkv", "libopus", None),
        ("a.mkv", "flac", None),
    ],
)
def test_the_sound_of_a_copy_is_heard_in_browsers(tmp_path, proxies, name, encoder, heard_as):
    """Check that playable sound is copied packet by packet, and the rest re-encoded with its level and times."""
    codec, pixel_format = ("prores_ks", "yuv422p10le") if name.endswith("mov") else ("ffv1", "yuv420p")
    video = write_clip(tmp_path / name, codec=codec, pixel_format=pixel_format, audio=encoder, frame_count=24)
    copy = made_of(proxies, video)
    was, now = sound_of(video), sound_of(copy)
    if heard_as is None:
        assert (now.codec, now.packets) == (was.codec, was.packets)
    else:
        assert now.codec == heard_as
    assert len(now.samples) == pytest.approx(len(was.samples), abs=4096)
    middle = slice(8000, 16000)
    assert np.std(now.samples[middle]) == pytest.approx(np.std(was.samples[middle]), rel=0.05)
    assert np.std(now.samples[middle]) > 0.01


class Sound(NamedTuple):
    codec: str
    packets: list[bytes]
    samples: np.ndarray


def sound_of(path):
    """Read the only sound track of a file, mixed to one channel at 48 kHz."""
    with av.open(str(path)) as container:
        (stream,) = container.streams.audio
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size]
        codec = stream.codec_context.name
    resampler = av.AudioResampler("flt", "mono", 48000)
    with av.open(str(path)) as container:
        parts = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    return Sound(codec, packets, np.concatenate([part.to_ndarray()[0] for part in parts]))


@pytest.mark.parametrize(
    ("name", "encoder", "why"),
    [
        ("a.mp4", "ac3", "browsers cannot play AC-3 sound"),
        ("a.mp4", "eac3", "browsers cannot play E-AC-3 sound"),
        ("a.mov", "pcm_s16le", "browsers cannot play PCM sound"),
        ("a.mp4", "aac", None),
        ("a.mp4", "libmp3lame", None),
        ("a.webm", "libopus", None),
        ("a.mp4", None, None),
    ],
)
def test_a_video_that_would_be_silent_is_not_played_as_it_is(tmp_path, name, encoder, why):
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    info = probe(write_clip(tmp_path / name, codec=codec, audio=encoder))
    assert why_no_browser_plays(info) == why
    assert (
        why_no_browser_plays(dataclasses.replace(info, audio_codec="dca")) == "browsers cannot play DTS sound"
    )


def test_times_that_are_uneven_stay(tmp_path, proxies):
    video = write_clip(tmp_path / "a.mkv", codec="ffv1", pts=[0, 1, 5, 6, 14])
    assert facts(made_of(proxies, video))[3] == pytest.approx([n / 24 for n in (0, 1, 5, 6, 14)], abs=0.002)


def test_what_is_transparent_is_shown_before_grey(tmp_path, proxies):
    path = tmp_path / "a.mov"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("prores_ks", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuva444p10le"
        rgba = np.full((64, 96, 4), (250, 30, 30, 255), np.uint8)
        rgba[:, 48:, 3] = 0
        for n in range(3):
            frame = av.VideoFrame.from_ndarray(rgba, format="rgba").reformat(format="yuva444p10le")
            frame.pts = n
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(str(made_of(proxies, path))) as shown:
        rgb = next(shown.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    assert np.abs(rgb[:, :40] - (250, 30, 30)).max() < 24
    assert np.abs(rgb[:, 56:] - 128).max() < 8


def test_it_is_made_once_whatever_the_file_is_called(tmp_path, monkeypatch):
    video = write_clip(tmp_path / "a.avi", codec="mpeg4")
    first = Proxies(tmp_path / "copies", most_bytes=10**9)
    copy = made_of(first, video)
    first.close()
    again = Proxies(tmp_path / "copies", most_bytes=10**9)
    monkeypatch.setattr(Proxies, "_make", lambda *_: pytest.fail("it is made again"))
    moved = video.rename(tmp_path / "b.avi")
    assert again.make(moved).state == "done"
    assert again.find(moved) == copy
    write_clip(moved, codec="mpeg4", width=64)
    assert again.find(moved) is None
    again.close()


def test_what_was_unused_for_longest_goes(tmp_path):
    videos = [write_clip(tmp_path / f"{n}.avi", codec="mpeg4", width=96 + 16 * n) for n in range(3)]
    one = Proxies(tmp_path / "sizes", most_bytes=10**9)
    sizes = [made_of(one, video).stat().st_size for video in videos]
    one.close()
    bounded = Proxies(tmp_path / "copies", most_bytes=sum(sizes) - min(sizes) // 2)
    for video in videos[:2]:
        os.utime(made_of(bounded, video), (1, 1))
    assert bounded.find(videos[0]) is not None  # this makes it newer
    made_of(bounded, videos[2])
    bounded.close()  # after room was made
    assert [bounded.find(video) is not None for video in videos] == [True, False, True]


def test_what_is_broken_off_leaves_nothing(tmp_path, monkeypatch):
    started = threading.Event()

    def slow(frame, **_):
        started.set()
        time.sleep(0.2)
        return frame

    monkeypatch.setattr(proxies_module, "shrink_frame", slow)
    monkeypatch.setattr(proxies_module, "_proxy_size", lambda info: (info.height, info.width - 2))
    made = Proxies(tmp_path / "copies", most_bytes=10**9)
    made.make(write_clip(tmp_path / "a.avi", codec="mpeg4", frame_count=500))
    assert started.wait(30)
    made.close()
    assert not list((tmp_path / "copies").iterdir())


def test_what_cannot_be_read_is_told(tmp_path, proxies):
    with pytest.raises(InputError, match="nowhere"):
        proxies.make(tmp_path / "nowhere.mp4")
    broken = tmp_path / "broken.avi"
    broken.write_bytes(b"no video" * 100)
    until = time.monotonic() + 30
    while proxies.make(broken).state != "failed" and time.monotonic() < until:
        time.sleep(0.02)
    assert "broken.avi" in proxies.make(broken).error


def test_only_so_many_wait(tmp_path, proxies, monkeypatch):
    monkeypatch.setattr(proxies_module, "_MOST_WAITING", 0)
    with pytest.raises(BusyError):
        proxies.make(write_clip(tmp_path / "a.avi", codec="mpeg4"))


def test_the_studio_gives_out_file_and_copy_in_ranges(studio, films):
    write_clip(films / "old.avi", codec="mpeg4")
    film = studio.film("old.avi")
    base = f"/api/films/{film['id']}"
    playing = studio.get(f"{base}/playing").json
    assert playing["why_not"] == "browsers cannot read avi files"
    assert (playing["original"], playing["has_copy"]) == (f"{base}/media", False)
    content = (films / "old.avi").read_bytes()
    part = studio.get(f"{base}/media", Range="bytes=4-9")
    assert (part.status, part.body) == (206, content[4:10])
    assert studio.get(f"{base}/proxy").status == 404
    until = time.monotonic() + 60
    while (answer := studio.ask("POST", f"{base}/proxy")).status == 202 and time.monotonic() < until:
        time.sleep(0.05)
    assert answer.json == {"state": "done", "share": 1.0, "error": None}
    copy = studio.get(f"{base}/proxy")
    assert (copy.status, copy.headers["Content-Type"]) == (200, "video/mp4")
    part = studio.get(f"{base}/proxy", Range="bytes=100-199")
    assert (part.status, part.body) == (206, copy.body[100:200])
    assert studio.get(f"{base}/playing").json["has_copy"] is True


def test_what_a_job_made_is_described_to_who_plays_it(studio, films):
    job = studio.job(studio.order(studio.film(), task="cut", kind="alpha"))
    base = f"/api/jobs/{job['id']}/files/0"
    playing = studio.get(f"{base}/playing").json
    assert playing["why_not"] == "browsers cannot decode prores"
    assert (playing["name"], playing["original"]) == ("wedding_alpha.mov", base)
    assert playing["key_color"] is None
    key = studio.job(studio.order(studio.film(), task="cut", kind="key", key_color="#102030"))
    playing = studio.get(f"/api/jobs/{key['id']}/files/0/playing").json
    assert (playing["why_not"], playing["key_color"]) == (None, [16, 32, 48])
