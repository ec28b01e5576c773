"""Ctrl-C before the command line is even understood."""

from __future__ import annotations

import signal
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
