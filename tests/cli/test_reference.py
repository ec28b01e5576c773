"""Check that generated documentation is current: commands, settings, and the toolkit's template."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from vitascope.cli.app import app
from vitascope.config import load_settings
from vitascope.config.settings import setting_fields
from vitascope.errors import ConfigError
from write_reference import (
    BEGIN,
    COMMANDS,
    END,
    PAGES,
    SECTIONS,
    commands_page,
    main,
    settings_table,
    template,
    with_settings,
)

ROOT = Path(__file__).parents[2]
FILE = ROOT / "configs" / "gpu_config.yaml"


def test_types_of_a_command_are_evaluated_when_it_is_loaded() -> None:
    """Evaluating annotations from text takes a quarter of the time of each command line."""
    texts = set()
    for words in COMMANDS:
        command = app
        for word in words:
            command = command[word]
        kinds = getattr(command.default_command, "__annotations__", {})
        texts |= {(*words, name) for name, kind in kinds.items() if isinstance(kind, str)}
    assert texts == set()


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page of all commands, which takes a second to write."""
    return commands_page()


def test_all_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], root=ROOT) == 0, capsys.readouterr().err


def test_check_reports_and_writing_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "commands.md").write_text("old", encoding="utf-8")
    page = tmp_path / "docs" / "configuration.md"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    assert main(["--check"], root=tmp_path) == 1
    told = capsys.readouterr().err
    assert all(f"{name} is not current" in told for name in PAGES)
    assert page.read_text(encoding="utf-8") == f"{BEGIN}{END}"
    assert main([], root=tmp_path) == 0
    assert main(["--check"], root=tmp_path) == 0
    for name in ("docs/commands.md", "configs/gpu_config.yaml"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
    shutil.copy(ROOT / "docs" / "commands.md", page)
    with pytest.raises(ConfigError, match="settings:begin"):
        main([], root=tmp_path)


def test_every_command_is_on_the_page():
    def names(node, prefix=()):
        for name in node.resolved_commands():
            if not name.startswith("-"):
                yield (*prefix, name)
                yield from names(node[name], (*prefix, name))

    assert set(names(app)) <= set(COMMANDS)


@pytest.mark.parametrize(
    "command", ["segment", "people", "animate", "vr convert", "bench run", "config show"]
)
def test_every_option_of_a_command_is_on_its_section(command, page, capsys):
    app([*command.split(), "--help"], exit_on_error=False, result_action="return_value")
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    assert {"--set", "--codec", "--json"} & options
    section = page.split(f"## `vitascope {command}`")[1].split("\n## ")[0]
    assert options <= set(re.findall(r"--[a-z][a-z-]+", section)) | {"--layout", "--no-overwrite", "--debug"}


def test_an_option_is_explained_once_where_commands_share_it(page):
    assert page.count("Settings file (YAML); later files override earlier ones.\n") == 1


def test_the_table_has_a_row_for_each_setting() -> None:
    rows = [line for line in settings_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(setting_fields())
    assert all(row.replace(r"\|", "").count("|") == 5 for row in rows)


def test_only_what_lies_between_the_markers_changes() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_settings(page) == f"before\n{BEGIN}\n\n{settings_table()}\n\n{END}\nafter\n"
    assert with_settings(with_settings(page)) == with_settings(page)


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ConfigError, match="settings:begin"):
        with_settings(page)


def test_it_loads_as_settings_and_changes_nothing():
    assert load_settings(files=[FILE]).settings == load_settings().settings


def test_every_key_of_the_toolkit_is_there_with_its_meaning():
    text = template()
    flat = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    for entry in setting_fields().values():
        if entry.key.partition(".")[0] in SECTIONS:
            assert entry.description in flat
            assert f"{entry.key.rpartition('.')[2]}: " in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batching.dynamic.timeout_ms", 50),
        ("tensorrt.precision.fp16", True),
        ("pipeline.stages.decode.threads", 0),
    ],
)
def test_sections_lie_inside_one_another(key, value):
    found = yaml.safe_load(template().replace("# timeout_ms", "timeout_ms").replace("# fp16", "fp16"))
    for name in key.split("."):
        found = found[name]
    assert found == value
