"""Check that each output kind is drawn in its own way, and documented on the page of outputs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from vitascope.config import OutputKind, load_settings
from vitascope.segmentation.render.renderer import _output


def test_a_kind_that_nobody_paints_is_not_drawn_as_another():
    encoding, settings = SimpleNamespace(bit_depth=8, codec="h264", is_nvenc=False), load_settings().settings
    for kind in get_args(OutputKind):
        assert _output(kind, encoding, settings.output).kind == kind
    with pytest.raises(AssertionError, match="paper"):
        _output("paper", encoding, settings.output)


def test_every_kind_has_a_row():
    page = Path(__file__).parents[3] / "docs" / "outputs.md"
    rows = re.findall(r"^\| `([\w-]+)` \| .+ \| .+ \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows[: len(get_args(OutputKind))]) == sorted(get_args(OutputKind))
