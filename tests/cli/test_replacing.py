"""Check that files that are read are never replaced, and others only after a question."""

from __future__ import annotations

import io
import sys

import pytest
from command_line import run

from vitascope.cli.options import may_replace
from vitascope.errors import OutputError
from vitascope.observe.terminal import Screen


class _Typed(io.StringIO):
    """Simulates a terminal with this input, followed by Ctrl-D."""

    def isatty(self):
        return True


class _Interrupted(_Typed):
    """Simulates a terminal with Ctrl-C."""

    def readline(self, *_):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (_Typed("y\n"), None),
        (_Typed("YES\n"), None),
        (_Typed("n\n"), OutputError),
        (_Typed("\n"), OutputError),
        (_Typed(""), OutputError),
        (_Typed("y"), None),
        (_Interrupted(), KeyboardInterrupt),
    ],
)
def test_what_comes_after_the_question_begins_a_line(tmp_path, monkeypatch, typed, expected):
    shown = io.StringIO()
    screen = Screen(file=shown, stderr=False, force_terminal=True, color_system=None, width=20)
    monkeypatch.setattr(sys, "stdin", typed)
    path = tmp_path / "out.mp4"
    if expected is None:
        may_replace([path], overwrite=None, screen=screen)
    else:
        with pytest.raises(expected):
            may_replace([path], overwrite=None, screen=screen)
    question = f"{path} already exists. Replace? [y/N] "
    echoed = typed.getvalue().endswith("\n")  # a terminal echoes the input, including the end of its line
    assert shown.getvalue() == question + ("" if echoed else "\n")


@pytest.mark.parametrize(
    "words",
    [
        ("vr", "verify", "read/1.png", "--html", "read/1.png"),
        ("vr", "verify", "other.mp4", "--matte", "read/1.png", "--html", "read/1.png"),
        ("people", "read", "-o", "read/1.png"),
        ("people", "read/%d.png", "-o", "link.png"),
        ("optimize", "read/1.png", "-o", "read/1.png"),
        ("bench", "animate", "--auto-tune", "--image", "read/1.png", "-o", "read/../read/1.png"),
        ("bench", "animate", "--auto-tune", "--driver", "read/1.png", "-o", "link.png"),
    ],
)
def test_nothing_that_a_command_reads_is_replaced(tmp_path, monkeypatch, capsys, words):
    read = tmp_path / "read" / "1.png"
    read.parent.mkdir()
    read.write_bytes(b"as it was")
    (tmp_path / "link.png").symlink_to(read)
    monkeypatch.chdir(tmp_path)
    assert run(*words, "-y") == 2
    line = capsys.readouterr().err
    assert line.endswith("; choose another file\n") and words[-1] in line
    assert read.read_bytes() == b"as it was"
