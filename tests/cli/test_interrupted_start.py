"""Ctrl-C before the command line is even understood."""

from __future__ import annotations

import signal
import subprocess
import sys
import types

import pytest

from vitascope.cli import main


class Interrupting(types.ModuleType):
    """Stands in for the module of the commands; Ctrl-C is pressed while it is loaded."""

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


def test_a_command_waits_for_its_own_modules_alone():
    """What ``--version`` imports is what every command waits for: no settings, no arrays, no codecs."""
    program = "import sys, vitascope.cli.app; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"numpy", "pydantic", "av", "cv2", "onnxruntime"} & set(loaded.stdout.split())
