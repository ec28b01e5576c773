"""Tests of INT8 on the CPU: calibrated on the video, used if its matte is right, and stored by content."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from segmented_films import astronaut

from clips import write_clip
from vitascope.errors import EngineError, UsageError
from vitascope.gpu.toolkit.quantization.quantizer import Comparison, ModelQuantizer
from vitascope.segmentation.matting import int8
from vitascope.segmentation.segmenter import Segmenter
from vitascope.segmentation.stills import StillSegmenter

GOOD = Comparison(
    frames=8,
    mean_error=0.2 / 255,
    worst_frame_error=0.4 / 255,
    max_error=0.1,
    relative_error=0.01,
    reference_ms=90.0,
    quantized_ms=60.0,
    finite=True,
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def decoder(rvm_model_path):
    """Return a decoder that runs; these tests do not depend on its precision."""
    from vitascope.models.rvm.rvm import cut_official_graph

    return cut_official_graph(rvm_model_path)[1]


@pytest.fixture
def kept(monkeypatch, decoder):
    """Pretend that an earlier run stored a decoder with these figures; returns the function that sets them."""

    def keep(comparison):
        monkeypatch.setattr(int8, "_kept", lambda key: (decoder, comparison))

    return keep


SIDE = 128
"""Side of the pictures that calibrate a decoder, in pixels: with smaller ones, INT8 is not accurate."""


def segmenter(store, **settings):
    """Open a segmenter; its pictures of 64 pixels save time where nothing is calibrated on them."""
    flags = {"model.name": "rvm", "model.input_size": 64, "gpu.device": "cpu", **settings}
    return Segmenter(settings=flags, store=store)


def alphas(opened, clip):
    with opened:
        return np.stack([alpha for _, alpha in opened.stream(clip)])


@pytest.mark.fetched_model
def test_a_film_is_matted_in_int8_and_the_decoder_is_kept_by_content(
    clip, tmp_path, model_store, rvm_model_path, monkeypatch, caplog
):
    caplog.set_level("INFO", logger=int8.__name__)
    sized = {"model.input_size": SIDE}
    with segmenter(model_store, **sized, **{"gpu.precision": "int8"}) as opened:
        report = opened.write(clip, [("mask", tmp_path / "o.mp4")])
    assert [line for line in caplog.messages if line.startswith(f"calibrating INT8 on {clip}, once")]
    assert report.engine.endswith("decoder in INT8")
    (note,) = report.notes
    assert "decoder in INT8: alpha is off by 0." in note
    assert "codes of 255 on average" in note

    def again(*_, **__):
        raise AssertionError("made anew")

    monkeypatch.setattr(ModelQuantizer, "quantize_int8", again)
    shutil.copy(clip, tmp_path / "copy.mp4")
    in_int8 = alphas(segmenter(model_store, **sized, **{"gpu.precision": "int8"}), tmp_path / "copy.mp4")
    in_fp32 = alphas(segmenter(model_store, **sized), clip)
    difference = np.abs(in_int8.astype(int) - in_fp32)
    assert 0 < difference.mean() < 1
    with pytest.raises(AssertionError, match="made anew"):  # a different beginning is different content
        alphas(segmenter(model_store, **sized, **{"gpu.precision": "int8", "model.warm_up_frames": 1}), clip)


@pytest.mark.fetched_model
def test_int8_that_is_not_right_for_the_film_stops_the_run_with_the_figures(
    clip, tmp_path, model_store, kept
):
    kept(replace(GOOD, mean_error=8.4 / 255, worst_frame_error=10.3 / 255))
    with (
        segmenter(model_store, **{"gpu.precision": "int8"}) as opened,
        pytest.raises(EngineError, match=r"in\.mp4: .*off by 8\.40 codes.*10\.30 in the worst.*use fp32"),
    ):
        opened.write(clip, [("mask", tmp_path / "o.mp4")])
    assert list(tmp_path.glob("o*")) == []


@pytest.mark.fetched_model
def test_a_film_without_people_or_frames_gives_no_proof(tmp_path, model_store, rvm_model_path):
    for frames, why in ((4, "needs at least 8 frames"), (12, "nobody is visible")):
        film = write_clip(
            tmp_path / "empty.mp4",
            width=64,
            height=64,
            frame_count=frames,
            paint=lambda n: np.full((64, 64, 3), 90, np.uint8),
        )
        with (
            segmenter(model_store, **{"gpu.precision": "int8"}) as opened,
            pytest.raises(EngineError, match=why),
        ):
            opened.write(film, [("mask", tmp_path / "o.mp4")])


@pytest.mark.fetched_model
def test_a_film_that_begins_in_the_dark_is_looked_at_further_on(tmp_path, model_store, monkeypatch):
    film = write_clip(
        tmp_path / "dark.mp4",
        width=128,
        height=128,
        frame_count=60,
        paint=lambda n: astronaut(n) if n >= 25 else np.zeros((128, 128, 3), np.uint8),
    )
    looked = []
    compared = int8._Trial._compared

    def noticed(self, reference, quantized, runs, shown):
        looked.extend(float(run.mean()) for run in runs)
        return compared(self, reference, quantized, runs, shown)

    monkeypatch.setattr(int8._Trial, "_compared", noticed)
    monkeypatch.setattr(int8, "_WORST_CODES", 50)
    flags = {"gpu.precision": "int8", "video.end_seconds": 0.5, "model.input_size": SIDE}
    with segmenter(model_store, **flags) as opened:
        report = opened.write(film, [("mask", tmp_path / "o.mp4")])  # nobody is in this stretch
    assert report.engine.endswith("decoder in INT8")
    dark, *lit = looked
    assert dark < 0.05 < min(lit)
    assert len(lit) == 2


@pytest.mark.fetched_model
@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        (GOOD, "decoder in INT8: alpha is off by 0.20"),
        (
            replace(GOOD, worst_frame_error=9 / 255),
            "FP32 instead of INT8: .*9.00 in the worst",
        ),
        (replace(GOOD, quantized_ms=99.0), "FP32 instead of INT8: .* a frame takes 99 ms instead of 90"),
    ],
)
def test_throughput_takes_int8_where_it_is_right_and_faster(
    clip, tmp_path, model_store, kept, monkeypatch, comparison, said
):
    kept(comparison)
    monkeypatch.setattr(int8, "_WORTH_FRAMES", 1)
    with segmenter(model_store, **{"performance.mode": "throughput"}) as opened:
        report = opened.write(clip, [("mask", tmp_path / "o.mp4")])
    assert report.engine.endswith("decoder in INT8") is (comparison is GOOD)
    (note,) = report.notes
    assert re.match(said, note)


@pytest.mark.fetched_model
def test_throughput_leaves_short_films_and_a_chosen_precision_alone(clip, tmp_path, model_store, kept):
    kept(GOOD)
    for flags, notes in (
        ({}, ("calibration is worth its time from 300 frames on, and the video has 12",)),
        ({"gpu.precision": "fp32"}, ()),
    ):
        with segmenter(model_store, **{"performance.mode": "throughput", **flags}) as opened:
            report = opened.write(clip, [("mask", tmp_path / "o.mp4")])
        assert not report.engine.endswith("INT8")
        assert [note for note in report.notes if "INT8" in note] == [
            f"FP32 instead of INT8: {note}" for note in notes
        ]


@pytest.mark.fetched_model
def test_cached_mattes_of_int8_are_not_those_of_fp32(clip, model_store, kept):
    kept(GOOD)
    caching = {"processing.enable_caching": True}
    alphas(segmenter(model_store, **caching, **{"gpu.precision": "int8"}), clip)
    for flags, cached in (({}, 0), ({"gpu.precision": "int8"}, 12)):
        with segmenter(model_store, **caching, **flags) as opened:
            report = opened.write(clip, [("mask", clip.with_name(f"{cached}.mp4"))])
        assert report.levers is not None
        assert report.levers.cached_frames == cached


@pytest.mark.fetched_model
def test_processes_share_one_decision(tmp_path, model_store, kept):
    kept(GOOD)  # in this process only: workers would find nothing, and refuse so short a stretch
    film = write_clip(tmp_path / "in.mp4", width=64, height=64, frame_count=24, paint=astronaut)
    flags = {"processing.use_multiprocessing": True, "gpu.precision": "int8"}
    with segmenter(model_store, **flags) as opened:
        report = opened.write(film, [("mask", tmp_path / "o.mp4")])
    assert report.engine.endswith("decoder in INT8")
    assert sum("decoder in INT8" in note for note in report.notes) == 1


def test_other_networks_and_single_pictures_say_that_they_have_no_int8(model_store):
    flags = {"gpu.precision": "int8", "gpu.device": "cpu"}
    with pytest.raises(UsageError, match="only RVM can be quantised, and the network is selfie"):
        Segmenter(profile="fast", settings=flags, store=model_store)
    with pytest.raises(UsageError, match="calibrated on a video"):
        StillSegmenter(settings=flags, store=model_store)
