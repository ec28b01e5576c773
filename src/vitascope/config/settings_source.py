"""Where settings come from, in the words of the command line: what a command makes before it loads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitascope.config.flags import FlagValue
from vitascope.observe.keys import holding_interrupts

if TYPE_CHECKING:
    from vitascope.config.loading import LoadedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSource:
    """The arguments of ``load_settings``, kept to load the settings again with a few of them chosen."""

    profile: str | None = None
    files: tuple[Path, ...] = ()
    assignments: tuple[str, ...] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)

    def options(self) -> list[str]:
        """All but the flags, as a command takes them."""
        profile = () if self.profile is None else ("--profile", self.profile)
        files = (word for file in self.files for word in ("-c", str(file)))
        return [*profile, *files, *(word for one in self.assignments for word in ("--set", one))]

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
        # Imported here so that --help and usage errors do not wait for what settings are checked with.
        with holding_interrupts():
            from vitascope.config.loading import load_settings

        chosen = {key: FlagValue(value, chosen_by) for key, value in (values or {}).items()}
        return load_settings(
            profile=self.profile,
            files=self.files,
            assignments=self.assignments,
            flags={**self.flags, **chosen},
        )
