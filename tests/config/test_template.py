from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vitascope.config import load_settings
from vitascope.config.catalogue import setting_fields
from vitascope.config.template import SECTIONS, main, template

FILE = Path(__file__).parents[2] / "configs" / "gpu_config.yaml"


def test_the_file_is_what_is_generated(tmp_path, capsys):
    assert main([str(FILE), "--check"]) == 0, "run python -m vitascope.config.template"
    other = tmp_path / "new" / "gpu.yaml"
    assert main([str(other), "--check"]) == 1
    assert "is not current" in capsys.readouterr().err
    assert main([str(other)]) == 0
    assert other.read_text(encoding="utf-8") == template()
    assert main(["--print"]) == 0
    assert capsys.readouterr().out == template()


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
