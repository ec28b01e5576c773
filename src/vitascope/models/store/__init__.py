"""Networks on this machine: catalogue, download, verification."""

from vitascope.models.store.store import ModelStore

__all__ = ["ModelStore"]
