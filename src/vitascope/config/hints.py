"""``film.hints.yaml``: a user's corrections of one video; this is its only schema.

::

    version: 1
    video: film.mp4                  # the video's name; hints for another video are refused
    people:                          # who is kept while
      - keep: [1, 3]                 # only these people ...
        from: 0:10                   # ... from here (the beginning, when left out)
        to: 0:20                     # ... up to here (the end, when left out)
      - exclude: 2
    marks:                           # at a frame; x and y are shares of an eye's picture, 0 to 1
      - at: 12.5
        click: [0.42, 0.31]          # the person there
        do: remove                   # keep or remove them, in the whole video or from ... to
      - at: 12.5
        box: [0.1, 0.0, 0.4, 1.0]    # the person who is mostly in it: left, top, right, bottom
        do: keep
      - at: 14
        stroke: [[0.4, 0.3], [0.45, 0.5]]   # a brush: what it covers, carried by the video's motion
        radius: 0.02                 # as a share of the width
        do: remove                   # keep adds it to the matte
    never:                           # regions that are never kept
      - polygon: [[0, 0.9], [1, 0.9], [1, 1], [0, 1]]
        eye: left                    # left, right or both
    edges:                           # as in a settings file; flags and --set win over them
      feather_px: 1.5

Hints on one line each are read without YAML, which takes minutes for a file of 100,000 strokes. Sections in exactly
the form that the studio writes are taken out of the text; all the rest is read by YAML. Lines end as in
``str.splitlines``, which agrees with YAML (including NEL, U+2028 and U+2029) on the text it accepts.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from vitascope.config.result import EdgeSettings, People
from vitascope.config.values import Seconds, Section
from vitascope.config.yaml_file import display, document_of, dump_yaml, read_content
from vitascope.errors import ConfigError, did_you_mean

_ITEM = re.compile(r"  - \{[^{}\"'#]+\}")
_NAME = re.compile(r"([{ ])([a-z_]+): ")
_VALUE = re.compile(r": (keep|remove|left|right|both)(?=[,}])")
_QUOTED = r': "\1"'


class LinedSection(NamedTuple):
    """A section with one item per line."""

    name: str
    line: int
    """Line of its name, from 1; its first item is on the next one."""
    items: list[dict[str, Any]]


def taken_out(text: str, names: Sequence[str]) -> tuple[str, list[LinedSection]]:
    """Take sections that consist only of plain one-line items out of a text.

    Args:
        text: YAML.
        names: Names of the sections to look for.

    Returns:
        The text with unchanged line breaks, but with these sections empty; and the sections.
    """
    lines, whole = text.splitlines(), text.splitlines(keepends=True)
    heads = [at for at, line in enumerate(lines) if line and not line[0].isspace()]
    sections = []
    for head, following in pairwise([*heads, len(lines)]):
        name = lines[head].removesuffix(":")
        end = following
        while end > head + 1 and not lines[end - 1]:
            end -= 1
        if name not in names or name == lines[head] or end == head + 1:
            continue
        items = items_of(lines[head + 1 : end])
        if items is not None:
            sections.append(LinedSection(name, head + 1, items))
            for at in range(head + 1, end):
                whole[at] = whole[at][len(lines[at]) :]
    return "".join(whole), sections


def is_item(line: str) -> bool:
    """True if a line contains one whole item."""
    return _ITEM.fullmatch(line) is not None


def items_of(lines: Sequence[str]) -> list[dict[str, Any]] | None:
    """Read items from their lines; None if one contains anything but words and numbers that are also JSON."""
    if not all(map(is_item, lines)):
        return None
    text, names = _NAME.subn(r'\1"\2": ', ",".join([line[4:] for line in lines]))
    try:
        items = json.loads(f"[{_VALUE.sub(_QUOTED, text)}]", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    # Exclude lines that JSON would read as two items or part of another, and items with a repeated name.
    is_plain = len(items) == len(lines) and all(isinstance(item, dict) for item in items)
    return items if is_plain and sum(map(len, items)) == names else None


def _refuse(constant: str) -> float:
    raise ValueError(constant)


MAX_HINTS_BYTES: Final = 32 << 20
"""Enough for about 100,000 strokes of a dozen points."""
_MAX_YAML_BYTES: Final = 8 << 20
"""Text outside one-line items takes YAML a hundred times its size in memory."""
_MAX_READ_AGAIN_BYTES: Final = 1 << 20
"""YAML reads this much in a few seconds."""
_MOST_KNOWN: Final = 4
_SECTIONS: Final = ("people", "marks", "never")
_ITEM_BEGINS: Final = "\n  - "

Eye = Literal["left", "right", "both"]


Share = Annotated[float, Field(ge=0, le=1, strict=False)]
_PLACES: Final = frozenset({"click", "box", "stroke", "polygon"})
"""Fields with positions as such shares."""
_AsTuple = Field(strict=False)
"""Accepts lists, since YAML and JSON have no tuples."""
Point = Annotated[tuple[Share, Share], _AsTuple]
Points = Annotated[tuple[Point, ...], _AsTuple]
BoxShares = Annotated[tuple[Share, Share, Share, Share], _AsTuple]


class Timed(Section):
    """Something that applies for a time."""

    from_: Seconds = Field(0.0, alias="from")
    to: Seconds | None = None

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.to is not None and self.to <= self.from_:
            raise PydanticCustomError(
                "hints_order", "it ends at {to} s, not after it begins", {"to": f"{self.to:g}"}
            )
        return self


class PeopleRule(Timed):
    """Only these people are kept, or these are left out."""

    keep: People | None = None
    exclude: People | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.keep is None) == (self.exclude is None):
            raise PydanticCustomError("hints_rule", "it needs either keep or exclude")
        return self


class Mark(Timed):
    """A mark in a frame: a click, a box or a stroke."""

    at: Seconds
    do: Literal["keep", "remove"] = "keep"
    click: Point | None = None
    box: BoxShares | None = None
    stroke: Points | None = None
    radius: Annotated[float, Field(gt=0, le=0.5, strict=False)] = 0.02
    eye: Eye = "both"

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(what is not None for what in (self.click, self.box, self.stroke)) != 1:
            raise PydanticCustomError("hints_mark", "it needs one of click, box and stroke")
        if self.box is not None and not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise PydanticCustomError("hints_box", "a box is [left, top, right, bottom], and not empty")
        if self.stroke is not None and not self.stroke:
            raise PydanticCustomError("hints_stroke", "a stroke has at least one point")
        return self


class Region(Timed):
    """A region that is never kept: a garbage matte."""

    polygon: Points
    eye: Eye = "both"

    @model_validator(mode="after")
    def _check_area(self) -> Self:
        if len(self.polygon) < 3:
            raise PydanticCustomError("hints_region", "a region has at least three corners")
        return self


class Hints(Section):
    """All hints for one video."""

    version: Literal[1] = 1
    video: str | None = None
    """The video's file name; None fits any video."""
    people: Annotated[tuple[PeopleRule, ...], _AsTuple] = ()
    marks: Annotated[tuple[Mark, ...], _AsTuple] = ()
    never: Annotated[tuple[Region, ...], _AsTuple] = ()
    edges: EdgeSettings | None = None
    """Settings made here override those of files, but not flags; see ``load_settings``."""
    lines: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """Lines of each section's items in the file, as sequences of int; empty for hints made in Python.

    They are not stored in the items, so that items stay equal when others before them are added or removed.
    """
    edge_lines: dict[str, int] = Field(default_factory=dict, exclude=True)
    """Line of each edge setting in the file."""
    label: str = Field("hints", exclude=True)
    """Name of the file in messages."""

    @property
    def needs_people(self) -> bool:
        """True if people and shots must be known."""
        return bool(self.people or self.marks)

    @cached_property
    def painted(self) -> tuple[tuple[Mark, ...], ...]:
        """Groups of strokes with the same frame, eye and times, in their own order; groups in the order of the film."""
        strokes = [mark for mark in self.marks if mark.stroke is not None]
        alike = groupby(sorted(strokes, key=attrgetter("at")), attrgetter("at", "eye", "from_", "to"))
        return tuple(tuple(group) for _, group in alike)

    @cached_property
    def pointed(self) -> tuple[Mark, ...]:
        """Marks other than strokes: clicks and boxes."""
        return tuple(mark for mark in self.marks if mark.stroke is None)

    @cached_property
    def last(self) -> tuple[float, Timed] | None:
        """The hint with the latest start, and this start in seconds; None if there are no hints."""
        first = itemgetter(0)
        begins: list[tuple[float, Timed]] = [
            *((mark.at, mark) for mark in self.marks),
            *((hint.from_, hint) for hint in (*self.people, *self.never)),
        ]
        return max(begins, key=first, default=None)

    # Cached results, such as groups and identities of items, belong to these items; copies compute them again.

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        return {**state, "__dict__": _fields_of(state["__dict__"])}

    def __copy__(self) -> Self:
        copied = super().__copy__()
        object.__setattr__(copied, "__dict__", _fields_of(copied.__dict__))
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        copied = super().__deepcopy__(memo)
        object.__setattr__(copied, "__dict__", _fields_of(copied.__dict__))
        return copied

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the hints with other values for some fields; items of a replaced section have no line."""
        lines = {name: held for name, held in self.lines.items() if name not in (update or {})}
        return super().model_copy(update={"lines": lines, **(update or {})}, deep=deep)

    def place(self, hint: Timed) -> str:
        """The place of a hint, for messages: ``film.hints.yaml:12``."""
        line = self.line_of.get(id(hint))
        return self.label if line is None else f"{self.label}:{line}"

    @cached_property
    def line_of(self) -> dict[int, int]:
        """The line of each item read from a file, by identity."""
        return {
            id(hint): line
            for name, lines in self.lines.items()
            for hint, line in zip(getattr(self, name), lines, strict=True)
        }


def _fields_of(state: dict[str, Any]) -> dict[str, Any]:
    """Keep only the fields in the state of a ``Hints`` object."""
    return {name: value for name, value in state.items() if name in Hints.model_fields}


class Splice(Section):
    """Replacement of some items of a section by others."""

    section: Literal["people", "marks", "never"]
    at: int = Field(ge=0)
    """Index of the first one, from 0."""
    remove: int = Field(0, ge=0)
    """Number of items to remove."""
    insert: Annotated[tuple[Any, ...], _AsTuple] = ()
    """New items in their place, as plain data."""


class HintChanges(Section):
    """A change of hints: splices in sequence, and new edges."""

    splices: Annotated[tuple[Splice, ...], _AsTuple] = Field((), max_length=100)
    edges: dict[str, Any] | None = None
    """All edge settings if they change; an empty mapping removes them."""


def read_hints(path: Path) -> Hints:
    """Read a file of hints.

    Raises:
        ConfigError: It cannot be read, or has an invalid hint; the message names line and field.
    """
    return hints_in(hints_content(path), path)


def hints_content(path: Path) -> bytes:
    """Read the content of a file of hints, for ``hints_in``.

    Raises:
        ConfigError: It cannot be read, or is too large.
    """
    return read_content(path, label=str(path), most_bytes=MAX_HINTS_BYTES, kind="file of hints")


def hints_in(content: bytes, path: Path) -> Hints:
    """The hints in a file's content; each is parsed once, since every studio picture needs it several times.

    Raises:
        ConfigError: It has an invalid hint; the message names line and field.
    """
    return _found(content, path).hints


class _Found(NamedTuple):
    """The hints of a file, and their rows in it."""

    hints: Hints
    rows: Mapping[str, list[str]] | None = None
    """The row of each item, by section, once computed."""


_known: OrderedDict[tuple[Path, bytes], _Found | str] = OrderedDict()
"""The hints in a content, or its error; the most recently used one is last."""
_knowing = threading.Lock()


def _found(content: bytes, path: Path) -> _Found:
    key = _key(content, path)
    with _knowing:
        found = _known.get(key)
        if found is not None:
            _known.move_to_end(key)
    if found is None:
        try:
            found = _Found(_read(path, content))
        except ConfigError as error:
            found = str(error)
        _remember(key, found)
    if isinstance(found, str):
        raise ConfigError(found)
    return found


def _key(content: bytes, path: Path) -> tuple[Path, bytes]:
    return path, blake2b(content).digest()


def _remember(key: tuple[Path, bytes], found: _Found | str) -> None:
    with _knowing:
        _known[key] = found
        _known.move_to_end(key)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


def _read(path: Path, content: bytes) -> Hints:
    data, lines = _document(path, content)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected hints as `version: 1`, `people:`, `marks:` and `never:`")
    for name in (*_SECTIONS, "edges"):
        if data.get(name) is None:
            data.pop(name, None)
    items = {name: data[name] for name in _SECTIONS if isinstance(data.get(name), list)}
    item_lines = {name: [lines[name, number] for number in range(len(held))] for name, held in items.items()}
    try:
        edge_lines = {
            str(place[1]): line for place, line in lines.items() if place[:1] == ("edges",) and place[1:]
        }
        return Hints.model_validate(
            {**data, "label": path.name, "lines": item_lines, "edge_lines": edge_lines}
        )
    except ValidationError as error:
        place = tuple(error.errors()[0]["loc"])
        raise ConfigError(f"{path}{_line(place, lines)}: {told(error)}") from error


def _document(path: Path, content: bytes) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The file as plain data, and the lines of its values; sections with one item per line are read without YAML."""
    try:
        text, sections = taken_out(content.decode("utf-8"), _SECTIONS)
    except UnicodeDecodeError:
        sections = []
    left = text.encode() if sections else content
    if len(left) > _MAX_YAML_BYTES:
        raise ConfigError(
            f"{path}: {len(left)} bytes of hints that do not each stand on a line as the studio writes them, "
            f"`  - {{at: 1, click: [0.5, 0.5]}}`; {_MAX_YAML_BYTES} at most are read"
        )
    if sections:
        try:
            data, lines = document_of(left, label=str(path))
        except ConfigError:
            if len(content) > _MAX_READ_AGAIN_BYTES:
                raise
            # An error may begin before a section and end in it; YAML names the right line only for the whole text.
            return document_of(content, label=str(path))
        # If it only looked like a section, for example inside a multi-line text, YAML reads it after all.
        if isinstance(data, dict) and all(
            data.get(name, 0) is None and lines[name,] == line for name, line, _ in sections
        ):
            for name, line, items in sections:
                data[name] = items
                lines.update({(name, number): line + 1 + number for number in range(len(items))})
            return data, lines
    return document_of(content, label=str(path))


def hints_yaml(hints: Hints, *, head: str = "") -> bytes:
    """Format hints for ``read_hints``, with each rule, mark and region on its own line.

    Args:
        hints: The hints.
        head: Comment at the beginning of the file.

    Raises:
        ConfigError: They are more than a file of hints may hold.
    """
    return _laid_out(hints, {name: map(_row_of, getattr(hints, name)) for name in _SECTIONS}, head=head)


def changed_hints(content: bytes, path: Path, changes: HintChanges, *, video: str, head: str) -> bytes:
    """Return the content of a hints file after a change; its hints are cached for ``hints_in``.

    Unchanged items are neither written nor read again.

    Args:
        content: Current content of the file.
        path: The file.
        changes: The changes to its hints.
        video: The video that they are for.
        head: Comment at the beginning of the file.

    Raises:
        ConfigError: Either has an invalid hint or index, or the result is more than a file may hold.
    """
    hints, rows = _found(content, path)
    if hints.video not in (None, video):
        raise ConfigError(f"{path}: these hints are for {hints.video}, not for {video}")
    items: dict[str, list[Timed]] = {name: list(getattr(hints, name)) for name in _SECTIONS}
    rows = {name: rows[name].copy() for name in _SECTIONS} if rows else _rows_of(hints, content)
    for splice in changes.splices:
        name, begin, end = splice.section, splice.at, splice.at + splice.remove
        if end > len(items[name]):
            raise ConfigError(f"{name}: {begin} to {end} cannot go, as there are {len(items[name])}")
        given = [_row_of(hint) for hint in getattr(_validated({name: splice.insert}), name)]
        # Read them back as from the file, so that numbers have its digits.
        read = _read(path, "\n".join([f"{name}:", *given]).encode())
        items[name][begin:end], rows[name][begin:end] = getattr(read, name), given
    edges = hints.edges if changes.edges is None else _validated({"edges": changes.edges}).edges
    frame = Hints(video=video, edges=edges, label=path.name)
    made, bare = _laid_out(frame, rows, head=head), _laid_out(frame, {}, head=head)
    read = _read(path, bare)
    known = {name: getattr(read, name) for name in read.model_fields_set}
    lines: dict[str, Sequence[int]] = {}
    row = first = _head(frame, head=head).count("\n")  # rows before the next section
    for name in _SECTIONS:
        if items[name]:
            known[name] = tuple(items[name])
            lines[name] = range(row + 2, row + 2 + len(items[name]))
            row += 1 + len(items[name])
    known["edge_lines"] = {name: line + row - first for name, line in read.edge_lines.items()}
    known["lines"] = lines
    _remember(_key(made, path), _Found(Hints.model_construct(set(known), **known), rows))
    return made


def _validated(plain: dict[str, Any]) -> Hints:
    try:
        return Hints.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(f"corrections: {told(error)}") from error


def _plain(hints: Section) -> dict[str, Any]:
    return hints.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


def _row_of(hint: Timed) -> str:
    return f"  - {display(_plain(hint))}"


def _rows_of(hints: Hints, content: bytes) -> dict[str, list[str]]:
    """The row of each item in the file it was read from, if it has its own line; otherwise a new one."""
    try:
        # Count rows as YAML does.
        rows = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        rows = []  # a file in UTF-16

    def row_of(hint: Timed, line: int) -> str:
        return rows[line - 1] if rows and is_item(rows[line - 1]) else _row_of(hint)

    return {name: list(map(row_of, getattr(hints, name), hints.lines.get(name, ()))) for name in _SECTIONS}


def _head(hints: Hints, *, head: str) -> str:
    video = {} if hints.video is None else {"video": hints.video}
    return head + dump_yaml({"version": hints.version, **video})


def _laid_out(hints: Hints, rows: Mapping[str, Iterable[str]], *, head: str) -> bytes:
    """Lay out a file: head, version, video, sections by their rows, and edges."""
    text = _head(hints, head=head)
    for name, items in rows.items():
        if joined := "\n".join(items):
            text += f"{name}:\n{joined}\n"
    if hints.edges is not None and (edges := _plain(hints.edges)):
        text += "edges:\n" + "".join(f"  {name}: {display(value)}\n" for name, value in edges.items())
    content = text.encode()
    if len(content) > MAX_HINTS_BYTES:
        raise ConfigError(
            f"{text.count(_ITEM_BEGINS)} hints take {len(content)} bytes, and a file of hints holds "
            f"{MAX_HINTS_BYTES} at most; remove some"
        )
    return content


def _line(place: Sequence[str | int], lines: dict[tuple[str | int, ...], int]) -> str:
    """The line of a value, or of the nearest enclosing one that has a line."""
    for length in range(len(place), 0, -1):
        if tuple(place[:length]) in lines:
            return f":{lines[tuple(place[:length])]}"
    return ""


def _field(place: Sequence[str | int]) -> str:
    """``marks[2].click`` with the separator before its message."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"{text.removeprefix('.')}: " if text else ""


def told(error: ValidationError) -> str:
    """The first error in hints: ``marks[2].click: is missing``."""
    first = error.errors()[0]
    return f"{_field(first['loc'])}{_told(first, of=HintChanges if error.title == 'HintChanges' else Hints)}"


def _told(error: Any, *, of: type[Section]) -> str:
    match error["type"]:
        case "extra_forbidden":
            *section, name = error["loc"]
            return f"unknown field{did_you_mean(name, _fields_at(section, of))}"
        case "tuple_type":  # a list becomes a tuple
            return f"expected a list, got {display(error['input'])[:60]}"
        case "missing":
            return "is missing"
        case kind if kind.startswith("hints_"):
            return str(error["msg"])
        case "less_than_equal" | "greater_than_equal" if _PLACES.intersection(error["loc"]):
            given = display(error["input"])[:60]
            return f"places are shares of the picture's width and height, 0 to 1, not pixels; got {given}"
        case _:
            said = error["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
            return f"{said}, got {display(error['input'])[:60]}"


def _fields_at(place: Sequence[str | int], of: type[Section]) -> list[str]:
    """The fields of the section at a place such as ``marks[2]``, as spelt in a file."""
    section: type[Section] | None = of
    for part in place:
        if section is not None and isinstance(part, str):
            wanted = [one for name, one in section.model_fields.items() if part in (name, one.alias)]
            section = _section_in(wanted[0].annotation) if wanted else None
    fields = section.model_fields if section is not None else {}
    return [one.alias or name for name, one in fields.items() if not one.exclude]


def _section_in(annotation: Any) -> type[Section] | None:
    """The section type that a field holds, alone or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section_in(one)) is not None), None)
