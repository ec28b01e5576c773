"""Tests of the boxes of hand-made and of hostile MP4 files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clips import write_clip
from vitascope.errors import VitascopeError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.metadata.mp4_boxes import Box, full_box, parse_boxes, read_moov, shown_share
from vitascope.media.metadata.spherical import (
    SphericalMetadata,
    read_spherical,
    set_rotation,
    write_spherical,
)

VR180 = SphericalMetadata(StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR)


def _synthetic(
    moov: bytes, *, mdat: bytes = b"DATA" * 4, wide_mdat: bool = False, moov_first: bool = True
) -> bytes:
    ftyp = struct.pack(">I4s4sI", 16, b"ftyp", b"isom", 0)
    size = len(mdat) + (16 if wide_mdat else 8)
    head = struct.pack(">I4sQ", 1, b"mdat", size) if wide_mdat else struct.pack(">I4s", size, b"mdat")
    return ftyp + moov + head + mdat if moov_first else ftyp + head + mdat + moov


def _movie(*, chunk_kind: bytes, chunks: list[int]) -> Box:
    handler = Box(b"hdlr", struct.pack(">II4s12x", 0, 0, b"vide"))
    entry = Box(b"avc1", bytes(78))
    width = "Q" if chunk_kind == b"co64" else "I"
    offsets = Box(chunk_kind, struct.pack(f">II{len(chunks)}{width}", 0, len(chunks), *chunks))
    description = Box(b"stsd", struct.pack(">II", 0, 1), [entry])
    table = Box(b"stbl", children=[description, offsets])
    media = Box(b"mdia", children=[handler, Box(b"minf", children=[table])])
    return Box(b"moov", children=[Box(b"trak", children=[media])])


def _chunks(path: Path, kind: bytes) -> list[int]:
    moov = read_moov(path)
    assert moov is not None
    (box,) = (box for box in moov.walk() if box.kind == kind)
    return [int(n) for n in np.frombuffer(box.head[8:], ">u8" if kind == b"co64" else ">u4")]


@pytest.mark.parametrize("chunk_kind", [b"stco", b"co64"])
@pytest.mark.parametrize("wide_mdat", [True, False])
def test_chunk_offsets_follow_the_data(tmp_path: Path, chunk_kind: bytes, wide_mdat: bool) -> None:
    path = tmp_path / "a.mp4"
    size = len(_movie(chunk_kind=chunk_kind, chunks=[0, 0]).to_bytes())
    start = 16 + size + (16 if wide_mdat else 8)
    movie = _movie(chunk_kind=chunk_kind, chunks=[start, start + 8])
    path.write_bytes(_synthetic(movie.to_bytes(), mdat=b"AAAABBBBCCCCDDDD", wide_mdat=wide_mdat))
    write_spherical(path, VR180)
    data = path.read_bytes()
    first, second = _chunks(path, chunk_kind)
    assert data[first : first + 4] == b"AAAA"
    assert data[second : second + 4] == b"CCCC"
    assert read_spherical(path) is not None


def test_offsets_that_outgrow_32_bits_become_64(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    near = 0xFFFFFFFF - 10
    path.write_bytes(_synthetic(_movie(chunk_kind=b"stco", chunks=[16, near]).to_bytes()))
    before = path.stat().st_size
    write_spherical(path, VR180)
    assert _chunks(path, b"co64") == [16, near + path.stat().st_size - before]


def test_a_moov_of_size_zero_reaches_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    moov = _movie(chunk_kind=b"stco", chunks=[24]).to_bytes()
    path.write_bytes(_synthetic(b"\0\0\0\0" + moov[4:], moov_first=False))
    write_spherical(path, VR180)
    got = read_spherical(path)
    assert got is not None and got.stereo is StereoLayout.SIDE_BY_SIDE
    assert _chunks(path, b"stco") == [24]


def test_quicktime_terminator_survives(tmp_path: Path) -> None:
    path = tmp_path / "a.mov"
    movie = _movie(chunk_kind=b"stco", chunks=[24])
    entry = next(box for box in movie.walk() if box.kind == b"avc1")
    entry.tail = b"\0\0\0\0"
    path.write_bytes(_synthetic(movie.to_bytes(), moov_first=False))
    write_spherical(path, VR180)
    moov = read_moov(path)
    assert moov is not None
    entry = next(box for box in moov.walk() if box.kind == b"avc1")
    assert entry.tail == b"\0\0\0\0"
    assert [box.kind for box in entry.children] == [b"st3d", b"sv3d", b"vexu", b"hfov"]


_KINDS = [
    b"moov",
    b"trak",
    b"mdia",
    b"minf",
    b"stbl",
    b"stsd",
    b"hdlr",
    b"tkhd",
    b"sv3d",
    b"proj",
    b"stco",
    b"uuid",
]

_boxish = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 3, 4]),
        st.sampled_from(_KINDS),
        st.sampled_from([None] * 9 + [0, 1, 7, 8, -8, 0xFFFFFFFF]),
        st.just(b"") | st.binary(max_size=90),
    ),
    min_size=3,
    max_size=16,
).map(lambda described: _boxes_of(described, 0))
"""Bytes that look like boxes.

Each box has a depth, a kind, a claimed size (None for the true one, -8 for that of the contents alone) and
contents.
"""


def _boxes_of(described: list[tuple[int, bytes, int | None, bytes]], depth: int) -> bytes:
    """Build the boxes at a depth, each with the deeper ones that follow it inside."""
    made = b""
    while described:
        (_, kind, size, payload), *described = described
        count = next((n for n, later in enumerate(described) if later[0] <= depth), len(described))
        payload += _boxes_of(described[:count], depth + 1)
        described = described[count:]
        length = 8 + len(payload) if size is None else len(payload) if size < 0 else size
        made += struct.pack(">I4s", length, kind) + payload
    return made


@given(st.one_of(st.binary(max_size=400), _boxish))
@settings(max_examples=300, deadline=None)
def test_parsing_loses_no_byte(data: bytes) -> None:
    boxes, rest = parse_boxes(data)
    assert b"".join(box.to_bytes() for box in boxes) + rest == data
    assert parse_boxes(b"".join(box.to_bytes() for box in boxes))[0] == boxes


@given(_boxish)
@settings(max_examples=200, deadline=None)
def test_hostile_files_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.mp4"
    for prefix in (b"", struct.pack(">I4s", 8 + len(data), b"moov"), _synthetic(b"")):
        path.write_bytes(prefix + data)
        for act in (
            read_spherical,
            lambda file: write_spherical(file, VR180),
            lambda file: set_rotation(file, 90),
        ):
            try:
                act(path)
            except VitascopeError as error:
                assert "\n" not in str(error)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_damaged_real_files_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = _real_file(tmp_path_factory)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.mp4"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(1, len(damaged)))]))
    try:
        read_spherical(path)
        write_spherical(path, VR180)
        assert read_spherical(path) is not None
    except VitascopeError:
        pass


_REAL: list[bytes] = []


def _real_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if not _REAL:
        _REAL.append(
            write_clip(tmp_path_factory.mktemp("real") / "a.mp4", frame_count=3, audio="aac").read_bytes()
        )
    return _REAL[0]


MOVIE_SCALE, MEDIA_SCALE, FRAMES, TICKS = 1000, 12800, 24, 512


def header(kind: bytes, scale: int, duration: int, *, is_wide: bool = False) -> Box:
    form = ">QQIQ" if is_wide else ">IIII"
    return full_box(kind, struct.pack(form, 0, 0, scale, duration) + bytes(80), version=int(is_wide))


def movie(
    *edits: tuple[int, int],
    offsets: tuple[int, ...] = (1024,),
    movie_scale: int = MOVIE_SCALE,
    media_scale: int = MEDIA_SCALE,
    is_wide: bool = False,
) -> Box:
    """Build a movie of 24 frames of 512 ticks; edits are (length in movie ticks, start in track ticks)."""
    form = ">QqI" if is_wide else ">IiI"
    rows = b"".join(struct.pack(form, *edit, 1 << 16) for edit in edits)
    table = full_box(b"elst", struct.pack(">I", len(edits)) + rows, version=int(is_wide))
    samples = Box(
        b"stbl",
        children=[
            full_box(b"stts", struct.pack(">III", 1, FRAMES, TICKS)),
            full_box(
                b"ctts",
                struct.pack(">I", len(offsets)) + b"".join(struct.pack(">Ii", 1, value) for value in offsets),
            ),
        ],
    )
    media = header(b"mdhd", media_scale, FRAMES * TICKS, is_wide=is_wide)
    track = Box(
        b"trak",
        children=[
            full_box(b"tkhd", struct.pack(">IIII", 0, 0, 7, 0)),
            Box(b"edts", table.to_bytes() if edits else b""),
            Box(b"mdia", children=[media, Box(b"minf", children=[samples])]),
        ],
    )
    return Box(
        b"moov", children=[header(b"mvhd", movie_scale, FRAMES * TICKS, is_wide=is_wide), Box(b"trak"), track]
    )


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize(
    ("edits", "share"),
    [
        ((), 1.0),
        ([(960, 1024)], 1.0),
        ([(500, -1), (960, 1024)], 1.0),
        ([(0, 1024)], 1.0),
        ([(480, 1024)], 0.5),
        ([(960, 1024 + 3072)], 0.75),
        ([(960, 0)], 1 - 1024 / 12288),
        ([(480, 1024), (480, 1024)], 0.0),
    ],
)
def test_the_share_is_what_the_edit_covers_of_what_is_shown_at_all(edits, share, is_wide):
    assert shown_share(movie(*edits, is_wide=is_wide), 7) == pytest.approx(share)


def test_leading_pictures_come_before_the_first_sample():
    """Check a copy that begins with an open GOP: its edit leaves out two pictures before the keyframe."""
    offsets = (2048, 0, 0, 1024)  # shown at 2048, 512, 1024, 2560
    assert shown_share(movie((960, 2048), offsets=offsets), 7) == pytest.approx(1 - 3 / FRAMES)
    assert shown_share(movie((960, 512), offsets=offsets), 7) == 1.0


def test_scales_that_cannot_be_leave_nothing_out():
    assert shown_share(movie((960, 1024), media_scale=0x80000000 | MEDIA_SCALE), 7) == 1.0
    assert shown_share(movie((960, 1024), movie_scale=0), 7) is None


def test_another_track_or_none():
    assert shown_share(movie((960, 1024)), 8) is None
    assert shown_share(Box(b"moov"), 7) is None


@given(st.data())
def test_boxes_cut_anywhere_are_answered(data):
    moov = movie((960, 1024))
    boxes = [box for box in moov.walk() if box.head]
    box = data.draw(st.sampled_from(boxes))
    box.head = box.head[: data.draw(st.integers(0, len(box.head)))]
    share = shown_share(moov, 7)
    assert share is None or 0 <= share <= 1
