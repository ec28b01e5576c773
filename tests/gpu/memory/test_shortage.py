"""Check that memory is released after a shortage."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from vitascope.errors import DeviceMemoryError
from vitascope.gpu.memory.shortage import release_idle_memory


class Surface:
    """Represents GPU memory that lives as long as its Python object."""


def fail(seen: list[weakref.ref[Surface]]) -> None:
    """Fail like a stage that stores its error: error, traceback, frame and surface form a cycle."""
    surface = Surface()
    seen.append(weakref.ref(surface))
    kept = DeviceMemoryError("it does not fit")
    raise kept


@pytest.fixture
def no_collection():
    """Turn off automatic garbage collection."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_what_a_failed_run_held_is_gone():
    seen: list[weakref.ref[Surface]] = []
    with contextlib.suppress(DeviceMemoryError):
        fail(seen)
    assert seen[0]() is not None  # else this test proves nothing
    release_idle_memory()
    assert seen[0]() is None
