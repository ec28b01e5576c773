from __future__ import annotations

import threading
from pathlib import Path

import pytest

from clips import write_clip
from left_threads import left_threads
from vitascope.cli.prompt.job_line import JobLine
from vitascope.config import load_settings
from vitascope.errors import InputError, VitascopeError
from vitascope.observe.metrics import Metrics
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.segmenter import Segmenter


@pytest.fixture(scope="module")
def loaded():
    return load_settings(profile="fast", flags={"gpu.device": "cpu"})


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("jobs") / "in.mp4", frame_count=6)


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("jobs") / "long.mp4", frame_count=400)


def planned(video, out):
    return PlannedVideo(Path(video), (("mask", Path(out)),))


def wait_for_a_frame(job):
    while not (job.run is not None and job.run.snapshot().items) and not job.has_ended:
        threading.Event().wait(0.005)


def test_one_after_another_with_one_network(tmp_path, clip, loaded, monkeypatch):
    opened = []

    class Counted(Segmenter):
        def __init__(self, **words):
            opened.append(self)
            super().__init__(**words)

    monkeypatch.setattr("vitascope.cli.prompt.job_line.Segmenter", Counted)
    ended, metrics = [], Metrics()
    with JobLine(on_end=ended.append, metrics=metrics) as line:
        jobs = [line.start(planned(clip, tmp_path / f"{n}.mp4"), loaded) for n in range(3)]
        assert line.wait(timeout_seconds=60)
    assert [job.state for job in jobs] == ["done"] * 3
    assert ended == jobs
    assert [job.number for job in jobs] == [1, 2, 3]
    assert all(job.report.frame_count == 6 and job.run is None for job in jobs)
    assert len(opened) == 1
    assert "vitascope_frames_total 18.0" in metrics.text()
    assert 'vitascope_jobs_total{status="done"} 3.0' in metrics.text()


def test_a_job_that_fails_does_not_stop_those_behind_it(tmp_path, clip, loaded):
    metrics = Metrics()
    with JobLine(metrics=metrics) as line:
        broken = line.start(planned(tmp_path / "missing.mp4", tmp_path / "a.mp4"), loaded)
        good = line.start(planned(clip, tmp_path / "b.mp4"), loaded)
        assert line.wait(timeout_seconds=60)
    assert broken.state == "failed"
    assert isinstance(broken.error, InputError)
    assert good.state == "done"
    assert 'vitascope_errors_total{kind="InputError"} 1.0' in metrics.text()


def test_nor_does_a_fault_of_ours(tmp_path, clip, loaded, monkeypatch):
    write = Segmenter.write

    def faulty(self, video, *words, **more):
        if video.name == "odd.mp4":
            raise ZeroDivisionError("oops")
        return write(self, video, *words, **more)

    monkeypatch.setattr(Segmenter, "write", faulty)
    with JobLine() as line:
        odd = line.start(planned(tmp_path / "odd.mp4", tmp_path / "a.mp4"), loaded)
        good = line.start(planned(clip, tmp_path / "b.mp4"), loaded)
        assert line.wait(timeout_seconds=60)
    assert odd.state == "failed"
    assert isinstance(odd.error, VitascopeError)
    assert str(odd.error) == "ZeroDivisionError: oops"
    assert good.state == "done"


def test_a_job_that_is_stopped_keeps_what_it_has(tmp_path, clip, long_clip, loaded):
    out = tmp_path / "long.mp4"
    with JobLine() as line:
        job = line.start(planned(long_clip, out), loaded)
        behind = line.start(planned(clip, tmp_path / "next.mp4"), loaded)
        wait_for_a_frame(job)
        line.stop(job)
        assert line.wait(timeout_seconds=60)
    assert job.state == "stopped"
    assert not out.exists()
    assert job.kept.startswith("kept what was written: ")
    kept = Path(job.kept.partition(": ")[2])
    assert kept.is_file()
    assert ".part" in kept.name
    assert behind.state == "done", "the network is still good"


def test_a_job_that_waits_is_stopped_at_once(tmp_path, clip, long_clip, loaded):
    with JobLine() as line:
        first = line.start(planned(long_clip, tmp_path / "long.mp4"), loaded)
        second = line.start(planned(clip, tmp_path / "next.mp4"), loaded)
        wait_for_a_frame(first)
        line.stop(second)
        assert second.state == "stopped"
        assert first.state == "running"
        line.stop(first)
    assert not (tmp_path / "next.mp4").exists()


def test_stopped_while_it_opens(tmp_path, clip, loaded, monkeypatch):
    opening, go_on = threading.Event(), threading.Event()

    class Slow(Segmenter):
        def __init__(self, **words):
            opening.set()
            assert go_on.wait(10)
            super().__init__(**words)

    monkeypatch.setattr("vitascope.cli.prompt.job_line.Segmenter", Slow)
    with JobLine() as line:
        job = line.start(planned(clip, tmp_path / "out.mp4"), loaded)
        assert opening.wait(10)
        line.stop(job)
        go_on.set()
        assert line.wait(timeout_seconds=60)
    assert job.state == "stopped"
    assert list(tmp_path.iterdir()) == []


def test_leaving_stops_everything(tmp_path, long_clip, loaded):
    with JobLine() as line:
        jobs = [line.start(planned(long_clip, tmp_path / f"{n}.mp4"), loaded) for n in range(3)]
        wait_for_a_frame(jobs[0])
    assert [job.state for job in jobs] == ["stopped"] * 3
    assert not left_threads("vitascope-jobs")


def test_waiting_can_take_too_long(tmp_path, long_clip, loaded):
    with JobLine() as line:
        assert line.wait(timeout_seconds=0), "nothing to wait for"
        line.start(planned(long_clip, tmp_path / "out.mp4"), loaded)
        assert not line.wait(timeout_seconds=0.01)


def test_a_job_that_processes_share_can_be_stopped(tmp_path, long_clip):
    shared = load_settings(
        profile="fast", flags={"gpu.device": "cpu", "processing.use_multiprocessing": True}
    )
    with JobLine() as line:
        job = line.start(planned(long_clip, tmp_path / "out.mp4"), shared)
        while job.run is None and not job.has_ended:
            threading.Event().wait(0.005)
        line.stop(job)
        assert line.wait(timeout_seconds=60)
    assert job.state == "stopped"
    assert not (tmp_path / "out.mp4").exists()
