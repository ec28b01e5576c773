"""Tests of the progress line: its content on a terminal, and that a log file never contains it."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from left_threads import left_threads
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Sink, Source
from vitascope.observe import progress as progress_module
from vitascope.observe.progress import JobProgress
from waiting import PATIENCE_SECONDS


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


def terminal(screen: io.StringIO) -> Console:
    return Console(file=screen, force_terminal=True, width=160)


def drawing() -> bool:
    return bool(left_threads("vitascope-progress"))


def wait_for(text: str, screen: io.StringIO) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while text not in screen.getvalue():
        assert time.monotonic() < deadline, screen.getvalue()
        time.sleep(0.01)


def finished_job() -> Pipeline:
    pipeline = Pipeline([Source("decode", range(7)), Sink("encode", int)])
    pipeline.run()
    return pipeline


def test_a_job_shows_frames_speed_and_stages(screen: io.StringIO) -> None:
    with JobProgress(terminal(screen)) as progress:
        assert drawing()
        progress.show("in.mp4", finished_job(), frame_count=9)
        wait_for("7/9", screen)
    line = screen.getvalue()
    assert "in.mp4" in line
    assert " fps" in line
    assert "encode" in line
    assert not drawing()


def test_until_its_first_frame_a_job_is_starting(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with JobProgress(terminal(screen)) as progress:
        progress.show("in.mp4", Pipeline([Source("decode", range(7)), Sink("encode", int)]), frame_count=9)
        wait_for(" starting ", screen)
    assert "fps" not in screen.getvalue()
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    log = io.StringIO()
    with JobProgress(Console(file=log, width=160)) as progress:
        progress.show("in.mp4", Pipeline([Source("decode", range(7)), Sink("encode", int)]), frame_count=9)
        wait_for("in.mp4: 0 of 9 frames, starting\n", log)


@pytest.mark.parametrize("width", [50, 80, 100, 130])
@pytest.mark.parametrize(
    "name", ["in.mp4", "wedding_vr180_first_dance_and_all_of_the_speeches_take_2_final.mp4"]
)
def test_the_figures_fit_the_terminal_whatever_the_name(screen: io.StringIO, width: int, name: str) -> None:
    with JobProgress(Console(file=screen, force_terminal=True, width=width, color_system=None)) as progress:
        progress.show(name, finished_job(), frame_count=90_000)
        wait_for(" fps", screen)
    line = screen.getvalue()
    assert "7/90000" in line
    assert ("encode" in line) == (width == 130)


def test_a_download_shows_megabytes_and_no_frames(screen: io.StringIO) -> None:
    with JobProgress(terminal(screen)) as progress:
        progress.fetched("rvm", 3_000_000, 14_900_000)
        assert "fetching rvm (MB)" in screen.getvalue()
        assert "3/14" in screen.getvalue()
        progress.fetched("rvm", 14_900_000, 14_900_000)
    assert "fps" not in screen.getvalue()


@pytest.mark.parametrize("console", [Console, lambda file: Console(file=file, force_terminal=True)])
def test_a_log_file_and_a_quiet_run_see_nothing(screen: io.StringIO, console) -> None:
    with JobProgress(console(file=screen), visible=console is Console) as progress:
        progress.fetched("rvm", 3_000_000, 14_900_000)
        progress.show("in.mp4", finished_job(), frame_count=7)
    assert screen.getvalue() == ""


def test_a_log_file_gets_a_line_now_and_then(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_SECONDS_BETWEEN_LINES", 0.0)
    with JobProgress(Console(file=screen)) as progress:
        progress.show("in.mp4", finished_job(), frame_count=90)
        wait_for("\n", screen)
    assert screen.getvalue().startswith("in.mp4: 7 of 90 frames, ")
    assert " left\n" in screen.getvalue()
