"""Check that a GPU's memory stays from one stretch to the next, and no longer.

Whoever lent the network has other videos to process.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager

import numpy as np
import pytest

from clips import write_clip
from fake_vram import FakeVram
from scripted import BrightnessNetwork, segment_with
from vitascope import Segmenter
from vitascope.device import Device
from vitascope.errors import EngineError
from vitascope.gpu.memory.pinned_pool import Download
from vitascope.gpu.streams import JobStreams
from vitascope.media.reading.reader import open_video
from vitascope.segmentation import film_run
from vitascope.segmentation.film_run import _finishing, open_job
from vitascope.segmentation.processes.maker import StretchMaker

SETTINGS = {"gpu.device": "cpu", "processing.chunk_size": 12, "processing.overlap_frames": 4}


class Gpu:
    """Simulates the streams of a GPU, on which each job leaves memory; the CPU does the work."""

    def __init__(self, streams, *, cupy):
        self.streams, self._cupy = streams, cupy
        self.kept = []
        """Whether memory was kept, for each job."""
        self.fails = False
        """Whether jobs fail."""

    @property
    def idle_count(self):
        return self.streams.host_memory.stats().idle_count

    @contextmanager
    def job(self):
        with _finishing(self.streams):
            try:
                yield
                if self.fails:
                    raise EngineError("the network failed")
            finally:
                array = self._cupy.asarray(np.arange(1000))
                Download([array], stream=self.streams.copying, pool=self.streams.host_memory).wait()
        self.kept.append(self.idle_count > 0)


def selfie():
    """Return a scripted network with the name of one in the catalogue."""
    network = BrightnessNetwork()
    network.name = "selfie"
    return network


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    vram = FakeVram()
    monkeypatch.setitem(sys.modules, "cupy", vram.cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    streams = JobStreams(Device("cuda", "fake", 0))
    streams.host_memory.trim()
    gpu = Gpu(streams, cupy=vram.cupy)

    def open_job_here(stack, *args, streams, **wishes):
        assert streams is gpu.streams
        stack.enter_context(gpu.job())
        return open_job(stack, *args, streams=None, **wishes)

    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))  # ignore stretches of other tests
    segment_with(monkeypatch, selfie(), name="selfie")
    monkeypatch.setattr(streams, "bind", lambda _: None)
    monkeypatch.setattr(film_run, "open_job", open_job_here)
    monkeypatch.setattr(film_run, "open_streams", lambda *_: streams)
    monkeypatch.setattr(film_run.FilmRunner, "open_video", lambda _, video: open_video(video))
    return gpu


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("memory") / "in.mkv", frame_count=60, codec_options={"g": "10"})


def test_a_plain_run_after_one_in_stretches_gives_its_memory_back(gpu, clip, tmp_path):
    with Segmenter(settings=SETTINGS) as segmenter:
        segmenter.write(clip, [("mask", tmp_path / "a.mkv")], in_stretches=True)
        assert len(gpu.kept) > 1
        assert all(gpu.kept)
        assert gpu.idle_count == 0
        gpu.kept.clear()
        segmenter.write(clip, [("mask", tmp_path / "b.mkv")])
        assert gpu.kept == [False]
        assert len([*segmenter.stream(clip)]) == 60
        assert gpu.kept == [False, False]
        assert gpu.idle_count == 0


def test_a_stretch_that_fails_leaves_nothing(gpu, clip, tmp_path):
    with Segmenter(settings=SETTINGS) as segmenter:
        gpu.fails = True
        with pytest.raises(EngineError):
            segmenter.write(clip, [("mask", tmp_path / "a.mkv")], in_stretches=True)
        assert gpu.idle_count == 0
        assert not gpu.streams.keeps_idle_memory


def test_who_lends_its_network_keeps_nothing_before_the_first_stretch(gpu, clip, tmp_path):
    with Segmenter(settings=SETTINGS) as segmenter:
        StretchMaker(segmenter._runner)
        segmenter.write(clip, [("mask", tmp_path / "a.mkv")])
        assert gpu.kept == [False]
