from __future__ import annotations

from pathlib import Path

import pytest

from clips import write_clip
from vitascope.config import load_settings
from vitascope.errors import OutputError, UsageError
from vitascope.media.discovery import FoundVideo, find_videos
from vitascope.media.probe import probe
from vitascope.segmentation.plan import PlannedVideo, encoding_for, explain, plan_outputs


def found(*names):
    return [FoundVideo(Path("clips") / name, Path(name)) for name in names]


def paths(planned):
    return [str(path) for plan in planned for _, path in plan.outputs]


def test_one_input_goes_to_the_file_named():
    assert paths(plan_outputs(found("a.mp4"), "out.mp4", ["key"])) == ["out.mp4"]


def test_several_kinds_get_suffixes_and_alpha_a_container_that_carries_it():
    planned = plan_outputs(found("a.mp4"), "out.mp4", ["mask", "key", "alpha"])
    assert paths(planned) == ["out_mask.mp4", "out_key.mp4", "out_alpha.mov"]
    assert paths(plan_outputs(found("a.mp4"), "o.mp4", ["key", "alpha"], codec="vp9"))[1] == "o_alpha.webm"


def test_several_inputs_keep_their_tree():
    planned = plan_outputs(found("a.mp4", "day 2/b.mkv", "c.avi"), "cut", ["key"], into_folder=True)
    assert paths(planned) == ["cut/a.mp4", "cut/day 2/b.mkv", "cut/c.mp4"]
    assert paths(plan_outputs(found("a.mp4", "b.mp4"), "cut", ["alpha"])) == ["cut/a.mov", "cut/b.mov"]


def test_a_slash_or_an_existing_folder_takes_one_input_too(tmp_path):
    assert paths(plan_outputs(found("a.mp4"), "cut/", ["key"])) == ["cut/a.mp4"]
    assert paths(plan_outputs(found("a.mp4"), tmp_path, ["key"])) == [str(tmp_path / "a.mp4")]


def test_inputs_that_would_meet_in_one_file_are_kept_apart():
    assert paths(plan_outputs(found("a.mp4", "a.avi"), "cut", ["key"])) == ["cut/a.mp4", "cut/a_avi.mp4"]


def test_several_inputs_into_one_file_are_refused():
    with pytest.raises(UsageError, match="need a folder"):
        plan_outputs(found("a.mp4", "b.mp4"), "out.mp4", ["key"])


def test_pictures_become_pictures(tmp_path):
    image = tmp_path / "photo.jpg"
    image.write_bytes(b"")
    folder = tmp_path / "shots"
    folder.mkdir()
    videos = [FoundVideo(image, Path("photo.jpg")), FoundVideo(folder, Path("shots"))]
    assert paths(plan_outputs(videos, "cut", ["key"])) == ["cut/photo.png", "cut/shots"]


def test_done_means_every_output_exists(tmp_path):
    one, two = tmp_path / "1.mp4", tmp_path / "2.mp4"
    plan = PlannedVideo(Path("in.mp4"), (("key", one), ("mask", two)))
    one.touch()
    assert not plan.is_done
    two.touch()
    assert plan.is_done


@pytest.fixture
def clip(tmp_path):
    return write_clip(tmp_path / "in_SBS.mp4", width=64, height=32, frame_count=3)


def settings(**values):
    return load_settings(flags={f"output.{key}": value for key, value in values.items()}).settings.output


def test_a_single_output_takes_every_wish_or_says_why_not(clip):
    info = probe(clip)
    encoding = encoding_for(
        Path("o.mp4"), "key", info=info, settings=settings(crf=30, preset="slow"), threads=0
    )
    assert (encoding.options["crf"], encoding.options["preset"]) == ("30", "slow")
    with pytest.raises(UsageError, match="no CRF"):
        encoding_for(Path("o.mov"), "alpha", info=info, settings=settings(kinds=["alpha"], crf=30), threads=0)
    with pytest.raises(OutputError, match="cannot carry alpha"):
        encoding_for(Path("o.mp4"), "alpha", info=info, settings=settings(kinds=["alpha"]), threads=0)


def test_of_several_outputs_each_takes_what_applies(clip):
    info = probe(clip)
    wishes = settings(kinds=["key", "alpha"], crf=30, codec="h264")
    key = encoding_for(Path("o_key.mp4"), "key", info=info, settings=wishes, threads=0)
    alpha = encoding_for(Path("o_alpha.mov"), "alpha", info=info, settings=wishes, threads=0)
    assert (key.codec, key.options["crf"]) == ("h264", "30")
    assert (alpha.codec, alpha.has_alpha) == ("prores", True)


def test_explaining_reads_the_header_and_writes_nothing(clip, tmp_path):
    (video,) = find_videos([clip], recursive=False)
    target = tmp_path / "cut.mp4"
    (plan,) = plan_outputs([video], target, ["key"])
    explained = explain(plan, load_settings().settings)
    text = "\n".join(explained.lines())
    assert "64x32" in text
    assert "side-by-side (file name (SBS))" in text
    assert f"key -> {target}: libx264" in text
    assert not target.exists()
    with pytest.raises(UsageError, match="the output is the input"):
        explain(PlannedVideo(clip, (("key", clip),)), load_settings().settings)
