"""Tests of describing a folder to HereSphere and DeoVR."""

from __future__ import annotations

import json

import pytest

from clips import write_clip
from vitascope.errors import InputError, OutputError, UsageError
from vitascope.segmentation.vr.library import read_library, write_library


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "My films"
    (folder / "more").mkdir(parents=True)
    write_clip(folder / "beach & sea_FISHEYE190_alpha.mp4", width=64, height=32, frame_count=24)
    write_clip(folder / "wedding_LR_180_SBS_passthrough.mp4", width=64, height=32, frame_count=2)
    write_clip(folder / "more" / "dive_MONO_360.mkv", width=64, height=32, frame_count=2)
    (folder / "beach & sea_FISHEYE190_alpha.en.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nHello\n")
    (folder / "cover.jpg").write_bytes(b"no picture")
    return folder


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_each_video_has_its_two_files_and_the_indexes_name_them(folder):
    library = read_library(folder, recursive=True, key_color=(43, 230, 64))
    assert library.failures == ()
    write_library(library)
    beach = folder / "beach & sea_FISHEYE190_alpha.mp4"
    here = read(beach.with_name(f"{beach.name}.heresphere.json"))
    assert (here["projection"], here["stereo"], here["fov"]) == ("fisheye", "sbs", 190.0)
    assert here["alphaPackedSettings"] == {"defaultSettings": True}
    (media,) = here["media"]
    (source,) = media["sources"]
    assert source == {
        "resolution": 32, "width": 64, "height": 32, "size": beach.stat().st_size,
        "url": "beach%20%26%20sea_FISHEYE190_alpha.mp4",
    }  # fmt: skip
    assert here["duration"] == 1000
    assert here["subtitles"] == [
        {"name": "en", "language": "en", "url": "beach%20%26%20sea_FISHEYE190_alpha.en.srt"}
    ]
    deo = read(folder / "wedding_LR_180_SBS_passthrough.mp4.deovr.json")
    assert (deo["screenType"], deo["stereoMode"], deo["chromakey"]["hasAlpha"]) == ("dome", "sbs", "false")
    dive = read(folder / "more" / "dive_MONO_360.mkv.deovr.json")
    assert (dive["screenType"], dive["stereoMode"]) == ("sphere", "off")
    assert dive["encodings"][0]["videoSources"][0]["url"] == "dive_MONO_360.mkv"  # relative to the JSON file
    assert "chromakey" not in dive
    (index,) = read(folder / "heresphere.json")["library"]
    assert index["name"] == "My films"
    assert index["list"] == [
        "beach%20%26%20sea_FISHEYE190_alpha.mp4.heresphere.json",
        "more/dive_MONO_360.mkv.heresphere.json",
        "wedding_LR_180_SBS_passthrough.mp4.heresphere.json",
    ]
    (scenes,) = read(folder / "deovr.json")["scenes"]
    assert scenes["list"][1] == {
        "title": "dive_MONO_360", "videoLength": 0, "thumbnailUrl": "",
        "video_url": "more/dive_MONO_360.mkv.deovr.json",
    }  # fmt: skip
    # A second run does not take the written files for videos.
    assert len(read_library(folder, recursive=True).videos) == 3


def test_key_colour_that_nobody_names_is_told(folder):
    """Check the note: without the key colour, DeoVR shows the colour itself."""
    for color, count in ((None, 1), ((43, 230, 64), 0)):
        library = read_library(folder, recursive=True, key_color=color)
        told = [
            path.name for path, found in library.videos if any("--key-color" in one for one in found.doubts)
        ]
        assert told == ["wedding_LR_180_SBS_passthrough.mp4"] * count


def test_a_base_url(folder):
    library = read_library(folder, recursive=True, base_url="http://nas:8080/vr/")
    dive = library.files[folder / "more" / "dive_MONO_360.mkv.heresphere.json"]
    assert dive["media"][0]["sources"][0]["url"] == "http://nas:8080/vr/more/dive_MONO_360.mkv"
    (index,) = library.files[folder / "heresphere.json"]["library"]
    assert index["list"][1] == "http://nas:8080/vr/more/dive_MONO_360.mkv.heresphere.json"
    for wrong in ("nas/vr", "file:///etc", "http://"):
        with pytest.raises(UsageError, match="expected the address of a server"):
            read_library(folder, recursive=False, base_url=wrong)


def test_without_recursive_folders_below_are_left_out(folder):
    library = read_library(folder, recursive=False)
    assert len(library.videos) == 2
    assert not any("more" in path.parts for path in library.files)


def test_what_cannot_be_read_is_left_out_and_told(folder):
    (folder / "broken_LR_180.mp4").write_text("no video")
    library = read_library(folder, recursive=True)
    ((path, error),) = library.failures
    assert path.name == "broken_LR_180.mp4"
    assert "broken_LR_180.mp4" in str(error)
    assert len(library.videos) == 3
    assert not any("broken" in file.name for file in library.files)


def test_no_folder_and_no_videos(tmp_path):
    with pytest.raises(InputError, match="a library is a folder"):
        read_library(tmp_path / "gone", recursive=False)
    with pytest.raises(InputError, match="no videos found"):
        read_library(tmp_path, recursive=False)


def test_nothing_is_written_where_one_file_cannot_be(folder):
    library = read_library(folder, recursive=True)
    (folder / "deovr.json").mkdir()
    before = sorted(folder.rglob("*"))
    with pytest.raises(OutputError, match=r"deovr\.json: cannot create it: it is a folder"):
        write_library(library)
    assert sorted(folder.rglob("*")) == before


def test_eyes_that_its_json_would_exchange_are_told(folder):
    """Check the note: the JSON only says that two eyes are side by side, and players take the left one first."""
    write_clip(folder / "party_RL_180.mp4", width=64, height=32, frame_count=2)
    library = read_library(folder, recursive=True, key_color=(43, 230, 64))
    told = [
        path.name for path, found in library.videos if any("right eye" in doubt for doubt in found.doubts)
    ]
    assert told == ["party_RL_180.mp4"]
