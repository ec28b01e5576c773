"""Check that the network of the speed tables is that of the papers, and that its weights suit low precisions."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def deeplab(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("deeplab_v3_plus").DeepLabV3Plus


@pytest.mark.parametrize(("backbone", "millions"), [("resnet50", 40.35), ("resnet101", 59.34)])
def test_sizes(deeplab, backbone, millions):
    network = deeplab(num_classes=21, backbone=backbone)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    features = torch.zeros(1, 3, 64, 96)
    with torch.inference_mode():
        assert network(features).shape == (1, 21, 64, 96)
        features = network.stem(features)
        for stage in network.stages:
            features = stage(features)
    assert features.shape == (1, 2048, 4, 6)  # output stride 16


def test_weights_repeat_and_stay_within_fp16(deeplab):
    pictures = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    network = deeplab(seed=1)
    with torch.inference_mode():
        scores = network(pictures)
        assert torch.equal(scores, deeplab(seed=1)(pictures))
        assert not torch.equal(scores, deeplab(seed=2)(pictures))
        assert 0.1 < float(scores.std()) < 100
        low = network.bfloat16()(pictures.bfloat16()).float()
    assert float((low - scores).abs().mean() / scores.abs().mean()) < 0.05
