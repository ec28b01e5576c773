"""What every tuner gives, for the settings file and the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vitascope.tuning.grid import SearchResult

__all__ = ["NOTHING_BETTER", "TunedSettings"]

NOTHING_BETTER = "nothing was better than the settings as they are"


class TunedSettings(Protocol):
    """Settings that a tuner found."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The settings to change, by key; empty where nothing was better than the settings as they are."""
        ...

    @property
    def search(self) -> SearchResult:
        """What was tried."""
        ...

    @property
    def target(self) -> Any:
        """What was wanted, a dataclass."""
        ...

    @property
    def unreachable(self) -> str | None:
        """What cannot be had and what can, in one line; None when the target was reached."""
        ...

    @property
    def device_label(self) -> str:
        """What computed."""
        ...

    @property
    def network(self) -> str:
        """What was measured on it."""
        ...

    @property
    def score_unit(self) -> str:
        """Unit of the scores of the search."""
        ...

    @property
    def command(self) -> str:
        """What searches anew, as it is typed."""
        ...

    def figures(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """What was measured before and after, by name."""
        ...

    def change_in_words(self) -> str:
        """What was gained, and what it costs."""
        ...

    def unchanged_in_words(self) -> str:
        """That nothing was better than the settings as they are, and why, where that is known."""
        ...

    def trade_off(self) -> str:
        """What the speed costs, in words."""
        ...
