"""Check that every preset only names existing settings within their limits, and that each GPU finds its own."""

from __future__ import annotations

import pytest

from vitascope.config import load_settings
from vitascope.device import Device
from vitascope.errors import UsageError
from vitascope.tune.knobs import SIZES, preset_for, preset_names, preset_values


def test_every_preset_loads_as_settings():
    names = preset_names()
    assert len(names) == 17 * len(SIZES)
    for name in names:
        loaded = load_settings(flags=preset_values(name))
        assert loaded.settings.frames_per_call == preset_values(name)["model.batch_size"]


def test_batches_shrink_as_films_grow():
    for gpu in {name.rpartition("-")[0] for name in preset_names()}:
        batches = [preset_values(f"{gpu}-{size}")["model.batch_size"] for size in SIZES]
        assert batches == sorted(batches, reverse=True)


@pytest.mark.parametrize(
    ("label", "size", "name"),
    [
        ("NVIDIA GeForce RTX 3090 (GPU 0, 24 GiB, compute capability 8.6)", (3840, 2160), "rtx3090-4k"),
        (
            "NVIDIA GeForce RTX 2080 Ti (GPU 0, 11 GiB, compute capability 7.5)",
            (1920, 1080),
            "rtx2080ti-1080p",
        ),
        ("NVIDIA GeForce RTX 2080 (GPU 0, 8 GiB, compute capability 7.5)", (640, 480), "rtx2080-1080p"),
        ("NVIDIA H200 (GPU 0, 140 GiB, compute capability 9.0)", (7680, 3840), "h200-8k"),
        ("NVIDIA A100-SXM4-80GB (GPU 0, 80 GiB, compute capability 8.0)", (1920, 1080), None),
    ],
)
def test_the_preset_of_a_gpu(label, size, name):
    assert preset_for(Device("cuda", label), width=size[0], height=size[1]) == name


def test_the_processor_has_no_preset():
    assert preset_for(Device("cpu", "CPU (2 cores)"), width=1920, height=1080) is None


@pytest.mark.parametrize("name", ["rtx3090", "list", "rtx9999-4k", "rtx3090-5k", "../x-4k", ""])
def test_unknown_presets(name):
    with pytest.raises(UsageError, match="there is no preset"):
        preset_values(name)
