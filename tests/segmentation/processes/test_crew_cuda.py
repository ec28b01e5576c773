"""Tests of several GPUs that share a video, and of several processes on one GPU."""

from __future__ import annotations

import threading

import av
import numpy as np
import pytest

from clips import write_clip
from photographs import astronaut
from vitascope.config import load_settings, vitascope_home
from vitascope.errors import DeviceError
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.film_run import FilmRunner
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.processes.maker import StretchMaker
from vitascope.segmentation.processes.port import WholeFilm
from vitascope.segmentation.segmenter import Segmenter

pytestmark = pytest.mark.cuda

FRAMES = 240
FLAGS = {"model.name": "rvm", "output.codec": "ffv1", "gpu.device": "cuda"}


def swaying(n: int):
    rgb = np.roll(astronaut()[:384, 40:424], round(24 * np.sin(n / 9)), axis=1)
    return np.ascontiguousarray(rgb)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("crew") / "in.mp4",
        width=384,
        height=384,
        frame_count=FRAMES,
        paint=swaying,
        audio="aac",
        codec="libx265",
        codec_options={"x265-params": "keyint=24:log-level=none"},
    )


def mattes(path):
    with av.open(str(path)) as container:
        return [(f.pts, f.to_ndarray(format="gray").astype(int)) for f in container.decode(video=0)]


def write(clip, out, **flags):
    with Segmenter(settings=FLAGS | {key.replace("__", "."): v for key, v in flags.items()}) as segmenter:
        return segmenter.write(clip, [("mask", out)])


def worst_difference(ours, theirs):
    ours, theirs = mattes(ours), mattes(theirs)
    assert [pts for pts, _ in ours] == [pts for pts, _ in theirs]
    assert len(ours) == FRAMES
    return max(np.abs(a - b).mean() for (_, a), (_, b) in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def alone(clip, tmp_path_factory, rvm_model_path):
    """Return the mask that one GPU in this process writes."""
    out = tmp_path_factory.mktemp("alone") / "mask.mkv"
    write(clip, out)
    return out


def test_a_list_of_one_is_that_gpu(clip, alone, tmp_path):
    report = write(clip, tmp_path / "mask.mkv", gpu__device_ids="0")
    assert "GPU 0" in report.device
    assert "process" not in report.device
    assert worst_difference(tmp_path / "mask.mkv", alone) <= 0.5


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_written(clip, tmp_path):
    with pytest.raises(DeviceError, match="there is no GPU 200"):
        write(clip, tmp_path / "mask.mkv", gpu__device_ids="0,200")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_on_one_gpu(clip, alone, tmp_path):
    report = write(
        clip,
        tmp_path / "mask.mkv",
        gpu__device_ids="0,0",
        processing__overlap_frames=48,
        processing__chunk_size=60,
    )
    assert "2 of 2 processes" in report.device
    assert report.device.count("GPU 0") == 1
    assert report.frame_count == FRAMES
    assert report.gpu.span_seconds["network"] > 0
    assert "nvdec" in report.decoder
    assert worst_difference(tmp_path / "mask.mkv", alone) <= 2.0


def test_two_gpus(clip, alone, tmp_path):
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs; this machine has one")
    report = write(
        clip,
        tmp_path / "mask.mkv",
        gpu__device_ids="0,1",
        processing__overlap_frames=48,
        processing__chunk_size=60,
    )
    assert "2 of 2 processes" in report.device
    assert "GPU 0" in report.device
    assert "GPU 1" in report.device
    assert worst_difference(tmp_path / "mask.mkv", alone) <= 2.0


def test_memory_stays_from_one_video_to_the_next_until_nothing_waits(clip, tmp_path, rvm_model_path):
    runner = FilmRunner(load_settings(flags=FLAGS), store=ModelStore(vitascope_home()), keeps_mattes=False)
    with StretchMaker(runner) as maker:
        pool, taken = runner.streams.host_memory, []
        for name in ("one", "two"):
            before = pool.stats().allocations
            film = WholeFilm(PlannedVideo(clip, (("mask", tmp_path / f"{name}.mkv"),)), resume=False)
            maker.make_film(film, tell=lambda _: None, interrupted=threading.Event())
            taken.append(pool.stats().allocations - before)
        assert taken[1] < taken[0]
        assert pool.stats().idle_count > 0
        maker.rest()
        assert pool.stats().idle_count == 0
    assert worst_difference(tmp_path / "one.mkv", tmp_path / "two.mkv") == 0
