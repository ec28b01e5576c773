"""Tests of Ctrl-C before the command line is parsed."""

from __future__ import annotations

import signal
import subprocess
import sys
import types

import pytest

from vitascope.cli import app, main


class Interrupting(types.ModuleType):
    """Replaces the module of the commands; Ctrl-C is pressed while it loads."""

    @property
    def main(self):
        signal.raise_signal(signal.SIGINT)
        return lambda _: pytest.fail("nothing is run after that")


def test_it_is_one_line_and_not_a_trace_of_what_was_loaded(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "vitascope.cli.app", Interrupting("vitascope.cli.app"))
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "vitascope: interrupted\n"


def test_without_it_the_command_runs(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip()


UNDERSTOOD = """
import sys
from vitascope.cli.app import app

app.resolved_commands()
app.help_print(["segment"])
app.parse_args(["segment", "in.mp4", "-o", "out.mp4"])
sys.stderr.write(" ".join(name.partition(".")[0] for name in sys.modules))
"""


def test_a_command_waits_for_its_own_modules_alone():
    """Check that commands and help do not load settings, arrays or codecs."""
    loaded = subprocess.run([sys.executable, "-c", UNDERSTOOD], capture_output=True, text=True, check=True)
    assert "vitascope segment in.mp4 out.mp4" in loaded.stdout
    assert not {"numpy", "pydantic", "yaml", "av", "cv2", "onnxruntime"} & set(loaded.stderr.split())


SEARCHES = """
import atexit, gc, sys
from vitascope.cli import main

UNUSED = {"vitascope.config.hints", "vitascope.segmentation.people.hinted"}
gc.collect()
gc.callbacks.append(lambda phase, _: print(phase))
atexit.register(gc.callbacks.clear)
atexit.register(lambda: print(*UNUSED.intersection(sys.modules), end=""))
sys.argv = ["vitascope", "segment", "none.mp4", "-o", "out.mp4"]
main()
"""


def test_a_command_is_loaded_without_a_search_for_cycles_and_without_what_only_chosen_people_need(tmp_path):
    started = subprocess.run(
        [sys.executable, "-c", SEARCHES], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert started.stderr == "vitascope: none.mp4: no such file or folder\n"
    assert started.stdout == ""


def test_a_second_ctrl_c_while_the_first_is_told_changes_nothing(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    say = app._complain

    def disturbed(message, *, debug):
        signal.raise_signal(signal.SIGINT)
        say(message, debug=debug)

    monkeypatch.setattr(app, "app", interrupted)
    monkeypatch.setattr(app, "_load_command", lambda _: None)
    monkeypatch.setattr(app, "_complain", disturbed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["--version"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "vitascope: interrupted\n"


LEFT_BEHIND = """
import atexit, sys, threading, time
from vitascope.cli import main

atexit.register(print, "Python ends")
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
sys.argv = ["vitascope", "modles"]
main()
"""


def test_what_is_left_behind_in_native_code_cannot_crash_the_end():
    """Check daemon threads: one that returns from C++ while Python ends would abort the process by SIGABRT."""
    ended = subprocess.run([sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "vitascope: there is no command 'modles'; did you mean models?\n"
    assert ended.stdout == ""
