"""How far the videos are that a cluster works on, of all runs, as those say who work on them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class FilmAtWork:
    """How far a video is, by one of those who work on it or by all."""

    video: str
    done: int
    """Stretches that lie finished in the video's folder."""
    stretch_count: int
    frame_count: int | None
    """Frames of the whole video; None where it does not say."""
    running: int
    """Stretches in hand."""
    failed: int
    """Tries that failed."""
    frames_in_hand: int
    """Frames of these stretches that are encoded."""
    frames_per_second: float

    def and_another(self, other: FilmAtWork) -> FilmAtWork:
        """The same video by some more."""
        return replace(
            self,
            done=max(self.done, other.done),
            running=self.running + other.running,
            failed=self.failed + other.failed,
            frames_in_hand=self.frames_in_hand + other.frames_in_hand,
            frames_per_second=self.frames_per_second + other.frames_per_second,
        )

    @property
    def seconds_left(self) -> float | None:
        """As long as it takes at this pace; None where that cannot be told."""
        if self.frame_count is None or not self.frames_per_second:
            return None
        left = self.frame_count * (1 - self.done / self.stretch_count) - self.frames_in_hand
        return max(left, 0.0) / self.frames_per_second

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "seconds_left": self.seconds_left}

    def line(self) -> str:
        """For people."""
        left = self.seconds_left
        when = "" if left is None else f", {left:.0f} s left"
        return (
            f"{self.video}: {self.done} of {self.stretch_count} stretches done, {self.running} in hand, "
            f"{self.failed} failed; {self.frames_per_second:.1f} frames/s{when}"
        )


def films_at_work(ray: Any, *, namespace: str) -> list[FilmAtWork]:
    """The videos that the cluster works on, of all runs, by who answers in time.

    Args:
        ray: Connected.
        namespace: Where Ray keeps the names of those who make stretches.
    """
    asked = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == namespace:
            with suppress(ValueError):  # it has just ended
                asked.append(ray.get_actor(actor["name"], namespace=namespace).at_work.remote())
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_SECONDS) if asked else ([], [])
    films: dict[str, FilmAtWork] = {}
    for reference in answered:
        with suppress(ray.exceptions.RayError):
            film = ray.get(reference)
            if film is not None:
                known = films.get(film.video)
                films[film.video] = film if known is None else known.and_another(film)
    return list(films.values())
