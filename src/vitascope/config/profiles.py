"""The profiles that come with Vitascope: named sets of values, kept as YAML files with their reasons."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from vitascope.errors import ConfigError

__all__ = ["DEFAULT_PROFILE", "available_profiles", "profile_path"]

DEFAULT_PROFILE = "balanced"


def available_profiles() -> tuple[str, ...]:
    """Names of all profiles, in alphabetical order."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def profile_path(name: str, *, source: str = "") -> Path:
    """The YAML file of a profile.

    Args:
        name: Its name; files of one's own are given as files, not as profiles.
        source: Where the name was read, to begin the message; for example ``my.yaml:1``.

    Raises:
        ConfigError: No profile has the name.
    """
    names = available_profiles()
    if name not in names:
        before = f"{source}: " if source else ""
        raise ConfigError(
            f"{before}unknown profile {name!r}; the profiles are {', '.join(names)} "
            f"(give a settings file of your own with -c)"
        )
    return _folder() / f"{name}.yaml"


def _folder() -> Path:
    return Path(str(files("vitascope") / "profiles"))
