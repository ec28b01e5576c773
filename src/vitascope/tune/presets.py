"""Where a search may begin: values for a GPU and a size of film, kept as YAML files, one for each GPU."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vitascope.device import Device
from vitascope.errors import UsageError

__all__ = ["SIZES", "preset_for", "preset_names", "preset_values"]

SIZES = {"1080p": 1920 * 1080, "4k": 3840 * 2160, "6k": 5760 * 3240, "8k": 7680 * 4320}
"""Samples of a picture."""


@cache
def preset_names() -> tuple[str, ...]:
    """All presets: a GPU and a size, such as ``rtx3090-4k``."""
    return tuple(f"{path.stem}-{size}" for path in sorted(_folder().glob("*.yaml")) for size in SIZES)


def preset_values(name: str) -> dict[str, Any]:
    """The settings of a preset, plain values by dotted key.

    Raises:
        UsageError: No preset has the name.
    """
    gpu, _, size = name.lower().rpartition("-")
    if f"{gpu}-{size}" not in preset_names():
        gpus = ", ".join(sorted({one.rpartition("-")[0] for one in preset_names()}))
        raise UsageError(
            f"--preset: no preset is called {name!r}; take auto, or a GPU ({gpus}) and a size "
            f"({', '.join(SIZES)}), such as rtx3090-4k"
        )
    values: dict[str, Any] = yaml.safe_load((_folder() / f"{gpu}.yaml").read_text(encoding="utf-8"))[size]
    return values


def preset_for(device: Device, *, width: int, height: int) -> str | None:
    """The preset of the GPU that computes and the nearest size; None where no GPU does, or none is like it.

    Args:
        device: What computes.
        width: Of the film, in pixels.
        height: Of the film.
    """
    if device.kind != "cuda":
        return None
    # "NVIDIA GeForce RTX 3080 Ti (GPU 0, …)": the longest name that fits, so that a 2080 Ti is not a 2080.
    label = re.sub(r"[^a-z0-9]", "", device.label.partition("(")[0].lower())
    fitting = [path.stem for path in _folder().glob("*.yaml") if path.stem in label]
    if not fitting:
        return None
    size = min(SIZES, key=lambda one: abs(SIZES[one] - width * height))
    return f"{max(fitting, key=len)}-{size}"


def _folder() -> Path:
    return Path(str(files("vitascope") / "profiles" / "presets"))
