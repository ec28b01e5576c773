"""Check that every lever setting changes what a job does, and that the report says so."""

from __future__ import annotations

import numpy as np
import pytest

from clips import write_clip
from lever_network import TrailNetwork
from vitascope.config import load_settings
from vitascope.errors import ConfigError, UsageError
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.report import summarise
from vitascope.segmentation.segmenter import Segmenter

FRAMES = 26


def paint(n):
    """Paint a person who stands still for half of the video, then walks."""
    picture = np.full((128, 192, 3), 30, np.uint8)
    x = 40 + 2 * max(n - FRAMES // 2, 0)
    picture[40:88, x : x + 32] = 230
    return picture


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("levers") / "in.mp4",
        width=192,
        height=128,
        frame_count=FRAMES,
        paint=paint,
        codec_options={"crf": "10"},
    )


@pytest.fixture
def job(clip, tmp_path, monkeypatch):
    def run(*, recurrent=False, **settings):
        network = TrailNetwork(recurrent=recurrent)
        monkeypatch.setattr(film_run, "open_network", lambda *_, **__: ChosenNetwork(network, "trail", None))
        flags = {key.replace("__", "."): value for key, value in settings.items()}
        flags = {"model.batch_size": 4, "video.scene_cut_threshold": 0.0, **flags}
        with Segmenter(settings=flags) as segmenter:
            return segmenter.write(clip, [("mask", tmp_path / "out.mp4")]), network

    return run


def test_without_levers_every_frame_is_shown_once(job):
    report, network = job()
    assert report.levers.network_share == 1
    assert not any("the network saw" in line for line in summarise(report))
    assert sum(shape[0] for shape in network.calls) == FRAMES


def test_skip_static(job):
    report, network = job(inference__skip_static=0.02)
    assert report.levers.reused_frames >= 10
    assert sum(shape[0] for shape in network.calls) == FRAMES - report.levers.reused_frames
    assert any("reused the last matte" in line for line in summarise(report))


def test_region(job):
    shares = {region: job(inference__region=region)[0].levers for region in ("whole", "crop", "zoom")}
    assert shares["whole"].cropped_frames == 0
    assert shares["crop"].cropped_frames >= 20
    assert shares["crop"].network_share < 0.8
    assert shares["zoom"].cropped_frames >= 20


def test_bidirectional(job):
    plain, _ = job(recurrent=True)
    both, network = job(recurrent=True, inference__bidirectional=True)
    assert plain.levers.network_share == 1
    assert 2 < both.levers.network_share < 2.5  # no look for edges: these pictures have no more samples
    assert sum(shape[0] for shape in network.calls) > 2 * FRAMES
    report, _ = job(recurrent=True, inference__bidirectional=True, inference__region="crop")
    assert (
        "inference.bidirectional has no effect here: "
        "inference.region, scales and early_exit see a shot in one direction only" in (report.notes)
    )
    report, _ = job(inference__bidirectional=True)
    assert any(note.startswith("inference.bidirectional has no effect here (trail") for note in report.notes)


def test_a_wish_to_look_for_missed_people_that_cannot_be_met_is_told(job):
    report, _ = job(recurrent=True, inference__missed_people=True)
    assert not any("missed_people" in note for note in report.notes)
    report, _ = job(recurrent=True, inference__missed_people=True, inference__region="crop")
    assert (
        "inference.missed_people has no effect here: inference.region, scales and early_exit show the network other "
        "pictures"
    ) in report.notes
    report, _ = job(inference__missed_people=True)
    assert any(note.startswith("inference.missed_people has no effect here (trail") for note in report.notes)


def test_region_margin(job):
    tight = job(inference__region="crop", inference__region_margin=0.0)[0].levers.network_share
    wide = job(inference__region="crop", inference__region_margin=1.0)[0].levers.network_share
    assert tight < wide


def test_recheck_frames(job):
    whole = {}
    for frames in (4, 20):
        _, network = job(inference__region="crop", inference__recheck_frames=frames)
        whole[frames] = sum(shape[0] for shape in network.calls if shape[3:] == (128, 192))
    assert whole[4] > whole[20]


@pytest.mark.parametrize("first", ["smaller", "selfie"])
def test_early_exit(job, first):
    report, _ = job(inference__early_exit=first, inference__early_exit_confidence=0.0)
    assert report.levers.early_frames >= 10
    assert any("needed only the first network" in line for line in summarise(report))


def test_early_exit_confidence(job):
    report, _ = job(inference__early_exit="smaller", inference__early_exit_confidence=1.0)
    assert report.levers.early_frames < 10


def test_wishes_for_levers_that_are_not_pulled_are_named(job):
    keys = ("inference.region_margin", "inference.recheck_frames", "inference.early_exit_confidence")
    notes = " ".join(job(**dict.fromkeys((*keys, "processing.cache_size_gb"), 1))[0].notes)
    assert all(f"{key} has no effect here" in notes for key in (*keys, "processing.cache_size_gb"))
    used = job(inference__region="crop", inference__region_margin=0.5)[0].notes
    assert not any("no effect" in note for note in used)


def test_scales(job):
    report, network = job(inference__scales=[0.5, 1.0])
    assert report.levers.network_share == 1.25
    assert {shape[3:] for shape in network.calls} == {(64, 96), (128, 192)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("skip_static", -0.1),
        ("skip_static", 1.1),
        ("region", "part"),
        ("region_margin", 3),
        ("recheck_frames", 0),
        ("early_exit", "yes"),
        ("early_exit_confidence", 2),
        ("scales", []),
        ("scales", [0.1]),
        ("scales", [True]),
        ("scales", "a,b"),
        ("scales", [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]),
    ],
)
def test_what_makes_no_sense_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"inference.{key}"):
        load_settings(flags={f"inference.{key}": value})


def test_scales_are_read_from_a_text():
    assert load_settings(assignments=["inference.scales=1,1.5"]).settings.inference.scales == (1.0, 1.5)
    assert load_settings(flags={"inference.scales": 2}).settings.inference.scales == (2.0,)


def test_two_ways_to_choose_a_picture_contradict_each_other():
    with pytest.raises(ConfigError, match="cannot be combined"):
        load_settings(flags={"inference.scales": [1, 2], "inference.region": "crop"})


def test_a_network_of_one_size_says_what_it_can_do(clip, tmp_path):
    with (
        Segmenter(profile="fast", settings={"inference.region": "crop"}) as segmenter,
        pytest.raises(
            UsageError,
            match=r"inference.region=crop: selfie takes pictures of one size only; use inference.region=zoom",
        ),
    ):
        segmenter.write(clip, [("mask", tmp_path / "o.mp4")])
