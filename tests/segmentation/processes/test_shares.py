"""Tests of how many processes share a video, and what each gets of the machine."""

from __future__ import annotations

import pytest

from vitascope.config import load_settings
from vitascope.segmentation.capacity import gpu_bytes_needed, gpu_room_bytes
from vitascope.segmentation.processes import shares
from vitascope.segmentation.processes.shares import (
    frames_after,
    plan_crew,
    plan_node,
    settings_of_pictures,
    warm_up_frames,
)


@pytest.mark.parametrize(
    ("recurrent", "smoothing", "overlap", "frames"),
    [
        (True, 0.0, None, 192),
        (False, 0.0, None, 16),
        (False, 0.8, None, 34),
        (True, 0.99, None, 432),
        (True, 0.9, 7, 7),
    ],
)
def test_a_memory_needs_its_time(recurrent, smoothing, overlap, frames):
    flags = {"edges.temporal_smoothing": smoothing, "processing.overlap_frames": overlap}
    assert warm_up_frames(load_settings(flags=flags).settings, recurrent=recurrent) == frames


@pytest.mark.parametrize(("flags", "frames"), [({}, 10), ({"video.scene_cut_threshold": 0}, 7)])
def test_what_is_behind_is_seen_as_far_as_cuts_and_beginnings_of_shots_look(flags, frames):
    assert frames_after(load_settings(flags=flags).settings) == frames
    assert frames_after(load_settings(flags=flags | {"model.look_ahead_frames": 0}).settings) == frames - 7


@pytest.mark.parametrize(
    ("key", "value", "is_of_pictures"),
    [
        ("edges.feather_px", 2.0, True),
        ("model.batch_size", 2, True),
        ("pipeline.stages.inference.batch_size", 2, True),
        ("output.key_color", "#00FF00", True),
        ("gpu.precision", "fp32", True),
        ("processing.num_threads", 3, False),
        ("processing.use_multiprocessing", True, False),
        ("pipeline.stages.decode.threads", 3, False),
        ("gpu.device_ids", "0,0,0", False),
    ],
)
def test_which_settings_are_of_pictures(key, value, is_of_pictures):
    before = settings_of_pictures(load_settings().settings)
    assert (settings_of_pictures(load_settings(flags={key: value}).settings) != before) == is_of_pictures


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(shares, "available_cores", lambda: 16)
    plans = plan_crew(load_settings(flags={"processing.max_queue_mb": 100}))
    assert [plan.label for plan in plans] == [f"worker process {n} of 4" for n in (1, 2, 3, 4)]
    shared = plans[0].loaded.settings
    assert (shared.processing.num_threads, shared.processing.max_queue_mb) == (4, 25)
    assert shared.pipeline.stages.postprocess.threads == shared.pipeline.stages.decode.threads == 4
    own = load_settings(flags={"processing.num_threads": 8})
    plans = plan_crew(own)
    assert len(plans) == 2
    assert plans[1].loaded.settings.processing.num_threads == 8
    gpus = plan_crew(load_settings(flags={"gpu.device_ids": "3,1"}))
    assert [(plan.label, plan.loaded.settings.gpu.device_id) for plan in gpus] == [
        ("the process of GPU 3", 3),
        ("the process of GPU 1", 1),
    ]


def test_a_gpu_that_is_named_twice_gets_two_processes_that_share_what_is_reserved():
    plans = plan_crew(load_settings(flags={"gpu.device_ids": "0,1,0", "gpu.memory_fraction": 0.5}))
    assert [(plan.label, plan.loaded.settings.gpu.device_id) for plan in plans] == [
        ("process 1 of GPU 0", 0),
        ("the process of GPU 1", 1),
        ("process 2 of GPU 0", 0),
    ]
    assert [plan.loaded.settings.gpu.memory_fraction for plan in plans] == [0.25, 0.5, 0.25]
    assert [plan.gpu_processes for plan in plans] == [2, 1, 2]


def test_what_a_node_has_room_for():
    def kinds(cores, gpus, **flags):
        flags = {key.replace("__", "."): value for key, value in flags.items()}
        parts = plan_node(load_settings(flags=flags), cores=cores, gpus=gpus)
        assert sum(share.cores for share in parts) <= cores
        settings = [share.loaded.settings for share in parts]
        return [(own.gpu.device, own.processing.num_threads) for own in settings]

    assert kinds(16, 0) == [("cpu", 4)] * 4
    assert kinds(1, 0) == [("cpu", 1)]
    assert kinds(16, 2) == [("cuda", 8)] * 2
    assert kinds(8, 2, gpu__device="cpu") == [("cpu", 4)] * 2
    assert kinds(16, 0, gpu__device="cuda") == []
    assert kinds(16, 0, gpu__device_ids="0,0") == []
    assert kinds(16, 1, gpu__device_ids="0,0,1") == [("cuda", 8)] * 2
    assert kinds(16, 4, gpu__device_ids="0,0,1") == [("cuda", 5)] * 3


GB = 10**9


@pytest.mark.parametrize(
    ("ids", "memory", "sharing"),
    [
        (None, [GB, 8 * GB], [1]),
        (None, [None, 8 * GB], [1, 1]),
        (None, [GB], []),
        ("0,0,1", [2 * GB, 8 * GB], [2, 2, 1]),
        ("0,0,1", [2 * GB, 2 * GB], [1]),
        ("0", [GB, 8 * GB], [1]),
    ],
)
def test_gpus_of_a_node_that_are_too_small_get_nobody(ids, memory, sharing):
    loaded = load_settings(flags={"gpu.device_ids": ids, "gpu.memory_fraction": 0.9})
    parts = plan_node(loaded, cores=8, gpus=len(memory), gpu_bytes=memory)
    assert [share.gpu_processes for share in parts] == sharing
    for share in parts:
        assert share.loaded.settings.gpu.memory_fraction == 0.9 / share.gpu_processes
        assert share.loaded.settings.gpu.device_ids is None


def test_what_a_gpu_must_have_and_what_it_has():
    def needed(size, *, sample_bytes=1, **flags):
        flags = {f"gpu.{key}" if key != "batch_size" else "model.batch_size": v for key, v in flags.items()}
        return gpu_bytes_needed(load_settings(flags=flags), size, sample_bytes=sample_bytes) / GB

    hd, uhd, eight = (1080, 1920), (2160, 3840), (4320, 7680)
    assert 1 < needed(None) < needed(hd) < needed(uhd) < needed(eight) < 4
    assert needed(eight, sample_bytes=2) > 1.5 * needed(eight)
    assert 10 < needed(eight, decoder_sessions=4) < 15
    assert needed(hd, batch_size=64) > needed(hd)

    def room(total, free=None, processes=1, **flags):
        settings = load_settings(flags={f"gpu.{key}": value for key, value in flags.items()}).settings
        return gpu_room_bytes(settings, total * GB, free_bytes=free and free * GB, processes=processes) / GB

    assert room(10) == 9
    assert room(10, free=5) == 4
    assert room(10, free=1) == 0
    assert room(10, free=11) == 9  # free memory is counted differently
    assert room(10, processes=2) == 4.5
    assert room(10, free=5, memory_fraction=0.3) == 3
