"""Check that files are written completely or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vitascope.errors import OutputError
from vitascope.file_lock import write_atomically, write_file


def test_whoever_writes_last_leaves_a_whole_file(tmp_path: Path) -> None:
    """Writers of one file do not share a temporary file."""
    contents = [bytes([n]) * 300_000 for n in range(16)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda content: write_file(tmp_path / "a.bin", content), contents))
    assert (tmp_path / "a.bin").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.skipif(os.name != "posix", reason="permissions as of POSIX")
def test_the_users_files_are_for_others_and_caches_are_not(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "new" / "tuned.yaml", b"a")
        write_atomically(tmp_path / "cache", b"a")
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "tuned.yaml").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o600


def test_ctrl_c_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.onnx"
    write_file(path, b"before")

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", [Path(), Path("/"), Path("/proc/a.txt")])
def test_what_cannot_be_written_is_one_line(path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_file(path, b"a")


def test_the_longest_name_is_taken(tmp_path: Path) -> None:
    write_file(tmp_path / ("a" * 255), b"a")
    assert len(list(tmp_path.iterdir())) == 1
