"""A cluster that cannot be had: one line, from the command and from ``cluster status``."""

from __future__ import annotations

import sys

import pytest

from clips import write_clip
from vitascope.cli import main


@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1:10001"])
def test_without_ray_it_says_what_to_install(tmp_path, capsys, monkeypatch, address):
    monkeypatch.setitem(sys.modules, "ray", None)
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    for words in (
        ("segment", str(clip), "-o", str(tmp_path / "o.mp4"), "--cluster", address),
        ("cluster", "status", "--address", address),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words])
        said = capsys.readouterr()
        assert ended.value.code not in (0, None)
        assert said.out == ""
        assert said.err == "vitascope: a cluster needs Ray: pip install 'vitascope[cluster]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["in.mp4"]
