"""TensorBoard's own reader of event files."""

from __future__ import annotations

import pytest


def curves_of(folder):
    """Return (wall seconds, step, value) of every point, by tag."""
    module = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard comes with the extra dev",
    )
    found = module.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(event.wall_time, event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }
