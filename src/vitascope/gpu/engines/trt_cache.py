"""Engines that TensorRT built, kept on disk.

A file holds one line of JSON, then the engine. The line says which TensorRT built it and what the engine's bytes hash
to; everything else that an engine depends on (network, sizes, arithmetic, GPU) is in the file's name. Damage is found
before TensorRT sees the bytes, and another version's engine is rebuilt, each with a note for the report.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from vitascope.file_lock import write_atomically

__all__ = ["TrtCache"]

_FORMAT = "vitascope-tensorrt-engine-1"


class TrtCache:
    """Engines and kernel timings of one GPU and one TensorRT.

    Args:
        directory: Created when something is first kept.
        gpu: The GPU's name and compute capability.
        version: TensorRT's.
    """

    def __init__(self, directory: Path, *, gpu: str, version: str) -> None:
        self._directory = directory
        self._gpu = gpu
        self._version = version
        self.notes: list[str] = []
        """Remarks for the user: engines that were rebuilt, and why."""

    def engine_path(self, identity: Mapping[str, object]) -> Path:
        """The file that an engine lies in, or would lie in.

        Args:
            identity: What it was made of: the network's sha256, sizes, arithmetic. JSON values.
        """
        text = json.dumps({**identity, "gpu": self._gpu}, sort_keys=True)
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.engine"

    def load(self, path: Path) -> bytes | None:
        """The engine in a file; None when it has to be built: it is absent, damaged, or of another TensorRT.

        A damaged file is removed.
        """
        try:
            header_line, _, engine = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            self.notes.append(f"{path}: the kept engine cannot be read ({error.strerror}); built anew")
            return None
        try:
            header = json.loads(header_line)
            intact = header["format"] == _FORMAT and header["sha256"] == hashlib.sha256(engine).hexdigest()
            version = str(header["version"])
        except (ValueError, TypeError, KeyError, RecursionError):
            intact, version = False, ""
        if not intact:
            self.discard(path, "was damaged")
            return None
        if version != self._version:
            self.notes.append(
                f"the kept engine was built by TensorRT {version}; built anew by {self._version}"
            )
            return None
        return engine

    def store(self, path: Path, engine: bytes) -> None:
        """Keep an engine, whole or not at all. Where it cannot be written, that is noted."""
        header = {
            "format": _FORMAT,
            "version": self._version,
            "sha256": hashlib.sha256(engine).hexdigest(),
        }
        self._write(path, json.dumps(header).encode() + b"\n" + engine)

    def discard(self, path: Path, why: str) -> None:
        """Remove an engine that cannot be used."""
        self.notes.append(f"{path}: the kept engine {why}; removed and built anew")
        with contextlib.suppress(
            OSError
        ):  # what cannot be removed cannot be replaced either; that is noted then
            path.unlink()

    def load_timings(self) -> bytes:
        """Measurements of kernels on this GPU from earlier builds; empty when nothing is kept."""
        try:
            return self._timing_path().read_bytes()
        except OSError:
            return b""

    def store_timings(self, timings: bytes) -> None:
        """Keep measurements for later builds."""
        self._write(self._timing_path(), timings)

    def discard_timings(self) -> None:
        """Remove measurements that TensorRT does not take."""
        self.notes.append(f"{self._timing_path()}: TensorRT refused the kept timings; removed")
        with contextlib.suppress(OSError):
            self._timing_path().unlink()

    def _timing_path(self) -> Path:
        text = f"{self._gpu} {self._version}"
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.timing"

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_atomically(path, content)
        except OSError as error:
            self.notes.append(
                f"{path}: cannot be kept ({os.strerror(error.errno or 0)}); built anew each time"
            )
