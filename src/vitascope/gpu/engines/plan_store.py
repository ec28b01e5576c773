"""Launch plans on disk: the machine code of their kernels, their weights, and the launches as JSON.

A plan holds for one kind of GPU, one version of the compiler and one state of the code that recorded it: its key. What
does not fit its key or its checksum is made anew, with a note. Nothing that is read is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.file_lock import write_atomically
from vitascope.gpu.engines.launch_plan import LaunchPlan
from vitascope.gpu.engines.triton_compiler import CompiledKernel

__all__ = ["PlanStore", "StoredPlan"]

_FORMAT: Final = "vitascope-launch-plan-1"


@dataclass(frozen=True)
class StoredPlan:
    """A plan that can be launched."""

    plan: LaunchPlan[CompiledKernel]
    weights: npt.NDArray[np.uint8]


class PlanStore:
    """The plans in one folder. They are native code: keep it where only its owner may write.

    Args:
        folder: Created when absent; None keeps nothing.
        label: The network, for file names.
        key: Whatever changes plans besides sizes.
        on_note: Told, in one line, whenever a kept plan does not fit.
    """

    def __init__(
        self, folder: Path | None, *, label: str, key: Sequence[str], on_note: Callable[[str], None]
    ) -> None:
        self._folder, self._label, self._key, self._on_note = folder, label, tuple(key), on_note

    def load(self, sizes: Sequence[int]) -> StoredPlan | None:
        """The kept plan of some sizes; None when there is none that fits."""
        path = self._path(sizes)
        if path is None or not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            self._require_key(document, sizes)
            kernels = [
                CompiledKernel(
                    self._read(checksum, ".cubin"), str(name), int(threads), int(shared), int(nulls)
                )
                for checksum, name, threads, shared, nulls in document["kernels"]
            ]
            weights = np.frombuffer(self._read(document["weights"], ".weights"), np.uint8)
            return StoredPlan(LaunchPlan.from_json(document, kernels), weights)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._on_note(f"{path.name} does not fit ({error}): made anew")
            return None

    def keep(self, sizes: Sequence[int], stored: StoredPlan) -> None:
        """Write a plan for the next process; where that cannot be, say so once.

        Args:
            sizes: What it was recorded for.
            stored: The plan.
        """
        path = self._path(sizes)
        if path is None:
            return
        plan = stored.plan
        try:
            document = {
                "format": _FORMAT,
                "key": [*self._key, *map(str, sizes)],
                "weights": self._write(stored.weights.tobytes(), ".weights"),
                "kernels": [
                    [
                        self._write(kernel.code, ".cubin"),
                        kernel.name,
                        kernel.threads,
                        kernel.shared_bytes,
                        kernel.null_pointers,
                    ]
                    for kernel in plan.kernels
                ],
                **plan.to_json(),
            }
            write_atomically(path, json.dumps(document, separators=(",", ":")).encode())
        except OSError as error:
            self._on_note(f"{path.name} cannot be kept: {error.strerror or error}")

    def _require_key(self, document: Mapping[str, Any], sizes: Sequence[int]) -> None:
        if document["format"] != _FORMAT or document["key"] != [*self._key, *map(str, sizes)]:
            raise ValueError("another network's, or another machine's")

    def _path(self, sizes: Sequence[int]) -> Path | None:
        if self._folder is None:
            return None
        digest = hashlib.sha256("\0".join([*self._key, *map(str, sizes)]).encode()).hexdigest()[:16]
        return self._folder / f"{self._label}-{'x'.join(map(str, sizes))}-{digest}.plan"

    def _read(self, checksum: Any, suffix: str) -> bytes:
        if self._folder is None or not isinstance(checksum, str) or not checksum.isalnum():
            raise ValueError("no checksum")
        content = (self._folder / f"{checksum}{suffix}").read_bytes()
        if _checksum(content) != checksum:
            raise ValueError(f"{checksum}{suffix} is damaged")
        return content

    def _write(self, content: bytes, suffix: str) -> str:
        """Write under the content's own name; what is there already is left."""
        assert self._folder is not None  # keep() saw to it
        checksum = _checksum(content)
        path = self._folder / f"{checksum}{suffix}"
        if not path.exists() or path.stat().st_size != len(content):
            write_atomically(path, content)
        return checksum


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
