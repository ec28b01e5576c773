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

Hints that stand on a line of their own are read without YAML, which takes minutes for a file of 100,000 strokes. A
section as the studio writes it is taken out of the text; whatever is not exactly so is left to YAML. Lines end as for
``str.splitlines``, which is where they end for YAML (NEL, U+2028 and U+2029, too) in what it takes.
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
    """A section whose items stand on a line each."""

    name: str
    line: int
    """Line of its name, from 1; its first item stands on the next one."""
    items: list[dict[str, Any]]


def taken_out(text: str, names: Sequence[str]) -> tuple[str, list[LinedSection]]:
    """Take sections whose every item is plain out of a text.

    Args:
        text: YAML.
        names: Names of the sections to look for.

    Returns:
        The text with the line breaks that it had, such sections empty in it; and the sections.
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
    """True where a line holds an item that begins and ends on it."""
    return _ITEM.fullmatch(line) is not None


def items_of(lines: Sequence[str]) -> list[dict[str, Any]] | None:
    """Read items from their lines; None if one holds anything but words and numbers that JSON also has."""
    if not all(map(is_item, lines)):
        return None
    text, names = _NAME.subn(r'\1"\2": ', ",".join([line[4:] for line in lines]))
    try:
        items = json.loads(f"[{_VALUE.sub(_QUOTED, text)}]", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    # An item that JSON would read as two, or as part of another, is none; nor is one with a name that stands twice.
    is_plain = len(items) == len(lines) and all(isinstance(item, dict) for item in items)
    return items if is_plain and sum(map(len, items)) == names else None


def _refuse(constant: str) -> float:
    raise ValueError(constant)


MAX_HINTS_BYTES: Final = 32 << 20
"""Some 100,000 strokes of a dozen points."""
_MAX_YAML_BYTES: Final = 8 << 20
"""What does not stand on a line an item takes YAML a hundred times its size in memory."""
_MAX_READ_AGAIN_BYTES: Final = 1 << 20
"""YAML reads as much in some seconds."""
_MOST_KNOWN: Final = 4
_SECTIONS: Final = ("people", "marks", "never")
_ITEM_BEGINS: Final = "\n  - "

Eye = Literal["left", "right", "both"]


Share = Annotated[float, Field(ge=0, le=1, strict=False)]
_PLACES: Final = frozenset({"click", "box", "stroke", "polygon"})
"""Fields of such shares."""
_AsTuple = Field(strict=False)
"""Lists, which YAML and JSON have in place of tuples, too."""
Point = Annotated[tuple[Share, Share], _AsTuple]
Points = Annotated[tuple[Point, ...], _AsTuple]
BoxShares = Annotated[tuple[Share, Share, Share, Share], _AsTuple]


class Timed(Section):
    """Something that holds for a time."""

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
    """The video's file name; None fits any."""
    people: Annotated[tuple[PeopleRule, ...], _AsTuple] = ()
    marks: Annotated[tuple[Mark, ...], _AsTuple] = ()
    never: Annotated[tuple[Region, ...], _AsTuple] = ()
    edges: EdgeSettings | None = None
    """Those that are set here act, under what flags say; see ``load_settings``."""
    lines: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """Lines of the items of each section in the file, as sequences of int; none of what was made in Python.

    They are not the items' own, so that items stay the same ones when those before them come and go.
    """
    edge_lines: dict[str, int] = Field(default_factory=dict, exclude=True)
    """The line of each in the file."""
    label: str = Field("hints", exclude=True)
    """How messages name them: the file's name."""

    @property
    def needs_people(self) -> bool:
        """True when it must be known who is who, and where shots end."""
        return bool(self.people or self.marks)

    @cached_property
    def painted(self) -> tuple[tuple[Mark, ...], ...]:
        """Strokes of the same frame, eye and times, in their order; in the order of the film."""
        strokes = [mark for mark in self.marks if mark.stroke is not None]
        alike = groupby(sorted(strokes, key=attrgetter("at")), attrgetter("at", "eye", "from_", "to"))
        return tuple(tuple(group) for _, group in alike)

    @cached_property
    def pointed(self) -> tuple[Mark, ...]:
        """Marks that are no strokes: clicks and boxes."""
        return tuple(mark for mark in self.marks if mark.stroke is None)

    @cached_property
    def last(self) -> tuple[float, Timed] | None:
        """When the hint begins that begins last, in seconds, and that hint; None where there is none."""
        first = itemgetter(0)
        begins: list[tuple[float, Timed]] = [
            *((mark.at, mark) for mark in self.marks),
            *((hint.from_, hint) for hint in (*self.people, *self.never)),
        ]
        return max(begins, key=first, default=None)

    # What is found once and kept, groups and identities of items, is of these items: copies find it anew.

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
        """Copy them, with other values of some fields; items of a section that is replaced have no line."""
        lines = {name: held for name, held in self.lines.items() if name not in (update or {})}
        return super().model_copy(update={"lines": lines, **(update or {})}, deep=deep)

    def place(self, hint: Timed) -> str:
        """The place of a hint, for messages: ``film.hints.yaml:12``."""
        line = self.line_of.get(id(hint))
        return self.label if line is None else f"{self.label}:{line}"

    @cached_property
    def line_of(self) -> dict[int, int]:
        """The line of each item that was read from a file, by its identity."""
        return {
            id(hint): line
            for name, lines in self.lines.items()
            for hint, line in zip(getattr(self, name), lines, strict=True)
        }


def _fields_of(state: dict[str, Any]) -> dict[str, Any]:
    """Keep the fields alone of what an object of ``Hints`` holds."""
    return {name: value for name, value in state.items() if name in Hints.model_fields}


class Splice(Section):
    """Replacement of some items of a section by others."""

    section: Literal["people", "marks", "never"]
    at: int = Field(ge=0)
    """Place of the first, from 0."""
    remove: int = Field(0, ge=0)
    """How many go."""
    insert: Annotated[tuple[Any, ...], _AsTuple] = ()
    """What comes in their place, as plain data."""


class HintChanges(Section):
    """A change of hints: splices, one after another, and other edges."""

    splices: Annotated[tuple[Splice, ...], _AsTuple] = Field((), max_length=100)
    edges: dict[str, Any] | None = None
    """All of them, where they change; none where this is empty."""


def read_hints(path: Path) -> Hints:
    """Read a file of hints.

    Raises:
        ConfigError: It cannot be read, or something in it is no hint; names line and field.
    """
    return hints_in(hints_content(path), path)


def hints_content(path: Path) -> bytes:
    """Read the content of a file of hints, for ``hints_in``.

    Raises:
        ConfigError: It cannot be read, or is too long.
    """
    return read_content(path, label=str(path), most_bytes=MAX_HINTS_BYTES, kind="file of hints")


def hints_in(content: bytes, path: Path) -> Hints:
    """The hints of a file's content; each content is read once, as each picture of the studio asks several times.

    Raises:
        ConfigError: Something in it is no hint; names line and field.
    """
    return _found(content, path).hints


class _Found(NamedTuple):
    """The hints of a file, and where each stands in it."""

    hints: Hints
    rows: Mapping[str, list[str]] | None = None
    """The row of each item, by section, where they were looked at."""


_known: OrderedDict[tuple[Path, bytes], _Found | str] = OrderedDict()
"""What a content holds, or what is wrong with it; the one that was requested last is last."""
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
    """The file as plain data, and the lines of its values; sections of one line an item are read without YAML."""
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
            # What is wrong may begin before a section and end in it: of the whole text YAML names the right line.
            return document_of(content, label=str(path))
        # What only looked like a section, in a text of several lines, say, is YAML's all the same.
        if isinstance(data, dict) and all(
            data.get(name, 0) is None and lines[name,] == line for name, line, _ in sections
        ):
            for name, line, items in sections:
                data[name] = items
                lines.update({(name, number): line + 1 + number for number in range(len(items))})
            return data, lines
    return document_of(content, label=str(path))


def hints_yaml(hints: Hints, *, head: str = "") -> bytes:
    """Write hints as ``read_hints`` reads them back, each rule, mark and region on a line of its own.

    Args:
        hints: What is written.
        head: Comment with which the file begins.

    Raises:
        ConfigError: They are more than a file of hints may hold.
    """
    return _laid_out(hints, {name: map(_row_of, getattr(hints, name)) for name in _SECTIONS}, head=head)


def changed_hints(content: bytes, path: Path, changes: HintChanges, *, video: str, head: str) -> bytes:
    """The content of a file of hints once they are changed; what ``hints_in`` finds in it is known already.

    Items that stay are neither written nor read again.

    Args:
        content: Content of the file.
        path: The file.
        changes: What shall become of its hints.
        video: The video that they are for.
        head: Comment with which the file begins.

    Raises:
        ConfigError: Something in either is no hint, a place is none, or they are more than a file may hold.
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
        # As they will be read: numbers have the digits of the file.
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
    """The row of each item in the file that it was read from, where it has one of its own; else a new one."""
    try:
        # They are counted as YAML counts them.
        rows = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        rows = []  # of one in UTF-16

    def row_of(hint: Timed, line: int) -> str:
        return rows[line - 1] if rows and is_item(rows[line - 1]) else _row_of(hint)

    return {name: list(map(row_of, getattr(hints, name), hints.lines.get(name, ()))) for name in _SECTIONS}


def _head(hints: Hints, *, head: str) -> str:
    video = {} if hints.video is None else {"video": hints.video}
    return head + dump_yaml({"version": hints.version, **video})


def _laid_out(hints: Hints, rows: Mapping[str, Iterable[str]], *, head: str) -> bytes:
    """A file: head, version, video, sections by their rows, and edges."""
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
    """The line of a value, or of the nearest one around it that has a line."""
    for length in range(len(place), 0, -1):
        if tuple(place[:length]) in lines:
            return f":{lines[tuple(place[:length])]}"
    return ""


def _field(place: Sequence[str | int]) -> str:
    """``marks[2].click``, and what separates it from what is said of it."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return f"{text.removeprefix('.')}: " if text else ""


def told(error: ValidationError) -> str:
    """The first thing that is wrong with hints: ``marks[2].click: is missing``."""
    first = error.errors()[0]
    return f"{_field(first['loc'])}{_told(first, of=HintChanges if error.title == 'HintChanges' else Hints)}"


def _told(error: Any, *, of: type[Section]) -> str:
    match error["type"]:
        case "extra_forbidden":
            *section, name = error["loc"]
            return f"unknown field{did_you_mean(name, _fields_at(section, of))}"
        case "tuple_type":  # what a list becomes
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
    """The fields of the section at a place such as ``marks[2]``, as a file spells them."""
    section: type[Section] | None = of
    for part in place:
        if section is not None and isinstance(part, str):
            wanted = [one for name, one in section.model_fields.items() if part in (name, one.alias)]
            section = _section_in(wanted[0].annotation) if wanted else None
    fields = section.model_fields if section is not None else {}
    return [one.alias or name for name, one in fields.items() if not one.exclude]


def _section_in(annotation: Any) -> type[Section] | None:
    """The section of which a field holds one or several."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for one in get_args(annotation) if (found := _section_in(one)) is not None), None)
