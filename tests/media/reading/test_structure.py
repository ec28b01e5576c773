"""Check that whole files of many writers have no breaks in their structure, and that holes have one in place."""

from __future__ import annotations

import io
import re
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from clips import copied, write_clip
from photographs import astronaut
from vitascope.errors import CorruptInputError
from vitascope.media.reading.reader import open_video
from vitascope.media.reading.structure import broken_at, is_joined

FORMATS = {
    "mkv": "matroska,webm",
    "webm": "matroska,webm",
    "flv": "flv",
    "ts": "mpegts",
    "avi": "avi",
    "gif": "gif",
    "mp4": "mov,mp4,m4a,3gp,3g2,mj2",
}
CODECS = {"webm": "libvpx-vp9", "avi": "mpeg4", "gif": "gif"}


def make(path, **how):
    suffix = path.suffix[1:]
    return write_clip(
        path, width=128, height=96, frame_count=48, frame_rate=Fraction(25),
        codec=CODECS.get(suffix, "libx264"), pixel_format="rgb8" if suffix == "gif" else "yuv420p",
        paint=lambda n: np.ascontiguousarray(np.roll(astronaut()[:96, 100:228], n, axis=1)), **how,
    )  # fmt: skip


def pid_of(path):
    with av.open(str(path)) as container:
        return container.streams.video[0].id


@pytest.fixture(params=FORMATS)
def whole(request, tmp_path):
    sound = {"mkv": "aac", "ts": "aac", "flv": "aac", "mp4": "aac"}.get(request.param)
    return make(tmp_path / f"in.{request.param}", audio=sound)


def broken(path):
    return broken_at(path, FORMATS[path.suffix[1:]], stream_id=pid_of(path))


def test_a_whole_file_has_no_break(whole):
    assert broken(whole) is None
    with open_video(whole) as reader:
        assert len(list(reader)) == 48
    assert reader.corrupt_count == 0


@pytest.mark.parametrize("share", [0.4, 0.7])
def test_a_hole_is_found_where_it_is_and_said(whole, share):
    content = bytearray(whole.read_bytes())
    begin = int(len(content) * share)
    content[begin : begin + len(content) // 5] = bytes(len(content) // 5)
    hurt = whole.with_stem("hurt")
    hurt.write_bytes(content)
    if whole.suffix != ".mp4":  # its boxes are large, and the decoder finds damage in them
        place = broken(hurt)
        assert place is not None
        assert abs(place - begin) < len(content) // 3
    with open_video(hurt) as reader:
        try:
            shown = len(list(reader))
        except CorruptInputError:  # even clearer
            return
    assert shown == 48 or reader.corrupt_count > 0


@pytest.mark.parametrize(("begin", "end"), [(300, 900), (200, 6000)])
def test_a_part_cut_out_of_a_transport_stream_early_is_said(tmp_path, begin, end):
    """Check a cut after which most packets are in step with one another, but not with the first."""
    content = make(tmp_path / "in.ts", codec_options={"g": "6"}).read_bytes()
    hurt = tmp_path / "hurt.ts"
    hurt.write_bytes(content[:begin] + content[end:])
    assert broken_at(hurt, "mpegts", stream_id=256) is not None
    with open_video(hurt) as reader:
        assert len(list(reader)) == 48 or reader.corrupt_count > 0


def test_a_recording_may_begin_inside_a_packet(tmp_path):
    content = make(tmp_path / "in.ts").read_bytes()
    late = tmp_path / "late.ts"
    late.write_bytes(content[100:])
    assert broken(late) is None


@pytest.mark.parametrize(("offset", "value"), [(2, 5), (7, 90)])
def test_an_extension_of_a_gif_that_swallows_images_is_a_break(tmp_path, offset, value):
    content = bytearray(make(tmp_path / "in.gif").read_bytes())
    control = [match.start() for match in re.finditer(b"\x21\xf9\x04", content)][5]
    content[control + offset] = value
    hurt = tmp_path / "hurt.gif"
    hurt.write_bytes(content)
    assert broken(hurt) in range(control, control + 8)


def test_a_comment_of_a_gif_that_swallows_images_is_a_break(tmp_path):
    content = make(tmp_path / "in.gif").read_bytes()
    controls = [match.start() for match in re.finditer(b"\x21\xf9\x04", content)]
    swallowed = content[controls[5] : controls[7]]
    chain = b"".join(
        bytes([len(part)]) + part for part in (swallowed[n : n + 200] for n in range(0, len(swallowed), 200))
    )
    hurt = tmp_path / "hurt.gif"
    hurt.write_bytes(content[: controls[5]] + b"\x21\xfe" + chain + b"\0" + content[controls[7] :])
    assert broken_at(hurt, "gif") == controls[5]


@pytest.mark.parametrize(("offset", "value"), [(1, 0x7F), (12, 0)])
def test_a_tag_of_flash_video_that_takes_pictures_away_is_a_break(tmp_path, offset, value):
    """Check a tag longer than all others, and a picture marked as the decoder's configuration."""
    whole = make(tmp_path / "in.flv")
    content = bytearray(whole.read_bytes())
    with av.open(str(whole)) as container:
        tag = [packet.pos for packet in container.demux(video=0) if packet.size][20]
    content[tag + offset] = value
    hurt = tmp_path / "hurt.flv"
    hurt.write_bytes(content)
    assert broken(hurt) == tag


def test_a_picture_of_a_transport_stream_without_its_start_code_is_a_break(tmp_path):
    content = bytearray(make(tmp_path / "in.ts").read_bytes())
    starts = [match.start() for match in re.finditer(b"\0\0\1\xe0", content)]
    content[starts[20] + 2] = 3
    hurt = tmp_path / "hurt.ts"
    hurt.write_bytes(content)
    assert broken(hurt) == starts[20] // 188 * 188


def test_a_block_of_matroska_whose_head_is_another_is_a_break(tmp_path):
    whole = make(tmp_path / "in.mkv")
    content = whole.read_bytes()
    with av.open(str(whole)) as container:
        number = [packet.pos for packet in container.demux(video=0) if packet.size][
            20
        ]  # followed by time and flags
    block = content.rindex(b"\xa3", 0, number)
    for place, value in ((block, 0xA7), (number + 3, 0xFF)):
        hurt = tmp_path / "hurt.mkv"
        hurt.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
        assert broken(hurt) == block


def test_a_block_of_a_track_that_nobody_declared_is_a_break(tmp_path):
    path = write_clip(tmp_path / "in.mkv", frame_count=12)
    content = bytearray(path.read_bytes())
    # A simple block begins with its length, the track (0x81 is 1), two bytes of time, and flags.
    blocks = [
        match.start(1)
        for match in re.finditer(rb"\xa3(?:[\x81-\xff]|[\x40-\x7f].)(\x81)\0.[\x00\x80]", content, re.DOTALL)
    ]
    assert blocks
    assert broken_at(path, "matroska,webm") is None
    content[blocks[len(blocks) // 2]] = 0x85
    path.write_bytes(content)
    assert broken_at(path, "matroska,webm") is not None


def test_flash_video_that_is_shorter_than_it_says_is_a_break(tmp_path):
    path = write_clip(tmp_path / "in.flv", frame_count=12)
    assert broken_at(path, "flv") is None
    content = path.read_bytes()
    last_bytes = int.from_bytes(content[-4:], "big") + 4  # remove exactly the last tag
    path.write_bytes(content[:-last_bytes])
    assert broken_at(path, "flv") is not None


def test_a_transport_stream_whose_first_keyframe_is_damaged_lacks_it(tmp_path):
    """Check that lost frames count: a recording may begin anywhere, but this one began with a keyframe."""
    whole = make(tmp_path / "in.ts", codec_options={"g": "12"})
    content = bytearray(whole.read_bytes())
    with av.open(str(whole)) as container:
        begin = next(packet.pos for packet in container.demux(video=0))
    for packet in range(begin, begin + 188 * 10, 188):  # keep headers and times
        content[packet + 60 : packet + 180] = bytes(120)
    hurt = tmp_path / "hurt.ts"
    hurt.write_bytes(content)
    with open_video(hurt) as reader:
        shown = len(list(reader))
    assert shown < 48
    assert shown + reader.corrupt_count == 48


@pytest.mark.parametrize("sessions", [1, 3])
def test_several_sessions_say_of_a_break_what_one_says(tmp_path, sessions):
    """Check a non-reference picture that cannot be read, nor anything that lists it; all others decode."""
    whole = make(tmp_path / "in.mkv", codec_options={"g": "6", "bf": "0"})
    whole = copied(whole, tmp_path / "small.mkv", cluster_time_limit="20")
    content = bytearray(whole.read_bytes())
    clusters = [match.start() for match in re.finditer(b"\x1f\x43\xb6\x75", content)]
    assert len(clusters) == 48
    content[clusters[23] : clusters[24]] = bytes(clusters[24] - clusters[23])
    hurt = tmp_path / "hurt.mkv"
    hurt.write_bytes(content)
    with open_video(hurt, decoder_sessions=sessions) as reader:
        assert len(list(reader)) == 47
    assert f"; {sessions} sessions" in reader.decoder or sessions == 1
    assert reader.corrupt_count == 1


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("mkv", {"live": "1"}),
        ("webm", {"live": "1"}),
        ("mkv", {"reserve_index_space": "2000"}),
        ("mkv", {"cluster_time_limit": "100"}),
        ("ts", {"mpegts_m2ts_mode": "1"}),
        ("ts", {"muxrate": "4M"}),
        ("mp4", {"movflags": "frag_keyframe+empty_moov"}),
        ("mp4", {"movflags": "faststart"}),
        ("flv", {"flvflags": "no_duration_filesize"}),
    ],
)
def test_other_writers_files_are_whole(tmp_path, suffix, options):
    whole = copied(make(tmp_path / f"in.{suffix}"), tmp_path / f"other.{suffix}", **options)
    assert broken(whole) is None


@pytest.mark.parametrize("frame_count", [20, 31, 48])
def test_a_recording_behind_another_is_no_break(tmp_path, frame_count):
    """Check that counters and times that start again are no break, while a missing part is one."""
    first = write_clip(tmp_path / "a.ts", frame_count=frame_count, frame_rate=Fraction(12)).read_bytes()
    joined = tmp_path / "joined.ts"
    joined.write_bytes(first * 2)
    assert broken(joined) is None
    lacking = tmp_path / "lacking.ts"
    lacking.write_bytes(first[: 188 * 20] + first[188 * 30 :])
    assert broken(lacking) is not None


class CountingPath(type(Path())):
    """Counts the bytes read through it."""

    read_bytes_count = 0

    def open(self, *args, **kwargs):
        file = super().open(*args, **kwargs)
        outer = self

        class Counting:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def __getattr__(self, name):
                return getattr(file, name)

            def read(self, size=-1):
                content = file.read(size)
                outer.read_bytes_count += len(content)
                return content

        return Counting()


def transport_packets(times, pid=256):
    """Build a packet for each picture that only has its time: uint8 [n, 188]."""
    packets = np.full((len(times), 188), 0xFF, np.uint8)
    counters = np.arange(len(times)) & 0xF
    packets[:, :3] = 0x47, 0x40 | pid >> 8, pid & 0xFF
    packets[:, 3] = 0x10 | counters
    packets[:, 4:13] = 0, 0, 1, 0xE0, 0, 0, 0x80, 0x80, 5
    packets[:, 13] = 0x21 | times >> 29 & 0xE
    packets[:, 14], packets[:, 15] = times >> 22 & 0xFF, times >> 14 & 0xFE | 1
    packets[:, 16], packets[:, 17] = times >> 7 & 0xFF, times << 1 & 0xFE | 1
    return packets


@pytest.mark.parametrize("lead_bytes", [0, 4])
@pytest.mark.parametrize(
    ("first_share", "expected"),
    [(1.0, False), (0.03, True), (0.5, True), (0.97, True)],
)
def test_joined_takes_are_found_in_a_long_file(tmp_path, lead_bytes, first_share, expected):
    count = (140 << 20) // 188
    number = np.arange(count)
    first = round(count * first_share)
    packets = transport_packets(90_000 + 1_800 * np.where(number < first, number, number - first))
    path = tmp_path / "long.ts"
    np.pad(packets, ((0, 0), (lead_bytes, 0))).tofile(path)  # M2TS has four bytes of time in front
    assert is_joined(path, "mpegts", stream_id=256) is expected
    path.unlink()


def test_a_clock_that_begins_anew_behind_its_last_tick_is_no_join(tmp_path):
    count = (140 << 20) // 188
    path = tmp_path / "long.ts"
    transport_packets(((1 << 33) - 1_000_000 + 1_800 * np.arange(count)) % (1 << 33)).tofile(path)
    assert not is_joined(path, "mpegts", stream_id=256)
    path.unlink()


def test_little_of_a_long_file_is_read_for_joined_takes_and_once(tmp_path):
    path = CountingPath(tmp_path / "long.ts")
    with Path(path).open("wb") as file:
        file.write(transport_packets(1_800 * np.arange(5_000)).tobytes())
        file.truncate(20 << 30)
    began = time.process_time()
    assert not is_joined(path, "mpegts", stream_id=256)
    assert time.process_time() - began < 2
    once = path.read_bytes_count
    assert 0 < once <= 130 << 20
    assert not is_joined(path, "mpegts", stream_id=256)
    assert path.read_bytes_count == once


def test_a_file_that_was_written_anew_is_looked_at_again(tmp_path):
    path = tmp_path / "in.ts"
    take = transport_packets(1_800 * np.arange(50)).tobytes()
    path.write_bytes(take)
    assert not is_joined(path, "mpegts", stream_id=256)
    path.write_bytes(take * 2)
    assert is_joined(path, "mpegts", stream_id=256)


def hurt_at(path, place, value):
    content = bytearray(path.read_bytes())
    content[place] = value
    hurt = path.with_stem("hurt")
    hurt.write_bytes(content)
    return hurt


def positions(path):
    with av.open(str(path)) as container:
        return [packet.pos for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize("codec", [0xFF, 0xA1, 0xA6, 0xA7, 0x22])
def test_a_tag_of_flash_video_of_another_codec_is_a_break(tmp_path, codec):
    """Check other codecs.

    0xA1 begins an enhanced header, whose four characters are then H.264 data; 0x22 is Sorenson's H.263.
    """
    path = make(tmp_path / "in.flv")
    tag = positions(path)[20]
    assert broken(hurt_at(path, tag + 11, codec)) == tag


def test_flash_video_with_enhanced_heads_is_whole(tmp_path):
    path = write_clip(
        tmp_path / "in.flv", codec="libx265", frame_count=24, codec_options={"x265-params": "log-level=none"}
    )
    content = path.read_bytes()
    assert content.count(b"hvc1") >= 24
    assert broken(path) is None
    tag = positions(path)[12]
    assert content[tag + 12 : tag + 16] == b"hvc1"
    assert (
        broken(hurt_at(path, tag + 11, content[tag + 11] & 0xF0 | 7)) is None
    )  # a header with more fields in front
    assert broken(hurt_at(path, tag + 15, ord("2"))) == tag


def test_flash_video_with_two_pictures_at_a_time_is_whole(tmp_path):
    """Check a second track, to which FFmpeg gives another kind of header."""
    source, path = make(tmp_path / "in.flv"), tmp_path / "two.flv"
    with av.open(str(source)) as reading, av.open(str(path), "w") as writing:
        streams = [writing.add_stream_from_template(reading.streams.video[0]) for _ in range(2)]
        for packet in reading.demux(video=0):
            for stream in streams if packet.size else ():
                copy = av.Packet(bytes(packet))
                copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
                copy.is_keyframe, copy.stream = packet.is_keyframe, stream
                writing.mux(copy)
    assert path.stat().st_size > 1.8 * source.stat().st_size
    assert broken(path) is None


def test_a_block_of_a_video_that_says_it_holds_several_frames_is_a_break(tmp_path):
    path = make(tmp_path / "in.mkv", audio="aac")
    number = positions(path)[20]
    block = path.read_bytes().rindex(b"\xa3", 0, number)
    assert broken(hurt_at(path, number + 3, 0x04)) == block


@pytest.mark.parametrize("length", [0xFF, 0x40])
def test_a_head_of_matroska_that_swallows_all_else_is_a_break(tmp_path, length):
    assert broken_at(hurt_at(make(tmp_path / "in.webm"), 4, length), "matroska,webm") is not None


def test_a_block_group_of_matroska_that_holds_something_else_is_a_break(tmp_path):
    """Check a group; FFmpeg makes these for blocks with a duration, such as subtitles and Opus."""
    path = tmp_path / "in.mkv"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=25)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("libopus", rate=48000)
        tone = av.AudioFrame.from_ndarray(np.zeros((1, 4000), np.int16), format="s16", layout="mono")
        tone.sample_rate, tone.pts = 48000, 0
        for n in range(3):
            frame = av.VideoFrame.from_ndarray(astronaut()[n : n + 48, :64], format="rgb24")
            container.mux(video.encode(frame))
        container.mux([*sound.encode(tone), *sound.encode(None), *video.encode(None)])
    content = path.read_bytes()
    (group,) = (match.start() for match in re.finditer(b"\xa0[\x80-\xff\x40-\x7f].?\xa1", content, re.DOTALL))
    assert broken(path) is None
    block = content.index(b"\xa1", group)
    assert broken(hurt_at(path, block, 0x42)) == block
    assert broken(hurt_at(path, group, 0x42)) == group


@pytest.mark.parametrize("at_time", [7, 12, 25])
def test_two_pictures_of_a_transport_stream_in_one_are_a_break(tmp_path, at_time):
    """Check a changed bit in a picture's start code: FFmpeg takes it for more of the previous picture."""
    path = make(tmp_path / "in.ts", codec_options={"g": "12"})
    place = path.read_bytes().index(b"\0\0\1\x09", positions(path)[at_time])  # the delimiter before a picture
    picture = path.read_bytes().index(b"\0\0\1", place + 4)
    hurt = hurt_at(path, picture + 2, 9)
    assert broken(hurt) is None
    with open_video(hurt) as reader:
        shown = len(list(reader))
        assert shown == 48 or reader.corrupt_count > 0
    hurt = hurt_at(path, place + 2, 9)
    with open_video(hurt) as reader:
        shown = len(list(reader))
    assert shown == 48 or reader.corrupt_count > 0


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"flags": "+ildct+ilme", "x264-params": "tff=1"}),
        ("libx264", {"x264-params": "slices=4:open-gop=1:keyint=12"}),
        ("libx264", {"x264-params": "fake-interlaced=1"}),
        ("libx265", {"x265-params": "log-level=none:interlace=tff:keyint=12"}),
        ("mpeg2video", {"bf": "2", "flags": "+ildct+ilme"}),
    ],
)
@pytest.mark.parametrize("muxing", [{}, {"pes_payload_size": "200"}, {"omit_video_pes_length": "0"}])
def test_the_times_of_whole_transport_streams_all_come(tmp_path, codec, options, muxing):
    whole = write_clip(tmp_path / "in.ts", frame_count=48, codec=codec, codec_options=options)
    whole = copied(whole, tmp_path / "other.ts", **muxing)
    with open_video(whole) as reader:
        assert len(list(reader)) == 48
    assert reader.corrupt_count == 0


def test_an_avi_without_its_list_of_pictures_is_cut(tmp_path):
    """Check that it is refused; FFmpeg finds most chunks by its index."""
    path = make(tmp_path / "in.avi")
    content = bytearray(path.read_bytes())
    begin = content.index(b"movi")
    content[begin : begin + 1500] = b"\xe3" * 1500
    hurt = tmp_path / "hurt.avi"
    hurt.write_bytes(content)
    with open_video(hurt) as reader, pytest.raises(CorruptInputError, match="its list of frames"):
        list(reader)


def test_a_chunk_of_an_avi_that_only_its_index_names_is_counted(tmp_path):
    path = make(tmp_path / "in.avi")
    chunk = positions(path)[20] - 8
    assert path.read_bytes()[chunk : chunk + 2] == b"00"
    for place, value in ((chunk, ord("4")), (chunk + 1, ord("p"))):
        hurt = hurt_at(path, place, value)
        with open_video(hurt) as reader:
            assert len(list(reader)) == 47
        assert reader.corrupt_count == 1


@pytest.mark.parametrize("which", [0, 20])
def test_a_chunk_of_an_avi_that_belongs_to_no_stream_is_a_break(tmp_path, which):
    path = make(tmp_path / "in.avi")
    chunk = positions(path)[which] - 8
    assert broken(hurt_at(path, chunk, ord("4"))) == chunk


def test_chunks_of_an_avi_that_ffmpeg_passes_over_are_missing(tmp_path):
    """Check the first picture, which FFmpeg skips if the list of headers does not end where it says."""
    path = make(tmp_path / "in.avi")
    content = bytearray(path.read_bytes())
    begin = content.index(b"JUNK")
    content[begin : begin + 40] = bytes(40)
    hurt = tmp_path / "hurt.avi"
    hurt.write_bytes(content)
    assert broken(hurt) is None
    with open_video(hurt) as reader:
        shown = len(list(reader))
    assert shown == 48 or reader.corrupt_count > 0
    assert broken_at(path, "avi", stream_id=0, came=48) is None
    assert broken_at(path, "avi", stream_id=0, came=47) == path.stat().st_size


def test_an_avi_may_have_chunks_without_content(tmp_path):
    """Check dropped frames of captures: the header counts them, the index does not."""
    path = write_clip(tmp_path / "in.avi", codec="mpeg4", frame_count=30, pts=[*range(15), *range(60, 75)])
    with open_video(path) as reader:
        assert len(list(reader)) == 30
    assert reader.corrupt_count == 0


class Pipe(io.RawIOBase):
    def __init__(self, path):
        super().__init__()
        self.file = path.open("wb")

    def writable(self):
        return True

    def write(self, content):
        return self.file.write(content)

    def close(self):
        self.file.close()
        super().close()


def test_an_avi_from_a_pipe_is_whole(tmp_path):
    """Check an AVI whose writer could not go back to write its length."""
    source, path = make(tmp_path / "in.avi"), tmp_path / "pipe.avi"
    with av.open(str(source)) as reading, Pipe(path) as pipe, av.open(pipe, "w", format="avi") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for packet in reading.demux(reading.streams.video[0]):
            if packet.size:
                packet.stream = stream
                writing.mux(packet)
        writing.close()
    with open_video(path) as reader:
        assert reader.info.frame_count_estimate is None
        assert len(list(reader)) == 48
    assert reader.corrupt_count == 0


@pytest.mark.parametrize(
    "content", [b"", b"\x1a\x45\xdf\xa3", b"FLV\x01\x05", b"GIF89a" + bytes(20), b"RIFF"]
)
def test_stumps(tmp_path, content):
    for name in set(FORMATS.values()):
        path = tmp_path / "stump"
        path.write_bytes(content)
        broken_at(path, name, stream_id=256)
