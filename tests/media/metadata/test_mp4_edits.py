"""The share of a track that its edit list shows, in boxes made by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.media.metadata.mp4_boxes import Box, full_box, shown_share

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
    """24 frames of 512 ticks; edits are (length in ticks of the movie, beginning in ticks of the track)."""
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
    """A copy that begins with an open GOP: two pictures before the keyframe, which the edit leaves out."""
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
