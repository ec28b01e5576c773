"""The folder for everything Vitascope keeps. The only module that reads environment variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vitascope.errors import ConfigError

HOME_VARIABLE = "VITASCOPE_HOME"


def vitascope_home() -> Path:
    """The folder for everything Vitascope keeps: fetched models, built engines, caches. It may not exist yet.

    It is ``VITASCOPE_HOME`` if set; otherwise ``vitascope`` in the user's cache folder: ``XDG_CACHE_HOME`` or
    ``~/.cache`` (XDG Base Directory Specification 0.8: empty and relative values are ignored), ``~/Library/Caches``
    on macOS, ``%LOCALAPPDATA%`` on Windows.

    Returns:
        An absolute path.

    Raises:
        ConfigError: The home folder is needed and unknown.
    """
    try:
        if own := os.environ.get(HOME_VARIABLE):
            return Path(own).expanduser().absolute()
        return _user_cache() / "vitascope"
    except RuntimeError as error:
        raise ConfigError(
            f"the home folder is unknown ({error}); set {HOME_VARIABLE} to a folder for models and caches"
        ) from error


def engine_cache() -> Path:
    """Folder for built engines, and for the results of checks of engines and the GPU's video encoder.

    Raises:
        ConfigError: As ``vitascope_home``.
    """
    return vitascope_home() / "engines"


def _user_cache() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
