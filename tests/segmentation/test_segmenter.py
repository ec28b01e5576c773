"""The application from file to file, with the bundled network and real codecs."""

from __future__ import annotations

import threading
from fractions import Fraction

import av
import numpy as np
import pytest
from skimage import data

import vitascope
from clips import write_clip
from scripted import BrightnessNetwork
from vitascope.config import load_settings
from vitascope.errors import CorruptInputError, PipelineError, UsageError
from vitascope.segmentation import segmenter as segmenter_module
from vitascope.segmentation.batch import segment_all
from vitascope.segmentation.jobs import queue_limits
from vitascope.segmentation.networks import ChosenNetwork
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.segmenter import Segmenter


def astronaut(_: int):
    return np.ascontiguousarray(data.astronaut()[:256:2, 60:316:2])


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """128 x 128, 12 frames at a rate that is no whole number, with sound, BT.709."""
    return write_clip(
        tmp_path_factory.mktemp("clip") / "in.mp4",
        width=128,
        height=128,
        frame_count=12,
        frame_rate=Fraction(30000, 1001),
        paint=astronaut,
        audio="aac",
        color_tags=(1, 1, 1, 1),
        metadata={"title": "wedding"},
    )


@pytest.fixture
def scripted(monkeypatch):
    """Segmenters get this network instead of the one they ask for."""
    network = BrightnessNetwork(recurrent=True)
    monkeypatch.setattr(
        segmenter_module, "open_network", lambda *_, **__: ChosenNetwork(network, "scripted", None)
    )
    return network


def packets(path, kind):
    with av.open(str(path)) as container:
        stream = next(s for s in container.streams if s.type == kind)
        return [(p.pts, bytes(p)) for p in container.demux(stream) if p.size]


def luma(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]


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
    if suffix != ".webm":  # WebM takes no AAC
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
    assert threading.active_count() == before


def test_two_streams_of_one_segmenter_do_not_share_state(clip, scripted):
    with Segmenter() as segmenter:
        for _, _ in zip(segmenter.stream(clip), segmenter.stream(clip), strict=True):
            pass
    assert [state.seen for state in scripted.states] == [15, 15]  # 12 frames and 3 of warm-up


@pytest.mark.parametrize(
    ("setting", "value", "calls"),
    [
        ("model.batch_size", 1, [(1, 1)] * 12),
        ("model.batch_size", 5, [(5, 1), (5, 1), (2, 1)]),
        ("model.batch_size", "4-8", [(4, 1)] * 3),
        ("pipeline.stages.inference.batch_size", 6, [(6, 1)] * 2),
    ],
)
def test_batch_size_counts_frames_of_a_call(clip, scripted, setting, value, calls):
    with Segmenter(profile="fast", settings={setting: value, "model.warm_up_frames": 0}) as segmenter:
        list(segmenter.stream(clip))
    assert scripted.calls == calls


@pytest.mark.parametrize(("value", "extra"), [(0, 0), (2, 2)])
def test_warm_up_frames_act(clip, scripted, value, extra):
    settings = {"model.warm_up_frames": value, "model.batch_size": 1}
    with Segmenter(settings=settings) as segmenter:
        list(segmenter.stream(clip))
    assert len(scripted.calls) == 12 + extra


@pytest.mark.parametrize(
    ("stereo", "eyes", "size"),
    [("auto", 1, (32, 48)), ("sbs", 2, (48, 32)), ("top-bottom", 2, (32, 48)), ("mono", 1, (32, 48))],
)
def test_stereo_decides_what_an_eye_is(clip, scripted, stereo, eyes, size):
    with Segmenter(settings={"video.stereo": stereo, "model.warm_up_frames": 0}) as segmenter:
        list(segmenter.stream(clip))
    assert {call[1] for call in scripted.calls} == {eyes}


def test_start_and_end_cut_pictures_and_sound(clip, tmp_path):
    settings = {"video.start_seconds": 0.1, "video.end_seconds": 0.3}
    report = vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", settings=settings)
    assert report.frame_count == 6  # pictures 3 to 8 at 29.97 a second
    with av.open(str(tmp_path / "o.mp4")) as container:
        times = [frame.pts * frame.time_base for frame in container.decode(video=0)]
        assert times[0] == 0
        assert float(container.streams.audio[0].duration * container.streams.audio[0].time_base) < 0.3


def test_settings_of_the_output_act(clip, tmp_path):
    def size(**settings):
        report = vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", settings=settings)
        return report.outputs[0].size_bytes

    assert size(**{"output.crf": 45}) < size(**{"output.crf": 10})
    vitascope.segment(clip, tmp_path / "r.mp4", profile="fast", settings={"output.key_color": "255,0,0"})
    with av.open(str(tmp_path / "r.mp4")) as container:
        frame = next(container.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    assert np.abs(frame[8, 8] - [255, 0, 0]).max() < 14


@pytest.mark.parametrize(("codec", "name"), [("h265", "hevc"), ("av1", "av1"), ("h264", "h264")])
def test_codec_and_bit_depth_act(clip, tmp_path, codec, name):
    settings = {"output.codec": codec, "output.bit_depth": 10}
    vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", settings=settings)
    with av.open(str(tmp_path / "o.mp4")) as container:
        context = container.streams.video[0].codec_context
        assert name in (context.name, context.codec.canonical_name)
        assert next(container.decode(video=0)).format.name == "yuv420p10le"


def test_blur_radius_overlay_and_background_act(clip, tmp_path):
    def first(name, kind, **settings):
        out = tmp_path / f"{name}.mkv"
        flags = {"output.codec": "ffv1", **settings}
        vitascope.segment(clip, out, profile="fast", output=kind, settings=flags)
        return luma(out)[0].astype(int)

    soft = first("soft", "blur", **{"output.blur_radius": 4})
    softer = first("softer", "blur", **{"output.blur_radius": 60})
    assert np.abs(soft - softer)[:20].mean() > 1
    faint = first("faint", "overlay", **{"output.overlay_opacity": 0.1})
    strong = first("strong", "overlay", **{"output.overlay_opacity": 0.9})
    blue = first("blue", "overlay", **{"output.overlay_opacity": 0.9, "output.overlay_color": "0,0,255"})
    assert np.abs(faint - strong)[52:58, 76:84].mean() > 20
    assert np.abs(blue - strong)[52:58, 76:84].mean() > 20
    picture = write_clip(tmp_path / "bg.png", width=64, height=64, frame_count=1, codec="png", pixel_format="rgb24",
                         paint=lambda _: np.full((64, 64, 3), 200, np.uint8))  # fmt: skip
    replaced = first("replaced", "replace", **{"output.background": str(picture)})
    assert replaced[4:10, 4:10].mean() == pytest.approx(16 + 200 * 219 / 255, abs=2) or replaced[
        4:10, 4:10
    ].mean() == (pytest.approx(200, abs=3))


@pytest.mark.parametrize(
    "setting",
    [
        {"edges.threshold": [0.6, 0.9]},
        {"edges.grow_px": 5},
        {"edges.feather_px": 4},
        {"edges.temporal_smoothing": 0.9},
    ],
)
def test_edge_settings_act(tmp_path, setting):
    moving = write_clip(
        tmp_path / "move.mkv", width=128, height=128, frame_count=6, codec="ffv1",
        paint=lambda n: np.ascontiguousarray(np.roll(data.astronaut()[:256:2, 60:316:2], n, axis=1)),
    )  # fmt: skip

    def mean_alpha(settings):
        with Segmenter(profile="fast", settings={"edges.threshold": None, **settings}) as segmenter:
            return np.mean([alpha for _, alpha in segmenter.stream(moving)], axis=(1, 2))

    assert np.abs(mean_alpha(setting) - mean_alpha({})).max() > 0.02


def test_scene_cut_threshold_acts(tmp_path, scripted):
    def paint(n):
        return np.full((64, 64, 3), 30 if n < 3 else 220, np.uint8)

    path = write_clip(tmp_path / "cut.mp4", width=64, height=64, frame_count=6, paint=paint)
    for threshold, resets in ((0.35, 1), (0, 0)):
        with Segmenter(settings={"video.scene_cut_threshold": threshold}) as segmenter:
            list(segmenter.stream(path))
        assert scripted.states[-1].resets == resets


def test_queue_limits_are_read_from_the_settings(clip, scripted):
    settings = {
        "processing.max_queue_size": 3,
        "processing.max_queue_mb": 0.5,
        "pipeline.stages.decode.threads": 1,
        "pipeline.stages.encode.threads": 1,
    }
    with Segmenter(settings=settings) as segmenter:
        limits = queue_limits(segmenter.settings)
        assert (limits.items, limits.nbytes) == (3, 500_000)
        list(segmenter.stream(clip))


def test_num_threads_reaches_the_engine():
    for threads, text in ((1, "1 thread)"), (2, "2 threads)")):
        with Segmenter(profile="fast", settings={"processing.num_threads": threads}) as segmenter:
            assert segmenter.chosen.network.engine_name.endswith(text)


def test_the_output_must_not_be_the_input(clip):
    with Segmenter(profile="fast") as segmenter, pytest.raises(UsageError, match="the output is the input"):
        segmenter.write(clip, [("key", clip)])


class Exploding(BrightnessNetwork):
    def infer(self, images, state):
        if len(self.calls) == 5:
            raise ValueError("the network broke")
        return super().infer(images, state)


def test_a_failing_stage_leaves_nothing_behind(clip, tmp_path, monkeypatch):
    monkeypatch.setattr(
        segmenter_module, "open_network", lambda *_, **__: ChosenNetwork(Exploding(), "scripted", None)
    )
    settings = {"model.batch_size": 1}
    with Segmenter(settings=settings) as segmenter, pytest.raises(PipelineError, match="infer") as caught:
        segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert "Frame(128x128" in "".join(caught.value.exceptions[0].__notes__)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def truncated(clip, tmp_path):
    """The clip with its index first, cut in the middle of the pictures."""
    whole = write_clip(
        tmp_path / "whole.mp4", width=128, height=128, frame_count=48, paint=astronaut,
        codec_options={"g": "6"},
    )  # fmt: skip
    fast = tmp_path / "fast.mp4"
    with av.open(str(whole)) as source, av.open(str(fast), "w", options={"movflags": "faststart"}) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    whole.unlink()
    content = fast.read_bytes()
    fast.write_bytes(content[: len(content) * 6 // 10])
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


def test_a_contact_sheet_shows_source_matte_and_result(clip, tmp_path):
    vitascope.segment(clip, tmp_path / "o.mp4", profile="fast", preview=tmp_path / "sheet.png")
    with av.open(str(tmp_path / "sheet.png")) as container:
        sheet = next(container.decode(video=0))
    assert sheet.width == 3 * 326
    assert sheet.height == 4 * 3 * 326


def test_a_report_is_plain_json(clip, tmp_path):
    import json

    report = vitascope.segment(clip, tmp_path / "o.mp4", profile="fast")
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["model"] == "selfie"
    assert plain["frame_count"] == 12
    assert plain["outputs"][0]["path"].endswith("o.mp4")
    assert [stage["name"] for stage in plain["pipeline"]["stages"]] == [
        "decode", "preprocess", "infer", "postprocess", "encode",
    ]  # fmt: skip


@pytest.mark.fetched_model
def test_network_size_acts_with_rvm(clip, rvm_model_path, model_store):
    def first(**settings):
        with Segmenter(profile="quality", settings=settings, store=model_store) as segmenter:
            frame, alpha = next(iter(segmenter.stream(clip)))
            return segmenter, frame, alpha

    whole = first(**{"model.input_size": None})[2]
    small = first(**{"model.input_size": 48})[2]
    ratio = first(**{"model.downsample_ratio": 0.375, "model.input_size": 128})[2]
    assert np.abs(whole.astype(int) - small).mean() > 0.2
    np.testing.assert_array_equal(small, ratio)  # 48 of 128, and the ratio wins over the size


def test_rotation_comes_out_as_it_went_in(tmp_path, scripted):
    from vitascope.media.spherical import read_rotation, set_rotation

    path = write_clip(tmp_path / "phone.mp4", width=96, height=64, frame_count=4)
    set_rotation(path, 90)
    with Segmenter() as segmenter:
        report = segmenter.write(path, [("key", tmp_path / "o.mp4")])
    assert report.network_size == (48, 32)
    assert read_rotation(tmp_path / "o.mp4") == 90


def test_settings_of_a_run_are_the_loaded_ones(clip):
    loaded = load_settings(profile="fast", assignments=["edges.grow_px=2"])
    with Segmenter(loaded=loaded) as segmenter:
        assert segmenter.settings is loaded.settings
        assert segmenter.loaded.profile == "fast"


def test_a_failure_of_one_output_leaves_no_other(clip, tmp_path, scripted, monkeypatch):
    from vitascope.errors import OutputError
    from vitascope.media.writer import VideoWriter

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


def test_the_background_of_a_phone_video_is_upright(tmp_path, scripted):
    from vitascope.media.spherical import set_rotation

    path = write_clip(tmp_path / "phone.mp4", width=96, height=64, frame_count=2,
                      paint=lambda _: np.zeros((64, 96, 3), np.uint8))  # fmt: skip
    set_rotation(path, 90)
    half = np.zeros((96, 64, 3), np.uint8)
    half[:48] = 255  # bright sky above
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
