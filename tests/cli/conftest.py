"""Fixtures for all tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run as run_it
from cyclopts import App

from brightness_file import brightness_settings
from kept_networks import networks_stay_open
from kept_portraits import people_stay_found
from vitascope.bench import suite
from vitascope.bench.suite import Rounds

__all__ = ["networks_stay_open", "people_stay_found"]


@pytest.fixture(autouse=True)
def consoles_are_as_wide_as_the_test_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset Cyclopts's consoles; otherwise the first one, and its width, stay for the rest of the process."""
    for name in ("console", "error_console"):
        kept = getattr(App, name)

        def fresh(self: App, kept: Any = kept) -> Any:
            self._fallback_console = self._fallback_error_console = None
            return kept.fget(self)

        monkeypatch.setattr(App, name, property(fresh, kept.fset))


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[object, str, str]]:
    """Return a function that runs a command line, and returns exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def runner(*words: object) -> tuple[object, str, str]:
        code = run_it(*words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return runner


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of a small real ``bench run``, which tests must not change."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "_QUICK_RESOLUTIONS", {"1080p": (256, 144)})
        patch.setattr(suite, "_QUICK_FRAMES", 8)
        patch.setattr(suite, "_FRAMES", 8)
        patch.setattr(suite, "_QUICK_VISITS", 1)
        patch.setattr(suite, "_QUICK_ROUNDS", Rounds(fewest=3, most=3, seconds=0))
        network = brightness_settings()
        words = ("--quick", "--only", "batch", "--model", network["model.name"], "--set", "model.kind=matte")
        assert run_it("bench", "run", *words, "--output-dir", folder) == 0
    return folder / "benchmark_results.json"
