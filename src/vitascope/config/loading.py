"""Loads settings from a profile, files, ``--set`` and flags, and remembers where each value came from.

::

    default  <  profile  <  file(s), in order  <  edges of --hints  <  --set key=value, in order  <  flags

Each layer is read into (dotted key, plain value, origin); the last one wins, and the result is validated once.
``checked_gpus`` determines the GPUs they name: each must exist, and no other setting may contradict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from importlib.resources import files
from operator import getitem
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vitascope.config.flags import FlagValue
from vitascope.config.settings import Settings, section_keys, setting_fields, value_of
from vitascope.config.values import CONFLICT
from vitascope.config.yaml_file import display, dump_yaml, parse_value, read_settings_file, unknown_setting
from vitascope.device import select_device
from vitascope.errors import ConfigError, UsageError, did_you_mean

DEFAULT_PROFILE = "balanced"


def available_profiles() -> tuple[str, ...]:
    """List the names of all profiles, in alphabetical order."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def profile_path(name: str, *, source: str = "") -> Path:
    """Find the YAML file of a profile.

    Args:
        name: Its name; a user's own files are given as files, not as profiles.
        source: Where the name was read, as the beginning of the message; for example ``my.yaml:1``.

    Raises:
        ConfigError: No profile has this name.
    """
    names = available_profiles()
    if name not in names:
        before = f"{source}: " if source else ""
        raise ConfigError(
            f"{before}unknown profile {name!r}; the profiles are {', '.join(names)} "
            f"(give a settings file of your own with -c){did_you_mean(name, names)}"
        )
    return _folder() / f"{name}.yaml"


def _folder() -> Path:
    return Path(str(files("vitascope") / "profiles"))


class OriginKind(StrEnum):
    """Kind of source of a value; a later kind overrides an earlier one."""

    DEFAULT = "default"
    PROFILE = "profile"
    FILE = "file"
    SET = "set"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one value."""

    kind: OriginKind
    label: str = ""
    """``balanced`` for a profile, ``my.yaml:12`` for a line of a file, ``--set`` or ``--crf`` for the command line."""

    @property
    def explicit(self) -> bool:
        """True if the user set it: neither a default nor from a profile."""
        return self.kind not in (OriginKind.DEFAULT, OriginKind.PROFILE)

    def __str__(self) -> str:
        return f"profile {self.label}" if self.kind is OriginKind.PROFILE else self.label or str(self.kind)


DEFAULT_ORIGIN = Origin(OriginKind.DEFAULT)
"""Origin of every setting that was not set."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of ``vitascope config show``."""

    key: str
    value: Any
    plain_value: Any
    """The value as in JSON and YAML: a number, text, true or false, null, a list or a mapping."""
    origin: Origin
    description: str

    @property
    def value_text(self) -> str:
        """The value on one line, in YAML syntax."""
        return display(self.value)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value before validation."""

    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and where each value came from."""

    settings: Settings
    profile: str
    """Name of the underlying profile."""
    _origins: Mapping[str, Origin] = field(repr=False)

    def __reduce__(self) -> tuple[type[LoadedSettings], tuple[Settings, str, dict[str, Origin]]]:
        """Pickle for other processes: a read-only view of origins cannot be sent."""
        return LoadedSettings, (self.settings, self.profile, dict(self._origins))

    def with_values(self, values: Mapping[str, Any]) -> LoadedSettings:
        """Replace some values by the program's own choice; their origins stay the same.

        Args:
            values: Valid values, by dotted key.
        """
        settings: Any = self.settings
        for key, value in values.items():
            settings = _with_value(settings, key.split("."), value)
        return replace(self, settings=settings)

    def origin(self, key: str) -> Origin:
        """Look up where the value of a dotted key came from.

        Raises:
            ConfigError: No setting has this key.
        """
        if key not in setting_fields():
            raise unknown_setting(key, source="origin")
        return self._origins.get(key, DEFAULT_ORIGIN)

    def rows(self) -> list[SettingRow]:
        """Every setting with value and origin, in the order of the sections, as printed by ``config show``."""
        plain = self.settings.model_dump(mode="json")
        return [
            SettingRow(
                key=key,
                value=value_of(self.settings, key),
                plain_value=reduce(getitem, key.split("."), plain),
                origin=self.origin(key),
                description=entry.description,
            )
            for key, entry in setting_fields().items()
        ]

    def to_yaml(self) -> str:
        """Write a settings file that loads to the same settings: the profile, and what was set explicitly over it."""
        tree: dict[str, Any] = {"profile": self.profile}
        for row in self.rows():
            if not row.origin.explicit:
                continue
            target = tree
            *sections, name = row.key.split(".")
            for section in sections:
                target = target.setdefault(section, {})
            target[name] = row.plain_value
        return dump_yaml(tree)


def load_settings(
    *,
    profile: str | None = None,
    files: Sequence[Path] = (),
    assignments: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Load settings; each source overrides those before it.

    Args:
        profile: Name of a profile. None takes the last one named in the files, otherwise ``balanced``.
        files: YAML settings files, in order. Relative paths in a file are relative to its folder.
        assignments: ``key=value`` texts from ``--set``, in order; values are written as in YAML.
        flags: Values of other flags by dotted key, for given flags only; the value None means null. A ``FlagValue``
            carries the flag's name for messages; a bare value comes from a program's ``settings=``.

    Raises:
        ConfigError: Unknown setting or profile, malformed or contradictory value, unreadable file. The message is one
            line with key, value, expectation and source.
    """
    for name, texts in (("files", files), ("assignments", assignments)):
        if isinstance(texts, str):
            raise ConfigError(f"{name} is {texts!r}, expected a list such as [{texts!r}]")
    given: object = flags
    if not (given is None or isinstance(given, Mapping)):
        raise ConfigError(
            f"settings is a {type(given).__name__}, expected a mapping such as {{'model.batch_size': 4}}"
        )
    over_profile: dict[str, _Entry] = {}
    named = None if profile is None else _Entry(profile, Origin(OriginKind.FLAG))
    for path in files:
        entries = _file_entries(path, label=str(path), kind=OriginKind.FILE)
        from_file = entries.pop("profile", None)
        if profile is None and from_file is not None:
            named = from_file
        over_profile |= entries
    chosen: dict[str, _Entry] = {}
    for assignment in assignments:
        chosen |= _assignment(assignment)
    for key, value in (flags or {}).items():
        chosen |= _flag(key, value)
    over_profile |= _hinted_edges((over_profile | chosen).get("people.hints")) | chosen

    name, merged = _profile_entries(named)
    merged |= _player_entries(over_profile.get("output.player")) | over_profile
    settings = _validate(merged)
    origins = MappingProxyType({key: entry.origin for key, entry in merged.items()})
    return LoadedSettings(settings=settings, profile=name, _origins=origins)


def settings_of(
    *, profile: str | None, settings: Mapping[str, Any] | None, loaded: LoadedSettings | None
) -> LoadedSettings:
    """Combine the arguments of a class of the package: settings loaded before, or a profile and values.

    Raises:
        UsageError: Both are given, so that one would have no effect; or ``loaded`` is not loaded settings.
        ConfigError: As ``load_settings``.
    """
    if loaded is None:
        return load_settings(profile=profile, flags=settings)
    given: object = loaded
    if not isinstance(given, LoadedSettings):
        raise UsageError(f"loaded is a {type(given).__name__}, expected what load_settings gives")
    if profile is not None or settings:
        raise UsageError("loaded replaces profile and settings; give profile to load_settings, too")
    return loaded


def _hinted_edges(named: _Entry | None) -> dict[str, _Entry]:
    """The edge settings in a file of hints."""
    if named is None or not isinstance(named.value, str | PathLike) or not str(named.value):
        return {}  # none, or not a path, which the setting's check reports
    # imported here because most runs have no hints
    from vitascope.config.hints import read_hints

    path = Path(named.value)
    hints = read_hints(path)
    edges = {} if hints.edges is None else hints.edges.model_dump(mode="json", exclude_unset=True)
    return {
        f"edges.{name}": _Entry(value, Origin(OriginKind.FILE, f"{path}:{hints.edge_lines[name]}"))
        for name, value in edges.items()
    }


def _with_value(section: Any, path: Sequence[str], value: Any) -> Any:
    name, *rest = path
    return section.model_copy(
        update={name: _with_value(getattr(section, name), rest, value) if rest else value}
    )


def _profile_entries(named: _Entry | None) -> tuple[str, dict[str, _Entry]]:
    if named is None:
        named = _Entry(DEFAULT_PROFILE, DEFAULT_ORIGIN)
    if not isinstance(named.value, str):
        source = f"{named.origin.label}: " if named.origin.label else ""  # none if a program gives it
        raise ConfigError(f"{source}profile is {_show(named.value)}, expected the name of a profile")
    path = profile_path(named.value, source=named.origin.label)
    entries = _file_entries(path, label=f"profiles/{path.name}", kind=OriginKind.PROFILE)
    if "profile" in entries:
        raise ConfigError(f"profiles/{path.name}: a profile cannot build on another one")
    return named.value, entries


def _player_entries(named: _Entry | None) -> dict[str, _Entry]:
    """The settings that a VR player needs; the user's own settings override them."""
    if named is None or named.value is None:
        return {}
    # imported here because no other setting needs the list of players
    from vitascope.vr.players import PLAYERS

    player = PLAYERS.get(named.value) if isinstance(named.value, str) else None
    if player is None:  # the setting's check reports it
        return {}
    values = {
        "output.kinds": ["packed-alpha" if player.kinds[0] == "packed-alpha" else "key"],
        "output.key_color": player.key_color,
        "output.codec": "h265",  # headsets decode it in hardware at VR's sizes
        "output.packed_fov_degrees": 190.0,
    }
    origin = Origin(OriginKind.PROFILE, f"player {player.name}")
    return {key: _Entry(value, origin) for key, value in values.items()}


def _file_entries(path: Path, *, label: str, kind: OriginKind) -> dict[str, _Entry]:
    entries = {}
    for item in read_settings_file(path, label=label):
        text = path.stem if kind is OriginKind.PROFILE else f"{label}:{item.line}"
        value = _anchor(item.key, item.value, folder=path.parent)
        entries[item.key] = _Entry(value, Origin(kind, text))
    return entries


def _assignment(text: str) -> dict[str, _Entry]:
    key, separator, value_text = text.partition("=")
    key = key.strip()
    if not separator:
        raise ConfigError(f"--set {_show(text)}: expected key=value, such as model.batch_size=4")
    if key == "profile":
        raise ConfigError("--set: a profile is chosen with --profile, or with `profile:` in a settings file")
    if key not in setting_fields():
        raise unknown_setting(key, source="--set")
    try:
        value = parse_value(value_text)
    except ValueError:
        # Not YAML, so a text: `model.name=[x].onnx` is a legal file name. The type's check decides about it.
        value = value_text
    return {key: _Entry(_anchor(key, value, folder=Path()), Origin(OriginKind.SET, "--set"))}


def _flag(key: str, given: Any) -> dict[str, _Entry]:
    value, name = (given.value, given.name) if isinstance(given, FlagValue) else (given, "settings")
    if not isinstance(key, str):
        raise ConfigError(f"{name}: {_show(key)} is not the name of a setting, such as 'model.batch_size'")
    if key not in setting_fields():
        raise unknown_setting(key, source=name)
    if hasattr(value, "tolist"):  # a number or array of NumPy, as programs may pass
        value = value.tolist()
    return {key: _Entry(_anchor(key, value, folder=Path()), Origin(OriginKind.FLAG, name))}


def _anchor(key: str, value: Any, *, folder: Path) -> Any:
    """Make a file's path absolute, so that it means the same from any working folder."""
    if not isinstance(value, str | PathLike) or not str(value):
        return value
    if key == "model.name":
        # Names in the catalogue have no suffix; anything ending like a network is a file.
        if not str(value).lower().endswith(".onnx"):
            return value
        return str(_absolute(value, folder=folder))
    entry = setting_fields().get(key)
    return _absolute(value, folder=folder) if entry is not None and entry.holds_path else value


def _absolute(path: str | PathLike[str], *, folder: Path) -> Path:
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:  # "~nobody/x": no such user, so the name is literal
        expanded = Path(path)
    return (folder / expanded).absolute()


def _validate(entries: Mapping[str, _Entry]) -> Settings:
    tree: dict[str, Any] = {}
    for key, entry in entries.items():
        *sections, name = key.split(".")
        target = tree
        for section in sections:
            target = target.setdefault(section, {})
        target[name] = entry.value
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)[0], entries) from error


def _explain(problem: ErrorDetails, entries: Mapping[str, _Entry]) -> ConfigError:
    """Turn pydantic's first error into one line with key, value, expectation and source."""
    if problem["type"] == CONFLICT:
        context = problem["ctx"]
        sources = {str(entries[key].origin) for key in context["keys"] if key in entries}
        return ConfigError(f"{', '.join(sorted(sources)) or 'defaults'}: {context['message']}")
    # The location may continue inside a setting (index in a list, member of a union); its key is the longest prefix
    # that is a setting.
    parts = [str(part) for part in problem["loc"]]
    keys = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    key = next(key for key in keys if key in entries and key not in section_keys())
    entry, setting = entries[key], setting_fields()[key]
    given = entry.value if isinstance(entry.value, list | tuple) else str(entry.value).split(",")
    wrong = [word for word in given if isinstance(word, str) and word not in setting.words]
    hint = did_you_mean(wrong[0], setting.words) if wrong else ""
    is_fraction = isinstance(entry.value, float) and "whole number" in setting.expected
    shown = repr(entry.value) if is_fraction else _show(entry.value)  # 4.0 is not whole, but looks like 4
    expected = setting.expected
    if entry.origin.kind is OriginKind.FLAG and entry.origin.label.startswith("-"):
        expected = expected.removesuffix(" or null")  # instead of null, leave the flag out
    return ConfigError(f"{entry.origin}: {key} is {shown}, expected {expected}{hint}")


_MOST_SHOWN = 60
"""Maximum characters of a value in a message."""


def _show(value: object) -> str:
    text = repr(value) if isinstance(value, str) else display(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def checked_gpus(
    loaded: LoadedSettings, *, number: Literal["gpu.device_id", "animation.gpu_id"] = "gpu.device_id"
) -> LoadedSettings:
    """Settings with consistent devices; a list of a single GPU becomes that GPU.

    Args:
        loaded: Settings with their origins.
        number: The setting that names a single GPU.

    Raises:
        UsageError: ``gpu.device_ids`` contradicts a device or number.
        DeviceError: A GPU in the list is missing.
    """
    ids = loaded.settings.gpu.device_ids
    if ids is None:
        return loaded
    if loaded.settings.gpu.device == "cpu":
        raise UsageError("gpu.device_ids needs a GPU, but gpu.device is cpu; leave one of them out")
    if loaded.origin(number).explicit:
        raise UsageError(
            f"{number} {value_of(loaded.settings, number)} and gpu.device_ids {','.join(map(str, ids))}: "
            "leave one of them out"
        )
    refuse_missing_gpus(loaded.settings)
    if len(ids) > 1 or loaded.settings.processing.cluster is not None:
        return loaded
    return loaded.with_values({"gpu.device": "cuda", number: ids[0], "gpu.device_ids": None})


def refuse_missing_gpus(settings: Settings) -> None:
    """Refuse a list with a missing GPU; GPUs of a cluster's nodes are not checked here.

    Raises:
        DeviceError: A GPU is missing; the message names it.
    """
    if settings.processing.cluster is not None:
        return
    for number in settings.gpu.device_ids or ():
        select_device("cuda", index=number)
