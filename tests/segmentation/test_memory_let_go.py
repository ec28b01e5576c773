"""Check that a finished video frees its memory without garbage collection, as the next one needs it."""

from __future__ import annotations

import gc
import weakref
from contextlib import closing

import pytest

import vitascope
from clips import copied, write_clip
from left_over import left_by
from lever_network import TrailNetwork
from scripted import segment_with
from vitascope.errors import CorruptInputError, PipelineError
from vitascope.segmentation.batch import segment_all
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.segmenter import Segmenter

KINDS = ("mask", "key", "cutout", "blur", "overlay", "replace")


@pytest.fixture
def trail(monkeypatch):
    """Use a recurrent network that takes any size, for the levers."""
    segment_with(monkeypatch, TrailNetwork(), name="trail")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"edges.feather_px": 2.0, "edges.grow_px": 1.0, "edges.temporal_smoothing": 0.5},
        {"debug.profile_performance": True},
        {"processing.enable_caching": True},
    ],
    ids=["plain", "edges", "profiled", "cached"],
)
def test_a_written_film_leaves_nothing(clip, tmp_path, settings):
    outputs = [(kind, tmp_path / f"{kind}.mp4") for kind in KINDS] + [("alpha", tmp_path / "alpha.mov")]
    with Segmenter(profile="fast", settings={"output.background": str(clip), **settings}) as segmenter:
        assert not left_by(lambda: segmenter.write(clip, outputs, preview=tmp_path / "sheet.png"))


@pytest.mark.parametrize(
    "settings",
    [
        {"inference.skip_static": 0.01},
        {"inference.region": "crop"},
        {"inference.region": "zoom"},
        {"inference.early_exit": "smaller"},
        {"inference.early_exit": "selfie"},
        {"inference.scales": [1.0, 0.5]},
    ],
    ids=str,
)
@pytest.mark.usefixtures("trail")
def test_no_lever_keeps_its_film(clip, tmp_path, settings):
    with Segmenter(settings=settings) as segmenter:
        assert not left_by(lambda: segmenter.write(clip, [("key", tmp_path / "out.mp4")]))


@pytest.mark.parametrize("steps", [1, 5, 12])
def test_a_stream_leaves_nothing_however_far_it_went(clip, steps):
    def watch():
        with closing(segmenter.stream(clip)) as stream:
            for _, (frame, alpha) in zip(range(steps), stream, strict=False):
                assert frame.planes[0].shape == alpha.shape

    with Segmenter(profile="fast") as segmenter:
        assert not left_by(watch)


def test_a_damaged_film_leaves_nothing(tmp_path):
    whole = write_clip(tmp_path / "whole.mp4", width=128, height=128, frame_count=48)
    cut = copied(whole, tmp_path / "cut.mkv", kept=0.5)

    def fail():
        with pytest.raises(CorruptInputError):
            segmenter.write(cut, [("key", tmp_path / "out.mp4")])

    with Segmenter(profile="fast") as segmenter:
        assert not left_by(fail)


def test_a_run_that_fails_leaves_nothing_once_its_error_is_gone(clip, tmp_path, scripted, monkeypatch):
    def broken(images, state):
        raise RuntimeError("the network broke")

    monkeypatch.setattr(scripted, "infer", broken)

    def fail():
        with pytest.raises(PipelineError):
            segmenter.write(clip, [("key", tmp_path / "out.mp4")])

    with Segmenter() as segmenter:
        assert not left_by(fail)


def test_a_batch_leaves_nothing_between_its_films(clip, tmp_path):
    planned = [PlannedVideo(clip, (("key", tmp_path / f"{n}.mp4"),), None) for n in range(3)]
    with Segmenter(profile="fast") as segmenter:
        assert not left_by(lambda: [outcome.status for outcome in segment_all(segmenter, planned)])


def test_the_report_is_all_that_stays_of_a_pipeline(clip, tmp_path):
    started = []
    gc.disable()
    try:
        with Segmenter(profile="fast") as segmenter:
            report = segmenter.write(clip, [("key", tmp_path / "out.mp4")], on_start=started.append)
        pipeline = weakref.ref(started[0].pipeline)
        assert started[0].pipeline.snapshot() == report.pipeline
        assert report.pipeline.finished
        started.clear()
        assert pipeline() is None
    finally:
        gc.enable()


def test_the_function_leaves_nothing(clip, tmp_path):
    assert not left_by(lambda: vitascope.segment(clip, tmp_path / "out.mp4", profile="fast"))


@pytest.mark.cuda
@pytest.mark.whole_gpu
@pytest.mark.parametrize("kind", ["mask", "key", "blur"])
def test_a_film_on_the_gpu_leaves_no_memory_of_it_in_use(clip, tmp_path, kind):
    import cupy

    pool = cupy.get_default_memory_pool()
    used = []

    def write():
        segmenter.write(clip, [(kind, tmp_path / "out.mp4")], preview=tmp_path / "sheet.png")
        used.append(pool.used_bytes())

    with Segmenter(profile="fast", settings={"gpu.device": "cuda"}) as segmenter:
        assert not left_by(write)
    assert used[0] == used[1]
