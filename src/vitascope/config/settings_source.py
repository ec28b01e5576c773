"""Where a run's settings come from, so that they can be loaded again with a few of them chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitascope.config import FlagValue, LoadedSettings, load_settings

__all__ = ["SettingsSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSource:
    """What ``load_settings`` takes."""

    profile: str | None = None
    files: tuple[Path, ...] = ()
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def load(
        self, values: Mapping[str, Any] | None = None, *, chosen_by: str = "the tuner"
    ) -> LoadedSettings:
        """The settings, with some of them chosen.

        Args:
            values: By dotted key; they count as set on purpose.
            chosen_by: How ``config show`` and messages name their origin.

        Raises:
            ConfigError: As ``load_settings``.
        """
        chosen = {key: FlagValue(value, chosen_by) for key, value in (values or {}).items()}
        return load_settings(
            profile=self.profile,
            files=self.files,
            assignments=self.assignments,
            flags={**self.flags, **chosen},
        )
