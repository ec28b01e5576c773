"""What stays on a GPU, and how many hardware decoders share a video."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from vitascope.config import Settings
from vitascope.frames import PIXEL_FORMATS
from vitascope.segmentation import capacity
from vitascope.segmentation.capacity import can_stay_on_gpu, decoder_sessions

UHD, ABOVE = (2160, 3840), (3840, 7680)


@pytest.mark.parametrize(
    ("size", "gibibytes", "values", "expected"),
    [
        ((1080, 1920), 100, {}, 1),
        ((1440, 2560), 100, {}, 1),
        (UHD, 100, {}, 3),
        (UHD, 7, {}, 1),
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
        (10, 2, None, 1),  # two each take two thirds of 8 GiB, and half of 10 is less
        (12, 2, None, 2),
        (6, 2, 0.5, 2),  # of a share that is its own already
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


def test_what_stays_on_the_gpu():
    stays = {name for name, fmt in PIXEL_FORMATS.items() if can_stay_on_gpu(fmt)}
    assert stays == {"yuv420p", "yuv420p10le", "nv12", "p010le"}
