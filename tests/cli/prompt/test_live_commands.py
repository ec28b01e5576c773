"""Tests of live animation from the prompt of ``vitascope interactive``."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from vitascope.animation.live.controls import Controls, LiveState
from vitascope.cli.prompt import live as live_run
from vitascope.cli.prompt.console import HELP, CommandConsole
from vitascope.cli.prompt.job_line import JobLine
from vitascope.cli.prompt.live import LiveRun
from vitascope.errors import InputError, OutputError, UsageError
from waiting import PATIENCE_SECONDS, eventually


class FakeSession:
    def __init__(self, on_message):
        self.controls = Controls(LiveState(), on_message=on_message)

    def stop(self):
        self.controls.request("quit")


class FakeAnimation:
    """Replaces ``animate_live``: opens, and runs until it is stopped."""

    def __init__(self):
        self.given = None
        self.session = None
        self.may_open = threading.Event()
        self.may_open.set()
        self.restarts = 0
        self.error = None

    def __call__(self, portrait, driver, sinks, *, loaded, on_session, on_message, record, seconds, **_):
        self.given = (portrait.name, driver, sinks, loaded.profile, record, seconds)
        assert self.may_open.wait(5)
        if self.error is not None:
            raise self.error
        self.session = FakeSession(on_message)
        on_session(self.session)
        while not self.session.controls.take("quit"):
            self.restarts += self.session.controls.take("restart")
            time.sleep(0.002)


@pytest.fixture
def prompt(monkeypatch, tmp_path):
    """Return a function that types a line, and returns the answer."""
    animation = FakeAnimation()
    monkeypatch.setattr(live_run, "animate_live", animation)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "talk.motion").touch()
    page, ended = io.StringIO(), []
    with (
        JobLine() as jobs,
        LiveRun(
            store=None,
            on_message=lambda line: page.write(f"{line}\n"),
            on_report=lambda _: None,
            on_end=lambda run: ended.append(run.ending()),
        ) as run,
    ):
        console = CommandConsole(jobs, page=Console(file=page, width=200), hardware=dict, live=run)

        def type_(line):
            before = page.tell()
            console.do(line.split())
            return page.getvalue()[before:]

        type_.animation, type_.run, type_.console, type_.ended = animation, run, console, ended
        yield type_
    assert not run.is_running


@pytest.mark.parametrize("words", ["--sink file:mine.mp4", "--sink null --record mine.motion"])
def test_a_file_that_is_there_is_not_replaced_unasked(prompt, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.mp4", "mine.motion"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(OutputError, match="already exists; -y replaces it"):
        prompt(f"animate a.jpg -d talk.motion {words}")
    assert "a.jpg follows talk.motion" in prompt(f"animate a.jpg -d talk.motion {words} -y")
    prompt("stop live")


def test_from_animate_to_stop(prompt):
    told = prompt("animate a.jpg -d talk.motion --sink null --sink mjpeg:8890 --duration 9 --record k.motion")
    assert told == "live: a.jpg follows talk.motion\n"
    eventually(lambda: prompt.run._session is not None)
    name, driver, sinks, profile, record, seconds = prompt.animation.given
    assert (name, driver, sinks, profile) == ("a.jpg", "talk.motion", ["null", "mjpeg:8890"], "balanced")
    assert (record.name, seconds) == ("k.motion", 9.0)
    assert prompt("press m+") == "mirror on\nstrength 1.10\n"
    prompt("restart")
    eventually(lambda: prompt.animation.restarts == 1)
    with pytest.raises(UsageError, match="runs already"):
        prompt("animate a.jpg -d talk.motion --sink null")
    prompt("stop live")
    assert prompt.run.wait(timeout_seconds=PATIENCE_SECONDS)
    assert prompt.ended == ["live: stopped"]
    prompt("animate a.jpg -d 0 --sink null")  # a second run
    eventually(lambda: prompt.animation.given[1] == "0")


def test_the_key_q_ends_it(prompt):
    prompt("animate a.jpg -d talk.motion --sink null")
    eventually(lambda: prompt.run._session is not None)
    prompt("press q")
    assert prompt.run.wait(timeout_seconds=PATIENCE_SECONDS)


def test_one_that_is_stopped_while_it_opens(prompt):
    prompt.animation.may_open.clear()
    prompt("animate a.jpg -d talk.motion --sink null")
    eventually(lambda: prompt.animation.given is not None)
    with pytest.raises(UsageError, match="not open yet"):
        prompt("press m")
    prompt("stop live")
    prompt.animation.may_open.set()
    assert prompt.run.wait(timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("error", [InputError("no face"), ValueError("no face")])
def test_a_failure_is_kept_and_told(prompt, error):
    prompt.animation.error = error
    prompt("animate a.jpg -d talk.motion --sink null")
    assert prompt.run.wait(timeout_seconds=PATIENCE_SECONDS)
    assert prompt.run.failure is prompt.run.error
    (line,) = prompt.ended
    assert line.startswith("live: failed: ") and line.endswith("no face")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("press m", "no live animation runs"),
        ("restart", "no live animation runs"),
        ("restart now", "takes no further words"),
        ("live", "has run yet"),
        ("live on", "takes no further words"),
        ("press", "usage: press KEYS"),
        ("press mz", "no key 'z'; keys are R performance report"),
        ("animate a.jpg -d talk.motion", "--sink; usage: animate PORTRAIT"),
        ("animate --sink null", "usage: animate PORTRAIT"),
    ],
)
def test_lines_that_cannot_be_done(prompt, line, says):
    with pytest.raises(UsageError, match=says.replace("(", r"\(")):
        prompt(line)
    with pytest.raises(UsageError, match="no live animation runs"):
        prompt("stop live")


def test_every_command_is_in_the_help(prompt):
    assert {usage.split()[0] for usage in HELP} == {
        *prompt.console._alone,
        *prompt.console._with_words,
        "quit",
    }
