"""Check that levers give the same mattes and counts on the GPU as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from skimage import data

from clips import write_clip
from lever_network import TrailNetwork
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.segmenter import Segmenter

pytestmark = pytest.mark.cuda

FRAMES = 40


def paint(n):
    """Paint a person who stands, walks, and is gone in another shot; in both eyes."""
    scenery = np.random.default_rng(n >= 34).integers(-20, 21, (8, 12)).repeat(16, 0).repeat(16, 1)
    eyes = np.hstack([scenery, scenery]) + (30 if n < 34 else 220)
    picture = eyes[..., None].repeat(3, 2).astype(np.uint8)
    x = 40 + 3 * max(n - 14, 0)
    for eye in (0, 1):
        picture[40:88, eye * 192 + x - 6 * eye : eye * 192 + x + 32 - 6 * eye] = 230
    return picture


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("levers") / "in.mp4",
        width=384,
        height=128,
        frame_count=FRAMES,
        paint=paint,
        codec_options={"crf": "10"},
        color_tags=(1, 1, 1, 1),
    )


@pytest.fixture
def job(clip, tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))

    def run(device, **settings):
        network = TrailNetwork(recurrent=settings.pop("recurrent", True))
        network.name = "selfie"
        monkeypatch.setattr(film_run, "open_network", lambda *_, **__: ChosenNetwork(network, "selfie", None))
        flags = {key.replace("__", "."): value for key, value in settings.items()}
        flags = {
            "gpu.device": device,
            "model.name": "selfie",
            "model.batch_size": 4,
            "video.stereo": "sbs",
            **flags,
        }
        with Segmenter(settings=flags) as segmenter:
            alphas = np.stack([np.array(step.alpha) for step in segmenter.stream(clip)])
            report = segmenter.write(clip, [("mask", tmp_path / f"{device}.mp4")])
        return alphas, report, network

    return run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inference__skip_static": 0.02},
        {"inference__region": "crop"},
        {"inference__region": "zoom", "recurrent": False},
        {"inference__early_exit": "smaller", "inference__early_exit_confidence": 0.5},
        {"inference__scales": [0.5, 1.0]},
        {"inference__bidirectional": True},
        {"inference__skip_static": 0.02, "inference__region": "crop", "inference__early_exit": "smaller"},
    ],
    ids=str,
)
def test_mattes_and_counts_are_the_processors(job, options):
    on_processor, expected, _ = job("cpu", **options)
    on_gpu, report, _ = job("cuda", **options)
    assert report.device != expected.device
    assert report.gpu is not None
    assert np.abs(on_gpu.astype(int) - on_processor).mean() < 0.5
    for count in ("reused_frames", "cropped_frames", "early_frames", "empty_frames"):
        assert abs(getattr(report.levers, count) - getattr(expected.levers, count)) <= 4
    assert report.levers.network_share == pytest.approx(expected.levers.network_share, abs=0.15)


def test_a_selfie_looks_first_from_the_gpu(job):
    _, report, _ = job("cuda", inference__early_exit="selfie", inference__early_exit_confidence=0.0)
    assert report.levers.early_frames > 10


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_second_run_needs_no_network(job, precision):
    plain, _, _ = job("cuda", gpu__precision=precision)
    first, first_report, _ = job("cuda", gpu__precision=precision, processing__enable_caching=True)
    second, report, network = job("cuda", gpu__precision=precision, processing__enable_caching=True)
    assert report.levers.cached_frames == FRAMES
    assert network.calls == []
    assert report.engine == "no engine: mattes from the cache"
    assert report.scene_cut_count == first_report.scene_cut_count == 1
    assert np.array_equal(plain, first)
    assert np.array_equal(plain, second)


def test_the_film_goes_on_from_a_shorter_run(job, tmp_path):
    plain, _, _ = job("cuda")
    job("cuda", processing__enable_caching=True, video__end_seconds=0.5)
    whole, report, network = job("cuda", processing__enable_caching=True)
    assert np.array_equal(plain, whole)
    assert report.levers.cached_frames == FRAMES  # the write after the stream finds all of them
    # At the cut, memory settles in three calls, and the six frames of the shot are run backwards.
    assert sum(shape[0] for shape in network.calls) == FRAMES - 12 + 3 + 6


@pytest.fixture
def astronaut(tmp_path):
    """Return a person who drifts, a third of the width wide."""

    def painted(n):
        picture = np.full((360, 640, 3), 90, np.uint8)
        person = data.astronaut()[:480:2, 100:400:2]
        picture[80:320, 200 + 2 * n : 200 + 2 * n + person.shape[1]] = person
        return picture

    return write_clip(
        tmp_path / "astronaut.mp4",
        width=640,
        height=360,
        frame_count=32,
        paint=painted,
        color_tags=(1, 1, 1, 1),
    )


def test_rvms_memory_is_cut_on_the_gpu(astronaut, rvm_model_path, model_store):
    def run(**settings):
        flags = {"gpu.device": "cuda", "model.name": "rvm", "model.batch_size": 8, **settings}
        with Segmenter(settings=flags, store=model_store) as segmenter:
            alphas = np.stack([np.array(step.alpha) for step in segmenter.stream(astronaut)])
            return alphas.astype(int)

    whole = run()
    assert whole.max() > 200
    assert np.abs(run(**{"inference.region": "crop"}) - whole).mean() < 2
    assert np.abs(run(**{"inference.region": "zoom"}) - whole).mean() < 4
    assert np.abs(run(**{"inference.scales": [0.75, 1.0]}) - whole).mean() < 4
