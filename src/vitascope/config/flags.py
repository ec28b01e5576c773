"""Parts of a command's settings that need no loading: words to choose from, flags, and their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitascope.observe.keys import holding_interrupts

if TYPE_CHECKING:
    from vitascope.config.loading import LoadedSettings

Codec = Literal["h264", "h265", "av1", "prores", "vp9", "ffv1", "png"]
PlayerName = Literal["heresphere", "deovr", "skybox", "4xvr", "moon", "quest", "visionpro"]
EncoderSpeed = Literal["fast", "balanced", "quality"]
OutputKind = Literal["mask", "key", "cutout", "alpha", "blur", "replace", "overlay", "packed-alpha"]
PersonWord = Literal["largest", "pov"]
"""``largest``: the person covering most of the picture over time. ``pov``: the wearer's own body at the bottom."""


@dataclass(frozen=True, slots=True)
class FlagValue:
    """The value of a flag, with the name the user typed."""

    value: Any
    name: str
    """For example ``--crf``."""


def given_flags(flags: Mapping[str, tuple[str, Any]]) -> dict[str, FlagValue]:
    """Collect the flags that were given, by the dotted keys of their settings.

    Args:
        flags: For each key the flag's name and its value; None if it was not given.
    """
    return {key: FlagValue(value, name) for key, (name, value) in flags.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSource:
    """The arguments of ``load_settings``, kept so that the settings can be loaded again with some values chosen."""

    profile: str | None = None
    files: tuple[Path, ...] = ()
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def options(self) -> list[str]:
        """All sources except flags, as command-line options."""
        profile = () if self.profile is None else ("--profile", self.profile)
        files = (word for file in self.files for word in ("-c", str(file)))
        return [*profile, *files, *(word for one in self.assignments for word in ("--set", one))]

    def load(
        self, values: Mapping[str, Any] | None = None, *, chosen_by: str = "the tuner"
    ) -> LoadedSettings:
        """Load the settings with some values chosen.

        Args:
            values: Values by dotted key; they count as explicitly set.
            chosen_by: Name of their origin in ``config show`` and messages.

        Raises:
            ConfigError: As ``load_settings``.
        """
        # Imported here so that --help and usage errors do not wait for the modules that check settings.
        with holding_interrupts():
            from vitascope.config import load_settings

        chosen = {key: FlagValue(value, chosen_by) for key, value in (values or {}).items()}
        return load_settings(
            profile=self.profile,
            files=self.files,
            assignments=self.assignments,
            flags={**self.flags, **chosen},
        )
