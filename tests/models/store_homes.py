"""Stores with one small network to fetch, `net`, and a bundled one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from file_server import FileServer

from vitascope.models.store.catalogue import Catalogue, load_catalogue
from vitascope.models.store.store import ModelStore

CONTENT = bytes(range(256)) * 1031


def catalogue_data(*sources: dict[str, str], content: bytes = CONTENT) -> dict[str, object]:
    net = {
        "name": "net",
        "file_name": "network.onnx",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "license": "MIT",
        "homepage": "https://example.org",
        "purpose": "Testing.",
        "used_by": "segmentation",
        "input_kind": "image",
        "sources": list(sources),
    }
    selfie = load_catalogue().entry("selfie").model_dump(mode="json")
    return {"models": [selfie, net]}


def from_url(server: FileServer) -> dict[str, str]:
    return {"kind": "url", "url": server.url}


FROM_PYPI = {"kind": "pypi", "requirement": "netpack==1.2", "member": "netpack/network.onnx"}


def make_store(home: Path, *sources: dict[str, str], stall_seconds: float = 20.0) -> ModelStore:
    catalogue = Catalogue.model_validate(catalogue_data(*sources))
    return ModelStore(home, catalogue=catalogue, stall_seconds=stall_seconds)


def leave(store: ModelStore, name: str, content: bytes) -> Path:
    store.where().mkdir(parents=True, exist_ok=True)
    path = store.where() / name
    path.write_bytes(content)
    return path


def names_in(store: ModelStore) -> set[str]:
    return {path.name for path in store.where().iterdir()}
