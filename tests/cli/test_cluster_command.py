"""Check that a missing cluster is one line, in ``segment`` and in ``cluster status``."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from clips import write_clip
from vitascope.cli import main
from vitascope.segmentation.processes import cluster


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


def test_a_video_whose_name_holds_a_line_feed_stays_on_its_line(capsys, monkeypatch):
    line = "dance\nvideo.mp4: 3 of 10 frames"
    monkeypatch.setattr(cluster, "cluster_at", lambda address: nullcontext(address))
    monkeypatch.setattr(cluster, "nodes_of", lambda ray: [])
    monkeypatch.setattr(
        cluster, "films_at_work", lambda ray, *, namespace: [SimpleNamespace(line=lambda: line)]
    )
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "status"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "dance\\nvideo.mp4: 3 of 10 frames\n"
