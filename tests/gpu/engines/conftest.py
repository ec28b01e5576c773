from __future__ import annotations

import sys

import pytest

from fake_cupy import fake_cupy


@pytest.fixture
def cupy(monkeypatch):
    """A stand-in for CuPy, in its place."""
    module = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module
