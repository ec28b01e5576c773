"""Fixtures for tests that run whole jobs."""

from __future__ import annotations

from fractions import Fraction

import pytest
from segmented_films import astronaut

from clips import write_clip
from kept_networks import networks_stay_open
from scripted import BrightnessNetwork, segment_with

__all__ = ["networks_stay_open"]


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """Write a clip of 128 x 128 with 12 frames at a fractional rate, sound and BT.709."""
    return write_clip(
        tmp_path_factory.mktemp("clip") / "in.mp4",
        width=128,
        height=128,
        frame_count=12,
        frame_rate=Fraction(30000, 1001),
        paint=astronaut,
        audio="aac",
        color_tags=(1, 1, 1, 1),
        metadata={"title": "wedding"},
    )


@pytest.fixture
def scripted(monkeypatch):
    """Give all segmenters this network, whichever they ask for."""
    network = BrightnessNetwork(recurrent=True)
    segment_with(monkeypatch, network)
    return network
