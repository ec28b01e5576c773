"""Tests of the package versions that a node reports, and of how differences are described."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types

import pytest

import vitascope
from vitascope.segmentation.processes import cluster as cluster_module


@pytest.fixture
def installed(monkeypatch):
    """Set the versions in the metadata of installed packages."""
    packages = {"vitascope": "0.0.9", "av": "15.1.0", "numpy": "2.3.0", "onnxruntime": "1.23.0"}

    def version(name):
        if name not in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return packages


def own_versions():
    return cluster_module._versions_of()(cluster_module._SAME_EVERYWHERE)


def test_the_version_of_onnx_runtime_is_told_by_either_name(installed):
    assert own_versions()["onnxruntime"] == "1.23.0"
    installed["onnxruntime-gpu"] = installed.pop("onnxruntime")
    ours = own_versions()
    assert ours["onnxruntime"] == "1.23.0"
    installed["onnxruntime-gpu"] = "1.22.0"
    other = cluster_module._other_versions(own_versions(), ours)
    assert other == "has onnxruntime 1.22.0; this machine has 1.23.0"


def test_vitascope_tells_its_own_version_whatever_was_installed_once(installed, monkeypatch):
    assert own_versions()["vitascope"] == vitascope.__version__
    del installed["vitascope"]
    assert own_versions()["vitascope"] == vitascope.__version__
    monkeypatch.setitem(sys.modules, "vitascope", None)  # makes it impossible to import
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert own_versions()["vitascope"] is None


def test_what_can_be_found_but_tells_no_version_is_not_missing(installed, monkeypatch):
    ours = own_versions()
    del installed["av"]
    there = own_versions()
    assert there["av"] == ""
    assert cluster_module._other_versions(there, ours) is None
    assert cluster_module._other_versions(ours, there) is None
    assert cluster_module._other_versions(ours | {"av": None}, there) == "lacks av; this machine has it"
    assert cluster_module._other_versions(there, ours | {"av": None}) == "has av; this machine lacks it"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: types.SimpleNamespace(origin=None))
    assert own_versions()["av"] is None  # found, but only as a folder of that name


def test_who_is_left_out_is_named_once():
    label = "node 10.0.0.7 (abcdef)"
    expected = f"{label} was left out: it lacks vitascope; this machine has 0.1.0"
    assert cluster_module._left_out(label, f"{label} lacks vitascope; this machine has 0.1.0") == expected
    assert cluster_module._left_out(label, "no network") == f"{label} was left out: no network"
