"""Check that processes that share a video write what one writes, and test faults."""

from __future__ import annotations

import os
import signal
import threading
import time

import av
import cv2
import numpy as np
import pytest

from brightness_file import brightness_settings
from child_processes import is_running
from clips import copied, write_clip
from makers_here import crew_here
from photographs import astronaut
from vitascope.errors import (
    CorruptInputError,
    InputError,
    OutputError,
    PipelineError,
    UsageError,
    one_line,
)
from vitascope.media.writing.segment_encoder import JoiningWriter
from vitascope.segmentation.batch import segment_all
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.processes import film_joiner
from vitascope.segmentation.segmenter import Segmenter

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 60
TWO = {
    "processing.use_multiprocessing": True,
    "processing.chunk_size": 15,
    "processing.overlap_frames": 20,
    "gpu.device": "cpu",
    **brightness_settings(),
}
ONE = {"gpu.device": "cpu", **brightness_settings()}
LOSSLESS = {"output.codec": "ffv1"}
SMOOTH = {"edges.temporal_smoothing": 0.8, "edges.feather_px": 1.0}
VARIABLE = list(np.cumsum([1 + (n % 7 == 3) * 4 + (n % 11 == 5) * 9 for n in range(60)]))


def person(n: int):
    """Paint a swaying person; from frame 33 on in other light, which is a cut."""
    rgb = np.roll(astronaut()[:256:2, 60:316:2], n // 2, axis=1)
    return np.ascontiguousarray(rgb if n < 33 else 255 - rgb // 2)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("crew") / "in.mp4",
        width=128,
        height=128,
        frame_count=60,
        paint=person,
        audio="aac",
        codec_options={"g": "12"},
        metadata={"title": "wedding"},
    )


@pytest.fixture(scope="module")
def two():
    """Return a segmenter with two processes, which most tests share."""
    with Segmenter(profile="fast", settings=TWO | LOSSLESS | SMOOTH) as segmenter:
        yield segmenter


@pytest.fixture(scope="module")
def one():
    with Segmenter(profile="fast", settings=ONE | LOSSLESS | SMOOTH) as segmenter:
        yield segmenter


@pytest.fixture(scope="module")
def mask_of_one(clip, one, tmp_path_factory):
    """Return the mask that one process writes."""
    out = tmp_path_factory.mktemp("one") / "mask.mkv"
    one.write(clip, [("mask", out)])
    return out


def pictures(path):
    with av.open(str(path)) as container:
        return [
            (f.pts * f.time_base, f.to_ndarray(format="gray").astype(int)) for f in container.decode(video=0)
        ]


def sound(path):
    with av.open(str(path)) as container:
        return [(p.pts, bytes(p)) for p in container.demux(audio=0) if p.size]


def assert_same(ours, theirs, *, tolerance=2.0):
    ours, theirs = pictures(ours), pictures(theirs)
    assert [when for when, _ in ours] == [when for when, _ in theirs]
    apart = [np.abs(a - b).mean() for (_, a), (_, b) in zip(ours, theirs, strict=True)]
    assert max(apart) <= tolerance


def test_the_same_film_from_two(clip, one, two, tmp_path):
    outputs = [("mask", "mask.mkv"), ("key", "key.mkv"), ("alpha", "alpha.mkv")]
    reports = {}
    for name, segmenter in (("one", one), ("two", two)):
        (tmp_path / name).mkdir()
        reports[name] = segmenter.write(
            clip,
            [(kind, tmp_path / name / file) for kind, file in outputs],
            preview=tmp_path / name / "sheet.png",
        )
    for _, file in outputs:
        assert_same(tmp_path / "two" / file, tmp_path / "one" / file)
        assert sound(tmp_path / "two" / file) == sound(tmp_path / "one" / file)
    ours, theirs = reports["two"], reports["one"]
    assert (ours.frame_count, ours.scene_cut_count, ours.corrupt_count) == (60, 1, 0)
    assert theirs.scene_cut_count == 1
    assert ours.notes == theirs.notes
    assert [output.codec for output in ours.outputs] == ["ffv1"] * 3
    assert (ours.model, ours.network_size, ours.decoder) == (
        theirs.model,
        theirs.network_size,
        theirs.decoder,
    )
    assert "2 of 2 processes" in ours.device
    names = ["decode", "preprocess", "infer", "postprocess", "encode"]
    assert [stage.name for stage in ours.pipeline.stages] == names
    assert all(0 < stage.load <= 1 for stage in ours.pipeline.stages)
    assert (ours.pipeline.items, ours.pipeline.finished) == (60, True)
    sheets = [cv2.imread(str(tmp_path / name / "sheet.png")) for name in ("one", "two")]
    assert sheets[0].shape[1] == sheets[1].shape[1]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted(
        path.name for path in (tmp_path / "one").iterdir()
    )


@pytest.mark.parametrize("trim", [(0.4, None), (0.51, 2.0)])
def test_a_part_of_a_film(clip, tmp_path, trim):
    flags = {"video.start_seconds": trim[0], "video.end_seconds": trim[1]} | LOSSLESS
    with Segmenter(profile="fast", settings=ONE | flags) as segmenter:
        segmenter.write(clip, [("mask", tmp_path / "one.mkv")])
    with crew_here(profile="fast", settings=TWO | flags) as segmenter:
        segmenter.write(clip, [("mask", tmp_path / "two.mkv")])
    assert_same(tmp_path / "two.mkv", tmp_path / "one.mkv")
    assert sound(tmp_path / "two.mkv") == sound(tmp_path / "one.mkv")


@pytest.mark.parametrize("overlap", [18, 19, 20, 22])
def test_a_shot_that_begins_where_two_stretches_meet(clip, mask_of_one, tmp_path, overlap):
    """Check several places of a seam around the cut before frame 33.

    A keyframe is decoded at 10, so the second stretch begins at frame 10 + 4 + overlap.
    """
    settings = TWO | LOSSLESS | SMOOTH | {"processing.chunk_size": 33, "processing.overlap_frames": overlap}
    with crew_here(profile="fast", settings=settings) as segmenter:
        report = segmenter.write(clip, [("mask", tmp_path / "two.mkv")])
    assert_same(tmp_path / "two.mkv", mask_of_one)
    assert report.scene_cut_count == 1
    # The first stretch looks ahead: 3 frames to detect a cut, and 7 more for the beginning of a shot.
    assert report.pipeline.stages[0].items == 60 + overlap + 10


def test_variable_frame_rate_and_a_folder_of_pictures(one, two, tmp_path):
    clip = write_clip(
        tmp_path / "in.mkv", width=128, height=128, paint=person, pts=VARIABLE, codec_options={"g": "10"}
    )
    for name, segmenter in (("one", one), ("two", two)):
        segmenter.write(clip, [("mask", tmp_path / f"{name}.mkv")])
    assert_same(tmp_path / "two.mkv", tmp_path / "one.mkv")
    with crew_here(profile="fast", settings=TWO) as segmenter:
        segmenter.write(clip, [("alpha", tmp_path / "shots")])
        names = sorted(path.name for path in (tmp_path / "shots").iterdir())
        assert names == [f"{n:06d}.png" for n in range(60)]
        report = segmenter.write(tmp_path / "shots", [("mask", tmp_path / "again.mkv")])
    assert report.frame_count == 60
    assert report.notes == (
        "pictures have no times: they are read at 25 a second",
        "the video has an alpha channel, which is ignored: transparent areas are matted too",
    )


def test_a_moving_background_goes_on_across_seams(clip, tmp_path):
    """Check a background of 10 frames, which starts again several times in each process."""
    behind = write_clip(
        tmp_path / "behind.mp4",
        frame_count=10,
        paint=lambda n: np.full((64, 96, 3), 20 * n, np.uint8),
    )
    flags = {"output.background": str(behind)} | LOSSLESS
    with Segmenter(profile="fast", settings=ONE | flags) as segmenter:
        segmenter.write(clip, [("replace", tmp_path / "one.mkv")])
    with crew_here(profile="fast", settings=TWO | flags) as segmenter:
        segmenter.write(clip, [("replace", tmp_path / "two.mkv")])
    assert_same(tmp_path / "two.mkv", tmp_path / "one.mkv")


def test_a_film_without_an_index_stays_whole(clip, two, tmp_path):
    stream = write_clip(tmp_path / "in.ts", width=128, height=128, frame_count=20, paint=person)
    report = two.write(stream, [("mask", tmp_path / "o.mkv")])
    assert report.frame_count == 20
    assert report.notes == ("one process did all the work: mpegts has no index of its keyframes",)
    assert "1 of 2 processes" in report.device


def test_frames_are_matted_here_when_they_are_asked_for(clip, two):
    steps = two.stream(clip)
    assert [next(steps).frame.index for _ in range(3)] == [0, 1, 2]
    steps.close()


def test_the_first_failure_is_the_runs_and_the_next_film_goes_well(clip, two, tmp_path):
    broken = truncated(tmp_path)
    planned = [
        PlannedVideo(broken, (("mask", tmp_path / "broken.mkv"),)),
        PlannedVideo(clip, (("mask", tmp_path / "good.mkv"),)),
    ]
    bad, good = segment_all(two, planned)
    assert isinstance(bad.error, CorruptInputError)
    assert good.report.frame_count == 60
    assert sorted(path.name for path in tmp_path.glob("*.mkv")) == ["good.mkv"]


def test_a_folder_is_shared_and_each_comes_out_as_if_alone(clip, two, tmp_path):
    """Check one video of several stretches, and three that one process makes whole, one of them broken."""
    short = [write_clip(tmp_path / f"{n}.mp4", frame_count=10 + n, audio="aac") for n in range(2)]
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(short[0].read_bytes()[:-600])
    planned = [
        PlannedVideo(
            video, (("key", tmp_path / "cut" / f"{video.stem}.mkv"),), tmp_path / "cut" / f"{video.stem}.png"
        )
        for video in (*short, broken, clip)
    ]
    queues, began = [], []
    outcomes = {
        outcome.planned.video: outcome
        for outcome in segment_all(
            two, planned, on_queue=queues.append, on_start=lambda plan, _: began.append(plan.video)
        )
    }
    assert began[0] == clip
    assert isinstance(outcomes[broken].error, InputError)
    assert outcomes[clip].report.frame_count == 60
    assert [outcomes[video].report.frame_count for video in short] == [10, 11]
    assert "2 of 2 processes" in outcomes[clip].report.device
    (queue,) = queues
    assert queue.counts() == {"videos": 4, "videos_done": 3, "videos_failed": 1, "videos_running": 0}
    assert queue.snapshot().items == sum(place.frames for place in queue.places.values()) == 81
    for video in (*short, clip):
        alone = tmp_path / "alone.mkv"
        two.write(video, [("key", alone)])
        assert pictures_of_bytes(tmp_path / "cut" / f"{video.stem}.mkv") == pictures_of_bytes(alone)
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {
        f"{video.stem}.{suffix}" for video in (*short, clip) for suffix in ("mkv", "png")
    }
    again = list(segment_all(two, planned, resume=True))
    assert [outcome.status for outcome in again].count("skipped") == 3


def truncated(folder):
    """Write a video whose last quarter is missing, although the index at its front lists it."""
    source = write_clip(
        folder / "in.mp4", width=128, height=128, frame_count=60, paint=person, codec_options={"g": "10"}
    )
    return copied(source, folder / "truncated.mp4", kept=0.75, movflags="faststart")


def test_damage_keeps_what_came_before_when_that_is_wanted(tmp_path):
    broken = truncated(tmp_path)
    settings = TWO | {"output.keep_partial": True}
    kept = pytest.raises(CorruptInputError, match=r"kept what was written: .*o\.mp4\.part")
    with crew_here(profile="fast", settings=settings) as segmenter, kept:
        segmenter.write(broken, [("key", tmp_path / "o.mp4")])
    assert 20 < len(pictures(tmp_path / "o.mp4.part")) < 60
    assert not (tmp_path / "o.mp4").exists()


def test_a_film_that_cannot_be_opened_costs_no_process(two, tmp_path):
    before = [process.pid for process in workers_of(two)]
    (tmp_path / "in.mp4").write_bytes(b"no film")
    with pytest.raises(InputError, match=r"in\.mp4"):
        two.write(tmp_path / "in.mp4", [("mask", tmp_path / "o.mkv")])
    assert [process.pid for process in workers_of(two)] == before
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]


def workers_of(segmenter):
    return [worker.process for worker in segmenter._runner._makers._workers.values()]


def test_a_worker_that_is_killed_costs_its_stretch_and_nothing_else(clip, two, tmp_path):
    killed = []

    def kill_one(started):
        del started
        killed.append(workers_of(two)[1].pid)
        os.kill(killed[0], signal.SIGKILL)

    two.write(clip, [("key", tmp_path / "a.mkv")])
    two.write(clip, [("key", tmp_path / "b.mkv")], on_start=kill_one)
    assert pictures_of_bytes(tmp_path / "a.mkv") == pictures_of_bytes(tmp_path / "b.mkv")
    assert killed[0] not in [process.pid for process in workers_of(two)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mkv", "b.mkv"]


def pictures_of_bytes(path):
    """Return every video packet with its times."""
    with av.open(str(path)) as container:
        return [(p.pts, p.dts, bytes(p)) for p in container.demux(video=0) if p.size]


def test_ctrl_c_keeps_a_part_and_leaves_no_process(clip, tmp_path, monkeypatch):
    def press(started):
        def when_some_is_written():
            while started.pipeline.snapshot().items < 5:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=when_some_is_written).start()

    # The signal must come before the end of the run, however late that thread wakes, or it would end these
    # tests.
    monkeypatch.setattr(film_joiner, "finish_files", lambda _: threading.Event().wait(PATIENCE_SECONDS))
    with Segmenter(profile="fast", settings=TWO) as segmenter:
        pids = [process.pid for process in workers_of(segmenter)]
        with pytest.raises(KeyboardInterrupt):
            segmenter.write(clip, [("key", tmp_path / "o.mp4")], on_start=press)
    assert not any(is_running(pid) for pid in pids)
    assert {path.name for path in tmp_path.iterdir()} <= {"o.mp4.part", ".o.mp4.stretches"}


def test_a_failure_in_a_worker_says_stage_and_frame(two, tmp_path):
    """Check a larger forty-first picture, in the second process's share."""
    shots = tmp_path / "shots"
    shots.mkdir()
    for n in range(60):
        cv2.imwrite(str(shots / f"{n:03}.png"), np.zeros((64 if n == 40 else 48, 64, 3), np.uint8))
    with pytest.raises(PipelineError) as caught:
        two.write(shots, [("mask", tmp_path / "o.mkv")])
    assert caught.value.exit_code == 3
    assert "frame size changes from 64x48 to 64x64 at 1.60 s" in one_line(caught.value)
    notes = [*caught.value.__notes__, *caught.value.exceptions[0].__notes__]
    assert any("stage 'decode'" in note for note in notes)
    assert any(note.startswith("in worker process") for note in notes)
    assert "_to_frame" in str(caught.value.__cause__)  # the worker's traceback, for --debug
    assert [path.name for path in tmp_path.iterdir()] == ["shots"]


def test_a_full_disk_ends_the_run(clip, two, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JoiningWriter, "_mux", full)
    with pytest.raises(OutputError, match=r"o\.mkv.*[Nn]o space left.*--resume continues from \d finished"):
        two.write(clip, [("mask", tmp_path / "o.mkv")])
    assert [path.name for path in tmp_path.iterdir()] == [".o.mkv.stretches"]


def test_workers_end_with_each_film_where_they_shall_not_persist(clip, tmp_path):
    settings = TWO | {"dataloader.persistent_workers": False}
    with Segmenter(profile="fast", settings=settings) as segmenter:
        before = [process.pid for process in workers_of(segmenter)]
        segmenter.write(clip, [("key", tmp_path / "a.mp4")])
        assert workers_of(segmenter) == []
        assert not any(is_running(pid) for pid in before)
        segmenter.write(clip, [("key", tmp_path / "b.mp4")])
    assert len(pictures(tmp_path / "b.mp4")) == 60


def test_a_network_that_cannot_be_had_is_told_from_the_worker(tmp_path):
    broken = tmp_path / "net.onnx"
    broken.write_bytes(b"no network")
    with pytest.raises(Exception, match=r"net\.onnx") as caught:
        Segmenter(settings=TWO | {"model.name": str(broken), "model.kind": "matte"})
    assert caught.type.__module__ == "vitascope.errors"


def test_gpus_and_the_processor_contradict_each_other():
    with pytest.raises(UsageError, match=r"gpu\.device is cpu"):
        Segmenter(profile="fast", settings={"gpu.device_ids": "0,1", "gpu.device": "cpu"})
    with pytest.raises(UsageError, match="leave one of them out"):
        Segmenter(profile="fast", settings={"gpu.device_ids": "0,1", "gpu.device_id": 1})
