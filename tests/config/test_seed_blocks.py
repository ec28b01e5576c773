"""Check that users of the guides can keep their YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from seed_blocks import SEED_BLOCKS, SeedBlock

from vitascope.config import OriginKind, load_settings
from vitascope.config.settings import value_of


@pytest.mark.parametrize("block", SEED_BLOCKS, ids=lambda block: block.title)
def test_block_loads_and_sets_its_keys(block: SeedBlock, tmp_path: Path) -> None:
    path = tmp_path / "block.yaml"
    path.write_text(block.text, encoding="utf-8")

    loaded = load_settings(files=[path])

    assert {key: value_of(loaded.settings, key) for key in block.expected} == block.expected
    from_file = {row.key for row in loaded.rows() if row.origin.kind is OriginKind.FILE}
    assert from_file == set(block.expected)


def test_no_block_was_left_out() -> None:
    # 1 in the GPU module's page, 4 in the optimisation techniques, 19 in the tuning guide, 9 in the
    # animator's.
    assert len(SEED_BLOCKS) == 33
