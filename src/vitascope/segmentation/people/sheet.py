"""Draws the sheet of people: a numbered strip, and below it the times when each is visible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.errors import OutputError
from vitascope.media.writing.output_target import write_png
from vitascope.segmentation.people.table import PeopleTable, Person

Rgb8 = npt.NDArray[np.uint8]

_CELL, _GAP, _BAR_HEIGHT, _MARGIN = 200, 8, 22, 60
_COLUMNS = 6
_GROUND, _INK = 24, 235
_COLORS = (
    (255, 179, 71),
    (119, 190, 255),
    (140, 220, 120),
    (250, 120, 160),
    (200, 160, 255),
    (250, 230, 110),
)


def lines_on(people: Sequence[Person]) -> list[str]:
    """One line per person: when they are visible, and the confidence that it is always the same person."""
    lines = []
    for person in people:
        times = ", ".join(f"{clock(one.begin_seconds)}-{clock(one.end_seconds)}" for one in person.seen[:6])
        more = f" and {len(person.seen) - 6} more" if len(person.seen) > 6 else ""
        lines.append(f"{person.number}  {times}{more}  {person.sure:.0%} sure")
    return lines or ["nobody was found"]


def clock(seconds: float) -> str:
    """Time as 1:02.5."""
    minutes, rest = divmod(max(seconds, 0.0), 60)
    return f"{int(minutes)}:{rest:04.1f}"


def write_sheet(table: PeopleTable, path: Path, *, people: Sequence[Person]) -> None:
    """Draw the strip as a PNG.

    Args:
        table: Table with the people's pictures.
        path: The PNG.
        people: The people to show: all of the table's, or those of a part.

    Raises:
        OutputError: It cannot be written, or there are no people.
    """
    if not people:
        raise OutputError(f"{path}: nobody was found in {table.facts.video}; there is nothing to draw")
    write_png(path, _page(table, people), what="the sheet")


def _page(table: PeopleTable, people: Sequence[Person]) -> Rgb8:
    columns = min(len(people), _COLUMNS)
    cells = [_cell(table, person) for person in people]
    cells += [np.full_like(cells[0], _GROUND)] * (-len(cells) % columns)
    rows = [np.hstack(cells[first : first + columns]) for first in range(0, len(cells), columns)]
    strip: Rgb8 = np.vstack(rows)
    width = max(strip.shape[1], 3 * _CELL)
    strip = np.pad(strip, ((0, 0), (0, width - strip.shape[1]), (0, 0)), constant_values=_GROUND)
    return np.vstack([strip, _bars(people, width)])


def _cell(table: PeopleTable, person: Person) -> Rgb8:
    cell: Rgb8 = np.full((_CELL + _GAP, _CELL + _GAP, 3), _GROUND, np.uint8)
    content = table.face(person.number)
    if content is not None:
        picture: Any = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
        scale = min(_CELL / picture.shape[0], _CELL / picture.shape[1])
        size = max(round(picture.shape[1] * scale), 1), max(round(picture.shape[0] * scale), 1)
        small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        left = _GAP + (_CELL - size[0]) // 2
        cell[_GAP : _GAP + size[1], left : left + size[0]] = small
    color = _COLORS[(person.number - 1) % len(_COLORS)]
    cv2.rectangle(cell, (_GAP, _GAP), (_GAP + 34, _GAP + 30), color, -1)
    _write(cell, str(person.number), (_GAP + 6, _GAP + 23), 0.8, 16)
    return cell


def _bars(people: Sequence[Person], width: int) -> Rgb8:
    end = max(one.end_seconds for person in people for one in person.seen) or 1.0
    begin = min(one.begin_seconds for person in people for one in person.seen)
    bars: Rgb8 = np.full((len(people) * (_BAR_HEIGHT + 4) + 34, width, 3), _GROUND, np.uint8)
    room = width - _MARGIN - 70

    def place(seconds: float) -> int:
        return _MARGIN + round((seconds - begin) / max(end - begin, 1e-6) * room)

    for row, person in enumerate(people):
        top = 6 + row * (_BAR_HEIGHT + 4)
        _write(bars, str(person.number), (16, top + 16), 0.55, _INK)
        cv2.rectangle(bars, (_MARGIN, top + 9), (_MARGIN + room, top + 11), (60, 60, 60), -1)
        for one in person.seen:
            color = tuple(
                round(channel * (0.35 + 0.65 * one.sure)) for channel in _COLORS[(person.number - 1) % 6]
            )
            ends = place(one.begin_seconds), max(place(one.end_seconds), place(one.begin_seconds) + 2)
            cv2.rectangle(bars, (ends[0], top), (ends[1], top + _BAR_HEIGHT - 4), color, -1)
        _write(bars, f"{person.sure:.0%}", (_MARGIN + room + 10, top + 16), 0.5, _INK)
    _write(bars, clock(begin), (_MARGIN, bars.shape[0] - 8), 0.45, _INK)
    _write(bars, clock(end), (_MARGIN + room - 44, bars.shape[0] - 8), 0.45, _INK)
    return bars


def _write(picture: Rgb8, text: str, place: tuple[int, int], scale: float, grey: int) -> None:
    cv2.putText(picture, text, place, cv2.FONT_HERSHEY_SIMPLEX, scale, (grey,) * 3, 1, cv2.LINE_AA)
