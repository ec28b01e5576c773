"""Tests of ``vitascope models export``: its files, and its messages when it cannot write them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from vitascope.models.liveportrait.folder import CHECKPOINTS


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Return a function that runs a command line, and returns exit code, stdout and stderr."""
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    return partial(run, "models", "export")


@pytest.fixture
def checkpoints(tmp_path) -> Path:
    """Create a folder with every file, none of them a checkpoint."""
    for name in CHECKPOINTS.values():
        path = tmp_path / "weights" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not a checkpoint")
    return tmp_path / "weights"


def test_without_weights_it_says_how_to_bring_them(run, tmp_path):
    code, out, err = run("liveportrait", "--to", tmp_path / "onnx")
    assert (code, out) == (5, "")
    assert err.count("\n") == 1
    assert str(tmp_path / "home" / "liveportrait") in err
    assert "huggingface.co/KlingTeam/LivePortrait" in err and "--weights" in err
    assert not (tmp_path / "onnx").exists()


def test_missing_files_are_named(run, tmp_path, checkpoints):
    pytest.importorskip("torch")
    (checkpoints / CHECKPOINTS["warping"]).unlink()
    code, _, err = run("liveportrait", "--to", tmp_path / "onnx", "--weights", checkpoints)
    assert code == 5
    assert "lack base_models/warping_module.pth" in err and "motion" not in err


def test_damaged_files_are_named(run, tmp_path, checkpoints):
    pytest.importorskip("torch")
    code, _, err = run("liveportrait", "--to", tmp_path / "onnx", "--weights", checkpoints)
    assert code == 5
    assert err.count("\n") == 1 and "appearance_feature_extractor.pth: not a checkpoint" in err


def test_without_pytorch_it_says_what_to_install(run, tmp_path, checkpoints, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("vitascope.models.liveportrait.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = run("liveportrait", "--to", tmp_path / "onnx", "--weights", checkpoints)
    assert code == 5
    assert err.count("\n") == 1 and "pip install 'vitascope[torch]'" in err


def test_other_networks_are_onnx_files_already(run, tmp_path):
    code, _, err = run("rvm", "--to", tmp_path)
    assert code == 2
    assert (
        err
        == "vitascope: rvm: only liveportrait can be exported; all other networks are already ONNX files\n"
    )


@pytest.mark.parametrize(("flags", "half"), [((), False), (("--fp16",), True)])
def test_files_are_listed_with_their_sizes(run, tmp_path, checkpoints, monkeypatch, flags, half):
    pytest.importorskip("torch")
    from vitascope.models.liveportrait import onnx_files
    from vitascope.models.liveportrait.published import PublishedNetworks

    told = {}

    def export(networks, folder, *, half_precision, on_written):
        told.update(networks=networks, half_precision=half_precision)
        on_written(onnx_files.OnnxFile(folder / "lips.onnx", 2_340_000))

    monkeypatch.setattr(PublishedNetworks, "read", lambda folder: f"weights of {folder}")
    monkeypatch.setattr(onnx_files, "export_onnx_files", export)
    code, out, err = run("liveportrait", "--to", tmp_path / "to", "--weights", checkpoints, *flags)
    assert (code, err) == (0, "")
    assert out == f"{tmp_path / 'to' / 'lips.onnx'}: 2.3 MB\n"
    assert told == {"networks": f"weights of {checkpoints}", "half_precision": half}
