"""Typed, immutable settings that remember where each value came from.

::

    loaded = load_settings(profile="fast", files=[Path("my.yaml")], assignments=["model.batch_size=4"])
    loaded.settings.model.batch_size      BatchRange(low=4, high=4)
    loaded.origin("model.batch_size")     Origin(kind=SET, label="--set")

Names are loaded on first use, so that a command line can be parsed without the modules that check settings.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitascope.config.flags import (
        Codec,
        EncoderSpeed,
        FlagValue,
        OutputKind,
        PlayerName,
        SettingsSource,
        given_flags,
    )
    from vitascope.config.home import vitascope_home
    from vitascope.config.loading import (
        DEFAULT_PROFILE,
        LoadedSettings,
        Origin,
        OriginKind,
        SettingRow,
        available_profiles,
        load_settings,
    )
    from vitascope.config.result import EdgeSettings, OutputSettings, VideoSettings
    from vitascope.config.settings import Settings
    from vitascope.config.values import BatchRange, RgbColor, parse_seconds

__all__ = [
    "DEFAULT_PROFILE",
    "BatchRange",
    "Codec",
    "EdgeSettings",
    "EncoderSpeed",
    "FlagValue",
    "LoadedSettings",
    "Origin",
    "OriginKind",
    "OutputKind",
    "OutputSettings",
    "PlayerName",
    "RgbColor",
    "SettingRow",
    "Settings",
    "SettingsSource",
    "VideoSettings",
    "available_profiles",
    "given_flags",
    "load_settings",
    "parse_seconds",
    "vitascope_home",
]

_HOMES = {
    name: f"vitascope.config.{module}"
    for module, names in {
        "flags": (
            "Codec",
            "EncoderSpeed",
            "FlagValue",
            "OutputKind",
            "PlayerName",
            "SettingsSource",
            "given_flags",
        ),
        "home": ("vitascope_home",),
        "loading": (
            "DEFAULT_PROFILE",
            "LoadedSettings",
            "Origin",
            "OriginKind",
            "SettingRow",
            "available_profiles",
            "load_settings",
        ),
        "result": ("EdgeSettings", "OutputSettings", "VideoSettings"),
        "settings": ("Settings",),
        "values": ("BatchRange", "RgbColor", "parse_seconds"),
    }.items()
    for name in names
}


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'vitascope.config' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, for completion in a shell."""
    return sorted(__all__)
