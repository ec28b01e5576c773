"""A real browser without a window, spoken to by the DevTools protocol over a pipe; needs no package.

https://chromedevtools.github.io/devtools-protocol/; with ``--remote-debugging-pipe`` messages are JSON, ended by a zero
byte, to file 3 of the browser and from its file 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 60.0
"""A busy machine takes half of it to start."""
_SOFTWARE_3D = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
_LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(word), fcntl.F_DUPFD, 10) for word in sys.argv[1:3]]
for number, end in zip((3, 4), ends):
    os.dup2(end, number)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Becomes the browser, with the pipes where it looks for them; they may lie on each other's places before."""


def find_browser() -> str | None:
    """The first of the programs that is on PATH."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """A browser that runs until its ``with`` block ends; ``Page`` opens pages in it, each of a user of its own.

    Args:
        program: The browser.
        profile: A folder that it may fill.
        draws_3d: Have WebGL, computed on the CPU.
    """

    def __init__(self, program: str, profile: Path, *, draws_3d: bool = False) -> None:
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        words = [
            program, "--headless", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run",
            *(_SOFTWARE_3D if draws_3d else ["--disable-gpu"]),
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _LAUNCHER, str(read_there), str(write_there), *words],
            pass_fds=(read_there, write_there),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_there)
        os.close(write_there)
        self._read, self._write = read_here, write_here
        self._pending = b""
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=_SECONDS)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._read)
            os.close(self._write)

    @property
    def is_running(self) -> bool:
        """False once it has crashed."""
        return self._process.poll() is None

    def call(
        self,
        method: str,
        *,
        session: str | None = None,
        told: Callable[[dict[str, Any]], None] = lambda _: None,
        **params: Any,
    ) -> dict[str, Any]:
        """Ask for something, and wait for the answer.

        Args:
            method: Of the protocol.
            session: The page that is asked; the browser itself when omitted.
            told: Takes what the browser says meanwhile of its own accord.
            params: Of the method.
        """
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _SECONDS
        while True:
            answer = self.next_message(until, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            told(answer)

    def next_message(self, until: float, what: str) -> dict[str, Any]:
        """What the browser says next."""
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser does not answer: {what}")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise OSError(f"the browser ended: {what}")
            self._pending += chunk
        message, _, self._pending = self._pending.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


class Page:
    """One page, closed with the ``with`` block; it knows nothing of what other pages keep (cookies, storage).

    Args:
        browser: Where it is opened.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = browser.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session: str = attached["sessionId"]
        self.events: list[dict[str, Any]] = []
        """Everything that the browser told of this page of its own accord."""

    def __enter__(self) -> Self:
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *failure: object) -> None:
        if self._browser.is_running:
            self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        return self._browser.call(method, session=self._session, told=self._told, **params)

    def _told(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") == self._session:
            self.events.append(event)

    def show(self, address: str, *, width: int, height: int = 900, is_phone: bool = False) -> None:
        """Open an address in a window of so many CSS pixels, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )
        self.events.clear()
        self.call("Page.navigate", url=address)
        until = time.monotonic() + _SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._told(self._browser.next_message(until, f"loading {address}"))

    def run_before(self, script: str) -> None:
        """Have a script run in every page that is opened, before the page's own, whatever policy that has."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """Addresses that were asked for since ``show``."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions, since ``show``."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            logged = params.get("entry", {}).get("level") in ("error", "warning")
            written = params.get("type") in ("error", "warning", "assert")
            if (
                (method == "Log.entryAdded" and logged)
                or (method == "Runtime.consoleAPICalled" and written)
                or method == "Runtime.exceptionThrown"
            ):
                found.append(json.dumps(params))
        return found

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path, *, width_inches: float, height_inches: float) -> None:
        """The page as it is printed, with margins of 1 cm."""
        margins = {f"margin{side}": 1 / 2.54 for side in ("Top", "Bottom", "Left", "Right")}
        printed = self.call("Page.printToPDF", paperWidth=width_inches, paperHeight=height_inches, **margins)
        path.write_bytes(base64.b64decode(printed["data"]))
