"""Tests of jobs that are refused, fail, or meet damaged videos: what is left behind, and what is reported."""

from __future__ import annotations

import pickle
from copy import deepcopy

import av
import pytest
from segmented_films import astronaut, luma

from clips import copied, write_clip
from scripted import BrightnessNetwork, segment_with
from vitascope.config import load_settings
from vitascope.errors import ConfigError, CorruptInputError, OutputError, PipelineError, UsageError
from vitascope.media.writing.writer import VideoWriter
from vitascope.segmentation.batch import segment, segment_all
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.segmenter import Segmenter


def test_the_output_must_not_be_the_input(clip):
    with Segmenter(profile="fast") as segmenter, pytest.raises(UsageError, match="the output is the input"):
        segmenter.write(clip, [("key", clip)])


def test_a_closed_segmenter_says_so(clip, tmp_path, scripted):
    with Segmenter() as segmenter:
        pass
    for use in (
        lambda: segmenter.stream(clip),
        lambda: segmenter.write(clip, [("key", tmp_path / "o.mp4")]),
        lambda: segmenter.live(clip, ["window"]),
        lambda: next(segmenter.write_all([], on_queue=print, on_start=print)),
    ):
        with pytest.raises(UsageError, match=r"^the Segmenter is closed; open another"):
            use()


def test_what_belongs_to_a_process_says_so_when_it_is_pickled(scripted):
    with Segmenter() as segmenter:
        for copied_by in (pickle.dumps, deepcopy):
            with pytest.raises(
                TypeError, match=r"^Segmenter cannot be copied or pickled: .*; open one in each$"
            ):
                copied_by(segmenter)


def test_a_profile_beside_loaded_settings_is_not_ignored():
    with pytest.raises(UsageError, match=r"^loaded replaces profile and settings"):
        Segmenter(profile="fast", loaded=load_settings())


def test_what_is_no_list_of_outputs_or_sinks_is_named(clip, tmp_path, scripted):
    with Segmenter() as segmenter:
        for outputs in ("o.mp4", [tmp_path / "o.mp4"]):
            with pytest.raises(
                UsageError, match=r"^outputs is .*, expected pairs such as \[\('key', 'out.mp4'\)\]"
            ):
                segmenter.write(clip, outputs)
        with pytest.raises(UsageError, match=r"^sinks is 'null', expected a list such as \['null'\]"):
            segmenter.live(clip, "null")
        with pytest.raises(
            UsageError, match=r"^sinks has 3, expected a word such as 'null', or an object with name,"
        ):
            segmenter.live(clip, [3])
    with pytest.raises(ConfigError, match=r"^settings is a list, expected a mapping"):
        segment(clip, tmp_path / "o.mp4", settings=["edges.feather_px=1"], output="mask")


class Exploding(BrightnessNetwork):
    def infer(self, images, state):
        if len(self.calls) == 5:
            raise ValueError("the network broke")
        return super().infer(images, state)


def test_a_failing_stage_leaves_nothing_behind(clip, tmp_path, monkeypatch):
    segment_with(monkeypatch, Exploding())
    settings = {"model.batch_size": 1}
    with Segmenter(settings=settings) as segmenter, pytest.raises(PipelineError, match="infer") as caught:
        segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert "Frame(128x128" in "".join(caught.value.exceptions[0].__notes__)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def truncated(clip, tmp_path):
    """Write the clip with its index first, truncated within its pictures."""
    whole = write_clip(
        tmp_path / "whole.mp4", width=128, height=128, frame_count=48, paint=astronaut,
        codec_options={"g": "6"},
    )  # fmt: skip
    fast = copied(whole, tmp_path / "fast.mp4", kept=0.6, movflags="faststart")
    whole.unlink()
    return fast


@pytest.mark.parametrize("keep", [False, True])
def test_of_a_truncated_video_the_readable_part_is_kept_on_request(truncated, tmp_path, scripted, keep):
    out = tmp_path / "out" / "o.mp4"
    settings = {"output.keep_partial": keep}
    with Segmenter(settings=settings) as segmenter, pytest.raises(CorruptInputError, match=r"fast\.mp4"):
        segmenter.write(truncated, [("key", out)])
    assert not out.exists()
    part = out.with_name("o.mp4.part")
    assert part.exists() is keep
    if keep:
        assert 5 < len(luma(part)) < 48


def test_films_of_unlike_streams_are_joined_by_their_list(tmp_path, scripted):
    write_clip(tmp_path / "silent.mp4", frame_count=24)
    write_clip(tmp_path / "loud.mp4", frame_count=24, audio="aac")
    for first, second in (("silent", "loud"), ("loud", "silent")):
        joined = tmp_path / f"{first}.ffconcat"
        joined.write_text(f"ffconcat version 1.0\nfile {first}.mp4\nfile {second}.mp4\n")
        out = tmp_path / f"{first}-out.mp4"
        with Segmenter() as segmenter:
            report = segmenter.write(joined, [("key", out)])
        assert (report.frame_count, len(luma(out))) == (48, 48)
        is_noted = any("begin later in the file were left out" in note for note in report.outputs[0].notes)
        assert is_noted == (first == "silent")


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".ts"])
def test_an_input_that_is_removed_on_the_way_is_finished(tmp_path, scripted, suffix):
    film = write_clip(tmp_path / f"in{suffix}", frame_count=24, audio="aac")
    with Segmenter() as segmenter:
        report = segmenter.write(film, [("key", tmp_path / "o.mp4")], on_start=lambda _: film.unlink())
    assert len(luma(tmp_path / "o.mp4")) == 24
    assert any("was removed while it was being read" in note for note in report.notes)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_contact_sheet_that_cannot_be_written_costs_no_film(tmp_path, scripted, processes):
    film = write_clip(tmp_path / "in.mp4", frame_count=24)
    sheet, out = tmp_path / "sheet.png", tmp_path / "o.mp4"
    settings = {"model.name": "selfie"}
    if processes > 1:
        settings |= {"processing.use_multiprocessing": True, "processing.num_threads": processes}
    with Segmenter(settings=settings) as segmenter, pytest.raises(OutputError) as caught:
        segmenter.write(film, [("key", out)], preview=sheet, on_start=lambda _: sheet.mkdir())
    assert str(caught.value).startswith(f"{sheet}: cannot create it")
    assert str(caught.value).endswith(f"these files are finished: {out}")
    assert len(luma(out)) == 24


def test_a_repeated_time_and_a_clock_set_anew_are_noted(tmp_path, scripted):
    part = write_clip(tmp_path / "part.ts", frame_count=48, codec_options={"bf": "0"})
    repeated = tmp_path / "repeated.mkv"
    with av.open(str(part)) as source, av.open(str(repeated), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for n, packet in enumerate(source.demux(video=0)):
            if packet.dts is not None:
                packet.pts = packet.dts = packet.pts - (3750 if n == 20 else 0)
                packet.stream = stream
                target.mux(packet)
    joined = tmp_path / "joined.ts"
    joined.write_bytes(part.read_bytes() * 3)
    with Segmenter() as segmenter:
        first = segmenter.write(repeated, [("key", tmp_path / "a.mp4")])
        second = segmenter.write(joined, [("key", tmp_path / "b.mp4")])
    assert any(note.startswith("1 frames had the same time as the previous one") for note in first.notes)
    assert any("reset in the middle (2 times)" in note for note in second.notes)
    assert len(luma(tmp_path / "a.mp4")) == 48


def test_one_bad_file_does_not_stop_the_others(clip, tmp_path, scripted):
    bad = tmp_path / "bad.mp4"
    bad.write_text("no video")
    plans = [
        PlannedVideo(bad, (("key", tmp_path / "bad_out.mp4"),)),
        PlannedVideo(clip, (("key", tmp_path / "good_out.mp4"),)),
    ]
    with Segmenter() as segmenter:
        first, second = segment_all(segmenter, plans)
        assert first.error is not None
        assert "bad.mp4" in str(first.error)
        assert second.report is not None
        again = list(segment_all(segmenter, plans[1:], resume=True))
    assert again[0].report is again[0].error is None


def test_a_failure_of_one_output_leaves_no_other(clip, tmp_path, scripted, monkeypatch):
    complete = VideoWriter.complete

    def fail_for_masks(self):
        if "mask" in self._path.name:
            raise OutputError(f"{self._path}: disk full")
        complete(self)

    monkeypatch.setattr(VideoWriter, "complete", fail_for_masks)
    outputs = [("key", tmp_path / "o_key.mp4"), ("mask", tmp_path / "o_mask.mp4")]
    with Segmenter() as segmenter, pytest.raises(OutputError, match="disk full"):
        segmenter.write(clip, outputs)
    assert list(tmp_path.iterdir()) == []
