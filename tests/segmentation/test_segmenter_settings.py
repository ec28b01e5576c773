"""Check that settings change a job: batches, eyes, times, encoders, edges, queues and threads."""

from __future__ import annotations

import av
import numpy as np
import pytest
from segmented_films import luma

import vitascope
from clips import write_clip
from lever_network import TrailNetwork
from photographs import astronaut
from scripted import segment_with
from vitascope.config import load_settings
from vitascope.segmentation.capacity import queue_limits
from vitascope.segmentation.segmenter import Segmenter


@pytest.mark.parametrize(
    ("setting", "value", "calls"),
    [
        ("model.batch_size", 1, [(1, 1)] * 12),
        ("model.batch_size", 5, [(1, 1), (5, 1), (5, 1), (1, 1)]),
        ("model.batch_size", "4-8", [(1, 1), (4, 1), (4, 1), (3, 1)]),
        ("pipeline.stages.inference.batch_size", 6, [(1, 1), (6, 1), (5, 1)]),
    ],
)
def test_batch_size_counts_frames_of_a_call_after_the_first(clip, scripted, setting, value, calls):
    with Segmenter(profile="fast", settings={setting: value, "model.warm_up_frames": 0}) as segmenter:
        list(segmenter.stream(clip))
    assert scripted.calls == calls


@pytest.mark.parametrize(("value", "extra"), [(0, 0), (2, 2)])
def test_warm_up_frames_act(clip, scripted, value, extra):
    settings = {"model.warm_up_frames": value, "model.batch_size": 1}
    with Segmenter(settings=settings) as segmenter:
        list(segmenter.stream(clip))
    assert len(scripted.calls) == 12 + extra


@pytest.mark.parametrize(("value", "extra"), [(0, 0), (4, 4)])
@pytest.mark.parametrize(("mode", "waits"), [("auto", True), ("latency", False)])
def test_look_ahead_frames_act_unless_latency_counts(clip, monkeypatch, value, extra, mode, waits):
    network = TrailNetwork()
    segment_with(monkeypatch, network, name="trail")
    settings = {"model.look_ahead_frames": value, "model.warm_up_frames": 0, "performance.mode": mode}
    with Segmenter(settings=settings) as segmenter:
        assert len(list(segmenter.stream(clip))) == 12
    assert sum(shape[0] for shape in network.calls) == 12 + extra * waits


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
    assert report.frame_count == 6  # frames 3 to 8 at 29.97 a second
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
        paint=lambda n: np.ascontiguousarray(np.roll(astronaut()[:256:2, 60:316:2], n, axis=1)),
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
    np.testing.assert_array_equal(small, ratio)  # 48 of 128: the ratio overrides the size


def test_settings_of_a_run_are_the_loaded_ones(clip):
    loaded = load_settings(profile="fast", assignments=["edges.grow_px=2"])
    with Segmenter(loaded=loaded) as segmenter:
        assert segmenter.settings is loaded.settings
        assert segmenter.loaded.profile == "fast"
