"""Fixtures for tests of the model store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import FileServer, serve
from store_homes import CONTENT, from_url, make_store

from vitascope.models.store.store import ModelStore


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve(CONTENT) as running:
        yield running


@pytest.fixture
def store(server: FileServer, tmp_path: Path) -> ModelStore:
    return make_store(tmp_path / "home", from_url(server))
