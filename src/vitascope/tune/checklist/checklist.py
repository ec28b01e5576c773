"""The tuning guide's checklists as questions with measured answers: yes, no, or not applicable here."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vitascope.tune.checklist.items import Answer, ChecklistItem, Measurements
from vitascope.tune.checklist.production import production_items
from vitascope.tune.checklist.troubles import trouble_items

__all__ = ["Checklist", "checklist_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All of them, in order."""

    items: tuple[ChecklistItem, ...]

    @property
    def failed(self) -> tuple[ChecklistItem, ...]:
        """Those that were answered with no."""
        return tuple(item for item in self.items if item.answer == "no")

    def count(self, answer: Answer) -> int:
        """How many have this answer."""
        return sum(item.answer == answer for item in self.items)

    def verdict(self) -> str:
        """In one sentence."""
        counts = f"{self.count('yes')} yes, {self.count('no')} no, {self.count('not applicable')} not applicable here"
        failed = "; ".join(item.question for item in self.failed)
        return f"{counts}{f'; not so: {failed}' if failed else ''}"

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"passed": not self.failed, "items": [asdict(item) for item in self.items]}


def checklist_of(found: Measurements) -> Checklist:
    """Answer every question."""
    return Checklist(items=(*production_items(found), *trouble_items(found)))
