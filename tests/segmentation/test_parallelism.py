"""Check that jobs use the threads that settings ask for, and that frames keep their order."""

from __future__ import annotations

import threading

import av
import numpy as np
import pytest

from clips import write_clip
from photographs import astronaut
from scripted import BrightnessNetwork, segment_with
from vitascope.config import load_settings
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.segmentation import capacity, film_run
from vitascope.segmentation.capacity import Parallelism, notes_on_parallelism, parallelism_of
from vitascope.segmentation.matting.stream import StreamMatting
from vitascope.segmentation.render.renderer import Renderer
from vitascope.segmentation.segmenter import Segmenter

TOGETHER_SECONDS = 20


def sliding(n: int):
    """Paint frames with a cut before frame 15."""
    rgb = np.roll(astronaut()[:256:2, 60:316:2], n, axis=1)
    return np.ascontiguousarray(rgb if n < 15 else 255 - rgb // 2)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("parallel") / "in.mp4",
        width=128,
        height=128,
        frame_count=24,
        paint=sliding,
    )


@pytest.fixture
def scripted(monkeypatch):
    network = BrightnessNetwork()
    segment_with(monkeypatch, network)
    return network


class Meeting:
    """Wraps a method whose first calls wait until so many threads are inside at once."""

    def __init__(self, monkeypatch, owner, name, *, parties):
        self.threads: set[str] = set()
        original, barrier, lock = getattr(owner, name), threading.Barrier(parties), threading.Lock()
        waiting = [parties]

        def met(this, argument, **options):
            with lock:
                self.threads.add(threading.current_thread().name)
                waits = waiting[0] > 0
                waiting[0] -= 1
            if waits:
                barrier.wait(TOGETHER_SECONDS)
            return original(this, argument, **options)

        monkeypatch.setattr(owner, name, met)


def write(clip, out, **settings):
    flags = {"output.codec": "ffv1", "gpu.device": "cpu"} | {
        key.replace("__", "."): value for key, value in settings.items()
    }
    with Segmenter(profile="fast", settings=flags) as segmenter:
        return segmenter.write(
            clip, [(kind, out.with_stem(f"{out.stem}_{kind}")) for kind in ("mask", "key")]
        )


def pictures(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray() for frame in container.decode(video=0)]


@pytest.mark.parametrize(
    ("setting", "owner", "method"),
    [
        ("model__num_workers", StreamMatting, "prepare"),
        ("pipeline__stages__postprocess__threads", Renderer, "render"),
    ],
)
def test_so_many_threads_work_at_a_time_and_the_film_is_the_same(
    clip, tmp_path, scripted, monkeypatch, setting, owner, method
):
    one = write(clip, tmp_path / "one.mkv", **{setting: 1})
    meeting = Meeting(monkeypatch, owner, method, parties=3)
    three = write(clip, tmp_path / "three.mkv", **{setting: 3})
    assert len(meeting.threads) == 3
    assert three.scene_cut_count == one.scene_cut_count == 1
    assert three.notes == ()
    for kind in ("mask", "key"):
        ours, theirs = (pictures(tmp_path / f"{name}_{kind}.mkv") for name in ("three", "one"))
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_what_needs_frames_in_order_has_one_thread(clip, tmp_path, scripted, monkeypatch):
    meeting = Meeting(monkeypatch, Renderer, "render", parties=1)
    wanted = {"pipeline__stages__postprocess__threads": 3}
    report = write(clip, tmp_path / "o.mkv", edges__temporal_smoothing=0.5, **wanted)
    assert len(meeting.threads) == 1
    assert report.notes == (
        "pipeline.stages.postprocess.threads has no effect here: temporal smoothing needs frames in order",
    )
    behind = write_clip(tmp_path / "behind.mp4", frame_count=5)
    flags = {"output.background": str(behind), "pipeline.stages.postprocess.threads": 3, "gpu.device": "cpu"}
    meeting.threads.clear()
    with Segmenter(profile="fast", settings=flags) as segmenter:
        segmenter.write(clip, [("replace", tmp_path / "r.mp4")])
    assert len(meeting.threads) == 1


@pytest.mark.parametrize(("ahead", "most"), [(1, 2), (3, 6)])
def test_batches_that_wait_for_the_network(clip, tmp_path, scripted, monkeypatch, ahead, most):
    """Check two frames a call and one thread; the network waits until as many batches are ready as allowed."""
    queue = threading.Semaphore(0)
    prepare, infer = StreamMatting.prepare, StreamMatting.infer

    def prepared(this, frame):
        queue.release()
        return prepare(this, frame)

    def slow(this, batch):
        for _ in batch:
            queue.acquire(timeout=0.2)
        return infer(this, batch)

    monkeypatch.setattr(StreamMatting, "prepare", prepared)
    monkeypatch.setattr(StreamMatting, "infer", slow)
    report = write(
        clip, tmp_path / "o.mkv", model__prefetch_factor=ahead, model__num_workers=1, model__batch_size=2
    )
    assert 0 < report.pipeline.queues[1].occupancy_max <= most
    assert report.frame_count == 24


def test_limits_follow_from_threads_and_batches():
    limits = QueueLimits(items=32, nbytes=1000)
    wanted = Parallelism(prepare_threads=2, batches_ahead=3, prepare_streams=4)
    assert wanted.prepared_limits(limits, frames=4) == QueueLimits(items=24, nbytes=1000)
    assert wanted.prepared_limits(limits, frames=100).items == 32
    assert wanted.prepared_batch_limits(limits) == QueueLimits(items=12, nbytes=1000)


def test_the_settings_are_read():
    flags = {
        "model.num_workers": 0,
        "model.prefetch_factor": 5,
        "pipeline.stages.preprocess.cuda_streams": 2,
        "pipeline.stages.postprocess.threads": 7,
    }
    assert parallelism_of(load_settings(flags=flags).settings) == Parallelism(1, 2, 5, 7)
    flags = {"pipeline.stages.postprocess.threads": 0, "processing.max_queue_size": 1}
    assert parallelism_of(load_settings(flags=flags).settings).draw_threads == 1


@pytest.mark.parametrize(
    ("asked", "samples", "threads"), [(0, 288 * 512, 16), (0, 2 << 20, 2), (0, 1 << 24, 1), (5, 1 << 24, 5)]
)
def test_as_many_threads_draw_as_large_pictures_leave_memory_for(monkeypatch, asked, samples, threads):
    monkeypatch.setattr(capacity, "available_cores", lambda: 16)
    settings = load_settings(flags={"pipeline.stages.postprocess.threads": asked}).settings
    assert parallelism_of(settings, network_samples=samples).draw_threads == threads


def test_a_job_knows_how_much_its_network_sees(scripted, clip, tmp_path, monkeypatch):
    asked = []

    def noted(settings, **seen):
        asked.append(seen["network_samples"])
        return parallelism_of(settings, **seen)

    monkeypatch.setattr(film_run, "parallelism_of", noted)
    report = write(clip, tmp_path / "o.mkv", video__stereo="sbs")
    assert asked == [2 * report.network_size[0] * report.network_size[1]]


KEYS = {
    "model.num_workers": 4,
    "pipeline.stages.postprocess.threads": 4,
    "pipeline.stages.preprocess.cuda_streams": 4,
    "processing.use_multiprocessing": True,
    "processing.chunk_size": 100,
    "processing.overlap_frames": 10,
    "dataloader.persistent_workers": True,
}


@pytest.mark.parametrize(
    ("on_gpu", "shared", "idle"),
    [
        (False, True, {"pipeline.stages.preprocess.cuda_streams"}),
        (True, True, {"model.num_workers", "pipeline.stages.postprocess.threads"}),
        (True, False, set(KEYS) - {"pipeline.stages.preprocess.cuda_streams"}),
    ],
)
def test_wishes_without_effect_are_named(on_gpu, shared, idle):
    loaded = load_settings(flags=KEYS)
    notes = notes_on_parallelism(loaded, stays_on_gpu=on_gpu, is_shared=shared)
    assert {note.partition(" ")[0] for note in notes} == idle
    assert notes_on_parallelism(load_settings(), stays_on_gpu=on_gpu, is_shared=shared) == []
