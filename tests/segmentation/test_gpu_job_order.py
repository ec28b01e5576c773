"""Tests of which stream of a GPU job waits for which, with a fake CuPy that keeps a diary.

Fake kernels record when and on which stream they would run, and paint a frame's number.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_cupy import FakeArray
from fake_vram import FakeVram
from pictures import random_frame
from vitascope.config import load_settings
from vitascope.device import Device
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.kernels import composite, guided, small_matte
from vitascope.gpu.kernels import preprocess as preprocess_cuda
from vitascope.gpu.kernels.cuda_module import wait_until_ready
from vitascope.gpu.memory import pinned_pool
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.profiling.gpu_clock import StreamTimes
from vitascope.gpu.streams import JobStreams
from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer
from vitascope.media.writing.encoding import choose_encoding
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation import gpu_job
from vitascope.segmentation.gpu_job import GpuJob
from vitascope.segmentation.matting import stream as stream_module
from vitascope.segmentation.matting.shot_windows import ShotBeginnings
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.render.renderer import Renderer

HEIGHT, WIDTH = 32, 48
FRAMES_A_CALL = 6


class EmptyNetwork:
    """Returns coefficients on the GPU, and records when."""

    name = engine_name = "empty"
    recurrent = False
    side_multiple = None

    def __init__(self, note):
        self.note = note

    def input_for(self, region_size):
        return NetworkInput((16, 24), "NCHW")

    def new_state(self):
        return self

    def reset(self):
        pass

    def infer(self, images, state):
        self.note("network")
        planes = np.zeros((len(images), 1, 4, 16, 24), np.float32).view(FakeArray)
        return [MatteEstimate(gain=one, offset=one) for one in planes]

    def close(self):
        pass


@dataclass
class Running:
    """A job, its streams, and the diary."""

    job: GpuJob
    streams: JobStreams
    stages: list[Any]
    diary: list[Any]
    cupy: Any

    def frame(self, index):
        """Make a frame as a decoder returns it, with an event of the default stream."""
        frame = random_frame(PIXEL_FORMATS["nv12"], (HEIGHT, WIDTH), seed=index)
        ready = self.cupy.cuda.Event()
        ready.record(self.cupy.cuda.Stream.here.entered[0])
        planes = tuple(np.array(plane).view(FakeArray) for plane in frame.planes)
        return replace(frame, planes=planes, index=index, pts=index, ready=ready)

    def run(self, count):
        """Run the stages one after the other; returns frames, batches, pending and finished items."""
        preparing, matting, download = self.stages
        frames = [self.frame(index) for index in range(count)]
        batches, pending = [], []
        preparing.open()
        for frame in frames:
            batches += preparing.grouper.accumulate(frame)
        batches += preparing.grouper.flush()
        matting.open()
        for batch in batches:
            pending += [one for some in matting.grouper.accumulate(batch) for one in some.items]
        pending += [one for some in matting.grouper.flush() for one in some.items]
        download.open()
        return frames, batches, pending, [download.work(one) for one in pending]


@pytest.fixture
def running(monkeypatch):
    gpu = FakeVram()
    cupy, diary = gpu.cupy, gpu.cupy.diary
    stream = cupy.cuda.Stream
    cupy.cuda.Device.use = lambda self: None
    cupy.cuda.get_elapsed_time = lambda start, stop: 1.0
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(pinned_pool, "_SHARED", {})  # do not borrow another test's memory

    def note(name, index=None):
        diary.append((name, stream.here.current.ptr, index))

    def prepare(frame, regions, *, out, **_):
        wait_until_ready(frame)
        note("preprocess", frame.index)
        return out

    def paint(frame, regions, matte, paint, *, planar, **_):
        wait_until_ready(frame)
        note("composite", frame.index)
        fmt = PIXEL_FORMATS["yuv420p" if planar else "nv12"]
        shapes = [(HEIGHT, WIDTH), (HEIGHT // 2, WIDTH // 2), (HEIGHT // 2, WIDTH // 2)]
        planes = tuple(np.full(shape, frame.index, np.uint8).view(FakeArray) for shape in shapes)
        return replace(frame, planes=planes, format=fmt, ready=None)

    def refine(frame, regions, coefficients):
        wait_until_ready(frame)
        note("refine", frame.index)
        return np.full((HEIGHT, WIDTH), frame.index, np.uint8).view(FakeArray)

    def tiles(pictures):
        return np.zeros((len(pictures), 3, 9, 16), np.float32).view(FakeArray)

    def small_alpha(name, picture, gain, offset):
        assert name == "alpha_at_grey"
        return np.zeros((len(picture), *picture.shape[2:]), np.float32).view(FakeArray)

    monkeypatch.setattr(preprocess_cuda, "_launch_preprocess", prepare)
    monkeypatch.setattr(small_matte, "_launch", small_alpha)
    monkeypatch.setattr(composite, "paint_on_gpu", paint)
    monkeypatch.setattr(guided, "refine_on_gpu", refine)
    monkeypatch.setattr(stream_module, "tile_means", tiles)
    streams = JobStreams(Device("cuda", "fake", 0), preparing_streams=2)
    times = StreamTimes()
    sizer = AdaptiveBatchSizer(FRAMES_A_CALL, max_batch_size=FRAMES_A_CALL, growing=False)
    matting = StreamMatting(
        EmptyNetwork(note), size=(HEIGHT, WIDTH), layout=StereoLayout.MONO, options=MattingOptions(),
        sizer=sizer, times=times,
    )  # fmt: skip
    renderer = Renderer(
        [("key", choose_encoding(Path("key.mp4"), source_format=PIXEL_FORMATS["yuv420p"]))],
        matting,
        settings=load_settings().settings.output,
    )
    job = GpuJob(matting, renderer, streams=streams, sizer=sizer, times=times, limits=QueueLimits())
    stages = job.stages(wants_alpha=lambda index: index == 3)
    yield Running(job, streams, stages, diary, cupy)
    streams.close()


def place(diary, entry):
    assert entry in diary, (entry, diary)
    return diary.index(entry)


def test_pictures_are_prepared_behind_the_decoder_and_the_network_sees_them_behind_that(running):
    running.cupy.is_slow = True
    frames, batches, *_ = running.run(10)
    diary, computing = running.diary, running.streams.computing.ptr
    assert [len(batch.frames) for batch in batches] == [6, 4]
    used = []
    for batch in batches:
        kernels = [place(diary, entry) for entry in diary if entry[0] == "preprocess" and entry[2] in
                   {frame.index for frame in batch.frames}]  # fmt: skip
        stream = diary[kernels[0]][1]
        used.append(stream)
        for frame, kernel in zip(batch.frames, kernels, strict=True):
            assert diary[kernel] == ("preprocess", stream, frame.index)
            assert place(diary, ("wait", stream, frames[frame.index].ready.number)) < kernel
        prepared = place(diary, ("record", stream, batch.prepared.number))
        assert prepared > max(kernels)
        waited = place(diary, ("wait", computing, batch.prepared.number))
        assert waited > prepared
        for frame in batch.frames:
            assert place(diary, ("composite", computing, frame.index)) > waited
    assert len(set(used)) == 2  # two streams, in turn
    assert computing not in used
    # Once for a batch, not for every frame.
    assert [entry[2] for entry in diary if entry[:2] == ("wait", computing)] == [
        batch.prepared.number for batch in batches
    ]
    networks = [n for n, entry in enumerate(diary) if entry[0] == "network"]
    assert all(n > place(diary, ("wait", computing, batches[0].prepared.number)) for n in networks)


def test_frames_that_are_drawn_together_come_down_together_and_apart(running):
    _, _, pending, rendered = running.run(10)
    diary = running.diary
    computing, copying = running.streams.computing.ptr, running.streams.copying.ptr
    groups = [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]  # by fours, in calls of six
    assert len({id(one.download) for one in pending}) == len(groups)
    waits = [n for n, entry in enumerate(diary) if entry[:2] == ("wait", copying)]
    assert len(waits) == len(groups)
    for group, wait in zip(groups, waits, strict=True):
        recorded = place(diary, ("record", computing, diary[wait][2]))
        assert max(place(diary, ("composite", computing, index)) for index in group) < recorded < wait
    copies = [n for n, entry in enumerate(diary) if entry[:2] == ("copy", copying)]
    assert copies
    assert min(copies) > waits[0]
    assert [one.index for one in rendered] == list(range(10))
    for one, waiting in zip(rendered, pending, strict=True):
        assert all((plane == one.index).all() for plane in one.pictures[0].planes)
        assert not any(plane.flags.writeable for plane in one.pictures[0].planes)
        assert (one.source is not None) == (one.alpha is not None) == (one.index == 3)
        assert waiting.nbytes >= one.nbytes


def test_frames_that_wait_for_others_keep_the_memory_of_their_batch(running, monkeypatch):
    monkeypatch.setattr(running.job.matting, "_beginnings", ShotBeginnings(8))
    send_down, kept = gpu_job._sent_down, []
    monkeypatch.setattr(
        gpu_job, "_sent_down", lambda drawn, **how: kept.extend(how["keep"]) or send_down(drawn, **how)
    )
    _, batches, _, rendered = running.run(15)
    networks = [entry for entry in running.diary if entry[0] == "network"]
    assert len(networks) == 3  # 12 frames that were ready together, by sixes, and 3
    assert [one.index for one in rendered] == list(range(15))
    assert len(kept) == 15
    for matted in kept:
        held = {id(batch) for batch in (matted.batch, *matted.batch.made_of)}
        source = next(batch for batch in batches if matted.frame in batch.frames)
        assert id(source) in held


def test_a_frame_that_is_wanted_itself_comes_down_unchanged(running):
    frames, _, _, rendered = running.run(FRAMES_A_CALL)
    for plane, expected in zip(rendered[3].source.planes, frames[3].planes, strict=True):
        np.testing.assert_array_equal(plane, expected)
    assert rendered[3].source.ready is None


def test_the_report_has_the_time_of_every_part(running):
    running.run(10)
    # One millisecond for each pair of events: 2 batches, 2 calls, 3 groups.
    assert running.job.gpu_report().span_seconds == {
        "preprocess": pytest.approx(2e-3),
        "network": pytest.approx(2e-3),
        "composite": pytest.approx(3e-3),
        "device to host": pytest.approx(3e-3),
    }
    assert running.job.gpu_report().peak_memory_bytes == running.streams.used_bytes()


def test_copies_are_timed_on_the_streams_that_copy(running, monkeypatch):
    """Check that events enclose only the copies, on their own stream, after the wait for the drawing."""
    running.run(FRAMES_A_CALL)
    diary, copying = running.diary, running.streams.copying.ptr
    of_copying = [entry[0] for entry in diary if len(entry) > 1 and entry[1] == copying]
    groups = " ".join(of_copying).split("wait")[1:]
    assert len(groups) == 2  # four frames and two
    for group in groups:
        begin, *copies, end, arrived = group.split()
        assert begin == end == arrived == "record"
        assert set(copies) == {"copy"}

    running.diary.clear()
    planes = random_frame(PIXEL_FORMATS["nv12"], (HEIGHT, WIDTH), seed=1)
    uploaded = []

    def upload(frame, *, pool, timed):
        assert pool is running.streams.host_memory
        with timed():
            uploaded.append(frame)
        return running.frame(0)

    monkeypatch.setattr(gpu_job, "upload", upload)
    running.stages[0].grouper.accumulate(planes)
    assert uploaded == [planes]
    assert running.job.gpu_report().span_seconds["host to device"] == pytest.approx(1e-3)


def test_what_is_there_already_is_not_waited_for(running):
    running.run(FRAMES_A_CALL)
    decoder = running.cupy.cuda.Stream.here.entered[0].ptr
    of_frames = {entry[2] for entry in running.diary if entry[:2] == ("record", decoder)}
    assert of_frames
    assert not [entry for entry in running.diary if entry[0] == "wait" and entry[2] in of_frames]


def test_a_frame_that_is_not_drawn_lives_until_the_gpu_is_done_with_it(running):
    running.stages = running.job.stages(wants_alpha=lambda _: False, draws=lambda frame: frame.index >= 5)
    _, _, pending, rendered = running.run(10)
    assert [len(one.pictures) for one in rendered] == [0] * 5 + [1] * 5
    assert [entry[2] for entry in running.diary if entry[0] == "composite"] == [5, 6, 7, 8, 9]
    assert all(one.download is not None for one in pending)  # the download holds the frames
    assert [entry[0] for entry in running.diary].count("network") == 2  # the network sees all of them
