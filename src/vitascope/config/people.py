"""Settings of who is kept."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, model_validator

from vitascope.config.values import Expected, FilePath, Section, conflict, setting, unique_list

PersonWord = Literal["largest", "pov"]
"""``largest``: who covers most of the picture over time. ``pov``: the wearer's own body at the bottom."""

_HIGHEST_NUMBER: Final = 255


def _people(value: object) -> object:
    values = unique_list([value] if isinstance(value, int) else value)
    if not isinstance(values, tuple):
        return value
    people = tuple(int(one) if isinstance(one, str) and one.isdecimal() else one for one in values)
    for one in people:
        is_number = isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= _HIGHEST_NUMBER
        if not is_number and one not in ("largest", "pov"):
            raise ValueError(f"{one!r} is no person")
    return people


People = Annotated[
    tuple[int | PersonWord, ...],
    BeforeValidator(_people),
    Expected("numbers of people such as 1,3 (vitascope people shows them), largest or pov"),
]


class PeopleSettings(Section):
    """``people``: who is kept, of those that ``vitascope people`` finds."""

    keep: People | None = setting(None, "Keep only these people; null keeps everybody.")
    exclude: People | None = setting(None, "Keep everybody but these people.")
    keep_held: bool = setting(
        False, "Also keep what kept people hold; fetches isnet, and mattes are not cached."
    )
    edges_add_up: bool = setting(
        False,
        "Where people touch, cuts of each add up, as layers need it; else a strip between them is nobody's.",
    )
    hints: FilePath | None = setting(
        None, "A hints file: who is kept when, clicks, boxes, strokes and regions."
    )

    @property
    def active(self) -> bool:
        """True if any of these settings is set."""
        return self.keep_held or not (self.keep is None and self.exclude is None and self.hints is None)

    @model_validator(mode="after")
    def _check_choice(self) -> PeopleSettings:
        both = sorted(map(str, set(self.keep or ()) & set(self.exclude or ())))
        if both:
            raise conflict(
                f"people.keep and people.exclude both name {', '.join(both)}",
                ("people.keep", "people.exclude"),
            )
        return self
