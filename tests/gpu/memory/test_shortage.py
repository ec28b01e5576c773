"""Memory that is released when it ran out."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from vitascope.errors import DeviceMemoryError
from vitascope.gpu.memory.shortage import release_idle_memory


class Surface:
    """Stands for memory of the GPU that lives as long as its Python object."""


def fail(seen: list[weakref.ref[Surface]]) -> None:
    """Fail as a stage does that keeps its error at hand: error, traceback, frame and surface form a cycle."""
    surface = Surface()
    seen.append(weakref.ref(surface))
    kept = DeviceMemoryError("it does not fit")
    raise kept


@pytest.fixture
def no_collection():
    """Python does not look for cycles by itself."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_what_a_failed_run_held_is_gone():
    seen: list[weakref.ref[Surface]] = []
    with contextlib.suppress(DeviceMemoryError):
        fail(seen)
    assert seen[0]() is not None  # or this test shows nothing
    release_idle_memory()
    assert seen[0]() is None
