"""Skip these tests without PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the published networks with fewer channels, blocks and levels, to save time."""
    from vitascope.models.liveportrait import motion, published

    monkeypatch.setattr(published, "_RESIDUALS", 1)
    monkeypatch.setattr(motion, "_DEPTHS", (1, 1, 2, 1))
    monkeypatch.setattr(motion, "_WIDTHS", (8, 16, 24, 32))
    monkeypatch.setattr(published, "_ENCODER", (110, 8, 8))
    monkeypatch.setattr(published, "_DECODER", ((8, 8), (16, 32)))
    monkeypatch.setattr(published, "_HIDDEN_CHANNELS", 8)
    monkeypatch.setattr(published, "_MIDDLE_BLOCKS", 1)
