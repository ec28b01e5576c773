"""Tests of which network the settings choose, and what the user is told about it."""

from __future__ import annotations

import pytest

from vitascope.config import load_settings, vitascope_home
from vitascope.device import Device
from vitascope.models.rvm.fused_network import RvmFusedNetwork
from vitascope.models.store.catalogue import Catalogue, load_catalogue
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting import cached_film, networks
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
        assert "selfie runs on the CPU" in chosen.note
        assert "--profile balanced" in chosen.note


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp16", "mixed"])
def test_auto_finds_the_fused_kernels_of_rvm_accurate(rvm_model_path, monkeypatch, tmp_path, precision):
    pytest.importorskip("triton")
    monkeypatch.setattr(networks, "engine_cache", lambda: tmp_path)  # ignore verdicts of other runs
    settings = load_settings(assignments=[f"gpu.precision={precision}"]).settings
    opened = networks._open_rvm_on_gpu(
        rvm_model_path, name="rvm", settings=settings, device=Device("cuda", "any")
    )
    try:
        assert isinstance(opened.network, RvmFusedNetwork), opened.reasons
        assert len(list(tmp_path.glob("*.verdict.json"))) == 1
    finally:
        opened.network.close()


def test_every_matting_network_of_the_catalogue_is_opened_as_what_it_is(monkeypatch):
    opened = []
    monkeypatch.setattr(networks, "_open_selfie", lambda name, *_: opened.append(("selfie", name)))
    monkeypatch.setattr(networks, "_open_rvm", lambda name, *_: opened.append(("rvm", name)))
    entries = [entry for entry in load_catalogue().models if entry.used_by == "segmentation"]
    for entry in entries:
        networks._open_named(entry.name, None, None, None, None)
    assert opened == [(entry.name.partition("-")[0], entry.name) for entry in entries]
    other = Catalogue(models=(entries[0].model_copy(update={"name": "modnet"}),))
    monkeypatch.setattr(networks, "load_catalogue", lambda: other)
    with pytest.raises(AssertionError, match="modnet"):
        networks._open_named("modnet", None, None, None, None)


def test_a_network_that_is_opened_later_is_said_to_remember_if_the_catalogue_says_so(monkeypatch):
    known = load_catalogue()
    other = known.entry("rvm").model_copy(update={"name": "modnet-video"})
    monkeypatch.setattr(
        networks, "load_catalogue", lambda: Catalogue.model_construct(models=(*known.models, other))
    )
    monkeypatch.setattr(cached_film, "network_sha256", lambda *_: "0" * 64)
    for name, remembers in (("selfie", False), ("rvm-resnet50", True), ("modnet-video", True)):
        words = [f"model.name={name}", "processing.enable_caching=true"]
        settings, store = load_settings(assignments=words).settings, ModelStore(vitascope_home())
        chosen = cached_film.open_or_defer(settings, store, lambda: pytest.fail("opened"))
        assert chosen.network.recurrent == remembers
