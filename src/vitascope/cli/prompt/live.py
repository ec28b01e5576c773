"""A live animation on its own thread, so that the program can do something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from vitascope.animation import find_example
from vitascope.animation.live.report import LiveReport
from vitascope.animation.live.run import animate_live
from vitascope.animation.live.session import LiveSession
from vitascope.config import LoadedSettings
from vitascope.errors import OutputError, UsageError, VitascopeError, one_line
from vitascope.media.reading.camera import is_camera
from vitascope.models.store.store import ModelStore


class LiveRun:
    """Runs at most one live animation at a time. A context manager; leaving it stops the animation.

    Args:
        store: Store of the tracker's model, which is fetched if missing.
        on_message: Called from any thread with a line for the user to see at once.
        on_report: Called with a report that was requested.
        on_end: Called when an animation has ended.
        on_session: Called with each session before it runs.
    """

    def __init__(
        self,
        store: ModelStore,
        *,
        on_message: Callable[[str], object],
        on_report: Callable[[LiveReport], object],
        on_end: Callable[[LiveRun], object],
        on_session: Callable[[LiveSession], object] | None = None,
    ) -> None:
        self._store = store
        self._on_message, self._on_report, self._on_end = on_message, on_report, on_end
        self._on_session = on_session
        self._lock = threading.Lock()
        self._session: LiveSession | None = None
        self._is_unwanted = False
        self._thread: threading.Thread | None = None
        self.report: LiveReport | None = None
        """Report of the last run that ended normally."""
        self.error: VitascopeError | None = None
        """The reason if the last one failed."""

    @property
    def is_running(self) -> bool:
        """True from ``start`` until the animation has ended."""
        return self._thread is not None and self._thread.is_alive()

    def start(
        self,
        portrait: Path,
        driver: str,
        sinks: Sequence[str],
        *,
        loaded: LoadedSettings,
        record: Path | None = None,
        seconds: float | None = None,
    ) -> None:
        """Start an animation; returns at once. Arguments are those of ``animate_live``.

        Raises:
            UsageError: An animation is running already.
        """
        if self.is_running:
            raise UsageError("a live animation runs already; stop live ends it")
        self.report, self.error, self._is_unwanted = None, None, False
        self._thread = threading.Thread(
            target=self._work,
            args=(portrait, driver, list(sinks), loaded, record, seconds),
            name="vitascope-live",
            daemon=True,
        )
        self._thread.start()

    def press(self, key: str) -> bool:
        """Execute a key of ``animate``; False if the key has no function.

        Raises:
            UsageError: No animation is running.
        """
        return self.running_session().controls.press(key)

    def running_session(self) -> LiveSession:
        """The running session.

        Raises:
            UsageError: No animation is running, or it is not open yet.
        """
        session = self._session
        if not self.is_running:
            raise UsageError("no live animation runs; animate starts one")
        if session is None:
            raise UsageError("the live animation is not open yet; try again")
        return session

    @property
    def failure(self) -> VitascopeError | None:
        """Why the last animation, or one of its sinks, failed; None if it did not."""
        if self.error is not None or self.report is None:
            return self.error
        return OutputError(self.report.failure) if self.report.failure is not None else None

    def ending(self) -> str:
        """Say how the last animation ended, in one line."""
        failure = self.failure
        if self.report is None:
            return f"live: failed: {one_line(failure)}" if failure is not None else "live: stopped"
        done = f"live: ended: {self.report.shown} pictures, {self.report.frames_per_second:.1f} fps"
        return done if failure is None else f"{done}; failed: {one_line(failure)}"

    def stop(self) -> None:
        """End the animation as the key Q does; returns at once."""
        with self._lock:
            self._is_unwanted = True
            if self._session is not None:
                self._session.stop()

    def wait(self, *, timeout_seconds: float) -> bool:
        """Wait until no animation runs; False after the timeout."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return not self.is_running

    def _work(
        self,
        portrait: Path,
        driver: str,
        sinks: list[str],
        loaded: LoadedSettings,
        record: Path | None,
        seconds: float | None,
    ) -> None:
        try:
            self.report = animate_live(
                find_example(portrait),
                driver if is_camera(driver) else str(find_example(Path(driver))),
                sinks,
                loaded=loaded,
                store=self._store,
                record=record,
                seconds=seconds,
                on_session=self._begin,
                on_report=self._on_report,
                on_message=self._on_message,
            )
        except VitascopeError as failure:
            self.error = failure
        except Exception as failure:  # a bug, which ends this animation, not the prompt
            self.error = VitascopeError(f"{type(failure).__name__}: {failure}")
            self.error.__cause__ = failure
        finally:
            self._session = None
        self._on_end(self)

    def _begin(self, session: LiveSession) -> None:
        if self._on_session is not None:
            self._on_session(session)
        with self._lock:
            self._session = session
            if self._is_unwanted:  # stopped while opening
                session.stop()

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the animation, and wait for it."""
        self.stop()
        while not self.wait(timeout_seconds=0.5):  # in slices, so that Ctrl-C gets through on every system
            pass
