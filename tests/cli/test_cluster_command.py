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


@pytest.mark.parametrize("flags", [("--keep", "1"), ("--exclude", "2"), ("--keep", "largest")])
def test_some_people_and_a_cluster_are_refused_before_ray_is_asked(tmp_path, capsys, flags):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    with pytest.raises(SystemExit) as ended:
        main(["segment", str(clip), "-o", str(tmp_path / "o.mp4"), "--cluster", "127.0.0.1:1", *flags])
    said = capsys.readouterr()
    assert ended.value.code == 2
    (line,) = said.err.splitlines()
    assert line == "vitascope: who is who is found and kept on one machine; leave people.* or the cluster out"
