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
    from vitascope.config.flags import Codec as Codec
    from vitascope.config.flags import EncoderSpeed as EncoderSpeed
    from vitascope.config.flags import FlagValue as FlagValue
    from vitascope.config.flags import OutputKind as OutputKind
    from vitascope.config.flags import PlayerName as PlayerName
    from vitascope.config.flags import SettingsSource as SettingsSource
    from vitascope.config.flags import given_flags as given_flags
    from vitascope.config.home import vitascope_home as vitascope_home
    from vitascope.config.loading import DEFAULT_PROFILE as DEFAULT_PROFILE
    from vitascope.config.loading import LoadedSettings as LoadedSettings
    from vitascope.config.loading import Origin as Origin
    from vitascope.config.loading import OriginKind as OriginKind
    from vitascope.config.loading import SettingRow as SettingRow
    from vitascope.config.loading import available_profiles as available_profiles
    from vitascope.config.loading import load_settings as load_settings
    from vitascope.config.result import EdgeSettings as EdgeSettings
    from vitascope.config.result import OutputSettings as OutputSettings
    from vitascope.config.result import VideoSettings as VideoSettings
    from vitascope.config.settings import Settings as Settings
    from vitascope.config.values import BatchRange as BatchRange
    from vitascope.config.values import RgbColor as RgbColor
    from vitascope.config.values import parse_seconds as parse_seconds

_HOMES = {
    name: f"vitascope.config.{module}"
    for module, names in {
        "flags": "Codec EncoderSpeed FlagValue OutputKind PlayerName SettingsSource given_flags",
        "home": "vitascope_home",
        "loading": "DEFAULT_PROFILE LoadedSettings Origin OriginKind SettingRow available_profiles load_settings",
        "result": "EdgeSettings OutputSettings VideoSettings",
        "settings": "Settings",
        "values": "BatchRange RgbColor parse_seconds",
    }.items()
    for name in names.split()
}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:  # so that type checkers report unknown names

    def __getattr__(name: str) -> Any:
        """Load a public name on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'vitascope.config' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, for completion in a shell."""
    return __all__
