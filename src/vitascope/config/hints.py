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
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from vitascope.config.hint_lines import taken_out
from vitascope.config.people import People
from vitascope.config.result import EdgeSettings
from vitascope.config.values import Seconds, Section
from vitascope.config.yaml_file import MAX_FILE_BYTES, display, document_of, dump_yaml, read_content
from vitascope.errors import ConfigError

__all__ = ["Eye", "Hints", "Mark", "PeopleRule", "Region", "Timed", "hints_yaml", "read_hints", "told"]

Eye = Literal["left", "right", "both"]


def _tuples(value: object) -> object:
    """Lists of YAML as tuples, at any depth."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


Share = Annotated[float, Field(ge=0, le=1, strict=False)]
Point = Annotated[tuple[Share, Share], BeforeValidator(_tuples)]
Points = Annotated[tuple[tuple[Share, Share], ...], BeforeValidator(_tuples)]
BoxShares = Annotated[tuple[Share, Share, Share, Share], BeforeValidator(_tuples)]


class Timed(Section):
    """Something that holds for a time."""

    from_: Seconds = Field(0.0, alias="from")
    to: Seconds | None = None
    line: int = Field(0, exclude=True)
    """Its line in the file; 0 for one that was made in Python."""

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
            raise PydanticCustomError("hints_box", "a box is [left, top, right, bottom] and holds something")
        if self.stroke is not None and not self.stroke:
            raise PydanticCustomError("hints_stroke", "a stroke has one point or more")
        return self


class Region(Timed):
    """A region that is never kept: a garbage matte."""

    polygon: Points
    eye: Eye = "both"

    @model_validator(mode="after")
    def _check_area(self) -> Self:
        if len(self.polygon) < 3:
            raise PydanticCustomError("hints_region", "a region has three corners or more")
        return self


class Hints(Section):
    """All hints for one video."""

    version: Literal[1] = 1
    video: str | None = None
    """The video's file name; None fits any."""
    people: Annotated[tuple[PeopleRule, ...], BeforeValidator(_tuples)] = ()
    marks: Annotated[tuple[Mark, ...], BeforeValidator(_tuples)] = ()
    never: Annotated[tuple[Region, ...], BeforeValidator(_tuples)] = ()
    edges: EdgeSettings | None = None
    """Those that are set here act, under what flags say; see ``load_settings``."""
    edge_lines: dict[str, int] = Field(default_factory=dict, exclude=True)
    """The line of each in the file."""
    label: str = Field("hints", exclude=True)
    """How messages name them: the file's name."""

    @property
    def needs_people(self) -> bool:
        """True when it must be known who is who, and where shots end."""
        return bool(self.people or self.marks)

    def place(self, hint: Timed) -> str:
        """The place of a hint, for messages: ``film.hints.yaml:12``."""
        return f"{self.label}:{hint.line}" if hint.line else self.label


def read_hints(path: Path) -> Hints:
    """Read a file of hints.

    Raises:
        ConfigError: It cannot be read, or something in it is no hint; names line and field.
    """
    found = _read_once(path, read_content(path, label=str(path)))
    if isinstance(found, str):
        raise ConfigError(found)
    return found


@lru_cache(maxsize=4)
def _read_once(path: Path, content: bytes) -> Hints | str:
    """The hints, or what is wrong with them: each picture of the studio asks for them several times."""
    try:
        return _read(path, content)
    except ConfigError as error:
        return str(error)


def _read(path: Path, content: bytes) -> Hints:
    data, lines = _document(path, content)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected hints as `version: 1`, `people:`, `marks:` and `never:`")
    for name in ("people", "marks", "never", "edges"):
        if data.get(name) is None:
            data.pop(name, None)
        for number, hint in enumerate(data.get(name, ()) if isinstance(data.get(name), list) else ()):
            if isinstance(hint, dict):
                hint["line"] = lines[name, number]
    try:
        edge_lines = {
            str(place[1]): line for place, line in lines.items() if place[:1] == ("edges",) and place[1:]
        }
        return Hints.model_validate({**data, "label": path.name, "edge_lines": edge_lines})
    except ValidationError as error:
        place = tuple(error.errors()[0]["loc"])
        raise ConfigError(f"{path}{_line(place, lines)}: {told(error)}") from error


def _document(path: Path, content: bytes) -> tuple[Any, dict[tuple[str | int, ...], int]]:
    """The file as plain data, and the lines of its values; sections of one line an item are read without YAML."""
    try:
        text, sections = taken_out(content.decode("utf-8"), ("people", "marks", "never"))
    except UnicodeDecodeError:
        sections = []
    if sections:
        data, lines = document_of(text.encode(), label=str(path))
        # What only looked like a section, in a text of several lines, say, is YAML's all the same.
        if isinstance(data, dict) and all(
            data.get(name, 0) is None and lines[name,] == line for name, line, _ in sections
        ):
            for name, line, items in sections:
                data[name] = items
                lines.update({(name, number): line + 1 + number for number in range(len(items))})
            return data, lines
    return document_of(content, label=str(path))


def hints_yaml(hints: Hints) -> str:
    """Write hints as ``read_hints`` reads them back, each rule, mark and region on a line of its own.

    Raises:
        ConfigError: They are more than a file of hints may hold.
    """
    plain = hints.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    head = {"version": hints.version, **({} if hints.video is None else {"video": hints.video})}
    text = dump_yaml(head)
    for name in ("people", "marks", "never"):
        if plain.get(name):
            text += f"{name}:\n" + "".join(f"  - {display(hint)}\n" for hint in plain[name])
    if plain.get("edges"):
        text += "edges:\n" + "".join(
            f"  {name}: {display(value)}\n" for name, value in plain["edges"].items()
        )
    if len(text.encode()) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{len(hints.marks)} marks take {len(text.encode())} bytes, and a file of hints holds {MAX_FILE_BYTES} at "
            "most; remove some"
        )
    return text


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
    return f"{_field(first['loc'])}{_told(first)}"


def _told(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "there is no such field"
        case "missing":
            return "is missing"
        case kind if kind.startswith("hints_"):
            return str(error["msg"])
        case _:
            return f"{error['msg'].removeprefix('Value error, ')}, got {display(error['input'])[:60]}"
