"""Check that a file's name cannot affect the terminal that shows it."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from clips import write_clip
from vitascope.observe.progress import JobProgress
from vitascope.observe.terminal import Page, Screen, escaped

CLIPBOARD = "\x1b]52;c;aGFja2Vk\x07"
NAMES = {
    "clipboard": (f"a{CLIPBOARD}b", r"a\x1b]52;c;aGFja2Vk\x07b"),
    "8-bit control": ("a\x9d52;c;eA==\x9cb", r"a\x9d52;c;eA==\x9cb"),
    "carriage return": ("a\rb", r"a\rb"),
    "sign": (":warning: :smile:", ":warning: :smile:"),
    "markup": ("[red]a[/red] [link=x]b", "[red]a[/red] [link=x]b"),
    "direction": ("a\u202etxt.exe", r"a\u202etxt.exe"),
    "no UTF-8": (os.fsdecode(b"a\xff"), r"a\udcff"),
    "other alphabets": ("свадьба 結婚式 👰.mp4", "свадьба 結婚式 👰.mp4"),
}


@pytest.mark.parametrize(("name", "shown"), NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("console", [Page, Screen])
def test_a_line_shows_the_name_letter_by_letter(console, name, shown):
    page = io.StringIO()
    console(file=page, width=200).print(f"{name}: done")
    assert page.getvalue() == f"{shown}: done\n"


@pytest.mark.parametrize("console", [Page, Screen])
def test_each_text_takes_one_line_whatever_its_names_hold(console):
    page = io.StringIO()
    made = console(file=page, width=20)
    made.print_lines("first\nday.mp4  12 MB", "a\x1b[2J")
    made.print_lines()
    assert page.getvalue() == "first\\nday.mp4  12 MB\na\\x1b[2J\n"


@pytest.mark.parametrize(("name", "shown"), NAMES.values(), ids=NAMES)
def test_tables_and_texts_too(name, shown):
    page = io.StringIO()
    table = Table("file", box=None)
    table.add_row(name)
    console = Page(file=page, width=200, soft_wrap=False)
    console.print(table)
    assert page.getvalue().split("\n")[1].strip() == shown


@pytest.mark.parametrize("name", [name for name, _ in NAMES.values()])
def test_what_rich_lays_out_itself_is_harmless(name):
    page = io.StringIO()
    Page(file=page, width=200).print(Text(name))
    assert escaped(page.getvalue()) == page.getvalue()


def test_the_live_line_too():
    class Still:
        def snapshot(self):
            raise AssertionError("not asked in so short a time")

    screen = io.StringIO()
    with JobProgress(Screen(file=screen, force_terminal=True, width=160)) as progress:
        progress.show(f"{CLIPBOARD}[red]:warning:", Still(), frame_count=3)
        progress._progress.refresh()
    assert "\x1b]" not in screen.getvalue()
    assert "]52;" in screen.getvalue()
    assert "[red]:warning:" in screen.getvalue()


@given(st.text())
def test_nothing_harmful_passes_and_nothing_else_is_changed(text):
    shown = escaped(text)
    assert shown.isprintable() or any(letter in "\t\n" or not letter.isascii() for letter in shown)
    assert "\x1b" not in shown
    assert not any("\x80" <= letter <= "\x9f" for letter in shown)
    shown.encode()
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize("case", ["clipboard", "sign", "no UTF-8", "markup"])
@pytest.mark.parametrize("terminal", [False, True])
def test_no_command_lets_it_through(tmp_path, case, terminal):
    """Check a video of that name, and a missing one: both are named in messages."""
    name = NAMES[case][0].replace("/", "|")
    clip = write_clip(tmp_path / "in.mp4", frame_count=3)
    film = clip.rename(tmp_path / f"{name}.mp4")
    command = [sys.executable, "-m", "vitascope", "segment", film, tmp_path / f"{name}-missing.mp4"]
    said = run(
        [*command, "--out", tmp_path / "cut", "--profile", "fast", "--device", "cpu"], terminal=terminal
    )
    assert b"in.mp4" not in said
    shown = NAMES[case][1].replace("/", "|").encode()
    assert shown in said.replace(b"\r\n", b"")
    assert b"\x1b]" not in said
    assert b"\x07" not in said


def run(command, *, terminal):
    if not terminal:
        ended = subprocess.run(command, capture_output=True, check=False)
        return ended.stdout + ended.stderr
    ours, theirs = pty.openpty()
    said = b""
    environment = {**os.environ, "COLUMNS": "300", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            said += part
        process.wait()
    os.close(ours)
    return said
