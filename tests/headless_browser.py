"""A real browser without a window, driven by Playwright: the machine's own, as Playwright's package has none."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, Playwright, Request
    from playwright.sync_api import Page as BrowserPage

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 60.0
"""A busy machine takes half of it to start."""
_SOFTWARE_3D = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")


def find_browser() -> str | None:
    """Return the first of the programs that is on PATH."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def start_browser(playwright: Playwright, *, draws_3d: bool = False) -> Browser:
    """A browser; ``Page`` opens pages in it, each of a user of its own.

    Args:
        playwright: Drives it; a thread has one.
        draws_3d: Have WebGL, computed on the CPU.
    """
    return playwright.chromium.launch(
        executable_path=find_browser(),
        args=["--disable-dev-shm-usage", *(_SOFTWARE_3D if draws_3d else ["--disable-gpu"])],
        timeout=_SECONDS * 1e3,
        chromium_sandbox=False,
    )


_resting: WeakKeyDictionary[Browser, dict[bool, BrowserPage]] = WeakKeyDictionary()
"""An empty page of each browser, for desktops and phones: a new one takes two processes, and compiles all scripts."""


class Page:
    """One page, given back with the ``with`` block; it knows nothing of what other pages keep (cookies, storage).

    Args:
        browser: Where it is opened.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._is_phone = self._is_usual = False
        self._before: list[str] = []
        self._requests: list[str] = []
        self._complaints: list[str] = []
        self._shown: BrowserPage | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._shown is None or not self._browser.is_connected():
            return
        others = _resting.setdefault(self._browser, {})
        if not self._is_usual or any(failure) or self._is_phone in others:
            self._shown.context.close()
            return
        self._shown.evaluate(
            "try { localStorage.clear(); sessionStorage.clear(); } catch { /* of a file */ }"
        )
        self._shown.remove_listener("request", self._requested)
        self._shown.remove_listener("console", self._told)
        self._shown.remove_listener("pageerror", self._failed)
        self._shown.emulate_media(media="null")
        self._shown.goto("about:blank")
        self._shown.mouse.move(0, 0)
        self._shown.context.clear_cookies()
        others[self._is_phone] = self._shown

    @property
    def shown(self) -> BrowserPage:
        """Return Playwright's page, once ``show`` opened one."""
        assert self._shown is not None
        return self._shown

    def show(
        self, address: str, *, width: int, height: int = 900, is_phone: bool = False, **how: Any
    ) -> None:
        """Open an address in a window of so many CSS pixels, and wait until it is loaded.

        Args:
            address: What is opened.
            width: Of the window.
            height: Of the window.
            is_phone: Of the first call: one with a touch screen.
            how: More of the first call, for ``Browser.new_context``.
        """
        size = {"width": width, "height": height}
        if self._shown is None:
            self._is_phone, self._is_usual = is_phone, not self._before and not how
            resting = _resting.get(self._browser, {})
            self._shown = resting.pop(is_phone, None) if self._is_usual else None
            if self._shown is None:
                context = self._browser.new_context(is_mobile=is_phone, has_touch=is_phone, **how)
                context.set_default_timeout(_SECONDS * 1e3)
                for script in self._before:
                    context.add_init_script(script)
                self._shown = context.new_page()
            self._shown.on("request", self._requested)
            self._shown.on("console", self._told)
            self._shown.on("pageerror", self._failed)
        self._shown.set_viewport_size(size)
        self._requests.clear()
        self._complaints.clear()
        self._shown.goto(address)

    def _requested(self, request: Request) -> None:
        if not request.url.startswith("blob:"):  # in the page's own memory; late messages of a previous page
            self._requests.append(request.url)

    def _failed(self, error: Error) -> None:
        self._complaints.append(str(error))

    def _told(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self._complaints.append(f"{message.text} ({message.location.get('url')})")

    def run_before(self, script: str) -> None:
        """Run a script in every page that opens, before the page's own scripts, whatever the page's policy is."""
        self._before.append(script)

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression on the page."""
        return self.shown.evaluate(expression)

    def until(self, expression: str, seconds: float = _SECONDS) -> Any:
        """Wait until an expression is true, and return its value; the page may reload in the meantime."""
        from playwright.sync_api import Error

        def given() -> Any:
            try:
                return self.value(expression)
            except Error as error:
                if "context was destroyed" in str(error):
                    return None
                raise

        end, pause = time.monotonic() + seconds, 0.05
        while not (found := given()):
            if time.monotonic() > end:
                raise AssertionError(
                    f"{expression}\n{self.value('document.body.innerText')}\n{self.complaints()}"
                )
            time.sleep(pause)
            pause = min(1.5 * pause, 0.25)  # asking takes time, too
        return found

    def requests(self) -> list[str]:
        """Return the requested addresses since ``show``."""
        self.value("0")  # the browser's own events arrive while it answers
        return self._requests

    def complaints(self) -> list[str]:
        """Return errors and warnings of the console, and exceptions, since ``show``."""
        self.value("0")
        return self._complaints

    def screenshot(self, path: Path) -> None:
        """Save the whole page as PNG or JPEG, by the name."""
        self.shown.screenshot(path=path, full_page=True)
