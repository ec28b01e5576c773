"""The commands of ``vitascope interactive`` that animate live."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vitascope.animation.live.controls import KEYS, keys_in_words
from vitascope.animation.live.report import summarise_live
from vitascope.cli.prompt.live_run import LiveRun
from vitascope.cli.prompt.words import WordParser, nothing_more
from vitascope.config import LoadedSettings
from vitascope.errors import OutputError, UsageError, VitascopeError, one_line

__all__ = ["LIVE_HELP", "LiveCommands", "live_ending", "live_failure"]

_ANIMATE = "animate PORTRAIT -d DRIVER --sink SINK… [--record FILE] [--duration SECONDS]"
LIVE_HELP = {
    "animate …": f"{_ANIMATE.removeprefix('animate ')}: live, with the settings as they are now.",
    "press KEYS": "what the keys of a live animation do, such as: press m+; press ? lists them.",
    "restart": "try the sinks of the live animation that failed again; the others go on.",
    "live": "how the live animation does.",
}


class LiveCommands:
    """What is typed about the live animation, done.

    Args:
        run: The animation.
        page: Where answers go.
        loaded: Gives the settings as they are now.
    """

    def __init__(self, run: LiveRun, *, page: Console, loaded: Callable[[], LoadedSettings]) -> None:
        self._run, self._page, self._loaded = run, page, loaded
        self.commands: dict[str, Callable[[list[str]], None]] = {
            "animate": self._animate,
            "press": self._press,
            "restart": self._restart,
            "live": self._live,
        }
        """By their first word."""

    @property
    def is_running(self) -> bool:
        """True while a portrait is animated."""
        return self._run.is_running

    def stop(self) -> None:
        """End the animation.

        Raises:
            UsageError: None runs.
        """
        if not self._run.is_running:
            raise UsageError("no live animation runs; animate starts one")
        self._run.stop()

    def wait(self, *, timeout_seconds: float) -> bool:
        """Wait until no animation runs; False when that takes longer."""
        return self._run.wait(timeout_seconds=timeout_seconds)

    def _animate(self, words: list[str]) -> None:
        parser = WordParser(_ANIMATE)
        parser.add_argument("portrait", type=Path)
        parser.add_argument("-d", "--driver", required=True)
        parser.add_argument("--sink", action="append", required=True)
        parser.add_argument("--record", type=Path)
        parser.add_argument("--duration", type=float)
        given = parser.parse_args(words)
        self._run.start(
            given.portrait,
            given.driver,
            given.sink,
            loaded=self._loaded(),
            record=given.record,
            seconds=given.duration,
        )
        self._page.print(Text(f"live: {given.portrait} follows {given.driver}"))

    def _press(self, words: list[str]) -> None:
        keys = "".join(words)
        if not keys:
            raise UsageError("usage: press KEYS, such as: press m+")
        unknown = [key for key in keys if key.lower() not in (*KEYS, "=", "_")]
        if unknown:
            raise UsageError(f"no key {unknown[0]!r}; keys are {keys_in_words()}")
        for key in keys:
            self._run.press(key)

    def _restart(self, words: list[str]) -> None:
        nothing_more(words, "restart")
        self._run.running_session().controls.request("restart")

    def _live(self, words: list[str]) -> None:
        nothing_more(words, "live")
        report = self._run.report
        if self._run.is_running:
            report = self._run.running_session().report()
        if report is None:
            raise UsageError("no live animation has run yet; animate starts one")
        self._page.print(Text("\n".join(summarise_live(report))))


def live_failure(run: LiveRun) -> VitascopeError | None:
    """Why the last animation failed, whole or in one of its sinks; None when it did not."""
    if run.error is not None or run.report is None:
        return run.error
    failed = [sink.failure for sink in run.report.sinks if sink.failure is not None]
    return OutputError("; ".join(failed)) if failed else None


def live_ending(run: LiveRun) -> str:
    """How the last animation ended, in one line."""
    failure = live_failure(run)
    if run.report is None:
        return f"live: failed: {one_line(failure)}" if failure is not None else "live: stopped"
    done = f"live: ended: {run.report.shown} pictures, {run.report.frames_per_second:.1f} fps"
    return done if failure is None else f"{done}; failed: {one_line(failure)}"
