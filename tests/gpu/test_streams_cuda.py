"""Tests of memory limits on a real GPU, and of jobs under them."""

from __future__ import annotations

import gc
import sys
import time
from fractions import Fraction
from statistics import median

import numpy as np
import pytest

from clips import write_clip
from photographs import astronaut
from scripted import BrightnessNetwork, segment_with
from vitascope.config import load_settings
from vitascope.device import select_device
from vitascope.errors import DeviceMemoryError, VitascopeError
from vitascope.gpu.streams import JobStreams
from vitascope.segmentation.segmenter import Segmenter

pytestmark = [pytest.mark.cuda, pytest.mark.whole_gpu]

MIB = 1 << 20


def of_torch() -> int:
    """Return the bytes that PyTorch holds, if an earlier test loaded it."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else torch.cuda.memory_reserved(0)


@pytest.fixture
def idle_gpu():
    """Return free and total memory, after freeing all idle memory of this process."""
    import cupy

    gc.collect()
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.cuda.Device(0).synchronize()
    before, found = None, cupy.cuda.runtime.memGetInfo()
    ends_at = time.monotonic() + 10
    while found != before and time.monotonic() < ends_at:  # memory of a finished process returns late
        time.sleep(0.5)
        before, found = found, cupy.cuda.runtime.memGetInfo()
    return found


def test_cupy_stops_at_the_limit(idle_gpu) -> None:
    import cupy

    free, total = idle_gpu
    wanted = (total - free + 512 * MIB) / total
    streams = JobStreams(select_device("cuda"), max_vram_usage=wanted)
    try:
        held = [cupy.empty(100 * MIB, cupy.uint8) for _ in range(4)]
        with pytest.raises(DeviceMemoryError, match=r"as far as gpu\.max_vram_usage"):
            held += [cupy.empty(100 * MIB, cupy.uint8) for _ in range(4)]
        assert cupy.cuda.runtime.memGetInfo()[0] >= free - 512 * MIB - 64 * MIB
        # Idle memory of other streams is freed before the limit is an error.
        del held
        with streams.copying:
            assert cupy.empty(300 * MIB, cupy.uint8).size
    finally:
        streams.close()
    assert cupy.empty(700 * MIB, cupy.uint8).size
    cupy.get_default_memory_pool().free_all_blocks()


def test_torch_stops_at_the_limit(idle_gpu) -> None:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    streams = JobStreams(select_device("cuda"), max_vram_usage=(total - free + 512 * MIB) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    finally:
        streams.close()
    assert torch.empty(1 << 30, dtype=torch.uint8, device="cuda").numel()
    torch.cuda.empty_cache()


def test_the_fraction_is_reserved_at_once(idle_gpu) -> None:
    import cupy

    _, total = idle_gpu
    share = 1024 * MIB / total
    taken = []
    # Memory of a process that is still ending may return meanwhile: once, but not most of the times.
    for _ in range(5):
        free, _ = cupy.cuda.runtime.memGetInfo()
        streams = JobStreams(select_device("cuda"), memory_fraction=share)
        taken.append(free - cupy.cuda.runtime.memGetInfo()[0])
        streams.close()
    held = cupy.get_default_memory_pool().total_bytes() + of_torch()
    assert 960 * MIB <= median(taken) + held <= 1088 * MIB, (taken, held)
    free, _ = cupy.cuda.runtime.memGetInfo()
    streams = JobStreams(select_device("cuda"), memory_fraction=share)
    try:
        fitting = (1024 * MIB - of_torch()) // (100 * MIB) - 2  # including what earlier tests left in PyTorch
        held = [cupy.empty(100 * MIB, cupy.uint8) for _ in range(fitting)]
        assert free - cupy.cuda.runtime.memGetInfo()[0] <= 1152 * MIB
        with pytest.raises(DeviceMemoryError):
            held += [cupy.empty(100 * MIB, cupy.uint8) for _ in range(4)]
        del held
    finally:
        streams.close()
    cupy.get_default_memory_pool().free_all_blocks()
    assert cupy.cuda.runtime.memGetInfo()[0] >= free - 256 * MIB


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    def paint(index: int):
        return np.ascontiguousarray(np.roll(astronaut(), 3 * index, axis=1)[:360, :480])

    return write_clip(
        tmp_path_factory.mktemp("gpu") / "in.mp4",
        width=480,
        height=360,
        frame_count=40,
        frame_rate=Fraction(25),
        paint=paint,
    )


@pytest.fixture
def scripted(monkeypatch):
    from vitascope.models.host_network import HostNetwork

    network = HostNetwork(BrightnessNetwork(recurrent=True))
    segment_with(monkeypatch, network)


def alphas(clip, **settings):
    flags = {"gpu.device": "cuda", **settings}
    with Segmenter(loaded=load_settings(profile="fast", flags=flags)) as segmenter:
        return [step.alpha for step in segmenter.stream(clip)]


@pytest.mark.parametrize(
    "settings",
    [{"dataloader.pin_memory": False}, {"gpu.memory_fraction": 0.05}, {"gpu.max_vram_usage": 0.95}],
    ids=str,
)
def test_memory_changes_no_picture(clip, scripted, settings) -> None:
    for one, other in zip(alphas(clip), alphas(clip, **settings), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_limit_that_is_too_low_is_one_clear_line(clip, scripted, idle_gpu) -> None:
    free, total = idle_gpu
    with pytest.raises(VitascopeError, match="memory") as caught:
        alphas(clip, **{"gpu.max_vram_usage": max((total - free) / total * 0.5, 1e-6)})
    assert "max_vram_usage" in str(caught.value) or "max_vram_usage" in str(
        getattr(caught.value, "exceptions", "")
    )
    assert len(alphas(clip)) == 40  # nothing of it stays
