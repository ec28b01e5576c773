from __future__ import annotations

from pathlib import Path

import pytest

from clips import write_clip
from vitascope.config import load_settings
from vitascope.errors import OutputError, UsageError
from vitascope.media.reading.reader import probe
from vitascope.segmentation.output_encoding import check_kinds, encoding_for
from vitascope.segmentation.segmenter import Segmenter


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("encoding") / "in.mp4", width=64, height=32, frame_count=3)


def settings(**values):
    return load_settings(flags={f"output.{key}": value for key, value in values.items()}).settings.output


def choose(clip, name, kind, *, alone, **wishes):
    return encoding_for(
        Path(name), kind, info=probe(clip), settings=settings(**wishes), threads=0, alone=alone
    )


def test_a_single_output_takes_every_wish_or_says_why_not(clip):
    encoding = choose(clip, "o.mp4", "key", alone=True, crf=30, preset="slow")
    assert (encoding.options["crf"], encoding.options["preset"]) == ("30", "slow")
    with pytest.raises(UsageError, match="no CRF"):
        choose(clip, "o.mov", "alpha", alone=True, crf=30)
    with pytest.raises(OutputError, match="cannot carry alpha"):
        choose(clip, "o.mp4", "alpha", alone=True)


def test_of_several_outputs_each_takes_what_applies(clip):
    key = choose(clip, "o_key.mp4", "key", alone=False, crf=30, codec="h264")
    alpha = choose(clip, "o_alpha.mov", "alpha", alone=False, crf=30, codec="h264")
    assert (key.codec, key.options["crf"]) == ("h264", "30")
    assert (alpha.codec, alpha.has_alpha) == ("prores", True)


def test_the_outputs_of_a_run_decide_not_the_kinds_of_the_settings(clip):
    assert choose(clip, "o.mov", "alpha", alone=False, kinds=["key"], crf=30).codec == "prores"
    with pytest.raises(UsageError, match="no CRF"):
        choose(clip, "o.mov", "alpha", alone=True, kinds=["key", "mask"], crf=30)


def test_two_outputs_written_directly_are_not_taken_for_one(clip, tmp_path):
    wishes = {"output.crf": 30}
    with Segmenter(profile="fast", settings=wishes) as segmenter:
        report = segmenter.write(clip, [("key", tmp_path / "k.mp4"), ("alpha", tmp_path / "a.mov")])
    assert [output.codec for output in report.outputs] == ["h264", "prores"]


@pytest.mark.parametrize(
    ("kinds", "says"), [([], "no output"), (["hologram"], "'hologram'"), (["replace"], "background")]
)
def test_kinds_that_cannot_be_made(clip, tmp_path, kinds, says):
    with pytest.raises(UsageError, match=says):
        check_kinds(kinds, settings())
    with Segmenter(profile="fast") as segmenter, pytest.raises(UsageError, match=says):
        segmenter.write(clip, [(kind, tmp_path / f"{kind}.mp4") for kind in kinds])
    assert list(tmp_path.iterdir()) == []


def test_pictures_make_video_that_players_take(tmp_path):
    for n in range(2):
        write_clip(
            tmp_path / f"{n}.png", width=32, height=32, frame_count=1, codec="png", pixel_format="rgb24"
        )
    info = probe(tmp_path)
    assert info.format.name == "yuv444p"
    chosen = {
        (kind, name): encoding_for(
            Path(name), kind, info=info, settings=load_settings().settings.output, threads=0, alone=True
        ).pixel_format
        for kind, name in (("key", "o.mp4"), ("alpha", "o.mov"), ("key", "pictures"))
    }
    assert chosen == {
        ("key", "o.mp4"): "yuv420p",
        ("alpha", "o.mov"): "yuva444p10le",
        ("key", "pictures"): "rgb24",
    }
