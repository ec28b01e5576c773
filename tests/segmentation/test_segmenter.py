"""Tests of the application from file to file, with the bundled network and real codecs."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from segmented_films import astronaut, packets

import vitascope
from clips import write_clip
from forks import said_in_a_fork
from scripted import BrightnessNetwork, segment_with
from vitascope.errors import InputError, UsageError
from vitascope.media.metadata.spherical import set_rotation
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.segmenter import Segmenter
from waiting import eventually


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        ("mask", ".mp4"),
        ("mask", ".mkv"),
        ("key", ".mp4"),
        ("key", ".webm"),
        ("cutout", ".mov"),
        ("blur", ".mp4"),
        ("overlay", ".mkv"),
        ("alpha", ".mov"),
        ("alpha", ".webm"),
        ("alpha", ".mkv"),
    ],
)
def test_every_kind_keeps_frames_times_sound_and_tags(clip, tmp_path, kind, suffix):
    out = tmp_path / f"out{suffix}"
    report = vitascope.segment(clip, out, profile="fast", output=kind)
    assert report.frame_count == 12
    assert report.outputs[0].path == out
    with av.open(str(clip)) as source, av.open(str(out)) as result:
        a, b = source.streams.video[0], result.streams.video[0]
        assert (b.width, b.height) == (128, 128)
        tick = Fraction(1, 1000) if suffix in (".mkv", ".webm") else Fraction(0)
        theirs = [frame.pts * frame.time_base for frame in source.decode(a)]
        ours = [frame.pts * frame.time_base for frame in result.decode(b)]
        assert len(ours) == 12
        assert all(abs(x - y) <= tick for x, y in zip(theirs, ours, strict=True))
        assert len(result.streams.audio) == 1
        assert result.metadata.get("title", result.metadata.get("TITLE")) == "wedding"
    if suffix != ".webm":  # WebM has no AAC
        assert [p for _, p in packets(out, "audio")] == [p for _, p in packets(clip, "audio")]


def test_the_person_stays_and_the_background_turns_green(clip, tmp_path):
    out = tmp_path / "out.mp4"
    vitascope.segment(clip, out, profile="fast")
    with av.open(str(out)) as container:
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    key = np.array([120, 255, 155])
    assert np.abs(frame[4:12, 4:12].mean(axis=(0, 1)) - key).max() < 12  # a corner
    source = astronaut(0).astype(int)
    assert (
        np.abs(frame[52:58, 76:84].mean(axis=(0, 1)) - source[52:58, 76:84].mean(axis=(0, 1))).max() < 12
    )  # a cheek


def test_a_mask_is_black_and_white_in_a_player(clip, tmp_path):
    vitascope.segment(clip, tmp_path / "mask.mp4", profile="fast", output="mask")
    with av.open(str(tmp_path / "mask.mp4")) as container:
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert frame[6, 6].max() <= 4
    assert frame[55, 80].min() >= 250


def test_a_folder_of_videos_is_not_made_a_film_of_its_pictures(clip, tmp_path):
    folder = tmp_path / "wedding"
    folder.mkdir()
    (folder / "first.mp4").write_bytes(clip.read_bytes())
    cv2.imwrite(str(folder / "cover.jpg"), np.zeros((64, 96, 3), np.uint8))
    with pytest.raises(
        InputError, match=r"wedding: it is a folder of several inputs \(first\.mp4\); name one of them"
    ):
        vitascope.segment(folder, tmp_path / "o.mp4", profile="fast")
    (folder / "first.mp4").unlink()
    assert vitascope.segment(folder, tmp_path / "o.mp4", profile="fast").frame_count == 1
    (folder / "cover.jpg").unlink()
    with pytest.raises(InputError, match="wedding: the folder contains no images"):
        vitascope.segment(folder, tmp_path / "o.mp4", profile="fast")


def test_several_kinds_come_out_of_one_pass(clip, tmp_path):
    report = vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", output=["mask", "key", "alpha"])
    assert [output.path.name for output in report.outputs] == ["o_mask.mp4", "o_key.mp4", "o_alpha.mov"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o_alpha.mov", "o_key.mp4", "o_mask.mp4"]


def test_alpha_in_a_folder_of_pictures(clip, tmp_path):
    vitascope.segment(clip, tmp_path / "shots", profile="fast", output="alpha")
    pictures = sorted((tmp_path / "shots").iterdir())
    assert len(pictures) == 12
    with av.open(str(pictures[0])) as container:
        rgba = next(container.decode(video=0)).to_ndarray(format="rgba")
    assert rgba[6, 6, 3] == 0
    assert rgba[55, 80, 3] == 255


def test_several_kinds_of_output_are_a_list_or_a_text(clip, tmp_path):
    for output in (["mask", "key"], "mask,key"):
        report = vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", output=output)
        assert [file.path.name for file in report.outputs] == ["o_mask.mp4", "o_key.mp4"]


def test_stream_yields_every_frame_with_its_alpha(clip):
    with Segmenter(profile="fast") as segmenter:
        steps = list(segmenter.stream(clip))
    assert [step.frame.index for step in steps] == list(range(12))
    frame, alpha = steps[0]
    assert alpha.shape == (frame.height, frame.width)
    assert alpha.dtype == np.uint8
    assert alpha[55, 80] > 250
    assert alpha[6, 6] < 5


def test_leaving_the_stream_early_stops_its_threads(clip):
    before = threading.active_count()
    with Segmenter(profile="fast") as segmenter:
        for _ in segmenter.stream(clip):
            break
    eventually(lambda: threading.active_count() <= before)


def test_closing_a_segmenter_ends_its_streams_which_are_no_whole_videos(clip):
    before = threading.active_count()
    with Segmenter(profile="fast") as segmenter:
        steps = segmenter.stream(clip)
        next(steps)
    eventually(lambda: threading.active_count() <= before)
    with pytest.raises(UsageError, match="the Segmenter is closed"):
        next(steps)


def test_a_segmenter_is_closed_while_another_thread_waits_for_a_frame(clip, monkeypatch):
    entered, goes_on = threading.Event(), threading.Event()

    class Waiting(BrightnessNetwork):
        def infer(self, images, state):
            entered.set()
            goes_on.wait(20)
            return super().infer(images, state)

    segment_with(monkeypatch, Waiting())
    segmenter = Segmenter()

    def is_closed():
        try:
            segmenter.stream(clip).close()
        except UsageError:
            return True
        return False

    with ThreadPoolExecutor(2) as pool:
        frames = pool.submit(list, segmenter.stream(clip))
        assert entered.wait(20)
        closing = pool.submit(segmenter.close)
        eventually(is_closed)
        goes_on.set()
        assert closing.result(20) is None
        with pytest.raises(UsageError, match="the Segmenter is closed"):
            frames.result(20)


def test_a_fork_is_told_to_open_a_segmenter_of_its_own(clip, tmp_path):
    refused = "UsageError: the Segmenter was opened before this process was forked"
    with Segmenter(profile="fast") as segmenter:
        steps = segmenter.stream(clip)
        next(steps)
        for use in (
            lambda: next(steps),
            lambda: segmenter.stream(clip),
            lambda: segmenter.write(clip, [("key", tmp_path / "o.mp4")]),
            lambda: segmenter.live(clip, ["window"]),
        ):
            assert said_in_a_fork(use).startswith(refused)
        assert said_in_a_fork(segmenter.close) == "None"
        assert len(list(steps)) == 11


def test_a_stream_that_was_not_begun_before_closing_is_no_empty_video(clip):
    with Segmenter(profile="fast") as segmenter:
        steps = segmenter.stream(clip)
    with pytest.raises(UsageError, match="the Segmenter is closed"):
        next(steps)


def test_two_streams_of_one_segmenter_do_not_share_state(clip, scripted):
    with Segmenter() as segmenter:
        for _, _ in zip(segmenter.stream(clip), segmenter.stream(clip), strict=True):
            pass
    assert [state.seen for state in scripted.states] == [15, 15]  # 12 frames and 3 of warm-up


def test_a_contact_sheet_shows_source_matte_and_result(clip, tmp_path):
    vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", preview=tmp_path / "sheet.png")
    with av.open(str(tmp_path / "sheet.png")) as container:
        sheet = next(container.decode(video=0))
    assert sheet.width == 3 * 326
    assert sheet.height == 4 * 3 * 326


def test_stills_of_a_contact_sheet_have_their_times(tmp_path, scripted):
    dark = write_clip(tmp_path / "dark.mp4", width=64, height=64, frame_count=30,
                      paint=lambda _: np.zeros((64, 64, 3), np.uint8))  # fmt: skip
    with Segmenter() as segmenter:
        segmenter.write(dark, [("mask", tmp_path / "o.mp4")], preview=tmp_path / "sheet.png")
    with av.open(str(tmp_path / "sheet.png")) as container:
        sheet = next(container.decode(video=0)).to_ndarray(format="gray")
    stills = [sheet[row : row + 320, column : column + 320] for row in (0, 3 * 326) for column in (0, 326)]
    corners = [still[290:318, 2:60] for still in stills]
    assert all(corner.max() > 200 for corner in corners)  # white digits on black pictures
    assert len({corner.tobytes() for corner in corners}) == len(corners)  # with different times


def test_a_report_is_plain_json(clip, tmp_path):
    report = vitascope.segment(clip, tmp_path / "o.mp4", profile="fast")
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["model"] == "selfie"
    assert plain["frame_count"] == 12
    assert plain["outputs"][0]["path"].endswith("o.mp4")
    assert [stage["name"] for stage in plain["pipeline"]["stages"]] == [
        "decode", "preprocess", "infer", "postprocess", "encode",
    ]  # fmt: skip


def test_rotation_comes_out_as_it_went_in(tmp_path, scripted):
    path = write_clip(tmp_path / "phone.mp4", width=96, height=64, frame_count=4)
    set_rotation(path, 90)
    with Segmenter() as segmenter:
        report = segmenter.write(path, [("key", tmp_path / "o.mp4")])
    assert report.network_size == (48, 32)
    with open_video(tmp_path / "o.mp4") as made:
        assert made.info.rotation_degrees == 90


def test_the_background_of_a_phone_video_is_upright(tmp_path, scripted):
    path = write_clip(tmp_path / "phone.mp4", width=96, height=64, frame_count=2,
                      paint=lambda _: np.zeros((64, 96, 3), np.uint8))  # fmt: skip
    set_rotation(path, 90)
    half = np.zeros((96, 64, 3), np.uint8)
    half[:48] = 255  # bright sky at the top
    picture = write_clip(tmp_path / "sky.png", width=64, height=96, frame_count=1, codec="png",
                         pixel_format="rgb24", paint=lambda _: half)  # fmt: skip
    settings = {"output.background": str(picture), "output.kinds": ["replace"]}
    with Segmenter(settings=settings) as segmenter:
        segmenter.write(path, [("replace", tmp_path / "o.mp4")])
    with av.open(str(tmp_path / "o.mp4")) as container:
        coded = next(container.decode(video=0)).to_ndarray(format="gray")
    upright = np.rot90(coded, k=-1)
    assert upright[10:40].mean() > 200
    assert upright[-40:-10].mean() < 40


def test_alpha_that_webm_keeps_beside_the_picture_is_said(tmp_path):
    clips = [
        write_clip(tmp_path / f"{name}.webm", codec="libvpx-vp9", pixel_format=name, frame_count=2)
        for name in ("yuva420p", "yuv420p")
    ]
    with Segmenter(profile="fast") as segmenter:
        cut, plain = (segmenter.write(clip, [("key", clip.with_suffix(".mp4"))]).notes for clip in clips)
    assert any("an alpha channel, which is ignored" in note for note in cut)
    assert not any("alpha" in note for note in plain)


def test_a_background_that_can_be_seen_through_is_told(tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    picture = np.full((64, 64, 4), 255, np.uint8)
    for name, shown in (("hole.png", picture), ("paper.png", picture[..., :3])):
        assert cv2.imwrite(str(tmp_path / name), shown)
        with Segmenter(profile="fast", settings={"output.background": str(tmp_path / name)}) as segmenter:
            notes = segmenter.write(clip, [("replace", tmp_path / f"{name}.mkv")]).notes
        told = f"{name} has an alpha channel, which is ignored: its transparent areas are visible behind people, too"
        assert (told in notes) == (name == "hole.png")


def test_a_background_looks_in_hdr_as_elsewhere(tmp_path):
    """Check that white paper is diffuse white, 58 % of PQ, and not its peak of 10,000 cd/m²."""
    hdr = write_clip(
        tmp_path / "pq.mkv", codec="ffv1", pixel_format="yuv420p10le", frame_count=2, color_tags=(9, 16, 9, 1)
    )
    assert cv2.imwrite(str(tmp_path / "paper.png"), np.full((64, 64, 3), 255, np.uint8))
    with Segmenter(profile="fast", settings={"output.background": str(tmp_path / "paper.png")}) as segmenter:
        report = segmenter.write(hdr, [("replace", tmp_path / "o.mkv")])
    assert not any("brighter" in note for note in report.notes)
    with open_video(tmp_path / "o.mkv") as reader:
        luma = next(iter(reader)).planes[0]
    np.testing.assert_allclose(np.median(luma), 64 + 876 * 0.5807, atol=3)


def test_what_is_not_converted_or_left_out_is_said(tmp_path):
    hdr = write_clip(
        tmp_path / "pq.mkv", codec="ffv1", pixel_format="yuv420p10le", frame_count=2, color_tags=(9, 16, 9, 1)
    )
    see_through = write_clip(tmp_path / "cut.mkv", codec="ffv1", pixel_format="yuva420p", frame_count=2)
    with Segmenter(profile="fast") as segmenter:
        notes = {
            (video.stem, kind): segmenter.write(video, [(kind, tmp_path / f"{video.stem}_{kind}.mkv")]).notes
            for video in (hdr, see_through)
            for kind in ("key", "overlay", "mask")
        }
    assert any("the key colour is not converted" in note for note in notes["pq", "key"])
    assert any("the tint is not converted" in note for note in notes["pq", "overlay"])
    assert not any("not converted" in note for note in notes["pq", "mask"] + notes["cut", "key"])
    for kind in ("key", "overlay", "mask"):
        assert any("an alpha channel, which is ignored" in note for note in notes["cut", kind])
        assert not any("alpha" in note for note in notes["pq", kind])
