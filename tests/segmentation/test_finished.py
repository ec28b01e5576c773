"""Tests of outputs that ``--resume`` skips."""

from __future__ import annotations

import os
import shutil

import cv2
import numpy as np
import pytest

from clips import write_clip
from vitascope.config import Settings, VideoSettings, load_settings
from vitascope.media.reading.images import find_images
from vitascope.media.reading.reader import probe
from vitascope.segmentation import segmenter
from vitascope.segmentation.batch import segment, segment_all
from vitascope.segmentation.finished import (
    is_finished,
    other_settings,
    remember_finished,
    settings_of_outputs,
)
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.segmenter import Segmenter


def remember(plan, settings, *, resumed):
    """Remember a run during which no file changes."""
    remember_finished(plan, settings, made_with=settings_of_outputs(plan, settings, resumed=resumed))


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))


def stretch(start=0.0, end=None):
    return Settings(video=VideoSettings(start_seconds=start, end_seconds=end))


@pytest.fixture
def planned(tmp_path):
    """Write a video of two seconds, and an output of the stretch from 0.5 to 1 second."""
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    cut = write_clip(tmp_path / "out.mp4", frame_count=12)
    plan = PlannedVideo(clip, (("key", cut),))
    remember(plan, stretch(0.5, 1.0), resumed=True)
    return plan


@pytest.mark.parametrize(
    ("start", "end"), [(0.5, 1.04), (0.5, 1.4), (0.5, None), (0.0, 0.5), (0.6, 1.1), (1.0, 1.5)]
)
def test_another_stretch_is_not_done_however_little_longer_or_as_long(planned, start, end):
    assert is_finished(planned, stretch(0.5, 1.0))
    assert not is_finished(planned, stretch(start, end))


def test_an_end_behind_the_videos_is_the_same_as_none(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    plan = PlannedVideo(clip, (("key", write_clip(tmp_path / "out.mp4", frame_count=47)),))
    remember(plan, stretch(0.0, 2.5), resumed=True)
    assert is_finished(plan, stretch())  # a damaged frame is missing, and will be next time
    assert is_finished(plan, stretch(0.0, 3.0))
    assert not is_finished(plan, stretch(0.0, 1.9))


@pytest.mark.parametrize(
    ("end", "finished"), [(0.5, True), (0.52, True), (0.6, False), (0.4, False), (0.9, False), (None, False)]
)
def test_of_an_unknown_output_the_length_is_compared_to_the_frame(planned, end, finished):
    shutil.rmtree(planned.video.parent / "home")
    assert is_finished(planned, stretch(0.0, end)) == finished


@pytest.mark.parametrize(
    ("frames", "finished"), [(48, True), (50, True), (38, True), (34, False), (12, False)]
)
def test_of_a_whole_video_that_nobody_remembers_headers_may_be_a_little_off(tmp_path, frames, finished):
    """Check headers such as those of AVI and FLV, in a folder that a run without ``--resume`` began."""
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    cut = write_clip(tmp_path / "out.mp4", frame_count=frames)
    assert is_finished(PlannedVideo(clip, (("key", cut),)), stretch()) == finished


def test_what_was_changed_since_is_not_what_is_remembered(planned):
    _, cut = planned.outputs[0]
    write_clip(cut, frame_count=48)
    assert not is_finished(planned, stretch(0.5, 1.0))
    assert is_finished(planned, stretch())  # by its length
    remember(planned, Settings(), resumed=True)
    write_clip(planned.video, frame_count=60)
    assert not is_finished(planned, stretch())  # the video is longer now


def test_a_folder_of_pictures_is_remembered_too(tmp_path):
    clip, folder = write_clip(tmp_path / "in.mp4", frame_count=24), tmp_path / "shots"
    folder.mkdir()
    for number in range(12):
        cv2.imwrite(str(folder / f"{number:06}.png"), np.zeros((8, 8, 3), np.uint8))
    plan = PlannedVideo(clip, (("key", folder),))
    remember(plan, stretch(0.5, 1.0), resumed=True)
    assert is_finished(plan, stretch(0.5, 1.0))
    assert not is_finished(plan, stretch(0.0, 0.5))


def test_a_run_of_a_whole_video_leaves_nothing_behind(planned):
    shutil.rmtree(planned.video.parent / "home")
    remember(planned, Settings(), resumed=False)
    assert not (planned.video.parent / "home").exists()


def test_resuming_with_a_slightly_longer_stretch_makes_it(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    plan = PlannedVideo(clip, (("key", tmp_path / "out.mp4"),))
    statuses, frames = [], []
    for end in (1.0, 1.0, 1.25):
        loaded = load_settings(profile="fast", flags={"video.end_seconds": end})
        with Segmenter(loaded=loaded) as segmenter:
            statuses += [outcome.status for outcome in segment_all(segmenter, [plan], resume=True)]
        frames.append(probe(tmp_path / "out.mp4").frame_count_estimate)
    assert statuses == ["done", "skipped", "done"]
    assert frames == [24, 24, 30]


def test_a_try_with_an_early_end_is_not_done_later(tmp_path):
    """Check that pictures are counted: half of them are not the whole video."""
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    plan = PlannedVideo(clip, (("key", tmp_path / "shots"),))
    (tmp_path / "shots").mkdir()
    for made, finished, of_the_first_second in ((10, False, False), (24, False, True), (48, True, False)):
        for number in range(made):
            cv2.imwrite(str(tmp_path / "shots" / f"{number:06}.png"), np.zeros((8, 8, 3), np.uint8))
        assert is_finished(plan, Settings()) == finished
        assert is_finished(plan, Settings(video=VideoSettings(end_seconds=1.0))) == of_the_first_second


def made_with(**values):
    return load_settings(profile="balanced", flags={"video.end_seconds": 1.0, **values}).settings


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({}, {"people.keep": "2"}, "people.keep none, now 2"),
        ({"people.keep": "1"}, {"people.keep": "2"}, "people.keep 1, now 2"),
        ({"edges.feather_px": 2.0}, {}, "edges.feather_px 2.0, now 0.0"),
        ({"output.background": "a.jpg"}, {"output.background": "b.jpg"}, "another output.background"),
        ({"model.name": "rvm"}, {"model.name": "selfie"}, "another model.name"),
    ],
)
def test_what_was_made_with_other_settings_says_which(tmp_path, then, now, told):
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    plan = PlannedVideo(clip, (("key", write_clip(tmp_path / "out.mp4", frame_count=24)),))
    remember(plan, made_with(**then), resumed=True)
    assert other_settings(plan, made_with(**then)) is None
    for same in ({"gpu.device": "cpu"}, {"model.batch_size": 3}, {"output.keep_partial": True}):
        assert other_settings(plan, made_with(**then | same)) is None
    assert is_finished(plan, made_with(**now))
    assert other_settings(plan, made_with(**now)) == (
        f"{plan.outputs[0][1]} was made with other settings ({told}); -y without --resume makes it again"
    )
    (remembered,) = (tmp_path / "home/finished").iterdir()
    assert "a.jpg" not in remembered.read_text()


def test_settings_that_name_no_file_with_content_are_not_read(tmp_path, monkeypatch):
    """Check a pipe, which would wait for a writer, and a file that has the name of one of our networks."""
    os.mkfifo(tmp_path / "pipe")
    plan = PlannedVideo(tmp_path / "in.mp4", (("replace", tmp_path / "out.mp4"),))
    piped = settings_of_outputs(
        plan, made_with(**{"output.background": str(tmp_path / "pipe")}), resumed=True
    )
    assert piped["replace"]["output.background"]
    monkeypatch.chdir(tmp_path)
    named = made_with(**{"model.name": "selfie"})
    before = settings_of_outputs(plan, named, resumed=True)
    (tmp_path / "selfie").write_text("mine\n")
    assert settings_of_outputs(plan, named, resumed=True) == before


def test_where_nothing_is_remembered_no_file_is_read(tmp_path):
    plan = PlannedVideo(tmp_path / "in.mp4", (("key", tmp_path / "out.mp4"),))
    assert settings_of_outputs(plan, made_with(**{"video.end_seconds": None}), resumed=False) == {}
    assert settings_of_outputs(plan, made_with(), resumed=False).keys() == {"key"}  # a part of the video


def test_pictures_of_a_background_are_listed_once_for_all_outputs_of_a_video(tmp_path, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=24)
    pictures = tmp_path / "beach"
    pictures.mkdir()
    for number in range(3):
        cv2.imwrite(str(pictures / f"{number}.png"), np.zeros((8, 8, 3), np.uint8))
    kinds = ("replace", "mask", "key")
    plan = PlannedVideo(clip, tuple((kind, shutil.copy(clip, tmp_path / f"{kind}.mp4")) for kind in kinds))
    settings = made_with(**{"output.background": str(pictures)})
    looked = []
    monkeypatch.setattr(
        "vitascope.segmentation.finished.find_images", lambda path: looked.append(path) or find_images(path)
    )
    remember(plan, settings, resumed=True)
    assert looked.count(pictures) == 1
    looked.clear()
    assert other_settings(plan, settings) is None
    assert looked.count(pictures) == 1
    cv2.imwrite(str(pictures / "1.png"), np.full((8, 8, 3), 255, np.uint8))
    os.utime(pictures / "1.png", (9, 9))
    assert "another output.background" in other_settings(plan, settings)


@pytest.mark.parametrize("key", ["people.hints", "output.background", "model.name"])
def test_a_file_of_the_settings_that_was_edited_in_place_is_another(tmp_path, key):
    """Also check files older than the output: copied back, or edited during the run."""
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    named = tmp_path / "named.onnx"
    named.write_text("version: 1\n")
    settings = made_with(**{key: str(named)})
    plan = PlannedVideo(clip, (("key", tmp_path / "out.mp4"),))
    before = settings_of_outputs(plan, settings, resumed=True)
    named.write_text("version: 1 \n")
    write_clip(tmp_path / "out.mp4", frame_count=24)
    remember_finished(plan, settings, made_with=before)
    assert is_finished(plan, settings)
    note = other_settings(plan, settings)
    assert note is not None
    assert f"(another {key})" in note
    named.write_text("version: 1\n")
    os.utime(named, (1, 1))
    assert other_settings(plan, settings) is None


@pytest.mark.parametrize("named", ["room", "room/*.png", "room/%03d.png"])
def test_a_background_of_pictures_of_which_one_was_edited_is_another(tmp_path, named):
    (tmp_path / "room").mkdir()
    pictures = [tmp_path / f"room/{number:03}.png" for number in range(3)]
    for picture in pictures:
        cv2.imwrite(str(picture), np.zeros((8, 8, 3), np.uint8))
    settings = made_with(**{"output.background": str(tmp_path / named)})
    plan = PlannedVideo(tmp_path / "in.mp4", (("replace", tmp_path / "out.mp4"),))
    before = settings_of_outputs(plan, settings, resumed=True)
    assert settings_of_outputs(plan, settings, resumed=True) == before
    cv2.imwrite(str(pictures[1]), np.full((8, 8, 3), 90, np.uint8))
    edited = settings_of_outputs(plan, settings, resumed=True)
    assert edited != before
    pictures[2].unlink()
    assert settings_of_outputs(plan, settings, resumed=True) not in (before, edited)


def test_a_file_of_another_kind_and_many_changes_are_told_in_a_line(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=48)
    made = write_clip(tmp_path / "out.mp4", frame_count=24)
    remember(PlannedVideo(clip, (("key", made),)), made_with(), resumed=True)
    note = other_settings(PlannedVideo(clip, (("mask", made),)), made_with())
    assert note is not None
    assert "(type key, now mask)" in note
    many = {"edges.feather_px": 2.0, "edges.grow_px": 1.0, "output.crf": 30, "output.preset": "fast"}
    note = other_settings(PlannedVideo(clip, (("key", made),)), made_with(**many))
    assert note is not None
    assert note.count("now") == 3
    assert "; and 1 more)" in note
    made.unlink()
    write_clip(made, frame_count=24)  # made by something else: nothing is known
    assert other_settings(PlannedVideo(clip, (("mask", made),)), made_with()) is None


def test_of_a_part_cut_in_python_the_settings_are_remembered_that_the_device_got(tmp_path, monkeypatch):
    """Check ``fast`` on a GPU, whose network is not the profile's; ``--resume`` took it for changed."""
    clip = write_clip(tmp_path / "in.mp4", frame_count=12)
    monkeypatch.setattr(
        segmenter, "suited_to_device", lambda loaded, _: loaded.with_values({"edges.threshold": None})
    )
    values = {"video.end_seconds": 0.25, "gpu.device": "cpu"}
    segment(clip, tmp_path / "out.mp4", profile="fast", settings=values)
    plan = PlannedVideo(clip, (("key", tmp_path / "out.mp4"),))
    with Segmenter(profile="fast", settings=values) as again:
        (outcome,) = segment_all(again, [plan], resume=True)
    assert (outcome.status, outcome.note) == ("skipped", None)
