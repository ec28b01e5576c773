"""Tests of the video track's entry in real and in hostile Matroska files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clips import write_clip
from vitascope.errors import CorruptInputError, InputError, VitascopeError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.metadata.matroska_video import (
    MUXER_OPTIONS,
    name_with_room,
    patch_video_entry,
    read_video_entry,
)


def write_roomy(path: Path, *, name: str = "", stereo: str | None = None, sound_first: bool = False) -> Path:
    with av.open(str(path), "w", container_options=MUXER_OPTIONS) as container:
        if sound_first:
            container.add_stream("libopus", rate=48000)
        stream = container.add_stream("libvpx-vp9", rate=24, width=90, height=60, pix_fmt="yuv420p")
        stream.metadata["title"] = name_with_room(name)
        if stereo:
            stream.metadata["stereo_mode"] = stereo
        for n in range(3):
            picture = av.VideoFrame(90, 60, "yuv420p")
            picture.pts = n
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("name", ["", "Hauptbild", "主"])
@pytest.mark.parametrize("suffix", [".mkv", ".webm"])
@pytest.mark.parametrize("ratio", [Fraction(1), Fraction(2), Fraction(4, 3), Fraction(4001, 3001)])
@pytest.mark.parametrize("projection", [None, Projection.EQUIRECTANGULAR, Projection.HALF_EQUIRECTANGULAR])
def test_what_is_patched_is_read_by_ffmpeg_too(
    tmp_path: Path, name: str, suffix: str, ratio: Fraction, projection: Projection | None
) -> None:
    path = write_roomy(tmp_path / f"a{suffix}", name=name, stereo="left_right", sound_first=True)
    size = path.stat().st_size
    patch_video_entry(path, sample_aspect_ratio=ratio, projection=projection)
    assert path.stat().st_size == size
    assert read_video_entry(path) == (StereoLayout.SIDE_BY_SIDE, projection, False)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.sample_aspect_ratio == ratio
        assert stream.metadata.get("title", "") == name
        frames = list(container.decode(stream))
        assert len(frames) == 3
        kinds = {item.type.name for item in frames[0].side_data}
    assert ("SPHERICAL" in kinds) is (projection is not None)
    with av.open(str(path)) as container:
        container.seek(80_000, stream=container.streams.video[0])
        assert next(container.decode(video=0)) is not None


@pytest.mark.parametrize(
    ("word", "layout"),
    [
        ("mono", StereoLayout.MONO),
        ("left_right", StereoLayout.SIDE_BY_SIDE),
        ("right_left", StereoLayout.SIDE_BY_SIDE),
        ("top_bottom", StereoLayout.TOP_BOTTOM),
        ("bottom_top", StereoLayout.TOP_BOTTOM),
        (None, None),
    ],
)
def test_stereo_modes(tmp_path: Path, word: str | None, layout: StereoLayout | None) -> None:
    assert read_video_entry(write_roomy(tmp_path / "a.mkv", stereo=word)) == (
        layout,
        None,
        word in ("right_left", "bottom_top"),
    )


def test_a_file_without_room_is_refused_unchanged(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mkv", frame_count=2)
    before = path.read_bytes()
    with pytest.raises(CorruptInputError, match=r"a\.mkv: no video track"):
        patch_video_entry(path, sample_aspect_ratio=Fraction(2))
    assert path.read_bytes() == before


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_video_entry(tmp_path / "gone.mkv")


_REAL: list[bytes] = []


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_files_raise_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    if not _REAL:
        _REAL.append(write_roomy(tmp_path_factory.mktemp("real") / "a.mkv").read_bytes())
    damaged = bytearray(_REAL[0])
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, min(len(damaged), 900) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.mkv"
    path.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    size = path.stat().st_size
    read_video_entry(path)
    try:
        patch_video_entry(path, sample_aspect_ratio=Fraction(2), projection=Projection.EQUIRECTANGULAR)
    except VitascopeError as error:
        assert "\n" not in str(error)
    assert path.stat().st_size == size


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_anything_can_be_read(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "a.mkv"
    path.write_bytes(b"\x1a\x45\xdf\xa3" + data)
    assert read_video_entry(path) == (None, None, False)
