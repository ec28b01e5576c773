"""Settings: typed, immutable, and each with a memory of where its value came from.

::

    loaded = load_settings(profile="fast", files=[Path("my.yaml")], assignments=["model.batch_size=4"])
    loaded.settings.model.batch_size      BatchRange(low=4, high=4)
    loaded.origin("model.batch_size")     Origin(kind=SET, label="--set")
"""

from vitascope.config.loading import (
    DEFAULT_PROFILE,
    FlagValue,
    LoadedSettings,
    Origin,
    OriginKind,
    SettingRow,
    SettingsSource,
    available_profiles,
    load_settings,
    vitascope_home,
)
from vitascope.config.result import (
    Codec,
    EdgeSettings,
    EncoderSpeed,
    OutputKind,
    OutputSettings,
    PlayerName,
    VideoSettings,
)
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
    "load_settings",
    "parse_seconds",
    "vitascope_home",
]
