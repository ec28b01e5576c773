"""The networks on this machine: the catalogue, fetching, verifying."""

from vitascope.models.store.store import ModelStore

__all__ = ["ModelStore"]
