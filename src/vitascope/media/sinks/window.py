"""A window on this screen, through SDL (pygame-ce), and its key presses."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from vitascope.errors import MissingDependencyError, OutputError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

_TITLE = "Vitascope"
_NO_WINDOW = "no window can be opened here: no screen; --sink mjpeg shows a page instead"
_OFFSCREEN = "offscreen"
"""SDL's driver for machines without a screen; ``dummy``, its other one, must be requested."""
_LARGEST_SHARE = 0.9
"""Maximum share of the screen for larger pictures."""


class WindowSink:
    """Shows pictures; can be resized. Closing it acts like the key Q.

    SDL needs its window in one thread: all calls are made on the sink's own, which works on Linux and Windows.

    Args:
        target: Empty.
        on_key: Called with the character of each pressed key, in lower case, on the sink's thread.
    """

    name = "window"
    pixel_format: PixelFormat = "rgb24"
    """SDL's native order on little-endian machines."""

    def __init__(self, target: str = "", *, on_key: Callable[[str], object] | None = None) -> None:
        del target
        self.on_key = on_key
        """May be changed until the sink is opened."""
        self._pygame: Any = None
        self._screen: Any = None
        self._shown: LivePicture | None = None

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        try:
            with redirect_stdout(io.StringIO()):  # it prints a greeting
                import pygame
        except ImportError as error:
            raise MissingDependencyError(
                "a window needs pygame-ce: pip install 'vitascope[window]'"
            ) from error
        try:
            if not _may_have_a_screen():
                raise OutputError(_NO_WINDOW)
            pygame.display.init()
            if pygame.display.get_driver() == _OFFSCREEN:
                pygame.display.quit()
                raise OutputError(_NO_WINDOW)
            screens = pygame.display.get_desktop_sizes() or [(made.width, made.height)]
            scale = min(
                1.0, screens[0][0] * _LARGEST_SHARE / made.width, screens[0][1] * _LARGEST_SHARE / made.height
            )
            size = max(round(made.width * scale), 1), max(round(made.height * scale), 1)
            self._screen = pygame.display.set_mode(size, pygame.RESIZABLE)
            pygame.display.set_caption(_TITLE)
        except pygame.error as error:
            raise OutputError(
                f"no window can be opened here: {error}; --sink mjpeg shows a page instead"
            ) from error
        self._pygame = pygame

    def send(self, picture: LivePicture) -> None:
        """Show a picture, as large as it fits, and pass on key presses."""
        self._draw(picture)
        self._shown = picture
        self.attend()

    def attend(self) -> None:
        """Pass on key presses, and redraw after the window was covered or resized."""
        pygame, is_wiped = self._pygame, False
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                self._press("q")
            elif event.type == pygame.KEYDOWN and event.unicode:
                self._press(event.unicode.lower())
            elif event.type in (pygame.VIDEOEXPOSE, pygame.VIDEORESIZE):
                is_wiped = True
        if is_wiped and self._shown is not None:
            self._draw(self._shown)

    def _draw(self, picture: LivePicture) -> None:
        pygame = self._pygame
        rgb = picture.as_format("rgb24")
        surface = pygame.image.frombuffer(rgb, picture.size, "RGB")
        width, height = self._screen.get_size()
        scale = min(width / picture.size[0], height / picture.size[1])
        size = max(round(picture.size[0] * scale), 1), max(round(picture.size[1] * scale), 1)
        if size != picture.size:
            surface = pygame.transform.smoothscale(surface, size)
            self._screen.fill((0, 0, 0))
        self._screen.blit(surface, ((width - size[0]) // 2, (height - size[1]) // 2))
        pygame.display.flip()

    def _press(self, key: str) -> None:
        if self.on_key is not None:
            self.on_key(key)

    def close(self) -> None:
        """Close the window."""
        pygame, self._pygame = self._pygame, None
        self._screen = self._shown = None
        if pygame is not None:
            pygame.display.quit()


def _may_have_a_screen() -> bool:
    """False if SDL would find no screen and Wayland's library would print an error first."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER")
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names):
        return True
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    # The name that Wayland's library uses by default.
    return folder != "" and Path(folder, "wayland-0").exists()
