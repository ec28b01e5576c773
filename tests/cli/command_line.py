"""Run the command line in this process."""

from __future__ import annotations

import pytest

from vitascope.cli import main


def run(*words: object) -> object:
    """Run a command line, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code
