"""Check that a killed run only loses the stretches in hand, with another number of processes, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from swaying_clip import packets, swaying_clip

from brightness_file import brightness_settings
from child_processes import children_of, is_running
from makers_here import crew_here
from vitascope.errors import OutputError
from vitascope.segmentation.processes import film_joiner, shares
from vitascope.segmentation.processes.film_joiner import SharedFilm
from vitascope.segmentation.segmenter import Segmenter

PATIENCE_SECONDS = 120
FLAGS = {
    "processing.use_multiprocessing": True,
    "processing.chunk_size": 12,
    "processing.overlap_frames": 8,
    "edges.temporal_smoothing": 0.5,
    "gpu.device": "cpu",
    "video.scene_cut_threshold": 0,  # there are none, and the search takes a fifth of such a run
    **brightness_settings(),
}
SCRIPT = """
import sys
import vitascope
settings = {FLAGS}
vitascope.segment(sys.argv[1], sys.argv[2], profile="fast", settings=settings)
"""


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return swaying_clip(tmp_path_factory.mktemp("resume"), frame_count=72)


@contextmanager
def segmenter_of(makers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "available_cores", lambda: 4 * makers)
        segmenter = crew_here(profile="fast", settings=FLAGS | {"processing.num_threads": 4})
    with segmenter:
        yield segmenter


@pytest.fixture(scope="module")
def two():
    """Return a segmenter with two processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shares, "available_cores", lambda: 8)
        segmenter = Segmenter(profile="fast", settings=FLAGS | {"processing.num_threads": 4})
    with segmenter:
        yield segmenter


@pytest.fixture(scope="module")
def three():
    with segmenter_of(3) as segmenter:
        yield segmenter


@pytest.fixture(scope="module")
def undisturbed(clip, two, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "o.mp4"
    report = two.write(clip, [("key", out)])
    assert report.frame_count == 72
    return packets(out)


def test_the_same_packets_however_many_there_are(clip, undisturbed, tmp_path):
    with segmenter_of(4) as segmenter:
        report = segmenter.write(clip, [("key", tmp_path / "o.mp4")])
    assert "4 of 4 processes" in report.device
    assert packets(tmp_path / "o.mp4") == undisturbed


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux says whose children processes are")
@pytest.mark.parametrize("finished", [1, 4])
def test_a_driver_that_is_killed(clip, undisturbed, three, tmp_path, finished):
    out, folder = tmp_path / "o.mp4", tmp_path / ".o.mp4.stretches"
    script = SCRIPT.replace("{FLAGS}", repr(FLAGS))
    with subprocess.Popen([sys.executable, "-c", script, str(clip), str(out)]) as driver:
        children = None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while driver.poll() is None and time.monotonic() < deadline:
            if len(list(folder.glob("*.stretch"))) >= finished:
                children = children_of(driver.pid)
                driver.kill()
                break
            time.sleep(0.005)
    if children is None:
        assert out.exists(), "neither done nor as far"
        pytest.skip("it was through before it could be killed")
    assert not out.exists()
    while any(map(is_running, children)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    there = len(list(folder.glob("*.stretch")))
    report = three.write(clip, [("key", out)], resume=True)
    assert packets(out) == undisturbed
    assert any(note.startswith(f"{6 - there} of 6 stretches w") for note in report.notes)
    assert [path.name for path in tmp_path.iterdir()] == ["o.mp4"]


def test_ctrl_c_keeps_what_is_joined_and_what_can_be_gone_on_from(
    clip, undisturbed, two, tmp_path, monkeypatch
):
    files = SharedFilm.files

    def three_files(film):
        for number, file in enumerate(files(film)):
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
                threading.Event().wait(PATIENCE_SECONDS)
            yield file

    out = tmp_path / "o.mp4"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:
        patch.setattr(SharedFilm, "files", three_files)
        two.write(clip, [("key", out)])
    assert "kept what was written" in str(caught.value)
    assert "--resume continues from" in str(caught.value)
    kept = [packet for packet in packets(tmp_path / "o.mp4.part") if packet[0] == 0]
    assert [packet[3] for packet in kept] == [p[3] for p in undisturbed if p[0] == 0][: len(kept)]
    assert len(kept) >= 30
    two.write(clip, [("key", out)], resume=True)
    assert packets(out) == undisturbed


def test_other_settings_begin_anew(clip, two, tmp_path, monkeypatch):
    def fail(_):
        raise OutputError("the disk is full")

    out = tmp_path / "o.mp4"
    with (
        monkeypatch.context() as patch,
        pytest.raises(OutputError, match="full; --resume continues from 6"),
    ):
        patch.setattr(film_joiner, "finish_files", fail)
        two.write(clip, [("key", out)])
    flags = FLAGS | {"edges.feather_px": 1.0}
    with crew_here(profile="fast", settings=flags) as segmenter:
        report = segmenter.write(clip, [("key", out)], resume=True)
    assert not any("earlier run" in note for note in report.notes)


def test_a_second_run_with_the_same_output_is_refused(clip, two, three, tmp_path):
    out = tmp_path / "o.mp4"

    def second(started):
        del started
        with pytest.raises(OutputError, match="it is being written already"):
            three.write(clip, [("key", out)], resume=True)

    assert two.write(clip, [("key", out)], on_start=second).frame_count == 72
    assert [path.name for path in tmp_path.iterdir()] == ["o.mp4"]
