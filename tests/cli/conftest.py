"""What all tests of the command line share."""

from __future__ import annotations

from typing import Any

import pytest
from cyclopts import App


@pytest.fixture(autouse=True)
def consoles_are_as_wide_as_the_test_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cyclopts keeps the console that a command first wrote to, and its width, for the rest of the process."""
    for name in ("console", "error_console"):
        kept = getattr(App, name)

        def fresh(self: App, kept: Any = kept) -> Any:
            self._fallback_console = self._fallback_error_console = None
            return kept.fget(self)

        monkeypatch.setattr(App, name, property(fresh, kept.fset))
