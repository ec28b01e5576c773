"""Check that segments encoded apart play as one video, in every codec and container of the writer."""

from __future__ import annotations

import pickle
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.errors import OutputError
from vitascope.media.metadata.color_tags import HdrMetadata
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.segment_encoder import JoiningWriter, SegmentEncoder, plain
from vitascope.media.writing.writer import VideoWriter

CUTS = (0, 9, 10, 22, 30)
VARIABLE = list(accumulate([1, 1, 1, 3, 1, 7, 2, 1, 1, 1, 20, 1, 1, 1, 9, 1, 1, 4, 1, 1] * 2))[:30]


@pytest.fixture(scope="module", params=["constant", "variable"])
def film(request, tmp_path_factory):
    """Return frames, their description, and their file."""
    path = write_clip(
        tmp_path_factory.mktemp("film") / "in.mp4",
        frame_count=30,
        pts=VARIABLE if request.param == "variable" else None,
        audio="aac",
    )
    with open_video(path) as reader:
        return list(reader), reader.info, path


def alpha_of(frame, wanted):
    return np.full((frame.height, frame.width), frame.index * 8, np.uint8) if wanted else None


def encode(out, film, encoding, alpha, hdr=None):
    """Encode segments as separate processes would, and return their packets."""
    frames, info, _ = film
    for first, last in pairwise(CUTS):
        sent = pickle.loads(pickle.dumps((info, plain(encoding), hdr)))
        encoder = SegmentEncoder(out, info=sent[0], encoding=sent[1], hdr=sent[2])
        try:
            for position, frame in enumerate(frames[first:last]):
                packets = encoder.encode(frame, alpha_of(frame, alpha))
                sets = encoder.parameter_sets if position == 0 else None
                time = FrameTime(frame.pts, frame.time_base, frame.duration)
                yield sets, [time], pickle.loads(pickle.dumps(packets))
            yield None, [], encoder.flush()
        finally:
            encoder.close()


def join(out, film, encoding, alpha):
    with JoiningWriter(out, info=film[1], encoding=encoding, copy_from=film[2]) as writer:
        for sets, times, packets in encode(out, film, encoding, alpha):
            if sets is not None:
                writer.begin_segment(sets)
            writer.write_encoded(times, packets)
    return writer.report


def write(out, film, encoding, alpha):
    with VideoWriter(out, info=film[1], encoding=encoding, copy_from=film[2]) as writer:
        for frame in film[0]:
            writer.write_with_alpha(frame, alpha_of(frame, True)) if alpha else writer.write(frame)
    return writer.report


def packets_of(path, kind):
    with av.open(str(path)) as container:
        stream = next(stream for stream in container.streams if stream.type == kind)
        return [
            (p.pts, p.dts, bytes(p), p.is_keyframe, p.has_sidedata("matroska_block_additional"))
            for p in container.demux(stream)
            if p.size
        ]


def pictures_of(path):
    with av.open(str(path)) as container:
        return [(f.pts, f.to_ndarray(format="gray").astype(int)) for f in container.decode(video=0)]


@pytest.mark.parametrize(
    ("suffix", "codec", "alpha", "tolerance"),
    [
        (".mp4", "h264", False, 3),
        (".mkv", "h264", False, 3),
        (".mov", "h264", False, 3),
        (".mp4", "h265", False, 3),
        (".mkv", "h265", False, 3),
        (".mp4", "av1", False, 4),
        (".webm", "vp9", False, 4),
        (".webm", "vp9", True, 4),
        (".mov", "prores", True, 0),
        (".mkv", "prores", False, 0),
        (".mkv", "ffv1", True, 0),
    ],
)
def test_joined_as_if_written_at_once(film, tmp_path, suffix, codec, alpha, tolerance):
    joined, whole = tmp_path / f"joined{suffix}", tmp_path / f"whole{suffix}"
    encoding = choose_encoding(joined, codec=codec, source_format=film[1].format, with_alpha=alpha)
    report = join(joined, film, encoding, alpha)
    assert report.frame_count == 30
    assert report.streams == write(whole, film, encoding, alpha).streams
    ours, theirs = pictures_of(joined), pictures_of(whole)
    assert [pts for pts, _ in ours] == [pts for pts, _ in theirs]
    assert max(np.abs(a - b).mean() for (_, a), (_, b) in zip(ours, theirs, strict=True)) <= tolerance
    video = packets_of(joined, "video")
    decoding_times = [dts for _, dts, *_ in video if dts is not None]  # Matroska stores none
    assert all(earlier < later for earlier, later in pairwise(decoding_times))
    assert all(dts is None or dts <= pts for pts, dts, *_ in video)
    begins = {theirs[first][0] for first in CUTS[:-1]}
    assert begins <= {pts for pts, _, _, is_key, _ in video if is_key}
    assert all(has for *_, has in video) == (codec == "vp9" and alpha)
    assert packets_of(joined, "audio") == packets_of(whole, "audio")
    assert len(packets_of(joined, "audio")) > 2


HDR = HdrMetadata(
    (
        (Fraction(34, 50), Fraction(16, 50)),
        (Fraction(13, 50), Fraction(34, 50)),
        (Fraction(3, 20), Fraction(3, 50)),
    ),
    (Fraction(3127, 10000), Fraction(3290, 10000)),
    Fraction(1, 10000),
    Fraction(1000),
    800,
    200,
)


@pytest.mark.parametrize(
    ("name", "codec"), [("o.mp4", "h265"), ("o.mkv", "h265"), ("o.mp4", "h264"), ("o.webm", "av1")]
)
def test_hdr_metadata_is_in_header_and_bitstream(film, tmp_path, name, codec):
    frames, info, _ = film
    info = replace(info, color=replace(info.color, primaries=9, transfer=16, matrix="bt2020", matrix_code=9))
    out = tmp_path / name
    encoding = choose_encoding(out, codec=codec, source_format=info.format)
    with JoiningWriter(out, info=info, encoding=encoding, hdr=HDR) as writer:
        for sets, times, packets in encode(out, (frames, info, None), encoding, False, HDR):
            if sets is not None:
                writer.begin_segment(sets)
            writer.write_encoded(times, packets)
    with open_video(out) as reader:
        assert reader.hdr.max_content_light_level == 800
        assert reader.hdr.max_luminance == 1000
        assert len(list(reader)) == 30


def test_alpha_of_vp9_survives(film, tmp_path):
    out = tmp_path / "o.webm"
    join(out, film, choose_encoding(out, source_format=film[1].format, with_alpha=True), True)
    context = av.CodecContext.create("libvpx-vp9", "r")
    with av.open(str(out)) as container:
        decoded = [frame for packet in container.demux(video=0) for frame in context.decode(packet)]
    levels = [int(frame.reformat(format="rgba").to_ndarray()[32, 48, 3]) for frame in decoded]
    assert levels == pytest.approx([8 * n for n in range(30)], abs=4)


def test_pictures_are_the_same_files(film, tmp_path):
    encoding = choose_encoding(tmp_path / "whole", source_format=film[1].format)
    write(tmp_path / "whole", film, encoding, False)
    join(tmp_path / "joined", film, encoding, False)
    ours = {path.name: path.read_bytes() for path in (tmp_path / "joined").iterdir()}
    assert len(ours) == 30
    assert ours == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}


def test_a_film_does_not_fit_into_one_picture(film, tmp_path):
    out = tmp_path / "o.png"
    with pytest.raises(OutputError, match="one picture cannot hold a video"):
        join(out, film, choose_encoding(out, source_format=film[1].format), False)
    assert list(tmp_path.iterdir()) == []


def begin_with_another(out, film, ours, theirs):
    with JoiningWriter(out, info=film[1], encoding=ours) as writer:
        writer.begin_segment(SegmentEncoder(out, info=film[1], encoding=theirs).parameter_sets)


def test_an_encoder_that_differs_is_refused(film, tmp_path):
    out = tmp_path / "o.mp4"
    fast, good = (
        choose_encoding(out, source_format=film[1].format, preset=preset)
        for preset in ("ultrafast", "medium")
    )
    with pytest.raises(OutputError, match="cannot be joined"):
        begin_with_another(out, film, fast, good)
    assert list(tmp_path.iterdir()) == []


def test_frames_of_another_size_are_refused(film, tmp_path):
    frames, info, _ = film
    encoding = choose_encoding(tmp_path / "o.mp4", source_format=info.format)
    encoder = SegmentEncoder(tmp_path / "o.mp4", info=replace(info, width=64), encoding=encoding)
    with pytest.raises(OutputError, match="frame 0 is 96x64, the video 64x64"):
        encoder.encode(frames[0])
    encoder.close()
    encoder.close()
