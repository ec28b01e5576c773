"""Tests of what runs before a measurement, and where."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clips import write_clip
from vitascope.bench import limited_run
from vitascope.bench.limited_run import LimitedRun, run_for, warm_up
from vitascope.bench.measured_run import MeasuredSegmenter
from vitascope.config import load_settings

SIZE = {"width": 640, "height": 360, "frame_count": 70}


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("warm") / "in.mp4", **SIZE)


class Recorder:
    """A segmenter that only records its requests."""

    def __init__(self, kind):
        self.device = SimpleNamespace(kind=kind)
        self.calls = []

    def write(self, video, outputs, *, on_start):
        (kind, out) = outputs[0]
        assert out.parent.is_dir()
        self.calls.append((video, kind, out, on_start))


def test_a_processor_needs_none(film):
    recorder = Recorder("cpu")
    warm_up(recorder, film, kind="mask")
    assert not recorder.calls


def test_a_gpu_sees_the_film_before_and_nothing_is_left(film):
    recorder = Recorder("cuda")
    warm_up(recorder, film, kind="key")
    ((video, kind, out, on_start),) = recorder.calls
    assert (video, kind) == (film, "key")
    assert callable(on_start)
    assert not out.parent.exists()


def test_a_limited_run_enters_its_tool_when_the_network_is_warm(film, monkeypatch):
    order = []
    monkeypatch.setattr(limited_run, "warm_up", lambda *_, **__: order.append("warm"))

    class Tool:
        def __enter__(self):
            order.append("tool")

        def __exit__(self, *_):
            return None

    run_for(LimitedRun(video=film, seconds=0.2, profile="fast"), around=Tool)
    assert order == ["warm", "tool"]


def test_what_an_interrupted_run_says_of_discarded_pictures_is_left_out(film, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt("kept what was written: discarded.mp4.part")

    monkeypatch.setattr(limited_run, "warm_up", lambda *_, **__: None)
    monkeypatch.setattr(limited_run.Segmenter, "write", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        run_for(LimitedRun(video=film, seconds=1.0, profile="fast"))
    assert not str(raised.value)


def test_a_limited_run_takes_nothing_from_the_cache_of_mattes(film, monkeypatch, tmp_path):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path))
    run = LimitedRun(video=film, seconds=5.0, profile="fast", assignments=("processing.enable_caching=true",))
    first, second = run_for(run), run_for(run)
    assert first.levers.cached_frames == second.levers.cached_frames == 0


@pytest.mark.cuda
def test_afterwards_nothing_is_left_to_record(film, rvm_model_path):
    flags = ["gpu.device=cuda", "model.name=rvm"]
    with MeasuredSegmenter(loaded=load_settings(assignments=flags)) as segmenter:
        warm_up(segmenter, film, kind="mask")
        before = segmenter.chosen.network.plan_count
        assert before
        run = segmenter.measure(film, kind="mask")
        assert run.frame_count == SIZE["frame_count"]
        assert segmenter.chosen.network.plan_count == before
