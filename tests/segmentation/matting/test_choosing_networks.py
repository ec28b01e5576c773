"""Which network the settings choose, and what the user is told of it."""

from __future__ import annotations

import pytest

from vitascope.config import load_settings, vitascope_home
from vitascope.device import Device
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.networks import open_network


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["selfie", "selfie-landscape"])
def test_with_a_gpu_it_is_said_that_the_selfie_network_computes_on_the_cpu(kind, name):
    settings = load_settings(assignments=[f"model.name={name}"]).settings
    device = Device(kind, "any")
    chosen = open_network(settings, ModelStore(vitascope_home()), device=device)
    assert chosen.requested == name
    chosen.network.close()
    if kind == "cpu":
        assert chosen.note is None
    else:
        assert "computes on the CPU" in chosen.note
        assert "--profile balanced" in chosen.note
