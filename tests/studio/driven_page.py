"""A browser on a studio, driven like a user."""

from __future__ import annotations

import time

import numpy as np

from headless_browser import Page


class StudioPage(Page):
    """A browser on a studio."""

    def text(self, selector):
        return self.value(f"document.querySelector({selector!r})?.innerText ?? ''")

    def click(self, selector):
        """Click the middle of an element, once it can be clicked."""
        self.shown.click(selector)

    def drag(self, selector, points):
        """Press the mouse at a place of an element, in shares of its size, move it, and release it."""
        element = self.shown.locator(selector).first
        element.scroll_into_view_if_needed()
        box, mouse = element.bounding_box(), self.shown.mouse
        places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
        mouse.move(*places[0])
        mouse.down()
        for place in places[1:]:
            mouse.move(*place)
        mouse.up()

    def press(self, keys):
        """Press a key, or several, such as ``Shift+Z``."""
        self.shown.keyboard.press(keys)

    def color(self, x, y):
        """Return RGB of the picture at a place, in shares of its size; None while there is no picture."""
        return self.value(
            "(() => { const image = document.querySelector('#shown'); const c = document.createElement('canvas'); "
            "if (!image.naturalWidth) return null; "
            "c.width = image.naturalWidth; c.height = image.naturalHeight; const p = c.getContext('2d'); "
            f"p.drawImage(image, 0, 0); return [...p.getImageData(Math.floor({x} * c.width), "
            f"Math.floor({y} * c.height), 1, 1).data].slice(0, 3); }})()"
        )

    def until_color(self, x, y, rgb, seconds=60):
        end = time.monotonic() + seconds
        found = None
        while time.monotonic() < end:
            found = self.color(x, y)
            if found is not None and np.abs(np.array(found) - rgb).max() < 60:
                return
            time.sleep(0.05)
        raise AssertionError(
            f"{found}, not {rgb}; {self.value('document.body.innerText')}; {self.complaints()}"
        )


def faults(page):
    """Return the console's messages, except for responses that the page reports itself."""
    return [line for line in page.complaints() if "the server responded with a status of" not in line]
