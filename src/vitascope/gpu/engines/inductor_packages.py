"""Compiled packages (AOTInductor ``.pt2``) on disk: built once, found again, rebuilt when they no longer fit.

Beside each package lies a note, ``NAME.json``, of what it was built by and for, and of its sha256. A package holds code
for one GPU, written by one version of PyTorch: any other finds the note, says so, and rebuilds. A package whose bytes
are not those of its note, or that does not load, is removed and rebuilt. Both files are
written under another name first.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitascope.file_lock import write_atomically

__all__ = ["BuiltFor", "PackageCache", "this_machine"]

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BuiltFor:
    """PyTorch's version and the device, which a package depends on besides the network."""

    torch: str
    device: str
    """The GPU's name, or ``cpu`` and its instruction set."""
    capability: str
    """Compute capability, ``9.0``; empty on a CPU."""

    def __str__(self) -> str:
        """Version and device, for messages."""
        return f"torch {self.torch} on {self.device}{f' ({self.capability})' if self.capability else ''}"


def this_machine(device: torch.device) -> BuiltFor:
    """Version and device of a package that is built now, here."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return BuiltFor(torch.__version__, torch.cuda.get_device_name(device), f"{major}.{minor}")
    return BuiltFor(torch.__version__, f"cpu {torch.backends.cpu.get_cpu_capability()}", "")


class PackageCache:
    """The packages in one directory.

    Args:
        directory: Created when absent. Packages are native code: keep it where only its owner may write.
        on_note: Told, in one line, whenever a package is built and why.
    """

    def __init__(self, directory: Path, *, on_note: Callable[[str], None]) -> None:
        self._directory = directory
        self._on_note = on_note

    def path(self, key: Sequence[str]) -> Path:
        """The file of a package; its key is the network, shapes, precision and settings that it was made of."""
        digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]
        label = "".join(letter if letter.isalnum() else "-" for letter in key[0])
        return self._directory / f"{label}-{digest}.pt2"

    def load(
        self,
        key: Sequence[str],
        built_for: BuiltFor,
        *,
        build: Callable[[Path], None],
        device: torch.device,
    ) -> Call:
        """The package of a key, built when it is not there or does not fit.

        Args:
            key: Whatever changes the compiled code; the first is a label for the file's name.
            built_for: See ``this_machine``.
            build: Writes a package to the path it is given.
            device: Where the package runs.

        Raises:
            OSError: The directory cannot be written.
            Exception: Whatever ``build`` raises, or loading what was just built.
        """
        path = self.path(key)
        reason = self._unfit(path, built_for)
        if reason is None:
            try:
                return _open(path, device)
            except Exception as error:
                reason = f"{path.name} does not load ({type(error).__name__}): removed and rebuilt"
        self._on_note(reason)
        path.unlink(missing_ok=True)
        self._note_path(path).unlink(missing_ok=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.stem}.{os.getpid()}.pt2")
        try:
            build(temporary)
            note = {**asdict(built_for), "sha256": _sha256(temporary)}
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        write_atomically(self._note_path(path), (json.dumps(note) + "\n").encode())
        return _open(path, device)

    def _unfit(self, path: Path, built_for: BuiltFor) -> str | None:
        """The reason that the package at a path cannot be used; None when it can."""
        if not path.exists():
            return f"{path.name} is not there yet: built"
        note = self._note(path)
        if note is None:
            return f"{path.name} has no note of what it was built for: removed and rebuilt"
        before, sha256 = note
        if before != built_for:
            return f"{path.name} was built by {before}, this is {built_for}: rebuilt"
        if _sha256(path) != sha256:
            return f"{path.name} is damaged: removed and rebuilt"
        return None

    def _note(self, path: Path) -> tuple[BuiltFor, str] | None:
        try:
            note = json.loads(self._note_path(path).read_text(encoding="utf-8"))
            return BuiltFor(note["torch"], note["device"], note["capability"]), note["sha256"]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    @staticmethod
    def _note_path(path: Path) -> Path:
        return path.with_suffix(".json")


def _open(path: Path, device: torch.device) -> Call:
    # Outside the single-threaded mode a package guards itself with calls that a graph cannot record.
    package = torch._inductor.aoti_load_package(
        str(path), run_single_threaded=True, device_index=device.index if device.index is not None else -1
    )

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        results = package(*inputs)
        return (results,) if isinstance(results, Tensor) else tuple(results)

    return call


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
