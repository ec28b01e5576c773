"""Reads a YAML settings file into (key, value, line), and refuses errors that YAML would accept.

Only plain data is read: with PyYAML's ``SafeLoader``, nothing constructed from tags, duplicate keys refused, and
numbers such as ``1e-3`` read as numbers (YAML 1.2) rather than texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitascope.config.settings import section_keys, setting_fields, suggestion
from vitascope.errors import ConfigError

MAX_FILE_BYTES = 1 << 20
"""All settings with comments take about 10 kB; a larger file is something else, such as a video given to -c."""

_FLOAT_TAG = "tag:yaml.org,2002:float"
_FLOAT_WITH_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+")


class _Loader(yaml.SafeLoader):
    """A SafeLoader that accepts floats such as ``1e-3`` and refuses aliases.

    Aliases can make a list contain itself, or expand a short text to gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Build the node that starts with the next event."""
        if self.check_event(yaml.AliasEvent):
            mark = self.current_event.start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed in a settings file", mark)
        return super().compose_node(parent, index)


class _LongLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # both are SafeLoaders
    """The same for long texts without aliases: libyaml reads them in a tenth of the time."""


_LONG_BYTES = 1 << 16
_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029\ufeff")


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes texts that ``_Loader`` would read as numbers, and writes lists on one line."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Write equal values out each time, because ``_Loader`` refuses aliases."""
        return True

    def represent_text(self, value: str) -> yaml.ScalarNode:
        """Write a text; characters that YAML takes for line breaks are escaped, or they would come back as spaces."""
        style = '"' if _LINE_BREAKS.intersection(value) else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    def represent_list(self, data: Iterable[Any]) -> yaml.SequenceNode:
        """Write ``[mask, key]``."""
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)


_Dumper.add_representer(list, _Dumper.represent_list)
_Dumper.add_representer(str, _Dumper.represent_text)
for _dialect in (_Loader, _LongLoader, _Dumper):
    _dialect.add_implicit_resolver(_FLOAT_TAG, _FLOAT_WITH_EXPONENT, list("-+0123456789"))


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One setting as written in a file, not validated yet."""

    key: str
    """Dotted key of a setting, or ``profile``."""
    value: Any
    """Plain data: None, bool, int, float, str, list, dict."""
    line: int
    """Line of the key, from 1."""


def read_settings_file(path: Path, *, label: str) -> list[FileEntry]:
    """Read a settings file.

    Sections may be nested (``model:`` over ``batch_size:``) or dotted (``model.batch_size:``); empty sections and
    files set nothing.

    Args:
        path: The file, UTF-8 or UTF-16 with byte order mark.
        label: Its name in messages.

    Returns:
        Its entries in the order of the file; every key exists and appears once.

    Raises:
        ConfigError: Missing or unreadable file, YAML syntax, unknown or repeated key; names the line.
    """
    with _composed(read_content(path, label=label), label=label) as (loader, root):
        entries = [] if root is None or _is_null(root) else list(_entries(loader, root, "", label=label))
    lines: dict[str, int] = {}
    for entry in entries:
        if entry.key in lines:
            raise _duplicate(entry.key, entry.line, lines[entry.key], label=label)
        lines[entry.key] = entry.line
    return entries


def document_of(content: bytes, *, label: str) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """Read any YAML text as plain data.

    Args:
        content: The text, UTF-8 or UTF-16 with byte order mark.
        label: Name of its file in messages.

    Returns:
        The data, and the line of each value by its place, such as ``("marks", 2, "click")``.

    Raises:
        ConfigError: Invalid YAML syntax, or a repeated name; the message names the line.
    """
    lines: dict[tuple[str | int, ...], int] = {}

    def note(node: yaml.Node, place: tuple[str | int, ...]) -> None:
        lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                note(item, (*place, number))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*place, str(key.value))
                if inner in lines:
                    raise _duplicate(str(key.value), key.start_mark.line + 1, lines[inner], label=label)
                lines[inner] = key.start_mark.line + 1
                note(value, inner)

    with _composed(content, label=label) as (loader, root):
        if root is None:
            return None, lines
        note(root, ())
        return _construct(loader, root, "the file", label=label), lines


def parse_value(text: str) -> Any:
    """Read the value of ``--set key=value`` as YAML.

    A text with ``#`` stays a text: on the command line it starts a colour, not a comment.

    Raises:
        ValueError: It is not a YAML value.
    """
    if "#" in text:
        return text
    try:
        return yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError("not a YAML value") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML that ``read_settings_file`` reads back, each setting on its own line."""
    return yaml.dump(
        dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1000
    )


def display(value: object) -> str:
    """A value on one line, spelled as in YAML: ``null``, ``true``, ``[mask, key]``, ``16-32``."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case list() | tuple():
            return f"[{', '.join(map(display, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{display(name)}: {display(item)}' for name, item in value.items())}}}"
        case str() | Path():
            text = str(value)
            return text if text.isprintable() else repr(text)
        case _:
            return str(value)


def unknown_setting(key: str, *, source: str) -> ConfigError:
    """The error for a key that no setting has, with what was most likely meant."""
    if key in section_keys():
        members = [name for name in setting_fields() if name.startswith(f"{key}.")]
        return ConfigError(
            f"{source}: {key!r} is a section of settings; set one of its own, such as {members[0]!r}"
        )
    near = suggestion(key)
    hint = f"did you mean {near!r}?" if near else "`vitascope config show` lists all settings"
    return ConfigError(f"{source}: unknown setting {_shorten(key)!r}; {hint}")


def read_content(
    path: Path, *, label: str, most_bytes: int = MAX_FILE_BYTES, kind: str = "settings file"
) -> bytes:
    """Read a settings file, up to a maximum length.

    Args:
        path: The file.
        label: How messages name it.
        most_bytes: How long it may be.
        kind: What messages call it.

    Raises:
        ConfigError: It is missing, cannot be read, or is too long.
    """
    try:
        is_folder = path.is_dir()
        content = b""
        if not is_folder:
            with path.open("rb") as file:  # a pipe or a device does not say how much will come
                content = file.read(most_bytes + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{label}: no such {kind}") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{label}: the {kind} could not be read: {reason}") from error
    if is_folder:
        raise ConfigError(f"{label}: a folder, expected a YAML {kind}")
    if len(content) > most_bytes:
        raise ConfigError(
            f"{label}: more than {most_bytes} bytes are too many for a {kind}; is it another kind of file?"
        )
    return content


@contextmanager
def _composed(content: bytes, *, label: str) -> Iterator[tuple[yaml.SafeLoader, yaml.Node | None]]:
    """The nodes of a document, and what makes data of them; what YAML has against it is said of the file."""
    loader = None
    try:
        # An alias begins with an asterisk, in UTF-16 as well.
        loader = (_LongLoader if len(content) > _LONG_BYTES and b"*" not in content else _Loader)(content)
        yield loader, loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f":{mark.line + 1}"
        raise ConfigError(
            f"{label}{line}: not valid YAML: {_one_line(error.problem or error.context)}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{label}: not a YAML text file: {_one_line(str(error))}") from error
    except RecursionError as error:
        raise ConfigError(f"{label}: nested too deeply for a settings file") from error
    finally:
        if loader is not None:
            loader.dispose()


def _entries(loader: yaml.SafeLoader, node: yaml.Node, prefix: str, *, label: str) -> Iterator[FileEntry]:
    """Walk the mapping of a section; anything under the key of a setting is its value."""
    if not isinstance(node, yaml.MappingNode) or node.tag != "tag:yaml.org,2002:map":
        what = f"{prefix[:-1]!r} is a section and" if prefix else "a settings file"
        raise ConfigError(f"{label}:{node.start_mark.line + 1}: {what} holds settings as `name: value` lines")
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{label}:{line}: found a list or mapping instead of the name of a setting")
        key = prefix + key_node.value
        if key in seen:
            raise _duplicate(key, line, seen[key], label=label)
        seen[key] = line
        if key in section_keys():
            if not _is_null(value_node):
                yield from _entries(loader, value_node, f"{key}.", label=label)
        elif key in setting_fields() or key == "profile":
            yield FileEntry(key, _construct(loader, value_node, key, label=label), line)
        else:
            raise unknown_setting(key, source=f"{label}:{line}")


def _construct(loader: yaml.SafeLoader, node: yaml.Node, key: str, *, label: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, TypeError) as error:  # the 40th of May, an unhashable key, an integer of 5000 digits
        line = node.start_mark.line + 1
        raise ConfigError(
            f"{label}:{line}: {key} has a value that YAML cannot read: {_one_line(str(error))}"
        ) from error


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _duplicate(key: str, line: int, first_line: int, *, label: str) -> ConfigError:
    return ConfigError(f"{label}:{line}: {_shorten(key)!r} is set twice; the first is on line {first_line}")


def _shorten(text: str, *, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _one_line(text: str | None) -> str:
    return _shorten(display(" ".join((text or "unknown reason").split())), limit=200)
