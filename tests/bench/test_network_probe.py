"""Tests of measuring the network alone: what it is shown, how long, and by which clock."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from clips import write_clip
from fake_cupy import fake_cupy
from vitascope.bench import network_probe
from vitascope.bench.measured_run import MeasuredSegmenter
from vitascope.bench.network_probe import NetworkProbe, ProbeEffort, video_pictures
from vitascope.bench.results import Operations
from vitascope.config import load_settings
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import NetworkInput, StatelessState
from vitascope.segmentation.matting.cached_film import opening

EFFORT = ProbeEffort(fewest_calls=3, most_calls=3, seconds=0, traced_calls=1)


class CountingNetwork:
    """Returns nothing, and records its pictures."""

    name, engine_name, recurrent = "counting", "no engine", False

    def __init__(self, dtype="float32"):
        self.shown = []
        self.input = NetworkInput(size=(18, 32), layout="NCHW", dtype=dtype)

    def input_for(self, region_size):
        del region_size
        return self.input

    def new_state(self):
        return StatelessState()

    def infer(self, images, state):
        del state
        self.shown.append(images)
        return []

    def close(self):
        pass


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("probe") / "in.mp4", frame_count=6)


def test_pictures_are_the_films_first_frames(film):
    network, loaded = CountingNetwork("float16"), load_settings(profile="fast")
    pictures = video_pictures(film, network=network, loaded=loaded, count=4)
    assert pictures.shape == (4, 1, 3, 18, 32)
    assert pictures.dtype == np.float16
    assert pictures.std() > 0.01
    assert not np.array_equal(pictures[0], pictures[1])
    longer = video_pictures(film, network=network, loaded=loaded, count=8)
    assert np.array_equal(longer[:4], pictures)
    assert np.array_equal(longer[6:], pictures[:2])  # starts again


def test_two_eyes_are_two_pictures(film):
    loaded = load_settings(profile="fast", assignments=["video.stereo=side-by-side"])
    assert video_pictures(film, network=CountingNetwork(), loaded=loaded, count=2).shape == (2, 2, 3, 18, 32)


@pytest.mark.parametrize(("batch", "warm_ups"), [(1, 12), (4, 3), (32, 2)])
def test_warm_ups_are_enough_for_gates_to_settle(batch, warm_ups):
    network = CountingNetwork()
    times = NetworkProbe(EFFORT)._times_on_host(network, np.zeros((batch, 1, 3, 18, 32), np.float32))
    assert len(times) == 3
    assert len(network.shown) == warm_ups + 3
    assert min(times) >= 0


def test_on_a_gpu_its_own_clock_counts(monkeypatch):
    cupy = fake_cupy()
    cupy.cuda.get_elapsed_time = lambda start, stop: 8.0
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    network = CountingNetwork()
    times = NetworkProbe(EFFORT)._times_on_gpu(network, np.zeros((4, 1, 3, 18, 32), np.float32), 1)
    assert times == [2.0] * 3  # eight milliseconds for four frames
    assert all(is_on_gpu(images) for images in network.shown)
    records = [entry for entry in cupy.diary if entry[0] == "record"]
    assert len(records) == 6
    assert {stream for _, stream, _ in records} != {0}
    assert cupy.diary[-1][0] == "synchronize"


@pytest.mark.parametrize("look", ["_times_on_gpu", "_kernels"])
def test_a_gpu_whose_memory_is_full_is_named(monkeypatch, look):
    cupy = fake_cupy()

    def full(_):
        raise cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 1 bytes")

    cupy.asarray = full
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(network_probe, "import_cupy", lambda: cupy)
    with pytest.raises(DeviceMemoryError, match="the GPU's memory is used up"):
        getattr(NetworkProbe(EFFORT), look)(CountingNetwork(), np.zeros((1, 1, 3, 18, 32), np.float32), 0)


def test_kernels_that_nobody_can_record_are_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    found = NetworkProbe(EFFORT)._kernels(CountingNetwork(), np.zeros((1, 1, 3, 18, 32), np.float32), 0)
    assert found.by_time == ()
    assert "PyTorch" in found.missing


def test_a_real_network_on_the_processor(film):
    loaded = load_settings(profile="fast", flags={"model.name": "selfie"})
    with MeasuredSegmenter(loaded=loaded) as segmenter:
        first = NetworkProbe(EFFORT).look(segmenter, film, batch=2)
    assert first.row.n == 3
    assert "onnxruntime" in first.operations.source
    assert first.operations.by_time[0].mbytes is not None


def test_on_a_gpu_kernels_are_recorded(film, monkeypatch):
    kernels = Operations(source="PyTorch's profiler", ms=1.0)
    monkeypatch.setattr(NetworkProbe, "_times_on_gpu", lambda *_: [2.0])
    monkeypatch.setattr(NetworkProbe, "_kernels", lambda *_: kernels)
    loaded = load_settings(profile="fast", flags={"model.name": "selfie"})
    with MeasuredSegmenter(loaded=loaded) as segmenter:
        on_gpu = SimpleNamespace(
            chosen=segmenter.chosen, device=SimpleNamespace(kind="cuda", index=0), loaded=loaded
        )
        found = NetworkProbe(EFFORT).look(on_gpu, film, batch=2)
    assert found.operations is kernels
    assert found.row.samples == (2.0,)


def test_operators_bear_the_name_of_the_engine_that_ran_them(film, monkeypatch):
    loaded = load_settings(profile="fast", flags={"model.name": "selfie"})
    with MeasuredSegmenter(loaded=loaded) as segmenter:
        measured = opening(segmenter.chosen).network
        monkeypatch.setattr(type(measured), "engine_name", property(lambda one: f"engine {one is measured}"))
        found = NetworkProbe(EFFORT).look(segmenter, film, batch=1)
    assert found.operations.source == "engine False"


def test_a_network_that_cannot_be_opened_on_the_processor_keeps_its_time(film, monkeypatch):
    def fails(*_):
        raise EngineError("no such operator")

    monkeypatch.setattr(network_probe, "open_on_cpu", fails)
    loaded = load_settings(profile="fast", flags={"model.name": "selfie"})
    with MeasuredSegmenter(loaded=loaded) as segmenter:
        found = NetworkProbe(EFFORT).look(segmenter, film, batch=1)
    assert found.row.n == 3
    assert found.operations.missing == "no such operator"
