"""Tests of checkpoints: read without running code, spectral norm folded, loaded strictly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.spectral_norm import spectral_norm

from vitascope.errors import ModelError
from vitascope.models.liveportrait.published import (
    fold_spectral_norm,
    load_strictly,
    read_checkpoint,
    stitching_perceptron,
)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm`:FutureWarning")
def test_spectral_norm_is_folded_as_pytorch_applies_it() -> None:
    normed = spectral_norm(nn.Conv2d(3, 5, 3)).eval()
    x = torch.randn(1, 3, 6, 6)
    plain = nn.Conv2d(3, 5, 3)
    load_strictly(plain, normed.state_dict(), label="a network")
    torch.testing.assert_close(plain(x), normed(x), rtol=1e-4, atol=1e-5)


def test_what_is_not_normed_is_left_alone() -> None:
    state = {"a.weight": torch.ones(2), "a.bias": torch.zeros(2)}
    assert fold_spectral_norm(state) == state


def test_names_of_parallel_training_fit() -> None:
    network = stitching_perceptron()
    load_strictly(network, {f"module.{key}": value for key, value in network.state_dict().items()}, label="S")


@pytest.mark.parametrize("change", ["less", "more", "other shape"])
def test_anything_that_does_not_fit_is_refused(change: str) -> None:
    network = stitching_perceptron()
    state = dict(network.state_dict())
    if change == "less":
        del state["mlp.0.bias"]
    elif change == "more":
        state["mlp.9.bias"] = torch.zeros(1)
    else:
        state["mlp.0.bias"] = torch.zeros(3)
    with pytest.raises(ModelError, match=r"stitching: .*mlp"):
        load_strictly(network, state, label="stitching")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("code of a checkpoint ran",)


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.pth"
    torch.save({"a": Evil()}, path)
    with pytest.raises(ModelError, match="not a checkpoint of plain tensors"):
        read_checkpoint(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"plain text"])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "torn.pth"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"torn\.pth: not a checkpoint"):
        read_checkpoint(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        read_checkpoint(tmp_path / "none.pth")


def test_a_good_file_is_read(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(3)}, tmp_path / "good.pth")
    assert read_checkpoint(tmp_path / "good.pth")["a"].tolist() == [0, 1, 2]
