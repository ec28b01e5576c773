"""Tests of where Vitascope stores its files, and of which code may read the environment."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import vitascope
from vitascope.config import vitascope_home
from vitascope.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("VITASCOPE_HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_the_users_choice_wins(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "own"))
    assert vitascope_home() == tmp_path / "own"


def test_a_relative_choice_becomes_absolute(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("VITASCOPE_HOME", "models")
    assert vitascope_home() == home / "models"


def test_an_empty_choice_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("VITASCOPE_HOME", "")
    assert vitascope_home() == home / ".cache" / "vitascope"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, ".cache/vitascope"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/vitascope"),
        ("linux", {"XDG_CACHE_HOME": ""}, ".cache/vitascope"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "Library/Caches/vitascope"),
        ("win32", {}, "AppData/Local/vitascope"),
    ],
)
def test_platform_folders(
    platform: str, variables: dict[str, str], expected: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert vitascope_home() == home / expected


def test_named_cache_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    assert vitascope_home() == home / "cache" / "vitascope"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(home / "local"))
    assert vitascope_home() == home / "local" / "vitascope"


def test_an_unknown_home_says_what_to_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(ConfigError, match="set VITASCOPE_HOME"):
        vitascope_home()


def test_only_one_file_reads_the_environment() -> None:
    package = Path(vitascope.__file__).parent
    names = ("environ", "environb", "getenv")
    readers = set()
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in names):  # parsing the whole package would take seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in names:
                readers.add(path.relative_to(package).as_posix())
    # Some libraries can only be silenced by environment variables: SVT-AV1, while the encoder opens one;
    # OpenCV's FFmpeg, when it first opens an address; PyTorch's recorder and ONNX Runtime's telemetry, when
    # they are loaded. And on Linux only the environment tells where a screen is.
    silenced = {
        "media/reading/camera.py",
        "media/writing/encoder_setup.py",
        "bench/profiling.py",
        "gpu/engines/onnx_library.py",
    }
    assert readers == {"config/home.py", "media/sinks/window.py"} | silenced
