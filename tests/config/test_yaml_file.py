"""Tests of files that are not valid settings files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from vitascope.config import load_settings
from vitascope.errors import ConfigError


def message_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(files=[path])
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


def load_text(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "my.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "",
        "# nothing\n",
        "---\n",
        "~",
        "model:\n",
        "model:\n  # batch_size: 4\ngpu: null\n",
        b"\xef\xbb\xbfmodel.name: auto",
        "model.name: auto".encode("utf-16"),
    ],
)
def test_empty_and_half_empty_files_are_fine(content: str | bytes, tmp_path: Path) -> None:
    loaded = load_settings(files=[load_text(tmp_path, content)])
    assert loaded.settings == load_settings().settings


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("model:\n  batch_size: [4\n", ":3: not valid YAML: "),
        ("model:\n\tname: rvm\n", ":2: not valid YAML: "),
        ("model: {name: rvm}\nmodel: {batch_size: 2}\n", ":2: 'model' is set twice; the first is on line 1"),
        (
            "model:\n  name: rvm\n  kind: matte\n  name: selfie\n",
            ":4: 'model.name' is set twice; the first is on line 2",
        ),
        (
            "model:\n  name: rvm\nmodel.name: selfie\n",
            ":3: 'model.name' is set twice; the first is on line 2",
        ),
        ("profile: fast\nprofile: fast\n", ":2: 'profile' is set twice; the first is on line 1"),
        ("- model\n- gpu\n", ":1: a settings file holds settings as `name: value` lines"),
        ("just text", ":1: a settings file holds settings as `name: value` lines"),
        ("gpu: fast\n", ":1: 'gpu' is a section and holds settings as `name: value` lines"),
        ("\n[a, b]: 4\n", ":2: found a list or mapping instead of the name of a setting"),
        ("model.name: a\n---\nmodel.name: b\n", ":2: not valid YAML: "),
        ("model.name: !!python/name:os.system\n", ":1: not valid YAML: could not determine a constructor"),
        ("model: !!python/object:builtins.dict {}\n", ":1: 'model' is a section and holds settings"),
        ("model.name: &a [*a]\n", ":1: not valid YAML: aliases are not allowed in a settings file"),
        (
            "model: &m {name: rvm}\ngpu: *m\n",
            ":2: not valid YAML: aliases are not allowed in a settings file",
        ),
        ("gpu:\n  <<: {precision: fp16}\n", ":2: unknown setting 'gpu.<<'"),
        ("model.name: 2024-13-45\n", ":1: model.name has a value that YAML cannot read: "),
        ("model.name: {[a]: b}\n", ":1: "),
        ("output.crf: " + "9" * 5000 + "\n", ":1: output.crf has a value that YAML cannot read: "),
        ("model.name: " + "[" * 50_000, ": nested too deeply for a settings file"),
        (b"\x00\x01\x02\x03", ": not a YAML text file: "),
        (b"model.name: caf\xe9\n", ": not a YAML text file: "),
        (b"\xff\xfe\x00", ": not a YAML text file: "),
        (bytes(range(256)) * 8192, ": more than 1048576 bytes are too many for a settings file"),
    ],
    ids=range(24),
)
def test_hostile_files_get_one_line(content: str | bytes, expected: str, tmp_path: Path) -> None:
    assert message_of(load_text(tmp_path, content)).startswith(expected)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert message_of(tmp_path / "missing.yaml") == ": no such settings file"
    assert message_of(tmp_path) == ": a folder, expected a YAML settings file"
    in_file = load_text(tmp_path, "") / "below.yaml"
    assert message_of(in_file).startswith(": the settings file could not be read: ")
    with pytest.raises(ConfigError, match="could not be read"):
        load_settings(files=[Path("a\0b.yaml")])


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    settings = load_settings(files=[load_text(tmp_path, "edges: {grow_px: 1e-1, feather_px: 2E0}")]).settings
    assert (settings.edges.grow_px, settings.edges.feather_px) == (0.1, 2.0)


def test_dotted_sections_may_stand_anywhere(tmp_path: Path) -> None:
    text = "pipeline.stages:\n  decode.threads: 3\npipeline:\n  stages.encode:\n    threads: 5\n"
    loaded = load_settings(files=[load_text(tmp_path, text)])
    stages = loaded.settings.pipeline.stages
    assert (stages.decode.threads, stages.encode.threads) == (3, 5)
    assert loaded.origin("pipeline.stages.encode.threads").label.endswith(":5")


def test_a_file_without_end_is_refused():
    assert "are too many for a settings file" in message_of(Path("/dev/zero"))


def test_settings_may_come_through_a_pipe(tmp_path):
    pipe = tmp_path / "settings.yaml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("profile: fast\n",))
    writer.start()
    loaded = load_settings(files=[pipe])
    writer.join()
    assert loaded.profile == "fast"
