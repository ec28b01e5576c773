"""How many processes share a video, and what each gets of the machine."""

from __future__ import annotations

import pytest

from vitascope.config import load_settings
from vitascope.segmentation.processes import plan as crew_plan
from vitascope.segmentation.processes.plan import (
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
    monkeypatch.setattr(crew_plan, "available_cores", lambda: 16)
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
    assert [plan.loaded.settings.gpu.decoder_sessions for plan in plans] == [1, "auto", 1]


def test_what_a_node_has_room_for():
    def kinds(cores, gpus, **flags):
        flags = {key.replace("__", "."): value for key, value in flags.items()}
        plans = plan_node(load_settings(flags=flags), cores=cores, gpus=gpus)
        return [(plan.settings.gpu.device, plan.settings.processing.num_threads) for plan in plans]

    assert kinds(16, 0) == [("cpu", 4)] * 4
    assert kinds(1, 0) == [("cpu", 1)]
    assert kinds(16, 2) == [("cuda", 8)] * 2
    assert kinds(8, 2, gpu__device="cpu") == [("cpu", 4)] * 2
    assert kinds(16, 0, gpu__device="cuda") == []
