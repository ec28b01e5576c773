"""How fast a portrait follows a face on this machine: a live run with a driver that never ends, and no output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitascope.animation.live.report import LiveReport
from vitascope.animation.live.run import animate_live
from vitascope.animation.live.session import LiveSession
from vitascope.config import LoadedSettings
from vitascope.models.store.store import ModelStore

__all__ = ["measure_live"]


def measure_live(
    portrait: Path,
    driver: Path,
    *,
    loaded: LoadedSettings,
    store: ModelStore,
    seconds: float = 60.0,
    warm_up_pictures: int = 0,
    on_session: Callable[[LiveSession], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> LiveReport:
    """Animate a portrait live for a while, with pictures at ``performance.target_fps`` and nowhere to show them.

    A video measures tracker and animator, a ``.motion`` file the animator alone. The driver begins anew when it ends.

    Args:
        portrait: A picture file.
        driver: A video or a ``.motion`` file.
        loaded: Settings.
        store: Where the tracker's model lies, or is fetched to.
        seconds: How long, after the first picture that counts.
        warm_up_pictures: The first pictures, which are slower and which the figures leave out.
        on_session: Given the session before it runs, for ``stop``.
        on_message: Told, in one line, what should be known at once.

    Returns:
        The report.

    Raises:
        VitascopeError: As ``animate_live``.
    """
    return animate_live(
        portrait,
        str(driver),
        ["null"],
        loaded=loaded,
        store=store,
        seconds=seconds,
        warm_up_pictures=warm_up_pictures,
        endless_fps=loaded.settings.performance.target_fps,
        on_session=on_session,
        on_message=on_message,
    )
