"""Check that an output is complete or absent."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vitascope.errors import OutputError
from vitascope.media.writing import output_target
from vitascope.media.writing.output_target import PartialFile, PartialFolder

NUMBERED = re.compile(r"\d{6}\.png")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_temporary_name_lies_beside_and_keeps_the_suffix(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "film.final.mp4")
    assert partial.path.parent == tmp_path
    assert partial.path.suffix == ".mp4"
    assert partial.path.name.startswith(".film.final.")
    assert "part" in partial.path.name


@pytest.mark.parametrize("length", [216, 241, 255])
def test_names_as_long_as_a_file_system_takes(tmp_path: Path, length: int) -> None:
    """Check names of two bytes a letter, which must not be cut within one: some file systems require UTF-8."""
    stem = "ü" * ((length - 5) // 2) + "a" * ((length - 5) % 2)
    one, other = tmp_path / f"{stem}b.mp4", tmp_path / f"{stem}c.mp4"
    assert len(os.fsencode(one.name)) == length
    files = [PartialFile(one), PartialFile(other)]
    for file in files:
        file.path.name.encode("utf-8", errors="strict")
        assert len(os.fsencode(file.path.name)) <= 245  # names derived from it are a little longer
        file.path.write_text("new")
    with pytest.raises(OutputError, match="being written already"):
        PartialFile(one)
    files[0].commit()
    kept = files[1].keep()
    assert names(tmp_path) == sorted([one.name, kept.name])
    assert kept.name.endswith(".part")
    for _ in range(2):  # the second replaces the first
        folder = PartialFolder(tmp_path / ("d" * length), file_pattern=NUMBERED)
        (folder.path / "000000.png").touch()
        folder.commit()
    assert len(names(tmp_path)) == 3


def test_commit_replaces_the_target_at_once(tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    target.write_text("old")
    partial = PartialFile(target)
    partial.path.write_text("new")
    assert target.read_text() == "old"
    partial.commit()
    assert target.read_text() == "new"
    assert names(tmp_path) == ["a.mp4"]


def test_discard_leaves_the_old_target_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    target.write_text("old")
    partial = PartialFile(target)
    partial.discard()
    partial.discard()
    assert names(tmp_path) == ["a.mp4"]
    assert target.read_text() == "old"


def test_keep_renames_to_part(tmp_path: Path) -> None:
    (tmp_path / "a.mp4.part").write_text("earlier")
    partial = PartialFile(tmp_path / "a.mp4")
    partial.path.write_text("half")
    assert partial.keep() == tmp_path / "a.mp4.part"
    assert names(tmp_path) == ["a.mp4.part"]
    assert (tmp_path / "a.mp4.part").read_text() == "half"


def test_parent_folders_come_with_the_file_and_go_with_it(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "x" / "y" / "a.mp4")
    assert partial.path.exists()
    partial.discard()
    assert names(tmp_path) == []
    other = PartialFile(tmp_path / "x" / "y" / "a.mp4")
    (tmp_path / "x" / "guest").touch()
    other.discard()
    assert names(tmp_path) == ["x"]
    assert names(tmp_path / "x") == ["guest"]


def test_two_writers_of_one_target_do_not_mix(tmp_path: Path) -> None:
    first = PartialFile(tmp_path / "a.mp4")
    with pytest.raises(OutputError, match="being written already"):
        PartialFile(tmp_path / "a.mp4")
    assert first.path.exists()
    first.discard()
    assert names(tmp_path) == []
    PartialFile(tmp_path / "a.mp4").discard()


def test_two_writers_of_one_folder_do_not_mix(tmp_path: Path) -> None:
    first = PartialFolder(tmp_path / "cut", file_pattern=NUMBERED)
    with pytest.raises(OutputError, match="being written already"):
        PartialFolder(tmp_path / "cut", file_pattern=NUMBERED)
    first.commit()
    PartialFolder(tmp_path / "cut", file_pattern=NUMBERED).discard()
    assert names(tmp_path) == ["cut"]


KILLED = """
import os, re, signal, sys
from pathlib import Path
from vitascope.media.writing.output_target import PartialFile, PartialFolder
file, folder = PartialFile(Path("a.mp4")), PartialFolder(Path("cut"), file_pattern=re.compile("x"))
file.path.write_text("half")
(folder.path / "x").write_text("half")
print(flush=True)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_what_a_killed_run_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    died = subprocess.run([sys.executable, "-c", KILLED, "die"], check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert len(names(tmp_path)) == 4  # two temporary names and their locks
    # The next process may have the same id, as containers count from 1.
    file, folder = PartialFile(Path("a.mp4")), PartialFolder(Path("cut"), file_pattern=NUMBERED)
    (folder.path / "000000.png").touch()
    file.commit()
    folder.commit()
    assert names(tmp_path) == ["a.mp4", "cut"]
    assert (tmp_path / "a.mp4").read_text() == ""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_run_that_lives_in_another_process_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, "-c", KILLED, "live"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        before = names(tmp_path)
        with pytest.raises(OutputError, match="being written already"):
            PartialFile(Path("a.mp4"))
        with pytest.raises(OutputError, match="being written already"):
            PartialFolder(Path("cut"), file_pattern=NUMBERED)
        assert names(tmp_path) == before
        other.kill()
    PartialFile(Path("a.mp4")).discard()


def test_other_hidden_files_are_nobody_s_leftovers(tmp_path: Path) -> None:
    others = [".a.b.0a1b2c3d.part.mp4", ".a.123.part.mp4", ".a.0a1b2c3d.part.mkv", ".ab.0a1b2c3d.part.mp4"]
    for name in [*others, ".a.0a1b2c3d.part.mp4"]:
        (tmp_path / name).touch()
    PartialFile(tmp_path / "a.mp4").discard()
    assert names(tmp_path) == sorted(others)


def test_a_folder_killed_between_its_two_renames_comes_back(tmp_path: Path) -> None:
    old = tmp_path / ".cut.0a1b2c3d.old"
    old.mkdir()
    (old / "000000.png").write_text("earlier")
    PartialFolder(tmp_path / "cut", file_pattern=NUMBERED).discard()
    assert (tmp_path / "cut" / "000000.png").read_text() == "earlier"
    assert names(tmp_path) == ["cut"]


@pytest.mark.skipif(os.name != "posix", reason="flock")
def test_without_locks_writers_still_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(output_target.fcntl, "flock", refuse)
    first, second = PartialFile(tmp_path / "a.mp4"), PartialFile(tmp_path / "a.mp4")
    first.path.write_text("first")
    second.path.write_text("second")
    first.commit()
    second.commit()
    assert (tmp_path / "a.mp4").read_text() == "second"
    assert names(tmp_path) == ["a.mp4"]


def test_the_current_folder_is_not_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "below").mkdir(parents=True)
    for inside in ("here", "here/below"):
        monkeypatch.chdir(tmp_path / inside)
        with pytest.raises(OutputError, match="current folder"):
            PartialFolder(tmp_path / "here", file_pattern=re.compile(".*"))
    assert names(tmp_path) == ["here"]


def test_what_a_file_browser_leaves_does_not_make_a_folder_foreign(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / ".DS_Store").touch()
    partial = PartialFolder(tmp_path / "cut", file_pattern=NUMBERED)
    (partial.path / "000000.png").touch()
    partial.commit()
    assert names(tmp_path / "cut") == ["000000.png"]


@pytest.mark.parametrize("kind", [PartialFile, lambda path: PartialFolder(path, file_pattern=NUMBERED)])
def test_relative_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[PartialFile]) -> None:
    monkeypatch.chdir(tmp_path)
    partial = kind(Path("out"))
    assert partial.path.parent == tmp_path
    partial.discard()


def test_a_folder_as_target_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="it is a folder"):
        PartialFile(tmp_path)


def test_a_file_as_parent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="a part of the path is a file"):
        PartialFile(tmp_path / "file" / "a.mp4")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        PartialFile(tmp_path / "file" / "b" / "a.mp4")


def test_a_write_protected_target_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.mp4"
    target.write_text("precious")
    target.chmod(0o444)
    if os.access(target, os.W_OK):  # root may write anywhere
        monkeypatch.setattr(output_target.os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match="write-protected"):
        PartialFile(target)
    assert names(tmp_path) == ["a.mp4"]


def test_a_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(output_target.os, "open", refuse)
    with pytest.raises(OutputError, match="no permission to write there"):
        PartialFile(tmp_path / "new" / "a.mp4")
    assert names(tmp_path) == []


def test_a_rename_that_fails_is_ours(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "a.mp4")
    (tmp_path / "a.mp4").mkdir()
    with pytest.raises(OutputError, match="cannot finish it"):
        partial.commit()
    partial.discard()
    assert names(tmp_path) == ["a.mp4"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a folder in which nothing can be created")
@pytest.mark.parametrize("name", ["cut.mp4", "sub/cut.mp4", "sub/deeper/cut.mp4"])
def test_a_folder_in_which_nothing_can_be_created_is_named(name: str) -> None:
    words = r"nothing can be created in /proc; write to another folder$"
    with pytest.raises(OutputError, match=words):
        PartialFile(Path("/proc") / name)
    with pytest.raises(OutputError, match=words):
        PartialFolder(Path("/proc") / name, file_pattern=NUMBERED)


def test_what_somebody_took_away_meanwhile_is_called_gone(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "a.mp4")
    partial.path.unlink()
    with pytest.raises(OutputError, match=rf"what was written of it is gone from {tmp_path}$"):
        partial.commit()
    partial.discard()


def test_folder_commit_replaces_an_earlier_run(tmp_path: Path) -> None:
    target = tmp_path / "cut"
    target.mkdir()
    for n in range(5):
        (target / f"{n:06d}.png").write_text("old")
    partial = PartialFolder(target, file_pattern=NUMBERED)
    (partial.path / "000000.png").write_text("new")
    partial.commit()
    assert names(tmp_path) == ["cut"]
    assert names(target) == ["000000.png"]
    assert (target / "000000.png").read_text() == "new"


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "photos"
    target.mkdir()
    (target / "holiday.jpg").write_text("precious")
    with pytest.raises(OutputError, match=r"holiday\.jpg"):
        PartialFolder(target, file_pattern=NUMBERED)
    assert names(tmp_path) == ["photos"]
    assert names(target) == ["holiday.jpg"]


def test_a_folder_that_got_other_things_meanwhile_is_left_alone(tmp_path: Path) -> None:
    partial = PartialFolder(tmp_path / "cut", file_pattern=NUMBERED)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "note.txt").touch()
    with pytest.raises(OutputError, match=r"note\.txt"):
        partial.commit()
    partial.discard()
    assert names(tmp_path / "cut") == ["note.txt"]


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut").touch()
    with pytest.raises(OutputError, match="a file of that name exists"):
        PartialFolder(tmp_path / "cut", file_pattern=NUMBERED)


def test_folder_keep_and_discard(tmp_path: Path) -> None:
    for _ in range(2):
        partial = PartialFolder(tmp_path / "cut", file_pattern=NUMBERED)
        (partial.path / "000000.png").touch()
        assert partial.keep() == tmp_path / "cut.part"
        assert names(tmp_path) == ["cut.part"]
    partial = PartialFolder(tmp_path / "deep" / "cut", file_pattern=NUMBERED)
    (partial.path / "000000.png").touch()
    partial.discard()
    assert names(tmp_path) == ["cut.part"]


def test_what_an_interrupted_run_kept_goes_with_the_next_that_is_whole(tmp_path):
    film, pictures = tmp_path / "a.mp4", tmp_path / "cut"
    interrupted = PartialFile(film)
    interrupted.path.write_bytes(b"half")
    kept = [interrupted.keep()]
    folder = PartialFolder(pictures, file_pattern=NUMBERED)
    (folder.path / "000001.png").write_bytes(b"half")
    kept.append(folder.keep())
    assert all(path.exists() for path in kept)
    PartialFile(film).discard()
    assert all(path.exists() for path in kept)
    PartialFile(film).commit()
    PartialFolder(pictures, file_pattern=NUMBERED).commit()
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "a.mp4",
        "cut",
    ]
