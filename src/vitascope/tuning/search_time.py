"""How long a tune may take, what fits into that, and how it is said."""

from __future__ import annotations

from time import perf_counter

from vitascope.errors import UsageError

__all__ = ["SearchTime", "turns"]

_TURNS, _SLOW_TURNS = 3, 2
_SLOW_SECONDS = 15.0
"""Of one run, from which two turns are enough: in so long a run most of what disturbs is averaged already."""
_LONGEST_SECONDS = 86_400


def turns(run_seconds: float) -> int:
    """How often what was found is held against the settings as they are at the end."""
    return min(_SLOW_TURNS, _TURNS) if run_seconds > _SLOW_SECONDS else _TURNS


class SearchTime:
    """The clock of one tune; it runs from here on.

    Args:
        most_seconds: About how long all of it may take, the comparison at the end included; None: without an end.

    Raises:
        UsageError: The time is out of range.
    """

    def __init__(self, most_seconds: float | None) -> None:
        if most_seconds is not None and not 0 < most_seconds <= _LONGEST_SECONDS:
            raise UsageError(f"a search takes more than 0 s and at most a day, not {most_seconds:g} s")
        self._most_seconds = most_seconds
        self._began = perf_counter()

    def check(self, run_seconds: float, *, runs: int = 0) -> None:
        """Refuse a time in which not even one trial could be made and compared.

        Args:
            run_seconds: Of one run, as far as is known.
            runs: That are needed before the first trial.

        Raises:
            UsageError: The time is too short.
        """
        least = perf_counter() - self._began + run_seconds * (runs + 1 + 2 * turns(run_seconds))
        if self._most_seconds is not None and least > self._most_seconds:
            raise UsageError(
                f"a run takes about {run_seconds:.0f} s here, and a search at least {least:.0f} s: allow "
                f"{least / 60:.1f} minutes or more, or begin with a profile that is faster"
            )

    def is_late(self, run_seconds: float) -> bool:
        """True when what is left is needed for the comparison at the end."""
        left = float("inf") if self._most_seconds is None else self._most_seconds
        return perf_counter() - self._began + 2 * turns(run_seconds) * run_seconds > left

    def plan(self, run_seconds: float, *, trials: int, cells: int) -> str:
        """What comes, in one line."""
        limit = ""
        if self._most_seconds is not None:
            minutes = self._most_seconds / 60
            time = f"{minutes:.0f} minutes" if minutes >= 2 else f"{self._most_seconds:.0f} s"
            limit = f", in about {time} at most"
        runs = f"{trials} run" if trials == 1 else f"{trials} runs"
        return (
            f"up to {runs} of about {run_seconds:.2g} s each, out of {cells} combinations of settings{limit}; "
            "then what was found against the settings as they are"
        )
