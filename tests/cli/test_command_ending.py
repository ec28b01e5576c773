"""Tests of Ctrl-C during long native code."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vitascope.cli.ending import ending_promptly

STUCK = """
import signal, tempfile, time
from pathlib import Path
from vitascope.cli.ending import ending_promptly

signal.signal(signal.SIGINT, signal.default_int_handler)
with ending_promptly(lambda: "the search is saved"):
    folder = Path(tempfile.mkdtemp())
    (folder / "film.mp4").write_bytes(b"x")
    print(folder, flush=True)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        time.sleep(300)  # stands for the join of a thread that does not end
"""

CAUGHT_IN_TEXT = """
import vitascope.cli, vitascope.cli.app

def run(arguments):
    try:
        exec("raise KeyboardInterrupt")  # as Ctrl-C does while a dataclass is made
    except KeyboardInterrupt:
        raise SystemExit(130) from None

vitascope.cli.app.main = run
vitascope.cli.main()
"""


@pytest.fixture(autouse=True)
def ctrl_c_is_not_ignored():
    """Handle Ctrl-C, which is ignored where tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_program_does_not_wait_for_what_does_not_end():
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 130
    assert ended.stderr == "vitascope: interrupted; the search is saved\n"
    assert not Path(ended.stdout.strip()).exists()


def test_what_ends_by_itself_is_an_interruption_like_any_other():
    folder = tempfile.gettempdir()
    with (
        pytest.raises(KeyboardInterrupt, match="the search is saved"),
        ending_promptly(lambda: "the search is saved"),
    ):
        assert Path(tempfile.mkdtemp()).parent != Path(folder)
        signal.raise_signal(signal.SIGINT)
    assert tempfile.gettempdir() == folder
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_words_of_what_was_interrupted_come_first():
    with pytest.raises(KeyboardInterrupt, match=r"^3 cells are kept$"), ending_promptly(lambda: "nothing"):
        raise KeyboardInterrupt("3 cells are kept")


def test_ctrl_c_that_was_caught_does_not_end_python_by_the_signal(tmp_path):
    (tmp_path / "caught.py").write_text(CAUGHT_IN_TEXT)
    ended = subprocess.run(
        [sys.executable, "-m", "caught"], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, b"")


def test_without_ctrl_c_it_does_nothing():
    with ending_promptly():
        scratch = Path(tempfile.gettempdir())
    assert not scratch.exists()


def test_who_ignores_ctrl_c_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_promptly():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
