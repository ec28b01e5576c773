"""Fixtures: a video of two people, and a machine that fetches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from clips import write_clip
from scripted import BrightnessNetwork, segment_with
from two_people import two_people
from vitascope.errors import ModelUnavailableError
from vitascope.models.store.store import ModelStore


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fetch no networks: a scripted one computes mattes, and none finds faces."""

    def refuse(_: object, name: str, **__: object) -> None:
        raise ModelUnavailableError(f"model {name!r} could not be fetched (offline)")

    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ModelStore, "pull", refuse)
    network = BrightnessNetwork()
    network.name = "selfie"  # stored results are told apart by the network's catalogue entry
    segment_with(monkeypatch, network, name="selfie")
    return tmp_path / "home"


@pytest.fixture
def clip(home: Path, tmp_path: Path) -> Path:
    """Write a clip of 20 frames, 24 a second."""
    return write_clip(
        tmp_path / "in.mkv", width=96, height=64, frame_count=20, paint=two_people, codec="ffv1"
    )
