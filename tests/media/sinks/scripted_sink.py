"""A sink that waits and fails on demand."""

from __future__ import annotations

import threading

from live_pictures import MADE

from vitascope.errors import OutputError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["ScriptedSink"]


class ScriptedSink:
    """Counts its calls."""

    name = "scripted"
    pixel_format: PixelFormat = "rgb24"

    def __init__(self, *, fails_in: str = "", error: BaseException | None = None) -> None:
        self.fails_in = fails_in
        self.error = error or OutputError("the cable was pulled")
        self.hangs_in = ""
        self.may_go_on = threading.Event()
        self.is_hanging = threading.Event()
        self.may_take = threading.Event()
        self.may_take.set()
        self.is_taking = threading.Event()
        self.taken: list[int] = []
        self.opened = self.closed = 0

    def _pass(self, where: str) -> None:
        if where == self.hangs_in:
            self.is_hanging.set()
            assert self.may_go_on.wait(20)
        if where == self.fails_in:
            raise self.error

    def open(self, made: SinkFormat) -> None:
        assert made == MADE
        self.opened += 1
        self._pass("open")

    def send(self, picture: LivePicture) -> None:
        self.is_taking.set()
        assert self.may_take.wait(5)
        self._pass("send")
        self.taken.append(picture.index)

    def close(self) -> None:
        self.closed += 1
        self._pass("close")
