"""Tests of what stays on a GPU, and of how many hardware decoders share a video."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitascope.config import Settings, load_settings
from vitascope.device import Device
from vitascope.frames import PIXEL_FORMATS
from vitascope.segmentation import capacity
from vitascope.segmentation.capacity import can_stay_on_gpu, decoder_sessions, session_buffer_bytes
from vitascope.segmentation.segmenter import Segmenter
from vitascope.segmentation.stills import StillSegmenter

UHD, ABOVE = (2160, 3840), (3840, 7680)


@pytest.mark.parametrize(
    ("size", "gibibytes", "values", "expected"),
    [
        ((1080, 1920), 100, {}, 1),
        ((1440, 2560), 100, {}, 1),
        (UHD, 100, {}, 3),
        (UHD, 7, {}, 1),
        (UHD, 15, {"inference": {"bidirectional": True}}, 1),  # its windows take memory, too
        (UHD, 16, {"inference": {"bidirectional": True}}, 3),
        (ABOVE, 100, {}, 4),
        (ABOVE, 10, {}, 1),
        (ABOVE, 7, {}, 1),
        (None, 100, {}, 1),
        (ABOVE, 100, {"performance": {"mode": "latency"}}, 1),
        ((16, 16), 1, {"gpu": {"decoder_sessions": 2}}, 2),
    ],
)
def test_large_videos_get_several_where_memory_allows(monkeypatch, size, gibibytes, values, expected):
    monkeypatch.setattr(capacity, "read_headers", lambda video: SimpleNamespace(size=size))
    streams = SimpleNamespace(allowed_bytes=lambda: gibibytes << 30)
    assert decoder_sessions(Settings(**values), Path("video.mp4"), streams=streams) == expected


@pytest.mark.parametrize(
    ("gibibytes", "processes", "memory_fraction", "expected"),
    [
        (100, 2, None, 2),
        (100, 3, None, 1),
        (10, 2, None, 1),  # two take two thirds of 8 GiB each; half of 10 is less
        (12, 2, None, 2),
        (6, 2, 0.5, 2),  # this is a process's own share already
    ],
)
def test_processes_of_a_gpu_share_its_decoders(monkeypatch, gibibytes, processes, memory_fraction, expected):
    monkeypatch.setattr(capacity, "read_headers", lambda video: SimpleNamespace(size=UHD))
    streams = SimpleNamespace(allowed_bytes=lambda: gibibytes << 30)
    settings = Settings(gpu={"memory_fraction": memory_fraction})
    sessions = decoder_sessions(settings, Path("video.mp4"), streams=streams, gpu_processes=processes)
    assert sessions == expected


def test_a_cpu_has_one():
    assert decoder_sessions(Settings(), Path("video.mp4"), streams=None) == 1
    assert session_buffer_bytes(Settings(), streams=None) is None


@pytest.mark.parametrize(
    ("gpu", "processes", "gibibytes"),
    [
        ({"max_vram_usage": 1.0}, 1, 16),
        ({"max_vram_usage": 0.5}, 1, 9),
        ({"max_vram_usage": 0.1}, 1, 1),
        ({"max_vram_usage": 0.1}, 2, 0.5),
        ({"max_vram_usage": 0.9, "memory_fraction": 0.5}, 1, 10),
        ({"max_vram_usage": 0.5, "memory_fraction": 0.5}, 1, 9),
    ],
)
def test_waiting_pictures_keep_to_what_a_run_may_take(gpu, processes, gibibytes):
    """Check that memory which the run has reserved counts as available: it is freed as frames arrive."""
    reserved = int(gpu.get("memory_fraction", 0) * 80) << 30
    streams = SimpleNamespace(
        total_bytes=lambda: 80 << 30,
        used_bytes=lambda: (4 << 30) + reserved,
        budget=SimpleNamespace(reserved_bytes=reserved),
    )
    found = session_buffer_bytes(Settings(gpu=gpu), streams=streams, gpu_processes=processes)
    assert found == pytest.approx(gibibytes * 2**30)


def test_what_stays_on_the_gpu():
    stays = {name for name, fmt in PIXEL_FORMATS.items() if can_stay_on_gpu(fmt)}
    assert stays == {"yuv420p", "yuv420p10le", "nv12", "p010le"}


class TestSuitedToDevice:
    """Check that ``fast`` on a GPU takes the network of ``balanced``, if that was fetched."""

    HERE, NOT_HERE = (SimpleNamespace(is_cached=lambda _, here=here: here) for here in (True, False))

    @pytest.fixture
    def gpu(self, monkeypatch):
        monkeypatch.setattr(capacity, "select_device", lambda *_, **__: Device("cuda", "fake"))

    def test_on_the_cpu_fast_stays_as_it_is(self):
        loaded = load_settings(profile="fast", flags={"gpu.device": "cpu"})
        assert capacity.suited_to_device(loaded, self.HERE) is loaded

    def test_on_a_gpu_network_and_edges_are_those_of_balanced(self, gpu):
        suited = capacity.suited_to_device(load_settings(profile="fast"), self.HERE).settings
        balanced = load_settings(profile="balanced").settings
        assert (suited.model.name, suited.edges) == ("rvm", balanced.edges)
        assert suited.output.speed == "fast"

    def test_nothing_is_fetched_for_it(self, gpu):
        loaded = load_settings(profile="fast")
        assert capacity.suited_to_device(loaded, self.NOT_HERE) is loaded

    def test_what_the_user_chose_stays(self, gpu):
        for flags in ({"model.name": "selfie"}, {"model.name": "selfie-landscape"}):
            loaded = load_settings(profile="fast", flags=flags)
            assert capacity.suited_to_device(loaded, self.HERE) is loaded
        loaded = load_settings(profile="fast", flags={"edges.threshold": [0.3, 0.8]})
        assert capacity.suited_to_device(loaded, self.HERE).settings.edges.threshold == (0.3, 0.8)

    @pytest.mark.parametrize("profile", ["balanced", "quality"])
    def test_other_profiles_stay(self, gpu, profile):
        loaded = load_settings(profile=profile)
        assert capacity.suited_to_device(loaded, self.HERE) is loaded

    @pytest.mark.parametrize(
        ("flags", "network"),
        [
            ({"gpu.device_ids": [0, 1]}, "rvm"),
            ({"processing.cluster": "auto"}, "selfie"),
            ({"processing.cluster": "auto", "gpu.device": "cuda"}, "rvm"),
            ({"processing.cluster": "auto", "gpu.device_ids": [0, 1]}, "rvm"),
        ],
    )
    def test_processes_share_one_network(self, gpu, flags, network):
        suited = capacity.suited_to_device(load_settings(profile="fast", flags=flags), self.HERE)
        assert suited.settings.model.name == network

    def test_gpus_that_are_named_and_not_there_are_none(self, monkeypatch):
        """Check that nothing is fetched for the CPU: still pictures use one device, whatever the list says."""
        monkeypatch.setattr(capacity, "select_device", lambda *_, **__: Device("cpu", "fake"))
        loaded = load_settings(profile="fast", flags={"gpu.device_ids": [0]})
        assert capacity.suited_to_device(loaded, self.HERE) is loaded

    @pytest.mark.parametrize("opened", [Segmenter, StillSegmenter])
    def test_applications_take_it(self, monkeypatch, opened):
        wanted = load_settings(profile="fast", flags={"gpu.device": "cpu"})
        suited = wanted.with_values({"edges.grow_px": 3.0})
        monkeypatch.setattr(sys.modules[opened.__module__], "suited_to_device", lambda *_: suited)
        with opened(loaded=wanted) as app:
            assert app.settings is suited.settings
